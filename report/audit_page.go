package report

import (
	_ "embed"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
)

//go:embed audit.html.tmpl
var auditText string

var auditPage = newPage("audit", auditText)

// Audit is an audit with what its page shows.
type Audit struct {
	kernelwright.Audit
	Rows    []AuditRow
	Summary AuditSummary
}

// maxReason is how much of a reason a table shows.
const maxReason = 240

// short cuts a text for a table.
func shortened(s string, most int) string {
	if r := []rune(Line(s)); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return Line(s)
}

// place is where a text of the set lies, as seen from the set.
func (a Audit) place(label string) string {
	base := a.Path
	if isFile := filepath.Ext(base) != "" && strings.HasPrefix(label, base+":"); isFile {
		base = filepath.Dir(base)
	}
	if below, ok := strings.CutPrefix(label, strings.TrimSuffix(base, "/")+"/"); ok {
		return Line(below)
	}
	if label == "" {
		return "–"
	}
	return Line(label)
}

// Place is place for who prints a row.
func (a Audit) Place(label string) string { return a.place(label) }

// table has a row for each group of the summary.
func (a Audit) table() table {
	s := a.Summary
	t := table{
		Title: "By reason",
		Head:  []string{"what became of it", "pairs", "claims", "claimed", "measured", "fastest", "faster", "reached", "for example"},
		Left:  []int{0, 8},
		Notes: []string{
			"claimed: the geometric mean of the speedups that the pairs were published with; measured: against the same baseline here, eager where none is named; fastest: against the fastest baseline",
			"faster: pairs whose whole 95 % interval against the fastest baseline lies above 1; reached: claims that the 95 % interval reaches",
		},
	}
	for _, g := range s.Groups {
		if g.Name == "undecided" {
			t.Notes = append(t.Notes, "too noisy to tell: the machine was not quiet; when it is: `"+a.again()+"`")
		}
		reached := "–"
		if g.Claims > 0 {
			reached = fmt.Sprint(g.Reached)
		}
		t.Rows = append(t.Rows, []string{g.Title, fmt.Sprint(g.Pairs), fmt.Sprint(g.Claims), plain(g.Claimed), plain(g.Measured), plain(g.Fastest), fmt.Sprint(g.Faster), reached, shortened(g.Example, 72)})
	}
	return t
}

// again is the command that evaluates all anew.
func (a Audit) again() string {
	words := slices.DeleteFunc(slices.Clone(a.Command), func(word string) bool { return word == "--json" || word == "--again" })
	return Command(append(words, "--again")...)
}

func plain(v float64) string {
	if v <= 0 {
		return "–"
	}
	return times(v)
}

// AuditTable writes what an audit came to for a terminal.
func AuditTable(w io.Writer, a Audit) error {
	t := a.table()
	var b strings.Builder
	fmt.Fprintf(&b, "audit %d of %s on %s: %s\n\n", a.ID, Line(a.Path), Line(a.Device), a.rules())
	left := map[int]bool{}
	for _, column := range t.Left {
		left[column] = true
	}
	if err := Columns(&b, append([][]string{t.Head}, t.Rows...), left); err != nil {
		return err
	}
	fmt.Fprintf(&b, "\n%s\n", a.Summary.Headline())
	for _, n := range t.Notes {
		b.WriteString("  " + n + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// rules says by which rules.
func (a Audit) rules() string {
	said := fmt.Sprintf("level %s, custom_code = %q", a.Level, a.CustomCode)
	if a.CustomCode == "any" {
		said += " (rewrites in PyTorch are evaluated as everything else, and counted apart)"
	}
	return said
}

// device says on what.
func (a Audit) device() string {
	if a.Device == kernelwright.NoDevice {
		return a.Device + ", since no pair needs one"
	}
	return a.Device + ", " + a.DeviceName
}

// about says what was evaluated, where and when.
func (a Audit) about() []fact {
	out := []fact{{"Set", a.Path}, {"Device", a.device()}, {"Evaluated", a.rules()}, {"Baselines", strings.Join(a.Baselines, ", ")}, {"Precision", a.Precision}}
	if len(a.References) > 0 {
		out = append(out, fact{"References", strings.Join(a.References, ", ")})
	}
	if a.StrictInputs {
		out = append(out, fact{"Inputs", "what a candidate takes for granted of them makes it wrong"})
	}
	out = append(out, fact{"kernelwright", a.Version}, fact{"Begun", when(a.CreatedMS)})
	if a.FinishedMS != 0 {
		out = append(out, fact{"Finished", when(a.FinishedMS)})
	}
	return append(out, fact{"To repeat it", shell(a.Command)})
}

// auditPair is a pair with everything decided.
type auditPair struct {
	Candidate, Reference            string
	Status, Class                   string
	Claimed, Measured, Fastest, Did string
	Reason                          string
	Care                            []string
}

func (a Audit) pair(r AuditRow) auditPair {
	p := auditPair{
		Candidate: a.place(r.Candidate), Reference: a.place(r.Reference), Status: words(string(r.Status)), Class: statusClass(r.Status),
		Claimed: "–", Measured: Speedup(r.Measured), Fastest: Speedup(r.Speedup), Did: r.did(), Reason: shortened(r.Reason, maxReason),
	}
	if r.Status.OK() { // what follows in the sentence stands in columns
		p.Reason, _, _ = strings.Cut(p.Reason, "; ")
	}
	if r.Speedup != nil {
		p.Fastest += " " + Line(r.Speedup.Against)
	}
	if !tested(r.Status) {
		p.Class = "open"
	}
	if r.Claimed != nil {
		p.Claimed = times(*r.Claimed) + " " + Line(r.ClaimedAgainst)
	}
	if r.Status.OK() && r.Claimed != nil && r.Reaches != nil && !*r.Reaches {
		p.Care = append(p.Care, "the claim is not reached")
	}
	if r.Status == kernelwright.Wrong && r.KernelBench != nil && *r.KernelBench {
		p.Care = append(p.Care, "KernelBench's comparison passes it")
	}
	if r.FromBare {
		p.Care = append(p.Care, kernelwright.FromBare)
	}
	if r.Explained != nil {
		p.Care = append(p.Care, r.uncounted())
	}
	for _, s := range r.Assumes {
		p.Care = append(p.Care, "it "+Line(s))
	}
	for _, f := range r.Flags {
		p.Care = append(p.Care, FlagText(f))
	}
	return p
}

// uncounted says how right and how fast a candidate is that policy rejects.
func (r AuditRow) uncounted() string {
	x := r.Explained
	switch {
	case x.Status == kernelwright.Rejected:
		return "not counted: it is rejected under every policy"
	case !x.Status.OK():
		return "not counted: without the policy it is " + words(string(x.Status)) + ": " + shortened(x.Reason, maxReason)
	case r.Speedup == nil:
		return "not counted: without the policy it is " + words(string(x.Status)) + ", and was not timed"
	}
	return fmt.Sprintf("not counted: without the policy it is %s, %s against %s", words(string(x.Status)), Speedup(r.Speedup), Line(r.Speedup.Against))
}

// did says who did the work.
func (r AuditRow) did() string {
	if r.Work == nil {
		return "–"
	}
	var parts []string
	for _, w := range []struct {
		share float64
		name  string
	}{{r.Work.Custom, "custom"}, {r.Work.Vendor, "vendor library"}, {r.Work.PyTorch, "PyTorch"}} {
		if w.share >= 0.005 {
			parts = append(parts, fmt.Sprintf("%.0f %% %s", 100*w.share, w.name))
		}
	}
	return strings.Join(parts, ", ")
}

// In says a row in one line, as it is evaluated.
func (a Audit) In(r AuditRow) string {
	said := words(string(r.Status))
	switch {
	case r.Status == kernelwright.NoClaims:
		return "no claims are read from it: " + shortened(r.Reason, maxReason)
	case r.Status == kernelwright.Unrecognised:
		return "left out: " + shortened(r.Reason, maxReason) + "; expected: " + Line(r.Hint)
	case r.Status == kernelwright.NeedsGPU || r.Status == kernelwright.NoCandidate || r.Status == kernelwright.NoReference: // the reason has these words
		return shortened(r.Reason, maxReason)
	case r.Explained != nil:
		return said + ": " + shortened(r.Reason, maxReason) + "; " + r.uncounted()
	case !r.Status.OK():
		return said + ": " + shortened(r.Reason, maxReason)
	}
	if r.CandidateMS != nil {
		said += "  " + Milliseconds(*r.CandidateMS)
	}
	if r.Measured != nil {
		said += fmt.Sprintf("  %s against %s", Speedup(r.Measured), Line(r.Measured.Against))
	}
	if r.Claimed != nil {
		said += fmt.Sprintf(", claimed %s", times(*r.Claimed))
	}
	switch r.Group {
	case "rewrite":
		said += "  (a rewrite in PyTorch)"
	case "degenerate":
		said += "  (its reference computes nothing)"
	}
	return said
}

// auditSection is the pairs that the summary counts under one reason.
type auditSection struct {
	ID, Title, Class string
	Numbers          []auditNumber // of the summary's row
	Example          string
	Pairs            int
	Blocks           [][]auditPair // which are laid out one by one, when they are looked at
	Open             bool
	// Whether any pair has something there.
	HasClaim, HasMeasured, HasWork, HasReference bool
}

// auditNumber is a cell with the name of its column, for who reads on a phone.
type auditNumber struct{ Name, Value string }

const (
	blockPairs = 100 // of a section
	openPairs  = 100 // of an audit whose sections are all open at first
)

// sections puts pairs under their reasons, in the summary's order.
func (a Audit) sections(t table) []auditSection {
	at := map[string]int{}
	sections := make([]auditSection, len(a.Summary.Groups))
	for i, g := range a.Summary.Groups {
		at[g.Name] = i
		s := auditSection{ID: strings.ReplaceAll(g.Name, " ", "-"), Title: g.Title, Class: "open", Open: len(a.Rows) <= openPairs, Example: shortened(g.Example, maxReason)}
		cells := t.Rows[i]
		for k, name := range t.Head[1 : len(cells)-1] {
			s.Numbers = append(s.Numbers, auditNumber{name, cells[k+1]})
		}
		sections[i] = s
	}
	for _, r := range a.Rows {
		id, _ := r.counted()
		i, known := at[id]
		if !known {
			continue
		}
		s, p := &sections[i], a.pair(r)
		if s.Pairs%blockPairs == 0 {
			s.Blocks = append(s.Blocks, nil)
		}
		last := len(s.Blocks) - 1
		s.Blocks[last] = append(s.Blocks[last], p)
		s.Pairs++
		s.Class = p.Class
		s.HasClaim = s.HasClaim || r.Claimed != nil
		s.HasMeasured = s.HasMeasured || r.Measured != nil || r.Speedup != nil
		s.HasWork = s.HasWork || r.Work != nil
		s.HasReference = s.HasReference || p.Reference != p.Candidate
	}
	return sections
}

// cards are the summary's figures that matter most.
func (s AuditSummary) cards() []fact {
	out := []fact{{"pairs", fmt.Sprint(s.Pairs)}, {"right", fmt.Sprint(s.Right)}, {"of these faster", fmt.Sprint(s.Faster)}, {"wrong", fmt.Sprint(s.Wrong)}, {"do not run", fmt.Sprint(s.unrun())}, {"not evaluated", fmt.Sprint(s.Unevaluated)}}
	if s.Tested > 0 {
		out = append(out, fact{"claims reached", fmt.Sprintf("%d of %d", s.Reached, s.Tested)})
	}
	return out
}

// auditPageData is the page with everything decided.
type auditPageData struct {
	Audit
	Name, Headline, Status, Class string
	Cards                         []fact
	Table                         table
	Chart                         *auditChart
	Sections                      []auditSection
	Facts                         []fact
}

func (a Audit) page() auditPageData {
	p := auditPageData{
		Audit: a, Name: fmt.Sprintf("Audit %d: %s", a.ID, Line(filepath.Base(a.Path))), Headline: a.Summary.Headline(),
		Status: "done", Class: "certified", Cards: a.Summary.cards(), Table: a.table(), Chart: a.chart(), Facts: a.about(),
	}
	if a.FinishedMS == 0 {
		p.Status, p.Class = "not done", "open"
	}
	p.Sections = a.sections(p.Table)
	return p
}

// AuditHTML writes what an audit came to as one page that loads nothing from
// anywhere.
func AuditHTML(w io.Writer, a Audit) error { return auditPage.Execute(w, a.page()) }

// AuditMarkdown writes what an audit came to as Markdown.
func AuditMarkdown(w io.Writer, a Audit) error {
	p, m := a.page(), &md{}
	m.line("# %s", m.text(p.Name))
	m.line("")
	m.line("**%s**", m.text(p.Headline))
	m.line("")
	m.table(p.Table)
	m.line("## Pairs")
	m.line("")
	m.row("candidate", "reference", "verdict", "claimed", "measured", "against the fastest", "who did the work", "why")
	m.row("---", "---", "---", "---:", "---:", "---:", "---", "---")
	for _, row := range a.Rows {
		r := a.pair(row)
		m.row(m.all([]string{r.Candidate, r.Reference, r.Status, r.Claimed, r.Measured, r.Fastest, r.Did, strings.Join(append([]string{r.Reason}, r.Care...), "; ")})...)
	}
	m.line("")
	m.line("## What it was")
	m.line("")
	for _, f := range p.Facts {
		m.line("- %s: %s", m.text(f.Name), m.text(f.Value))
	}
	_, err := io.WriteString(w, m.b.String())
	return err
}
