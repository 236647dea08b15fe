package report

import (
	"fmt"
	"slices"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/score"
)

// Roofline is how near the least time of their task a certified kernel and the
// fastest baseline came in one certificate: that time over theirs, at most 1.
type Roofline struct {
	Kernel  float64 `json:"kernel"`
	Fastest float64 `json:"fastest"`
}

// rooflineOf is nil where a verdict has no floor, or no speedup with the time of
// the baseline that it is against.
func rooflineOf(v kernelwright.Verdict) *Roofline {
	if v.Speedup == nil || !sound(v.Speedup.Value) {
		return nil
	}
	fastest := v.Baselines[v.Speedup.Against]
	if !sound(v.Floor.MS) || !sound(v.CandidateMS) || !sound(fastest) {
		return nil
	}
	return &Roofline{min(v.Floor.MS/v.CandidateMS, 1), min(v.Floor.MS/fastest, 1)}
}

// RooflineFigures is of the certified kernels whose fastest baseline reaches a
// share of the roofline from From to below To; with no To, of all from From on.
type RooflineFigures struct {
	Band    string          `json:"band"`
	From    float64         `json:"from"`
	To      float64         `json:"to,omitempty"`
	Kernels int             `json:"kernels"`
	Geomean *score.Interval `json:"geomean"` // of their speedups against the fastest baseline
	// The medians of the shares that the kernels and their fastest baselines reach.
	Kernel  Number `json:"kernel"`
	Fastest Number `json:"fastest"`
}

// bands are told apart because what is left to gain differs: below the first
// there is room, in the last one a kernel can at best be as fast.
var bands = []RooflineFigures{
	{Band: "below 85 %", To: 0.85},
	{Band: "85 to 95 %", From: 0.85, To: 0.95},
	{Band: "95 % and above", From: 0.95},
	{Band: "all"},
}

func (f RooflineFigures) holds(r BenchRun) bool {
	return r.Certified && r.Roofline != nil && r.Roofline.Fastest >= f.From && (f.To == 0 || r.Roofline.Fastest < f.To)
}

// rooflineFigures also counts the certified kernels that are in no band.
func rooflineFigures(groups [][]BenchRun, draws score.Draws) (figures []RooflineFigures, unknown int) {
	for _, f := range bands {
		var kernels, fastest []float64
		for _, r := range slices.Concat(groups...) {
			if f.holds(r) {
				kernels, fastest = append(kernels, r.Roofline.Kernel), append(fastest, r.Roofline.Fastest)
			}
		}
		f.Kernels = len(kernels)
		f.Kernel, f.Fastest = Number(score.Quantile(kernels, 0.5)), Number(score.Quantile(fastest, 0.5))
		within := func(r BenchRun) (score.Result, bool) { return r.result(Fastest), f.holds(r) }
		f.Geomean = known(draws.Interval(of(groups, within, func(rs []score.Result) float64 { return score.Geomean(score.Speedups(rs)) })))
		figures = append(figures, f)
	}
	for _, r := range slices.Concat(groups...) {
		if r.Certified && r.Roofline == nil {
			unknown++
		}
	}
	return figures, unknown
}

// rooflineTable has no rows where no kernel is certified.
func rooflineTable(f BenchFigures) table {
	t := table{
		Title: "How near the roofline",
		Head:  []string{"configuration", "fastest baseline at", "kernels", "geomean", "kernels at", "baselines at"},
		Left:  []int{0, 1},
		Notes: []string{
			"at: the share of the roofline, the least time that this hardware needs for the task over the time of the kernel or of its fastest baseline, both of one certificate; rows are by the baseline's, and the last two columns are medians",
			"geomean: of the speedups against the fastest baseline; where that is at the roofline, a kernel can at best be as fast; [ ]: 95 % interval over the references, by bootstrap",
		},
	}
	for _, c := range f.Configurations {
		if c.Certified == 0 {
			continue
		}
		for _, r := range c.Roofline {
			t.Rows = append(t.Rows, []string{c.Name, r.Band, fmt.Sprint(r.Kernels), factorOf(r.Geomean), percent(r.Kernel), percent(r.Fastest)})
		}
		if n := c.NoRoofline; n > 0 {
			t.Notes = append(t.Notes, fmt.Sprintf("%s of %s in no row: the certificate does not tell the least time of the task, or the fastest baseline's", plural(n, "certified kernel"), c.Name))
		}
	}
	return t
}

func percent(share Number) string { return Percent(float64(share)) }

// text says the shares beside a speedup.
func (r *Roofline) text(against string) string {
	return fmt.Sprintf("%s of the roofline, %s %s", Percent(r.Kernel), against, Percent(r.Fastest))
}
