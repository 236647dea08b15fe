// Package forgetest holds what every Coder and every Judge must pass: one
// suite for each interface of forge, run against each implementation.
package forgetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
)

// Coder runs the suite against a Coder. Each input is one that it must answer
// or decline. deterministic says that the same input must give the same
// candidate.
func Coder(t *testing.T, c forge.Coder, deterministic bool, inputs ...kernelwright.CoderInput) {
	t.Helper()
	t.Run("name", func(t *testing.T) { checkName(t, c.Name(), c.Name()) })
	t.Run("cancelled", func(t *testing.T) {
		for _, in := range inputs {
			if _, err := c.Propose(cancelled(), in); !errors.Is(err, context.Canceled) {
				t.Errorf("round %d of %s: got %v, want the context's error", in.Round, in.Task.Name, err)
			}
		}
	})
	for i, in := range inputs {
		t.Run(fmt.Sprintf("%d_%s_round_%d", i, in.Task.Name, in.Round), func(t *testing.T) {
			before := encode(t, in)
			got, err := c.Propose(t.Context(), in)
			if after := encode(t, in); after != before {
				t.Errorf("the input was changed:\n%s\n%s", before, after)
			}
			var declined *kernelwright.DeclinedError
			switch {
			case err == nil:
				checkCandidate(t, got, in)
			case !errors.As(err, &declined):
				t.Fatal(err)
			case strings.TrimSpace(declined.Reason) == "":
				t.Error("it declined without a reason")
			}
			if !deterministic {
				return
			}
			each(4, func() {
				again, err2 := c.Propose(t.Context(), in)
				if again != got || (err == nil) != (err2 == nil) {
					t.Error("the same input gave another answer")
				}
			})
		})
	}
}

func checkCandidate(t *testing.T, c kernelwright.Candidate, in kernelwright.CoderInput) {
	t.Helper()
	if !strings.Contains(c.Source, "ModelNew") {
		t.Error("the source does not define ModelNew")
	}
	if in.Language != "" && c.Language != in.Language {
		t.Errorf("the candidate is %q where %q was asked for", c.Language, in.Language)
	}
	if c.Language == "" || c.Origin == "" {
		t.Errorf("language %q or origin %q is missing", c.Language, c.Origin)
	}
	if s, ok := kernelwright.ParseSchedule(c.Source); ok {
		for name, k := range s.Knobs {
			if !slices.Contains(k.Choices, k.Value) {
				t.Errorf("knob %s is %d, which is none of its choices %v", name, k.Value, k.Choices)
			}
		}
	}
}

// Judge runs the suite against a Judge, on Inputs and on what is given.
func Judge(t *testing.T, j forge.Judge, deterministic bool, inputs ...kernelwright.JudgeInput) {
	t.Helper()
	inputs = append(Inputs(), inputs...)
	t.Run("name", func(t *testing.T) { checkName(t, j.Name(), j.Name()) })
	t.Run("cancelled", func(t *testing.T) {
		if _, err := j.Judge(cancelled(), inputs[0]); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want the context's error", err)
		}
	})
	for i, in := range inputs {
		t.Run(fmt.Sprintf("%d_%s_%s", i, in.Current.Verdict.Status, in.Task.Name), func(t *testing.T) {
			before := encode(t, in)
			got, err := j.Judge(t.Context(), in)
			if err != nil {
				t.Fatal(err)
			}
			if after := encode(t, in); after != before {
				t.Errorf("the input was changed:\n%s\n%s", before, after)
			}
			CheckFeedback(t, got, in)
			if !deterministic {
				return
			}
			want := encode(t, got)
			each(4, func() {
				again, err := j.Judge(t.Context(), in)
				if err != nil {
					t.Error(err)
					return
				}
				if b, err := json.Marshal(again); err != nil || string(b) != want {
					t.Errorf("the same input gave another answer:\n%s\n%s %v", want, b, err)
				}
			})
		})
	}
}

// CheckFeedback fails the test unless a feedback answers the input as the
// contract says.
func CheckFeedback(t testing.TB, f kernelwright.Feedback, in kernelwright.JudgeInput) {
	t.Helper()
	if err := f.Validate(); err != nil {
		t.Errorf("%v: %+v", err, f)
	}
	if f.Kind != in.Want && f.Kind != kernelwright.Stop {
		t.Errorf("kind is %q where %q was asked for", f.Kind, in.Want)
	}
	b, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kernelwright.ParseFeedback(b); err != nil {
		t.Errorf("%s does not survive its own JSON: %v", b, err)
	}
	schedule, ok := kernelwright.ParseSchedule(in.Current.Candidate.Source)
	if !ok {
		return
	}
	for name, value := range f.Knobs {
		k, ok := schedule.Knobs[name]
		if ok && k.Value == value {
			t.Errorf("knob %s is %d already", name, value)
		}
		if ok && !slices.Contains(k.Choices, value) {
			t.Errorf("knob %s cannot be %d: its choices are %v", name, value, k.Choices)
		}
	}
}

// Inputs returns a spread of verdicts that any Judge can meet: each failed
// status, correct ones with and without a schedule, with all metrics, with
// none, and with metrics that make no sense.
func Inputs() []kernelwright.JudgeInput {
	task := kernelwright.Task{Name: "softmax", Fingerprint: "f", LeastBytes: 64 << 20, Operations: 1 << 26, EagerMS: 9}
	device := kernelwright.Device{Kind: kernelwright.CPUDevice, Key: "d", Name: "a CPU",
		Specs: kernelwright.Specs{Cores: 4, Threads: 8, L2Bytes: 1 << 20, L3Bytes: 16 << 20}, Ceilings: kernelwright.Ceilings{MemoryGBs: 20, CPUThreads: 4}}
	plain := kernelwright.Candidate{Source: "class ModelNew: pass\n", Language: kernelwright.CPP, Origin: "file"}
	schedule := kernelwright.Schedule{Plan: "rows", Knobs: map[string]kernelwright.Knob{
		"threads": {Value: 1, Choices: []int{1, 2, 4}}, "vector": {Value: 8, Choices: []int{1, 8, 16}}, "fuse": {Value: 1, Choices: []int{0, 1}}}}
	scheduled := plain
	scheduled.Source = schedule.Comment() + "\n" + plain.Source

	var inputs []kernelwright.JudgeInput
	add := func(want kernelwright.FeedbackKind, c kernelwright.Candidate, v kernelwright.Verdict, history ...kernelwright.Round) {
		inputs = append(inputs, kernelwright.JudgeInput{Task: task, Device: device, Want: want, History: history,
			Current: kernelwright.Attempt{Candidate: c, Verdict: v}})
	}
	full := map[string]float64{"threads": 4, "achieved_gbs": 8, "memory_share": 0.4, "cache_share": 0.1, "achieved_gflops": 3, "compute_share": 0.05,
		"core_use": 0.26, "custom_share": 0.9, "vendor_share": 0, "pytorch_share": 0.1, "custom_calls": 1, "vectorised_loops": 2, "missed_loops": 1,
		"working_set_bytes": 64 << 20, "call_overhead_share": 0.01}
	absurd := map[string]float64{"core_use": 1e300, "memory_share": -1, "compute_share": -1, "working_set_bytes": 1e300, "threads": 0}
	for _, c := range []kernelwright.Candidate{plain, scheduled} {
		for _, status := range []kernelwright.Status{kernelwright.Rejected, kernelwright.BuildFailed, kernelwright.Crashed, kernelwright.TimedOut,
			kernelwright.Wrong, kernelwright.Cheated} {
			add(kernelwright.Correction, c, kernelwright.Verdict{Status: status, Reason: "It failed."})
		}
		add(kernelwright.Correction, c, kernelwright.Verdict{Status: kernelwright.Wrong, Reason: "Wrong.", Correctness: kernelwright.CorrectnessReport{
			Families: []kernelwright.FamilyReport{{Name: "base", Gates: true, MaxError: 1, MaxBound: 1e-3}, {Name: "planted", Gates: true}}}})
		for _, m := range []map[string]float64{nil, full, absurd} {
			add(kernelwright.Optimisation, c, kernelwright.Verdict{Status: kernelwright.Correct, CandidateMS: 8, Headroom: 0.4, Metrics: m,
				Floor: kernelwright.Floor{MS: 3.2, Bound: "memory", Bytes: 64 << 20}})
		}
		add(kernelwright.Optimisation, c, kernelwright.Verdict{Status: kernelwright.Correct, CandidateMS: 3.3, Headroom: 0.97, Metrics: full})
		add(kernelwright.Optimisation, c, kernelwright.Verdict{Status: kernelwright.Correct}) // never timed
		earlier := kernelwright.Round{Candidate: scheduled, Verdict: kernelwright.Verdict{Status: kernelwright.Correct, CandidateMS: 5, Headroom: 0.6, Metrics: full}}
		add(kernelwright.Optimisation, c, kernelwright.Verdict{Status: kernelwright.Correct, CandidateMS: 8, Headroom: 0.4, Metrics: full}, earlier)
		add(kernelwright.Correction, c, kernelwright.Verdict{Status: kernelwright.Crashed, Reason: "It crashed."}, earlier)
	}
	return inputs
}

func checkName(t *testing.T, first, second string) {
	t.Helper()
	if first == "" || first != second || strings.ContainsAny(first, " \n") {
		t.Errorf("names %q, %q: want one word, always the same", first, second)
	}
}

func cancelled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// each runs f n times at once.
func each(n int, f func()) {
	var wg sync.WaitGroup
	for range n {
		wg.Go(f)
	}
	wg.Wait()
}

func encode(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
