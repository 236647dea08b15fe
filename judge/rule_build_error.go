package judge

import (
	"fmt"

	"github.com/kernelwright/kernelwright"
)

// buildError passes on the compiler's first error: later ones mostly follow
// from it.
func buildError(v view) (finding, bool) {
	if v.verdict.Status != kernelwright.BuildFailed {
		return finding{}, false
	}
	f := finding{
		issue:    "The candidate does not build: " + oneLine(v.verdict.Reason),
		why:      "Nothing can be measured before it compiles and imports.",
		fix:      "Mend that, and change nothing else.",
		evidence: map[string]float64{"build_s": v.verdict.Build.Seconds},
	}
	if errs := v.verdict.Build.Errors; len(errs) > 0 {
		f.issue = fmt.Sprintf("The compiler stops at line %d of the candidate: %s", errs[0].Line, oneLine(errs[0].Message))
		f.why = "It is the first error, and the ones after it mostly follow from the first."
		f.fix = fmt.Sprintf("Mend line %d, and change nothing else.", errs[0].Line)
		f.evidence["line"] = float64(errs[0].Line)
		f.evidence["errors"] = float64(len(errs))
	}
	return f, true
}
