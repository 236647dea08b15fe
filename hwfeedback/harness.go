package hwfeedback

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// The Python that runs references and candidates, without its tests.
//
//go:embed harness/kernelwright.py harness/kwharness/*.py harness/kwharness/*/*.py
//go:embed harness/kwharness/*/*.cpp harness/kwharness/*/*.cu harness/kwharness/*/*.h harness/kwharness/*/*.toml harness/kwharness/*/*.json
//go:embed harness/kwharness/build/include/kw/*.h
var harnessFiles embed.FS

// harness is what is embedded: path below the folder to content, and the hash over
// both, which is part of every verdict's cache key. The headers that candidates
// include are among it.
type harness struct {
	files map[string][]byte
	names []string // sorted
	hash  string
}

// forkServerScript is where the fork server is in it.
const forkServerScript = "kwharness/process/forkserver.py"

var embedded = sync.OnceValues(func() (harness, error) { return loadHarness(harnessFiles) })

func loadHarness(fsys fs.FS) (harness, error) {
	h := harness{files: map[string][]byte{}}
	sum := sha256.New()
	err := fs.WalkDir(fsys, "harness", func(at string, e fs.DirEntry, err error) error { // sorted
		if err != nil || e.IsDir() {
			return err
		}
		content, err := fs.ReadFile(fsys, at)
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(at, "harness/")
		h.files[name] = content
		h.names = append(h.names, name)
		fmt.Fprintf(sum, "%s %d\n", name, len(content))
		sum.Write(content)
		return nil
	})
	if err != nil {
		return h, err
	}
	h.hash = hex.EncodeToString(sum.Sum(nil))[:16]
	return h, nil
}

func (h harness) folder(dataDir string) string { return filepath.Join(dataDir, "harness", h.hash) }

// unpack returns the folder <data>/harness/<hash> with the harness in it. The
// folder appears whole or not at all, so processes that start together need
// no lock. Folders of other versions stay: another process may run from them.
func (h harness) unpack(dataDir string) (string, error) {
	target := h.folder(dataDir)
	parent := filepath.Dir(target)
	if h.intact(target) {
		return target, nil
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", fmt.Errorf("unpack the harness: %w", err)
	}
	temp, err := os.MkdirTemp(parent, ".unpack-")
	if err != nil {
		return "", fmt.Errorf("unpack the harness: %w", err)
	}
	defer func() { _ = os.RemoveAll(temp) }() // what stays behind is only space
	for _, name := range h.names {
		at := filepath.Join(temp, filepath.FromSlash(name))
		if err := makeFolders(temp, path.Dir(name)); err != nil {
			return "", fmt.Errorf("unpack the harness: %w", err)
		}
		if err := os.WriteFile(at, h.files[name], 0o444); err != nil {
			return "", fmt.Errorf("unpack the harness: %w", err)
		}
	}
	// Workers may run as another user, who needs to read this.
	if err := os.Chmod(temp, 0o755); err != nil {
		return "", fmt.Errorf("unpack the harness: %w", err)
	}
	for range 3 {
		if err = os.Rename(temp, target); err == nil || h.intact(target) {
			return target, nil
		}
		if !errors.Is(err, fs.ErrExist) && !errors.Is(err, syscall.ENOTEMPTY) {
			break
		}
		// Somebody changed a file in it, or a disk did. Out of the way with it.
		if moved, e := os.MkdirTemp(parent, ".damaged-"); e == nil {
			_ = os.Rename(target, filepath.Join(moved, h.hash)) // or another process was faster
			_ = os.RemoveAll(moved)
		}
	}
	return "", fmt.Errorf("unpack the harness: %w", err)
}

// makeFolders makes a folder below another one, and those on the way to it, which
// workers may read whatever the umask is.
func makeFolders(root, name string) error {
	if name == "." {
		return nil
	}
	if err := makeFolders(root, path.Dir(name)); err != nil {
		return err
	}
	at := filepath.Join(root, filepath.FromSlash(name))
	if err := os.Mkdir(at, 0o755); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	}
	return os.Chmod(at, 0o755)
}

// intact reports whether the folder holds exactly the embedded files.
func (h harness) intact(dir string) bool {
	found := 0
	err := filepath.WalkDir(dir, func(at string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, at)
		if err != nil {
			return err
		}
		want, ours := h.files[filepath.ToSlash(name)]
		content, err := os.ReadFile(at)
		if err != nil || !ours || !bytes.Equal(content, want) {
			return fs.ErrInvalid
		}
		found++
		return nil
	})
	return err == nil && found == len(h.names)
}
