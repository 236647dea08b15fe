package judge

import (
	"fmt"
	"strings"
)

// wrongResult is what is left: it says what is known and where to look. It
// speaks on any verdict.
func wrongResult(v view) (finding, bool) {
	failed := v.failed()
	f := finding{
		issue:    "The result is wrong: " + oneLine(v.verdict.Reason),
		why:      "The values agree with the reference; what is around them does not.",
		fix:      "Do what the reference does there too.",
		evidence: v.evidence(),
	}
	if v.verdict.Hint != "" {
		f.fix = oneLine(v.verdict.Hint)
	}
	if len(v.verdict.Evidence) > 0 {
		f.why = oneLine(v.verdict.Evidence[0])
	}
	if len(failed) == 0 {
		return f, true
	}
	f.evidence = familyEvidence(failed)
	all := names(failed)
	bad, factor := worst(failed)
	by := ""
	if factor > 0 {
		by = fmt.Sprintf(" On %s the error is %.3g where the bound is %.3g.", bad.Name, bad.MaxError, bad.MaxBound)
	}
	f.issue = fmt.Sprintf("The result is wrong on %s.%s", list(all), by)
	has := func(name string) bool { return strings.Contains(" "+strings.Join(all, " ")+" ", " "+name+" ") }
	switch {
	case has("base"):
		f.why = "It is wrong on the reference's own inputs, and by far more than rounding: the wrong axis, index, stride, tail or formula."
		f.fix = "Compare the formula with the reference's operator by operator, and check the tail after the last full vector, the last row and every broadcast axis."
	case only(failed, "zeros", "all_equal", "denormals", "scaled_down"):
		f.why = "It is right on the base draw and wrong where values are tiny or equal: a missing or misplaced epsilon, a division by zero, or a variance that cancels."
		f.fix = "Put epsilon exactly where the reference has it, and compute differences before squares."
		f.moves = []move{{"passes", toMost}}
	case only(failed, "negated"):
		f.why = "It is right on the base draw and wrong on its negation: a maximum that starts at 0 instead of at −Inf, or a case for negative values that is missing."
		f.fix = "Start each maximum from the first element or −Inf, and check the branches for x < 0."
	case only(failed, "zero_one"):
		f.why = "Sums of zeros and ones are exact in any order, and these are not: elements are missed, counted twice, or rounded to fewer bits."
		f.fix = "Check that each element is read exactly once, the tail included, and that sums are kept in float32."
	default:
		f.why = "The base draw passes, so the formula holds on tame values and not on these."
		f.fix = "Work out by hand what the reference gives on the first failing family, and follow it through the code."
	}
	return f, true
}
