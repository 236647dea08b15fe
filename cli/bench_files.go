package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kernelwright/kernelwright/daemon"
	"github.com/kernelwright/kernelwright/report"
)

// chosen returns the references that the flags leave of those that are named.
func (c chosenFlags) chosen(named []string) ([]string, error) {
	switch {
	case len(named) == 0:
		return nil, usage("no reference was named", "name a folder of references: `kernelwright bench FOLDER`")
	case c.Level != "" && c.List != "":
		return nil, usage("--level and --list were both given", "the list names references below the folder: give one of them")
	case c.Limit < 0:
		return nil, usage(fmt.Sprintf("--limit is %d", c.Limit), "it takes a whole number from 1")
	}
	for _, pattern := range c.Only {
		if _, err := filepath.Match(pattern, ""); err != nil {
			return nil, usage(fmt.Sprintf("--only: %q is no pattern", pattern), "use * and ?: 'softmax*'")
		}
	}
	var paths []string
	var err error
	if c.List != "" {
		if err = oneFolder("--list", named); err == nil {
			paths, err = inList(named[0], c.List)
		}
	} else {
		paths, err = c.ofLevels(named)
	}
	if err != nil {
		return nil, err
	}
	// What we wrote beside references is none.
	paths = slices.DeleteFunc(paths, func(path string) bool { return strings.HasSuffix(path, ".best.py") })
	if len(paths) == 0 {
		return nil, usage("there are only kernels in "+named[0], "name a folder of references")
	}
	before := len(paths)
	if paths = slices.DeleteFunc(paths, func(path string) bool { return !c.matches(path) }); len(paths) == 0 {
		return nil, usage(fmt.Sprintf("none of %d references matches --only %s", before, strings.Join(c.Only, ",")), "patterns are held against the names of files: 'softmax*', '*norm*'")
	}
	for i, path := range paths {
		if slices.Contains(paths[:i], path) {
			return nil, usage(path+" was named twice", "name each reference once")
		}
	}
	if c.Limit > 0 {
		paths = paths[:min(len(paths), c.Limit)]
	}
	return paths, nil
}

// ofLevels returns the references that are named; with a level, those of its
// subfolder, of the folder that is named or of the KernelBench in it.
func (f levelFlag) ofLevels(named []string) ([]string, error) {
	if f.Level == "" {
		return references(named)
	}
	if err := oneFolder("--level", named); err != nil {
		return nil, err
	}
	folder := named[0]
	numbers, err := listed("--level", f.Level, strconv.Atoi)
	if err != nil {
		return nil, err
	}
	var folders []string
	for _, n := range numbers {
		name := fmt.Sprintf("level%d", n)
		found := ""
		for _, path := range []string{filepath.Join(folder, name), filepath.Join(folder, "KernelBench", name)} {
			if info, err := os.Stat(path); found == "" && err == nil && info.IsDir() {
				found = path
			}
		}
		if found == "" {
			return nil, usage(fmt.Sprintf("there is no folder %s in %s", name, folder), "name KernelBench's folder, which has level1 to level4 in it, or leave --level out")
		}
		folders = append(folders, found)
	}
	return references(folders)
}

// oneFolder says what is wrong where a flag chooses within what is no folder, or
// more than one.
func oneFolder(flag string, named []string) error {
	if info, err := os.Stat(named[0]); err != nil || len(named) > 1 || !info.IsDir() {
		return usage(flag+" chooses within one folder, and "+named[len(named)-1]+" is none", "name one folder that is there, and nothing else")
	}
	return nil
}

// inList reads a list of references: paths below the folder, one a line. What
// follows a # is a comment.
func inList(folder, list string) ([]string, error) {
	text, err := os.ReadFile(list)
	if err != nil {
		return nil, usage("the list of references cannot be read: "+err.Error(), "--list names a file with a reference's path on each line")
	}
	var paths []string
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		path := filepath.Join(folder, filepath.FromSlash(line))
		info, err := os.Stat(path)
		if err != nil || info.IsDir() {
			return nil, usage(fmt.Sprintf("%s, line %d: there is no file %s", list, number, path), "its lines are paths below "+folder)
		}
		paths = append(paths, path)
	}
	if len(paths) == 0 {
		return nil, usage(list+" names no reference", "write a reference's path below "+folder+" on each line")
	}
	return paths, nil
}

// inFront is the number that KernelBench puts in front of a name.
var inFront = regexp.MustCompile(`^\d+[_-]`)

func (c chosenFlags) matches(path string) bool {
	if len(c.Only) == 0 {
		return true
	}
	name := strings.ToLower(strings.TrimSuffix(filepath.Base(path), ".py"))
	for _, pattern := range c.Only {
		pattern = strings.TrimSuffix(strings.ToLower(pattern), ".py")
		for _, form := range []string{name, inFront.ReplaceAllString(name, "")} {
			if ok, err := filepath.Match(pattern, form); ok && err == nil {
				return true
			}
		}
	}
	return false
}

// writeBench writes what a bench came to into a folder: its pages, and for each
// configuration a folder with the kernels, certificates and reports of its
// runs, which the pages link to.
func (r *room) writeBench(ctx context.Context, b *report.Bench, out string) ([]string, error) {
	ctx = context.WithoutCancel(ctx)
	if err := writableFolder(out); err != nil {
		return nil, err
	}
	folders := make([]string, len(b.References))
	for i, reference := range b.References {
		folders[i] = filepath.Dir(reference.Path)
	}
	base := daemon.Common(folders)
	below := runFolders(*b)
	var errs []error
	for i := range b.Runs {
		run := &b.Runs[i]
		if !run.Ended {
			continue
		}
		d, err := daemon.Load(ctx, r.store, run.RunID)
		if err != nil {
			return nil, err
		}
		results := daemon.Results{
			Folder: filepath.Join(out, below(run.Configuration, run.Seed)), Base: base,
			Markdown: r.config.Daemon.ReportMarkdown, HTML: r.config.Daemon.ReportHTML,
		}
		written, err := results.Write(b.References[run.Reference].Path, d)
		errs = append(errs, err)
		run.Report, run.Kernel = relative(out, written.Report()), relative(out, written.Kernel)
	}
	f := report.Figures(*b)
	var paths []string
	for _, page := range []struct {
		name  string
		write func(io.Writer, report.Bench, report.BenchFigures) error
	}{{"bench.md", report.BenchMarkdown}, {"bench.html", report.BenchHTML}} {
		var text bytes.Buffer
		if err := page.write(&text, *b, f); err != nil {
			return paths, err
		}
		path := filepath.Join(out, page.name)
		if err := daemon.WriteFile(path, text.Bytes()); err != nil {
			errs = append(errs, outError(path, err))
			continue
		}
		paths = append(paths, path)
	}
	return paths, errors.Join(errs...)
}

// writableFolder makes a folder and says why nothing can be written into it, or
// nil: before hours of work whose report goes there.
func writableFolder(dir string) error {
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		err = unix.Access(dir, unix.W_OK|unix.X_OK)
	}
	if err != nil {
		return outError(dir, err)
	}
	return nil
}

// unlikely is what has no place in a folder's name.
var unlikely = regexp.MustCompile(`[^A-Za-z0-9.]+`)

// runFolders names the folder of a configuration and a seed.
func runFolders(b report.Bench) func(configuration int, seed int64) string {
	names := report.ConfigurationNames(b.Configurations)
	return func(configuration int, seed int64) string {
		name := "kernels"
		if len(names) > 1 {
			// The number keeps apart what only other characters tell apart.
			name = fmt.Sprintf("%d-%s", configuration+1, strings.Trim(unlikely.ReplaceAllString(names[configuration], "-"), "-."))
		}
		if len(b.Seeds) > 1 {
			name = filepath.Join(name, fmt.Sprintf("seed-%d", seed))
		}
		return name
	}
}

func relative(base, path string) string {
	if path == "" {
		return ""
	}
	rel, err := filepath.Rel(base, path)
	if err != nil {
		return ""
	}
	return filepath.ToSlash(rel)
}

func outError(path string, err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	return &Error{Code: ExitFailure, Text: "cannot write " + path, Err: err, Hint: worldHint(err, "the record has everything: name another folder with --out")}
}
