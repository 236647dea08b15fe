package report

import (
	"fmt"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// LessonResult says what a change brought.
func LessonResult(l kernelwright.Lesson) string {
	switch l.Outcome {
	case kernelwright.LessonFailed:
		return Line(strings.TrimSuffix(strings.ReplaceAll(string(l.Status), "_", " ")+": "+l.Reason, ": "))
	case kernelwright.LessonUnchanged:
		return fmt.Sprintf("no measurable difference, %s to %s", Milliseconds(l.FromMS), Milliseconds(l.ToMS))
	case kernelwright.LessonFaster, kernelwright.LessonSlower:
	}
	return fmt.Sprintf("%s, %s to %s (%.2fx)", Line(string(l.Outcome)), Milliseconds(l.FromMS), Milliseconds(l.ToMS), l.Ratio())
}

// LessonSteps says which knobs were turned; empty where none are known.
func LessonSteps(l kernelwright.Lesson) string {
	var all []string
	for _, s := range l.Steps {
		all = append(all, fmt.Sprintf("%s %d to %d", Line(s.Knob), s.From, s.To))
	}
	return strings.Join(all, ", ")
}

// LessonMoved says which metrics moved most.
func LessonMoved(l kernelwright.Lesson) string {
	var all []string
	for _, m := range l.Moved {
		all = append(all, fmt.Sprintf("%s %.3g to %.3g", Line(m.Metric), m.From, m.To))
	}
	return strings.Join(all, ", ")
}
