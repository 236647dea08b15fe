package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"

	"github.com/kernelwright/kernelwright"
)

//go:embed report.html.tmpl
var pageText string

// styleText is what the pages of a run and of a bench share.
//
//go:embed style.html.tmpl
var styleText string

var page = newPage("report", pageText)

func newPage(name, text string) *template.Template {
	return template.Must(template.Must(template.New(name).Funcs(pageFuncs).Parse(styleText)).Parse(text))
}

var pageFuncs = template.FuncMap{
	"clean": func(s string) string { return cut(Clean(s)) },
	"line":  Line,
	"say":   func(s string) string { return sentence(Line(s)) },
	"ms":    Milliseconds,
	"speed": Speedup, "against": Against,
	"share": Percent,
	"num":   digits,
	"scale": func(v float64) string { return fmt.Sprintf("%.1f%%", 100*min(max(v, 0), 1)) },
	"mid":   func(a, b float64) float64 { return (a + b) / 2 },
	"add":   func(a, b float64) float64 { return a + b },
}

// pageData is the page with everything decided, so that the template only
// places.
type pageData struct {
	Name, Headline    string
	Status, Class     string
	Reason, Hint      string
	Detail            string
	Flags             []string
	Cards             []fact
	Certificate       []fact
	Chart             *chart
	Times             []timeRow
	TimeNotes         []string
	Rounds            []pageRound
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

type pageRound struct {
	Index          int
	Kept           bool
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
	Metrics        []fact
	Costs          []fact
	Certifying     []fact // what that cost
	Vectorised     []kernelwright.Diagnostic
	Missed         []kernelwright.Diagnostic
	Kernels        []string
	Profile        []string
	Source         []string
	Diff           []DiffLine
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
	best, v, ok := Best(d.Rounds)
	s := Summarise(d)
	p := pageData{
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
	talk, beyond := talkByRound(d)
	for i, r := range d.Rounds {
		var before *kernelwright.Round
		if i > 0 {
			before = &d.Rounds[i-1]
		}
		round := newPageRound(r, before, ok && r.Index == best.Index)
		round.Talk = pageTurns(talk[r.Index])
		p.Rounds = append(p.Rounds, round)
	}
	for _, index := range beyond {
		p.Rounds = append(p.Rounds, pageRound{Index: index, Status: "not done", Class: "open", Talk: pageTurns(talk[index])})
	}
	return page.Execute(w, p)
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

func newPageRound(r kernelwright.Round, before *kernelwright.Round, kept bool) pageRound {
	v, counts := r.Verdict, Counts(r)
	p := pageRound{
		Index: r.Index, Kept: kept, Status: RoundStanding(r), Class: statusClass(counts.Status), MS: counts.CandidateMS, Speedup: counts.Speedup, Headroom: counts.Headroom,
		Measured: measuredAt(r),
		Note:     r.Candidate.Note, Said: saying(r), Origin: r.Candidate.Origin, Reason: roundReason(r), Hint: v.Hint, Evidence: v.Evidence,
		Errors: v.Build.Errors, Output: v.Output, Vectorised: v.Build.Vectorised, Missed: v.Build.Missed,
		Source: splitLines(cut(Clean(r.Candidate.Source))),
	}
	for _, k := range v.Build.Kernels {
		p.Kernels = append(p.Kernels, Kernel(k))
	}
	p.Profile = Profiles(v)
	if !v.Status.OK() {
		p.Log = v.Build.Log
	}
	if c := r.Certificate; c != nil {
		if p.Certifying = numbers(c.CostS); refused(r) {
			p.Uncertified, p.Class = c.Reason, "failed"
		}
	}
	if f := r.Feedback; f != nil {
		p.Kind, p.Feedback, p.Numbers = string(f.Kind), feedbackFacts(*f), numbers(f.Evidence)
	}
	p.Metrics, p.Costs = numbers(v.Metrics), numbers(v.CostS)
	if before == nil {
		p.HasFirst = true
		return p
	}
	p.Diff = Diff(Clean(before.Candidate.Source), Clean(r.Candidate.Source))
	p.Same = before.Candidate.Source == r.Candidate.Source
	return p
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
