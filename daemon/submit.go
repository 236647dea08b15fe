package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/kernelwright/kernelwright/task"
)

// NameError says that a file cannot be submitted by this name.
type NameError struct{ Text, Hint string }

func (e *NameError) Error() string { return e.Text }

// TakenError says that there is something else of this name.
type TakenError struct{ Text, Hint string }

func (e *TakenError) Error() string { return e.Text }

const (
	// maxName is how long a name may be, in bytes: results have longer ones, and file
	// systems take 255.
	maxName = 200
	// uploading begins the name of a file that is being written. The watcher passes over it.
	uploading = ".kernelwright-upload-"
	// uploadOver is after how long such a file is what a process left that died.
	uploadOver = time.Hour
)

// Submit writes a reference into a watched folder, whole or not at all, and returns its
// path; fresh is false where it was there already. The watcher finds it like any other,
// so nothing is lost if the process dies: what Submit returned for is on the disk. Another
// file of this name is a *TakenError, unless it is to be replaced.
func Submit(folder string, patterns []string, name string, content []byte, replace bool) (path string, fresh bool, err error) {
	if err := checkName(patterns, name); err != nil {
		return "", false, err
	}
	path = filepath.Join(folder, name)
	if same, err := holds(path, content); same || err != nil && !replace {
		return path, false, err
	}
	sweepUploads(folder)
	f, err := os.CreateTemp(folder, uploading+"*")
	if err != nil {
		return "", false, err
	}
	defer func() { _ = os.Remove(f.Name()) }() // it has its own name by then, or is of no use
	_, err = f.Write(content)
	if err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return "", false, err
	}
	if err := rename(f.Name(), path, replace); err != nil {
		return "", false, err
	}
	return path, true, flushFolder(folder)
}

// rename gives a file its name. A link never replaces what another process made meanwhile.
func rename(temp, path string, replace bool) error {
	if !replace {
		err := os.Link(temp, path)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, fs.ErrExist):
			return taken(path, "a file of this name with another text is there")
		}
		if _, err := os.Lstat(path); err == nil { // a file system without links
			return taken(path, "a file of this name is there")
		}
	}
	err := os.Rename(temp, path)
	if info, failed := os.Lstat(path); err != nil && failed == nil && info.IsDir() {
		return taken(path, "a folder of this name is there")
	}
	return err
}

// checkName says what keeps a name from being that of a reference in a watched folder.
func checkName(patterns []string, name string) error {
	matches := false
	for _, p := range patterns {
		if ok, err := filepath.Match(p, name); ok && err == nil {
			matches = true
		}
	}
	give := "give the name of a file, such as softmax.py"
	switch {
	case name == "":
		return &NameError{"the file has no name", give}
	case len(name) > maxName:
		return &NameError{fmt.Sprintf("the name of the file has more than %d bytes", maxName), give}
	case !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }):
		return &NameError{"the name of the file has characters that cannot be printed", give}
	case strings.ContainsAny(name, `/\`) || !filepath.IsLocal(name):
		return &NameError{"the name of the file is a path", give}
	case strings.HasPrefix(name, "."):
		return &NameError{"the name of the file begins with a dot: such files are not looked at", give}
	case OwnFile(name):
		return &NameError{"the name of the file is one of kernelwright's own results", give}
	case !matches:
		return &NameError{"no file of this name is looked at", "watch.patterns in the settings has the names that are: " + strings.Join(patterns, ", ")}
	}
	return nil
}

// holds reports whether a file is there with this content. A *TakenError says that
// something else is.
func holds(path string, content []byte) (bool, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if !info.Mode().IsRegular() {
		return false, taken(path, "something of this name is there that is no file")
	}
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	there, err := io.ReadAll(io.LimitReader(f, int64(task.MaxBytes)+1))
	if err != nil {
		return false, err
	}
	if bytes.Equal(there, content) {
		return true, nil
	}
	return false, taken(path, "a file of this name with another text is there")
}

func taken(path, text string) error {
	return &TakenError{fmt.Sprintf("%s: %s", text, filepath.Base(path)), "give it another name, or say that it is to be replaced"}
}

// sweepUploads removes what processes left that died while they wrote.
func sweepUploads(folder string) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return // who writes there says what is wrong
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), uploading) {
			continue
		}
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > uploadOver {
			_ = os.Remove(filepath.Join(folder, e.Name())) // it is only space
		}
	}
}

// flushFolder waits until the names in a folder are on the disk.
func flushFolder(folder string) error {
	f, err := os.Open(folder)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
