package coder

// Running sums and products. Eager torch carries them in double on a CPU, and
// so do we.

func init() {
	running := func(op string) lowerer {
		return func(l *lowering, n graphNode) ([]*value, bool) {
			x, ok := l.ref(n.Args[0])
			if !ok || (!n.dtype().floating() && n.dtype() != i64) || len(x.shape) == 0 {
				return nil, false
			}
			d, ok := normalDim(int(n.number(1, "dim", 0)), len(x.shape))
			if !ok {
				return nil, false
			}
			x = l.operand(l.cast(x, n.dtype()))
			if holds(x, reduce) {
				x = l.materialise(x)
			}
			return []*value{l.whole(l.intern(value{kind: scan, op: op, dtype: x.dtype, shape: x.shape, args: []*value{x}, dims: []int{d}}))}, true
		}
	}
	lowerers["cumsum"], lowerers["cumprod"] = running("sum"), running("prod")
}
