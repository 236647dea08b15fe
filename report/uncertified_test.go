package report

import (
	"os"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/store"
)

func TestWhatIsWithheld(t *testing.T) {
	verdict := func(s kernelwright.Status) *kernelwright.Verdict { return &kernelwright.Verdict{Status: s} }
	for _, c := range []struct {
		quick       kernelwright.Status
		certificate *kernelwright.Verdict
		withheld    bool
	}{
		{kernelwright.Correct, nil, false}, {kernelwright.Correct, verdict(kernelwright.Certified), false},
		{kernelwright.Correct, verdict(kernelwright.Wrong), true}, {kernelwright.Correct, verdict(kernelwright.Cheated), true}, {kernelwright.Wrong, nil, true},
		{kernelwright.Cheated, nil, true}, {kernelwright.BuildFailed, nil, true}, {kernelwright.Crashed, nil, true}, {kernelwright.TimedOut, nil, true}, {kernelwright.Rejected, nil, true},
	} {
		r := kernelwright.Round{Verdict: kernelwright.Verdict{Status: c.quick}, Certificate: c.certificate}
		if got := Withheld(r); (got != "") != c.withheld {
			t.Errorf("%s, certificate %v: %q", c.quick, c.certificate, got)
		}
		r.Candidate.Source = store.PrunedText
		if got := Withheld(r); got == "" || strings.Contains(got, "pruned") == c.withheld {
			t.Errorf("%s, certificate %v, and its text is gone: %q", c.quick, c.certificate, got)
		}
	}
}

// Names of others stay in their line, and none is in the two lines in which Python looks for
// an encoding. The harness takes the comment out when the file is certified.
func TestAnUncertifiedFileSaysSoFirst(t *testing.T) {
	d, r := dropInData("")
	d.Task.Name, d.Run.Device = "a\nimport os # coding: x", "cpu\n"
	r.Certificate, r.Verdict = nil, kernelwright.Verdict{Status: kernelwright.Correct, Level: kernelwright.Quick, CandidateMS: 4, Speedup: &kernelwright.Speedup{Value: 1, Low: 0.9, High: 1.1, Against: "e\nx"}}
	text := Uncertified(d, r, "\ufeff#!/usr/bin/python\nclass ModelNew: pass\n")
	note, rest, _ := strings.Cut(text, "\n\n")
	lines := strings.Split(note, "\n")
	for i, line := range lines {
		if !strings.HasPrefix(line, "# ") || i < 2 && strings.Contains(line, "coding") {
			t.Errorf("line %d: %s", i, line)
		}
	}
	if !SaysUncertified(text) || rest != "#!/usr/bin/python\nclass ModelNew: pass\n" || !strings.Contains(note, "correct (quick), 4.00 ms, 1.00x [0.90, 1.10] against e x") {
		t.Error(text)
	}
	python, err := os.ReadFile("../hwfeedback/harness/kwharness/export/annotate.py")
	if err != nil || !strings.Contains(string(python), "NOTE = \""+uncertifiedMark+"\"") {
		t.Errorf("the harness does not know %q: %v", uncertifiedMark, err)
	}
}
