package judge

import (
	"os"
	"path/filepath"
	"regexp"
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

// Every knob that a rule would turn has a meaning: another name is none of a schedule's.
func TestKnobsOfRules(t *testing.T) {
	files, err := filepath.Glob("rule_*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(len(files), err)
	}
	said := 0
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\{"(\w+)", to[A-Z]`).FindAllStringSubmatch(string(text), -1) {
			said++
			if up := meaning(step{m[1], 1, 2}); strings.Contains(up, "nothing else") {
				t.Errorf("%s turns %q: %s", path, m[1], up)
			}
		}
	}
	if said < 50 {
		t.Errorf("only %d knobs were found", said)
	}
}
