package coder

import (
	"context"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/coder/internal/graphtest"
	"github.com/kernelwright/kernelwright/coder/internal/plan"
	"github.com/kernelwright/kernelwright/internal/soak"
)

func committed(t *testing.T) map[string]graphtest.Graph {
	t.Helper()
	return graphtest.File(t, "testdata/graphs.jsonl")
}

func TestTheSameInputGivesTheSameCandidate(t *testing.T) {
	for name, f := range committed(t) {
		var first string
		for range 2 {
			c, err := Builtin{}.Propose(context.Background(), input(f))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if first == "" {
				first = c.Source
			}
			if c.Source != first || c.Language != kernelwright.CPP || c.Origin != "builtin" || c.Note == "" {
				t.Errorf("%s: candidates differ", name)
			}
		}
	}
}

func propose(t *testing.T, in kernelwright.CoderInput) (kernelwright.Candidate, kernelwright.Schedule) {
	t.Helper()
	c, err := Builtin{}.Propose(context.Background(), in)
	if err != nil {
		t.Fatal(err)
	}
	s, ok := kernelwright.ParseSchedule(c.Source)
	if !ok {
		t.Fatal("the candidate states no schedule")
	}
	return c, s
}

// A round is not spent on a choice that changes no code. One graph in three is
// looked at, soaking all.
func TestEveryChoiceChangesTheCode(t *testing.T) {
	dead := 0
	fixtures := committed(t)
	for i, name := range slices.Sorted(maps.Keys(fixtures)) {
		if i%3 != 0 && !soak.Long() {
			continue
		}
		f := fixtures[name]
		in := input(f)
		first, s := propose(t, in)
		g, err := plan.DecodeGraph(in.Task.Graph)
		if err != nil {
			t.Fatal(err)
		}
		p, err := plan.Make(g, true)
		if err != nil {
			t.Fatal(err)
		}
		in.Last = &kernelwright.Attempt{Candidate: first, Verdict: kernelwright.Verdict{Status: kernelwright.Correct}}
		for knob, all := range plan.DefaultSchedule(p, in.Device) {
			offered := s.Knobs[knob]
			if !slices.Contains(offered.Choices, offered.Value) || offered.Value != all.Value {
				t.Errorf("%s: %s is %+v", name, knob, offered)
			}
			dead += len(all.Choices) - len(offered.Choices)
			seen := map[string]int{}
			for _, c := range offered.Choices {
				in.Feedback = &kernelwright.Feedback{Knobs: map[string]int{knob: c}}
				next, _ := propose(t, in)
				_, code, _ := strings.Cut(next.Source, "}\n") // behind the schedule
				if before, ok := seen[code]; ok {
					t.Errorf("%s: %s of %d and of %d is the same code", name, knob, before, c)
				}
				seen[code] = c
			}
		}
	}
	t.Logf("%d choices would have changed nothing", dead)
	if dead == 0 {
		t.Error("nothing was left out: this tests nothing")
	}
}

func TestFeedbackMovesKnobs(t *testing.T) {
	in := input(committed(t)["softmax"])
	c, before := propose(t, in)
	in.Last = &kernelwright.Attempt{Candidate: c, Verdict: kernelwright.Verdict{Status: kernelwright.Correct}}
	in.Feedback = &kernelwright.Feedback{Knobs: map[string]int{"passes": 2, "vector": 7, "warp": 3, "unroll": 4}}
	c, after := propose(t, in)
	for name, want := range map[string]int{"passes": 2, "unroll": 4, "vector": before.Knobs["vector"].Value} {
		if got := after.Knobs[name].Value; got != want {
			t.Errorf("%s is %d, not %d", name, got, want)
		}
	}
	if _, ok := after.Knobs["warp"]; ok {
		t.Error("an unknown knob must be ignored")
	}
	// What was set stays set in the next round.
	in.Last.Candidate, in.Feedback = c, &kernelwright.Feedback{Knobs: map[string]int{"threads": 1}}
	_, later := propose(t, in)
	if later.Knobs["passes"].Value != 2 || later.Knobs["threads"].Value != 1 {
		t.Errorf("got %+v", later.Knobs)
	}
}

// What an earlier version's schedule does not state it did not do.
func TestAnOlderScheduleGoesOnAsItWas(t *testing.T) {
	in := onGPU(committed(t)["softmax"])
	c, now := propose(t, in)
	if now.Knobs["approx"].Value != 1 {
		t.Fatalf("begins with %+v", now.Knobs)
	}
	older := kernelwright.Schedule{Plan: now.Plan, Knobs: maps.Clone(now.Knobs)}
	delete(older.Knobs, "approx")
	c.Source = strings.Replace(c.Source, now.Comment(), older.Comment(), 1)
	in.Last = &kernelwright.Attempt{Candidate: c, Verdict: kernelwright.Verdict{Status: kernelwright.Correct}}
	in.Feedback = &kernelwright.Feedback{Knobs: map[string]int{"vector": 2}}
	if _, next := propose(t, in); next.Knobs["approx"].Value != 0 || next.Knobs["vector"].Value != 2 {
		t.Errorf("goes on with %+v", next.Knobs)
	}
}

func TestFailuresLeadToPlainCode(t *testing.T) {
	in := input(committed(t)["softmax"])
	c, _ := propose(t, in)
	in.Feedback = &kernelwright.Feedback{Knobs: map[string]int{"passes": 2, "unroll": 4}}
	in.Last = &kernelwright.Attempt{Candidate: c, Verdict: kernelwright.Verdict{Status: kernelwright.Correct}}
	c, last := propose(t, in)
	in.Feedback = nil
	seen := []string{c.Source}
	for range 10 {
		in.Last = &kernelwright.Attempt{Candidate: c, Verdict: kernelwright.Verdict{Status: kernelwright.Wrong}}
		c, last = propose(t, in)
		if slices.Contains(seen, c.Source) {
			break
		}
		seen = append(seen, c.Source)
	}
	for name, want := range map[string]int{"passes": 3, "unroll": 1, "vector": 1, "threads": 1, "tile": 0} {
		if got := last.Knobs[name].Value; got != want {
			t.Errorf("%s ended at %d, not %d", name, got, want)
		}
	}
	if len(seen) < 5 {
		t.Errorf("only %d steps", len(seen))
	}
}

func FuzzDecodeGraph(f *testing.F) {
	b, err := os.ReadFile("testdata/graphs.jsonl")
	if err != nil {
		f.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if _, rest, ok := strings.Cut(line, `"graph":`); ok {
			f.Add([]byte(strings.TrimSuffix(strings.TrimSpace(rest), `,"note":""}`)))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		in := kernelwright.CoderInput{Task: kernelwright.Task{Graph: b}}
		_, _ = Builtin{}.Propose(context.Background(), in) // must not panic
	})
}

// TestConvolutionBias: on a GPU torch would add the bias in a kernel of its own.
func TestConvolutionBias(t *testing.T) {
	f := committed(t)["conv_pool"]
	for name, c := range map[string]struct {
		in   kernelwright.CoderInput
		want string
	}{
		"on a GPU": {onGPU(f), "F.conv2d(x_in, layer_weight, None)"},
		"on a CPU": {input(f), "F.conv2d(x_in, layer_weight, layer_bias)"},
	} {
		got, err := Builtin{}.Propose(context.Background(), c.in)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !strings.Contains(got.Source, c.want) {
			t.Errorf("%s: no %s in\n%s", name, c.want, got.Source)
		}
	}
}

// TestNames: inputs and weights are called what the reference calls them, values
// by their operators, and who reads the code meets no number alone.
func TestNames(t *testing.T) {
	nameless := regexp.MustCompile(`\b(?:[tp]\d+|[vs]_\w+)\b`)
	for name, want := range map[string][]string{
		"softmax":   {"def forward(self, inputs_0)", "const float exp_1 = kw::exp(inputs_0[129 * i0 + i1] - maxnum_2);"},
		"conv_pool": {"def forward(self, x_in)", "layer_weight = self._modules[\"layer\"]", "conv2d_out = F.conv2d(x_in, layer_weight, layer_bias)"},
	} {
		got, err := Builtin{}.Propose(context.Background(), input(committed(t)[name]))
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			if !strings.Contains(got.Source, w) {
				t.Errorf("%s: no %s in\n%s", name, w, got.Source)
			}
		}
		if found := nameless.FindAllString(got.Source, -1); len(found) > 0 {
			t.Errorf("%s: it calls something %v", name, found)
		}
	}
}
