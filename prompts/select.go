package prompts

import (
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// DefaultSelected is how many skills go into a prompt: more of them dilute
// what is asked, and cost tokens in each round.
const DefaultSelected = 2

// Query says what skills are wanted for.
type Query struct {
	Language  kernelwright.Language // what the candidate is written in
	Operators []string              // those of the task
	// Words say what holds the candidate up or what is wrong with it, what
	// weighs most first: the name of a Judge's rule, words of the vocabulary,
	// sentences of a feedback, names of metrics. None at the first round.
	Words []string
	// Status is that of the verdict that was read; none at the first round. It
	// weighs more than words.
	Status kernelwright.Status
	// ISA is the device's (kernelwright.Specs.ISA), "sm_90". A skill for other
	// architectures alone is left out; without ISA none is.
	ISA []string
	// DTypes are those of the task's inputs and parameters. A skill for others
	// alone is left out; without DTypes none is.
	DTypes []string
}

// failed says whether there is a failure to mend. What was rejected or cheated is
// written anew, as in the first round.
func (q Query) failed() bool {
	switch q.Status {
	case kernelwright.BuildFailed, kernelwright.Crashed, kernelwright.TimedOut, kernelwright.Wrong:
		return true
	}
	return false
}

// asked returns what skills have to help with, what weighs most first. A failure
// is one by its status, whatever a Judge makes of it; words only tell a wrong
// formula from lost precision. They tell what holds up a candidate that is correct,
// and nothing of one that breaks the rules.
func (q Query) asked() []Bottleneck {
	found := FindBottlenecks(q.Words...)
	switch q.Status {
	case "":
		return found
	case kernelwright.BuildFailed:
		return []Bottleneck{BuildError}
	case kernelwright.Crashed, kernelwright.TimedOut:
		return []Bottleneck{Crash}
	case kernelwright.Wrong:
		crash, numerics := slices.Index(found, Crash), slices.Index(found, Numerics)
		if numerics >= 0 && (crash < 0 || numerics < crash) {
			return []Bottleneck{Numerics, Crash}
		}
		return []Bottleneck{Crash, Numerics}
	case kernelwright.Correct, kernelwright.Certified:
		return slices.DeleteFunc(found, func(b Bottleneck) bool { return b == BuildError || b == Crash || b == Numerics })
	}
	return nil
}

// What a skill scores.
const (
	scoreLanguage        = 5 // it is for any task in this language, and for no other language
	scoreOperator        = 4 // it names an operator of the task
	scoreAnyOperator     = 1 // it is for any task
	scoreMainBottleneck  = 8 // what was asked first is first in its list; one less for each place
	scoreLeastBottleneck = 3 // what was asked first is anywhere in its list
	scoreAskedLater      = 3 // what a bottleneck loses that was not asked first, down to 1
	// mainly is how many of a skill's bottlenecks it is mainly about: once such a
	// skill was chosen, nobody else has to be for the same bottleneck.
	mainly = 3
)

// rated is a skill with what speaks for it.
type rated struct {
	skill    Skill
	named    []string // the task's operators that it names
	earliest int      // the place of the first of its patterns that does
	task     int      // what it scores for the task
	trouble  int      // what it scores for what was asked
	about    Bottleneck
}

// Select returns the n skills that fit best (DefaultSelected where n is not
// positive), the best first, or fewer where fewer fit.
//
// A skill is left out if it is for other languages, architectures or dtypes, if it
// names operators of which the task has none, or if it has nothing that is for this
// verdict. Of the others each has the sum of
//
//   - 4 if it names an operator of the task; or 5 if it is for any task ("*") in
//     this language alone; or 1 if it is for any task;
//   - 8 if the bottleneck that was asked first is the first in its list, 7 if
//     it is the second, and so on, but at least 3. One that was asked later
//     gives 3 less, at least 1. The best of these counts.
//
// Who has nothing is left out, too. The best is chosen first. Then goes who
// adds most to it, so that one is on the task and another on the trouble: operators
// that one who was chosen names, and a bottleneck that is among the first three
// of one who was chosen, count no more. Between equals goes who has more in all,
// then who names more of the task's operators, then who names one earlier in its
// list, then the name.
func (s *Skills) Select(q Query, n int) []Skill {
	if n <= 0 {
		n = DefaultSelected
	}
	fit := s.fitting(q)
	var best []Skill
	var named []string
	var covered []Bottleneck
	adds := func(r rated) int {
		sum := 0
		if len(best) == 0 || slices.ContainsFunc(r.named, func(o string) bool { return !slices.Contains(named, o) }) {
			sum += r.task
		}
		if !slices.Contains(covered, r.about) {
			sum += r.trouble
		}
		return sum
	}
	for len(best) < n && len(fit) > 0 {
		at := 0
		for i := range fit { // they are in order: the first of equals is right
			if adds(fit[i]) > adds(fit[at]) {
				at = i
			}
		}
		r := fit[at]
		fit = slices.Delete(fit, at, at+1)
		best = append(best, r.skill)
		named = append(named, r.named...)
		covered = append(covered, r.skill.Bottlenecks[:min(mainly, len(r.skill.Bottlenecks))]...)
	}
	return best
}

// fitting returns the skills that have a score, the highest first.
func (s *Skills) fitting(q Query) []rated {
	asked := q.asked()
	var fit []rated
	for _, skill := range s.all {
		if !slices.Contains(skill.Languages, q.Language) || !fitsDevice(skill.Architectures, q.ISA) || !meet(skill.DTypes, q.DTypes) {
			continue
		}
		if skill.text(q.Language, q.ISA, func(sec *section) bool { return sec.fits(q, asked) }) == "" {
			continue
		}
		r := rated{skill: skill}
		r.named, r.earliest = namedOperators(skill.Operators, q.Operators)
		switch {
		case len(r.named) > 0:
			r.task = scoreOperator
		case slices.Contains(skill.Operators, "*"):
			r.task = scoreAnyOperator
			if len(skill.Languages) == 1 {
				r.task = scoreLanguage
			}
		case len(skill.Operators) > 0:
			continue
		}
		r.about, r.trouble = bottleneckScore(skill.Bottlenecks, asked)
		if r.task+r.trouble > 0 {
			fit = append(fit, r)
		}
	}
	slices.SortStableFunc(fit, func(a, b rated) int { // s.all is by name
		switch x, y := a.task+a.trouble, b.task+b.trouble; {
		case x != y:
			return y - x
		case len(a.named) != len(b.named):
			return len(b.named) - len(a.named)
		}
		return a.earliest - b.earliest
	})
	return fit
}

// namedOperators returns those of the task's operators that a skill's patterns
// name, each once, and the place of the first pattern that names some.
func namedOperators(patterns, operators []string) (named []string, earliest int) {
	earliest = len(patterns)
	for i, pattern := range patterns {
		if pattern == "*" {
			continue
		}
		var here []string
		whole := true
		for part := range strings.SplitSeq(pattern, "+") {
			before := len(here)
			for _, o := range operators {
				if matches(part, o) {
					here = append(here, o)
				}
			}
			whole = whole && len(here) > before
		}
		if whole {
			earliest = min(earliest, i)
			named = append(named, here...)
		}
	}
	slices.Sort(named)
	return slices.Compact(named), earliest
}

// bottleneckScore returns the best score of what was asked for what a skill
// has, and for which one it is.
func bottleneckScore(has, asked []Bottleneck) (about Bottleneck, best int) {
	for i, a := range asked {
		at := slices.Index(has, a)
		if at < 0 {
			continue
		}
		score := max(scoreMainBottleneck-at, scoreLeastBottleneck)
		if i > 0 {
			score = max(score-scoreAskedLater, 1)
		}
		if score > best {
			about, best = a, score
		}
	}
	return about, best
}

func fitsDevice(architectures, isa []string) bool {
	// A device is called "sm_90" where code for it may be built for "sm_90a".
	number := func(all []string) []string {
		var bare []string
		for _, arch := range all {
			bare = append(bare, strings.TrimRight(arch, "af"))
		}
		return bare
	}
	return meet(number(architectures), number(isa))
}

// meet says whether two lists share something, or one says nothing.
func meet[T comparable](a, b []T) bool {
	return len(a) == 0 || len(b) == 0 || slices.ContainsFunc(a, func(x T) bool { return slices.Contains(b, x) })
}

// matches says whether a pattern, in which a * stands for any characters, is
// the whole of a text.
func matches(pattern, text string) bool {
	first, rest, more := strings.Cut(pattern, "*")
	text, ok := strings.CutPrefix(text, first)
	if !ok || !more {
		return ok && text == ""
	}
	for {
		part, after, again := strings.Cut(rest, "*")
		if !again {
			return strings.HasSuffix(text, part)
		}
		_, text, ok = strings.Cut(text, part)
		if !ok {
			return false
		}
		rest = after
	}
}
