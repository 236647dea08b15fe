package judge

import (
	"fmt"

	"github.com/kernelwright/kernelwright/metrics"
)

// extraPasses is for a candidate that keeps the memory busy with more bytes
// than the task has.
func extraPasses(v view) (finding, bool) {
	share, ok := v.metric(metrics.MemoryShare)
	if !ok || share <= 0.2 || share >= ceilingShare || !beyondCache(v) || v.or(metrics.CoreUse, 1) < coreUseLeast {
		return finding{}, false
	}
	return finding{
		bottleneck: fmt.Sprintf("Memory traffic: the task's %s move at %.3g GB/s, %s of the ceiling, with the cores busy; were the memory at its "+
			"ceiling all the time, they would be moved %.1f times.",
			byteSize(float64(v.verdict.Floor.Bytes)), v.or(metrics.AchievedGBs, 0), percent(share), 1/share),
		method: "Go over the data fewer times",
		plan: "Keep a row or tile in cache between the passes of a reduction, join passes (maximum and sum in one, with rescaling), and write the output " +
			"past the cache.",
		evidence: v.evidence(metrics.MemoryShare, metrics.AchievedGBs, metrics.WorkingSetBytes, metrics.CoreUse),
		moves:    []move{{"passes", toDown}, {"fuse", toMost}, {"nontemporal", toMost}, {"prefetch", toMost}, {"tile", toDown}},
	}, true
}
