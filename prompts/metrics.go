package prompts

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// metric is one of docs/metrics.md, as a model is told of it.
type metric struct{ name, unit, meaning string }

// selected are the metrics that are shown where not all of them are, in this
// order: those that a rule of the built-in Judge goes by, or that tell what
// would help. CudaForge's ablation (arXiv 2511.01884, section 4) found a
// selection better than the full set.
var selected = []metric{
	{"memory_share", "share", "achieved of the measured memory bandwidth"},
	{"cache_share", "share", "achieved of the measured cache bandwidth"},
	{"compute_share", "share", "achieved of the measured rate of arithmetic"},
	{"achieved_gbs", "GB/s", "least bytes over time; a second pass lowers it"},
	{"missed_gbs", "GB/s", "what really came from memory"},
	{"achieved_gflops", "GFLOP/s", ""},
	{"working_set_bytes", "bytes", "inputs and parameters once, outputs once"},
	{"core_use", "share", "of the cores' time"},
	{"custom_share", "share", "of the time in the candidate's own code"},
	{"vendor_share", "share", "of the time in PyTorch's matrix products and convolutions"},
	{"pytorch_share", "share", "of the time in other operators of PyTorch"},
	{"custom_calls", "", "calls of own code in a forward"},
	{"call_overhead_share", "share", "of the time that these calls cost"},
	{"launches", "", "kernels and copies in a forward"},
	{"kernels_ms", "ms", "of a forward that the GPU is in kernels"},
	{"dram_roof_share", "share", "of the measured memory bandwidth, while kernels run"},
	{"l2_roof_share", "share", "of the measured bandwidth of the L2"},
	{"fp32_roof_share", "share", "of the measured float32 rate"},
	{"tensor_roof_share", "share", "of the measured rates of the tensor cores, or of their cycles"},
	{"dram_bytes_ratio", "", "bytes moved in memory over the least there are; above 1: moved more than once"},
	{"vectorised_loops", "", ""},
	{"missed_loops", "", "loops that the compiler left scalar"},
	{"instructions_per_cycle", "", ""},
	{"cache_miss_share", "share", "of references to the last-level cache"},
	{"page_faults", "", "in a call; many: memory is allocated anew"},
	{"slowed_share", "share", "of the windows in which the GPU had slowed itself down"},
}

// measured are metrics of Nsight Compute whose names do not say enough.
var measured = map[string]metric{}

func init() {
	for _, m := range []metric{
		{"gpu__time_duration.sum", "ns", ""},
		{"dram__bytes_read.sum", "bytes", ""},
		{"dram__bytes_write.sum", "bytes", ""},
		{"lts__t_sectors_srcunit_tex.sum", "sectors", "32 B each; between SMs and the L2"},
		{"lts__t_sectors_srcunit_tex_op_read.sum", "sectors", "32 B each; that SMs read from the L2"},
		{"lts__t_bytes.sum", "bytes", "through the L2, with what its halves hand each other"},
		{"lts__throughput.avg.pct_of_peak_sustained_active", "%", "of the cycles in which the L2 works; no limit where each byte comes once"},
		{"sm__warps_active.avg.pct_of_peak_sustained_active", "%", "achieved occupancy"},
		{"sm__maximum_warps_per_active_cycle_pct", "%", "occupancy that the launch allows"},
		{"launch__occupancy_limit_registers", "blocks", "an SM holds for registers"},
		{"launch__occupancy_limit_shared_mem", "blocks", "an SM holds for shared memory"},
		{"launch__waves_per_multiprocessor", "", "little over a whole number: a tail"},
		{"l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio", "sectors", "32 B each; 4 is what float needs, 32 is one a thread"},
		{"l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio", "sectors", "32 B each; 4 is what float needs, 32 is one a thread"},
		{"smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct", "%", "of the loaded bytes that are used"},
		{"smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct", "%", "of the stored bytes that are written"},
		{"l1tex__t_bytes_pipe_lsu_mem_local_op_ld.sum", "bytes", "of local memory: spills and indexed arrays"},
		{"l1tex__t_bytes_pipe_lsu_mem_local_op_st.sum", "bytes", "of local memory: spills and indexed arrays"},
		{"smsp__issue_active.avg.pct_of_peak_sustained_active", "%", "of cycles with an instruction issued"},
		{"l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_active", "%", "of the data pipe of L1 and shared memory"},
		{"l1tex__m_l1tex2xbar_req_cycles_active.avg.pct_of_peak_sustained_active", "%", "of the way from L1 to L2"},
		{"l1tex__lsuin_requests.avg.pct_of_peak_sustained_active", "%", "of the rate at which L1 takes requests"},
		{"smsp__warps_eligible.avg.per_cycle_active", "warps", "that could go on; below 1: latency is not hidden"},
	} {
		measured[m.name] = m
	}
}

// ofKernels are the metrics that are shown of each kernel where there are several.
var ofKernels = []string{
	"dram__throughput.avg.pct_of_peak_sustained_elapsed",
	"smsp__issue_active.avg.pct_of_peak_sustained_active",
	"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
	"sm__warps_active.avg.pct_of_peak_sustained_active",
	"launch__registers_per_thread",
	"l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
	"smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
	"smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",
}

// ofEager are the metrics that are shown of eager.
var ofEager = []string{"dram_roof_share", "l2_roof_share", "fp32_roof_share", "tensor_roof_share"}

// tensorOperations begins the names of what the tensor cores did by type of operand,
// of which most kernels use one or none.
const tensorOperations = "sm__ops_path_tensor_src_"

// maxKernels is how many kernels of a profile are shown.
const maxKernels = 5

// maxMissing is how many metrics that were asked for and are not there are named.
const maxMissing = 3

// MaxMetrics is how many metrics are shown in full.
const MaxMetrics = 200

// Metrics is what was measured of a candidate: the names with their values,
// units and meanings, and the values by the names under which they are shown.
// It is a selection, or everything. What a profiler of a GPU measured (its names
// have "__") was selected when it was asked for.
func Metrics(v kernelwright.Verdict, full bool) (Data, map[string]float64) {
	values := maps.Clone(v.Metrics)
	if values == nil {
		values = map[string]float64{}
	}
	if v.Profile != nil {
		maps.Copy(values, v.Profile.Metrics)
	}
	known := maps.Clone(measured)
	var names []string
	for _, m := range selected {
		known[m.name] = m
		if _, ok := values[m.name]; ok {
			names = append(names, m.name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		unused := strings.HasPrefix(name, tensorOperations) && values[name] == 0
		if !slices.Contains(names, name) && (full || strings.Contains(name, "__") && !unused) {
			names = append(names, name)
		}
	}
	var f facts
	shown := map[string]float64{}
	if v.CandidateMS > 0 && finite(v.CandidateMS) {
		shown["candidate_ms"] = v.CandidateMS
		f.add("candidate_ms = %.4g ms", v.CandidateMS)
	}
	if v.CandidateMS > 0 && v.Headroom > 0 && finite(v.Headroom) { // 0: the floor is not known
		shown["headroom"] = v.Headroom
		f.add("headroom = %.4g (roofline over time; 1: nothing is left to gain)", v.Headroom)
	}
	for _, name := range names {
		x := values[name]
		as := Line(name, maxWord)
		if _, twice := shown[as]; twice || !finite(x) || len(shown) >= MaxMetrics {
			continue
		}
		shown[as] = x
		f.add("%s", strings.TrimSpace(cmp.Or(as, "?")+" = "+number(x)+" "+told(known[name])))
	}
	profile(&f, v.Profile)
	if eager := v.EagerProfile; eager != nil && eager.Launches > 0 {
		f.add("eager: %d launches%s", eager.Launches, inKernels(eager.MS))
		for _, name := range ofEager {
			if x, ok := eager.Position[name]; ok && finite(x) {
				f.add("  %s = %s", name, number(x))
			}
		}
	}
	return Fence("metrics", f.b.String(), MaxFactsBytes*2), shown
}

// profile says which kernels a profiler saw; their metrics together were shown.
func profile(f *facts, p *kernelwright.Profile) {
	if p == nil {
		return
	}
	f.add("profiled by %s: %d launches%s", Line(p.Tool, maxWord), p.Launches, inKernels(p.MS))
	if p.Why != "" {
		f.add("note: %s", Line(p.Why, maxSentence))
	}
	if names := p.Missing; len(names) > 0 {
		var shown []string
		for _, name := range names[:min(len(names), maxMissing)] {
			shown = append(shown, Line(name, maxWord))
		}
		more := ""
		if n := len(names) - len(shown); n > 0 {
			more = fmt.Sprintf(" and %d more", n)
		}
		f.add("not to be had on this GPU or with this Nsight Compute: %s%s", strings.Join(shown, ", "), more)
	}
	for i, k := range p.Kernels {
		if i == maxKernels {
			f.add("and %d more kernels", len(p.Kernels)-i)
			break
		}
		took := ""
		if k.MS > 0 {
			took = fmt.Sprintf(", %.4g ms", k.MS)
		}
		if k.Share > 0 {
			took += fmt.Sprintf(", %.0f %% of the forward", 100*k.Share)
		}
		f.add("kernel %s (%s): %d launches%s, grid %v, block %v", Line(k.Name, maxWord), Line(k.Whose, maxWord), k.Launches, took, k.Grid, k.Block)
		for _, name := range ofKernels {
			if x, ok := k.Metrics[name]; ok && len(p.Kernels) > 1 && finite(x) {
				f.add("  %s = %s", name, number(x))
			}
		}
	}
}

// inKernels says how long a forward's kernels take, where that is known.
func inKernels(ms float64) string {
	if ms <= 0 {
		return ""
	}
	return fmt.Sprintf(", %.4g ms in kernels", ms)
}

func told(m metric) string {
	switch {
	case m.meaning == "":
		return m.unit
	case m.unit == "":
		return "(" + m.meaning + ")"
	}
	return m.unit + " (" + m.meaning + ")"
}
