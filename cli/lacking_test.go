package cli

import (
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright/report"
)

// What the exit code and the error of a run say of what came of it.
func TestLacking(t *testing.T) {
	won := report.Summary{Task: "won", Status: "certified", Result: report.Faster}
	lost := report.Summary{Task: "lost", Status: "certified", Result: report.NothingFaster}
	none := report.Summary{Task: "none", Status: "done", Result: report.NotCertified}
	for name, c := range map[string]struct {
		rows []report.Summary
		want string // a part of the error; empty for none
	}{
		"all won":             {[]report.Summary{won, won}, ""},
		"nothing faster":      {[]report.Summary{won, lost}, "nothing faster than the baselines was found for lost"},
		"nothing certified":   {[]report.Summary{won, none}, "not every file got a certified kernel"},
		"both":                {[]report.Summary{lost, none}, "not every file got a certified kernel"},
		"no measurable tells": {[]report.Summary{{Task: "even", Status: "certified", Result: report.NoDifference}}, ""},
	} {
		err := lacking(c.rows)
		if c.want == "" && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if c.want == "" {
			continue
		}
		code, text, _ := explain(err)
		if code != 3 || !strings.Contains(text, c.want) {
			t.Errorf("%s: exit code %d, %q", name, code, text)
		}
	}
}
