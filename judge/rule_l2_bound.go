package judge

import (
	"fmt"

	"github.com/kernelwright/kernelwright/metrics"
)

// l2Bound is for a kernel that takes more from L2 than memory gives. Were L2
// asked no more than memory is, the next busiest unit would be the limit.
func l2Bound(v view, k gpuKernel) (finding, bool) {
	l2, times, ok := v.l2(k)
	memory, known := v.dram(k)
	compute, _, _ := k.computeBusy()
	l1, _, _ := k.l1Busy()
	if !ok || !known || times == 0 || l2 < l2Full || max(memory, l1, compute) >= l2 {
		return finding{}, false
	}
	return finding{
		bottleneck: fmt.Sprintf("L2: it is busy to %s, and memory behind it to %s only: each byte that memory gives is read from L2 %.3g times.", percent(l2), percent(memory), times),
		method:     "Take from L2 once what is used more often",
		plan:       "Keep what several passes or several threads use in registers or shared memory, give a block work whose inputs overlap, and ask for whole lines with accesses of 16 bytes.",
		evidence:   v.about(k, metrics.L2Busy, metrics.L2SectorsRead, metrics.DRAMBusy, metrics.DRAMRead, metrics.L2Hits),
		gain:       1 - max(memory, l1, compute)/l2,
		moves:      []move{{"keep", toMost}, {"passes", toLeast}, {"vector", toMost}, {"fuse", toMost}},
	}, true
}
