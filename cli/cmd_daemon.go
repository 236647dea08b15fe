package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/api"
	"github.com/kernelwright/kernelwright/daemon"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/report"
)

type daemonCmd struct {
	Watch     []string `help:"A folder to watch; may be given again." placeholder:"DIR" type:"path" sep:"none" key:"watch.folders" predictor:"dir"`
	UntilIdle bool     `help:"Stop when nothing is left to do, and print what came of it."`
	Listen    string   `help:"Serve the HTTP API here; any but a loopback address needs a token, and TLS or http.insecure." placeholder:"HOST:PORT" key:"http.listen"`
	roundFlags
	deviceFlags
}

// Help is shown below the flags.
func (daemonCmd) Help() string {
	return "Results appear beside each file, or in the folder of --out. A first interrupt finishes the round in progress, a second stops at once; the next start goes on from there."
}

// Run watches until it is told to stop. To be told so is how a daemon ends,
// whether or not it watches yet.
func (c daemonCmd) Run(a *app) error {
	err := c.watch(a)
	if err != nil && a.ctx.Err() != nil && !c.UntilIdle && ExitCode(err) == ExitInterrupted {
		return nil
	}
	return err
}

// uploads is the folder of what is sent to a daemon that watches no other, in its data folder.
const uploads = "uploads"

// watchUploads has a daemon that serves the API, and is given no folder, watch one of its own.
func (r *room) watchUploads() error {
	if r.config.HTTP.Listen == "" {
		return usage("no folder is watched", "name one with --watch, or set watch.folders; with --listen files can be sent to it")
	}
	dir := filepath.Join(r.folder, uploads)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return &Error{Code: ExitUsage, Err: err, Hint: "name a folder with --watch"}
	}
	r.config.Watch.Folders = []string{dir}
	r.log.Info("no folder is named: files that are sent go into one of the data folder", "folder", dir)
	return nil
}

func (c daemonCmd) watch(a *app) (err error) {
	a.lines = !c.UntilIdle
	r, err := a.open(true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if len(r.config.Watch.Folders) == 0 {
		if err := r.watchUploads(); err != nil {
			return err
		}
	}
	for _, dir := range r.config.Watch.Folders {
		if _, err := daemon.CheckFolder(dir); err != nil {
			return &Error{Code: ExitUsage, Err: err, Hint: "make the folder, or name another with --watch"}
		}
	}
	results := absolute(r.config.Watch.Folders)
	if dir := r.config.Watch.OutputDir; dir != "" {
		results = []string{dir}
	}
	slices.Sort(results)
	for _, dir := range slices.Compact(results) {
		held, err := daemon.HoldFolder(dir)
		if err != nil {
			return &Error{Code: ExitHeld, Err: err, Hint: "stop that process, or give these results another folder with --out"}
		}
		defer func() { err = errors.Join(err, held.Release()) }()
	}
	if r.config.Watch.OutputDir == "" {
		trees, held := daemon.HoldTrees(results, r.config.Watch.Recursive)
		if held != nil {
			return &Error{Code: ExitHeld, Err: held, Hint: "stop that process, or give these results another folder with --out"}
		}
		defer func() { err = errors.Join(err, trees.Release()) }()
	}
	routes, end, err := r.episodes(a)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	served, err := r.serveAPI(a, api.Options{
		Episodes: routes,
		Folder:   absolute(r.config.Watch.Folders)[0], Patterns: r.config.Watch.Patterns, Policies: turner{a, r}, Sample: sampler(r.config.Device).sample,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, served.close()) }()
	by, err := r.agents()
	if err != nil {
		return err
	}
	es, err := r.evaluators(a.ctx, r.options(func(stage, note string) {
		if stage == "python" {
			r.log.Info("making the Python environment", "step", note)
		} else {
			r.log.Debug(stage, "note", note)
		}
	}))
	if err != nil {
		return interruption(a.ctx, err)
	}
	defer func() { err = errors.Join(err, closeAll(es)) }()
	runners := make([]*daemon.Runner, len(es))
	names := make([]string, len(es))
	for i, e := range es {
		w := r.runner(e, by)
		w.Results.Base = daemon.Common(absolute(r.config.Watch.Folders))
		w.Share = true
		w.Observe = func(ev forge.Event) {
			logEvent(r, ev)
			served.progress(ev)
		}
		runners[i], names[i] = w, e.Device().Name
	}
	if served != nil {
		devices := make([]kernelwright.Device, len(es))
		for i, e := range es {
			devices[i] = e.Device()
		}
		served.Ready(devices)
	}
	rows := []report.Summary{}
	d := &daemon.Daemon{
		Runner: runners[0], More: runners[1:],
		Watcher: &daemon.Watcher{
			Folders: r.config.Watch.Folders, Patterns: r.config.Watch.Patterns, Recursive: r.config.Watch.Recursive,
			Debounce: ms(r.config.Watch.DebounceMS), Poll: ms(r.config.Watch.PollMS), Log: r.log, Skip: skipped(r),
		},
		Lock: r.lock, Seed: r.config.Rounds.Seed, Strategy: r.config.Rounds.Strategy, Settings: r.strategy(), UntilIdle: c.UntilIdle,
		Ended: func(done daemon.Done) {
			s := done.Summary()
			s.Report, s.Kernel = a.shown(s.Report), a.shown(s.Kernel)
			if c.UntilIdle {
				rows = append(rows, s)
			}
			if a.json && !c.UntilIdle {
				_ = a.printLine(s)
			}
		},
	}
	if err := r.plan(d, nightly{a, r, served}); err != nil {
		return err
	}
	r.log.Info("watching", "folders", r.config.Watch.Folders, "device", strings.Join(names, ", "), "data", r.folder)
	defer context.AfterFunc(a.ctx, func() {
		r.log.Info("stopping: rounds in progress are finished; a second interrupt stops at once", "for_at_most", r.config.Daemon.Grace)
	})()
	ctx, stop := context.WithCancel(a.ctx)
	tick := time.NewTicker(24 * time.Hour)
	defer tick.Stop()
	pruned := r.pruneDaily(ctx, tick.C)
	failed := d.Run(a.ctx)
	stop()
	pruned()
	var untaken *daemon.UntakenError
	var refused *daemon.RefusedError
	switch {
	case errors.As(failed, &refused):
		code, _, hint := explain(refused.Err)
		failed = &Error{Code: code, Err: refused, Hint: hint}
	case failed != nil && !errors.As(failed, &untaken):
		return failed
	}
	if a.ctx.Err() != nil {
		r.log.Info("stopped; what is left goes on at the next start")
		if c.UntilIdle {
			return errInterrupted
		}
		return nil
	}
	if a.json && !c.UntilIdle { // its runs are out, a line each
		return failed
	}
	if a.json {
		object := map[string]any{"runs": rows}
		return a.printLast(object, failed)
	}
	switch {
	case len(rows) > 0:
		err = ignoreClosed(report.Table(a.stdout, rows))
	case failed == nil:
		err = a.printf("nothing new in the watched folders\n")
	}
	return cmp.Or(err, failed)
}

// absolute returns the folders as the watcher knows them.
func absolute(folders []string) []string {
	var out []string
	for _, f := range folders {
		if abs, err := daemon.CheckFolder(f); err == nil {
			out = append(out, abs)
		}
	}
	return out
}

// skipped is the folders that hold no references even where they lie within a
// watched one.
func skipped(r *room) []string {
	out := []string{r.folder}
	if dir := r.config.Watch.OutputDir; dir != "" {
		if abs, err := daemon.CheckFolder(dir); err == nil {
			out = append(out, abs)
		} else {
			out = append(out, dir)
		}
	}
	for _, w := range r.config.Watch.Folders {
		// Watching the very folder that results go to is allowed: they are known
		// by their names.
		if abs, err := daemon.CheckFolder(w); err == nil {
			for i, s := range out {
				if s == abs {
					out = append(out[:i], out[i+1:]...)
					break
				}
			}
		}
	}
	return out
}

func logEvent(r *room, e forge.Event) {
	log := r.log.With("run", e.Run.ID, "task", e.Run.TaskName)
	switch e.Kind {
	case forge.RoundDone, forge.Certified:
		if e.Verdict == nil {
			return
		}
		attrs := []any{"round", e.Index, "verdict", e.Verdict.Status}
		if e.Verdict.Status.OK() {
			attrs = append(attrs, "time", report.Milliseconds(e.Verdict.CandidateMS), "speedup", report.Speedup(e.Verdict.Speedup))
		} else {
			attrs = append(attrs, "reason", report.Line(e.Verdict.Reason))
		}
		if e.Verdict.Cached {
			attrs = append(attrs, "remembered", true)
		}
		log.Info(map[bool]string{true: "round", false: "certification"}[e.Kind == forge.RoundDone], attrs...)
	case forge.Feedback:
		if why := notTaken(e.Feedback); why != "" {
			log.Warn("the built-in Judge's finding takes the place of a model's", "round", e.Index, "reason", why)
		}
	case forge.Certifying:
		log.Info("certifying", "round", e.Index)
	default:
		log.Debug(fmt.Sprint(e.Kind), "round", e.Index)
	}
}
