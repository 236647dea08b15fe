package plan

import "slices"

// Normalisations. All are spelled as centred sums, so that one planner sees
// them all, whatever stands before and after them.

// rsqrt of a variance with eps added, once per row.
func (l *lowering) inverseRoot(squares *Value, n float64, eps float64) *Value {
	v := l.add(l.div(squares, l.num(n, squares)), l.num(eps, squares))
	return l.div(l.num(1, v), l.op("sqrt", v))
}

func (l *lowering) normalise(x *Value, dims []int, eps float64) *Value {
	c, squares := l.centred(x, dims)
	return l.mul(c, l.inverseRoot(squares, count(x.Shape, dims), eps))
}

// affine applies an optional weight and bias, both already shaped to broadcast.
func (l *lowering) affine(y, weight, bias *Value) *Value {
	if weight != nil {
		y = l.mul(y, weight)
	}
	if bias != nil {
		y = l.add(y, bias)
	}
	return y
}

// optional returns a tensor argument, nil for None.
func (l *lowering) optional(a Arg) (*Value, bool) {
	if a.Kind == argNone {
		return nil, true
	}
	return l.ref(a)
}

// operands returns the first argument and optional further ones.
func (l *lowering) operands(n GraphNode, at ...int) ([]*Value, bool) {
	x, ok := l.ref(n.Args[0])
	if !ok || !n.dtype().Floating() {
		return nil, false
	}
	out := []*Value{l.operand(x)}
	for _, i := range at {
		v, ok := l.optional(n.arg(i, ""))
		if !ok || (v != nil && v.DType != x.DType) {
			return nil, false
		}
		out = append(out, v)
	}
	return out, true
}

func trailing(shape []int, k int) []int {
	dims := make([]int, k)
	for i := range dims {
		dims[i] = len(shape) - k + i
	}
	return dims
}

func init() {
	lowerers["layer_norm"] = func(l *lowering, n GraphNode) ([]*Value, bool) {
		v, ok := l.operands(n, 2, 3)
		shape, ok2 := n.arg(1, "normalized_shape").ints() //nolint:misspell // torch's spelling
		if !ok || !ok2 {
			return nil, false
		}
		y := l.normalise(v[0], trailing(v[0].Shape, len(shape)), n.number(4, "eps", 1e-5))
		return []*Value{l.affine(y, v[1], v[2])}, true
	}
	lowerers["rms_norm"] = func(l *lowering, n GraphNode) ([]*Value, bool) {
		v, ok := l.operands(n, 2)
		shape, ok2 := n.arg(1, "normalized_shape").ints() //nolint:misspell // torch's spelling
		if !ok || !ok2 {
			return nil, false
		}
		x := v[0]
		dims := trailing(x.Shape, len(shape))
		squares := l.sum(l.mul(x, x), dims, true)
		// torch's default is the type's own epsilon.
		y := l.mul(x, l.inverseRoot(squares, count(x.Shape, dims), n.number(3, "eps", epsilon(x.DType))))
		return []*Value{l.affine(y, v[1], nil)}, true
	}
	lowerers["group_norm"] = func(l *lowering, n GraphNode) ([]*Value, bool) {
		v, ok := l.operands(n, 2, 3)
		groups := int(n.number(1, "num_groups", 0))
		if !ok || groups <= 0 || len(v[0].Shape) < 2 || v[0].Shape[1]%groups != 0 {
			return nil, false
		}
		return []*Value{l.groupNorm(v[0], v[1], v[2], groups, n.number(4, "eps", 1e-5))}, true
	}
	lowerers["instance_norm"] = func(l *lowering, n GraphNode) ([]*Value, bool) {
		v, ok := l.operands(n, 1, 2)
		// With running statistics outside training it is a batch norm.
		if use := n.arg(5, "use_input_stats"); !ok || use.Kind != argBool || !use.Bool || len(v[0].Shape) < 3 || n.arg(3, "").Kind != argNone {
			return nil, false
		}
		x := v[0]
		y := l.normalise(x, trailing(x.Shape, len(x.Shape)-2), n.number(7, "eps", 1e-5))
		return []*Value{l.affineChannels(y, v[1], v[2])}, true
	}
	batchNorm := func(training, eps int) lowerer {
		return func(l *lowering, n GraphNode) ([]*Value, bool) {
			v, ok := l.operands(n, 1, 2, 3, 4)
			if !ok || v[3] == nil || v[4] == nil || len(v[0].Shape) < 2 {
				return nil, false
			}
			if training >= 0 && (n.arg(training, "training").Kind != argBool || n.arg(training, "training").Bool) {
				return nil, false
			}
			x := v[0]
			rank := len(x.Shape)
			scale := l.add(v[4], l.num(n.number(eps, "eps", 1e-5), x))
			scale = l.div(l.num(1, x), l.op("sqrt", scale))
			if v[1] != nil {
				scale = l.mul(scale, v[1])
			}
			y := l.mul(l.sub(x, l.channels(v[3], rank)), l.channels(scale, rank))
			if v[2] != nil {
				y = l.add(y, l.channels(v[2], rank))
			}
			out := []*Value{y}
			if training < 0 {
				out = append(out, nil, nil)
			}
			return out, true
		}
	}
	lowerers["batch_norm"] = batchNorm(5, 7)
	lowerers["_native_batch_norm_legit_no_training"] = batchNorm(-1, 6)
	lowerers["native_layer_norm"] = func(l *lowering, n GraphNode) ([]*Value, bool) {
		out, ok := lowerers["layer_norm"](l, n)
		return append(out, nil, nil), ok
	}
}

func (l *lowering) groupNorm(x, weight, bias *Value, groups int, eps float64) *Value {
	split := slices.Concat([]int{x.Shape[0], groups, x.Shape[1] / groups}, x.Shape[2:])
	y := l.normalise(l.reshape(x, split), trailing(split, len(split)-2), eps)
	return l.affineChannels(l.reshape(y, x.Shape), weight, bias)
}

func (l *lowering) affineChannels(y, weight, bias *Value) *Value {
	if weight != nil {
		weight = l.channels(weight, len(y.Shape))
	}
	if bias != nil {
		bias = l.channels(bias, len(y.Shape))
	}
	return l.affine(y, weight, bias)
}

func epsilon(d DType) float64 {
	if d == F64 {
		return 0x1p-52
	}
	return 0x1p-23
}
