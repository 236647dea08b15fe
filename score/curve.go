package score

// Step is a speedup that a task has from a point on: of rounds, time or money.
type Step struct{ At, Speedup float64 }

// BestSoFar turns what was found, in order, into the steps of the best found so
// far. Before the first there is no kernel, which counts as 1; the first
// one counts as it is, were it slower.
func BestSoFar(found []Step) []Step {
	var out []Step
	for _, s := range found {
		if n := len(out); s.Speedup > 0 && (n == 0 || s.Speedup > out[n-1].Speedup) {
			out = append(out, s)
		}
	}
	return out
}

// At is the speedup at a point, of steps in order.
func At(steps []Step, at float64) float64 {
	value := 1.0
	for _, s := range steps {
		if s.At > at {
			break
		}
		value = s.Speedup
	}
	return value
}
