package judge

import (
	"fmt"

	"github.com/kernelwright/kernelwright/metrics"
)

// occupancyEnough is the share of a multiprocessor's warps from which more of
// them rarely help: NVIDIA's best practices guide names it, and threads with
// several loads under way need fewer still.
const occupancyEnough = 0.5

// occupancyBound is for a kernel of which so few warps fit on a multiprocessor
// that nothing hides what they wait for.
func occupancyBound(v view, k gpuKernel) (finding, bool) {
	r, ok := v.resides(k)
	busy, counted := v.busiest(k)
	if !ok || r.occupancy >= occupancyEnough || busy >= idleBelow {
		return finding{}, false
	}
	share := r.occupancy
	if active, ok := k.used(metrics.WarpsActive); ok && active > 0 {
		share = min(share, active)
	}
	gain := min(1-busy, 1-share/occupancyEnough)
	if waits, ok := k.waitsForMemory(); ok {
		gain = min(gain, waits)
	} else if !counted {
		gain *= oneStep // whether it waits is not known
	}
	f := finding{
		bottleneck: fmt.Sprintf("Occupancy: %.3g blocks of %.0f threads fit on a multiprocessor at once, %s of its warps; the limit is the %s.", r.blocks, k.threads, percent(r.occupancy), r.limit),
		evidence:   v.about(k, metrics.WarpsActive, metrics.Registers, metrics.LimitRegisters, metrics.LimitShared, metrics.StallShare("long_scoreboard")),
		gain:       gain,
	}
	f.evidence["occupancy"], f.evidence["block_threads"] = r.occupancy, k.threads
	switch r.limit {
	case "registers":
		f.method = "Use fewer registers a thread"
		f.plan = "Give a thread fewer elements and accumulators, unroll less, or hold the compiler to it: __launch_bounds__(threads, blocks) with the number of blocks that should fit, as long as nothing spills."
		f.moves = []move{{"unroll", toDown}, {"share", toDown}, {"items", toDown}, {"keep", toLeast}, {"vector", toDown}}
	case "shared memory":
		f.method = "Use less shared memory a block"
		f.plan = "Take smaller tiles, reduce by shuffles within a warp so that shared memory holds one value a warp, or keep what only one thread uses in registers."
		f.moves = []move{{"team", toUp}, {"share", toUp}, {"vector", toDown}}
	default:
		f.method = "Use blocks of another size"
		f.plan = "Take 128 to 256 threads a block, several rows in one block where rows are short, so that blocks fill a multiprocessor's places without a rest."
		f.moves = []move{{"share", toDown}, {"share", toUp}}
	}
	return f, true
}
