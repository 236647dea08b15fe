package judge

import (
	"fmt"

	"github.com/kernelwright/kernelwright/metrics"
)

// cacheBusy is the share of the last-level cache's rate from which it is what
// the cores wait for.
const cacheBusy = 0.6

// cacheBound is for data that fits the last-level cache and is limited by it.
func cacheBound(v view) (finding, bool) {
	share, ok := v.metric(metrics.CacheShare)
	if !ok || share < cacheBusy || beyondCache(v) {
		return finding{}, false
	}
	near := "the nearest cache"
	if l2 := v.device.Specs.L2Bytes; l2 > 0 {
		near = "the " + byteSize(float64(l2)) + " of a core's own cache"
	}
	return finding{
		bottleneck: fmt.Sprintf("Cache: the data fits the last-level cache and moves at %.3g GB/s, %s of that cache's measured rate.", v.or(metrics.AchievedGBs, 0), percent(share)),
		method:     "Work in tiles that stay nearer to the core",
		plan:       "Do all passes over a block that fits " + near + " before going on to the next, and keep stores out of the way of loads.",
		evidence:   v.evidence(metrics.CacheShare, metrics.AchievedGBs, metrics.WorkingSetBytes),
		moves:      []move{{"tile", toDown}, {"passes", toDown}, {"fuse", toMost}, {"nontemporal", toLeast}},
	}, true
}
