package judge_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	kw "github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge/forgetest"
	"github.com/kernelwright/kernelwright/judge"
)

func TestConformance(t *testing.T) {
	onGPU := kw.JudgeInput{Task: kw.Task{Name: "on_a_gpu"}, Device: gpu, Want: kw.Optimisation, Current: kw.Attempt{
		Candidate: kw.Candidate{Source: kw.Schedule{Knobs: map[string]kw.Knob{"share": {Value: 4, Choices: []int{2, 4, 8}}, "keep": {Value: 1, Choices: []int{0, 1}}}}.Comment()},
		Verdict: kw.Verdict{Status: kw.Correct, CandidateMS: 1, Headroom: 0.4, Profile: &kw.Profile{Tool: "ncu", Launches: 2, MS: 0.9, Kernels: []kw.KernelProfile{
			{Name: "one", Whose: "custom", Share: 0.6, Grid: [3]int{40, 1, 1}, Block: [3]int{256, 1, 1}},
			{Name: "two", Whose: "custom", Share: 0.4, Grid: [3]int{30, 1, 1}, Block: [3]int{256, 1, 1}}}}}}}
	forgetest.Judge(t, judge.Rules{}, true, onGPU)
}

var device = kw.Device{Kind: kw.CPUDevice, Key: "d", Specs: kw.Specs{Cores: 4, L2Bytes: 1 << 20, L3Bytes: 16 << 20}, Ceilings: kw.Ceilings{CPUThreads: 4}}

func feedback(t testing.TB, in kw.JudgeInput) kw.Feedback {
	t.Helper()
	f, err := judge.Rules{}.Judge(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	forgetest.CheckFeedback(t, f, in)
	return f
}

func wrong(families ...kw.FamilyReport) kw.Verdict {
	for i := range families {
		families[i].Gates = true
	}
	return kw.Verdict{Status: kw.Wrong, Reason: "The result differs.", Correctness: kw.CorrectnessReport{Precision: "float32", Families: families}}
}

func family(name string, passed bool, err, bound float64) kw.FamilyReport {
	return kw.FamilyReport{Name: name, Passed: passed, MaxError: err, MaxBound: bound}
}

func TestCorrections(t *testing.T) {
	for _, c := range []struct {
		name, rule, source string
		verdict            kw.Verdict
		says               []string
	}{
		{"compiler", "build_error", "", kw.Verdict{Status: kw.BuildFailed, Build: kw.BuildReport{Errors: []kw.Diagnostic{
			{Line: 12, Message: "expected ';' before 'return'"}, {Line: 40, Message: "other"}}}}, []string{"line 12", "expected ';'"}},
		{"import", "build_error", "", kw.Verdict{Status: kw.BuildFailed, Reason: "ImportError: no module named numpy"}, []string{"ImportError"}},
		{"segfault", "crashed", "", kw.Verdict{Status: kw.Crashed, Reason: "The process was killed by SIGSEGV."}, []string{"SIGSEGV", "tail"}},
		{"illegal instruction", "crashed", "", kw.Verdict{Status: kw.Crashed, Reason: "killed by SIGILL"}, []string{"instruction sets"}},
		{"type", "crashed", "", kw.Verdict{Status: kw.Crashed, Reason: "TypeError: forward() takes 2 positional arguments"}, []string{"signature"}},
		{"parameter name", "crashed", "", kw.Verdict{Status: kw.Crashed, Reason: "AttributeError: 'ModelNew' object has no attribute 'w'"}, []string{"load_reference_state"}},
		{"memory", "crashed", "", kw.Verdict{Status: kw.Crashed, Reason: "MemoryError"}, []string{"temporaries"}},
		{"time", "timed_out", "", kw.Verdict{Status: kw.TimedOut, Reason: "No answer in 30 s."}, []string{"30 s", "loop"}},
		{"policy", "rejected", "", kw.Verdict{Status: kw.Rejected, Reason: "torch.compile is used.", Hint: "Write the operator yourself."}, []string{"torch.compile", "yourself"}},
		{"policy without a hint", "rejected", "", kw.Verdict{Status: kw.Rejected, Reason: "the source defines no class ModelNew"}, []string{"no class ModelNew", "has to define ModelNew"}},
		{"deceit", "cheated", "", kw.Verdict{Status: kw.Cheated, Reason: "The output came from a cache.", Evidence: []string{"Window 3 gave the output of window 2."}}, []string{"cache", "Window 3"}},
		{"only heavy tails", "overflow", "", wrong(family("base", true, 1e-7, 1e-6), family("heavy_tails", false, 0.3, 1e-6)), []string{"heavy_tails", "maximum", "0.3"}},
		{"only planted", "nan_handling", "", wrong(family("base", true, 1e-7, 1e-6), family("planted", false, 0, 0)), []string{"NaN"}},
		{"half everywhere", "reduced_precision", "", wrong(family("base", false, 5e-4, 1e-6), family("scaled_up", false, 6e-1, 1e-3), family("negated", false, 4e-4, 1e-6)), []string{"float32", "600 times"}},
		{"half in the source", "reduced_precision", "static _Float16 y;", wrong(family("base", false, 5e-5, 1e-6)), []string{"_Float16"}},
		{"rounding", "accumulation", "", wrong(family("base", false, 3e-6, 1e-6)), []string{"3.0 times", "accumulators"}},
		{"far off", "wrong_result", "", wrong(family("base", false, 4, 1e-6), family("zeros", true, 0, 1)), []string{"base", "axis"}},
		{"zeros", "wrong_result", "", wrong(family("base", true, 0, 1), family("zeros", false, 9, 1e-6)), []string{"epsilon"}},
		{"negated", "wrong_result", "", wrong(family("base", true, 0, 1), family("negated", false, 9, 1e-6)), []string{"−Inf"}},
		{"no family", "wrong_result", "", kw.Verdict{Status: kw.Wrong, Reason: "The input was changed.", Hint: "Write to a new tensor."}, []string{"input was changed", "new tensor"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := feedback(t, kw.JudgeInput{Want: kw.Correction, Device: device, Current: kw.Attempt{Candidate: kw.Candidate{Source: c.source}, Verdict: c.verdict}})
			if f.Rule != c.rule || f.Kind != kw.Correction {
				t.Errorf("%s by %s, want %s: %+v", f.Kind, f.Rule, c.rule, f)
			}
			for _, s := range c.says {
				if !strings.Contains(f.Issue+f.Why+f.Fix, s) {
					t.Errorf("does not say %q: %+v", s, f)
				}
			}
		})
	}
}

func TestOptimisations(t *testing.T) {
	big, small := 64e6, 32e3
	for _, c := range []struct {
		rule    string
		metrics map[string]float64
		knob    string // that the rule's move sets on a full schedule
		value   int
	}{
		{"call_overhead", map[string]float64{"call_overhead_share": 0.6, "custom_calls": 3, "working_set_bytes": small}, "threads", 1},
		{"pytorch_share", map[string]float64{"pytorch_share": 0.5, "custom_share": 0.5, "working_set_bytes": big, "core_use": 0.9}, "fuse", 1},
		{"idle_cores", map[string]float64{"core_use": 0.25, "threads": 4, "working_set_bytes": big}, "threads", 4},
		{"too_many_threads", map[string]float64{"core_use": 0.6, "threads": 4, "working_set_bytes": small}, "threads", 1},
		{"memory_ceiling", map[string]float64{"core_use": 0.9, "memory_share": 0.9, "working_set_bytes": big}, "nontemporal", 1},
		{"not_vectorised", map[string]float64{"core_use": 0.9, "memory_share": 0.1, "compute_share": 0.02, "missed_loops": 2, "working_set_bytes": big}, "vector", 16},
		{"extra_passes", map[string]float64{"core_use": 0.9, "memory_share": 0.5, "compute_share": 0.02, "working_set_bytes": big}, "passes", 2},
		{"cache_bound", map[string]float64{"core_use": 0.9, "cache_share": 0.8, "working_set_bytes": 4e6}, "tile", 256},
		{"instruction_parallelism", map[string]float64{"core_use": 0.9, "memory_share": 0.1, "compute_share": 0.1, "vectorised_loops": 2, "working_set_bytes": 4e6}, "unroll", 4},
		{"compute_ceiling", map[string]float64{"core_use": 0.9, "compute_share": 0.9, "working_set_bytes": 4e6}, "vector", 16},
		{"roofline_gap", nil, "", 0},
	} {
		t.Run(c.rule, func(t *testing.T) {
			verdict := kw.Verdict{Status: kw.Correct, CandidateMS: 4, Headroom: 0.5, Metrics: c.metrics, Floor: kw.Floor{MS: 2, Bound: "memory", Bytes: 64e6}}
			in := kw.JudgeInput{Want: kw.Optimisation, Device: device, Current: kw.Attempt{Verdict: verdict}}
			if f := feedback(t, in); f.Rule != c.rule || f.Kind != kw.Optimisation || len(f.Knobs) > 0 {
				t.Errorf("without a schedule: %+v", f)
			}
			if c.knob == "" {
				return
			}
			fuse, threads := 0, 2
			if c.rule == "call_overhead" {
				fuse = 1
			}
			in.Current.Candidate.Source = kw.Schedule{Knobs: map[string]kw.Knob{
				"threads": {Value: threads, Choices: []int{4, 2, 1}}, "vector": {Value: 8, Choices: []int{1, 8, 16}}, "unroll": {Value: 2, Choices: []int{1, 2, 4}},
				"tile": {Value: 512, Choices: []int{256, 512}}, "passes": {Value: 3, Choices: []int{2, 3}}, "nontemporal": {Value: 0, Choices: []int{0, 1}},
				"fuse": {Value: fuse, Choices: []int{0, 1}}}}.Comment()
			f := feedback(t, in)
			if f.Rule != c.rule || len(f.Knobs) != 1 || f.Knobs[c.knob] != c.value {
				t.Errorf("want %s = %d by %s: %+v", c.knob, c.value, c.rule, f)
			}
		})
	}
}

func TestStops(t *testing.T) {
	for rule, v := range map[string]kw.Verdict{
		"at_the_floor":   {Status: kw.Correct, CandidateMS: 1, Headroom: 0.96},
		"vendor_library": {Status: kw.Correct, CandidateMS: 1, Headroom: 0.6, Metrics: map[string]float64{"vendor_share": 0.98}},
	} {
		if f := feedback(t, kw.JudgeInput{Want: kw.Optimisation, Device: device, Current: kw.Attempt{Verdict: v}}); f.Kind != kw.Stop || f.Rule != rule {
			t.Errorf("%s: %+v", rule, f)
		}
	}
}

// At the roofline, and a baseline is faster all the same: the search goes on.
func TestDoesNotStopBehindABaseline(t *testing.T) {
	for high, goesOn := range map[float64]bool{0.97: true, 1.01: false} {
		v := kw.Verdict{Status: kw.Correct, CandidateMS: 1, Headroom: 1, Speedup: &kw.Speedup{Value: 0.95, Low: 0.93, High: high}}
		in := kw.JudgeInput{Want: kw.Optimisation, Device: device, Current: kw.Attempt{Verdict: v}}
		in.Current.Candidate.Source = kw.Schedule{Knobs: map[string]kw.Knob{"unroll": {Value: 2, Choices: []int{1, 2, 4}}}}.Comment()
		if f := feedback(t, in); (f.Kind == kw.Optimisation) != goesOn {
			t.Errorf("%v: %+v", high, f)
		}
	}
}

func TestNoAdviceTwice(t *testing.T) {
	verdict := kw.Verdict{Status: kw.Correct, CandidateMS: 4, Headroom: 0.5, Metrics: map[string]float64{"pytorch_share": 0.5, "missed_loops": 1}}
	in := kw.JudgeInput{Want: kw.Optimisation, Device: device, Current: kw.Attempt{Verdict: verdict}}
	seen := map[string]bool{}
	for {
		f := feedback(t, in)
		if f.Kind == kw.Stop {
			break
		}
		if seen[f.Rule] {
			t.Fatalf("%s was advised twice", f.Rule)
		}
		seen[f.Rule] = true
		in.History = append(in.History, kw.Round{Index: len(in.History), Verdict: verdict, Feedback: &f})
	}
	if len(seen) != 3 {
		t.Errorf("advised %v", seen)
	}
}

// Against a smooth landscape the search must end at its best point, visit no
// schedule twice, and stop by itself.
func TestSearchFindsTheBest(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		knobs := map[string]kw.Knob{}
		goal := map[string]int{}
		for _, name := range []string{"threads", "vector", "unroll", "tile", "passes"}[:rapid.IntRange(1, 5).Draw(rt, "knobs")] {
			choices := []int{1, 2, 4, 8}[:rapid.IntRange(1, 4).Draw(rt, name)]
			knobs[name] = kw.Knob{Value: rapid.SampledFrom(choices).Draw(rt, name+" start"), Choices: choices}
			goal[name] = rapid.SampledFrom(choices).Draw(rt, name+" goal")
		}
		clamp := rapid.Bool().Draw(rt, "a Coder that cannot move threads")
		in := kw.JudgeInput{Want: kw.Optimisation, Device: device, Seed: rapid.Int64().Draw(rt, "seed")}
		visited := map[string]bool{}
		repeats := 0
		for n := 0; ; n++ {
			if n > 300 {
				rt.Fatal("it does not come to an end")
			}
			source := kw.Schedule{Knobs: knobs}.Comment()
			if visited[source] {
				repeats++
			}
			visited[source] = true
			ms := 1.0
			for name, k := range knobs {
				off := slices.Index(k.Choices, k.Value) - slices.Index(k.Choices, goal[name])
				ms += float64(off * off)
			}
			in.Current = kw.Attempt{Candidate: kw.Candidate{Source: source}, Verdict: kw.Verdict{Status: kw.Correct, CandidateMS: ms, Headroom: 0.5}}
			f, err := judge.Rules{}.Judge(t.Context(), in)
			if err != nil {
				rt.Fatal(err)
			}
			if f.Kind == kw.Stop {
				break
			}
			next := maps.Clone(knobs)
			for name, v := range f.Knobs {
				k := next[name]
				if k.Value == v || !slices.Contains(k.Choices, v) {
					rt.Fatalf("knob %s to %d: %+v", name, v, k)
				}
				if !clamp || name != "threads" {
					k.Value = v
				}
				next[name] = k
			}
			in.History = append(in.History, kw.Round{Index: n, Candidate: in.Current.Candidate, Verdict: in.Current.Verdict, Feedback: &f})
			knobs = next
		}
		if clamp {
			return
		}
		if repeats > 0 {
			rt.Fatalf("%d schedules came twice", repeats)
		}
		if !visited[kw.Schedule{Knobs: at(knobs, goal)}.Comment()] {
			rt.Fatalf("never came to %v", goal)
		}
	})
}

func at(knobs map[string]kw.Knob, goal map[string]int) map[string]kw.Knob {
	m := maps.Clone(knobs)
	for name, v := range goal {
		k := m[name]
		k.Value = v
		m[name] = k
	}
	return m
}

func TestCorrectionGoesBackToWhatWorked(t *testing.T) {
	source := func(vector, unroll int) kw.Candidate {
		return kw.Candidate{Source: kw.Schedule{Knobs: map[string]kw.Knob{
			"vector": {Value: vector, Choices: []int{8, 16}}, "unroll": {Value: unroll, Choices: []int{1, 2}}}}.Comment()}
	}
	in := kw.JudgeInput{Want: kw.Correction, Device: device,
		History: []kw.Round{{Candidate: source(8, 1), Verdict: kw.Verdict{Status: kw.Correct, CandidateMS: 2}, Feedback: &kw.Feedback{Kind: kw.Optimisation, Knobs: map[string]int{"vector": 16}}}},
		Current: kw.Attempt{Candidate: source(16, 1), Verdict: kw.Verdict{Status: kw.Crashed, Reason: "killed by SIGILL"}}}
	f := feedback(t, in)
	if f.Knobs["vector"] != 8 || f.Knobs["unroll"] != 2 || !strings.Contains(f.Fix, "round 0") {
		t.Errorf("%+v", f)
	}
}

func TestCorrectionsRunOut(t *testing.T) {
	knob := kw.Knob{Value: 1, Choices: []int{1, 2}}
	in := kw.JudgeInput{Want: kw.Correction, Device: device}
	for n := range 5 {
		in.Current = kw.Attempt{Candidate: kw.Candidate{Source: kw.Schedule{Knobs: map[string]kw.Knob{"vector": knob}}.Comment()},
			Verdict: wrong(family("base", false, 9, 1e-6))}
		f := feedback(t, in)
		if f.Kind == kw.Stop {
			if n != 1 {
				t.Errorf("stopped after %d", n)
			}
			return
		}
		in.History = append(in.History, kw.Round{Index: n, Candidate: in.Current.Candidate, Verdict: in.Current.Verdict, Feedback: &f})
		knob.Value = f.Knobs["vector"]
	}
	t.Error("it never stops")
}
