package judge

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/metrics"
)

// measured is a kernel of testdata/measured/kernels.cu as make.py there measured it on
// a GPU: its time between events, what Nsight Compute 2025.3 counted, and what the
// compiler says of it. Those of the H100 are from before what multiprocessors ask of
// L2 was counted.
type measured struct {
	Case        string
	Launches    int
	CandidateMS float64 `json:"candidate_ms"`
	LeastBytes  int64   `json:"least_bytes"`
	Kernel      kernelwright.KernelProfile
	Built       kernelwright.Kernel
}

// h100 is one with 80 GB, and ceilings as they were measured on it on the same day.
var h100 = kernelwright.Device{Kind: kernelwright.CUDADevice, Key: "h", Name: "NVIDIA H100 80GB HBM3",
	Specs:    kernelwright.Specs{Cores: 132, ISA: []string{"sm_90a"}, L2Bytes: 50 << 20, MemoryGBs: 3352},
	Ceilings: kernelwright.Ceilings{MemoryGBs: 3037, ReadGBs: 3084, CacheGBs: 7097, FP32GFLOPs: 65969, CallUS: 1.67}}

func measuredOn(t *testing.T, gpu string) map[string]measured {
	t.Helper()
	b, err := os.ReadFile("testdata/measured/" + gpu + ".jsonl")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]measured{}
	for line := range strings.Lines(string(b)) {
		var m measured
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		all[m.Case] = m
	}
	return all
}

func (m measured) verdict(on kernelwright.Device, tool string) kernelwright.Verdict {
	ceiling := on.Ceilings.MemoryGBs * 1e6
	v := kernelwright.Verdict{Status: kernelwright.Correct, CandidateMS: m.CandidateMS, Floor: kernelwright.Floor{MS: float64(m.LeastBytes) / ceiling, Bound: "memory", Bytes: m.LeastBytes},
		Build: kernelwright.BuildReport{Kernels: []kernelwright.Kernel{m.Built}}}
	v.Headroom = min(v.Floor.MS/v.CandidateMS, 1)
	v.Metrics = map[string]float64{"memory_share": v.Floor.MS / v.CandidateMS, "working_set_bytes": float64(m.LeastBytes), "custom_share": 1, "vendor_share": 0, "pytorch_share": 0, "custom_calls": float64(m.Launches)}
	if tool == "static" {
		return v
	}
	k := m.Kernel
	v.Profile = &kernelwright.Profile{Tool: tool, Launches: m.Launches, MS: k.MS, Metrics: k.Metrics}
	if tool != "ncu" {
		k.Metrics, v.Profile.Metrics = nil, nil
	}
	v.Profile.Kernels = []kernelwright.KernelProfile{k}
	return v
}

// make.py measures what the rules read.
func TestCountersAreMeasured(t *testing.T) {
	b, err := os.ReadFile("testdata/measured/counters.txt")
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Fields(string(b)); !slices.Equal(got, Counters()) {
		t.Errorf("counters.txt has %q, rules read %q", got, Counters())
	}
}

// Of any GPU is asked what the rules read, but for what a full set alone has.
func TestCountersAreAskedFor(t *testing.T) {
	var asked struct{ Metrics []string }
	if _, err := toml.DecodeFile("../hwfeedback/harness/kwharness/profile/metrics.toml", &asked); err != nil {
		t.Fatal(err)
	}
	for _, name := range Counters() {
		if !slices.Contains(asked.Metrics, name) && name != metrics.L1Busy {
			t.Errorf("rules read %s, which is not asked for", name)
		}
	}
}

// Each kernel has one thing wrong with it, on purpose; the first has nothing.
func TestRulesOnAnH200(t *testing.T) {
	all := measuredOn(t, "h200")
	for name, want := range map[string]struct{ ncu, profiler, static string }{
		"gelu_stream":    {"memory_bound", "", ""},
		"relu_narrow":    {"narrow_accesses latency_bound", "narrow_accesses", "narrow_accesses"},
		"small_tanh":     {"launch_bound idle_sms narrow_accesses latency_bound", "launch_bound idle_sms narrow_accesses latency_bound", "launch_bound narrow_accesses latency_bound"},
		"long_rows":      {"idle_sms latency_bound", "idle_sms latency_bound", "latency_bound"},
		"wave_tail":      {"tail", "tail latency_bound", "latency_bound"},
		"across_rows":    {"uncoalesced l2_bound", "narrow_accesses latency_bound", "narrow_accesses latency_bound"},
		"three_passes":   {"extra_traffic", "latency_bound", "latency_bound"},
		"spilling":       {"spills", "spills latency_bound", "spills latency_bound"},
		"conflicting":    {"bank_conflicts narrow_accesses", "narrow_accesses latency_bound", "narrow_accesses latency_bound"},
		"waiting":        {"barriers narrow_accesses latency_bound", "narrow_accesses", "narrow_accesses"},
		"many_registers": {"memory_bound", "", ""},
		"windows":        {"l1_bound narrow_accesses", "narrow_accesses latency_bound", "narrow_accesses latency_bound"},
		"mish_precise":   {"compute_bound", "latency_bound", "latency_bound"},
		"one_load":       {"narrow_accesses latency_bound", "narrow_accesses latency_bound", "narrow_accesses latency_bound"},
	} {
		m, ok := all[name]
		if !ok {
			t.Fatalf("%s was not measured", name)
		}
		for tool, rules := range map[string]string{"ncu": want.ncu, "profiler": want.profiler, "static": want.static} {
			var got []string
			found := findings(view{device: h200, verdict: m.verdict(h200, tool)})
			for _, f := range found {
				if f.rule != "roofline_gap" {
					got = append(got, f.rule)
				}
			}
			if !slices.Equal(got, strings.Fields(rules)) {
				t.Errorf("%s, %s: %q, want %s", name, tool, got, rules)
				for _, f := range found[:len(found)-1] {
					t.Logf("%s %.2f: %s", f.rule, f.gain, f.bottleneck)
				}
			}
		}
	}
}

// An H100 has two thirds of the bandwidth and as many places for instructions: what
// weighs most is the same, but where it leaves more bytes a second than there are.
func TestRulesOnAnH100(t *testing.T) {
	all := measuredOn(t, "h100")
	for name, want := range map[string]string{
		"gelu_stream": "memory_bound", "relu_narrow": "narrow_accesses", "small_tanh": "launch_bound", "long_rows": "idle_sms", "wave_tail": "tail",
		"across_rows": "uncoalesced", "three_passes": "extra_traffic", "spilling": "spills", "conflicting": "bank_conflicts", "waiting": "memory_bound",
		"many_registers": "memory_bound", "windows": "l1_bound", "mish_precise": "compute_bound", "one_load": "narrow_accesses",
	} {
		m, ok := all[name]
		if !ok {
			t.Fatalf("%s was not measured", name)
		}
		if found := findings(view{device: h100, verdict: m.verdict(h100, "ncu")}); found[0].rule != want {
			t.Errorf("%s: %s, want %s: %s", name, found[0].rule, want, found[0].bottleneck)
		}
	}
}
