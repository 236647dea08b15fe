package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/kernelwright/kernelwright/config"
	"github.com/kernelwright/kernelwright/daemon"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

type doctorCmd struct {
	deviceFlags
	Models  bool `help:"Ask each language model that the settings name; it costs a few tokens."`
	Measure bool `help:"Measure again what this machine can reach, and forget what was measured before."`
}

// Help is shown below the flags.
func (doctorCmd) Help() string {
	return "Changes nothing but the data folder's caches. Every GPU is tested with a known candidate, whatever the device is; one that another process measures on for long is said to be busy. What the machine can reach is measured when it is needed first, and again once an hour until it was quiet meanwhile; --measure does so at once, for when the machine has changed. A daemon that runs takes it up at its next start. Exit code 0 says that the examination was done, not that all is well: look at ok."
}

// Run looks at everything that the others need.
func (c doctorCmd) Run(a *app) (err error) {
	settings, _, err := a.settings()
	if err != nil {
		return err
	}
	folder, err := config.DataFolder(settings, a.getenv)
	if err != nil {
		return err
	}
	checks := []hwfeedback.Check{settingsCheck(a), folderCheck(folder)}
	var diagnosis hwfeedback.DoctorReport
	r, err := a.open(false)
	if err != nil {
		_, text, hint := explain(err)
		checks = append(checks, hwfeedback.Check{Name: "record", Note: text, Cost: "nothing can be run or remembered: " + hint})
	} else {
		defer func() { err = errors.Join(err, r.close()) }()
		checks = append(checks, recordCheck(a, r))
		checks = append(checks, r.modelChecks(a.ctx, c.Models)...)
		show := newProgress(a.stderr)
		options := r.options(show.stage)
		options.Remeasure = c.Measure
		diagnosis, err = hwfeedback.Diagnose(a.ctx, options, r.store, r.leases())
		show.done()
		if err != nil {
			return cutShort(a.ctx, err)
		}
	}
	checks = append(checks, diagnosis.Checks...)
	ok := true
	for _, k := range checks {
		ok = ok && k.OK
	}
	if a.json {
		return a.printJSON(map[string]any{"ok": ok, "checks": checks, "summary": diagnosis.Summary})
	}
	rows := make([][]string, 0, len(checks))
	for _, k := range checks {
		mark := "ok"
		if !k.OK {
			mark = "--"
		}
		rows = append(rows, []string{mark, report.Line(k.Name), report.Line(k.Note)})
		if k.Cost != "" {
			rows = append(rows, []string{"", "", "→ " + report.Line(k.Cost)})
		}
	}
	if err := report.Columns(a.stdout, rows, map[int]bool{0: true, 1: true, 2: true}); err != nil {
		return ignoreClosed(err)
	}
	if diagnosis.Summary != "" {
		return a.printf("\n%s\n", report.Line(diagnosis.Summary))
	}
	return nil
}

func settingsCheck(a *app) hwfeedback.Check {
	file := config.FindFile(a.file, a.getenv)
	check := hwfeedback.Check{Name: "settings", OK: true, Note: "defaults, no file"}
	if file != "" {
		check.Note = file
	}
	return check
}

// folderCheck says whether the data folder can be used, and by whom it is.
func folderCheck(folder string) hwfeedback.Check {
	check := hwfeedback.Check{Name: "data folder", OK: true, Note: folder}
	lock, err := daemon.AcquireLock(folder, os.Args, time.Now())
	var held *daemon.HeldError
	switch {
	case errors.As(err, &held):
		check.Note = held.Error()
	case err != nil:
		check.OK, check.Note, check.Cost = false, err.Error(), "nothing can be kept: name another folder with --data-dir"
	default:
		if err := lock.Release(); err != nil {
			check.OK, check.Note = false, err.Error()
		}
	}
	return check
}

// quicklyRead is the size of a record that is read through in about a second.
const quicklyRead = 200 << 20

func recordCheck(a *app, r *room) hwfeedback.Check {
	check := hwfeedback.Check{Name: "record", OK: true}
	info, err := os.Stat(filepath.Join(r.folder, store.FileName))
	large := err == nil && info.Size() > quicklyRead
	if err == nil && !large {
		err = r.store.Check(a.ctx)
	}
	switch {
	case large:
		check.Note = fmt.Sprintf("%.1f MB; `kernelwright history check` reads all of it", float64(info.Size())/1e6)
	case errors.Is(err, fs.ErrNotExist):
		check.Note = "empty"
	case err != nil:
		check.OK, check.Note, check.Cost = false, err.Error(), "the history may be lost: move the file aside and keep it"
	default:
		check.Note = fmt.Sprintf("sound, %.1f MB", float64(info.Size())/1e6)
	}
	return check
}
