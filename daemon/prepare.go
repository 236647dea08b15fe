package daemon

import (
	"context"
	"fmt"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/store"
)

// elsewhereError says that a run was begun under other conditions.
type elsewhereError struct {
	run  kernelwright.Run
	what string
}

func (e *elsewhereError) Error() string { return fmt.Sprintf("run %d was %s", e.run.ID, e.what) }

// sharedError says that a task was optimised before.
type sharedError struct{ run kernelwright.Run }

func (e *sharedError) Error() string {
	return fmt.Sprintf("the same task as run %d: its result counts", e.run.ID)
}

// optimise inspects the reference and runs the rounds.
func (r *Runner) optimise(ctx context.Context, halt <-chan struct{}, run kernelwright.Run) (kernelwright.Run, forge.Outcome, error) {
	source, err := r.reference(ctx, run)
	if err != nil {
		return run, forge.Outcome{}, err
	}
	if coder, judge := r.coderOf(run.Strategy), r.judgeOf(run.Strategy); run.Coder != coder || run.Judge != judge {
		return run, forge.Outcome{}, &elsewhereError{run, fmt.Sprintf("for the Coder %s and the Judge %s, and the settings name others by now", run.Coder, run.Judge)}
	}
	about, err := r.prepare(ctx, run, source)
	run = about.run
	if err != nil {
		return run, forge.Outcome{}, err
	}
	if r.Share && !about.begun {
		if earlier, ok, err := r.earlier(ctx, run, source); err != nil || ok {
			if err == nil {
				err = &sharedError{earlier}
			}
			return run, forge.Outcome{}, err
		}
	}
	strategy, err := forge.New(run.Strategy, forge.Parts{
		Coder:     r.Coder,
		Judge:     r.Judge,
		Evaluator: r.Evaluator,
		Recorder:  r.Store,
		Device:    about.device,
		Settings:  about.settings,
		Lessons:   about.lessons,
		Model:     r.Model,
		Journal:   r.Journal,
		Skills:    r.Skills,
		Prompts:   r.Prompts,
		Now:       r.clock().Now,
		Observe:   r.Observe,
		Halt:      halt,
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
func (r *Runner) prepare(ctx context.Context, run kernelwright.Run, source string) (subject, error) {
	s := subject{run: run}
	var err error
	if s.settings, err = forge.ParseSettings(run.Settings); err != nil {
		return s, err
	}
	if s.task, err = r.Evaluator.Inspect(ctx, run.TaskName, source); err != nil {
		return s, err
	}
	// The name is the file's: two files may hold the same task.
	s.task.Name = run.TaskName
	s.device = r.Evaluator.Device()
	rounds, err := r.Store.Rounds(ctx, run.ID)
	if err != nil {
		return s, err
	}
	s.begun = len(rounds) > 0
	if s.begun && (run.DeviceKey != s.device.Key || !r.current(rounds)) {
		return s, &elsewhereError{run, "begun on another device or with other versions, and verdicts of two are never mixed"}
	}
	seen, found := s.task, s.device
	var learned []kernelwright.Lesson
	if s.begun {
		// What is known of either may have changed since, its ceilings for one.
		// The run goes on by what its first rounds were decided by.
		if s.task, s.device, err = r.pinned(ctx, run); err != nil {
			return s, err
		}
		if s.lessons, err = r.Store.RunLessons(ctx, run.ID); err != nil {
			return s, err
		}
	} else if r.Lessons && s.settings.JudgeMode.Lessons() {
		if learned, err = r.Store.LessonsFor(ctx, run.ID, s.task, s.device); err != nil {
			return s, err
		}
		s.lessons = learned
	}
	s.run.Task, s.run.Device, s.run.DeviceKey = s.task.Fingerprint, s.device.String(), s.device.Key
	return s, r.Store.Describe(ctx, s.run, seen, found, learned)
}

// pinned returns the task and the device as the run's first rounds saw them.
func (r *Runner) pinned(ctx context.Context, run kernelwright.Run) (kernelwright.Task, kernelwright.Device, error) {
	task, err := r.Store.RunTask(ctx, run.ID)
	if err != nil {
		return task, kernelwright.Device{}, err
	}
	task.Name = run.TaskName
	device, err := r.Store.RunDevice(ctx, run.ID)
	return task, device, err
}

// earlier finds a run of the same reference, to the last byte, with the same
// device, settings and versions that ended well.
func (r *Runner) earlier(ctx context.Context, run kernelwright.Run, source string) (kernelwright.Run, bool, error) {
	runs, err := r.Store.Runs(ctx, store.RunFilter{Task: run.Task, DeviceKey: run.DeviceKey, Status: kernelwright.RunDone})
	if err != nil {
		return kernelwright.Run{}, false, err
	}
	for _, old := range runs {
		// A shared run has no rounds of its own; the one it points to follows.
		if old.ID == run.ID || old.Best == nil || !sameRequest(old, run) {
			continue
		}
		if text, err := r.reference(ctx, old); err != nil || text != source {
			continue
		}
		whole, err := r.Store.Round(ctx, old.ID, old.Best.Index)
		if err != nil {
			return kernelwright.Run{}, false, err
		}
		if r.current([]kernelwright.Round{whole}) {
			return old, true, nil
		}
	}
	return kernelwright.Run{}, false, nil
}
