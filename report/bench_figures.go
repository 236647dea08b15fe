package report

import (
	"encoding/json"
	"math"
	"slices"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/score"
)

// Fastest stands for the fastest baseline of each task.
const Fastest = "fastest"

// Thresholds are the p of fast_p that are told.
var Thresholds = []float64{0, 0.8, 1, 1.5, 2}

const (
	// benchSeed makes the intervals of a bench the same whenever they are told.
	benchSeed = 6
	// curveSteps is into how many equal steps a curve over minutes or dollars is
	// divided. One over rounds has each of them, unless they are very many.
	curveSteps    = 40
	maxRoundSteps = 100
)

// Number is a figure that may not be there: NaN, which JSON has as null.
type Number float64

// MarshalJSON implements json.Marshaler.
func (n Number) MarshalJSON() ([]byte, error) {
	if v := float64(n); !math.IsNaN(v) && !math.IsInf(v, 0) {
		return json.Marshal(v)
	}
	return []byte("null"), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (n *Number) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		*n = Number(math.NaN())
		return nil
	}
	return json.Unmarshal(text, (*float64)(n))
}

// BenchFigures is what a bench came to, over the runs that have ended. Intervals
// are of 95 %, over the references.
type BenchFigures struct {
	Headline       string                 `json:"headline"`
	Configurations []ConfigurationFigures `json:"configurations"`
	Pairs          []PairFigures          `json:"pairs"`
}

// ConfigurationFigures is what one configuration came to.
type ConfigurationFigures struct {
	Name      string `json:"name"`
	Runs      int    `json:"runs"` // wanted
	Ended     int    `json:"ended"`
	Covered   int    `json:"covered"` // a candidate was tried
	Certified int    `json:"certified"`
	Declined  int    `json:"declined"`
	Invalid   int    `json:"invalid"`
	Failed    int    `json:"failed"`
	Faster    int    `json:"faster"` // certified, and its interval lies above 1 against the fastest baseline
	Slower    int    `json:"slower"` // below 1

	Correct          *score.Interval   `json:"correct"` // share that is certified
	CorrectOfCovered *score.Interval   `json:"correct_of_covered"`
	Against          []BaselineFigures `json:"against"` // the fastest baseline first

	Roofline   []RooflineFigures `json:"roofline"`    // by the share that the fastest baseline reaches, and of all
	NoRoofline int               `json:"no_roofline"` // certified kernels that are in none of them

	// Of a covered run, the mean.
	Rounds  Number `json:"rounds"`
	Minutes Number `json:"minutes"`
	USD     Number `json:"usd"`

	Taught     int                `json:"taught"`     // runs that were given lessons of earlier ones
	Remembered int                `json:"remembered"` // verdicts, of all runs together
	Spend      kernelwright.Spend `json:"spend"`      // likewise

	Advice []AdviceFigures `json:"advice"`        // of the Judge, and what came of it
	Stops  Stops           `json:"refused_stops"` // of the Judge, of all runs together

	ByRounds  []CurvePoint `json:"by_rounds"`
	ByMinutes []CurvePoint `json:"by_minutes"`
	ByUSD     []CurvePoint `json:"by_usd"` // empty where nothing was spent
}

// BaselineFigures is the speedups against one baseline.
type BaselineFigures struct {
	Baseline string  `json:"baseline"`
	FastP    []FastP `json:"fast_p"`
	// Unknown is how many certified kernels were not held against it. They count
	// as not faster, and as 1 where a run without a kernel does.
	Unknown int             `json:"unknown"`
	Geomean *score.Interval `json:"geomean"` // of the certified kernels, as the next four
	Mean    Number          `json:"mean"`
	Median  Number          `json:"median"`
	Q1      Number          `json:"q1"`
	Q3      Number          `json:"q3"`
	// GeomeanAll is over all runs: one without a certified kernel counts as 1.
	GeomeanAll *score.Interval `json:"geomean_all"`
}

// FastP is the share of all runs whose kernel is certified and whose speedup is
// above P.
type FastP struct {
	P     float64         `json:"p"`
	Share *score.Interval `json:"share"`
}

// CurvePoint is the geometric mean of the best speedups so far, against the
// fastest baseline, over all runs; one without a kernel counts as 1.
type CurvePoint struct {
	At float64 `json:"at"`
	score.Interval
}

// PairFigures holds one configuration against another on the same references.
type PairFigures struct {
	A          int             `json:"a"` // of the bench's configurations
	B          int             `json:"b"`
	References int             `json:"references"`
	Ratio      *score.Interval `json:"ratio"` // geometric mean of A's speedup over B's; no kernel counts as 1
	// ByRounds is the ratio of their best speedups so far, as in CurvePoint.
	ByRounds []CurvePoint `json:"by_rounds"`
	Both     int          `json:"both"` // runs in which both have a certified kernel
	OnlyA    int          `json:"only_a"`
	OnlyB    int          `json:"only_b"`
}

// Figures computes what a bench came to.
func Figures(b Bench) BenchFigures { return figures(b, score.DefaultDraws) }

func figures(b Bench, times int) BenchFigures {
	f := BenchFigures{Configurations: []ConfigurationFigures{}, Pairs: []PairFigures{}}
	names := ConfigurationNames(b.Configurations)
	for i := range b.Configurations {
		f.Configurations = append(f.Configurations, configurationFigures(b, i, names[i], times))
	}
	for i := range b.Configurations {
		for k := i + 1; k < len(b.Configurations); k++ {
			f.Pairs = append(f.Pairs, pairFigures(b, i, k, times))
		}
	}
	f.Headline = b.headline(f)
	return f
}

func configurationFigures(b Bench, configuration int, name string, times int) ConfigurationFigures {
	c := ConfigurationFigures{Name: name, Runs: len(b.References) * len(b.Seeds)}
	var groups [][]BenchRun // by reference: seeds of one are no independent tasks
	for reference := range b.References {
		var group []BenchRun
		for _, seed := range b.Seeds {
			if r := b.find(reference, configuration, seed); r != nil && r.Ended {
				group = append(group, *r)
			}
		}
		if len(group) > 0 {
			groups = append(groups, group)
		}
	}
	rounds, seconds := 0, 0.0
	for _, r := range slices.Concat(groups...) {
		c.Ended++
		if r.Lessons > 0 {
			c.Taught++
		}
		c.Remembered += r.Remembered
		c.Spend = c.Spend.Add(r.Spend)
		c.Stops = c.Stops.add(r.Stops)
		if r.Covered {
			c.Covered++
			rounds += len(r.Rounds)
			seconds += r.Seconds
		}
		switch {
		case r.Certified:
			c.Certified++
			if s := r.Speedup; s != nil && s.Wins(0) {
				c.Faster++
			} else if s != nil && s.High < 1 {
				c.Slower++
			}
		case r.Status == string(kernelwright.RunDeclined):
			c.Declined++
		case r.Status == string(kernelwright.RunInvalid):
			c.Invalid++
		case r.Status == string(kernelwright.RunFailed):
			c.Failed++
		}
	}
	covered := float64(c.Covered)
	c.Rounds, c.Minutes, c.USD = Number(float64(rounds)/covered), Number(seconds/60/covered), Number(c.Spend.USD/covered)

	draws := score.Draw(len(groups), times, benchSeed)
	c.Correct = known(draws.Interval(of(groups, func(r BenchRun) (score.Result, bool) { return r.result(Fastest), true }, score.Correct)))
	c.CorrectOfCovered = known(draws.Interval(of(groups, func(r BenchRun) (score.Result, bool) { return r.result(Fastest), r.Covered }, score.Correct)))
	for _, baseline := range b.baselines() {
		c.Against = append(c.Against, baselineFigures(groups, draws, baseline))
	}

	c.Roofline, c.NoRoofline = rooflineFigures(groups, draws)
	c.Advice = adviceFigures(groups, draws)

	over := func(took func(BenchRound) float64, n int, end float64) []CurvePoint {
		all := make([][]func(float64) float64, len(groups))
		for i, group := range groups {
			for _, r := range group {
				steps := r.steps(took)
				all[i] = append(all[i], func(at float64) float64 { return score.At(steps, at) })
			}
		}
		return curve(all, draws, n, end)
	}
	minutes := func(round BenchRound) float64 { return round.Seconds / 60 }
	dollars := func(round BenchRound) float64 { return round.USD }
	most := b.Configurations[configuration].Rounds
	c.ByRounds = over(oneRound, min(most, maxRoundSteps), float64(most))
	c.ByMinutes = over(minutes, curveSteps, longest(groups, minutes))
	c.ByUSD = over(dollars, curveSteps, longest(groups, dollars))
	return c
}

func oneRound(BenchRound) float64 { return 1 }

// baselines is what any run was held against, the fastest of each first.
func (b Bench) baselines() []string {
	all := map[string]bool{}
	for _, r := range b.Runs {
		for name := range r.Speedups {
			all[name] = true
		}
	}
	return append([]string{Fastest}, BaselineNames(all)...)
}

// result is the run as the figures against a baseline count it.
func (r BenchRun) result(baseline string) score.Result {
	out := score.Result{Correct: r.Certified, Speedup: r.Speedups[baseline]}
	if baseline == Fastest && r.Speedup != nil {
		out.Speedup = r.Speedup.Value
	}
	if !sound(out.Speedup) {
		out.Speedup = 0
	}
	return out
}

// of turns a statistic of results into one of references.
func of(groups [][]BenchRun, result func(BenchRun) (score.Result, bool), statistic func([]score.Result) float64) func([]int) float64 {
	results := make([][]score.Result, len(groups))
	for i, group := range groups {
		for _, r := range group {
			if one, counts := result(r); counts {
				results[i] = append(results[i], one)
			}
		}
	}
	var drawn []score.Result
	return func(references []int) float64 {
		drawn = drawn[:0]
		for _, i := range references {
			drawn = append(drawn, results[i]...)
		}
		return statistic(drawn)
	}
}

func baselineFigures(groups [][]BenchRun, draws score.Draws, baseline string) BaselineFigures {
	f := BaselineFigures{Baseline: baseline}
	result := func(r BenchRun) (score.Result, bool) { return r.result(baseline), true }
	for _, p := range Thresholds {
		share := draws.Interval(of(groups, result, func(rs []score.Result) float64 { return score.FastP(rs, p) }))
		f.FastP = append(f.FastP, FastP{p, known(share)})
	}
	var all []score.Result
	for _, r := range slices.Concat(groups...) {
		one := r.result(baseline)
		all = append(all, one)
		if one.Correct && one.Speedup == 0 {
			f.Unknown++
		}
	}
	speedups := score.Speedups(all)
	f.Mean, f.Median = Number(score.Mean(speedups)), Number(score.Quantile(speedups, 0.5))
	f.Q1, f.Q3 = Number(score.Quantile(speedups, 0.25)), Number(score.Quantile(speedups, 0.75))
	f.Geomean = known(draws.Interval(of(groups, result, func(rs []score.Result) float64 { return score.Geomean(score.Speedups(rs)) })))
	f.GeomeanAll = known(draws.Interval(of(groups, result, func(rs []score.Result) float64 { return score.Geomean(score.Filled(rs)) })))
	return f
}

// known is an interval, or nil where there is nothing to make it of.
func known(i score.Interval) *score.Interval {
	if math.IsNaN(i.Value) || math.IsInf(i.Value, 0) {
		return nil
	}
	return &i
}

// steps is the best speedup so far by what the rounds took, which is told of
// each. One that ended without a certified kernel never had any.
func (r BenchRun) steps(took func(BenchRound) float64) []score.Step {
	if !r.Certified {
		return nil
	}
	var found []score.Step
	at := 0.0
	for _, round := range r.Rounds {
		at += took(round)
		found = append(found, score.Step{At: at, Speedup: round.Speedup})
	}
	return score.BestSoFar(found)
}

// longest is the most that the rounds of one run took.
func longest(groups [][]BenchRun, took func(BenchRound) float64) float64 {
	most := 0.0
	for _, r := range slices.Concat(groups...) {
		sum := 0.0
		for _, round := range r.Rounds {
			sum += took(round)
		}
		most = max(most, sum)
	}
	return most
}

// curve is the geometric mean, at so many steps from 0 to an end, of what all
// runs of all references have there.
func curve(all [][]func(at float64) float64, draws score.Draws, n int, end float64) []CurvePoint {
	points := []CurvePoint{}
	if end <= 0 || len(all) == 0 {
		return points
	}
	sums := make([]float64, len(all)) // of logarithms
	for step := range n + 1 {
		at := end * float64(step) / float64(n)
		for i := range all {
			sums[i] = 0
			for _, value := range all[i] {
				sums[i] += math.Log(value(at))
			}
		}
		points = append(points, CurvePoint{at, draws.Interval(func(references []int) float64 {
			sum, count := 0.0, 0
			for _, i := range references {
				sum += sums[i]
				count += len(all[i])
			}
			return math.Exp(sum / float64(count))
		})})
	}
	return points
}

func pairFigures(b Bench, a, other, times int) PairFigures {
	f := PairFigures{A: a, B: other}
	var ratios [][]float64 // by reference, as the next
	var over [][]func(at float64) float64
	for reference := range b.References {
		var both []float64
		var soFar []func(float64) float64
		for _, seed := range b.Seeds {
			x, y := b.find(reference, a, seed), b.find(reference, other, seed)
			if x == nil || y == nil || !x.Ended || !y.Ended {
				continue
			}
			switch {
			case x.Certified && y.Certified:
				f.Both++
			case x.Certified:
				f.OnlyA++
			case y.Certified:
				f.OnlyB++
			}
			both = append(both, x.result(Fastest).Filled()/y.result(Fastest).Filled())
			above, below := x.steps(oneRound), y.steps(oneRound)
			soFar = append(soFar, func(at float64) float64 { return score.At(above, at) / score.At(below, at) })
		}
		if len(both) > 0 {
			ratios, over = append(ratios, both), append(over, soFar)
		}
	}
	f.References = len(ratios)
	draws := score.Draw(len(ratios), times, benchSeed)
	most := max(b.Configurations[a].Rounds, b.Configurations[other].Rounds)
	f.ByRounds = curve(over, draws, min(most, maxRoundSteps), float64(most))
	var drawn []float64
	f.Ratio = known(draws.Interval(func(references []int) float64 {
		drawn = drawn[:0]
		for _, i := range references {
			drawn = append(drawn, ratios[i]...)
		}
		return score.Geomean(drawn)
	}))
	return f
}
