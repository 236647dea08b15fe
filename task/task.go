// Package task reads reference files. What comes from a folder is somebody
// else's file: it may be half written, huge, binary or in another encoding,
// and each of these gets its own sentence. Nothing here runs or parses Python;
// that happens in a reference worker.
package task

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/kernelwright/kernelwright"
)

// MaxBytes is the most a reference may hold. KernelBench's largest is 11 kB; a
// file of megabytes is data that was dropped into the wrong folder.
var MaxBytes = kernelwright.Shared.MaxReferenceBytes

// File is a reference as read: every byte of it, which is UTF-8.
type File struct {
	Path   string
	Name   string // base name without its extension
	Source string
}

// Read reads the reference at path. Every error is, or wraps, a
// *kernelwright.InvalidTaskError with a reason and a hint; what the operating
// system said is wrapped too, so errors.Is(err, fs.ErrNotExist) tells a file
// that has gone from one that cannot be a task.
func Read(path string) (File, error) { return readFrom(system{}, path) }

// ReadIn is Read for somebody who may read what lies below a folder and nothing
// else: links that lead out of it are refused. Path is relative to the folder,
// in the answer too.
func ReadIn(folder *os.Root, path string) (File, error) { return readFrom(folder, path) }

func readFrom(files opener, path string) (File, error) {
	content, err := read(files, path)
	if err != nil {
		return File{}, err
	}
	source, err := Decode(content)
	if err != nil {
		return File{}, err
	}
	return File{Path: path, Name: name(path), Source: source}, nil
}

// opener is where files are: *os.Root, or all there are.
type opener interface {
	Stat(name string) (fs.FileInfo, error)
	OpenFile(name string, flag int, perm fs.FileMode) (*os.File, error)
	Readlink(name string) (string, error)
}

type system struct{}

func (system) Stat(name string) (fs.FileInfo, error) { return os.Stat(name) }

func (system) OpenFile(name string, flag int, perm fs.FileMode) (*os.File, error) {
	return os.OpenFile(name, flag, perm)
}

func (system) Readlink(name string) (string, error) { return os.Readlink(name) }

func name(path string) string {
	base := filepath.Base(path)
	if stem := strings.TrimSuffix(base, filepath.Ext(base)); stem != "" {
		return stem
	}
	return base // ".py" alone
}

func read(files opener, path string) ([]byte, error) {
	// Not before it is known to be a file: opening a device can do something.
	if info, err := files.Stat(path); err != nil {
		return nil, unreadable(files, path, err)
	} else if err := regular(info); err != nil {
		return nil, err
	}
	// Without O_NONBLOCK, opening a named pipe waits for somebody to write to it.
	f, err := files.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, unreadable(files, path, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, unreadable(files, path, err)
	}
	if err := regular(info); err != nil {
		return nil, err
	}
	if info.Size() > int64(MaxBytes) {
		return nil, tooLarge()
	}
	content, err := io.ReadAll(io.LimitReader(f, int64(MaxBytes)+1))
	if err != nil {
		return nil, unreadable(files, path, err)
	}
	if len(content) > MaxBytes { // it grew since
		return nil, tooLarge()
	}
	return content, nil
}

func regular(info fs.FileInfo) error {
	for _, k := range []struct {
		mode fs.FileMode
		name string
	}{{fs.ModeNamedPipe, "a named pipe"}, {fs.ModeSocket, "a socket"}, {fs.ModeDevice, "a device"}} {
		if info.Mode()&k.mode != 0 {
			return invalid("it is "+k.name+", not a file", "put a Python file in its place")
		}
	}
	switch {
	case info.IsDir():
		return invalid("it is a folder", "name a Python file: the daemon watches folders, and eval --batch evaluates one")
	case !info.Mode().IsRegular():
		return invalid("it is not a regular file", "put a Python file in its place")
	}
	return nil
}

// Decode returns a reference's text, with all its bytes: it may have a byte order
// mark, and lines may end as they like. Errors are *kernelwright.InvalidTaskError.
func Decode(content []byte) (string, error) {
	if len(content) > MaxBytes {
		return "", tooLarge()
	}
	if encoding := wideEncoding(content); encoding != "" {
		return "", invalid("its text is encoded as "+encoding, "save the file as UTF-8")
	}
	if kind := binaryKind(content); kind != "" {
		return "", invalid("it is "+kind+", no Python source", noPython)
	}
	if i := bytes.IndexByte(content, 0); i >= 0 {
		return "", invalid(fmt.Sprintf("it contains a NUL byte on line %d, so it is binary or damaged", lineOf(content, i)),
			"write the file again as UTF-8 text")
	}
	if i := firstInvalid(content); i >= 0 {
		reason := fmt.Sprintf("line %d is not UTF-8 (byte 0x%02x)", lineOf(content, i), content[i])
		if m := codingCookie.FindSubmatch(firstLines(content, 2)); m != nil {
			reason += fmt.Sprintf("; it declares the encoding %s", m[1])
		}
		return "", invalid(reason, "save the file as UTF-8")
	}
	text := string(content)
	if strings.TrimSpace(strings.TrimPrefix(text, "\ufeff")) == "" {
		return "", invalid("it is empty", references)
	}
	return text, nil
}

var codingCookie = regexp.MustCompile(`(?m)^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)`)

// wideEncoding names the encoding of a text whose characters are wider than a
// byte, by its byte order mark or, without one, by where its zeros are: ASCII
// in UTF-16 has a zero in every other byte.
func wideEncoding(content []byte) string {
	switch {
	case bytes.HasPrefix(content, []byte("\xff\xfe\x00\x00")), bytes.HasPrefix(content, []byte("\x00\x00\xfe\xff")):
		return "UTF-32"
	case bytes.HasPrefix(content, []byte("\xff\xfe")), bytes.HasPrefix(content, []byte("\xfe\xff")):
		return "UTF-16"
	}
	sample := content[:min(len(content), 4096)&^1]
	if len(sample) < 16 {
		return ""
	}
	var zeros [2]int
	for i, b := range sample {
		if b == 0 {
			zeros[i&1]++
		}
	}
	half := len(sample) / 2
	for side := range zeros {
		if zeros[side] > half*9/10 && zeros[1-side] < half/10 {
			return "UTF-16"
		}
	}
	return ""
}

// binaryKind names what a file is by its first bytes, for the kinds that end
// up in folders of Python files.
func binaryKind(content []byte) string {
	for _, k := range []struct{ magic, name string }{
		{"\x7fELF", "a compiled library or program"},
		{"PK\x03\x04", "a zip archive or a saved PyTorch model"},
		{"\x1f\x8b", "a gzip archive"},
		{"\x80\x02", "a pickle"}, {"\x80\x03", "a pickle"}, {"\x80\x04", "a pickle"}, {"\x80\x05", "a pickle"},
		{"\x89HDF", "an HDF5 file"},
		{"\x93NUMPY", "a NumPy array"},
		{"\x89PNG", "an image"},
		{"SQLite format 3\x00", "a database"},
	} {
		if bytes.HasPrefix(content, []byte(k.magic)) {
			return k.name
		}
	}
	// The first four bytes of compiled Python: a version number, then CR LF.
	if len(content) > 16 && content[2] == '\r' && content[3] == '\n' && content[1] >= 0x0c && content[1] < 0x20 {
		return "compiled Python"
	}
	return ""
}

func firstInvalid(content []byte) int {
	for i := 0; i < len(content); {
		r, size := utf8.DecodeRune(content[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return -1
}

func lineOf(content []byte, at int) int {
	before := content[:at]
	// A lone CR ends a line too, and CR LF ends only one.
	return 1 + bytes.Count(before, []byte("\n")) + bytes.Count(before, []byte("\r")) - bytes.Count(before, []byte("\r\n"))
}

func firstLines(content []byte, n int) []byte {
	end := 0
	for range n {
		i := bytes.IndexByte(content[end:], '\n')
		if i < 0 {
			return content
		}
		end += i + 1
	}
	return content[:end]
}

func invalid(reason, hint string) *kernelwright.InvalidTaskError {
	return &kernelwright.InvalidTaskError{Reason: reason, Hint: hint}
}

func tooLarge() error {
	return invalid(fmt.Sprintf("it is larger than %d MiB", MaxBytes>>20),
		"a reference is source text: let get_inputs() and get_init_inputs() draw large data")
}

// readError is an InvalidTaskError that keeps what the system said.
type readError struct {
	*kernelwright.InvalidTaskError
	cause error
}

func (e *readError) Unwrap() []error { return []error{e.InvalidTaskError, e.cause} }

func unreadable(files opener, path string, err error) error {
	reason, hint := "it cannot be read: "+systemReason(err), "see that the file and its disk are in order"
	target, notLink := files.Readlink(path)
	switch {
	case strings.HasSuffix(err.Error(), "path escapes from parent"): // os.Root has no value for it
		reason, hint = "it is outside of the folder that may be read", "name a file below that folder, by its path from there"
	case errors.Is(err, fs.ErrNotExist) && notLink == nil:
		reason, hint = fmt.Sprintf("it is a link to %q, which is not there", target), "mend the link, or put the file itself here"
	case errors.Is(err, syscall.ELOOP):
		reason, hint = "it is a link that leads round in a circle", "mend the link, or put the file itself here"
	case errors.Is(err, fs.ErrNotExist):
		reason, hint = "there is no such file", "see that the path is right"
	case errors.Is(err, syscall.ENAMETOOLONG):
		reason, hint = "its name is longer than a file's can be", "see that the path is right"
	case errors.Is(err, fs.ErrPermission):
		reason, hint = "it cannot be read: permission denied", "let this user read the file"
	}
	return &readError{invalid(reason, hint), err}
}

// systemReason drops the operation and the path, which the caller names.
func systemReason(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return err.Error()
}
