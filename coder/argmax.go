package coder

// The position of the largest or smallest element: the first of equals, and a
// NaN before anything else, as torch has it.

func init() {
	arg := func(op string) lowerer {
		return func(l *lowering, n graphNode) ([]*value, bool) {
			x, ok := l.ref(n.Args[0])
			if !ok || !x.dtype.floating() {
				return nil, false
			}
			x = l.operand(x)
			keep := n.arg(2, "keepdim").Bool
			d := n.arg(1, "dim")
			if d.Kind == argNone {
				if keep {
					return nil, false
				}
				x = l.reshape(x, []int{numel(x.shape)})
			}
			dims, ok := normalDims(d, len(x.shape))
			if !ok || len(dims) != 1 {
				return nil, false
			}
			return []*value{l.reduce(op, i64, x, dims, keep)}, true
		}
	}
	lowerers["argmax"], lowerers["argmin"] = arg("argmax"), arg("argmin")
}
