package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/prompts"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

// Tunables of the worker.
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

// IllError says that a device cannot be measured on any more. The run that met
// it waits in the queue again.
type IllError struct {
	Device string
	Err    error // what the run met
	Found  error // what a check of the device met
}

func (e *IllError) Error() string {
	return fmt.Sprintf("%s is ill: %v (met as: %v)", e.Device, e.Found, e.Err)
}

// Unwrap returns what the check met.
func (e *IllError) Unwrap() error { return e.Found }

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

// Worker takes runs from their reference to their results, one at a time.
type Worker struct {
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
	// Others says whether other devices take runs, too: an ill one is left then.
	// Nil: none do.
	Others func() bool
}

// Request is a run that somebody wants.
type Request struct {
	Path     string // absolute
	Name     string
	Source   string // as decoded
	Seed     int64
	Strategy string // of forge.Strategies; empty: rounds
	Settings forge.Settings
	// Guest is the agent outside of this process that holds the loop of the run
	// itself (Host); empty: the Worker's own Coder.
	Guest string
}

// Done is a run that has ended, with the files that tell of it.
type Done struct {
	Data    report.Data
	Written Written
	// WriteErr is why some files could not be written. The record is whole.
	WriteErr error
}

// Summary is the row that the tables show.
func (d Done) Summary() report.Summary {
	d.Data.Older = d.Written.Older
	s := report.Summarise(d.Data)
	if d.Written.Kept != "" {
		s.Notes = append(s.Notes, d.Written.Kept)
	}
	s.Report, s.Kernel = d.Written.Report(), d.Written.Kernel
	return s
}

// newRun is the record of a request.
func (w *Worker) newRun(q Request) kernelwright.Run {
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
func (w *Worker) coderOf(strategy string) string {
	if strategy == forge.ReactStrategy && w.Model != nil {
		return w.Model.Name()
	}
	return w.Coder.Name()
}

// silentJudge is the Judge of runs in which none is asked.
const silentJudge = "none"

// judgeOf returns the name of who judges under a strategy.
func (w *Worker) judgeOf(strategy string) string {
	if strategy == forge.RecheckStrategy {
		return silentJudge
	}
	return w.Judge.Name()
}

// Enqueue records a request, the file that it came from, and its place in the
// queue.
func (w *Worker) Enqueue(ctx context.Context, q Request, file store.File, priority int) (kernelwright.Run, error) {
	return w.Store.Enqueue(ctx, w.newRun(q), priority, store.WithReference(q.Source), store.WithFile(file))
}

// Start records a request that does not wait in the queue, or finds the run of
// the same reference and settings that was stopped before, to go on with it.
func (w *Worker) Start(ctx context.Context, q Request) (run kernelwright.Run, resumed bool, err error) {
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
func (w *Worker) Begin(ctx context.Context, q Request, with ...store.With) (kernelwright.Run, error) {
	return w.begin(ctx, w.newRun(q), q, with...)
}

// begin records a run that begins now.
func (w *Worker) begin(ctx context.Context, fresh kernelwright.Run, q Request, with ...store.With) (kernelwright.Run, error) {
	fresh.Status, fresh.StartedMS = kernelwright.RunRunning, w.clock().Now().UnixMilli()
	return w.Store.CreateRun(ctx, fresh, append(with, store.WithReference(q.Source))...)
}

// Refuse records a request whose file cannot even be read as a reference, and
// writes the report that says why.
func (w *Worker) Refuse(ctx context.Context, q Request, why *kernelwright.InvalidTaskError, with ...store.With) (Done, error) {
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
func (w *Worker) current(rounds []kernelwright.Round) bool {
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
func (w *Worker) reference(ctx context.Context, run kernelwright.Run) (string, error) {
	text, ok, err := w.Store.Reference(ctx, run.ID)
	if err == nil && !ok {
		err = &kernelwright.InvalidTaskError{Reason: "its reference was not kept", Hint: "drop the file again"}
	}
	return text, err
}

// Run takes a run to its end and writes its results. Cancelling ctx is a
// request to stop: the round in progress may finish within Grace, and the
// error is then ErrStopped. A *RefusedError says that the run waits in the queue
// for a model. Any other error is infrastructure; job is nil for a run that is not
// of the queue.
func (w *Worker) Run(ctx context.Context, run kernelwright.Run, job *store.Job) (Done, error) {
	hard, release := w.grace(ctx)
	defer release()
	// What is recorded at the end of a run is recorded whatever was asked for.
	record := context.WithoutCancel(ctx)
	end := func(run kernelwright.Run, results int64) (Done, error) {
		return w.end(record, run, results, job, w.write)
	}
	waited := run.Reason != ""
	run.Reason, run.Hint = "", "" // what it waited for is there
	if waited && job == nil {
		if err := w.Store.UpdateRun(record, run); err != nil {
			return Done{Data: report.Data{Run: run}}, err
		}
	}
	var out forge.Outcome
	var err error
	if job != nil && job.Attempts > maxDeaths {
		err = fmt.Errorf("the process that worked on it died %d times in a row without recording a round", job.Attempts-1)
	} else {
		run, out, err = w.optimise(hard, ctx.Done(), run)
	}
	var invalid *kernelwright.InvalidTaskError
	var shared *sharedError
	var damaged *store.DamagedError
	if bad := w.Store.Usable(); bad != nil { // nothing that is written now is kept
		return Done{Data: report.Data{Run: run}}, bad
	}
	switch {
	case errors.As(err, &damaged):
		return Done{Data: report.Data{Run: run}}, damaged
	case err == nil:
		run.Status, run.Stop = out.Status, out.Stop
		if out.Stop == kernelwright.StopBudget { // or nobody would know which one, and that more was to be had
			run.Reason, run.Hint = out.Summary, "raise it under [budget] in the settings, or lower max_tokens"
		} else if out.Best == nil {
			run.Reason = out.Summary
		}
		return end(run, run.ID)
	case errors.As(err, &shared):
		run.Status, run.Reason = kernelwright.RunDone, shared.Error()
		return end(run, shared.run.ID)
	case errors.As(err, &invalid):
		run.Status, run.Reason, run.Hint, run.Detail = kernelwright.RunInvalid, invalid.Reason, invalid.Hint, invalid.Traceback
		return end(run, run.ID)
	case errors.As(err, new(*elsewhereError)) && job != nil:
		run.Status, run.FinishedMS = kernelwright.RunFailed, w.clock().Now().UnixMilli()
		again := w.newRun(Request{Path: run.Path, Name: run.TaskName, Seed: run.Seed, Strategy: run.Strategy})
		again.MaxRounds, again.Settings = run.MaxRounds, run.Settings
		var reason string
		if _, rerr := w.Store.Repeat(record, *job, run, again, func(by int64) string {
			if reason = fmt.Sprintf("%v: run %d does it anew", err, by); by == 0 {
				reason = fmt.Sprintf("%v, and the file holds something else by now", err)
			}
			return reason
		}); rerr != nil {
			return Done{}, errors.Join(err, rerr)
		}
		w.log().Warn("a run cannot go on", "run", run.ID, "task", run.TaskName, "reason", reason)
		return Done{Data: report.Data{Run: run}}, errRepeated
	case errors.Is(err, forge.ErrHalted) || ctx.Err() != nil:
		if job != nil {
			if err := w.Store.Return(record, *job); err != nil {
				return Done{}, err
			}
		}
		return Done{Data: report.Data{Run: run}}, ErrStopped
	}
	var model *llm.Error
	switch refused := errors.As(err, &model); {
	case refused && job == nil:
		// Who typed the command is told what to mend, and gives it again: nothing
		// that a model was paid for is lost.
		return w.stopped(record, run, model, err)
	case refused && model.Mendable():
		if herr := w.Store.Hold(record, *job, "it waits: "+model.Error(), cmp.Or(model.Hint, "mend the model's key, name or account")+"; it is asked again by itself, and at the next start"); herr != nil {
			return Done{}, errors.Join(err, herr)
		}
		return Done{Data: report.Data{Run: run}}, &RefusedError{model}
	}
	reason, hint, hopeless := final(err)
	if job != nil && !hopeless {
		attempts, rerr := w.Store.Attempts(record, *job)
		if rerr != nil {
			return Done{}, errors.Join(err, rerr)
		}
		if attempts < w.attempts() {
			ill := w.ill(hard, err)
			switch {
			case ctx.Err() != nil: // while the device was looked at
				if rerr := w.Store.Return(record, *job); rerr != nil {
					return Done{}, errors.Join(err, rerr)
				}
				return Done{Data: report.Data{Run: run}}, ErrStopped
			case ill != nil: // the attempt counts: it may be the run's doing
				if rerr := w.Store.Retry(record, *job, 0); rerr != nil {
					return Done{}, errors.Join(err, rerr)
				}
				return Done{Data: report.Data{Run: run}}, ill
			}
			pause := retryAfter << min(max(attempts-1, 0), 6)
			if rerr := w.Store.Retry(record, *job, pause); rerr != nil {
				return Done{}, errors.Join(err, rerr)
			}
			w.log().Warn(fmt.Sprintf("a run failed and is tried again in %v", pause), "run", run.ID, "task", run.TaskName, "error", err)
			return Done{Data: report.Data{Run: run}}, err
		}
	}
	run.Status, run.Reason, run.Hint = kernelwright.RunFailed, reason, cmp.Or(hint, "`kernelwright doctor` examines this machine")
	done, eerr := end(run, run.ID)
	return done, errors.Join(err, eerr)
}

// stopped records why a run that somebody watches goes no further, and gathers what
// it has so far.
func (w *Worker) stopped(ctx context.Context, run kernelwright.Run, model *llm.Error, err error) (Done, error) {
	run.Reason, run.Hint = "it stopped: "+model.Error(), model.Hint
	done := Done{Data: report.Data{Run: run}}
	if uerr := w.Store.UpdateRun(ctx, run); uerr != nil {
		return done, errors.Join(err, uerr)
	}
	data, lerr := w.load(ctx, done.Data)
	if lerr != nil {
		return done, errors.Join(err, lerr)
	}
	done.Data = data
	return done, err
}

// final returns what to record of an error that ended a run, what to do about
// it, and whether it comes again however often the run is tried.
func final(err error) (reason, hint string, hopeless bool) {
	var model *llm.Error
	var diverged *forge.DivergedError
	switch {
	case errors.As(err, &model) && !model.Temporary():
		return model.Error(), model.Hint, true
	case errors.As(err, &model):
		return err.Error(), model.Hint, false
	case errors.As(err, &diverged):
		return diverged.Error(), "start it again; the rounds so far are in its record", true
	}
	return err.Error(), "", false
}

// end records that a run has ended, after its results were written: those of
// the run itself, or of an earlier one.
func (w *Worker) end(ctx context.Context, run kernelwright.Run, results int64, job *store.Job, write func(context.Context, kernelwright.Run, report.Data) (Written, error)) (Done, error) {
	done := Done{Data: report.Data{Run: run}}
	ended := run
	ended.FinishedMS = w.clock().Now().UnixMilli()
	data, err := w.load(ctx, report.Data{Run: ended})
	if err != nil {
		return done, err
	}
	ended = data.Run
	if results != run.ID {
		if data, err = Load(ctx, w.Store, results); err != nil {
			return done, err
		}
		data.Run.TaskName = data.Task.Name
	}
	// First the files: a crash in between repeats the end, and loses none.
	done.Written, done.WriteErr = write(ctx, ended, data)
	if job != nil {
		err = w.Store.Finish(ctx, *job, ended)
	} else {
		err = w.Store.UpdateRun(ctx, ended)
	}
	if err == nil {
		done.Data = data
	}
	return done, err
}

// ill looks at the device after an error where others could take its place.
// Nil: it is well, or nobody else could do better.
func (w *Worker) ill(ctx context.Context, met error) *IllError {
	var infra *kernelwright.InfrastructureError
	if w.Others == nil || !w.Others() || !errors.As(met, &infra) {
		return nil
	}
	found := w.Evaluator.Check(ctx)
	if found == nil || ctx.Err() != nil {
		return nil //nolint:nilerr // it is well, or nobody waits for an answer
	}
	device := w.Evaluator.Device()
	return &IllError{device.String(), met, found}
}

// elsewhereError says that a run was begun under other conditions.
type elsewhereError struct {
	run  kernelwright.Run
	what string
}

func (e *elsewhereError) Error() string { return fmt.Sprintf("run %d was %s", e.run.ID, e.what) }

// grace returns a context that outlives a request to stop by Grace.
func (w *Worker) grace(ctx context.Context) (context.Context, func()) {
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
		grace := w.Grace
		if grace == 0 {
			grace = DefaultGrace
		}
		select {
		case <-over:
		case <-w.clock().After(grace):
			cancel()
		}
	}()
	return hard, func() {
		close(over)
		<-ended
		cancel()
	}
}

// sharedError says that a task was optimised before.
type sharedError struct{ run kernelwright.Run }

func (e *sharedError) Error() string {
	return fmt.Sprintf("the same task as run %d: its result counts", e.run.ID)
}

// optimise inspects the reference and runs the rounds.
func (w *Worker) optimise(ctx context.Context, halt <-chan struct{}, run kernelwright.Run) (kernelwright.Run, forge.Outcome, error) {
	source, err := w.reference(ctx, run)
	if err != nil {
		return run, forge.Outcome{}, err
	}
	if coder, judge := w.coderOf(run.Strategy), w.judgeOf(run.Strategy); run.Coder != coder || run.Judge != judge {
		return run, forge.Outcome{}, &elsewhereError{run, fmt.Sprintf("for the Coder %s and the Judge %s, and the settings name others by now", run.Coder, run.Judge)}
	}
	about, err := w.prepare(ctx, run, source)
	run = about.run
	if err != nil {
		return run, forge.Outcome{}, err
	}
	if w.Share && !about.begun {
		if earlier, ok, err := w.earlier(ctx, run, source); err != nil || ok {
			if err == nil {
				err = &sharedError{earlier}
			}
			return run, forge.Outcome{}, err
		}
	}
	strategy, err := forge.New(run.Strategy, forge.Parts{
		Coder: w.Coder, Judge: w.Judge, Evaluator: w.Evaluator, Recorder: w.Store, Device: about.device, Settings: about.settings, Lessons: about.lessons,
		Model: w.Model, Journal: w.Journal, Skills: w.Skills, Prompts: w.Prompts, Now: w.clock().Now, Observe: w.Observe, Halt: halt,
	})
	if err != nil {
		return run, forge.Outcome{}, err
	}
	out, err := strategy.Run(ctx, run, about.task)
	return run, out, err
}

// subject is a run with the task and the device that its decisions are made by.
type subject struct {
	run      kernelwright.Run
	settings forge.Settings
	task     kernelwright.Task
	device   kernelwright.Device
	lessons  []kernelwright.Lesson
	begun    bool // it has rounds
}

// prepare inspects the reference of a run and records what the run is about.
func (w *Worker) prepare(ctx context.Context, run kernelwright.Run, source string) (subject, error) {
	s := subject{run: run}
	var err error
	if s.settings, err = forge.ParseSettings(run.Settings); err != nil {
		return s, err
	}
	if s.task, err = w.Evaluator.Inspect(ctx, run.TaskName, source); err != nil {
		return s, err
	}
	// The name is the file's: two files may hold the same task.
	s.task.Name = run.TaskName
	s.device = w.Evaluator.Device()
	rounds, err := w.Store.Rounds(ctx, run.ID)
	if err != nil {
		return s, err
	}
	s.begun = len(rounds) > 0
	if s.begun && (run.DeviceKey != s.device.Key || !w.current(rounds)) {
		return s, &elsewhereError{run, "begun on another device or with other versions, and verdicts of two are never mixed"}
	}
	seen, found := s.task, s.device
	var learned []kernelwright.Lesson
	if s.begun {
		// What is known of either may have changed since, its ceilings for one.
		// The run goes on by what its first rounds were decided by.
		if s.task, s.device, err = w.pinned(ctx, run); err != nil {
			return s, err
		}
		if s.lessons, err = w.Store.RunLessons(ctx, run.ID); err != nil {
			return s, err
		}
	} else if w.Lessons && s.settings.JudgeMode.Lessons() {
		if learned, err = w.Store.LessonsFor(ctx, run.ID, s.task, s.device); err != nil {
			return s, err
		}
		s.lessons = learned
	}
	s.run.Task, s.run.Device, s.run.DeviceKey = s.task.Fingerprint, s.device.String(), s.device.Key
	return s, w.Store.Describe(ctx, s.run, seen, found, learned)
}

// pinned returns the task and the device as the run's first rounds saw them.
func (w *Worker) pinned(ctx context.Context, run kernelwright.Run) (kernelwright.Task, kernelwright.Device, error) {
	task, err := w.Store.RunTask(ctx, run.ID)
	if err != nil {
		return task, kernelwright.Device{}, err
	}
	task.Name = run.TaskName
	device, err := w.Store.RunDevice(ctx, run.ID)
	return task, device, err
}

// earlier finds a run of the same reference, to the last byte, with the same
// device, settings and versions that ended well.
func (w *Worker) earlier(ctx context.Context, run kernelwright.Run, source string) (kernelwright.Run, bool, error) {
	runs, err := w.Store.Runs(ctx, store.RunFilter{Task: run.Task, DeviceKey: run.DeviceKey, Status: kernelwright.RunDone})
	if err != nil {
		return kernelwright.Run{}, false, err
	}
	for _, old := range runs {
		// A shared run has no rounds of its own; the one it points to follows.
		if old.ID == run.ID || old.Best == nil || !sameRequest(old, run) {
			continue
		}
		if text, err := w.reference(ctx, old); err != nil || text != source {
			continue
		}
		whole, err := w.Store.Round(ctx, old.ID, old.Best.Index)
		if err != nil {
			return kernelwright.Run{}, false, err
		}
		if w.current([]kernelwright.Round{whole}) {
			return old, true, nil
		}
	}
	return kernelwright.Run{}, false, nil
}

// load completes the data of a run that is about to be recorded as ended.
func (w *Worker) load(ctx context.Context, d report.Data) (report.Data, error) {
	run := d.Run
	d, err := Load(ctx, w.Store, run.ID)
	if err != nil {
		return d, err
	}
	run.Best = d.Run.Best
	d.Run = run
	if d.Task.Source == "" {
		if source, err := w.reference(ctx, run); err == nil {
			d.Task.Source = source
		}
	}
	return d, nil
}

// Load gathers what a report shows of a run. A run that never came to have a
// task or a device has none in it, but for its reference's text where that was
// kept: an invalid one's is what its reason is about.
func Load(ctx context.Context, s *store.Store, id int64) (report.Data, error) {
	var d report.Data
	var err error
	if d.Run, err = s.Run(ctx, id); err != nil {
		return d, err
	}
	if d.Rounds, err = s.Rounds(ctx, id); err != nil {
		return d, err
	}
	if d.Spend, err = s.Spend(ctx, id); err != nil {
		return d, err
	}
	if d.Talk, err = s.Calls(ctx, id); err != nil {
		return d, err
	}
	if d.Attempts, err = s.Unanswered(ctx, id); err != nil {
		return d, err
	}
	if d.Task, err = s.RunTask(ctx, id); errors.Is(err, store.ErrNotFound) {
		d.Task.Source, _, err = s.Reference(ctx, id)
	}
	if err != nil {
		return d, err
	}
	if d.Device, err = s.RunDevice(ctx, id); err != nil && !errors.Is(err, store.ErrNotFound) {
		return d, err
	}
	return d, nil
}

// write writes results for the file that a run is about and for every other
// one with the same content. A file that has changed since is left to the run
// of its new content.
func (w *Worker) write(ctx context.Context, run kernelwright.Run, d report.Data) (Written, error) {
	files, err := w.Store.Files(ctx)
	if err != nil {
		return Written{}, err
	}
	paths := []string{run.Path}
	kept := ""
	for _, f := range files {
		switch {
		case f.Path == run.Path:
			if w.Share && f.RunID != 0 && f.RunID != run.ID {
				paths[0], kept = "", inTheHistory(run, f, d.Task.Source)
			}
		case f.RunID == run.ID:
			paths = append(paths, f.Path)
		}
	}
	var first Written
	var errs []error
	for i, path := range standing(paths) {
		written, err := w.deliver(ctx, path, d)
		errs = append(errs, err)
		if i == 0 {
			first = written
		}
	}
	if len(errs) == 0 {
		first.Kept = kept
	}
	return first, errors.Join(errs...)
}

// inTheHistory says what becomes of the results of a run whose file has another
// run by now.
func inTheHistory(run kernelwright.Run, now store.File, source string) string {
	what := "the file was edited meanwhile"
	if now.Hash == kernelwright.HashText(source) {
		what = "the settings were changed meanwhile"
	}
	return fmt.Sprintf("%s and run %d is for it now: these results are in the history alone; `kernelwright history show %d --out DIR` writes them", what, now.RunID, run.ID)
}

// deliver writes the results of a run for one file, or notes that they are
// owed: they are written when the file is next found, by a later start or in a
// folder that came back.
func (w *Worker) deliver(ctx context.Context, path string, d report.Data) (Written, error) {
	if w.RecordOnly {
		return Written{}, nil
	}
	written, err := w.Results.Write(path, d)
	note := w.Store.Settle(ctx, path)
	if err != nil && w.Share { // nobody else comes back to a file
		note = w.Store.Owe(ctx, path, d.Run.ID)
	}
	return written, errors.Join(err, note)
}

// standing returns the references that are still there. Where one was renamed
// its results go with it; where all are gone they go to where the first was.
func standing(paths []string) []string {
	there := slices.DeleteFunc(slices.Clone(paths), func(path string) bool {
		if path == "" {
			return true
		}
		_, err := os.Stat(path)
		return errors.Is(err, fs.ErrNotExist)
	})
	if len(there) == 0 {
		return slices.DeleteFunc(paths[:1], func(path string) bool { return path == "" })
	}
	return there
}

func (w *Worker) attempts() int {
	if w.Attempts == 0 {
		return DefaultAttempts
	}
	return w.Attempts
}

func (w *Worker) clock() Clock {
	if w.Clock == nil {
		return System{}
	}
	return w.Clock
}

func (w *Worker) log() *slog.Logger {
	if w.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return w.Log
}
