package llmtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright/llm"
)

// Subject is a model under the suite.
type Subject struct {
	Model llm.Model
	// Say tells who stands behind the model what to answer to the next requests;
	// nil where it says what it likes, as a real server does.
	Say func(...Answer)
	// Plain: only replies can be told, no problems and no faults.
	Plain bool
	// Whole: a reply comes in one JSON value, so that arguments in it are JSON.
	Whole bool
	// NoCacheWrite: the protocol does not tell what was written to a cache.
	NoCacheWrite bool
	// NoRefusal: the protocol knows filters and no refusals, or takes one for the
	// other.
	NoRefusal bool
	// NoSchema: a real model that nobody holds to a schema.
	NoSchema bool
}

// Suite is the contract of llm.Model. newSubject makes a model that nobody else
// uses; what it needs to go away goes with t.Cleanup.
func Suite(t *testing.T, newSubject func(t *testing.T) Subject) {
	tests := []struct {
		name      string
		run       func(t *testing.T, s Subject)
		told, net bool // needs a Say; needs problems and faults
	}{
		{"a name", named, false, false},
		{"a reply with its usage and its reason to stop", replies, false, false},
		{"a request is left as it is", unchanged, false, false},
		{"max tokens end a reply", short, false, false},
		{"done before it begins", canceledBefore, false, false},
		{"64 at once", concurrent, false, false},
		{"no message", noMessage, false, false},
		{"texts arrive byte by byte", texts, true, false},
		{"reasons to stop", reasons, true, false},
		{"reasoning stands apart", reasoning, true, true},
		{"tools are called, and answered", tools, true, false},
		{"a reply by a schema", schema, false, false},
		{"done while waiting", canceledWithin, false, false},
		{"a talk that later calls share", shared, true, false},
		{"what caches gave and took", caches, true, true},
		{"usage is estimated where none is told", estimated, true, true},
		{"problems have kinds", problems, true, true},
		{"faults have kinds", faults, true, true},
		{"how long to wait", retryAfter, true, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := newSubject(t)
			if test.told && s.Say == nil {
				t.Skip("a real server says what it likes")
			}
			if test.net && (s.Plain || s.Say == nil) {
				t.Skip("needs a server that is told what to say")
			}
			test.run(t, s)
		})
	}
}

// Ask is a request with one message.
func Ask(text string) llm.Request {
	return llm.Request{Messages: []llm.Message{{Role: llm.User, Text: text}}, MaxTokens: 64}
}

func (s Subject) say(a ...Answer) {
	if s.Say != nil {
		s.Say(a...)
	}
}

// generate asks and fails the test on an error.
func (s Subject) generate(t *testing.T, r llm.Request) llm.Reply {
	t.Helper()
	reply, err := s.Model.Generate(t.Context(), r)
	if err != nil {
		t.Fatalf("Generate: %v", err)
	}
	return reply
}

// fails asks and returns the error that must come.
func (s Subject) fails(t *testing.T, r llm.Request) *llm.Error {
	t.Helper()
	reply, err := s.Model.Generate(t.Context(), r)
	var e *llm.Error
	if !errors.As(err, &e) {
		t.Fatalf("Generate returned %+v and %v, want an *llm.Error", reply, err)
	}
	if !reflect.DeepEqual(reply, llm.Reply{}) {
		t.Errorf("a reply came with the error: %+v", reply)
	}
	if e.Model != s.Model.Name() || e.Text == "" || strings.ContainsAny(e.Text, "\n\r") {
		t.Errorf("an error is one line that names the model: %+v", e)
	}
	NoKey(t, e)
	return e
}

// NoKey fails the test where anything of v shows the key.
func NoKey(t testing.TB, v any) {
	t.Helper()
	texts := []string{fmt.Sprintf("%v", v), fmt.Sprintf("%+v", v), fmt.Sprintf("%#v", v)}
	if b, err := json.Marshal(v); err == nil {
		texts = append(texts, string(b))
	}
	if e, ok := v.(error); ok {
		for e = errors.Unwrap(e); e != nil; e = errors.Unwrap(e) {
			texts = append(texts, fmt.Sprintf("%v %+v %#v", e, e, e))
		}
	}
	for _, s := range texts {
		if strings.Contains(s, Canary) {
			t.Errorf("the key is in %s", s)
		}
	}
}

func named(t *testing.T, s Subject) {
	name := s.Model.Name()
	if _, _, err := llm.Split(name); err != nil {
		t.Errorf("the name %q: %v", name, err)
	}
	if again := s.Model.Name(); again != name {
		t.Errorf("the name was %q and is %q", name, again)
	}
}

func replies(t *testing.T, s Subject) {
	s.say(Answer{Text: "hello there"})
	got := s.generate(t, Ask("say hello"))
	if got.Usage.In <= 0 || got.Usage.Out <= 0 {
		t.Errorf("usage %+v", got.Usage)
	}
	if got.Stop != llm.StopEnd && (s.Say != nil || got.Stop != llm.StopLength) {
		t.Errorf("stop %q", got.Stop)
	}
	if s.Say != nil && got.Text != "hello there" {
		t.Errorf("text %q", got.Text)
	}
}

func unchanged(t *testing.T, s Subject) {
	warm, seed := 0.5, int64(7)
	r := Ask("say something")
	r.Temperature, r.TopP, r.Seed = &warm, &warm, &seed
	r.Messages = append([]llm.Message{{Role: llm.System, Text: "you are brief"}}, r.Messages...)
	before, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	digest := r.Digest(s.Model.Name())
	s.generate(t, r)
	after, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if string(before) != string(after) || r.Digest(s.Model.Name()) != digest {
		t.Errorf("the request was changed:\n%s\n%s", before, after)
	}
}

func short(t *testing.T, s Subject) {
	s.say(Answer{Text: "once upon", Stop: llm.StopLength})
	r := Ask("tell a long story")
	cold := 0.0 // by chance a model's first token may end its reply
	r.MaxTokens, r.Temperature = 4, &cold
	got := s.generate(t, r)
	if got.Stop != llm.StopLength {
		t.Errorf("stop %q, text %q", got.Stop, got.Text)
	}
	if s.Say == nil && got.Usage.Out > 4 {
		t.Errorf("%d tokens out where 4 were allowed", got.Usage.Out)
	}
}

func canceledBefore(t *testing.T, s Subject) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Model.Generate(ctx, Ask("hello")); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v, want the context's", err)
	}
}

func canceledWithin(t *testing.T, s Subject) {
	answers := []Answer{{Hold: make(chan struct{})}, {Fault: Endless}}
	if s.Plain || s.Say == nil {
		answers = answers[:1]
	}
	patience := 50 * time.Millisecond
	if s.Say == nil { // which cannot be held back
		patience = time.Millisecond
	}
	for _, a := range answers {
		s.say(a)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		r := Ask("tell a long story")
		r.MaxTokens = 4000
		_, err := s.Model.Generate(ctx, r)
		var e *llm.Error
		tooLong := a.Fault == Endless && errors.As(err, &e) && e.Kind == llm.Malformed // its bound came first
		if !errors.Is(err, context.DeadlineExceeded) && !tooLong {
			t.Errorf("the error is %v, want the context's", err)
		}
		cancel()
	}
}

func concurrent(t *testing.T, s Subject) {
	const n = 64
	if s.Say != nil {
		for range n {
			s.Say(Answer{Text: "yes"})
		}
	}
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			r := Ask("yes or no")
			r.MaxTokens = 2
			reply, err := s.Model.Generate(t.Context(), r)
			if err != nil {
				t.Errorf("Generate: %v", err)
			} else if s.Say != nil && reply.Text != "yes" {
				t.Errorf("text %q", reply.Text)
			}
		})
	}
	wg.Wait()
}

func noMessage(t *testing.T, s Subject) {
	if e := s.fails(t, llm.Request{}); e.Kind != llm.BadRequest {
		t.Errorf("kind %q", e.Kind)
	}
}

func texts(t *testing.T, s Subject) {
	for _, text := range []string{
		"```cuda\r\n__global__ void k() {}\r\n```\r\n",
		"  leading and trailing \n\n",
		"\u00fc \u65e5\u672c\u8a9e \U0001f600 \u0000 \u2028 </script> data: [DONE]",
		"data: {\"choices\": []}\n\ndata: [DONE]\n\n",
		strings.Repeat("0123456789abcdef", 20<<10), // one line of 320 KB
		strings.Repeat("line of a long file\n", 10_000),
	} {
		for _, n := range []int{1, 7} {
			s.say(Answer{Text: text, Pieces: n})
			if got := s.generate(t, Ask("go on")); got.Text != text {
				t.Errorf("%d bytes in %d pieces came back as %d: %.60q", len(text), n, len(got.Text), got.Text)
			}
		}
	}
	s.say(Answer{Text: ""})
	r := Ask("go on")
	got := s.generate(t, r)
	if got.Text != "" || got.Stop != llm.StopEnd {
		t.Errorf("an empty reply came as %+v", got)
	}
	// Even such a talk can go on.
	r.Messages = append(r.Messages, got.Message(), llm.Message{Role: llm.User, Text: "you said nothing"})
	s.say(Answer{Text: "sorry"})
	if got := s.generate(t, r); got.Text != "sorry" {
		t.Errorf("after an empty reply: %+v", got)
	}
}

func reasons(t *testing.T, s Subject) {
	for _, stop := range []llm.Stop{llm.StopEnd, llm.StopLength, llm.StopFiltered, llm.StopRefused} {
		s.say(Answer{Text: "some text", Stop: stop})
		got := s.generate(t, Ask("go on"))
		same := s.NoRefusal && (stop == llm.StopFiltered || stop == llm.StopRefused) && (got.Stop == llm.StopFiltered || got.Stop == llm.StopRefused)
		if got.Stop != stop && !same {
			t.Errorf("stop %q, want %q", got.Stop, stop)
		}
		if got.Text != "some text" {
			t.Errorf("stop %q: text %q", stop, got.Text)
		}
	}
}

func reasoning(t *testing.T, s Subject) {
	s.say(Answer{Text: "42", Reasoning: "let me see\nsix times seven", Usage: &llm.Usage{In: 100, Out: 50, CachedIn: 60, Reasoning: 40}})
	got := s.generate(t, Ask("what is it"))
	if got.Text != "42" || got.Reasoning != "let me see\nsix times seven" {
		t.Errorf("text %q, reasoning %q", got.Text, got.Reasoning)
	}
	if u := got.Usage; u.In != 100 || u.Out != 50 || u.CachedIn != 60 || u.Estimated {
		t.Errorf("usage %+v", u)
	}
}

var readTool = llm.Tool{
	Name: "read", Description: "Reads a file.",
	Parameters: json.RawMessage(`{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}`),
}

func tools(t *testing.T, s Subject) {
	second := "{\"path\": \"b.cu\", " // a model that stops in the middle
	if s.Whole {
		second = `["b.cu"]`
	}
	s.say(Answer{
		Text: "I look.", Reasoning: "two files",
		Tools: []llm.ToolCall{{ID: "one", Name: "read", Arguments: `{"path":"a.cu"}`}, {Name: "read", Arguments: second}, {Name: "read", Arguments: `{}`}},
	})
	r := Ask("read the files")
	r.Tools = []llm.Tool{readTool}
	got := s.generate(t, r)
	if got.Stop != llm.StopTools || len(got.ToolCalls) != 3 {
		t.Fatalf("stop %q, calls %+v", got.Stop, got.ToolCalls)
	}
	seen := make(map[string]bool)
	for i, c := range got.ToolCalls {
		if c.Name != "read" || c.ID == "" || seen[c.ID] {
			t.Errorf("call %d is %+v", i, c)
		}
		seen[c.ID] = true
	}
	if got.ToolCalls[0].ID != "one" || got.ToolCalls[0].Arguments != `{"path":"a.cu"}` || got.ToolCalls[1].Arguments != second {
		t.Errorf("calls %+v", got.ToolCalls)
	}
	// The talk goes on: the server takes back what it said.
	r.Append = true
	r.Messages = append(r.Messages, got.Message())
	for _, c := range got.ToolCalls {
		r.Messages = append(r.Messages, llm.Message{Role: llm.ToolRole, Call: c.ID, Name: c.Name, Text: "contents"})
	}
	s.say(Answer{Text: "done"})
	if got := s.generate(t, r); got.Text != "done" || got.Stop != llm.StopEnd {
		t.Errorf("after the tools: %+v", got)
	}
}

func schema(t *testing.T, s Subject) {
	if s.NoSchema {
		t.Skip("its server holds no reply to a schema")
	}
	s.say(Answer{Text: `{"kind":"stop","why":"at the floor"}`, Stop: llm.StopEnd})
	r := Ask("evaluate it")
	r.MaxTokens = 300 // with all the space that JSON allows
	r.Schema = &llm.Schema{Name: "feedback", Schema: json.RawMessage(`{"type":"object","properties":{
		"kind":{"type":"string","enum":["stop"]},"why":{"type":"string","enum":["at the floor"]}},
		"required":["kind","why"],"additionalProperties":false}`)} // whoever is held to it says this
	got := s.generate(t, r)
	var v struct{ Kind, Why string }
	if err := json.Unmarshal([]byte(got.Text), &v); err != nil || v.Kind != "stop" || v.Why != "at the floor" || got.Stop != llm.StopEnd || got.ToolCalls != nil {
		t.Errorf("%+v: %v", got, err)
	}
}

// shared: that a talk will go on changes nothing of what is said.
func shared(t *testing.T, s Subject) {
	var r llm.Request
	r.Messages = []llm.Message{{Role: llm.System, Text: "you read files", Shared: 3}, {Role: llm.User, Text: "the t\u00e4sk, and the rest", Shared: 6}}
	r.Tools = []llm.Tool{readTool}
	for i := range 5 {
		s.say(Answer{Text: "I look.", Tools: []llm.ToolCall{{ID: fmt.Sprint("call", i), Name: "read", Arguments: `{}`}}})
		got := s.generate(t, r)
		if got.Text != "I look." || len(got.ToolCalls) != 1 {
			t.Fatalf("turn %d: %+v", i, got)
		}
		r.Append = true
		r.Messages = append(r.Messages, got.Message())
		for _, c := range got.ToolCalls {
			text := fmt.Sprint("file ", i)
			r.Messages = append(r.Messages, llm.Message{Role: llm.ToolRole, Call: c.ID, Name: c.Name, Text: text, Shared: len(text)})
		}
	}
	for _, n := range []int{0, 1, 99} { // blanks, and more than there is
		s.say(Answer{Text: "yes"})
		blank := llm.Request{Messages: []llm.Message{{Role: llm.User, Text: " \n a", Shared: n}, {Role: llm.Assistant, Text: "what?", Shared: n}, {Role: llm.User, Text: "", Shared: n}}}
		if got := s.generate(t, blank); got.Text != "yes" {
			t.Errorf("%+v", got)
		}
	}
}

func caches(t *testing.T, s Subject) {
	want := llm.Usage{In: 1000, Out: 50, CachedIn: 600, CacheWrite: 300}
	s.say(Answer{Text: "yes", Usage: &want})
	if s.NoCacheWrite {
		want.CacheWrite = 0
	}
	if got := s.generate(t, Ask("yes or no")); got.Usage != want {
		t.Errorf("usage %+v, want %+v", got.Usage, want)
	}
}

func estimated(t *testing.T, s Subject) {
	s.say(Answer{Text: strings.Repeat("word ", 100), NoUsage: true})
	got := s.generate(t, Ask(strings.Repeat("word ", 100)))
	if u := got.Usage; !u.Estimated || u.In < 100 || u.Out < 100 || u.In > 500 || u.Out > 500 {
		t.Errorf("usage %+v", u)
	}
}

func problems(t *testing.T, s Subject) {
	for _, test := range []struct {
		problem   Problem
		kind      llm.Kind
		temporary bool
	}{
		{WrongKey, llm.BadKey, false},
		{NoRight, llm.BadKey, false},
		{NoModel, llm.UnknownModel, false},
		{TooMany, llm.RateLimited, true},
		{NoMoney, llm.Quota, false},
		{Overloaded, llm.Unavailable, true},
		{Broken, llm.Unavailable, true},
		{PromptTooLong, llm.TooLong, false},
		{BadField, llm.BadRequest, false},
		{Page, llm.Unavailable, true},
		{Moved, llm.BadRequest, false},
	} {
		s.say(Answer{Problem: test.problem})
		e := s.fails(t, Ask("hello"))
		if e.Kind != test.kind || e.Temporary() != test.temporary || e.Status < 300 || e.Hint == "" {
			t.Errorf("%s: kind %q, status %d: %v (%s)", test.problem, e.Kind, e.Status, e, e.Hint)
		}
	}
}

func faults(t *testing.T, s Subject) {
	for _, test := range []struct {
		fault Fault
		kinds []llm.Kind
	}{
		{Cut, []llm.Kind{llm.Truncated}},
		{NoStop, []llm.Kind{llm.Truncated}},
		{Reset, []llm.Kind{llm.Truncated}},
		{Refused, []llm.Kind{llm.Unavailable}},
		{Garbage, []llm.Kind{llm.Malformed}},
		{Endless, []llm.Kind{llm.Malformed}},
		{LongLine, []llm.Kind{llm.Malformed}},
		{InStream, []llm.Kind{llm.Unavailable}},
	} {
		s.say(Answer{Text: "half of a kernel", Fault: test.fault})
		e := s.fails(t, Ask("hello"))
		ok := false
		for _, k := range test.kinds {
			ok = ok || e.Kind == k
		}
		if !ok || !e.Temporary() || e.Hint == "" {
			t.Errorf("%s: kind %q: %v (%s)", test.fault, e.Kind, e, e.Hint)
		}
	}
	// And the model still answers.
	replies(t, s)
}

func retryAfter(t *testing.T, s Subject) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		header map[string][]string
		want   time.Duration
	}{
		{map[string][]string{"Retry-After": {"17"}}, 17 * time.Second},
		{map[string][]string{"Retry-After": {now.Add(90 * time.Second).Format("Mon, 02 Jan 2006 15:04:05 GMT")}, "Date": {now.Format("Mon, 02 Jan 2006 15:04:05 GMT")}}, 90 * time.Second},
		{map[string][]string{"Retry-After": {now.Add(-time.Hour).Format("Mon, 02 Jan 2006 15:04:05 GMT")}}, 0},
		{map[string][]string{"Retry-After-Ms": {"250"}}, 250 * time.Millisecond},
		{map[string][]string{"Retry-After": {"soon"}}, 0},
		{map[string][]string{"Retry-After": {"-3"}}, 0},
		{map[string][]string{"Retry-After": {"1e300"}}, 24 * time.Hour},
		{nil, 0},
	} {
		s.say(Answer{Problem: TooMany, Header: test.header})
		if e := s.fails(t, Ask("hello")); e.Kind != llm.RateLimited || e.RetryAfter != test.want {
			t.Errorf("%v: kind %q, %v", test.header, e.Kind, e.RetryAfter)
		}
	}
}
