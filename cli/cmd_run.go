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
	if err := r.reach(a.ctx); err != nil {
		return interruption(a.ctx, err)
	}
	show := newProgress(a.stderr)
	e, err := r.evaluator(a.ctx, r.options(show.stage))
	show.done()
	if err != nil {
		return interruption(a.ctx, err)
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	w := r.runner(e, by)
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
	var rows []report.Summary
	var failed error
	for _, path := range c.Files {
		done, err := runOne(a, r, w, show, path)
		if errors.Is(err, daemon.ErrStopped) || a.ctx.Err() != nil {
			failed = errInterrupted
			break
		}
		if errors.Is(store.Trouble(err), store.ErrDamaged) {
			failed = err
			break
		}
		if bad := cmp.Or(r.store.Usable(), r.lock.Usable()); bad != nil {
			failed = bad
			break
		}
		if err != nil {
			failed = errors.Join(failed, err)
		}
		if done.WriteErr != nil {
			failed = errors.Join(failed, done.WriteErr)
		}
		s := done.Summary()
		if done.Data.Run.Status == kernelwright.RunRunning { // a model could not be asked
			s.Status, s.Result = "stopped", "stopped"
			if len(c.Files) == 1 && !a.json { // the error says it
				s.Reason, s.Hint = "", ""
			}
			show.say(fmt.Sprintf("%s: run %d has stopped; the same command goes on from there", report.Line(s.Task), s.Run))
		}
		if note := edited(path, done.Data.Task.Source, s); note != "" {
			s.Notes = append(s.Notes, note)
		}
		s.Report, s.Kernel = a.shown(s.Report), a.shown(s.Kernel)
		rows = append(rows, s)
	}
	show.done()
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

func runOne(a *app, r *room, w *daemon.Runner, show *progress, path string) (daemon.Done, error) {
	ctx := a.ctx
	if ctx.Err() != nil {
		return daemon.Done{}, daemon.ErrStopped
	}
	q := daemon.Request{Path: path, Name: filepath.Base(path), Seed: r.config.Rounds.Seed, Strategy: r.config.Rounds.Strategy, Settings: r.strategy()}
	f, err := task.Read(path)
	var invalid *kernelwright.InvalidTaskError
	if errors.As(err, &invalid) {
		return w.Refuse(ctx, q, invalid)
	}
	if err != nil {
		return daemon.Done{}, err
	}
	q.Name, q.Source = f.Name, f.Source
	show.begin(q.Name)
	run, resumed, err := w.Start(ctx, q)
	if err != nil {
		return daemon.Done{}, err
	}
	if resumed {
		show.say(fmt.Sprintf("%s: going on with run %d", report.Line(q.Name), run.ID))
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
