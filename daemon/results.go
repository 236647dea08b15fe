package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

// Results writes what a run came to as files.
type Results struct {
	// Folder is where; empty: beside the reference.
	Folder string
	// Base is what references lie below: in Folder results keep the path from
	// there, so that two references of one name do not share their files.
	Base     string
	Markdown bool
	HTML     bool
}

// Written names the files of one run; empty where there is none.
type Written struct {
	Kernel      string `json:"kernel,omitempty"`
	Certificate string `json:"certificate,omitempty"`
	Markdown    string `json:"markdown,omitempty"`
	HTML        string `json:"html,omitempty"`
	// Older says what became of an older kernel of this name where the run has none
	// to hand out: a sentence without its full stop.
	Older string `json:"older,omitempty"`
	// Kept says why no results were written: a sentence without its full stop.
	Kept string `json:"kept,omitempty"`
}

// Report returns the report that people open first.
func (w Written) Report() string {
	if w.HTML != "" {
		return w.HTML
	}
	return w.Markdown
}

// Write writes the files of a run whose reference is at path. Each appears
// whole or not at all, and one that fails does not keep the others from being
// written; the record has everything, so nothing is lost.
//
// A kernel that is slower than the fastest baseline by its whole interval is not
// written, only its certificate and the reports. What then becomes of an older
// kernel of this name says older.
func (r Results) Write(path string, d report.Data) (Written, error) {
	dir := filepath.Dir(path)
	if r.Folder != "" {
		below, err := filepath.Rel(r.Base, dir)
		if r.Base == "" || err != nil || !filepath.IsLocal(below) {
			below = "."
		}
		dir = filepath.Join(r.Folder, below)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return Written{}, ofRun(writeError(dir, err), d.Run.ID)
		}
	}
	name := fitting(stem(path), longestName-len(".certificate.json"))
	base := filepath.Join(dir, name)
	var out Written
	var errs []error
	put := func(suffix string, content []byte, named *string) {
		if err := WriteFile(base+suffix, content); err != nil {
			errs = append(errs, ofRun(err, d.Run.ID))
			return
		}
		*named = base + suffix
	}
	d.File = name + ".best.py"
	certificate, kernel, ok, err := report.Certify(d, d.File)
	if err != nil {
		errs = append(errs, err)
	}
	switch {
	case ok && kernel != "":
		// The certificate names the kernel by its hash: first the kernel, so
		// that none is ever without its file.
		put(".best.py", []byte(kernel), &out.Kernel)
		if out.Kernel != "" {
			put(".certificate.json", certificate, &out.Certificate)
		}
	case ok:
		before, err := olderKernel(base, d.Task.Source)
		if err != nil {
			errs = append(errs, ofRun(err, d.Run.ID))
		}
		if d.Older = before.says; err == nil && !before.keeps {
			put(".certificate.json", certificate, &out.Certificate)
		}
		out.Older = d.Older
	}
	var b bytes.Buffer
	if r.Markdown {
		if err := report.Markdown(&b, d); err != nil {
			errs = append(errs, err)
		} else {
			put(".report.md", b.Bytes(), &out.Markdown)
		}
	}
	if r.HTML {
		var b bytes.Buffer
		if err := report.HTML(&b, d); err != nil {
			errs = append(errs, err)
		} else {
			put(".report.html", b.Bytes(), &out.HTML)
		}
	}
	return out, errors.Join(errs...)
}

// Common returns the deepest folder that holds all these folders.
func Common(folders []string) string {
	if len(folders) == 0 {
		return ""
	}
	base := filepath.Clean(folders[0])
	for _, f := range folders[1:] {
		for {
			below, err := filepath.Rel(base, f)
			if err == nil && filepath.IsLocal(below) {
				break
			}
			if parent := filepath.Dir(base); parent != base {
				base = parent
				continue
			}
			return ""
		}
	}
	return base
}

func stem(path string) string {
	name := filepath.Base(path)
	return name[:len(name)-len(filepath.Ext(name))]
}

// longestName is how many bytes the name of a file may have on Linux.
const longestName = 255

// fitting is a name in at most so many bytes: a longer one is cut, and ends in
// what tells it from others that begin alike.
func fitting(name string, most int) string {
	if len(name) <= most {
		return name
	}
	sum := "~" + kernelwright.HashText(name)[:8]
	return strings.ToValidUTF8(name[:most-len(sum)], "") + sum
}

// besides is how the name begins of what is written beside a file until it takes
// its place; who writes it is named after that.
func besides(path string) string { return "." + fitting(filepath.Base(path), 120) + "." }

// WriteFile writes beside the file and renames, so that a reader sees the
// old content or the new, and a full disk leaves the old.
func WriteFile(path string, content []byte) (err error) {
	sweep(path)
	f, err := os.CreateTemp(filepath.Dir(path), besides(path)+store.Self()+".*")
	if err != nil {
		return writeError(path, err)
	}
	defer func() {
		if err != nil {
			err = writeError(path, errors.Join(err, os.Remove(f.Name())))
		}
	}()
	if _, err = f.Write(content); err == nil {
		err = f.Chmod(0o644)
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// sweep removes what a process that was killed while it wrote the file left
// beside it. The next start writes the same file again, so nothing stays.
func sweep(path string) {
	prefix := besides(path)
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return // writing says why
	}
	for _, e := range entries {
		if rest, ours := strings.CutPrefix(e.Name(), prefix); ours {
			if i := strings.LastIndexByte(rest, '.'); i > 0 && strings.Count(rest[:i], "@") == 2 && !store.Alive(rest[:i]) {
				_ = os.Remove(filepath.Join(filepath.Dir(path), e.Name()))
			}
		}
	}
}

// WriteError is a result that could not be written: what, why, what to do.
type WriteError struct {
	Path string
	Hint string
	Err  error
}

func (e *WriteError) Error() string { return fmt.Sprintf("cannot write %s: %v", e.Path, e.Err) }

// Unwrap returns the cause.
func (e *WriteError) Unwrap() error { return e.Err }

// ofRun puts the number of the run in the hint's place for it.
func ofRun(err error, run int64) error {
	var w *WriteError
	if errors.As(err, &w) {
		w.Hint = strings.ReplaceAll(w.Hint, "RUN", strconv.FormatInt(run, 10))
	}
	return err
}

func writeError(path string, err error) error {
	hint := "the record has everything: `kernelwright history show RUN --out DIR` writes it elsewhere"
	switch {
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		hint = "the disk is full: make room, then write the results again with `kernelwright history show RUN --out DIR`"
	case errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS):
		hint = "the folder cannot be written: mend that, or write the results elsewhere with `kernelwright history show RUN --out DIR`"
	}
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	var le *os.LinkError
	if errors.As(err, &le) {
		err = le.Err
	}
	return &WriteError{Path: path, Hint: hint, Err: err}
}
