package audit

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// leftOut is the Python files of folders below a set in which there is neither a reference
// nor a candidate.
type leftOut struct {
	files, folders int
	first          []string // as seen from the set
}

// filesNamed is how many of them a sentence names.
const filesNamed = 4

// expected is what a file is recognised by.
const expected = "a reference defines `class Model` and `get_inputs`, a candidate `class ModelNew`, each at the beginning of a line"

func (l *leftOut) add(base string, files []string) {
	l.files += len(files)
	l.folders++
	for _, path := range files[:min(len(files), filesNamed-len(l.first))] {
		if below, err := filepath.Rel(base, path); err == nil {
			path = below
		}
		l.first = append(l.first, path)
	}
}

// said counts them, and names the first.
func (l leftOut) said() string {
	if l.files == 1 {
		return l.first[0] + " is neither a reference nor a candidate"
	}
	in := ""
	if l.folders > 1 {
		in = fmt.Sprintf(" in %d folders", l.folders)
	}
	more := ""
	if n := l.files - len(l.first); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("%d Python files%s are neither a reference nor a candidate: %s%s", l.files, in, strings.Join(l.first, ", "), more)
}

// strange is a table in a folder that holds code, and not as pairs.
type strange struct {
	path   string
	fields []string // that hold code, as they are written
}

// fieldsWanted says how the fields of a pair are called.
const fieldsWanted = `call the fields "reference" and "candidate", or as one of the layouts of docs/audit.md does`

func (s strange) said() string {
	names := make([]string, 0, filesNamed)
	for _, name := range s.fields[:min(len(s.fields), filesNamed)] {
		names = append(names, fmt.Sprintf("%q", name))
	}
	more := ""
	if n := len(s.fields) - len(names); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return "it holds code in fields whose names are not known: " + strings.Join(names, ", ") + more
}

// row stands among the pairs for what is none.
func (s strange) row() Pair {
	p := unusable(s.path, s.said(), fieldsWanted)
	p.instead = kernelwright.Unrecognised
	return p
}

// row stands among the pairs for what is none.
func (l leftOut) row(base string) Pair {
	p := unusable(base, l.said(), expected)
	p.instead = kernelwright.Unrecognised
	return p
}
