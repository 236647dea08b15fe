package judge

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Every rule stands in docs/judge.md, once in each table that it belongs to.
func TestRulesAreDocumented(t *testing.T) {
	b, err := os.ReadFile("../docs/judge.md")
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(string(b), "\n## ")
	for title, rules := range map[string][]rule{"Corrections\n": correctionRules, "Optimisations on a CPU\n": optimisationRules, "Optimisations on a GPU\n": gpuRules} {
		i := slices.IndexFunc(parts, func(p string) bool { return strings.HasPrefix(p, title) })
		if i < 0 {
			t.Fatalf("there is no section %q", title)
		}
		var told []string
		for line := range strings.Lines(parts[i]) {
			if name, ok := strings.CutPrefix(line, "| `"); ok {
				name, _, _ = strings.Cut(name, "`")
				told = append(told, name)
			}
		}
		var want []string
		for _, r := range rules {
			want = append(want, r.name)
		}
		if !slices.Equal(told, want) {
			t.Errorf("%s tells of %v, there are %v", title, told, want)
		}
	}
}
