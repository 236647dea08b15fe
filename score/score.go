// Package score turns what came of many tasks into figures: shares, means,
// quantiles, and intervals by resampling the tasks. It knows nothing of runs or
// records: numbers come in, numbers go out, and the same ones always.
//
// Where there is nothing to make a figure of, it is NaN.
package score

import (
	"math"
	"slices"
)

// Result is what came of one task once. The speedup of one that is not correct
// does not count; one of a correct result that nobody knows is 0.
type Result struct {
	Correct bool
	Speedup float64
}

// FastP is KernelBench's fast_p (arXiv 2502.10517): the share of all results
// that are correct and whose speedup is above p. FastP(results, 0) is the share
// of the correct ones whose speedup is known.
func FastP(results []Result, p float64) float64 {
	fast := 0
	for _, r := range results {
		if r.Correct && r.Speedup > p {
			fast++
		}
	}
	return share(fast, len(results))
}

// Correct is the share of correct results.
func Correct(results []Result) float64 {
	correct := 0
	for _, r := range results {
		if r.Correct {
			correct++
		}
	}
	return share(correct, len(results))
}

func share(n, of int) float64 {
	if of == 0 {
		return math.NaN()
	}
	return float64(n) / float64(of)
}

// Speedups returns the known speedups of the correct results, in order.
func Speedups(results []Result) []float64 {
	var out []float64
	for _, r := range results {
		if r.Correct && r.Speedup > 0 {
			out = append(out, r.Speedup)
		}
	}
	return out
}

// Filled returns a speedup for each result, 1 where it has none: who gets no
// kernel keeps what there was.
func Filled(results []Result) []float64 {
	out := make([]float64, len(results))
	for i, r := range results {
		out[i] = r.Filled()
	}
	return out
}

// Filled is the speedup, or 1 where there is none.
func (r Result) Filled() float64 {
	if r.Correct && r.Speedup > 0 {
		return r.Speedup
	}
	return 1
}

// Geomean is the geometric mean of positive numbers.
func Geomean(xs []float64) float64 {
	sum := 0.0
	for _, x := range xs {
		sum += math.Log(x)
	}
	return math.Exp(sum / float64(len(xs)))
}

// Mean is the arithmetic mean.
func Mean(xs []float64) float64 {
	sum := 0.0
	for _, x := range xs {
		sum += x
	}
	return sum / float64(len(xs))
}

// Quantile interpolates between the two nearest values, as numpy does unless it
// is told otherwise: definition 7 of Hyndman and Fan (1996). It does not change
// xs. q is from 0 to 1.
func Quantile(xs []float64, q float64) float64 {
	if len(xs) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(xs))
	at := q * float64(len(sorted)-1)
	below := int(at)
	if below >= len(sorted)-1 {
		return sorted[len(sorted)-1]
	}
	return sorted[below] + (at-float64(below))*(sorted[below+1]-sorted[below])
}
