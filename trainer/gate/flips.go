package gate

import "math"

// fine is how many units a difference of 1 has: two policies' rates on a task, or
// the logarithms of their speedups, are told apart by an eightieth. Rates of 2, 4,
// 5, 8, 10 or 16 samples are whole numbers of units.
const fine = 80

// units rounds a difference. Rounding is even in its sign, so the test below stays
// exact.
func units(difference float64) int { return int(math.Round(difference * fine)) }

// flips is the distribution of a sum of whole numbers whose signs are drawn by fair
// coins: of the tasks' differences, where a task favours neither policy. It is
// exact, not drawn: Pagano and Tritchler, On Obtaining Permutation Distributions in
// Polynomial Time, JASA 78 (1983).
type flips struct {
	mass []float64 // of the sums from -reach to reach
}

// newFlips is the distribution of the empty sum. reach is how far it is to go.
func newFlips(reach int) *flips {
	f := &flips{make([]float64, 1, 2*reach+1)}
	f.mass[0] = 1
	return f
}

func (f *flips) reach() int { return len(f.mass) / 2 }

// add takes one more number into the sum.
func (f *flips) add(d int) {
	d = abs(d)
	if d == 0 {
		return
	}
	old := len(f.mass)
	for range 2 * d {
		f.mass = append(f.mass, 0)
	}
	// A sum comes of one that is d lower, and of one that is d higher. From the top:
	// what is read is not yet written.
	for i := len(f.mass) - 1; i >= 2*d; i-- {
		half := f.mass[i-2*d] / 2
		if i < old {
			half += f.mass[i] / 2
		}
		f.mass[i] = half
	}
	for i := range min(2*d, old) {
		f.mass[i] /= 2
	}
}

// bound returns the least sum that, with all above it, has no more than a
// probability; one that cannot be reached where there is none.
func (f *flips) bound(probability float64) (sum int, held float64) {
	i := len(f.mass)
	for i > 0 && held+f.mass[i-1] <= probability*(1+1e-12) {
		i--
		held += f.mass[i]
	}
	return i - f.reach(), held
}

// tail is the probability of a sum or more.
func (f *flips) tail(sum int) float64 {
	p := 0.0
	for i := max(0, sum+f.reach()); i < len(f.mass); i++ {
		p += f.mass[i]
	}
	return p
}

// absorb takes out what is at a sum or above it.
func (f *flips) absorb(sum int) {
	for i := max(0, sum+f.reach()); i < len(f.mass); i++ {
		f.mass[i] = 0
	}
}

// rises is a group-sequential test of whether differences are above 0. Where they
// are not, it says at any of its looks that they are with at most the probability
// that was spent by then: what passed the bound of a look is taken out of the
// distribution, as Armitage, McPherson and Rowe (1969) do with the normal one. It
// holds for every number of tasks, if each task's difference is as likely to be d
// as -d.
//
// looks are the differences that each look added, in units; spent is what may be
// spent up to each.
func rises(looks [][]int, spent []float64) bool {
	reach := 0
	for _, look := range looks {
		for _, d := range look {
			reach += abs(d)
		}
	}
	f := newFlips(reach)
	sum, used, does := 0, 0.0, false
	for k, look := range looks {
		for _, d := range look {
			f.add(d)
			sum += d
		}
		bound, held := f.bound(spent[k] - used)
		f.absorb(bound)
		used += held
		does = sum >= bound
	}
	return does
}

// chance is the probability of a sum like this one or a higher one, were all looks
// one.
func chance(looks [][]int) float64 {
	f := newFlips(0)
	sum := 0
	for _, look := range looks {
		for _, d := range look {
			f.add(d)
			sum += d
		}
	}
	return f.tail(sum)
}

// finer is how many parts a unit has where the ends of an interval are looked for.
const finer = 5

// lowest returns the largest difference that the tasks are shown to be above, by
// turning the test round: a repeated confidence interval, which holds at all looks
// together (Jennison and Turnbull, Interim Analyses: The Repeated Confidence
// Interval Approach, JRSS B 51, 1989). It is -Inf where there are too few tasks to
// show anything. It is 0 or more exactly where rises says so.
func lowest(looks [][]int, spent []float64) float64 {
	least, most := 0, 0
	for _, look := range looks {
		for _, d := range look {
			least, most = min(least, d), max(most, d)
		}
	}
	above := func(by int) bool {
		shifted := make([][]int, len(looks))
		for k, look := range looks {
			for _, d := range look {
				shifted[k] = append(shifted[k], finer*d-by)
			}
		}
		return rises(shifted, spent)
	}
	low, high := finer*least-1, finer*most+1
	if !above(low) {
		return math.Inf(-1)
	}
	if above(0) { // the edge of the decision is tried itself
		low = 0
	} else {
		high = 0
	}
	for high-low > 1 {
		middle := low + (high-low)/2
		if above(middle) {
			low = middle
		} else {
			high = middle
		}
	}
	return float64(low) / (fine * finer)
}

// mirrored turns all signs.
func mirrored(looks [][]int) [][]int { return moved(looks, -1, 0) }

// moved multiplies all by a sign and adds to them.
func moved(looks [][]int, sign, by int) [][]int {
	out := make([][]int, len(looks))
	for k, look := range looks {
		out[k] = make([]int, len(look))
		for i, d := range look {
			out[k][i] = sign*d + by
		}
	}
	return out
}

func abs(n int) int { return max(n, -n) }
