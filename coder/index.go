package coder

import "slices"

// term is coef * ((i / div) % mod), where i counts along one dimension. mod 0
// means that nothing is taken modulo.
type term struct{ dim, coef, div, mod int }

// index is a position computed from the positions along the dimensions of a
// shape.
type index struct {
	off   int
	terms []term
}

func along(dim int) index { return index{terms: []term{{dim, 1, 1, 0}}} }

// span returns how many values the quotient of a term takes on, given the
// sizes of the dimensions.
func (t term) span(shape []int) int {
	n := (shape[t.dim] + t.div - 1) / t.div
	if t.mod > 0 && t.mod < n {
		n = t.mod
	}
	return n
}

// substitute replaces each dimension k of x by m[k], an index over a shape. It
// reports false where the result has no such form.
func (x index) substitute(m []index, shape []int) (index, bool) {
	out := index{off: x.off}
	for _, t := range x.terms {
		y := m[t.dim]
		if t.div == 1 && t.mod == 0 {
			out.off += t.coef * y.off
			for _, u := range y.terms {
				u.coef *= t.coef
				out.terms = append(out.terms, u)
			}
			continue
		}
		q, ok := y.quotient(t.div, t.mod, shape)
		if !ok {
			return index{}, false
		}
		out.off += t.coef * q.off
		for _, u := range q.terms {
			u.coef *= t.coef
			out.terms = append(out.terms, u)
		}
	}
	return out.normal(shape), true
}

// quotient returns (x / div) % mod where that is an index again.
func (x index) quotient(div, mod int, shape []int) (index, bool) {
	x = x.normal(shape)
	if len(x.terms) == 0 {
		v := x.off / div
		if mod > 0 {
			v %= mod
		}
		return index{off: v}, x.off >= 0
	}
	if x.off != 0 {
		return index{}, false
	}
	if len(x.terms) == 1 && x.terms[0].coef == 1 {
		t := x.terms[0]
		if t.mod > 0 && t.mod%div != 0 {
			return index{}, false
		}
		t.mod /= div
		t.div *= div
		if mod > 0 {
			switch {
			case t.mod == 0 || t.mod%mod == 0:
				t.mod = mod
			case t.mod > mod:
				return index{}, false
			}
		}
		return index{terms: []term{t}}.normal(shape), true
	}
	var out index
	rest, kept := 0, 0
	for _, t := range x.terms {
		if t.coef < 0 {
			return index{}, false
		}
		if t.coef%div != 0 {
			rest += t.coef * (t.span(shape) - 1)
			continue
		}
		t.coef /= div
		if mod > 0 && t.coef%mod == 0 {
			continue
		}
		kept += t.coef * (t.span(shape) - 1)
		out.terms = append(out.terms, t)
	}
	if rest >= div {
		return index{}, false
	}
	if mod > 0 && kept >= mod {
		if len(out.terms) != 1 || out.terms[0].coef != 1 {
			return index{}, false
		}
		t := &out.terms[0]
		if t.mod > 0 && t.mod%mod != 0 {
			return index{}, false
		}
		t.mod = mod
	}
	return out.normal(shape), true
}

// normal drops what has no effect, joins terms that belong together, and puts
// the rest in order.
func (x index) normal(shape []int) index {
	out := index{off: x.off}
	for _, t := range x.terms {
		n := (shape[t.dim] + t.div - 1) / t.div
		if t.coef == 0 || n <= 1 || t.mod == 1 {
			continue
		}
		if t.mod >= n {
			t.mod = 0
		}
		out.terms = append(out.terms, t)
	}
	for again := true; again; {
		again = false
	search:
		for i, a := range out.terms {
			for j, b := range out.terms {
				if i == j || a.dim != b.dim {
					continue
				}
				joined := b
				switch {
				case a.div == b.div && a.mod == b.mod:
					joined.coef += a.coef
				case b.mod > 0 && a.div == b.div*b.mod && a.coef == b.coef*b.mod:
					// c*m*(i/(d*m) % k) + c*(i/d % m) = c*(i/d % (m*k))
					joined.mod *= a.mod
				default:
					continue
				}
				out.terms[j] = joined
				out.terms = slices.Delete(slices.Clone(out.terms), i, i+1)
				again = true
				break search
			}
		}
	}
	out.terms = slices.DeleteFunc(out.terms, func(t term) bool { return t.coef == 0 })
	slices.SortFunc(out.terms, func(a, b term) int {
		if a.dim != b.dim {
			return a.dim - b.dim
		}
		return b.div - a.div
	})
	return out
}

// plain returns the coefficient of each dimension, where no term divides.
func (x index) plain(rank int) ([]int, bool) {
	out := make([]int, rank)
	for _, t := range x.terms {
		if t.div != 1 || t.mod != 0 {
			return nil, false
		}
		out[t.dim] += t.coef
	}
	return out, true
}

func (x index) uses(dim int) bool {
	return slices.ContainsFunc(x.terms, func(t term) bool { return t.dim == dim })
}

func (x index) equal(y index) bool { return x.off == y.off && slices.Equal(x.terms, y.terms) }

// contiguous returns the strides of a densely packed shape.
func contiguous(shape []int) []int {
	out := make([]int, len(shape))
	n := 1
	for i := len(shape) - 1; i >= 0; i-- {
		out[i] = n
		n *= shape[i]
	}
	return out
}

// positions is a shape's own positions, one index for each dimension.
func positions(shape []int) []index {
	idx := make([]index, len(shape))
	for i := range shape {
		idx[i] = along(i)
	}
	return idx
}

// flat returns the position inside a densely packed shape of what idx points
// at, one index for each of its dimensions.
func flat(idx []index, src []int, shape []int) index {
	var out index
	for k, s := range contiguous(src) {
		out.off += s * idx[k].off
		for _, t := range idx[k].terms {
			t.coef *= s
			out.terms = append(out.terms, t)
		}
	}
	return out.normal(shape)
}

// reshapeMap returns, for each dimension of from, its position as an index over
// to. Both have the same number of elements.
func reshapeMap(from, to []int) ([]index, bool) {
	out := make([]index, len(from))
	i, j := 0, 0
	for i < len(from) || j < len(to) {
		if i < len(from) && from[i] == 1 {
			i++
			continue
		}
		if j < len(to) && to[j] == 1 {
			j++
			continue
		}
		if i == len(from) || j == len(to) {
			return nil, false
		}
		i0, j0 := i, j
		a, b := from[i], to[j]
		i, j = i+1, j+1
		for a != b {
			switch {
			case a < b && i < len(from):
				a *= from[i]
				i++
			case b < a && j < len(to):
				b *= to[j]
				j++
			default:
				return nil, false
			}
		}
		var linear index
		stride := 1
		for k := j - 1; k >= j0; k-- {
			linear.terms = append(linear.terms, term{k, stride, 1, 0})
			stride *= to[k]
		}
		stride = 1
		for k := i - 1; k >= i0; k-- {
			q, ok := linear.quotient(stride, from[k], to)
			if !ok {
				return nil, false
			}
			out[k] = q
			stride *= from[k]
		}
	}
	return out, true
}

func numel(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}
