package judge

import "fmt"

// computeCeiling is for a candidate whose arithmetic units are busy.
func computeCeiling(v view) (finding, bool) {
	share, ok := v.metric("compute_share")
	if !ok || share < ceilingShare {
		return finding{}, false
	}
	return finding{
		bottleneck: fmt.Sprintf("Arithmetic: %.4g GFLOP/s, %s of the measured peak.", v.or("achieved_gflops", 0), percent(share)),
		method:     "Compute less",
		plan:       "Take what does not change out of the inner loop, turn divisions by the same value into one reciprocal where the error bound allows it, and compute nothing twice.",
		evidence:   v.evidence("compute_share", "achieved_gflops", "memory_share"),
		moves:      []move{{"vector", toMost}, {"passes", toLeast}},
	}, true
}
