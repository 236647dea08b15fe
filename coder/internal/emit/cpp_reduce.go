package emit

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/kernelwright/kernelwright/coder/internal/plan"
)

// acc is a running result of one reduction while C++ is emitted.
type acc struct {
	a       *plan.Anchor
	typ     string
	init    string
	op      string // of the simd clause
	flagged bool   // whether a NaN was seen is kept beside it
	blocked bool   // a float sum per block is added to it
	local   bool   // of one block of a joined pass
}

func (b *body) acc(a *plan.Anchor) acc {
	v := a.Value
	t := cppTypes[a.Operand.DType]
	lowest, highest := "-__builtin_inff()", "__builtin_inff()"
	if a.Operand.DType == plan.F64 {
		lowest, highest = "-__builtin_inf()", "__builtin_inf()"
	}
	switch v.Op {
	case "prod":
		return acc{a: a, typ: accumulator(v.DType), init: "1", op: "*"}
	case "max", "argmax":
		return acc{a: a, typ: t, init: lowest, op: "max", flagged: true}
	case "min", "argmin":
		return acc{a: a, typ: t, init: highest, op: "min", flagged: true}
	case "maxnum":
		return acc{a: a, typ: t, init: lowest, op: "max"}
	}
	return acc{a: a, typ: accumulator(v.DType), init: "0", op: "+",
		blocked: v.DType == plan.F32 && !b.g.Lanes && b.knobs.Get("tile", 0) > 0}
}

func (c acc) arg() bool { return strings.HasPrefix(c.a.Value.Op, "arg") }

// name of the accumulator; a block's own sum when blocked.
func (c acc) name() string {
	if c.local {
		return fmt.Sprintf("p%d", c.a.Value.ID)
	}
	return fmt.Sprintf("a%d", c.a.Value.ID)
}

func (c acc) bad() string { return fmt.Sprintf("bad%d", c.a.Value.ID) }

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
	for _, v := range b.plan.All { // in a fixed order
		if _, home := b.home[v]; b.cached[v] && !home {
			length := b.k.RowLength()
			b.line("alignas(64) float scratch%d[%d];", v.ID, length)
		}
	}
	b.prefetch()
	last := 0
	for _, a := range b.k.Anchors {
		last = max(last, a.Stage)
	}
	for _, s := range b.k.Stores {
		if !s.Row {
			last = max(last, b.k.StageOf(s.Value))
		}
	}
	for stage := 0; stage <= last; stage++ {
		var accs []acc
		var stores []plan.Store
		for _, a := range b.k.Anchors {
			if a.Stage == stage {
				accs = append(accs, b.acc(a))
			}
		}
		for _, s := range b.k.Stores {
			if !s.Row && b.k.StageOf(s.Value) == stage {
				stores = append(stores, s)
			}
		}
		if len(accs)+len(stores) > 0 {
			b.pass(accs, stores)
		}
	}
	var rows []plan.Store
	for _, s := range b.k.Stores {
		if s.Row {
			rows = append(rows, s)
		}
	}
	if len(rows) == 0 {
		return
	}
	roots := plan.StoredValues(rows)
	put := func() {
		for _, s := range rows {
			b.line("%s[%s] = %s;", s.Buf.Name, b.at(s), b.text(s.Value))
		}
	}
	b.compute(0, roots...)
	if b.g.Lanes {
		b.laneLoop(func() {
			b.compute(len(b.g.Order)+1, roots...)
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
	length := b.k.RowLength()
	if b.knobs.Get("prefetch", 0) == 0 || !b.k.RowsFollow(b.g) || b.wide {
		return
	}
	there := b.at(plan.Store{})
	asked := map[string]bool{}
	look := func(root *plan.Value) {
		plan.Visit(root, func(v *plan.Value) {
			if v.Kind != plan.Load || v.DType != plan.F32 || len(v.Args) > 0 || asked[v.Buf.Name] || b.index(v.Idx[0]) != there {
				return
			}
			asked[v.Buf.Name] = true
			// Behind the end of this row lies the next one.
			i, behind := fmt.Sprintf("i%d", b.g.Inner), strconv.Itoa(length)
			at := eachName(there, func(name string) string {
				if name == i {
					return behind
				}
				return name
			})
			b.line("kw::prefetch(%s + %s, %d);", v.Buf.Name, at, length)
		})
	}
	for _, a := range b.k.Anchors {
		look(a.Operand)
	}
	for _, s := range b.k.Stores {
		look(s.Value)
	}
}

// roots returns what a pass computes. What a joined reduction is made of is
// not among it: that needs the result of the other one of its pair.
func roots(accs []acc, stores []plan.Store) []*plan.Value {
	out := plan.StoredValues(stores)
	for _, c := range accs {
		if c.a.With == nil {
			out = append(out, c.a.Operand)
		}
	}
	return out
}

// second returns the reduction that shares the pass of c; false for none.
func second(accs []acc, c acc) (acc, bool) {
	for _, d := range accs {
		if d.a.With == c.a {
			return d, true
		}
	}
	return acc{}, false
}

func joined(accs []acc) bool {
	return slices.ContainsFunc(accs, func(c acc) bool { return c.a.With != nil })
}

// pass emits one pass: the loops, then the results r of its reductions.
func (b *body) pass(accs []acc, stores []plan.Store) {
	all := roots(accs, stores)
	b.compute(0, all...)
	b.perLane(all)
	if b.called(accs, stores) {
		b.kept(all)
		return
	}
	for _, c := range accs {
		if b.g.Lanes {
			b.line("%s %s[%d];", c.typ, c.name(), b.tile)
			b.line("%s r%d[%d];", cppTypes[c.a.Value.DType], c.a.Value.ID, b.tile)
			if c.flagged && !c.arg() {
				b.line("int %s[%d];", c.bad(), b.tile)
			}
			if c.arg() {
				b.line("long long at%d[%d];", c.a.Value.ID, b.tile)
			}
		} else {
			b.line("%s %s = %s;", c.typ, c.name(), c.init)
			if c.flagged {
				b.line("int %s = 0;", c.bad())
			}
		}
	}
	if b.g.Lanes {
		b.clear(accs)
	}
	switch {
	case b.wide:
		b.wideLoops(accs, stores)
	case joined(accs) && !b.g.Lanes:
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
		v := c.a.Value
		t := cppTypes[v.DType]
		if b.g.Lanes {
			b.open("for (long long lane = 0; lane < lanes; ++lane)")
			switch {
			case c.arg():
				b.line("r%d[lane] = at%d[lane];", v.ID, v.ID)
			case c.flagged:
				b.line("r%d[lane] = %s[lane] ? %s : %s[lane];", v.ID, c.bad(), literal(math.NaN(), v.DType), c.name())
			default:
				b.line("r%d[lane] = %s;", v.ID, b.result(accs, c, "[lane]"))
			}
			b.close()
			continue
		}
		switch {
		case c.arg():
			b.search(c)
		case c.flagged:
			b.line("const %s r%d = %s ? %s : %s;", t, v.ID, c.bad(), literal(math.NaN(), v.DType), c.name())
		default:
			b.line("const %s r%d = %s;", t, v.ID, b.result(accs, c, ""))
		}
	}
	b.kept(all)
}

// kept notes what a pass has left for those behind it.
func (b *body) kept(all []*plan.Value) {
	for _, r := range all {
		plan.Visit(r, func(w *plan.Value) {
			if b.cached[w] {
				b.ready[w] = true
			}
		})
	}
}

// called emits a pass over one loop, whose one reduction kw/reduce.h has, as a call of
// that, and reports whether it does.
func (b *body) called(accs []acc, stores []plan.Store) bool {
	if len(accs) != 1 || b.g.Lanes || b.wide || len(b.g.Order) > 0 || b.knobs.Get("vector", 8) == 1 || b.streams(stores) {
		return false
	}
	c := accs[0]
	v := c.a.Value
	unrolled := b.knobs.Get("unroll", 1) > 1 && len(stores) == 0 && len(b.cached) == 0
	if c.a.With != nil || unrolled || !c.a.Operand.DType.Floating() {
		return false
	}
	name := v.Op
	if v.Op == "sum" || v.Op == "mean" || v.Op == "prod" {
		if v.DType != c.a.Operand.DType {
			return false
		}
		name = b.summed(c)
	}
	n := b.label(v)
	b.open("const %s %s = kw::%s(%s, [&](long long i%d)", cppTypes[v.DType], n, name, b.size(b.g.Inner), b.g.Inner)
	b.push()
	b.computeOnce(roots(accs, stores)...)
	for _, s := range stores {
		b.line("%s[%s] = %s;", s.Buf.Name, b.at(s), bare(b.text(s.Value)))
	}
	b.line("return %s;", bare(b.text(c.a.Operand)))
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
		return c.a.Value.Op
	case !c.blocked:
		return c.a.Value.Op + "<0>"
	case b.tile == 512:
		return c.a.Value.Op
	}
	return fmt.Sprintf("%s<%d>", c.a.Value.Op, b.tile)
}

// streams reports whether one of some full stores goes past the cache.
func (b *body) streams(stores []plan.Store) bool {
	return b.knobs.Get("nontemporal", 0) == 1 && slices.ContainsFunc(stores, func(s plan.Store) bool {
		return plan.Streamable(b.k, s) && plan.Numel(s.Buf.Shape)*4 >= plan.StreamingBytes
	})
}

// result returns what becomes of an accumulator after the last element.
func (b *body) result(accs []acc, c acc, suffix string) string {
	n := c.name() + suffix
	d, pair := second(accs, c)
	switch {
	case c.a.Value.Op == "mean" && pair && b.g.Lanes:
		// It is the mean already.
	case c.a.Value.Op == "mean":
		n = fmt.Sprintf("(%s / %d)", n, b.k.RowLength())
	case c.a.Value.Op == "maxnum" && pair && b.g.Lanes:
		// No element came near the least float: all were -inf.
		n = fmt.Sprintf("(%s%s == 0 ? %s : %s)", d.name(), suffix, literal(math.Inf(-1), c.a.Value.DType), n)
	}
	return fmt.Sprintf("(%s)%s", cppTypes[c.a.Value.DType], n)
}

// blockLength is how many elements of a row a joined pass takes at a time:
// they are read again at once, and must stay in the first-level cache.
const blockLength = 2048

// blocks emits a joined pass over one row: for each block the reductions that
// need no other, then those that do, with the block's own results; the row's
// are corrected once a block. So every loop is a plain reduction.
func (b *body) blocks(accs []acc) {
	length := b.g.Groups[b.g.Inner].Size
	b.line("long long seen = 0;")
	for n, i := range b.g.Order {
		b.open("for (long long i%d = 0; i%d < %s; ++i%d)", i, i, b.size(i), i)
		b.push()
		b.compute(n+1, roots(accs, nil)...)
	}
	size := min(b.knobs.Get("tile", 0), blockLength)
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
		if c.op == "+" && c.a.Value.Op == "sum" && c.a.Value.DType == plan.F32 {
			c.typ = "float" // enough for so few, whatever the knob "tile" says
		}
		b.line("%s %s = %s;", c.typ, c.name(), c.init)
		if c.a.With != nil {
			seconds = append(seconds, c)
		} else {
			firsts = append(firsts, c)
		}
	}
	b.rowLoop(firsts, nil, "block", "stop")
	for _, c := range firsts {
		v := c.a.Value
		whole := c
		whole.local = false
		d, pair := second(seconds, c)
		if !pair {
			b.line("%s", c.join(whole.name(), c.name()))
			continue
		}
		t := cppTypes[v.DType]
		if v.Op == "maxnum" {
			// Under a maximum of -inf the differences would be NaN.
			zero := literal(0, v.DType)
			b.line("const %s top%d = %s > %s ? %s : %s;", t, v.ID, c.name(), whole.name(), c.name(), whole.name())
			b.line("const %s r%d = top%d == %s ? %s : top%d;", t, v.ID, v.ID, literal(math.Inf(-1), v.DType), zero, v.ID)
			b.line("if (top%d > %s) a%d *= kw::exp(%s - r%d);", v.ID, whole.name(), d.a.Value.ID, whole.name(), v.ID)
			b.line("%s = top%d;", whole.name(), v.ID)
		} else {
			b.line("const %s r%d = (%s)(%s / more);", t, v.ID, t, c.name())
			b.line("if (seen > 0) { const double apart = r%d - %s / seen; a%d += apart * apart * ((double)seen * more / (seen + more)); }",
				v.ID, whole.name(), d.a.Value.ID)
			b.line("%s += %s;", whole.name(), c.name())
		}
	}
	operands := make([]*plan.Value, len(seconds))
	bare := slices.Clone(seconds)
	for i, c := range seconds {
		operands[i] = c.a.Operand
		alone := *c.a
		alone.With = nil // within a block it comes after its first, like any other
		bare[i].a = &alone
	}
	for n := range len(b.g.Order) + 1 {
		b.compute(n, operands...)
	}
	b.rowLoop(bare, nil, "block", "stop")
	for _, c := range seconds {
		b.line("a%d += %s;", c.a.Value.ID, c.name())
	}
	b.line("seen += more;")
	b.pop()
	b.close()
	for range b.g.Order {
		b.pop()
		b.close()
	}
}

// online emits one element of a pair over rows side by side.
func (b *body) online(c, d acc) {
	x := b.text(c.a.Operand)
	m, s, id := c.name()+"[lane]", d.name()+"[lane]", c.a.Value.ID
	if c.a.Value.Op == "mean" {
		b.line("const double apart%d = %s - %s;", id, x, m)
		b.line("%s += apart%d * share;", m, id)
		b.line("%s += apart%d * (%s - %s);", s, id, x, m)
		return
	}
	// One exponential does: of the new element under the maximum, or of the
	// old maximum under the new one. x - x is 0, or NaN for an infinity, which
	// makes the sum NaN as in torch.
	t := cppTypes[c.a.Value.DType]
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
		if _, pair := second(accs, c); pair && c.a.Value.Op == "maxnum" {
			// Not -inf, under which an element of -inf would have no difference.
			init = map[plan.DType]string{plan.F32: "-__FLT_MAX__", plan.F64: "-__DBL_MAX__"}[c.a.Value.DType]
		}
		b.line("%s[lane] = %s;", c.name(), init)
		if c.flagged && !c.arg() {
			b.line("%s[lane] = 0;", c.bad())
		}
		if c.arg() {
			b.line("at%d[lane] = 0;", c.a.Value.ID)
		}
	}
	b.close()
}

// invariants returns the dear values that differ from row to row of those side by
// side, but not along a row.
func (b *body) invariants(all []*plan.Value) []*plan.Value {
	if !b.g.Lanes || len(b.g.Order) == 0 {
		return nil
	}
	var found []*plan.Value
	memo := map[*plan.Value]int{}
	seen := map[*plan.Value]bool{}
	var walk func(v *plan.Value)
	walk = func(v *plan.Value) {
		if seen[v] || b.rowed[v] != "" {
			return
		}
		seen[v] = true
		if v.Kind == plan.Point && !b.k.Varies(v) && b.level(v, memo) > 0 && (v.Cost >= 6 || plan.Holds(v, plan.Access)) {
			found = append(found, v)
			return
		}
		if v.Kind != plan.Access {
			for _, a := range v.Args {
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
func (b *body) perLane(all []*plan.Value) {
	found := b.invariants(all)
	if len(found) == 0 {
		return
	}
	for _, v := range found {
		b.line("%s w%d[%d];", cppTypes[v.DType], v.ID, b.tile)
	}
	b.laneLoop(func() {
		b.compute(len(b.g.Order)+1, found...)
		for _, v := range found {
			b.line("w%d[lane] = %s;", v.ID, b.text(v))
		}
	})
	for _, v := range found {
		b.rowed[v] = fmt.Sprintf("w%d", v.ID)
	}
}

// wideLoops cuts the longest reduced loop into parts, which threads share, and
// joins their results in order.
func (b *body) wideLoops(accs []acc, stores []plan.Store) {
	cut := b.longest()
	size := b.g.Groups[cut].Size
	n, per := b.parts(cut)
	dim := fmt.Sprintf("[%d]", n)
	if b.g.Lanes {
		dim += fmt.Sprintf("[%d]", b.tile)
	}
	for _, c := range accs {
		b.line("static thread_local %s part%d%s;", c.typ, c.a.Value.ID, dim)
		b.line("%s (*const parts%d)%s = part%d;", c.typ, c.a.Value.ID, strings.TrimPrefix(dim, fmt.Sprintf("[%d]", n)), c.a.Value.ID)
		switch {
		case c.arg() && b.g.Lanes:
			b.line("static thread_local long long place%d%s;", c.a.Value.ID, dim)
			b.line("long long (*const places%d)[%d] = place%d;", c.a.Value.ID, b.tile, c.a.Value.ID)
		case c.flagged:
			b.line("int flags%d%s;", c.a.Value.ID, dim)
		}
	}
	b.line("%s", b.parallel(b.threads))
	b.open("for (long long part = 0; part < %d; ++part)", n)
	b.push()
	b.line("const long long from = part * %d, to = part == %d ? %d : from + %d;", per, n-1, size, per)
	for _, c := range accs {
		if b.g.Lanes {
			b.line("%s %s[%d];", c.typ, c.name(), b.tile)
			switch {
			case c.arg():
				b.line("long long at%d[%d];", c.a.Value.ID, b.tile)
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
	if b.g.Lanes {
		b.clear(accs)
	}
	b.loops(accs, stores, cut)
	each := func(f func(at string)) {
		if b.g.Lanes && len(accs) > 0 {
			b.open("for (long long lane = 0; lane < lanes; ++lane)")
			f("[lane]")
			b.close()
		} else {
			f("")
		}
	}
	each(func(at string) {
		for _, c := range accs {
			b.line("parts%d[part]%s = %s%s;", c.a.Value.ID, at, c.name(), at)
			switch {
			case c.arg() && b.g.Lanes:
				b.line("places%d[part]%s = at%d%s;", c.a.Value.ID, at, c.a.Value.ID, at)
			case c.flagged:
				b.line("flags%d[part]%s = %s%s;", c.a.Value.ID, at, c.bad(), at)
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
			if c.arg() && b.g.Lanes {
				b.better(c, fmt.Sprintf("parts%d[part]%s", c.a.Value.ID, at), fmt.Sprintf("places%d[part]%s", c.a.Value.ID, at))
				continue
			}
			b.line("%s", c.join(c.name()+at, fmt.Sprintf("parts%d[part]%s", c.a.Value.ID, at)))
			if c.flagged {
				b.line("%s%s |= flags%d[part]%s;", c.bad(), at, c.a.Value.ID, at)
			}
		}
	})
	b.close()
}

// parts returns into how many parts a loop is cut for threads, and how long
// each is but the last.
func (b *body) parts(cut int) (n, per int) {
	size := b.g.Groups[cut].Size
	n = min(chunks, size)
	per = (size + n - 1) / n
	return (size + per - 1) / per, per
}

// longest returns the reduced loop with the most iterations.
func (b *body) longest() int {
	best := -1
	for i, t := range b.g.Groups {
		if t.Reduced && (best < 0 || t.Size > b.g.Groups[best].Size) {
			best = i
		}
	}
	return best
}

// loops emits the reduced loops of a pass; the one named cut runs between
// from and to.
func (b *body) loops(accs []acc, stores []plan.Store, cut int) {
	all := roots(accs, stores)
	opened := 0
	for n, i := range b.g.Order {
		lo, hi := "0", b.size(i)
		if i == cut {
			lo, hi = "from", "to"
		}
		if b.g.Lanes && n == len(b.g.Order)-1 {
			lo = b.severalRows(accs, stores, lo, hi)
		}
		opened++
		b.open("for (long long i%d = %s; i%d < %s; ++i%d)", i, lo, i, hi, i)
		b.push()
		b.compute(n+1, all...)
	}
	if b.g.Lanes {
		if joined(accs) {
			b.line("const double share = 1.0 / (double)++seen;")
		}
		b.storing(stores, "start", "lanes", func(put func(plan.Store, string)) {
			b.laneLoop(func() { b.element(accs, stores, "[lane]", put) })
		})
	} else {
		lo, hi := "0", b.size(b.g.Inner)
		if b.g.Inner == cut {
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
func (b *body) severalRows(accs []acc, stores []plan.Store, lo, hi string) string {
	unroll := b.knobs.Get("unroll", 1)
	if unroll < 2 || len(stores) > 0 || joined(accs) || len(accs) == 0 || slices.ContainsFunc(accs, acc.arg) {
		return lo
	}
	i := b.g.Order[len(b.g.Order)-1]
	b.loopsMade++
	left := fmt.Sprintf("left%d", b.loopsMade)
	b.line("const long long %s = %s + (%s - (%s)) / %d * %d;", left, lo, hi, lo, unroll, unroll)
	b.open("for (long long rows%d = %s; rows%d < %s; rows%d += %d)", i, lo, i, left, i, unroll)
	b.laneLoop(func() {
		for u := range unroll {
			b.open("")
			b.push()
			b.line("const long long i%d = rows%d + %d;", i, i, u)
			b.compute(len(b.g.Order), roots(accs, nil)...)
			b.element(accs, nil, "[lane]", nil)
			b.pop()
			b.close()
		}
	})
	b.close()
	return left
}

// element emits what happens at one position.
func (b *body) element(accs []acc, stores []plan.Store, suffix string, put func(plan.Store, string)) {
	b.compute(len(b.g.Order)+1, roots(accs, stores)...)
	for _, c := range accs {
		if c.a.With != nil {
			continue
		}
		if d, pair := second(accs, c); pair {
			b.online(c, d)
			continue
		}
		x := b.text(c.a.Operand)
		switch {
		case c.arg() && b.g.Lanes:
			at := "0"
			if len(b.g.Order) > 0 {
				at = fmt.Sprintf("i%d", b.g.Order[0])
			}
			b.better(c, x, at)
			continue
		case c.blocked:
			b.line("%s", c.join(fmt.Sprintf("f%d%s", c.a.Value.ID, suffix), x))
		default:
			b.line("%s", c.join(c.name()+suffix, x))
		}
		if c.flagged {
			b.line("%s%s |= %s != %s;", c.bad(), suffix, x, x)
		}
	}
	for _, s := range stores {
		put(s, bare(b.text(s.Value)))
	}
}

// better takes element x at a position if it comes before the best so far of
// its lane: the first of equals, and a NaN before anything else.
func (b *body) better(c acc, x, at string) {
	sign := map[string]string{"max": ">", "min": "<"}[c.op]
	n, id := c.name()+"[lane]", c.a.Value.ID
	b.line("const bool better%d = (%s %s %s) | ((%s != %s) & (%s == %s));", id, x, sign, n, x, x, n, n)
	b.line("at%d[lane] = better%d ? %s : at%d[lane];", id, id, at, id)
	b.line("%s = better%d ? %s : %s;", n, id, x, n)
}

// rowLoop emits the innermost loop along a row, in blocks where a block has
// its own sum or buffer, and unrolled where nothing is stored.
func (b *body) rowLoop(accs []acc, stores []plan.Store, lo, hi string) {
	blocks := b.streams(stores) || slices.ContainsFunc(accs, func(c acc) bool { return c.blocked })
	if blocks {
		b.open("for (long long first = %s; first < %s; first += %d)", lo, hi, b.tile)
		b.line("const long long end = first + %d < %s ? first + %d : %s;", b.tile, hi, b.tile, hi)
		lo, hi = "first", "end"
	}
	for _, c := range accs {
		if c.blocked {
			b.line("float f%d = 0;", c.a.Value.ID)
		}
	}
	unroll := b.knobs.Get("unroll", 1)
	if len(stores) > 0 || len(b.cached) > 0 || len(accs) == 0 {
		unroll = 1
	}
	inner := fmt.Sprintf("i%d", b.g.Inner)
	name := func(c acc) string {
		if c.blocked {
			return fmt.Sprintf("f%d", c.a.Value.ID)
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
	b.storing(stores, lo, hi+" - "+lo, func(put func(plan.Store, string)) {
		if len(accs) == 0 {
			b.each(inner, lo, hi, func() {
				b.computeOnce(plan.StoredValues(stores)...)
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
			b.line("%s", c.join(c.name(), fmt.Sprintf("f%d", c.a.Value.ID)))
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
	v := c.a.Value
	i := fmt.Sprintf("i%d", b.g.Inner)
	b.line("long long r%d = 0;", v.ID)
	from, to := "0", b.size(b.g.Inner)
	if b.wide {
		_, per := b.parts(b.g.Inner)
		b.line("long long from%d = 0;", v.ID)
		b.line("while (%s ? !flags%d[from%d] : parts%d[from%d] != %s) ++from%d;", c.bad(), v.ID, v.ID, v.ID, v.ID, c.name(), v.ID)
		from = fmt.Sprintf("from%d * %d", v.ID, per)
	}
	b.open("for (long long %s = %s; %s < %s; ++%s)", i, from, i, to, i)
	b.push()
	b.compute(len(b.g.Order)+1, c.a.Operand)
	x := b.text(c.a.Operand)
	b.open("if (%s ? %s != %s : %s == %s)", c.bad(), x, x, x, c.name())
	b.line("r%d = %s;", v.ID, i)
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
func (b *body) pool(a *plan.Anchor) {
	v, w := a.Value, a.Value.Window
	rank := len(w.Kernel)
	lead := len(b.k.Space) - rank
	name := fmt.Sprintf("r%d", v.ID)
	typ := cppTypes[v.DType]
	carried := typ
	if v.Op == "mean" && plan.Numel(w.Kernel) > 64 {
		carried = "double"
	}
	init := "0"
	if v.Op == "max" {
		init = literal(math.Inf(-1), v.DType)
	}
	// Two selects, one after the other: from one with both conditions GCC makes
	// a branch around the store, and no vectors.
	fold := func(to, x string) {
		if v.Op == "max" {
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
	step, reach := w.Stride[d], w.Reach()
	column := fmt.Sprintf("column%d", v.ID)
	b.line("%s %s[%d];", typ, name, b.tile)
	if carried != typ {
		b.line("%s acc%d[%d];", carried, v.ID, b.tile)
	}
	b.line("%s %s[%d];", carried, column, (b.tile-1)*step+reach)
	b.line("const long long low%d = start * %d - %d, span%d = (lanes - 1) * %d + %d;", v.ID, step, w.Padding[d], v.ID, step, reach)
	b.line("for (long long p = 0; p < span%d; ++p) %s[p] = %s;", v.ID, column, init)
	from, to := "0", fmt.Sprintf("span%d", v.ID)
	if w.Padding[d] > 0 {
		from, to = fmt.Sprintf("from%d", v.ID), fmt.Sprintf("to%d", v.ID)
		b.line("const long long %s = low%d < 0 ? -low%d : 0;", from, v.ID, v.ID)
		b.line("const long long %s = %d - low%d < span%d ? %d - low%d : span%d;", to, w.In[d], v.ID, v.ID, w.In[d], v.ID, v.ID)
	}
	depth := b.depth
	var window []string
	for d := range rank - 1 {
		b.open("for (int k%d = 0; k%d < %d; ++k%d)", d, d, w.Kernel[d], d)
		b.line("const long long y%d = %s * %d - %d + k%d * %d;", d, at(d), w.Stride[d], w.Padding[d], d, w.Dilation[d])
		if w.Padding[d] > 0 {
			b.line("if (y%d < 0 || y%d >= %d) continue;", d, d, w.In[d])
		}
		window = append(window, fmt.Sprintf("y%d", d))
	}
	b.simd("", "p", from, to)
	b.push()
	b.line("const long long x = low%d + p;", v.ID)
	saved := b.window
	b.window = slices.Concat(window, []string{"x"})
	b.compute(len(b.g.Order)+1, a.Operand)
	x := b.text(a.Operand)
	b.window = saved
	fold(column+"[p]", x)
	b.pop()
	for b.depth > depth {
		b.close()
	}
	b.line("// along the line")
	sum := name
	if carried != typ {
		sum = fmt.Sprintf("acc%d", v.ID)
	}
	// A short window is unrolled, so that the loads of neighbouring lanes make
	// whole vectors; a long one is taken one position at a time.
	if w.Kernel[d] <= 8 {
		b.simd("", "lane", "0", "lanes")
		b.line("%s f = %s[lane * %d];", carried, column, step)
		for k := 1; k < w.Kernel[d]; k++ {
			b.open("")
			b.line("const %s c = %s[lane * %d + %d];", carried, column, step, k*w.Dilation[d])
			fold("f", "c")
			b.close()
		}
		b.line("%s[lane] = f;", sum)
		b.close()
	} else {
		b.line("for (long long lane = 0; lane < lanes; ++lane) %s[lane] = %s;", sum, init)
		b.open("for (long long k = 0; k < %d; ++k)", w.Kernel[d])
		b.simd("", "lane", "0", "lanes")
		b.line("const %s c = %s[lane * %d + k * %d];", carried, column, step, w.Dilation[d])
		fold(sum+"[lane]", "c")
		b.close()
		b.close()
	}
	b.divide(a, sum, at)
}

// divide turns the sums of an average's windows into r.
func (b *body) divide(a *plan.Anchor, target string, at func(int) string) {
	v, w := a.Value, a.Value.Window
	rank := len(w.Kernel)
	name, typ := fmt.Sprintf("r%d", v.ID), cppTypes[v.DType]
	if v.Op != "mean" {
		return
	}
	divisor := w.Divisor
	if divisor == 0 && (w.Counted || !slices.ContainsFunc(w.Padding, func(p int) bool { return p > 0 })) {
		divisor = plan.Numel(w.Kernel)
	}
	if divisor > 0 {
		b.simd("", "lane", "0", "lanes")
		b.line("%s[lane] = (%s)(%s[lane] / %s);", name, typ, target, literal(float64(divisor), v.DType))
		b.close()
		return
	}
	// Only what is inside counts.
	d := rank - 1
	b.line("long long inside = 1;")
	for d := range rank - 1 {
		b.open("")
		b.line("const long long a = %s * %d - %d, z = a + %d;", at(d), w.Stride[d], w.Padding[d], w.Kernel[d])
		b.line("inside *= (z < %d ? z : %d) - (a > 0 ? a : 0);", w.In[d], w.In[d])
		b.close()
	}
	b.open("for (long long lane = 0; lane < lanes; ++lane)")
	b.line("const long long a = (start + lane) * %d - %d, z = a + %d;", w.Stride[d], w.Padding[d], w.Kernel[d])
	b.line("%s[lane] = (%s)(%s[lane] / (%s)(inside * ((z < %d ? z : %d) - (a > 0 ? a : 0))));", name, typ, target, typ, w.In[d], w.In[d])
	b.close()
}
