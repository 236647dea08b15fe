package report

import (
	"html/template"
	"strings"
	"sync"
	"time"

	"github.com/alecthomas/chroma/v2"
	"github.com/alecthomas/chroma/v2/lexers"
)

// Bounds of highlighting. What is past them is shown as it is.
const (
	maxHighlighted = 48 << 10 // bytes
	highlightTime  = 500 * time.Millisecond
)

// nativeMarks tell C++ and CUDA in a Python string from other text.
var nativeMarks = []string{"#include", "extern \"C\"", "__global__"}

// languages are the lexers of Python and of C++, which reads CUDA as well, with their patterns compiled.
var languages = sync.OnceValue(func() [2]chroma.Lexer {
	both := [2]chroma.Lexer{lexers.Get("python"), lexers.Get("c++")}
	for i, l := range both {
		if l == nil {
			continue
		}
		both[i] = chroma.Coalesce(l)
		if next, err := both[i].Tokenise(nil, "int x = 1;"); err == nil {
			for next() != chroma.EOF {
				continue
			}
		}
	}
	return both
})

// Highlight returns the lines of a candidate as markup, with the code that its Python
// strings hold as C++ or CUDA. Only its own elements are markup: the text is escaped.
func Highlight(source string) []template.HTML {
	source = cut(Clean(source))
	known := languages()
	w := &codeWriter{until: time.Now().Add(highlightTime)}
	if len(source) <= maxHighlighted {
		w.tokens(known[0], source, true)
	} else {
		w.write("", source)
	}
	return w.done()
}

// codeWriter makes lines of spans.
type codeWriter struct {
	until time.Time
	lines []template.HTML
	line  strings.Builder
}

// tokens writes a text by its lexer. A text that takes too long is written as it is from
// there on: a pattern may go back and forth over what somebody made for that.
func (w *codeWriter) tokens(lexer chroma.Lexer, text string, nested bool) {
	rest := text
	take := func(class, value string) {
		w.write(class, value)
		rest = rest[len(value):]
	}
	defer func() { w.write("", rest) }()
	if lexer == nil {
		return
	}
	next, err := lexer.Tokenise(&chroma.TokeniseOptions{State: "root", Nested: true}, text)
	if err != nil {
		return
	}
	for t := next(); t != chroma.EOF && time.Now().Before(w.until); t = next() {
		if !strings.HasPrefix(rest, t.Value) {
			return
		}
		if nested && t.Type.InCategory(chroma.Literal) && native(t.Value) {
			w.tokens(languages()[1], t.Value, false)
			rest = rest[len(t.Value):]
			continue
		}
		take(codeClass(t), t.Value)
	}
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

// codeClass is the class of a kind of token in style.css; empty for plain text.
func codeClass(token chroma.Token) string {
	t := token.Type
	switch {
	case t.InCategory(chroma.Name) && strings.HasPrefix(token.Value, "__"): // CUDA's, as __global__
		return "hk"
	case t.InCategory(chroma.Comment):
		if t == chroma.CommentPreproc || t == chroma.CommentPreprocFile {
			return "hp"
		}
		return "hc"
	case t.InCategory(chroma.Keyword):
		if t == chroma.KeywordType {
			return "ht"
		}
		return "hk"
	case t.InSubCategory(chroma.LiteralNumber):
		return "hn"
	case t.InCategory(chroma.Literal):
		return "hs"
	case t == chroma.NameFunction, t == chroma.NameClass, t == chroma.NameDecorator:
		return "hf"
	case t == chroma.NameBuiltin, t == chroma.NameBuiltinPseudo:
		return "ht"
	}
	return ""
}
