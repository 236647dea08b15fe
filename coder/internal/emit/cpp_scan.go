package emit

import (
	"fmt"
	"slices"

	"github.com/kernelwright/kernelwright/coder/internal/plan"
)

// scans emits running values: one loop that is taken in order, over one row or
// over the lanes of a tile.
func (b *body) scans() {
	roots := b.scanRoots()
	b.compute(0, roots...)
	if !b.g.Lanes {
		b.chain("")
		b.along(b.g.Inner, func() { b.scanStep("") })
		return
	}
	for _, a := range b.k.Anchors {
		b.line("%s acc%d[%d];", accumulator(a.Value.DType), a.Value.ID, b.tile)
	}
	b.open("for (long long lane = 0; lane < lanes; ++lane)")
	for _, a := range b.k.Anchors {
		b.line("acc%d[lane] = %s;", a.Value.ID, identity(a))
	}
	b.close()
	step := func() { b.laneLoop(func() { b.scanStep("[lane]") }) }
	if len(b.g.Order) == 0 { // a scan along a unit dimension
		step()
		return
	}
	b.along(b.g.Order[0], func() {
		b.compute(1, roots...)
		step()
	})
}

// rowName is the variable of the loop over rows.
func (b *body) rowName() string {
	if len(b.g.Outer) == 1 {
		return fmt.Sprintf("i%d", b.g.Outer[0])
	}
	return "row"
}

// scannedTogether scans n rows in one loop by kw/scan.h, if a plain sum is all that
// there is to it, and reports whether it does.
func (b *body) scannedTogether(n int, spread bool, total string) bool {
	a := b.k.Anchors[0]
	if len(b.k.Anchors) > 1 || a.Value.Op != "sum" || len(b.g.Outer) > 1 {
		return false
	}
	memo := map[*plan.Value]int{}
	alone := false // something is computed once a row
	for _, r := range b.scanRoots() {
		plan.Visit(r, func(v *plan.Value) {
			alone = alone || v.Kind != plan.Constant && v.Kind != plan.Access && b.level(v, memo) == 0
		})
	}
	if alone {
		return false
	}
	i, name := b.g.Inner, fmt.Sprintf("s%d", a.Value.ID)
	walked := fmt.Sprintf("i%d", i)
	back := func() {}
	if a.Value.Reverse {
		walked = "from_end"
		back = func() { b.line("const long long i%d = %s - 1 - from_end;", i, b.size(i)) }
	}
	row := b.rowName()
	b.open("%s((%s + %d) / %d, [=](long long group)", b.spread("parallel", spread), total, n-1, n)
	b.open("const auto term = [&](long long %s, long long %s)", row, walked)
	b.push()
	back()
	b.computeOnce(a.Operand)
	b.line("return %s;", bare(b.text(a.Operand)))
	b.pop()
	b.depth--
	b.line("};")
	b.open("kw::scan_rows<%d>(group * %d, %s, %s, term, [&](long long %s, long long %s, %s %s)", n, n, total, b.size(i), row, walked, cppTypes[a.Value.DType], name)
	b.push()
	back()
	b.computeOnce(plan.StoredValues(b.k.Stores)...)
	for _, s := range b.k.Stores {
		b.line("%s[%s] = %s;", s.Buf.Name, b.at(s), bare(b.text(s.Value)))
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
	b.along(b.g.Inner, func() {
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
	b.along(b.g.Inner, func() { b.scanStep("") })
	b.pop()
	b.close()
}

// splitLength is the length of a row from which it is worth to read it twice,
// so that its parts are scanned by several threads, and several by each.
const splitLength = 1 << 15

// splits reports whether a scan's rows are too few to be spread over threads,
// and long enough to be cut. Products and doubles are left alone: a part of
// theirs may overflow where the whole does not.
func splits(k *plan.Kernel, g plan.Geometry, rows, threads int) bool {
	if rows >= 2*threads || g.Groups[g.Inner].Size < splitLength || k.Cost() < plan.ParallelCost {
		return false
	}
	return !slices.ContainsFunc(k.Anchors, func(a *plan.Anchor) bool { return a.Value.Op != "sum" || a.Value.DType == plan.F64 })
}

// splitScan scans one row in two levels: the sum of each part, then the parts
// from the sums of those before them, n at a time in each thread. The number of
// parts is fixed, so that the result does not depend on the threads.
func (b *body) splitScan(n int) {
	inner, size := b.g.Inner, b.g.Groups[b.g.Inner].Size
	per := size / chunks
	roots := b.scanRoots()
	b.compute(0, roots...)
	position := func(at string) {
		if b.k.Anchors[0].Value.Reverse {
			at = fmt.Sprintf("%d - (%s)", size-1, at)
		}
		b.line("const long long i%d = %s;", inner, at)
	}
	for _, a := range b.k.Anchors {
		b.line("%s before%d[%d];", accumulator(a.Value.DType), a.Value.ID, chunks+1)
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
	for _, a := range b.k.Anchors {
		b.line("%s sum%d = 0;", accumulator(a.Value.DType), a.Value.ID)
		clause += fmt.Sprintf(" reduction(+:sum%d)", a.Value.ID)
	}
	b.simd(clause, "p", "0", fmt.Sprint(per))
	b.push()
	position(fmt.Sprintf("part * %d + p", per))
	operands := b.scanOperands()
	b.compute(len(b.g.Order)+1, operands...)
	for i, a := range b.k.Anchors {
		b.line("sum%d += %s;", a.Value.ID, b.text(operands[i]))
	}
	b.pop()
	b.close()
	for _, a := range b.k.Anchors {
		b.line("before%d[part + 1] = sum%d;", a.Value.ID, a.Value.ID)
	}
	b.close()
	for _, a := range b.k.Anchors {
		b.line("before%d[0] = 0;", a.Value.ID)
		b.line("for (int part = 0; part < %d; ++part) before%d[part + 1] += before%d[part];", chunks, a.Value.ID, a.Value.ID)
	}
	parallel()
	b.open("for (long long part = 0; part < %d; part += %d)", chunks, n)
	for r := range n {
		for _, a := range b.k.Anchors {
			b.line("%s acc%d%s = before%d[part + %d];", accumulator(a.Value.DType), a.Value.ID, beside(r), a.Value.ID, r)
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
	for _, a := range b.k.Anchors {
		b.line("%s acc%d = before%d[%d];", accumulator(a.Value.DType), a.Value.ID, a.Value.ID, chunks)
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

func (b *body) scanOperands() []*plan.Value {
	out := make([]*plan.Value, len(b.k.Anchors))
	for i, a := range b.k.Anchors {
		out[i] = a.Operand
	}
	return out
}

func (b *body) scanRoots() []*plan.Value {
	return append(plan.StoredValues(b.k.Stores), b.scanOperands()...)
}

// identity is what a running value starts from.
func identity(a *plan.Anchor) string {
	if a.Value.Op == "prod" {
		return "1"
	}
	return "0"
}

// chain declares the running values of one row.
func (b *body) chain(suffix string) {
	for _, a := range b.k.Anchors {
		b.line("%s acc%d%s = %s;", accumulator(a.Value.DType), a.Value.ID, suffix, identity(a))
	}
}

// along opens the loop over a group in the order of the scan.
func (b *body) along(group int, f func()) {
	if b.k.Anchors[0].Value.Reverse {
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
	innermost := len(b.g.Order) + 1
	b.compute(innermost, b.scanOperands()...)
	for _, a := range b.k.Anchors {
		op := "+"
		if a.Value.Op == "prod" {
			op = "*"
		}
		acc, t := fmt.Sprintf("acc%d%s", a.Value.ID, suffix), cppTypes[a.Value.DType]
		b.line("%s = %s %s %s;", acc, acc, op, b.text(a.Operand))
		b.line("const %s s%d = (%s)%s;", t, a.Value.ID, t, acc)
	}
	b.compute(innermost, plan.StoredValues(b.k.Stores)...)
	for _, s := range b.k.Stores {
		b.line("%s[%s] = %s;", s.Buf.Name, b.at(s), b.text(s.Value))
	}
}

// accumulator is the type in which values of d are summed.
func accumulator(d plan.DType) string {
	if d.Floating() {
		return "double"
	}
	return "long long"
}
