package audit

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/task"
)

// Text is where the text of a reference or a candidate lies.
type Text struct {
	Label string // the path of its file, or file:line
	path  string
	in    span   // within the file; nil: all of it
	hash  string // of a text within a file
	folds string // the folder that a path in JSON must lie below; empty: anywhere
	err   error  // why there is none
}

// span is where a text lies within a file. An error is a *kernelwright.InvalidTaskError.
type span interface {
	text() (string, error)
}

// jsonSpan is an object in a file of JSON, and which of its values.
type jsonSpan struct {
	path       string
	at, length int64
	field      string
}

func fileText(path string) Text { return Text{Label: path, path: path} }

// missing is a text that there is not.
func missing(reason, hint string) Text {
	return Text{err: &kernelwright.InvalidTaskError{Reason: reason, Hint: hint}}
}

// Err says why there is no such text; nil where it may be read.
func (t Text) Err() error { return t.err }

// ID is the same for the same text at the same place: pairs of one reference are
// evaluated together.
func (t Text) ID() string {
	if t.in != nil {
		return "text " + t.hash
	}
	return "file " + t.path
}

// Name is what messages call it.
func (t Text) Name() string {
	base := filepath.Base(t.Label)
	return strings.TrimSuffix(base, filepath.Ext(base))
}

// ReadReference returns the text of a reference. Errors are, or wrap, a
// *kernelwright.InvalidTaskError.
func (t Text) ReadReference() (string, error) { return t.read(task.Read) }

// ReadCandidate is ReadReference for a candidate, which may be a work folder.
func (t Text) ReadCandidate() (string, error) { return t.read(task.ReadCandidate) }

func (t Text) read(file func(string) (task.File, error)) (string, error) {
	switch {
	case t.err != nil:
		return "", t.err
	case t.in != nil:
		return t.value()
	case t.folds != "":
		return t.below()
	}
	f, err := file(t.path)
	return f.Source, err
}

// below reads a file that JSON names. The set is somebody else's: what lies out
// of its folder is none of its business.
func (t Text) below() (string, error) {
	root, err := os.OpenRoot(t.folds)
	if err != nil {
		return "", invalid("it cannot be read: "+err.Error(), "see that the folder is in order")
	}
	defer root.Close() //nolint:errcheck // it was only read
	f, err := task.ReadIn(root, t.path)
	return f.Source, err
}

// value reads a text out of its file. It may have changed since it was found.
func (t Text) value() (string, error) {
	text, err := t.in.text()
	if err != nil {
		return "", err
	}
	if kernelwright.HashText(text) != t.hash {
		return "", invalid("its file has changed while it was read", "give the command again")
	}
	return task.Decode([]byte(text))
}

func (s jsonSpan) text() (text string, err error) {
	f, err := os.Open(s.path)
	if err != nil {
		return "", invalid("it cannot be read: "+err.Error(), "see that the file and its disk are in order")
	}
	defer f.Close()
	raw := make([]byte, s.length)
	if _, err := f.ReadAt(raw, s.at); err != nil {
		return "", invalid("it cannot be read: "+err.Error(), "give the command again: the file has changed meanwhile")
	}
	var object map[string]json.RawMessage
	if json.Unmarshal(raw, &object) == nil {
		_ = json.Unmarshal(object[s.field], &text) // what is none is another text
	}
	return text, nil
}

func invalid(reason, hint string) error {
	return &kernelwright.InvalidTaskError{Reason: reason, Hint: hint}
}

// label names a place in a file.
func label(path string, number int, name string) string {
	if name == "" {
		return fmt.Sprintf("%s:%d", path, number)
	}
	return fmt.Sprintf("%s:%d (%s)", path, number, name)
}
