package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/prompts"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

// Tunables of a Runner.
const (
	// DefaultGrace is how long a round in progress may go on after a stop was
	// asked for. A round takes seconds; a certification under a minute.
	DefaultGrace = 30 * time.Second
	// DefaultAttempts is how often a run is tried before it has failed.
	DefaultAttempts = 3
	// retryAfter is the pause before the second attempt; it doubles.
	retryAfter = 10 * time.Second
	// maxDeaths is how often the process may die over a run that records
	// nothing before the run has failed. Others go first from the second time on.
	maxDeaths = 20
)

// ErrStopped says that a run was asked to stop and can go on later from its
// last recorded round.
var ErrStopped = errors.New("stopped; it goes on from its last round")

// Evaluator is what the daemon needs of the hardware: *hwfeedback.Evaluator.
type Evaluator interface {
	forge.Evaluator
	// Inspect reads a reference. A *kernelwright.InvalidTaskError says that it
	// is no task; any other error is infrastructure.
	Inspect(ctx context.Context, name, source string) (kernelwright.Task, error)
	Device() kernelwright.Device
	// Versions are those that take part in its verdicts, which name them too.
	Versions() map[string]string
	// Check returns what is wrong with the device, nil where it does what is known
	// to work.
	Check(ctx context.Context) error
}

// DeviceFaultError says that a device cannot be measured on any more. The run that met
// it waits in the queue again.
type DeviceFaultError struct {
	Device string
	Err    error // what the run met
	Found  error // what a check of the device met
}

func (e *DeviceFaultError) Error() string {
	return fmt.Sprintf("%s does not work: %v (met as: %v)", e.Device, e.Found, e.Err)
}

// Unwrap returns what the check met.
func (e *DeviceFaultError) Unwrap() error { return e.Found }

// RefusedError says that a model refuses to answer until somebody mends its key,
// its name or its account. The run that met it waits in the queue, with all that
// it has.
type RefusedError struct{ Err *llm.Error }

func (e *RefusedError) Error() string {
	return fmt.Sprintf("%v; what is queued waits, and goes on at the next start", e.Err)
}

// Unwrap returns what the model said.
func (e *RefusedError) Unwrap() error { return e.Err }

// errRepeated says that another run does what this one was for.
var errRepeated = errors.New("another run does it anew")

// Runner takes runs from their reference to their results, one at a time.
type Runner struct {
	Store     *store.Store
	Evaluator Evaluator
	Coder     forge.Coder
	Judge     forge.Judge
	// Of runs with the strategy react: who acts (nil: such a run fails), what
	// keeps what its tools said, what it may look up, and what it is told first
	// (nil: the program's own words).
	Model   llm.Model
	Journal llm.Journal
	Skills  *prompts.Skills
	Prompts *prompts.Templates
	Results Results
	// RecordOnly writes no results: who wants files makes them from the record.
	RecordOnly bool
	// Lessons has new runs go by what earlier runs learned.
	Lessons  bool
	Attempts int           // DefaultAttempts where 0
	Grace    time.Duration // DefaultGrace where 0
	Clock    Clock         // System where nil
	Log      *slog.Logger  // may be nil
	// Share lets a run whose task was optimised before, under the same
	// settings, take that result: for files that somebody dropped. Who types
	// `run` wants it run.
	Share bool
	// Observe is told of every step of a run; may be nil.
	Observe func(forge.Event)
	// Others says whether other devices take runs, too: a faulty one is left then.
	// Nil: none do.
	Others func() bool
}

// Run takes a run to its end and writes its results. Cancelling ctx is a
// request to stop: the round in progress may finish within Grace, and the
// error is then ErrStopped. A *RefusedError says that the run waits in the queue
// for a model. Any other error is infrastructure; job is nil for a run that is not
// of the queue.
func (r *Runner) Run(ctx context.Context, run kernelwright.Run, job *store.Job) (Done, error) {
	hard, release := r.grace(ctx)
	defer release()
	// What is recorded at the end of a run is recorded whatever was asked for.
	record := context.WithoutCancel(ctx)
	waited := run.Reason != ""
	run.Reason, run.Hint = "", "" // what it waited for is there
	if waited && job == nil {
		if err := r.Store.UpdateRun(record, run); err != nil {
			return Done{Data: report.Data{Run: run}}, err
		}
	}
	run, out, err := r.work(hard, ctx.Done(), run, job)
	done := Done{Data: report.Data{Run: run}}
	if bad := r.Store.Usable(); bad != nil { // nothing that is written now is kept
		return done, bad
	}
	d := concluded(out)
	if err != nil {
		d = outcome(err, job != nil, ctx.Err() != nil)
	}
	switch d.act {
	case toLeave:
		return done, d.err
	case toRepeat:
		return r.repeat(record, run, *job, err)
	case toPutBack:
		return done, r.putBack(record, job)
	case toStop:
		return r.stopped(record, run, d)
	case toHold:
		if err := r.Store.Hold(record, *job, d.reason, d.hint); err != nil {
			return done, errors.Join(d.err, err)
		}
		return done, d.err
	case toRetry:
		if waits, err := r.retry(ctx, hard, run, *job, d.err); waits {
			return done, err
		}
	case toFinish:
	}
	run.Status, run.Stop, run.Reason, run.Hint, run.Detail = d.status, cmp.Or(d.stop, run.Stop), d.reason, d.hint, cmp.Or(d.detail, run.Detail)
	done, err = r.end(record, run, cmp.Or(d.results, run.ID), job, r.write)
	if d.err != nil {
		err = errors.Join(d.err, err)
	}
	return done, err
}

// work inspects the reference of a run and runs its rounds.
func (r *Runner) work(ctx context.Context, halt <-chan struct{}, run kernelwright.Run, job *store.Job) (kernelwright.Run, forge.Outcome, error) {
	if job != nil && job.Attempts > maxDeaths {
		return run, forge.Outcome{}, fmt.Errorf("the process that worked on it died %d times in a row without recording a round", job.Attempts-1)
	}
	return r.optimise(ctx, halt, run)
}

// putBack returns a queued run to its place. The error is ErrStopped, or the record's.
func (r *Runner) putBack(ctx context.Context, job *store.Job) error {
	if job != nil {
		if err := r.Store.Return(ctx, *job); err != nil {
			return err
		}
	}
	return ErrStopped
}

// repeat has another run do anew what one cannot go on with. The error is errRepeated, or
// the record's.
func (r *Runner) repeat(ctx context.Context, run kernelwright.Run, job store.Job, why error) (Done, error) {
	run.Status, run.FinishedMS = kernelwright.RunFailed, r.clock().Now().UnixMilli()
	again := r.newRun(Request{Path: run.Path, Name: run.TaskName, Seed: run.Seed, Strategy: run.Strategy})
	again.MaxRounds, again.Settings = run.MaxRounds, run.Settings
	var reason string
	if _, err := r.Store.Repeat(ctx, job, run, again, func(by int64) string {
		if reason = fmt.Sprintf("%v: run %d does it anew", why, by); by == 0 {
			reason = fmt.Sprintf("%v, and the file holds something else by now", why)
		}
		return reason
	}); err != nil {
		return Done{}, errors.Join(why, err)
	}
	r.log().Warn("a run cannot go on", "run", run.ID, "task", run.TaskName, "reason", reason)
	return Done{Data: report.Data{Run: run}}, errRepeated
}

// retry puts a run that failed into the queue for another attempt: at once where its
// device is faulty, after a pause else. It reports false where it was tried often enough.
// The error is what Run returns.
func (r *Runner) retry(ctx, hard context.Context, run kernelwright.Run, job store.Job, why error) (waits bool, err error) {
	record := context.WithoutCancel(ctx)
	attempts, err := r.Store.Attempts(record, job)
	if err != nil {
		return true, errors.Join(why, err)
	}
	if attempts >= r.attempts() {
		return false, nil
	}
	faulty := r.fault(hard, why)
	switch {
	case ctx.Err() != nil: // while the device was looked at
		if err := r.Store.Return(record, job); err != nil {
			return true, errors.Join(why, err)
		}
		return true, ErrStopped
	case faulty != nil: // the attempt counts: it may be the run's doing
		if err := r.Store.Retry(record, job, 0); err != nil {
			return true, errors.Join(why, err)
		}
		return true, faulty
	}
	pause := retryAfter << min(max(attempts-1, 0), 6)
	if err := r.Store.Retry(record, job, pause); err != nil {
		return true, errors.Join(why, err)
	}
	r.log().Warn(fmt.Sprintf("a run failed and is tried again in %v", pause), "run", run.ID, "task", run.TaskName, "error", why)
	return true, why
}

// fault looks at the device after an error where others could take its place.
// Nil: it is well, or nobody else could do better.
func (r *Runner) fault(ctx context.Context, met error) *DeviceFaultError {
	var infra *kernelwright.InfrastructureError
	if r.Others == nil || !r.Others() || !errors.As(met, &infra) {
		return nil
	}
	found := r.Evaluator.Check(ctx)
	if found == nil || ctx.Err() != nil {
		return nil //nolint:nilerr // it is well, or nobody waits for an answer
	}
	device := r.Evaluator.Device()
	return &DeviceFaultError{device.String(), met, found}
}

// grace returns a context that outlives a request to stop by Grace.
func (r *Runner) grace(ctx context.Context) (context.Context, func()) {
	hard, cancel := context.WithCancel(context.WithoutCancel(ctx))
	over := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-over:
			return
		case <-ctx.Done():
		}
		grace := r.Grace
		if grace == 0 {
			grace = DefaultGrace
		}
		select {
		case <-over:
		case <-r.clock().After(grace):
			cancel()
		}
	}()
	return hard, func() {
		close(over)
		<-ended
		cancel()
	}
}

func (r *Runner) attempts() int {
	if r.Attempts == 0 {
		return DefaultAttempts
	}
	return r.Attempts
}

func (r *Runner) clock() Clock {
	if r.Clock == nil {
		return System{}
	}
	return r.Clock
}

func (r *Runner) log() *slog.Logger {
	if r.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return r.Log
}
