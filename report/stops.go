package report

import (
	"fmt"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// Stops counts how often a language model as Judge wanted to stop and was not
// followed, because there was something to try, and how often it was right.
type Stops struct {
	Refused  int `json:"refused"`
	Followed int `json:"followed"` // of these, those after which there was another round
	Right    int `json:"right"`    // of these, those after which no round was faster
}

// add returns both together.
func (s Stops) add(o Stops) Stops {
	return Stops{s.Refused + o.Refused, s.Followed + o.Followed, s.Right + o.Right}
}

// stopsOf counts the stops of a run that were not taken. One was right where no later
// candidate is faster than the fastest until then, beyond the noise of measuring; one
// that did not pass certification counts for neither.
func stopsOf(rounds []kernelwright.Round) (s Stops, after []int) {
	var best *kernelwright.Verdict
	proven := make([]bool, len(rounds))
	for i := range rounds {
		c := rounds[i].Certificate
		proven[i] = timedRight(rounds[i].Verdict) && (c == nil || c.Status == kernelwright.Certified)
	}
	for i := range rounds {
		if v := &rounds[i].Verdict; proven[i] && (best == nil || v.CandidateMS < best.CandidateMS) {
			best = v
		}
		if f := rounds[i].Feedback; f == nil || f.WantedStop == "" {
			continue
		}
		s.Refused++
		after = append(after, rounds[i].Index)
		if i == len(rounds)-1 {
			continue
		}
		s.Followed++
		right := true
		for j := i + 1; j < len(rounds); j++ {
			if proven[j] && (best == nil || rounds[j].Verdict.FasterThan(*best)) {
				right = false
			}
		}
		if right {
			s.Right++
		}
	}
	return s, after
}

// RefusedStops says in part of a sentence after which rounds of a run the Judge wanted
// to stop, and how often that was right; empty where it never did in vain.
func RefusedStops(rounds []kernelwright.Round) string {
	s, after := stopsOf(rounds)
	if s.Refused == 0 {
		return ""
	}
	which := make([]string, len(after))
	for i, n := range after {
		which[i] = fmt.Sprint(n)
	}
	word := "round "
	if s.Refused > 1 {
		word = "rounds "
	}
	said := "the Judge wanted to stop after " + word + strings.Join(which, ", ") + ", and there was something to try"
	return said + s.worth()
}

// worth says how often the Judge was right, to go on a sentence with.
func (s Stops) worth() string {
	if s.Followed == 0 {
		return ""
	}
	return fmt.Sprintf("; it was right (no later round was faster) in %d of %d", s.Right, s.Followed)
}
