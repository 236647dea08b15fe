package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/score"
)

// Advice is what a round was advised and what came of it.
type Advice struct {
	Rule string                    `json:"rule"` // of the built-in Judge; empty where a language model's own
	Kind kernelwright.FeedbackKind `json:"kind"`
	Came string                    `json:"came"` // "helped", "same", "slower" or "failed"
	// Ratio is the time of the fastest round until then over that of this one, for
	// an optimisation that did not fail; else 0.
	Ratio float64 `json:"ratio,omitempty"`
}

// What came of advice. A correction helped where the candidate is correct. An
// optimisation is held against the fastest round that there was when it was given,
// since that is what it starts from; it helped where it is faster, and was slower,
// beyond the noise of measuring.
const (
	adviceHelped = "helped"
	adviceSame   = "same"
	adviceSlower = "slower"
	adviceFailed = "failed"
)

// adviceOf tells what a round of a run followed; nil where nobody advised anything.
func adviceOf(rounds []kernelwright.Round, r kernelwright.Round) *Advice {
	var f *kernelwright.Feedback
	var before *kernelwright.Verdict
	for i := range rounds {
		earlier := &rounds[i]
		if earlier.Index > r.After() {
			continue
		}
		if earlier.Index == r.After() {
			f = earlier.Feedback
		}
		if v := &earlier.Verdict; timedRight(*v) && (before == nil || v.CandidateMS < before.CandidateMS) {
			before = v
		}
	}
	if f == nil || f.Kind == kernelwright.Stop {
		return nil
	}
	a := &Advice{Rule: f.Rule, Kind: f.Kind, Came: adviceFailed}
	if rule, _, fallback := strings.Cut(f.Rule, " ("); fallback {
		a.Rule = rule // of a record that says there that a model's answer could not be read
	}
	v := r.Verdict
	switch {
	case !v.Status.OK():
	case f.Kind == kernelwright.Correction:
		a.Came = adviceHelped
	case !timedRight(v) || before == nil:
		return nil
	default:
		a.Came = adviceSame
		if ratio := before.CandidateMS / v.CandidateMS; sound(ratio) {
			a.Ratio = ratio
		}
		if v.FasterThan(*before) {
			a.Came = adviceHelped
		} else if before.FasterThan(v) {
			a.Came = adviceSlower
		}
	}
	return a
}

func timedRight(v kernelwright.Verdict) bool {
	return v.Status.OK() && v.CandidateMS > 0 && sound(v.CandidateMS)
}

// AdviceFigures is how often the advice of one rule helped.
type AdviceFigures struct {
	Rule     string                    `json:"rule"`
	Kind     kernelwright.FeedbackKind `json:"kind"`
	Followed int                       `json:"followed"` // rounds
	Helped   int                       `json:"helped"`
	Slower   int                       `json:"slower"`
	Failed   int                       `json:"failed"`
	// Share is Helped of Followed.
	Share *score.Interval `json:"share"`
	// Ratio is the geometric mean of the speedups over the fastest round until
	// then, of optimisations that did not fail.
	Ratio Number `json:"ratio"`
}

// adviceFigures counts what came of each rule's advice, the most followed first.
func adviceFigures(groups [][]BenchRun, draws score.Draws) []AdviceFigures {
	type key struct {
		rule string
		kind kernelwright.FeedbackKind
	}
	given := map[key][][]Advice{} // by reference
	for i, group := range groups {
		for _, run := range group {
			for _, r := range run.Rounds {
				if r.Advice == nil {
					continue
				}
				k := key{r.Advice.Rule, r.Advice.Kind}
				if given[k] == nil {
					given[k] = make([][]Advice, len(groups))
				}
				given[k][i] = append(given[k][i], *r.Advice)
			}
		}
	}
	out := []AdviceFigures{}
	for k, all := range given {
		f := AdviceFigures{Rule: k.rule, Kind: k.kind}
		var ratios []float64
		for _, a := range slices.Concat(all...) {
			f.Followed++
			switch a.Came {
			case adviceHelped:
				f.Helped++
			case adviceSlower:
				f.Slower++
			case adviceFailed:
				f.Failed++
			}
			if a.Ratio > 0 {
				ratios = append(ratios, a.Ratio)
			}
		}
		f.Ratio = Number(score.Geomean(ratios))
		f.Share = known(draws.Interval(func(references []int) float64 {
			helped, followed := 0, 0
			for _, i := range references {
				for _, a := range all[i] {
					followed++
					if a.Came == adviceHelped {
						helped++
					}
				}
			}
			if followed == 0 {
				return math.NaN()
			}
			return float64(helped) / float64(followed)
		}))
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b AdviceFigures) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(b.Followed, a.Followed), strings.Compare(a.Rule, b.Rule))
	})
	return out
}

// adviceTable is a row for each rule under each configuration; none where nobody
// advised anything.
func adviceTable(f BenchFigures) table {
	t := table{
		Title: "What came of advice",
		Head:  []string{"configuration", "rule", "kind", "rounds", "helped", "hit rate", "slower", "failed", "ratio of times"},
		Left:  []int{0, 1, 2},
		Notes: []string{
			"rounds: those that followed a rule's advice; helped: a correction's candidate is correct, an optimisation's is faster than the fastest until then by more than noise; slower: by more than noise",
			"ratio of times: the fastest until then over the one that followed, geometric mean; [ ]: 95 % interval over the references, by bootstrap",
		},
	}
	for _, c := range f.Configurations {
		if n := c.Stops.Refused; n > 0 {
			t.Notes = append(t.Notes, fmt.Sprintf("%s: the Judge wanted to stop after %s, and there was something to try%s", c.Name, plural(n, "round"), c.Stops.worth()))
		}
		for _, a := range c.Advice {
			rule := words(a.Rule)
			if rule == "" {
				rule = "a model's own"
			}
			rate := shareOf(a.Share)
			if a.Share != nil && a.Share.Low != a.Share.High {
				rate += fmt.Sprintf(" [%.0f, %.0f]", 100*a.Share.Low, 100*a.Share.High)
			}
			t.Rows = append(t.Rows, []string{c.Name, rule, Line(string(a.Kind)), fmt.Sprint(a.Followed), fmt.Sprint(a.Helped), rate, fmt.Sprint(a.Slower), fmt.Sprint(a.Failed), factor(a.Ratio)})
		}
	}
	return t
}
