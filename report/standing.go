package report

import (
	"fmt"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// Counts returns the verdict that counts for a round: its certificate where it is
// certified, else the quick one.
func Counts(r kernelwright.Round) kernelwright.Verdict {
	if certified(r) {
		return *r.Certificate
	}
	return r.Verdict
}

func certified(r kernelwright.Round) bool {
	return r.Certificate != nil && r.Certificate.Status == kernelwright.Certified
}

// refused reports whether a round's candidate was not certified when it was asked:
// then its quick verdict does not hold.
func refused(r kernelwright.Round) bool { return r.Certificate != nil && !certified(r) }

// Standing is a verdict's status in words. Beside times of the quick level it says
// so: "correct (quick)".
func Standing(v kernelwright.Verdict) string { return standing(string(v.Status), string(v.Level)) }

func standing(status, level string) string {
	s := strings.ReplaceAll(Line(status), "_", " ")
	if status == string(kernelwright.Correct) && level == string(kernelwright.Quick) {
		s += " (quick)"
	}
	return s
}

// RoundStanding is Standing of a round, with what came of its certification where
// that failed.
func RoundStanding(r kernelwright.Round) string {
	s := Standing(Counts(r))
	if refused(r) {
		s += ", certification: " + Standing(*r.Certificate)
	}
	return s
}

// Measured says what a verdict measured, in one line; empty where nothing was timed.
func Measured(v kernelwright.Verdict) string {
	if v.CandidateMS <= 0 {
		return ""
	}
	s := Milliseconds(v.CandidateMS)
	if v.Speedup != nil {
		s += fmt.Sprintf(", %s against %s", Speedup(v.Speedup), Against(v.Speedup))
	}
	return s
}

// FiguresOf is Measured for a file, in which no legend explains a mark.
func FiguresOf(v kernelwright.Verdict) string {
	if v.CandidateMS <= 0 {
		return ""
	}
	said := Milliseconds(v.CandidateMS)
	if s := v.Speedup; s != nil {
		said += fmt.Sprintf(", %.2fx [%.2f, %.2f] against %s (95 %% interval)", s.Value, s.Low, s.High, Line(s.Against))
	}
	return said
}

// apart is the share by which a speedup and the quotient of the times beside it may
// differ without a word.
const apart = 0.05

// Quotients says which speedups of a verdict are not the quotients of its times, by
// over 5 %, and why; empty where none is. Of these baselines alone, or of all where
// none is named.
func Quotients(v kernelwright.Verdict, names ...string) string {
	if len(names) == 0 {
		names = BaselineNames(v.Baselines)
	}
	var parts []string
	for _, name := range names {
		s, ok := v.Speedups[name]
		if !ok && v.Speedup != nil && v.Speedup.Against == name {
			s, ok = *v.Speedup, true
		}
		shown := v.Baselines[name] / v.CandidateMS
		if !ok || !sound(s.Value) || !sound(shown) || s.Value <= shown*(1+apart) && shown <= s.Value*(1+apart) {
			continue
		}
		parts = append(parts, fmt.Sprintf("%s against %s, where the times give %s", times(s.Value), Line(name), times(shown)))
	}
	if len(parts) == 0 {
		return ""
	}
	why := "the two were not measured together"
	switch {
	case v.Timing.Marked:
		why = "the referee's clock decided the speedup, and a baseline's time is by its own process's clock"
	case v.Timing.Protocol == interleaved:
		why = "a speedup compares windows that ran in turns, round by round, and a time is of all rounds together, between which the machine changed"
	}
	return "the speedup is " + strings.Join(parts, ", ") + ": " + why
}

// interleaved is the protocol of times that were taken in turns (timing.py).
const interleaved = "interleaved"

// shapesTried begins the line of evidence that names other shapes (other_shapes.py).
var shapesTried = kernelwright.Shared.OtherShapes

// otherSizes says on which other shapes of the inputs a kernel was right, and on
// which it failed; empty where none was tried.
func otherSizes(v kernelwright.Verdict) string {
	for _, e := range v.Evidence {
		if tried, ok := strings.CutPrefix(e, shapesTried); ok {
			return Line(tried)
		}
	}
	switch general := v.Correctness.General; {
	case general == nil:
		return ""
	case *general:
		return "right on all that were tried"
	default:
		return "fails on some that were tried"
	}
}
