package coder

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// acc is a running result of one reduction while C++ is emitted.
type acc struct {
	a       *anchor
	typ     string
	init    string
	op      string // of the simd clause
	flagged bool   // whether a NaN was seen is kept beside it
	blocked bool   // a float sum per block is added to it
	local   bool   // of one block of a joined pass
}

func (b *body) acc(a *anchor) acc {
	v := a.value
	t := cppTypes[a.operand.dtype]
	lowest, highest := "-__builtin_inff()", "__builtin_inff()"
	if a.operand.dtype == f64 {
		lowest, highest = "-__builtin_inf()", "__builtin_inf()"
	}
	switch v.op {
	case "prod":
		return acc{a: a, typ: accumulator(v.dtype), init: "1", op: "*"}
	case "max", "argmax":
		return acc{a: a, typ: t, init: lowest, op: "max", flagged: true}
	case "min", "argmin":
		return acc{a: a, typ: t, init: highest, op: "min", flagged: true}
	case "maxnum":
		return acc{a: a, typ: t, init: lowest, op: "max"}
	}
	return acc{a: a, typ: accumulator(v.dtype), init: "0", op: "+",
		blocked: v.dtype == f32 && !b.g.lanes && b.knobs.get("tile", 0) > 0}
}

func (c acc) arg() bool { return strings.HasPrefix(c.a.value.op, "arg") }

// name of the accumulator; a block's own sum when blocked.
func (c acc) name() string {
	if c.local {
		return fmt.Sprintf("p%d", c.a.value.id)
	}
	return fmt.Sprintf("a%d", c.a.value.id)
}

func (c acc) bad() string { return fmt.Sprintf("bad%d", c.a.value.id) }

// join returns the statement that adds x to the accumulator.
func (c acc) join(name, x string) string {
	switch c.op {
	case "max":
		return fmt.Sprintf("%s = %s > %s ? %s : %s;", name, x, name, x, name)
	case "min":
		return fmt.Sprintf("%s = %s < %s ? %s : %s;", name, x, name, x, name)
	}
	return fmt.Sprintf("%s = %s %s %s;", name, name, c.op, x)
}

// reductions emits the passes over one row, or over one tile of rows side by
// side, and then what is stored once per row.
func (b *body) reductions() {
	for _, v := range b.plan.all { // in a fixed order
		if _, home := b.home[v]; b.cached[v] && !home {
			length := b.k.rowLength()
			b.line("alignas(64) float scratch%d[%d];", v.id, length)
		}
	}
	b.prefetch()
	last := 0
	for _, a := range b.k.anchors {
		last = max(last, a.stage)
	}
	for _, s := range b.k.stores {
		if !s.row {
			last = max(last, b.k.stageOf(s.value))
		}
	}
	for stage := 0; stage <= last; stage++ {
		var accs []acc
		var stores []store
		for _, a := range b.k.anchors {
			if a.stage == stage {
				accs = append(accs, b.acc(a))
			}
		}
		for _, s := range b.k.stores {
			if !s.row && b.k.stageOf(s.value) == stage {
				stores = append(stores, s)
			}
		}
		if len(accs)+len(stores) > 0 {
			b.pass(accs, stores)
		}
	}
	var rows []store
	for _, s := range b.k.stores {
		if s.row {
			rows = append(rows, s)
		}
	}
	if len(rows) == 0 {
		return
	}
	roots := storedValues(rows)
	put := func() {
		for _, s := range rows {
			b.line("%s[%s] = %s;", s.buf.name, b.at(s), b.text(s.value))
		}
	}
	b.compute(0, roots...)
	if b.g.lanes {
		b.laneLoop(func() {
			b.compute(len(b.g.order)+1, roots...)
			put()
		})
		return
	}
	put()
}

// prefetch asks for what the next row reads, while this one is worked on: a
// processor's own prefetcher follows the first pass alone, and stands still
// during the others.
func (b *body) prefetch() {
	length := b.k.rowLength()
	if b.knobs.get("prefetch", 0) == 0 || !b.k.rowsFollow(b.g) || b.wide {
		return
	}
	there := b.at(store{})
	asked := map[string]bool{}
	look := func(root *value) {
		visit(root, func(v *value) {
			if v.kind != load || v.dtype != f32 || len(v.args) > 0 || asked[v.buf.name] || b.index(v.idx[0]) != there {
				return
			}
			asked[v.buf.name] = true
			// Behind the end of this row lies the next one.
			i, behind := fmt.Sprintf("i%d", b.g.inner), strconv.Itoa(length)
			at := eachName(there, func(name string) string {
				if name == i {
					return behind
				}
				return name
			})
			b.line("kw::prefetch(%s + %s, %d);", v.buf.name, at, length)
		})
	}
	for _, a := range b.k.anchors {
		look(a.operand)
	}
	for _, s := range b.k.stores {
		look(s.value)
	}
}

// roots returns what a pass computes. What a joined reduction is made of is
// not among it: that needs the result of the other one of its pair.
func roots(accs []acc, stores []store) []*value {
	out := storedValues(stores)
	for _, c := range accs {
		if c.a.with == nil {
			out = append(out, c.a.operand)
		}
	}
	return out
}

// second returns the reduction that shares the pass of c; false for none.
func second(accs []acc, c acc) (acc, bool) {
	for _, d := range accs {
		if d.a.with == c.a {
			return d, true
		}
	}
	return acc{}, false
}

func joined(accs []acc) bool {
	return slices.ContainsFunc(accs, func(c acc) bool { return c.a.with != nil })
}

// pass emits one pass: the loops, then the results r of its reductions.
func (b *body) pass(accs []acc, stores []store) {
	all := roots(accs, stores)
	b.compute(0, all...)
	b.perLane(all)
	if b.called(accs, stores) {
		b.kept(all)
		return
	}
	for _, c := range accs {
		if b.g.lanes {
			b.line("%s %s[%d];", c.typ, c.name(), b.tile)
			b.line("%s r%d[%d];", cppTypes[c.a.value.dtype], c.a.value.id, b.tile)
			if c.flagged && !c.arg() {
				b.line("int %s[%d];", c.bad(), b.tile)
			}
			if c.arg() {
				b.line("long long at%d[%d];", c.a.value.id, b.tile)
			}
		} else {
			b.line("%s %s = %s;", c.typ, c.name(), c.init)
			if c.flagged {
				b.line("int %s = 0;", c.bad())
			}
		}
	}
	if b.g.lanes {
		b.clear(accs)
	}
	switch {
	case b.wide:
		b.wideLoops(accs, stores)
	case joined(accs) && !b.g.lanes:
		b.blocks(accs)
		if len(stores) > 0 {
			b.loops(nil, stores, -1)
		}
	default:
		if joined(accs) {
			b.line("long long seen = 0;")
		}
		b.loops(accs, stores, -1)
	}
	for _, c := range accs {
		v := c.a.value
		t := cppTypes[v.dtype]
		if b.g.lanes {
			b.open("for (long long lane = 0; lane < lanes; ++lane)")
			switch {
			case c.arg():
				b.line("r%d[lane] = at%d[lane];", v.id, v.id)
			case c.flagged:
				b.line("r%d[lane] = %s[lane] ? %s : %s[lane];", v.id, c.bad(), literal(math.NaN(), v.dtype), c.name())
			default:
				b.line("r%d[lane] = %s;", v.id, b.result(accs, c, "[lane]"))
			}
			b.close()
			continue
		}
		switch {
		case c.arg():
			b.search(c)
		case c.flagged:
			b.line("const %s r%d = %s ? %s : %s;", t, v.id, c.bad(), literal(math.NaN(), v.dtype), c.name())
		default:
			b.line("const %s r%d = %s;", t, v.id, b.result(accs, c, ""))
		}
	}
	b.kept(all)
}

// kept notes what a pass has left for those behind it.
func (b *body) kept(all []*value) {
	for _, r := range all {
		visit(r, func(w *value) {
			if b.cached[w] {
				b.ready[w] = true
			}
		})
	}
}

// called emits a pass over one loop, whose one reduction kw/reduce.h has, as a call of
// that, and reports whether it does.
func (b *body) called(accs []acc, stores []store) bool {
	if len(accs) != 1 || b.g.lanes || b.wide || len(b.g.order) > 0 || b.knobs.get("vector", 8) == 1 || b.streams(stores) {
		return false
	}
	c := accs[0]
	v := c.a.value
	unrolled := b.knobs.get("unroll", 1) > 1 && len(stores) == 0 && len(b.cached) == 0
	if c.a.with != nil || unrolled || !c.a.operand.dtype.floating() {
		return false
	}
	name := v.op
	if v.op == "sum" || v.op == "mean" || v.op == "prod" {
		if v.dtype != c.a.operand.dtype {
			return false
		}
		name = b.summed(c)
	}
	n := label(v)
	b.open("const %s %s = kw::%s(%s, [&](long long i%d)", cppTypes[v.dtype], n, name, b.size(b.g.inner), b.g.inner)
	b.push()
	b.computeOnce(roots(accs, stores)...)
	for _, s := range stores {
		b.line("%s[%s] = %s;", s.buf.name, b.at(s), bare(b.text(s.value)))
	}
	b.line("return %s;", bare(b.text(c.a.operand)))
	b.pop()
	b.end()
	b.results[v] = n
	return true
}

// summed is a sum's name with the number of elements that are added up in float; 0
// where none are.
func (b *body) summed(c acc) string {
	switch {
	case c.op != "+":
		return c.a.value.op
	case !c.blocked:
		return c.a.value.op + "<0>"
	case b.tile == 512:
		return c.a.value.op
	}
	return fmt.Sprintf("%s<%d>", c.a.value.op, b.tile)
}

// streams reports whether one of some full stores goes past the cache.
func (b *body) streams(stores []store) bool {
	return b.knobs.get("nontemporal", 0) == 1 && slices.ContainsFunc(stores, func(s store) bool {
		return streamable(b.k, s) && numel(s.buf.shape)*4 >= streamingBytes
	})
}

// result returns what becomes of an accumulator after the last element.
func (b *body) result(accs []acc, c acc, suffix string) string {
	n := c.name() + suffix
	d, pair := second(accs, c)
	switch {
	case c.a.value.op == "mean" && pair && b.g.lanes:
		// It is the mean already.
	case c.a.value.op == "mean":
		n = fmt.Sprintf("(%s / %d)", n, b.k.rowLength())
	case c.a.value.op == "maxnum" && pair && b.g.lanes:
		// No element came near the least float: all were -inf.
		n = fmt.Sprintf("(%s%s == 0 ? %s : %s)", d.name(), suffix, literal(math.Inf(-1), c.a.value.dtype), n)
	}
	return fmt.Sprintf("(%s)%s", cppTypes[c.a.value.dtype], n)
}

// blockLength is how many elements of a row a joined pass takes at a time:
// they are read again at once, and must stay in the first-level cache.
const blockLength = 2048

// blocks emits a joined pass over one row: for each block the reductions that
// need no other, then those that do, with the block's own results; the row's
// are corrected once a block. So every loop is a plain reduction.
func (b *body) blocks(accs []acc) {
	length := b.g.groups[b.g.inner].size
	b.line("long long seen = 0;")
	for n, i := range b.g.order {
		b.open("for (long long i%d = 0; i%d < %s; ++i%d)", i, i, b.size(i), i)
		b.push()
		b.compute(n+1, roots(accs, nil)...)
	}
	size := min(b.knobs.get("tile", 0), blockLength)
	if size <= 0 {
		size = blockLength
	}
	b.open("for (long long block = 0; block < %d; block += %d)", length, size)
	b.push()
	b.line("const long long stop = block + %d < %d ? block + %d : %d, more = stop - block;", size, length, size, length)
	var firsts, seconds []acc
	for _, c := range accs {
		c.local = true
		c.blocked = false
		if c.op == "+" && c.a.value.op == "sum" && c.a.value.dtype == f32 {
			c.typ = "float" // enough for so few, whatever the knob "tile" says
		}
		b.line("%s %s = %s;", c.typ, c.name(), c.init)
		if c.a.with != nil {
			seconds = append(seconds, c)
		} else {
			firsts = append(firsts, c)
		}
	}
	b.rowLoop(firsts, nil, "block", "stop")
	for _, c := range firsts {
		v := c.a.value
		whole := c
		whole.local = false
		d, pair := second(seconds, c)
		if !pair {
			b.line("%s", c.join(whole.name(), c.name()))
			continue
		}
		t := cppTypes[v.dtype]
		if v.op == "maxnum" {
			// Under a maximum of -inf the differences would be NaN.
			zero := literal(0, v.dtype)
			b.line("const %s top%d = %s > %s ? %s : %s;", t, v.id, c.name(), whole.name(), c.name(), whole.name())
			b.line("const %s r%d = top%d == %s ? %s : top%d;", t, v.id, v.id, literal(math.Inf(-1), v.dtype), zero, v.id)
			b.line("if (top%d > %s) a%d *= kw::exp(%s - r%d);", v.id, whole.name(), d.a.value.id, whole.name(), v.id)
			b.line("%s = top%d;", whole.name(), v.id)
		} else {
			b.line("const %s r%d = (%s)(%s / more);", t, v.id, t, c.name())
			b.line("if (seen > 0) { const double apart = r%d - %s / seen; a%d += apart * apart * ((double)seen * more / (seen + more)); }",
				v.id, whole.name(), d.a.value.id)
			b.line("%s += %s;", whole.name(), c.name())
		}
	}
	operands := make([]*value, len(seconds))
	bare := slices.Clone(seconds)
	for i, c := range seconds {
		operands[i] = c.a.operand
		alone := *c.a
		alone.with = nil // within a block it comes after its first, like any other
		bare[i].a = &alone
	}
	for n := range len(b.g.order) + 1 {
		b.compute(n, operands...)
	}
	b.rowLoop(bare, nil, "block", "stop")
	for _, c := range seconds {
		b.line("a%d += %s;", c.a.value.id, c.name())
	}
	b.line("seen += more;")
	b.pop()
	b.close()
	for range b.g.order {
		b.pop()
		b.close()
	}
}

// online emits one element of a pair over rows side by side.
func (b *body) online(c, d acc) {
	x := b.text(c.a.operand)
	m, s, id := c.name()+"[lane]", d.name()+"[lane]", c.a.value.id
	if c.a.value.op == "mean" {
		b.line("const double apart%d = %s - %s;", id, x, m)
		b.line("%s += apart%d * share;", m, id)
		b.line("%s += apart%d * (%s - %s);", s, id, x, m)
		return
	}
	// One exponential does: of the new element under the maximum, or of the
	// old maximum under the new one. x - x is 0, or NaN for an infinity, which
	// makes the sum NaN as in torch.
	t := cppTypes[c.a.value.dtype]
	b.line("const %s old%d = %s, top%d = %s > old%d ? %s : old%d;", t, id, m, id, x, id, x, id)
	b.line("const %s low%d = %s > old%d ? old%d : %s;", t, id, x, id, id, x)
	b.line("const %s e%d = kw::exp(low%d - top%d);", t, id, id, id)
	b.line("const %s sum%d = %s;", d.typ, id, s)
	b.line("const %s grown%d = sum%d * e%d + (1 + (%s - %s)), added%d = sum%d + e%d;", d.typ, id, id, id, x, x, id, id, id)
	b.line("%s = %s > old%d ? grown%d : added%d;", s, x, id, id, id)
	b.line("%s = top%d;", m, id)
}

// clear sets the accumulators of a tile.
func (b *body) clear(accs []acc) {
	if len(accs) == 0 {
		return
	}
	b.open("for (long long lane = 0; lane < lanes; ++lane)")
	for _, c := range accs {
		init := c.init
		if _, pair := second(accs, c); pair && c.a.value.op == "maxnum" {
			// Not -inf, under which an element of -inf would have no difference.
			init = map[dtype]string{f32: "-__FLT_MAX__", f64: "-__DBL_MAX__"}[c.a.value.dtype]
		}
		b.line("%s[lane] = %s;", c.name(), init)
		if c.flagged && !c.arg() {
			b.line("%s[lane] = 0;", c.bad())
		}
		if c.arg() {
			b.line("at%d[lane] = 0;", c.a.value.id)
		}
	}
	b.close()
}

// invariants returns the dear values that differ from row to row of those side by
// side, but not along a row.
func (b *body) invariants(all []*value) []*value {
	if !b.g.lanes || len(b.g.order) == 0 {
		return nil
	}
	var found []*value
	memo := map[*value]int{}
	seen := map[*value]bool{}
	var walk func(v *value)
	walk = func(v *value) {
		if seen[v] || b.rowed[v] != "" {
			return
		}
		seen[v] = true
		if v.kind == point && !b.k.varies(v) && b.level(v, memo) > 0 && (v.cost >= 6 || holds(v, access)) {
			found = append(found, v)
			return
		}
		if v.kind != access {
			for _, a := range v.args {
				walk(a)
			}
		}
	}
	for _, r := range all {
		walk(r)
	}
	return found
}

// perLane computes once per lane what the loops over rows would compute for
// each of their elements.
func (b *body) perLane(all []*value) {
	found := b.invariants(all)
	if len(found) == 0 {
		return
	}
	for _, v := range found {
		b.line("%s w%d[%d];", cppTypes[v.dtype], v.id, b.tile)
	}
	b.laneLoop(func() {
		b.compute(len(b.g.order)+1, found...)
		for _, v := range found {
			b.line("w%d[lane] = %s;", v.id, b.text(v))
		}
	})
	for _, v := range found {
		b.rowed[v] = fmt.Sprintf("w%d", v.id)
	}
}

// wideLoops cuts the longest reduced loop into parts, which threads share, and
// joins their results in order.
func (b *body) wideLoops(accs []acc, stores []store) {
	cut := b.longest()
	size := b.g.groups[cut].size
	n, per := b.parts(cut)
	dim := fmt.Sprintf("[%d]", n)
	if b.g.lanes {
		dim += fmt.Sprintf("[%d]", b.tile)
	}
	for _, c := range accs {
		b.line("static thread_local %s part%d%s;", c.typ, c.a.value.id, dim)
		b.line("%s (*const parts%d)%s = part%d;", c.typ, c.a.value.id, strings.TrimPrefix(dim, fmt.Sprintf("[%d]", n)), c.a.value.id)
		switch {
		case c.arg() && b.g.lanes:
			b.line("static thread_local long long place%d%s;", c.a.value.id, dim)
			b.line("long long (*const places%d)[%d] = place%d;", c.a.value.id, b.tile, c.a.value.id)
		case c.flagged:
			b.line("int flags%d%s;", c.a.value.id, dim)
		}
	}
	b.line("%s", b.parallel(b.threads))
	b.open("for (long long part = 0; part < %d; ++part)", n)
	b.push()
	b.line("const long long from = part * %d, to = part == %d ? %d : from + %d;", per, n-1, size, per)
	for _, c := range accs {
		if b.g.lanes {
			b.line("%s %s[%d];", c.typ, c.name(), b.tile)
			switch {
			case c.arg():
				b.line("long long at%d[%d];", c.a.value.id, b.tile)
			case c.flagged:
				b.line("int %s[%d];", c.bad(), b.tile)
			}
		} else {
			b.line("%s %s = %s;", c.typ, c.name(), c.init)
			if c.flagged {
				b.line("int %s = 0;", c.bad())
			}
		}
	}
	if b.g.lanes {
		b.clear(accs)
	}
	b.loops(accs, stores, cut)
	each := func(f func(at string)) {
		if b.g.lanes && len(accs) > 0 {
			b.open("for (long long lane = 0; lane < lanes; ++lane)")
			f("[lane]")
			b.close()
		} else {
			f("")
		}
	}
	each(func(at string) {
		for _, c := range accs {
			b.line("parts%d[part]%s = %s%s;", c.a.value.id, at, c.name(), at)
			switch {
			case c.arg() && b.g.lanes:
				b.line("places%d[part]%s = at%d%s;", c.a.value.id, at, c.a.value.id, at)
			case c.flagged:
				b.line("flags%d[part]%s = %s%s;", c.a.value.id, at, c.bad(), at)
			}
		}
	})
	b.pop()
	b.close()
	if len(accs) == 0 {
		return
	}
	b.open("for (long long part = 0; part < %d; ++part)", n)
	each(func(at string) {
		for _, c := range accs {
			if c.arg() && b.g.lanes {
				b.better(c, fmt.Sprintf("parts%d[part]%s", c.a.value.id, at), fmt.Sprintf("places%d[part]%s", c.a.value.id, at))
				continue
			}
			b.line("%s", c.join(c.name()+at, fmt.Sprintf("parts%d[part]%s", c.a.value.id, at)))
			if c.flagged {
				b.line("%s%s |= flags%d[part]%s;", c.bad(), at, c.a.value.id, at)
			}
		}
	})
	b.close()
}

// parts returns into how many parts a loop is cut for threads, and how long
// each is but the last.
func (b *body) parts(cut int) (n, per int) {
	size := b.g.groups[cut].size
	n = min(chunks, size)
	per = (size + n - 1) / n
	return (size + per - 1) / per, per
}

// longest returns the reduced loop with the most iterations.
func (b *body) longest() int {
	best := -1
	for i, t := range b.g.groups {
		if t.reduced && (best < 0 || t.size > b.g.groups[best].size) {
			best = i
		}
	}
	return best
}

// loops emits the reduced loops of a pass; the one named cut runs between
// from and to.
func (b *body) loops(accs []acc, stores []store, cut int) {
	all := roots(accs, stores)
	opened := 0
	for n, i := range b.g.order {
		lo, hi := "0", b.size(i)
		if i == cut {
			lo, hi = "from", "to"
		}
		if b.g.lanes && n == len(b.g.order)-1 {
			lo = b.severalRows(accs, stores, lo, hi)
		}
		opened++
		b.open("for (long long i%d = %s; i%d < %s; ++i%d)", i, lo, i, hi, i)
		b.push()
		b.compute(n+1, all...)
	}
	if b.g.lanes {
		if joined(accs) {
			b.line("const double share = 1.0 / (double)++seen;")
		}
		b.storing(stores, "start", "lanes", func(put func(store, string)) {
			b.laneLoop(func() { b.element(accs, stores, "[lane]", put) })
		})
	} else {
		lo, hi := "0", b.size(b.g.inner)
		if b.g.inner == cut {
			lo, hi = "from", "to"
		}
		b.rowLoop(accs, stores, lo, hi)
	}
	for range opened {
		b.pop()
		b.close()
	}
}

// severalRows takes as many rows side by side as the unroll knob says in one
// pass over the accumulators, which then are read and written less often. It
// returns where the rows that are left begin.
func (b *body) severalRows(accs []acc, stores []store, lo, hi string) string {
	unroll := b.knobs.get("unroll", 1)
	if unroll < 2 || len(stores) > 0 || joined(accs) || len(accs) == 0 || slices.ContainsFunc(accs, acc.arg) {
		return lo
	}
	i := b.g.order[len(b.g.order)-1]
	b.loopsMade++
	left := fmt.Sprintf("left%d", b.loopsMade)
	b.line("const long long %s = %s + (%s - (%s)) / %d * %d;", left, lo, hi, lo, unroll, unroll)
	b.open("for (long long rows%d = %s; rows%d < %s; rows%d += %d)", i, lo, i, left, i, unroll)
	b.laneLoop(func() {
		for u := range unroll {
			b.open("")
			b.push()
			b.line("const long long i%d = rows%d + %d;", i, i, u)
			b.compute(len(b.g.order), roots(accs, nil)...)
			b.element(accs, nil, "[lane]", nil)
			b.pop()
			b.close()
		}
	})
	b.close()
	return left
}

// element emits what happens at one position.
func (b *body) element(accs []acc, stores []store, suffix string, put func(store, string)) {
	b.compute(len(b.g.order)+1, roots(accs, stores)...)
	for _, c := range accs {
		if c.a.with != nil {
			continue
		}
		if d, pair := second(accs, c); pair {
			b.online(c, d)
			continue
		}
		x := b.text(c.a.operand)
		switch {
		case c.arg() && b.g.lanes:
			at := "0"
			if len(b.g.order) > 0 {
				at = fmt.Sprintf("i%d", b.g.order[0])
			}
			b.better(c, x, at)
			continue
		case c.blocked:
			b.line("%s", c.join(fmt.Sprintf("f%d%s", c.a.value.id, suffix), x))
		default:
			b.line("%s", c.join(c.name()+suffix, x))
		}
		if c.flagged {
			b.line("%s%s |= %s != %s;", c.bad(), suffix, x, x)
		}
	}
	for _, s := range stores {
		put(s, bare(b.text(s.value)))
	}
}

// better takes element x at a position if it comes before the best so far of
// its lane: the first of equals, and a NaN before anything else.
func (b *body) better(c acc, x, at string) {
	sign := map[string]string{"max": ">", "min": "<"}[c.op]
	n, id := c.name()+"[lane]", c.a.value.id
	b.line("const bool better%d = (%s %s %s) | ((%s != %s) & (%s == %s));", id, x, sign, n, x, x, n, n)
	b.line("at%d[lane] = better%d ? %s : at%d[lane];", id, id, at, id)
	b.line("%s = better%d ? %s : %s;", n, id, x, n)
}

// rowLoop emits the innermost loop along a row, in blocks where a block has
// its own sum or buffer, and unrolled where nothing is stored.
func (b *body) rowLoop(accs []acc, stores []store, lo, hi string) {
	blocks := b.streams(stores) || slices.ContainsFunc(accs, func(c acc) bool { return c.blocked })
	if blocks {
		b.open("for (long long first = %s; first < %s; first += %d)", lo, hi, b.tile)
		b.line("const long long end = first + %d < %s ? first + %d : %s;", b.tile, hi, b.tile, hi)
		lo, hi = "first", "end"
	}
	for _, c := range accs {
		if c.blocked {
			b.line("float f%d = 0;", c.a.value.id)
		}
	}
	unroll := b.knobs.get("unroll", 1)
	if len(stores) > 0 || len(b.cached) > 0 || len(accs) == 0 {
		unroll = 1
	}
	inner := fmt.Sprintf("i%d", b.g.inner)
	name := func(c acc) string {
		if c.blocked {
			return fmt.Sprintf("f%d", c.a.value.id)
		}
		return c.name()
	}
	clause := func(n int) string {
		out := ""
		for _, c := range accs {
			for u := range n {
				out += fmt.Sprintf(" reduction(%s:%s%s)", c.op, name(c), unrolled(u))
				if c.flagged {
					out += fmt.Sprintf(" reduction(|:%s%s)", c.bad(), unrolled(u))
				}
			}
		}
		return out
	}
	b.loopsMade++
	stretch := fmt.Sprintf("stretch%d", b.loopsMade)
	if unroll > 1 {
		b.line("const long long %s = (%s - %s) / %d;", stretch, hi, lo, unroll)
		for _, c := range accs {
			for u := 1; u < unroll; u++ {
				t := c.typ
				if c.blocked {
					t = "float"
				}
				b.line("%s %s%s = %s;", t, name(c), unrolled(u), c.init)
				if c.flagged {
					b.line("int %s%s = 0;", c.bad(), unrolled(u))
				}
			}
		}
		b.simd(clause(unroll), "step", "0", stretch)
		for u := range unroll {
			b.open("")
			b.push()
			b.line("const long long %s = %s + %d * %s + step;", inner, lo, u, stretch)
			b.element(accs, nil, unrolled(u), nil)
			b.pop()
			b.close()
		}
		b.close()
		for _, c := range accs {
			for u := 1; u < unroll; u++ {
				b.line("%s", c.join(name(c), name(c)+unrolled(u)))
				if c.flagged {
					b.line("%s |= %s%s;", c.bad(), c.bad(), unrolled(u))
				}
			}
		}
		lo = fmt.Sprintf("%s + %d * %s", lo, unroll, stretch)
	}
	b.storing(stores, lo, hi+" - "+lo, func(put func(store, string)) {
		if len(accs) == 0 {
			b.each(inner, lo, hi, func() {
				b.computeOnce(storedValues(stores)...)
				b.element(nil, stores, "", put)
			})
			return
		}
		b.simd(clause(1), inner, lo, hi)
		b.push()
		b.element(accs, stores, "", put)
		b.pop()
		b.close()
	})
	for _, c := range accs {
		if c.blocked {
			b.line("%s", c.join(c.name(), fmt.Sprintf("f%d", c.a.value.id)))
		}
	}
	if blocks {
		b.close()
	}
}

func unrolled(u int) string {
	if u == 0 {
		return ""
	}
	return fmt.Sprintf("_%d", u)
}

// search finds the first position of a row's extreme element: where threads
// shared the row, in the first part that has it.
func (b *body) search(c acc) {
	v := c.a.value
	i := fmt.Sprintf("i%d", b.g.inner)
	b.line("long long r%d = 0;", v.id)
	from, to := "0", b.size(b.g.inner)
	if b.wide {
		_, per := b.parts(b.g.inner)
		b.line("long long from%d = 0;", v.id)
		b.line("while (%s ? !flags%d[from%d] : parts%d[from%d] != %s) ++from%d;", c.bad(), v.id, v.id, v.id, v.id, c.name(), v.id)
		from = fmt.Sprintf("from%d * %d", v.id, per)
	}
	b.open("for (long long %s = %s; %s < %s; ++%s)", i, from, i, to, i)
	b.push()
	b.compute(len(b.g.order)+1, c.a.operand)
	x := b.text(c.a.operand)
	b.open("if (%s ? %s != %s : %s == %s)", c.bad(), x, x, x, c.name())
	b.line("r%d = %s;", v.id, i)
	b.line("break;")
	b.close()
	b.pop()
	b.close()
}

// pool emits the windows of one tile: r[lane] for each output of the tile. The
// windows are folded along all dimensions but the last into one line of columns,
// which stays in the first-level cache, and the line then along the last one. So
// the operand is computed once for each element of a window's rows, however
// windows meet or overlap along the line, and in a loop without gaps.
func (b *body) pool(a *anchor) {
	v, w := a.value, a.value.window
	rank := len(w.kernel)
	lead := len(b.k.space) - rank
	name := fmt.Sprintf("r%d", v.id)
	typ := cppTypes[v.dtype]
	carried := typ
	if v.op == "mean" && numel(w.kernel) > 64 {
		carried = "double"
	}
	init := "0"
	if v.op == "max" {
		init = literal(math.Inf(-1), v.dtype)
	}
	// Two selects, one after the other: from one with both conditions GCC makes
	// a branch around the store, and no vectors.
	fold := func(to, x string) {
		if v.op == "max" {
			b.line("const %s old = %s, more = %s > old ? %s : old;", carried, to, x, x)
			b.line("%s = %s != %s ? %s : more;", to, x, x, x)
			return
		}
		b.line("%s += %s;", to, x)
	}
	at := func(d int) string {
		if p := b.position(lead + d); p != "" {
			return p
		}
		return "0"
	}
	d := rank - 1
	step, reach := w.stride[d], w.reach()
	column := fmt.Sprintf("column%d", v.id)
	b.line("%s %s[%d];", typ, name, b.tile)
	if carried != typ {
		b.line("%s acc%d[%d];", carried, v.id, b.tile)
	}
	b.line("%s %s[%d];", carried, column, (b.tile-1)*step+reach)
	b.line("const long long low%d = start * %d - %d, span%d = (lanes - 1) * %d + %d;", v.id, step, w.padding[d], v.id, step, reach)
	b.line("for (long long p = 0; p < span%d; ++p) %s[p] = %s;", v.id, column, init)
	from, to := "0", fmt.Sprintf("span%d", v.id)
	if w.padding[d] > 0 {
		from, to = fmt.Sprintf("from%d", v.id), fmt.Sprintf("to%d", v.id)
		b.line("const long long %s = low%d < 0 ? -low%d : 0;", from, v.id, v.id)
		b.line("const long long %s = %d - low%d < span%d ? %d - low%d : span%d;", to, w.in[d], v.id, v.id, w.in[d], v.id, v.id)
	}
	depth := b.depth
	var window []string
	for d := range rank - 1 {
		b.open("for (int k%d = 0; k%d < %d; ++k%d)", d, d, w.kernel[d], d)
		b.line("const long long y%d = %s * %d - %d + k%d * %d;", d, at(d), w.stride[d], w.padding[d], d, w.dilation[d])
		if w.padding[d] > 0 {
			b.line("if (y%d < 0 || y%d >= %d) continue;", d, d, w.in[d])
		}
		window = append(window, fmt.Sprintf("y%d", d))
	}
	b.simd("", "p", from, to)
	b.push()
	b.line("const long long x = low%d + p;", v.id)
	saved := b.window
	b.window = slices.Concat(window, []string{"x"})
	b.compute(len(b.g.order)+1, a.operand)
	x := b.text(a.operand)
	b.window = saved
	fold(column+"[p]", x)
	b.pop()
	for b.depth > depth {
		b.close()
	}
	b.line("// along the line")
	sum := name
	if carried != typ {
		sum = fmt.Sprintf("acc%d", v.id)
	}
	// A short window is unrolled, so that the loads of neighbouring lanes make
	// whole vectors; a long one is taken one position at a time.
	if w.kernel[d] <= 8 {
		b.simd("", "lane", "0", "lanes")
		b.line("%s f = %s[lane * %d];", carried, column, step)
		for k := 1; k < w.kernel[d]; k++ {
			b.open("")
			b.line("const %s c = %s[lane * %d + %d];", carried, column, step, k*w.dilation[d])
			fold("f", "c")
			b.close()
		}
		b.line("%s[lane] = f;", sum)
		b.close()
	} else {
		b.line("for (long long lane = 0; lane < lanes; ++lane) %s[lane] = %s;", sum, init)
		b.open("for (long long k = 0; k < %d; ++k)", w.kernel[d])
		b.simd("", "lane", "0", "lanes")
		b.line("const %s c = %s[lane * %d + k * %d];", carried, column, step, w.dilation[d])
		fold(sum+"[lane]", "c")
		b.close()
		b.close()
	}
	b.divide(a, sum, at)
}

// divide turns the sums of an average's windows into r.
func (b *body) divide(a *anchor, target string, at func(int) string) {
	v, w := a.value, a.value.window
	rank := len(w.kernel)
	name, typ := fmt.Sprintf("r%d", v.id), cppTypes[v.dtype]
	if v.op != "mean" {
		return
	}
	divisor := w.divisor
	if divisor == 0 && (w.counted || !slices.ContainsFunc(w.padding, func(p int) bool { return p > 0 })) {
		divisor = numel(w.kernel)
	}
	if divisor > 0 {
		b.simd("", "lane", "0", "lanes")
		b.line("%s[lane] = (%s)(%s[lane] / %s);", name, typ, target, literal(float64(divisor), v.dtype))
		b.close()
		return
	}
	// Only what is inside counts.
	d := rank - 1
	b.line("long long inside = 1;")
	for d := range rank - 1 {
		b.open("")
		b.line("const long long a = %s * %d - %d, z = a + %d;", at(d), w.stride[d], w.padding[d], w.kernel[d])
		b.line("inside *= (z < %d ? z : %d) - (a > 0 ? a : 0);", w.in[d], w.in[d])
		b.close()
	}
	b.open("for (long long lane = 0; lane < lanes; ++lane)")
	b.line("const long long a = (start + lane) * %d - %d, z = a + %d;", w.stride[d], w.padding[d], w.kernel[d])
	b.line("%s[lane] = (%s)(%s[lane] / (%s)(inside * ((z < %d ? z : %d) - (a > 0 ? a : 0))));", name, typ, target, typ, w.in[d], w.in[d])
	b.close()
}
