package audit

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// leftOut is the Python files of folders below a set in which there is neither a reference
// nor a candidate, and tables that hold code, and no pairs.
type leftOut struct {
	files, folders int
	first          []string // as seen from the set
	tables         []string // a sentence each, without its full stop
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

// fieldsWanted says how the fields of a pair are called.
const fieldsWanted = `a pair's fields are called "reference" and "candidate"`

// said counts them, and names the first.
func (l leftOut) said() string {
	said := slices.Clone(l.tables[:min(len(l.tables), filesNamed)])
	if n := len(l.tables) - len(said); n > 0 {
		said = append(said, fmt.Sprintf("so do %d more tables", n))
	}
	if l.files > 0 {
		said = append([]string{l.python()}, said...)
	}
	return strings.Join(said, "; ")
}

func (l leftOut) python() string {
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

// table notes a table in a folder that holds code, in fields of these names, and no pairs.
func (l *leftOut) table(base, path string, fields []string) {
	if below, err := filepath.Rel(base, path); err == nil {
		path = below
	}
	l.tables = append(l.tables, path+" holds code in fields whose names are not known: "+strings.Join(fields[:min(len(fields), filesNamed)], ", "))
}

func (l leftOut) any() bool { return l.files > 0 || len(l.tables) > 0 }

// row stands among the pairs for what is none.
func (l leftOut) row(base string) Pair {
	p := unusable(base, l.said(), l.hint())
	p.instead = kernelwright.Unrecognised
	return p
}

// hint says what was expected.
func (l leftOut) hint() string {
	switch {
	case len(l.tables) == 0:
		return expected
	case l.files == 0:
		return fieldsWanted
	}
	return expected + "; " + fieldsWanted
}
