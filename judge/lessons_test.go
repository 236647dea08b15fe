package judge_test

import (
	"reflect"
	"strings"
	"testing"

	kw "github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/judge"
)

// atTheMemory is a candidate for which memory_ceiling wants nontemporal, fuse and
// passes, in this order.
func atTheMemory() kw.JudgeInput {
	source := kw.Schedule{Knobs: map[string]kw.Knob{
		"nontemporal": {Value: 0, Choices: []int{0, 1}}, "fuse": {Value: 0, Choices: []int{0, 1}}, "unroll": {Value: 2, Choices: []int{1, 2, 4}}}}.Comment()
	return kw.JudgeInput{Want: kw.Optimisation, Device: device, Current: kw.Attempt{
		Candidate: kw.Candidate{Source: source},
		Verdict: kw.Verdict{Status: kw.Correct, CandidateMS: 4, Headroom: 0.5, Floor: kw.Floor{MS: 2, Bound: "memory"},
			Metrics: map[string]float64{"core_use": 0.9, "memory_share": 0.9, "working_set_bytes": 64e6}},
	}}
}

func learned(n int, rule string, ratio float64, steps ...kw.Step) []kw.Lesson {
	l := kw.Lesson{Rule: rule, Steps: steps, FromMS: ratio, ToMS: 1, Status: kw.Correct, Outcome: kw.LessonUnchanged}
	switch {
	case ratio == 0:
		l.ToMS, l.Status, l.Outcome = 0, kw.Wrong, kw.LessonFailed
	case ratio > 1:
		l.Outcome = kw.LessonFaster
	case ratio < 1:
		l.Outcome = kw.LessonSlower
	}
	var all []kw.Lesson
	for range n {
		all = append(all, l)
	}
	return all
}

func TestLessonsDecideAmongWhatIsWanted(t *testing.T) {
	nontemporal, fuse := kw.Step{Knob: "nontemporal", From: 0, To: 1}, kw.Step{Knob: "fuse", From: 0, To: 1}
	up, down := kw.Step{Knob: "unroll", From: 2, To: 4}, kw.Step{Knob: "unroll", From: 2, To: 1}
	const rule = "memory_ceiling"
	both := func(lists ...[]kw.Lesson) (all []kw.Lesson) {
		for _, l := range lists {
			all = append(all, l...)
		}
		return all
	}
	for name, c := range map[string]struct {
		lessons []kw.Lesson
		knob    string
		value   int
		says    string
	}{
		"none":                           {nil, "nontemporal", 1, ""},
		"one helped":                     {learned(1, rule, 1.3, fuse), "fuse", 1, "on this device: 1; faster: 1, slower or wrong: 0."},
		"of another bottleneck":          {learned(9, "idle_cores", 1.3, fuse), "nontemporal", 1, ""},
		"with another knob besides":      {learned(9, rule, 1.3, fuse, up), "nontemporal", 1, ""},
		"another step of the knob":       {learned(9, rule, 1.3, kw.Step{Knob: "fuse", From: 1, To: 0}), "nontemporal", 1, ""},
		"both helped, one more":          {both(learned(2, rule, 1.1, nontemporal), learned(2, rule, 1.6, fuse)), "fuse", 1, ""},
		"one luck against many":          {both(learned(1, rule, 1.3, nontemporal), learned(6, rule, 1.25, fuse)), "fuse", 1, ""},
		"slower once":                    {learned(1, rule, 0.8, nontemporal), "fuse", 1, ""},
		"no difference":                  {learned(9, rule, 1, nontemporal), "nontemporal", 1, "on this device: 9; faster: 0, slower or wrong: 0."},
		"mostly slower":                  {both(learned(3, rule, 0.8, nontemporal), learned(3, rule, 0, fuse)), "unroll", 0, ""},
		"the search goes where it helps": {both(learned(3, rule, 0.8, nontemporal), learned(3, rule, 0.8, fuse), learned(2, "local_search", 1.2, up)), "unroll", 4, "on this device: 2; faster: 2, slower or wrong: 0."},
		"the search keeps away":          {both(learned(3, rule, 0.8, nontemporal), learned(3, rule, 0.8, fuse), learned(3, "local_search", 0.8, up)), "unroll", 1, ""},
		"nothing is left":                {both(learned(3, rule, 0.8, nontemporal), learned(3, rule, 0.8, fuse), learned(3, "x", 0.8, up), learned(3, "", 0, down)), "", 0, "4 more mostly made tasks like this one slower"},
	} {
		t.Run(name, func(t *testing.T) {
			in := atTheMemory()
			in.Lessons = c.lessons
			f := feedback(t, in)
			if !reflect.DeepEqual(f, feedback(t, in)) {
				t.Error("it says something else the second time")
			}
			if c.knob == "" {
				if f.Kind != kw.Stop || !strings.Contains(f.Why, c.says) {
					t.Errorf("%+v", f)
				}
				return
			}
			if _, ok := f.Knobs[c.knob]; !ok || len(f.Knobs) != 1 || c.value > 0 && f.Knobs[c.knob] != c.value {
				t.Errorf("want %s = %d: %+v", c.knob, c.value, f)
			}
			if !strings.Contains(f.Plan, c.says) || c.lessons == nil && strings.Contains(f.Plan, "Earlier tries") {
				t.Errorf("the plan does not say %q: %s", c.says, f.Plan)
			}
		})
	}
}

// Without a schedule whole findings are preferred and left out.
func TestLessonsDecideAmongFindings(t *testing.T) {
	in := kw.JudgeInput{Want: kw.Optimisation, Device: device, Current: kw.Attempt{Verdict: kw.Verdict{
		Status: kw.Correct, CandidateMS: 4, Headroom: 0.5, Metrics: map[string]float64{"pytorch_share": 0.5, "missed_loops": 1}}}}
	said := func(lessons []kw.Lesson) (rules []string, last kw.Feedback) {
		in := in
		in.Lessons = lessons
		for {
			f, err := judge.Rules{}.Judge(t.Context(), in)
			if err != nil {
				t.Fatal(err)
			}
			if f.Kind == kw.Stop {
				return rules, f
			}
			rules = append(rules, f.Rule)
			in.History = append(in.History, kw.Round{Index: len(in.History), Verdict: in.Current.Verdict, Feedback: &f})
		}
	}
	if rules, _ := said(nil); strings.Join(rules, " ") != "pytorch_share not_vectorised roofline_gap" {
		t.Fatal(rules)
	}
	if rules, _ := said(learned(2, "not_vectorised", 1.5)); strings.Join(rules, " ") != "not_vectorised pytorch_share roofline_gap" {
		t.Error(rules)
	}
	rules, end := said(learned(3, "pytorch_share", 0.7))
	if strings.Join(rules, " ") != "not_vectorised roofline_gap" || !strings.Contains(end.Why, "mostly made tasks like this one slower") {
		t.Error(rules, end)
	}
	// What a Coder with a schedule learned is about a knob, not about the advice.
	if rules, _ := said(learned(3, "pytorch_share", 0.7, kw.Step{Knob: "fuse", From: 0, To: 1})); rules[0] != "pytorch_share" {
		t.Error(rules)
	}
}
