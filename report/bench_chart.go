package report

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// benchChart is the curves of all configurations over one thing, placed. The
// speedup's axis is logarithmic, as the mean is.
type benchChart struct {
	Title, Unit   string
	Width, Height float64
	Left, Right   float64
	Top, Bottom   float64
	Ticks         []chartTick // of the speedup
	Marks         []chartTick // below
	Lines         []benchLine
	Even          float64
	Text          string
}

// benchLine is one configuration's.
type benchLine struct {
	Name, Path, Band string
	Colour           int // of the palette
}

// palette is how many colours the page has.
const palette = 8

// benchCharts draws what is there to draw.
func benchCharts(f BenchFigures) []benchChart {
	var out []benchChart
	for _, c := range []struct {
		title, unit string
		points      func(ConfigurationFigures) []CurvePoint
		steps       bool
	}{
		{"Best so far, by round", "rounds", func(c ConfigurationFigures) []CurvePoint { return c.ByRounds }, true},
		{"Best so far, by time", "minutes of a run", func(c ConfigurationFigures) []CurvePoint { return c.ByMinutes }, false},
		{"Best so far, by cost", "dollars of a run", func(c ConfigurationFigures) []CurvePoint { return c.ByUSD }, false},
	} {
		curves := make([][]CurvePoint, len(f.Configurations))
		for i, figures := range f.Configurations {
			curves[i] = c.points(figures)
		}
		if slices.ContainsFunc(curves, func(points []CurvePoint) bool { return len(points) > 1 }) {
			out = append(out, newBenchChart(c.title, c.unit, f, curves))
		}
	}
	return out
}

func newBenchChart(title, unit string, f BenchFigures, curves [][]CurvePoint) benchChart {
	c := benchChart{
		Title: title, Unit: unit, Width: chartWidth, Height: chartHeight, Left: chartLeft, Right: chartWidth - chartRight,
		Top: chartTop, Bottom: chartHeight - chartBottom,
	}
	end, least, most := 0.0, 1.0, 1.0
	for _, points := range curves {
		for _, p := range points {
			end, least, most = max(end, p.At), min(least, p.Low), max(most, p.High)
		}
	}
	// At least from 0.9 to 1.1, so that noise does not fill the picture, and at
	// most what tells anybody anything.
	least, most = min(max(least, 0.01), 0.9)*0.98, max(min(most, 1000), 1.1)*1.02
	bottom, top := math.Log(least), math.Log(most)
	x := func(at float64) float64 { return round1(c.Left + at/end*(c.Right-c.Left)) }
	y := func(v float64) float64 {
		return round1(c.Bottom - (math.Log(min(max(v, least), most))-bottom)/(top-bottom)*(c.Bottom-c.Top))
	}
	for _, v := range factors(least, most) {
		c.Ticks = append(c.Ticks, chartTick{y(v), fmt.Sprintf("%.4g×", v)})
	}
	step := niceStep(end / 8)
	if unit == "rounds" {
		step = max(step, 1)
	}
	for at := 0.0; at <= end*(1+1e-9); at += step {
		c.Marks = append(c.Marks, chartTick{x(at), fmt.Sprintf("%.4g", at)})
	}
	c.Even = y(1)
	var said []string
	for i, points := range curves {
		if len(points) == 0 {
			continue
		}
		var line, over, under strings.Builder
		for k, p := range points {
			if k == 0 {
				fmt.Fprintf(&line, "M%g %g", x(p.At), y(p.Value))
				fmt.Fprintf(&over, "M%g %g", x(p.At), y(p.High))
				continue
			}
			// What holds at a point holds until the next.
			fmt.Fprintf(&line, "L%g %gL%g %g", x(p.At), y(points[k-1].Value), x(p.At), y(p.Value))
			fmt.Fprintf(&over, "L%g %gL%g %g", x(p.At), y(points[k-1].High), x(p.At), y(p.High))
		}
		for k, p := range slices.Backward(points) {
			fmt.Fprintf(&under, "L%g %g", x(p.At), y(p.Low))
			if k > 0 {
				fmt.Fprintf(&under, "L%g %g", x(p.At), y(points[k-1].Low))
			}
		}
		name := f.Configurations[i].Name
		c.Lines = append(c.Lines, benchLine{Name: name, Path: line.String(), Band: over.String() + under.String() + "Z", Colour: i % palette})
		last := points[len(points)-1]
		said = append(said, fmt.Sprintf("%s ends at %.2f× (%.2f to %.2f)", name, last.Value, last.Low, last.High))
	}
	c.Text = title + ": " + strings.Join(said, "; ")
	return c
}

// factors returns some six round numbers between two, for a logarithmic axis.
func factors(low, high float64) []float64 {
	for _, steps := range [][]float64{{1, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2, 2.5, 3, 4, 5, 6, 7, 8, 9, 9.5, 9.8}, {1, 1.2, 1.5, 2, 3, 4, 5, 7, 9}, {1, 2, 5}, {1}} {
		var found []float64
		for power := math.Floor(math.Log10(low)); power <= math.Ceil(math.Log10(high)); power++ {
			for _, s := range steps {
				if v := s * math.Pow(10, power); v >= low && v <= high {
					found = append(found, v)
				}
			}
		}
		if len(found) <= 9 || len(steps) == 1 {
			return found
		}
	}
	return nil
}
