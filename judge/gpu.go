package judge

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/metrics"
)

// leastGain is the gain below which a rule on a GPU is not heard: less than the
// ceilings that it is estimated with are known to.
const leastGain = 1 - NearFloor

// oneStep is what one change brings of what a rule would like to have gone:
// half. A step of a knob doubles or halves something; it does not end it.
const oneStep = 0.5

// gpuKernel is one kernel of the candidate's own, as far as it was seen. What is
// not known is 0.
type gpuKernel struct {
	name     string
	share    float64 // of the forward's time on the GPU
	blocks   float64 // of a launch
	threads  float64 // of a block
	compiled bool
	built    kernelwright.Kernel
	counted  map[string]float64 // by ncu's names; empty without ncu
}

// gpuKernels returns the candidate's own kernels. Without a profiler they are
// those that were compiled, which share the time evenly as far as is known: of
// templates the one with the widest loads, which is what aligned tensors get.
func (v view) gpuKernels() []gpuKernel {
	var all []gpuKernel
	if p := v.verdict.Profile; p != nil && p.MS > 0 && len(p.Kernels) > 0 {
		for _, k := range p.Kernels {
			if k.Whose != "custom" {
				continue
			}
			one := gpuKernel{name: k.Name, share: within(k.Share), counted: k.Metrics}
			one.blocks, one.threads = product(k.Grid), product(k.Block)
			one.built, one.compiled = match(v.verdict.Build.Kernels, k.Name)
			all = append(all, one)
		}
		return all
	}
	for _, k := range v.verdict.Build.Kernels {
		one := gpuKernel{name: k.Name, compiled: true, built: k, threads: float64(32 * max(k.Warps, 0))}
		i := slices.IndexFunc(all, func(o gpuKernel) bool { return template(o.name) == template(k.Name) })
		switch {
		case i < 0:
			all = append(all, one)
		case k.LoadBytes > all[i].built.LoadBytes:
			all[i] = one
		}
	}
	for i := range all {
		all[i].share = within(v.or(metrics.CustomShare, 1)) / float64(len(all))
	}
	return all
}

func product(sizes [3]int) float64 {
	n := 1.0
	for _, s := range sizes {
		n *= float64(max(s, 0))
	}
	return n
}

// match finds what a compiler said of a kernel that a profiler saw: both write
// its name in a way of their own.
func match(built []kernelwright.Kernel, name string) (kernelwright.Kernel, bool) {
	for _, same := range []func(string) string{bare, template} {
		var found []kernelwright.Kernel
		for _, k := range built {
			if same(k.Name) == same(name) {
				found = append(found, k)
			}
		}
		if len(found) == 1 {
			return found[0], true
		}
	}
	return kernelwright.Kernel{}, false
}

// bare is a kernel's name with its template's arguments alone.
func bare(name string) string {
	name = strings.NewReplacer("(int)", "", "(bool)", "", "void ", "", " ", "").Replace(name)
	before, _, _ := strings.Cut(name, "(")
	return before
}

// template is a kernel's name without any arguments.
func template(name string) string {
	before, _, _ := strings.Cut(bare(name), "<")
	return before
}

// ofKernels makes a rule of what can be said of one kernel: it speaks of that
// one with which most of the forward's time is to be gained.
func ofKernels(look func(view, gpuKernel) (finding, bool)) func(view) (finding, bool) {
	return func(v view) (finding, bool) {
		var most finding
		found := false
		starting := 1 - v.launches(v.launched()) // what starting them takes stays
		for _, k := range v.gpuKernels() {
			f, ok := look(v, k)
			if !ok {
				continue
			}
			f.gain = min(f.gain*k.share, starting)
			if !found || f.gain > most.gain {
				most, found = f, true
				if name := template(k.name); name != "" && k.share < NearFloor {
					most.bottleneck = fmt.Sprintf("%s Kernel %s has %s of the time.", f.bottleneck, oneLine(name), percent(k.share))
					most.evidence["kernel_share"] = k.share
				}
			}
		}
		return most, found
	}
}

// attainable sorts what the rules for a GPU found by what following each would
// bring, the most first, and leaves out what would bring next to nothing. What
// brings nothing by itself (a reason to stop, or the last resort) stays, behind.
//
// A rule estimates the share of the time that its change takes away, but no more
// than what lies above the busiest unit: that one comes next. Here the estimates
// are held against the whole: what lies below the roofline, or below what an
// empty launch takes, nobody gains. What a faster baseline shows, somebody does.
func attainable(found []finding, v view) []finding {
	most, least := 1-within(max(v.verdict.Headroom, v.launches(1))), leastGain
	if s := v.verdict.Speedup; s.Slower() {
		most = max(most, 1-within(s.Value))
		least = min(least, most)
	}
	var kept []finding
	for _, f := range found {
		f.gain = min(within(f.gain), most)
		switch {
		case f.done || f.gainless:
			f.gain = 0
		case f.gain < least:
			continue
		default:
			f.evidence["gain_at_most"] = f.gain
			f.bottleneck += fmt.Sprintf(" Mending it saves %s of the time at most, by estimate.", percent(f.gain))
		}
		kept = append(kept, f)
	}
	slices.SortStableFunc(kept, func(a, b finding) int { return cmp.Compare(b.gain, a.gain) })
	return kept
}

// within holds a share to what a share can be.
func within(x float64) float64 {
	if x > 0 {
		return min(x, 1)
	}
	return 0 // NaN, too
}

// launches is the share of the candidate's time that so many empty launches take
// one after the other; 0 where that is not known.
func (v view) launches(n float64) float64 {
	if v.verdict.CandidateMS <= 0 {
		return 0
	}
	return within(n * v.device.Ceilings.CallUS / 1000 / v.verdict.CandidateMS)
}

// count returns a counter of a kernel, and false where it was not measured.
func (k gpuKernel) count(name string) (float64, bool) {
	x, ok := k.counted[name]
	if !(x >= 0) || math.IsInf(x, 0) {
		return 0, false
	}
	return x, ok
}

// used returns a counter in per cent as a share.
func (k gpuKernel) used(name string) (float64, bool) {
	x, ok := k.count(name)
	return within(x / 100), ok
}

// copiesAhead reports whether it copies into shared memory asynchronously (cp.async
// and the like). What counters and the compiler say of its loads is then said of the
// few others: a softmax whose rows come so, 14 sectors a request and nothing read
// twice, asks for 21 % of them by ncu's word (H200).
func (k gpuKernel) copiesAhead() bool { return k.built.Instructions["copy_async"] > 0 }

// asked is the share of the bytes of touched sectors that was asked for.
func (k gpuKernel) asked(name string) (float64, bool) {
	if name == metrics.LoadedUsed && k.copiesAhead() {
		return 0, false
	}
	return k.used(name)
}

// l1Parts are what may keep the unit for L1 and shared memory busy: its pipe for data,
// what leaves it for L2, and its requests. Last its own word, which only a full set
// of metrics has: Nsight Compute runs a kernel seven times more for that and for
// sm__throughput.
var l1Parts = []string{metrics.L1Data, metrics.L1ToL2, metrics.L1Requests, metrics.L1Busy}

// l1Busy is the share of what the unit for L1 and shared memory can do, and the
// counter that says so.
func (k gpuKernel) l1Busy() (share float64, name string, known bool) { return k.fullest(l1Parts...) }

// dram is the share of the measured memory bandwidth that a kernel uses.
func (v view) dram(k gpuKernel) (float64, bool) {
	ceiling := v.device.Ceilings.MemoryGBs
	read, hasRead := k.count(metrics.DRAMRead)
	if written, ok := k.count(metrics.DRAMWritten); ok && hasRead {
		ceiling = v.device.Ceilings.MixedGBs(read, written)
	}
	if rate, ok := k.count(metrics.DRAMRate); ok && ceiling > 0 {
		return within(rate / 1e9 / ceiling), true
	}
	busy, ok := k.used(metrics.DRAMBusy)
	if pins := v.device.Specs.MemoryGBs; ok && ceiling > 0 && pins > ceiling {
		busy = within(busy * pins / ceiling)
	}
	return busy, ok
}

// l2Full is the share of L2's peak from which it may be what a kernel waits for,
// and l2Again how many times over a byte is read from it then. Where each byte is
// read once its counter follows that of memory, or is far above it: it is a share of
// the cycles in which some part of L2 works, so that argmax over 16 MiB has 81 % of
// these, 48 % of all, and memory 46 % (H200).
const (
	l2Full  = 0.7
	l2Again = 1.5
)

var sectorBytes = kernelwright.Shared.SectorBytes

// l2 is the share of L2's peak under a kernel, and false where each byte is read from
// it about once, so that memory is what there is to wait for. Where nobody counted the
// reads it is as if they were many, and times is 0.
func (v view) l2(k gpuKernel) (share, times float64, ok bool) {
	share, ok = k.used(metrics.L2Busy)
	sectors, counted := k.count(metrics.L2SectorsRead)
	read, known := k.count(metrics.DRAMRead)
	if counted && known && read > 0 {
		times = sectors * sectorBytes / read
	}
	return share, times, ok && (times == 0 || times >= l2Again)
}

// memoryBusy is the share of the busiest level of memory under a kernel.
func (v view) memoryBusy(k gpuKernel) (float64, bool) {
	most, known := v.dram(k)
	if x, ok := v.cachesBusy(k); ok {
		most, known = max(most, x), true
	}
	return most, known
}

// cachesBusy is the share of the busier one of its caches.
func (v view) cachesBusy(k gpuKernel) (float64, bool) {
	most, _, known := k.l1Busy()
	if x, _, ok := v.l2(k); ok && x >= l2Full {
		most, known = max(most, x), true
	}
	return most, known
}

// computeBusy is the share of the busiest arithmetic unit under a kernel, or of
// the places for instructions.
func (k gpuKernel) computeBusy() (share float64, name string, known bool) {
	return k.fullest(metrics.IssueBusy, metrics.FMABusy, metrics.TensorBusy)
}

// fullest is the highest of some counters in per cent, as a share.
func (k gpuKernel) fullest(counters ...string) (share float64, name string, known bool) {
	for _, n := range counters {
		if x, ok := k.used(n); ok && (!known || x > share) {
			share, name, known = x, n, true
		}
	}
	return share, name, known
}

// busiest is the share of its ceiling at which the busiest unit works while a
// kernel runs. Without counters it is what the whole forward reached, and
// counted is false: a kernel that moves bytes twice is busier than that.
func (v view) busiest(k gpuKernel) (share float64, counted bool) {
	memory, hasMemory := v.memoryBusy(k)
	compute, _, hasCompute := k.computeBusy()
	if hasMemory && hasCompute {
		return max(memory, compute), true
	}
	return within(max(memory, compute, v.or(metrics.ComputeShare, 0), v.reached())), false
}

// reached is the share of the bandwidth that the task's least bytes have: of
// memory, or of L2 where they stay there.
func (v view) reached() float64 {
	if beyondCache(v) {
		return within(v.or(metrics.MemoryShare, 0))
	}
	return within(v.or(metrics.CacheShare, 0))
}

// stalled is the share of their time that the warps of a kernel wait for one
// reason: "barrier", "long_scoreboard". ncu has some as shares of all warps, and
// all as warps for each instruction that is issued; where it has one as both, the
// two say how many warps there are for each.
func (k gpuKernel) stalled(reason string) (float64, bool) {
	if x, ok := k.used(metrics.StallShare(reason)); ok {
		return x, true
	}
	x, ok := k.count(metrics.StallRatio(reason))
	if !ok {
		return 0, false
	}
	for _, both := range []string{"long_scoreboard", "short_scoreboard", "barrier"} {
		share, has := k.used(metrics.StallShare(both))
		waiting, too := k.count(metrics.StallRatio(both))
		if has && too && share > 0 && waiting > 0 {
			return within(x * share / waiting), true
		}
	}
	return 0, false
}

// about collects evidence on a kernel: the counters that were measured, and how
// it is launched.
func (v view) about(k gpuKernel, counters ...string) map[string]float64 {
	e := v.evidence()
	for _, name := range counters {
		if x, ok := k.count(name); ok {
			e[name] = x
		}
	}
	return e
}

// residence is what fits on a multiprocessor at once.
type residence struct {
	blocks    float64
	occupancy float64 // of its places for warps, the share that is taken then
	limit     string  // "registers", "shared memory", "threads"
}

// warpsOf returns the places for warps, and for blocks, on a multiprocessor
// (CUDA C++ Programming Guide, technical specifications by compute capability).
func warpsOf(arch string) (warps, blocks float64) {
	switch a := strings.TrimRight(strings.TrimPrefix(arch, "sm_"), "af"); {
	case a == "75":
		return 32, 16
	case a == "86", a == "87":
		return 48, 16
	case a == "89", len(a) == 3 && strings.HasPrefix(a, "12"):
		return 48, 24
	}
	return 64, 32
}

// The register file of a multiprocessor, and what a warp's registers are rounded
// up to; the same from sm_75 to sm_120.
const (
	registerFile = 65536
	registerUnit = 256
)

// resides works out what fits, from ncu's limits, else from the registers that
// the compiler gave it: other limits are then not known, and it fits no more.
func (v view) resides(k gpuKernel) (residence, bool) {
	if !(k.threads >= 1) || k.threads > 1024 {
		return residence{}, false
	}
	arch := k.built.Arch
	if arch == "" && len(v.device.Specs.ISA) > 0 {
		arch = v.device.Specs.ISA[0]
	}
	warps, most := warpsOf(arch)
	own := math.Ceil(k.threads / 32)
	r := residence{blocks: min(math.Floor(warps/own), most), limit: "threads"}
	lower := func(blocks float64, limit string) {
		if blocks < r.blocks {
			r.blocks, r.limit = blocks, limit
		}
	}
	if x, ok := k.count(metrics.LimitRegisters); ok {
		lower(x, "registers")
		for _, l := range []struct{ name, limit string }{{metrics.LimitShared, "shared memory"}, {metrics.LimitWarps, "threads"}, {metrics.LimitBlocks, "threads"}} {
			if x, ok := k.count(l.name); ok {
				lower(x, l.limit)
			}
		}
	} else if k.compiled && k.built.Registers > 0 {
		each := math.Ceil(float64(k.built.Registers)*32/registerUnit) * registerUnit
		lower(math.Floor(registerFile/(each*own)), "registers")
	} else {
		return residence{}, false
	}
	r.occupancy = within(r.blocks * own / warps)
	return r, r.blocks >= 1
}
