package plan

import "slices"

func init() {
	keep := func(l *lowering, n GraphNode) ([]*Value, bool) {
		v, ok := l.tensor(n.arg(0, "self"), n.dtype())
		if !ok {
			return nil, false
		}
		return []*Value{l.cast(v, n.dtype())}, true
	}
	for _, op := range []string{"clone", "contiguous", "detach", "alias", "lift_fresh_copy", "lift_fresh", "to", "_to_copy", "type_as"} {
		views[op] = keep
	}
	views["dropout"] = func(l *lowering, n GraphNode) ([]*Value, bool) {
		if train := n.arg(2, "train"); train.Kind != argBool || train.Bool {
			return nil, false
		}
		return keep(l, n)
	}
	reshape := func(l *lowering, n GraphNode) ([]*Value, bool) {
		v, ok := l.ref(n.Args[0])
		if !ok || Numel(v.Shape) != Numel(n.Outputs[0].Shape) {
			return nil, false
		}
		return []*Value{l.reshape(v, n.Outputs[0].Shape)}, true
	}
	for _, op := range []string{"view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as"} {
		views[op] = reshape
	}
	expand := func(l *lowering, n GraphNode) ([]*Value, bool) {
		v, ok := l.ref(n.Args[0])
		if !ok {
			return nil, false
		}
		return []*Value{l.expand(v, n.Outputs[0].Shape)}, true
	}
	views["expand"], views["expand_as"] = expand, expand
	views["broadcast_tensors"] = func(l *lowering, n GraphNode) ([]*Value, bool) {
		var out []*Value
		for i, a := range n.Args[0].List {
			v, ok := l.ref(a)
			if !ok {
				return nil, false
			}
			out = append(out, l.expand(v, n.Outputs[i].Shape))
		}
		return out, true
	}
	views["permute"] = func(l *lowering, n GraphNode) ([]*Value, bool) {
		v, ok := l.ref(n.Args[0])
		dims, ok2 := n.arg(1, "dims").ints()
		if !ok || !ok2 || len(dims) != len(v.Shape) {
			return nil, false
		}
		return permute(l, v, dims)
	}
	transpose := func(l *lowering, n GraphNode) ([]*Value, bool) {
		v, ok := l.ref(n.Args[0])
		if !ok {
			return nil, false
		}
		rank := len(v.Shape)
		a, ok := normalDim(int(n.number(1, "dim0", 0)), rank)
		b, ok2 := normalDim(int(n.number(2, "dim1", 1)), rank)
		if !ok || !ok2 || rank < 2 {
			return []*Value{v}, rank < 2
		}
		dims := make([]int, rank)
		for i := range dims {
			dims[i] = i
		}
		dims[a], dims[b] = dims[b], dims[a]
		return permute(l, v, dims)
	}
	views["transpose"], views["t"], views["swapaxes"] = transpose, transpose, transpose
	views["select"] = func(l *lowering, n GraphNode) ([]*Value, bool) {
		v, ok := l.ref(n.Args[0])
		if !ok {
			return nil, false
		}
		d, ok := normalDim(int(n.number(1, "dim", 0)), len(v.Shape))
		at, ok2 := n.arg(2, "index").number()
		if !ok || !ok2 {
			return nil, false
		}
		i := int(at)
		if i < 0 {
			i += v.Shape[d]
		}
		m := make([]Index, len(v.Shape))
		for k := range m {
			switch {
			case k < d:
				m[k] = along(k)
			case k == d:
				m[k] = Index{Off: i}
			default:
				m[k] = along(k - 1)
			}
		}
		return []*Value{l.view(v, n.Outputs[0].Shape, m)}, true
	}
	views["slice"] = func(l *lowering, n GraphNode) ([]*Value, bool) {
		v, ok := l.ref(n.Args[0])
		if !ok {
			return nil, false
		}
		d, ok := normalDim(int(n.number(1, "dim", 0)), len(v.Shape))
		if !ok {
			return nil, false
		}
		start, step := int(n.number(2, "start", 0)), int(n.number(4, "step", 1))
		if start < 0 {
			start = max(start+v.Shape[d], 0)
		}
		return slice(l, v, d, start, step, n.Outputs[0].Shape), true
	}
	views["narrow"] = func(l *lowering, n GraphNode) ([]*Value, bool) {
		v, ok := l.ref(n.Args[0])
		start, ok2 := n.arg(2, "start").number()
		if !ok || !ok2 {
			return nil, false
		}
		d, ok := normalDim(int(n.number(1, "dim", 0)), len(v.Shape))
		if !ok || start < 0 {
			return nil, false
		}
		return slice(l, v, d, int(start), 1, n.Outputs[0].Shape), true
	}
	pieces := func(dimArg int) lowerer {
		return func(l *lowering, n GraphNode) ([]*Value, bool) {
			v, ok := l.ref(n.Args[0])
			if !ok {
				return nil, false
			}
			d, ok := normalDim(int(n.number(dimArg, "dim", 0)), len(v.Shape))
			if !ok {
				return nil, false
			}
			var out []*Value
			start := 0
			for _, o := range n.Outputs {
				out = append(out, slice(l, v, d, start, 1, o.Shape)...)
				start += o.Shape[d]
			}
			return out, true
		}
	}
	views["split"], views["chunk"], views["split_with_sizes"] = pieces(2), pieces(2), pieces(2)
	views["flip"] = func(l *lowering, n GraphNode) ([]*Value, bool) {
		v, ok := l.ref(n.Args[0])
		if !ok {
			return nil, false
		}
		dims, ok := normalDims(n.arg(1, "dims"), len(v.Shape))
		if !ok {
			return nil, false
		}
		return []*Value{flip(l, v, dims)}, true
	}
	fill := func(i int, name string, otherwise float64, fixed bool) lowerer {
		return func(l *lowering, n GraphNode) ([]*Value, bool) {
			c, ok := n.arg(i, name).number()
			if fixed {
				c, ok = otherwise, true
			}
			// A constant that torch or forward wants as a tensor keeps its own call.
			if !ok || (n.Outputs[0].Batch && !l.onlyPads(n.Name)) {
				return nil, false
			}
			return []*Value{l.constant(c, n.dtype(), n.Outputs[0].Shape)}, true
		}
	}
	for _, op := range []string{"zeros", "zeros_like", "new_zeros"} {
		views[op] = fill(0, "", 0, true)
	}
	for _, op := range []string{"ones", "ones_like", "new_ones"} {
		views[op] = fill(0, "", 1, true)
	}
	views["full"], views["full_like"] = fill(1, "fill_value", 0, false), fill(1, "fill_value", 0, false)
	views["scalar_tensor"] = fill(0, "s", 0, false)
}

func permute(l *lowering, v *Value, dims []int) ([]*Value, bool) {
	shape, m := make([]int, len(dims)), make([]Index, len(dims))
	for i, d := range dims {
		d, ok := normalDim(d, len(dims))
		if !ok {
			return nil, false
		}
		shape[i], m[d] = v.Shape[d], along(i)
	}
	return []*Value{l.view(v, shape, m)}, true
}

func slice(l *lowering, v *Value, d, start, step int, shape []int) []*Value {
	m := make([]Index, len(v.Shape))
	for k := range m {
		m[k] = along(k)
	}
	m[d] = Index{Off: start, Terms: []Term{{d, step, 1, 0}}}
	return []*Value{l.view(v, shape, m)}
}

func flip(l *lowering, v *Value, dims []int) *Value {
	// A scan seen backwards from a scan of what is seen backwards is a scan
	// from the other end.
	if v.Kind == Access && v.Args[0].Kind == Scan && slices.Equal(dims, v.Args[0].dims) && v == l.whole(v.Args[0]) {
		s := *v.Args[0]
		s.Reverse, s.Cost, s.out = !s.Reverse, 0, nil
		s.Args = []*Value{flip(l, s.Args[0], dims)}
		return l.whole(l.intern(s))
	}
	m := make([]Index, len(v.Shape))
	for k := range m {
		m[k] = along(k)
		if slices.Contains(dims, k) {
			m[k] = Index{Off: v.Shape[k] - 1, Terms: []Term{{k, -1, 1, 0}}}
		}
	}
	return l.view(v, v.Shape, m)
}
