package cli

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/task"
)

type baselineCmd struct {
	Add    baselineAddCmd    `cmd:"" help:"Have candidates for a reference held against a kernel of yours, too."`
	Ls     baselineLsCmd     `cmd:"" help:"List the kernels that were added."`
	Remove baselineRemoveCmd `cmd:"" help:"Hold candidates against one of them no longer."`
}

type baselineAddCmd struct {
	Reference string `arg:"" help:"The reference file." type:"path" predictor:"file"`
	File      string `arg:"" help:"The kernel: a file that defines ModelNew." type:"path" predictor:"file"`
	Name      string `help:"What verdicts call it." required:"" placeholder:"NAME"`
	deviceFlags
}

// Help is shown below the flags.
func (baselineAddCmd) Help() string {
	return "The file is what a candidate is, and is held to the same verdict at certify: it is added if that is certified. From then on every verdict on this reference, on this kind of device, measures it beside eager and the compiled forms; the headline is against the fastest of all. Adding another file under a name puts it in that one's place."
}

var baselineName = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,31}$`)

// Run evaluates the kernel and registers it.
func (c baselineAddCmd) Run(a *app) (err error) {
	if err := checkBaselineName(c.Name); err != nil {
		return err
	}
	e := evalCmd{Reference: c.Reference, Candidates: []string{c.File}, Level: string(kernelwright.Certify), deviceFlags: c.deviceFlags}
	paths, err := e.candidates()
	if err != nil {
		return err
	}
	r, err := a.open(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	var v outcome
	err = e.verdicts(a, r, paths, func(_ string, reached outcome) error { v = reached; return nil })
	if err != nil {
		return cutShort(a.ctx, err)
	}
	v.Exported = ""
	if v.Status != kernelwright.Certified {
		if !a.json {
			err = v.print(a)
		}
		hint := "what candidates are held against must be right: mend it, and add it again"
		return errors.Join(err, &Error{Code: ExitFailure, Text: fmt.Sprintf("%s is no baseline: it is %s: %s", c.File, words(v.Status), lower(report.Line(v.Reason))), Hint: hint})
	}
	reference, err := task.Read(c.Reference)
	if err != nil {
		return err
	}
	kernel, err := task.ReadCandidate(c.File)
	if err != nil {
		return err
	}
	if kernelwright.HashText(kernel.Source) != v.Candidate {
		return &Error{Code: ExitFailure, Text: c.File + " was changed while it was evaluated", Hint: "add it again"}
	}
	path, err := filepath.Abs(c.File)
	if err != nil {
		return err
	}
	b := newBaseline(c.Name, kernelwright.Task{Name: reference.Name, Source: reference.Source}, path, kernel.Source, v.Verdict)
	before, err := r.store.Baselines(a.ctx, b.Task, b.Device)
	if err != nil {
		return err
	}
	if err := r.store.SaveBaseline(a.ctx, b); err != nil {
		return err
	}
	if a.json {
		b.Source = ""
		return a.printJSON(b)
	}
	if err := v.print(a); err != nil {
		return err
	}
	said := "added"
	if slices.ContainsFunc(before, func(o store.Baseline) bool { return o.Name == c.Name }) {
		said = "put in the place of the one of that name"
	}
	return a.printf("%s is %s: candidates for %s are held against it on this kind of device (%s)\n", c.Name, said, report.Line(reference.Name), b.Device)
}

func checkBaselineName(name string) error {
	if !baselineName.MatchString(name) {
		return usage(fmt.Sprintf("a baseline cannot be named %q", name), "a name has small letters, digits, - _ and . and up to 32 of them")
	}
	if slices.Contains(hwfeedback.GPUBaselines, name) {
		return usage(fmt.Sprintf("%q is one of the baselines that are always there", name), "give it a name of its own")
	}
	return nil
}

// newBaseline is the record of a program that this verdict certified for a task.
func newBaseline(name string, t kernelwright.Task, path, source string, v kernelwright.Verdict) store.Baseline {
	kind := kernelwright.CUDADevice
	if v.Device == string(kernelwright.CPUDevice) {
		kind = kernelwright.CPUDevice
	}
	return store.Baseline{
		NamedBaseline: kernelwright.NamedBaseline{Name: name, Source: source, Language: v.Language},
		Task:          v.Task, Reference: kernelwright.HashText(t.Source), TaskName: t.Name, Device: kind, DeviceKey: v.DeviceKey,
		Path: path, Status: v.Status, CandidateMS: v.CandidateMS,
	}
}

type baselineLsCmd struct {
	Task string `arg:"" optional:"" help:"Only of the task of this name, reference file or fingerprint."`
}

// Run lists what was added.
func (c baselineLsCmd) Run(a *app) (err error) {
	r, err := a.openRecord()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	found, err := r.baselines(a, c.Task)
	if err != nil {
		return err
	}
	if a.json {
		for i := range found {
			found[i].Source = ""
		}
		return a.printJSON(map[string]any{"baselines": append([]store.Baseline{}, found...)})
	}
	if len(found) == 0 {
		return a.printf("no baselines were added\n")
	}
	rows := [][]string{{"task", "name", "device", "language", "time", "added", "file", "fingerprint"}}
	now := time.Now()
	for _, b := range found {
		rows = append(rows, []string{report.Line(b.TaskName), b.Name, string(b.Device), report.Line(string(b.Language)), report.Milliseconds(b.CandidateMS), ago(b.AddedMS, now), report.Line(b.Path), b.Task[:min(12, len(b.Task))]})
	}
	return ignoreClosed(report.Columns(a.stdout, rows, map[int]bool{0: true, 1: true, 2: true, 3: true, 5: true, 6: true, 7: true}))
}

type baselineRemoveCmd struct {
	Task string `arg:"" help:"The task: its name, reference file or fingerprint."`
	Name string `help:"Which one." required:"" placeholder:"NAME"`
}

// Run forgets a baseline.
func (c baselineRemoveCmd) Run(a *app) (err error) {
	r, err := a.open(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	found, err := r.baselines(a, c.Task)
	if err != nil {
		return err
	}
	found = slices.DeleteFunc(found, func(b store.Baseline) bool { return b.Name != c.Name })
	if len(found) == 0 {
		return notFound(fmt.Sprintf("no baseline %s was added for %s", c.Name, c.Task), "`kernelwright baseline ls` lists them")
	}
	for _, b := range found[1:] {
		if b.Task != found[0].Task {
			return usage(fmt.Sprintf("%s names several tasks that have a baseline %s", c.Task, c.Name), "name one by its fingerprint: `kernelwright baseline ls` lists them")
		}
	}
	for _, b := range found {
		if err := r.store.RemoveBaseline(a.ctx, b.Task, b.Device, b.Name); err != nil {
			return err
		}
	}
	return a.printf("%s is a baseline of %s no longer\n", c.Name, report.Line(found[0].TaskName))
}

// baselines returns those of what people call a task, or all.
func (r *room) baselines(a *app, called string) ([]store.Baseline, error) {
	all, err := r.store.Baselines(a.ctx, "", "")
	if err != nil || called == "" {
		return all, err
	}
	name := strings.TrimSuffix(filepath.Base(called), filepath.Ext(called))
	return slices.DeleteFunc(all, func(b store.Baseline) bool {
		byFingerprint := len(called) >= 6 && strings.HasPrefix(b.Task, called)
		return !byFingerprint && b.TaskName != called && b.TaskName != name
	}), nil
}
