package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

// Guest is a run whose agent is outside of this process and holds the loop
// itself: it asks for one verdict after another and says when it is done. In the
// record it is a run like any other. Its methods must not overlap.
type Guest struct {
	subject
	runner *Runner
	rounds *forge.Rounds
	lock   *Lock
}

// Host returns the open run of Request.Guest on the task, as Find does, or begins
// one. Resumed says that it was there.
func (r *Runner) Host(ctx context.Context, q Request) (g *Guest, resumed bool, err error) {
	for {
		g, err := r.Find(ctx, q)
		if !errors.Is(err, store.ErrNotFound) {
			return g, true, err
		}
		fresh, err := r.guestRun(ctx, q)
		if err != nil {
			return nil, false, err
		}
		run, err := r.begin(ctx, fresh, q)
		if err != nil {
			return nil, false, err
		}
		if g, err = r.join(ctx, run.ID, q); g != nil || err != nil {
			return g, false, err
		}
		// Another process found it between these two steps.
	}
}

// Find returns the open run of Request.Guest on the task, with the same settings,
// to go on with it, or store.ErrNotFound. The reference's text decides, not where
// it lies: a request without a path goes on with a run that has one, and one with a
// path gives it to a run that has none. Runs that another process works on, or that
// were begun with other versions, are left as they are.
func (r *Runner) Find(ctx context.Context, q Request) (*Guest, error) {
	fresh, err := r.guestRun(ctx, q)
	if err != nil {
		return nil, err
	}
	open, err := r.Store.Runs(ctx, store.RunFilter{Task: fresh.Task, DeviceKey: fresh.DeviceKey, Status: kernelwright.RunRunning})
	if err != nil {
		return nil, err
	}
	for _, old := range open {
		if !sameRequest(old, fresh) || q.Path != "" && old.Path != "" && q.Path != old.Path {
			continue
		}
		if source, err := r.reference(ctx, old); err != nil || source != q.Source {
			continue
		}
		rounds, err := r.Store.Rounds(ctx, old.ID)
		if err != nil {
			return nil, err
		}
		if !r.current(rounds) {
			continue
		}
		if g, err := r.join(ctx, old.ID, q); g != nil || err != nil {
			return g, err
		}
	}
	return nil, store.ErrNotFound
}

// guestRun is the record of a request that can be found again from its first
// moment on.
func (r *Runner) guestRun(ctx context.Context, q Request) (kernelwright.Run, error) {
	run := r.newRun(q)
	task, err := r.Evaluator.Inspect(ctx, q.Name, q.Source)
	if err != nil {
		return run, err
	}
	device := r.Evaluator.Device()
	run.Task, run.Device, run.DeviceKey = task.Fingerprint, device.String(), device.Key
	return run, nil
}

// join takes an open run, unless another process has it or it has ended.
func (r *Runner) join(ctx context.Context, id int64, q Request) (_ *Guest, err error) {
	lock, err := HoldGuest(r.folder(), id, r.clock().Now())
	if errors.As(err, new(*HeldError)) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	g := &Guest{runner: r, lock: lock}
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.Release())
		}
	}()
	run, err := r.Store.Run(ctx, id)
	if err != nil {
		return nil, err
	}
	if run.Status != kernelwright.RunRunning {
		g.run = run
		return nil, g.leave()
	}
	if run.Path == "" && q.Path != "" {
		run.Path, run.TaskName = q.Path, q.Name
	}
	source, err := r.reference(ctx, run)
	if err != nil {
		return nil, err
	}
	if g.subject, err = r.prepare(ctx, run, source); err != nil {
		return nil, err
	}
	g.rounds = &forge.Rounds{Parts: forge.Parts{
		Judge: r.Judge, Evaluator: r.Evaluator, Recorder: r.Store, Device: g.device, Settings: g.settings, Lessons: g.lessons,
		Now: r.clock().Now, Observe: r.Observe,
	}}
	return g, nil
}

// Reference is the text that the run is about.
func (g *Guest) Reference() string { return g.task.Source }

// Run is the run as it was when it was taken.
func (g *Guest) Run() kernelwright.Run { return g.run }

// Round has a candidate evaluated and records it as the next round. After any error
// nothing of it is recorded, and the run can go on.
func (g *Guest) Round(ctx context.Context, c kernelwright.Candidate) (kernelwright.Round, error) {
	if err := g.runner.Store.Usable(); err != nil {
		return kernelwright.Round{}, err
	}
	c.Origin = g.run.Coder
	return g.rounds.Step(ctx, g.run, g.task, c)
}

// Certify has the candidate of a round certified, or where index is negative the
// fastest first until one is. Nil: none was.
func (g *Guest) Certify(ctx context.Context, index int) (*kernelwright.Round, error) {
	if err := g.runner.Store.Usable(); err != nil {
		return nil, err
	}
	return g.rounds.Certify(ctx, g.run, g.task, index)
}

// Data is the run as it stands.
func (g *Guest) Data(ctx context.Context) (report.Data, error) {
	return Load(ctx, g.runner.Store, g.run.ID)
}

// Finish ends the run and writes its results as those of the reference at path.
// Nothing else may be called then, but for Close.
func (g *Guest) Finish(ctx context.Context, results Results, path string) (Done, error) {
	run := g.run
	run.Status, run.Stop = kernelwright.RunDone, kernelwright.StopSubmitted
	// It was asked for: who goes away meanwhile does not leave half of it.
	done, err := g.runner.end(context.WithoutCancel(ctx), run, run.ID, nil, func(_ context.Context, _ kernelwright.Run, d report.Data) (Written, error) {
		return results.Write(path, d)
	})
	if err != nil {
		return done, err
	}
	return done, g.leave()
}

// Close lets go of the run, which stays open. It may be called after Finish.
func (g *Guest) Close() error { return g.lock.Release() }

// leave lets go of a run that has ended: nobody locks it any more.
func (g *Guest) leave() error {
	return errors.Join(g.lock.Release(), os.RemoveAll(guestFolder(g.runner.folder(), g.run.ID)))
}

// folder is the data folder.
func (r *Runner) folder() string { return filepath.Dir(r.Store.Path()) }
