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
		"nothing certified":   {[]report.Summary{won, none}, "no certified kernel for none"},
		"both":                {[]report.Summary{lost, none}, "no certified kernel for none"},
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
	lost.Run = 9
	for written, rows := range map[string][]report.Summary{"9": {lost, won}, "RUN": {lost, lost}} {
		if _, _, hint := explain(lacking(rows)); !strings.Contains(hint, "`kernelwright export "+written+" --out PATH`") {
			t.Errorf("%s: %q", written, hint)
		}
	}
	// A hint only where there is something to see.
	for rounds, want := range map[int]string{0: "", 3: "`kernelwright history show 7` has every round of it"} {
		none.Run, none.Rounds = 7, rounds
		if _, _, hint := explain(lacking([]report.Summary{none})); hint != want {
			t.Errorf("%d rounds: %q", rounds, hint)
		}
	}
}
