package prompts

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// maxEarlier is how many of the last rounds are told: advice that is older has
// mostly been overtaken.
const maxEarlier = 8

// EarlierRounds is what came of the rounds so far, and what each was then advised,
// oldest first. parent is what the candidate goes on from that is asked about, as a
// Round has it.
func EarlierRounds(rounds []kernelwright.Round, parent *int) Data {
	if len(rounds) == 0 {
		return ""
	}
	var f facts
	here := kernelwright.Round{Index: rounds[len(rounds)-1].Index + 1, Parent: parent}
	if n := len(rounds) - maxEarlier; n > 0 {
		f.add("%d rounds before these", n)
		rounds = rounds[n:]
	}
	for _, r := range rounds {
		came := Line(string(r.Verdict.Status), maxWord)
		if r.Verdict.Status.OK() && r.Verdict.CandidateMS > 0 {
			came = fmt.Sprintf("%s, %.4g ms", came, r.Verdict.CandidateMS)
		} else if r.Verdict.Reason != "" {
			came += ": " + Line(r.Verdict.Reason, maxSentence)
		}
		f.add("round %d, %s: %s%s", r.Index, madeFrom(r), came, advice(r.Feedback))
	}
	f.add("the candidate here, %s", madeFrom(here))
	return Fence("earlier rounds", f.b.String(), MaxFactsBytes)
}

// madeFrom says which round a candidate goes on from.
func madeFrom(r kernelwright.Round) string {
	if r.After() < 0 {
		return "from the task alone"
	}
	return fmt.Sprintf("from round %d", r.After())
}

// advice says what was advised of a round, to go on a line with.
func advice(f *kernelwright.Feedback) string {
	if f == nil || f.Fix+f.Method == "" {
		return ""
	}
	said := "; then advised: " + Line(f.Fix+f.Method, maxSentence)
	if f.Plan != "" {
		said += ": " + Line(f.Plan, maxSentence)
	}
	return said
}

// Lessons is what changes brought on tasks like this one, on this device: first
// those that were advised by the rule, then those that changed most.
func Lessons(lessons []kernelwright.Lesson, t kernelwright.Task, rule string) Data {
	weight := func(l kernelwright.Lesson) float64 {
		if l.Ratio() <= 0 {
			return math.Log(failedWeight)
		}
		return math.Abs(math.Log(l.Ratio()))
	}
	sorted := slices.Clone(lessons)
	slices.SortStableFunc(sorted, func(a, b kernelwright.Lesson) int {
		if here := a.Rule == rule; rule != "" && here != (b.Rule == rule) {
			if here {
				return -1
			}
			return 1
		}
		return cmp.Compare(weight(b), weight(a))
	})
	var f facts
	for _, l := range sorted[:min(len(sorted), maxListed)] {
		on := Line(l.TaskName, maxWord)
		if l.Task == t.Fingerprint {
			on = "this task"
		}
		f.add("%s: %s", on, lesson(l))
	}
	return Fence("lessons of earlier runs on this device", f.b.String(), MaxFactsBytes)
}

// failedWeight puts what broke a candidate between large gains and small ones.
const failedWeight = 1.1

// lesson says what was advised, what was changed, and what that brought.
func lesson(l kernelwright.Lesson) string {
	var parts []string
	if l.Method != "" {
		parts = append(parts, "advised: "+Line(l.Method, maxSentence))
	}
	for _, s := range l.Steps[:min(len(l.Steps), maxListed)] {
		parts = append(parts, fmt.Sprintf("%s from %d to %d", Line(s.Knob, maxWord), s.From, s.To))
	}
	if l.Tried != "" {
		parts = append(parts, "tried: "+Line(l.Tried, maxSentence))
	}
	came := string(l.Outcome)
	switch l.Outcome {
	case kernelwright.LessonFailed:
		came = Line(string(l.Status), maxWord) + ": " + Line(l.Reason, maxSentence)
	case kernelwright.LessonUnchanged:
		came = "no measurable difference"
	case kernelwright.LessonFaster, kernelwright.LessonSlower:
		came += fmt.Sprintf(", %.4g to %.4g ms", l.FromMS, l.ToMS)
	}
	for _, m := range l.Moved[:min(len(l.Moved), maxListed)] {
		came += fmt.Sprintf("; %s %s to %s", Line(m.Metric, maxWord), number(m.From), number(m.To))
	}
	return strings.Join(append(parts, came), "; ")
}
