// Package daemon is the long-running part: it watches folders, queues what is
// dropped there, works the queue off, and writes results beside the files. It
// owns every goroutine that outlives a call.
package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/task"
)

// Tunables of the daemon.
const (
	// queuePoll is how often the queue is looked at without a reason, for runs
	// whose pause is over.
	queuePoll = time.Second
	// idleFor is how long nothing must happen before UntilIdle believes it:
	// longer than a debounce, and than the system takes to tell of a file.
	idleFor = time.Second
	// faultyFor is after how long a device that was left is looked at again.
	faultyFor = 5 * time.Minute
	// askAgain is after how long a model that refused is asked again. It doubles,
	// up to askAgainAtMost.
	askAgain       = time.Minute
	askAgainAtMost = 30 * time.Minute
)

// Daemon watches and works. The caller holds the data folder's lock and owns
// store and evaluator.
type Daemon struct {
	Runner  *Runner
	Watcher *Watcher
	// More takes runs at the same time, each on a device of its own, in all else
	// like Runner.
	More []*Runner
	// Seed, Strategy and Settings of new runs.
	Seed     int64
	Strategy string
	Settings forge.Settings
	// UntilIdle ends Run when the queue is empty and no file waits.
	UntilIdle bool
	// Ended is told of each run that ended, one at a time; may be nil.
	Ended func(Done)
	// Lock is the data folder's; may be nil.
	Lock *Lock
	// Nights trains while no run waits; nil: nothing does. UntilIdle has none.
	Nights Nights

	wake    chan struct{} // there may be something in the queue
	telling sync.Mutex    // held over Ended: Runner and Watcher both end runs
	paid    time.Time     // when debts were last looked at; of the watcher's goroutine
}

// Nights is training that gives way to runs: *nights.Nights.
type Nights interface {
	// Run trains until the context is done.
	Run(ctx context.Context)
	// Yield returns once nothing is trained.
	Yield(ctx context.Context) error
	// Look says that a run has ended.
	Look()
}

// UntakenError says that files were found and could not be taken.
type UntakenError struct {
	Paths []string // sorted
	Err   error    // the first one's
}

func (e *UntakenError) Error() string {
	if len(e.Paths) == 1 {
		return fmt.Sprintf("%s was found and could not be taken: %v", e.Paths[0], e.Err)
	}
	return fmt.Sprintf("%d files were found and could not be taken, the first is %s: %v", len(e.Paths), e.Paths[0], e.Err)
}

// Unwrap returns the cause.
func (e *UntakenError) Unwrap() error { return e.Err }

// Run works until the context is done, which is a request to stop: the round
// in progress may finish within the Runner's grace, and the rest of the queue
// is there at the next start. The error is what made work impossible, or with
// UntilIdle an *UntakenError or a *RefusedError.
func (d *Daemon) Run(ctx context.Context) error {
	d.wake = make(chan struct{}, 1+len(d.More))
	d.Watcher.Found, d.Watcher.Check, d.Watcher.Scanned = d.intake, d.check, d.payAll
	d.Watcher.Init()
	if d.Watcher.Clock == nil {
		d.Watcher.Clock = d.Runner.clock()
	}
	n, err := d.Runner.Store.Recover(ctx, store.Alive)
	if err != nil {
		return fmt.Errorf("taking up the queue: %w", err)
	}
	if n > 0 {
		d.log().Info("taking up what an earlier process left", "runs", n)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watched := make(chan error, 1)
	go func() {
		err := d.Watcher.Run(ctx)
		if err != nil {
			cancel(err)
		}
		watched <- err
	}()
	trained := d.train(ctx)
	err = d.work(ctx)
	idle := err == nil && ctx.Err() == nil
	cancel(err)
	<-trained
	if err = cmp.Or(<-watched, err); err == nil && idle && len(d.Watcher.untaken) > 0 {
		paths := slices.Sorted(maps.Keys(d.Watcher.untaken))
		err = &UntakenError{Paths: paths, Err: d.Watcher.untaken[paths[0]]}
	}
	return err
}

// train begins what trains, and returns a channel that is closed when it has ended.
func (d *Daemon) train(ctx context.Context) <-chan struct{} {
	ended := make(chan struct{})
	if d.Nights == nil || d.UntilIdle {
		d.Nights = nil
		close(ended)
		return ended
	}
	go func() {
		defer close(ended)
		d.Nights.Run(ctx)
	}()
	return ended
}

// Waiting is how many runs wait or are worked on, and files that are being looked
// at: what trains goes by it.
func (d *Daemon) Waiting(ctx context.Context) (int, error) {
	waiting, claimed, err := d.Runner.Store.QueueLength(ctx)
	if !d.Watcher.Idle() {
		waiting++
	}
	return waiting + claimed, err
}

// claim takes the next run from the queue. What trains gives way first: a run
// never shares the machine with it.
func (d *Daemon) claim(ctx context.Context, r *Runner, elsewhere []string) (store.Job, bool, error) {
	if d.Nights != nil {
		waiting, _, err := r.Store.QueueLength(ctx)
		if err != nil || waiting == 0 {
			return store.Job{}, false, err
		}
		if err := d.Nights.Yield(ctx); err != nil {
			return store.Job{}, false, err
		}
	}
	return r.Store.Claim(ctx, store.Self(), elsewhere...)
}

// check returns what makes all work impossible: damage in the record, here the
// error or met by anybody before, or a record or a lock that is not the one in
// use any more, so that all that was recorded would be lost.
func (d *Daemon) check(err error) error {
	var damaged *store.DamagedError
	if errors.As(err, &damaged) {
		return damaged
	}
	if err := d.Runner.Store.Usable(); err != nil {
		return err
	}
	return d.Lock.Usable()
}

// work takes runs from the queue, on all devices, until the context is done or
// with UntilIdle nothing is left.
func (d *Daemon) work(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	devices := &devices{well: map[string]int{}}
	runners := append([]*Runner{d.Runner}, d.More...)
	for _, r := range runners {
		devices.set(r, true)
		r.Others = func() bool { return len(devices.others(r)) > 0 }
	}
	ended := make(chan error, len(runners))
	for _, r := range runners {
		go func() { ended <- d.loop(ctx, r, devices, cancel) }()
	}
	var err error
	for range runners {
		if failed := <-ended; failed != nil && err == nil {
			err = failed
			cancel(err)
		}
	}
	return err
}

// devices knows which devices take runs.
type devices struct {
	mu   sync.Mutex
	well map[string]int // runners by the keys of their devices
}

// set notes whether a Runner's device takes runs, and returns how many do.
func (s *devices) set(r *Runner, well bool) (left int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.well[r.Evaluator.Device().Key] += map[bool]int{true: 1, false: -1}[well]
	for _, n := range s.well {
		left += n
	}
	return left
}

// leave has a Runner's device take no more runs, unless no other does.
func (s *devices) leave(r *Runner) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := 0
	for _, n := range s.well {
		left += n
	}
	if left < 2 {
		return false
	}
	s.well[r.Evaluator.Device().Key]--
	return true
}

// others returns the keys of the devices that take runs beside a Runner's.
func (s *devices) others(r *Runner) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := r.Evaluator.Device().Key
	var keys []string
	for key, n := range s.well {
		if n > 0 && key != own {
			keys = append(keys, key)
		}
	}
	return keys
}

// loop takes runs from the queue for one device. One that is faulty is left to
// itself for a while. The last that ends for want of work ends all.
func (d *Daemon) loop(ctx context.Context, r *Runner, s *devices, end context.CancelCauseFunc) error {
	for {
		err := d.take(ctx, r, s)
		var faulty *DeviceFaultError
		if !errors.As(err, &faulty) {
			if s.set(r, false) == 0 {
				end(nil)
			}
			return err
		}
		if !s.leave(r) { // the others failed meanwhile: this one goes on trying
			continue
		}
		r.log().Error("a device takes no more runs; they go on elsewhere", "device", faulty.Device, "error", faulty.Found, "again in", faultyFor)
		d.nudge()
		for faulty != nil {
			select {
			case <-ctx.Done():
				return nil
			case <-r.clock().After(faultyFor):
			}
			if found := r.Evaluator.Check(ctx); found == nil {
				r.log().Info("a device takes runs again", "device", faulty.Device)
				faulty = nil
			}
		}
		s.set(r, true)
	}
}

// nudge says that there may be something in the queue.
func (d *Daemon) nudge() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// take takes runs from the queue for a device that is well, but for a while none
// after a model has refused. The error is what makes all work impossible, an
// *DeviceFaultError, or with UntilIdle a *RefusedError.
func (d *Daemon) take(ctx context.Context, r *Runner, s *devices) error {
	clock := r.clock()
	idleSince := time.Time{}
	pause := askAgain // where a model refuses
	for ctx.Err() == nil {
		if err := d.check(nil); err != nil {
			return err
		}
		job, ok, err := d.claim(ctx, r, s.others(r))
		switch {
		case err != nil && ctx.Err() != nil:
			return nil //nolint:nilerr // being told to stop is no failure
		case err != nil:
			return fmt.Errorf("the queue: %w", err)
		case ok:
			idleSince = time.Time{}
			err := d.one(ctx, r, job)
			if d.Nights != nil {
				d.Nights.Look()
			}
			refused := (*RefusedError)(nil)
			switch {
			case err == nil:
				pause = askAgain
			case !errors.As(err, &refused) || d.UntilIdle:
				return err
			default: // so it will refuse any other run
				r.log().Error("a model refuses: its runs wait", "run", job.RunID, "error", refused.Err, "hint", refused.Err.Hint, "asked again in", pause)
				select {
				case <-ctx.Done():
				case <-clock.After(pause):
				}
				pause = min(2*pause, askAgainAtMost)
			}
			continue
		}
		if d.UntilIdle {
			waiting, claimed, err := r.Store.QueueLength(ctx)
			if err != nil {
				if ctx.Err() != nil {
					return nil //nolint:nilerr // being told to stop is no failure
				}
				return fmt.Errorf("the queue: %w", err)
			}
			switch {
			case waiting > 0 || (claimed > 0 && len(d.More) > 0) || !d.Watcher.Idle():
				idleSince = time.Time{}
			case idleSince.IsZero():
				idleSince = clock.Now()
			case clock.Now().Sub(idleSince) >= idleFor:
				return nil
			}
		}
		poll := queuePoll
		if !idleSince.IsZero() {
			poll = idleFor / 4
		}
		select {
		case <-ctx.Done():
		case <-d.wake:
		case <-clock.After(poll):
		}
	}
	return nil
}

// one takes a claimed run to its end. Only what makes all work impossible, an
// *DeviceFaultError and a *RefusedError are errors.
func (d *Daemon) one(ctx context.Context, r *Runner, job store.Job) error {
	run, err := r.Store.Run(ctx, job.RunID)
	if err != nil {
		if ctx.Err() != nil {
			return r.Store.Return(context.WithoutCancel(ctx), job)
		}
		return fmt.Errorf("the queue: %w", err)
	}
	log := d.log().With("run", run.ID, "task", run.TaskName)
	if len(d.More) > 0 {
		log = log.With("device", r.Evaluator.Device().String())
	}
	log.Info("run begins", "attempt", job.Attempts)
	working, stop := d.heed(ctx, r, run.ID)
	done, err := r.Run(working, run, &job)
	held := stop()
	if errors.Is(err, ErrStopped) {
		if held != "" && ctx.Err() == nil {
			log.Info("run stopped, as somebody wants", "it is", held)
			d.nudge()
			return nil
		}
		log.Info("run stopped; it goes on at the next start")
		return nil
	}
	if errors.Is(err, errRepeated) {
		return nil
	}
	if faulty := (*DeviceFaultError)(nil); errors.As(err, &faulty) {
		return faulty
	}
	if refused := (*RefusedError)(nil); errors.As(err, &refused) {
		return refused
	}
	if err != nil && done.Data.Run.FinishedMS == 0 {
		if fatal := d.check(err); fatal != nil {
			return fatal
		}
		return d.broken(ctx, job, err)
	}
	d.recognise(context.WithoutCancel(ctx), run, done.Data.Run.Task)
	d.tell(log, done, err)
	return nil
}

// heed returns a context that is done when somebody wants a claimed run to be held back.
// Stop ends the watch for that, and returns what was wanted.
func (d *Daemon) heed(ctx context.Context, r *Runner, run int64) (working context.Context, stop func() store.Held) {
	working, cancel := context.WithCancel(ctx)
	wanted := make(chan store.Held, 1)
	go func() {
		for {
			held, err := r.Store.Wanted(ctx, run)
			if err != nil { // what works on the run meets it, too
				held = ""
			}
			if held != "" && working.Err() == nil {
				d.log().Info("a run ends its round in progress, as somebody wants", "run", run, "it is", held)
				cancel()
			}
			if held != "" || working.Err() != nil {
				wanted <- held
				return
			}
			select {
			case <-working.Done():
			case <-r.clock().After(queuePoll):
			}
		}
	}()
	return working, func() store.Held {
		cancel()
		return <-wanted
	}
}

// recognise notes which task a file turned out to hold.
func (d *Daemon) recognise(ctx context.Context, run kernelwright.Run, fingerprint string) {
	file, ok, err := d.Runner.Store.File(ctx, run.Path)
	if err == nil && ok && file.RunID == run.ID && fingerprint != "" {
		file.Fingerprint = fingerprint
		err = d.Runner.Store.SaveFile(ctx, file)
	}
	if err != nil {
		d.log().Warn("cannot record which task a file holds", "path", run.Path, "error", err)
	}
}

// broken puts a run that failed back, to be tried again.
func (d *Daemon) broken(ctx context.Context, job store.Job, err error) error {
	// Where even the end could not be recorded the run is still claimed.
	if rerr := d.Runner.Store.Retry(context.WithoutCancel(ctx), job, retryAfter); rerr != nil {
		return errors.Join(err, rerr)
	}
	d.log().Error("a run could not be brought to its end", "error", err)
	return nil
}

func (d *Daemon) tell(log *slog.Logger, done Done, err error) {
	s := done.Summary()
	attrs := []any{"status", s.Status, "result", s.Result, "rounds", s.Rounds}
	if s.Speedup != nil {
		attrs = append(attrs, "speedup", report.Speedup(s.Speedup), "against", s.Speedup.Against)
	}
	for _, n := range s.Notes {
		attrs = append(attrs, "note", n)
	}
	if s.Spend != nil {
		attrs = append(attrs, "models", report.Spent(*s.Spend))
	}
	if s.Report != "" {
		attrs = append(attrs, "report", s.Report)
	}
	if s.Kernel != "" {
		attrs = append(attrs, "kernel", s.Kernel)
	}
	if s.Reason != "" {
		attrs = append(attrs, "reason", s.Reason)
	}
	switch done.Data.Run.Status {
	case kernelwright.RunFailed:
		log.Error("run ended", append(attrs, "error", err)...)
	case kernelwright.RunInvalid:
		log.Warn("run ended", append(attrs, "hint", s.Hint)...)
	default:
		log.Info("run ended", attrs...)
	}
	if done.WriteErr != nil {
		hint := ""
		var w *WriteError
		if errors.As(done.WriteErr, &w) {
			hint = w.Hint + "; it is tried again every minute, and at the next start"
		}
		log.Error("results could not be written; the history has them", "error", done.WriteErr, "hint", hint)
	}
	if d.Ended != nil {
		d.telling.Lock()
		defer d.telling.Unlock()
		d.Ended(done)
	}
}

// intake decides what a file that is ready means: nothing new, another copy of
// something known, or a new run. It runs in the watcher's goroutine.
func (d *Daemon) intake(ctx context.Context, path string) error {
	stamped, err := stampOf(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	seen, known, err := d.Runner.Store.File(ctx, path)
	if err != nil {
		return err
	}
	file := store.File{Path: path, Size: stamped.size, ModTimeNS: stamped.mtime.UnixNano()}
	source, err := task.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(path); err != nil {
			return nil //nolint:nilerr // it has gone: nothing to say
		}
		// A link to what is not there: that stays until somebody mends it.
	}
	var invalid *kernelwright.InvalidTaskError
	if errors.As(err, &invalid) {
		// Such a file has no text to compare: its size and time stand for it. Its
		// time is when anything about it changed: permission to read it, say.
		file.ModTimeNS = max(file.ModTimeNS, stamped.changed)
		if known && seen.Size == file.Size && seen.ModTimeNS == file.ModTimeNS {
			return d.pay(ctx, path, slog.LevelError)
		}
		return d.refuse(ctx, file, stem(path), invalid)
	}
	if err != nil {
		return err
	}
	file.Hash = kernelwright.HashText(source.Source)
	request := Request{Path: path, Name: source.Name, Source: source.Source, Seed: d.Seed, Strategy: d.Strategy, Settings: d.Settings}
	if known && seen.Hash == file.Hash && seen.RunID != 0 {
		usable, ended, err := d.usable(ctx, seen.RunID, request, false)
		if err == nil && ended {
			err = d.pay(ctx, path, slog.LevelError)
		}
		if err != nil || usable {
			return err
		}
	}
	copies, err := d.Runner.Store.FilesByHash(ctx, file.Hash)
	if err != nil {
		return err
	}
	for _, c := range copies {
		if c.RunID == 0 || c.Path == path {
			continue
		}
		usable, ended, err := d.usable(ctx, c.RunID, request, true)
		if err != nil {
			return err
		}
		if usable {
			return d.share(ctx, file, c, request, ended)
		}
	}
	run, err := d.Runner.Enqueue(ctx, request, file, d.priority(path))
	if err != nil {
		return err
	}
	if known && seen.RunID != 0 {
		d.supersede(ctx, seen, file, run)
	}
	attrs := []any{"run", run.ID, "path", path}
	if known && seen.Hash == file.Hash && seen.RunID != 0 {
		attrs = append(attrs, "because", fmt.Sprintf("run %d of the same content failed, or had other settings", seen.RunID))
	}
	d.log().Info("queued", attrs...)
	d.nudge()
	return nil
}

// priority puts files of a folder that is named earlier before those of later
// ones.
func (d *Daemon) priority(path string) int {
	folders := d.Watcher.Folders
	for i, folder := range folders {
		if below, err := filepath.Rel(folder, path); err == nil && filepath.IsLocal(below) {
			return len(folders) - 1 - i
		}
	}
	return 0
}

// usable reports whether a run stands for a request, and whether it has ended.
// One that failed does not: the file is worth another try. One that was cancelled
// stands for its own file. One that is to stand for
// another file as well (shared) must have been evaluated with the versions that there
// are now; a file's own run stays.
func (d *Daemon) usable(ctx context.Context, id int64, q Request, shared bool) (usable, ended bool, err error) {
	run, err := d.Runner.Store.Run(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return false, false, nil
	}
	if err != nil {
		return false, false, err
	}
	if run.Status == kernelwright.RunFailed || !sameRequest(run, d.Runner.newRun(q)) {
		return false, false, nil
	}
	if shared && run.Status == kernelwright.RunCancelled {
		return false, false, nil
	}
	if shared && run.Best != nil && !d.Runner.current([]kernelwright.Round{*run.Best}) {
		return false, false, nil
	}
	return true, run.Status != kernelwright.RunQueued && run.Status != kernelwright.RunRunning, nil
}

// share records that a file has the content of another, whose run stands for
// both.
func (d *Daemon) share(ctx context.Context, file, copied store.File, q Request, ended bool) error {
	file.RunID, file.Fingerprint = copied.RunID, copied.Fingerprint
	if err := d.Runner.Store.Owe(ctx, file.Path, file.RunID); err != nil {
		return err
	}
	if err := d.Runner.Store.SaveFile(ctx, file); err != nil {
		return err
	}
	d.log().Info("the same content as a file before: one run stands for both", "path", file.Path, "first", copied.Path, "run", file.RunID)
	if !ended { // it may have meanwhile; else the Runner writes results for both
		var err error
		if _, ended, err = d.usable(ctx, file.RunID, q, true); err != nil || !ended {
			return err
		}
	}
	return d.pay(ctx, file.Path, slog.LevelError)
}

// pay writes the results that are owed for a file. Why it cannot is logged at a
// level.
func (d *Daemon) pay(ctx context.Context, path string, level slog.Level) error {
	id, err := d.Runner.Store.Owed(ctx, path)
	if err != nil || id == 0 {
		return err
	}
	data, err := Load(ctx, d.Runner.Store, id)
	if errors.Is(err, store.ErrNotFound) {
		return d.Runner.Store.Settle(ctx, path)
	}
	if err != nil {
		return err
	}
	if _, err := d.Runner.deliver(ctx, path, data); err != nil {
		d.log().Log(ctx, level, "results could not be written; the history has them", "run", id, "path", path, "error", err)
		return nil
	}
	d.log().Info("results that were owed are written", "run", id, "path", path)
	return nil
}

// payAll writes the results that are owed, where that is possible now: there
// may be room on the disk again. It runs in the watcher's goroutine.
func (d *Daemon) payAll(ctx context.Context) {
	now := d.Runner.clock().Now()
	if now.Sub(d.paid) < rescanEvery { // who polls scans more often
		return
	}
	d.paid = now
	debts, err := d.Runner.Store.Debts(ctx)
	for _, path := range slices.Sorted(maps.Keys(debts)) {
		if _, gone := os.Lstat(path); gone != nil || err != nil || ctx.Err() != nil {
			continue
		}
		// Of content that a run is still to be done for, that run will tell.
		var file store.File
		var known, ended bool
		if file, known, err = d.Runner.Store.File(ctx, path); known && err == nil {
			var run kernelwright.Run
			run, err = d.Runner.Store.Run(ctx, file.RunID)
			ended = run.Status != kernelwright.RunQueued && run.Status != kernelwright.RunRunning
		}
		if err == nil && ended {
			err = d.pay(ctx, path, slog.LevelDebug) // why not was said the first time
		}
	}
	if err != nil && ctx.Err() == nil {
		d.log().Warn("results that are owed cannot be looked for", "error", err)
	}
}

// supersede takes the run of what a file was before, or of the settings before,
// off the queue, unless it has begun or stands for another file too.
func (d *Daemon) supersede(ctx context.Context, old, file store.File, by kernelwright.Run) {
	copies, err := d.Runner.Store.FilesByHash(ctx, old.Hash)
	if err != nil {
		d.log().Warn("the run of the old content stays in the queue", "run", old.RunID, "error", err)
		return
	}
	for _, c := range copies {
		if c.Path != old.Path && c.RunID == old.RunID {
			return
		}
	}
	reason := fmt.Sprintf("the file changed before this run began: run %d is for its new content", by.ID)
	if old.Hash == file.Hash {
		reason = fmt.Sprintf("the settings changed before this run began, or went on: run %d is under the new ones", by.ID)
	}
	waited, err := d.Runner.Store.Supersede(ctx, old.RunID, reason)
	if err != nil {
		d.log().Warn("the run of the old content stays in the queue", "run", old.RunID, "error", err)
		return
	}
	if waited {
		d.log().Info("a run that had not begun is given up", "run", old.RunID, "path", file.Path, "because", reason)
		return
	}
	if run, err := d.Runner.Store.Run(ctx, old.RunID); err == nil && run.Status == kernelwright.RunRunning {
		d.log().Info("a run goes on with what the file was when it began", "run", old.RunID, "path", file.Path,
			"results", fmt.Sprintf("in the history alone (`kernelwright history show %d`); run %d writes those of what the file is now", old.RunID, by.ID))
	}
}

// refuse records a file that cannot even be read as a reference.
func (d *Daemon) refuse(ctx context.Context, file store.File, name string, why *kernelwright.InvalidTaskError) error {
	done, err := d.Runner.Refuse(ctx, Request{
		Path:     file.Path,
		Name:     name,
		Seed:     d.Seed,
		Strategy: d.Strategy,
		Settings: d.Settings,
	}, why, store.WithFile(file), store.WithOwed(file.Path))
	if err != nil {
		return err
	}
	d.tell(d.log().With("run", done.Data.Run.ID, "task", name), done, nil)
	return nil
}

func (d *Daemon) log() *slog.Logger { return d.Runner.log() }
