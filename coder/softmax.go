package coder

// Softmax and log-softmax along any dimension. The largest element is found
// without care for NaN: a NaN reaches every element of its row through the sum.

func init() {
	along := func(f func(l *lowering, x *value, dims []int) *value) lowerer {
		return func(l *lowering, n graphNode) ([]*value, bool) {
			x, ok := l.ref(n.Args[0])
			if !ok || !n.dtype().floating() {
				return nil, false
			}
			dims, ok := normalDims(n.arg(1, "dim"), len(x.shape))
			if !ok || len(dims) != 1 {
				return nil, false
			}
			if len(x.shape) == 0 {
				return nil, false
			}
			return []*value{f(l, l.operand(l.cast(x, n.dtype())), dims)}, true
		}
	}
	softmax := along(func(l *lowering, x *value, dims []int) *value { return l.softmax(x, dims) })
	logSoftmax := along(func(l *lowering, x *value, dims []int) *value { return l.logSoftmax(x, dims) })
	lowerers["softmax"], lowerers["_softmax"] = softmax, softmax
	lowerers["log_softmax"], lowerers["_log_softmax"] = logSoftmax, logSoftmax
	lowerers["softmin"] = along(func(l *lowering, x *value, dims []int) *value { return l.softmax(l.op("neg", x), dims) })
}

func (l *lowering) softmax(x *value, dims []int) *value {
	e := l.op("exp", l.sub(x, l.reduce("maxnum", x.dtype, x, dims, true)))
	return l.mul(e, l.div(l.num(1, x), l.sum(e, dims, true)))
}

func (l *lowering) logSoftmax(x *value, dims []int) *value {
	shifted := l.sub(x, l.reduce("maxnum", x.dtype, x, dims, true))
	return l.sub(shifted, l.op("log", l.sum(l.op("exp", shifted), dims, true)))
}
