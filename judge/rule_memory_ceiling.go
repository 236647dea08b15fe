package judge

import (
	"fmt"

	"github.com/kernelwright/kernelwright/metrics"
)

// ceilingShare is the share of a measured ceiling that counts as being there:
// other access patterns than the one it was measured with reach a little less.
const ceilingShare = 0.85

// memoryCeiling is for a candidate that moves the task's bytes as fast as the
// memory does: only moving fewer can help.
func memoryCeiling(v view) (finding, bool) {
	share, ok := v.metric(metrics.MemoryShare)
	if !ok || share < ceilingShare || !beyondCache(v) {
		return finding{}, false
	}
	f := finding{
		bottleneck: fmt.Sprintf("Memory: %.3g GB/s, %s of what this machine was measured to reach.", v.or(metrics.AchievedGBs, 0), percent(share)),
		method:     "Move fewer bytes",
		plan: "Write the output with non-temporal stores, so that its lines are not read before they are overwritten, and keep every " +
			"intermediate value in registers.",
		evidence: v.evidence(metrics.MemoryShare, metrics.AchievedGBs, metrics.WorkingSetBytes),
		moves:    []move{{"nontemporal", toMost}, {"prefetch", toMost}, {"fuse", toMost}, {"passes", toLeast}},
	}
	return f, true
}

// beyondCache reports whether the task's data comes from memory rather than
// from the last-level cache.
func beyondCache(v view) bool {
	set := v.or(metrics.WorkingSetBytes, float64(v.task.LeastBytes))
	if v.device.Specs.L3Bytes > 0 {
		return set > float64(v.device.Specs.L3Bytes)
	}
	return v.verdict.Floor.Bound == "memory"
}
