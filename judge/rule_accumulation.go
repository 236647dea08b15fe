package judge

import "fmt"

// accumulationMost is how far over the bound an unlucky order of summation can
// end; beyond it something else is wrong.
const accumulationMost = 50

// accumulation is for a candidate that is nearly right: rounding adds up.
func accumulation(v view) (finding, bool) {
	failed := v.failed()
	f, factor := worst(failed)
	if factor <= 1 || factor > accumulationMost {
		return finding{}, false
	}
	for _, other := range failed {
		if overBound(other) == 0 { // NaN or Inf somewhere: not a matter of rounding
			return finding{}, false
		}
	}
	return finding{
		issue: fmt.Sprintf("Rounding adds up: on %s the error is %.3g where the bound is %.3g.", f.Name, f.MaxError, f.MaxBound),
		why: fmt.Sprintf("The worst error is only %.1f times the bound, which an honest float32 implementation keeps: a long sum in one accumulator "+
			"loses that much, and so does a difference of two large sums.", factor),
		fix:      "Sum in several accumulators over blocks of a few hundred elements and add those pairwise, or accumulate in double, and do not rearrange differences.",
		evidence: familyEvidence(failed),
		moves:    []move{{"approx", toLeast}, {"tile", toUp}, {"unroll", toUp}, {"passes", toMost}},
	}, true
}
