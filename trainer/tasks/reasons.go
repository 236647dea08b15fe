package tasks

import (
	"strings"

	"github.com/kernelwright/kernelwright"
)

// reasonFull is of a draw for a split that has all its tasks.
const reasonFull = "its split is full"

// flagReasons are why a task with a flag is no task to train on.
var flagReasons = []struct {
	flag   kernelwright.TaskFlag
	reason string
}{
	{kernelwright.FlagConstantOutput, "its output is constant"},
	{kernelwright.FlagIgnoresInput, "its output does not depend on its input"},
	{kernelwright.FlagNonFiniteReference, "its output is not finite"},
	{kernelwright.FlagIllConditioned, "rounding moves its output by over 1 %"},
	{kernelwright.FlagTooLarge, "is too large for the device"},
}

// degenerate returns why an inspected task is not worth training on, or "".
func degenerate(t kernelwright.Task) string {
	for _, f := range flagReasons {
		if t.HasFlag(f.flag) {
			return f.reason
		}
	}
	return ""
}

// outside returns why a time is not in the window, or "".
func outside(ms, low, high float64) string {
	switch {
	case ms < low:
		return "eager is faster than the window"
	case ms > high:
		return "eager is slower than the window"
	}
	return ""
}

// invalidReasons are words of an inspection and what they are counted as.
var invalidReasons = []struct{ part, reason string }{
	{"stochastic", "is random"},
	{"ran out of memory", "runs out of memory"},
	{"memory", "is too large for the device"},
	{"fails when it is imported", "fails when it is imported"},
	{"defines no", "defines no Model, get_inputs or get_init_inputs"},
	{"takes over", "takes too long"},
	{"did not answer", "takes too long"},
	{"dtype", "has a dtype that cannot be compared"},
	{"forward raises", "raises in forward"},
	{"constructor", "raises when it is made"},
	{"get_inputs", "its inputs cannot be used"},
}

// invalidReason sorts what an inspection said of a reference that is no task.
func invalidReason(said string) string {
	for _, r := range invalidReasons {
		if strings.Contains(said, r.part) {
			return r.reason
		}
	}
	return "is no task"
}
