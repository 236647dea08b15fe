package judge

import "fmt"

const (
	// sectorSlack is how many sectors a request may touch more than it needs: rows
	// that begin in the middle of a sector cost one.
	sectorSlack = 1.3
	// sectorsMost is what 32 threads with 16 bytes each need. Of accesses whose
	// width is not known, only more than that are surely too many.
	sectorsMost = 16
)

// uncoalesced is for warps whose threads ask for bytes far apart: each sector of
// 32 bytes moves whole. A warp's load of n bytes a thread needs n sectors.
func uncoalesced(v view, k gpuKernel) (finding, bool) {
	var f finding
	found := false
	busy, known := v.memoryBusy(k)
	if !known {
		busy = 1
	}
	for _, way := range []struct {
		name, what string
		width      float64
	}{{loadSectors, "load", k.built.LoadBytes}, {storeSectors, "store", k.built.StoreBytes}} {
		sectors, ok := k.count(way.name)
		need := float64(sectorsMost)
		if k.compiled && way.width > 0 {
			need = min(max(way.width, 1), sectorsMost)
		}
		gain := busy * (1 - need/sectors)
		if !ok || sectors <= need*sectorSlack || (found && gain <= f.gain) {
			continue
		}
		found = true
		f = finding{
			bottleneck: fmt.Sprintf("Uncoalesced access: a warp's %s touches %.3g sectors of 32 bytes where %.3g hold what it asks for, so %s of them move for nothing.",
				way.what, sectors, need, percent(1-need/sectors)),
			method: "Have neighbouring threads take neighbouring addresses",
			plan: "Let threadIdx.x run along the innermost dimension in memory; where input and output run along different ones, turn tiles of 32 by 33 elements in shared " +
				"memory, so that both are read and written in order.",
			evidence: v.about(k, way.name, l1Busy, l2Busy, dramBusy),
			gain:     gain,
			moves:    []move{{"vector", toLeast}, {"vector", toDown}},
		}
		if way.width > 0 {
			f.evidence[way.what+"_bytes"] = way.width
		}
	}
	return f, found
}
