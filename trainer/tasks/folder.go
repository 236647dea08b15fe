package tasks

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/kernelwright/kernelwright/internal/wholefile"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/task"
)

// IndexFile is the name of a set's index: a Task on each line.
const IndexFile = "index.jsonl"

// Folder is where a set's files lie.
func Folder(dataDir, set string) string { return filepath.Join(dataDir, "tasks", set) }

// fileName is a task's file within its set.
func fileName(t Task) string {
	name := strings.Join(t.Kinds, "_")
	if name = name[:min(len(name), 60)]; name == "" {
		name = "task"
	}
	return filepath.Join(string(t.Split), fmt.Sprintf("%d_%s.py", t.Index, name))
}

// WriteTask writes the file of a task.
func WriteTask(folder string, t Task, source string) error {
	path := filepath.Join(folder, t.File)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return wholefile.Write(path, []byte(source))
}

// WriteFolder writes the files of a set and its index. Files of splits that are
// none of them are removed, other files stay.
func WriteFolder(folder string, all []Task) error {
	var index bytes.Buffer
	belong := map[string]bool{}
	for _, t := range all {
		if err := WriteTask(folder, t, t.Source); err != nil {
			return err
		}
		belong[filepath.Join(folder, t.File)] = true
		line, err := json.Marshal(t)
		if err != nil {
			return err
		}
		index.Write(append(line, '\n'))
	}
	for _, split := range store.Splits {
		files, err := filepath.Glob(filepath.Join(folder, string(split), "[0-9]*_*.py"))
		if err != nil {
			return err
		}
		for _, path := range files {
			if !belong[path] {
				if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
					return err
				}
			}
		}
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	return wholefile.Write(filepath.Join(folder, IndexFile), index.Bytes())
}

// ReadProtected reads the references at paths, files and folders of them. Python
// files without a class Model are passed over.
func ReadProtected(paths []string) ([]Protected, error) {
	var all []Protected
	for _, path := range paths {
		before := len(all)
		err := filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() || filepath.Ext(p) != ".py" {
				return nil
			}
			f, err := task.Read(p)
			if err != nil {
				return fmt.Errorf("%s: %w", p, err)
			}
			if strings.Contains(f.Source, "class Model") && strings.Contains(f.Source, "def forward") {
				all = append(all, Protected{p, f.Source})
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("the protected path %s cannot be read: %w", path, err)
		}
		if len(all) == before {
			return nil, fmt.Errorf("the protected path %s holds no reference: no *.py file with a class Model", path)
		}
	}
	return all, nil
}
