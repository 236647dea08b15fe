package judge

import (
	"fmt"

	"github.com/kernelwright/kernelwright/metrics"
)

// sectorUsed is the share of the bytes of the sectors that a kernel touches which
// it asked for, at least: rows that begin in the middle of a sector cost one of
// four or five.
const sectorUsed = 0.75

// uncoalesced is for warps whose threads ask for bytes far apart: each sector of
// 32 bytes moves whole, however little of it is asked for.
func uncoalesced(v view, k gpuKernel) (finding, bool) {
	var f finding
	found := false
	busy, known := v.memoryBusy(k)
	if !known {
		busy = 1
	}
	// What is read and written weighs by the bytes that move for it.
	read, _ := k.count(metrics.DRAMRead)
	written, _ := k.count(metrics.DRAMWritten)
	if read+written <= 0 {
		read, written = 1, 1
	}
	moving := func(bytes float64, counter string) (whole, wasted float64) {
		if used, ok := k.asked(counter); ok && used > 0 {
			return bytes / used, bytes/used - bytes
		}
		return bytes, 0
	}
	_, l1Counter, _ := k.l1Busy()
	loads, lost := moving(read, metrics.LoadedUsed)
	stores, gone := moving(written, metrics.StoredUsed)
	for _, way := range []struct {
		what, used, sectors string
		wasted              float64
	}{{"loads", metrics.LoadedUsed, metrics.LoadSectors, lost}, {"stores", metrics.StoredUsed, metrics.StoreSectors, gone}} {
		used, ok := k.asked(way.used)
		gain := busy * way.wasted / (loads + stores)
		if !ok || used <= 0 || used >= sectorUsed || (found && gain <= f.gain) {
			continue
		}
		found = true
		f = finding{
			bottleneck: fmt.Sprintf("Uncoalesced access: of the sectors of 32 bytes that its %s touch, %s is asked for; the rest moves for nothing.", way.what, percent(used)),
			method:     "Have neighbouring threads take neighbouring addresses",
			plan: "Let threadIdx.x run along the innermost dimension in memory; where input and output run along different ones, turn tiles of 32 by 33 elements in shared " +
				"memory, so that both are read and written in order.",
			evidence: v.about(k, way.used, way.sectors, l1Counter, metrics.L2Busy, metrics.DRAMBusy),
			gain:     gain,
			moves:    []move{{"vector", toLeast}, {"vector", toDown}},
		}
	}
	return f, found
}
