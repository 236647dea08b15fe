package judge

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// search is a local search over the knobs of a schedule, the best first. It
// moves one knob at a time from the fastest correct schedule so far, by one
// choice up or down unless a rule asks for an end of the range, and never to the
// same place twice. When every neighbour of the fastest was tried, it goes on
// from those that are nearly as fast: what one knob lost there another may win,
// and a knob may do something there that it does not beside the fastest. Where
// none is left that is near enough, it looks further along each knob of the
// fastest, and then ends. Everything it knows it reads from the rounds: it keeps
// nothing.
type search struct {
	known   bool // the current candidate states a schedule
	current point
	best    *point  // nil until something was correct
	right   []point // all that were
	tried   map[string]bool
	gained  []step // moves that made things faster, the latest last
	lost    map[step]bool
	seed    int64
	past    past
}

// point is a schedule that was measured.
type point struct {
	round    int
	schedule kernelwright.Schedule
	knobs    map[string]int
	verdict  kernelwright.Verdict
}

// step is one knob going from one value to another.
type step struct {
	knob     string
	from, to int
}

// next is where to go, from where, and how to say it.
type next struct {
	step
	start  point
	words  string
	target map[string]int
	asked  int // which of the wanted moves it is; -1 for none
}

// realGain is what a move must bring for the search to go on the same way:
// less is timing noise.
const realGain = 0.02

// nearBest is how much slower than the fastest a schedule may be for the search
// to go on from it: more than single knobs mostly bring is not made up for. A step
// that loses more is not gone again, beside another schedule, before all others were.
const nearBest = 0.1

// memoryHolds is the share of the memory's bandwidth that the task's bytes have,
// from which the search parts nothing that was joined.
const memoryHolds = 0.5

func newSearch(in kernelwright.JudgeInput) search {
	s := search{tried: map[string]bool{}, lost: map[step]bool{}, seed: in.Seed, past: in.Lessons}
	rounds := slices.Concat(in.History, []kernelwright.Round{
		{Index: len(in.History), Candidate: in.Current.Candidate, Verdict: in.Current.Verdict}})
	for i, r := range rounds {
		schedule, ok := kernelwright.ParseSchedule(r.Candidate.Source)
		s.known = ok && len(schedule.Knobs) > 0
		if !s.known {
			continue
		}
		p := point{round: r.Index, schedule: schedule, knobs: values(schedule), verdict: r.Verdict}
		s.current = p
		s.tried[key(p.knobs)] = true
		// What was advised counts as tried too: a Coder that cannot do it
		// gives something else, and would be asked for ever.
		if f := r.Feedback; f != nil && i < len(rounds)-1 && len(f.Knobs) > 0 {
			target := maps.Clone(p.knobs)
			maps.Copy(target, f.Knobs)
			s.tried[key(target)] = true
		}
		if !r.Verdict.Status.OK() || r.Verdict.CandidateMS <= 0 {
			continue
		}
		if s.best != nil && r.Verdict.CandidateMS < s.best.verdict.CandidateMS*(1-realGain) {
			if d := changed(s.best.knobs, p.knobs); len(d) == 1 {
				s.gained = append(s.gained, d[0])
			}
		}
		for _, q := range s.right {
			if d := changed(q.knobs, p.knobs); len(d) == 1 && r.Verdict.CandidateMS > q.verdict.CandidateMS*(1+nearBest) {
				s.lost[d[0]] = true
			}
		}
		s.right = append(s.right, p)
		if s.best == nil || r.Verdict.CandidateMS < s.best.verdict.CandidateMS {
			s.best = &p
		}
	}
	return s
}

// base is where the next move starts: the best schedule, else the current one.
func (s search) base() point {
	if s.best != nil {
		return *s.best
	}
	return s.current
}

// next chooses the next move: from the base one that a rule wants; else one
// more step the way that helped last; else any, in an order that the seed
// decides. Then any from the next best, and what lies further from the base. A step
// that lost much beside one schedule is gone beside others when no other is left. It
// is false when all were tried.
func (s search) next(wanted []move) (next, bool) {
	if n, ok := s.choose(wanted); ok {
		return n, true
	}
	s.lost = nil
	return s.choose(wanted)
}

func (s search) choose(wanted []move) (next, bool) {
	from := s.base()
	for i, m := range wanted {
		k, ok := from.schedule.Knobs[m.knob]
		if !ok {
			continue
		}
		to, ok := target(k, m.to)
		if !ok {
			continue
		}
		if n, ok := s.try(from, m.knob, to, i); ok {
			return n, true
		}
	}
	for _, g := range slices.Backward(s.gained) {
		k, ok := from.schedule.Knobs[g.knob]
		if !ok || k.Value != g.to { // the best has moved on since
			continue
		}
		way := toUp
		if g.to < g.from {
			way = toDown
		}
		if to, ok := target(k, way); ok {
			if n, ok := s.try(from, g.knob, to, -1); ok {
				return n, true
			}
		}
	}
	if n, ok := s.any(from, neighbours(from.schedule)); ok {
		return n, true
	}
	others := slices.Clone(s.right)
	slices.SortStableFunc(others, func(a, b point) int { return cmp.Compare(a.verdict.CandidateMS, b.verdict.CandidateMS) })
	for _, p := range others {
		if p.verdict.CandidateMS > s.best.verdict.CandidateMS*(1+nearBest) {
			break
		}
		if n, ok := s.any(p, neighbours(p.schedule)); ok {
			return n, true
		}
	}
	return s.any(from, steps(from.schedule))
}

// any is a schedule one of these steps from one that was measured, which was not
// tried yet. What helped on other tasks comes first, then what is near, and what
// takes back something that spares work last. It goes no step that mostly made
// other tasks slower.
func (s search) any(from point, all []step) (next, bool) {
	slices.SortFunc(all, func(a, b step) int {
		return cmp.Or(cmp.Compare(s.last(a), s.last(b)), s.past.compare(a, b), cmp.Compare(distance(from, a), distance(from, b)),
			cmp.Compare(s.lot(a), s.lot(b)), strings.Compare(fmt.Sprint(a), fmt.Sprint(b)))
	})
	for _, m := range all {
		// What memory holds back gets no faster by moving more.
		if m.knob == "fuse" && m.to < m.from && from.verdict.Metrics["memory_share"] >= memoryHolds {
			continue
		}
		if n, ok := s.try(from, m.knob, m.to, -1); ok {
			return n, true
		}
	}
	return next{}, false
}

// distance is how many choices a step of a point's schedule goes.
func distance(from point, st step) int {
	choices := slices.Sorted(slices.Values(from.schedule.Knobs[st.knob].Choices))
	to, _ := slices.BinarySearch(choices, st.to)
	at, _ := slices.BinarySearch(choices, st.from)
	return max(to-at, at-to)
}

// last is 1 for a step that takes back what spares traffic, or what keeps all of a
// GPU at work, and helped on no other task, else 0: others are worth a try even if
// they made other tasks slower.
func (s search) last(st step) int {
	if s.past.step("", st).Gain > 0 {
		return 0
	}
	if st.to < st.from && (st.knob == "keep" || st.knob == "split" || st.knob == "fuse") || st.knob == "team" && st.to == 0 {
		return 1
	}
	return 0
}

func (s search) try(from point, knob string, to, asked int) (next, bool) {
	goal := maps.Clone(from.knobs)
	goal[knob] = to
	if s.tried[key(goal)] {
		return next{}, false
	}
	st := step{knob, from.knobs[knob], to}
	if s.lost[st] {
		return next{}, false
	}
	if asked < 0 && s.past.step("", st).Bad() {
		return next{}, false
	}
	return next{step: st, start: from, words: fmt.Sprintf("set %s from %d to %d", knob, st.from, st.to), target: goal, asked: asked}, true
}

// lot breaks ties: the same seed draws the same order.
func (s search) lot(st step) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s %d %d", s.seed, st.knob, st.from, st.to)
	return h.Sum64()
}

// difference is what the current candidate has to change to come to a target.
func (s search) difference(goal map[string]int) map[string]int {
	d := map[string]int{}
	for name, v := range goal {
		if now, ok := s.current.knobs[name]; !ok || now != v {
			d[name] = v
		}
	}
	return d
}

// target is the choice of a knob that lies that way; false when it is there.
func target(k kernelwright.Knob, way toward) (int, bool) {
	choices := slices.Sorted(slices.Values(k.Choices))
	to := k.Value
	switch way {
	case toUp, toDown:
		for _, c := range choices {
			if way == toUp && c > k.Value {
				return c, true
			}
			if way == toDown && c < k.Value {
				to = c
			}
		}
	case toMost, toLeast:
		if len(choices) == 0 {
			return 0, false
		}
		to = choices[0]
		if way == toMost {
			to = choices[len(choices)-1]
		}
	}
	return to, to != k.Value
}

func values(s kernelwright.Schedule) map[string]int {
	m := make(map[string]int, len(s.Knobs))
	for name, k := range s.Knobs {
		m[name] = k.Value
	}
	return m
}

func key(knobs map[string]int) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(knobs)) {
		fmt.Fprintf(&b, "%s=%d ", name, knobs[name])
	}
	return b.String()
}

func changed(from, to map[string]int) []step {
	var d []step
	for _, name := range slices.Sorted(maps.Keys(to)) {
		if v, ok := from[name]; ok && v != to[name] {
			d = append(d, step{name, v, to[name]})
		}
	}
	return d
}
