package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/daemon"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/task"
)

type runCmd struct {
	Files []string `arg:"" name:"file" help:"Reference files: Model, get_inputs() and get_init_inputs()." type:"path" predictor:"file"`
	Dry   bool     `help:"Print what the Coder is asked first and what it answers; measure nothing, and record no run."`
	roundFlags
	deviceFlags
}

// Help is shown below the flags.
func (runCmd) Help() string {
	return "Writes NAME.best.py, NAME.certificate.json and the reports beside each file. A run that was stopped goes on when the same command is given again. A kernel that is slower than the fastest baseline by its whole interval is not written. Exit code 3 says that for some file nothing faster was found, or nothing was certified."
}

// Run optimises the files one after the other.
func (c runCmd) Run(a *app) (err error) {
	for _, path := range c.Files {
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			return noFile(path)
		}
		if err == nil && info.IsDir() {
			return usage(path+" is a folder", "name the files in it, or have it watched: `kernelwright daemon --until-idle --watch FOLDER`")
		}
	}
	if c.Dry {
		return c.dry(a)
	}
	r, err := a.open(true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	by, err := r.agents()
	if err != nil {
		return err
	}
	show := newProgress(a.stderr)
	w := &hands{app: a, room: r, show: show, Runner: r.runner(nil, by)}
	defer func() { err = errors.Join(err, w.close()) }()
	folders := make([]string, len(c.Files))
	for i, path := range c.Files {
		folders[i] = filepath.Dir(path)
	}
	w.Results.Base = daemon.Common(folders)
	w.Observe = show.observe
	stopNotice := context.AfterFunc(a.ctx, func() {
		show.say(fmt.Sprintf("finishing the round, for at most %s; a second interrupt stops at once", r.config.Daemon.Grace))
	})
	defer stopNotice()
	rows, failed := w.all(c.Files)
	show.done()
	var unready *unreadyError
	if errors.As(failed, &unready) {
		if failed = unready.error; len(rows) == 0 {
			return failed
		}
	}
	if a.json {
		if rows == nil {
			rows = []report.Summary{}
		}
		// One object, whatever happened: the error is part of it.
		return a.printLast(map[string]any{"runs": rows}, cmp.Or(failed, lacking(rows)))
	}
	if len(rows) > 0 {
		if err := report.Table(a.stdout, rows); err != nil {
			return ignoreClosed(err)
		}
	}
	return cmp.Or(failed, lacking(rows))
}

// hands bring the runs of a command forward. What needs a device has it opened: a file
// that is no task is refused without one, and without a Python.
type hands struct {
	*daemon.Runner
	app  *app
	room *room
	show *progress
	e    *hwfeedback.Evaluator // nil until a file needs it
}

// unreadyError says that there is no device, or nobody who writes candidates: no file
// after it can be worked on.
type unreadyError struct{ error }

// ready has the models reached and the device opened, once.
func (w *hands) ready() error {
	if w.e != nil {
		return nil
	}
	ctx := w.app.ctx
	err := w.room.reach(ctx)
	if err == nil {
		w.e, err = w.room.evaluator(ctx, w.room.options(w.show.stage))
		w.show.done()
	}
	if err != nil {
		return &unreadyError{interruption(ctx, err)}
	}
	w.Evaluator = w.room.bounded(w.e)
	return nil
}

func (w *hands) close() error {
	if w.e == nil {
		return nil
	}
	return w.e.Close()
}

// all works on the files one after the other, until something keeps it from all of them.
func (w *hands) all(paths []string) (rows []report.Summary, failed error) {
	a, r := w.app, w.room
	for _, path := range paths {
		done, err := w.one(path)
		var unready *unreadyError
		switch {
		case errors.As(err, &unready), errors.Is(store.Trouble(err), store.ErrDamaged):
			return rows, err
		case errors.Is(err, daemon.ErrStopped) || a.ctx.Err() != nil:
			return rows, errInterrupted
		}
		if bad := cmp.Or(r.store.Usable(), r.lock.Usable()); bad != nil {
			return rows, bad
		}
		if err != nil {
			failed = errors.Join(failed, err)
		}
		if done.WriteErr != nil {
			failed = errors.Join(failed, done.WriteErr)
		}
		rows = append(rows, w.summary(path, done, len(paths) == 1))
	}
	return rows, failed
}

// summary is the row of a file. Where it is the only one, an error says why a model
// could not be asked.
func (w *hands) summary(path string, done daemon.Done, only bool) report.Summary {
	s := done.Summary()
	if done.Data.Run.Status == kernelwright.RunRunning { // a model could not be asked
		s.Status, s.Result = "stopped", "stopped"
		if only && !w.app.json { // the error says it
			s.Reason, s.Hint = "", ""
		}
		w.show.say(fmt.Sprintf("%s: run %d has stopped; the same command goes on from there", report.Line(s.Task), s.Run))
	}
	if note := edited(path, done.Data.Task.Source, s); note != "" {
		s.Notes = append(s.Notes, note)
	}
	s.Report, s.Kernel = w.app.shown(s.Report), w.app.shown(s.Kernel)
	return s
}

// lacking is the error of runs that are done, where not every one brought a kernel that
// is handed out.
func lacking(rows []report.Summary) error {
	var slower, without []string
	hint, written := "", "RUN"
	for _, s := range rows {
		if s.Status != string(kernelwright.Certified) {
			without = append(without, report.Line(s.Task))
			if s.Rounds > 0 && hint == "" {
				hint = fmt.Sprintf("`kernelwright history show %d` has every round of it", s.Run)
			}
			continue
		}
		if s.Result == report.NothingFaster {
			if slower = append(slower, report.Line(s.Task)); len(slower) == 1 {
				written = fmt.Sprint(s.Run)
			} else {
				written = "RUN"
			}
		}
	}
	if len(without) > 0 {
		return notFound("no certified kernel for "+strings.Join(without, ", "), hint)
	}
	if len(slower) == 0 {
		return nil
	}
	return notFound("nothing faster than the baselines was found for "+strings.Join(slower, ", "), "the reports say how far it came; `kernelwright export "+written+" --out PATH` writes a kernel that was found all the same")
}

// edited says what becomes of the results of a run whose file was changed, or went,
// while it ran; empty where it was not.
func edited(path, source string, s report.Summary) string {
	if source == "" {
		return ""
	}
	var gone bool
	now, err := task.Read(path)
	if err != nil {
		var invalid *kernelwright.InvalidTaskError
		if gone = errors.Is(err, fs.ErrNotExist); !gone && !errors.As(err, &invalid) {
			return ""
		}
	} else if now.Source == source {
		return ""
	}
	what := "the file was edited meanwhile"
	if gone {
		what = "the file went away meanwhile"
	}
	note := what + ": these results are of what it was when the run began"
	if s.Kernel != "" {
		note += ", the kernel that is handed out too"
	}
	if !gone {
		note += "; the same command begins a run of what it is now"
	}
	return note
}

// one works on a file.
func (w *hands) one(path string) (daemon.Done, error) {
	ctx, c := w.app.ctx, w.room.config
	if ctx.Err() != nil {
		return daemon.Done{}, daemon.ErrStopped
	}
	q := daemon.Request{Path: path, Name: filepath.Base(path), Seed: c.Rounds.Seed, Strategy: c.Rounds.Strategy, Settings: w.room.strategy()}
	f, err := task.ReadReference(path)
	if f.Source != "" {
		q.Name, q.Source = f.Name, f.Source
	}
	var invalid *kernelwright.InvalidTaskError
	if errors.As(err, &invalid) {
		var with []store.With
		if q.Source != "" {
			with = append(with, store.WithReference(q.Source))
		}
		return w.Refuse(ctx, q, invalid, with...)
	}
	if err != nil {
		return daemon.Done{}, err
	}
	if err := w.ready(); err != nil {
		return daemon.Done{}, err
	}
	w.show.begin(q.Name)
	run, resumed, err := w.Start(ctx, q)
	if err != nil {
		return daemon.Done{}, err
	}
	if resumed {
		w.show.say(fmt.Sprintf("%s: going on with run %d", report.Line(q.Name), run.ID))
	}
	return w.Run(ctx, run, nil)
}

// interruption names a failure that a signal caused, to a command that goes on
// from there.
func interruption(ctx context.Context, err error) error {
	if ctx.Err() != nil && err != nil {
		return errInterrupted
	}
	return err
}

// cutShort names a failure that a signal caused, to a command that does not.
func cutShort(ctx context.Context, err error) error {
	if ctx.Err() != nil && err != nil {
		return errCutShort
	}
	return err
}
