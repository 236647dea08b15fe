package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
)

// Results of a file with a name of any length, and of any bytes, are written: a
// hint to write them elsewhere would lead to the same name.
func TestResultsOfLongNames(t *testing.T) {
	for name, stem := range map[string]string{
		"short":         "softmax",
		"as it is":      strings.Repeat("a", longestName-len(".certificate.json")),
		"the longest":   strings.Repeat("a", longestName-len(".py")),
		"of three each": strings.Repeat("\u20ac", 84),
		"no UTF-8":      strings.Repeat("\xff", 252),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			reference := filepath.Join(dir, stem+".py")
			if err := os.WriteFile(reference, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			d := report.Data{Run: kernelwright.Run{ID: 1, TaskName: stem, Status: kernelwright.RunFailed}}
			first, err := Results{Markdown: true, HTML: true}.Write(reference, d)
			if err != nil || first.HTML == "" || first.Markdown == "" {
				t.Fatalf("%+v, %v", first, err)
			}
			if fits := len(stem)+len(".certificate.json") <= longestName; fits != (first.HTML == filepath.Join(dir, stem+".report.html")) {
				t.Errorf("it is called %q", filepath.Base(first.HTML))
			}
			again, err := Results{HTML: true, Markdown: true}.Write(reference, d)
			if err != nil || again != first {
				t.Errorf("%+v, then %+v, %v", first, again, err)
			}
			if entries, _ := os.ReadDir(dir); len(entries) != 3 {
				t.Errorf("%d files", len(entries))
			}
		})
	}
	a, b := fitting(strings.Repeat("a", 300), 200), fitting(strings.Repeat("a", 301), 200)
	if a == b || len(a) != 200 {
		t.Errorf("%q and %q", a, b)
	}
}
