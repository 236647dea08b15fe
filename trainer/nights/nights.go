// Package nights begins training by itself, when a schedule says so and nobody's
// run waits. A night is the pipeline run to its gate: one that did not come so far
// goes on in the next.
package nights

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/kernelwright/kernelwright/internal/timetable"
	"github.com/kernelwright/kernelwright/store"
)

const (
	// look is how often the clock is looked at: one that is set, or a machine that
	// slept, is seen by then.
	look = time.Minute
	// lookForRuns is how often a night looks whether it may begin.
	lookForRuns = time.Second
)

// Why a pipeline is asked to stop: the cause of its context.
var (
	ErrYield    = errors.New("somebody's run comes first")
	ErrHours    = errors.New("the night's hours are over")
	ErrGPUHours = errors.New("the night's GPU hours are used up")
)

// Progress is how far a pipeline is.
type Progress struct {
	Pipeline int64         // its number
	Stage    string        // that it works on
	GPU      time.Duration // what this call of Run used of all GPUs together
}

// Outcome is what a call of Run came to.
type Outcome struct {
	Progress
	Done     bool   // its gate has decided; else it goes on with the next call
	Decision string // of the gate: promoted, refused
}

// Pipeline is what a night runs.
type Pipeline interface {
	// Run goes on with the pipeline that has not come to its gate, or begins one where
	// there is none, until its gate has decided. Once ctx is done it stops at the next
	// training step, or verdict, keeps what it has, and returns without an error; the
	// cause of ctx says why. Somebody waits for that: what does not stop by itself it
	// kills, since a checkpoint stays. It tells of each step, stage and verdict, one at a
	// time, and not after it has returned. An error is why it cannot go on: another call
	// tries again.
	Run(ctx context.Context, tell func(Progress)) (Outcome, error)
}

// Record keeps nights: *store.Store.
type Record interface {
	LastNight(ctx context.Context) (store.Night, error)
	BeginNight(ctx context.Context, n store.Night) (store.Night, error)
	SaveNight(ctx context.Context, n store.Night) error
}

// Clock is time; tests give their own.
type Clock interface {
	Now() time.Time
	// After sends once when d has passed.
	After(d time.Duration) <-chan time.Time
}

// Plan says when nights are, and what they may use.
type Plan struct {
	Table timetable.Timetable
	// Length is how long a night lasts from when it was due, whenever it began.
	Length time.Duration
	// GPU is what its pipeline may use of all GPUs together; 0: no limit.
	GPU time.Duration
}

// Nights runs nights, one at a time. Its fields do not change once Run was called.
type Nights struct {
	Plan     Plan
	Record   Record
	Pipeline Pipeline
	// Waiting is how many runs of people wait or are worked on. What has waited before
	// Yield is called is counted from then on.
	Waiting func(context.Context) (int, error)
	Clock   Clock
	Log     *slog.Logger

	mu   sync.Mutex
	work *work // nil while no pipeline runs

	looks chan struct{} // there may be something to do
	// Of the goroutine of Run only:
	taken  int64        // the night that this process took up
	told   int64        // the time for which it was said that runs wait
	coming int64        // the time that was said to be the next
	over   *store.Night // whose end could not be recorded
	failed string       // what was said of the record last
}

// work is a pipeline that runs.
type work struct {
	stop context.CancelCauseFunc
	over chan struct{} // closed when it does not run any more
}

// New returns nights that are ready for Run, Yield and Look.
func New(p Plan, r Record, pipeline Pipeline, waiting func(context.Context) (int, error), c Clock, log *slog.Logger) *Nights {
	return &Nights{Plan: p, Record: r, Pipeline: pipeline, Waiting: waiting, Clock: c, Log: log, looks: make(chan struct{}, 1)}
}

// Run runs nights until the context is done, which asks the pipeline to stop: its
// night is there at the next start. Where the record cannot be used, for want of room
// say, it tries again a minute later: who runs nights has other work.
func (n *Nights) Run(ctx context.Context) {
	for ctx.Err() == nil {
		now := n.Clock.Now()
		night, due, err := n.due(ctx, now)
		begun := false
		if err == nil && due {
			begun, err = n.spend(ctx, night)
		}
		pause := min(look, n.Plan.Table.Next(now).Sub(now))
		said := n.failed
		n.failed = ""
		switch {
		case err != nil:
			n.failed, pause = err.Error(), look
			if n.failed != said && ctx.Err() == nil {
				n.Log.Error("nights cannot use the record; they try again each minute", "error", err)
			}
		case begun: // it ended, or gave way: look again at once
			continue
		case due:
			pause = lookForRuns
		}
		select {
		case <-ctx.Done():
		case <-n.looks:
		case <-n.Clock.After(pause):
		}
	}
}

// Look says that runs of people may have come to their end.
func (n *Nights) Look() {
	select {
	case n.looks <- struct{}{}:
	default:
	}
}

// Yield has the pipeline give way to somebody's run, and returns once it has
// stopped, or the context is done. Where none runs it returns at once.
func (n *Nights) Yield(ctx context.Context) error {
	n.mu.Lock()
	w := n.work
	n.mu.Unlock()
	if w == nil {
		return nil
	}
	w.stop(ErrYield)
	select {
	case <-w.over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// due returns the night that is to be spent now, and whether there is one. One that
// has no number has not begun.
func (n *Nights) due(ctx context.Context, now time.Time) (store.Night, bool, error) {
	last, err := n.Record.LastNight(ctx)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return last, false, err
	}
	if err == nil && last.Open() {
		if o := n.over; o != nil && o.ID == last.ID {
			return last, false, n.end(ctx, o, time.UnixMilli(o.EndedMS), o.Stop, o.Reason)
		}
		if now.UnixMilli() < last.UntilMS {
			return last, true, nil
		}
		// Who stopped in the middle was not there to see its end.
		stop, why := store.NightHours, ErrHours.Error()
		if n.taken != last.ID {
			stop, why = store.NightDaemon, "the daemon was stopped, and its hours were over before it ran again"
		}
		if err := n.end(ctx, &last, now, stop, why); err != nil {
			return last, false, err
		}
	}
	// What came due while a night was under way is not made up for.
	after := now.Add(-n.Plan.Length)
	if over := time.UnixMilli(max(last.DueMS, last.EndedMS)); over.After(after) && !over.After(now) {
		after = over
	}
	due, found := n.Plan.Table.Last(after, now)
	if !found || due.UnixMilli() == last.DueMS { // the clock was put back over its end
		if next := n.Plan.Table.Next(now); next.UnixMilli() != n.coming {
			n.coming = next.UnixMilli()
			n.Log.Info("the next night", "begins", next.Format(time.RFC3339), "hours", n.Plan.Length.Hours())
		}
		return store.Night{}, false, nil
	}
	return store.Night{DueMS: due.UnixMilli(), UntilMS: due.Add(n.Plan.Length).UnixMilli()}, true, nil
}

// spend works on a night until it ends, gives way, or is stopped. Where runs of
// people wait it does not begin.
func (n *Nights) spend(ctx context.Context, night store.Night) (begun bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w, waiting, err := n.take(ctx, cancel)
	if err != nil {
		return false, err
	}
	if w == nil {
		if n.told != night.DueMS {
			n.told = night.DueMS
			n.Log.Info("a night waits for runs to end", "runs", waiting, "until", clockTime(night.UntilMS))
		}
		return false, nil
	}
	defer n.release(w)
	record := context.WithoutCancel(ctx)
	night.SeenMS, night.Owner = n.Clock.Now().UnixMilli(), store.Self() // after runs had ended
	fresh := night.ID == 0
	if fresh {
		night.BegunMS = night.SeenMS
		night, err = n.Record.BeginNight(record, night)
	} else {
		err = n.Record.SaveNight(record, night)
	}
	if err != nil {
		return false, err
	}
	n.taken, n.failed = night.ID, ""
	log := n.Log.With("night", night.ID)
	log.Info(map[bool]string{true: "a night begins", false: "a night goes on"}[fresh], "until", clockTime(night.UntilMS))
	out, failed, err := n.run(ctx, cancel, &night)
	if err != nil && !out.Done {
		return false, err
	}
	return true, n.settle(record, log, &night, out, failed, context.Cause(ctx))
}

// take has the pipeline's place, unless runs of people wait. Who comes after this
// finds it taken, and has it yield.
func (n *Nights) take(ctx context.Context, stop context.CancelCauseFunc) (*work, int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	waiting, err := n.Waiting(ctx)
	if err != nil || waiting > 0 {
		return nil, waiting, err
	}
	n.work = &work{stop, make(chan struct{})}
	return n.work, 0, nil
}

func (n *Nights) release(w *work) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.work = nil
	close(w.over)
}

// run calls the pipeline and keeps the record of what it uses. failed is the
// pipeline's error; err is the record's.
func (n *Nights) run(ctx context.Context, stop context.CancelCauseFunc, night *store.Night) (out Outcome, failed, err error) {
	type result struct {
		out Outcome
		err error
	}
	steps, ended := make(chan Progress), make(chan result, 1)
	before, began := *night, n.Clock.Now()
	go func() {
		out, err := n.Pipeline.Run(ctx, func(p Progress) { steps <- p })
		ended <- result{out, err}
	}()
	note := func(p Progress) {
		now := n.Clock.Now()
		night.SeenMS = now.UnixMilli()
		night.WorkedMS = before.WorkedMS + now.Sub(began).Milliseconds()
		night.GPUMS = before.GPUMS + p.GPU.Milliseconds()
		night.Pipeline = cmp.Or(p.Pipeline, night.Pipeline)
	}
	var last Progress
	for {
		left := time.UnixMilli(night.UntilMS).Sub(n.Clock.Now())
		if left <= 0 {
			stop(ErrHours)
			left = look
		}
		if n.Plan.GPU > 0 && time.Duration(night.GPUMS)*time.Millisecond >= n.Plan.GPU {
			stop(ErrGPUHours)
		}
		select {
		case last = <-steps:
		case <-n.Clock.After(min(left, look)):
		case r := <-ended:
			note(r.out.Progress)
			return r.out, r.err, err
		}
		note(last)
		if err == nil { // else it is being stopped for that
			if err = n.Record.SaveNight(context.WithoutCancel(ctx), *night); err != nil {
				stop(err)
			}
		}
	}
}

// settle records where a night stands after its pipeline has returned, which cause
// had asked it to; nil: nothing had.
func (n *Nights) settle(ctx context.Context, log *slog.Logger, night *store.Night, out Outcome, failed, cause error) error {
	if errors.Is(failed, context.Canceled) || cause != nil && errors.Is(failed, cause) {
		failed = nil // that is how it stops
	}
	now := n.Clock.Now()
	night.Decision = cmp.Or(out.Decision, night.Decision)
	switch {
	case out.Done && failed == nil:
		return n.end(ctx, night, now, store.NightDone, "")
	case failed != nil:
		return n.end(ctx, night, now, store.NightFailed, failed.Error())
	case errors.Is(cause, ErrYield):
		night.Yields++
		log.Info("a night gives way to a run", "worked", worked(*night), "pipeline", night.Pipeline)
	case errors.Is(cause, ErrHours):
		return n.end(ctx, night, now, store.NightHours, ErrHours.Error())
	case errors.Is(cause, ErrGPUHours):
		return n.end(ctx, night, now, store.NightGPUHours, ErrGPUHours.Error())
	case cause == nil:
		return n.end(ctx, night, now, store.NightFailed, "its pipeline stopped before its gate, and nobody had asked it to")
	default:
		log.Info("a night is stopped; it goes on at the next start", "worked", worked(*night), "pipeline", night.Pipeline)
	}
	return n.Record.SaveNight(ctx, *night)
}

// end records that a night is over. One that nobody was there to see the end of
// ended when it was last seen.
func (n *Nights) end(ctx context.Context, night *store.Night, now time.Time, stop store.NightStop, reason string) error {
	night.EndedMS, night.Stop, night.Reason = now.UnixMilli(), stop, reason
	if stop == store.NightDaemon {
		night.EndedMS = night.SeenMS
	}
	if err := n.Record.SaveNight(ctx, *night); err != nil {
		n.over = night
		return err
	}
	n.over = nil
	attrs := []any{"night", night.ID, "stop", stop, "worked", worked(*night), "gpu", time.Duration(night.GPUMS) * time.Millisecond, "yields", night.Yields}
	if night.Pipeline != 0 {
		attrs = append(attrs, "pipeline", night.Pipeline)
	}
	if night.Decision != "" {
		attrs = append(attrs, "decision", night.Decision)
	}
	if stop == store.NightFailed {
		n.Log.Error("a night ended", append(attrs, "error", reason)...)
		return nil
	}
	n.Log.Info("a night ended", attrs...)
	return nil
}

func worked(n store.Night) time.Duration {
	return (time.Duration(n.WorkedMS) * time.Millisecond).Round(time.Second)
}

func clockTime(ms int64) string { return time.UnixMilli(ms).Format(time.RFC3339) }
