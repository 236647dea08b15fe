package hwfeedback

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sync"
	"syscall"
)

// The Python that runs references and candidates, without its tests.
//
//go:embed harness/*.py harness/*.cpp harness/*.cu harness/*.h harness/*.toml harness/protocol.schema.json
var harnessFiles embed.FS

// harness is what is embedded: file name to content, and the hash over both,
// which is part of every verdict's cache key.
type harness struct {
	files map[string][]byte
	names []string // sorted
	hash  string
}

var embedded = sync.OnceValues(func() (harness, error) { return loadHarness(harnessFiles) })

func loadHarness(fsys fs.FS) (harness, error) {
	h := harness{files: map[string][]byte{}}
	sum := sha256.New()
	entries, err := fs.ReadDir(fsys, "harness") // sorted
	if err != nil {
		return h, err
	}
	for _, e := range entries {
		content, err := fs.ReadFile(fsys, path.Join("harness", e.Name()))
		if err != nil {
			return h, err
		}
		h.files[e.Name()] = content
		h.names = append(h.names, e.Name())
		fmt.Fprintf(sum, "%s %d\n", e.Name(), len(content))
		sum.Write(content)
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
		if err := os.WriteFile(filepath.Join(temp, name), h.files[name], 0o444); err != nil {
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

// intact reports whether the folder holds exactly the embedded files.
func (h harness) intact(dir string) bool {
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != len(h.names) {
		return false
	}
	for _, name := range h.names {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(content) != string(h.files[name]) {
			return false
		}
	}
	return true
}
