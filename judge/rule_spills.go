package judge

import (
	"fmt"

	"github.com/kernelwright/kernelwright/metrics"
)

// fewSpills are bytes of a thread that the compiler may put aside outside of loops, for
// a register that it then has free: kernels of 48 registers were seen with 4 and 8.
const fewSpills = 16

// spills is for a kernel whose threads have more values alive than registers:
// the rest goes through local memory. What it costs is the part that these
// accesses have of all its accesses, in its code or, where counted, in bytes.
func spills(v view, k gpuKernel) (finding, bool) {
	bytes := float64(k.built.SpillStoreBytes) + float64(k.built.SpillLoadBytes)
	if !k.compiled || bytes < fewSpills {
		return finding{}, false
	}
	n := k.built.Instructions
	local := float64(n["local"])
	share := within(local / (local + float64(n["load_global"]+n["store_global"]+n["load_shared"]+n["store_shared"])))
	by := "of its accesses to memory in the code"
	loaded, ok := k.count(metrics.LocalLoaded)
	stored, too := k.count(metrics.LocalStored)
	if sectors, known := k.count(metrics.L2Sectors); ok && too && known && loaded+stored+sectors > 0 {
		below := sectors * sectorBytes
		share, by = (loaded+stored)/(loaded+stored+below), "of the bytes that go there or come from L2"
		share = max(share, v.spilledTo(loaded+stored))
	}
	f := finding{
		bottleneck: fmt.Sprintf("Registers: with %d a thread the compiler keeps %.0f bytes in local memory, %s %s.", k.built.Registers, bytes, percent(share), by),
		method:     "Keep fewer values alive in a thread",
		plan: "Give a thread fewer elements at a time, unroll less, reduce into fewer accumulators, and index arrays of a thread by constants alone; or allow more registers with " +
			"__launch_bounds__(threads) and fewer threads.",
		evidence: v.about(k, metrics.Registers, metrics.LocalLoaded, metrics.LocalStored, metrics.L2Sectors),
		gain:     share,
		moves:    []move{{"unroll", toDown}, {"share", toDown}, {"items", toDown}, {"keep", toLeast}, {"vector", toDown}},
	}
	f.evidence["spill_bytes"], f.evidence["registers"] = bytes, float64(k.built.Registers)
	return f, true
}

// spilledTo is the share of the candidate's time that so many bytes in local
// memory take at the memory's bandwidth, as far as more moves there than the
// task's own.
func (v view) spilledTo(local float64) float64 {
	read, written, ok := v.movedBytes()
	moved, ceiling := read+written, v.device.Ceilings.MixedGBs(read, written)
	if !ok || ceiling <= 0 || v.verdict.CandidateMS <= 0 {
		return 0
	}
	return within(min(local, moved-float64(v.verdict.Floor.Bytes)) / 1e6 / ceiling / v.verdict.CandidateMS)
}
