package llm_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/llm/llmtest"
)

// posted is a reply as a sampler posts it.
func posted(text string) llm.Reply {
	return llm.Reply{Text: text, Stop: llm.StopEnd, PromptIDs: []int{1, 2, 3}, TokenIDs: []int{4, 5}, LogProbs: []float64{-0.5, 0}}
}

func TestPolicy(t *testing.T) {
	llmtest.Suite(t, func(t *testing.T) llmtest.Subject {
		b := llm.NewBroker(0)
		answers := make(chan llmtest.Answer, 100)
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { // a sampler
			defer close(done)
			for {
				calls, err := b.Claim(ctx, "training:tiny", 1)
				if err != nil {
					return
				}
				a := llmtest.Answer{Text: "hello"}
				select {
				case a = <-answers:
				default:
				}
				if a.Hold != nil {
					continue
				}
				r := posted(a.Text)
				r.ToolCalls, r.Reasoning = a.Tools, a.Reasoning
				for i := range r.ToolCalls {
					if r.ToolCalls[i].ID == "" {
						r.ToolCalls[i].ID = fmt.Sprint("call ", i)
					}
				}
				switch {
				case a.Stop != "":
					r.Stop = a.Stop
				case len(a.Tools) > 0:
					r.Stop = llm.StopTools
				}
				if err := b.Post(calls[0].ID, r); err != nil {
					t.Error(err)
				}
			}
		}()
		t.Cleanup(func() { stop(); <-done; b.Close() })
		return llmtest.Subject{Model: b.Model("training:tiny"), Plain: true, Say: func(all ...llmtest.Answer) {
			for _, a := range all {
				answers <- a
			}
		}}
	})
}

// Hundreds of episodes at once, several samplers: every call gets its own
// reply, once, in the order of asking where there is one sampler.
func TestPolicyAtScale(t *testing.T) {
	const episodes, turns, samplers = 300, 5, 4
	b := llm.NewBroker(0)
	m := b.Model("training:v7")
	ctx, stop := context.WithCancel(t.Context())
	var sampling, asking sync.WaitGroup
	for range samplers {
		sampling.Go(func() {
			for {
				calls, err := b.Claim(ctx, "training:v7", 32)
				if err != nil {
					return
				}
				for _, c := range calls {
					if err := b.Post(c.ID, posted(fmt.Sprint("to ", c.Request.Messages[0].Text))); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	for e := range episodes {
		asking.Go(func() {
			for turn := range turns {
				r := llmtest.Ask(fmt.Sprint(e, "/", turn))
				r.Key = llm.Key{Run: int64(e + 1), Agent: "coder", Seq: turn}
				r.Append = turn > 0
				reply, err := m.Generate(ctx, r)
				if err != nil || reply.Text != fmt.Sprint("to ", e, "/", turn) || len(reply.TokenIDs) != 2 || reply.Usage != (llm.Usage{In: 3, Out: 2}) {
					t.Errorf("episode %d, turn %d: %+v, %v", e, turn, reply, err)
				}
			}
		})
	}
	asking.Wait()
	stop()
	sampling.Wait()
	if left := b.Pending(); len(left) != 0 {
		t.Errorf("%d calls are left", len(left))
	}
}

func TestPolicyPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := llm.NewBroker(0)
		defer b.Close()
		for i := range 3 {
			go func() {
				time.Sleep(time.Duration(i) * time.Second)
				r := llmtest.Ask(fmt.Sprint(i))
				r.Append = i == 1
				_, _ = b.Model("training:a").Generate(t.Context(), r)
			}()
		}
		go func() { _, _ = b.Model("training:b").Generate(t.Context(), llmtest.Ask("other")) }()
		time.Sleep(time.Minute)
		claimed, err := b.Claim(t.Context(), "training:a", 2)
		if err != nil || len(claimed) != 2 || claimed[0].Request.Messages[0].Text != "0" || !claimed[1].Request.Append {
			t.Fatalf("claimed %+v, %v", claimed, err)
		}
		pending := b.Pending()
		if len(pending) != 4 {
			t.Fatalf("%d calls wait", len(pending))
		}
		for _, p := range pending {
			want := p.ID == claimed[0].ID || p.ID == claimed[1].ID
			if p.Claimed != want {
				t.Errorf("claimed is %v: %+v", p.Claimed, p)
			}
		}
		// The rest, then nothing: Claim waits.
		if rest, err := b.Claim(t.Context(), "training:a", 10); err != nil || len(rest) != 1 {
			t.Errorf("the rest: %+v, %v", rest, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := b.Claim(ctx, "training:a", 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("nothing to claim: %v", err)
		}
	})
}

func TestPolicyEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := llm.NewBroker(time.Minute)
		m := b.Model("training:a")
		began := time.Now()
		if _, err := m.Generate(t.Context(), llmtest.Ask("a")); kindOf(err) != llm.Late || time.Since(began) != time.Minute {
			t.Errorf("nobody answers: %v after %v", err, time.Since(began))
		}
		if n := len(b.Pending()); n != 0 {
			t.Errorf("%d calls are left", n)
		}
		var closed error
		go func() { _, closed = m.Generate(t.Context(), llmtest.Ask("c")) }()
		synctest.Wait()
		id := b.Pending()[0].ID
		b.Close()
		b.Close()
		synctest.Wait()
		if kindOf(closed) != llm.Unreachable {
			t.Errorf("closed: %v", closed)
		}
		if err := b.Post(id, posted("late")); err == nil || !strings.Contains(err.Error(), "no call") {
			t.Errorf("post after the end: %v", err)
		}
		if _, err := m.Generate(t.Context(), llmtest.Ask("d")); kindOf(err) != llm.Unreachable {
			t.Errorf("after the end: %v", err)
		}
		if _, err := b.Claim(t.Context(), "training:a", 1); err == nil {
			t.Error("claimed after the end")
		}
	})
}

// A call that is given up while it is answered either gets the answer or is
// gone for whoever posts: never both, never neither.
func TestPolicyGivenUpWhileAnswered(t *testing.T) {
	b := llm.NewBroker(0)
	defer b.Close()
	m := b.Model("training:a")
	for range 500 {
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() {
			_, err := m.Generate(ctx, llmtest.Ask("a"))
			result <- err
		}()
		calls, err := b.Claim(t.Context(), "training:a", 1)
		if err != nil {
			t.Fatal(err)
		}
		cancel() // who waits is awake now, and has not looked yet
		posted := b.Post(calls[0].ID, posted("b"))
		if err := <-result; (err == nil) != (posted == nil) {
			t.Fatalf("Generate: %v, Post: %v", err, posted)
		}
	}
}

func TestPostChecks(t *testing.T) {
	for _, test := range []struct {
		change func(*llm.Reply)
		want   string
	}{
		{func(r *llm.Reply) { r.Stop = "" }, "stop is"},
		{func(r *llm.Reply) { r.TokenIDs = nil }, "2 log_probs for 0 token_ids"},
		{func(r *llm.Reply) { r.PromptIDs[1] = -1 }, "prompt_ids[1] is -1"},
		{func(r *llm.Reply) { r.TokenIDs[0] = math.MaxInt32 + 1 }, "token_ids[0] is 2147483648"},
		{func(r *llm.Reply) { r.LogProbs = r.LogProbs[:1] }, "1 log_probs for 2 token_ids"},
		{func(r *llm.Reply) { r.LogProbs[1] = math.NaN() }, "log_probs[1] is NaN"},
		{func(r *llm.Reply) { r.LogProbs[0] = 0.5 }, "log_probs[0] is 0.5"},
		{func(r *llm.Reply) { r.ToolCalls = []llm.ToolCall{{Name: "read"}} }, "tool_calls[0] has no id"},
	} {
		b := llm.NewBroker(0)
		r := posted("text")
		test.change(&r)
		if err := b.Post("x", r); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("want %q: %v", test.want, err)
		}
	}
}
