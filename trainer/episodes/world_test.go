package episodes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	kw "github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/coder"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/judge"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/prompts"
	"github.com/kernelwright/kernelwright/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hardware evaluates by what a text says, so many at a time, and remembers.
type hardware struct {
	mu        sync.Mutex
	evaluated map[string]int // by source
	batches   [][]string
	known     map[string]kw.Verdict
	hold      chan struct{} // nil: nobody is held up
	held      chan struct{} // one for each that is
	busy      int
	atOnce    int // 0: 1
	read      int
}

func (*hardware) Device() kw.Device {
	return kw.Device{Kind: kw.CPUDevice, Key: "a test's", Name: "a test's CPU"}
}

func (h *hardware) Inspect(_ context.Context, name, source string) (kw.Task, error) {
	defer h.use()()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.read++
	if strings.Contains(source, "no task") {
		return kw.Task{}, &kw.InvalidTaskError{Reason: "it defines no Model", Hint: "define one"}
	}
	if strings.Contains(source, "no machine") {
		return kw.Task{}, &kw.InfrastructureError{Op: "inspect", Err: errors.New("out of order")}
	}
	return kw.Task{Fingerprint: kw.HashText(source), Name: name, Source: source}, nil
}

// use fails where more use the device at once than may.
func (h *hardware) use() func() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.busy++; h.busy > max(h.atOnce, 1) {
		panic(fmt.Sprintf("%d use the device at once", h.busy))
	}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.busy--
	}
}

func (h *hardware) Evaluate(context.Context, kw.Task, kw.Candidate, kw.Level) (kw.Verdict, error) {
	panic("verdicts come in batches")
}

// verdict of a source: what it says in words.
func verdict(source string) kw.Verdict {
	v := kw.Verdict{Status: kw.Correct, Reason: "agrees", CandidateMS: 1, Language: kw.CPP, Speedups: map[string]kw.Speedup{"eager": {Low: 1, High: 1.1}, "compile": {Low: 0.9, High: 1}}}
	switch {
	case strings.Contains(source, "wrong"):
		return kw.Verdict{Status: kw.Wrong, Reason: "differs"}
	case strings.Contains(source, "cheat"):
		return kw.Verdict{Status: kw.Cheated, Reason: "deceives"}
	case strings.Contains(source, "fastest"):
		v.Speedups = map[string]kw.Speedup{"eager": {Low: 2}, "compile": {Low: 1.06}}
	case strings.Contains(source, "vague"):
		v.Speedups["eager"] = kw.Speedup{Value: 1.5, Low: 0.5, High: 4}
	case strings.Contains(source, "disturbed"):
		v.Timing.Disturbed = true
		v.Speedups["eager"] = kw.Speedup{Value: 1.1, Low: 0.9, High: 1.2}
	case strings.Contains(source, "alone"):
		v.Speedups = map[string]kw.Speedup{"eager": {Low: 2, High: 3}}
	case strings.Contains(source, "faster"):
		v.Speedups["eager"] = kw.Speedup{Low: 1.06}
	}
	return v
}

func (h *hardware) EvaluateBatch(ctx context.Context, t kw.Task, cs []kw.Candidate, l kw.Level, yield func(int, kw.Verdict) error) error {
	defer h.use()()
	var batch []string
	for _, c := range cs {
		batch = append(batch, c.Source)
	}
	h.mu.Lock()
	h.batches = append(h.batches, batch)
	hold := h.hold
	h.mu.Unlock()
	if hold != nil {
		h.held <- struct{}{}
		select {
		case <-hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for i, c := range cs {
		if err := ctx.Err(); err != nil {
			return err
		}
		if strings.Contains(c.Source, "breaks the machine") {
			return &kw.InfrastructureError{Op: "evaluate", Err: errors.New("out of order")}
		}
		v := verdict(c.Source)
		v.Task, v.Level = t.Fingerprint, l
		h.mu.Lock()
		h.evaluated[c.Source]++
		if strings.Contains(c.Source, "vague once") && h.evaluated[c.Source] > 1 {
			v.Speedups["eager"] = kw.Speedup{Value: 1.5, Low: 1.4, High: 1.6}
		}
		if told(&v) { // as hwfeedback does
			h.known[t.Fingerprint+c.Source] = v
		}
		h.mu.Unlock()
		if err := yield(i, v); err != nil {
			return err
		}
	}
	return nil
}

func (h *hardware) Known(_ context.Context, t kw.Task, c kw.Candidate, _ kw.Level) (kw.Verdict, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v, ok := h.known[t.Fingerprint+c.Source]
	v.Cached = ok
	return v, ok
}

func (h *hardware) BuildOnly(context.Context, kw.Candidate) (kw.BuildReport, string, error) {
	defer h.use()()
	return kw.BuildReport{Form: "native"}, "", nil
}

// clock is one that a test sets.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// world is a server with all that is round it.
type world struct {
	t        testing.TB
	hardware *hardware
	strict   map[Conditions]bool // what was asked for
	clock    *clock
	store    *store.Store
	episodes *Episodes
	url      string
	client   *http.Client
}

func newWorld(t testing.TB, with ...func(*Options)) *world {
	t.Helper()
	return newWorldIn(t, filepath.Join(t.TempDir(), store.FileName), with...)
}

func newWorldIn(t testing.TB, path string, with ...func(*Options)) *world {
	t.Helper()
	w := &world{t: t, clock: &clock{now: time.UnixMilli(1_700_000_000_000)}, strict: map[Conditions]bool{}}
	w.hardware = &hardware{evaluated: map[string]int{}, known: map[string]kw.Verdict{}, held: make(chan struct{}, 1000)}
	templates, err := prompts.LoadTemplates("")
	if err != nil {
		t.Fatal(err)
	}
	if w.store, err = store.Open(path); err != nil {
		t.Fatal(err)
	}
	o := Options{
		Store: w.store, Judge: judge.Rules{}, Prompts: templates, Settings: forge.DefaultSettings(), Now: w.clock.Now,
		Hardware: func(_ context.Context, c Conditions) (Hardware, error) {
			w.strict[c] = true
			return w.hardware, nil
		},
	}
	for _, f := range with {
		f(&o)
	}
	if w.episodes, err = New(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(w.episodes.Handler(""))
	transport := &http.Transport{MaxIdleConnsPerHost: 1000}
	w.url, w.client = h.URL, &http.Client{Transport: transport}
	t.Cleanup(func() {
		w.episodes.Close()
		transport.CloseIdleConnections()
		h.Close()
		if err := w.store.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// call sends a request and returns its status and what the answer is.
func (w *world) call(method, path string, body any) (int, map[string]any) {
	w.t.Helper()
	code, text, err := w.try(method, path, body)
	if err != nil {
		w.t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(text, &got); err != nil {
		w.t.Fatalf("%s %s: %d %s", method, path, code, text)
	}
	return code, got
}

func (w *world) try(method, path string, body any) (int, []byte, error) {
	var in io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		in = strings.NewReader(b)
	default:
		text, err := json.Marshal(b)
		if err != nil {
			return 0, nil, err
		}
		in = bytes.NewReader(text)
	}
	r, err := http.NewRequest(method, w.url+path, in)
	if err != nil {
		return 0, nil, err
	}
	answer, err := w.client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return answer.StatusCode, text, err
}

// must is call for what has to succeed.
func (w *world) must(method, path string, body any) Answer {
	w.t.Helper()
	code, text, err := w.try(method, path, body)
	var a Answer
	if err == nil {
		err = json.Unmarshal(text, &a)
	}
	if err != nil || code >= 300 {
		w.t.Errorf("%s %s: %d %.500s, %v", method, path, code, text, err)
	}
	return a
}

func (w *world) start(with map[string]any) Answer {
	w.t.Helper()
	body := map[string]any{"reference": "class Model: pass", "rounds": 1}
	for k, v := range with {
		body[k] = v
	}
	return w.must("POST", "/v1/episodes", body)
}

func (w *world) turn(id int64, with map[string]any) Answer {
	w.t.Helper()
	return w.must("POST", fmt.Sprintf("/v1/episodes/%d/turns", id), with)
}

// file is a completion with a candidate that is what the words say.
func file(words string) string {
	return "Here.\n```python\nfrom kernelwright import native\nimport torch\n\nlib = native(language=\"cpp\", source=\"\"\"extern \"C\" void f() {}\"\"\")\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x  # " + words + "\n```\n"
}

// text is a turn of that.
func text(words string) map[string]any { return map[string]any{"text": file(words)} }

// replayed are the agents of an episode, whose policy answers from the record alone.
func (w *world) replayed(policy string) forge.Parts {
	m := llm.Replay(policy, w.store)
	return forge.Parts{Coder: coder.Model{LLM: m, Prompts: w.episodes.o.Prompts}, Model: m, Journal: w.store, Prompts: w.episodes.o.Prompts}
}
