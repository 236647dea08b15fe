package coder

import "slices"

// Pooling over windows of the last one to three dimensions, and adaptive
// averages where every window has the same size.

// expensive is the cost of an operand above which windows that overlap should
// not compute it again. Along the last dimension they never do.
const expensive = 8

// farReach is the longest window along the last dimension for which a line of
// columns fits on a thread's stack; beyond it a pooling is left to torch.
const farReach = 1 << 16

func init() {
	for k, suffix := range []string{"1d", "2d", "3d"} {
		rank := k + 1
		lowerers["max_pool"+suffix] = func(l *lowering, n graphNode) ([]*value, bool) {
			return l.pooled(n, rank, "max", n.arg(4, "dilation"), n.arg(5, "ceil_mode"), true, 0)
		}
		lowerers["avg_pool"+suffix] = func(l *lowering, n graphNode) ([]*value, bool) {
			counted := n.arg(5, "count_include_pad")
			return l.pooled(n, rank, "mean", arg{}, n.arg(4, "ceil_mode"), counted.Kind != argBool || counted.Bool,
				int(n.number(6, "divisor_override", 0)))
		}
		lowerers["adaptive_avg_pool"+suffix] = func(l *lowering, n graphNode) ([]*value, bool) { return adaptive(l, n, rank, "mean") }
		lowerers["adaptive_max_pool"+suffix] = func(l *lowering, n graphNode) ([]*value, bool) {
			if n.Many && l.used(n.Name, 1) {
				return nil, false
			}
			return adaptive(l, n, rank, "max")
		}
	}
	lowerers["_adaptive_avg_pool2d"] = lowerers["adaptive_avg_pool2d"]
}

// each returns one number for each of rank dimensions.
func each(a arg, rank, otherwise int) ([]int, bool) {
	v, ok := a.ints()
	if a.Kind == argNone || (ok && len(v) == 0) {
		v = []int{otherwise}
	} else if !ok {
		return nil, false
	}
	if len(v) == 1 {
		v = slices.Repeat(v, rank)
	}
	return v, len(v) == rank
}

func (l *lowering) pooled(n graphNode, rank int, op string, dilation, ceil arg, counted bool, divisor int) ([]*value, bool) {
	x, ok := l.ref(n.Args[0])
	if !ok || !n.dtype().floating() || n.Many || len(x.shape) < rank+1 || ceil.Bool {
		return nil, false
	}
	w := &window{counted: counted, divisor: divisor, in: x.shape[len(x.shape)-rank:]}
	var oks [4]bool
	w.kernel, oks[0] = each(n.arg(1, "kernel_size"), rank, 1)
	w.padding, oks[2] = each(n.arg(3, "padding"), rank, 0)
	w.dilation, oks[3] = each(dilation, rank, 1)
	if stride := n.arg(2, "stride"); stride.Kind == argNone || (stride.Kind == argList && len(stride.List) == 0) {
		w.stride, oks[1] = w.kernel, true
	} else {
		w.stride, oks[1] = each(stride, rank, 1)
	}
	if oks != [4]bool{true, true, true, true} {
		return nil, false
	}
	shape := slices.Clone(x.shape[:len(x.shape)-rank])
	for i := range rank {
		shape = append(shape, (w.in[i]+2*w.padding[i]-w.dilation[i]*(w.kernel[i]-1)-1)/w.stride[i]+1)
	}
	if w.reach() > farReach {
		return nil, false
	}
	return []*value{l.windows(op, x, w, shape)}, true
}

func (l *lowering) windows(op string, x *value, w *window, shape []int) *value {
	overlap := false
	for i := range len(w.kernel) - 1 {
		overlap = overlap || w.dilation[i]*(w.kernel[i]-1) >= w.stride[i]
	}
	if holds(x, pool, scan, reduce) || (overlap && x.cost > expensive) {
		x = l.materialise(x)
	}
	return l.whole(l.intern(value{kind: pool, op: op, dtype: x.dtype, shape: shape, args: []*value{x}, window: w}))
}

func adaptive(l *lowering, n graphNode, rank int, op string) ([]*value, bool) {
	x, ok := l.ref(n.Args[0])
	if !ok || !n.dtype().floating() || len(x.shape) < rank+1 {
		return nil, false
	}
	lead := len(x.shape) - rank
	in, out := x.shape[lead:], n.Outputs[0].Shape[lead:]
	if numel(out) == 1 {
		x = l.operand(x)
		dims := trailing(x.shape, rank)
		if op == "max" {
			return []*value{l.reduce("max", x.dtype, x, dims, true)}, true
		}
		return []*value{l.mean(x, dims, true)}, true
	}
	w := &window{in: in, counted: true, padding: make([]int, rank), dilation: slices.Repeat([]int{1}, rank)}
	for i := range rank {
		if in[i]%out[i] != 0 {
			return nil, false
		}
		w.kernel = append(w.kernel, in[i]/out[i])
	}
	w.stride = w.kernel
	if w.reach() > farReach {
		return nil, false
	}
	return []*value{l.windows(op, x, w, n.Outputs[0].Shape)}, true
}
