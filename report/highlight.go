package report

import (
	"html/template"
	"regexp"
	"strings"
)

// maxHighlighted is how many bytes of a source are highlighted; a longer one is shown as it is.
const maxHighlighted = 48 << 10

// language is how the tokens of a language are told apart. Its pattern has a group for each
// class of tokens, and none that looks back: it takes time in proportion to the text.
type language struct {
	tokens    *regexp.Regexp
	classes   []string // of the groups of tokens; "word" is a name
	keywords  map[string]bool
	types     map[string]bool   // and what else comes with the language
	functions map[string]bool   // what the name of a function comes after; nil: a type or a name
	nested    func(string) bool // a string that holds C++; nil: none does
}

var (
	pythonCode = &language{
		tokens: regexp.MustCompile(`(?m)(#[^\n]*)|(^[ \t]*@[\w.]+)|` +
			`([rRbBuUfF]{0,2}(?:"""(?s:(?:\\.|[^\\])*?)(?:"""|\z)|'''(?s:(?:\\.|[^\\])*?)(?:'''|\z)|"(?:\\(?s:.)|[^"\\\n])*"?|'(?:\\(?s:.)|[^'\\\n])*'?))|` +
			`(\.?[0-9](?:[eE][+-]|[\w.])*)|([\pL_][\pL\pN_]*)`),
		classes: []string{"hc", "hf", "hs", "hn", "word"},
		keywords: wordSet(`and as assert async await break case class continue def del elif else except False finally for from global if import in is lambda
			match None nonlocal not or pass raise return True try while with yield`),
		types: wordSet(`abs all any bool bytes callable cls dict divmod enumerate Exception float format frozenset getattr hasattr hash id int isinstance issubclass
			iter len list map max min next NotImplementedError object open pow print property range repr reversed round RuntimeError self set setattr slice sorted staticmethod str
			sum super tuple type TypeError ValueError vars zip`),
		functions: wordSet("def class"),
		nested:    native,
	}
	nativeCode = &language{
		tokens: regexp.MustCompile(`(?m)(//[^\n]*|/\*(?s:.*?)(?:\*/|\z))|(^[ \t]*#(?:\\(?s:.)|[^\\\n])*)|` +
			`((?:u8|[uUL])?R"\((?s:.*?)(?:\)"|\z)|(?:u8|[uUL])?"(?:\\(?s:.)|[^"\\\n])*"?|'(?:\\(?s:.)|[^'\\\n])*'?)|` +
			`(\.?[0-9](?:[eEpP][+-]|['\w.])*)|([\pL_][\pL\pN_]*)`),
		classes: []string{"hc", "hp", "hs", "hn", "word"},
		keywords: wordSet(`alignas alignof asm auto break case catch class const consteval constexpr const_cast continue decltype default delete do dynamic_cast else
			enum explicit extern false for friend goto if inline mutable namespace new noexcept nullptr operator private protected public register reinterpret_cast requires return
			sizeof static static_assert static_cast struct switch template this thread_local throw true try typedef typename union using virtual volatile while`),
		types: wordSet(`bool char double float int long short signed unsigned void half half2 bfloat16 float2 float4 int2 int4 uint uint2 uint4 dim3 size_t
			int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t intptr_t uintptr_t ptrdiff_t`),
	}
	// nativeMarks tell C++ and CUDA in a Python string from other text.
	nativeMarks = []string{"#include", "extern \"C\"", "__global__"}
)

func wordSet(text string) map[string]bool {
	all := map[string]bool{}
	for _, w := range strings.Fields(text) {
		all[w] = true
	}
	return all
}

// Highlight returns the lines of a candidate as markup, with the code that its Python
// strings hold as C++ or CUDA. Only its own elements are markup: the text is escaped.
func Highlight(source string) []template.HTML {
	source = cut(Clean(source))
	w := &codeWriter{}
	if len(source) <= maxHighlighted {
		w.code(pythonCode, source)
	} else {
		w.write("", source)
	}
	return w.done()
}

func native(text string) bool {
	if !strings.Contains(text, "\n") {
		return false
	}
	for _, mark := range nativeMarks {
		if strings.Contains(text, mark) {
			return true
		}
	}
	return false
}

// codeWriter makes lines of spans.
type codeWriter struct {
	lines []template.HTML
	line  strings.Builder
}

// code writes a text in a language.
func (w *codeWriter) code(l *language, text string) {
	end, before := 0, "" // of the last token; the name that was just before this one
	for _, at := range l.tokens.FindAllStringSubmatchIndex(text, -1) {
		between, token := text[end:at[0]], text[at[0]:at[1]]
		w.write("", between)
		end = at[1]
		group := 1
		for at[2*group] < 0 {
			group++
		}
		class := l.classes[group-1]
		switch {
		case class == "hs" && l.nested != nil && l.nested(token):
			w.quoted(token)
		case class == "word":
			if strings.TrimSpace(between) != "" {
				before = ""
			}
			w.write(l.class(token, before, text[end:]), token)
		default:
			w.write(class, token)
		}
		if before = ""; class == "word" {
			before = token
		}
	}
	w.write("", text[end:])
}

// class is that of a name in a language, by the name before it and by what comes after it.
func (l *language) class(name, before, after string) string {
	switch {
	case l.functions[before]:
		return "hf"
	case l.keywords[name], l.functions == nil && strings.HasPrefix(name, "__"): // CUDA's, as __global__
		return "hk"
	case l.types[name]:
		return "ht"
	case l.functions == nil && before != "" && !l.keywords[before] && strings.HasPrefix(after, "("):
		return "hf"
	}
	return ""
}

// quoted writes a string that holds C++: its quotes as Python's.
func (w *codeWriter) quoted(token string) {
	body := strings.TrimLeft(token, `rRbBuUfF`)
	quote := body[:1]
	if strings.HasPrefix(body, strings.Repeat(quote, 3)) {
		quote = body[:3]
	}
	w.write("hs", token[:len(token)-len(body)+len(quote)])
	inside, closed := strings.CutSuffix(body[len(quote):], quote)
	w.code(nativeCode, inside)
	if closed {
		w.write("hs", quote)
	}
}

// write appends a text of one class, which may have several lines.
func (w *codeWriter) write(class, text string) {
	for {
		part, more, ended := strings.Cut(text, "\n")
		if part != "" {
			if class != "" {
				w.line.WriteString(`<i class="` + class + `">`)
			}
			template.HTMLEscape(&w.line, []byte(part))
			if class != "" {
				w.line.WriteString("</i>")
			}
		}
		if !ended {
			return
		}
		w.end()
		text = more
	}
}

func (w *codeWriter) end() {
	w.lines = append(w.lines, template.HTML(w.line.String())) //nolint:gosec // its text is escaped above
	w.line.Reset()
}

func (w *codeWriter) done() []template.HTML {
	if w.line.Len() > 0 {
		w.end()
	}
	return w.lines
}
