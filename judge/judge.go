// Package judge reads verdicts and says what to change next. Rules is the
// built-in Judge: rules over the same metrics that a language model gets, one
// file a rule, rule_*.go, and a search over the knobs of a candidate's schedule.
package judge

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// NearFloor is the headroom from which there is nothing left to gain: the
// measured ceilings themselves are not known to better than 5 %.
const NearFloor = 0.95

// atTheFloor reports whether there is nothing left to gain. A baseline that is
// faster says that there is: a ceiling is what one way of asking memory reached.
func (v view) atTheFloor() bool {
	return v.verdict.Headroom >= NearFloor && !v.verdict.Speedup.Slower()
}

// Rules is the built-in Judge. It needs no model, and the same input gives the
// same feedback. Its zero value is ready.
type Rules struct{}

// Name returns "rules".
func (Rules) Name() string { return "rules" }

// Judge returns the one thing to change. It never fails but for ctx.
func (Rules) Judge(ctx context.Context, in kernelwright.JudgeInput) (kernelwright.Feedback, error) {
	if err := ctx.Err(); err != nil {
		return kernelwright.Feedback{}, err
	}
	s := newSearch(in)
	if in.Want == kernelwright.Correction {
		return correct(in, s), nil
	}
	return optimise(in, s), nil
}

// view is what a rule looks at: one verdict, on one device.
type view struct {
	task      kernelwright.Task
	device    kernelwright.Device
	candidate kernelwright.Candidate
	verdict   kernelwright.Verdict
}

// metric returns a metric, and false where it was not measured.
func (v view) metric(name string) (float64, bool) {
	x, ok := v.verdict.Metrics[name]
	return x, ok && !math.IsNaN(x) && !math.IsInf(x, 0)
}

// or is metric with a value for when it was not measured.
func (v view) or(name string, otherwise float64) float64 {
	if x, ok := v.metric(name); ok {
		return x
	}
	return otherwise
}

// evidence collects the named metrics that were measured, beside the time.
func (v view) evidence(names ...string) map[string]float64 {
	e := map[string]float64{}
	put := func(name string, x float64) {
		if !math.IsNaN(x) && !math.IsInf(x, 0) {
			e[name] = x
		}
	}
	if v.verdict.CandidateMS > 0 {
		put("candidate_ms", v.verdict.CandidateMS)
		put("headroom", v.verdict.Headroom)
	}
	for _, name := range names {
		if x, ok := v.metric(name); ok {
			put(name, x)
		}
	}
	return e
}

// finding is what a rule has to say.
type finding struct {
	rule     string
	evidence map[string]float64

	issue, why, fix          string // of a correction
	bottleneck, method, plan string // of an optimisation

	// moves are the knobs (names of a schedule's, see meaning) that would do what it says,
	// the likeliest first.
	moves []move
	// done says that nothing can be gained; why is then the reason.
	done bool
	// gain is, on a GPU, the share of the candidate's time that the change would
	// take away at most, by estimate. gainless is for what has none to tell.
	gain     float64
	gainless bool
}

// toward is where to a knob should go.
type toward int

const (
	toUp    toward = iota // the next larger choice
	toDown                // the next smaller one
	toMost                // the largest
	toLeast               // the smallest
)

type move struct {
	knob string
	to   toward
}

// rule looks at a verdict and speaks or not.
type rule struct {
	name string
	look func(v view) (finding, bool)
}

func ask(rules []rule, v view) []finding {
	var found []finding
	for _, r := range rules {
		if f, ok := r.look(v); ok {
			f.rule = r.name
			found = append(found, f)
		}
	}
	return found
}

// stop is the feedback that ends a run.
func stop(rule, why string, evidence map[string]float64) kernelwright.Feedback {
	return kernelwright.Feedback{Kind: kernelwright.Stop, Rule: rule, Why: why, Evidence: evidence}
}

// oneLine makes foreign text (a compiler's, a candidate's) fit for a sentence.
func oneLine(s string) string {
	const most = 200
	s = strings.Join(strings.Fields(strings.ToValidUTF8(s, "")), " ")
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + "…"
	}
	return s
}

func percent(x float64) string { return fmt.Sprintf("%.0f %%", 100*max(min(x, 1e6), -1e6)) }

// byteSize writes bytes for people.
func byteSize(n float64) string {
	switch {
	case n >= 1<<60:
		return fmt.Sprintf("%.3g bytes", n)
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", n/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", n/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.0f KiB", n/(1<<10))
	}
	return fmt.Sprintf("%.0f bytes", n)
}
