package prompts

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// How many characters of skills go into a prompt. Who has to find out what to do
// gets more than who was told it, or has one fault to mend.
const (
	SkillsToFind = 3500 // a first candidate; a bottleneck
	SkillsToMend = 1500 // a change that a feedback asks for; a fault
)

// audience is whom something is for: languages and architectures, none for all.
type audience struct {
	languages     []kernelwright.Language
	architectures []string
}

func (a audience) has(language kernelwright.Language, isa []string) bool {
	return meet(a.languages, []kernelwright.Language{language}) && fitsDevice(a.architectures, isa)
}

// section is what stands under one heading of a skill. What stands before the
// first has none. The marks behind a heading, "## On a CPU [cpp]", say what it is
// for and are not shown.
type section struct {
	heading string // its line
	parts   []part

	audience
	statuses    []kernelwright.Status // of the verdict that was read; none is all
	operators   []string              // as Skill.Operators; none is all
	bottlenecks []Bottleneck          // that it helps with, the one it is mainly about first
}

// part is a paragraph, a list's item, a table's row, or a block of code with its
// fences. The marks behind prose, "Stage it in shared memory. [cuda]", say whom it
// is for and are not shown; those of code are its fence's.
type part struct {
	text string
	head string // the two lines of the table that it is a row of
	gap  bool   // an empty line stands before it
	code bool
	audience
}

// headingMarks is a heading with marks behind it, endMarks any other line.
var (
	headingMarks = regexp.MustCompile(`^(## .*\S) +\[([^\]]+)\]$`)
	endMarks     = regexp.MustCompile(`^(.*\S) +\[([^\[\]]+)\]$`)
)

// readSections takes a skill's text apart, and returns it without its marks.
func readSections(text string) ([]section, string, error) {
	sections := []section{{}}
	var bare []string // all lines
	var open []string // those of a part
	var table, head, fence string
	var wrong error
	rows, gap := 0, false
	here := func() *section { return &sections[len(sections)-1] }
	end := func() {
		if len(open) > 0 {
			p, err := newPart(open, fence)
			if err != nil && wrong == nil {
				wrong = err
			}
			if fence == "" {
				bare[len(bare)-1] = open[len(open)-1]
			}
			p.head, p.gap = head, gap
			here().parts = append(here().parts, p)
			gap = false
		}
		open, head, fence = nil, "", ""
	}
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		if !strings.HasPrefix(line, "|") || fence != "" {
			rows = 0
		} else {
			rows++
		}
		shown := line
		switch {
		case fence != "":
			open = append(open, line)
			if line == "```" {
				end()
			}
		case strings.HasPrefix(line, "```"):
			end()
			open, fence = []string{line}, line
		case strings.HasPrefix(line, "# ") && len(sections) == 1 && len(here().parts) == 0 && len(open) == 0:
			// The title: a prompt has it already.
		case strings.HasPrefix(line, "## "):
			end()
			gap = false
			sections = append(sections, section{heading: line})
			if m := headingMarks.FindStringSubmatch(line); m != nil {
				shown = m[1]
				here().heading = m[1]
				if err := here().mark(strings.Fields(m[2])); err != nil {
					return nil, "", fmt.Errorf("its section %q is marked %w", oneLine(m[1][len("## "):]), err)
				}
			}
		case strings.TrimSpace(line) == "":
			end()
			gap = true
		case rows == 3:
			table = strings.Join(open, "\n") + "\n"
			open, head = []string{line}, table
		case rows > 3:
			end()
			open, head = []string{line}, table
		case strings.HasPrefix(line, "- "), rows == 1:
			end()
			open = []string{line}
		default:
			open = append(open, line)
		}
		bare = append(bare, shown)
	}
	end()
	return sections, strings.Join(bare, "\n") + "\n", wrong
}

// newPart makes a part of its lines, and takes the marks off the last one.
func newPart(lines []string, fence string) (part, error) {
	var p part
	words := strings.Fields(strings.TrimPrefix(fence, "```"))
	switch {
	case fence == "":
		last := &lines[len(lines)-1]
		if !strings.HasSuffix(*last, "]") {
			break
		}
		if m := endMarks.FindStringSubmatch(*last); m != nil {
			marked, err := p.mark(strings.Fields(m[2]))
			if err != nil {
				return p, fmt.Errorf("its line %q is marked %w", oneLine(m[1]), err)
			}
			if marked {
				*last = m[1]
			}
		}
	case len(words) == 0:
	default:
		for _, row := range kernelwright.Languages {
			if row.Fence == words[0] {
				p.languages = append(p.languages, row.Name)
			}
		}
	}
	if p.code = fence != "" && len(p.languages) > 0; p.code {
		for _, w := range words[1:] {
			if architectureForm.MatchString(w) {
				p.architectures = append(p.architectures, w)
			}
		}
	}
	p.text = strings.Join(lines, "\n") + "\n"
	return p, nil
}

var statuses = []kernelwright.Status{kernelwright.Rejected, kernelwright.BuildFailed, kernelwright.Crashed, kernelwright.TimedOut,
	kernelwright.Wrong, kernelwright.Cheated, kernelwright.Correct, kernelwright.Certified}

// mark takes one of the words in that stand behind what is for it alone, and says
// whether it is such a word.
func (a *audience) mark(word string) bool {
	switch {
	case kernelwright.Language(word).Known():
		a.languages = append(a.languages, kernelwright.Language(word))
	case architectureForm.MatchString(word):
		a.architectures = append(a.architectures, word)
	default:
		return false
	}
	return true
}

// mark takes the words behind a part in, if they are marks: text may end in
// brackets, so they are where the first is a language or an architecture.
func (p *part) mark(words []string) (bool, error) {
	for i, w := range words {
		switch {
		case p.audience.mark(w):
		case i == 0:
			return false, nil
		default:
			return false, fmt.Errorf("%q, which is no language or architecture", oneLine(w))
		}
	}
	return len(words) > 0, nil
}

// mark takes the words behind a heading in.
func (s *section) mark(words []string) error {
	for _, w := range words {
		switch {
		case s.audience.mark(w):
		case slices.Contains(Bottlenecks, Bottleneck(w)):
			s.bottlenecks = append(s.bottlenecks, Bottleneck(w))
		case slices.Contains(statuses, kernelwright.Status(w)):
			s.statuses = append(s.statuses, kernelwright.Status(w))
		case strings.Contains(w, ".") && operatorForm.MatchString(w):
			s.operators = append(s.operators, w)
		default:
			return fmt.Errorf("%q, which is no language, bottleneck, status, architecture or operator", oneLine(w))
		}
	}
	return nil
}

// fits says whether a section is for what is asked. Where a candidate failed, one on
// other bottlenecks than its failure is not: nobody mends a crash by bandwidth.
func (s *section) fits(q Query, asked []Bottleneck) bool {
	named, _ := namedOperators(s.operators, q.Operators)
	return s.has(q.Language, q.ISA) && (q.Status == "" || meet(s.statuses, []kernelwright.Status{q.Status})) &&
		(len(s.operators) == 0 || len(named) > 0) && (!q.failed() || meet(s.bottlenecks, asked))
}

// rank says how much a section that fits is about what was asked: above 0 where it
// is, or is for this verdict or these operators alone; below where it is about
// something else.
func (s *section) rank(q Query, asked []Bottleneck) int {
	_, score := bottleneckScore(s.bottlenecks, asked)
	switch {
	case len(s.statuses) > 0 && q.Status != "":
		return scoreMainBottleneck
	case score > 0:
		return score
	case len(s.bottlenecks) > 0 && len(asked) > 0:
		return -1
	case len(s.operators) > 0:
		return scoreOperator
	}
	return 0
}

// Excerpt returns of the skills that Select chooses what matters most, in at most
// so many characters, each skill's title included: sections and parts for this language,
// device, verdict and these operators; first those for this verdict alone and those on
// the bottleneck that was asked first, then as they stand, the skills in turn. What does not fit as a whole is cut
// behind a paragraph, an item or a row; a section's code comes once all prose before it is
// there, and prose behind code only with it. A skill of the user's own is not cut, and counts nothing.
func (s *Skills) Excerpt(q Query, most int) []Skill {
	chosen := s.Select(q, 0)
	asked := q.asked()
	type place struct{ skill, section, rank int }
	var places []place
	for i, skill := range chosen {
		for j := range skill.sections {
			if sec := &skill.sections[j]; !skill.Own && sec.fits(q, asked) {
				places = append(places, place{i, j, sec.rank(q, asked)})
			}
		}
	}
	slices.SortStableFunc(places, func(a, b place) int {
		if a.rank != b.rank {
			return b.rank - a.rank
		}
		return a.section - b.section // the skills in turn: they were put in by skill
	})
	taken := make([]map[[2]int]bool, len(chosen)) // of each skill: section and part
	for i := range taken {
		taken[i] = map[[2]int]bool{}
	}
	room := func() bool {
		left := most
		for i, skill := range chosen {
			if text := excerpt(skill.sections, taken[i]); text != "" {
				left -= len("\n# \n\n") + len(skill.Title) + len(text)
			}
		}
		return left >= 0
	}
	for _, p := range places {
		chosen[p.skill].sections[p.section].each(q.Language, q.ISA, false, func(k int) bool {
			at := [2]int{p.section, k}
			taken[p.skill][at] = true
			if !room() {
				delete(taken[p.skill], at)
			}
			return taken[p.skill][at]
		})
	}
	var out []Skill
	for i, skill := range chosen {
		if skill.Own {
			skill.Text = skill.text(q.Language, q.ISA, func(sec *section) bool { return sec.fits(q, asked) })
		} else {
			skill.Text = excerpt(skill.sections, taken[i])
		}
		if skill.Text != "" {
			out = append(out, skill)
		}
	}
	return out
}

// each goes through the parts that are for a language and a device, by number, as
// long as take takes them: a section is cut there. Its code comes once all prose before it was taken,
// and prose behind code, which speaks of it, where that code was. All says that code
// in other languages is for everybody.
func (s *section) each(language kernelwright.Language, isa []string, all bool, take func(k int) bool) {
	whole, shown := true, true // all prose before the first code; the last code
	for k, p := range s.parts {
		fits := p.has(language, isa) || all && p.code
		switch {
		case p.code:
			shown = whole && fits && take(k)
		case shown && fits:
			shown = take(k)
			whole = whole && shown
		}
	}
}

// For returns the skills for a language and the architectures of a device
// (kernelwright.Specs.ISA), by name, each with all of its text that is for these.
func (s *Skills) For(language kernelwright.Language, isa []string) []Skill {
	if s == nil {
		return nil
	}
	var out []Skill
	for _, skill := range s.all {
		if !slices.Contains(skill.Languages, language) || !fitsDevice(skill.Architectures, isa) {
			continue
		}
		skill.Text = "# " + skill.Title + "\n\n" + skill.text(language, isa, func(sec *section) bool { return sec.has(language, isa) })
		out = append(out, skill)
	}
	return out
}

// text is all of a skill that is for a language and a device, of sections that fit.
func (s *Skill) text(language kernelwright.Language, isa []string, fits func(*section) bool) string {
	taken := map[[2]int]bool{}
	for j := range s.sections {
		if sec := &s.sections[j]; fits(sec) {
			sec.each(language, isa, s.Own, func(k int) bool { taken[[2]int{j, k}] = true; return true })
		}
	}
	return excerpt(s.sections, taken)
}

// excerpt is what was taken of a skill, in its order, without a line end behind it.
func excerpt(sections []section, taken map[[2]int]bool) string {
	var b strings.Builder
	for j := range sections {
		begun, gap, table := false, false, ""
		for k, p := range sections[j].parts {
			gap = gap || p.gap
			if !taken[[2]int{j, k}] {
				continue
			}
			if (!begun || gap) && b.Len() > 0 {
				b.WriteString("\n")
			}
			if !begun && sections[j].heading != "" {
				b.WriteString(sections[j].heading + "\n")
			}
			if p.head != table {
				b.WriteString(p.head)
			}
			b.WriteString(p.text)
			begun, gap, table = true, false, p.head
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}
