package coder

import (
	"regexp"
	"strings"
)

// block is a piece of a reply between fences.
type block struct {
	tag    string // the first word after the opening fence, in small letters
	text   string
	closed bool
}

var fenceLine = regexp.MustCompile("^[ \t>*+-]*(?:\\d+[.)][ \t]+)?(`{3,}|~{3,})[ \t]*([^`\n]*)$")

// Bounds on what is looked at in a hostile reply, so that the work stays
// proportional to its length.
const (
	maxBlocks  = 1000
	maxReach   = 8 // closing fences that a string in three quotes may hold
	maxNesting = 4
)

// blocks returns what stands between fences, and what stands outside. A fence
// closes with the same character, at least as often; one inside a Python string
// in three quotes does not close. A block that holds fences with tags is
// Markdown around others and is looked into.
func blocks(reply string) ([]block, string) {
	return nestedBlocks(strings.Split(reply, "\n"), 0)
}

func nestedBlocks(lines []string, depth int) ([]block, string) {
	var found []block
	var prose strings.Builder
	for i := 0; i < len(lines); i++ {
		fence, tag, ok := openingFence(lines[i])
		if !ok || len(found) >= maxBlocks {
			prose.WriteString(lines[i])
			prose.WriteByte('\n')
			continue
		}
		end := closingFence(lines, i+1, fence)
		body := lines[i+1 : min(end, len(lines))]
		b := block{tag: tag, text: undent(body), closed: end < len(lines)}
		if code, ok := strings.CutSuffix(strings.TrimRight(b.text, " \t\n"), fence); ok && !b.closed {
			b.text, b.closed = code+"\n", true // the fence stands behind the last line, not below
		}
		i = end
		if inner := within(body, depth); len(inner) > 0 {
			if b.closed { // its end is that of the last one inside
				inner[len(inner)-1].closed = true
			}
			found = append(found, inner...)
			continue
		}
		found = append(found, b)
	}
	return found, prose.String()
}

// within returns the blocks inside a block that is Markdown.
func within(body []string, depth int) []block {
	if depth >= maxNesting {
		return nil
	}
	tagged := false
	text := scanPython(strings.Join(body, "\n"))
	for _, line := range strings.Split(text.code, "\n") { // fences in strings are blanked
		if _, tag, ok := openingFence(line); ok && tag != "" {
			tagged = true
		}
	}
	if !tagged {
		return nil
	}
	inner, _ := nestedBlocks(body, depth+1)
	return inner
}

func openingFence(line string) (fence, tag string, ok bool) {
	m := fenceLine.FindStringSubmatch(line)
	if m == nil {
		return "", "", false
	}
	if words := strings.FieldsFunc(m[2], func(r rune) bool { return r == ' ' || r == '\t' || r == '{' || r == '}' || r == ',' || r == ':' }); len(words) > 0 {
		tag = strings.ToLower(strings.Trim(words[0], "."))
	}
	return m[1], tag, true
}

// closingFence returns the line that closes a fence, or len(lines).
func closingFence(lines []string, from int, fence string) int {
	first := len(lines)
	began := from
	reach := 0
	for i := from; i < len(lines) && reach < maxReach; i++ {
		bare := strings.TrimLeft(strings.TrimSpace(lines[i]), "> \t")
		if len(bare) < len(fence) || strings.Trim(bare, fence[:1]) != "" {
			continue
		}
		if first == len(lines) {
			first = i
		}
		if scanPython(strings.Join(lines[began:i], "\n")).openString == 0 {
			return i
		}
		reach++
	}
	return first
}

// undent takes away the indentation that all lines have: blocks stand in lists
// and quotes.
func undent(lines []string) string {
	common, some := "", false
	for _, l := range lines {
		code := strings.TrimLeft(l, " \t>")
		if code == "" {
			continue
		}
		lead := l[:len(l)-len(code)]
		if !some {
			common, some = lead, true
			continue
		}
		n := 0
		for n < len(common) && n < len(lead) && common[n] == lead[n] {
			n++
		}
		common = common[:n]
	}
	var b strings.Builder
	for _, l := range lines {
		if strings.TrimLeft(l, " \t>") != "" {
			b.WriteString(l[len(common):])
		}
		b.WriteByte('\n')
	}
	return b.String()
}
