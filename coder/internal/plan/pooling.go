package plan

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
		lowerers["max_pool"+suffix] = func(l *lowering, n GraphNode) ([]*Value, bool) {
			return l.pooled(n, rank, "max", n.arg(4, "dilation"), n.arg(5, "ceil_mode"), true, 0)
		}
		lowerers["avg_pool"+suffix] = func(l *lowering, n GraphNode) ([]*Value, bool) {
			counted := n.arg(5, "count_include_pad")
			return l.pooled(n, rank, "mean", Arg{}, n.arg(4, "ceil_mode"), counted.Kind != argBool || counted.Bool,
				int(n.number(6, "divisor_override", 0)))
		}
		lowerers["adaptive_avg_pool"+suffix] = func(l *lowering, n GraphNode) ([]*Value, bool) { return adaptive(l, n, rank, "mean") }
		lowerers["adaptive_max_pool"+suffix] = func(l *lowering, n GraphNode) ([]*Value, bool) {
			if n.Many && l.used(n.Name, 1) {
				return nil, false
			}
			return adaptive(l, n, rank, "max")
		}
	}
	lowerers["_adaptive_avg_pool2d"] = lowerers["adaptive_avg_pool2d"]
}

// each returns one number for each of rank dimensions.
func each(a Arg, rank, otherwise int) ([]int, bool) {
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

func (l *lowering) pooled(n GraphNode, rank int, op string, dilation, ceil Arg, counted bool, divisor int) ([]*Value, bool) {
	x, ok := l.ref(n.Args[0])
	if !ok || !n.dtype().Floating() || n.Many || len(x.Shape) < rank+1 || ceil.Bool {
		return nil, false
	}
	w := &Window{Counted: counted, Divisor: divisor, In: x.Shape[len(x.Shape)-rank:]}
	var oks [4]bool
	w.Kernel, oks[0] = each(n.arg(1, "kernel_size"), rank, 1)
	w.Padding, oks[2] = each(n.arg(3, "padding"), rank, 0)
	w.Dilation, oks[3] = each(dilation, rank, 1)
	if stride := n.arg(2, "stride"); stride.Kind == argNone || (stride.Kind == argList && len(stride.List) == 0) {
		w.Stride, oks[1] = w.Kernel, true
	} else {
		w.Stride, oks[1] = each(stride, rank, 1)
	}
	if oks != [4]bool{true, true, true, true} {
		return nil, false
	}
	shape := slices.Clone(x.Shape[:len(x.Shape)-rank])
	for i := range rank {
		shape = append(shape, (w.In[i]+2*w.Padding[i]-w.Dilation[i]*(w.Kernel[i]-1)-1)/w.Stride[i]+1)
	}
	if w.Reach() > farReach {
		return nil, false
	}
	return []*Value{l.windows(op, x, w, shape)}, true
}

func (l *lowering) windows(op string, x *Value, w *Window, shape []int) *Value {
	overlap := false
	for i := range len(w.Kernel) - 1 {
		overlap = overlap || w.Dilation[i]*(w.Kernel[i]-1) >= w.Stride[i]
	}
	if Holds(x, Pool, Scan, Reduce) || (overlap && x.Cost > expensive) {
		x = l.materialise(x)
	}
	return l.whole(l.intern(Value{Kind: Pool, Op: op, DType: x.DType, Shape: shape, Args: []*Value{x}, Window: w}))
}

func adaptive(l *lowering, n GraphNode, rank int, op string) ([]*Value, bool) {
	x, ok := l.ref(n.Args[0])
	if !ok || !n.dtype().Floating() || len(x.Shape) < rank+1 {
		return nil, false
	}
	lead := len(x.Shape) - rank
	in, out := x.Shape[lead:], n.Outputs[0].Shape[lead:]
	if Numel(out) == 1 {
		x = l.operand(x)
		dims := trailing(x.Shape, rank)
		if op == "max" {
			return []*Value{l.reduce("max", x.DType, x, dims, true)}, true
		}
		return []*Value{l.mean(x, dims, true)}, true
	}
	w := &Window{In: in, Counted: true, Padding: make([]int, rank), Dilation: slices.Repeat([]int{1}, rank)}
	for i := range rank {
		if in[i]%out[i] != 0 {
			return nil, false
		}
		w.Kernel = append(w.Kernel, in[i]/out[i])
	}
	w.Stride = w.Kernel
	if w.Reach() > farReach {
		return nil, false
	}
	return []*Value{l.windows(op, x, w, n.Outputs[0].Shape)}, true
}
