package judge_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	kw "github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/judge"
)

var gpu = kw.Device{Kind: kw.CUDADevice, Key: "g", Specs: kw.Specs{Cores: 132, ISA: []string{"sm_90a"}, MemoryGBs: 4916},
	Ceilings: kw.Ceilings{MemoryGBs: 4270, ReadGBs: 4400, CacheGBs: 9000, FP32GFLOPs: 60000, CallUS: 2.2}}

// counters are the names that rules read.
var counters = judge.Counters()

// Whatever a profiler says, with counters missing, zero, negative or beyond
// measure, the rules answer with one sound piece of advice of a few sentences.
func TestAnyProfile(t *testing.T) {
	number := rapid.Custom(func(t *rapid.T) float64 {
		switch rapid.IntRange(0, 5).Draw(t, "kind") {
		case 0:
			return 0
		case 1:
			return rapid.SampledFrom([]float64{-1, 1e300, math.MaxFloat64, 5e-324, -math.MaxFloat64}).Draw(t, "odd")
		case 2:
			return rapid.Float64Range(0, 1).Draw(t, "share")
		case 3:
			return rapid.Float64Range(0, 120).Draw(t, "per cent")
		}
		return math.Pow(10, rapid.Float64Range(-3, 13).Draw(t, "size"))
	})
	tame := rapid.OneOf(rapid.Float64Range(0, 1), rapid.Float64Range(0, 1), number)
	whole := rapid.OneOf(rapid.IntRange(0, 2048), rapid.SampledFrom([]int{-1, math.MaxInt, math.MinInt, 1 << 40}))
	some := func(t *rapid.T, names []string) map[string]float64 {
		m := map[string]float64{}
		for _, name := range names {
			if rapid.IntRange(0, 3).Draw(t, name+" is there") > 0 {
				m[name] = number.Draw(t, name)
			}
		}
		return m
	}
	size := func(t *rapid.T) [3]int {
		return [3]int{whole.Draw(t, "x"), rapid.IntRange(1, 4).Draw(t, "y"), 1}
	}
	own := []string{"memory_share", "cache_share", "compute_share", "custom_share", "vendor_share", "pytorch_share", "custom_calls", "call_overhead_share", "working_set_bytes", "launches", "achieved_gbs"}
	spoke := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		v := kw.Verdict{Status: kw.Correct, CandidateMS: tame.Draw(rt, "ms"), Headroom: tame.Draw(rt, "headroom"), Metrics: some(rt, own),
			Floor: kw.Floor{MS: number.Draw(rt, "floor"), Bound: rapid.SampledFrom([]string{"", "memory", "compute"}).Draw(rt, "bound"), Bytes: int64(whole.Draw(rt, "bytes"))}}
		for range rapid.IntRange(0, 3).Draw(rt, "compiled") {
			v.Build.Kernels = append(v.Build.Kernels, kw.Kernel{Name: rapid.SampledFrom([]string{"k<4>(float*)", "void k<1>(float*)", "other", ""}).Draw(rt, "name"), Arch: rapid.SampledFrom([]string{"", "sm_90a", "sm_120", "?"}).Draw(rt, "arch"),
				Registers: whole.Draw(rt, "registers"), SpillStoreBytes: whole.Draw(rt, "spills"), LoadBytes: number.Draw(rt, "load"), StoreBytes: number.Draw(rt, "store"), Warps: whole.Draw(rt, "warps"),
				Instructions: map[string]int{"local": whole.Draw(rt, "local"), "load_global": whole.Draw(rt, "loads")}})
		}
		if rapid.Bool().Draw(rt, "profiled") {
			v.Profile = &kw.Profile{Tool: "ncu", Launches: whole.Draw(rt, "launches"), MS: number.Draw(rt, "kernels' ms"), Metrics: some(rt, counters)}
			for range rapid.IntRange(0, 3).Draw(rt, "kernels") {
				v.Profile.Kernels = append(v.Profile.Kernels, kw.KernelProfile{Name: rapid.SampledFrom([]string{"k<(int)4>(float*)", "sgemm", ""}).Draw(rt, "name"), Whose: rapid.SampledFrom([]string{"custom", "vendor", "pytorch", ""}).Draw(rt, "whose"),
					Share: tame.Draw(rt, "share"), Grid: size(rt), Block: size(rt), Metrics: some(rt, counters)})
			}
		}
		in := kw.JudgeInput{Want: kw.Optimisation, Device: gpu, Current: kw.Attempt{Verdict: v}}
		if rapid.Bool().Draw(rt, "no ceilings") {
			in.Device.Ceilings, in.Device.Specs = kw.Ceilings{}, kw.Specs{}
		}
		for round := range 30 {
			f := feedback(t, in)
			spoke[f.Rule]++
			for _, said := range []string{f.Bottleneck, f.Method, f.Plan, f.Why} {
				if len(said) > 1000 {
					rt.Fatalf("%d bytes: %s", len(said), said)
				}
			}
			if len(f.Evidence) > 12 { // what a prompt shows
				rt.Fatalf("%d numbers are more than a model is shown: %v", len(f.Evidence), f.Evidence)
			}
			for name := range f.Evidence {
				if len(name) > 80 { // what a prompt shows of one
					rt.Fatalf("%s is cut in a prompt", name)
				}
			}
			if g, ok := f.Evidence["gain_at_most"]; ok && (g < 0.05 || g > 1) {
				rt.Fatalf("a gain of %v", g)
			}
			if f.Kind == kw.Stop {
				return
			}
			in.History = append(in.History, kw.Round{Index: round, Verdict: v, Feedback: &f})
		}
		rt.Fatal("it does not run dry")
	})
	if len(spoke) < 8 {
		t.Errorf("what was drawn is no test: only these spoke: %v", spoke)
	}
}
