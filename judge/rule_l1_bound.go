package judge

import (
	"fmt"

	"github.com/kernelwright/kernelwright/metrics"
)

// l1Bound is for a kernel that keeps the unit for L1 and shared memory busy: its
// threads ask for the same bytes again and again, and get them near by.
func l1Bound(v view, k gpuKernel) (finding, bool) {
	l1, l1Counter, ok := k.l1Busy()
	compute, _, _ := k.computeBusy()
	memory, _ := v.dram(k)
	next := max(compute, memory)
	if x, _, ok := v.l2(k); ok {
		next = max(next, x)
	}
	apart, scattered := k.asked(metrics.LoadedUsed)
	conflicting, _ := k.conflicting()
	if conflicting > conflictsMost || (scattered && apart < sectorUsed) {
		return finding{}, false // it is busy with what nobody asked for
	}
	if !ok || l1 < saturated || next >= l1 || l1Counter == metrics.L1ToL2 { // what goes to L2 was not near by
		return finding{}, false
	}
	return finding{
		bottleneck: fmt.Sprintf("L1: the unit for it and for shared memory is busy to %s, and memory to %s only: the same bytes are asked for many times.", percent(l1), percent(memory)),
		method:     "Use a loaded value more than once",
		plan: "Let each thread compute several neighbouring outputs and keep the inputs that they share in registers, so that one load serves all of them; read what lies side by side with " +
			"accesses of 16 bytes.",
		evidence: v.about(k, l1Counter, metrics.L2Busy, metrics.DRAMBusy, metrics.IssueBusy, metrics.LoadSectors),
		gain:     min(1-next/l1, oneStep),
		moves:    []move{{"vector", toMost}, {"keep", toMost}, {"stage", toMost}, {"share", toUp}},
	}, true
}
