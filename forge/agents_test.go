package forge_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	kw "github.com/kernelwright/kernelwright"
	llmcoder "github.com/kernelwright/kernelwright/coder"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/internal/soak"
	"github.com/kernelwright/kernelwright/judge"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/llm/llmtest"
	"github.com/kernelwright/kernelwright/prompts"
	"github.com/kernelwright/kernelwright/store"
)

// scripted is a language model that answers from a script and keeps what it was
// asked.
type scripted struct {
	answer func(llm.Request) string

	mu    sync.Mutex
	asked []llm.Request
}

func (*scripted) Name() string { return "test:scripted" }

func (s *scripted) Generate(ctx context.Context, r llm.Request) (llm.Reply, error) {
	if err := ctx.Err(); err != nil {
		return llm.Reply{}, err
	}
	s.mu.Lock()
	s.asked = append(s.asked, r)
	s.mu.Unlock()
	return llm.Reply{Text: s.answer(r), Stop: llm.StopEnd}, nil
}

func templates(t *testing.T) *prompts.Templates {
	t.Helper()
	p, err := prompts.LoadTemplates("")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// evaluator opens the real one. What torch.compile precompiles once on a machine
// is taken from KERNELWRIGHT_TEST_CACHE, which saves half a minute.
func evaluator(t *testing.T, python string) *hwfeedback.Evaluator {
	t.Helper()
	data := t.TempDir()
	kept, err := filepath.Glob(filepath.Join(os.Getenv("KERNELWRIGHT_TEST_CACHE"), "inductor-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range kept {
		if err := os.CopyFS(filepath.Join(data, "cache", filepath.Base(folder)), os.DirFS(folder)); err != nil {
			t.Fatal(err)
		}
	}
	cache, err := store.Open(filepath.Join(data, store.FileName))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cache.Close() })
	e, err := hwfeedback.Open(t.Context(), hwfeedback.Options{DataDir: data, Python: python, Threads: 1, Baselines: []string{"eager"}, CertifyTime: time.Second, Log: slog.New(slog.DiscardHandler)},
		cache, &hwfeedback.FileLeases{Dir: filepath.Join(data, "leases")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// example is a file of the prompts.
func example(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../prompts/templates", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// From the command line such a run is made every day (cli/testdata/python/models.txtar).
func TestLanguageModelsAndTheHardware(t *testing.T) {
	soak.Only(t)
	python := os.Getenv("KERNELWRIGHT_TEST_PYTHON")
	if python == "" {
		t.Skip("skipped: KERNELWRIGHT_TEST_PYTHON names no interpreter with PyTorch")
	}
	wholeRun(t, evaluator(t, python))
}

// A language model writes, another judges, the hardware decides: from a wrong
// candidate over a broken one and a slow one to a fast one that is certified. The
// task and the last candidate are the example in the prompt.
func wholeRun(t *testing.T, e *hwfeedback.Evaluator) {
	fast := example(t, "example_cpp.py")
	change := func(from, to string) string {
		if !strings.Contains(fast, from) {
			t.Fatalf("the example has no %q", from)
		}
		return strings.Replace(fast, from, to, 1)
	}
	answers := []string{
		change("sum / n + eps", "sum / (n + 1) + eps"),
		change("float sum = 0;", "float sum = 0"),
		// Everything is done ten times: it is slower on a busy machine too.
		change("#pragma omp parallel for\n", "for (volatile int again = 0; again < 10; again = again + 1)\n"),
		fast,
	}
	writer := &scripted{answer: func(r llm.Request) string {
		return "By lane.\n```python\n" + answers[r.Key.Round] + "```\n"
	}}
	reader := &scripted{answer: func(r llm.Request) string {
		if r.Schema.Name == "correction" {
			return fmt.Sprintf(`{"kind": "correction", "issue": "issue %d", "why": "it differs", "fix": "fix %[1]d", "evidence": []}`, r.Key.Round)
		}
		return `{"kind": "optimisation", "bottleneck": "one core", "method": "more cores", "plan": "omp", "why": "", "evidence": ["core_use", "made_up"]}`
	}}

	task, err := e.Inspect(t.Context(), "rms_norm", example(t, "example_reference.py"))
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(0) // remembers the rounds
	var strategy forge.Rounds
	strategy.Coder, strategy.Judge = llmcoder.Model{LLM: writer, Prompts: templates(t)}, judge.Model{LLM: reader, Prompts: templates(t)}
	strategy.Evaluator, strategy.Recorder, strategy.Device = e, w, e.Device()
	strategy.Settings = forge.Settings{Rounds: len(answers), Language: kw.CPP}
	out, err := strategy.Run(t.Context(), kw.Run{ID: 7, Seed: 1}, task)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []kw.Status{kw.Wrong, kw.BuildFailed, kw.Correct, kw.Correct} {
		if i >= len(w.rounds) || w.rounds[i].Verdict.Status != want {
			t.Fatalf("round %d of %d is not %s: %+v", i, len(w.rounds), want, w.rounds[min(i, len(w.rounds)-1)].Verdict)
		}
	}
	if out.Best == nil || out.Best.Index != 3 || out.Best.Certificate.Status != kw.Certified {
		t.Fatalf("%+v", out)
	}
	t.Log(out.Summary)

	// Each saw what it had to see, and no more.
	if len(writer.asked) != 4 || len(reader.asked) != 3 {
		t.Fatalf("%d and %d calls", len(writer.asked), len(reader.asked))
	}
	for i, r := range writer.asked {
		if want := (llm.Key{Run: 7, Round: i, Agent: "coder"}); r.Key != want || r.Append || len(r.Messages) != 2 || r.Seed == nil {
			t.Errorf("call %d: %+v", i, r.Key)
		}
		said := r.Messages[1].Text
		if i > 0 && (!strings.Contains(said, strings.TrimSpace(answers[i-1])) || strings.Contains(said, answers[i])) {
			t.Errorf("round %d does not show the last candidate alone", i)
		}
	}
	if said := writer.asked[2].Messages[1].Text; !strings.Contains(said, "fix 1") || strings.Contains(said, "fix 0") || !strings.Contains(said, "data: compiler output") {
		t.Errorf("round 2 was asked for by\n%s", said)
	}
	f := w.rounds[2].Feedback
	if f == nil || f.Evidence["core_use"] != w.rounds[2].Verdict.Metrics["core_use"] || len(f.Evidence) != 1 {
		t.Errorf("feedback %+v, metrics %v", f, w.rounds[2].Verdict.Metrics)
	}
	if said := reader.asked[2].Messages[1].Text; !strings.Contains(said, fmt.Sprintf("candidate_ms = %.4g ms", w.rounds[2].Verdict.CandidateMS)) {
		t.Errorf("the Judge was not shown the candidate's own metrics:\n%s", said)
	}
}

// Each call that a beam makes has a key of its own, samples of one generation and
// what the Judge said of them included: a run that lost its last rounds is told
// everything again, and nobody is asked.
func TestEachCallOfABeamHasAKeyOfItsOwn(t *testing.T) {
	said := &scripted{answer: func(r llm.Request) string {
		if r.Key.Agent == "judge" && r.Schema.Name == "correction" {
			return fmt.Sprintf(`{"kind": "correction", "issue": "issue %d", "why": "it differs", "fix": "mend it", "evidence": []}`, r.Key.Round)
		}
		if r.Key.Agent == "judge" {
			return fmt.Sprintf(`{"kind": "optimisation", "bottleneck": "bottleneck %d", "method": "fewer passes", "plan": "join the loops", "why": "", "evidence": []}`, r.Key.Round)
		}
		return fmt.Sprintf("It.\n```python\nfrom kernelwright import native\nlib = native(language=\"cpp\", source=\"// %d \")\n\n\nclass ModelNew: pass\n```\n", r.Key.Round)
	}}
	journal := &llmtest.Journal{}
	model := llm.WithJournal(said, journal, nil, nil)
	w := newWorld(1)
	w.verdict = func(c kw.Candidate, l kw.Level) kw.Verdict {
		var n int
		_, comment, _ := strings.Cut(c.Source, "//")
		if _, err := fmt.Sscan(comment, &n); err != nil {
			t.Error(err)
		}
		v := kw.Verdict{Status: kw.Correct, Level: l, CandidateMS: 10 - float64(n)}
		switch {
		case l == kw.Certify:
			v.Status = kw.Certified
		case n%3 == 1:
			v = kw.Verdict{Status: kw.Wrong, Level: l, Reason: "it is wrong"}
		}
		return v
	}
	beam := forge.Beam{Parts: forge.Parts{
		Coder: llmcoder.Model{LLM: model, Prompts: templates(t)}, Judge: judge.Model{LLM: model, Prompts: templates(t)}, Evaluator: w, Recorder: w,
		Device: kw.Device{Kind: kw.CPUDevice}, Settings: forge.Settings{Rounds: 10, Beam: forge.BeamSettings{Width: 2, Samples: 2}, JudgeMode: forge.JudgeBoth},
	}}
	run, task := kw.Run{ID: 3, Seed: 5}, kw.Task{Name: "softmax", Source: "class Model: pass\n"}
	if _, err := beam.Run(t.Context(), run, task); err != nil {
		t.Fatal(err)
	}
	seen := map[llm.Key]bool{}
	judged := map[int]bool{}
	for _, r := range journal.Records() {
		if seen[r.Key] {
			t.Errorf("two calls have the key %+v", r.Key)
		}
		seen[r.Key] = true
		if r.Key.Agent == "judge" {
			judged[r.Key.Round] = true
			if f := w.rounds[r.Key.Round].Feedback; f == nil || !strings.HasSuffix(f.Issue+f.Bottleneck, fmt.Sprint(" ", r.Key.Round)) {
				t.Errorf("round %d has the feedback %+v", r.Key.Round, f)
			}
		}
	}
	if len(w.rounds) != 10 || len(judged) < 4 || len(seen) != 10+len(judged) {
		t.Fatalf("%d rounds, %d judged, %d calls", len(w.rounds), len(judged), len(seen))
	}
	asked, recorded := len(said.asked), w.rounds
	for kept := range recorded {
		w.rounds = slices.Clone(recorded[:kept])
		if _, err := beam.Run(t.Context(), run, task); err != nil {
			t.Fatal(err)
		}
		if len(said.asked) != asked {
			t.Fatalf("after %d rounds %d calls were made anew", kept, len(said.asked)-asked)
		}
		for i := range recorded {
			if w.rounds[i].Candidate != recorded[i].Candidate {
				t.Errorf("after %d rounds round %d is another", kept, i)
			}
		}
	}
}
