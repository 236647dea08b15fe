package emit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright/coder/internal/plan"
)

// within declares the positions of one step from its number, at.
func (r *reducing) within() {
	if r.g.Lanes {
		r.decode("pos", "at", r.g.Order)
		return
	}
	if len(r.g.Order) == 0 {
		r.line("const pos base = at * V;")
		return
	}
	r.line("const pos base = at %% (%s / V) * V, step = at / (%s / V);", r.size(r.g.Inner), r.size(r.g.Inner))
	r.decode("pos", "step", r.g.Order)
}

// walk runs f over the steps of this thread.
func (r *reducing) walk(f func(into func(*plan.Value) destination)) {
	first := "lane"
	if r.g.Lanes {
		first = "y"
	}
	if len(r.kept) > 0 {
		r.line("#pragma unroll")
		r.open("for (int c = 0; c < share; ++c)")
		r.push()
		r.line("const pos at = %s + c * %d;", first, r.along())
		if r.steps%r.along() != 0 || !r.g.Lanes && r.steps*r.vector%r.along() != 0 {
			r.line("if (c == share - 1 && steps %% %d != 0 && at >= steps) break;", r.along())
		}
		r.within()
		f(func(v *plan.Value) destination {
			if n := r.kept[v]; n != "" {
				return destination{array: n + "[c]", there: r.filled[v]}
			}
			return destination{}
		})
		r.pop()
		r.close()
		return
	}
	from, to := r.bounds()
	r.line("#pragma unroll %d", r.ahead())
	r.open("for (pos at = %s + %s; at < %s; at += %d)", from, first, to, r.along())
	r.push()
	r.within()
	f(r.intoHeld)
	if r.after != nil {
		r.after()
	}
	r.pop()
	r.close()
}

// bounds are the steps of a block: those of its part of a row.
func (r *reducing) bounds() (from, to string) {
	if r.parts > 1 || r.team > 0 {
		return "from", "to"
	}
	return "0", "steps"
}

// ahead is how many loads a thread has under way: more where each is of fewer bytes.
func (r *reducing) ahead() int { return r.knobs.Get("unroll", loadsAhead) * 4 / r.vector }

// intoHeld is where a step's loads go.
func (r *reducing) intoHeld(v *plan.Value) destination {
	n := r.held[v]
	switch {
	case n == "":
		return destination{}
	case r.g.Lanes:
		return destination{held: n, whole: true, slot: r.ownSlot()}
	}
	return destination{held: n, whole: r.whole}
}

// index of a thread's carry.
func (r *reducing) j() string {
	if r.g.Lanes {
		return "[j]"
	}
	return ""
}

// columns runs over the V columns of a thread, or does once what is to be done
// for a row.
func (r *reducing) columns(f func()) {
	if !r.g.Lanes {
		f()
		return
	}
	r.line("#pragma unroll")
	r.open("for (int j = 0; j < V; ++j)")
	f()
	r.close()
}

// take is the statement that takes one element of an anchor's operand, into its
// vector where it has one.
func (r *reducing) take(brief []*plan.Anchor, a *plan.Anchor, to string) {
	if slices.Contains(brief, a) {
		r.line("v%d[j] = %s;", a.Value.ID, bare(r.text(a.Operand)))
		return
	}
	r.add(a, to, bare(r.text(a.Operand)))
}

// brief declares, for a sum, where the elements of one vector stand that are added up
// before that goes into the sum's double, if the schedule allows float32 for it:
// conversions to double are an eighth as many a cycle as additions. It returns the
// sums that have one so far, and this one where it has.
func (r *reducing) brief(so []*plan.Anchor, a *plan.Anchor) []*plan.Anchor {
	if !r.briefly(a) {
		return so
	}
	r.line("float v%d[V];", a.Value.ID)
	return append(so, a)
}

// briefly reports whether the schedule allows float32 for the elements of one thread
// that an anchor adds up.
func (g *gpu) briefly(a *plan.Anchor) bool {
	return g.inexactly(a) && g.vector > 1 && !g.g.Lanes
}

// inexactly reports whether the schedule allows a sum of float32 more than its double's
// error.
func (g *gpu) inexactly(a *plan.Anchor) bool { return g.knobs.Get("approx", 0) == 1 && addsUp(a) }

// addsUp reports whether an anchor is a sum, a mean or a running sum of float32.
func addsUp(a *plan.Anchor) bool {
	v := a.Value
	return (v.Kind == plan.Reduce || v.Kind == plan.Scan) && (v.Op == "sum" || v.Op == "mean") && v.DType == plan.F32 && a.Operand.DType == plan.F32
}

// add is the statement that takes one element.
func (r *reducing) add(a *plan.Anchor, to, x string) {
	switch a.Value.Op {
	case "prod":
		r.line("%s.v *= %s;", to, x)
	case "max", "min", "maxnum":
		r.line("%s.add(%s);", to, x)
	case "argmax", "argmin":
		at := "0"
		switch {
		case r.g.Lanes && len(r.g.Order) > 0:
			at = fmt.Sprintf("i%d", r.g.Order[0])
		case !r.g.Lanes:
			at = fmt.Sprintf("i%d", r.g.Inner)
		}
		r.line("%s.add(%s, %s);", to, x, at)
	default:
		r.line("%s.v += %s;", to, x)
	}
}

// pass emits one walk over the rows, and the results of its reductions.
func (r *reducing) pass(stage int) {
	accs, stores := r.of(stage)
	if len(accs)+len(stores) == 0 {
		return
	}
	var operands []*plan.Value
	for _, a := range accs {
		if a.With == nil {
			operands = append(operands, a.Operand)
		}
	}
	all := slices.Concat(operands, plan.StoredValues(stores))
	r.compute(0, all...)
	r.perColumn(all)
	var carries []carry
	for _, a := range accs {
		if a.With != nil {
			continue
		}
		c := r.carry(a, accs)
		carries = append(carries, c)
		if r.g.Lanes {
			r.line("%s a%d[V];", c.typ, a.Value.ID)
			r.columns(func() { r.line("a%d[j] = {%s};", a.Value.ID, c.init) })
		} else {
			r.line("%s a%d = {%s};", c.typ, a.Value.ID, c.init)
		}
	}
	guard := "live"
	if slices.ContainsFunc(carries, func(c carry) bool { return c.with != nil }) {
		r.joined(carries, stores)
	} else {
		r.walk(func(into func(*plan.Value) destination) {
			for n := range len(r.g.Order) {
				r.compute(n+1, all...)
			}
			var brief []*plan.Anchor
			for _, c := range carries {
				brief = r.brief(brief, c.a)
			}
			r.tile(operands, stores, guard, into, func() {
				for _, c := range carries {
					r.take(brief, c.a, fmt.Sprintf("a%d%s", c.a.Value.ID, r.j()))
				}
			})
			for _, a := range brief {
				r.line("a%d.v += kw::pairwise_sum(v%d);", a.Value.ID, a.Value.ID)
			}
		})
	}
	for _, root := range all {
		plan.Visit(root, func(v *plan.Value) { r.filled[v] = r.filled[v] || r.kept[v] != "" })
	}
	r.merge(carries)
}

// merge joins what the threads hold. Where a row has parts it is left for the
// next kernel, else it becomes the results.
func (r *reducing) merge(carries []carry) {
	if r.team > 0 {
		r.meet(carries)
		return
	}
	for _, c := range carries {
		id := c.a.Value.ID
		r.columns(func() {
			if r.g.Lanes {
				r.line("a%d[j] = kw::column_reduce<%d, %d>(a%d[j]);", id, r.x, r.y, id)
			} else {
				r.line("a%d = kw::block_reduce<%d>(a%d);", id, r.threads, id)
			}
			if r.parts == 1 {
				return
			}
			if r.g.Lanes {
				r.line("if (y == 0 && live) reinterpret_cast<%s*>(part%d)[(row * %d + part) * width + base + j] = a%d[j];", c.typ, id, r.parts, id)
			} else {
				r.line("if (lane == 0 && live) reinterpret_cast<%s*>(part%d)[row * %d + part] = a%d;", c.typ, id, r.parts, id)
			}
		})
		if r.parts == 1 {
			r.results(c)
		}
	}
}

// results declares what the rest of the kernel reads of a carry.
func (r *reducing) results(c carry) {
	give := func(v *plan.Value, text string) {
		t := cppTypes[v.DType]
		if r.g.Lanes {
			r.line("%s r%d[V];", t, v.ID)
			r.columns(func() { r.line("r%d[j] = (%s)%s;", v.ID, t, text) })
		} else {
			r.line("const %s r%d = (%s)%s;", t, v.ID, t, text)
		}
	}
	a := fmt.Sprintf("a%d%s", c.a.Value.ID, r.j())
	switch op := c.a.Value.Op; {
	case c.with != nil:
		give(c.a.Value, a+".v")
		give(c.with.Value, a+".s")
	case op == "mean" && c.a.Value.DType == plan.F32: // a double's last bit does not show in it
		give(c.a.Value, fmt.Sprintf("(%s.v * (1.0 / %d))", a, r.k.RowLength()))
	case op == "mean":
		give(c.a.Value, fmt.Sprintf("(%s.v / %d)", a, r.k.RowLength()))
	case strings.HasPrefix(op, "arg"):
		give(c.a.Value, fmt.Sprintf("(%s.at == %s ? 0 : %s.at)", a, c.last, a))
	default:
		give(c.a.Value, a+".v")
	}
}

// recall reads back what the parts left of a stage.
func (r *reducing) recall(stage int) {
	accs, _ := r.of(stage)
	for _, a := range accs {
		if a.With != nil {
			continue
		}
		c := r.carry(a, accs)
		id := a.Value.ID
		if r.g.Lanes {
			r.line("%s a%d[V];", c.typ, id)
			r.columns(func() {
				r.line("a%d[j] = {%s};", id, c.init)
				r.line("for (int p = y; p < %d; p += %d) a%d[j].merge(reinterpret_cast<const %s*>(part%d)[(row * %d + p) * width + base + j]);",
					r.parts, r.y, id, c.typ, id, r.parts)
				r.line("a%d[j] = kw::column_reduce<%d, %d>(a%d[j]);", id, r.x, r.y, id)
			})
		} else {
			r.line("%s a%d = {%s};", c.typ, id, c.init)
			r.line("for (int p = lane; p < %d; p += %d) a%d.merge(reinterpret_cast<const %s*>(part%d)[row * %d + p]);",
				r.parts, r.threads, id, c.typ, id, r.parts)
			r.line("a%d = kw::block_reduce<%d>(a%d);", id, r.threads, id)
		}
		r.results(c)
	}
}

// perColumn computes once per column what a walk would compute for each of its
// elements.
func (r *reducing) perColumn(all []*plan.Value) {
	found := r.invariants(all)
	if len(found) == 0 {
		return
	}
	for _, v := range found {
		r.line("%s w%d[V];", cppTypes[v.DType], v.ID)
	}
	r.each(func() {
		r.compute(r.innermost(), found...)
		for _, v := range found {
			r.line("w%d[j] = %s;", v.ID, r.text(v))
		}
	})
	for _, v := range found {
		r.rowed[v] = fmt.Sprintf("w%d", v.ID)
	}
}

// rowStores writes what there is one of for each row.
func (r *reducing) rowStores() {
	var rows []plan.Store
	for _, s := range r.k.Stores {
		if s.Row {
			rows = append(rows, s)
		}
	}
	if len(rows) == 0 {
		return
	}
	roots := plan.StoredValues(rows)
	r.compute(0, roots...)
	if r.g.Lanes {
		r.open("if (y == 0 && live)")
		r.each(func() {
			r.compute(r.innermost(), roots...)
			for _, s := range rows {
				r.line("%s[%s] = %s;", s.Buf.Name, r.at(s), r.text(s.Value))
			}
		})
		r.close()
		return
	}
	if r.team > 0 {
		r.open("if (lane == 0 && part == 0)")
	} else {
		r.open("if (lane == 0 && live)")
	}
	for _, s := range rows {
		r.line("%s[%s] = %s;", s.Buf.Name, r.at(s), r.text(s.Value))
	}
	r.close()
}
