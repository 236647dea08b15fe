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

// together emits u steps of a joined walk, those below `to` or, where that is empty,
// all.
func (r *reducing) together(carries []carry, stores []plan.Store, u int, to string) {
	var firsts, seconds []*plan.Value
	for _, c := range carries {
		firsts = append(firsts, c.a.Operand)
		if c.with != nil {
			seconds = append(seconds, c.with.Operand)
		}
	}
	all := slices.Concat(firsts, seconds, plan.StoredValues(stores))
	r.push()
	var loads []*plan.Value
	for _, v := range all {
		plan.Visit(v, func(w *plan.Value) {
			if r.neighbours(w) && r.k.Varies(w) && !slices.Contains(loads, w) {
				loads = append(loads, w)
			}
		})
	}
	for _, v := range loads {
		r.line("%s ahead%d[%d][V];", element(v.DType), v.ID, u)
	}
	for _, c := range carries {
		if c.with == nil {
			continue
		}
		typ, init := r.local(c)
		if r.g.Lanes {
			r.line("%s p%d[V];", typ, c.a.Value.ID)
			r.columns(func() { r.line("p%d[j] = {%s};", c.a.Value.ID, init) })
		} else {
			r.line("%s p%d = {%s};", typ, c.a.Value.ID, init)
		}
	}
	more := strconv.Itoa(u)
	if to != "" {
		more = "more"
		r.line("int more = 0;")
	}
	// All loads are under way before the first of them is waited for: a step past
	// the end loads the first one again.
	r.line("#pragma unroll")
	r.open("for (int c = 0; c < %d; ++c)", u)
	r.push()
	if to == "" {
		r.line("const pos at = begin + c * %d;", r.along())
	} else {
		r.line("const bool inside = begin + c * %d < %s;", r.along(), to)
		r.line("const pos at = inside ? begin + c * %d : begin;", r.along())
		r.line("more += inside;")
	}
	r.within()
	for n := range len(r.g.Order) {
		r.compute(n+1, loads...)
	}
	for _, v := range loads {
		d := r.intoHeld(v)
		d.array = fmt.Sprintf("ahead%d[c]", v.ID)
		r.bring(v, d)
	}
	r.pop()
	r.close()
	walk := func(f func(into func(*plan.Value) destination)) {
		r.line("#pragma unroll")
		r.open("for (int c = 0; c < %d; ++c)", u)
		r.push()
		r.line("const pos at = begin + c * %d;", r.along())
		if to != "" {
			r.line("if (at >= %s) break;", to)
		}
		r.within()
		f(func(v *plan.Value) destination {
			if slices.Contains(loads, v) {
				return destination{array: fmt.Sprintf("ahead%d[c]", v.ID), there: true}
			}
			return destination{}
		})
		r.pop()
		r.close()
	}
	walk(func(into func(*plan.Value) destination) {
		for n := range len(r.g.Order) {
			r.compute(n+1, slices.Concat(firsts, plan.StoredValues(stores))...)
		}
		var brief []*plan.Anchor
		to := map[*plan.Anchor]string{}
		for _, c := range carries {
			to[c.a] = fmt.Sprintf("a%d%s", c.a.Value.ID, r.j())
			if c.with != nil {
				to[c.a] = fmt.Sprintf("p%d%s", c.a.Value.ID, r.j())
				continue // it is the middle of what the second adds up
			}
			brief = r.brief(brief, c.a)
		}
		r.tile(firsts, stores, "live", into, func() {
			for _, c := range carries {
				r.take(brief, c.a, to[c.a])
			}
		})
		for _, a := range brief {
			r.line("%s.v += kw::pairwise_sum(v%d);", to[a], a.Value.ID)
		}
	})
	if slices.ContainsFunc(carries, func(c carry) bool { return c.with != nil && c.a.Value.Op == "mean" }) {
		r.line("const double fraction = kw::reciprocal(%s * %s);", more, r.taken())
	}
	// What is known after these few steps stands where the row's results would: the
	// largest so far, and the mean of these alone.
	for _, c := range carries {
		if c.with == nil {
			continue
		}
		id, t := c.a.Value.ID, cppTypes[c.a.Value.DType]
		text := fmt.Sprintf("a%d%s.under()", id, r.j())
		if c.a.Value.Op == "mean" {
			text = fmt.Sprintf("(%s)(p%d%s.v * fraction)", t, id, r.j())
		} else {
			r.columns(func() { r.line("a%d%s.raise(p%d%s.v);", id, r.j(), id, r.j()) })
		}
		if r.g.Lanes {
			r.line("%s r%d[V];", t, id)
			r.columns(func() { r.line("r%d[j] = %s;", id, text) })
			r.line("%s q%d[V];", r.summed(c.with), id)
			r.columns(func() { r.line("q%d[j] = 0;", id) })
		} else {
			r.line("const %s r%d = %s;", t, id, text)
			r.line("%s q%d = 0;", r.summed(c.with), id)
		}
	}
	r.terms = map[*plan.Value]bool{}
	for _, c := range carries {
		if c.with != nil && c.a.Value.Op == "maxnum" && r.inexactly(c.with) {
			r.terms[c.with.Operand] = true
		}
	}
	r.compute(0, seconds...)
	walk(func(into func(*plan.Value) destination) {
		for n := range len(r.g.Order) {
			r.compute(n+1, seconds...)
		}
		var brief []*plan.Anchor
		for _, c := range carries {
			if c.with != nil {
				brief = r.brief(brief, c.with)
			}
		}
		r.tile(seconds, nil, "", into, func() {
			for _, c := range carries {
				switch {
				case c.with == nil:
				case slices.Contains(brief, c.with):
					r.take(brief, c.with, "")
				default:
					r.line("q%d%s += %s;", c.a.Value.ID, r.j(), r.text(c.with.Operand))
				}
			}
		})
		for _, c := range carries {
			if slices.Contains(brief, c.with) {
				r.line("q%d += kw::pairwise_sum(v%d);", c.a.Value.ID, c.with.Value.ID)
			}
		}
	})
	for _, c := range carries {
		if c.with == nil {
			continue
		}
		id, j := c.a.Value.ID, r.j()
		r.columns(func() {
			if c.a.Value.Op == "mean" {
				r.line("a%d%s.merge({(double)(%s * %s), p%d%s.v * fraction, q%d%s});", id, j, more, r.taken(), id, j, id, j)
			} else {
				r.line("a%d%s.s += q%d%s;", id, j, id, j)
			}
		})
	}
	r.terms = nil
	r.pop()
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
