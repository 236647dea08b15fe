package judge

import "fmt"

// nanHandling is for a candidate that is right on numbers and wrong on NaN and
// Inf.
func nanHandling(v view) (finding, bool) {
	failed := v.failed()
	if !only(failed, "planted") {
		return finding{}, false
	}
	note := ""
	if failed[0].Note != "" {
		note = " (" + oneLine(failed[0].Note) + ")"
	}
	return finding{
		issue: fmt.Sprintf("NaN or Inf in the input does not come out where the reference has it%s.", note),
		why: "Every family of plain numbers passes. A comparison with NaN is false, so max(a, b) written as a > b ? a : b, a clamp, or an " +
			"index search drops NaN or keeps the wrong one; and a product with a mask of 0 turns Inf into NaN.",
		fix:      "Let NaN through: test x != x beside each comparison, select instead of multiplying by a mask, and do not build with -ffast-math.",
		evidence: familyEvidence(failed),
		moves:    []move{{"approx", toLeast}, {"passes", toMost}, {"vector", toLeast}},
	}, true
}
