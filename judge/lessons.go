package judge

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/kernelwright/kernelwright"
)

// past is what earlier runs learned on this device, of tasks like this one
// (kernelwright.JudgeInput.Lessons). Without any, nothing that the rules say is
// different.
type past []kernelwright.Lesson

func (p past) of(match func(kernelwright.Lesson) bool) kernelwright.Tally {
	return kernelwright.TallyOf(p, match)
}

// step is what came of one step of one knob, advised by the rule; of any rule,
// where that is empty.
func (p past) step(rule string, st step) kernelwright.Tally {
	want := kernelwright.Step{Knob: st.knob, From: st.from, To: st.to}
	return p.of(func(l kernelwright.Lesson) bool {
		return (rule == "" || l.Rule == rule) && len(l.Steps) == 1 && l.Steps[0] == want
	})
}

// compare puts the steps of a search in order: what brought most first.
func (p past) compare(a, b step) int { return cmp.Compare(p.step("", b).Gain, p.step("", a).Gain) }

// words is what came of a rule's advice where the Coder has no schedule.
func (p past) words(rule string) kernelwright.Tally {
	return p.of(func(l kernelwright.Lesson) bool { return l.Rule == rule && len(l.Steps) == 0 })
}

// moves puts the moves that findings want from a point in the order of what they
// brought so far for the same finding, and leaves out those that mostly made
// things worse. What was not tried counts as what brought nothing. Owner says
// which finding wants each.
func (p past) moves(from point, found []finding, wanted []move, owner []int) ([]move, []int) {
	type choice struct {
		move
		owner int
		gain  float64
	}
	var all []choice
	for i, m := range wanted {
		c := choice{m, owner[i], 0}
		if to, ok := target(from.schedule.Knobs[m.knob], m.to); ok {
			t := p.step(found[owner[i]].rule, step{m.knob, from.knobs[m.knob], to})
			if t.Bad() {
				continue
			}
			c.gain = t.Gain
		}
		all = append(all, c)
	}
	slices.SortStableFunc(all, func(a, b choice) int { return cmp.Compare(b.gain, a.gain) })
	wanted, owner = nil, nil
	for _, c := range all {
		wanted, owner = append(wanted, c.move), append(owner, c.owner)
	}
	return wanted, owner
}

// findings does the same with findings for a Coder without a schedule.
func (p past) findings(found []finding) []finding {
	kept := slices.DeleteFunc(slices.Clone(found), func(f finding) bool { return p.words(f.rule).Bad() })
	slices.SortStableFunc(kept, func(a, b finding) int { return cmp.Compare(p.words(b.rule).Gain, p.words(a.rule).Gain) })
	return kept
}

// neighbours is every step of one knob to the next choice up or down.
func neighbours(schedule kernelwright.Schedule) []step {
	var all []step
	for name, k := range schedule.Knobs {
		for _, way := range []toward{toUp, toDown} {
			if to, ok := target(k, way); ok {
				all = append(all, step{name, k.Value, to})
			}
		}
	}
	return all
}

// steps is every step of one knob to another choice.
func steps(schedule kernelwright.Schedule) []step {
	var all []step
	for name, k := range schedule.Knobs {
		for _, to := range k.Choices {
			if to != k.Value {
				all = append(all, step{name, k.Value, to})
			}
		}
	}
	return all
}

// shunned says, to go on a sentence with, that some steps from the base were not
// tried for what they brought elsewhere; empty where none were.
func (s search) shunned() string {
	from, n := s.base(), 0
	for _, st := range steps(from.schedule) {
		goal := maps.Clone(from.knobs)
		goal[st.knob] = st.to
		if !s.tried[key(goal)] && s.past.step("", st).Bad() {
			n++
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("; %d more mostly made tasks like this one slower", n)
}
