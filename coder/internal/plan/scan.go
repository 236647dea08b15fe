package plan

// Running sums and products. Eager torch carries them in double on a CPU, and
// so do we.

func init() {
	running := func(op string) lowerer {
		return func(l *lowering, n GraphNode) ([]*Value, bool) {
			x, ok := l.ref(n.Args[0])
			if !ok || (!n.dtype().Floating() && n.dtype() != I64) || len(x.Shape) == 0 {
				return nil, false
			}
			d, ok := normalDim(int(n.number(1, "dim", 0)), len(x.Shape))
			if !ok {
				return nil, false
			}
			x = l.operand(l.cast(x, n.dtype()))
			if Holds(x, Reduce) {
				x = l.materialise(x)
			}
			return []*Value{l.whole(l.intern(Value{Kind: Scan, Op: op, DType: x.DType, Shape: x.Shape, Args: []*Value{x}, dims: []int{d}}))}, true
		}
	}
	lowerers["cumsum"], lowerers["cumprod"] = running("sum"), running("prod")
}
