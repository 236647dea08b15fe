package judge

import (
	"fmt"

	"github.com/kernelwright/kernelwright/metrics"
)

// Below these shares of the ceilings neither memory nor arithmetic explains
// the time.
const (
	computeIdle = 0.5
	memoryIdle  = 0.6
)

// starved reports whether the cores wait for something other than memory.
func starved(v view) bool {
	return v.or(metrics.ComputeShare, 0) < computeIdle && v.or(metrics.MemoryShare, 0) < memoryIdle
}

// notVectorised is for loops that do one element at a time.
func notVectorised(v view) (finding, bool) {
	missed, ok := v.metric(metrics.MissedLoops)
	done := v.or(metrics.VectorisedLoops, 0)
	if !ok || missed <= 0 || !starved(v) {
		return finding{}, false
	}
	f := finding{
		bottleneck: fmt.Sprintf("Scalar code: the compiler vectorised %.0f loops and gave up on %.0f, at %s of the peak rate of arithmetic.", done, missed, percent(v.or(metrics.ComputeShare, 0))),
		method:     "Make the inner loop vectorise",
		plan: "Walk the innermost axis with stride 1, declare the pointers __restrict, take branches and function calls out of the loop, and give a " +
			"reduction several accumulators (#pragma omp simd reduction).",
		evidence: v.evidence(metrics.MissedLoops, metrics.VectorisedLoops, metrics.ComputeShare, metrics.MemoryShare),
		moves:    []move{{"vector", toUp}, {"unroll", toUp}, {"chains", toUp}},
	}
	if m := v.verdict.Build.Missed; len(m) > 0 {
		f.bottleneck += fmt.Sprintf(" Line %d: %s.", m[0].Line, oneLine(m[0].Message))
	}
	return f, true
}
