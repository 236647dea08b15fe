package forgetest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/prompts"
)

var errCrash = errors.New("the power went")

// world is everything round a strategy, deterministic but for the order in
// which things are asked at once: a model whose calls are recorded, agents over
// it, an evaluator, a recorder, and a crash that can be set to any call.
type world struct {
	mu      sync.Mutex
	seed    int64
	now     time.Time
	calls   int
	crashAt int // 0 for never
	budget  int // calls of the model that are paid for; negative for any number
	prose   int // so many answers hold nothing, whatever the seed says
	batch   bool
	fail    *llm.Error // what the model returns instead of answering

	rounds    []kernelwright.Round
	journal   map[llm.Key][]llm.Record
	paid      map[string]int // calls of the model, by key and digest
	evaluated map[string]int // evaluations, by level and source
}

func newWorld(seed int64) *world {
	return &world{
		seed: seed, now: time.UnixMilli(1_000_000), budget: -1, batch: seed%2 == 0,
		journal: map[llm.Key][]llm.Record{}, paid: map[string]int{}, evaluated: map[string]int{},
	}
}

func (w *world) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

// step is a call of anything: it takes time, and from crashAt on nothing works.
func (w *world) step(d time.Duration) error {
	w.calls++
	if w.crashAt > 0 && w.calls >= w.crashAt {
		return errCrash
	}
	w.now = w.now.Add(d)
	return nil
}

func (w *world) Rounds(context.Context, int64) ([]kernelwright.Round, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.rounds), w.step(0)
}

func (w *world) AppendRound(_ context.Context, r kernelwright.Round) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.step(0); err != nil {
		return err
	}
	if r.Index != len(w.rounds) {
		return fmt.Errorf("round %d after %d", r.Index, len(w.rounds))
	}
	w.rounds = append(w.rounds, r)
	return nil
}

func (w *world) SetCertificate(_ context.Context, _ int64, index int, v kernelwright.Verdict) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.step(0); err != nil {
		return err
	}
	w.rounds[index].Certificate = &v
	return nil
}

func (w *world) Evaluate(ctx context.Context, _ kernelwright.Task, c kernelwright.Candidate, l kernelwright.Level) (kernelwright.Verdict, error) {
	if err := ctx.Err(); err != nil {
		return kernelwright.Verdict{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.step(700 * time.Millisecond); err != nil {
		return kernelwright.Verdict{}, err
	}
	w.evaluated[string(l)+c.Source]++
	return w.verdict(c, l), nil
}

// batcher is a world whose evaluator takes batches and builds.
type batcher struct{ *world }

func (b batcher) EvaluateBatch(ctx context.Context, t kernelwright.Task, cs []kernelwright.Candidate, l kernelwright.Level, yield func(int, kernelwright.Verdict) error) error {
	for i, c := range cs {
		v, err := b.Evaluate(ctx, t, c, l)
		if err == nil {
			err = yield(i, v)
		}
		if err != nil {
			return fmt.Errorf("batch: %w", err)
		}
	}
	return nil
}

func (b batcher) BuildOnly(_ context.Context, c kernelwright.Candidate) (kernelwright.BuildReport, string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.step(50 * time.Millisecond); err != nil {
		return kernelwright.BuildReport{}, "", err
	}
	// What a compiler says may differ from time to time, by a path for one: who
	// asks again although it is in the record sees something else.
	known := 0
	for _, records := range b.journal {
		for _, r := range records {
			if r.Key.Agent == "compile" && strings.HasSuffix(r.Request.Messages[0].Text, c.Source) {
				known++
			}
		}
	}
	report := kernelwright.BuildReport{Log: fmt.Sprintf("time %d", known)}
	if number(b.seed, c.Source)%4 == 0 {
		return report, "it does not compile", nil
	}
	return report, "", nil
}

func (w *world) verdict(c kernelwright.Candidate, l kernelwright.Level) kernelwright.Verdict {
	n := number(w.seed, c.Source)
	v := kernelwright.Verdict{Level: l, Metrics: map[string]float64{"custom_share": 0.5}}
	switch {
	case n%4 == 0:
		v.Status, v.Reason = kernelwright.Wrong, "wrong"
	case l == kernelwright.Certify && n%3 == 0:
		v.Status, v.Reason = kernelwright.Wrong, "wrong on other seeds"
	default:
		ms := float64(100+n%900) / 100
		v.Status, v.CandidateMS, v.Headroom = kernelwright.Correct, ms, 0.98/ms
		v.Speedup = &kernelwright.Speedup{Value: 5 / ms, Low: 4.5 / ms, High: 5.5 / ms, Against: "eager"}
		if l == kernelwright.Certify {
			v.Status = kernelwright.Certified
		}
	}
	return v
}

// model answers from the journal, else by the seed and what it is asked.
type model struct {
	*world
	only bool // from the journal alone
}

func (model) Name() string { return "fake:model" }

func (m model) Generate(ctx context.Context, r llm.Request) (llm.Reply, error) {
	if err := ctx.Err(); err != nil {
		return llm.Reply{}, err
	}
	digest := r.Digest(m.Name())
	if known, ok, err := m.Recall(ctx, r.Key, digest); err != nil || ok {
		return known.Reply, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.only:
		return llm.Reply{}, &llm.Error{Kind: llm.NotRecorded, Model: m.Name(), Text: "not in the record"}
	case m.fail != nil:
		return llm.Reply{}, m.fail
	case m.budget == 0:
		return llm.Reply{}, &llm.Error{Kind: llm.OverBudget, Model: m.Name(), Text: "it could cost more than is left of the run's 2 USD"}
	}
	if err := m.step(20 * time.Millisecond); err != nil {
		return llm.Reply{}, err
	}
	if before := r.Key; before.Seq > 0 {
		before.Seq--
		if len(m.journal[before]) == 0 {
			return llm.Reply{}, fmt.Errorf("call %+v comes without the one before it", r.Key)
		}
	}
	m.budget--
	m.paid[fmt.Sprintf("%v %x", r.Key, digest)]++
	reply := m.answer(r)
	m.journal[r.Key] = append(m.journal[r.Key], llm.Record{Key: r.Key, Model: m.Name(), Request: r, Reply: reply})
	return reply, nil
}

// Recall, Known and Append make the world a journal. Recalling takes the time that the
// call took, so that limits of time are met at the same point again.
func (w *world) Recall(_ context.Context, key llm.Key, digest [32]byte) (llm.Record, bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.journal[key] {
		if r.Request.Digest(r.Model) == digest {
			return r, true, nil
		}
	}
	return llm.Record{}, false, nil
}

// Known reports whether a call was recorded under the key, with any request.
func (w *world) Known(_ context.Context, key llm.Key) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.journal[key]) > 0, nil
}

// LastFit returns what the last call under the key was fitted to.
func (w *world) LastFit(_ context.Context, key llm.Key, model string) (fit *llm.Fit, stop llm.Stop, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.journal[key] {
		if r.Model == model && (stop == "" || stop == llm.StopTooLong || r.Reply.Stop != llm.StopTooLong) {
			fit, stop = r.Request.Fit, r.Reply.Stop
		}
	}
	return fit, stop, nil
}

func (w *world) Append(_ context.Context, r llm.Record) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.step(0); err != nil {
		return err
	}
	w.journal[r.Key] = append(w.journal[r.Key], r)
	return nil
}

func (w *world) answer(r llm.Request) llm.Reply {
	last := r.Messages[len(r.Messages)-1].Text
	n := number(w.seed, r.Key.Agent, len(r.Messages), last)
	prose := llm.Reply{Text: "I would make it faster.", Stop: llm.StopEnd}
	if w.prose > 0 && r.Key.Agent == "coder" {
		w.prose--
		prose.Text += strings.Repeat(" Much faster.", w.prose)
		return prose
	}
	switch {
	case r.Messages[0].Role == llm.System:
		return act(n, len(r.Tools) > 0)
	case r.Key.Agent == "judge":
		return llm.Reply{Text: advice(n, strings.HasPrefix(last, "correct")), Stop: llm.StopEnd}
	case n%11 == 0:
		return prose
	case n%19 == 0:
		return llm.Reply{Stop: llm.StopRefused}
	}
	return llm.Reply{Text: source(n), Stop: llm.StopEnd}
}

// source is a candidate of a few kilobytes; there are not many, so some come
// again.
func source(n uint64) string {
	return fmt.Sprintf("class ModelNew: pass  # %d\n%s", n%37, strings.Repeat("# and a comment that says little\n", 100))
}

func advice(n uint64, correction bool) string {
	f := kernelwright.Feedback{Kind: kernelwright.Optimisation, Bottleneck: "b", Method: "m", Plan: fmt.Sprint(n)}
	switch {
	case n%13 == 0:
		f = kernelwright.Feedback{Kind: kernelwright.Stop, Why: "Enough."}
	case correction:
		f = kernelwright.Feedback{Kind: kernelwright.Correction, Issue: "i", Why: "w", Fix: fmt.Sprint(n)}
	}
	b, err := json.Marshal(f)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// act is an answer of a model that works with tools, well and badly.
func act(n uint64, native bool) llm.Reply {
	type args map[string]any
	type call struct {
		tool string
		args any
	}
	write := call{"write", args{"path": "model_new.py", "content": source(n)}}
	var calls []call
	switch n % 12 {
	case 0:
		return llm.Reply{Text: "Let me think.", Stop: llm.StopEnd}
	case 1:
		calls = []call{{"write", args{"path": []string{"../../etc/passwd", "/etc/passwd", "reference.py", "a\x00b", ""}[n%5], "content": "x"}}, {"verify", args{"now": true}}, {"sudo", args{}}}
	case 2:
		calls = []call{write, {"compile", args{}}}
	case 3:
		calls = []call{{"profile", args{}}}
	case 4:
		calls = []call{{"list", args{}}, {"read", args{"path": "reference.py", "first": 1, "lines": 3}}, {"search", args{"pattern": "Model"}}, {"skill", args{}}}
	case 5:
		calls = []call{write, {"edit", args{"path": "model_new.py", "old": "pass", "new": "pass "}}, {"verify", args{}}}
	case 6:
		calls = []call{{"verify", args{}}, {"verify", args{}}}
	case 7:
		if n%5 < 3 {
			calls = []call{{"finish", args{"reason": fmt.Sprintf("Nothing more for %d.", n%1000)}}}
			break
		}
		fallthrough
	default:
		calls = []call{write, {"verify", args{}}}
	}
	var r llm.Reply
	for i, c := range calls {
		b, err := json.Marshal(c.args)
		if err != nil {
			panic(err)
		}
		if native {
			r.Stop = llm.StopTools
			r.ToolCalls = append(r.ToolCalls, llm.ToolCall{ID: fmt.Sprintf("c%d", i), Name: c.tool, Arguments: string(b)})
		} else {
			r.Stop = llm.StopEnd
			r.Text += fmt.Sprintf("Now this.\n```tool\n{\"tool\": %q, \"arguments\": %s}\n```\n", c.tool, b)
		}
	}
	return r
}

// coder takes a model's text for a candidate.
type coder struct{ model }

func (coder) Name() string { return "fake:model" }

func (c coder) Propose(ctx context.Context, in kernelwright.CoderInput) (kernelwright.Candidate, error) {
	said, err := json.Marshal([]any{in.Round, in.Sample, in.Last, in.Feedback, in.View, in.SameAs})
	if err != nil {
		return kernelwright.Candidate{}, err
	}
	reply, err := c.Generate(ctx, llm.Request{
		Key: llm.Key{Run: in.Run, Round: in.Round, Agent: "coder"}, Messages: []llm.Message{{Role: llm.User, Text: string(said)}},
	})
	switch {
	case err != nil:
		return kernelwright.Candidate{}, err
	case reply.Stop == llm.StopRefused:
		return kernelwright.Candidate{}, &kernelwright.DeclinedError{Reason: fmt.Sprintf("Nothing more for %d.", number(string(said))%1000)}
	case !strings.Contains(reply.Text, "ModelNew"):
		return kernelwright.Candidate{}, &kernelwright.UnusableError{Answer: reply.Text, Reason: "There is no ModelNew in it.", Hint: "Send a file.", Origin: "fake:model"}
	}
	return kernelwright.Candidate{Source: reply.Text, Language: cmp.Or(in.Language, kernelwright.CPP), Origin: "fake:model"}, nil
}

// modelJudge takes a model's text for a feedback.
type modelJudge struct{ model }

func (modelJudge) Name() string { return "fake:model" }

func (j modelJudge) Judge(ctx context.Context, in kernelwright.JudgeInput) (kernelwright.Feedback, error) {
	reply, err := j.Generate(ctx, llm.Request{
		Key:      llm.Key{Run: in.Run, Round: len(in.History), Agent: "judge"},
		Messages: []llm.Message{{Role: llm.User, Text: fmt.Sprint(in.Want, in.FullMetrics, in.Current.Candidate.Source, len(in.History))}},
	})
	if err != nil {
		return kernelwright.Feedback{}, err
	}
	return kernelwright.ParseFeedback([]byte(reply.Text))
}

var (
	worldTask = kernelwright.Task{Fingerprint: "f", Name: "softmax", Source: "class Model: pass\n"}
	worldRun  = kernelwright.Run{ID: 7, Seed: 3}
)

// skills are the program's, read once.
var skills = sync.OnceValue(func() *prompts.Skills {
	s, err := prompts.LoadSkills("")
	if err != nil {
		panic(err)
	}
	return s
})

func (w *world) parts(s forge.Settings) forge.Parts {
	m := model{world: w}
	p := forge.Parts{
		Coder: coder{m}, Judge: modelJudge{m}, Model: m, Journal: w, Evaluator: w, Recorder: w, Settings: s, Now: w.clock,
		Skills: skills(),
	}
	if w.batch {
		p.Evaluator = batcher{w}
	}
	return p
}

func (w *world) snapshot() ([]kernelwright.Round, map[llm.Key][]llm.Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.rounds), maps.Clone(w.journal)
}

func number(parts ...any) uint64 {
	h := fnv.New64a()
	fmt.Fprintln(h, parts...)
	return h.Sum64()
}
