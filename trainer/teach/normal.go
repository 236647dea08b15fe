package teach

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Normal is a candidate's text up to renaming: names that it defines are numbered in the
// order in which they come, white space, comments and docstrings are gone. Two texts with
// the same Normal are the same program. It is of the text alone, and of any text: what is
// no Python gives something, too. What formatted strings say does not count. C++ and CUDA within it are read as such; a name that
// crosses from one language to the other keeps its number.
func Normal(source string) string {
	n := &normal{exported: map[string]string{}}
	lines := pythonLines(source)
	for _, l := range lines {
		for _, t := range l.tokens {
			if t.kind == native {
				n.native(t.text)
			}
		}
	}
	n.python(lines)
	return strings.Join(n.out, " ")
}

// normal is a text on its way.
type normal struct {
	out      []string
	exported map[string]string // names that native code defines for others, and their numbers
}

type kind int

const (
	word   kind = iota
	sign        // and number
	text        // a string
	native      // C++ or CUDA within a string
)

type token struct {
	kind kind
	text string
}

// line is a logical line of Python.
type line struct {
	indent int
	tokens []token
}

var (
	pythonToken = regexp.MustCompile(`^(?:([rRbBuUfF]{0,2})("""|'''|"|')|([\pL_][\pL\pN_]*)|(\d[\w.]*(?:[eE][-+]?\d+)?|\.\d[\w.]*)|(->|:=|\*\*|//|[-+*/%@&|^<>=!]=|<<|>>|[^\s\w]))`)
	looksNative = regexp.MustCompile(`(?s)\{.*;.*\}`)
)

// pythonLines reads a text as Python does, as far as its lines and tokens go.
func pythonLines(source string) (lines []line) {
	l, depth, fresh := line{}, 0, true
	end := func() {
		docstring := len(l.tokens) == 1 && l.tokens[0].kind == text
		if len(l.tokens) > 0 && !docstring {
			lines = append(lines, l)
		}
		l, fresh = line{}, true
	}
	for i := 0; i < len(source); {
		switch c := source[i]; {
		case c == '\n':
			i++
			if depth == 0 {
				end()
			}
		case c == ' ' || c == '\t' || c == '\r' || c == '\f':
			if fresh && depth == 0 {
				l.indent++
			}
			i++
		case c == '\\' && i+1 < len(source) && source[i+1] == '\n':
			i += 2
		case c == '#':
			for i < len(source) && source[i] != '\n' {
				i++
			}
		default:
			fresh = false
			t, size := pythonAt(source[i:])
			i += size
			depth = max(depth+nesting(t), 0)
			if t.text == ";" && depth == 0 {
				indent := l.indent
				end()
				l.indent, fresh = indent, false
				continue
			}
			l.tokens = append(l.tokens, t)
		}
	}
	end()
	return lines
}

// pythonAt is the token that a text begins with, and its bytes.
func pythonAt(s string) (token, int) {
	m := pythonToken.FindStringSubmatchIndex(s)
	switch {
	case m == nil:
		return token{sign, s[:1]}, 1
	case m[4] >= 0: // a string
		quote, from := s[m[4]:m[5]], m[5]
		raw, formatted := strings.ContainsAny(s[m[2]:m[3]], "rR"), strings.ContainsAny(s[m[2]:m[3]], "fF")
		to := from
		for to < len(s) && !strings.HasPrefix(s[to:], quote) {
			if s[to] == '\\' {
				to++
			}
			to++
		}
		to = min(to, len(s))
		body := s[from:to]
		if formatted { // its names are what people are told
			return token{text, `f""`}, min(to+len(quote), len(s))
		}
		if looksNative.MatchString(body) {
			if !raw {
				body = strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\t`, "\t", `\"`, `"`, `\'`, `'`).Replace(body)
			}
			return token{native, body}, min(to+len(quote), len(s))
		}
		return token{text, `"` + body + `"`}, min(to+len(quote), len(s))
	case m[6] >= 0:
		return token{word, s[m[6]:m[7]]}, m[7]
	}
	return token{sign, s[:m[1]]}, m[1]
}

var pythonKeywords = strings.Fields("False None True and as assert async await break class continue def del elif else except finally for from global if import in is lambda nonlocal not or pass raise return try while with yield self super ModelNew forward __init__")

// python writes the lines, with names that are bound numbered: those of a function in it,
// others in the file.
func (n *normal) python(lines []line) {
	file, attributes := names{prefix: "g", of: map[string]string{}}, names{prefix: "a", of: map[string]string{}}
	for _, l := range lines {
		if l.indent == 0 {
			bind(l.tokens, file.bind)
		}
		for i, t := range l.tokens {
			if i == 0 || t.kind != word || slices.Contains(pythonKeywords, t.text) {
				continue
			}
			assigned := i > 1 && l.tokens[i-1].text == "." && l.tokens[i-2].text == "self" && i+1 < len(l.tokens) && l.tokens[i+1].text == "="
			defined := l.tokens[i-1].text == "def" || l.tokens[i-1].text == "class"
			switch {
			case assigned || defined && l.indent > 0:
				attributes.bind(t.text)
			case defined:
				file.bind(t.text)
			}
		}
	}
	var indents []int
	for at := 0; at < len(lines); {
		end := at + 1
		for end < len(lines) && !opens(lines[end]) {
			end++
		}
		own := names{prefix: "l", of: map[string]string{}}
		if opens(lines[at]) {
			parameters(lines[at].tokens, own.bind)
			for _, l := range lines[at:end] {
				if l.indent > lines[at].indent {
					bind(l.tokens, own.bind)
				}
			}
		}
		for ; at < end; at++ {
			indents = n.indent(indents, lines[at].indent)
			n.line(lines[at], own, file, attributes)
		}
	}
	n.indent(indents, 0)
}

// opens reports whether a line begins a function.
func opens(l line) bool {
	return len(l.tokens) > 0 && (l.tokens[0].text == "def" || l.tokens[0].text == "async")
}

// indent writes how a line is nested.
func (n *normal) indent(indents []int, to int) []int {
	for len(indents) > 0 && to < indents[len(indents)-1] {
		indents = indents[:len(indents)-1]
		n.out = append(n.out, "<")
	}
	if to > 0 && (len(indents) == 0 || to > indents[len(indents)-1]) {
		indents = append(indents, to)
		n.out = append(n.out, ">")
	}
	return indents
}

func (n *normal) line(l line, own, file, attributes names) {
	tokens, depth := l.tokens, 0
	for i, t := range tokens {
		depth += nesting(t)
		after := i > 0 && (tokens[i-1].text == "." || l.indent > 0 && tokens[i-1].text == "def")
		keyword := depth > 0 && tokens[0].text != "def" && i > 0 && i+1 < len(tokens) && tokens[i+1].text == "=" && (tokens[i-1].text == "(" || tokens[i-1].text == ",")
		switch {
		case t.kind == native:
			n.out = append(n.out, "native")
		case t.kind != word || slices.Contains(pythonKeywords, t.text):
			n.out = append(n.out, t.text)
		case after && n.exported[t.text] != "":
			n.out = append(n.out, n.exported[t.text])
		case after:
			n.out = append(n.out, attributes.number(t.text))
		case keyword: // of a call, whose names are another's
			n.out = append(n.out, t.text)
		default:
			n.out = append(n.out, own.numberOr(t.text, file))
		}
	}
	n.out = append(n.out, ";")
}

// nesting is by how much a token nests what follows it.
func nesting(t token) int {
	if t.kind == sign {
		switch t.text {
		case "(", "[", "{":
			return 1
		case ")", "]", "}":
			return -1
		}
	}
	return 0
}

// bind calls f with the names that a line of Python binds.
func bind(tokens []token, f func(string)) {
	if len(tokens) == 0 {
		return
	}
	depth, target, assigns := 0, true, false
	for _, t := range tokens {
		depth += nesting(t)
		assigns = assigns || depth == 0 && t.text == "="
	}
	depth = 0
	for i, t := range tokens {
		previous := ""
		if i > 0 {
			previous = tokens[i-1].text
		}
		depth += nesting(t)
		if t.text == "=" && depth == 0 { // what is assigned twice is not looked for
			target = false
		}
		if t.kind != word || slices.Contains(pythonKeywords, t.text) {
			continue
		}
		next := ""
		if i+1 < len(tokens) {
			next = tokens[i+1].text
		}
		plain := previous != "." && next != "." && next != "(" && next != "["
		switch {
		case previous == "as" || previous == "for" && next == "in" || next == ":=":
			f(t.text)
		case tokens[0].text == "for" && plain && slices.ContainsFunc(tokens[i:], func(t token) bool { return t.text == "in" }):
			f(t.text)
		case assigns && target && plain && depth <= 1 && tokens[0].text != "def":
			f(t.text)
		}
	}
}

// parameters calls f with the names of a function's parameters.
func parameters(tokens []token, f func(string)) {
	for i, t := range tokens {
		if i > 0 && t.kind == word && slices.Contains([]string{"(", ",", "*", "**"}, tokens[i-1].text) && !slices.Contains(pythonKeywords, t.text) {
			f(t.text)
		}
	}
}

// names are those that are numbered.
type names struct {
	prefix string
	of     map[string]string
	bound  map[string]bool
}

// bind makes a name one that is numbered, when it comes.
func (n *names) bind(name string) {
	if n.bound == nil {
		n.bound = map[string]bool{}
	}
	n.bound[name] = true
}

func (n names) number(name string) string { return n.numberOr(name, names{}) }

// numberOr is a name's number, or that of others, or the name.
func (n names) numberOr(name string, others names) string {
	if !n.bound[name] {
		if others.of != nil {
			return others.number(name)
		}
		return name
	}
	if n.of[name] == "" {
		n.of[name] = fmt.Sprintf("%s%d", n.prefix, len(n.of))
	}
	return n.of[name]
}
