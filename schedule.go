package kernelwright

import (
	"encoding/json"
	"strings"
)

// schedulePrefix opens the comment in which a Coder states the schedule of a
// candidate, so that a Judge and the next round can read it from the source
// alone.
const schedulePrefix = "# kernelwright-schedule: "

// Schedule is the named knobs with which a candidate was generated.
type Schedule struct {
	Plan  string          `json:"plan"` // what the candidate does, in a few words
	Knobs map[string]Knob `json:"knobs"`
}

// Knob is one choice of a schedule: its value and what else it could be.
type Knob struct {
	Value   int   `json:"value"`
	Choices []int `json:"choices"`
}

// Space is how large the schedules are that a Coder has for a task.
type Space struct {
	Points int64 `json:"points"` // combinations of the choices of its knobs
	// Programs is how many different programs they come to; 0: not counted.
	Programs int `json:"programs,omitempty" unknown:"0"`
	// Sampled: only some of the programs were drawn.
	Sampled bool `json:"sampled"`
}

// Comment returns the schedule as one line of Python comment.
func (s Schedule) Comment() string {
	b, err := json.Marshal(s)
	if err != nil { // strings and ints only: cannot fail
		panic(err)
	}
	return schedulePrefix + string(b)
}

// ParseSchedule reads the schedule from a candidate's source. The source is
// foreign text: anything malformed is reported as absent.
func ParseSchedule(source string) (Schedule, bool) {
	for line := range strings.Lines(source) {
		rest, ok := strings.CutPrefix(strings.TrimRight(line, "\r\n"), schedulePrefix)
		if !ok {
			continue
		}
		var s Schedule
		if json.Unmarshal([]byte(rest), &s) != nil {
			return Schedule{}, false
		}
		return s, true
	}
	return Schedule{}, false
}
