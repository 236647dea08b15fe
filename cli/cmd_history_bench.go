package cli

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

type historyBenchCmd struct {
	ID    int64  `arg:"" optional:"" name:"bench" help:"Number of the bench; none lists them."`
	Out   string `help:"Write its report and its kernels into this folder." placeholder:"DIR" type:"path" predictor:"dir"`
	Limit int    `help:"List at most so many." default:"50"`
}

// Run lists benches, or prints one.
func (c historyBenchCmd) Run(a *app) (err error) {
	if c.ID != 0 {
		return a.showBench(c.ID, c.Out)
	}
	if c.Out != "" {
		return usage("--out needs the number of a bench", "`kernelwright history bench` lists them")
	}
	r, err := a.openRecord()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	benches, err := r.store.Benches(a.ctx, store.Page{Limit: c.Limit})
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(map[string]any{"benches": append([]kernelwright.Bench{}, benches...)})
	}
	if len(benches) == 0 {
		return a.printf("no benches\n")
	}
	now := time.Now()
	rows := [][]string{{"bench", "references", "configurations", "device", "begun", "state", "command"}}
	for _, b := range benches {
		state := "done"
		if b.FinishedMS == 0 {
			state = "not done"
		}
		rows = append(rows, []string{
			strconv.FormatInt(b.ID, 10), strconv.Itoa(len(b.References)), strconv.Itoa(len(b.Configurations)), report.Line(b.Device),
			ago(b.CreatedMS, now), state, report.Line(strings.Join(b.Command, " ")),
		})
	}
	return ignoreClosed(report.Columns(a.stdout, rows, map[int]bool{3: true, 4: true, 5: true, 6: true}))
}
