package report

import (
	"fmt"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/store"
)

// uncertifiedMark begins a file that is not certified. The harness knows it, too
// (export/annotate.py): the comment goes when the file is certified.
const uncertifiedMark = "# NOT CERTIFIED. "

// SaysUncertified reports whether a file says of itself that it is not certified.
func SaysUncertified(text string) bool { return strings.HasPrefix(text, uncertifiedMark) }

// Withheld says why a round's kernel cannot be exported without a certificate; empty
// where it can: its verdict is correct, nobody has found it not to hold, and its text is
// recorded.
func Withheld(r kernelwright.Round) string {
	switch {
	case refused(r):
		return "was not certified when that was tried: it is " + RoundStanding(r)
	case r.Verdict.Status != kernelwright.Correct:
		return "has no correct kernel: it is " + RoundStanding(r)
	case r.Candidate.Source == store.PrunedText:
		return "cannot be written: its text was pruned"
	}
	return ""
}

// Uncertified returns the file of a correct round that was not certified: text is the
// candidate, and a comment in front says what it is. Of its first two lines, in which Python
// looks for an encoding, none has foreign words.
func Uncertified(d Data, r kernelwright.Round, text string) string {
	v := r.Verdict
	said := Standing(v)
	if figures := FiguresOf(v); figures != "" {
		said += ", " + figures
	}
	lines := []string{
		"No certificate belongs to this file, and no figure here is a certified one.",
		"It is as the Coder wrote it, with what it needs of kernelwright.",
		fmt.Sprintf("ModelNew stands for Model of %s.py: round %d of run %d, on %s.", Line(d.Task.Name), r.Index, d.Run.ID, Line(d.Run.Device)),
		"The candidate's verdict: " + said + ". This file itself was not evaluated.",
		"It checks no shapes, types or devices, and it computes no gradients: call it under torch.no_grad().",
		"`kernelwright eval REFERENCE THIS_FILE --level certify --export OUT.py` certifies it.",
	}
	return uncertifiedMark + strings.Join(lines, "\n# ") + "\n\n" + strings.TrimPrefix(text, "\ufeff")
}
