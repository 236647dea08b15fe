package plan

import (
	"math"
	"slices"
)

// The element-by-element operators. Each is spelled in the few operations that
// every emitter knows (see pointOps), with torch's own formula where there is
// a choice, so that NaN and infinities come out as torch's.

// unary makes a lowerer of a formula over one floating operand.
func unary(f func(l *lowering, n GraphNode, x *Value) *Value) lowerer {
	return func(l *lowering, n GraphNode) ([]*Value, bool) {
		x, ok := l.tensor(n.arg(0, "self"), n.dtype())
		if !ok || !n.dtype().Floating() {
			return nil, false
		}
		y := f(l, n, l.cast(x, n.dtype()))
		return []*Value{y}, y != nil
	}
}

// num makes a scalar operand of x's type.
func (l *lowering) num(c float64, x *Value) *Value { return l.constant(c, x.DType, nil) }

func (l *lowering) op(op string, args ...*Value) *Value { return l.point(op, args[0].DType, args...) }

func (l *lowering) add(a, b *Value) *Value { return l.op("add", a, b) }
func (l *lowering) sub(a, b *Value) *Value { return l.op("sub", a, b) }
func (l *lowering) mul(a, b *Value) *Value { return l.op("mul", a, b) }
func (l *lowering) div(a, b *Value) *Value { return l.op("div", a, b) }

func (l *lowering) compare(op string, a, b *Value) *Value { return l.point(op, Bool, a, b) }

func (l *lowering) where(c, a, b *Value) *Value { return l.point("where", a.DType, c, a, b) }

// clamp keeps NaN.
func (l *lowering) clamp(x *Value, lo, hi float64) *Value {
	if !math.IsInf(lo, -1) {
		x = l.op("max", x, l.num(lo, x))
	}
	if !math.IsInf(hi, 1) {
		x = l.op("min", x, l.num(hi, x))
	}
	return x
}

func (l *lowering) sigmoid(x *Value) *Value {
	return l.div(l.num(1, x), l.add(l.num(1, x), l.op("exp", l.op("neg", x))))
}

// elu is scale*x above zero, and alpha*scale*(exp(inner*x)-1) below.
func (l *lowering) elu(x *Value, alpha, scale, inner float64) *Value {
	low := l.mul(l.op("expm1", l.mul(x, l.num(inner, x))), l.num(alpha*scale, x))
	return l.where(l.compare("gt", x, l.num(0, x)), l.mul(x, l.num(scale, x)), low)
}

func (l *lowering) pow(x *Value, e float64) *Value {
	switch e {
	case 0:
		return l.expand(l.num(1, x), x.Shape)
	case 1:
		return x
	case 2:
		return l.mul(x, x)
	case 3:
		return l.mul(l.mul(x, x), x)
	case 0.5:
		return l.op("sqrt", x)
	case -0.5:
		return l.div(l.num(1, x), l.op("sqrt", x))
	case -1:
		return l.div(l.num(1, x), x)
	case -2:
		return l.div(l.num(1, x), l.mul(x, x))
	}
	return l.op("pow", x, l.num(e, x))
}

func init() {
	for _, op := range []string{"exp", "expm1", "log", "log1p", "log2", "log10", "exp2", "sqrt", "sin", "cos", "tanh", "erf", "floor", "ceil", "round", "trunc"} {
		lowerers[op] = unary(func(l *lowering, n GraphNode, x *Value) *Value {
			if len(n.Args) > 1 || len(n.Kwargs) > 0 { // round to decimals
				return nil
			}
			return l.op(op, x)
		})
	}
	lowerers["rsqrt"] = unary(func(l *lowering, _ GraphNode, x *Value) *Value {
		return l.div(l.num(1, x), l.op("sqrt", x))
	})
	lowerers["reciprocal"] = unary(func(l *lowering, _ GraphNode, x *Value) *Value { return l.div(l.num(1, x), x) })
	lowerers["sigmoid"] = unary(func(l *lowering, _ GraphNode, x *Value) *Value { return l.sigmoid(x) })
	lowerers["silu"] = unary(func(l *lowering, _ GraphNode, x *Value) *Value {
		return l.div(x, l.add(l.num(1, x), l.op("exp", l.op("neg", x))))
	})
	lowerers["gelu"] = unary(func(l *lowering, n GraphNode, x *Value) *Value {
		half := l.mul(x, l.num(0.5, x))
		if a := n.arg(1, "approximate"); a.Kind == argString && a.S == "tanh" {
			cube := l.mul(l.mul(x, x), x)
			inner := l.mul(l.num(math.Sqrt2*2/math.Sqrt(math.Pi)*0.5, x), l.add(x, l.mul(l.num(0.044715, x), cube)))
			return l.mul(half, l.add(l.num(1, x), l.op("tanh", inner)))
		}
		return l.mul(half, l.add(l.num(1, x), l.op("erf", l.mul(x, l.num(math.Sqrt2/2, x)))))
	})
	lowerers["mish"] = unary(func(l *lowering, _ GraphNode, x *Value) *Value {
		// tanh(log(1+e)) = e(e+2) / (e(e+2)+2), which is 1 in float long
		// before the square overflows.
		e := l.op("exp", l.op("min", x, l.num(30, x)))
		m := l.mul(e, l.add(e, l.num(2, x)))
		return l.mul(x, l.div(m, l.add(m, l.num(2, x))))
	})
	lowerers["softplus"] = unary(func(l *lowering, n GraphNode, x *Value) *Value {
		beta, threshold := n.number(1, "beta", 1), n.number(2, "threshold", 20)
		z := l.mul(x, l.num(beta, x))
		return l.where(l.compare("gt", z, l.num(threshold, x)), x, l.div(l.op("log1p", l.op("exp", z)), l.num(beta, x)))
	})
	lowerers["log_sigmoid"] = unary(func(l *lowering, _ GraphNode, x *Value) *Value {
		return l.sub(l.op("min", x, l.num(0, x)), l.op("log1p", l.op("exp", l.op("neg", l.op("abs", x)))))
	})
	lowerers["relu6"] = unary(func(l *lowering, _ GraphNode, x *Value) *Value { return l.clamp(x, 0, 6) })
	lowerers["hardtanh"] = unary(func(l *lowering, n GraphNode, x *Value) *Value {
		return l.clamp(x, n.number(1, "min_val", -1), n.number(2, "max_val", 1))
	})
	hardsigmoid := func(l *lowering, x *Value) *Value { return l.clamp(l.add(x, l.num(3, x)), 0, 6) }
	lowerers["hardsigmoid"] = unary(func(l *lowering, _ GraphNode, x *Value) *Value {
		return l.div(hardsigmoid(l, x), l.num(6, x))
	})
	lowerers["hardswish"] = unary(func(l *lowering, _ GraphNode, x *Value) *Value {
		return l.div(l.mul(x, hardsigmoid(l, x)), l.num(6, x))
	})
	lowerers["leaky_relu"] = unary(func(l *lowering, n GraphNode, x *Value) *Value {
		slope := l.num(n.number(1, "negative_slope", 0.01), x)
		return l.where(l.compare("gt", x, l.num(0, x)), x, l.mul(x, slope))
	})
	lowerers["elu"] = unary(func(l *lowering, n GraphNode, x *Value) *Value {
		return l.elu(x, n.number(1, "alpha", 1), n.number(2, "scale", 1), n.number(3, "input_scale", 1))
	})
	lowerers["celu"] = unary(func(l *lowering, n GraphNode, x *Value) *Value {
		alpha := n.number(1, "alpha", 1)
		return l.elu(x, alpha, 1, 1/alpha)
	})
	lowerers["selu"] = unary(func(l *lowering, _ GraphNode, x *Value) *Value {
		return l.elu(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1)
	})
	lowerers["threshold"] = unary(func(l *lowering, n GraphNode, x *Value) *Value {
		return l.where(l.compare("le", x, l.num(n.number(1, "threshold", 0), x)), l.num(n.number(2, "value", 0), x), x)
	})
	lowerers["softshrink"] = unary(func(l *lowering, n GraphNode, x *Value) *Value {
		k := l.num(n.number(1, "lambd", 0.5), x)
		low := l.where(l.compare("lt", x, l.op("neg", k)), l.add(x, k), l.mul(x, l.num(0, x)))
		return l.where(l.compare("gt", x, k), l.sub(x, k), low)
	})
	lowerers["prelu"] = func(l *lowering, n GraphNode) ([]*Value, bool) {
		x, ok := l.tensor(n.arg(0, "self"), n.dtype())
		w, ok2 := l.tensor(n.arg(1, "weight"), n.dtype())
		if !ok || !ok2 || len(x.Shape) < 2 {
			return nil, false
		}
		w = l.channels(w, len(x.Shape))
		return []*Value{l.where(l.compare("gt", x, l.num(0, x)), x, l.mul(x, w))}, true
	}

	// Operators that integers have too.
	any := func(f func(l *lowering, n GraphNode, x *Value) *Value) lowerer {
		return func(l *lowering, n GraphNode) ([]*Value, bool) {
			x, ok := l.tensor(n.arg(0, "self"), n.dtype())
			if !ok || n.dtype() == Bool {
				return nil, false
			}
			return []*Value{f(l, n, l.cast(x, n.dtype()))}, true
		}
	}
	// Not max(x, 0): the order of the operands keeps -0 and NaN as torch does.
	lowerers["relu"] = any(func(l *lowering, _ GraphNode, x *Value) *Value { return l.op("max", x, l.num(0, x)) })
	lowerers["abs"] = any(func(l *lowering, _ GraphNode, x *Value) *Value { return l.op("abs", x) })
	lowerers["neg"] = any(func(l *lowering, _ GraphNode, x *Value) *Value { return l.op("neg", x) })
	lowerers["absolute"], lowerers["negative"] = lowerers["abs"], lowerers["neg"]
	lowerers["square"] = any(func(l *lowering, _ GraphNode, x *Value) *Value { return l.mul(x, x) })
	lowerers["sign"] = any(func(l *lowering, _ GraphNode, x *Value) *Value {
		up := l.cast(l.compare("gt", x, l.num(0, x)), x.DType)
		return l.sub(up, l.cast(l.compare("lt", x, l.num(0, x)), x.DType))
	})

	// Two operands, the second of them scaled by alpha for add and sub.
	arithmetic := func(op string, swap bool) lowerer {
		return func(l *lowering, n GraphNode) ([]*Value, bool) {
			d := n.dtype()
			a, ok := l.tensor(n.arg(0, "self"), d)
			b, ok2 := l.tensor(n.arg(1, "other"), d)
			if !ok || !ok2 || d == Bool || (op == "div" && !d.Floating()) || n.Kwargs["rounding_mode"].Kind == argString {
				return nil, false
			}
			a, b = l.cast(a, d), l.cast(b, d)
			if swap {
				a, b = b, a
			}
			if alpha := n.number(2, "alpha", 1); alpha != 1 && (op == "add" || op == "sub") {
				b = l.mul(b, l.num(alpha, b)) // rsub(a, b, alpha) is b - alpha*a
			}
			return []*Value{l.expand(l.point(op, d, a, b), n.Outputs[0].Shape)}, true
		}
	}
	for _, op := range []string{"add", "sub", "mul", "div"} {
		lowerers[op] = arithmetic(op, false)
	}
	lowerers["rsub"] = arithmetic("sub", true)
	lowerers["subtract"], lowerers["multiply"], lowerers["divide"], lowerers["true_divide"] = lowerers["sub"], lowerers["mul"], lowerers["div"], lowerers["div"]
	lowerers["maximum"], lowerers["minimum"] = arithmetic("max", false), arithmetic("min", false)

	lowerers["pow"] = func(l *lowering, n GraphNode) ([]*Value, bool) {
		d := n.dtype()
		x, ok := l.tensor(n.arg(0, "self"), d)
		if !ok || !d.Floating() {
			return nil, false
		}
		x = l.cast(x, d)
		if e, ok := n.arg(1, "exponent").number(); ok {
			return []*Value{l.pow(x, e)}, true
		}
		e, ok := l.tensor(n.arg(1, "exponent"), d)
		if !ok {
			return nil, false
		}
		return []*Value{l.op("pow", x, l.cast(e, d))}, true
	}
	lowerers["addcmul"] = func(l *lowering, n GraphNode) ([]*Value, bool) { return addc(l, n, "mul") }
	lowerers["addcdiv"] = func(l *lowering, n GraphNode) ([]*Value, bool) { return addc(l, n, "div") }

	for op, spelled := range map[string]string{"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "less": "lt", "greater": "gt"} {
		lowerers[op] = func(l *lowering, n GraphNode) ([]*Value, bool) {
			a, ok := l.ref(n.arg(0, "self"))
			if !ok {
				return nil, false
			}
			d := a.DType
			b, ok := l.tensor(n.arg(1, "other"), d)
			if !ok || (!d.Floating() && n.arg(1, "other").Kind == argFloat) {
				return nil, false
			}
			if b.DType != d {
				d = promote(a.DType, b.DType)
			}
			return []*Value{l.compare(spelled, l.cast(a, d), l.cast(b, d))}, true
		}
	}
	logical := func(op string) lowerer {
		return func(l *lowering, n GraphNode) ([]*Value, bool) {
			a, ok := l.ref(n.arg(0, "self"))
			b, ok2 := l.ref(n.arg(1, "other"))
			if !ok || !ok2 || n.dtype() != Bool {
				return nil, false
			}
			return []*Value{l.point(op, Bool, l.cast(a, Bool), l.cast(b, Bool))}, true
		}
	}
	lowerers["logical_and"], lowerers["bitwise_and"] = logical("and"), logical("and")
	lowerers["logical_or"], lowerers["bitwise_or"] = logical("or"), logical("or")
	not := func(l *lowering, n GraphNode) ([]*Value, bool) {
		a, ok := l.ref(n.arg(0, "self"))
		if !ok || n.dtype() != Bool {
			return nil, false
		}
		return []*Value{l.point("not", Bool, l.cast(a, Bool))}, true
	}
	lowerers["logical_not"], lowerers["bitwise_not"] = not, not
	lowerers["isnan"] = func(l *lowering, n GraphNode) ([]*Value, bool) {
		a, ok := l.ref(n.arg(0, "self"))
		if !ok || !a.DType.Floating() {
			return nil, false
		}
		return []*Value{l.compare("ne", a, a)}, true
	}

	lowerers["where"] = func(l *lowering, n GraphNode) ([]*Value, bool) {
		d := n.dtype()
		c, ok := l.ref(n.arg(0, "condition"))
		a, ok2 := l.tensor(n.arg(1, "self"), d)
		b, ok3 := l.tensor(n.arg(2, "other"), d)
		if !ok || !ok2 || !ok3 {
			return nil, false
		}
		return []*Value{l.where(l.cast(c, Bool), l.cast(a, d), l.cast(b, d))}, true
	}
	lowerers["masked_fill"] = func(l *lowering, n GraphNode) ([]*Value, bool) {
		x, ok := l.ref(n.arg(0, "self"))
		mask, ok2 := l.ref(n.arg(1, "mask"))
		if !ok || !ok2 {
			return nil, false
		}
		v, ok := l.tensor(n.arg(2, "value"), x.DType)
		if !ok {
			return nil, false
		}
		return []*Value{l.where(l.cast(mask, Bool), l.cast(v, x.DType), x)}, true
	}
	bounds := func(lo, hi int, loName, hiName string) lowerer {
		return func(l *lowering, n GraphNode) ([]*Value, bool) {
			x, ok := l.ref(n.arg(0, "self"))
			if !ok || n.dtype() == Bool {
				return nil, false
			}
			x = l.cast(x, n.dtype())
			for _, b := range []struct {
				arg Arg
				op  string
			}{{n.arg(lo, loName), "max"}, {n.arg(hi, hiName), "min"}} {
				if b.arg.Kind == argNone {
					continue
				}
				v, ok := l.tensor(b.arg, n.dtype())
				if !ok {
					return nil, false
				}
				x = l.op(b.op, x, l.cast(v, n.dtype()))
			}
			return []*Value{x}, true
		}
	}
	lowerers["clamp"], lowerers["clip"] = bounds(1, 2, "min", "max"), bounds(1, 2, "min", "max")
	lowerers["clamp_min"], lowerers["clamp_max"] = bounds(1, -1, "min", "-"), bounds(-1, 1, "-", "max")
	lowerers["arange"] = func(l *lowering, n GraphNode) ([]*Value, bool) {
		if len(n.Outputs[0].Shape) != 1 || !slices.Contains([]DType{I64, F32}, n.dtype()) || n.Outputs[0].Batch {
			return nil, false
		}
		start, step := 0.0, 1.0
		if len(n.Args) > 1 {
			start = n.number(0, "start", 0)
		}
		if len(n.Args) > 2 {
			step = n.number(2, "step", 1)
		}
		i := l.intern(Value{Kind: Position, DType: I64, Shape: n.Outputs[0].Shape, Idx: []Index{along(0)}})
		x := l.cast(i, n.dtype())
		return []*Value{l.add(l.mul(x, l.num(step, x)), l.num(start, x))}, true
	}
}

func addc(l *lowering, n GraphNode, op string) ([]*Value, bool) {
	d := n.dtype()
	x, ok := l.ref(n.arg(0, "self"))
	a, ok2 := l.ref(n.arg(1, "tensor1"))
	b, ok3 := l.ref(n.arg(2, "tensor2"))
	if !ok || !ok2 || !ok3 || !d.Floating() {
		return nil, false
	}
	y := l.op(op, l.cast(a, d), l.cast(b, d))
	return []*Value{l.expand(l.add(l.cast(x, d), l.mul(y, l.num(n.number(3, "value", 1), y))), n.Outputs[0].Shape)}, true
}

// promote is the wider of two types, floats before integers.
func promote(a, b DType) DType {
	order := []DType{Bool, I32, I64, F32, F64}
	return order[max(slices.Index(order, a), slices.Index(order, b))]
}

// channels views a vector as [C, 1, ...], so that it broadcasts along the
// second dimension of rank dimensions.
func (l *lowering) channels(w *Value, rank int) *Value {
	shape := make([]int, rank-1)
	for i := range shape {
		shape[i] = 1
	}
	shape[0] = Numel(w.Shape)
	return l.reshape(w, shape)
}
