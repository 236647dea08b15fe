package judge

import (
	"fmt"

	"github.com/kernelwright/kernelwright/metrics"
)

// conflictsMost is the share of shared memory's turns that conflicts may take:
// ncu's rule on shared memory speaks from about as many on.
const conflictsMost = 0.1

// bankConflicts is for threads of a warp that want different words of one bank
// of shared memory, so that their access takes several turns.
func bankConflicts(v view, k gpuKernel) (finding, bool) {
	share, ok := k.conflicting()
	if !ok || share <= conflictsMost {
		return finding{}, false
	}
	// Without them warps wait less for shared memory; or, where its unit is the
	// busiest, that much less is asked of it.
	short, stalled := k.stalled("short_scoreboard")
	queue, queued := k.stalled("mio_throttle")
	gain := share * within(short+queue)
	// Its own word says only that some part of it is so busy.
	l1, l1Counter, known := k.fullest(metrics.L1Data, metrics.L1Busy)
	rest, _, _ := k.fullest(metrics.L1ToL2, metrics.L1Requests)
	if !stalled && !queued && !known {
		return finding{}, false
	}
	compute, _, _ := k.computeBusy()
	dram, _ := v.dram(k)
	next := max(compute, dram, rest, l1*(1-share))
	if x, _, ok := v.l2(k); ok {
		next = max(next, x)
	}
	if l1 > next {
		gain = max(gain, 1-next/l1)
	}
	return finding{
		bottleneck: fmt.Sprintf("Bank conflicts: %s of the turns of shared memory repeat an access whose threads want the same bank.", percent(share)),
		method:     "Spread the threads of a warp over the banks",
		plan: "Pad the rows of the array in shared memory by one element (tile[32][33]) or swizzle its columns, so that 32 threads side by side take 32 banks; let a thread take " +
			"words that are 32 apart; join within a warp by shuffles instead.",
		evidence: v.about(k, metrics.BankConflicts, metrics.SharedWavefronts, l1Counter, metrics.StallShare("short_scoreboard"), metrics.StallRatio("mio_throttle")),
		gain:     gain,
		moves:    []move{{"share", toUp}, {"vector", toDown}},
	}, true
}

// conflicting is the share of shared memory's turns that conflicts take.
func (k gpuKernel) conflicting() (float64, bool) {
	more, ok := k.count(metrics.BankConflicts)
	all, known := k.count(metrics.SharedWavefronts)
	if !ok || !known || all <= 0 {
		return 0, false
	}
	return within(more / all), true
}
