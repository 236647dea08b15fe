package judge_test

import (
	"slices"
	"strings"
	"testing"

	kw "github.com/kernelwright/kernelwright"
)

// A knob may do nothing beside the fastest schedule, and much beside one that is
// nearly as fast: rows that are not kept can be gone over once.
func TestSearchGoesOnFromTheNextBest(t *testing.T) {
	for _, c := range []struct {
		name    string
		without float64 // ms when rows are not kept, in three passes
		want    bool    // whether one pass is tried then
	}{{"nearly as fast", 1.05, true}, {"much slower", 1.3, false}} {
		t.Run(c.name, func(t *testing.T) {
			in := kw.JudgeInput{Want: kw.Optimisation, Device: gpu}
			knobs := map[string]int{"keep": 1, "passes": 3, "share": 4}
			tried := false
			var order []string
			for round := 0; ; round++ {
				if round > 20 {
					t.Fatal("it does not come to an end")
				}
				schedule := kw.Schedule{Knobs: map[string]kw.Knob{
					"keep": {Value: knobs["keep"], Choices: []int{0, 1}}, "passes": {Value: knobs["passes"], Choices: []int{3}}, "share": {Value: knobs["share"], Choices: []int{2, 4}}}}
				if knobs["keep"] == 0 {
					schedule.Knobs["passes"] = kw.Knob{Value: knobs["passes"], Choices: []int{1, 3}}
				}
				ms := 1.0
				switch {
				case knobs["share"] == 2:
					ms = 1.5
				case knobs["passes"] == 1:
					tried, ms = true, 0.7
				case knobs["keep"] == 0:
					ms = c.without
				}
				in.Current = kw.Attempt{Candidate: kw.Candidate{Source: schedule.Comment()}, Verdict: kw.Verdict{Status: kw.Correct, CandidateMS: ms, Headroom: 0.5}}
				f := feedback(t, in)
				if f.Kind == kw.Stop {
					if f.Rule != "schedules_exhausted" {
						t.Errorf("%+v", f)
					}
					break
				}
				if _, ok := f.Knobs["passes"]; ok && !strings.Contains(f.Plan, "Keep the code of") {
					t.Errorf("%s", f.Plan)
				}
				order = append(order, f.Method)
				in.History = append(in.History, kw.Round{Index: round, Candidate: in.Current.Candidate, Verdict: in.Current.Verdict, Feedback: &f})
				for name, v := range f.Knobs {
					knobs[name] = v
				}
			}
			if tried != c.want {
				t.Errorf("one pass tried: %v", tried)
			}
			if !strings.Contains(order[0], "share") { // what takes back a saving comes last
				t.Errorf("%q", order)
			}
		})
	}
}

// A way may lead through what is slower: what lies further is tried when nothing
// near is left, what is nearest first.
func TestSearchLooksFurther(t *testing.T) {
	ms := map[int]float64{1: 1.6, 2: 0.7, 4: 1.4, 8: 1, 16: 1.4}
	in := kw.JudgeInput{Want: kw.Optimisation, Device: gpu}
	share := 8
	var order []int
	for round := 0; ; round++ {
		schedule := kw.Schedule{Knobs: map[string]kw.Knob{"share": {Value: share, Choices: []int{16, 8, 4, 2, 1}}}}
		in.Current = kw.Attempt{Candidate: kw.Candidate{Source: schedule.Comment()}, Verdict: kw.Verdict{Status: kw.Correct, CandidateMS: ms[share], Headroom: 0.5}}
		f := feedback(t, in)
		if f.Kind == kw.Stop {
			break
		}
		in.History = append(in.History, kw.Round{Index: round, Candidate: in.Current.Candidate, Verdict: in.Current.Verdict, Feedback: &f})
		share = f.Knobs["share"]
		order = append(order, share)
		if far := share == 2; far != strings.Contains(f.Method, "further away") {
			t.Errorf("to %d it says %q", share, f.Method)
		}
	}
	slices.Sort(order[:2]) // either is beside the first
	if !slices.Equal(order, []int{4, 16, 2, 1}) {
		t.Errorf("it went to %v", order)
	}
}

// What memory holds back is never taken apart, not even when all else was tried.
func TestSearchPartsNothingThatMemoryHoldsBack(t *testing.T) {
	for share, want := range map[float64]bool{0.75: false, 0.2: true} {
		in := kw.JudgeInput{Want: kw.Optimisation, Device: gpu}
		knobs := map[string]int{"fuse": 1, "share": 4}
		parted := false
		for round := range 10 {
			schedule := kw.Schedule{Knobs: map[string]kw.Knob{"fuse": {Value: knobs["fuse"], Choices: []int{0, 1}}, "share": {Value: knobs["share"], Choices: []int{2, 4}}}}
			ms := 1.0
			if knobs["share"] == 2 || knobs["fuse"] == 0 {
				ms = 1.5
			}
			parted = parted || knobs["fuse"] == 0
			in.Current = kw.Attempt{Candidate: kw.Candidate{Source: schedule.Comment()}, Verdict: kw.Verdict{Status: kw.Correct, CandidateMS: ms, Headroom: share, Metrics: map[string]float64{"memory_share": share}}}
			f := feedback(t, in)
			if f.Kind == kw.Stop {
				break
			}
			in.History = append(in.History, kw.Round{Index: round, Candidate: in.Current.Candidate, Verdict: in.Current.Verdict, Feedback: &f})
			for name, v := range f.Knobs {
				knobs[name] = v
			}
		}
		if parted != want {
			t.Errorf("memory at %.2f: parted: %v", share, parted)
		}
	}
}

// What lost much beside one schedule is tried beside the next when nothing else is left.
func TestSearchRepeatsALossLast(t *testing.T) {
	in := kw.JudgeInput{Want: kw.Optimisation, Device: gpu}
	knobs := map[string]int{"split": 1, "unroll": 4, "share": 4}
	choices := map[string][]int{"split": {1, 2}, "unroll": {1, 2, 4, 8}, "share": {2, 4, 8}}
	var split []bool
	for round := 0; ; round++ {
		if round > 50 {
			t.Fatal("it does not come to an end")
		}
		schedule := kw.Schedule{Knobs: map[string]kw.Knob{}}
		for name, v := range knobs {
			schedule.Knobs[name] = kw.Knob{Value: v, Choices: choices[name]}
		}
		ms := 1.0 - 0.015*float64(knobs["unroll"]) + 0.03*max(float64(knobs["share"])/4, 4/float64(knobs["share"]))
		if knobs["split"] == 2 {
			ms *= 1.5
		}
		in.Current = kw.Attempt{Candidate: kw.Candidate{Source: schedule.Comment()}, Verdict: kw.Verdict{Status: kw.Correct, CandidateMS: ms, Headroom: 0.5}}
		f := feedback(t, in)
		if f.Kind == kw.Stop {
			break
		}
		in.History = append(in.History, kw.Round{Index: round, Candidate: in.Current.Candidate, Verdict: in.Current.Verdict, Feedback: &f})
		for name, v := range f.Knobs {
			knobs[name] = v
		}
		split = append(split, knobs["split"] == 2)
	}
	first := slices.Index(split, true)
	second := first + 1 + slices.Index(split[first+1:], true)
	if first < 0 || second-first < 8 || slices.Contains(split[second:], false) {
		t.Errorf("cut after %v", split)
	}
}
