package score

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func near(a, b float64) bool {
	return math.Abs(a-b) <= 1e-9*max(1, math.Abs(a), math.Abs(b)) || math.IsNaN(a) && math.IsNaN(b)
}

func TestKnownValues(t *testing.T) {
	results := []Result{{true, 2}, {true, 1}, {true, 0.5}, {false, 9}, {true, 0}}
	xs := []float64{4, 1, 2, 8}
	nan := math.NaN()
	for _, c := range []struct {
		what      string
		got, want float64
	}{
		{"fast_0", FastP(results, 0), 0.6},
		{"fast_0.5 is above, not at", FastP(results, 0.5), 0.4},
		{"fast_1", FastP(results, 1), 0.2},
		{"fast_2", FastP(results, 2), 0},
		{"fast_1 of nothing", FastP(nil, 1), nan},
		{"correct", Correct(results), 0.8},
		{"geomean", Geomean(xs), math.Pow(64, 0.25)},
		{"geomean of nothing", Geomean(nil), nan},
		{"geomean with 1 for the others", Geomean(Filled(results)), 1},
		{"mean", Mean(xs), 3.75},
		{"mean of nothing", Mean(nil), nan},
		// numpy.quantile([4, 1, 2, 8], q)
		{"median", Quantile(xs, 0.5), 3},
		{"first quartile", Quantile(xs, 0.25), 1.75},
		{"third quartile", Quantile(xs, 0.75), 5},
		{"least", Quantile(xs, 0), 1},
		{"most", Quantile(xs, 1), 8},
		{"of one", Quantile([]float64{7}, 0.3), 7},
		{"of nothing", Quantile(nil, 0.5), nan},
	} {
		if !near(c.got, c.want) {
			t.Errorf("%s: %v, want %v", c.what, c.got, c.want)
		}
	}
	if got := Speedups(results); !slices.Equal(got, []float64{2, 1, 0.5}) {
		t.Error(got)
	}
	if !slices.Equal(xs, []float64{4, 1, 2, 8}) {
		t.Error("Quantile sorted what it was given")
	}
}

func results(t *rapid.T) []Result {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Result {
		return Result{rapid.Bool().Draw(t, "correct"), rapid.Float64Range(0.01, 100).Draw(t, "speedup")}
	}), 1, 30).Draw(t, "results")
}

func TestFastPFallsWithP(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := results(t)
		p, q := rapid.Float64Range(0, 100).Draw(t, "p"), rapid.Float64Range(0, 100).Draw(t, "q")
		if p > q {
			p, q = q, p
		}
		if FastP(all, p) < FastP(all, q) {
			t.Errorf("fast_%v is %v and fast_%v is %v", p, FastP(all, p), q, FastP(all, q))
		}
		if FastP(all, 0) != Correct(all) {
			t.Errorf("fast_0 is %v, and %v are correct", FastP(all, 0), Correct(all))
		}
	})
}

func TestMeansScaleAndLieBetween(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		xs := rapid.SliceOfN(rapid.Float64Range(0.01, 100), 1, 30).Draw(t, "xs")
		factor := rapid.Float64Range(0.1, 10).Draw(t, "factor")
		scaled := make([]float64, len(xs))
		inverse := make([]float64, len(xs))
		for i, x := range xs {
			scaled[i], inverse[i] = x*factor, 1/x
		}
		least, most := slices.Min(xs), slices.Max(xs)
		for name, mean := range map[string]func([]float64) float64{
			"geomean": Geomean, "mean": Mean, "median": func(xs []float64) float64 { return Quantile(xs, 0.5) },
		} {
			if !near(mean(scaled), mean(xs)*factor) {
				t.Errorf("%s: %v times %v gives %v", name, mean(xs), factor, mean(scaled))
			}
			if m := mean(xs); m < least*(1-1e-9) || m > most*(1+1e-9) {
				t.Errorf("%s: %v of %v to %v", name, m, least, most)
			}
		}
		// Twice as fast and half as fast are even: what the others do not have.
		if !near(Geomean(xs)*Geomean(inverse), 1) {
			t.Errorf("geomean: %v and %v", Geomean(xs), Geomean(inverse))
		}
		if Geomean(xs) > Mean(xs)*(1+1e-9) {
			t.Errorf("geomean %v above mean %v", Geomean(xs), Mean(xs))
		}
	})
}

func TestIntervalsHoldTheirValueAndRepeat(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		xs := rapid.SliceOfN(rapid.Float64Range(0.01, 100), 1, 20).Draw(t, "xs")
		seed := rapid.Uint64().Draw(t, "seed")
		geomean := func(tasks []int) float64 {
			drawn := make([]float64, len(tasks))
			for i, task := range tasks {
				drawn[i] = xs[task]
			}
			return Geomean(drawn)
		}
		a := Draw(len(xs), 100, seed).Interval(geomean)
		if b := Draw(len(xs), 100, seed).Interval(geomean); a != b {
			t.Errorf("%v, and again %v", a, b)
		}
		if !near(a.Value, Geomean(xs)) || a.Low > a.Value || a.High < a.Value {
			t.Errorf("%v of %v", a, xs)
		}
		if a.Low < slices.Min(xs)*(1-1e-9) || a.High > slices.Max(xs)*(1+1e-9) {
			t.Errorf("%v lies outside of %v", a, xs)
		}
	})
}

// The interval of a mean of many is that of theory: 1.96 standard errors.
func TestTheIntervalOfAMean(t *testing.T) {
	const n = 400
	xs := make([]float64, n)
	for i := range xs {
		xs[i] = float64(i) / n // variance 1/12
	}
	got := Draw(n, DefaultDraws, 1).Interval(func(tasks []int) float64 {
		sum := 0.0
		for _, task := range tasks {
			sum += xs[task]
		}
		return sum / float64(len(tasks))
	})
	half := 1.96 * math.Sqrt(1./12/n)
	if math.Abs(got.High-got.Value-half) > 0.1*half || math.Abs(got.Value-got.Low-half) > 0.1*half {
		t.Errorf("%+v, want %v to either side", got, half)
	}
}

func TestIntervalsOfWhatIsNotThere(t *testing.T) {
	if got := Draw(0, 10, 1).Interval(func([]int) float64 { return math.NaN() }); !math.IsNaN(got.Value) {
		t.Error(got)
	}
	// A statistic that some draws do not have: only task 0 has a kernel.
	got := Draw(3, 200, 1).Interval(func(tasks []int) float64 {
		if slices.Contains(tasks, 0) {
			return 2
		}
		return math.NaN()
	})
	if got != (Interval{2, 2, 2}) {
		t.Error(got)
	}
}

func TestBestSoFar(t *testing.T) {
	steps := BestSoFar([]Step{{1, 0}, {2, 0.5}, {3, 2}, {4, 1.5}, {5, 3}})
	if !slices.Equal(steps, []Step{{2, 0.5}, {3, 2}, {5, 3}}) {
		t.Error(steps)
	}
	for at, want := range map[float64]float64{0: 1, 1.9: 1, 2: 0.5, 3: 2, 4.5: 2, 5: 3, 99: 3} {
		if got := At(steps, at); got != want {
			t.Errorf("at %v: %v, want %v", at, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		var found []Step
		for i, s := range rapid.SliceOf(rapid.Float64Range(0, 5)).Draw(t, "speedups") {
			found = append(found, Step{float64(i), s})
		}
		steps := BestSoFar(found)
		for i := 1; i < len(steps); i++ {
			if steps[i].Speedup <= steps[i-1].Speedup {
				t.Errorf("%v falls", steps)
			}
		}
		best := 0.0
		for _, s := range found {
			best = max(best, s.Speedup)
		}
		if got := At(steps, math.Inf(1)); best > 0 && got != best {
			t.Errorf("it ends at %v, the best is %v", got, best)
		}
	})
}
