package coder

import (
	"fmt"
	"slices"
)

// scans emits running values: one loop that is taken in order, over one row or
// over the lanes of a tile.
func (b *body) scans() {
	roots := b.scanRoots()
	b.compute(0, roots...)
	if !b.g.lanes {
		b.chain("")
		b.along(b.g.inner, func() { b.scanStep("") })
		return
	}
	for _, a := range b.k.anchors {
		b.line("%s acc%d[%d];", accumulator(a.value.dtype), a.value.id, b.tile)
	}
	b.open("for (long long lane = 0; lane < lanes; ++lane)")
	for _, a := range b.k.anchors {
		b.line("acc%d[lane] = %s;", a.value.id, identity(a))
	}
	b.close()
	step := func() { b.laneLoop(func() { b.scanStep("[lane]") }) }
	if len(b.g.order) == 0 { // a scan along a unit dimension
		step()
		return
	}
	b.along(b.g.order[0], func() {
		b.compute(1, roots...)
		step()
	})
}

// rowName is the variable of the loop over rows.
func (b *body) rowName() string {
	if len(b.g.outer) == 1 {
		return fmt.Sprintf("i%d", b.g.outer[0])
	}
	return "row"
}

// scannedTogether scans n rows in one loop by kw/scan.h, if a plain sum is all that
// there is to it, and reports whether it does.
func (b *body) scannedTogether(n int, spread bool, total string) bool {
	a := b.k.anchors[0]
	if len(b.k.anchors) > 1 || a.value.op != "sum" || len(b.g.outer) > 1 {
		return false
	}
	memo := map[*value]int{}
	alone := false // something is computed once a row
	for _, r := range b.scanRoots() {
		visit(r, func(v *value) { alone = alone || v.kind != constant && v.kind != access && b.level(v, memo) == 0 })
	}
	if alone {
		return false
	}
	i, name := b.g.inner, fmt.Sprintf("s%d", a.value.id)
	walked := fmt.Sprintf("i%d", i)
	back := func() {}
	if a.value.reverse {
		walked = "from_end"
		back = func() { b.line("const long long i%d = %s - 1 - from_end;", i, b.size(i)) }
	}
	row := b.rowName()
	b.open("%s((%s + %d) / %d, [=](long long group)", b.spread("parallel", spread), total, n-1, n)
	b.open("const auto term = [&](long long %s, long long %s)", row, walked)
	b.push()
	back()
	b.computeOnce(a.operand)
	b.line("return %s;", bare(b.text(a.operand)))
	b.pop()
	b.depth--
	b.line("};")
	b.open("kw::scan_rows<%d>(group * %d, %s, %s, term, [&](long long %s, long long %s, %s %s)", n, n, total, b.size(i), row, walked, cppTypes[a.value.dtype], name)
	b.push()
	back()
	b.computeOnce(storedValues(b.k.stores)...)
	for _, s := range b.k.stores {
		b.line("%s[%s] = %s;", s.buf.name, b.at(s), bare(b.text(s.value)))
	}
	b.pop()
	b.end()
	b.end()
	return true
}

// sideBySide scans n rows in one loop, from row first. One running value waits
// for its own last addition; several do not wait for each other.
func (b *body) sideBySide(n int) {
	roots := b.scanRoots()
	one := func() {
		b.outerIndices()
		b.compute(0, roots...)
	}
	b.open("if (first + %d <= rows)", n)
	for r := range n {
		b.chain(beside(r))
	}
	b.along(b.g.inner, func() {
		for r := range n {
			b.open("")
			b.push()
			b.line("const long long %s = first + %d;", b.rowName(), r)
			one()
			b.scanStep(beside(r))
			b.pop()
			b.close()
		}
	})
	b.close()
	row := b.rowName()
	b.open("else for (long long %s = first; %s < rows; ++%s)", row, row, row)
	b.push()
	one()
	b.chain("")
	b.along(b.g.inner, func() { b.scanStep("") })
	b.pop()
	b.close()
}

// splitLength is the length of a row from which it is worth to read it twice,
// so that its parts are scanned by several threads, and several by each.
const splitLength = 1 << 15

// splits reports whether a scan's rows are too few to be spread over threads,
// and long enough to be cut. Products and doubles are left alone: a part of
// theirs may overflow where the whole does not.
func splits(k *kernel, g geometry, rows, threads int) bool {
	if rows >= 2*threads || g.groups[g.inner].size < splitLength || k.cost() < parallelCost {
		return false
	}
	return !slices.ContainsFunc(k.anchors, func(a *anchor) bool { return a.value.op != "sum" || a.value.dtype == f64 })
}

// splitScan scans one row in two levels: the sum of each part, then the parts
// from the sums of those before them, n at a time in each thread. The number of
// parts is fixed, so that the result does not depend on the threads.
func (b *body) splitScan(n int) {
	inner, size := b.g.inner, b.g.groups[b.g.inner].size
	per := size / chunks
	roots := b.scanRoots()
	b.compute(0, roots...)
	position := func(at string) {
		if b.k.anchors[0].value.reverse {
			at = fmt.Sprintf("%d - (%s)", size-1, at)
		}
		b.line("const long long i%d = %s;", inner, at)
	}
	for _, a := range b.k.anchors {
		b.line("%s before%d[%d];", accumulator(a.value.dtype), a.value.id, chunks+1)
	}
	parallel := func() {
		if b.threads > 1 {
			b.line("%s", b.parallel(b.threads))
		}
	}
	// before[part + 1] is first the sum of the part alone.
	parallel()
	b.open("for (long long part = 0; part < %d; ++part)", chunks)
	clause := ""
	for _, a := range b.k.anchors {
		b.line("%s sum%d = 0;", accumulator(a.value.dtype), a.value.id)
		clause += fmt.Sprintf(" reduction(+:sum%d)", a.value.id)
	}
	b.simd(clause, "p", "0", fmt.Sprint(per))
	b.push()
	position(fmt.Sprintf("part * %d + p", per))
	operands := b.scanOperands()
	b.compute(len(b.g.order)+1, operands...)
	for i, a := range b.k.anchors {
		b.line("sum%d += %s;", a.value.id, b.text(operands[i]))
	}
	b.pop()
	b.close()
	for _, a := range b.k.anchors {
		b.line("before%d[part + 1] = sum%d;", a.value.id, a.value.id)
	}
	b.close()
	for _, a := range b.k.anchors {
		b.line("before%d[0] = 0;", a.value.id)
		b.line("for (int part = 0; part < %d; ++part) before%d[part + 1] += before%d[part];", chunks, a.value.id, a.value.id)
	}
	parallel()
	b.open("for (long long part = 0; part < %d; part += %d)", chunks, n)
	for r := range n {
		for _, a := range b.k.anchors {
			b.line("%s acc%d%s = before%d[part + %d];", accumulator(a.value.dtype), a.value.id, beside(r), a.value.id, r)
		}
	}
	b.open("for (long long p = 0; p < %d; ++p)", per)
	for r := range n {
		b.open("")
		b.push()
		position(fmt.Sprintf("(part + %d) * %d + p", r, per))
		b.scanStep(beside(r))
		b.pop()
		b.close()
	}
	b.close()
	b.close()
	if per*chunks == size {
		return
	}
	for _, a := range b.k.anchors {
		b.line("%s acc%d = before%d[%d];", accumulator(a.value.dtype), a.value.id, a.value.id, chunks)
	}
	b.open("for (long long p = %d; p < %d; ++p)", per*chunks, size)
	b.push()
	position("p")
	b.scanStep("")
	b.pop()
	b.close()
}

// beside names the running values of the rows of a group.
func beside(r int) string { return fmt.Sprintf("_%d", r) }

func (b *body) scanOperands() []*value {
	out := make([]*value, len(b.k.anchors))
	for i, a := range b.k.anchors {
		out[i] = a.operand
	}
	return out
}

func (b *body) scanRoots() []*value {
	return append(storedValues(b.k.stores), b.scanOperands()...)
}

// identity is what a running value starts from.
func identity(a *anchor) string {
	if a.value.op == "prod" {
		return "1"
	}
	return "0"
}

// chain declares the running values of one row.
func (b *body) chain(suffix string) {
	for _, a := range b.k.anchors {
		b.line("%s acc%d%s = %s;", accumulator(a.value.dtype), a.value.id, suffix, identity(a))
	}
}

// along opens the loop over a group in the order of the scan.
func (b *body) along(group int, f func()) {
	if b.k.anchors[0].value.reverse {
		b.open("for (long long i%d = %s - 1; i%d >= 0; --i%d)", group, b.size(group), group, group)
	} else {
		b.open("for (long long i%d = 0; i%d < %s; ++i%d)", group, group, b.size(group), group)
	}
	b.push()
	f()
	b.pop()
	b.close()
}

// scanStep emits what happens at one position.
func (b *body) scanStep(suffix string) {
	innermost := len(b.g.order) + 1
	b.compute(innermost, b.scanOperands()...)
	for _, a := range b.k.anchors {
		op := "+"
		if a.value.op == "prod" {
			op = "*"
		}
		acc, t := fmt.Sprintf("acc%d%s", a.value.id, suffix), cppTypes[a.value.dtype]
		b.line("%s = %s %s %s;", acc, acc, op, b.text(a.operand))
		b.line("const %s s%d = (%s)%s;", t, a.value.id, t, acc)
	}
	b.compute(innermost, storedValues(b.k.stores)...)
	for _, s := range b.k.stores {
		b.line("%s[%s] = %s;", s.buf.name, b.at(s), b.text(s.value))
	}
}

// accumulator is the type in which values of d are summed.
func accumulator(d dtype) string {
	if d.floating() {
		return "double"
	}
	return "long long"
}
