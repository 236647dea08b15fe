package judge

import (
	"strings"
	"testing"
)

// TestMeanings checks that a step of every knob that the built-in Coder states
// is explained.
func TestMeanings(t *testing.T) {
	for _, knob := range []string{"threads", "vector", "unroll", "tile", "passes", "chains", "nontemporal", "fuse", "items", "share", "keep", "split", "team", "stage", "pdl", "persistent", "approx"} {
		up, down := meaning(step{knob, 1, 2}), meaning(step{knob, 2, 1})
		if up == down || strings.Contains(up+down, "nothing else") {
			t.Errorf("%s: %q and %q", knob, up, down)
		}
	}
}
