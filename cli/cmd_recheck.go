package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/daemon"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

type recheckCmd struct {
	Kernels []string `arg:"" optional:"" name:"kernel" help:"The task of a kernel, by name, file or fingerprint, or the number of the run that it is of; all where none is named."`
	List    bool     `help:"Only list the kernels and what is known of them on this device."`
	Again   bool     `help:"Ask again about those that did not hold."`
	deviceFlags
}

// Help is shown below the flags.
func (recheckCmd) Help() string {
	return "Takes the best certified kernel of each task from other devices (another machine's record, another GPU, another driver or PyTorch) and certifies it on this one, by the same verdict as any other. Each is a run of its own; what comes of it is kept under this device, beside what other devices said and never mixed with it. Kernels that this device was asked about are not asked about again; the same command goes on where it was stopped. Exit code 0 says that every kernel got its answer, whatever that is."
}

// Run certifies kernels of other devices on this one.
func (c recheckCmd) Run(a *app) (err error) {
	if err := a.recorded(); err != nil {
		return err
	}
	r, err := a.open(!c.List)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if _, err := c.kept(a.ctx, r, ""); err != nil { // before anything is started
		return err
	}
	show := newProgress(a.stderr)
	defer show.done()
	o := r.options(show.stage)
	o.Unmeasured, o.Lazy = c.List, c.List
	e, err := r.evaluator(a.ctx, o)
	show.done()
	if err != nil {
		return interruption(a.ctx, err)
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	device := e.Device()
	kernels, err := c.kept(a.ctx, r, device.Key)
	if err != nil {
		return err
	}
	kernels, others := ofKind(kernels, device.Kind)
	var failed error
	problems := map[int]string{} // why a kernel got no answer
	if !c.List {
		w := r.runner(e, agents{judge: silent{}})
		w.Observe = show.observe
		stopNotice := context.AfterFunc(a.ctx, func() {
			show.say(fmt.Sprintf("finishing the kernel, for at most %s; a second interrupt stops at once", r.config.Daemon.Grace))
		})
		defer stopNotice()
		failed = c.recheck(a.ctx, w, kernels, problems, show)
		show.done()
		if bad := cmp.Or(r.store.Usable(), r.lock.Usable()); bad != nil {
			return bad
		}
	}
	return tellRechecked(a, device, kernels, others, problems, failed)
}

// kept returns the kernels that are asked about, with what the device of this
// key said of them.
func (c recheckCmd) kept(ctx context.Context, r *room, device string) ([]store.Kept, error) {
	if len(c.Kernels) == 0 {
		return r.store.Kept(ctx, device, "")
	}
	var all []store.Kept
	for _, called := range c.Kernels {
		found, err := r.keptBy(ctx, called, device)
		if err != nil {
			return nil, err
		}
		for _, k := range found {
			if !slices.ContainsFunc(all, func(o store.Kept) bool { return o.RunID == k.RunID && o.Index == k.Index }) {
				all = append(all, k)
			}
		}
	}
	return all, nil
}

// keptBy returns the kernels of what people call a task or a run.
func (r *room) keptBy(ctx context.Context, called, device string) ([]store.Kept, error) {
	if id, err := strconv.ParseInt(called, 10, 64); err == nil {
		k, err := r.store.KeptOf(ctx, id, device)
		if errors.Is(err, store.ErrNotFound) {
			return nil, notFound(fmt.Sprintf("run %d has no certified kernel", id), "`kernelwright history ls` lists runs")
		}
		if err == nil && k.DeviceKey == device {
			return nil, usage(fmt.Sprintf("the kernel of run %d was certified on this device", id), "name another device with --device")
		}
		return []store.Kept{k}, err
	}
	filters, err := narrowed(called, store.RunFilter{})
	if err != nil {
		return nil, err
	}
	var all []store.Kept
	for _, f := range filters {
		worked, err := r.store.Worked(ctx, f)
		if err != nil {
			return nil, err
		}
		var tasks []string
		for _, w := range worked {
			tasks = append(tasks, w.Task)
		}
		slices.Sort(tasks)
		for _, task := range slices.Compact(tasks) {
			found, err := r.store.Kept(ctx, device, task)
			if err != nil {
				return nil, err
			}
			for _, k := range found { // another text of the task is not what was named
				if slices.ContainsFunc(worked, func(w store.Worked) bool { return w.Task == k.Task && w.Reference == k.Reference }) {
					all = append(all, k)
				}
			}
		}
		if len(worked) > 0 {
			break
		}
	}
	if len(all) == 0 {
		return nil, notFound(fmt.Sprintf("no kernel of %q was certified on another device", called), "`kernelwright history best "+called+"` says what there is")
	}
	return all, nil
}

// ofKind returns the kernels that are of this kind of device, and how many are
// not.
func ofKind(all []store.Kept, kind kernelwright.DeviceKind) (kept []store.Kept, others int) {
	for _, k := range all {
		of, _, _ := strings.Cut(k.Device, ":")
		if of == string(kind) {
			kept = append(kept, k)
		}
	}
	return kept, len(all) - len(kept)
}

// maxRecheckFailures is how many kernels in a row may get no answer before it is
// the machine.
const maxRecheckFailures = 3

// recheck asks about each kernel that was not asked about, and puts the answers
// into the kernels.
func (c recheckCmd) recheck(ctx context.Context, w *daemon.Runner, kernels []store.Kept, problems map[int]string, show *progress) error {
	var failed error
	inARow := 0
	for i, k := range kernels {
		if k.There != nil && (k.There.Verdict.Status == kernelwright.Certified || !c.Again) {
			continue
		}
		if ctx.Err() != nil {
			return errInterrupted
		}
		show.begin(k.TaskName)
		done, err := w.Recheck(ctx, k)
		if errors.Is(err, daemon.ErrStopped) || err != nil && ctx.Err() != nil {
			return errInterrupted
		}
		if errors.Is(store.Trouble(err), store.ErrDamaged) {
			return err
		}
		run := done.Data.Run
		switch {
		case err != nil:
			_, text, _ := explain(err)
			problems[i] = text
			failed = errors.Join(failed, fmt.Errorf("%s: %w", report.Line(k.TaskName), err))
			if inARow++; inARow == maxRecheckFailures {
				return failed
			}
			continue
		case run.Status == kernelwright.RunInvalid:
			problems[i] = "the reference is invalid here: " + run.Reason
		}
		inARow = 0
		rounds := done.Data.Rounds
		if len(rounds) == 0 {
			continue
		}
		verdict := rounds[0].Verdict
		if rounds[0].Certificate != nil {
			verdict = *rounds[0].Certificate
		}
		kernels[i].There = &store.Elsewhere{RunID: run.ID, Verdict: figures(verdict)}
	}
	return failed
}

// figures is the part of a verdict that a list shows.
func figures(v kernelwright.Verdict) kernelwright.Verdict {
	return kernelwright.Verdict{
		Status: v.Status, Reason: v.Reason, Level: v.Level, Task: v.Task, Device: v.Device, DeviceKey: v.DeviceKey,
		CandidateMS: v.CandidateMS, Speedup: v.Speedup, Headroom: v.Headroom,
	}
}

func tellRechecked(a *app, device kernelwright.Device, kernels []store.Kept, others int, problems map[int]string, failed error) error {
	if a.json {
		type row struct {
			store.Kept
			Problem string `json:"problem,omitempty"`
		}
		rows := []row{}
		for i, k := range kernels {
			rows = append(rows, row{k, problems[i]})
		}
		object := map[string]any{"device": device.String(), "device_key": device.Key, "kernels": rows, "other_kinds": others}
		return a.printLast(object, failed)
	}
	var b strings.Builder
	if len(kernels) == 0 {
		fmt.Fprintf(&b, "no kernel was certified on another device of the kind of %s\n", device)
	} else {
		rows := [][]string{{"task", "run", "there", "here", "time", "speedup", "against", "headroom", "why"}}
		var speedups []*kernelwright.Speedup
		for i, k := range kernels {
			cells := []string{report.Line(k.TaskName), strconv.FormatInt(k.RunID, 10), report.Milliseconds(k.MS), "not asked", "–", "–", "–", "–", report.Line(problems[i])}
			if k.There != nil {
				v := k.There.Verdict
				cells[3], cells[4], cells[5], cells[6], cells[7] = words(v.Status), report.Milliseconds(v.CandidateMS), report.Speedup(v.Speedup), report.Against(v.Speedup), report.Percent(v.Headroom)
				if !v.Status.OK() {
					cells[8] = report.Line(v.Reason)
				}
				speedups = append(speedups, v.Speedup)
			}
			rows = append(rows, cells)
		}
		if err := report.Columns(&b, rows, map[int]bool{0: true, 3: true, 6: true, 8: true}); err != nil {
			return err
		}
		b.WriteString(legend(speedups))
	}
	if others > 0 {
		fmt.Fprintf(&b, "not asked about: %d of other kinds of device than %s, for which they are not written\n", others, device.Kind)
	}
	return cmp.Or(a.printf("%s", b.String()), failed)
}
