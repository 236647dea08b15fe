package report

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// The chart's drawing, in its own units; the page scales it.
const (
	chartWidth  = 760.0
	chartHeight = 300.0
	chartLeft   = 52.0
	chartRight  = 20.0
	chartTop    = 22.0
	chartBottom = 46.0
)

// chart is the speedup by round, placed. Everything in it is a number or a
// text of ours; the page escapes what is not.
type chart struct {
	Width, Height float64
	Left, Right   float64 // x of the plot's edges
	Top, Bottom   float64 // y of the plot's edges
	Ticks         []chartTick
	Rounds        []chartTick
	Points        []chartPoint
	Best          string // path of the best so far, as steps
	Even          float64
	Roofline      *chartTick // the most that the floor allows, where it is in view
	Against       string     // what the speedups are held against
	Text          string     // the chart in words
	Corrections   bool       // some of the points answer one
}

type chartTick struct {
	At    float64
	Label string
}

type chartPoint struct {
	X, Y, Low, High float64
	OK, Kept        bool
	Certified       bool // its speedup is the certificate's, else the quick level's
	Correction      bool // it answers one
	Title           string
}

// newChart places the rounds of a run. ok is false where there is nothing to
// draw.
func newChart(d Data) (c chart, ok bool) {
	if len(d.Rounds) == 0 {
		return chart{}, false
	}
	top, against, timed := 1.0, map[string]bool{}, 0
	least, roofline := math.Inf(1), 0.0
	for _, r := range d.Rounds {
		v := Counts(r)
		s := v.Speedup
		if s == nil || !v.Status.OK() || refused(r) || !sound(s.Value) {
			continue
		}
		timed++
		top, least = max(top, s.Value), min(least, s.Value)
		if sound(s.High) {
			top = max(top, s.High)
		}
		against[s.Against] = true
		if v.Floor.MS > 0 && v.CandidateMS > 0 {
			roofline = s.Value * v.CandidateMS / v.Floor.MS
		}
	}
	// The roofline is a goal worth seeing, unless it would flatten the rest.
	if roofline > 0 && roofline < 2.5*top {
		top = max(top, roofline)
	}
	step := niceStep(top * 1.08 / 4)
	top = step * math.Ceil(top*1.04/step)
	c = chart{
		Width: chartWidth, Height: chartHeight, Left: chartLeft, Right: chartWidth - chartRight,
		Top: chartTop, Bottom: chartHeight - chartBottom,
	}
	switch names := slices.Sorted(maps.Keys(against)); len(names) {
	case 0:
	case 1:
		c.Against = names[0] + ", the fastest baseline"
	default: // levels know different ones, and they lie close
		c.Against = "the fastest baseline of each verdict: " + strings.Join(names, ", ")
	}
	y := func(v float64) float64 {
		return round1(c.Bottom - min(max(v, 0), top)/top*(c.Bottom-c.Top))
	}
	first, last := d.Rounds[0].Index, d.Rounds[len(d.Rounds)-1].Index
	x := func(i int) float64 {
		n := float64(last - first + 1)
		return round1(c.Left + (float64(i-first)+0.5)/n*(c.Right-c.Left))
	}
	for v := 0.0; v <= top+step/2; v += step {
		c.Ticks = append(c.Ticks, chartTick{y(v), strings.TrimSuffix(fmt.Sprintf("%.2g", v), ".0") + "×"})
	}
	c.Even = y(1)
	if roofline > 0 && roofline <= top {
		c.Roofline = &chartTick{y(roofline), fmt.Sprintf("roofline %.2f×", roofline)}
	}
	best, kept := 0.0, -1
	if r, _, found := Best(d.Rounds); found {
		kept = r.Index
	}
	every := (last-first)/20 + 1
	var path strings.Builder
	for _, r := range d.Rounds {
		p := chartPoint{X: x(r.Index), Kept: r.Index == kept}
		if (r.Index-first)%every == 0 {
			c.Rounds = append(c.Rounds, chartTick{p.X, fmt.Sprint(r.Index)})
		}
		v := Counts(r)
		s := v.Speedup
		p.Certified = v.Status == kernelwright.Certified
		kind := answers(roundBefore(d.Rounds, r))
		p.Correction = kind == string(kernelwright.Correction)
		if s == nil || !v.Status.OK() || refused(r) || !sound(s.Value) {
			p.Y = c.Bottom
			p.Title = fmt.Sprintf("round %d, %s: %s", r.Index, kind, RoundStanding(r))
			c.Points = append(c.Points, p)
			continue
		}
		c.Corrections = c.Corrections || p.Correction
		p.OK, p.Y, p.Low, p.High = true, y(s.Value), y(s.Low), y(s.High)
		p.Title = fmt.Sprintf("round %d, %s: %s, %s against %s, %s", r.Index, kind, RoundStanding(r), Speedup(s), Line(s.Against), Milliseconds(v.CandidateMS))
		c.Points = append(c.Points, p)
		if s.Value > best {
			if best == 0 {
				fmt.Fprintf(&path, "M%g %g", p.X, p.Y)
			} else {
				fmt.Fprintf(&path, "H%gV%g", p.X, p.Y)
			}
			best = s.Value
		}
	}
	if best > 0 {
		fmt.Fprintf(&path, "H%g", c.Right)
	}
	c.Best = path.String()
	c.Text = fmt.Sprintf("Speedup by round, %d rounds, %d of them timed", len(d.Rounds), timed)
	if timed > 0 {
		c.Text += fmt.Sprintf(", from %.2f× to %.2f×", least, best)
	}
	return c, true
}

func sound(v float64) bool { return v > 0 && !math.IsInf(v, 0) && !math.IsNaN(v) }

func round1(v float64) float64 { return math.Round(v*10) / 10 }

// niceStep is the next of 1, 2, 2.5 and 5 times a power of ten.
func niceStep(v float64) float64 {
	p := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 2.5, 5} {
		if m*p >= v {
			return m * p
		}
	}
	return 10 * p
}

// statusClass groups statuses by what they mean to a reader.
func statusClass(s kernelwright.Status) string {
	switch s {
	case kernelwright.Certified:
		return "certified"
	case kernelwright.Correct:
		return "correct"
	default:
		return "failed"
	}
}
