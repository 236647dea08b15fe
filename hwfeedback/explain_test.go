package hwfeedback

import (
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
)

// An explanation is measured, is remembered nowhere, and is no verdict for whoever
// asks next.
func TestAnExplanationIsRememberedNowhere(t *testing.T) {
	b := newBench(t)
	cand := kernelwright.Candidate{Source: "good"}
	verdicts := func() (n int) {
		b.cache.mu.Lock()
		defer b.cache.mu.Unlock()
		for key := range b.cache.values {
			if strings.HasPrefix(key, cacheVerdict+" ") {
				n++
			}
		}
		return n
	}
	v, err := b.Explain(t.Context(), aTask, cand, kernelwright.Quick)
	if err != nil || !v.Status.OK() || v.Cached {
		t.Fatalf("%v: %+v", err, v)
	}
	if n := verdicts(); n != 0 {
		t.Errorf("%d verdicts are remembered", n)
	}
	if v := b.evaluate("good", kernelwright.Quick); v.Cached {
		t.Error("an explanation was taken for a verdict")
	}
	if n := verdicts(); n != 1 {
		t.Errorf("%d verdicts are remembered", n)
	}
	if v, err := b.Explain(t.Context(), aTask, cand, kernelwright.Quick); err != nil || v.Cached {
		t.Errorf("a verdict was taken for an explanation: %v", err)
	}
}
