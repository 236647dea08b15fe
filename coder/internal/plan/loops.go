package plan

import "slices"

// Group is one loop: dimensions of a kernel's space that every access walks
// as if they were one.
type Group struct {
	Dims    []int
	Size    int // with the batch as captured
	Reduced bool
	Batch   bool // size is a multiple of the batch
}

// Geometry is the loops of a kernel, in the order of its space.
type Geometry struct {
	Groups []Group
	Of     []int // dimension of the space to group; -1 for a unit dimension
	Lanes  bool  // the innermost loop is not reduced: rows are worked on side by side
	Inner  int   // group of the innermost loop
	Order  []int // of the reduced groups outside the innermost loop
	Outer  []int // groups that are spread over threads
}

// Rows is how many rows there are, or, with lanes, tiles of columns above each other.
func (g Geometry) Rows() int {
	n := 1
	for _, i := range g.Outer {
		n *= g.Groups[i].Size
	}
	return n
}

// Geometry derives the loops.
func (k *Kernel) Geometry() Geometry {
	reduced := func(d int) bool { return k.Kind != MapKernel && slices.Contains(k.dims, d) }
	windowed := 0
	for _, a := range k.Anchors {
		if a.Value.Kind == Pool {
			windowed = max(windowed, len(a.Value.Window.Kernel))
		}
	}
	g := Geometry{Of: make([]int, len(k.Space)), Inner: -1}
	for d, n := range k.Space {
		g.Of[d] = -1
		if n == 1 {
			continue
		}
		last := len(g.Groups) - 1
		if last >= 0 && g.Groups[last].Reduced == reduced(d) && d < len(k.Space)-windowed && k.walkable(g.Groups[last].Dims[len(g.Groups[last].Dims)-1], d) {
			t := &g.Groups[last]
			t.Dims, t.Size = append(t.Dims, d), t.Size*n
			g.Of[d] = last
			continue
		}
		g.Of[d] = len(g.Groups)
		g.Groups = append(g.Groups, Group{Dims: []int{d}, Size: n, Reduced: reduced(d), Batch: k.Batch && d == 0})
	}
	if len(g.Groups) == 0 {
		g.Groups = append(g.Groups, Group{Size: 1, Batch: k.Batch})
	}
	g.Inner = len(g.Groups) - 1
	// A windowed kernel whose last dimension is a unit has no loop to tile.
	if windowed > 0 && (len(g.Groups[g.Inner].Dims) == 0 || g.Groups[g.Inner].Dims[0] != len(k.Space)-1) {
		g.Groups = append(g.Groups, Group{Size: 1})
		g.Inner++
		g.Of[len(k.Space)-1] = g.Inner
	}
	g.Lanes = !g.Groups[g.Inner].Reduced
	for i, t := range g.Groups {
		switch {
		case i == g.Inner:
		case t.Reduced:
			g.Order = append(g.Order, i)
		default:
			g.Outer = append(g.Outer, i)
		}
	}
	return g
}

// walkable reports whether all accesses step from dimension a to the next
// larger one, b, as in one dimension.
func (k *Kernel) walkable(a, b int) bool {
	ok := true
	check := func(w *Value) {
		if w.Kind != Load && w.Kind != Position {
			return
		}
		x := w.Idx[0]
		ca, cb := 0, 0
		for _, t := range x.Terms {
			if t.Dim != a && t.Dim != b {
				continue
			}
			if t.Div != 1 || t.Mod != 0 {
				ok = false
			}
			if t.Dim == a {
				ca += t.Coef
			} else {
				cb += t.Coef
			}
		}
		// Unit dimensions between the two have no terms.
		if ca != cb*k.Space[b] {
			ok = false
		}
	}
	for _, an := range k.Anchors {
		Visit(an.Operand, check)
	}
	for _, s := range k.Stores {
		Visit(s.Value, check)
	}
	return ok
}

// columnLine is how many elements a pooling's line of columns may hold: it is
// written and read again at once, and must stay in the first-level cache.
const columnLine = 4096

// ColumnTile is how many outputs of a line a pooling may take at a time.
func (k *Kernel) ColumnTile() int {
	most := columnLine
	for _, a := range k.Anchors {
		if w := a.Value.Window; w != nil {
			most = min(most, max(columnLine-w.Reach(), 0)/w.Stride[len(w.Stride)-1]+1)
		}
	}
	return most
}

// Reach is how many elements of the line a window spans.
func (w *Window) Reach() int {
	d := len(w.Kernel) - 1
	return w.Dilation[d]*(w.Kernel[d]-1) + 1
}

// RowLength returns how many elements a row has that is reduced.
func (k *Kernel) RowLength() int {
	n := 1
	for _, d := range k.dims {
		n *= k.Space[d]
	}
	return n
}

// Cost is a rough number of multiply-adds of the whole kernel.
func (k *Kernel) Cost() int {
	per := 0
	for _, a := range k.Anchors {
		c := a.Operand.Cost + 1
		if a.Value.Kind == Pool {
			c *= Numel(a.Value.Window.Kernel)
		}
		per += c
	}
	for _, s := range k.Stores {
		if !s.Row {
			per += s.Value.Cost + 1
		}
	}
	return max(per, 1) * Numel(k.Space)
}

// Cacheable returns the values that passes after the first could read back
// instead of computing them again: dear ones, over rows short enough to stay
// in the cache. Of rows that a thread's stack cannot hold it is the one that
// has a home.
func (k *Kernel) Cacheable(g Geometry) []*Value {
	if k.Kind != ReduceKernel || g.Lanes || len(g.Order) > 0 || k.RowLength() > homeRow {
		return nil
	}
	stages := map[*Value]map[int]bool{}
	var found []*Value
	use := func(root *Value, stage int) {
		Visit(root, func(w *Value) {
			if !dear(w) || !k.Varies(w) {
				return
			}
			if stages[w] == nil {
				stages[w] = map[int]bool{}
				found = append(found, w)
			}
			stages[w][stage] = true
		})
	}
	for _, a := range k.Anchors {
		use(a.Operand, a.Stage)
	}
	for _, s := range k.Stores {
		if !s.Row {
			use(s.Value, k.StageOf(s.Value))
		}
	}
	found = slices.DeleteFunc(found, func(w *Value) bool { return len(stages[w]) < 2 })
	if k.RowLength() > cachedRow {
		if v, _ := k.Home(found); v != nil {
			return []*Value{v}
		}
		return nil
	}
	return found
}

// RowsFollow reports whether the kernel goes over whole rows in order that are
// short enough to be asked for beforehand.
func (k *Kernel) RowsFollow(g Geometry) bool {
	n := k.RowLength()
	return k.Kind == ReduceKernel && !g.Lanes && len(g.Order) == 0 && n >= 64 && n <= prefetchedRow
}

// dear reports whether a value costs as much to compute as an exponential.
func dear(v *Value) bool { return v.Kind == Point && v.DType == F32 && pointCost(*v) >= 16 }

// isDear reports whether the kernel computes such a value for its elements.
func (k *Kernel) isDear() bool {
	out := false
	look := func(root *Value) { Visit(root, func(w *Value) { out = out || dear(w) }) }
	for _, a := range k.Anchors {
		look(a.Operand)
	}
	for _, s := range k.Stores {
		if !s.Row {
			look(s.Value)
		}
	}
	return out
}

// Home returns the one of the kept values, and the store, for which it is true
// that the value can lie where the store goes until the store itself comes:
// nothing reads the value after it. nil where there is none, or rows are so short
// that a place beside them costs nothing.
func (k *Kernel) Home(kept []*Value) (*Value, Store) {
	if k.RowLength() <= homelessRow {
		return nil, Store{}
	}
	last := 0
	for _, s := range k.Stores {
		last = max(last, k.StageOf(s.Value))
	}
	for _, v := range slices.Backward(kept) {
		for _, s := range k.Stores {
			if !s.Row && s.Buf.DType == F32 && k.StageOf(s.Value) == last && uses(s.Value, v) {
				return v, s
			}
		}
	}
	return nil, Store{}
}

func uses(root, v *Value) bool {
	out := false
	Visit(root, func(w *Value) { out = out || w == v })
	return out
}

// Varies reports whether a value differs along a row.
func (k *Kernel) Varies(v *Value) bool {
	out := false
	Visit(v, func(w *Value) {
		switch w.Kind {
		case Load, Position:
			for _, d := range k.dims {
				out = out || w.Idx[0].uses(d)
			}
		case Access:
			out = out || w.Args[0].Kind != Reduce
		}
	})
	return out
}
