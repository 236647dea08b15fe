package emit

import (
	"fmt"
	"strings"
)

// writer writes lines of C++ or CUDA, indented by the blocks that are open.
type writer struct {
	out   strings.Builder
	depth int
}

// line writes one line.
func (w *writer) line(format string, args ...any) {
	w.out.WriteString(strings.Repeat("  ", w.depth))
	fmt.Fprintf(&w.out, format, args...)
	w.out.WriteByte('\n')
}

// open writes what stands before a block, and opens it.
func (w *writer) open(format string, args ...any) {
	w.line(strings.TrimLeft(format+" {", " "), args...)
	w.depth++
}

// close closes a block.
func (w *writer) close() {
	w.depth--
	w.line("}")
}

// end closes a function that is the last argument of a call; in one line, where it has
// one statement that is short.
func (w *writer) end() {
	w.depth--
	text := strings.TrimSuffix(w.out.String(), "\n")
	before, last, found := cutLast(text, "\n")
	above, head, more := cutLast(before, "\n")
	if more {
		above += "\n"
	}
	if last = strings.TrimSpace(last); found && strings.HasSuffix(head, "{") && strings.HasSuffix(last, ";") && len(head)+len(last) < longestLine {
		w.out.Reset()
		w.out.WriteString(above + head + " " + last + " });\n")
		return
	}
	w.line("});")
}

// longestLine is the most characters of a line that end makes.
const longestLine = 120

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return "", s, false
}

// captured returns what f writes.
func (w *writer) captured(f func()) string {
	before := w.out.String()
	w.out.Reset()
	f()
	text := w.out.String()
	w.out.Reset()
	w.out.WriteString(before)
	return text
}
