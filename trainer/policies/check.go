package policies

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// ChangedError says that a policy's folder is not as it was recorded. Such a policy is
// never served.
type ChangedError struct {
	Policy Policy
	What   string // "model.safetensors has another content"
}

func (e *ChangedError) Error() string {
	return fmt.Sprintf("the folder of policy %s was changed: %s", e.Policy.Name(), e.What)
}

// Hint says what to do.
func (e *ChangedError) Hint() string {
	return "add a copy of what it was, which mends the folder; what it is now can be added as a version of its own from a copy of " + e.Policy.Folder
}

// Check reads every byte of a policy's folder and holds it against what was recorded: a
// *ChangedError where anything differs. A gigabyte takes about a second.
func (r *Registry) Check(ctx context.Context, p Policy) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := changed(p.Folder, p.files)
	var differs *differs
	if errors.As(err, &differs) {
		return &ChangedError{p, differs.what}
	}
	return err
}

// differs says how a folder differs.
type differs struct{ what string }

func (e *differs) Error() string { return e.what }

// changed says how a folder differs from files: *differs.
func changed(folder string, files []file) error {
	want := map[string]file{}
	for _, f := range files {
		want[f.Name] = f
	}
	err := filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, err := filepath.Rel(folder, path)
		if err != nil {
			return err
		}
		name := filepath.ToSlash(rel)
		f, known := want[name]
		if !known {
			return &differs{name + " was not in it"}
		}
		if !e.Type().IsRegular() {
			return &differs{name + " is no file any more"}
		}
		found, err := hashed(path)
		if err != nil {
			return err
		}
		if found.Bytes != f.Bytes || found.SHA256 != f.SHA256 {
			return &differs{name + " has another content"}
		}
		delete(want, name)
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return &differs{"it is not there"}
	}
	if err != nil {
		return err
	}
	for _, f := range files {
		if _, left := want[f.Name]; left {
			return &differs{f.Name + " is not there"}
		}
	}
	return nil
}

// hashed is a file without its name.
func hashed(path string) (file, error) {
	f, err := os.Open(path)
	if err != nil {
		return file{}, err
	}
	defer f.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, f)
	return file{Bytes: n, SHA256: hex.EncodeToString(sum.Sum(nil))}, err
}
