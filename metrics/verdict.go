package metrics

// Names in `metrics` of a verdict, and in `position` of a profile.
const (
	Threads              = "threads"
	WorkingSetBytes      = "working_set_bytes"
	AchievedGBs          = "achieved_gbs"
	AchievedGFLOPs       = "achieved_gflops"
	MemoryShare          = "memory_share"
	CacheShare           = "cache_share"
	ComputeShare         = "compute_share"
	CoreUse              = "core_use"
	CustomShare          = "custom_share"
	VendorShare          = "vendor_share"
	PyTorchShare         = "pytorch_share"
	CustomCalls          = "custom_calls"
	CallOverheadShare    = "call_overhead_share"
	VectorisedLoops      = "vectorised_loops"
	MissedLoops          = "missed_loops"
	Launches             = "launches"
	KernelsMS            = "kernels_ms"
	DRAMRoofShare        = "dram_roof_share"
	DRAMBytesRatio       = "dram_bytes_ratio"
	L2RoofShare          = "l2_roof_share"
	FP32RoofShare        = "fp32_roof_share"
	TensorRoofShare      = "tensor_roof_share"
	SMMHz                = "sm_mhz"
	Celsius              = "celsius"
	SlowedShare          = "slowed_share"
	PageFaults           = "page_faults"
	ContextSwitches      = "context_switches"
	InstructionsPerCycle = "instructions_per_cycle"
	CacheMissShare       = "cache_miss_share"
	MissedGBs            = "missed_gbs"
)

// Verdict are the metrics of a verdict, in the order of docs/metrics.md. GB are 10⁹ bytes.
var Verdict = []Metric{
	{
		Name:    Threads,
		Unit:    Count,
		Meaning: "threads that candidate and baselines were given",
	},
	{
		Name:    WorkingSetBytes,
		Unit:    "bytes",
		Brief:   "inputs and parameters once, outputs once",
		Meaning: "the least bytes of a forward: inputs and parameters read once, outputs written once",
	},
	{
		Name:    AchievedGBs,
		Unit:    "GB/s",
		Brief:   "least bytes over time; a second pass lowers it",
		Meaning: "`working_set_bytes` over the candidate's time. Passes beyond the least do not count, so a second pass shows as a lower rate",
	},
	{
		Name:    AchievedGFLOPs,
		Unit:    "GFLOP/s",
		Meaning: "the task's floating-point operations over the candidate's time",
	},
	{
		Name:    MemoryShare,
		Unit:    "share",
		Brief:   "achieved of the measured memory bandwidth",
		Meaning: "`achieved_gbs` of the measured memory bandwidth",
	},
	{
		Name:    CacheShare,
		Unit:    "share",
		Brief:   "achieved of the measured cache bandwidth",
		Meaning: "`achieved_gbs` of the measured bandwidth within the last-level cache",
	},
	{
		Name:    ComputeShare,
		Unit:    "share",
		Brief:   "achieved of the measured rate of arithmetic",
		Meaning: "`achieved_gflops` of the measured rate of fused multiply-adds, or of the tensor cores' where all that floats in a task is a shorter type than float32",
	},
	{
		Name:    CoreUse,
		Unit:    "share",
		Brief:   "of the cores' time",
		Meaning: "processor time over time and threads, at most 1",
	},
	{
		Name:    CustomShare,
		Unit:    "share",
		Brief:   "of the time in the candidate's own code",
		Meaning: "of a forward's time: the candidate's own compiled code",
	},
	{
		Name:    VendorShare,
		Unit:    "share",
		Brief:   "of the time in PyTorch's matrix products and convolutions",
		Meaning: "of a forward's time: PyTorch's matrix products and convolutions",
	},
	{
		Name:    PyTorchShare,
		Unit:    "share",
		Brief:   "of the time in other operators of PyTorch",
		Meaning: "of a forward's time: every other operator of PyTorch",
	},
	{
		Name:    CustomCalls,
		Unit:    Count,
		Brief:   "calls of own code in a forward",
		Meaning: "calls of the candidate's own code in a forward",
	},
	{
		Name:    CallOverheadShare,
		Unit:    "share",
		Brief:   "of the time that these calls cost",
		Meaning: "`custom_calls` times the measured cost of an empty native call, of the candidate's time",
	},
	{
		Name:    VectorisedLoops,
		Unit:    Count,
		Meaning: "loops that the compiler says it vectorised",
	},
	{
		Name:    MissedLoops,
		Unit:    Count,
		Brief:   "loops that the compiler left scalar",
		Meaning: "loops that it says it did not; `build.missed` in the verdict has its reasons by line",
	},
	{
		Name:    Launches,
		Unit:    Count,
		Brief:   "kernels and copies in a forward",
		Meaning: "kernels and copies that a forward has a GPU do, as a profiler saw them: at `certify` `work.launches` lists them, with a profile `profile.kernels`",
	},
	{
		Name:    KernelsMS,
		Unit:    "ms",
		Brief:   "of a forward that the GPU is in kernels",
		Meaning: "of a profile: the times of a forward's kernels together, absent where not all are known. What `candidate_ms` is above it the GPU waited",
	},
	{
		Name:    "dram_gbs",
		Unit:    "GB/s",
		Meaning: "of a profile: bytes that memory moved, over `kernels_ms`",
	},
	{
		Name:    DRAMRoofShare,
		Unit:    "share",
		Brief:   "of the measured memory bandwidth, while kernels run",
		Meaning: "`dram_gbs` of the measured memory bandwidth",
	},
	{
		Name:    DRAMBytesRatio,
		Unit:    Ratio,
		Brief:   "bytes moved in memory over the least there are; above 1: moved more than once",
		Meaning: "bytes that memory moved over `working_set_bytes`. Above 1 something is moved more than once; below 1 results are still in the L2 when the kernel ends",
	},
	{
		Name:    "l2_gbs",
		Unit:    "GB/s",
		Meaning: "of a profile: bytes between multiprocessors and the L2, over `kernels_ms`",
	},
	{
		Name:    L2RoofShare,
		Unit:    "share",
		Brief:   "of the measured bandwidth of the L2",
		Meaning: "`l2_gbs` of the measured bandwidth of the L2",
	},
	{
		Name:    "fp32_gflops",
		Unit:    "GFLOP/s",
		Meaning: "of a profile: float32 additions, products and fused multiply-adds (two each) that were executed, over `kernels_ms`",
	},
	{
		Name:    FP32RoofShare,
		Unit:    "share",
		Brief:   "of the measured float32 rate",
		Meaning: "`fp32_gflops` of the measured rate of fused multiply-adds",
	},
	{
		Name:    "tensor_gflops",
		Unit:    "GFLOP/s",
		Meaning: "of a profile: the tensor cores' operations (a multiply-add is two), over `kernels_ms`",
	},
	{
		Name:  TensorRoofShare,
		Unit:  "share",
		Brief: "of the measured rates of the tensor cores, or of their cycles",
		Meaning: "of the measured rates of the tensor cores: for each type of operand its operations over `kernels_ms` at that type's rate, together. " +
			"Of the cycles in which they were at work where a type has no measured rate, or operations were not asked for, not all known or none",
	},
	{
		Name:    SMMHz,
		Unit:    "MHz",
		Meaning: "a GPU's clock when it had been timed, by NVML",
	},
	{
		Name:    Celsius,
		Unit:    "°C",
		Meaning: "a GPU's temperature when it had been timed, by NVML",
	},
	{
		Name:    SlowedShare,
		Unit:    "share",
		Brief:   "of the windows in which the GPU had slowed itself down",
		Meaning: "of the windows: the GPU had slowed itself down for heat or power supply, and they were measured again as far as others were to be had",
	},
	{
		Name:    PageFaults,
		Unit:    Count,
		Brief:   "in a call; many: memory is allocated anew",
		Meaning: "of a call, with its share of the harness's own: many mean that memory is allocated anew",
	},
	{
		Name:    ContextSwitches,
		Unit:    Count,
		Meaning: "of a call's threads",
	},
	{
		Name:    "instructions",
		Unit:    Count,
		Meaning: "of a call, in user mode",
	},
	{
		Name:    InstructionsPerCycle,
		Unit:    Ratio,
		Meaning: "`instructions` over cycles",
	},
	{
		Name:    CacheMissShare,
		Unit:    "share",
		Brief:   "of references to the last-level cache",
		Meaning: "last-level misses of last-level references",
	},
	{
		Name:    MissedGBs,
		Unit:    "GB/s",
		Brief:   "what really came from memory",
		Meaning: "64 bytes for each last-level miss, over the candidate's time: what really moved, beside `achieved_gbs`",
	},
	{
		Name:    "branch_misses_per_1000",
		Unit:    Ratio,
		Meaning: "mispredicted branches in 1000 instructions",
	},
}
