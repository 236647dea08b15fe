package coder

// Two reductions of which the second needs the first can be done in one pass
// over the rows, when the second's running result can be corrected as the
// first's moves on: the sum of exponentials under a maximum (Milakov and
// Gimelshein 2018), and the sum of squares about a mean (Welford 1962; for parts
// that are merged, Chan, Golub and LeVeque 1979).

// join marks such pairs, or takes the marks away, and numbers the passes anew.
func (k *kernel) join(on bool) {
	taken := map[*anchor]bool{}
	for _, a := range k.anchors {
		a.with = nil
		if first := k.first(a); on && first != nil && !taken[first] {
			a.with, taken[first] = first, true
		}
	}
	k.stages()
}

// joins returns the operation of the first reduction that could be joined with
// another; empty for none.
func (k *kernel) joins() string {
	for _, a := range k.anchors {
		if first := k.first(a); first != nil {
			return first.value.op
		}
	}
	return ""
}

// shortPart is the length of a row's innermost loop below which merging its
// parts costs more than a second pass would.
const shortPart = 256

// first returns the reduction with which a can share a pass; nil for none.
func (k *kernel) first(a *anchor) *anchor {
	if k.kind != reduceKernel || a.value.kind != reduce || a.value.op != "sum" || !a.value.dtype.floating() || a.operand.kind != point {
		return nil
	}
	if g := k.geometry(); !g.lanes && len(g.order) > 0 && g.groups[g.inner].size < shortPart {
		return nil
	}
	var difference *value
	var op string
	switch v := a.operand; {
	case v.op == "exp":
		difference, op = v.args[0], "maxnum"
	case v.op == "mul" && v.args[0] == v.args[1]:
		difference, op = v.args[0], "mean"
	default:
		return nil
	}
	if difference.kind != point || difference.op != "sub" || difference.args[1].kind != access {
		return nil
	}
	for _, b := range k.anchors {
		if b.value == difference.args[1].args[0] && b.value.op == op && b.operand == difference.args[0] {
			return b
		}
	}
	return nil
}
