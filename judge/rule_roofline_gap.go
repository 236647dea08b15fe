package judge

import (
	"fmt"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/metrics"
)

// rooflineGap is what can be said when no metric points anywhere: how far
// there is to go. It speaks on any verdict.
func rooflineGap(v view) (finding, bool) {
	bound := v.verdict.Floor.Bound
	if bound == "" {
		bound = "memory"
	}
	e := v.evidence(metrics.MemoryShare, metrics.CacheShare, metrics.ComputeShare, metrics.CoreUse)
	gap := "how far it is from the roofline is not known"
	if v.verdict.Floor.MS > 0 {
		e["floor_ms"] = v.verdict.Floor.MS
		gap = fmt.Sprintf("%.4g ms where the %s floor is %.4g ms", v.verdict.CandidateMS, bound, v.verdict.Floor.MS)
	}
	plan := "Read each input once and write each output once, in order, with all cores, full vectors and nothing between the loops."
	if v.device.Kind == kernelwright.CUDADevice {
		plan = "Read each input once and write each output once, in order, 16 bytes at a time, with several loads under way in each thread and blocks for every multiprocessor, in one launch."
	}
	return finding{
		gainless:   true,
		bottleneck: "No single one stands out: " + gap + ".",
		method:     "Come nearer to the " + bound + " floor",
		plan:       plan,
		evidence:   e,
	}, true
}
