package forge_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	kw "github.com/kernelwright/kernelwright"
	llmcoder "github.com/kernelwright/kernelwright/coder"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/judge"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/prompts"
)

// A graph as inspection captures it, of examples/layer_norm.py.
const layerNormGraph = `{"v": 1, "inputs": [{"name": "x", "shape": [16, 512, 768], "dtype": "float32", "path": [0]}],
"parameters": [{"name": "p_weight", "shape": [768], "dtype": "float32", "state": "norm.weight"}, {"name": "p_bias", "shape": [768], "dtype": "float32", "state": "norm.bias"}],
"constants": [], "nodes": [{"name": "layer_norm", "op": "aten.layer_norm", "args": [{"ref": "x"}, [768], {"ref": "p_weight"}, {"ref": "p_bias"}], "kwargs": {}, "outputs": [{"shape": [16, 512, 768], "dtype": "float32"}], "many": false}],
"outputs": {"value": {"ref": "layer_norm"}}, "batch": null}`

// compactTokens is what a compact prompt of a first round may have at most, with a
// reference of 180 tokens.
const compactTokens = 760

// The prompts' sizes by strategy and round, in tokens of three bytes: docs/prompts.md
// has what this logs.
func TestPromptTokens(t *testing.T) {
	source, err := os.ReadFile("../examples/layer_norm.py")
	if err != nil {
		t.Fatal(err)
	}
	skills, err := prompts.LoadSkills("")
	if err != nil {
		t.Fatal(err)
	}
	spec := func(name string, shape ...int) kw.TensorSpec {
		return kw.TensorSpec{Name: name, Shape: shape, DType: "float32"}
	}
	task := kw.Task{Name: "layer_norm", Source: string(source), Operators: []string{"aten.layer_norm"}, LeastBytes: 50 << 20, Operations: 50 << 20, EagerMS: 1.2, Graph: []byte(layerNormGraph),
		Inputs: []kw.TensorSpec{spec("x", 16, 512, 768)}, Parameters: []kw.TensorSpec{spec("norm.weight", 768), spec("norm.bias", 768)}, Outputs: []kw.TensorSpec{spec("", 16, 512, 768)}}
	var b strings.Builder
	fmt.Fprintf(&b, "| prompt | C++, full | compact | CUDA, full | compact |\n|---|---:|---:|---:|---:|\n")
	var names []string
	sizes := map[string][]int{}
	column := 0
	for _, device := range []kw.Device{
		{Kind: kw.CPUDevice, Name: "a CPU", Specs: kw.Specs{Cores: 16, VectorBits: 512, ISA: []string{"avx2", "avx512f"}}, Ceilings: kw.Ceilings{MemoryGBs: 100, CacheGBs: 800, FP32GFLOPs: 1500, CPUThreads: 16, CallUS: 1}},
		{Kind: kw.CUDADevice, Name: "NVIDIA H200", Specs: kw.Specs{Cores: 132, ISA: []string{"sm_90a"}, L2Bytes: 50 << 20}, Ceilings: kw.Ceilings{MemoryGBs: 4000, FP32GFLOPs: 60000, CallUS: 2}},
	} {
		for _, profile := range []prompts.Profile{prompts.ProfileFull, prompts.ProfileCompact} {
			words := templates(t)
			words.Profile = profile
			model := &scripted{answer: func(llm.Request) string { return "no" }}
			language := kw.CPP
			if device.Kind == kw.CUDADevice {
				language = kw.CUDA
			}
			note := func(name string) {
				t.Helper()
				r := model.asked[0]
				model.asked = nil
				n := (llm.Window{}).Estimate(r)
				if sizes[name] == nil {
					names, sizes[name] = append(names, name), make([]int, 4)
				}
				sizes[name][column] = n
				if first := strings.HasSuffix(name, "first round"); profile == prompts.ProfileCompact && (first && n > compactTokens || !first && n > 3*compactTokens) {
					t.Errorf("%s on %s: %d tokens", name, device.Kind, n)
				}
				if !strings.Contains(r.Messages[1].Text, strings.TrimSpace(task.Source)) {
					t.Errorf("%s on %s: the reference is not whole", name, device.Kind)
				}
			}
			hardware := &talkative{}
			c, j := llmcoder.Model{LLM: model, Prompts: words, Skills: skills}, judge.Model{LLM: model, Prompts: words, Skills: skills}
			in := kw.CoderInput{Task: task, Device: device, Language: language}
			_, _ = c.Propose(t.Context(), in)
			note("rounds, beam: Coder, first round")
			for _, at := range []string{"did not compile", "is wrong", "is correct"} {
				last := kw.Attempt{Candidate: kw.Candidate{Source: theCandidate(1, 1200), Language: language}}
				if last.Verdict, err = hardware.Evaluate(t.Context(), task, last.Candidate, kw.Quick); err != nil {
					t.Fatal(err)
				}
				f := kw.Feedback{Kind: kw.Correction, Issue: "the last block of a row is left out", Why: "the loop ends a block early", Fix: "let it run to the row's end"}
				want := kw.Correction
				if last.Verdict.Status.OK() {
					want = kw.Optimisation
					f = kw.Feedback{Kind: want, Bottleneck: "the row is read three times", Method: "keep it in registers", Plan: "load it once, and reduce twice over what was loaded"}
				}
				_, _ = j.Judge(t.Context(), kw.JudgeInput{Task: task, Device: device, Want: want, Current: last})
				note("rounds, beam: Judge, where it " + at)
				in.Round, in.Last, in.Feedback, in.View = 1, &last, &f, ""
				_, _ = c.Propose(t.Context(), in)
				note("rounds, beam: Coder, where it " + at + ", with a feedback")
				in.Feedback, in.View = nil, kw.ViewMetrics
				_, _ = c.Propose(t.Context(), in)
				note("rounds, beam: Coder, where it " + at + ", its own Judge")
			}
			for _, text := range []bool{false, true} {
				parts := forge.Parts{Device: device, Evaluator: hardware, Recorder: &memory{}, Model: model, Prompts: words, Skills: skills, Settings: forge.Settings{Language: language, JudgeMode: forge.JudgeSelf, Rounds: 10, React: forge.ReactSettings{Turns: 9, TextTools: text}}}
				st, err := forge.New(forge.ReactStrategy, parts)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := st.Run(t.Context(), kw.Run{ID: 1}, task); err != nil {
					t.Fatal(err)
				}
				name := "react: first call, tools beside it"
				if text {
					name = "react: first call, tools in words"
				}
				note(name)
			}
			column++
		}
	}
	for _, name := range names {
		n := sizes[name]
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d |\n", name, n[0], n[1], n[2], n[3])
	}
	t.Logf("\n%s", b.String())
}
