package coder

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/coder/internal/plan"
)

// enoughTries is how often a step must have been tried for the first schedule to
// take it: that one nobody has measured yet.
const enoughTries = 2

// learned is the schedule to begin with: the given one, with each knob moved by the
// steps that made most tasks with the very same kinds of operators faster, as far
// as lessons go. It says why, or nothing where it moves none.
func learned(s plan.Knobs, in kernelwright.CoderInput) (plan.Knobs, string) {
	kinds := slices.Clone(in.Task.Operators)
	slices.Sort(kinds)
	kinds = slices.Compact(kinds)
	same := slices.DeleteFunc(slices.Clone(in.Lessons), func(l kernelwright.Lesson) bool { return !slices.Equal(l.Kinds, kinds) })
	if len(kinds) == 0 || len(same) == 0 {
		return s, ""
	}
	var said []string
	for _, name := range slices.Sorted(maps.Keys(s)) {
		been := []int{s[name].Value}
		var all kernelwright.Tally
		for {
			var best kernelwright.Tally
			to := s[name].Value
			for _, c := range s[name].Choices {
				t := tally(same, kernelwright.Step{Knob: name, From: s[name].Value, To: c}, "")
				if !slices.Contains(been, c) && t.Tried >= enoughTries && 2*t.Faster > t.Tried && t.Gain > best.Gain {
					best, to = t, c
				}
			}
			if best.Tried == 0 {
				break
			}
			all.Tried, all.Faster = all.Tried+best.Tried, all.Faster+best.Faster
			s, been = s.With(map[string]int{name: to}), append(been, to)
		}
		if len(been) > 1 {
			said = append(said, fmt.Sprintf("%s %d -> %d (faster in %d of %d tries)", name, been[0], s[name].Value, all.Faster, all.Tried))
		}
	}
	if len(said) == 0 {
		return s, ""
	}
	return s, "a lesson: " + strings.Join(said, ", ")
}

// tally is what came of a step; with a rule, of those alone that it advised.
func tally(lessons []kernelwright.Lesson, step kernelwright.Step, rule string) kernelwright.Tally {
	return kernelwright.TallyOf(lessons, func(l kernelwright.Lesson) bool {
		return len(l.Steps) == 1 && l.Steps[0] == step && (rule == "" || l.Rule == rule)
	})
}

// beside is a schedule one step of one knob beside the start: another in each
// round, first those whose step helped most by the lessons, then in an order that
// the seed draws. Where the feedback names a rule, lessons of its advice go first.
// Steps that mostly made things worse are left out. It is false when no schedule
// is left.
func (w writer) beside(start plan.Knobs, in kernelwright.CoderInput) (plan.Knobs, string, bool) {
	code, err := w.code(start)
	if err != nil {
		return nil, "", false
	}
	rule := ""
	if in.Feedback != nil {
		rule = in.Feedback.Rule
	}
	type choice struct {
		kernelwright.Step
		under, all kernelwright.Tally
		lot        uint64
	}
	var choices []choice
	for name, k := range w.offered(start, code) {
		at := slices.Index(k.Choices, k.Value)
		for _, i := range []int{at - 1, at + 1} {
			if i < 0 || i >= len(k.Choices) {
				continue
			}
			c := choice{Step: kernelwright.Step{Knob: name, From: k.Value, To: k.Choices[i]}}
			if c.all = tally(in.Lessons, c.Step, ""); c.all.Bad() {
				continue
			}
			if rule != "" {
				c.under = tally(in.Lessons, c.Step, rule)
			}
			h := fnv.New64a()
			fmt.Fprintf(h, "%d %s %d %d", in.Seed, name, c.From, c.To)
			c.lot = h.Sum64()
			choices = append(choices, c)
		}
	}
	slices.SortFunc(choices, func(a, b choice) int {
		return cmp.Or(cmp.Compare(b.under.Gain, a.under.Gain), cmp.Compare(b.all.Gain, a.all.Gain), cmp.Compare(a.lot, b.lot), strings.Compare(a.Knob, b.Knob), cmp.Compare(a.To, b.To))
	})
	if in.Round < 1 || in.Round > len(choices) {
		return nil, "", false
	}
	c := choices[in.Round-1]
	said := fmt.Sprintf("beside the first schedule: %s %d -> %d", c.Knob, c.From, c.To)
	if c.all.Gain > 0 {
		said += fmt.Sprintf(", a lesson: faster in %d of %d tries", c.all.Faster, c.all.Tried)
	}
	return start.With(map[string]int{c.Knob: c.To}), said, true
}
