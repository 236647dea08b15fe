package forge_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	kw "github.com/kernelwright/kernelwright"
	llmcoder "github.com/kernelwright/kernelwright/coder"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/judge"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/llm/llmtest"
)

// numberOf is the round in which a test's candidate was written.
func numberOf(t *testing.T, source string) (n int) {
	t.Helper()
	_, comment, _ := strings.Cut(source, "//")
	if _, err := fmt.Sscan(comment, &n); err != nil {
		t.Error(err)
	}
	return n
}

// A Judge that wants to stop in every round ends no run while the headroom is low and
// the rules have something to say, in each strategy that asks one: each round says what
// it wanted. At the floor, and when the rules have said all that they can, it is heard.
// From the record a run makes the same decisions again, wherever it was interrupted.
func TestAStopEndsNoRunAgainstTheEvidence(t *testing.T) {
	for _, strategy := range []string{forge.RoundsStrategy, forge.BeamStrategy} {
		for name, c := range map[string]struct {
			headroom func(n int) float64
			least    int // rounds in which it is not heard
		}{
			"far from the floor":  {func(int) float64 { return 0.3 }, 3},
			"at the floor in two": {func(n int) float64 { return min(0.5+0.25*float64(n), 1) }, 1},
		} {
			t.Run(strategy+" "+name, func(t *testing.T) {
				said := &scripted{answer: func(r llm.Request) string {
					if r.Key.Agent == "judge" {
						return `{"kind": "stop", "bottleneck": "", "method": "", "plan": "", "why": "It is fast enough.", "evidence": ["headroom"]}`
					}
					return fmt.Sprintf("It.\n```python\nfrom kernelwright import native\nlib = native(language=\"cpp\", source=\"// %d \")\n\n\nclass ModelNew: pass\n```\n", r.Key.Round)
				}}
				journal := &llmtest.Journal{}
				w := newWorld(1)
				w.verdict = func(candidate kw.Candidate, l kw.Level) kw.Verdict {
					n := numberOf(t, candidate.Source)
					v := kw.Verdict{Status: kw.Correct, Level: l, CandidateMS: 10 - 0.5*float64(n), Headroom: c.headroom(n), Metrics: map[string]float64{
						"memory_share": 0.3, "core_use": 0.4, "pytorch_share": 0.2, "missed_loops": 2, "threads": 2, "working_set_bytes": 64 << 20}}
					if l == kw.Certify {
						v.Status = kw.Certified
					}
					return v
				}
				settings := forge.Settings{Rounds: 16, Beam: forge.BeamSettings{Width: 1, Samples: 1}, JudgeMode: forge.JudgeBoth}.For(strategy)
				parts := func(model llm.Model) forge.Parts {
					return forge.Parts{Coder: llmcoder.Model{LLM: model, Prompts: templates(t)}, Judge: judge.Model{LLM: model, Prompts: templates(t)}, Evaluator: w, Recorder: w,
						Device: kw.Device{Kind: kw.CPUDevice}, Settings: settings}
				}
				s, err := forge.New(strategy, parts(llm.WithJournal(said, journal, nil, nil)))
				if err != nil {
					t.Fatal(err)
				}
				run, task := kw.Run{ID: 3, Seed: 5, Strategy: strategy, Settings: settings.String()}, kw.Task{Name: "softmax", Source: "class Model: pass\n"}
				out, err := s.Run(t.Context(), run, task)
				if err != nil {
					t.Fatal(err)
				}
				last := len(w.rounds) - 1
				if out.Stop != kw.StopJudge || last < c.least || last >= settings.Rounds-1 {
					t.Fatalf("after %d rounds: %+v", len(w.rounds), out)
				}
				for i, r := range w.rounds {
					f := r.Feedback
					if refused := f != nil && f.Kind == kw.Optimisation && f.WantedStop == "It is fast enough." && f.Rule != "" && f.Plan != ""; refused != (i < last) {
						t.Errorf("round %d of %d: %+v", i, last, f)
					}
				}
				if f := w.rounds[last].Feedback; f.Kind != kw.Stop || f.Why != "It is fast enough." || f.WantedStop != "" {
					t.Errorf("the last says %+v", f)
				}

				run.Status, run.Stop = out.Status, out.Stop
				if d, err := forge.Replay(t.Context(), w.rounds, task, run, parts(llm.Replay(said.Name(), journal))); d != nil || err != nil {
					t.Errorf("it does not replay: %v %v", d, err)
				}
				whole, asked := w.rounds, len(said.asked)
				for kept := range whole {
					w.rounds = slices.Clone(whole[:kept])
					again, err := s.Run(t.Context(), run, task)
					if err != nil || again.Stop != out.Stop || len(w.rounds) != len(whole) || len(said.asked) != asked {
						t.Fatalf("after %d rounds it goes on to %d and %+v, with %d calls anew: %v", kept, len(w.rounds), again, len(said.asked)-asked, err)
					}
				}
			})
		}
	}
}
