package coder

import "slices"

// Concatenation of one tensor with constants, as in sums that run over what comes
// before an element: each element is a constant's or the tensor's. Others are
// left to torch, which copies.

// fills are operators whose result is one number throughout.
var fills = []string{"zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full", "full_like"}

// constantNode reports whether a reference is to the result of one of them.
func (l *lowering) constantNode(a arg) bool {
	return a.Kind == argRef && slices.ContainsFunc(l.g.Nodes, func(n graphNode) bool {
		return n.Name == a.S && slices.Contains(fills, opName(n.Op))
	})
}

// pads reports whether a node concatenates one tensor with constants.
func (l *lowering) pads(n graphNode) bool {
	if opName(n.Op) != "cat" || len(n.Args) == 0 || len(n.Args[0].List) < 2 || !dtype(n.Outputs[0].DType).known() {
		return false
	}
	tensors := 0
	for _, a := range n.Args[0].List {
		if a.Kind != argRef {
			return false
		}
		if !l.constantNode(a) {
			tensors++
		}
	}
	return tensors == 1
}

// onlyPads reports whether a node's result goes nowhere but into such
// concatenations: then it need not exist, whatever the batch.
func (l *lowering) onlyPads(name string) bool {
	only := true
	for _, n := range l.g.Nodes {
		n.refs(func(a arg) { only = only && (a.S != name || l.pads(n)) })
	}
	_ = l.g.Outputs.leaves(func(a arg) error {
		only = only && (a.Kind != argRef || a.S != name)
		return nil
	})
	return only
}

func init() {
	lowerers["cat"] = func(l *lowering, n graphNode) ([]*value, bool) {
		if !l.pads(n) {
			return nil, false
		}
		shape := n.Outputs[0].Shape
		d, ok := normalDim(int(n.number(1, "dim", 0)), len(shape))
		if !ok {
			return nil, false
		}
		var pieces []*value
		inner, first := 0, true
		zeros := true
		for i, a := range n.Args[0].List {
			v, ok := l.ref(a)
			if !ok || v.dtype != n.dtype() || len(v.shape) != len(shape) || (l.constantNode(a) && v.kind != constant) {
				return nil, false
			}
			if !l.constantNode(a) {
				inner, first = i, len(pieces) == 0
			} else {
				zeros = zeros && v.c == 0
			}
			pieces = append(pieces, v)
		}
		// A running sum of zeros and what follows is zeros and the running sum.
		if v := pieces[inner]; v.kind == access && v.args[0].kind == scan && v == l.whole(v.args[0]) && v.args[0].op == "sum" &&
			zeros && v.args[0].dims[0] == d && len(pieces) == 2 && first == v.args[0].reverse {
			s := *v.args[0]
			pieces[inner] = s.args[0]
			y := l.operand(l.concatenate(pieces, inner, shape, d))
			s.args, s.shape, s.cost, s.out = []*value{y}, shape, 0, nil
			return []*value{l.whole(l.intern(s))}, true
		}
		return []*value{l.concatenate(pieces, inner, shape, d)}, true
	}
}

// concatenate joins pieces along d, of which all but the inner one are constants.
func (l *lowering) concatenate(pieces []*value, inner int, shape []int, d int) *value {
	at := l.intern(value{kind: position, dtype: i64, shape: shape, idx: []index{along(d).normal(shape)}})
	number := func(n int) *value { return l.constant(float64(n), i64, shape) }
	m := positions(shape)
	m[d] = index{}
	var out *value
	start := numelAlong(pieces, d)
	for i, v := range slices.Backward(pieces) {
		start -= v.shape[d]
		var piece *value
		if i != inner {
			piece = l.constant(v.c, v.dtype, shape)
		} else {
			var ok bool
			if piece, ok = l.taken(v, l.point("sub", i64, at, number(start)), d, m); !ok {
				panic("coder: an element of a dense buffer can always be taken")
			}
		}
		if out == nil {
			out = piece
			continue
		}
		out = l.where(l.compare("lt", at, number(start+v.shape[d])), piece, out)
	}
	return out
}

func numelAlong(pieces []*value, d int) int {
	n := 0
	for _, v := range pieces {
		n += v.shape[d]
	}
	return n
}
