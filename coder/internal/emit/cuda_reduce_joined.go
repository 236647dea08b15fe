package emit

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/kernelwright/kernelwright/coder/internal/plan"
)

// joined emits a walk in which pairs of reductions share a pass: the first of a
// pair over a few steps, then the second with that result: of exponentials under what
// is the largest by then, of squares about these steps' own mean, which are merged with
// what came before. Where all of these steps are there nobody asks for each.
func (r *reducing) joined(carries []carry, stores []plan.Store) {
	first := "lane"
	if r.g.Lanes {
		first = "y"
	}
	from, to := r.bounds()
	u, along := r.ahead(), r.along()
	r.open("for (pos begin = %s + %s; begin < %s; begin += %d * %d)", from, first, to, u, along)
	r.open("if (begin + %d * %d < %s)", u-1, along, to)
	r.together(carries, stores, u, "")
	r.close()
	r.open("else")
	r.together(carries, stores, u, to)
	r.close()
	r.close()
}

// jointly is a few steps of a joined walk.
type jointly struct {
	*reducing
	carries []carry
	stores  []plan.Store
	// Operands of reductions without a second and of the first ones of pairs, and of the
	// second ones.
	firsts, seconds []*plan.Value
	loads           []*plan.Value
	u               int    // steps
	to              string // where they end that are not all there; empty: all are
	more            string // how many there are, as an expression
}

// together emits u steps of a joined walk, those below `to` or, where that is empty,
// all.
func (r *reducing) together(carries []carry, stores []plan.Store, u int, to string) {
	s := &jointly{reducing: r, carries: carries, stores: stores, u: u, to: to, more: strconv.Itoa(u)}
	for _, c := range carries {
		s.firsts = append(s.firsts, c.a.Operand)
		if c.with != nil {
			s.seconds = append(s.seconds, c.with.Operand)
		}
	}
	for _, v := range slices.Concat(s.firsts, s.seconds, plan.StoredValues(stores)) {
		plan.Visit(v, func(w *plan.Value) {
			if r.neighbours(w) && r.k.Varies(w) && !slices.Contains(s.loads, w) {
				s.loads = append(s.loads, w)
			}
		})
	}
	r.push()
	s.declare()
	s.loadAhead()
	s.takeFirsts()
	s.conclude()
	s.takeSeconds()
	s.mergeSeconds()
	r.pop()
}

// pairs calls f for the first of each pair that shares the pass.
func (s *jointly) pairs(f func(c carry)) {
	for _, c := range s.carries {
		if c.with != nil {
			f(c)
		}
	}
}

// declare declares what is loaded, and what the first of each pair comes to in these steps.
func (s *jointly) declare() {
	for _, v := range s.loads {
		s.line("%s ahead%d[%d][V];", element(v.DType), v.ID, s.u)
	}
	s.pairs(func(c carry) {
		typ, init := s.local(c)
		if s.g.Lanes {
			s.line("%s p%d[V];", typ, c.a.Value.ID)
			s.columns(func() { s.line("p%d[j] = {%s};", c.a.Value.ID, init) })
		} else {
			s.line("%s p%d = {%s};", typ, c.a.Value.ID, init)
		}
	})
	if s.to != "" {
		s.more = "more"
		s.line("int more = 0;")
	}
}

// loadAhead has all loads under way before the first of them is waited for: a step past the end
// loads the first one again.
func (s *jointly) loadAhead() {
	s.line("#pragma unroll")
	s.open("for (int c = 0; c < %d; ++c)", s.u)
	s.push()
	if s.to == "" {
		s.line("const pos at = begin + c * %d;", s.along())
	} else {
		s.line("const bool inside = begin + c * %d < %s;", s.along(), s.to)
		s.line("const pos at = inside ? begin + c * %d : begin;", s.along())
		s.line("more += inside;")
	}
	s.within()
	for n := range len(s.g.Order) {
		s.compute(n+1, s.loads...)
	}
	for _, v := range s.loads {
		d := s.intoHeld(v)
		d.array = fmt.Sprintf("ahead%d[c]", v.ID)
		s.bring(v, d)
	}
	s.pop()
	s.close()
}

// walkLoaded walks over what was loaded.
func (s *jointly) walkLoaded(f func(into func(*plan.Value) destination)) {
	s.line("#pragma unroll")
	s.open("for (int c = 0; c < %d; ++c)", s.u)
	s.push()
	s.line("const pos at = begin + c * %d;", s.along())
	if s.to != "" {
		s.line("if (at >= %s) break;", s.to)
	}
	s.within()
	f(func(v *plan.Value) destination {
		if slices.Contains(s.loads, v) {
			return destination{array: fmt.Sprintf("ahead%d[c]", v.ID), there: true}
		}
		return destination{}
	})
	s.pop()
	s.close()
}

// takeFirsts takes the operands of all reductions but the second ones, and writes what is
// stored.
func (s *jointly) takeFirsts() {
	s.walkLoaded(func(into func(*plan.Value) destination) {
		for n := range len(s.g.Order) {
			s.compute(n+1, slices.Concat(s.firsts, plan.StoredValues(s.stores))...)
		}
		var brief []*plan.Anchor
		to := map[*plan.Anchor]string{}
		for _, c := range s.carries {
			to[c.a] = fmt.Sprintf("a%d%s", c.a.Value.ID, s.j())
			if c.with != nil {
				to[c.a] = fmt.Sprintf("p%d%s", c.a.Value.ID, s.j())
				continue // it is the middle of what the second adds up
			}
			brief = s.brief(brief, c.a)
		}
		s.tile(s.firsts, s.stores, "live", into, func() {
			for _, c := range s.carries {
				s.take(brief, c.a, to[c.a])
			}
		})
		for _, a := range brief {
			s.line("%s.v += kw::pairwise_sum(v%d);", to[a], a.Value.ID)
		}
	})
}

// conclude declares what is known after these few steps where the row's results would
// stand: the largest so far, and the mean of these alone.
func (s *jointly) conclude() {
	if slices.ContainsFunc(s.carries, func(c carry) bool { return c.with != nil && c.a.Value.Op == "mean" }) {
		s.line("const double fraction = kw::reciprocal(%s * %s);", s.more, s.taken())
	}
	s.pairs(func(c carry) {
		id, t := c.a.Value.ID, cppTypes[c.a.Value.DType]
		text := fmt.Sprintf("a%d%s.under()", id, s.j())
		if c.a.Value.Op == "mean" {
			text = fmt.Sprintf("(%s)(p%d%s.v * fraction)", t, id, s.j())
		} else {
			s.columns(func() { s.line("a%d%s.raise(p%d%s.v);", id, s.j(), id, s.j()) })
		}
		if s.g.Lanes {
			s.line("%s r%d[V];", t, id)
			s.columns(func() { s.line("r%d[j] = %s;", id, text) })
			s.line("%s q%d[V];", s.summed(c.with), id)
			s.columns(func() { s.line("q%d[j] = 0;", id) })
		} else {
			s.line("const %s r%d = %s;", t, id, text)
			s.line("%s q%d = 0;", s.summed(c.with), id)
		}
	})
}

// takeSeconds takes the operands of the second ones, with what the first came to.
func (s *jointly) takeSeconds() {
	s.terms = map[*plan.Value]bool{}
	s.pairs(func(c carry) {
		if c.a.Value.Op == "maxnum" && s.inexactly(c.with) {
			s.terms[c.with.Operand] = true
		}
	})
	s.compute(0, s.seconds...)
	s.walkLoaded(func(into func(*plan.Value) destination) {
		for n := range len(s.g.Order) {
			s.compute(n+1, s.seconds...)
		}
		var brief []*plan.Anchor
		s.pairs(func(c carry) { brief = s.brief(brief, c.with) })
		s.tile(s.seconds, nil, "", into, func() {
			s.pairs(func(c carry) {
				if slices.Contains(brief, c.with) {
					s.take(brief, c.with, "")
				} else {
					s.line("q%d%s += %s;", c.a.Value.ID, s.j(), s.text(c.with.Operand))
				}
			})
		})
		s.pairs(func(c carry) {
			if slices.Contains(brief, c.with) {
				s.line("q%d += kw::pairwise_sum(v%d);", c.a.Value.ID, c.with.Value.ID)
			}
		})
	})
}

// mergeSeconds adds what the second ones came to in these steps to what came before.
func (s *jointly) mergeSeconds() {
	s.pairs(func(c carry) {
		id, j := c.a.Value.ID, s.j()
		s.columns(func() {
			if c.a.Value.Op == "mean" {
				s.line("a%d%s.merge({(double)(%s * %s), p%d%s.v * fraction, q%d%s});", id, j, s.more, s.taken(), id, j, id, j)
			} else {
				s.line("a%d%s.s += q%d%s;", id, j, id, j)
			}
		})
	})
	s.terms = nil
}

// mostBrief is how many elements a sum takes one after the other in float32, where the
// schedule allows that: what equal ones lose then is two units in the last place.
const mostBrief = 16

// summed is the type in which the second of a pair is added up over a few steps.
func (r *reducing) summed(a *plan.Anchor) string {
	if r.inexactly(a) && r.ahead() <= mostBrief {
		return "float"
	}
	return "double"
}

// taken is how many elements of one row a thread takes in a step.
func (r *reducing) taken() string {
	if r.g.Lanes {
		return "1"
	}
	return "V"
}

// local is what the first of a pair is carried in over a few steps.
func (r *reducing) local(c carry) (typ, init string) {
	if c.a.Value.Op == "mean" {
		return "kw::Sum<double>", "0" // equal elements have themselves for their mean
	}
	return "kw::MaxNum<" + cppTypes[c.a.Operand.DType] + ">", literal(math.Inf(-1), c.a.Operand.DType)
}
