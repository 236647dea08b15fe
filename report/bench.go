package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// Bench is a bench with what a report of it shows. Runs are those that were
// begun, by reference, configuration and seed.
type Bench struct {
	kernelwright.Bench
	Machine  kernelwright.Device `json:"machine"`  // the last run's
	Machines int                 `json:"machines"` // how many devices, of one class, the runs are of
	Mixed    bool                `json:"mixed"`    // a reference has runs of several
	Versions map[string]string   `json:"versions"`
	Runs     []BenchRun          `json:"runs"`
}

// Spend is what a run asked of models, and the dollars of its rounds by index.
type Spend struct {
	kernelwright.Spend
	Rounds map[int]float64
}

// BenchRun is what one run of a bench came to.
type BenchRun struct {
	kernelwright.Member
	Status    string                  `json:"status"` // of the run while it has no kernel, else of the verdict
	Ended     bool                    `json:"ended"`
	Covered   bool                    `json:"covered"` // a candidate was tried
	Certified bool                    `json:"certified"`
	Reason    string                  `json:"reason,omitempty"`
	Hint      string                  `json:"hint,omitempty"`
	Stop      string                  `json:"stop,omitempty"`
	Flags     []kernelwright.TaskFlag `json:"flags,omitempty"`
	MS        float64                 `json:"candidate_ms" unknown:"0"`
	Speedup   *kernelwright.Speedup   `json:"speedup"`         // of the certificate, against the fastest baseline
	Speedups  map[string]float64      `json:"speedups"`        // of the certificate, by baseline
	Roofline  *Roofline               `json:"roofline"`        // of the certificate, nil where that does not tell it
	Space     *Searched               `json:"space,omitempty"` // of an exhaustive search
	Rounds    []BenchRound            `json:"rounds"`
	Seconds   float64                 `json:"seconds"` // of its rounds and of certification
	// Remembered is the verdicts that were reached before this run asked. They
	// count with the time that they took then.
	Remembered int                `json:"remembered"`
	Lessons    int                `json:"lessons"` // of earlier runs, that it was given
	Stops      Stops              `json:"refused_stops"`
	Spend      kernelwright.Spend `json:"spend"`
	Report     string             `json:"report,omitempty"` // path from the bench's page, where one was written
	Kernel     string             `json:"kernel,omitempty"`
}

// BenchRound is a round of a bench's run.
type BenchRound struct {
	Status  string  `json:"status"`
	Speedup float64 `json:"speedup" unknown:"0"` // against the fastest baseline; 0 where its candidate cannot be kept
	Seconds float64 `json:"seconds"`
	USD     float64 `json:"usd"`
	Advice  *Advice `json:"advice,omitempty"` // that it followed
}

// ReduceRun keeps of a run what a bench's report shows.
func ReduceRun(d Data, m kernelwright.Member, spend Spend) BenchRun {
	s := Summarise(d)
	m.RunID = d.Run.ID
	b := BenchRun{
		Member: m, Status: s.Status, Reason: s.Reason, Hint: s.Hint, Stop: s.Stop, Covered: len(d.Rounds) > 0, Spend: spend.Spend,
		Speedups: map[string]float64{}, Rounds: []BenchRound{},
	}
	switch d.Run.Status {
	case kernelwright.RunDone, kernelwright.RunInvalid, kernelwright.RunDeclined, kernelwright.RunFailed, kernelwright.RunCancelled:
		b.Ended = true
	case kernelwright.RunQueued, kernelwright.RunRunning:
	}
	_, v, found := Best(d.Rounds)
	b.Flags = flagsOf(d, v)
	if b.Certified = found && v.Status == kernelwright.Certified; b.Certified {
		b.MS, b.Speedup, b.Roofline = v.CandidateMS, v.Speedup, rooflineOf(v)
		for name, ms := range v.Baselines {
			speedup := ms / v.CandidateMS
			if s, timed := v.Speedups[name]; timed {
				speedup = s.Value
			}
			if sound(speedup) {
				b.Speedups[name] = speedup
			}
		}
	} else if (found || slices.ContainsFunc(d.Rounds, refused)) && b.Ended {
		b.Status = "not certified"
	}
	b.Stops, _ = stopsOf(d.Rounds)
	seen := map[string]bool{}
	for _, r := range d.Rounds {
		round := BenchRound{Status: statusOf(r), Seconds: seconds(float64(r.FinishedMS-r.StartedMS) / 1000), USD: spend.Rounds[r.Index], Advice: adviceOf(d.Rounds, r)}
		// The same source again in one run is not measured again: that is no
		// memory of others.
		if r.Verdict.Cached && !seen[r.Verdict.Candidate] {
			b.Remembered++
			round.Seconds += seconds(r.Verdict.CostS["total"])
		}
		seen[r.Verdict.Candidate] = true
		if s := r.Verdict.Speedup; s != nil && r.Verdict.Status.OK() && sound(s.Value) && !refused(r) {
			round.Speedup = s.Value
		}
		b.Seconds += round.Seconds
		if c := r.Certificate; c != nil {
			b.Seconds += seconds(c.CostS["total"])
		}
		b.Rounds = append(b.Rounds, round)
	}
	return b
}

// seconds is a time from a record, which is foreign bytes: none is below zero,
// and sums of what is past centuries stay numbers.
func seconds(s float64) float64 {
	if s > 0 {
		return min(s, 1e10)
	}
	return 0
}

// ConfigurationNames says the configurations of a bench by what they differ in.
func ConfigurationNames(cs []kernelwright.Configuration) []string {
	parts := []func(kernelwright.Configuration) string{
		func(c kernelwright.Configuration) string { return "strategy " + Line(c.Strategy) },
		func(c kernelwright.Configuration) string { return "coder " + Line(c.Coder) },
		func(c kernelwright.Configuration) string {
			if c.Mode == "both" || c.Mode == c.Judge {
				return "judge " + Line(c.Judge)
			}
			return fmt.Sprintf("judge %s (%s)", Line(c.Judge), Line(c.Mode))
		},
		func(c kernelwright.Configuration) string { return Line(string(c.Language)) },
		func(c kernelwright.Configuration) string { return plural(c.Rounds, "round") },
		func(c kernelwright.Configuration) string {
			if c.Lessons {
				return "with lessons"
			}
			return "without lessons"
		},
		func(c kernelwright.Configuration) string {
			if c.Metrics == "" && len(cs) == 1 {
				return "" // as always
			}
			return cmp.Or(Line(c.Metrics), "selected") + " metrics"
		},
	}
	names := make([]string, len(cs))
	for i, c := range cs {
		var said []string
		for _, part := range parts {
			differs := len(cs) == 1
			for _, other := range cs {
				differs = differs || part(other) != part(c)
			}
			if text := part(c); differs && text != "" {
				said = append(said, text)
			}
		}
		names[i] = strings.Join(said, ", ")
	}
	return names
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// size says what a bench consists of.
func (b Bench) size() string {
	parts := []string{plural(len(b.References), "reference")}
	if n := len(b.Configurations); n > 1 {
		parts = append(parts, plural(n, "configuration"))
	}
	if n := len(b.Seeds); n > 1 {
		parts = append(parts, plural(n, "seed"))
	}
	if len(parts) == 1 {
		return parts[0]
	}
	return strings.Join(parts, " × ") + " = " + plural(b.wanted(), "run")
}

// wanted is how many runs the bench consists of.
func (b Bench) wanted() int { return len(b.References) * len(b.Configurations) * len(b.Seeds) }

func (b Bench) ended() int {
	n := 0
	for _, r := range b.Runs {
		if r.Ended {
			n++
		}
	}
	return n
}

// find returns the run of a member, nil where it was not begun.
func (b Bench) find(reference, configuration int, seed int64) *BenchRun {
	i, found := slices.BinarySearchFunc(b.Runs, kernelwright.Member{Reference: reference, Configuration: configuration, Seed: seed},
		func(r BenchRun, m kernelwright.Member) int {
			return cmp.Or(cmp.Compare(r.Reference, m.Reference), cmp.Compare(r.Configuration, m.Configuration), cmp.Compare(r.Seed, m.Seed))
		})
	if !found {
		return nil
	}
	return &b.Runs[i]
}
