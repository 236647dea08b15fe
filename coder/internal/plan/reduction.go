package plan

// Reductions along any dimensions. Sums are carried in double, or in blocks of
// float that are: see schedule.go, knob "tile".

// reduction makes a lowerer of a formula over a floating operand and dims.
func reduction(dimArg int, f func(l *lowering, n GraphNode, x *Value, dims []int, keep bool) *Value) lowerer {
	return func(l *lowering, n GraphNode) ([]*Value, bool) {
		x, ok := l.ref(n.arg(0, "self"))
		if !ok || !n.dtype().Floating() {
			return nil, false
		}
		keep := n.arg(dimArg+1, "keepdim").Bool
		dims, ok := normalDims(n.arg(dimArg, "dim"), len(x.Shape))
		if !ok {
			return nil, false
		}
		y := f(l, n, l.operand(l.cast(x, n.dtype())), dims, keep)
		return []*Value{y}, y != nil
	}
}

func count(shape []int, dims []int) float64 {
	n := 1
	for _, d := range dims {
		n *= shape[d]
	}
	return float64(n)
}

func (l *lowering) sum(x *Value, dims []int, keep bool) *Value {
	return l.reduce("sum", x.DType, x, dims, keep)
}

// mean is one reduction, not a sum that is divided: the sum of large elements may
// overflow where torch's normalisations do not, and a quotient is rounded twice.
func (l *lowering) mean(x *Value, dims []int, keep bool) *Value {
	return l.reduce("mean", x.DType, x, dims, keep)
}

// centred returns x less its mean, and the sum of the squares of that.
func (l *lowering) centred(x *Value, dims []int) (*Value, *Value) {
	c := l.sub(x, l.mean(x, dims, true))
	return c, l.sum(l.mul(c, c), dims, true)
}

// logSumExp subtracts the largest element first, unless that is infinite.
func (l *lowering) logSumExp(x *Value, dims []int, keep bool) *Value {
	m := l.reduce("max", x.DType, x, dims, true)
	infinite := l.compare("eq", l.op("abs", m), l.num(inf, x))
	shift := l.where(infinite, l.num(0, x), m)
	s := l.sum(l.op("exp", l.sub(x, shift)), dims, true)
	y := l.add(l.op("log", s), shift)
	if keep {
		return y
	}
	return l.reshape(y, without(x.Shape, dims))
}

// vectorNorm is torch's linalg_vector_norm for the orders people use.
func (l *lowering) vectorNorm(x *Value, order float64, dims []int, keep bool) *Value {
	a := l.op("abs", x)
	switch order {
	case 0:
		return l.sum(l.cast(l.compare("ne", x, l.num(0, x)), x.DType), dims, keep)
	case 1:
		return l.sum(a, dims, keep)
	case 2:
		return l.op("sqrt", l.sum(l.mul(x, x), dims, keep))
	case inf:
		return l.reduce("max", x.DType, a, dims, keep)
	case -inf:
		return l.reduce("min", x.DType, a, dims, keep)
	}
	s := l.sum(l.op("pow", a, l.num(order, x)), dims, keep)
	return l.op("pow", s, l.num(1/order, s))
}

func init() {
	lowerers["sum"] = func(l *lowering, n GraphNode) ([]*Value, bool) {
		x, ok := l.ref(n.arg(0, "self"))
		if !ok || n.dtype() == Bool || n.dtype() == I32 {
			return nil, false
		}
		dims, ok := normalDims(n.arg(1, "dim"), len(x.Shape))
		if !ok {
			return nil, false
		}
		return []*Value{l.sum(l.operand(l.cast(x, n.dtype())), dims, n.arg(2, "keepdim").Bool)}, true
	}
	// A matrix times one column is a reduction, which memory bounds.
	lowerers["matmul"] = func(l *lowering, n GraphNode) ([]*Value, bool) {
		x, ok := l.ref(n.arg(0, "self"))
		y, ok2 := l.ref(n.arg(1, "other"))
		if !ok || !ok2 || !n.dtype().Floating() || len(x.Shape) != 2 || len(y.Shape) != 2 || y.Shape[1] != 1 || x.Shape[0] == 1 {
			return nil, false
		}
		column := l.reshape(l.operand(y), []int{y.Shape[0]})
		return []*Value{l.sum(l.mul(l.operand(x), column), []int{1}, true)}, true
	}
	lowerers["mean"] = reduction(1, func(l *lowering, _ GraphNode, x *Value, dims []int, keep bool) *Value {
		return l.mean(x, dims, keep)
	})
	lowerers["amax"] = reduction(1, func(l *lowering, _ GraphNode, x *Value, dims []int, keep bool) *Value {
		return l.reduce("max", x.DType, x, dims, keep)
	})
	lowerers["amin"] = reduction(1, func(l *lowering, _ GraphNode, x *Value, dims []int, keep bool) *Value {
		return l.reduce("min", x.DType, x, dims, keep)
	})
	lowerers["prod"] = reduction(1, func(l *lowering, _ GraphNode, x *Value, dims []int, keep bool) *Value {
		return l.reduce("prod", x.DType, x, dims, keep)
	})
	lowerers["logsumexp"] = reduction(1, func(l *lowering, _ GraphNode, x *Value, dims []int, keep bool) *Value {
		return l.logSumExp(x, dims, keep)
	})
	lowerers["linalg_vector_norm"] = reduction(2, func(l *lowering, n GraphNode, x *Value, dims []int, keep bool) *Value {
		return l.vectorNorm(x, n.number(1, "ord", 2), dims, keep)
	})
	lowerers["norm"] = reduction(2, func(l *lowering, n GraphNode, x *Value, dims []int, keep bool) *Value {
		return l.vectorNorm(x, n.number(1, "p", 2), dims, keep)
	})
	lowerers["frobenius_norm"] = reduction(1, func(l *lowering, _ GraphNode, x *Value, dims []int, keep bool) *Value {
		return l.vectorNorm(x, 2, dims, keep)
	})
	spread := func(root bool) lowerer {
		return func(l *lowering, n GraphNode) ([]*Value, bool) {
			x, ok := l.ref(n.arg(0, "self"))
			if !ok || !n.dtype().Floating() {
				return nil, false
			}
			// var(self, unbiased) and var.dim(self, dim, unbiased, keepdim)
			// beside var.correction(self, dim, *, correction, keepdim).
			correction, dimArg, keep := 1.0, n.arg(1, "dim"), n.Kwargs["keepdim"].Bool
			if c, ok := n.Kwargs["correction"].number(); ok {
				correction = c
			}
			unbiased := n.arg(2, "unbiased")
			if dimArg.Kind == argBool {
				unbiased, dimArg = dimArg, Arg{}
			}
			if unbiased.Kind == argBool && !unbiased.Bool {
				correction = 0
			}
			if len(n.Args) > 3 {
				keep = n.Args[3].Bool
			}
			dims, ok := normalDims(dimArg, len(x.Shape))
			if !ok {
				return nil, false
			}
			free := count(x.Shape, dims) - correction
			if free <= 0 {
				return nil, false
			}
			_, squares := l.centred(l.operand(l.cast(x, n.dtype())), dims)
			y := l.div(squares, l.num(free, squares))
			if root {
				y = l.op("sqrt", y)
			}
			if !keep {
				y = l.reshape(y, without(x.Shape, dims))
			}
			return []*Value{y}, true
		}
	}
	lowerers["var"], lowerers["std"] = spread(false), spread(true)
	extreme := func(op string) lowerer {
		return func(l *lowering, n GraphNode) ([]*Value, bool) {
			x, ok := l.ref(n.arg(0, "self"))
			if !ok || !x.DType.Floating() || n.arg(1, "dim").Kind == argRef {
				return nil, false
			}
			dims, ok := normalDims(n.arg(1, "dim"), len(x.Shape))
			if !ok {
				return nil, false
			}
			x = l.operand(x)
			keep := n.arg(2, "keepdim").Bool
			best := l.reduce(op, x.DType, x, dims, keep)
			if !n.Many {
				return []*Value{best}, true
			}
			return []*Value{best, l.reduce("arg"+op, I64, x, dims, keep)}, true
		}
	}
	lowerers["max"], lowerers["min"] = extreme("max"), extreme("min")
}

func without(shape, dims []int) []int {
	var out []int
	for i, n := range shape {
		if !contains(dims, i) {
			out = append(out, n)
		}
	}
	return out
}
