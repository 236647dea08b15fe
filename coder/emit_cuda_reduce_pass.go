package coder

import (
	"fmt"
	"slices"
	"strings"
)

// within declares the positions of one step from its number, at.
func (r *reducing) within() {
	if r.g.lanes {
		r.decode("pos", "at", r.g.order)
		return
	}
	if len(r.g.order) == 0 {
		r.line("const pos base = at * V;")
		return
	}
	r.line("const pos base = at %% (%s / V) * V, step = at / (%s / V);", r.size(r.g.inner), r.size(r.g.inner))
	r.decode("pos", "step", r.g.order)
}

// walk runs f over the steps of this thread.
func (r *reducing) walk(f func(into func(*value) destination)) {
	first := "lane"
	if r.g.lanes {
		first = "y"
	}
	if len(r.kept) > 0 {
		r.line("#pragma unroll")
		r.open("for (int c = 0; c < share; ++c)")
		r.push()
		r.line("const pos at = %s + c * %d;", first, r.along())
		if r.steps%r.along() != 0 || !r.g.lanes && r.steps*r.vector%r.along() != 0 {
			r.line("if (c == share - 1 && steps %% %d != 0 && at >= steps) break;", r.along())
		}
		r.within()
		f(func(v *value) destination {
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
func (r *reducing) ahead() int { return r.knobs.get("unroll", loadsAhead) * 4 / r.vector }

// intoHeld is where a step's loads go.
func (r *reducing) intoHeld(v *value) destination {
	n := r.held[v]
	switch {
	case n == "":
		return destination{}
	case r.g.lanes:
		return destination{held: n, whole: true, slot: r.ownSlot()}
	}
	return destination{held: n, whole: r.whole}
}

// index of a thread's carry.
func (r *reducing) j() string {
	if r.g.lanes {
		return "[j]"
	}
	return ""
}

// columns runs over the V columns of a thread, or does once what is to be done
// for a row.
func (r *reducing) columns(f func()) {
	if !r.g.lanes {
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
func (r *reducing) take(brief []*anchor, a *anchor, to string) {
	if slices.Contains(brief, a) {
		r.line("v%d[j] = %s;", a.value.id, bare(r.text(a.operand)))
		return
	}
	r.add(a, to, bare(r.text(a.operand)))
}

// brief declares, for a sum, where the elements of one vector stand that are added up
// before that goes into the sum's double, if the schedule allows float32 for it:
// conversions to double are an eighth as many a cycle as additions. It returns the
// sums that have one so far, and this one where it has.
func (r *reducing) brief(so []*anchor, a *anchor) []*anchor {
	if !r.briefly(a) {
		return so
	}
	r.line("float v%d[V];", a.value.id)
	return append(so, a)
}

// briefly reports whether the schedule allows float32 for the elements of one thread
// that an anchor adds up.
func (g *gpu) briefly(a *anchor) bool {
	return g.inexactly(a) && g.vector > 1 && !g.g.lanes
}

// inexactly reports whether the schedule allows a sum of float32 more than its double's
// error.
func (g *gpu) inexactly(a *anchor) bool { return g.knobs.get("approx", 0) == 1 && addsUp(a) }

// addsUp reports whether an anchor is a sum, a mean or a running sum of float32.
func addsUp(a *anchor) bool {
	v := a.value
	return (v.kind == reduce || v.kind == scan) && (v.op == "sum" || v.op == "mean") && v.dtype == f32 && a.operand.dtype == f32
}

// add is the statement that takes one element.
func (r *reducing) add(a *anchor, to, x string) {
	switch a.value.op {
	case "prod":
		r.line("%s.v *= %s;", to, x)
	case "max", "min", "maxnum":
		r.line("%s.add(%s);", to, x)
	case "argmax", "argmin":
		at := "0"
		switch {
		case r.g.lanes && len(r.g.order) > 0:
			at = fmt.Sprintf("i%d", r.g.order[0])
		case !r.g.lanes:
			at = fmt.Sprintf("i%d", r.g.inner)
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
	var operands []*value
	for _, a := range accs {
		if a.with == nil {
			operands = append(operands, a.operand)
		}
	}
	all := slices.Concat(operands, storedValues(stores))
	r.compute(0, all...)
	r.perColumn(all)
	var carries []carry
	for _, a := range accs {
		if a.with != nil {
			continue
		}
		c := r.carry(a, accs)
		carries = append(carries, c)
		if r.g.lanes {
			r.line("%s a%d[V];", c.typ, a.value.id)
			r.columns(func() { r.line("a%d[j] = {%s};", a.value.id, c.init) })
		} else {
			r.line("%s a%d = {%s};", c.typ, a.value.id, c.init)
		}
	}
	guard := "live"
	if slices.ContainsFunc(carries, func(c carry) bool { return c.with != nil }) {
		r.joined(carries, stores)
	} else {
		r.walk(func(into func(*value) destination) {
			for n := range len(r.g.order) {
				r.compute(n+1, all...)
			}
			var brief []*anchor
			for _, c := range carries {
				brief = r.brief(brief, c.a)
			}
			r.tile(operands, stores, guard, into, func() {
				for _, c := range carries {
					r.take(brief, c.a, fmt.Sprintf("a%d%s", c.a.value.id, r.j()))
				}
			})
			for _, a := range brief {
				r.line("a%d.v += kw::pairwise_sum(v%d);", a.value.id, a.value.id)
			}
		})
	}
	for _, root := range all {
		visit(root, func(v *value) { r.filled[v] = r.filled[v] || r.kept[v] != "" })
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
		id := c.a.value.id
		r.columns(func() {
			if r.g.lanes {
				r.line("a%d[j] = kw::column_reduce<%d, %d>(a%d[j]);", id, r.x, r.y, id)
			} else {
				r.line("a%d = kw::block_reduce<%d>(a%d);", id, r.threads, id)
			}
			if r.parts == 1 {
				return
			}
			if r.g.lanes {
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
	give := func(v *value, text string) {
		t := cppTypes[v.dtype]
		if r.g.lanes {
			r.line("%s r%d[V];", t, v.id)
			r.columns(func() { r.line("r%d[j] = (%s)%s;", v.id, t, text) })
		} else {
			r.line("const %s r%d = (%s)%s;", t, v.id, t, text)
		}
	}
	a := fmt.Sprintf("a%d%s", c.a.value.id, r.j())
	switch op := c.a.value.op; {
	case c.with != nil:
		give(c.a.value, a+".v")
		give(c.with.value, a+".s")
	case op == "mean" && c.a.value.dtype == f32: // a double's last bit does not show in it
		give(c.a.value, fmt.Sprintf("(%s.v * (1.0 / %d))", a, r.k.rowLength()))
	case op == "mean":
		give(c.a.value, fmt.Sprintf("(%s.v / %d)", a, r.k.rowLength()))
	case strings.HasPrefix(op, "arg"):
		give(c.a.value, fmt.Sprintf("(%s.at == %s ? 0 : %s.at)", a, c.last, a))
	default:
		give(c.a.value, a+".v")
	}
}

// recall reads back what the parts left of a stage.
func (r *reducing) recall(stage int) {
	accs, _ := r.of(stage)
	for _, a := range accs {
		if a.with != nil {
			continue
		}
		c := r.carry(a, accs)
		id := a.value.id
		if r.g.lanes {
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
func (r *reducing) perColumn(all []*value) {
	found := r.invariants(all)
	if len(found) == 0 {
		return
	}
	for _, v := range found {
		r.line("%s w%d[V];", cppTypes[v.dtype], v.id)
	}
	r.each(func() {
		r.compute(r.innermost(), found...)
		for _, v := range found {
			r.line("w%d[j] = %s;", v.id, r.text(v))
		}
	})
	for _, v := range found {
		r.rowed[v] = fmt.Sprintf("w%d", v.id)
	}
}

// rowStores writes what there is one of for each row.
func (r *reducing) rowStores() {
	var rows []store
	for _, s := range r.k.stores {
		if s.row {
			rows = append(rows, s)
		}
	}
	if len(rows) == 0 {
		return
	}
	roots := storedValues(rows)
	r.compute(0, roots...)
	if r.g.lanes {
		r.open("if (y == 0 && live)")
		r.each(func() {
			r.compute(r.innermost(), roots...)
			for _, s := range rows {
				r.line("%s[%s] = %s;", s.buf.name, r.at(s), r.text(s.value))
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
		r.line("%s[%s] = %s;", s.buf.name, r.at(s), r.text(s.value))
	}
	r.close()
}
