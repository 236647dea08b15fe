package judge

import (
	"fmt"

	"github.com/kernelwright/kernelwright/metrics"
)

const (
	// widest is the bytes that one thread moves with one instruction at most.
	widest = 16
	// narrow is the mean width from which on there is little to win by widening.
	narrow = 8
)

// narrowAccesses is for a kernel whose threads ask for 4 or 8 bytes at a time
// while memory has room: as many requests under way carry a part of the bytes
// that they could.
func narrowAccesses(v view, k gpuKernel) (finding, bool) {
	width := k.built.LoadBytes
	if !k.compiled || width <= 0 || width > narrow || k.built.Instructions["load_global"] == 0 || k.copiesAhead() {
		return finding{}, false
	}
	if used, ok := k.asked(metrics.LoadedUsed); ok && used < sectorUsed {
		return finding{}, false // they lie apart, and cannot be joined
	}
	busy, _ := v.busiest(k)
	gain := min(1-busy, 1-width/widest)
	waits := ""
	if s, ok := k.waitsForMemory(); ok {
		gain = min(gain, s)
		waits = fmt.Sprintf(", and warps wait for memory %s of their time", percent(s))
	} else {
		gain *= oneStep // what they wait for is not known
	}
	_, l1Counter, _ := k.l1Busy()
	f := finding{
		bottleneck: fmt.Sprintf("Narrow accesses: a load moves %.3g bytes for a thread where it could move %d%s.", width, widest, waits),
		method:     "Move 16 bytes with each access",
		plan:       "Read and write float4 (reinterpret_cast where addresses and row lengths are multiples of 16 bytes), compute on its four elements, and treat what is left over one by one.",
		evidence:   v.about(k, metrics.LoadSectors, metrics.StallShare("long_scoreboard"), metrics.StallRatio("lg_throttle"), l1Counter),
		gain:       gain,
		moves:      []move{{"vector", toMost}, {"vector", toUp}},
	}
	f.evidence["load_bytes"] = width
	return f, true
}

// waitsForMemory is the share of their time that warps wait for loads of global
// memory, or for a place in the queue to them.
func (k gpuKernel) waitsForMemory() (float64, bool) {
	long, ok := k.stalled("long_scoreboard")
	queue, too := k.stalled("lg_throttle")
	return within(long + queue), ok || too
}
