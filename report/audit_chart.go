package report

import (
	"fmt"
	"math"
)

// auditChart has the claimed speedup of each pair below its measured one, placed.
// Both axes are logarithmic; on the diagonal a claim is what was measured.
type auditChart struct {
	Width, Height float64
	Left, Right   float64
	Top, Bottom   float64
	Ticks, Marks  []chartTick // of the measured and of the claimed speedup
	Points        []auditPoint
	Text          string
}

// auditPoint is a pair.
type auditPoint struct {
	X, Y  float64
	Class string // f0: the claim is reached; f2: it is not; f3: it cannot be told
	Title string
}

// leastPoints is how many make a picture.
const leastPoints = 3

// chart draws the pairs that are right and have a claim, nil where they are few.
func (a Audit) chart() *auditChart {
	var rows []AuditRow
	least, most := 0.9, 1.1
	for _, r := range a.Rows {
		if r.Claimed == nil || r.Measured == nil || !r.Status.OK() || r.Group == "degenerate" || !sound(*r.Claimed) || !sound(r.Measured.Value) {
			continue
		}
		rows = append(rows, r)
		least, most = min(least, *r.Claimed, r.Measured.Value), max(most, *r.Claimed, r.Measured.Value)
	}
	if len(rows) < leastPoints {
		return nil
	}
	least, most = max(least, 0.01)*0.95, min(most, 1000)*1.05
	side := chartHeight * 1.3
	c := &auditChart{Width: chartLeft + side + chartRight, Height: chartTop + side + chartBottom, Left: chartLeft, Right: chartLeft + side, Top: chartTop, Bottom: chartTop + side}
	at := func(v float64) float64 { // 0 to 1
		return (math.Log(min(max(v, least), most)) - math.Log(least)) / (math.Log(most) - math.Log(least))
	}
	for _, v := range factors(least, most) {
		c.Ticks = append(c.Ticks, chartTick{round1(c.Bottom - at(v)*side), fmt.Sprintf("%.4g×", v)})
		c.Marks = append(c.Marks, chartTick{round1(c.Left + at(v)*side), fmt.Sprintf("%.4g×", v)})
	}
	for _, r := range rows {
		p := auditPoint{
			X: round1(c.Left + at(*r.Claimed)*side), Y: round1(c.Bottom - at(r.Measured.Value)*side), Class: "f3",
			Title: fmt.Sprintf("%s: claimed %s, measured %s against %s", a.place(r.Candidate), times(*r.Claimed), Speedup(r.Measured), Line(r.Measured.Against)),
		}
		if r.Reaches != nil {
			p.Class = "f2"
			if *r.Reaches {
				p.Class = "f0"
			}
		}
		c.Points = append(c.Points, p)
	}
	c.Text = fmt.Sprintf("Claimed and measured speedups of %s that are right.", plural(len(rows), "pair"))
	return c
}
