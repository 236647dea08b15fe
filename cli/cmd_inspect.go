package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/task"
)

type inspectCmd struct {
	References []string `arg:"" name:"reference" help:"Reference files, and folders of them." type:"path" predictor:"file"`
	levelFlag
	deviceFlags
}

// Help is shown below the flags.
func (inspectCmd) Help() string {
	return "Reads each reference, runs it on the device, and says what it is: eager's time, the bytes that it moves at least and the operations that it takes, its operators, and what needs care, or why it is invalid, no task. Folders are read with those in them. What was inspected before, on the same bytes, is remembered: a long list may be interrupted and goes on. On several devices (cuda:all) each takes the next; one that fails is left, and the others go on. With --json one object a line. Exit code 0, whatever the references are."
}

// inspected is what is said of one reference.
type inspected struct {
	File        string                    `json:"file"`
	Status      kernelwright.Status       `json:"status,omitempty"` // invalid where it is no task
	Fingerprint string                    `json:"fingerprint,omitempty"`
	EagerMS     float64                   `json:"eager_ms" unknown:"0"`
	Inputs      []kernelwright.TensorSpec `json:"inputs,omitempty"`
	Outputs     []kernelwright.TensorSpec `json:"outputs,omitempty"`
	Operators   []string                  `json:"operators,omitempty"`
	Operations  int64                     `json:"operations"`
	LeastBytes  int64                     `json:"least_bytes" unknown:"0"`
	Flags       []kernelwright.TaskFlag   `json:"flags,omitempty"`
	Notes       []string                  `json:"notes,omitempty"`
	Reason      string                    `json:"reason,omitempty"` // why it is no task
	Hint        string                    `json:"hint,omitempty"`
	Seconds     float64                   `json:"seconds"`
}

// Run inspects them, one at a time on each device.
func (c inspectCmd) Run(a *app) (err error) {
	a.lines = true
	paths, err := c.ofLevels(c.References)
	if err != nil {
		return err
	}
	r, err := a.open(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	show := newProgress(a.stderr)
	defer show.done()
	o := r.options(show.stage)
	o.KeepWarm, o.Lazy = r.config.Evaluation.KeepWarm.Std(), true
	devices := []inspector{unneeded{}}
	if slices.ContainsFunc(paths, mayBeTask) {
		var es []*hwfeedback.Evaluator
		if es, err = r.evaluators(a.ctx, o); err != nil {
			return interruption(a.ctx, err)
		}
		defer func() { err = errors.Join(err, closeAll(es)) }()
		devices = nil
		for _, e := range es {
			devices = append(devices, r.bounded(e))
		}
	}
	width := 0
	for _, p := range paths {
		width = max(width, len(report.Line(filepath.Base(p))))
	}
	begun, valid, flagged := time.Now(), 0, 0
	leave := func(d inspector, err error) {
		fmt.Fprintf(lines{show}, "%s inspects no more references, the others go on: %s\n", d.Device().String(), report.Line(err.Error()))
	}
	err = inspectAll(a.ctx, devices, paths, func(path string) { show.begin(filepath.Base(path)) }, leave, func(found inspected) error {
		if found.Reason == "" {
			valid++
		}
		if len(found.Flags) > 0 {
			flagged++
		}
		show.done()
		if a.json {
			return a.printLine(found)
		}
		return a.printf("%-*s  %s\n", width, report.Line(filepath.Base(found.File)), found.line())
	})
	if err != nil {
		return interruption(a.ctx, err)
	}
	if a.json || len(paths) == 1 {
		return nil
	}
	return a.printf("\nreferences: %d; tasks: %d, of which to be taken with care: %d; invalid: %d; in %s\n",
		len(paths), valid, flagged, len(paths)-valid, time.Since(begun).Round(100*time.Millisecond))
}

// inspector is a device, as far as references are inspected on it.
type inspector interface {
	Device() kernelwright.Device
	Inspect(ctx context.Context, name, source string) (kernelwright.Task, error)
}

// mayBeTask tells whether a file's text does not say already that it is no task.
func mayBeTask(path string) bool {
	_, err := task.ReadReference(path)
	return !errors.As(err, new(*kernelwright.InvalidTaskError))
}

// unneeded is the device of files none of which may be a task.
type unneeded struct{}

func (unneeded) Device() kernelwright.Device { return kernelwright.Device{} }

func (unneeded) Inspect(context.Context, string, string) (kernelwright.Task, error) {
	return kernelwright.Task{}, &kernelwright.InfrastructureError{Op: readingTheReference, Err: errors.New("the file was changed meanwhile: give the command again")}
}

// inspectAll has each device take the next reference, and tells what was found in
// the references' order. A device that fails is left, and another takes its
// reference. It ends with the error of the last one, with any other, or yield's.
func inspectAll(ctx context.Context, devices []inspector, paths []string, begin func(path string), leave func(inspector, error), yield func(inspected) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	type outcome struct {
		found inspected
		err   error
	}
	outcomes := make([]chan outcome, len(paths))
	for i := range outcomes {
		outcomes[i] = make(chan outcome, 1)
	}
	todo, again := make(chan int, len(paths)), make(chan int, len(devices)) // again comes first
	for i := range paths {
		todo <- i
	}
	next := func() (int, bool) {
		if ctx.Err() != nil {
			return 0, false
		}
		select {
		case i := <-again:
			return i, true
		default:
		}
		select {
		case i := <-again:
			return i, true
		case i := <-todo:
			return i, true
		case <-ctx.Done():
			return 0, false
		}
	}
	var left atomic.Int64
	left.Store(int64(len(devices)))
	none := make(chan error, 1) // told when no device is left
	for _, d := range devices {
		all.Go(func() {
			for i, more := next(); more; i, more = next() {
				begin(paths[i])
				found, err := inspect(ctx, d, paths[i])
				if !ofTheDevice(ctx, err) {
					outcomes[i] <- outcome{found, err}
					continue
				}
				if left.Add(-1) == 0 {
					none <- err
					return
				}
				leave(d, err)
				again <- i
				return
			}
		})
	}
	for _, o := range outcomes {
		var got outcome
		select {
		case got = <-o:
		case err := <-none:
			none <- err
			select {
			case got = <-o: // what was found before is told first
			default:
				return err
			}
		}
		if got.err != nil {
			return got.err
		}
		if err := yield(got.found); err != nil {
			return err
		}
	}
	return nil
}

// ofTheDevice tells whether an error says nothing of the reference, nor that
// nobody waits any more: another device may do better.
func ofTheDevice(ctx context.Context, err error) bool {
	var infra *kernelwright.InfrastructureError
	return ctx.Err() == nil && errors.As(err, &infra)
}

// inspect says of one reference what it is. An error is no fault of its.
func inspect(ctx context.Context, d inspector, path string) (inspected, error) {
	since := time.Now()
	found := inspected{File: path}
	reference, err := task.ReadReference(path)
	var t kernelwright.Task
	if err == nil {
		t, err = d.Inspect(ctx, reference.Name, reference.Source)
	}
	found.Seconds = time.Since(since).Seconds()
	var invalid *kernelwright.InvalidTaskError
	switch {
	case errors.As(err, &invalid):
		found.Status, found.Reason, found.Hint = kernelwright.Invalid, invalid.Reason, invalid.Hint
		return found, nil
	case err != nil:
		return found, err
	}
	found.Fingerprint, found.EagerMS, found.Inputs, found.Outputs = t.Fingerprint, t.EagerMS, t.Inputs, t.Outputs
	found.Operators, found.Operations, found.LeastBytes = t.Operators, t.Operations, t.LeastBytes
	found.Flags, found.Notes = t.Flags, t.Notes
	return found, nil
}

// line says it in one line.
func (i inspected) line() string {
	if i.Reason != "" {
		return words(i.Status) + ": " + lower(report.Line(i.Reason))
	}
	said := fmt.Sprintf("eager %9s  %9s  %s", report.Milliseconds(i.EagerMS), report.ByteSize(i.LeastBytes), report.Line(operatorsInShort(i.Operators)))
	for _, f := range i.Flags {
		said += "; take care: " + report.FlagText(f)
	}
	return said
}

// shownOperators is how many kinds of operator are named of a reference.
const shownOperators = 4

// operatorsInShort names the kinds of operators in their order, each once.
func operatorsInShort(operators []string) string {
	var kinds []string
	for _, o := range operators {
		if o = strings.TrimPrefix(o, "aten."); !slices.Contains(kinds, o) {
			kinds = append(kinds, o)
		}
	}
	if more := len(kinds) - shownOperators; more > 0 {
		return strings.Join(kinds[:shownOperators], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(kinds, ", ")
}

// references returns the files that are named, and those of folders, in the
// order in which people number them.
func references(named []string) ([]string, error) {
	var out []string
	for _, path := range named {
		info, err := os.Stat(path)
		if err != nil {
			return nil, usage("there is no file "+path, "name reference files, or folders of them")
		}
		if !info.IsDir() {
			out = append(out, path)
			continue
		}
		var found []string
		err = filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			hidden := strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "__")
			if d.IsDir() && hidden && p != path {
				return filepath.SkipDir
			}
			if !d.IsDir() && !hidden && filepath.Ext(p) == ".py" {
				found = append(found, p)
			}
			return nil
		})
		if err != nil {
			return nil, usage("the folder cannot be read: "+err.Error(), "name reference files, or folders of them")
		}
		if len(found) == 0 {
			return nil, usage("there is no *.py file in "+path, "name reference files, or folders of them")
		}
		slices.SortFunc(found, numbered)
		out = append(out, found...)
	}
	return out, nil
}

var numberOrText = regexp.MustCompile(`\d+|\D+`)

// numbered compares paths so that 2_x comes before 10_x.
func numbered(a, b string) int {
	x, y := numberOrText.FindAllString(a, -1), numberOrText.FindAllString(b, -1)
	for i := range min(len(x), len(y)) {
		m, errM := strconv.ParseUint(x[i], 10, 64)
		n, errN := strconv.ParseUint(y[i], 10, 64)
		order := strings.Compare(x[i], y[i])
		if errM == nil && errN == nil {
			order = cmp.Or(cmp.Compare(m, n), order)
		}
		if order != 0 {
			return order
		}
	}
	return cmp.Compare(len(x), len(y))
}
