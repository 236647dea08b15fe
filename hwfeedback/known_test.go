package hwfeedback

import (
	"testing"

	"github.com/kernelwright/kernelwright"
)

// Known has what Evaluate would take from the cache, of the same bytes, and asks
// the hardware for nothing.
func TestKnown(t *testing.T) {
	b := newBench(t)
	task := kernelwright.Task{Fingerprint: "task", Name: "task", Source: "reference"}
	known := func(source string, level kernelwright.Level) (kernelwright.Verdict, bool) {
		return b.Known(t.Context(), task, kernelwright.Candidate{Source: source, Language: kernelwright.CPP}, level)
	}
	if _, ok := known("good", kernelwright.Quick); ok {
		t.Error("known before it was evaluated")
	}
	first, err := b.Evaluate(t.Context(), task, kernelwright.Candidate{Source: "good", Language: kernelwright.CPP}, kernelwright.Quick)
	if err != nil {
		t.Fatal(err)
	}
	v, ok := known("good", kernelwright.Quick)
	if !ok || !v.Cached || v.Status != first.Status || b.count("evaluate") != 1 || b.count("parse") != 1 {
		t.Errorf("%+v, %v after %d evaluations", v, ok, b.count("evaluate"))
	}
	if _, ok := known("good", kernelwright.Certify); ok {
		t.Error("a quick verdict passed for a certificate")
	}
	if _, ok := known("good ", kernelwright.Quick); ok {
		t.Error("other bytes")
	}
	if _, ok := (Profiling{Evaluator: b.Evaluator}).Known(t.Context(), task, kernelwright.Candidate{Source: "good", Language: kernelwright.CPP}, kernelwright.Quick); !ok {
		t.Error("not known without a profile")
	}
	b.options.StrictInputs = true
	if _, ok := known("good", kernelwright.Quick); ok {
		t.Error("a verdict under other conditions")
	}
}
