package daemon

import (
	"cmp"
	"context"
	"slices"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

// Request is a run that somebody wants.
type Request struct {
	Path     string // absolute
	Name     string
	Source   string // as decoded
	Seed     int64
	Strategy string // of forge.Strategies; empty: rounds
	Settings forge.Settings
	// Guest is the agent outside of this process that holds the loop of the run
	// itself (Host); empty: the Runner's own Coder.
	Guest string
}

// newRun is the record of a request.
func (r *Runner) newRun(q Request) kernelwright.Run {
	strategy, coder := cmp.Or(q.Strategy, forge.RoundsStrategy), q.Guest
	if coder != "" {
		strategy = forge.OutsideStrategy
	} else {
		coder = r.coderOf(strategy)
	}
	return kernelwright.Run{
		TaskName: q.Name, Path: q.Path, Device: string(kernelwright.CPUDevice), Strategy: strategy,
		Coder: coder, Judge: r.judgeOf(strategy), Seed: q.Seed, MaxRounds: q.Settings.Rounds, Settings: q.Settings.For(strategy).String(),
	}
}

// coderOf returns the name of who writes candidates under a strategy.
func (r *Runner) coderOf(strategy string) string {
	if strategy == forge.ReactStrategy && r.Model != nil {
		return r.Model.Name()
	}
	return r.Coder.Name()
}

// judgeOf returns the name of who judges under a strategy.
func (r *Runner) judgeOf(strategy string) string {
	if strategy == forge.RecheckStrategy {
		return kernelwright.NoJudge
	}
	return r.Judge.Name()
}

// Enqueue records a request, the file that it came from, and its place in the
// queue.
func (r *Runner) Enqueue(ctx context.Context, q Request, file store.File, priority int) (kernelwright.Run, error) {
	return r.Store.Enqueue(ctx, r.newRun(q), priority, store.WithReference(q.Source), store.WithFile(file))
}

// Start records a request that does not wait in the queue, or finds the run of
// the same reference and settings that was stopped before, to go on with it.
func (r *Runner) Start(ctx context.Context, q Request) (run kernelwright.Run, resumed bool, err error) {
	fresh := r.newRun(q)
	open, err := r.Store.Runs(ctx, store.RunFilter{Path: q.Path, Status: kernelwright.RunRunning})
	if err != nil {
		return run, false, err
	}
	for _, old := range open {
		source, err := r.reference(ctx, old)
		if err != nil || source != q.Source || !sameRequest(old, fresh) {
			continue
		}
		// One with rounds of another device, or version, cannot go on here.
		rounds, err := r.Store.Rounds(ctx, old.ID)
		if err != nil {
			return run, false, err
		}
		if len(rounds) == 0 || old.DeviceKey == r.Evaluator.Device().Key && r.current(rounds) {
			return old, true, nil
		}
	}
	run, err = r.begin(ctx, fresh, q)
	return run, false, err
}

// Begin records a request that does not wait in the queue, whatever else there
// is of the same reference.
func (r *Runner) Begin(ctx context.Context, q Request, with ...store.With) (kernelwright.Run, error) {
	return r.begin(ctx, r.newRun(q), q, with...)
}

// begin records a run that begins now.
func (r *Runner) begin(ctx context.Context, fresh kernelwright.Run, q Request, with ...store.With) (kernelwright.Run, error) {
	fresh.Status, fresh.StartedMS = kernelwright.RunRunning, r.clock().Now().UnixMilli()
	return r.Store.CreateRun(ctx, fresh, append(with, store.WithReference(q.Source))...)
}

// Refuse records a request whose file cannot even be read as a reference, and
// writes the report that says why.
func (r *Runner) Refuse(ctx context.Context, q Request, why *kernelwright.InvalidTaskError, with ...store.With) (Done, error) {
	run := r.newRun(q)
	now := r.clock().Now().UnixMilli()
	run.Status, run.Reason, run.Hint, run.Detail = kernelwright.RunInvalid, why.Reason, why.Hint, why.Traceback
	run.StartedMS, run.FinishedMS = now, now
	run, err := r.Store.CreateRun(ctx, run, with...)
	if err != nil {
		return Done{}, err
	}
	done := Done{Data: report.Data{Run: run}}
	done.Written, done.WriteErr = r.deliver(ctx, q.Path, done.Data)
	return done, nil
}

func sameRequest(a, b kernelwright.Run) bool {
	return a.Settings == b.Settings && a.Seed == b.Seed && a.Coder == b.Coder && a.Judge == b.Judge && a.Strategy == b.Strategy
}

// current reports whether rounds were evaluated with the versions that there are now:
// verdicts of two are never mixed.
func (r *Runner) current(rounds []kernelwright.Round) bool {
	now := r.Evaluator.Versions()
	other := func(v kernelwright.Verdict) bool {
		if len(v.Versions) == 0 && !v.Status.OK() { // nothing was measured for it
			return false
		}
		for name, version := range now {
			if v.Versions[name] != version {
				return true
			}
		}
		return false
	}
	return !slices.ContainsFunc(rounds, func(r kernelwright.Round) bool {
		return other(r.Verdict) || r.Certificate != nil && other(*r.Certificate)
	})
}

// reference returns the text that a run is about.
func (r *Runner) reference(ctx context.Context, run kernelwright.Run) (string, error) {
	text, ok, err := r.Store.Reference(ctx, run.ID)
	if err == nil && !ok {
		err = &kernelwright.InvalidTaskError{Reason: "its reference was not kept", Hint: "drop the file again"}
	}
	return text, err
}
