package judge

import (
	"fmt"

	"github.com/kernelwright/kernelwright/metrics"
)

// idleBelow is the share of its peak below which a unit is not what a kernel
// waits for, and saturated the one from which it is: ncu's speed-of-light rule
// has the same two, 60 and 80 %.
const (
	idleBelow = 0.6
	saturated = 0.8
)

// waitsMost is the share of their time that warps may wait for loads while no
// unit is busy; ncu's rules on warp states speak from it on.
const waitsMost = 0.3

// latencyBound is for a kernel that keeps nothing busy: too little is under way
// at once.
func latencyBound(v view, k gpuKernel) (finding, bool) {
	busy, counted := v.busiest(k)
	waits, known := k.waitsForMemory()
	full := idleBelow
	if memory, ok := v.dram(k); counted && ok && known {
		// Memory at less than its peak is what is waited for, not what is used up.
		compute, _, _ := k.computeBusy()
		caches, _ := v.cachesBusy(k)
		if max(compute, caches) < idleBelow {
			full = saturated
		}
		if k.share >= NearFloor {
			memory = max(memory, v.reached()) // what is written last may still be in L2 when counting ends
		}
		busy = max(busy, memory)
	}
	if busy >= full || (!counted && busy <= 0) {
		return finding{}, false
	}
	f := finding{
		method: "Have more loads under way in each thread",
		plan: "Load several independent vectors of 16 bytes into registers before the first of them is used, unroll the loop over them by 4 or more, and give each copy its own accumulator; " +
			"or copy ahead into shared memory asynchronously (cp.async).",
		evidence: v.about(k, metrics.StallShare("long_scoreboard"), metrics.StallRatio("lg_throttle"), metrics.IssueBusy, metrics.DRAMBusy, metrics.L2Busy, metrics.WarpsActive),
		gain:     min(1-busy, oneStep),
		moves:    []move{{"unroll", toUp}, {"items", toMost}, {"share", toUp}, {"vector", toMost}},
	}
	switch {
	case known && waits < waitsMost:
		return finding{}, false // they wait for something else
	case known:
		f.bottleneck = fmt.Sprintf("Latency: the busiest unit works at %s of its peak, and warps wait for loads %s of their time.", percent(busy), percent(waits))
		f.gain = min(1-busy, oneStep*waits)
	case counted:
		f.bottleneck = fmt.Sprintf("Latency: the busiest unit works at %s of its peak; each step waits for the one before.", percent(busy))
	default:
		f.bottleneck = fmt.Sprintf("Latency, as far as can be told without counters: of memory and arithmetic the busier one has %s of its ceiling.", percent(busy))
		f.gain *= oneStep
		f.evidence = v.evidence(metrics.MemoryShare, metrics.ComputeShare, metrics.AchievedGBs)
	}
	return f, true
}
