package plan

// The position of the largest or smallest element: the first of equals, and a
// NaN before anything else, as torch has it.

func init() {
	arg := func(op string) lowerer {
		return func(l *lowering, n GraphNode) ([]*Value, bool) {
			x, ok := l.ref(n.Args[0])
			if !ok || !x.DType.Floating() {
				return nil, false
			}
			x = l.operand(x)
			keep := n.arg(2, "keepdim").Bool
			d := n.arg(1, "dim")
			if d.Kind == argNone {
				if keep {
					return nil, false
				}
				x = l.reshape(x, []int{Numel(x.Shape)})
			}
			dims, ok := normalDims(d, len(x.Shape))
			if !ok || len(dims) != 1 {
				return nil, false
			}
			return []*Value{l.reduce(op, I64, x, dims, keep)}, true
		}
	}
	lowerers["argmax"], lowerers["argmin"] = arg("argmax"), arg("argmin")
}
