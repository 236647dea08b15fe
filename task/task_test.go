package task

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/kernelwright/kernelwright"
)

const reference = `import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.rand(4)]

def get_init_inputs():
    return []
`

func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func wide(text string, bigEndian, mark bool) string {
	var b strings.Builder
	units := utf16.Encode([]rune(text))
	if mark {
		units = append([]uint16{0xfeff}, units...)
	}
	for _, u := range units {
		if bigEndian {
			b.Write([]byte{byte(u >> 8), byte(u)})
		} else {
			b.Write([]byte{byte(u), byte(u >> 8)})
		}
	}
	return b.String()
}

// Whatever a file holds is its text, byte for byte: a program can read itself.
func TestReadKeepsEveryByte(t *testing.T) {
	for name, content := range map[string]string{
		"plain":          reference,
		"byte order":     "\xef\xbb\xbf" + reference,
		"windows":        strings.ReplaceAll(reference, "\n", "\r\n"),
		"old mac":        strings.ReplaceAll(reference, "\n", "\r"),
		"mark, windows":  "\xef\xbb\xbf" + strings.ReplaceAll(reference, "\n", "\r\n"),
		"mixed newlines": strings.Replace(reference, "\n", "\r\n", 3),
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, "soft.max.py", content)
			f, err := Read(path)
			if err != nil {
				t.Fatal(err)
			}
			if f.Source != content || f.Name != "soft.max" || f.Path != path {
				t.Errorf("got %+v", f)
			}
		})
	}
}

func TestReadRefuses(t *testing.T) {
	tests := []struct{ name, content, reason string }{
		{"empty", "", "it is empty"},
		{"blank", " \n\t\r\n\f", "it is empty"},
		{"only a mark", "\xef\xbb\xbf", "it is empty"},
		{"utf-16 le", wide(reference, false, true), "UTF-16"},
		{"utf-16 be", wide(reference, true, true), "UTF-16"},
		{"utf-16 le unmarked", wide(reference, false, false), "UTF-16"},
		{"utf-16 be unmarked", wide(reference, true, false), "UTF-16"},
		{"utf-32", "\xff\xfe\x00\x00i\x00\x00\x00", "UTF-32"},
		{"nul", "import torch\n\nx = '\x00'\n", "NUL byte on line 3"},
		{"latin-1", "# caf\xe9\n", "line 1 is not UTF-8 (byte 0xe9)"},
		{"declared latin-1", "# -*- coding: latin-1 -*-\r\nx = 'caf\xe9'\r\n", "line 2 is not UTF-8 (byte 0xe9); it declares the encoding latin-1"},
		{"half a rune", "# caf\xc3", "line 1 is not UTF-8"},
		{"elf", "\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 64), "a compiled library or program"},
		{"saved model", "PK\x03\x04" + strings.Repeat("x", 64), "saved PyTorch model"},
		{"pyc", "\xa7\x0d\x0d\x0a" + strings.Repeat("\x00", 64), "compiled Python"},
		{"too large", strings.Repeat("#", MaxBytes+1), "larger than 4 MiB"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Read(write(t, "x.py", tt.content))
			var invalid *kernelwright.InvalidTaskError
			if !errors.As(err, &invalid) {
				t.Fatalf("got %v", err)
			}
			if !strings.Contains(invalid.Reason, tt.reason) || invalid.Hint == "" {
				t.Errorf("reason %q, hint %q", invalid.Reason, invalid.Hint)
			}
			if strings.Contains(invalid.Reason, "\n") {
				t.Errorf("reason is not one line: %q", invalid.Reason)
			}
		})
	}
}

func TestReadUnreadable(t *testing.T) {
	var invalid *kernelwright.InvalidTaskError

	_, err := Read(filepath.Join(t.TempDir(), "gone.py"))
	if !errors.As(err, &invalid) || !errors.Is(err, fs.ErrNotExist) || invalid.Reason != "there is no such file" {
		t.Errorf("missing file: %v", err)
	}
	if _, err = Read(strings.Repeat("x", 300) + ".py"); !errors.As(err, &invalid) || invalid.Reason != "its name is longer than a file's can be" {
		t.Errorf("long name: %v", err)
	}
	if _, err = Read(t.TempDir()); !errors.As(err, &invalid) || !strings.Contains(invalid.Reason, "folder") {
		t.Errorf("folder: %v", err)
	}
	pipe := filepath.Join(t.TempDir(), "pipe.py")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Skipf("skipped: no named pipes here: %v", err)
	}
	if _, err = Read(pipe); !errors.As(err, &invalid) || invalid.Reason != "it is a named pipe, not a file" {
		t.Errorf("pipe: %v", err)
	}
	if _, err = Read("/dev/null"); !errors.As(err, &invalid) || invalid.Reason != "it is a device, not a file" {
		t.Errorf("device: %v", err)
	}
	dir := t.TempDir()
	for from, to := range map[string]string{"dangling.py": "nowhere/at all", "a.py": "b.py", "b.py": "a.py"} {
		if err := os.Symlink(to, filepath.Join(dir, from)); err != nil {
			t.Fatal(err)
		}
	}
	_, err = Read(filepath.Join(dir, "dangling.py"))
	if !errors.As(err, &invalid) || !errors.Is(err, fs.ErrNotExist) || invalid.Reason != `it is a link to "nowhere/at all", which is not there` {
		t.Errorf("dangling link: %v", err)
	}
	if _, err = Read(filepath.Join(dir, "a.py")); !errors.As(err, &invalid) || !strings.Contains(invalid.Reason, "round in a circle") || invalid.Hint == "" {
		t.Errorf("circle: %v", err)
	}
	if os.Geteuid() == 0 {
		t.Log("permission not tested: root may read everything")
		return
	}
	locked := write(t, "locked.py", reference)
	if err := os.Chmod(locked, 0); err != nil {
		t.Fatal(err)
	}
	if _, err = Read(locked); !errors.As(err, &invalid) || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("no permission: %v", err)
	}
}

func TestExactlyTheLimit(t *testing.T) {
	path := write(t, "x.py", reference+strings.Repeat("#", MaxBytes-len(reference)))
	if _, err := Read(path); err != nil {
		t.Fatal(err)
	}
}

func TestName(t *testing.T) {
	for path, want := range map[string]string{"a/b.py": "b", "b": "b", ".py": ".py", "x.y.py": "x.y"} {
		if got := name(path); got != want {
			t.Errorf("%q: got %q", path, got)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{reference, "", "\xef\xbb\xbfx", "\xff\xfea\x00", "a\r\nb\rc", "\x00", "caf\xe9", wide(reference, true, false)} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		text, err := Decode(content)
		if err != nil {
			var invalid *kernelwright.InvalidTaskError
			if !errors.As(err, &invalid) || invalid.Reason == "" || invalid.Hint == "" || !utf8.ValidString(invalid.Reason) ||
				strings.ContainsFunc(invalid.Reason, unicode.IsControl) || len(invalid.Reason) > 1000 {
				t.Fatalf("%q: %#v", content, err)
			}
			return
		}
		if text != string(content) || !utf8.ValidString(text) || strings.Contains(text, "\x00") || strings.TrimSpace(text) == "" {
			t.Fatalf("%q decoded to %q", content, text)
		}
	})
}

// What lies outside of the folder cannot be read, whichever way it is named.
func TestReadIn(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	secret := filepath.Join(outside, "secret.py")
	for path, text := range map[string]string{secret: "key = 1\n", filepath.Join(dir, "a.py"): "class Model: pass\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{"file.py": secret, "folder": outside, "within.py": "a.py", "nowhere.py": "gone.py"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for path, want := range map[string]string{
		"a.py": "", "within.py": "",
		"file.py": "outside of the folder", "folder/secret.py": "outside of the folder", "../secret.py": "outside of the folder", secret: "outside of the folder",
		"nowhere.py": `a link to "gone.py"`, "gone.py": "no such file", ".": "is a folder",
	} {
		f, err := ReadIn(root, path)
		if want == "" && (err != nil || f.Source != "class Model: pass\n" || f.Path != path) {
			t.Errorf("%s: %+v, %v", path, f, err)
		}
		if want != "" && (err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), outside)) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}
