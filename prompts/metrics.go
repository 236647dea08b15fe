package prompts

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/metrics"
)

// selected are the metrics of a verdict that are shown where not all of them are, in
// this order: those that a rule of the built-in Judge goes by, or that tell what
// would help. CudaForge's ablation (arXiv 2511.01884, section 4) found a
// selection better than the full set.
var selected = []string{
	metrics.MemoryShare,
	metrics.CacheShare,
	metrics.ComputeShare,
	metrics.AchievedGBs,
	metrics.MissedGBs,
	metrics.AchievedGFLOPs,
	metrics.WorkingSetBytes,
	metrics.CoreUse,
	metrics.CustomShare,
	metrics.VendorShare,
	metrics.PyTorchShare,
	metrics.CustomCalls,
	metrics.CallOverheadShare,
	metrics.Launches,
	metrics.KernelsMS,
	metrics.DRAMRoofShare,
	metrics.L2RoofShare,
	metrics.FP32RoofShare,
	metrics.TensorRoofShare,
	metrics.DRAMBytesRatio,
	metrics.VectorisedLoops,
	metrics.MissedLoops,
	metrics.InstructionsPerCycle,
	metrics.CacheMissShare,
	metrics.PageFaults,
	metrics.SlowedShare,
}

// explained are the counters of Nsight Compute whose names do not say enough: a model is
// told the unit and the meaning of each.
var explained = []string{
	metrics.Duration,
	metrics.DRAMRead,
	metrics.DRAMWritten,
	metrics.L2Sectors,
	metrics.L2SectorsRead,
	metrics.L2Bytes,
	metrics.L2Busy,
	metrics.WarpsActive,
	metrics.WarpsAllowed,
	metrics.LimitRegisters,
	metrics.LimitShared,
	metrics.Waves,
	metrics.LoadSectors,
	metrics.StoreSectors,
	metrics.LoadedUsed,
	metrics.StoredUsed,
	metrics.LocalLoaded,
	metrics.LocalStored,
	metrics.IssueBusy,
	metrics.L1Data,
	metrics.L1ToL2,
	metrics.L1Requests,
	metrics.WarpsEligible,
}

// ofKernels are the metrics that are shown of each kernel where there are several.
var ofKernels = []string{
	metrics.DRAMBusy,
	metrics.IssueBusy,
	metrics.TensorBusy,
	metrics.WarpsActive,
	metrics.Registers,
	metrics.LoadSectors,
	metrics.StallRatio("long_scoreboard"),
	metrics.StallRatio("barrier"),
}

// ofEager are the metrics that are shown of eager.
var ofEager = []string{metrics.DRAMRoofShare, metrics.L2RoofShare, metrics.FP32RoofShare, metrics.TensorRoofShare}

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
	var names []string
	for _, name := range selected {
		if _, ok := values[name]; ok {
			names = append(names, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		unused := strings.HasPrefix(name, metrics.TensorOperations) && values[name] == 0
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
		f.add("%s", strings.TrimSpace(cmp.Or(as, "?")+" = "+number(x)+" "+told(name)))
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

// told is the unit and the meaning of a metric, in brackets, for a model; empty for one that
// is neither selected nor explained.
func told(name string) string {
	m, ok := metrics.Of(name)
	if !ok || !slices.Contains(selected, name) && !slices.Contains(explained, name) {
		return ""
	}
	unit := m.Unit
	if unit == metrics.Count || unit == metrics.Ratio {
		unit = ""
	}
	switch {
	case m.Brief == "":
		return unit
	case unit == "":
		return "(" + m.Brief + ")"
	}
	return unit + " (" + m.Brief + ")"
}
