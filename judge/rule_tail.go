package judge

import (
	"fmt"
	"math"

	"github.com/kernelwright/kernelwright/metrics"
)

// tail is for a kernel whose last wave of blocks leaves most places empty, while
// everybody waits for it. The loss is that of blocks that take equally long; ncu's
// rule on launches estimates it likewise.
func tail(v view, k gpuKernel) (finding, bool) {
	sms := float64(v.device.Specs.Cores)
	waves, counted := k.count(metrics.Waves)
	if !counted {
		r, known := v.resides(k)
		if !known || sms < 1 || k.blocks < 1 {
			return finding{}, false
		}
		waves = k.blocks / (sms * r.blocks)
	}
	if waves <= 1 || math.IsInf(waves, 0) {
		return finding{}, false
	}
	busy, _ := v.busiest(k)
	f := finding{
		bottleneck: fmt.Sprintf("Tail: the blocks make %.4g waves, and the last one fills %s of the places that it keeps waiting.", min(waves, 1e6), percent(waves-math.Floor(waves))),
		method:     "Make the last wave full, or shorter",
		plan: "Choose the size of a block's work so that the blocks fill whole waves, or make the blocks smaller and many more; or launch as many as fit at once and let " +
			"each take one piece of work after the other.",
		evidence: v.about(k, metrics.WarpsActive, metrics.IssueBusy),
		gain:     min(1-waves/math.Ceil(waves), 1-busy),
		moves:    []move{{"persistent", toMost}, {"split", toUp}, {"share", toDown}, {"items", toDown}, {"share", toUp}, {"items", toUp}},
	}
	f.evidence[metrics.Waves] = waves
	if k.blocks > 0 {
		f.evidence["grid_blocks"] = k.blocks
	}
	return f, true
}
