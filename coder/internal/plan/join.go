package plan

// Two reductions of which the second needs the first can be done in one pass
// over the rows, when the second's running result can be corrected as the
// first's moves on: the sum of exponentials under a maximum (Milakov and
// Gimelshein 2018), and the sum of squares about a mean (Welford 1962; for parts
// that are merged, Chan, Golub and LeVeque 1979).

// Join marks such pairs, or takes the marks away, and numbers the passes anew.
func (k *Kernel) Join(on bool) {
	taken := map[*Anchor]bool{}
	for _, a := range k.Anchors {
		a.With = nil
		if first := k.first(a); on && first != nil && !taken[first] {
			a.With, taken[first] = first, true
		}
	}
	k.stages()
}

// Joins returns the operation of the first reduction that could be joined with
// another; empty for none.
func (k *Kernel) Joins() string {
	for _, a := range k.Anchors {
		if first := k.first(a); first != nil {
			return first.Value.Op
		}
	}
	return ""
}

// shortPart is the length of a row's innermost loop below which merging its
// parts costs more than a second pass would.
const shortPart = 256

// first returns the reduction with which a can share a pass; nil for none.
func (k *Kernel) first(a *Anchor) *Anchor {
	if k.Kind != ReduceKernel || a.Value.Kind != Reduce || a.Value.Op != "sum" || !a.Value.DType.Floating() || a.Operand.Kind != Point {
		return nil
	}
	if g := k.Geometry(); !g.Lanes && len(g.Order) > 0 && g.Groups[g.Inner].Size < shortPart {
		return nil
	}
	var difference *Value
	var op string
	switch v := a.Operand; {
	case v.Op == "exp":
		difference, op = v.Args[0], "maxnum"
	case v.Op == "mul" && v.Args[0] == v.Args[1]:
		difference, op = v.Args[0], "mean"
	default:
		return nil
	}
	if difference.Kind != Point || difference.Op != "sub" || difference.Args[1].Kind != Access {
		return nil
	}
	for _, b := range k.Anchors {
		if b.Value == difference.Args[1].Args[0] && b.Value.Op == op && b.Operand == difference.Args[0] {
			return b
		}
	}
	return nil
}
