package report

import (
	"fmt"

	"github.com/kernelwright/kernelwright"
)

// Searched is what trying a Coder's schedule space came to, on one task.
type Searched struct {
	kernelwright.Space
	Tried   int `json:"tried"` // programs
	Correct int `json:"correct"`
	// Quick is the speedup against the fastest baseline of the candidate that was the
	// fastest at quick, nil for none. The fastest of many looks faster than it is: the
	// certificate measures it anew.
	Quick *kernelwright.Speedup `json:"quick"`
}

// ReduceSpace keeps of a search what a bench's report shows.
func ReduceSpace(d Data, space kernelwright.Space) *Searched {
	s := &Searched{Space: space, Tried: len(d.Rounds)}
	best := 0.0
	for _, r := range d.Rounds {
		if !r.Verdict.Status.OK() {
			continue
		}
		s.Correct++
		if ms := r.Verdict.CandidateMS; ms > 0 && (best == 0 || ms < best) {
			best, s.Quick = ms, r.Verdict.Speedup
		}
	}
	return s
}

// spaceTable has a row for each search, and none without.
func spaceTable(b Bench) table {
	t := table{
		Title: "Trying the built-in Coder's schedule space",
		Head:  []string{"reference", "points", "programs", "tried", "correct", "best at quick", "certified", "over eager", "over compile"},
		Left:  []int{0},
		Notes: []string{
			"points: combinations of the choices of all knobs; programs: how many different ones they come to; tried: how many got a verdict, the one that the Coder begins with first, the others in an order that the seed draws",
			"best at quick and certified: speedup against the fastest baseline. The fastest of many looks faster than it is; its certificate measures it anew, and is the ceiling",
		},
	}
	sampled := 0
	for _, r := range b.Runs {
		if r.Space == nil {
			continue
		}
		name := Line(b.References[r.Reference].Name)
		if len(b.Seeds) > 1 {
			name += fmt.Sprintf(" [seed %d]", r.Seed)
		}
		tried := fmt.Sprint(r.Space.Tried)
		if r.Space.Sampled {
			sampled++
			tried += " (sample)"
		}
		programs := "more"
		if r.Space.Programs > 0 {
			programs = fmt.Sprint(r.Space.Programs)
		}
		t.Rows = append(t.Rows, []string{
			name, fmt.Sprint(r.Space.Points), programs, tried, fmt.Sprint(r.Space.Correct), speedupOf(r.Space.Quick), speedupOf(r.Speedup), over(r, "eager"), over(r, "compile"),
		})
	}
	if sampled > 0 {
		t.Notes = append(t.Notes, fmt.Sprintf("sample: on %s the space holds more programs than were tried, so its ceiling may be higher; `--budget` raises their number", plural(sampled, "task")))
	}
	return t
}

func speedupOf(s *kernelwright.Speedup) string {
	if s == nil || !sound(s.Value) {
		return "–"
	}
	return fmt.Sprintf("%.2f× [%.2f, %.2f]", s.Value, s.Low, s.High)
}

// over is the speedup of a certified kernel over a baseline.
func over(r BenchRun, baseline string) string {
	s, ok := r.Speedups[baseline]
	if !ok {
		return "–"
	}
	return fmt.Sprintf("%.2f×", s)
}
