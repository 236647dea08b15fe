package forge

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/task"
)

// Bounds of a work folder. A candidate is a few files of some kilobytes.
const (
	maxFiles       = 64
	maxFileBytes   = 128 << 10
	maxFolderBytes = 1 << 20
	maxPathBytes   = 120
	maxPathDepth   = 4
)

// The files of a work folder that are given. loaderFile stands for the module
// that candidates import: an evaluation brings the real one.
const (
	referenceFile = "reference.py"
	loaderFile    = "kernelwright.py"
	modelFile     = "model_new.py"
)

var pathForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.+-]*(/[A-Za-z0-9_][A-Za-z0-9_.+-]*)*$`)

// workFiles is a folder that is nowhere on a disk: no path that a model writes
// ever names a file of this machine.
type workFiles struct {
	files map[string]string
	fixed map[string]bool
	size  int
}

func newWorkFiles(t kernelwright.Task) workFiles {
	return workFiles{
		files: map[string]string{referenceFile: t.Source, loaderFile: loaderText},
		fixed: map[string]bool{referenceFile: true, loaderFile: true},
	}
}

// clean returns a path as the folder has it, or one sentence on what is wrong
// with it.
func clean(p string) (string, string) {
	shown := bounded(p, maxPathBytes)
	switch {
	case p == "":
		return "", "the path is empty: name a file, such as " + modelFile
	case strings.HasPrefix(p, "/"):
		return "", fmt.Sprintf("%q is an absolute path: name files by their path in the work folder, such as %s", shown, modelFile)
	case slices.Contains(strings.Split(p, "/"), ".."):
		return "", fmt.Sprintf("%q leads out of the work folder: name a file in it, such as %s", shown, modelFile)
	case len(p) > maxPathBytes:
		return "", fmt.Sprintf("the path has %d characters: %d at most", len(p), maxPathBytes)
	}
	p = path.Clean(p)
	if !pathForm.MatchString(p) {
		return "", fmt.Sprintf("%q is no path here: use letters, digits, _ . + - and /, and no name that begins with a dot", shown)
	}
	if strings.Count(p, "/") >= maxPathDepth {
		return "", fmt.Sprintf("%q is too deep: %d names at most", shown, maxPathDepth)
	}
	return p, ""
}

// read returns a file, or one sentence on why there is none.
func (w *workFiles) read(name string) (string, string, string) {
	p, complaint := clean(name)
	if complaint != "" {
		return "", "", complaint
	}
	text, ok := w.files[p]
	if !ok {
		return p, "", fmt.Sprintf("there is no file %s: the folder has %s", p, strings.Join(w.names(), ", "))
	}
	return p, text, ""
}

// write puts a file into the folder, or says in one sentence why not.
func (w *workFiles) write(name, text string) (string, string) {
	p, complaint := clean(name)
	if complaint != "" {
		return "", complaint
	}
	old, there := w.files[p]
	top, _, _ := strings.Cut(p, "/")
	for fixed := range w.fixed {
		if p == fixed || top == fixed || top == strings.TrimSuffix(fixed, path.Ext(fixed)) {
			return p, fmt.Sprintf("%s is protected and stays as it is: put the candidate into %s", fixed, modelFile)
		}
	}
	for other := range w.files {
		if strings.HasPrefix(other, p+"/") || strings.HasPrefix(p, other+"/") {
			return p, fmt.Sprintf("%s cannot be a file: there is %s", p, other)
		}
	}
	switch {
	case len(text) > maxFileBytes:
		return p, fmt.Sprintf("%s would have %d bytes: %d at most", p, len(text), maxFileBytes)
	case w.size-len(old)+len(text) > maxFolderBytes:
		return p, fmt.Sprintf("the folder would hold more than %d bytes: shorten what is in it", maxFolderBytes)
	case !there && len(w.files) >= maxFiles:
		return p, fmt.Sprintf("the folder has %d files, which is the most: use one that is there", maxFiles)
	}
	w.files[p] = text
	w.size += len(text) - len(old)
	return p, ""
}

func (w *workFiles) names() []string {
	names := make([]string, 0, len(w.files))
	for name := range w.files {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// candidate returns what the folder's files make, or one sentence on why that is
// no candidate.
func (a *actor) candidate() (kernelwright.Candidate, string) {
	f, err := task.JoinFiles(a.folder.files)
	var invalid *kernelwright.InvalidTaskError
	if errors.As(err, &invalid) {
		return kernelwright.Candidate{}, fmt.Sprintf("the folder holds no candidate: %s; %s", invalid.Reason, invalid.Hint)
	}
	if err != nil {
		return kernelwright.Candidate{}, fmt.Sprintf("the folder holds no candidate: %v", err)
	}
	return kernelwright.Candidate{Source: f.Source, Language: a.language(), Origin: cmp.Or(a.author, a.Model.Name())}, ""
}

// language is what candidates are written in where the settings leave it open.
func (a *actor) language() kernelwright.Language {
	if a.settings.Language != "" {
		return a.settings.Language
	}
	return kernelwright.LanguagesOn(a.Device.Kind)[0]
}
