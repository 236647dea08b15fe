package llm_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/kernelwright/kernelwright/internal/await"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/llm/llmtest"
)

// policies is a source with one policy, which answers nowhere.
type policies struct{}

func (policies) Known(_ context.Context, name string) error {
	if name != "v1" {
		return &llm.Error{Kind: llm.UnknownModel, Model: "policy:" + name, Text: "there is no policy " + name, Hint: "name another"}
	}
	return nil
}

func (policies) Policy(context.Context, string) (llm.PolicyServer, func(), error) {
	return llm.PolicyServer{}, nil, errors.New("it is not served")
}

// swapped is a source whose current policy changes. It counts who uses which.
type swapped struct {
	mu      sync.Mutex
	now     string
	servers map[string]*llmtest.Server
	users   map[string]int
	failed  error // instead of the next server
}

func (s *swapped) Known(context.Context, string) error { return nil }

func (s *swapped) Policy(ctx context.Context, name string) (llm.PolicyServer, func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.failed; err != nil {
		s.failed = nil
		return llm.PolicyServer{}, nil, err
	}
	version := name
	if name == "current" {
		version = s.now
	}
	s.users[version]++
	release := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.users[version]--
	}
	return llm.PolicyServer{Model: "policy:" + version, BaseURL: s.servers[version].URL, Token: llmtest.Canary, Context: 4096}, release, ctx.Err()
}

func (s *swapped) promote(version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = version
}

func newSwapped(t *testing.T) *swapped {
	return &swapped{now: "v1", users: map[string]int{}, servers: map[string]*llmtest.Server{"v1": llmtest.NewCompatible(t), "v2": llmtest.NewCompatible(t)}}
}

func TestServedPolicy(t *testing.T) {
	llmtest.Suite(t, func(t *testing.T) llmtest.Subject {
		s := newSwapped(t)
		o := s.servers["v1"].Options()
		o.BaseURL, o.KeyEnv, o.Getenv, o.Policies = "", "", nil, s
		yes := true
		o.NativeTools = &yes // the double takes them; ours does not
		m, err := llm.Open("policy:current", o)
		if err != nil {
			t.Fatal(err)
		}
		return llmtest.Subject{Model: m, Say: s.servers["v1"].Say, Whole: true, NoCacheWrite: true}
	})
}

// A promotion loses no call: one that is under way ends where it began, the next goes to
// the new version, and each is let go of. Replies, and so records, name the version.
func TestPromotionUnderCalls(t *testing.T) {
	s := newSwapped(t)
	hold := make(chan struct{})
	s.servers["v1"].Say(llmtest.Answer{Text: "by the old one", Hold: hold})
	s.servers["v2"].Say(llmtest.Answer{Text: "by the new one"})
	o := s.servers["v1"].Options()
	o.BaseURL, o.KeyEnv, o.Getenv, o.Policies = "", "", nil, s
	journal := &llmtest.Journal{}
	m, err := llm.New("policy:current", o, llm.Services{Journal: journal})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(seq int) llm.Request {
		r := llmtest.Ask("hello")
		r.Key = llm.Key{Run: 1, Agent: "coder", Seq: seq}
		return r
	}
	type answer struct {
		reply llm.Reply
		err   error
	}
	old := make(chan answer, 1)
	go func() {
		reply, err := m.Generate(t.Context(), ask(0))
		old <- answer{reply, err}
	}()
	await.Until(t, "it is under way", func() bool { return len(s.servers["v1"].Asked()) > 0 })
	s.promote("v2")
	reply, err := m.Generate(t.Context(), ask(1))
	if err != nil || reply.Text != "by the new one" || reply.Model != "policy:v2" || llm.Author(m.Name(), reply) != "policy:v2" {
		t.Errorf("%+v, %v", reply, err)
	}
	close(hold)
	if a := <-old; a.err != nil || a.reply.Text != "by the old one" || a.reply.Model != "policy:v1" {
		t.Errorf("%+v", a)
	}
	if s.users["v1"] != 0 || s.users["v2"] != 0 {
		t.Errorf("still used: %v", s.users)
	}
	// What was answered is not asked again, though another version serves.
	if again, err := m.Generate(t.Context(), ask(0)); err != nil || again.Text != "by the old one" || llm.Author(m.Name(), again) != "policy:v1" {
		t.Errorf("%+v, %v", again, err)
	}
	for i, want := range []string{"policy:v2", "policy:v1"} {
		if r := journal.Records()[i]; r.Model != "policy:current" || r.Reply.Model != want || r.CostUSD == nil || *r.CostUSD != 0 {
			t.Errorf("recorded: %+v", r)
		}
	}
}

// A server that does not start is asked for again where that may help.
func TestPoliciesThatCannotBeServed(t *testing.T) {
	for kind, asked := range map[llm.Kind]int{llm.Unavailable: 1, llm.BadRequest: 0} {
		s := newSwapped(t)
		o := s.servers["v1"].Options()
		o.BaseURL, o.KeyEnv, o.Getenv, o.Policies, o.Attempts = "", "", nil, s, 2
		m, err := llm.New("policy:v1", o, llm.Services{})
		if err != nil {
			t.Fatal(err)
		}
		s.failed = &llm.Error{Kind: kind, Model: "policy:v1", Text: "there is too little memory"}
		_, err = m.Generate(t.Context(), llmtest.Ask("hello"))
		if n := len(s.servers["v1"].Asked()); n != asked || asked == 1 && err != nil || asked == 0 && kindOf(err) != kind {
			t.Errorf("%s: asked %d times, %v", kind, n, err)
		}
		s.failed = errors.New("not now")
		if w, _, err := llm.WindowOf(t.Context(), m, llm.Key{}); err != nil || w.Context != 0 {
			t.Errorf("%+v, %v", w, err)
		}
		if w, _, err := llm.WindowOf(t.Context(), m, llm.Key{}); err != nil || w.Context != 4096 {
			t.Errorf("%+v, %v", w, err)
		}
	}
}
