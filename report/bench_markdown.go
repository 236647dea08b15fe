package report

import (
	"fmt"
	"io"
	"net/url"
	"strings"
)

// BenchMarkdown writes what a bench came to as Markdown.
func BenchMarkdown(w io.Writer, b Bench, f BenchFigures) error {
	m := &md{}
	m.line("# Bench %d: %s", b.ID, m.text(b.size()))
	m.line("")
	m.line("**%s**", m.text(f.Headline))
	m.line("")
	for _, t := range b.tables(f) {
		m.table(t)
	}
	if t := roundsTable(b, f); len(f.Pairs) == 0 && len(t.Rows) > 0 { // else it is among the tables
		m.table(t)
	}
	m.references(b)
	if t := b.without(); len(t.Rows) > 0 {
		m.table(t)
	}
	m.line("## What it was")
	m.line("")
	for _, f := range b.about() {
		m.line("- %s: %s", m.text(f.Name), m.text(f.Value))
	}
	_, err := io.WriteString(w, m.b.String())
	return err
}

func (m *md) table(t table) {
	m.line("## %s", m.text(t.Title))
	m.line("")
	m.row(m.all(t.Head)...)
	rule := make([]string, len(t.Head))
	for i := range rule {
		rule[i] = "---:"
	}
	for _, i := range t.Left {
		rule[i] = "---"
	}
	m.row(rule...)
	for _, r := range t.Rows {
		m.row(m.all(r)...)
	}
	m.line("")
	for _, n := range t.Notes {
		m.line("%s", m.text(sentence(n)))
		m.line("")
	}
}

func (m *md) all(cells []string) []string {
	out := make([]string, len(cells))
	for i, c := range cells {
		out[i] = m.text(c)
	}
	return out
}

// mostPairs is of how many pairs of configurations the ratio is told by round.
const mostPairs = 3

// roundsTable is the curves over rounds in numbers. Between few configurations it
// has the ratio on the same references too: its interval leaves out by how much
// references differ, which the curves' hold.
func roundsTable(b Bench, f BenchFigures) table {
	t := table{Title: "Best so far, by round", Head: []string{"rounds"}, Notes: []string{curveNote}}
	pairs := f.Pairs
	if len(pairs) > mostPairs {
		pairs = nil
	}
	add := func(name string, points []CurvePoint) {
		t.Head = append(t.Head, name)
		for _, p := range points {
			at := fmt.Sprintf("%.4g", p.At)
			k := 0
			for k < len(t.Rows) && t.Rows[k][0] != at {
				k++
			}
			if k == len(t.Rows) {
				t.Rows = append(t.Rows, append([]string{at}, blanks(len(b.Configurations)+len(pairs))...))
			}
			t.Rows[k][len(t.Head)-1] = factorOf(&p.Interval)
		}
	}
	for _, c := range f.Configurations {
		add(c.Name, c.ByRounds)
	}
	for _, p := range pairs {
		add(fmt.Sprintf("%s over %s", f.Configurations[p.A].Name, f.Configurations[p.B].Name), p.ByRounds)
	}
	if len(pairs) > 0 {
		t.Notes = append(t.Notes, "over: the ratio of both on the same references, with the interval of the pairs. The best of several noisy verdicts looks faster than it is: which is faster in the end, the certificates' ratio says")
	}
	return t
}

const curveNote = "The geometric mean, over all runs, of the best speedup so far against the fastest baseline, as the rounds' own verdicts have it; a run without a kernel counts as 1×"

func blanks(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = "–"
	}
	return out
}

// references is a row for each reference, with what each configuration came to.
func (m *md) references(b Bench) {
	m.line("## References")
	m.line("")
	m.row(append([]string{"reference"}, m.all(ConfigurationNames(b.Configurations))...)...)
	m.row(append([]string{"---"}, strings.Split(strings.Repeat("--- ", len(b.Configurations)-1)+"---", " ")...)...)
	for _, row := range b.referenceRows() {
		cells := []string{m.text(row.Name)}
		for _, runs := range row.Cells {
			var said []string
			for _, r := range runs {
				text := m.text(r.Text)
				if r.Link != "" {
					text = fmt.Sprintf("[%s](%s)", text, link(r.Link))
				}
				if r.Roofline != "" {
					text += ", " + m.text(r.Roofline)
				}
				said = append(said, text)
			}
			cells = append(cells, strings.Join(said, "; "))
		}
		m.row(cells...)
		for _, care := range row.Care {
			m.row(append([]string{"take care: " + m.text(care)}, make([]string, len(b.Configurations))...)...)
		}
	}
	m.line("")
}

// link writes a path as an address that neither Markdown nor a browser reads
// as anything else.
func link(path string) string {
	parts := strings.Split(path, "/")
	for i, p := range parts {
		parts[i] = strings.NewReplacer("(", "%28", ")", "%29").Replace(url.PathEscape(p))
	}
	return strings.Join(parts, "/")
}

// referenceRow is what became of one reference.
type referenceRow struct {
	Name  string
	Care  []string        // what to know before one believes a speedup
	Cells [][]referenceIn // by configuration, then seed
}

// referenceIn is a reference under one configuration.
type referenceIn struct {
	Text, Title, Link, Class string
	Roofline                 string // empty where it is not known
}

func (b Bench) referenceRows() []referenceRow {
	rows := make([]referenceRow, len(b.References))
	for i, reference := range b.References {
		row := referenceRow{Name: reference.Name}
		cared := map[string]bool{}
		for configuration := range b.Configurations {
			var runs []referenceIn
			for _, seed := range b.Seeds {
				r := b.find(i, configuration, seed)
				if r == nil {
					runs = append(runs, referenceIn{Text: "–", Class: "open"})
					continue
				}
				runs = append(runs, r.in())
				for _, flag := range r.Flags {
					if text := FlagText(flag); !cared[text] {
						cared[text] = true
						row.Care = append(row.Care, text)
					}
				}
			}
			row.Cells = append(row.Cells, runs)
		}
		rows[i] = row
	}
	return rows
}

func (r BenchRun) in() referenceIn {
	in := referenceIn{Text: words(r.Status), Link: r.Report, Class: "failed", Title: Line(r.Reason)}
	switch {
	case !r.Ended:
		in.Text, in.Class = "not ended", "open"
	case r.Certified:
		in.Class = "certified"
		in.Title = fmt.Sprintf("%s after %s", Milliseconds(r.MS), plural(len(r.Rounds), "round"))
		if r.Speedup != nil {
			in.Text = Speedup(r.Speedup)
			in.Title += ", against " + Line(r.Speedup.Against)
			if r.Roofline != nil {
				in.Roofline = r.Roofline.text(Line(r.Speedup.Against))
			}
		}
	}
	return in
}
