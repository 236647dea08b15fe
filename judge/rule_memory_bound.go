package judge

import (
	"fmt"
	"math"

	"github.com/kernelwright/kernelwright/metrics"
)

// memoryBound is for a GPU's memory at its measured bandwidth. With the task's
// least bytes there is nothing to gain.
func memoryBound(v view) (finding, bool) {
	share, moved, ceiling := v.traffic()
	if share < ceilingShare || !beyondCache(v) {
		return finding{}, false
	}
	e := v.evidence(metrics.MemoryShare, metrics.AchievedGBs, metrics.WorkingSetBytes)
	rate := share * ceiling
	if moved == 0 {
		rate = v.or(metrics.AchievedGBs, rate)
	}
	said := fmt.Sprintf("Memory: %.4g GB/s, %s of what this GPU was measured to reach", rate, percent(share))
	if least := float64(v.verdict.Floor.Bytes); moved > 0 && least > 0 {
		e["dram_bytes_ratio"] = moved / least
		if share >= NearFloor && moved <= least*(1+leastGain) && !v.verdict.Speedup.Slower() {
			return finding{done: true, why: fmt.Sprintf("%s, and %s is all that it moves: the task's own %s.", said, byteSize(moved), byteSize(least)), evidence: e}, true
		}
	}
	return finding{
		bottleneck: said + ".",
		method:     "Keep memory busy to the end",
		plan:       "Take 16 bytes with each access, several of them before the first is used, and read what is used once past the caches (__ldcs, __stcs).",
		evidence:   e,
		gain:       1 - share,
		moves:      []move{{"vector", toMost}, {"items", toMost}, {"unroll", toUp}, {"share", toUp}, {"fuse", toMost}},
	}, true
}

// traffic is the share of the measured bandwidth that the whole forward has of
// memory, the bytes that moved, 0 where nobody counted, and that bandwidth, for
// reads and writes as they are mixed here. It is no less than the least bytes'
// share: what is written last may still be in L2 when counting ends.
func (v view) traffic() (share, moved, ceiling float64) {
	share, ceiling = v.or(metrics.MemoryShare, 0), v.device.Ceilings.MemoryGBs
	if read, written, ok := v.movedBytes(); ok && ceiling > 0 && v.verdict.CandidateMS > 0 {
		moved, ceiling = read+written, v.device.Ceilings.MixedGBs(read, written)
		share = max(share, moved/1e6/v.verdict.CandidateMS/ceiling)
	}
	return within(share), moved, ceiling
}

// movedBytes is what the kernels of a forward read from memory and wrote to it,
// as ncu counted. What stays in L2 is not in it.
func (v view) movedBytes() (read, written float64, ok bool) {
	p := v.verdict.Profile
	if p == nil {
		return 0, 0, false
	}
	whole := gpuKernel{counted: p.Metrics}
	read, ok = whole.count(metrics.DRAMRead)
	written, too := whole.count(metrics.DRAMWritten)
	sum := read + written
	return read, written, ok && too && sum > 0 && !math.IsInf(sum, 0)
}
