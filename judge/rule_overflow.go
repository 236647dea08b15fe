package judge

import "fmt"

// overflow is for a candidate that is right on tame inputs and wrong on large
// ones.
func overflow(v view) (finding, bool) {
	failed := v.failed()
	if !only(failed, "heavy_tails", "near_overflow", "scaled_up") {
		return finding{}, false
	}
	f, factor := worst(failed)
	by := "with values that are not finite"
	if factor > 0 {
		by = fmt.Sprintf("by %.3g where the bound is %.3g", f.MaxError, f.MaxBound)
	}
	return finding{
		issue: fmt.Sprintf("Large inputs come out wrong: %s fails %s, while the base draw passes.", list(names(failed)), by),
		why: "That is what an exponential without the maximum subtracted does, a square or a sum of squares that overflows, a variance computed as " +
			"E[x²] − E[x]², or an approximation of exp, tanh or erf outside the range it was fitted for.",
		fix: "Subtract the row's maximum before exp, compute the variance from the differences to the mean (two passes, or Welford's), and clamp the " +
			"argument of each approximation to its range.",
		evidence: familyEvidence(failed),
		moves:    []move{{"approx", toLeast}, {"passes", toMost}, {"vector", toLeast}},
	}, true
}
