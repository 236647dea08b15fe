package judge

import (
	"fmt"

	"github.com/kernelwright/kernelwright"
)

// correctionRules, the most specific first: the first that speaks is heard.
var correctionRules = []rule{
	{"rejected", rejected},
	{"build_error", buildError},
	{"crashed", crashed},
	{"timed_out", timedOut},
	{"cheated", cheated},
	{"reduced_precision", reducedPrecision},
	{"nan_handling", nanHandling},
	{"overflow", overflow},
	{"accumulation", accumulation},
	{"wrong_result", wrongResult},
}

// safer is the way to plain code, from what is most likely at fault, for a
// finding that does not know better.
var safer = []move{{"nontemporal", toLeast}, {"pdl", toLeast}, {"persistent", toLeast}, {"approx", toLeast}, {"split", toLeast}, {"passes", toMost}, {"keep", toLeast}, {"stage", toLeast}, {"items", toLeast}, {"chains", toLeast}, {"unroll", toLeast}, {"vector", toDown}, {"static", toLeast}, {"threads", toLeast}, {"fuse", toLeast}}

// correct returns the one correction for a failed verdict.
func correct(in kernelwright.JudgeInput, s search) kernelwright.Feedback {
	v := view{in.Task, in.Device, in.Current.Candidate, in.Current.Verdict}
	f := ask(correctionRules, v)[0] // the last rule always speaks
	out := kernelwright.Feedback{Kind: kernelwright.Correction, Rule: f.rule, Issue: f.issue, Why: f.why, Fix: f.fix, Evidence: f.evidence}
	switch {
	case !s.known:
		// No schedule to turn: the words have to do.
	case s.best != nil:
		// Something worked before: take back what broke it and search on from there.
		const back = " Go back to the schedule of round %d, which was correct"
		if next, ok := s.next(nil); ok {
			out.Fix += fmt.Sprintf(back+", and %s from there.", next.start.round, next.words)
			out.Knobs = s.difference(next.target)
		} else {
			out.Fix += fmt.Sprintf(back+".", s.best.round)
			out.Knobs = s.difference(s.best.knobs)
		}
	default:
		next, ok := s.next(append(f.moves, safer...))
		if !ok {
			return stop("schedules_exhausted", fmt.Sprintf(
				"Every schedule near the last one was tried and none was correct; the last failed like this: %s", f.issue), f.evidence)
		}
		out.Fix += " Of the schedule, " + next.words + "."
		out.Knobs = s.difference(next.target)
	}
	return out
}
