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

// section is what stands under one heading of a skill. What stands before the
// first has none. The marks behind a heading, "## On a CPU [cpp]", say who it is
// for and are not shown.
type section struct {
	heading string // its line
	parts   []part

	languages     []kernelwright.Language // none is all
	architectures []string                // none is all
	statuses      []kernelwright.Status   // of the verdict that was read; none is all
	operators     []string                // as Skill.Operators; none is all
	bottlenecks   []Bottleneck            // that it helps with, the one it is mainly about first
}

// part is a paragraph, a list's item, a table's row with its head, or a block of
// code with its fences.
type part struct {
	text     string
	language kernelwright.Language // of code; "" for prose
	isa      []string              // what its code is for; none is all
}

// headingMarks is a heading with marks behind it.
var headingMarks = regexp.MustCompile(`^(## .*\S) +\[([^\]]+)\]$`)

// readSections takes a skill's text apart, and returns it without its marks.
func readSections(text string) ([]section, string, error) {
	sections := []section{{}}
	var bare strings.Builder
	var open []string // the lines of a part
	fence, rows, gap := "", 0, false
	here := func() *section { return &sections[len(sections)-1] }
	end := func() {
		if len(open) > 0 {
			p := newPart(strings.Join(open, "\n")+"\n", fence)
			if gap && len(here().parts) > 0 {
				p.text = "\n" + p.text
			}
			here().parts = append(here().parts, p)
			gap = false
		}
		open, fence = nil, ""
	}
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		shown := line
		if !strings.HasPrefix(line, "|") || fence != "" {
			rows = 0
		} else {
			rows++
		}
		switch {
		case fence != "":
			open = append(open, line)
			if line == "```" {
				end()
			}
		case strings.HasPrefix(line, "```"):
			end()
			open, fence = []string{line}, line
		case strings.HasPrefix(line, "# ") && len(sections) == 1 && len(here().parts) == 0:
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
		case strings.HasPrefix(line, "- "), rows > 3: // a table's head is two lines, and nothing without a row
			end()
			open = []string{line}
		default:
			open = append(open, line)
		}
		bare.WriteString(shown + "\n")
	}
	end()
	return sections, bare.String(), nil
}

func newPart(text, fence string) part {
	p := part{text: text}
	words := strings.Fields(strings.TrimPrefix(fence, "```"))
	if len(words) == 0 {
		return p
	}
	switch words[0] {
	case "python":
		p.language = kernelwright.Triton
	case "cuda", "cpp":
		p.language = kernelwright.Language(words[0])
	}
	for _, w := range words[1:] {
		if architectureForm.MatchString(w) {
			p.isa = append(p.isa, w)
		}
	}
	return p
}

var statuses = []kernelwright.Status{kernelwright.Rejected, kernelwright.BuildFailed, kernelwright.Crashed, kernelwright.TimedOut,
	kernelwright.Wrong, kernelwright.Cheated, kernelwright.Correct, kernelwright.Certified}

// mark takes the words behind a heading in.
func (s *section) mark(words []string) error {
	for _, w := range words {
		switch {
		case slices.Contains(allLanguages, kernelwright.Language(w)):
			s.languages = append(s.languages, kernelwright.Language(w))
		case slices.Contains(Bottlenecks, Bottleneck(w)):
			s.bottlenecks = append(s.bottlenecks, Bottleneck(w))
		case slices.Contains(statuses, kernelwright.Status(w)):
			s.statuses = append(s.statuses, kernelwright.Status(w))
		case architectureForm.MatchString(w):
			s.architectures = append(s.architectures, w)
		case strings.Contains(w, ".") && operatorForm.MatchString(w):
			s.operators = append(s.operators, w)
		default:
			return fmt.Errorf("%q, which is no language, bottleneck, status, architecture or operator", oneLine(w))
		}
	}
	return nil
}

// fits says whether a section is for what is asked.
func (s *section) fits(q Query) bool {
	named, _ := namedOperators(s.operators, q.Operators)
	return meet(s.languages, []kernelwright.Language{q.Language}) && fitsDevice(s.architectures, q.ISA) &&
		(q.Status == "" || meet(s.statuses, []kernelwright.Status{q.Status})) && (len(s.operators) == 0 || len(named) > 0)
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
	case len(s.operators) > 0:
		return scoreOperator
	case len(s.bottlenecks) > 0 && len(asked) > 0:
		return -1
	}
	return 0
}

// Excerpt returns of the skills that Select chooses what matters most, in at most
// so many characters, each skill's title included: sections for this language,
// device, verdict and these operators; first those for this verdict alone and those on
// the bottleneck that was asked first, then as they stand, the skills in turn. What does not fit as a whole is cut
// behind a paragraph, an item or a row; a section's code comes once all its prose is
// there. A skill of the user's own is not cut, and counts nothing.
func (s *Skills) Excerpt(q Query, most int) []Skill {
	chosen := s.Select(q, 0)
	asked := FindBottlenecks(q.Words...)
	type place struct{ skill, section, rank int }
	var places []place
	for i, skill := range chosen {
		for j := range skill.sections {
			if sec := &skill.sections[j]; !skill.Own && sec.fits(q) {
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
	left := most
	for _, p := range places {
		sec := &chosen[p.skill].sections[p.section]
		cost := len(sec.heading) + len("\n\n")
		if taken[p.skill] == nil {
			cost += len("# \n\n") + len(chosen[p.skill].Title)
		}
		take := func(k int) bool {
			if cost+len(sec.parts[k].text) > left {
				return false
			}
			left -= cost + len(sec.parts[k].text)
			cost = 0
			if taken[p.skill] == nil {
				taken[p.skill] = map[[2]int]bool{}
			}
			taken[p.skill][[2]int{p.section, k}] = true
			return true
		}
		whole := true
		for k, part := range sec.parts {
			whole = whole && (part.language != "" || take(k))
		}
		for k, part := range sec.parts {
			if whole && part.language == q.Language && fitsDevice(part.isa, q.ISA) {
				take(k)
			}
		}
	}
	var out []Skill
	for i, skill := range chosen {
		if !skill.Own {
			if taken[i] == nil {
				continue
			}
			skill.Text = excerpt(skill.sections, taken[i])
		}
		out = append(out, skill)
	}
	return out
}

// excerpt is what was taken of a skill, in its order.
func excerpt(sections []section, taken map[[2]int]bool) string {
	var b strings.Builder
	for j := range sections {
		begun := false
		for k, p := range sections[j].parts {
			if !taken[[2]int{j, k}] {
				continue
			}
			if !begun && sections[j].heading != "" {
				b.WriteString("\n" + sections[j].heading + "\n")
			}
			begun = true
			b.WriteString(p.text)
		}
	}
	return strings.TrimPrefix(b.String(), "\n")
}
