package judge

import (
	"math"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// failed returns the families whose failure decided a wrong verdict.
func (v view) failed() []kernelwright.FamilyReport {
	if v.verdict.Status != kernelwright.Wrong {
		return nil
	}
	var failed []kernelwright.FamilyReport
	for _, f := range v.verdict.Correctness.Families {
		if f.Gates && !f.Passed {
			failed = append(failed, f)
		}
	}
	return failed
}

func names(families []kernelwright.FamilyReport) []string {
	var all []string
	for _, f := range families {
		all = append(all, f.Name)
	}
	return all
}

// only reports whether every family's name is one of these.
func only(families []kernelwright.FamilyReport, allowed ...string) bool {
	for _, f := range families {
		if !slices.Contains(allowed, f.Name) {
			return false
		}
	}
	return len(families) > 0
}

// worst is the family that fails by the largest factor, and that factor; 0
// where no bound is known or the error is no number.
func worst(families []kernelwright.FamilyReport) (kernelwright.FamilyReport, float64) {
	var at kernelwright.FamilyReport
	if len(families) > 0 {
		at = families[0]
	}
	factor := 0.0
	for _, f := range families {
		if x := overBound(f); x > factor {
			at, factor = f, x
		}
	}
	return at, factor
}

func overBound(f kernelwright.FamilyReport) float64 {
	x := 0.0
	if f.MaxError >= kernelwright.NotFinite {
		return 0
	}
	if f.MaxBound > 0 {
		x = f.MaxError / f.MaxBound
	}
	if f.RMSBound > 0 {
		x = max(x, f.RMSError/f.RMSBound)
	}
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return 0
	}
	return x
}

func familyEvidence(families []kernelwright.FamilyReport) map[string]float64 {
	f, factor := worst(families)
	e := map[string]float64{"families_failed": float64(len(families))}
	for name, x := range map[string]float64{"max_error": f.MaxError, "max_bound": f.MaxBound, "error_over_bound": factor} {
		if !math.IsNaN(x) && x < kernelwright.NotFinite && x != 0 {
			e[name] = x
		}
	}
	return e
}

func list(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}
