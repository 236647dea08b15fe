package judge

import (
	"fmt"
	"strings"
	"testing"

	kw "github.com/kernelwright/kernelwright"
)

const stopped = `{"kind": "stop", "bottleneck": "", "method": "", "plan": "", "why": "It is fast enough.", "evidence": ["headroom"]}`

// A model's stop is taken where the numbers bear it, and not because the model says so.
func TestAStopIsHeldAgainstTheEvidence(t *testing.T) {
	gpu := kw.Device{Kind: kw.CUDADevice, Ceilings: kw.Ceilings{MemoryGBs: 3000, CallUS: 2}}
	plain := kw.Candidate{Source: "class ModelNew: pass\n", Language: kw.CPP}
	of := func(ms, headroom float64, change ...func(*kw.Verdict)) kw.Verdict {
		v := kw.Verdict{Status: kw.Correct, CandidateMS: ms, Headroom: headroom, Metrics: map[string]float64{"memory_share": headroom, "core_use": 1}}
		for _, c := range change {
			c(&v)
		}
		return v
	}
	slower := func(v *kw.Verdict) { v.Speedup = &kw.Speedup{Value: 0.8, Low: 0.7, High: 0.9, Against: "compile"} }
	vendor := func(v *kw.Verdict) { v.Metrics["vendor_share"] = 0.97 }
	pytorch := func(v *kw.Verdict) {
		v.Metrics["pytorch_share"] = 0.32
		v.Work.Operators = []kw.OperatorShare{{Name: "run0", Kind: "custom", Share: 0.6}, {Name: "aten.empty", Kind: "pytorch", Share: 0.2},
			{Name: "aten.mul", Kind: "pytorch", Share: 0.08}, {Name: "aten.add", Kind: "pytorch", Share: 0.06}, {Name: "aten.neg", Kind: "pytorch", Share: 0.04}}
	}
	// heard is all that the rules can say, and a method that names more.
	heard := func(method string) []kw.Round {
		var rounds []kw.Round
		for i, r := range optimisationRules {
			rounds = append(rounds, kw.Round{Index: i, Candidate: plain, Verdict: of(9, 0.1), Feedback: &kw.Feedback{Kind: kw.Optimisation, Rule: r.name, Method: method}})
		}
		return rounds
	}
	for _, c := range []struct {
		name    string
		device  kw.Device
		verdict kw.Verdict
		history []kw.Round
		taken   bool
		rule    string // whose feedback stands in its place
		says    string
	}{
		{"far from the floor", kw.Device{}, of(2, 0.3), nil, false, "roofline_gap", ""},
		{"no floor is known", kw.Device{}, of(2, 0), nil, false, "roofline_gap", ""},
		{"a little below it", kw.Device{}, of(2, 0.94), nil, false, "roofline_gap", ""},
		{"at the floor", kw.Device{}, of(2, 0.95), nil, true, "", ""},
		{"at the floor, and a baseline is faster", kw.Device{}, of(2, 0.96, slower), nil, false, "roofline_gap", ""},
		{"an earlier round is at the floor", kw.Device{}, of(2, 0.5), []kw.Round{{Verdict: of(1, 0.98)}}, true, "", ""},
		{"an earlier round is slower, and was at a floor", kw.Device{}, of(2, 0.5), []kw.Round{{Verdict: of(3, 0.98)}}, false, "roofline_gap", ""},
		{"the library does it all", kw.Device{}, of(2, 0.3, vendor), nil, true, "", ""},
		{"the one launch is empty", gpu, of(0.002, 0.3, func(v *kw.Verdict) { v.Metrics["custom_calls"] = 1 }), nil, true, "", ""},
		{"the rules said it all", kw.Device{}, of(2, 0.3), heard("this"), true, "", ""},
		{"operators are left", kw.Device{}, of(2, 0.3, pytorch), heard("this"), false, "pytorch_share", "PyTorch's aten.mul takes 8 %"},
		{"one operator is left", kw.Device{}, of(2, 0.3, pytorch), heard("Take aten.mul into the custom kernel"), false, "pytorch_share", "PyTorch's aten.add takes 6 %"},
		{"none is left that is worth it", kw.Device{}, of(2, 0.3, pytorch), heard("Take aten.mul and aten.add into the kernel"), true, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, s := model(t, said(stopped))
			in := kw.JudgeInput{Want: kw.Optimisation, Device: c.device, Task: kw.Task{Source: "class Model: pass\n"}, History: c.history, Current: kw.Attempt{Candidate: plain, Verdict: c.verdict}}
			f, err := m.Judge(t.Context(), in)
			if err != nil || len(s.asked) != 1 {
				t.Fatalf("%d calls, %v", len(s.asked), err)
			}
			if c.taken {
				if f.Kind != kw.Stop || f.Why != "It is fast enough." || f.WantedStop != "" || f.Rule != "" {
					t.Errorf("%+v", f)
				}
				return
			}
			if f.Kind != kw.Optimisation || f.WantedStop != "It is fast enough." || f.Rule != c.rule || !strings.Contains(f.Bottleneck, c.says) || f.Validate() != nil {
				t.Errorf("%+v %v", f, f.Validate())
			}
		})
	}
}

// A model can say neither for itself.
func TestWhoSpeaksIsTheProgramsToSay(t *testing.T) {
	m, _ := model(t, said(`{"kind": "optimisation", "bottleneck": "Memory.", "method": "One pass", "plan": "Keep the row.", "wanted_stop": "x", "Wanted_Stop": "x", "unusable": "x", "UNUSABLE": "x"}`))
	f, err := m.Judge(t.Context(), slow)
	if err != nil || f.Method != "One pass" || f.WantedStop != "" || f.Unusable != "" || f.Rule != "" {
		t.Errorf("%+v %v", f, err)
	}
}

// The prompt says at what headroom a stop is right: where it is taken.
func TestThePromptSaysWhenAStopIsTaken(t *testing.T) {
	m, _ := model(t)
	if want := fmt.Sprint("headroom of ", NearFloor); !strings.Contains(own(t, m.Prompts, kw.Optimisation, false), want) {
		t.Errorf("it does not say %q", want)
	}
}
