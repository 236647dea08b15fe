package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/kernelwright/kernelwright/config"
	"github.com/kernelwright/kernelwright/daemon"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

type historyStatsCmd struct{}

// Run says how much there is.
func (historyStatsCmd) Run(a *app) (err error) {
	r, err := a.openRecord()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	counts, err := r.store.Counts(a.ctx)
	if err != nil {
		return err
	}
	sizes, err := r.store.Sizes(a.ctx)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(map[string]any{"counts": counts, "sizes": sizes})
	}
	rows := [][]string{{"what", "count"}}
	for _, status := range slices.Sorted(maps.Keys(counts.Runs)) {
		rows = append(rows, []string{"runs, " + report.Line(status), fmt.Sprint(counts.Runs[status])})
	}
	rows = append(rows, []string{"tasks", fmt.Sprint(counts.Tasks)}, []string{"devices", fmt.Sprint(counts.Devices)}, []string{"certified kernels", fmt.Sprint(counts.Kernels)},
		[]string{"texts", fmt.Sprint(sizes.Texts)}, []string{"  pruned", fmt.Sprint(sizes.Pruned)}, []string{"", ""},
		[]string{"the file", size(sizes.File)}, []string{"  its log", size(sizes.Log)}, []string{"  free in it", size(sizes.Free)},
		[]string{"texts, as they were", size(sizes.Whole)}, []string{"  as they are kept", size(sizes.Packed)}, []string{"  pruned of them", size(sizes.PrunedBy)})
	return ignoreClosed(report.Columns(a.stdout, rows, map[int]bool{0: true}))
}

// size writes bytes for people.
func size(bytes int64) string {
	switch b := float64(bytes); {
	case b >= 1e9:
		return fmt.Sprintf("%.1f GB", b/1e9)
	case b >= 1e6:
		return fmt.Sprintf("%.1f MB", b/1e6)
	case b >= 1e3:
		return fmt.Sprintf("%.1f KB", b/1e3)
	}
	return fmt.Sprintf("%d bytes", bytes)
}

type historyPruneCmd struct {
	DryRun     bool   `help:"Say what would go, and drop nothing."`
	Days       string `help:"Of runs that ended so many days ago." placeholder:"N" key:"retention.days"`
	LeastBytes string `help:"Only texts of at least so many bytes." placeholder:"N" key:"retention.least_bytes"`
	Compact    bool   `help:"Write the file anew without what is free in it; writers wait."`
}

// Help is shown below the flags.
func (historyPruneCmd) Help() string {
	return "Prompts, answers and candidates go, and that they were pruned is recorded with their hashes: `history check` holds the record to it. Certificates, certified kernels, best rounds, lessons, episodes and what a policy may be trained on stay. The daemon does it once a day where retention.days is set: docs/retention.md."
}

// Run drops texts, or says which.
func (c historyPruneCmd) Run(a *app) (err error) {
	settings, _, err := a.settings()
	if err != nil {
		return err
	}
	if settings.Retention.Days == 0 {
		return usage("there is no policy: retention.days is 0", "set it in the settings, or give --days N")
	}
	if err := a.recorded(); err != nil {
		return err
	}
	r, err := a.open(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	show := newProgress(a.stderr)
	defer show.done()
	show.begin("prune")
	policy := retention(settings, time.Now())
	what, err := r.store.Prunable(a.ctx, policy)
	if err == nil && !c.DryRun {
		all := what.Texts
		if what, err = r.store.Prune(a.ctx, policy, func(n int64) { show.share("prune", n, max(all, n), "texts") }); err == nil && c.Compact {
			show.stage("prune", "compacting")
			err = r.store.Compact(a.ctx)
		}
	}
	show.done()
	if err != nil {
		return interruption(a.ctx, err)
	}
	if a.json {
		return a.printJSON(map[string]any{"dry_run": c.DryRun, "days": settings.Retention.Days, "least_bytes": settings.Retention.LeastBytes, "pruned": what})
	}
	verb := "dropped"
	if c.DryRun {
		verb = "would go"
	}
	return a.printf("%s: %d texts, %s, of %d runs that ended over %d days ago\n", verb, what.Texts, size(what.Bytes), what.Runs, settings.Retention.Days)
}

// retention is the policy of the settings.
func retention(c config.Config, now time.Time) store.Retention {
	return store.Retention{Before: now.AddDate(0, 0, -c.Retention.Days), LeastBytes: int64(c.Retention.LeastBytes)}
}

// pruneDaily drops what the policy lets go, now and once a day, until the context ends.
// It returns what waits for that.
func (r *room) pruneDaily(ctx context.Context, tick <-chan time.Time) (wait func()) {
	if r.config.Retention.Days == 0 {
		return func() {}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for now := time.Now(); ; {
			what, err := r.store.Prune(ctx, retention(r.config, now), func(int64) {})
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				r.log.Warn("old texts cannot be dropped; tomorrow again", "error", err)
			case what.Texts > 0:
				r.log.Info("dropped texts of old rounds", "texts", what.Texts, "bytes", what.Bytes, "days", r.config.Retention.Days)
			}
			select {
			case now = <-tick:
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() { <-done }
}

type historyBackupCmd struct {
	File string `arg:"" help:"The file to write, which must not be there yet." type:"path" predictor:"file"`
}

// Run writes a copy of the record.
func (c historyBackupCmd) Run(a *app) error {
	if err := a.recorded(); err != nil {
		return err
	}
	settings, _, err := a.settings()
	if err != nil {
		return err
	}
	folder, err := config.DataFolder(settings, a.getenv)
	if err != nil {
		return err
	}
	show := newProgress(a.stderr)
	defer show.done()
	show.begin("backup")
	show.stage("backup", "copying")
	err = store.Backup(a.ctx, filepath.Join(folder, store.FileName), c.File)
	show.done()
	var damaged *store.DamagedError
	switch {
	case errors.Is(err, fs.ErrExist):
		return usage("there is something at "+c.File+" already", "name another file")
	case errors.As(err, &damaged):
		return dataError(folder, err)
	case err != nil && a.ctx.Err() != nil:
		return errCutShort
	case err != nil:
		return &Error{Code: ExitFailure, Text: "cannot write " + c.File, Err: err, Hint: worldHint(err, "name a file on a disk with room for a whole record")}
	}
	info, err := os.Stat(c.File)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(map[string]any{"path": a.shown(c.File), "bytes": info.Size()})
	}
	return a.printf("written: %s (%s)\n", report.Line(a.shown(c.File)), size(info.Size()))
}

type historyRestoreCmd struct {
	File string `arg:"" help:"A backup." type:"path" predictor:"file"`
}

// Help is shown below the flags.
func (historyRestoreCmd) Help() string {
	return "The backup is examined as by `history check` first. The record that is there is moved to kernelwright.db.before-TIME in the data folder, and stays until you remove it. No daemon may run meanwhile. The files of policies and the caches are not part of it."
}

// Run puts a backup in the place of the record.
func (c historyRestoreCmd) Run(a *app) (err error) {
	settings, _, err := a.settings()
	if err != nil {
		return err
	}
	folder, err := config.DataFolder(settings, a.getenv)
	if err != nil {
		return err
	}
	if _, err := os.Stat(c.File); err != nil {
		return notFound("there is no file "+c.File, "name what `kernelwright history backup` wrote")
	}
	lock, err := daemon.AcquireLock(folder, append([]string{"kernelwright"}, a.args...), time.Now())
	if err != nil {
		return dataError(folder, err)
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	show := newProgress(a.stderr)
	defer show.done()
	show.begin("restore")
	old, err := store.Restore(a.ctx, filepath.Join(folder, store.FileName), c.File, time.Now(), func(what string) { show.stage("restore", what) })
	show.done()
	var damaged *store.DamagedError
	switch {
	case errors.As(err, &damaged):
		return &Error{Code: ExitFailure, Err: err, Hint: cmp.Or(damaged.Hint, "take another backup")}
	case err != nil && a.ctx.Err() != nil:
		return errCutShort
	case err != nil:
		return dataError(folder, err)
	}
	if a.json {
		return a.printJSON(map[string]any{"path": filepath.Join(folder, store.FileName), "before": old})
	}
	said := fmt.Sprintf("restored: %s\n", report.Line(c.File))
	if old != "" {
		said += fmt.Sprintf("the record from before is %s\n", report.Line(old))
	}
	return a.printf("%s", said)
}
