package judge

import (
	"fmt"

	"github.com/kernelwright/kernelwright/metrics"
)

// computeCeiling is for a candidate whose arithmetic units are busy.
func computeCeiling(v view) (finding, bool) {
	share, ok := v.metric(metrics.ComputeShare)
	if !ok || share < ceilingShare {
		return finding{}, false
	}
	return finding{
		bottleneck: fmt.Sprintf("Arithmetic: %.4g GFLOP/s, %s of the measured peak.", v.or(metrics.AchievedGFLOPs, 0), percent(share)),
		method:     "Compute less",
		plan:       "Take what does not change out of the inner loop, turn divisions by the same value into one reciprocal where the error bound allows it, and compute nothing twice.",
		evidence:   v.evidence(metrics.ComputeShare, metrics.AchievedGFLOPs, metrics.MemoryShare),
		moves:      []move{{"vector", toMost}, {"passes", toLeast}},
	}, true
}
