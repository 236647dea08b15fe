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
func (w *Runner) newRun(q Request) kernelwright.Run {
	strategy, coder := cmp.Or(q.Strategy, forge.RoundsStrategy), q.Guest
	if coder != "" {
		strategy = forge.OutsideStrategy
	} else {
		coder = w.coderOf(strategy)
	}
	return kernelwright.Run{
		TaskName: q.Name, Path: q.Path, Device: string(kernelwright.CPUDevice), Strategy: strategy,
		Coder: coder, Judge: w.judgeOf(strategy), Seed: q.Seed, MaxRounds: q.Settings.Rounds, Settings: q.Settings.For(strategy).String(),
	}
}

// coderOf returns the name of who writes candidates under a strategy.
func (w *Runner) coderOf(strategy string) string {
	if strategy == forge.ReactStrategy && w.Model != nil {
		return w.Model.Name()
	}
	return w.Coder.Name()
}

// silentJudge is the Judge of runs in which none is asked.
const silentJudge = "none"

// judgeOf returns the name of who judges under a strategy.
func (w *Runner) judgeOf(strategy string) string {
	if strategy == forge.RecheckStrategy {
		return silentJudge
	}
	return w.Judge.Name()
}

// Enqueue records a request, the file that it came from, and its place in the
// queue.
func (w *Runner) Enqueue(ctx context.Context, q Request, file store.File, priority int) (kernelwright.Run, error) {
	return w.Store.Enqueue(ctx, w.newRun(q), priority, store.WithReference(q.Source), store.WithFile(file))
}

// Start records a request that does not wait in the queue, or finds the run of
// the same reference and settings that was stopped before, to go on with it.
func (w *Runner) Start(ctx context.Context, q Request) (run kernelwright.Run, resumed bool, err error) {
	fresh := w.newRun(q)
	open, err := w.Store.Runs(ctx, store.RunFilter{Path: q.Path, Status: kernelwright.RunRunning})
	if err != nil {
		return run, false, err
	}
	for _, old := range open {
		source, err := w.reference(ctx, old)
		if err != nil || source != q.Source || !sameRequest(old, fresh) {
			continue
		}
		// One with rounds of another device, or version, cannot go on here.
		rounds, err := w.Store.Rounds(ctx, old.ID)
		if err != nil {
			return run, false, err
		}
		if len(rounds) == 0 || old.DeviceKey == w.Evaluator.Device().Key && w.current(rounds) {
			return old, true, nil
		}
	}
	run, err = w.begin(ctx, fresh, q)
	return run, false, err
}

// Begin records a request that does not wait in the queue, whatever else there
// is of the same reference.
func (w *Runner) Begin(ctx context.Context, q Request, with ...store.With) (kernelwright.Run, error) {
	return w.begin(ctx, w.newRun(q), q, with...)
}

// begin records a run that begins now.
func (w *Runner) begin(ctx context.Context, fresh kernelwright.Run, q Request, with ...store.With) (kernelwright.Run, error) {
	fresh.Status, fresh.StartedMS = kernelwright.RunRunning, w.clock().Now().UnixMilli()
	return w.Store.CreateRun(ctx, fresh, append(with, store.WithReference(q.Source))...)
}

// Refuse records a request whose file cannot even be read as a reference, and
// writes the report that says why.
func (w *Runner) Refuse(ctx context.Context, q Request, why *kernelwright.InvalidTaskError, with ...store.With) (Done, error) {
	run := w.newRun(q)
	now := w.clock().Now().UnixMilli()
	run.Status, run.Reason, run.Hint, run.Detail = kernelwright.RunInvalid, why.Reason, why.Hint, why.Traceback
	run.StartedMS, run.FinishedMS = now, now
	run, err := w.Store.CreateRun(ctx, run, with...)
	if err != nil {
		return Done{}, err
	}
	done := Done{Data: report.Data{Run: run}}
	done.Written, done.WriteErr = w.deliver(ctx, q.Path, done.Data)
	return done, nil
}

func sameRequest(a, b kernelwright.Run) bool {
	return a.Settings == b.Settings && a.Seed == b.Seed && a.Coder == b.Coder && a.Judge == b.Judge && a.Strategy == b.Strategy
}

// current reports whether rounds were judged with the versions that there are now:
// verdicts of two are never mixed.
func (w *Runner) current(rounds []kernelwright.Round) bool {
	now := w.Evaluator.Versions()
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
func (w *Runner) reference(ctx context.Context, run kernelwright.Run) (string, error) {
	text, ok, err := w.Store.Reference(ctx, run.ID)
	if err == nil && !ok {
		err = &kernelwright.InvalidTaskError{Reason: "its reference was not kept", Hint: "drop the file again"}
	}
	return text, err
}
