package score

import (
	"math"
	"math/rand/v2"
)

// DefaultDraws is how many times the tasks are drawn anew: the ends of a 95 %
// interval then rest on 50 draws each.
const DefaultDraws = 2000

// Interval is a figure with the 95 % interval of its bootstrap.
type Interval struct {
	Value float64 `json:"value"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

// Draws is tasks drawn with replacement, again and again: of each draw the
// numbers of its tasks, as many as there are. Figures that are made of the same
// draws can be held against each other.
type Draws struct {
	tasks int
	draws [][]int
}

// Draw draws so many tasks so often. The same numbers give the same draws.
func Draw(tasks, times int, seed uint64) Draws {
	random := rand.New(rand.NewPCG(seed, uint64(tasks)))
	d := Draws{tasks, make([][]int, times)}
	for i := range d.draws {
		d.draws[i] = make([]int, tasks)
		for k := range d.draws[i] {
			d.draws[i][k] = random.IntN(tasks)
		}
	}
	return d
}

// Interval is a statistic of all tasks, each once, and the range in which it
// lies for 95 % of the draws (Efron's percentile bootstrap). Draws for which it
// is NaN do not count. The range is widened to hold the value, which that of a
// few lopsided tasks need not. statistic is given numbers of tasks, which it
// must not keep.
func (d Draws) Interval(statistic func(tasks []int) float64) Interval {
	all := make([]int, d.tasks)
	for i := range all {
		all[i] = i
	}
	value := statistic(all)
	if math.IsNaN(value) {
		return Interval{value, value, value}
	}
	drawn := make([]float64, 0, len(d.draws))
	for _, tasks := range d.draws {
		if v := statistic(tasks); !math.IsNaN(v) {
			drawn = append(drawn, v)
		}
	}
	if len(drawn) == 0 {
		return Interval{value, value, value}
	}
	return Interval{value, min(value, Quantile(drawn, 0.025)), max(value, Quantile(drawn, 0.975))}
}
