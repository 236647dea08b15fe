package hwfeedback

import (
	"testing"

	"github.com/kernelwright/kernelwright"
)

// A verdict without times serves who asks for none, and nobody else; one with times
// serves both. What is wrong is wrong for both.
func TestUntimedVerdicts(t *testing.T) {
	b := newBench(t)
	u := Untimed{Evaluator: b.Evaluator}
	untimed := func(source string) kernelwright.Verdict {
		t.Helper()
		v, err := u.Evaluate(t.Context(), aTask, kernelwright.Candidate{Source: source}, kernelwright.Quick)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if v := untimed("good fast"); !v.Status.OK() || v.Speedup != nil || v.Cached {
		t.Errorf("%+v", v)
	}
	if v := untimed("good fast"); !v.Cached {
		t.Error("it was verified twice")
	}
	if v := b.evaluate("good fast", kernelwright.Quick); v.Cached || v.Speedup == nil {
		t.Errorf("a verdict without times was taken for one with times: %+v", v)
	}
	if v := untimed("good fast"); !v.Cached || v.Speedup == nil {
		t.Errorf("the timed verdict does not serve: %+v", v)
	}
	untimed("crash")
	if v := b.evaluate("crash", kernelwright.Quick); !v.Cached {
		t.Error("what crashed was evaluated twice")
	}
	admitted, err := Untimed{b.Evaluator, true}.Evaluate(t.Context(), aTask, kernelwright.Candidate{Source: "good fast # admitted"}, kernelwright.Quick)
	if err != nil || admitted.Speedup != nil || admitted.Baselines["eager"] != 2 {
		t.Errorf("baselines alone: %+v, %v", admitted, err)
	}
	if v := untimed("good fast # admitted"); v.Cached {
		t.Error("what was asked for with baselines serves who wants none")
	}
	var got []kernelwright.Verdict
	cands := []kernelwright.Candidate{{Source: "good fast # 1"}, {Source: "good fast # 2"}}
	err = u.EvaluateBatch(t.Context(), aTask, cands, kernelwright.Quick, func(_ int, v kernelwright.Verdict) error {
		got = append(got, v)
		return nil
	})
	if err != nil || len(got) != 2 || got[0].Speedup != nil || got[1].Speedup != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := u.Evaluate(t.Context(), aTask, cands[0], kernelwright.Certify); err == nil {
		t.Error("a certificate without times was given")
	}
}
