package judge

import (
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/metrics"
	"github.com/kernelwright/kernelwright/prompts"
)

// Which of its parts keeps L1 busy is the same to all rules.
var l1Busy = l1Parts[0]

// h200 has the specs of one, and ceilings as they are measured on one.
var h200 = kernelwright.Device{Kind: kernelwright.CUDADevice, Key: "g", Name: "NVIDIA H200",
	Specs:    kernelwright.Specs{Cores: 132, ISA: []string{"sm_90a"}, L2Bytes: 50 << 20, MemoryGBs: 4916},
	Ceilings: kernelwright.Ceilings{MemoryGBs: 4270, ReadGBs: 4400, CacheGBs: 9000, FP32GFLOPs: 60000, CallUS: 2.2}}

// streaming is what ncu counts of a healthy pointwise kernel: 1 GiB read and 1
// GiB written with 16 bytes an access at 91 % of the memory's ceiling. A name
// without "__" is what warps wait for, in per cent of their time.
func streaming(over map[string]float64) map[string]float64 {
	m := map[string]float64{
		metrics.DRAMRead: 1 << 30, metrics.DRAMWritten: 1 << 30, metrics.DRAMRate: 3.886e12, metrics.DRAMBusy: 79, metrics.L2Busy: 58, l1Busy: 31, metrics.IssueBusy: 12, metrics.FMABusy: 4, metrics.TensorBusy: 0,
		metrics.WarpsActive: 88, metrics.Registers: 32, metrics.Waves: 496, metrics.BankConflicts: 0, metrics.SharedWavefronts: 2.1e6, metrics.LocalLoaded: 0, metrics.LocalStored: 0, metrics.L2Sectors: 1 << 31 / sectorBytes, metrics.L2SectorsRead: 1 << 30 / sectorBytes,
		metrics.LoadSectors: 16, metrics.StoreSectors: 16, metrics.LimitRegisters: 8, metrics.LimitShared: 32, metrics.LimitWarps: 8, metrics.LimitBlocks: 32,
		metrics.LoadedUsed: 100, metrics.StoredUsed: 100,
	}
	for reason, percent := range map[string]float64{"long_scoreboard": 84, "short_scoreboard": 0.2, "barrier": 0, "mio_throttle": 0.1, "lg_throttle": 5} {
		if x, ok := over[reason]; ok {
			percent = x
		}
		m[metrics.StallRatio(reason)] = 0.62 * percent // 62 warps for each instruction that is issued
		if reason != "mio_throttle" && reason != "lg_throttle" {
			m[metrics.StallShare(reason)] = percent
		}
	}
	for name, x := range over {
		if strings.Contains(name, "__") {
			m[name] = x
		}
	}
	return m
}

// wide is what the compiler says of that kernel.
var wide = kernelwright.Kernel{Name: "void kernel0<4>(float const*, float*)", Arch: "sm_90a", Registers: 32, LoadBytes: 16, StoreBytes: 16,
	Instructions: map[string]int{"load_global": 2, "store_global": 2, "fp32": 20, "integer": 18, "branch": 3}}

func built(change func(*kernelwright.Kernel)) kernelwright.Kernel {
	k := wide
	k.Instructions = maps.Clone(k.Instructions)
	change(&k)
	return k
}

// forward is a correct verdict on a forward with one kernel of its own, at the
// level of detail that a tool gives.
type forward struct {
	ms, headroom float64
	metrics      map[string]float64
	build        kernelwright.Kernel
	counted      map[string]float64
	blocks       int
	threads      int
	launches     int
	kernelsMS    float64
	share        float64 // of the time; 1 where it is 0
}

func (f forward) verdict(tool string) kernelwright.Verdict {
	const gib = 1 << 30
	v := kernelwright.Verdict{Status: kernelwright.Correct, CandidateMS: f.ms, Headroom: f.headroom, Metrics: map[string]float64{"custom_share": 1, "pytorch_share": 0, "vendor_share": 0},
		Floor: kernelwright.Floor{MS: f.ms * f.headroom, Bound: "memory", Bytes: 2 * gib},
		Build: kernelwright.BuildReport{Kernels: []kernelwright.Kernel{f.build}}}
	v.Metrics["memory_share"], v.Metrics["working_set_bytes"] = f.headroom, 2*gib
	v.Floor.Bytes = int64(f.headroom * f.ms * 4270e6)
	maps.Copy(v.Metrics, f.metrics)
	if tool == "static" {
		return v
	}
	share := f.share
	if share == 0 {
		share = 1
	}
	k := kernelwright.KernelProfile{Name: "kernel0<(int)4>(const float *, float *)", Whose: "custom", Launches: max(f.launches, 1), MS: share * f.kernelsMS, Share: share,
		Grid: [3]int{f.blocks, 1, 1}, Block: [3]int{f.threads, 1, 1}}
	v.Profile = &kernelwright.Profile{Tool: tool, Launches: max(f.launches, 1), MS: f.kernelsMS, Kernels: []kernelwright.KernelProfile{k}}
	if tool == "ncu" {
		v.Profile.Kernels[0].Metrics, v.Profile.Metrics = f.counted, f.counted
	}
	return v
}

// seen is a kind of kernel as it looks on an H200, with all rules that speak of
// it at each level of detail, what weighs most first, but for rooflineGap, which
// always speaks last. says is in the first's words, with ncu.
type seen struct {
	forward               forward
	ncu, profiler, static []string
	says                  string
}

var none []string

var kinds = map[string]seen{
	// gelu over 1 GiB: nothing but the last 9 % of the bandwidth is left.
	"streams at nine tenths of the bandwidth": {
		forward: forward{ms: 0.55, headroom: 0.91, build: wide, counted: streaming(nil), blocks: 262144, threads: 256, kernelsMS: 0.548},
		ncu:     []string{"memory_bound"}, profiler: []string{"memory_bound"}, static: []string{"memory_bound"}, says: "91 %",
	},
	// tanh of 64 KiB in five kernels, 2.4 us each.
	"many short launches": {
		forward: forward{ms: 0.0132, headroom: 0.002, build: wide, metrics: map[string]float64{"custom_calls": 5}, launches: 5, blocks: 64, threads: 256, kernelsMS: 0.0101,
			counted: streaming(map[string]float64{metrics.DRAMRead: 65e3, metrics.DRAMWritten: 0, metrics.DRAMRate: 2e10, metrics.DRAMBusy: 0.4, metrics.L2Busy: 2, l1Busy: 2, metrics.IssueBusy: 3, metrics.Waves: 0.06, metrics.WarpsActive: 10,
				"long_scoreboard": 19})},
		ncu: []string{"launch_bound", "idle_sms"}, profiler: []string{"launch_bound", "idle_sms", "latency_bound"}, static: []string{"launch_bound", "latency_bound"}, says: "5 of them in 13.2 us",
	},
	// An LSTM's step by step loop: the host cannot ask fast enough.
	"gaps between launches": {
		forward: forward{ms: 0.9, headroom: 0.05, build: wide, launches: 64, blocks: 512, threads: 256, kernelsMS: 0.3, share: 0.5,
			counted: streaming(map[string]float64{metrics.DRAMRead: 2e6, metrics.DRAMWritten: 1e6, metrics.DRAMRate: 2e11, metrics.DRAMBusy: 4, metrics.L2Busy: 9, metrics.IssueBusy: 61, metrics.Waves: 0.5})},
		ncu: []string{"launch_bound"}, profiler: []string{"launch_bound", "latency_bound"}, static: []string{"latency_bound"}, says: "works 300 of the 900 us",
	},
	// argmax over four rows of 16 M, a block each.
	"four long rows": {
		forward: forward{ms: 2.2, headroom: 0.03, build: wide, blocks: 4, threads: 1024, kernelsMS: 2.19,
			counted: streaming(map[string]float64{metrics.DRAMRead: 268e6, metrics.DRAMWritten: 0, metrics.DRAMRate: 1.2e11, metrics.DRAMBusy: 2.4, metrics.L2Busy: 2, l1Busy: 1, metrics.IssueBusy: 14, metrics.Waves: 0.015, metrics.WarpsActive: 49,
				metrics.LimitRegisters: 2, metrics.LimitWarps: 2, "long_scoreboard": 65})},
		ncu: []string{"idle_sms", "latency_bound"}, profiler: []string{"idle_sms", "latency_bound"}, static: []string{"latency_bound"}, says: "4 blocks for 132",
	},
	// A normalisation with a block of 512 threads for each of 600 rows: 528 at once.
	"a last wave of 72 blocks": {
		forward: forward{ms: 0.4, headroom: 0.5, build: built(func(k *kernelwright.Kernel) { k.Registers = 32 }), blocks: 600, threads: 512, kernelsMS: 0.395,
			counted: streaming(map[string]float64{metrics.DRAMRead: 427e6, metrics.DRAMWritten: 427e6, metrics.DRAMRate: 2.15e12, metrics.DRAMBusy: 44, metrics.L2Busy: 40, metrics.IssueBusy: 41, metrics.Waves: 1.136, metrics.WarpsActive: 55,
				metrics.LimitRegisters: 4, metrics.LimitWarps: 4, "long_scoreboard": 19})},
		ncu: []string{"tail"}, profiler: []string{"tail", "latency_bound"}, static: []string{"latency_bound"}, says: "1.136 waves",
	},
	// A transposed input read along its rows by threads that stand along its columns.
	"reads across rows": {
		forward: forward{ms: 4.1, headroom: 0.12, build: built(func(k *kernelwright.Kernel) { k.LoadBytes = 4 }), blocks: 262144, threads: 256, kernelsMS: 4.09,
			counted: streaming(map[string]float64{metrics.DRAMRead: 1.08e9, metrics.DRAMWritten: 1.05e9, metrics.DRAMRate: 5.2e11, metrics.DRAMBusy: 11, metrics.L2Busy: 74, l1Busy: 89, metrics.IssueBusy: 4, metrics.LoadSectors: 31.9, metrics.LoadedUsed: 12.5, "lg_throttle": 32})},
		ncu: []string{"uncoalesced"}, profiler: []string{"narrow_accesses", "latency_bound"}, static: []string{"narrow_accesses", "latency_bound"}, says: "12 % is asked for",
	},
	// softmax over rows that blocks hold between them in shared memory: what they load
	// otherwise is whether the others are there.
	"rows come asynchronously": {
		forward: forward{ms: 3.96, headroom: 0.76, blocks: 256, threads: 512, kernelsMS: 3.9,
			build:   built(func(k *kernelwright.Kernel) { k.LoadBytes, k.Instructions["copy_async"] = 4, 8 }),
			counted: streaming(map[string]float64{metrics.DRAMRead: 6.44e9, metrics.DRAMWritten: 6.44e9, metrics.DRAMRate: 3.3e12, metrics.DRAMBusy: 68, l1Busy: 44, metrics.IssueBusy: 41, metrics.WarpsActive: 48, metrics.LoadSectors: 13.7, metrics.LoadedUsed: 21, "barrier": 32})},
		ncu: []string{"barriers", "latency_bound"}, profiler: none, static: none, says: "wait 32 %",
	},
	// softmax in three passes over rows of 1 MiB: the second and third reading miss L2.
	"rows are read three times": {
		forward: forward{ms: 0.96, headroom: 0.52, build: wide, blocks: 1024, threads: 1024, kernelsMS: 0.95,
			counted: streaming(map[string]float64{metrics.DRAMRead: 2.9e9, metrics.DRAMWritten: 1.05e9, metrics.DRAMRate: 3.85e12, metrics.Waves: 3.9})},
		ncu: []string{"extra_traffic"}, profiler: []string{"latency_bound"}, static: []string{"latency_bound"}, says: "times as many",
	},
	// A layer norm whose threads keep 96 values, at 64 registers.
	"values spill": {
		forward: forward{ms: 0.8, headroom: 0.62, blocks: 65536, threads: 256, kernelsMS: 0.79,
			build: built(func(k *kernelwright.Kernel) {
				k.Registers, k.SpillStoreBytes, k.SpillLoadBytes = 64, 220, 240
				k.Instructions["local"], k.Instructions["load_global"], k.Instructions["store_global"] = 36, 12, 12
			}),
			counted: streaming(map[string]float64{metrics.DRAMRate: 2.65e12, l1Busy: 66, metrics.LocalLoaded: 3e8, metrics.LocalStored: 3e8, metrics.LimitRegisters: 4})},
		ncu: []string{"spills"}, profiler: []string{"spills"}, static: []string{"spills"}, says: "460 bytes in local memory, 22 % of the bytes",
	},
	// A sum of columns by way of tile[32][32] in shared memory, read down its columns.
	"columns of shared memory": {
		forward: forward{ms: 1.2, headroom: 0.4, build: wide, blocks: 8192, threads: 256, kernelsMS: 1.19,
			counted: streaming(map[string]float64{metrics.DRAMRate: 1.75e12, metrics.DRAMBusy: 36, metrics.L2Busy: 27, l1Busy: 87, metrics.IssueBusy: 22, metrics.BankConflicts: 6.2e7, metrics.SharedWavefronts: 7e7, "short_scoreboard": 48, "long_scoreboard": 19})},
		ncu: []string{"bank_conflicts"}, profiler: []string{"latency_bound"}, static: []string{"latency_bound"}, says: "89 % of the turns",
	},
	// RMS norm of rows of 4096 with 1024 threads each: two barriers for four elements a thread.
	"a block for a short row": {
		forward: forward{ms: 0.9, headroom: 0.55, build: wide, blocks: 65536, threads: 1024, kernelsMS: 0.89,
			counted: streaming(map[string]float64{metrics.DRAMRate: 2.35e12, metrics.DRAMBusy: 48, metrics.L2Busy: 40, metrics.IssueBusy: 30, "barrier": 39, "long_scoreboard": 26, metrics.LimitRegisters: 2, metrics.LimitWarps: 2})},
		ncu: []string{"barriers", "latency_bound"}, profiler: []string{"latency_bound"}, static: []string{"latency_bound"}, says: "wait 39 %",
	},
	// A pointwise kernel written with one float a thread.
	"one float at a time": {
		forward: forward{ms: 0.85, headroom: 0.59, build: built(func(k *kernelwright.Kernel) { k.LoadBytes, k.StoreBytes = 4, 4 }), blocks: 1 << 20, threads: 256, kernelsMS: 0.84,
			counted: streaming(map[string]float64{metrics.DRAMRate: 2.5e12, metrics.DRAMBusy: 51, metrics.L2Busy: 44, metrics.IssueBusy: 34, metrics.LoadSectors: 4, metrics.StoreSectors: 4})},
		ncu: []string{"narrow_accesses", "latency_bound"}, profiler: []string{"narrow_accesses", "latency_bound"}, static: []string{"narrow_accesses", "latency_bound"}, says: "4 bytes for a thread",
	},
	// A reduction unrolled so far that a thread takes 168 registers.
	"registers for one block": {
		forward: forward{ms: 1.1, headroom: 0.45, build: built(func(k *kernelwright.Kernel) { k.Registers = 168 }), blocks: 4096, threads: 256, kernelsMS: 1.09,
			counted: streaming(map[string]float64{metrics.DRAMRate: 1.95e12, metrics.DRAMBusy: 40, metrics.L2Busy: 30, metrics.IssueBusy: 18, metrics.LimitRegisters: 1, metrics.WarpsActive: 12, metrics.Waves: 31, metrics.Registers: 168})},
		ncu: []string{"occupancy_bound", "latency_bound"}, profiler: []string{"occupancy_bound", "latency_bound"}, static: []string{"latency_bound"}, says: "the limit is the registers",
	},
	// Pooling of 11 x 11 with a stride of 1, each window read anew.
	"windows that overlap": {
		forward: forward{ms: 2.4, headroom: 0.2, build: wide, blocks: 1 << 18, threads: 256, kernelsMS: 2.39,
			counted: streaming(map[string]float64{metrics.DRAMRate: 8.6e11, metrics.DRAMBusy: 17, metrics.L2Busy: 86, metrics.L2SectorsRead: 9 << 30 / sectorBytes, l1Busy: 64, metrics.IssueBusy: 33})},
		ncu: []string{"l2_bound"}, profiler: []string{"latency_bound"}, static: []string{"latency_bound"}, says: "memory behind it to 20 %",
	},
	// argmax over 16 MiB, as an H200 counted it: some part of L2 works in most of the
	// cycles in which it works at all, but each byte comes once.
	"each byte comes from L2 once": {
		forward: forward{ms: 0.00743, headroom: 0.49, build: wide, blocks: 2048, threads: 128, kernelsMS: 0.00758,
			counted: streaming(map[string]float64{metrics.DRAMRead: 16.78e6, metrics.DRAMWritten: 0, metrics.DRAMRate: 2.213e12, metrics.DRAMBusy: 46, metrics.L2Busy: 81, metrics.L2Sectors: 526e3, metrics.L2SectorsRead: 524e3, metrics.L2Hits: 3.7, l1Busy: 22, metrics.IssueBusy: 36, metrics.WarpsActive: 81,
				metrics.Waves: 0.97, metrics.LimitRegisters: 16, metrics.LimitShared: 51, metrics.LimitWarps: 16, "long_scoreboard": 63, "barrier": 9})},
		ncu: []string{"latency_bound"}, profiler: []string{"latency_bound"}, static: []string{"latency_bound"}, says: "at 50 % of its peak",
	},
	// Memory is not what is used up, but instructions are as near to that.
	"memory and instructions at three quarters": {
		forward: forward{ms: 0.7, headroom: 0.72, build: wide, blocks: 1 << 18, threads: 256, kernelsMS: 0.69,
			counted: streaming(map[string]float64{metrics.DRAMRate: 3.2e12, metrics.DRAMBusy: 65, metrics.IssueBusy: 74, "long_scoreboard": 40})},
		ncu: none, profiler: none, static: none, says: "No single one",
	},
	// An ncu that does not count what is read from L2 cannot tell a limit from a stream.
	"L2 of which nobody knows what is read": {
		forward: forward{ms: 2.4, headroom: 0.26, build: wide, blocks: 1 << 18, threads: 256, kernelsMS: 2.39,
			counted: streaming(map[string]float64{metrics.DRAMRate: 1.1e12, metrics.DRAMBusy: 22, metrics.L2Busy: 92, metrics.L2SectorsRead: -1, l1Busy: 55})},
		ncu: none, profiler: []string{"latency_bound"}, static: []string{"latency_bound"}, says: "No single one",
	},
	// A layer norm whose 24 MiB stay in L2: what memory was seen to do is half of what
	// will move, and nobody waits for latency.
	"writes stay in L2": {
		forward: forward{ms: 0.01323, headroom: 0.895, build: wide, blocks: 4096, threads: 128, kernelsMS: 0.01347,
			counted: streaming(map[string]float64{metrics.DRAMRead: 25.2e6, metrics.DRAMWritten: 3.5e6, metrics.DRAMRate: 2.131e12, metrics.DRAMBusy: 44, metrics.L2Busy: 92, metrics.L2Sectors: 1.58e6, metrics.L2SectorsRead: 795e3, metrics.L2Hits: 52, l1Busy: 52, metrics.IssueBusy: 30, metrics.WarpsActive: 83,
				metrics.Waves: 1.94, metrics.LimitRegisters: 16, metrics.LimitShared: 51, metrics.LimitWarps: 16, "long_scoreboard": 56, "short_scoreboard": 15, "barrier": 9})},
		ncu: []string{"memory_bound"}, profiler: []string{"memory_bound"}, static: []string{"memory_bound"}, says: "90 % of what",
	},
	// mish with precise functions of one float: instructions, not bytes.
	"many instructions an element": {
		forward: forward{ms: 0.82, headroom: 0.6, build: wide, metrics: map[string]float64{"compute_share": 0.08}, blocks: 1 << 18, threads: 256, kernelsMS: 0.81,
			counted: streaming(map[string]float64{metrics.DRAMRate: 2.57e12, metrics.DRAMBusy: 52, metrics.L2Busy: 41, metrics.IssueBusy: 93, metrics.FMABusy: 60, "long_scoreboard": 10})},
		ncu: []string{"compute_bound"}, profiler: none, static: none, says: "93 % of the places for instructions",
	},
	// A reduction whose loop waits for each load before it asks for the next.
	"one load under way": {
		forward: forward{ms: 1.05, headroom: 0.47, build: wide, blocks: 32768, threads: 256, kernelsMS: 1.04,
			counted: streaming(map[string]float64{metrics.DRAMRate: 1.8e12, metrics.DRAMBusy: 37, metrics.L2Busy: 28, metrics.IssueBusy: 9, "long_scoreboard": 89})},
		ncu: []string{"latency_bound"}, profiler: []string{"latency_bound"}, static: []string{"latency_bound"}, says: "94 % of their time",
	},
	// Two kernels with 10 MB between them, which stay in L2.
	"hands a small tensor on": {
		forward: forward{
			ms: 0.06, headroom: 0.5, build: wide, launches: 2, blocks: 16384, threads: 256, kernelsMS: 0.055,
			counted: streaming(map[string]float64{metrics.DRAMRead: 80e6, metrics.DRAMWritten: 68e6, metrics.DRAMRate: 2.6e12, metrics.Waves: 15}),
		},
		ncu: []string{"latency_bound"}, profiler: []string{"latency_bound"}, static: []string{"latency_bound"}, says: "at 61 % of its peak",
	},
	// A kernel beside PyTorch's own softmax.
	"most is PyTorch's": {
		forward: forward{ms: 0.6, headroom: 0.45, build: wide, metrics: map[string]float64{"custom_share": 0.3, "pytorch_share": 0.7}, blocks: 1 << 18, threads: 256, kernelsMS: 0.59, share: 0.3,
			launches: 2, counted: streaming(map[string]float64{metrics.DRAMRead: 1.6e9, metrics.DRAMWritten: 1.1e9})},
		ncu: []string{"pytorch_share", "extra_traffic"}, profiler: []string{"pytorch_share", "latency_bound"}, static: []string{"pytorch_share", "latency_bound"}, says: "70 %",
	},
	// A large product with an epilogue of its own.
	"mostly cuBLAS": {
		forward: forward{ms: 3, headroom: 0.7, build: wide, metrics: map[string]float64{"custom_share": 0.2, "vendor_share": 0.8, "memory_share": 0.1, "compute_share": 0.62}, blocks: 1 << 16, threads: 256,
			kernelsMS: 2.99, share: 0.2, launches: 2, counted: streaming(map[string]float64{metrics.DRAMRead: 3e8, metrics.DRAMWritten: 3e8})},
		ncu: []string{"vendor_share"}, profiler: []string{"vendor_share"}, static: []string{"vendor_share"}, says: "80 % of the time",
	},
}

func TestWhatRulesSayOfKernelsOnAGPU(t *testing.T) {
	for name, c := range kinds {
		t.Run(name, func(t *testing.T) {
			for tool, want := range map[string][]string{"ncu": c.ncu, "profiler": c.profiler, "static": c.static} {
				v := view{device: h200, verdict: c.forward.verdict(tool)}
				var got []string
				found := findings(v)
				for _, f := range found {
					if f.rule != "roofline_gap" {
						got = append(got, f.rule)
					}
				}
				if !slices.Equal(got, want) {
					t.Errorf("%s: %v, want %v", tool, got, want)
					for _, f := range found {
						t.Logf("%s %.2f: %s", f.rule, f.gain, f.bottleneck)
					}
				}
				if tool == "ncu" && !strings.Contains(found[0].bottleneck, c.says) {
					t.Errorf("does not say %q: %s", c.says, found[0].bottleneck)
				}
			}
		})
	}
}

// Where not all times are known, none is missing between the launches.
func TestTimesThatAreNotKnownAreNoGaps(t *testing.T) {
	for _, tool := range []string{"ncu", "profiler"} {
		gaps := kinds["gaps between launches"].forward
		v := gaps.verdict(tool)
		v.Profile.MS, v.Profile.Kernels[0].Share = 0, 0
		for _, f := range findings(view{device: h200, verdict: v}) {
			if strings.Contains(f.bottleneck, "Gaps") || f.evidence["kernels_ms"] > 0 {
				t.Errorf("%s: %s %v", tool, f.bottleneck, f.evidence)
			}
		}
	}
}

// TestPartsOfL1: bank conflicts keep its pipe for data busy and nothing else of it, and
// what goes on to L2 was not near by.
func TestPartsOfL1(t *testing.T) {
	conflicting := map[string]float64{metrics.BankConflicts: 5e7, metrics.SharedWavefronts: 1e8, metrics.DRAMRate: 1e12, metrics.L2Busy: 20, "short_scoreboard": 10}
	with := func(counted map[string]float64, l1 map[string]float64) gpuKernel {
		counted = maps.Clone(counted)
		maps.Copy(counted, l1)
		return gpuKernel{counted: streaming(counted)}
	}
	v := view{device: h200}
	for name, c := range map[string]struct {
		l1   map[string]float64
		gain float64
	}{
		"the pipe for data":    {map[string]float64{metrics.L1Data: 80, metrics.L1ToL2: 20}, 0.5},
		"the way to L2":        {map[string]float64{metrics.L1Data: 60, metrics.L1ToL2: 70}, 0.05}, // what is waited for alone
		"a part is as busy":    {map[string]float64{metrics.L1Data: 80, metrics.L1Requests: 60}, 0.25},
		"only its own word":    {map[string]float64{metrics.L1Busy: 80}, 0.5},
		"both, as in all sets": {map[string]float64{metrics.L1Data: 80, metrics.L1Busy: 80}, 0.5},
	} {
		f, found := bankConflicts(v, with(conflicting, c.l1))
		if !found || math.Abs(f.gain-c.gain) > 0.01 {
			t.Errorf("%s: %v, a gain of %.3f, want %.3f", name, found, f.gain, c.gain)
		}
	}
	quiet := map[string]float64{metrics.DRAMRate: 5e11, metrics.DRAMBusy: 11, metrics.L2Busy: 20, metrics.IssueBusy: 20}
	if f, found := l1Bound(v, with(quiet, map[string]float64{metrics.L1Data: 92, metrics.L1ToL2: 30})); !found || f.evidence[metrics.L1Data] != 92 {
		t.Errorf("data at 92 %%: %v, %v", found, f.evidence)
	}
	if f, found := l1Bound(v, with(quiet, map[string]float64{metrics.L1Data: 60, metrics.L1ToL2: 92})); found {
		t.Errorf("the way to L2 at 92 %%: %s", f.bottleneck)
	}
}

func TestStopsOnAGPU(t *testing.T) {
	for name, c := range map[string]struct {
		rule    string
		forward forward
		says    string
	}{
		"near the roofline": {"at_the_floor", forward{ms: 0.5, headroom: 0.96, build: wide}, "96 %"},
		// relu over 1 GiB: 91 % of the floor, and memory is busy with the task's own bytes all the time.
		"memory moves what it must": {"memory_bound", forward{ms: 0.52, headroom: 0.93, build: wide, blocks: 262144, threads: 256, kernelsMS: 0.518,
			counted: streaming(map[string]float64{metrics.DRAMRead: 1.07e9, metrics.DRAMWritten: 1.07e9, metrics.DRAMRate: 4.13e12})}, "all that it moves"},
		"one launch of nothing": {"launch_bound", forward{ms: 0.0023, headroom: 0.01, build: wide, blocks: 1, threads: 32, launches: 1, kernelsMS: 0.0015, counted: streaming(nil)}, "an empty one 2.2 us"},
		"the library's alone":   {"vendor_library", forward{ms: 3, headroom: 0.8, build: wide, metrics: map[string]float64{"custom_share": 0.03, "vendor_share": 0.97}}, "97 %"},
	} {
		t.Run(name, func(t *testing.T) {
			in := kernelwright.JudgeInput{Want: kernelwright.Optimisation, Device: h200, Current: kernelwright.Attempt{Verdict: c.forward.verdict("ncu")}}
			f, err := Rules{}.Judge(t.Context(), in)
			if err != nil || f.Kind != kernelwright.Stop || f.Rule != c.rule || !strings.Contains(f.Why, c.says) {
				t.Errorf("%+v %v", f, err)
			}
		})
	}
}

// A baseline that is faster says that there is something to gain.
func TestGoesOnBehindABaselineOnAGPU(t *testing.T) {
	for name, f := range map[string]forward{
		"at the roofline": {ms: 0.5, headroom: 1, build: wide},
		"memory moves what it must": {ms: 0.52, headroom: 0.93, build: wide, blocks: 262144, threads: 256, kernelsMS: 0.518,
			counted: streaming(map[string]float64{metrics.DRAMRead: 1.07e9, metrics.DRAMWritten: 1.07e9, metrics.DRAMRate: 4.13e12})},
	} {
		for _, tool := range []string{"ncu", "profiler", "static"} {
			v := f.verdict(tool)
			v.Speedup = &kernelwright.Speedup{Value: 0.95, Low: 0.94, High: 0.96}
			in := kernelwright.JudgeInput{Want: kernelwright.Optimisation, Device: h200, Current: kernelwright.Attempt{Verdict: v}}
			if got, err := (Rules{}).Judge(t.Context(), in); err != nil || got.Kind != kernelwright.Optimisation || got.Plan == "" {
				t.Errorf("%s, %s: %+v %v", name, tool, got, err)
			}
		}
	}
}

// What a faster baseline does is to be gained, whatever the ceilings say.
func TestGainsBehindABaselineAreHeard(t *testing.T) {
	f := forward{ms: 0.5, headroom: 0.99, build: wide, blocks: 200, threads: 1024, kernelsMS: 0.498, counted: streaming(map[string]float64{metrics.Waves: 1.1})}
	for _, c := range []struct {
		baseline *kernelwright.Speedup
		most     float64
	}{
		{nil, 0},
		{&kernelwright.Speedup{Value: 1.1, Low: 1.05, High: 1.15}, 0},
		{&kernelwright.Speedup{Value: 0.98, Low: 0.97, High: 0.99}, 0.02},
		{&kernelwright.Speedup{Value: 0.8, Low: 0.78, High: 0.82}, 0.09}, // the tail is 9 %
	} {
		v := f.verdict("ncu")
		v.Speedup = c.baseline
		heard := findings(view{device: h200, verdict: v})
		if len(heard) == 0 || heard[0].gain > c.most+1e-9 || (heard[0].gain < c.most/2) {
			t.Errorf("%+v: %+v", c.baseline, heard)
		}
		i := slices.IndexFunc(heard, func(f finding) bool { return f.rule == "tail" })
		if (i >= 0) != (c.most > 0) {
			t.Errorf("%+v: the tail is heard: %v", c.baseline, i >= 0)
		}
	}
}

// What two compilers and a profiler call a kernel, and what fits on a
// multiprocessor (the occupancy calculator's values).
func TestKernelsAreFoundByName(t *testing.T) {
	of := func(names ...string) (all []kernelwright.Kernel) {
		for i, n := range names {
			all = append(all, kernelwright.Kernel{Name: n, Registers: i + 1})
		}
		return all
	}
	for _, c := range []struct {
		built []kernelwright.Kernel
		seen  string
		want  int
	}{
		{of("void kernel0<1>(float const*)", "void kernel0<4>(float const*)"), "void kernel0<(int)4>(const float *)", 2},
		{of("kernel0(float const*, long long)"), "kernel0", 1},
		{of("kernel0_sums(float*)", "kernel0(float*)"), "kernel0(float *)", 2},
		{of("softmax_kernel"), "softmax_kernel", 1},
		{of("void kernel0<1>(float*)", "void kernel0<4>(float*)"), "kernel0", 0}, // which of them is not said
		{of("kernel0"), "ampere_sgemm_128x64", 0},
	} {
		if k, ok := match(c.built, c.seen); k.Registers != c.want || ok != (c.want > 0) {
			t.Errorf("%s: %+v", c.seen, k)
		}
	}
}

func TestWhatFitsOnAMultiprocessor(t *testing.T) {
	for _, c := range []struct {
		arch      string
		registers int
		threads   float64
		counted   map[string]float64
		want      residence
	}{
		{"sm_90a", 32, 256, nil, residence{8, 1, "threads"}},
		{"sm_90a", 40, 256, nil, residence{6, 0.75, "registers"}},
		{"sm_90", 168, 256, nil, residence{1, 0.125, "registers"}},
		{"sm_89", 40, 256, nil, residence{6, 1, "threads"}},
		{"sm_86", 32, 1024, nil, residence{1, 32. / 48, "threads"}},
		{"sm_120a", 32, 32, nil, residence{24, 0.5, "threads"}},
		{"sm_90a", 32, 256, map[string]float64{metrics.LimitRegisters: 8, metrics.LimitShared: 3, metrics.LimitWarps: 8, metrics.LimitBlocks: 32}, residence{3, 0.375, "shared memory"}},
	} {
		k := gpuKernel{threads: c.threads, compiled: true, built: kernelwright.Kernel{Arch: c.arch, Registers: c.registers}, counted: c.counted}
		if got, ok := (view{device: h200}).resides(k); !ok || got != c.want {
			t.Errorf("%s, %d registers, %v threads: %+v, want %+v", c.arch, c.registers, c.threads, got, c.want)
		}
	}
}

// Skills are chosen by the word that a rule's name and what it says come to
// first.
func TestRulesForAGPULeadToSkills(t *testing.T) {
	want := map[string]prompts.Bottleneck{
		"pytorch_share": prompts.ExtraPasses, "launch_bound": prompts.Launch, "vendor_share": prompts.ExtraPasses, "idle_sms": prompts.IdleCores, "tail": prompts.Tail,
		"uncoalesced": prompts.Uncoalesced, "extra_traffic": prompts.ExtraPasses, "spills": prompts.Registers, "bank_conflicts": prompts.BankConflicts, "barriers": prompts.Barriers,
		"narrow_accesses": prompts.NotVectorised, "occupancy_bound": prompts.Occupancy, "l2_bound": prompts.Cache, "l1_bound": prompts.Cache, "compute_bound": prompts.Compute, "latency_bound": prompts.Latency,
		"memory_bound": prompts.Memory,
	}
	seen := map[string]bool{}
	var all []kernelwright.Verdict
	for _, c := range kinds {
		all = append(all, c.forward.verdict("ncu"))
	}
	for _, m := range measuredOn(t, "h200") {
		all = append(all, m.verdict(h200, "ncu"))
	}
	for _, v := range all {
		for _, f := range findings(view{device: h200, verdict: v}) {
			if f.rule == "roofline_gap" || f.done {
				continue
			}
			seen[f.rule] = true
			if found := prompts.FindBottlenecks(f.rule, f.bottleneck); len(found) == 0 || found[0] != want[f.rule] {
				t.Errorf("%s (%s) comes to %v", f.rule, f.bottleneck, found)
			}
		}
	}
	if len(seen) != len(want) {
		t.Errorf("spoke: %v", slices.Sorted(maps.Keys(seen)))
	}
}
