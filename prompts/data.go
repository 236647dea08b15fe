package prompts

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Data is a text of somebody else's (a reference, a compiler's words, a
// candidate's output), made fit for a prompt: without what a terminal or a
// model's server would obey, bounded, and between fences that do not occur in
// it. Templates are given foreign text in this form alone, so no template can
// show it bare.
type Data string

// Bounds on one piece of data, in bytes. A prompt in which all are reached has
// some 40,000 tokens.
const (
	MaxReferenceBytes = 24 << 10
	MaxCandidateBytes = 48 << 10
	MaxCompilerBytes  = 4 << 10
	MaxOutputBytes    = 1 << 10
	MaxFactsBytes     = 8 << 10
)

// fenceLabel opens the first line of every fence; prompts say what it means.
const fenceLabel = "data: "

// Fence makes data of a text; label is ours and says what it is. Of a text over
// the bound, head and tail are shown, with a line on what was left out. An
// empty text gives none.
func Fence(label, text string, limit int) Data {
	text = Shorten(Clean(text), limit)
	if strings.TrimSpace(text) == "" {
		return ""
	}
	fence := strings.Repeat("`", max(3, longestRun(text, '`')+1))
	return Data(fence + fenceLabel + label + "\n" + strings.TrimRight(text, "\n") + "\n" + fence)
}

func longestRun(s string, of byte) int {
	longest, run := 0, 0
	for i := range len(s) {
		if s[i] != of {
			run = 0
			continue
		}
		run++
		longest = max(longest, run)
	}
	return longest
}

var (
	// ECMA-48: control sequences, strings (titles, links, ...) up to their end,
	// and two-character escapes.
	escapes = regexp.MustCompile("\x1b\\[[0-?]*[ -/]*[@-~]?|\x1b[\\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\\\)?|\x1b[ -/]*[0-~]?")
	// What templates of chats use to say who speaks. A server that finds one in
	// a message may take what follows for somebody else's words.
	chatTokens = regexp.MustCompile(`<(\|[^|<>\s]{1,40}\||｜[^<>\s]{1,60}｜|/?(?:start_of_turn|end_of_turn)|/s)>`)
)

// Clean takes out of foreign text what is no text: terminal escapes, control
// and invisible characters, and the tokens by which a chat is told into turns,
// which are broken by a space. Line ends become "\n".
func Clean(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if strings.Contains(s, "\x1b") {
		s = escapes.ReplaceAllString(s, "")
	}
	s = strings.ReplaceAll(s, "\r\n", "\n")
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\r', r == '\u2028', r == '\u2029', r == '\u0085', r == '\v', r == '\f':
			return '\n'
		case r == '\n', r == '\t':
			return r
		case unicode.Is(unicode.C, r), unicode.Is(unicode.Variation_Selector, r):
			return -1
		}
		return r
	}, s)
	if !strings.Contains(s, "<") {
		return s
	}
	return chatTokens.ReplaceAllString(s, "< $1>")
}

// Shorten returns a text of at most limit bytes but for one line, which says
// what was left out of its middle: what a text begins with says most, and what
// it ends with next. It cuts between lines where it can.
func Shorten(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	head, tail := whole(s, limit-limit/3), len(s)-limit/3
	for tail < len(s) && !utf8.RuneStart(s[tail]) {
		tail++
	}
	if at := strings.LastIndexByte(s[:head], '\n'); at > head/2 {
		head = at + 1
	}
	if at := strings.IndexByte(s[tail:], '\n'); at >= 0 && at < (len(s)-tail)/2 {
		tail += at + 1
	}
	nl := "\n"
	if s[head-1] == '\n' {
		nl = ""
	}
	return fmt.Sprintf("%s%s[%d bytes are left out here]\n%s", s[:head], nl, tail-head, s[tail:])
}

// whole is the largest length up to n that splits no character.
func whole(s string, n int) int {
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return n
}

// Line makes one line of foreign text, of at most limit bytes: for lists in
// which others' words stand beside ours.
func Line(s string, limit int) string {
	if most := 16 * limit; len(s) > most { // the rest is not shown, whatever it is
		s = s[:most]
	}
	s = strings.Join(strings.Fields(Clean(s)), " ")
	if len(s) > limit {
		s = s[:whole(s, limit)] + "…"
	}
	return s
}

// SharedPrefix returns how many bytes of a prompt these parts take, as far as it
// begins with them, one after the other: what prompts for other rounds begin with
// as well.
func SharedPrefix(prompt string, parts ...Data) int {
	n := 0
	for _, p := range parts {
		rest := strings.TrimLeft(prompt[n:], "\n")
		if !strings.HasPrefix(rest, string(p)) {
			break
		}
		if p != "" {
			n = len(prompt) - len(rest) + len(p)
		}
	}
	return n
}
