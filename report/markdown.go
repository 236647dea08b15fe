package report

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// maxText is how much of one foreign text a report carries; the store has the
// whole.
const maxText = 64 << 10

// Markdown writes the report for people who read it in an editor or on a forge.
func Markdown(w io.Writer, d Data) error {
	m := &md{}
	best, v, ok := Best(d.Rounds)
	m.line("# %s", m.text(name(d)))
	m.line("")
	m.line("**%s**", m.text(headline(d)))
	m.line("")
	for _, f := range flagsOf(d, v) {
		m.line("> **Take care:** %s.", m.text(FlagText(f)))
		m.line("")
	}
	if d.Run.Reason != "" {
		m.line("%s", m.text(sentence(d.Run.Reason)))
		if d.Run.Hint != "" {
			m.line("")
			m.line("What to do: %s", m.text(sentence(d.Run.Hint)))
		}
		m.line("")
	}
	if facts := certificateFacts(d); len(facts) > 0 {
		m.line("## Certificate")
		m.line("")
		for _, f := range facts {
			m.line("- %s: %s", m.text(f.Name), m.text(f.Value))
		}
		m.line("")
	}
	if ok {
		m.times(v)
	}
	m.rounds(d, best, ok)
	if ok {
		m.correctness(v)
	}
	m.about(d, v)
	talk, beyond := talkByRound(d)
	for i, r := range d.Rounds {
		m.round(d, i, r)
		m.talk(talk[r.Index])
	}
	for _, index := range beyond {
		m.line("## Round %d: not done", index)
		m.line("")
		m.talk(talk[index])
	}
	if d.Run.Detail != "" {
		m.line("## Traceback")
		m.line("")
		m.code("", d.Run.Detail)
	}
	m.line("## Reference")
	m.line("")
	m.code("python", d.Task.Source)
	_, err := io.WriteString(w, m.b.String())
	return err
}

type md struct{ b strings.Builder }

func (m *md) line(format string, args ...any) { fmt.Fprintf(&m.b, format+"\n", args...) }

// text escapes what Markdown, and the HTML in it, would read as markup.
func (m *md) text(s string) string {
	s = Line(s)
	var b strings.Builder
	for _, r := range s {
		if strings.ContainsRune("\\`*_{}[]<>#|~!&$", r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	// An address would turn into a link by itself.
	return strings.NewReplacer("://", ":\u200b//", "www.", "www\u200b.").Replace(b.String())
}

// code fences a text with one more backtick than any run of them in it.
func (m *md) code(language, s string) {
	s = cut(Clean(s))
	fence := "```"
	for strings.Contains(s, fence) {
		fence += "`"
	}
	m.line("%s%s\n%s\n%s\n", fence, language, strings.TrimRight(s, "\n"), fence)
}

func (m *md) row(cells ...string) { m.line("| %s |", strings.Join(cells, " | ")) }

func (m *md) times(v kernelwright.Verdict) {
	m.line("## Time, %s", levelName(v.Level))
	m.line("")
	m.row("", "median", "95 % interval", "quartiles", "speedup of this kernel")
	m.row("---", "---:", "---:", "---:", "---:")
	for _, t := range timeRows(v) {
		m.row(m.text(t.Name), t.Median, t.Interval, t.Quartiles, t.Speedup)
	}
	m.line("")
	for _, n := range timeNotes(v) {
		m.line("%s", m.text(n))
		m.line("")
	}
}

func (m *md) rounds(d Data, best kernelwright.Round, ok bool) {
	if len(d.Rounds) == 0 {
		return
	}
	m.line("## Rounds")
	m.line("")
	m.row("round", "verdict", "time", "speedup", "against", "headroom", "what was tried", "what was said")
	m.row("---:", "---", "---:", "---:", "---", "---:", "---", "---")
	for _, r := range d.Rounds {
		index := fmt.Sprint(r.Index)
		if ok && r.Index == best.Index {
			index = "**" + index + "**"
		}
		v := Counts(r)
		m.row(index, m.text(RoundStanding(r)), Milliseconds(v.CandidateMS), Speedup(v.Speedup), m.text(Against(v.Speedup)), Percent(v.Headroom),
			m.text(r.Candidate.Note), m.text(saying(r)))
	}
	m.line("")
	if d.Run.Stop != "" {
		m.line("The run ended: %s.", m.text(stopText(d.Run.Stop)))
		m.line("")
	}
}

func (m *md) correctness(v kernelwright.Verdict) {
	c := v.Correctness
	if len(c.Families) == 0 {
		return
	}
	m.line("## Correctness")
	m.line("")
	m.line("Held to %s over %d seeds, %s.", m.text(c.Precision), c.Seeds, m.text(levelText(v.Level)))
	m.line("")
	m.row("input family", "", "largest error", "bound", "RMS error", "bound", "skipped", "")
	m.row("---", "---", "---:", "---:", "---:", "---:", "---:", "---")
	for _, f := range c.Families {
		m.row(m.text(f.Name), familyWord(f), digits(f.MaxError), digits(f.MaxBound), digits(f.RMSError), digits(f.RMSBound), fmt.Sprint(f.Skipped), m.text(f.Note))
	}
	m.line("")
	for _, f := range findings(v) {
		m.line("- %s: %s", m.text(f.Name), m.text(f.Value))
	}
	for _, e := range evidence(v) {
		m.line("- %s", m.text(sentence(e)))
	}
	m.line("")
}

func (m *md) about(d Data, v kernelwright.Verdict) {
	m.line("## What it was")
	m.line("")
	for _, f := range facts(d, v) {
		m.line("- %s: %s", m.text(f.Name), m.text(f.Value))
	}
	for _, n := range d.Task.Notes {
		m.line("- %s", m.text(n))
	}
	m.line("")
}

func (m *md) round(d Data, i int, r kernelwright.Round) {
	m.line("## Round %d: %s", r.Index, m.text(RoundStanding(r)))
	m.line("")
	for _, f := range measuredAt(r) {
		m.line("- %s: %s", m.text(f.Name), m.text(f.Value))
	}
	if len(measuredAt(r)) > 0 {
		m.line("")
	}
	if reason := roundReason(r); reason != "" {
		m.line("%s", m.text(sentence(reason)))
		m.line("")
	}
	for _, e := range r.Verdict.Evidence {
		m.line("- %s", m.text(e))
	}
	if len(r.Verdict.Evidence) > 0 {
		m.line("")
	}
	if r.Certificate != nil && r.Certificate.Status != kernelwright.Certified {
		m.line("Not certified: %s", m.text(sentence(r.Certificate.Reason)))
		m.line("")
	}
	for _, e := range r.Verdict.Build.Errors {
		m.line("- line %d: %s", e.Line, m.text(e.Message))
	}
	for _, line := range Profiles(r.Verdict) {
		m.line("- %s", m.text(line))
	}
	if r.Verdict.Profile != nil {
		m.line("")
	}
	if f := r.Feedback; f != nil {
		for _, s := range feedbackFacts(*f) {
			m.line("- **%s**: %s", m.text(s.Name), m.text(s.Value))
		}
		if len(f.Evidence) > 0 {
			var parts []string
			for _, k := range slices.Sorted(maps.Keys(f.Evidence)) {
				parts = append(parts, fmt.Sprintf("%s = %s", m.text(k), digits(f.Evidence[k])))
			}
			m.line("- **Evidence**: %s", strings.Join(parts, ", "))
		}
		m.line("")
	}
	if i == 0 {
		m.code("python", r.Candidate.Source)
		return
	}
	lines := Diff(d.Rounds[i-1].Candidate.Source, r.Candidate.Source)
	if len(lines) == 0 {
		m.line("The same candidate as in the round before.")
		m.line("")
		return
	}
	m.code("diff", Unified(lines))
}

// talk folds what was said to models, and what they said.
func (m *md) talk(turns []Turn) {
	if len(turns) == 0 {
		return
	}
	m.line("<details><summary>the talk with language models</summary>")
	m.line("")
	for _, t := range turns {
		m.line("**%s**", m.text(t.who()))
		m.line("")
		m.code("", t.Text)
	}
	m.line("</details>")
	m.line("")
}

// Unified writes a difference as text, without line numbers.
func Unified(lines []DiffLine) string {
	var b strings.Builder
	for _, l := range lines {
		if l.Op == '@' {
			fmt.Fprintf(&b, "@@ %s @@\n", l.Text)
			continue
		}
		fmt.Fprintf(&b, "%c%s\n", l.Op, l.Text)
	}
	return b.String()
}

func cut(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(s[:maxText], "") + "\n… cut here; the history has the rest\n"
}
