package coder

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/coder/internal/plan"
)

// Every seed gives every point once, in an order of its own, and the same again.
func TestAnOrderHasEveryPointOnce(t *testing.T) {
	for _, choices := range [][]int{{1}, {2}, {3, 5}, {4, 4}, {7, 3, 11}, {2, 2, 2, 2, 2, 2, 2, 2}} {
		s := &Space{start: plan.Knobs{}}
		for i, n := range choices {
			name := string(rune('a' + i))
			k := kernelwright.Knob{}
			for c := range n {
				k.Choices = append(k.Choices, 10*c)
			}
			s.names, s.start[name] = append(s.names, name), k
		}
		var before []int64
		for seed := range uint64(3) {
			for _, first := range []int64{-1, s.Points() - 1} {
				next, again := s.order(seed, first), s.order(seed, first)
				var all []int64
				for range s.Points() {
					p := next()
					if again() != p {
						t.Fatalf("%v: the same seed gives another order", choices)
					}
					all = append(all, p)
				}
				if first >= 0 && all[0] != first {
					t.Errorf("%v begins with %d", choices, all[0])
				}
				if first < 0 && len(all) > 20 && slices.Equal(all, before) {
					t.Errorf("%v: two seeds give one order", choices)
				}
				if first < 0 {
					before = slices.Clone(all)
				}
				slices.Sort(all)
				for i, p := range all {
					if p != int64(i) {
						t.Fatalf("%v: %d is at %d", choices, p, i)
					}
				}
			}
		}
		for p := range s.Points() { // a point is its digits
			var back int64
			for _, name := range s.names {
				back = back*int64(len(s.start[name].Choices)) + int64(s.at(p)[name].Value/10)
			}
			if back != p {
				t.Errorf("point %d reads as %d", p, back)
			}
		}
	}
}

// All programs of a space are enumerated, each once, what Propose begins with first, and
// each is what Propose writes with these knobs. Some of them are a sample.
func TestEnumerate(t *testing.T) {
	in := onGPU(committed(t)["softmax"]) // of too many points to be looked at
	first, err := Builtin{}.Propose(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	in.Seed = 5
	some, size, err := Builtin{}.Enumerate(t.Context(), in, 4)
	if err != nil || !size.Sampled || size.Programs != 0 || len(some) != 4 || some[0].Source != first.Source {
		t.Fatalf("%v: %+v, %d", err, size, len(some))
	}
	again, _, err := Builtin{}.Enumerate(t.Context(), in, 2)
	if err != nil || !slices.Equal(again, some[:2]) {
		t.Errorf("%v: fewer are others", err)
	}
	seen := map[string]bool{first.Source: true}
	for _, c := range some[1:] {
		if seen[c.Source] {
			t.Error("a program comes twice")
		}
		seen[c.Source] = true
		schedule, _ := kernelwright.ParseSchedule(c.Source)
		knobs := map[string]int{}
		for name, k := range schedule.Knobs {
			knobs[name] = k.Value
		}
		next := in
		next.Round, next.Last = 1, &kernelwright.Attempt{Candidate: first, Verdict: kernelwright.Verdict{Status: kernelwright.Correct}}
		next.Feedback = &kernelwright.Feedback{Kind: kernelwright.Optimisation, Knobs: knobs}
		if want, err := (Builtin{}).Propose(t.Context(), next); err != nil || want.Source != c.Source {
			t.Errorf("%v: Propose writes another for %v", err, knobs)
		}
	}
	// A small space is tried whole.
	in = input(committed(t)["unary_mish"])
	in.Device.Specs = kernelwright.Specs{Cores: 1, Threads: 1, VectorBits: 256}
	all, size, err := Builtin{}.Enumerate(t.Context(), in, 10000)
	if err != nil || size.Sampled || size.Programs != len(all) || int64(len(all)) > size.Points || len(all) < 3 {
		t.Errorf("%v: %+v, %d", err, size, len(all))
	}
	if _, half, err := (Builtin{}).Enumerate(t.Context(), in, len(all)-1); err != nil || !half.Sampled || half.Programs != size.Programs {
		t.Errorf("%v: %+v", err, half)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := (Builtin{}).Enumerate(ctx, in, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if _, _, err := (Builtin{}).Enumerate(t.Context(), kernelwright.CoderInput{}, 1); !errors.As(err, new(*kernelwright.DeclinedError)) {
		t.Errorf("without a graph: %v", err)
	}
}

// An answer is read as a model's: the candidate without what only the built-in Coder
// writes, and a sentence.
func TestAnswersAreRead(t *testing.T) {
	all := committed(t)
	for _, name := range []string{"softmax", "block", "cross_entropy", "max_pool", "two_outputs"} {
		f := all[name]
		for _, in := range []kernelwright.CoderInput{input(f), onGPU(f)} {
			s, err := Builtin{}.Space(t.Context(), in)
			if errors.As(err, new(*kernelwright.DeclinedError)) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			c, err := s.Candidate(s.first())
			if err != nil {
				t.Fatal(err)
			}
			answer := Answer(c)
			got, err := Read(answer, in.Language, "x")
			if err != nil {
				t.Fatalf("%s: %v\n%s", name, err, answer)
			}
			if strings.Contains(got.Source, "written by") || strings.Contains(got.Source, scheduleHead) || !strings.HasSuffix(c.Source, strings.TrimPrefix(got.Source, "\n")) {
				t.Errorf("%s: read\n%s", name, got.Source)
			}
			if got.Note == "" || got.Language != c.Language || got.Origin != "x" || strings.Count(strings.TrimSpace(strings.SplitN(answer, "```", 2)[0]), "\n") > 0 {
				t.Errorf("%s: %+v", name, got)
			}
		}
	}
	if _, err := Read("I cannot.", kernelwright.CPP, "x"); !errors.As(err, new(*kernelwright.UnusableError)) {
		t.Errorf("prose: %v", err)
	}
}
