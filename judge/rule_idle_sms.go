package judge

import (
	"fmt"

	"github.com/kernelwright/kernelwright/metrics"
)

// idleSMs is for a kernel with fewer blocks than the GPU has multiprocessors.
func idleSMs(v view, k gpuKernel) (finding, bool) {
	sms := float64(v.device.Specs.Cores)
	if sms < 2 || k.blocks < 1 || k.blocks >= sms {
		return finding{}, false
	}
	busy, _ := v.dram(k) // a multiprocessor's own counters are of those at work
	f := finding{
		bottleneck: fmt.Sprintf("Idle multiprocessors: %.0f blocks for %.0f of them.", k.blocks, sms),
		method:     "Split the work over more blocks",
		plan: fmt.Sprintf("Launch at least %.0f blocks: cut long rows into parts, each with a block of its own, whose results a second step joins; or give each "+
			"thread and each block less.", 2*sms),
		evidence: v.about(k, metrics.Waves, metrics.WarpsActive),
		gain:     min(1-k.blocks/sms, 1-busy),
		moves:    []move{{"split", toUp}, {"team", toUp}, {"share", toDown}, {"items", toDown}, {"vector", toDown}},
	}
	f.evidence["grid_blocks"], f.evidence["multiprocessors"] = k.blocks, sms
	return f, true
}
