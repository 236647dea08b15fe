package prompts

import (
	"cmp"
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
	{"compute_share", "share", "achieved of the measured float32 rate"},
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
	{"vectorised_loops", "", ""},
	{"missed_loops", "", "loops that the compiler left scalar"},
	{"instructions_per_cycle", "", ""},
	{"cache_miss_share", "share", "of references to the last-level cache"},
	{"page_faults", "", "in a call; many: memory is allocated anew"},
	{"slowed_share", "share", "of the windows in which the GPU had slowed itself down"},
}

// MaxMetrics is how many metrics are shown in full.
const MaxMetrics = 200

// Metrics is what was measured of a candidate: the names with their values,
// units and meanings, and the values by the names under which they are shown.
// It is a selection, or everything. What a profiler of a GPU measured (its names
// have "__") was selected when it was asked for.
func Metrics(v kernelwright.Verdict, full bool) (Data, map[string]float64) {
	known := map[string]metric{}
	var names []string
	for _, m := range selected {
		known[m.name] = m
		if _, ok := v.Metrics[m.name]; ok {
			names = append(names, m.name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(v.Metrics)) {
		if _, ok := known[name]; !ok && (full || strings.Contains(name, "__")) {
			names = append(names, name)
		}
	}
	var f facts
	shown := map[string]float64{}
	if v.CandidateMS > 0 && finite(v.CandidateMS) {
		shown["candidate_ms"], shown["headroom"] = v.CandidateMS, v.Headroom
		f.add("candidate_ms = %.4g ms", v.CandidateMS)
		f.add("headroom = %.4g (roofline over time: 1 is all there is)", v.Headroom)
	}
	for _, name := range names {
		x := v.Metrics[name]
		as := Line(name, maxWord)
		if _, twice := shown[as]; twice || !finite(x) || len(shown) >= MaxMetrics {
			continue
		}
		shown[as] = x
		f.add("%s", strings.TrimSpace(cmp.Or(as, "?")+" = "+number(x)+" "+told(known[name])))
	}
	return Fence("metrics", f.b.String(), MaxFactsBytes*2), shown
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
