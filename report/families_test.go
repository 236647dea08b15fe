package report

import (
	"os"
	"regexp"
	"testing"
)

// Each family that the harness makes has a sentence on the pages.
func TestEveryFamilyIsExplained(t *testing.T) {
	text, err := os.ReadFile("../hwfeedback/harness/kwharness/numerics/families.py")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`Family\(\s*"([a-z_]+)"`).FindAllStringSubmatch(string(text), -1) {
		if familyMeanings[m[1]] == "" {
			t.Errorf("%s is not explained", m[1])
		}
	}
}
