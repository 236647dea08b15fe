package plan

import "slices"

// Term is coef * ((i / div) % mod), where i counts along one dimension. mod 0
// means that nothing is taken modulo.
type Term struct{ Dim, Coef, Div, Mod int }

// Index is a position computed from the positions along the dimensions of a
// shape.
type Index struct {
	Off   int
	Terms []Term
}

func along(dim int) Index { return Index{Terms: []Term{{dim, 1, 1, 0}}} }

// Span returns how many values the quotient of a term takes on, given the
// sizes of the dimensions.
func (t Term) Span(shape []int) int {
	n := (shape[t.Dim] + t.Div - 1) / t.Div
	if t.Mod > 0 && t.Mod < n {
		n = t.Mod
	}
	return n
}

// substitute replaces each dimension k of x by m[k], an index over a shape. It
// reports false where the result has no such form.
func (x Index) substitute(m []Index, shape []int) (Index, bool) {
	out := Index{Off: x.Off}
	for _, t := range x.Terms {
		y := m[t.Dim]
		if t.Div == 1 && t.Mod == 0 {
			out.Off += t.Coef * y.Off
			for _, u := range y.Terms {
				u.Coef *= t.Coef
				out.Terms = append(out.Terms, u)
			}
			continue
		}
		q, ok := y.quotient(t.Div, t.Mod, shape)
		if !ok {
			return Index{}, false
		}
		out.Off += t.Coef * q.Off
		for _, u := range q.Terms {
			u.Coef *= t.Coef
			out.Terms = append(out.Terms, u)
		}
	}
	return out.normal(shape), true
}

// quotient returns (x / div) % mod where that is an index again.
func (x Index) quotient(div, mod int, shape []int) (Index, bool) {
	x = x.normal(shape)
	if len(x.Terms) == 0 {
		v := x.Off / div
		if mod > 0 {
			v %= mod
		}
		return Index{Off: v}, x.Off >= 0
	}
	if x.Off != 0 {
		return Index{}, false
	}
	if len(x.Terms) == 1 && x.Terms[0].Coef == 1 {
		t := x.Terms[0]
		if t.Mod > 0 && t.Mod%div != 0 {
			return Index{}, false
		}
		t.Mod /= div
		t.Div *= div
		if mod > 0 {
			switch {
			case t.Mod == 0 || t.Mod%mod == 0:
				t.Mod = mod
			case t.Mod > mod:
				return Index{}, false
			}
		}
		return Index{Terms: []Term{t}}.normal(shape), true
	}
	var out Index
	rest, kept := 0, 0
	for _, t := range x.Terms {
		if t.Coef < 0 {
			return Index{}, false
		}
		if t.Coef%div != 0 {
			rest += t.Coef * (t.Span(shape) - 1)
			continue
		}
		t.Coef /= div
		if mod > 0 && t.Coef%mod == 0 {
			continue
		}
		kept += t.Coef * (t.Span(shape) - 1)
		out.Terms = append(out.Terms, t)
	}
	if rest >= div {
		return Index{}, false
	}
	if mod > 0 && kept >= mod {
		if len(out.Terms) != 1 || out.Terms[0].Coef != 1 {
			return Index{}, false
		}
		t := &out.Terms[0]
		if t.Mod > 0 && t.Mod%mod != 0 {
			return Index{}, false
		}
		t.Mod = mod
	}
	return out.normal(shape), true
}

// normal drops what has no effect, joins terms that belong together, and puts
// the rest in order.
func (x Index) normal(shape []int) Index {
	out := Index{Off: x.Off}
	for _, t := range x.Terms {
		n := (shape[t.Dim] + t.Div - 1) / t.Div
		if t.Coef == 0 || n <= 1 || t.Mod == 1 {
			continue
		}
		if t.Mod >= n {
			t.Mod = 0
		}
		out.Terms = append(out.Terms, t)
	}
	for again := true; again; {
		again = false
	search:
		for i, a := range out.Terms {
			for j, b := range out.Terms {
				if i == j || a.Dim != b.Dim {
					continue
				}
				joined := b
				switch {
				case a.Div == b.Div && a.Mod == b.Mod:
					joined.Coef += a.Coef
				case b.Mod > 0 && a.Div == b.Div*b.Mod && a.Coef == b.Coef*b.Mod:
					// c*m*(i/(d*m) % k) + c*(i/d % m) = c*(i/d % (m*k))
					joined.Mod *= a.Mod
				default:
					continue
				}
				out.Terms[j] = joined
				out.Terms = slices.Delete(slices.Clone(out.Terms), i, i+1)
				again = true
				break search
			}
		}
	}
	out.Terms = slices.DeleteFunc(out.Terms, func(t Term) bool { return t.Coef == 0 })
	slices.SortFunc(out.Terms, func(a, b Term) int {
		if a.Dim != b.Dim {
			return a.Dim - b.Dim
		}
		return b.Div - a.Div
	})
	return out
}

// plain returns the coefficient of each dimension, where no term divides.
func (x Index) plain(rank int) ([]int, bool) {
	out := make([]int, rank)
	for _, t := range x.Terms {
		if t.Div != 1 || t.Mod != 0 {
			return nil, false
		}
		out[t.Dim] += t.Coef
	}
	return out, true
}

func (x Index) uses(dim int) bool {
	return slices.ContainsFunc(x.Terms, func(t Term) bool { return t.Dim == dim })
}

func (x Index) equal(y Index) bool { return x.Off == y.Off && slices.Equal(x.Terms, y.Terms) }

// Contiguous returns the strides of a densely packed shape.
func Contiguous(shape []int) []int {
	out := make([]int, len(shape))
	n := 1
	for i := len(shape) - 1; i >= 0; i-- {
		out[i] = n
		n *= shape[i]
	}
	return out
}

// Positions is a shape's own positions, one index for each dimension.
func Positions(shape []int) []Index {
	idx := make([]Index, len(shape))
	for i := range shape {
		idx[i] = along(i)
	}
	return idx
}

// Flat returns the position inside a densely packed shape of what idx points
// at, one index for each of its dimensions.
func Flat(idx []Index, src []int, shape []int) Index {
	var out Index
	for k, s := range Contiguous(src) {
		out.Off += s * idx[k].Off
		for _, t := range idx[k].Terms {
			t.Coef *= s
			out.Terms = append(out.Terms, t)
		}
	}
	return out.normal(shape)
}

// reshapeMap returns, for each dimension of from, its position as an index over
// to. Both have the same number of elements.
func reshapeMap(from, to []int) ([]Index, bool) {
	out := make([]Index, len(from))
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
		var linear Index
		stride := 1
		for k := j - 1; k >= j0; k-- {
			linear.Terms = append(linear.Terms, Term{k, stride, 1, 0})
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

// Numel returns the number of elements of a shape.
func Numel(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}
