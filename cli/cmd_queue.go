package cli

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

type queueCmd struct {
	Ls       queueLsCmd       `cmd:"" help:"List what is worked on and what waits."`
	Priority queuePriorityCmd `cmd:"" help:"Give a run another priority: higher goes first."`
	Pause    queuePauseCmd    `cmd:"" help:"Hold back a run after its round in progress, or all that waits."`
	Resume   queueResumeCmd   `cmd:"" help:"Let a run go on that was paused, or all that waits."`
	Cancel   queueCancelCmd   `cmd:"" help:"Take a run off the queue, or end it after its round in progress."`
	Retry    queueRetryCmd    `cmd:"" help:"Queue a run that has ended once more."`
}

type queueLsCmd struct {
	Limit int `help:"At most so many." default:"50"`
}

// Run lists the queue.
func (c queueLsCmd) Run(a *app) (err error) {
	if c.Limit < 1 {
		return usage(fmt.Sprintf("--limit is %d", c.Limit), "it takes a number from 1")
	}
	r, err := a.openRecord()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	jobs, err := r.store.Queue(a.ctx, store.Queued{}, c.Limit)
	if err != nil {
		return err
	}
	paused, err := r.store.QueuePaused(a.ctx)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(map[string]any{"paused": paused, "jobs": append([]store.Queued{}, jobs...)})
	}
	if paused {
		if err := a.printf("the queue is paused: `kernelwright queue resume` lets it go on\n"); err != nil {
			return err
		}
	}
	if len(jobs) == 0 {
		return a.printf("nothing waits\n")
	}
	rows := [][]string{{"run", "task", "state", "priority", "queued", "file"}}
	for _, j := range jobs {
		state := j.State
		if j.Hold != "" {
			state += ", " + string(j.Hold)
		}
		rows = append(rows, []string{strconv.FormatInt(j.Run, 10), report.Line(j.TaskName), state, strconv.Itoa(j.Priority), clock(j.CreatedMS), report.Line(a.shown(j.Path))})
	}
	return ignoreClosed(report.Columns(a.stdout, rows, map[int]bool{1: true, 2: true, 4: true, 5: true}))
}

// queueState is what --json prints of a run after a change.
type queueState struct {
	Run  kernelwright.Run `json:"run"`
	Hold store.Held       `json:"hold"`
}

// requeue changes the queue, in the record: a daemon that runs, and the next one, go by
// it. It says how the run stands then.
func requeue(a *app, run int64, turn func(*store.Store) (int64, error)) (err error) {
	if err := a.recorded(); err != nil {
		return err
	}
	r, err := a.open(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	now, err := turn(r.store)
	if state, ok := errors.AsType[*store.StateError](err); ok {
		return usage(state.Text, state.Hint)
	}
	if errors.Is(err, store.ErrNotFound) {
		return notFound(fmt.Sprintf("there is no run %d", run), "`kernelwright history ls` lists them")
	}
	if err != nil || now == 0 {
		return err
	}
	state := queueState{}
	if state.Run, err = r.store.Run(a.ctx, now); err != nil {
		return err
	}
	if state.Hold, err = r.store.Wanted(a.ctx, now); err != nil {
		return err
	}
	if a.json {
		return a.printJSON(state)
	}
	said := string(state.Run.Status)
	switch state.Hold {
	case store.Paused:
		said += ", paused"
	case store.Cancelled:
		said += "; it ends after its round in progress"
	}
	return a.printf("run %d is %s\n", now, said)
}

// QueuedRun is of verbs about a run.
type QueuedRun struct {
	Number int64 `arg:"" name:"run" help:"Its number."`
}

type queuePriorityCmd struct {
	QueuedRun
	Priority int `arg:"" help:"From -1000 to 1000, a negative one after --; files of the folder that is watched last have 0."`
}

// Run gives a run another priority.
func (c queuePriorityCmd) Run(a *app) error {
	if c.Priority < -store.PriorityLimit || c.Priority > store.PriorityLimit {
		return usage(fmt.Sprintf("the priority is %d", c.Priority), fmt.Sprintf("it takes a number from -%d to %[1]d", store.PriorityLimit))
	}
	return requeue(a, c.Number, func(s *store.Store) (int64, error) { return c.Number, s.SetPriority(a.ctx, c.Number, c.Priority) })
}

type queuePauseCmd struct {
	Number int64 `arg:"" optional:"" name:"run" help:"Its number; without it all that waits."`
}

// Run pauses.
func (c queuePauseCmd) Run(a *app) error { return pausing(a, c.Number, true) }

type queueResumeCmd struct {
	Number int64 `arg:"" optional:"" name:"run" help:"Its number; without it all that waits."`
}

// Run lets it go on.
func (c queueResumeCmd) Run(a *app) error { return pausing(a, c.Number, false) }

func pausing(a *app, run int64, pause bool) error {
	return requeue(a, run, func(s *store.Store) (int64, error) {
		switch {
		case run != 0 && pause:
			return run, s.Pause(a.ctx, run)
		case run != 0:
			return run, s.Resume(a.ctx, run)
		}
		if err := s.PauseQueue(a.ctx, pause); err != nil {
			return 0, err
		}
		if a.json {
			return 0, a.printJSON(map[string]any{"paused": pause})
		}
		return 0, a.printf("%s\n", map[bool]string{true: "the queue is paused; runs in progress go on", false: "the queue goes on"}[pause])
	})
}

type queueCancelCmd struct{ QueuedRun }

// Run cancels.
func (c queueCancelCmd) Run(a *app) error {
	return requeue(a, c.Number, func(s *store.Store) (int64, error) { return c.Number, s.Cancel(a.ctx, c.Number) })
}

type queueRetryCmd struct{ QueuedRun }

// Run queues it again.
func (c queueRetryCmd) Run(a *app) error {
	return requeue(a, c.Number, func(s *store.Store) (int64, error) {
		again, _, err := s.Requeue(a.ctx, c.Number, 0)
		return again.ID, err
	})
}
