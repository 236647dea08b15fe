package coder

import (
	"encoding/json"
	"fmt"
	"html"
	"regexp"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/prompts"
)

// MaxReplyBytes is the longest reply that is looked into: as much as a candidate
// may have.
const MaxReplyBytes = 1 << 20

// flaw says what kind of answer holds no candidate.
type flaw string

const (
	flawEmpty     flaw = "empty"
	flawTooLong   flaw = "too_long"
	flawRefused   flaw = "refused"
	flawFiltered  flaw = "filtered"
	flawThinking  flaw = "thinking"  // it never came to the answer
	flawProse     flaw = "prose"     // no code
	flawTruncated flaw = "truncated" // the file breaks off
	flawElided    flaw = "elided"    // "the rest is unchanged"
	flawDiff      flaw = "diff"
	flawClass     flaw = "class"    // a class of another name
	flawPartial   flaw = "partial"  // a function, a class without its file
	flawApart     flaw = "apart"    // kernel and Python apart, and not to be joined
	flawKernel    flaw = "kernel"   // a kernel without Python
	flawLanguage  flaw = "language" // not the one that was asked for
)

// unusable is why a reply holds no candidate.
type unusable struct {
	flaw         flaw
	reason, hint string
}

// What to send instead, by flaw.
const (
	hintWhole   = "Send the whole file in one block of Python: imports, kernel, and class ModelNew."
	hintShorter = "Send a shorter file, and nothing but one sentence before it."
	hintContext = "Send a much shorter file, and no word before it: there is no room for more."
)

// extracted is the candidate in a reply.
type extracted struct {
	source   string
	language kernelwright.Language
	note     string // the reply's first sentence
}

// piece is a text of a reply that may be the candidate, or a part of it.
type piece struct {
	block
	python pythonText
}

// extract finds the candidate in a reply. Of several it takes the last that is
// whole. wanted is the language that was asked for, or empty.
func extract(reply llm.Reply, wanted kernelwright.Language) (extracted, *unusable) {
	found, bad := find(reply, wanted)
	if bad != nil && (bad.flaw == flawTruncated || bad.flaw == flawThinking) {
		switch reply.Stop {
		case llm.StopLength:
			bad.reason += "; it had as many tokens as a reply may have (max_tokens)"
		case llm.StopContext:
			bad.reason, bad.hint = bad.reason+"; the model's context was full", hintContext
		}
	}
	return found, bad
}

func find(reply llm.Reply, wanted kernelwright.Language) (extracted, *unusable) {
	switch reply.Stop {
	case llm.StopRefused:
		return extracted{}, &unusable{flawRefused, "the model refused to answer", "Writing a faster kernel for a PyTorch module is all that is asked."}
	case llm.StopFiltered:
		return extracted{}, &unusable{flawFiltered, "the provider's content filter cut the answer off", "Send the file alone, without other text."}
	}
	cut := reply.Stop == llm.StopLength || reply.Stop == llm.StopContext
	if len(reply.Text) > MaxReplyBytes {
		return extracted{}, &unusable{flawTooLong, fmt.Sprintf("the answer is %d bytes long, where %d may be sent", len(reply.Text), MaxReplyBytes), hintShorter}
	}
	text, thought := withoutThinking(tidy(reply.Text))
	if strings.TrimSpace(text) == "" {
		switch {
		case thought != "" || reply.Reasoning != "" || (cut && reply.Text == ""):
			return extracted{}, &unusable{flawThinking, "the answer ends before its code: there is nothing but thinking", hintShorter}
		case len(reply.ToolCalls) > 0:
			return extracted{}, &unusable{flawEmpty, "the answer is a call of a tool, and there are no tools", hintWhole}
		}
		return extracted{}, &unusable{flawEmpty, "the answer is empty", hintWhole}
	}
	pieces, prose := split(text)
	at, bad := choose(pieces, prose, cut)
	if bad != nil {
		if bad.flaw == flawProse && strings.Contains(thought, "class ModelNew") {
			bad = &unusable{flawThinking, "the code is within the thinking alone", hintWhole}
		}
		return extracted{}, bad
	}
	source, bad := join(pieces, at)
	if bad != nil {
		return extracted{}, bad
	}
	source = strings.TrimRight(withoutSchedule(source), " \t\n") + "\n"
	language := languageOf(source)
	if wanted != "" && language != "" && language != wanted {
		return extracted{}, &unusable{flawLanguage, fmt.Sprintf("the file is written in %s where %s was asked for", language, wanted), "Write it in " + string(wanted) + "."}
	}
	if wanted != "" {
		language = wanted
	} else if language == "" {
		language = kernelwright.CPP // as the builder takes it
	}
	return extracted{source, language, firstSentence(prose)}, nil
}

// tidy undoes what is only transport: byte order marks, line ends of other
// systems, bytes that are no text.
func tidy(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	s = strings.NewReplacer("\r\n", "\n", "\r", "\n", "\ufeff", "", "\u200b", "").Replace(s)
	return s
}

// thinkingTags are what models put round what is not yet the answer.
var thinkingTags = [][2]string{
	{"<think>", "</think>"}, {"<thinking>", "</thinking>"}, {"<thought>", "</thought>"}, {"<reasoning>", "</reasoning>"},
	{"<scratchpad>", "</scratchpad>"}, {"◁think▷", "◁/think▷"}, {"<|channel|>analysis<|message|>", "<|end|>"},
}

// withoutThinking returns the answer, and what was thought before it. A server's
// template may have opened the thinking already: then there is only its end.
func withoutThinking(s string) (answer, thought string) {
	var thoughts strings.Builder
	for _, tag := range thinkingTags {
		opens, closes := tag[0], tag[1]
		if to, from := strings.Index(s, closes), strings.Index(s, opens); to >= 0 && (from < 0 || to < from) && closes != "<|end|>" {
			thoughts.WriteString(s[:to])
			s = s[to+len(closes):]
		}
		var out strings.Builder
		for {
			before, rest, ok := strings.Cut(s, opens)
			out.WriteString(before)
			if !ok {
				break
			}
			inside, after, _ := strings.Cut(rest, closes)
			thoughts.WriteString(inside)
			s = after
		}
		s = out.String()
	}
	if _, after, ok := strings.Cut(s, "<|channel|>final<|message|>"); ok {
		s = after
	}
	return s, thoughts.String()
}

// split returns a reply's pieces of code, in order, and its prose.
func split(text string) ([]piece, string) {
	var pieces []piece
	add := func(b block) { pieces = append(pieces, piece{b, scanPython(b.text)}) }
	addAll := func(texts []string) {
		for _, t := range texts {
			inner, _ := blocks(t)
			for _, b := range inner {
				add(b)
			}
			if len(inner) == 0 {
				add(block{tag: "json", text: t, closed: true})
			}
		}
	}
	if texts := jsonTexts(text); len(texts) > 0 {
		addAll(texts)
		return pieces, ""
	}
	found, prose := blocks(text)
	for _, b := range found {
		if texts := jsonTexts(b.text); len(texts) > 0 {
			addAll(texts)
			continue
		}
		b.text = unescaped(b.text)
		add(b)
	}
	if !slices.ContainsFunc(pieces, piece.defines) {
		if code := bareCode(unescaped(prose)); code != "" {
			add(block{text: code, closed: true})
		}
	}
	return pieces, prose
}

const (
	maxJSONDepth = 8
	maxJSONTexts = 100
)

// jsonTexts returns the texts within a JSON value that look like code: some
// models wrap their answer.
func jsonTexts(text string) []string {
	text = strings.TrimSpace(text)
	if text == "" || !strings.ContainsAny(text[:1], `{["`) {
		return nil
	}
	var value any
	if json.Unmarshal([]byte(text), &value) != nil {
		return nil
	}
	var texts []string
	var walk func(v any, depth int)
	walk = func(v any, depth int) {
		if depth > maxJSONDepth || len(texts) >= maxJSONTexts {
			return
		}
		switch v := v.(type) {
		case string:
			if strings.Contains(v, "class ") || strings.Contains(v, "```") {
				texts = append(texts, tidy(v))
			}
		case []any:
			for _, e := range v {
				walk(e, depth+1)
			}
		case map[string]any:
			keys := make([]string, 0, len(v))
			for k := range v {
				keys = append(keys, k)
			}
			slices.Sort(keys)
			for _, k := range keys {
				walk(v[k], depth+1)
			}
		}
	}
	walk(value, 0)
	return texts
}

var entity = regexp.MustCompile(`&(lt|gt|quot|#39|#x27|#34);`)

// unescaped undoes two ways in which code is damaged on its way: written for
// HTML, and with its line ends spelled out.
func unescaped(s string) string {
	if entity.MatchString(s) && !strings.ContainsAny(s, "<>") {
		s = html.UnescapeString(s)
	}
	if body := strings.TrimSpace(s); !strings.Contains(body, "\n") && strings.Count(body, `\n`) >= 3 {
		var plain string
		if json.Unmarshal([]byte(`"`+body+`"`), &plain) == nil {
			s = plain
		}
	}
	return s
}

var (
	importLine = regexp.MustCompile(`^(import [\w.]+( as \w+)?(, *[\w.]+( as \w+)?)*|from [\w.]+ import .*) *(#.*)?$`)
	headLine   = regexp.MustCompile(`^(class|def) \w+ *[(:]|^@\w`)
	topLine    = regexp.MustCompile(`^((import|from|class|def|async|if|else|elif|try|except|finally|with|for|while|del|assert|pass|raise|global)\b|[)\]}@#"' \t]|[rRbBuUfF]{1,2}["']|[A-Za-z_][\w.]*[ \t]*([-+*/]?=|\(|\[)|[A-Za-z_]\w*:[^=]*=|$)`)
)

// bareCode returns the Python in a text without fences: from the first import, or
// the first definition, to where a line of prose follows ModelNew.
func bareCode(text string) string {
	lines := strings.Split(text, "\n")
	start := slices.IndexFunc(lines, importLine.MatchString)
	if start < 0 {
		start = slices.IndexFunc(lines, headLine.MatchString)
	}
	if start < 0 {
		return ""
	}
	lines = lines[start:]
	defined := false
	for i, l := range strings.Split(scanPython(strings.Join(lines, "\n")).code, "\n") {
		if defined && !topLine.MatchString(l) {
			lines = lines[:i]
			break
		}
		if m := classLine.FindStringSubmatch(l); m != nil && m[1] == "ModelNew" {
			defined = true
		}
	}
	return strings.Join(lines, "\n")
}

func (p piece) defines() bool { return !p.isDiff() && slices.Contains(p.python.classes(), "ModelNew") }

var diffLine = regexp.MustCompile(`(?m)^(@@ .*@@|<{5,} ?(SEARCH|ORIGINAL|HEAD)|(diff --git|index [0-9a-f]{7}).*|\*\*\* (Begin Patch|Update File).*)|^--- .*\n\+\+\+ `)

func (p piece) isDiff() bool {
	return p.tag == "diff" || p.tag == "patch" || p.tag == "udiff" || diffLine.MatchString(p.text)
}

var elidedLine = regexp.MustCompile(`(?im)^[ \t]*(#|//|/\*)[ \t]*\[?(\.\.\.|…).*\b(rest|remaining|remainder|same|unchanged|existing|previous|before|above|omitted|original)\b`)

func (p piece) elided() bool { return elidedLine.MatchString(p.text) }

var kernelTags = []string{"c", "cpp", "c++", "cuda", "cu", "cuh", "cc", "cxx", "h", "hpp"}

var kernelLine = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*include\b|__global__|^[ \t]*extern[ \t]+"C"`)

// isKernel reports whether it is C++ or CUDA by itself.
func (p piece) isKernel() bool {
	if p.defines() || p.isDiff() {
		return false
	}
	return slices.Contains(kernelTags, p.tag) || (kernelLine.MatchString(p.text) && !usesKernels.MatchString(p.python.code) && imported(p.python.code) == "")
}

// choose returns the index of the piece that is the candidate.
func choose(pieces []piece, prose string, cut bool) (int, *unusable) {
	found := -1
	for i, p := range slices.Backward(pieces) {
		if !p.defines() || p.python.breaksOff() || p.elided() || (!p.closed && cut) {
			continue
		}
		if importsAnything.MatchString(p.python.code) { // without, it is no file
			return i, nil
		}
		if found < 0 {
			found = i
		}
	}
	if found >= 0 {
		return found, nil
	}
	for _, p := range slices.Backward(pieces) {
		if !p.defines() {
			continue
		}
		switch open := p.python; {
		case p.elided() && !cut:
			return 0, &unusable{flawElided, "the file leaves parts out that it says are unchanged", hintWhole}
		case cut || !p.closed:
			return 0, &unusable{flawTruncated, "the answer was cut off before the file ended", hintShorter}
		case open.openString > 0:
			return 0, &unusable{flawTruncated, noEnd(open.openString), hintWhole}
		case open.openBracket > 0:
			return 0, &unusable{flawTruncated, fmt.Sprintf("the file breaks off: the bracket in its line %d is not closed", open.openBracket), hintWhole}
		default:
			return 0, &unusable{flawTruncated, "the file breaks off in its last line", hintWhole}
		}
	}
	if cut {
		return 0, &unusable{flawTruncated, "the answer was cut off before class ModelNew", hintShorter}
	}
	if slices.ContainsFunc(pieces, piece.isDiff) || (len(pieces) == 0 && diffLine.MatchString(prose)) {
		return 0, &unusable{flawDiff, "the answer is a diff, and a file is needed", hintWhole}
	}
	return 0, whyNone(pieces)
}

func noEnd(line int) string {
	return fmt.Sprintf("the file breaks off: the string that begins in its line %d has no end", line)
}

var notAClass = regexp.MustCompile(`(?m)^[ \t]*(?:async[ \t]+)?(?:def[ \t]+ModelNew\b|ModelNew[ \t]*(?::[^=\n]*)?=)`)

// whyNone says what pieces are none of which defines ModelNew.
func whyNone(pieces []piece) *unusable {
	const hintClass = "Name the class ModelNew, exactly, and send the whole file."
	code, kernel, open := false, false, false
	other := ""
	for _, p := range pieces {
		if p.isKernel() {
			kernel = true
			continue
		}
		if notAClass.MatchString(p.python.code) {
			return &unusable{flawClass, "ModelNew is no class of its own", hintClass}
		}
		for _, name := range p.python.classes() {
			if other == "" || likeModelNew(name) {
				other = name
			}
		}
		if line := p.python.openString; line > 0 && strings.Contains(p.text, "class ModelNew") {
			return &unusable{flawTruncated, noEnd(line), hintWhole}
		}
		code = code || len(p.python.functions()) > 0 || importsAnything.MatchString(p.python.code)
		open = open || p.python.openString > 0 || !p.closed
	}
	switch {
	case open && other == "" && code:
		return &unusable{flawTruncated, "the answer breaks off before class ModelNew", hintWhole}
	case likeModelNew(other):
		return &unusable{flawClass, fmt.Sprintf("the class is named %s and not ModelNew", prompts.Line(other, 40)), hintClass}
	case other != "":
		return &unusable{flawClass, fmt.Sprintf("the file defines class %s and no class ModelNew", prompts.Line(other, 40)), hintClass}
	case code:
		return &unusable{flawPartial, "the answer is a part of a file: it has no class ModelNew", hintWhole}
	case kernel:
		return &unusable{flawKernel, "the answer is a kernel alone, without the Python that calls it", hintWhole}
	}
	return &unusable{flawProse, "the answer holds no code", hintWhole}
}

// likeModelNew reports whether a name is what somebody meant as ModelNew.
func likeModelNew(name string) bool {
	flat := strings.ToLower(strings.ReplaceAll(name, "_", ""))
	return flat == "modelnew" || flat == "newmodel" || flat == "model" || distance(flat, "modelnew") <= 2
}

// distance is Levenshtein's, of short words.
func distance(a, b string) int {
	if len(a) > 40 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			here := before
			if a[i] != b[j] {
				here = 1 + min(before, row[j], row[j+1])
			}
			before, row[j+1] = row[j+1], here
		}
	}
	return row[len(b)]
}

var (
	usesKernels     = regexp.MustCompile(`\b(native|load_inline)[ \t]*\(`)
	usesInline      = regexp.MustCompile(`\bload_inline[ \t]*\(`)
	cudaSources     = regexp.MustCompile(`\bcuda_sources[ \t]*=[ \t]*`)
	noText          = regexp.MustCompile(`^(""[^"]|''[^']|\[[ \t]*\]|None\b)`)
	importsModule   = regexp.MustCompile(`(?m)^[ \t]*(?:import|from)[ \t]+(\w+)\b`)
	importsAnything = regexp.MustCompile(`(?m)^[ \t]*(import[ \t]+\w|from[ \t]+[\w.]+[ \t]+import\b)`)
	sourceArgument  = regexp.MustCompile(`\b(?:source|cuda_sources|cpp_sources)[ \t]*=[ \t]*\[?[ \t]*([A-Za-z_]\w*)[ \t]*[\],)\n]`)
)

// imported returns the language whose module a file imports, empty for none.
func imported(code string) kernelwright.Language {
	for _, m := range importsModule.FindAllStringSubmatch(code, -1) {
		for _, row := range kernelwright.Languages {
			if row.Module == m[1] {
				return row.Name
			}
		}
	}
	return ""
}

// join returns the candidate's source: the piece itself, with the kernel or the
// file in front of it that it cannot do without, where there is exactly one that
// can be meant.
func join(pieces []piece, at int) (string, *unusable) {
	p := pieces[at]
	var kernels, others []piece
	for i, q := range pieces {
		switch {
		case i == at || q.defines() || !q.closed:
		case q.isKernel():
			kernels = append(kernels, q)
		case usesKernels.MatchString(q.python.code) || imported(q.python.code) != "":
			others = append(others, q)
		}
	}
	own := usesKernels.MatchString(p.python.code) || imported(p.python.code) != ""
	if !own && len(others) == 1 && !others[0].python.breaksOff() {
		return strings.TrimRight(others[0].text, "\n") + "\n\n\n" + p.text, nil
	}
	missing := map[string]bool{}
	for _, m := range sourceArgument.FindAllStringSubmatch(p.python.code, maxSources) {
		if m[1] != "None" && !bound(m[1], p.python.code) {
			missing[m[1]] = true
		}
	}
	switch {
	case len(missing) == 1 && len(kernels) == 1 && !strings.Contains(kernels[0].text, `"""`) && !strings.Contains(p.python.code, "__future__"):
		for name := range missing {
			return name + " = r\"\"\"\n" + strings.Trim(kernels[0].text, "\n") + "\n\"\"\"\n\n" + p.text, nil
		}
	case len(kernels) > 0 && (len(missing) > 0 || !own):
		return "", &unusable{flawApart, "the kernel stands in a block of its own, and the Python file does not hold it", "Put the kernel's source into the Python file, as a string, and send that file alone."}
	}
	return p.text, nil
}

// maxSources is how many arguments that name sources are looked at.
const maxSources = 8

// bound reports whether a file gives a name a meaning.
func bound(name, code string) bool {
	return regexp.MustCompile(`(?m)^[ \t]*(?:` + name + `[ \t]*(?::[^=\n]*)?=[ \t]|(?:def|import|from)\b.*\b` + name + `\b)|^` + name + `[ \t]*=`).MatchString(code)
}

var languageArgument = regexp.MustCompile(`\bnative[ \t]*\([^()]*?\blanguage[ \t]*=[ \t\n]*`)

// languageOf returns what a candidate is written in, as the builder will see it
// (harness/kwharness/build/source.py); empty where nothing in it is compiled.
func languageOf(source string) kernelwright.Language {
	p := scanPython(source)
	if at := languageArgument.FindStringIndex(p.code); at != nil {
		if value := source[at[1]:]; strings.HasPrefix(value, `"cuda"`) || strings.HasPrefix(value, `'cuda'`) {
			return kernelwright.CUDA
		}
	}
	inline, module := cudaSources.FindStringIndex(p.code), imported(p.code)
	switch {
	case inline != nil && usesInline.MatchString(p.code) && !noText.MatchString(source[inline[1]:]):
		return kernelwright.CUDA
	case module != "":
		return module
	case usesKernels.MatchString(p.code):
		return kernelwright.CPP
	}
	return ""
}

var scheduleHead, _, _ = strings.Cut(kernelwright.Schedule{}.Comment(), "{")

// withoutSchedule drops comments in which only the built-in Coder states its
// knobs: who copies one has none to turn.
func withoutSchedule(source string) string {
	if !strings.Contains(source, scheduleHead) {
		return source
	}
	var b strings.Builder
	for line := range strings.Lines(source) {
		if !strings.HasPrefix(line, scheduleHead) {
			b.WriteString(line)
		}
	}
	return b.String()
}

const maxNoteBytes = 240

// firstSentence is what a reply says of its candidate.
func firstSentence(prose string) string {
	s := strings.TrimLeft(prompts.Line(prose, 4*maxNoteBytes), "#*- ")
	if at := strings.IndexAny(s, ".!:"); at > 0 {
		for at > 0 && at+1 < len(s) && s[at+1] != ' ' { // "1.5", "e.g.", "__init__.py"
			next := strings.IndexAny(s[at+1:], ".!:")
			if next < 0 {
				at = len(s)
				break
			}
			at += 1 + next
		}
		s = s[:min(at+1, len(s))]
	}
	return prompts.Line(strings.TrimRight(s, ":"), maxNoteBytes)
}
