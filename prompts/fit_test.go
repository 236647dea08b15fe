package prompts

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
)

// docs/strategies.md has the order of what goes.
func TestTheOrderIsDocumented(t *testing.T) {
	b, err := os.ReadFile("../docs/strategies.md")
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	want.WriteString("| goes | of |\n|---|---|\n")
	for _, c := range Cuts {
		fmt.Fprintf(&want, "| %s | %s |\n", c.Name, c.Of)
	}
	if !strings.Contains(string(b), want.String()) {
		t.Errorf("docs/strategies.md has to have\n%s", want.String())
	}
}

// fullCoder and fullJudge are views that have everything, at length.
func fullCoder() CoderView {
	long := func(label string, lines int) Data {
		return Fence(label, strings.Repeat("a line of "+label+"\n", lines), 1<<20)
	}
	return CoderView{Form: Form(kernelwright.CPP), ShowExample: true, MayCompact: true, Reference: long("reference", 10), Brief: long("brief", 3), Task: long("task", 8), Device: long("device", 8), Lessons: long("lessons", 9),
		Skills: []Skill{{Title: "t", Text: strings.Repeat("what experts know\n", 50)}}, Candidate: long("last answer", 400), Verdict: long("verdict", 5), Feedback: long("feedback", 4),
		Compiler: long("compiler output", 80), Output: long("candidate output", 20), Metrics: long("metrics", 60), Build: long("build", 9), Unusable: long("answer without a candidate", 3)}
}

func fullJudge() JudgeView {
	c := fullCoder()
	return JudgeView{Language: kernelwright.CPP, MayCompact: true, Reference: c.Reference, Brief: c.Brief, Task: c.Task, Device: c.Device, Skills: c.Skills, Candidate: c.Candidate, Verdict: c.Verdict, Compiler: c.Compiler, Output: c.Output,
		Metrics: c.Metrics, Build: c.Build, Earlier: Fence("earlier rounds", strings.Repeat("round\n", 8), 1<<20), Lessons: c.Lessons, Finding: c.Feedback}
}

// Whatever the room, what goes goes in its order, nothing goes that need not, and what
// never goes is whole.
func TestAPromptFits(t *testing.T) {
	templates, err := LoadTemplates("")
	if err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"correction", "optimisation", "self", "judge correction", "judge optimisation"} {
		before := 0
		for room := 40_000; room > 0; room -= 500 {
			size := func(system, user string) bool { return len(system)+len(user) <= room }
			var p Prompt
			var fits bool
			c, j := fullCoder(), fullJudge()
			switch what {
			case "judge correction":
				p, fits, err = templates.FitJudge(JudgeCorrection, j, size)
			case "judge optimisation":
				p, fits, err = templates.FitJudge(JudgeOptimisation, j, size)
			case "self":
				c.Feedback = ""
				p, fits, err = templates.FitCoder(CoderSelf, c, size)
			default:
				p, fits, err = templates.FitCoder(CoderPrompt("coder_"+what), c, size)
			}
			if err != nil {
				t.Fatal(err)
			}
			if fits != size(p.System, p.User) {
				t.Fatalf("%s in %d: fits is %v for %d bytes", what, room, fits, len(p.System)+len(p.User))
			}
			at := -1
			for _, left := range p.LeftOut {
				i := slices.IndexFunc(Cuts, func(c Cut) bool { return c.Name == left })
				if i <= at {
					t.Fatalf("%s in %d: %q is left out of its order: %q", what, room, left, p.LeftOut)
				}
				at = i
			}
			if len(p.LeftOut) < before {
				t.Errorf("%s: with less room less is left out: %q", what, p.LeftOut)
			}
			before = len(p.LeftOut)
			whole := []Data{c.Reference, c.Verdict}
			if what == "correction" || what == "optimisation" {
				whole = append(whole, c.Feedback, c.Unusable)
			}
			for _, d := range whole {
				if !strings.Contains(p.User, string(d)) {
					t.Fatalf("%s in %d: of what never goes is missing\n%s", what, room, d)
				}
			}
			if !strings.Contains(p.System, "Answer with") {
				t.Fatalf("%s in %d: the answer's form is missing:\n%s", what, room, p.System)
			}
			if !fits && room > 6000 {
				t.Errorf("%s does not fit %d bytes", what, room)
			}
		}
		if before < 8 {
			t.Errorf("%s: at last %d parts were left out", what, before)
		}
	}
}

// What is shortened stays between its fences.
func TestDataIsShortened(t *testing.T) {
	d := Fence("x", "```\n"+strings.Repeat("line\n", 50), 1<<20)
	for name, got := range map[string]Data{"first": d.firstLines(3), "last": d.lastLines(3), "middle": d.shorten(60), "to a half": d.shortenTo(1, 2)} {
		lines := strings.Split(string(got), "\n")
		if lines[0] != "````data: x" || lines[len(lines)-1] != "````" || len(got) >= len(d) || !strings.Contains(string(got), "left out") || strings.Contains(string(got), "\n\n") {
			t.Errorf("%s:\n%s", name, got)
		}
	}
	for name, got := range map[string]Data{"first": d.firstLines(51), "last": d.lastLines(51), "middle": d.shorten(1 << 10), "nothing": Data("").firstLines(1)} {
		if got != d && got != "" {
			t.Errorf("%s:\n%s", name, got)
		}
	}
}

func TestProfiles(t *testing.T) {
	for _, test := range []struct {
		profile Profile
		model   string
		context int
		want    bool
	}{
		{"", "vllm:m", 4096, true}, {ProfileAuto, "vllm:m", 4097, false}, {ProfileAuto, "vllm:m", 0, false}, {ProfileAuto, "policy:a", 0, true}, {ProfileAuto, "training:a", 0, true},
		{ProfileFull, "policy:a", 2048, false}, {ProfileCompact, "vllm:m", 0, true},
	} {
		if got := test.profile.Compact(test.model, test.context); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
}

// A brief has the device, the tensors and the operators; what others wrote in it stays
// on its line.
func TestBrief(t *testing.T) {
	task := kernelwright.Task{
		Inputs: []kernelwright.TensorSpec{{Name: "x", Shape: []int{16, 768}, DType: "float32"}},
		Graph: []byte(`{"nodes": [{"name": "softmax", "op": "aten.softmax", "args": [{"ref": "x"}, -1, null, [1, 2.5], {"dtype": "float32"}, {"ref": "y", "item": 1}], "kwargs": {"b": true, "a": {"float": "inf"}}},
			{"name": "bad\nname", "op": "x", "args": [], "kwargs": {}}]}`),
	}
	device := kernelwright.Device{Kind: kernelwright.CUDADevice, Name: "a GPU", Specs: kernelwright.Specs{Cores: 132, ISA: []string{"sm_90a"}}, Ceilings: kernelwright.Ceilings{MemoryGBs: 4000}}
	const want = "```data: device and graph\ncuda:0: a GPU, 132 SMs, sm_90a, 4000 GB/s\nx: float32 [16, 768]\nsoftmax = softmax(x, -1, None, [1, 2.5], float32, y[1], a=inf, b=true)\nbad name = x()\n```"
	if got := Brief(task, device); string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	task.Graph, task.Operators = []byte("no"), []string{"aten.softmax"}
	if got := Brief(task, kernelwright.Device{}); !strings.Contains(string(got), "operators: aten.softmax") {
		t.Errorf("%s", got)
	}
}
