package judge

import (
	"fmt"

	"github.com/kernelwright/kernelwright/metrics"
)

// computeBound is for a kernel that keeps an arithmetic unit, or the places for
// instructions, busy. Where these are not the task's own operations but what
// goes with them, they can become fewer until memory is the limit.
func computeBound(v view, k gpuKernel) (finding, bool) {
	own := within(v.or(metrics.ComputeShare, 0))
	f := finding{
		method: "Execute fewer instructions",
		plan: "Take divisions, index arithmetic and what does not change out of the loop, let each thread take several elements with accesses of 16 bytes so that addresses are computed once for them, " +
			"use 32-bit indices, and compute nothing twice.",
		moves: []move{{"approx", toMost}, {"vector", toMost}, {"share", toUp}, {"unroll", toUp}, {"keep", toMost}},
	}
	busy, unit, ok := k.computeBusy()
	memory, _ := v.memoryBusy(k)
	switch {
	case ok && busy >= saturated && memory < busy:
		f.bottleneck = fmt.Sprintf("Arithmetic: %s of %s is used, and memory to %s.", percent(busy), unitName(unit), percent(memory))
		if own > 0 {
			f.bottleneck += fmt.Sprintf(" The task's own operations need %s of the peak.", percent(own))
		}
		f.evidence = v.about(k, metrics.IssueBusy, metrics.FMABusy, metrics.TensorBusy, metrics.DRAMBusy)
		f.gain = min(1-max(memory, own)/busy, oneStep)
	case !ok && own >= ceilingShare:
		f.bottleneck = fmt.Sprintf("Arithmetic: %.4g GFLOP/s, %s of the measured peak.", v.or(metrics.AchievedGFLOPs, 0), percent(own))
		f.evidence = v.evidence(metrics.ComputeShare, metrics.AchievedGFLOPs, metrics.MemoryShare)
		f.gain = 1 - own
	default:
		return finding{}, false
	}
	if x, ok := v.metric(metrics.ComputeShare); ok {
		f.evidence["compute_share"] = x
	}
	return f, true
}

func unitName(counter string) string {
	switch counter {
	case metrics.FMABusy:
		return "the units for float32"
	case metrics.TensorBusy:
		return "the tensor cores"
	}
	return "the places for instructions"
}
