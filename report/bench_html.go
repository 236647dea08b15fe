package report

import (
	_ "embed"
	"fmt"
	"io"
	"slices"

	"github.com/kernelwright/kernelwright"
)

//go:embed bench.html.tmpl
var benchText string

var benchPage = newPage("bench", benchText)

// BenchPage is the page with everything decided.
type BenchPage struct {
	Name, Headline string
	Status, Class  string
	Tables         []table
	Charts         []benchChart
	CurveNote      string
	Configurations []string
	References     []referenceRow
	Without        *table
	Facts          []fact
	Version        string
	ID             int64
}

// BenchHTML writes what a bench came to as one page that loads nothing from
// anywhere.
func BenchHTML(w io.Writer, b Bench, f BenchFigures) error {
	return benchPage.Execute(w, NewBenchPage(b, f))
}

// NewBenchPage decides what a page says of a bench.
func NewBenchPage(b Bench, f BenchFigures) BenchPage {
	p := BenchPage{
		Name: fmt.Sprintf("Bench %d: %s", b.ID, b.size()), Headline: f.Headline, Status: "done", Class: "certified",
		Tables: b.tables(f), Charts: benchCharts(f), CurveNote: curveNote, Configurations: ConfigurationNames(b.Configurations),
		References: b.referenceRows(), Facts: b.about(), Version: kernelwright.Version, ID: b.ID,
	}
	if n := b.ended(); n < b.wanted() {
		p.Status, p.Class = fmt.Sprintf("%d of %d runs", n, b.wanted()), "open"
	}
	if t := b.without(); len(t.Rows) > 0 {
		p.Without = &t
	}
	return p
}

// IsLeft tells the columns of words, by number.
func (t table) IsLeft() []bool {
	out := make([]bool, len(t.Head))
	for i := range out {
		out[i] = slices.Contains(t.Left, i)
	}
	return out
}
