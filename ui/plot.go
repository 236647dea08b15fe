package ui

import (
	"fmt"
	"math"
)

// plot is lines or bars, placed in units of its own.
type plot struct {
	Width, Height            float64
	Left, Right, Top, Bottom float64
	Ticks, Marks             []mark
	Lines                    []line
	Bars                     []bar
	Text                     string
}

type mark struct {
	At    float64
	Label string
}

type line struct {
	Path   string
	Colour int
}

type bar struct {
	X, Y, W, H float64
	Colour     int
	Title      string
}

func tenth(v float64) float64 { return math.Round(v*10) / 10 }

// maxPoints is how many points a line has: of more each so-manieth is drawn.
const maxPoints = 240

func newPlot(text string, width, height float64) plot {
	return plot{Width: width, Height: height, Left: 46, Right: width - 8, Top: 8, Bottom: height - 22, Text: text}
}

// scale places values between two edges, with marks at their ends and middle.
func scale(low, high, from, to float64) (func(float64) float64, []mark) {
	if !(high > low) {
		low, high = low-0.5, high+0.5
	}
	at := func(v float64) float64 { return tenth(from + (v-low)/(high-low)*(to-from)) }
	var marks []mark
	for _, v := range []float64{low, (low + high) / 2, high} {
		marks = append(marks, mark{at(v), digits(v)})
	}
	return at, marks
}

// linePlot draws one curve. Values that are no numbers are left out.
func linePlot(name string, xs, ys []float64) plot {
	p := newPlot(name, 320, 120)
	var px, py []float64
	every := len(xs)/maxPoints + 1
	for i := range xs {
		if finite(xs[i]) && finite(ys[i]) && (i%every == 0 || i == len(xs)-1) {
			px, py = append(px, xs[i]), append(py, ys[i])
		}
	}
	if len(px) == 0 {
		return p
	}
	x, marks := scale(least(px), most(px), p.Left, p.Right)
	y, ticks := scale(least(py), most(py), p.Bottom, p.Top)
	p.Marks, p.Ticks = []mark{marks[0], marks[2]}, ticks
	p.Marks[0].At, p.Marks[1].At = p.Left+6, p.Right-10
	path := ""
	for i := range px {
		path += fmt.Sprintf("%c%g %g", map[bool]rune{true: 'M', false: 'L'}[i == 0], x(px[i]), y(py[i]))
	}
	if len(px) == 1 {
		path += "h2"
	}
	p.Lines = []line{{path, 1}}
	p.Text = fmt.Sprintf("%s by step: from %s to %s, last %s", name, digits(least(py)), digits(most(py)), digits(py[len(py)-1]))
	return p
}

// barPlot draws amounts side by side.
func barPlot(name string, labels []string, values []float64, say func(float64) string) plot {
	p := newPlot(name, 900, 190)
	if len(values) == 0 {
		return p
	}
	top := most(values)
	if !(top > 0) {
		top = 1
	}
	for _, v := range []float64{0, top / 2, top} {
		p.Ticks = append(p.Ticks, mark{tenth(p.Bottom - v/top*(p.Bottom-p.Top)), say(v)})
	}
	p.Left = 64
	width := (p.Right - p.Left) / float64(len(values))
	every := len(values)/10 + 1
	for i, v := range values {
		h := v / top * (p.Bottom - p.Top)
		x := p.Left + float64(i)*width
		p.Bars = append(p.Bars, bar{X: tenth(x + width*0.12), Y: tenth(p.Bottom - h), W: tenth(width * 0.76), H: tenth(h), Colour: 1, Title: labels[i] + ": " + say(v)})
		if i%every == 0 {
			p.Marks = append(p.Marks, mark{tenth(x + width/2), labels[i]})
		}
	}
	p.Text = fmt.Sprintf("%s: %d bars, at most %s", name, len(values), say(top))
	return p
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

func least(vs []float64) float64 {
	m := vs[0]
	for _, v := range vs {
		m = min(m, v)
	}
	return m
}

func most(vs []float64) float64 {
	m := vs[0]
	for _, v := range vs {
		m = max(m, v)
	}
	return m
}
