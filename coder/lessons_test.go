package coder

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
)

// lesson is a step of a task with these kinds that took 4 ms before.
func lesson(kinds, rule, knob string, from, to int, ms float64) kernelwright.Lesson {
	l := kernelwright.Lesson{Kinds: strings.Fields(kinds), Rule: rule, Steps: []kernelwright.Step{{Knob: knob, From: from, To: to}}, FromMS: 4, ToMS: ms, Outcome: kernelwright.LessonFaster}
	switch {
	case ms == 0:
		l.Outcome = kernelwright.LessonFailed
	case ms > 4:
		l.Outcome = kernelwright.LessonSlower
	}
	return l
}

// knobsOf has the Coder propose, and returns the knobs of what came.
func knobsOf(t *testing.T, in kernelwright.CoderInput) (map[string]int, kernelwright.Candidate) {
	t.Helper()
	c, s := propose(t, in)
	values := map[string]int{}
	for name, k := range s.Knobs {
		values[name] = k.Value
	}
	return values, c
}

// softmaxOnGPU is a task whose kinds of operators are a and b. Its start on a GPU
// has share 4, unroll at loadsAhead and vector 4.
func softmaxOnGPU(t *testing.T, lessons ...kernelwright.Lesson) kernelwright.CoderInput {
	f := committed(t)["softmax"]
	f.Graph = f.Resized(1<<13, 1<<10)
	in := onGPU(f)
	in.Task.Operators = []string{"b", "a", "b"}
	in.Lessons = lessons
	return in
}

func TestLessonsMoveTheStart(t *testing.T) {
	plain, _ := knobsOf(t, softmaxOnGPU(t))
	faster := func(kinds string, to int) kernelwright.Lesson { return lesson(kinds, "r", "share", 4, to, 3) }
	for name, c := range map[string]struct {
		lessons []kernelwright.Lesson
		share   int
	}{
		"twice on tasks of the same kinds":   {[]kernelwright.Lesson{faster("a b", 8), faster("a b", 8)}, 8},
		"once is not enough":                 {[]kernelwright.Lesson{faster("a b", 8)}, 4},
		"of other kinds":                     {[]kernelwright.Lesson{faster("a b c", 8), faster("a b c", 8)}, 4},
		"slower as often":                    {[]kernelwright.Lesson{faster("a b", 8), lesson("a b", "r", "share", 4, 8, 5)}, 4},
		"the better of two":                  {[]kernelwright.Lesson{faster("a b", 8), faster("a b", 8), lesson("a b", "r", "share", 4, 2, 1), lesson("a b", "r", "share", 4, 2, 1)}, 2},
		"one step after another":             {[]kernelwright.Lesson{faster("a b", 8), faster("a b", 8), lesson("a b", "q", "share", 8, 16, 3), lesson("a b", "q", "share", 8, 16, 3)}, 16},
		"and not round in circles":           {[]kernelwright.Lesson{faster("a b", 8), faster("a b", 8), lesson("a b", "q", "share", 8, 4, 3), lesson("a b", "q", "share", 8, 4, 3)}, 8},
		"a choice that there is not":         {[]kernelwright.Lesson{faster("a b", 1<<30), faster("a b", 1<<30)}, 4},
		"of a knob that there is not":        {[]kernelwright.Lesson{lesson("a b", "r", "rm", 4, 8, 1), lesson("a b", "r", "rm", 4, 8, 1)}, 4},
		"a time that nobody can have":        {[]kernelwright.Lesson{lesson("a b", "r", "share", 4, 8, math.NaN()), lesson("a b", "r", "share", 4, 8, math.Inf(-1))}, 4},
		"two knobs at once show nothing":     {[]kernelwright.Lesson{both(), both(), both()}, 4},
		"from a value that it does not have": {[]kernelwright.Lesson{lesson("a b", "r", "share", 2, 8, 1), lesson("a b", "r", "share", 2, 8, 1)}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			got, candidate := knobsOf(t, softmaxOnGPU(t, c.lessons...))
			want := maps.Clone(plain)
			want["share"] = c.share
			if !maps.Equal(got, want) {
				t.Errorf("%v, want %v", got, want)
			}
			if told := strings.Contains(candidate.Note, "a lesson: share 4 -> "); told != (c.share != 4) {
				t.Error(candidate.Note)
			}
		})
	}
	if plain["share"] != 4 {
		t.Error(plain)
	}
}

func both() kernelwright.Lesson {
	l := lesson("a b", "r", "share", 4, 8, 1)
	l.Steps = append(l.Steps, kernelwright.Step{Knob: "vector", From: 4, To: 2})
	return l
}

// after is the input of the round after a candidate of this status.
func after(in kernelwright.CoderInput, last kernelwright.Candidate, status kernelwright.Status) kernelwright.CoderInput {
	in.Round++
	in.Last = &kernelwright.Attempt{Candidate: last, Verdict: kernelwright.Verdict{Status: status}}
	return in
}

// A start that a lesson moved, and that failed, is taken back, and the search goes
// on beside the plain one.
func TestALessonThatFailsIsTakenBack(t *testing.T) {
	plain, _ := knobsOf(t, softmaxOnGPU(t))
	in := softmaxOnGPU(t, lesson("a b", "r", "share", 4, 8, 1), lesson("a b", "r", "share", 4, 8, 1))
	moved, first := knobsOf(t, in)
	in = after(in, first, kernelwright.Wrong)
	back, second := knobsOf(t, in)
	if moved["share"] != 8 || !maps.Equal(back, plain) || !strings.Contains(second.Note, "without a lesson") {
		t.Errorf("%v, then %v: %s", moved, back, second.Note)
	}
	in = after(in, second, kernelwright.Correct)
	beside, third := knobsOf(t, in)
	if n := differing(plain, beside); n != 1 {
		t.Errorf("%v differs from %v in %d knobs: %s", beside, plain, n, third.Note)
	}
	// Advice goes before it.
	in.Round, in.Last.Candidate, in.Last.Verdict.Status = 1, first, kernelwright.Wrong
	in.Feedback = &kernelwright.Feedback{Kind: kernelwright.Correction, Knobs: map[string]int{"vector": 1}}
	if advised, _ := knobsOf(t, in); advised["share"] != 8 || advised["vector"] != 1 {
		t.Error(advised)
	}
}

func differing(a, b map[string]int) int {
	n := 0
	for name := range a {
		if a[name] != b[name] {
			n++
		}
	}
	return n
}

// Where nobody advises it, the Coder tries another schedule beside its start in
// each round, in an order that lessons and the seed decide.
func TestTheOrderWithoutAJudge(t *testing.T) {
	order := func(seed int64, rule string, lessons ...kernelwright.Lesson) (steps, notes []string) {
		t.Helper()
		in := softmaxOnGPU(t, lessons...)
		in.Seed = seed
		start, last := knobsOf(t, in)
		for {
			in = after(in, last, kernelwright.Correct)
			if rule != "" {
				in.Feedback = &kernelwright.Feedback{Kind: kernelwright.Optimisation, Rule: rule}
			}
			var knobs map[string]int
			knobs, last = knobsOf(t, in)
			if strings.Contains(last.Note, "schedule unchanged") {
				return steps, notes
			}
			if differing(start, knobs) != 1 || in.Round > 50 {
				t.Fatalf("round %d: %v beside %v", in.Round, knobs, start)
			}
			_, step, _ := strings.Cut(last.Note, "beside the first schedule: ")
			step, _, _ = strings.Cut(step, ",")
			if slices.Contains(steps, step) {
				t.Fatalf("%s is tried twice", step)
			}
			steps, notes = append(steps, step), append(notes, last.Note)
		}
	}
	plain, _ := order(0, "")
	again, _ := order(0, "")
	other, _ := order(1, "")
	if len(plain) < 4 || !slices.Equal(plain, again) || slices.Equal(plain, other) {
		t.Fatalf("%q\n%q\n%q", plain, again, other)
	}
	sorted := func(s []string) []string { return slices.Sorted(slices.Values(s)) }
	if !slices.Equal(sorted(plain), sorted(other)) {
		t.Errorf("another seed tries other schedules: %q, %q", plain, other)
	}
	// What helped once, on tasks that are like this one, goes first; what broke
	// three of them is left out.
	last := plain[len(plain)-1]
	name, values, _ := strings.Cut(last, " ")
	from, to, _ := strings.Cut(values, " -> ")
	helped := lesson("a b c", "r", name, atoi(t, from), atoi(t, to), 3)
	got, notes := order(0, "", helped)
	if want := append([]string{last}, plain[:len(plain)-1]...); !slices.Equal(got, want) || !strings.Contains(notes[0], "a lesson: faster in 1 of 1 tries") {
		t.Errorf("%q, want %q; %s", got, want, notes[0])
	}
	broke := helped
	broke.Outcome = kernelwright.LessonFailed
	if got, _ := order(0, "", broke, broke, broke); !slices.Equal(got, plain[:len(plain)-1]) {
		t.Errorf("%q, want %q", got, plain[:len(plain)-1])
	}
	// What the same rule advised goes before what brought more elsewhere.
	name, values, _ = strings.Cut(plain[1], " ")
	from, to, _ = strings.Cut(values, " -> ")
	under := lesson("a b c", "tail", name, atoi(t, from), atoi(t, to), 3.5)
	if got, _ := order(0, "tail", helped, under); got[0] != plain[1] || got[1] != last {
		t.Errorf("%q, want %s and %s first", got, plain[1], last)
	}
}

func atoi(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
