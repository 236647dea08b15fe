package judge

import "fmt"

// conflictsMost is the share of shared memory's turns that conflicts may take:
// ncu's rule on shared memory speaks from about as many on.
const conflictsMost = 0.1

// bankConflicts is for threads of a warp that want different words of one bank
// of shared memory, so that their access takes several turns.
func bankConflicts(v view, k gpuKernel) (finding, bool) {
	more, ok := k.count(conflicts)
	all, known := k.count(wavefronts)
	if !ok || !known || all <= 0 || within(more/all) <= conflictsMost {
		return finding{}, false
	}
	share := within(more / all)
	// They cost what the unit is the limit, or what warps wait for it.
	cost, busy := k.used(l1Busy)
	short, stalled := k.stalled("short_scoreboard")
	queue, queued := k.stalled("mio_throttle")
	if stalled || queued {
		cost, busy = max(within(short+queue), cost*boolean(cost >= saturated)), true
	}
	if !busy {
		return finding{}, false
	}
	return finding{
		bottleneck: fmt.Sprintf("Bank conflicts: %s of the turns of shared memory repeat an access whose threads want the same bank.", percent(share)),
		method:     "Spread the threads of a warp over the banks",
		plan: "Pad the rows of the array in shared memory by one element (tile[32][33]) or swizzle its columns, so that 32 threads side by side take 32 banks; let a thread take " +
			"words that are 32 apart; join within a warp by shuffles instead.",
		evidence: v.about(k, conflicts, wavefronts, l1Busy, stallShare("short_scoreboard"), stallRatio("mio_throttle")),
		gain:     share * cost,
		moves:    []move{{"share", toUp}, {"vector", toDown}},
	}, true
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
