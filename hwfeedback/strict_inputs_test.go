package hwfeedback

import (
	"testing"

	"github.com/kernelwright/kernelwright"
)

// A verdict of strict inputs and one of others are two.
func TestVerdictsOfStrictInputsAreOthers(t *testing.T) {
	b := newBench(t)
	b.evaluate("good", kernelwright.Quick)
	b.Close()
	strict := openBenchWith(t, Options{DataDir: b.options.DataDir, StrictInputs: true}, b.cache)
	if strict.evaluate("good", kernelwright.Quick).Cached {
		t.Error("a verdict was returned that was reached without strict inputs")
	}
	if !strict.evaluate("good", kernelwright.Quick).Cached {
		t.Error("a verdict was asked for again")
	}
}
