package emit

import (
	"regexp"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright/coder/internal/plan"
)

// What is declared in each kernel, and in each launch, for who needs it: no text has a
// part in more than its value.
var spare = []string{"rows", "width", "row", "live", "lane", "part", "number", "tasks", "V"}

// A position that is declared for each element, whether or not somebody needs it, and
// another name of one.
var (
	positionLine = regexp.MustCompile(`^ *const (?:int|long long) (i\d+) = [^;]*;$`)
	aliasLine    = regexp.MustCompile(`^ *const int (i\d+|row|task|number) = ([a-z]+|i\d+);$`)
)

var spareLine = regexp.MustCompile(`^ *(const (?:int|bool|long long)) (.*);$`)

// counting writes the types in which a kernel counts: pos within a row, far over all.
func counting(k *plan.Kernel, text string) string {
	types := map[string]string{"pos": "int", "far": "int"}
	if counted(k, k.Geometry()) >= positionsLimit {
		types["pos"] = "long long"
	}
	if far(k) {
		types["far"] = "long long"
	}
	return eachName(text, func(name string) string {
		if t := types[name]; t != "" {
			return t
		}
		return name
	})
}

// tidied leaves out of each function, or block, what is declared there and needed by
// nobody. Each begins with a line that is not further in than the first one.
func tidied(text string) string {
	lines := strings.SplitAfter(text, "\n")
	if len(lines) == 0 {
		return text
	}
	margin := func(line string) int { return len(line) - len(strings.TrimLeft(line, " ")) }
	least := margin(lines[0])
	var out strings.Builder
	for from := 0; from < len(lines); {
		to := from + 1
		for to < len(lines) && (margin(lines[to-1]) > least || !strings.HasPrefix(strings.TrimSpace(lines[to-1]), "}")) {
			to++
		}
		out.WriteString(tidiedFunction(lines[from:to]))
		from = to
	}
	return out.String()
}

// tidiedFunction returns the lines of one function without what is spare in them.
func tidiedFunction(lines []string) string {
	text := strings.Join(lines, "")
	if strings.Contains(text, "const bool live = true;") {
		text = strings.ReplaceAll(strings.ReplaceAll(text, " && live)", ")"), "if (live) ", "")
	}
	for {
		uses := map[string]int{}
		eachName(text, func(name string) string {
			uses[name]++
			return name
		})
		declared := map[string]int{}
		for line := range strings.Lines(text) {
			if m := positionLine.FindStringSubmatch(strings.TrimSuffix(line, "\n")); m != nil {
				declared[m[1]]++
			}
		}
		next := ""
		for line := range strings.Lines(text) {
			if m := positionLine.FindStringSubmatch(strings.TrimSuffix(line, "\n")); m != nil && uses[m[1]] == declared[m[1]] {
				continue
			}
			next += spared(line, uses)
		}
		next = unaliased(next)
		if next == text {
			return text
		}
		text = next
	}
}

// unaliased leaves out one name that is another's, where both are declared once and
// count alike.
func unaliased(text string) string {
	once := func(name string) bool {
		return strings.Count(text, " "+name+" = ") == 1
	}
	for line := range strings.Lines(text) {
		m := aliasLine.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if m == nil || !once(m[1]) || !once(m[2]) || !strings.Contains(text, "const int "+m[2]+" = ") {
			continue
		}
		return eachName(strings.Replace(text, line, "", 1), func(name string) string {
			if name == m[1] {
				return m[2]
			}
			return name
		})
	}
	return text
}

// spared is a line without the declarations of what is named there alone.
func spared(line string, uses map[string]int) string {
	m := spareLine.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
	if m == nil {
		return line
	}
	all := declarators(m[2])
	kept := slices.DeleteFunc(slices.Clone(all), func(d string) bool {
		name, _, _ := strings.Cut(d, " ")
		return slices.Contains(spare, name) && uses[name] == 1
	})
	switch len(kept) {
	case 0:
		return ""
	case len(all):
		return line
	}
	head, _, _ := strings.Cut(line, "const ")
	return head + m[1] + " " + strings.Join(kept, ", ") + ";\n"
}

// declarators cuts a list at the commas outside of brackets.
func declarators(list string) []string {
	var out []string
	depth, from := 0, 0
	for i := range len(list) {
		switch list[i] {
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			depth--
		case ',':
			if depth == 0 {
				out = append(out, strings.TrimSpace(list[from:i]))
				from = i + 1
			}
		}
	}
	return append(out, strings.TrimSpace(list[from:]))
}
