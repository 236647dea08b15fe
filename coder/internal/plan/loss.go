package plan

import "math"

var inf = math.Inf(1)

func contains(list []int, n int) bool {
	for _, v := range list {
		if v == n {
			return true
		}
	}
	return false
}

// The reductions of a loss, numbered as torch numbers them.
const (
	lossNone = 0
	lossMean = 1
	lossSum  = 2
)

// reduced applies a loss's reduction over all elements.
func (l *lowering) reduced(v *Value, how int) *Value {
	if how == lossNone {
		return v
	}
	v = l.operand(v)
	all := make([]int, len(v.Shape))
	for i := range all {
		all[i] = i
	}
	if how == lossSum {
		return l.sum(v, all, false)
	}
	return l.mean(v, all, false)
}

// pairLoss makes a lowerer of an element-by-element loss of two tensors.
func pairLoss(reduction int, f func(l *lowering, n GraphNode, x, y *Value) *Value) lowerer {
	return func(l *lowering, n GraphNode) ([]*Value, bool) {
		x, ok := l.ref(n.Args[0])
		y, ok2 := l.ref(n.Args[1])
		if !ok || !ok2 || !n.dtype().Floating() {
			return nil, false
		}
		v := f(l, n, l.cast(x, n.dtype()), l.cast(y, n.dtype()))
		if v == nil {
			return nil, false
		}
		return []*Value{l.reduced(v, int(n.number(reduction, "reduction", lossMean)))}, true
	}
}

func init() {
	lowerers["mse_loss"] = pairLoss(2, func(l *lowering, _ GraphNode, x, y *Value) *Value {
		d := l.sub(x, y)
		return l.mul(d, d)
	})
	lowerers["l1_loss"] = pairLoss(2, func(l *lowering, _ GraphNode, x, y *Value) *Value { return l.op("abs", l.sub(x, y)) })
	lowerers["smooth_l1_loss"] = pairLoss(2, func(l *lowering, n GraphNode, x, y *Value) *Value {
		beta := n.number(3, "beta", 1)
		d := l.op("abs", l.sub(x, y))
		if beta == 0 {
			return d
		}
		near := l.div(l.mul(l.mul(l.num(0.5, d), d), d), l.num(beta, d))
		return l.where(l.compare("lt", d, l.num(beta, d)), near, l.sub(d, l.num(0.5*beta, d)))
	})
	lowerers["huber_loss"] = pairLoss(2, func(l *lowering, n GraphNode, x, y *Value) *Value {
		delta := n.number(3, "delta", 1)
		d := l.op("abs", l.sub(x, y))
		near := l.mul(l.mul(l.num(0.5, d), d), d)
		return l.where(l.compare("le", d, l.num(delta, d)), near, l.mul(l.num(delta, d), l.sub(d, l.num(0.5*delta, d))))
	})
	lowerers["kl_div"] = pairLoss(2, func(l *lowering, n GraphNode, x, y *Value) *Value {
		if n.arg(3, "log_target").Bool {
			return l.mul(l.op("exp", y), l.sub(y, x))
		}
		// xlogy: nothing is lost where the target is zero.
		plogp := l.where(l.compare("eq", y, l.num(0, y)), l.num(0, y), l.mul(y, l.op("log", y)))
		return l.sub(plogp, l.mul(y, x))
	})
	lowerers["binary_cross_entropy_with_logits"] = func(l *lowering, n GraphNode) ([]*Value, bool) {
		if n.arg(2, "weight").Kind != argNone || n.arg(3, "pos_weight").Kind != argNone {
			return nil, false
		}
		return pairLoss(4, func(l *lowering, _ GraphNode, x, y *Value) *Value {
			tail := l.op("log1p", l.op("exp", l.op("neg", l.op("abs", x))))
			soft := l.sub(l.op("min", x, l.num(0, x)), tail)
			return l.sub(l.mul(l.sub(l.num(1, y), y), x), soft)
		})(l, n)
	}
	lowerers["hinge_embedding_loss"] = func(l *lowering, n GraphNode) ([]*Value, bool) {
		margin := n.number(2, "margin", 1)
		return pairLoss(3, func(l *lowering, _ GraphNode, x, y *Value) *Value {
			zero := l.num(0, x)
			low := l.where(l.compare("ne", y, l.num(1, y)), l.clamp(l.sub(l.num(margin, x), x), 0, inf), zero)
			return l.add(low, l.where(l.compare("ne", y, l.num(-1, y)), x, zero))
		})(l, n)
	}
	lowerers["cosine_similarity"] = func(l *lowering, n GraphNode) ([]*Value, bool) {
		x, ok := l.ref(n.arg(0, "x1"))
		y, ok2 := l.ref(n.arg(1, "x2"))
		if !ok || !ok2 || !n.dtype().Floating() {
			return nil, false
		}
		shape, ok := broadcast(x.Shape, y.Shape)
		if !ok {
			return nil, false
		}
		dims, ok := normalDims(Arg{Kind: argInt, Int: int64(n.number(2, "dim", 1))}, len(shape))
		if !ok {
			return nil, false
		}
		x, y = l.operand(l.expand(x, shape)), l.operand(l.expand(y, shape))
		eps := n.number(3, "eps", 1e-8)
		length := func(v *Value) *Value { return l.clamp(l.vectorNorm(v, 2, dims, false), eps, inf) }
		return []*Value{l.div(l.sum(l.mul(x, y), dims, false), l.mul(length(x), length(y)))}, true
	}
	lowerers["pairwise_distance"] = func(l *lowering, n GraphNode) ([]*Value, bool) {
		x, ok := l.ref(n.arg(0, "x1"))
		y, ok2 := l.ref(n.arg(1, "x2"))
		if !ok || !ok2 || !n.dtype().Floating() {
			return nil, false
		}
		return []*Value{l.distance(x, y, n.number(2, "p", 2), n.number(3, "eps", 1e-6), n.arg(4, "keepdim").Bool)}, true
	}
	lowerers["triplet_margin_loss"] = func(l *lowering, n GraphNode) ([]*Value, bool) {
		a, ok := l.ref(n.arg(0, "anchor"))
		p, ok2 := l.ref(n.arg(1, "positive"))
		q, ok3 := l.ref(n.arg(2, "negative"))
		if !ok || !ok2 || !ok3 || !n.dtype().Floating() {
			return nil, false
		}
		order, eps := n.number(4, "p", 2), n.number(5, "eps", 1e-6)
		near, far := l.distance(a, p, order, eps, false), l.distance(a, q, order, eps, false)
		if n.arg(6, "swap").Bool {
			far = l.op("min", far, l.distance(p, q, order, eps, false))
		}
		v := l.clamp(l.sub(l.add(l.num(n.number(3, "margin", 1), near), near), far), 0, inf)
		return []*Value{l.reduced(v, int(n.number(7, "reduction", lossMean)))}, true
	}
	lowerers["cross_entropy_loss"] = func(l *lowering, n GraphNode) ([]*Value, bool) {
		x, ok := l.ref(n.arg(0, "self"))
		t, ok2 := l.ref(n.arg(1, "target"))
		if !ok || !ok2 || !n.dtype().Floating() || n.arg(2, "weight").Kind != argNone || n.number(5, "label_smoothing", 0) != 0 || t.DType != I64 {
			return nil, false
		}
		d := 1
		if len(x.Shape) == 1 {
			d = 0
		}
		return l.likelihood(l.logSoftmax(l.operand(x), []int{d}), t, d, n.number(4, "ignore_index", -100), int(n.number(3, "reduction", lossMean)))
	}
	nll := func(l *lowering, n GraphNode) ([]*Value, bool) {
		x, ok := l.ref(n.arg(0, "self"))
		t, ok2 := l.ref(n.arg(1, "target"))
		if !ok || !ok2 || !n.dtype().Floating() || n.arg(2, "weight").Kind != argNone || t.DType != I64 || n.Many {
			return nil, false
		}
		d := 1
		if len(x.Shape) == 1 {
			d = 0
		}
		return l.likelihood(x, t, d, n.number(4, "ignore_index", -100), int(n.number(3, "reduction", lossMean)))
	}
	lowerers["nll_loss"], lowerers["nll_loss_nd"], lowerers["nll_loss2d"] = nll, nll, nll
}

// distance is torch's pairwise_distance: over the last dimension, with eps
// added to the difference.
func (l *lowering) distance(x, y *Value, order, eps float64, keep bool) *Value {
	d := l.operand(l.add(l.sub(x, y), l.num(eps, x)))
	return l.vectorNorm(d, order, []int{len(d.Shape) - 1}, keep)
}

// likelihood is the negative log-likelihood of the classes t, given their
// logarithms along dimension d. A class of ignore counts for nothing.
func (l *lowering) likelihood(logp, t *Value, d int, ignore float64, how int) ([]*Value, bool) {
	picked, ok := l.gather(logp, t, d)
	if !ok {
		return nil, false
	}
	counts := l.compare("ne", t, l.num(ignore, t))
	loss := l.where(counts, l.op("neg", picked), l.num(0, picked))
	if how != lossMean {
		return []*Value{l.reduced(loss, how)}, true
	}
	total := l.reduced(loss, lossSum)
	return []*Value{l.div(total, l.reduced(l.cast(counts, total.DType), lossSum))}, true
}

// gather takes element t along dimension d; t has v's shape without d. An
// index outside is drawn inside, so that no read leaves the buffer.
func (l *lowering) gather(v, t *Value, d int) (*Value, bool) {
	m := make([]Index, len(v.Shape))
	for i := range m {
		switch {
		case i < d:
			m[i] = along(i)
		case i > d:
			m[i] = along(i - 1)
		}
	}
	return l.taken(v, t, d, m)
}

// taken is the element t along dimension d of v, whose other positions m gives
// over t's shape.
func (l *lowering) taken(v, t *Value, d int, m []Index) (*Value, bool) {
	if Holds(v, Pool, Scan) {
		v = l.materialise(v)
	}
	var walk func(v *Value) (*Value, bool)
	walk = func(v *Value) (*Value, bool) {
		switch v.Kind {
		case Load:
			s, ok := v.Idx[0].plain(len(v.Shape))
			if !ok || len(v.Args) > 0 {
				return nil, false
			}
			w, ok := l.values.view(v, t.Shape, m)
			if !ok || s[d] == 0 {
				return w, ok
			}
			g := *w
			g.Args, g.Stride, g.Size, g.Cost = []*Value{t}, s[d], v.Shape[d], 0
			return l.intern(g), true
		case Point:
			w := *v
			w.Shape, w.Cost, w.Args = t.Shape, 0, nil
			for _, a := range v.Args {
				b, ok := walk(a)
				if !ok {
					return nil, false
				}
				w.Args = append(w.Args, b)
			}
			return l.intern(w), true
		}
		for _, x := range v.Idx {
			if x.uses(d) {
				return nil, false
			}
		}
		return l.values.view(v, t.Shape, m)
	}
	if w, ok := walk(v); ok {
		return w, true
	}
	return walk(l.materialise(v))
}
