package judge

import (
	"fmt"

	"github.com/kernelwright/kernelwright/metrics"
)

// barrierMost is the share of their time that warps may wait at barriers. ncu's
// rules on warp states speak from 30 % on, of all reasons; a barrier's wait is
// lost at half of it already, since all warps of a block wait at once.
const barrierMost = 0.15

// barriers is for warps that wait for each other.
func barriers(v view, k gpuKernel) (finding, bool) {
	share, ok := k.stalled("barrier")
	if !ok || share < barrierMost {
		return finding{}, false
	}
	busy, _ := v.busiest(k)
	f := finding{
		bottleneck: fmt.Sprintf("Barriers: warps wait %s of their time for the others of their block.", percent(share)),
		method:     "Wait less often, for fewer",
		plan: "Reduce within a warp by shuffles and across warps once at the end, give each thread more elements so that fewer threads share a row, and take out every __syncthreads that " +
			"keeps no write of another thread from being missed.",
		evidence: v.about(k, metrics.StallShare("barrier"), metrics.StallRatio("barrier"), metrics.IssueBusy, metrics.WarpsActive),
		gain:     min(share, 1-busy),
		moves:    []move{{"share", toUp}, {"unroll", toUp}, {"passes", toLeast}},
	}
	if k.threads > 0 {
		f.evidence["block_threads"] = k.threads
	}
	return f, true
}
