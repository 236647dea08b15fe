package kernelwright

import (
	"fmt"
	"math"
	"slices"
)

// Lesson is what one change of a candidate brought, in a run that ended with a
// certified kernel: what was advised, what was changed, and what the hardware
// made of it. The candidate before the change was correct and timed.
type Lesson struct {
	Run       int64    `json:"run"`
	Round     int      `json:"round"` // of the candidate with the change
	From      int      `json:"from"`  // of the one without it
	Task      string   `json:"task"`  // fingerprint
	TaskName  string   `json:"task_name"`
	Kinds     []string `json:"operators"` // the task's kinds of operators, sorted, each once
	Device    string   `json:"device"`
	DeviceKey string   `json:"device_key"`

	// What was advised; empty where nothing was. Rule is empty where a language
	// model judged. It and Tried, the Coder's sentence, may be a model's words.
	Rule       string `json:"rule,omitempty"`
	Bottleneck string `json:"bottleneck,omitempty"`
	Method     string `json:"method,omitempty"`
	Tried      string `json:"tried,omitempty"`
	// Steps are the knobs that changed, by name; none where one of the two states
	// no schedule.
	Steps []Step `json:"knobs,omitempty"`

	FromMS  float64       `json:"from_ms"`
	ToMS    float64       `json:"to_ms" unknown:"0"` // 0 where it was not timed
	Status  Status        `json:"status"`
	Outcome LessonOutcome `json:"outcome"`
	Reason  string        `json:"reason,omitempty"` // why it failed
	Moved   []Movement    `json:"moved,omitempty"`  // the metrics that changed most, the most first
}

// Step is a knob of a schedule going from one value to another.
type Step struct {
	Knob string `json:"knob"`
	From int    `json:"from"`
	To   int    `json:"to"`
}

// Movement is a metric before and after a change.
type Movement struct {
	Metric string  `json:"metric"`
	From   float64 `json:"from"`
	To     float64 `json:"to"`
}

// LessonOutcome is what came of a change, beyond the noise of measuring.
type LessonOutcome string

// The outcomes. Unchanged says that the intervals of both times overlap.
const (
	LessonFaster    LessonOutcome = "faster"
	LessonSlower    LessonOutcome = "slower"
	LessonUnchanged LessonOutcome = "unchanged"
	LessonFailed    LessonOutcome = "failed"
)

// Ratio is the time before over the time after: 2 is twice as fast. It is 0
// where the candidate with the change was not timed.
func (l Lesson) Ratio() float64 {
	if l.ToMS <= 0 {
		return 0
	}
	return l.FromMS / l.ToMS
}

// Tally is how often a change was tried, and what came of it.
type Tally struct {
	Tried, Faster, Worse int // Worse: slower, or it failed
	// Gain is the mean logarithm of time before over time after, drawn towards 0 as
	// by one more try that changed nothing: one lucky try does not outweigh several
	// good ones.
	Gain float64
}

const (
	// fewTries is how often a change must have been tried before it is given up.
	fewTries = 3
	// failedGain is the ratio that a change counts as that broke its candidate:
	// it cost a round.
	failedGain = 0.5
	// mostGain bounds the weight of one lesson, both ways.
	mostGain = 4.0
)

// TallyOf counts the lessons that match.
func TallyOf(lessons []Lesson, match func(Lesson) bool) Tally {
	var t Tally
	sum := 0.0
	for _, l := range lessons {
		if !match(l) {
			continue
		}
		t.Tried++
		switch l.Outcome {
		case LessonFaster:
			t.Faster++
			sum += math.Log(min(max(l.Ratio(), 1), mostGain))
		case LessonSlower:
			t.Worse++
			sum += math.Log(min(max(l.Ratio(), 1/mostGain), 1))
		case LessonFailed:
			t.Worse++
			sum += math.Log(failedGain)
		case LessonUnchanged:
		}
	}
	t.Gain = sum / float64(t.Tried+1)
	return t
}

// Bad reports whether a change mostly made things worse.
func (t Tally) Bad() bool { return t.Tried >= fewTries && 2*t.Worse > t.Tried }

// String says it in a sentence; empty where there is nothing to say.
func (t Tally) String() string {
	if t.Tried == 0 {
		return ""
	}
	return fmt.Sprintf("Earlier tries of this on tasks like this one, on this device: %d; faster: %d, slower or wrong: %d.", t.Tried, t.Faster, t.Worse)
}

// Steps returns the knobs in which two schedules differ, by name. Knobs that
// only one of them has do not count.
func Steps(from, to Schedule) []Step {
	var steps []Step
	for name, k := range to.Knobs {
		if before, ok := from.Knobs[name]; ok && before.Value != k.Value {
			steps = append(steps, Step{name, before.Value, k.Value})
		}
	}
	slices.SortFunc(steps, func(a, b Step) int {
		if a.Knob < b.Knob {
			return -1
		}
		return 1
	})
	return steps
}
