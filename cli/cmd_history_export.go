package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/dataset"
)

type historyExportCmd struct {
	Out    string `help:"A file that ends in .jsonl or .parquet, or a folder; it must not be there yet." required:"" placeholder:"PATH" type:"path" predictor:"file"`
	As     string `help:"trajectories, or kernelbench: references and best kernels as KernelBench's folders have them." default:"trajectories" enum:"trajectories,kernelbench" placeholder:"FORM"`
	Rows   string `help:"What a row of trajectories is: runs or rounds." default:"runs" enum:"runs,rounds" placeholder:"KIND"`
	Task   string `help:"Only of the task of this name, file or fingerprint." placeholder:"TASK"`
	Status string `help:"Only runs with this status, as in history ls." placeholder:"STATUS"`
	Before int64  `help:"Only runs before this one." placeholder:"RUN"`
	Limit  int    `help:"At most so many runs, the newest first; 0: all." default:"0"`
}

// Help is shown below the flags.
func (historyExportCmd) Help() string {
	return "Trajectories have messages with roles, the verdict's figures and the reward: a folder is a dataset with Parquet files and a card. Runs that hold what looks like a secret are left out, and no path of this machine is written. What may be trained on, by the licences in the settings, is `train data`. The way back is `train tasks import`, which reads KernelBench's folders and rows of CUDA-Agent-Ops."
}

// Run writes runs to a file or folder.
func (c historyExportCmd) Run(a *app) (err error) {
	ls := historyLsCmd{Task: c.Task, Status: c.Status, Before: c.Before, Limit: c.Limit}
	if err := ls.checkStatus(); err != nil {
		return err
	}
	if c.As == "kernelbench" && (strings.HasSuffix(c.Out, ".jsonl") || strings.HasSuffix(c.Out, ".parquet")) {
		return usage(c.Out+" would be a file, and KernelBench's form is a folder", "name a folder with --out")
	}
	r, err := a.openRecord()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	show := newProgress(a.stderr)
	defer show.done()
	show.begin("export")
	from := dataset.Source{Store: r.store, Secret: secretIn(a.env), Each: func(ctx context.Context, give func(kernelwright.Run) error) error {
		return ls.each(ctx, r, show, give)
	}}
	var counts dataset.Counts
	if c.As == "kernelbench" {
		counts, err = dataset.KernelBench(a.ctx, c.Out, from)
	} else {
		counts, err = dataset.Write(a.ctx, c.Out, from, dataset.Rows(c.Rows))
	}
	show.done()
	switch {
	case errors.Is(err, fs.ErrExist):
		return usage("there is something at "+c.Out+" already", "name another path with --out, or remove it first")
	case err != nil && a.ctx.Err() != nil:
		return errCutShort
	case err != nil:
		return &Error{Code: ExitFailure, Text: c.Out, Err: err, Hint: worldHint(err, "name a path that can be written with --out")}
	case counts.Rows == 0 && c.As == "kernelbench":
		return notFound("no run that matches has a certified kernel: nothing was written", "`kernelwright history ls` lists the runs")
	}
	if a.json {
		return a.printJSON(struct {
			Path string `json:"path"`
			dataset.Counts
		}{a.shown(c.Out), counts})
	}
	said := fmt.Sprintf("%d rows of %d runs and %d tasks are in %s\n", counts.Rows, counts.Runs, counts.Tasks, report.Line(a.shown(c.Out)))
	if c.As == "kernelbench" {
		said = fmt.Sprintf("%d kernels of %d references are in %s\n", counts.Rows, counts.Tasks, report.Line(a.shown(c.Out)))
	}
	if counts.Secrets > 0 {
		said += fmt.Sprintf("left out: %d runs that hold what looks like a secret\n", counts.Secrets)
	}
	return a.printf("%s", said)
}

// exportPage is how many runs are listed at once.
const exportPage = 500

// each gives the runs that are asked for, the newest first, and tells how far it is.
func (c historyLsCmd) each(ctx context.Context, r *room, show *progress, give func(kernelwright.Run) error) error {
	filters := []store.RunFilter{{}}
	if c.Task != "" {
		var err error
		if filters, err = narrowed(c.Task, store.RunFilter{}); err != nil {
			return err
		}
	}
	status := kernelwright.RunStatus(c.Status)
	if status == runStopped {
		status = kernelwright.RunRunning // the record has both as running
	}
	working := r.working()
	for _, f := range filters {
		f.Status, f.Before, f.Limit = status, c.Before, exportPage
		all, err := r.store.CountRuns(ctx, f)
		if err != nil {
			return err
		}
		if c.Limit > 0 {
			all = min(all, int64(c.Limit))
		}
		given, seen := 0, int64(0)
		for all > 0 {
			runs, err := r.store.Runs(ctx, f)
			if err != nil {
				return err
			}
			for _, run := range runs {
				if err := ctx.Err(); err != nil {
					return err
				}
				seen++
				show.share("export", min(seen, all), all, "runs")
				if shown := shownStatus(run, working); c.Status != "" && string(shown) != c.Status {
					continue
				}
				if err := give(run); err != nil {
					return err
				}
				if given++; given == c.Limit {
					return nil
				}
			}
			if len(runs) < f.Limit {
				return nil
			}
			f.Before = runs[len(runs)-1].ID
		}
	}
	return nil
}
