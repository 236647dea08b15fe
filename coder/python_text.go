package coder

import (
	"regexp"
	"strings"
)

// pythonText is what can be told of a Python file without parsing it: a reply's
// code may be half a file, and it is the builder that says what is wrong with a
// whole one.
type pythonText struct {
	// code is the text with the insides of strings and comments blanked, byte
	// for byte and line for line.
	code string
	// openString and openBracket are the lines, from 1, where a string in three
	// quotes and a bracket began that do not end; 0: none.
	openString, openBracket int
}

var brackets = map[byte]byte{'(': ')', '[': ']', '{': '}'}

// scanPython reads a text as Python's tokeniser would, as far as strings,
// comments and brackets go. What it cannot make sense of it passes over.
func scanPython(text string) pythonText {
	out := []byte(text)
	type open struct {
		closes byte
		line   int
	}
	var stack []open
	var p pythonText
	line := 1
	blank := func(i int) {
		if text[i] != '\n' {
			out[i] = ' '
		}
	}
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '\n':
			line++
		case '#':
			for ; i < len(text) && text[i] != '\n'; i++ {
				blank(i)
			}
			i--
		case '(', '[', '{':
			stack = append(stack, open{brackets[c], line})
		case ')', ']', '}':
			if n := len(stack); n > 0 && stack[n-1].closes == c {
				stack = stack[:n-1]
			}
		case '"', '\'':
			quote := text[i : i+1]
			if strings.HasPrefix(text[i:], strings.Repeat(quote, 3)) {
				quote = text[i : i+3]
			}
			began := line
			i += len(quote)
			for ; i < len(text) && !strings.HasPrefix(text[i:], quote); i++ {
				if text[i] == '\n' {
					if len(quote) == 1 { // it does not end: the builder's to say
						break
					}
					line++
				}
				blank(i)
				if text[i] == '\\' && i+1 < len(text) {
					i++
					if text[i] == '\n' {
						line++
					}
					blank(i)
				}
			}
			switch {
			case i >= len(text):
				if len(quote) == 3 {
					p.openString = began
				}
			case text[i] == '\n':
				i--
			default:
				i += len(quote) - 1
			}
		}
	}
	if n := len(stack); n > 0 {
		p.openBracket = stack[n-1].line
	}
	p.code = string(out)
	return p
}

var (
	classLine = regexp.MustCompile(`(?m)^[ \t]*class[ \t]+([A-Za-z_]\w*)[ \t]*[(:]`)
	defLine   = regexp.MustCompile(`(?m)^[ \t]*(?:async[ \t]+)?def[ \t]+([A-Za-z_]\w*)`)
)

// classes returns the names of the classes that it defines, in order.
func (p pythonText) classes() []string { return named(classLine, p.code) }

// functions returns the names of the functions and methods that it defines.
func (p pythonText) functions() []string { return named(defLine, p.code) }

func named(of *regexp.Regexp, code string) []string {
	var names []string
	for _, m := range of.FindAllStringSubmatch(code, -1) {
		names = append(names, m[1])
	}
	return names
}

// breaksOff reports whether the text breaks off: within a string or a bracket, or
// after a head that has no body.
func (p pythonText) breaksOff() bool {
	if p.openString > 0 || p.openBracket > 0 {
		return true
	}
	last := strings.TrimRight(p.code, " \t\r\n")
	return strings.HasSuffix(last, ":") || strings.HasSuffix(last, "\\") || strings.HasSuffix(last, ",")
}
