package coder

import "slices"

// group is one loop: dimensions of a kernel's space that every access walks
// as if they were one.
type group struct {
	dims    []int
	size    int // with the batch as captured
	reduced bool
	batch   bool // size is a multiple of the batch
}

// geometry is the loops of a kernel, in the order of its space.
type geometry struct {
	groups []group
	of     []int // dimension of the space to group; -1 for a unit dimension
	lanes  bool  // the innermost loop is not reduced: rows are worked on side by side
	inner  int   // group of the innermost loop
	order  []int // of the reduced groups outside the innermost loop
	outer  []int // groups that are spread over threads
}

// rows is how many rows there are, or, with lanes, tiles of columns above each other.
func (g geometry) rows() int {
	n := 1
	for _, i := range g.outer {
		n *= g.groups[i].size
	}
	return n
}

// geometry derives the loops.
func (k *kernel) geometry() geometry {
	reduced := func(d int) bool { return k.kind != mapKernel && slices.Contains(k.dims, d) }
	windowed := 0
	for _, a := range k.anchors {
		if a.value.kind == pool {
			windowed = max(windowed, len(a.value.window.kernel))
		}
	}
	g := geometry{of: make([]int, len(k.space)), inner: -1}
	for d, n := range k.space {
		g.of[d] = -1
		if n == 1 {
			continue
		}
		last := len(g.groups) - 1
		if last >= 0 && g.groups[last].reduced == reduced(d) && d < len(k.space)-windowed && k.walkable(g.groups[last].dims[len(g.groups[last].dims)-1], d) {
			t := &g.groups[last]
			t.dims, t.size = append(t.dims, d), t.size*n
			g.of[d] = last
			continue
		}
		g.of[d] = len(g.groups)
		g.groups = append(g.groups, group{dims: []int{d}, size: n, reduced: reduced(d), batch: k.batch && d == 0})
	}
	if len(g.groups) == 0 {
		g.groups = append(g.groups, group{size: 1, batch: k.batch})
	}
	g.inner = len(g.groups) - 1
	// A windowed kernel whose last dimension is a unit has no loop to tile.
	if windowed > 0 && (len(g.groups[g.inner].dims) == 0 || g.groups[g.inner].dims[0] != len(k.space)-1) {
		g.groups = append(g.groups, group{size: 1})
		g.inner++
		g.of[len(k.space)-1] = g.inner
	}
	g.lanes = !g.groups[g.inner].reduced
	for i, t := range g.groups {
		switch {
		case i == g.inner:
		case t.reduced:
			g.order = append(g.order, i)
		default:
			g.outer = append(g.outer, i)
		}
	}
	return g
}

// walkable reports whether all accesses step from dimension a to the next
// larger one, b, as in one dimension.
func (k *kernel) walkable(a, b int) bool {
	ok := true
	check := func(w *value) {
		if w.kind != load && w.kind != position {
			return
		}
		x := w.idx[0]
		ca, cb := 0, 0
		for _, t := range x.terms {
			if t.dim != a && t.dim != b {
				continue
			}
			if t.div != 1 || t.mod != 0 {
				ok = false
			}
			if t.dim == a {
				ca += t.coef
			} else {
				cb += t.coef
			}
		}
		// Unit dimensions between the two have no terms.
		if ca != cb*k.space[b] {
			ok = false
		}
	}
	for _, an := range k.anchors {
		visit(an.operand, check)
	}
	for _, s := range k.stores {
		visit(s.value, check)
	}
	return ok
}

// columnLine is how many elements a pooling's line of columns may hold: it is
// written and read again at once, and must stay in the first-level cache.
const columnLine = 4096

// columnTile is how many outputs of a line a pooling may take at a time.
func (k *kernel) columnTile() int {
	most := columnLine
	for _, a := range k.anchors {
		if w := a.value.window; w != nil {
			most = min(most, max(columnLine-w.reach(), 0)/w.stride[len(w.stride)-1]+1)
		}
	}
	return most
}

// reach is how many elements of the line a window spans.
func (w *window) reach() int {
	d := len(w.kernel) - 1
	return w.dilation[d]*(w.kernel[d]-1) + 1
}

// rowLength returns how many elements a row has that is reduced.
func (k *kernel) rowLength() int {
	n := 1
	for _, d := range k.dims {
		n *= k.space[d]
	}
	return n
}

// cost is a rough number of multiply-adds of the whole kernel.
func (k *kernel) cost() int {
	per := 0
	for _, a := range k.anchors {
		c := a.operand.cost + 1
		if a.value.kind == pool {
			c *= numel(a.value.window.kernel)
		}
		per += c
	}
	for _, s := range k.stores {
		if !s.row {
			per += s.value.cost + 1
		}
	}
	return max(per, 1) * numel(k.space)
}

// cacheable returns the values that passes after the first could read back
// instead of computing them again: dear ones, over rows short enough to stay
// in the cache. Of rows that a thread's stack cannot hold it is the one that
// has a home.
func (k *kernel) cacheable(g geometry) []*value {
	if k.kind != reduceKernel || g.lanes || len(g.order) > 0 || k.rowLength() > homeRow {
		return nil
	}
	stages := map[*value]map[int]bool{}
	var found []*value
	use := func(root *value, stage int) {
		visit(root, func(w *value) {
			if !dear(w) || !k.varies(w) {
				return
			}
			if stages[w] == nil {
				stages[w] = map[int]bool{}
				found = append(found, w)
			}
			stages[w][stage] = true
		})
	}
	for _, a := range k.anchors {
		use(a.operand, a.stage)
	}
	for _, s := range k.stores {
		if !s.row {
			use(s.value, k.stageOf(s.value))
		}
	}
	found = slices.DeleteFunc(found, func(w *value) bool { return len(stages[w]) < 2 })
	if k.rowLength() > cachedRow {
		if v, _ := k.home(found); v != nil {
			return []*value{v}
		}
		return nil
	}
	return found
}

// rowsFollow reports whether the kernel goes over whole rows in order that are
// short enough to be asked for beforehand.
func (k *kernel) rowsFollow(g geometry) bool {
	n := k.rowLength()
	return k.kind == reduceKernel && !g.lanes && len(g.order) == 0 && n >= 64 && n <= prefetchedRow
}

// dear reports whether a value costs as much to compute as an exponential.
func dear(v *value) bool { return v.kind == point && v.dtype == f32 && pointCost(*v) >= 16 }

// isDear reports whether the kernel computes such a value for its elements.
func (k *kernel) isDear() bool {
	out := false
	look := func(root *value) { visit(root, func(w *value) { out = out || dear(w) }) }
	for _, a := range k.anchors {
		look(a.operand)
	}
	for _, s := range k.stores {
		if !s.row {
			look(s.value)
		}
	}
	return out
}

// home returns the one of the kept values, and the store, for which it is true
// that the value can lie where the store goes until the store itself comes:
// nothing reads the value after it. nil where there is none, or rows are so short
// that a place beside them costs nothing.
func (k *kernel) home(kept []*value) (*value, store) {
	if k.rowLength() <= homelessRow {
		return nil, store{}
	}
	last := 0
	for _, s := range k.stores {
		last = max(last, k.stageOf(s.value))
	}
	for _, v := range slices.Backward(kept) {
		for _, s := range k.stores {
			if !s.row && s.buf.dtype == f32 && k.stageOf(s.value) == last && uses(s.value, v) {
				return v, s
			}
		}
	}
	return nil, store{}
}

func uses(root, v *value) bool {
	out := false
	visit(root, func(w *value) { out = out || w == v })
	return out
}

// varies reports whether a value differs along a row.
func (k *kernel) varies(v *value) bool {
	out := false
	visit(v, func(w *value) {
		switch w.kind {
		case load, position:
			for _, d := range k.dims {
				out = out || w.idx[0].uses(d)
			}
		case access:
			out = out || w.args[0].kind != reduce
		}
	})
	return out
}
