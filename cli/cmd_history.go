package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/daemon"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

type historyCmd struct {
	Ls      historyLsCmd      `cmd:"" help:"List runs, newest first."`
	Show    historyShowCmd    `cmd:"" help:"Show one run, or one of its rounds, or write its results again."`
	Best    historyBestCmd    `cmd:"" help:"Print the best kernel of a task."`
	Diff    historyDiffCmd    `cmd:"" help:"Compare the candidates of two rounds."`
	Bench   historyBenchCmd   `cmd:"" help:"List benches, or print one again."`
	Audit   historyAuditCmd   `cmd:"" help:"List audits, or print one again."`
	Replay  historyReplayCmd  `cmd:"" help:"Make the decisions of a run again from the record alone."`
	Check   historyCheckCmd   `cmd:"" help:"Examine the whole record, and copy what can be read of a damaged one."`
	Lessons historyLessonsCmd `cmd:"" help:"Say what changes brought, in runs that ended with a certified kernel."`
	Search  historySearchCmd  `cmd:"" help:"Search references, candidates, verdicts, reasons, feedback and what was said to models; list rounds by status."`
	Costs   historyCostsCmd   `cmd:"" help:"Say what was spent on language models, by day and model."`
	Export  historyExportCmd  `cmd:"" help:"Write trajectories as a dataset, or references and kernels as KernelBench has them."`
	Stats   historyStatsCmd   `cmd:"" help:"Say how much there is, and what room it takes."`
	Prune   historyPruneCmd   `cmd:"" help:"Drop large texts of old rounds."`
	Backup  historyBackupCmd  `cmd:"" help:"Write the record as it is now to a file, while others write to it."`
	Restore historyRestoreCmd `cmd:"" help:"Put a backup in the place of the record, which is kept."`
	SQL     historySQLCmd     `cmd:"" name:"sql" help:"Answer a query in SQL over views of the record."`
}

// runStopped is the word of a run that never ended and that nobody works on any
// more. The record does not know: it says running.
const runStopped kernelwright.RunStatus = "stopped"

// shownStatus is how a run's status is shown.
func shownStatus(r kernelwright.Run, working func(kernelwright.Run) bool) kernelwright.RunStatus {
	if r.Status == kernelwright.RunRunning && !working(r) {
		return runStopped
	}
	return r.Status
}

// working says of runs whether some process may be working on them: whoever
// holds the data folder, or the run itself where an agent outside codes it.
func (r *room) working() func(kernelwright.Run) bool {
	folder := sync.OnceValue(func() bool { return held(daemon.AcquireLock(r.folder, os.Args, time.Now())) })
	return func(run kernelwright.Run) bool {
		switch {
		case run.Status != kernelwright.RunRunning:
			return false
		case run.Strategy == forge.OutsideStrategy:
			return held(daemon.HoldGuest(r.folder, run.ID, time.Now()))
		}
		return folder()
	}
}

func held(lock *daemon.Lock, err error) bool {
	if err == nil {
		_ = lock.Release() // it was ours for an instant; the kernel frees it in any case
	}
	return errors.As(err, new(*daemon.HeldError))
}

func ago(ms int64, now time.Time) string {
	if ms == 0 {
		return "–"
	}
	d := now.Sub(time.UnixMilli(ms))
	switch {
	case d < time.Minute:
		return "just now"
	case d < time.Hour:
		return fmt.Sprintf("%d min ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h ago", int(d.Hours()))
	default:
		return time.UnixMilli(ms).Format("2006-01-02")
	}
}

// openRun opens the record and reads the run of a number that people type. The
// room is the caller's to close.
func (a *app) openRun(id int64) (*room, report.Data, error) {
	r, err := a.openRecord()
	if err != nil {
		return nil, report.Data{}, err
	}
	d, err := daemon.Load(a.ctx, r.store, id)
	if errors.Is(err, store.ErrNotFound) {
		err = notFound(fmt.Sprintf("there is no run %d", id), "`kernelwright history ls` lists them")
	}
	if err != nil {
		return nil, d, errors.Join(err, r.close())
	}
	return r, d, nil
}

// openRounds is openRun for verbs that need rounds to work on. It needs no
// room afterwards.
func (a *app) openRounds(id int64) (d report.Data, err error) {
	r, d, err := a.openRun(id)
	if err != nil {
		return d, err
	}
	if err := r.close(); err != nil {
		return d, err
	}
	return d, hasRounds(d)
}

// hasRounds is the error of a verb that needs rounds, where there are none.
func hasRounds(d report.Data) error {
	if len(d.Rounds) == 0 {
		return notFound(fmt.Sprintf("run %d has no rounds", d.Run.ID), fmt.Sprintf("`kernelwright history show %d` says why", d.Run.ID))
	}
	return nil
}

type historyLsCmd struct {
	Task   string `help:"Only of the task of this name, file or fingerprint." placeholder:"TASK"`
	Status string `help:"Only with this status: queued, running, stopped, done, invalid, declined, failed or cancelled." placeholder:"STATUS"`
	Before int64  `help:"Only runs before this one, to page." placeholder:"RUN"`
	Limit  int    `help:"At most so many." default:"50"`
}

// Run lists runs.
func (c historyLsCmd) Run(a *app) (err error) {
	if err := c.checkStatus(); err != nil {
		return err
	}
	r, err := a.openRecord()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	runs, err := c.runs(a.ctx, r)
	if err != nil {
		return err
	}
	spent := make([]kernelwright.Spend, len(runs))
	for i, run := range runs {
		if spent[i], err = r.store.Spend(a.ctx, run.ID); err != nil {
			return err
		}
	}
	results := make([]string, len(runs))
	for i, run := range runs {
		var rounds []kernelwright.Round
		if run.Best != nil {
			rounds = append(rounds, *run.Best)
		}
		results[i] = report.Result(run.Status, rounds)
	}
	if a.json {
		type listed struct {
			kernelwright.Run
			Result string              `json:"result"`
			Spend  *kernelwright.Spend `json:"spend,omitempty"` // absent where no language model was asked
		}
		list := make([]listed, len(runs))
		for i, run := range runs {
			list[i].Result = results[i]
			if list[i].Run = run; spent[i].Calls > 0 {
				list[i].Spend = &spent[i]
			}
		}
		return a.printJSON(map[string]any{"runs": list})
	}
	if len(runs) == 0 {
		return a.printf("no runs\n")
	}
	now := time.Now()
	var speedups []*kernelwright.Speedup
	rows := [][]string{{"run", "task", "status", "kernel", "time", "speedup", "against", "headroom", "begun", "cost", "reason"}}
	for i, run := range runs {
		kernel, ms, speed, against, headroom := "–", "–", "–", "–", "–"
		if b := run.Best; b != nil {
			v := report.Counts(*b)
			kernel, ms, speed, headroom = report.Standing(v), report.Milliseconds(v.CandidateMS), report.Speedup(v.Speedup), report.Percent(v.Headroom)
			if against = report.Against(v.Speedup); results[i] == report.NothingFaster {
				kernel = strings.ReplaceAll(results[i], "_", " ")
			}
			speedups = append(speedups, v.Speedup)
		}
		began := run.StartedMS
		if began == 0 {
			began = run.CreatedMS
		}
		rows = append(rows, []string{
			strconv.FormatInt(run.ID, 10), report.Line(run.TaskName), report.Line(string(run.Status)), kernel, ms, speed, against, headroom,
			ago(began, now), report.Cost(spent[i]), report.Line(run.Reason),
		})
	}
	left := map[int]bool{1: true, 2: true, 3: true, 6: true, 8: true, 10: true}
	if !slices.ContainsFunc(spent, func(s kernelwright.Spend) bool { return s.Calls > 0 }) {
		for i, row := range rows {
			rows[i] = slices.Delete(row, 9, 10)
		}
		left[9] = true
	}
	if err := report.Columns(a.stdout, rows, left); err != nil {
		return ignoreClosed(err)
	}
	return a.printf("%s", legend(speedups))
}

func (c historyLsCmd) checkStatus() error {
	statuses := []string{"queued", "running", string(runStopped), "done", "invalid", "declined", "failed", "cancelled"}
	if c.Status != "" && !slices.Contains(statuses, c.Status) {
		return usage(fmt.Sprintf("there is no status %q", c.Status), "it is one of "+strings.Join(statuses, ", "))
	}
	return nil
}

// runs returns the runs that are asked for, with their statuses as they are shown.
func (c historyLsCmd) runs(ctx context.Context, r *room) ([]kernelwright.Run, error) {
	filter := store.RunFilter{Status: kernelwright.RunStatus(c.Status), Before: c.Before, Limit: c.Limit}
	apart := filter.Status == runStopped || filter.Status == kernelwright.RunRunning // the record has both as running
	if apart {
		filter.Status, filter.Limit = kernelwright.RunRunning, math.MaxInt32 // few: those of one start
	}
	list := r.store.Runs
	if c.Task != "" {
		list = func(ctx context.Context, f store.RunFilter) ([]kernelwright.Run, error) {
			return r.runsOf(ctx, c.Task, f)
		}
	}
	runs, err := list(ctx, filter)
	if err != nil {
		return nil, err
	}
	working := r.working()
	for i := range runs {
		runs[i].Status = shownStatus(runs[i], working)
	}
	if apart {
		runs = slices.DeleteFunc(runs, func(run kernelwright.Run) bool { return string(run.Status) != c.Status })
		if c.Limit > 0 {
			runs = runs[:min(len(runs), c.Limit)]
		}
	}
	return runs, nil
}

// legend explains a table's marks below it.
func legend(speedups []*kernelwright.Speedup) string {
	if lines := report.Legend(speedups...); len(lines) > 0 {
		return "\n" + strings.Join(lines, "\n") + "\n"
	}
	return ""
}

// narrowed returns a filter for each thing that people may call a task: its
// fingerprint, a file, its name. The first that finds something counts.
func narrowed(task string, f store.RunFilter) ([]store.RunFilter, error) {
	path, err := filepath.Abs(task)
	if err != nil {
		return nil, err
	}
	byTask, byPath, byName := f, f, f
	byTask.Task, byPath.Path, byName.Name = task, path, task
	return []store.RunFilter{byTask, byPath, byName}, nil
}

// runsOf returns the runs of what people call a task.
func (r *room) runsOf(ctx context.Context, task string, filter store.RunFilter) ([]kernelwright.Run, error) {
	filters, err := narrowed(task, filter)
	if err != nil {
		return nil, err
	}
	for _, f := range filters {
		runs, err := r.store.Runs(ctx, f)
		if err != nil || len(runs) > 0 {
			return runs, err
		}
	}
	return nil, nil
}

// bestKernels returns the best kernel for each task and device behind what
// people call a task, the one that was worked on last first.
func (r *room) bestKernels(ctx context.Context, task string) ([]bestKernel, error) {
	filters, err := narrowed(task, store.RunFilter{})
	if err != nil {
		return nil, err
	}
	var worked []store.Worked
	for _, f := range filters {
		if worked, err = r.store.Worked(ctx, f); err != nil {
			return nil, err
		}
		if len(worked) > 0 {
			break
		}
	}
	var found []bestKernel
	for _, w := range worked {
		round, err := r.store.Best(ctx, w.Task, w.Reference, w.DeviceKey)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		run, err := r.store.Run(ctx, w.RunID)
		if err != nil {
			return nil, err
		}
		found = append(found, newBestKernel(run, round, w.Reference))
	}
	return found, nil
}

type historyShowCmd struct {
	ID       int64  `arg:"" name:"run" help:"Number of the run."`
	Round    *int   `arg:"" optional:"" help:"A round: its source, verdict, evidence, metrics, feedback and prompt."`
	Out      string `help:"Write the kernel, the certificate and the reports into this folder." placeholder:"DIR" type:"path" predictor:"dir"`
	Markdown bool   `help:"Print the whole report as Markdown."`
	Talk     bool   `help:"Print what was said to language models, and what they said."`
}

// Run shows a run, or one round of it.
func (c historyShowCmd) Run(a *app) (err error) {
	if c.Round != nil {
		if c.Out != "" || c.Markdown {
			return usage("--out and --markdown are for a whole run", fmt.Sprintf("leave the round out: `kernelwright history show %d`", c.ID))
		}
		return a.showRound(c.ID, *c.Round)
	}
	r, d, err := a.openRun(c.ID)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	shown := shownStatus(d.Run, r.working())
	var written daemon.Written
	if c.Out != "" {
		path := d.Run.Path
		if path == "" {
			path = d.Run.TaskName + ".py"
		}
		if written, err = (daemon.Results{Folder: c.Out, Markdown: true, HTML: true}).Write(path, d); err != nil {
			return err
		}
	}
	d.Older = written.Older
	s := report.Summarise(d)
	if shown == runStopped {
		if s.Result = string(shown); s.Status == string(d.Run.Status) {
			s.Status = string(shown)
		}
	}
	s.Report, s.Kernel = a.shown(written.Report()), a.shown(written.Kernel)
	lessons, err := r.store.RunLessons(a.ctx, c.ID)
	if err != nil {
		return err
	}
	switch {
	case a.json:
		rounds := d.Rounds
		if rounds == nil {
			rounds = []kernelwright.Round{}
		}
		d.Run.Status = shown
		object := map[string]any{"run": d.Run, "task": d.Task, "device": d.Device, "rounds": rounds, "summary": s, "written": written}
		if len(lessons) > 0 {
			object["lessons"] = lessons
		}
		if c.Talk {
			object["talk"], object["attempts"] = append([]llm.Record{}, d.Talk...), attempts(d.Attempts)
		}
		return a.printJSON(object)
	case c.Markdown:
		return ignoreClosed(report.Markdown(a.stdout, d))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "run %d  %s  %s", d.Run.ID, report.Line(d.Run.TaskName), report.Line(string(shown)))
	if d.Run.Stop != "" {
		fmt.Fprintf(&b, " (%s)", strings.ReplaceAll(report.Line(string(d.Run.Stop)), "_", " "))
	}
	b.WriteByte('\n')
	for _, f := range []struct{ name, value string }{
		{"file", d.Run.Path}, {"device", strings.TrimSuffix(d.Run.Device+", "+d.Device.Name, ", ")}, {"coder", d.Run.Coder}, {"judge", d.Run.Judge}, {"stops", report.RefusedStops(d.Rounds)},
		{"models", spentOn(d.Spend)}, {"lessons", givenLessons(lessons)}, {"reason", d.Run.Reason}, {"hint", d.Run.Hint},
	} {
		if f.value != "" {
			fmt.Fprintf(&b, "%-7s %s\n", f.name, report.Line(f.value))
		}
	}
	for _, f := range s.Flags {
		fmt.Fprintf(&b, "take care: %s\n", report.FlagText(f))
	}
	if len(d.Rounds) > 0 {
		rows := [][]string{{"round", "verdict", "time", "speedup", "against", "headroom", "what was tried"}}
		var speedups []*kernelwright.Speedup
		for _, round := range d.Rounds {
			v, word := report.Counts(round), report.RoundStanding(round)
			if round.Index == s.Round {
				word += " *"
			}
			rows = append(rows, []string{
				strconv.Itoa(round.Index), word, report.Milliseconds(v.CandidateMS), report.Speedup(v.Speedup), report.Against(v.Speedup),
				report.Percent(v.Headroom), report.Line(round.Candidate.Note),
			})
			speedups = append(speedups, v.Speedup)
		}
		b.WriteByte('\n')
		if err := report.Columns(&b, rows, map[int]bool{1: true, 4: true, 6: true}); err != nil {
			return err
		}
		b.WriteString(legend(speedups))
	}
	for _, n := range s.Notes {
		fmt.Fprintf(&b, "note: %s\n", report.Line(n))
	}
	if d.Run.Detail != "" {
		fmt.Fprintf(&b, "\n%s\n", strings.TrimRight(report.Clean(d.Run.Detail), "\n"))
	}
	if c.Talk {
		if len(d.Talk) == 0 {
			b.WriteString("\nno call of a language model was answered in this run\n")
		}
		report.WriteTalk(&b, d.Talk, d.Attempts)
	}
	if s.Report != "" {
		fmt.Fprintf(&b, "\nwritten: %s\n", report.Line(s.Report))
		if s.Kernel != "" {
			fmt.Fprintf(&b, "written: %s\n", report.Line(s.Kernel))
		}
	}
	return a.printf("%s", b.String())
}

// attempt is one at a call with a model that was not answered.
type attempt struct {
	Key     llm.Key   `json:"key"`
	Model   string    `json:"model"`
	Failed  llm.Kind  `json:"failed"`
	Usage   llm.Usage `json:"usage"`
	CostUSD *float64  `json:"cost_usd"` // null: the price is not known
	AtWorst bool      `json:"at_worst"` // usage and cost are the most that it can have taken
	EndedMS int64     `json:"ended" time:"ms"`
	TookMS  int64     `json:"took"`
}

func attempts(charges []llm.Charge) []attempt {
	out := make([]attempt, len(charges))
	for i, c := range charges {
		out[i] = attempt{c.Key, c.Model, c.Failed, c.Usage, c.USD, c.Usage.In+c.Usage.Out > 0, c.EndedMS, c.Took.Milliseconds()}
	}
	return out
}

// givenLessons says what a run was given; empty for nothing.
func givenLessons(lessons []kernelwright.Lesson) string {
	if len(lessons) == 0 {
		return ""
	}
	runs := map[int64]bool{}
	for _, l := range lessons {
		runs[l.Run] = true
	}
	return fmt.Sprintf("%d, of %d earlier runs on this device (--json has them)", len(lessons), len(runs))
}

// spentOn is what was asked of models, or nothing where none was.
func spentOn(s kernelwright.Spend) string {
	if s.Calls == 0 {
		return ""
	}
	return report.Spent(s)
}

type historyBestCmd struct {
	Task   string `arg:"" help:"Name, file or fingerprint of the task."`
	Source bool   `help:"Print the kernel's file instead of what is known of it."`
}

type bestKernel struct {
	Task        string                  `json:"task"`
	Fingerprint string                  `json:"fingerprint"`
	Reference   string                  `json:"reference_sha256,omitempty"` // of its text: several may have one fingerprint
	Device      string                  `json:"device"`
	DeviceKey   string                  `json:"device_key"`
	Run         int64                   `json:"run"`
	Round       int                     `json:"round"`
	Status      kernelwright.Status     `json:"status"`
	Level       kernelwright.Level      `json:"level"`
	MS          float64                 `json:"candidate_ms" unknown:"0"`
	Baselines   map[string]float64      `json:"baselines"`
	Speedup     *kernelwright.Speedup   `json:"speedup"`
	Headroom    float64                 `json:"headroom" unknown:"0"`
	Flags       []kernelwright.TaskFlag `json:"flags,omitempty"`
	SHA256      string                  `json:"sha256,omitempty"`
	Source      string                  `json:"source"`
}

// Run prints the best kernel of a task, for each device it was optimised on.
func (c historyBestCmd) Run(a *app) (err error) {
	r, err := a.openRecord()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	runs, err := r.runsOf(a.ctx, c.Task, store.RunFilter{Limit: 1})
	if err != nil {
		return err
	}
	if len(runs) == 0 {
		return notFound(fmt.Sprintf("no run of a task %q", c.Task), "`kernelwright history ls` lists what there is")
	}
	found, err := r.bestKernels(a.ctx, c.Task)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return notFound(fmt.Sprintf("no correct candidate of %q so far", c.Task), fmt.Sprintf("`kernelwright history show %d` has what was tried", runs[0].ID))
	}
	switch {
	case c.Source && !a.json: // the object has the source too
		return a.printf("%s", found[0].Source)
	case a.json:
		return a.printJSON(map[string]any{"best": found})
	}
	rows := [][]string{{"task", "device", "verdict", "time", "speedup", "against", "headroom", "run", "round"}}
	for _, k := range found {
		against := "–"
		if k.Speedup != nil {
			against = report.Line(k.Speedup.Against)
		}
		rows = append(rows, []string{
			report.Line(k.Task), report.Line(k.Device), report.Standing(kernelwright.Verdict{Status: k.Status, Level: k.Level}), report.Milliseconds(k.MS), report.Speedup(k.Speedup), against,
			report.Percent(k.Headroom), strconv.FormatInt(k.Run, 10), strconv.Itoa(k.Round),
		})
	}
	if err := report.Columns(a.stdout, rows, map[int]bool{0: true, 1: true, 2: true, 5: true}); err != nil {
		return ignoreClosed(err)
	}
	if severalTexts(found) {
		if err := a.printf("these are of several references that differ in no more than comments, docstrings or formatting, each a task of its own:\n"); err != nil {
			return err
		}
		for _, k := range found {
			if err := a.printf("  run %d: the reference with the SHA-256 %s\n", k.Run, cmp.Or(k.Reference, "unknown")); err != nil {
				return err
			}
		}
	}
	for _, k := range found {
		for _, f := range k.Flags {
			if err := a.printf("take care: %s: %s\n", report.Line(k.Task), report.FlagText(f)); err != nil {
				return err
			}
		}
	}
	return nil
}

// severalTexts reports whether kernels of one task are of several texts of it.
func severalTexts(found []bestKernel) bool {
	of := map[string]string{}
	for _, k := range found {
		if text, known := of[k.Fingerprint]; known && text != k.Reference {
			return true
		}
		of[k.Fingerprint] = k.Reference
	}
	return false
}

func newBestKernel(run kernelwright.Run, round kernelwright.Round, reference string) bestKernel {
	v, source := report.Counts(round), round.Candidate.Source
	if v.Exported != "" {
		source = v.Exported
	}
	k := bestKernel{
		Task: run.TaskName, Fingerprint: run.Task, Reference: reference, Device: run.Device, DeviceKey: run.DeviceKey, Run: round.RunID, Round: round.Index,
		Status: v.Status, Level: v.Level, MS: v.CandidateMS, Baselines: v.Baselines, Speedup: v.Speedup, Headroom: v.Headroom, Flags: v.Flags,
		SHA256: v.ExportedSHA256, Source: source,
	}
	if k.Baselines == nil {
		k.Baselines = map[string]float64{}
	}
	return k
}
