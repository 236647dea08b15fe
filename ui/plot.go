package ui

import (
	"fmt"
	"math"
	"strings"
)

// plot is lines or bars, placed in units of its own.
type plot struct {
	Width, Height            float64
	Left, Right, Top, Bottom float64
	Ticks, Marks             []mark
	Lines                    []line
	Bars                     []bar
	Axis                     string // what is along it
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

// tick is a value as an axis has room for it.
func tick(v float64) string {
	switch a := math.Abs(v); {
	case a != 0 && (a < 0.01 || a >= 1e6):
		return fmt.Sprintf("%.1e", v)
	case a >= 1000:
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// scale places values between two edges, with marks at their ends and middle; where all
// are one value, at that.
func scale(low, high, from, to float64) (func(float64) float64, []mark) {
	one := !(high > low)
	if one {
		low, high = low-0.5, high+0.5
	}
	at := func(v float64) float64 { return tenth(from + (v-low)/(high-low)*(to-from)) }
	var marks []mark
	if one {
		mid := (low + high) / 2
		return at, []mark{{at(mid), tick(mid)}}
	}
	for _, v := range []float64{low, (low + high) / 2, high} {
		marks = append(marks, mark{at(v), tick(v)})
	}
	return at, marks
}

// series is one curve of several. Values that are no numbers are left out.
type series struct {
	name   string
	colour int
	xs, ys []float64
}

// linePlot draws curves over steps.
func linePlot(name string, all ...series) plot {
	p := newPlot(name, 320, 130)
	p.Left, p.Bottom, p.Axis = 54, p.Height-34, "step"
	var xs, ys []float64
	for i := range all {
		s := &all[i]
		var px, py []float64
		every := len(s.xs)/maxPoints + 1
		for i := range s.xs {
			if finite(s.xs[i]) && finite(s.ys[i]) && (i%every == 0 || i == len(s.xs)-1) {
				px, py = append(px, s.xs[i]), append(py, s.ys[i])
			}
		}
		s.xs, s.ys = px, py
		xs, ys = append(xs, px...), append(ys, py...)
	}
	if len(xs) == 0 {
		return p
	}
	x, marks := scale(least(xs), most(xs), p.Left, p.Right)
	y, ticks := scale(least(ys), most(ys), p.Bottom, p.Top)
	p.Ticks, p.Marks = ticks, marks[:1]
	if last := len(marks) - 1; last > 0 {
		p.Marks = []mark{{p.Left + 6, marks[0].Label}, {p.Right - 10, marks[last].Label}}
	}
	var said []string
	for _, s := range all {
		if len(s.xs) == 0 {
			continue
		}
		var path strings.Builder
		for i := range s.xs {
			fmt.Fprintf(&path, "%c%g %g", map[bool]rune{true: 'M', false: 'L'}[i == 0], x(s.xs[i]), y(s.ys[i]))
		}
		if len(s.xs) == 1 {
			path.WriteString("h2")
		}
		p.Lines = append(p.Lines, line{path.String(), s.colour})
		said = append(said, fmt.Sprintf("%s from %s to %s, last %s", s.name, digits(least(s.ys)), digits(most(s.ys)), digits(s.ys[len(s.ys)-1])))
	}
	p.Text = name + " by step: " + strings.Join(said, "; ")
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
