package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
)

//go:embed report.html.tmpl
var pageText string

// styleText, and what is said of a run and of a round, are of all pages.
var (
	//go:embed style.html.tmpl
	styleText string
	//go:embed run.html.tmpl
	runText string
	//go:embed bench_body.html.tmpl
	benchBodyText string
)

// Style is the style sheet of all pages.
//
//go:embed style.css
var Style string

var page = newPage("report", pageText)

func newPage(name, text string) *template.Template {
	return template.Must(Templates(name).Parse(text))
}

// Templates returns an empty template of a name with those that pages share: "run" of a
// [Page], "round" of one of its rounds, "talk" of turns, "reference" of a Page, and
// "bench-body" of a [BenchPage].
func Templates(name string) *template.Template {
	t := template.New(name).Funcs(pageFuncs)
	for _, text := range []string{styleText, runText, benchBodyText} {
		t = template.Must(t.Parse(text))
	}
	return t
}

var pageFuncs = template.FuncMap{
	"css":   func() template.CSS { return template.CSS(Style) }, //nolint:gosec // ours
	"clean": func(s string) string { return cut(Clean(s)) },
	"line":  Line,
	"say":   func(s string) string { return sentence(Line(s)) },
	"prose": func(s string) template.HTML { return Inline(sentence(Line(s))) },
	"code":  Highlight,
	"input": func(family string) string { return familyMeanings[family] },
	"ms":    Milliseconds,
	"speed": Speedup, "against": Against,
	"share": Percent,
	"num":   digits,
	"scale": func(v float64) string { return fmt.Sprintf("%.1f%%", 100*min(max(v, 0), 1)) },
	"mid":   func(a, b float64) float64 { return (a + b) / 2 },
	"add":   func(a, b float64) float64 { return a + b },
}

// Inline is a sentence as markup: what stands in backticks is code.
func Inline(s string) template.HTML {
	parts := strings.Split(s, "`")
	if len(parts)%2 == 0 { // one is alone
		return template.HTML(template.HTMLEscapeString(s)) //nolint:gosec // escaped
	}
	for i := range parts {
		if parts[i] = template.HTMLEscapeString(parts[i]); i%2 == 1 {
			parts[i] = "<code>" + parts[i] + "</code>"
		}
	}
	return template.HTML(strings.Join(parts, "")) //nolint:gosec // escaped
}

// Page is the page with everything decided, so that the template only
// places.
type Page struct {
	Name, Headline    string
	Status, Class     string
	Reason, Hint      string
	Detail            string
	Flags             []string
	Cards             []fact
	Certificate       []fact
	Chart             *chart
	Tree              *roundTree
	Roofline          *rooflineChart
	Why               *why
	Take              *Take
	Faster            string // or what the best kernel is else
	Times             []timeRow
	TimeNotes         []string
	Rounds            []PageRound
	Stop              string
	Precision         string
	Seeds             int
	Level, LevelName  string
	Families          []kernelwright.FamilyReport
	Findings          []fact
	Evidence          []string
	Facts             []fact
	Notes             []string
	Operators         []kernelwright.OperatorShare
	Launches          []string
	Reference         string
	Version, Finished string
	Run               int64
}

// PageRound is what a page says of a round.
type PageRound struct {
	Index          int
	Kept           bool
	Link           string // to what is said of it alone
	Answers        string // correction, optimisation, or that it is a first candidate
	After, Since   int    // the rounds that it went on from, and that it is compared with; -1: none
	Moved          []movement
	Status, Class  string
	MS             float64
	Speedup        *kernelwright.Speedup
	Headroom       float64
	Note, Said     string
	Origin         string
	Reason, Hint   string
	Uncertified    string
	Evidence       []string
	Errors         []kernelwright.Diagnostic
	Output, Log    string
	Kind           string
	Feedback       []fact
	Numbers        []fact
	Measured       []fact // by level
	Metrics        []chip
	Costs          []fact
	Certifying     []fact // what that cost
	Vectorised     []kernelwright.Diagnostic
	Missed         []kernelwright.Diagnostic
	Kernels        []string
	Profile        []string
	Source         []template.HTML
	Diff           []codeDiff
	Same, HasFirst bool
	Talk           []pageTurn
}

// pageTurn is something that was said in a talk with a language model.
type pageTurn struct{ Who, Text string }

func pageTurns(turns []Turn) []pageTurn {
	out := make([]pageTurn, len(turns))
	for i, t := range turns {
		out[i] = pageTurn{t.who(), t.Text}
	}
	return out
}

// HTML writes the report as one page that loads nothing from anywhere.
func HTML(w io.Writer, d Data) error {
	p := NewPage(d, func(round int) string { return fmt.Sprintf("#round-%d", round) })
	talk, beyond := talkByRound(d)
	code := codeOnce()
	for i := range p.Rounds {
		p.Rounds[i] = newRound(d, p.Rounds[i].Index, p.Rounds[i].After, code)
		p.Rounds[i].Talk = pageTurns(talk[p.Rounds[i].Index])
	}
	for _, index := range beyond {
		p.Rounds = append(p.Rounds, PageRound{Index: index, Status: "not done", Class: "open", Talk: pageTurns(talk[index])})
	}
	return page.Execute(w, p)
}

// NewPage decides what a page says of a run. Its rounds have their figures alone:
// NewRound has the rest. Link leads to what is said of a round.
func NewPage(d Data, link func(round int) string) Page {
	best, v, ok := Best(d.Rounds)
	s := Summarise(d)
	p := Page{
		Name: Line(name(d)), Headline: headline(d), Status: standing(s.Status, s.Level), Class: "failed",
		Reason: d.Run.Reason, Hint: d.Run.Hint, Detail: d.Run.Detail,
		Stop: stopSentence(d.Run.Stop), Facts: facts(d, v), Notes: d.Task.Notes, Reference: d.Task.Source,
		Version: kernelwright.Version, Finished: when(d.Run.FinishedMS), Run: d.Run.ID,
	}
	if d.Run.Status == kernelwright.RunRunning || d.Run.Status == kernelwright.RunQueued {
		p.Class = "open"
	}
	for _, f := range flagsOf(d, v) {
		p.Flags = append(p.Flags, FlagText(f))
	}
	if ok {
		if p.Class = statusClass(v.Status); s.Result == NothingFaster {
			p.Status, p.Class = standing(s.Result, ""), "failed"
		}
		p.Cards = cards(d, s, v)
		p.Times, p.TimeNotes = timeRows(v), timeNotes(v)
		p.Certificate = certificateFacts(d)
		p.Precision, p.Seeds, p.Level, p.LevelName = v.Correctness.Precision, v.Correctness.Seeds, levelText(v.Level), levelName(v.Level)
		p.Families, p.Findings, p.Evidence = v.Correctness.Families, findings(v), evidence(v)
		p.Operators, p.Launches = v.Work.Operators, Launches(v.Work.Launches)
	}
	if c, drawn := newChart(d); drawn {
		p.Chart = &c
	}
	p.Take = newTake(d)
	p.Why, p.Faster = newWhy(d, link), "as fast as it is"
	if s.Result == Faster || v.Speedup.Wins(0) {
		p.Faster = "faster"
	}
	if t, drawn := newTree(d.Rounds, kept(best, ok), link); drawn {
		p.Tree = &t
	}
	if c, drawn := newRoofline(v, d.Device); drawn {
		p.Roofline = &c
	}
	for _, r := range d.Rounds {
		round := roundFigures(d, r, ok && r.Index == best.Index)
		round.Link = link(r.Index)
		p.Rounds = append(p.Rounds, round)
	}
	return p
}

func kept(best kernelwright.Round, ok bool) int {
	if !ok {
		return -1
	}
	return best.Index
}

func cards(d Data, s Summary, v kernelwright.Verdict) []fact {
	out := []fact{{"this kernel", Milliseconds(v.CandidateMS)}}
	for _, n := range BaselineNames(v.Baselines) {
		out = append(out, fact{n, Milliseconds(v.Baselines[n])})
	}
	if v.Speedup != nil {
		out = append(out, fact{"speedup", Speedup(v.Speedup)})
	}
	if d.Spend.Calls > 0 {
		out = append(out, fact{"language models", Cost(d.Spend)})
	}
	return append(out, fact{"headroom", Percent(v.Headroom)}, fact{"rounds", fmt.Sprintf("%d of %d", s.Rounds, max(d.Run.MaxRounds, s.Rounds))})
}

// roundFigures is what the table of rounds shows of one.
func roundFigures(d Data, r kernelwright.Round, kept bool) PageRound {
	counts, before := Counts(r), roundBefore(d.Rounds, r)
	p := PageRound{
		Index: r.Index, Kept: kept, Status: RoundStanding(r), Class: statusClass(counts.Status), MS: counts.CandidateMS, Speedup: counts.Speedup, Headroom: counts.Headroom,
		Note: r.Candidate.Note, Answers: answers(before), After: -1, Since: -1,
	}
	if refused(r) {
		p.Class = "failed"
	}
	if before != nil {
		p.After = before.Index
	}
	return p
}

// NewRound decides what a page says of a round of a run, whose source is compared with
// that of another round; -1: of none. It is empty where there is no such round.
func NewRound(d Data, index, since int) PageRound { return newRound(d, index, since, Highlight) }

// codeOnce is Highlight for the sources of one run: most are asked for twice, as a round's
// own and as what the next one is compared with.
func codeOnce() func(source string) []template.HTML {
	known := map[string][]template.HTML{}
	return func(source string) []template.HTML {
		if _, ok := known[source]; !ok {
			known[source] = Highlight(source)
		}
		return known[source]
	}
}

func newRound(d Data, index, since int, code func(source string) []template.HTML) PageRound {
	at := slices.IndexFunc(d.Rounds, func(r kernelwright.Round) bool { return r.Index == index })
	if at < 0 {
		return PageRound{Index: index, After: -1, Since: -1}
	}
	r := d.Rounds[at]
	best, _, ok := Best(d.Rounds)
	p := roundFigures(d, r, ok && r.Index == best.Index)
	v := r.Verdict
	p.Measured, p.Said, p.Origin, p.Reason, p.Hint, p.Evidence = measuredAt(r), saying(r), r.Candidate.Origin, roundReason(r), v.Hint, v.Evidence
	p.Errors, p.Output, p.Vectorised, p.Missed = v.Build.Errors, v.Output, v.Build.Vectorised, v.Build.Missed
	p.Source = code(r.Candidate.Source)
	for _, k := range v.Build.Kernels {
		p.Kernels = append(p.Kernels, Kernel(k))
	}
	p.Profile = Profiles(v)
	if !v.Status.OK() {
		p.Log = v.Build.Log
	}
	if c := r.Certificate; c != nil {
		if p.Certifying = numbers(c.CostS); refused(r) {
			p.Uncertified = c.Reason
		}
	}
	if f := r.Feedback; f != nil {
		p.Kind, p.Feedback, p.Numbers = string(f.Kind), feedbackFacts(*f), numbers(f.Evidence)
	}
	p.Metrics, p.Costs = chips(v.Metrics), numbers(v.CostS)
	if before := roundBefore(d.Rounds, r); before != nil {
		p.Moved = movements(before.Verdict, v)
	}
	other := slices.IndexFunc(d.Rounds, func(r kernelwright.Round) bool { return r.Index == since })
	if other < 0 || since == index {
		p.HasFirst = true
		return p
	}
	from := d.Rounds[other].Candidate.Source
	p.Since, p.Same = since, from == r.Candidate.Source
	p.Diff = highlightDiff(from, r.Candidate.Source, p.Source, code)
	return p
}

// codeDiff is a DiffLine as markup.
type codeDiff struct {
	Op   rune
	Code template.HTML
}

// highlightDiff compares two sources; now is the second one's lines as markup.
func highlightDiff(from, to string, now []template.HTML, code func(source string) []template.HTML) []codeDiff {
	lines := Diff(Clean(from), Clean(to))
	if len(lines) == 0 {
		return nil
	}
	was := code(from)
	out := make([]codeDiff, len(lines))
	for i, l := range lines {
		out[i] = codeDiff{l.Op, template.HTML(template.HTMLEscapeString(l.Text))} //nolint:gosec // escaped
		switch {
		case l.New > 0 && l.New <= len(now):
			out[i].Code = now[l.New-1]
		case l.New == 0 && l.Old > 0 && l.Old <= len(was):
			out[i].Code = was[l.Old-1]
		}
	}
	return out
}

func numbers(m map[string]float64) []fact {
	var out []fact
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, fact{Line(k), digits(m[k])})
	}
	return out
}

func stopSentence(s kernelwright.StopReason) string {
	if s == "" {
		return ""
	}
	return "The run ended: " + stopText(s) + "."
}
