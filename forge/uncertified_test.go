package forge_test

import (
	"strings"
	"testing"

	kw "github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
)

// What a policy leaves is what its last answer left in the folder, not what was
// verified before, and nothing is certified.
func TestUncertified(t *testing.T) {
	const reply = `{"reason": "enough"}`
	first, second := "class ModelNew: pass # first\n", "class ModelNew: pass # second\n"
	verified := []string{"write", writing("model_new.py", first), "verify", "{}"}
	for _, test := range []struct {
		name   string
		acts   [][]string // before it finishes
		rounds int
		left   string // empty: nothing
	}{
		{"as verified", [][]string{verified, {"list", "{}"}}, 1, first},
		{"changed since", [][]string{verified, {"write", writing("model_new.py", second)}}, 2, second},
		{"spoiled since", [][]string{verified, {"write", writing("model_new.py", "nothing to see")}}, 2, "nothing to see"},
		{"never verified", [][]string{{"write", writing("model_new.py", first)}}, 1, first},
		{"never written", [][]string{{"list", "{}"}}, 0, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			model := &script{calls: append(test.acts, []string{"finish", reply}, []string{"finish", reply})}
			m := &memory{}
			run := kw.Run{ID: 1, Strategy: forge.ReactStrategy, Status: kw.RunDone}
			settings := forge.Settings{Rounds: 5, JudgeMode: forge.JudgeNone, Uncertified: true}
			strategy, err := forge.New(run.Strategy, forge.Parts{Model: model, Evaluator: measured{}, Recorder: m, Settings: settings})
			if err != nil {
				t.Fatal(err)
			}
			out, err := strategy.Run(t.Context(), run, kw.Task{Name: "t", Source: "class Model: pass"})
			if err != nil {
				t.Fatal(err)
			}
			if out.Best != nil || len(m.rounds) != test.rounds || strings.Contains(out.Summary, "passed certification") {
				t.Errorf("%d rounds, %+v", len(m.rounds), out)
			}
			for _, r := range m.rounds {
				if r.Certificate != nil {
					t.Errorf("round %d was to be certified", r.Index)
				}
			}
			if got := sourceOf(out.Left); got != test.left {
				t.Errorf("it left %q, want %q", got, test.left)
			}
			// The record alone leads to the same.
			run.Settings, run.Stop, model.seen = settings.String(), out.Stop, nil
			difference, err := forge.Replay(t.Context(), m.rounds, kw.Task{Name: "t", Source: "class Model: pass"}, run, forge.Parts{Model: model})
			if err != nil || difference != nil {
				t.Errorf("replayed: %v, %v", difference, err)
			}
		})
	}
}

// Of rounds it is the last answer, however fast an earlier one was.
func TestUncertifiedRounds(t *testing.T) {
	w := timed(1, 5, 9)
	out, err := w.strategy(forge.Settings{Rounds: 3, Uncertified: true}).Run(t.Context(), kw.Run{ID: 1}, kw.Task{})
	if err != nil || out.Best != nil || out.Left == nil || out.Left.Index != 2 || out.Left.Verdict.CandidateMS != 9 {
		t.Errorf("%+v, %v", out, err)
	}
}

func sourceOf(r *kw.Round) string {
	if r == nil {
		return ""
	}
	return r.Candidate.Source
}
