package cli

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/daemon"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/task"
)

// benchReferences is the references of a bench, with their texts, and why some are no
// tasks, by their places among all.
type benchReferences struct {
	all     []kernelwright.Reference
	sources []string
	invalid map[int]*kernelwright.InvalidTaskError
}

// readReferences takes the files as they are now. Neither a Python nor a device is needed
// to see that none of them is a task.
func readReferences(paths []string) (b benchReferences, err error) {
	b.invalid = map[int]*kernelwright.InvalidTaskError{}
	folders := make([]string, len(paths))
	for i, path := range paths {
		abs, err := filepath.Abs(path)
		if err != nil {
			return b, err
		}
		paths[i], folders[i] = abs, filepath.Dir(abs)
	}
	base := daemon.Common(folders)
	for i, path := range paths {
		f, err := task.ReadReference(path)
		var invalid *kernelwright.InvalidTaskError
		if errors.As(err, &invalid) {
			b.invalid[i] = invalid
		} else if err != nil {
			return b, err
		}
		name, err := filepath.Rel(base, path)
		if err != nil {
			return b, err
		}
		b.sources = append(b.sources, f.Source)
		b.all = append(b.all, kernelwright.Reference{
			Name: filepath.ToSlash(strings.TrimSuffix(name, filepath.Ext(name))), Path: path, SHA256: kernelwright.HashText(f.Source),
		})
	}
	if len(b.invalid) < len(paths) {
		return b, nil
	}
	said := short(paths[0]) + " is invalid: " + b.invalid[0].Reason
	if n := len(paths); n > 1 {
		said = fmt.Sprintf("none of %d files is a task; the first, %s: %s", n, short(paths[0]), b.invalid[0].Reason)
	}
	return b, usage(said, b.invalid[0].Hint)
}

// invalidNamed is how many references that are no tasks are named before the bench
// begins. Its table has them all.
const invalidNamed = 5

// tell says which references are no tasks, for their texts alone.
func (b benchReferences) tell(show *progress) {
	for n, i := range slices.Sorted(maps.Keys(b.invalid)) {
		if n == invalidNamed {
			show.say(fmt.Sprintf("and %d more that are invalid", len(b.invalid)-n))
			return
		}
		show.say(fmt.Sprintf("%s is invalid: %s", report.Line(short(b.all[i].Path)), b.invalid[i].Reason))
	}
}
