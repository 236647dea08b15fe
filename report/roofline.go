package report

import (
	"fmt"
	"math"

	"github.com/kernelwright/kernelwright"
)

// rooflineChart has a verdict's times below the measured ceilings of its device, placed:
// operations a second over operations a byte, both logarithmic.
type rooflineChart struct {
	Width, Height float64
	Left, Right   float64
	Top, Bottom   float64
	Ticks, Marks  []chartTick // of operations a second, and of operations a byte
	Roof          string      // path
	Points        []rooflinePoint
	Text, Bound   string
}

// rooflinePoint is a time of the task, or its floor.
type rooflinePoint struct {
	X, Y  float64
	Class string
	Label string
	Side  string // the text's anchor
	TextX float64
	TextY float64
}

// newRoofline draws what a verdict says of the floor; false where it says nothing, or the
// task has no operations to count.
func newRoofline(v kernelwright.Verdict, d kernelwright.Device) (c rooflineChart, ok bool) {
	f := v.Floor
	if f.MS <= 0 || f.Operations <= 0 || f.Bytes <= 0 || v.CandidateMS <= 0 {
		return c, false
	}
	intensity := float64(f.Operations) / float64(f.Bytes)
	rate := func(ms float64) float64 { return float64(f.Operations) / ms / 1e6 } // GFLOP/s
	roof := rate(f.MS)
	peak := max(d.Ceilings.FP32GFLOPs, roof)
	slope := roof / intensity // GB/s
	if f.Bound == "compute" {
		peak, slope = roof, max(d.Ceilings.MemoryGBs, roof/intensity)
	}
	type at struct {
		name, class string
		ms          float64
	}
	points := []at{{"this kernel", "kernel", v.CandidateMS}}
	if s := v.Speedup; s != nil && v.Baselines[s.Against] > 0 {
		points = append(points, at{Line(s.Against), "baseline", v.Baselines[s.Against]})
	}
	if eager := v.Baselines["eager"]; eager > 0 && (v.Speedup == nil || v.Speedup.Against != "eager") {
		points = append(points, at{"eager", "baseline", eager})
	}
	least := roof
	for _, p := range points {
		least = min(least, rate(p.ms))
	}
	ridge := peak / slope
	lowX, highX := math.Log10(min(intensity, ridge)/6), math.Log10(max(intensity, ridge)*6)
	lowY, highY := math.Log10(least/2.5), math.Log10(peak*1.8)
	c = rooflineChart{
		Width: chartWidth, Height: chartHeight, Left: chartLeft + 24, Right: chartWidth - chartRight, Top: chartTop, Bottom: chartHeight - chartBottom, Bound: Line(f.Bound),
	}
	x := func(v float64) float64 {
		return round1(c.Left + (math.Log10(v)-lowX)/(highX-lowX)*(c.Right-c.Left))
	}
	y := func(v float64) float64 {
		return round1(c.Bottom - (math.Log10(v)-lowY)/(highY-lowY)*(c.Bottom-c.Top))
	}
	for e := math.Ceil(lowY); e <= highY; e++ {
		c.Ticks = append(c.Ticks, chartTick{y(math.Pow(10, e)), digits(math.Pow(10, e))})
	}
	for e := math.Ceil(lowX); e <= highX; e++ {
		c.Marks = append(c.Marks, chartTick{x(math.Pow(10, e)), digits(math.Pow(10, e))})
	}
	start := max(math.Pow(10, lowX), math.Pow(10, lowY)/slope)
	c.Roof = fmt.Sprintf("M%g %gL%g %gH%g", x(start), y(start*slope), x(ridge), y(peak), c.Right)
	side, dx := "start", 12.0
	if x(intensity) > (c.Left+c.Right)/2 {
		side, dx = "end", -12
	}
	last := math.Inf(-1)
	add := func(name, class string, ms float64) {
		p := rooflinePoint{X: x(intensity), Y: y(rate(ms)), Class: class, Side: side, Label: fmt.Sprintf("%s: %s, %s GFLOP/s", name, Milliseconds(ms), digits(rate(ms)))}
		p.TextX, p.TextY = p.X+dx, max(p.Y+4, last+15)
		last = p.TextY
		c.Points = append(c.Points, p)
	}
	add("floor", "floor", f.MS)
	for len(points) > 0 { // from the fastest down
		fastest := 0
		for i := range points {
			if points[i].ms < points[fastest].ms {
				fastest = i
			}
		}
		add(points[fastest].name, points[fastest].class, points[fastest].ms)
		points = append(points[:fastest], points[fastest+1:]...)
	}
	c.Text = fmt.Sprintf("Roofline: at %s operations a byte the floor is %s, bound by %s; this kernel takes %s, %s of the roofline", digits(intensity), Milliseconds(f.MS), Line(f.Bound), Milliseconds(v.CandidateMS), Percent(v.Headroom))
	return c, true
}
