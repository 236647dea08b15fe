package metrics

// Names of Nsight Compute's counters that the program reads.
const (
	Duration           = "gpu__time_duration.sum"
	DRAMRead           = "dram__bytes_read.sum"
	DRAMWritten        = "dram__bytes_write.sum"
	DRAMRate           = "dram__bytes.sum.per_second"
	DRAMBusy           = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
	L2Sectors          = "lts__t_sectors_srcunit_tex.sum"
	L2SectorsRead      = "lts__t_sectors_srcunit_tex_op_read.sum"
	L2Bytes            = "lts__t_bytes.sum"
	L2Hits             = "lts__t_sector_hit_rate.pct"
	L2Busy             = "lts__throughput.avg.pct_of_peak_sustained_active"
	L1Data             = "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_active"
	L1ToL2             = "l1tex__m_l1tex2xbar_req_cycles_active.avg.pct_of_peak_sustained_active"
	L1Requests         = "l1tex__lsuin_requests.avg.pct_of_peak_sustained_active"
	L1Busy             = "l1tex__throughput.avg.pct_of_peak_sustained_active"
	IssueBusy          = "smsp__issue_active.avg.pct_of_peak_sustained_active"
	FMABusy            = "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active"
	TensorBusy         = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
	WarpsActive        = "sm__warps_active.avg.pct_of_peak_sustained_active"
	WarpsAllowed       = "sm__maximum_warps_per_active_cycle_pct"
	WarpsEligible      = "smsp__warps_eligible.avg.per_cycle_active"
	Registers          = "launch__registers_per_thread"
	Waves              = "launch__waves_per_multiprocessor"
	LimitRegisters     = "launch__occupancy_limit_registers"
	LimitShared        = "launch__occupancy_limit_shared_mem"
	LimitWarps         = "launch__occupancy_limit_warps"
	LimitBlocks        = "launch__occupancy_limit_blocks"
	LocalLoaded        = "l1tex__t_bytes_pipe_lsu_mem_local_op_ld.sum"
	LocalStored        = "l1tex__t_bytes_pipe_lsu_mem_local_op_st.sum"
	BankConflicts      = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
	SharedWavefronts   = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
	LoadSectors        = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio"
	StoreSectors       = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio"
	LoadedUsed         = "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct"
	StoredUsed         = "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct"
	TensorOperations   = "sm__ops_path_tensor_src_" // begins the names of what the tensor cores did, by type of operand
	anyTensorOperation = TensorOperations + "….sum"
)

// Counters are Nsight Compute's, by its names and in its base units, in the order of
// docs/metrics.md.
var Counters = []Metric{
	{
		Name:    Duration,
		Unit:    "ns",
		Meaning: "from a kernel's start to its end",
	},
	{
		Name:    "sm__cycles_active.avg",
		Unit:    "cycles",
		Meaning: "of an SM",
	},
	{
		Name:    "sm__inst_executed.sum",
		Unit:    "warp instructions",
		Meaning: "of all SMs",
	},
	{
		Name:    "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum",
		Unit:    "instructions of threads",
		Meaning: "float32 additions",
	},
	{
		Name:    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
		Unit:    "instructions of threads",
		Meaning: "float32 fused multiply-adds",
	},
	{
		Name:    "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum",
		Unit:    "instructions of threads",
		Meaning: "float32 products",
	},
	{
		Name:    FMABusy,
		Unit:    "%",
		Meaning: "of the rate of the float32 pipe",
	},
	{
		Name:    TensorBusy,
		Unit:    "%",
		Meaning: "of cycles with the tensor cores at work",
	},
	{
		Name:    anyTensorOperation,
		Unit:    "operations",
		Meaning: "of the tensor cores, by type of operand, and of result where the chip has that: `fp16`, `bf16_dst_fp32`, `tf32_dst_fp32`, `fp8`, `int8`",
	},
	{
		Name:    WarpsActive,
		Unit:    "%",
		Brief:   "achieved occupancy",
		Meaning: "achieved occupancy",
	},
	{
		Name:    WarpsAllowed,
		Unit:    "%",
		Brief:   "occupancy that the launch allows",
		Meaning: "occupancy that block, registers and shared memory allow",
	},
	{
		Name:    "launch__occupancy_limit_barriers",
		Unit:    "blocks",
		Meaning: "of an SM that barriers allow; the least of these limits holds",
	},
	{
		Name:    LimitBlocks,
		Unit:    "blocks",
		Meaning: "of an SM that its places for blocks allow",
	},
	{
		Name:    LimitRegisters,
		Unit:    "blocks",
		Brief:   "an SM holds for registers",
		Meaning: "of an SM that registers allow",
	},
	{
		Name:    LimitShared,
		Unit:    "blocks",
		Brief:   "an SM holds for shared memory",
		Meaning: "of an SM that shared memory allows",
	},
	{
		Name:    LimitWarps,
		Unit:    "blocks",
		Meaning: "of an SM that its places for warps allow",
	},
	{
		Name:    Registers,
		Unit:    "registers",
		Meaning: "of a thread",
	},
	{
		Name:    "launch__shared_mem_per_block_static",
		Unit:    "bytes",
		Meaning: "of shared memory that the source declares, of a block",
	},
	{
		Name:    "launch__shared_mem_per_block_dynamic",
		Unit:    "bytes",
		Meaning: "of shared memory that the launch asks for, of a block",
	},
	{
		Name:    Waves,
		Unit:    Ratio,
		Brief:   "little over a whole number: a tail",
		Meaning: "blocks over what fits on the GPU at once; little over a whole number: a tail",
	},
	{
		Name:    DRAMRead,
		Unit:    "bytes",
		Meaning: "read from memory",
	},
	{
		Name:    DRAMWritten,
		Unit:    "bytes",
		Meaning: "written to memory",
	},
	{
		Name:    DRAMRate,
		Unit:    "bytes/s",
		Meaning: "of memory, read and written",
	},
	{
		Name:    DRAMBusy,
		Unit:    "%",
		Meaning: "of the memory's theoretical bandwidth",
	},
	{
		Name:    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
		Unit:    "%",
		Meaning: "of the memory's theoretical bandwidth",
	},
	{
		Name:    L2Sectors,
		Unit:    "sectors",
		Brief:   "32 B each; between SMs and the L2",
		Meaning: "of 32 bytes, between multiprocessors and the L2",
	},
	{
		Name:    L2SectorsRead,
		Unit:    "sectors",
		Brief:   "32 B each; that SMs read from the L2",
		Meaning: "of 32 bytes, that multiprocessors read from the L2",
	},
	{
		Name:    L2Bytes,
		Unit:    "bytes",
		Brief:   "through the L2, with what its halves hand each other",
		Meaning: "through the L2, with what its two halves hand to each other (H100, H200: 1.5 times the sectors above)",
	},
	{
		Name:    L2Hits,
		Unit:    "%",
		Meaning: "found in the L2",
	},
	{
		Name:  L2Busy,
		Unit:  "%",
		Brief: "of the cycles in which the L2 works; no limit where each byte comes once",
		Meaning: "of the cycles in which the L2 works, in how many its busiest part does. It says nothing of a limit where each byte comes once: " +
			"argmax over 16 MiB on an H200 has 81 % by it, 48 of all cycles, and memory 46",
	},
	{
		Name:    "l1tex__t_sector_hit_rate.pct",
		Unit:    "%",
		Meaning: "found in the L1",
	},
	{
		Name:    L1Data,
		Unit:    "%",
		Brief:   "of the data pipe of L1 and shared memory",
		Meaning: "of what the data pipe of L1 and shared memory can do",
	},
	{
		Name:    L1ToL2,
		Unit:    "%",
		Brief:   "of the way from L1 to L2",
		Meaning: "of what can leave the L1 for the L2",
	},
	{
		Name:    L1Requests,
		Unit:    "%",
		Brief:   "of the rate at which L1 takes requests",
		Meaning: "of the rate at which the L1 takes requests",
	},
	{
		Name:    L1Busy,
		Unit:    "%",
		Meaning: "of the busiest part of L1 and shared memory; with `rounds.metrics = \"full\"` alone",
	},
	{
		Name:    LoadSectors,
		Unit:    "sectors",
		Brief:   "32 B each; 4 is what float needs, 32 is one a thread",
		Meaning: "of 32 bytes, that a warp's load touches: 4 for 32 floats in a row, 16 for 32 vectors of 16 bytes, 32 where each thread is in another",
	},
	{
		Name:    StoreSectors,
		Unit:    "sectors",
		Brief:   "32 B each; 4 is what float needs, 32 is one a thread",
		Meaning: "of 32 bytes, that a warp's store touches",
	},
	{
		Name:    LoadedUsed,
		Unit:    "%",
		Brief:   "of the loaded bytes that are used",
		Meaning: "of the bytes of these sectors that loads asked for",
	},
	{
		Name:    StoredUsed,
		Unit:    "%",
		Brief:   "of the stored bytes that are written",
		Meaning: "of the bytes of these sectors that stores asked for",
	},
	{
		Name:    BankConflicts,
		Unit:    "wavefronts",
		Meaning: "lost to bank conflicts of shared memory",
	},
	{
		Name:    SharedWavefronts,
		Unit:    "wavefronts",
		Meaning: "all of shared memory",
	},
	{
		Name:    LocalLoaded,
		Unit:    "bytes",
		Brief:   "of local memory: spills and indexed arrays",
		Meaning: "loaded from local memory: spilled registers, arrays that are indexed",
	},
	{
		Name:    LocalStored,
		Unit:    "bytes",
		Brief:   "of local memory: spills and indexed arrays",
		Meaning: "stored to local memory",
	},
	{
		Name:    IssueBusy,
		Unit:    "%",
		Brief:   "of cycles with an instruction issued",
		Meaning: "of cycles in which an instruction was issued",
	},
	{
		Name:    WarpsEligible,
		Unit:    "warps",
		Brief:   "that could go on; below 1: latency is not hidden",
		Meaning: "that could issue; below 1 nothing hides latency",
	},
	{
		Name:    StallRatio("barrier"),
		Unit:    "warps",
		Meaning: "that wait at a barrier, while one instruction is issued",
	},
	{
		Name:    StallRatio("lg_throttle"),
		Unit:    "warps",
		Meaning: "that wait for the queue of global memory, while one instruction is issued",
	},
	{
		Name:    StallRatio("long_scoreboard"),
		Unit:    "warps",
		Meaning: "that wait for global memory, while one instruction is issued",
	},
	{
		Name:    StallRatio("math_pipe_throttle"),
		Unit:    "warps",
		Meaning: "that wait for a busy arithmetic pipe, while one instruction is issued",
	},
	{
		Name:    StallRatio("mio_throttle"),
		Unit:    "warps",
		Meaning: "that wait for the queue of shared memory, while one instruction is issued",
	},
	{
		Name:    StallRatio("short_scoreboard"),
		Unit:    "warps",
		Meaning: "that wait for shared memory, while one instruction is issued",
	},
	{
		Name:    StallRatio("wait"),
		Unit:    "warps",
		Meaning: "that wait for a fixed latency, while one instruction is issued",
	},
	{
		Name:    StallShare("barrier"),
		Unit:    "%",
		Meaning: "of warps' time, at a barrier",
	},
	{
		Name:    StallShare("branch_resolving"),
		Unit:    "%",
		Meaning: "of warps' time, for the target of a branch",
	},
	{
		Name:    StallShare("long_scoreboard"),
		Unit:    "%",
		Meaning: "of warps' time, for global memory",
	},
	{
		Name:    StallShare("short_scoreboard"),
		Unit:    "%",
		Meaning: "of warps' time, for shared memory",
	},
	{
		Name:    "smsp__sass_average_branch_targets_threads_uniform.pct",
		Unit:    "%",
		Meaning: "of branches that all threads of a warp took alike",
	},
	{
		Name:    "smsp__thread_inst_executed_per_inst_executed.ratio",
		Unit:    "threads",
		Meaning: "of a warp that took part in an instruction",
	},
}
