package plan

import "slices"

// Concatenation of one tensor with constants, as in sums that run over what comes
// before an element: each element is a constant's or the tensor's. Others are
// left to torch, which copies.

// fills are operators whose result is one number throughout.
var fills = []string{"zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full", "full_like"}

// constantNode reports whether a reference is to the result of one of them.
func (l *lowering) constantNode(a Arg) bool {
	return a.Kind == argRef && slices.ContainsFunc(l.Graph.Nodes, func(n GraphNode) bool {
		return n.Name == a.S && slices.Contains(fills, opName(n.Op))
	})
}

// pads reports whether a node concatenates one tensor with constants.
func (l *lowering) pads(n GraphNode) bool {
	if opName(n.Op) != "cat" || len(n.Args) == 0 || len(n.Args[0].List) < 2 || !DType(n.Outputs[0].DType).known() {
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
	for _, n := range l.Graph.Nodes {
		n.refs(func(a Arg) { only = only && (a.S != name || l.pads(n)) })
	}
	_ = l.Graph.Outputs.leaves(func(a Arg) error {
		only = only && (a.Kind != argRef || a.S != name)
		return nil
	})
	return only
}

func init() {
	lowerers["cat"] = func(l *lowering, n GraphNode) ([]*Value, bool) {
		if !l.pads(n) {
			return nil, false
		}
		shape := n.Outputs[0].Shape
		d, ok := normalDim(int(n.number(1, "dim", 0)), len(shape))
		if !ok {
			return nil, false
		}
		var pieces []*Value
		inner, first := 0, true
		zeros := true
		for i, a := range n.Args[0].List {
			v, ok := l.ref(a)
			if !ok || v.DType != n.dtype() || len(v.Shape) != len(shape) || (l.constantNode(a) && v.Kind != Constant) {
				return nil, false
			}
			if !l.constantNode(a) {
				inner, first = i, len(pieces) == 0
			} else {
				zeros = zeros && v.Const == 0
			}
			pieces = append(pieces, v)
		}
		// A running sum of zeros and what follows is zeros and the running sum.
		if v := pieces[inner]; v.Kind == Access && v.Args[0].Kind == Scan && v == l.whole(v.Args[0]) && v.Args[0].Op == "sum" &&
			zeros && v.Args[0].dims[0] == d && len(pieces) == 2 && first == v.Args[0].Reverse {
			s := *v.Args[0]
			pieces[inner] = s.Args[0]
			y := l.operand(l.concatenate(pieces, inner, shape, d))
			s.Args, s.Shape, s.Cost, s.out = []*Value{y}, shape, 0, nil
			return []*Value{l.whole(l.intern(s))}, true
		}
		return []*Value{l.concatenate(pieces, inner, shape, d)}, true
	}
}

// concatenate joins pieces along d, of which all but the inner one are constants.
func (l *lowering) concatenate(pieces []*Value, inner int, shape []int, d int) *Value {
	at := l.intern(Value{Kind: Position, DType: I64, Shape: shape, Idx: []Index{along(d).normal(shape)}})
	number := func(n int) *Value { return l.constant(float64(n), I64, shape) }
	m := Positions(shape)
	m[d] = Index{}
	var out *Value
	start := numelAlong(pieces, d)
	for i, v := range slices.Backward(pieces) {
		start -= v.Shape[d]
		var piece *Value
		if i != inner {
			piece = l.constant(v.Const, v.DType, shape)
		} else {
			var ok bool
			if piece, ok = l.taken(v, l.point("sub", I64, at, number(start)), d, m); !ok {
				panic("coder: an element of a dense buffer can always be taken")
			}
		}
		if out == nil {
			out = piece
			continue
		}
		out = l.where(l.compare("lt", at, number(start+v.Shape[d])), piece, out)
	}
	return out
}

func numelAlong(pieces []*Value, d int) int {
	n := 0
	for _, v := range pieces {
		n += v.Shape[d]
	}
	return n
}
