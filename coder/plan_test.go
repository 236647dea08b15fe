package coder

import (
	"context"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/internal/soak"
	"pgregory.net/rapid"
)

func committed(t *testing.T) map[string]fixture {
	t.Helper()
	b, err := os.ReadFile("testdata/graphs.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]fixture{}
	for _, f := range readFixtures(t, b) {
		out[f.Name] = f
	}
	return out
}

// TestPlans checks how many kernels and passes a graph takes, and what stays
// with torch.
func TestPlans(t *testing.T) {
	fixtures := committed(t)
	for name, want := range map[string]struct {
		kernels, stages, calls int
		knobs                  string
	}{
		"softmax":         {1, 2, 0, "passes prefetch threads tile unroll vector"},
		"softmax_0":       {1, 2, 0, "passes threads tile unroll vector"},
		"layer_norm":      {1, 2, 0, "passes prefetch threads tile unroll vector"},
		"group_norm":      {1, 2, 0, "threads tile unroll vector"},
		"rms_norm":        {1, 1, 0, "fuse prefetch threads tile unroll vector"},
		"masked_softmax":  {1, 2, 0, "fuse passes prefetch threads tile unroll vector"},
		"cross_entropy":   {2, 2, 0, "passes prefetch threads tile unroll vector"},
		"reverse_cumsum":  {1, 0, 0, "chains threads vector"},
		"linear_softmax":  {1, 2, 1, "fuse passes threads tile unroll vector"},
		"conv_pool":       {1, 0, 1, "fuse threads tile vector"},
		"group_norm_mish": {2, 2, 0, "fuse passes prefetch threads tile unroll vector"},
		"unary_mish":      {1, 0, 0, "threads tile vector"},
		"two_outputs":     {1, 1, 0, "fuse prefetch threads tile unroll vector"},
	} {
		f, ok := fixtures[name]
		if !ok {
			t.Errorf("%s: no fixture", name)
			continue
		}
		g, err := decodeGraph(f.Graph)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		p, err := makePlan(g, true)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		kernels, stages, calls := 0, 0, 0
		for _, s := range p.steps {
			if s.call != nil {
				calls++
				continue
			}
			kernels++
			for _, a := range s.kernel.anchors {
				if a.value.kind == reduce {
					stages = max(stages, a.stage+1)
				}
			}
		}
		knobs := strings.Join(sortedKeys(defaultSchedule(p, input(f).Device)), " ")
		if kernels != want.kernels || stages != want.stages || calls != want.calls || knobs != want.knobs {
			t.Errorf("%s: %d kernels, %d passes, %d calls, knobs %q; want %+v", name, kernels, stages, calls, knobs, want)
		}
	}
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
	for i, name := range sortedKeys(fixtures) {
		if i%3 != 0 && !soak.Long() {
			continue
		}
		f := fixtures[name]
		in := input(f)
		first, s := propose(t, in)
		g, err := decodeGraph(in.Task.Graph)
		if err != nil {
			t.Fatal(err)
		}
		p, err := makePlan(g, true)
		if err != nil {
			t.Fatal(err)
		}
		in.Last = &kernelwright.Attempt{Candidate: first, Verdict: kernelwright.Verdict{Status: kernelwright.Correct}}
		for knob, all := range defaultSchedule(p, in.Device) {
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

func (x index) eval(at []int) int {
	v := x.off
	for _, t := range x.terms {
		i := at[t.dim] / t.div
		if t.mod > 0 {
			i %= t.mod
		}
		v += t.coef * i
	}
	return v
}

// unravel returns the position of element n in row-major order.
func unravel(n int, shape []int) []int {
	at := make([]int, len(shape))
	for i := len(shape) - 1; i >= 0; i-- {
		at[i] = n % shape[i]
		n /= shape[i]
	}
	return at
}

// TestReshapeMaps checks chains of reshapes against what they mean.
func TestReshapeMaps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		factors := rapid.SliceOfN(rapid.IntRange(1, 4), 1, 5).Draw(t, "factors")
		shape := func(label string) []int {
			out := []int{1}
			for i, f := range factors {
				if rapid.Bool().Draw(t, label+itoa(i)) {
					out = append(out, 1)
				}
				out[len(out)-1] *= f
			}
			return out
		}
		a, b, c := shape("a"), shape("b"), shape("c")
		first, ok := reshapeMap(a, b)
		if !ok {
			t.Skip()
		}
		second, ok := reshapeMap(b, c)
		if !ok {
			t.Skip()
		}
		for k := range a {
			x, ok := first[k].substitute(second, c)
			if !ok {
				continue
			}
			for n := range numel(c) {
				if got, want := x.eval(unravel(n, c)), unravel(n, a)[k]; got != want {
					t.Fatalf("dimension %d of %v through %v over %v: element %d is at %d, not %d (%+v)", k, a, b, c, n, got, want, x)
				}
			}
		}
	})
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

func TestNoMoreThreadsThanAreMeasuredWith(t *testing.T) {
	for _, c := range []struct{ cores, processors, measured, want int }{
		{8, 16, 0, 8}, {8, 4, 0, 4}, {8, 16, 2, 2}, {8, 16, 16, 8}, {0, 4, 1, 1}, {0, 0, 0, 1}, {0, 0, 3, 3},
	} {
		d := kernelwright.Device{Specs: kernelwright.Specs{Cores: c.cores, Threads: c.processors}, Ceilings: kernelwright.Ceilings{CPUThreads: c.measured}}
		if got := usableCores(d); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}
