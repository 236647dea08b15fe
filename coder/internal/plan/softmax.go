package plan

// Softmax and log-softmax along any dimension. The largest element is found
// without care for NaN: a NaN reaches every element of its row through the sum.

func init() {
	along := func(f func(l *lowering, x *Value, dims []int) *Value) lowerer {
		return func(l *lowering, n GraphNode) ([]*Value, bool) {
			x, ok := l.ref(n.Args[0])
			if !ok || !n.dtype().Floating() {
				return nil, false
			}
			dims, ok := normalDims(n.arg(1, "dim"), len(x.Shape))
			if !ok || len(dims) != 1 {
				return nil, false
			}
			if len(x.Shape) == 0 {
				return nil, false
			}
			return []*Value{f(l, l.operand(l.cast(x, n.dtype())), dims)}, true
		}
	}
	softmax := along(func(l *lowering, x *Value, dims []int) *Value { return l.softmax(x, dims) })
	logSoftmax := along(func(l *lowering, x *Value, dims []int) *Value { return l.logSoftmax(x, dims) })
	lowerers["softmax"], lowerers["_softmax"] = softmax, softmax
	lowerers["log_softmax"], lowerers["_log_softmax"] = logSoftmax, logSoftmax
	lowerers["softmin"] = along(func(l *lowering, x *Value, dims []int) *Value { return l.softmax(l.op("neg", x), dims) })
}

func (l *lowering) softmax(x *Value, dims []int) *Value {
	e := l.op("exp", l.sub(x, l.reduce("maxnum", x.DType, x, dims, true)))
	return l.mul(e, l.div(l.num(1, x), l.sum(e, dims, true)))
}

func (l *lowering) logSoftmax(x *Value, dims []int) *Value {
	shifted := l.sub(x, l.reduce("maxnum", x.DType, x, dims, true))
	return l.sub(shifted, l.op("log", l.sum(l.op("exp", shifted), dims, true)))
}
