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

type historyAuditCmd struct {
	ID    int64  `arg:"" optional:"" name:"audit" help:"Number of the audit; none lists them."`
	Out   string `help:"Write its page into this folder." placeholder:"DIR" type:"path" predictor:"dir"`
	Limit int    `help:"List at most so many." default:"50"`
}

// Run lists audits, or prints one.
func (c historyAuditCmd) Run(a *app) (err error) {
	if c.ID != 0 {
		return a.showAudit(c.ID, c.Out)
	}
	if c.Out != "" {
		return usage("--out needs the number of an audit", "`kernelwright history audit` lists them")
	}
	r, err := a.openRecord()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	audits, pairs, err := r.store.Audits(a.ctx, store.Page{Limit: c.Limit})
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(map[string]any{"audits": append([]kernelwright.Audit{}, audits...)})
	}
	if len(audits) == 0 {
		return a.printf("no audits\n")
	}
	now := time.Now()
	rows := [][]string{{"audit", "pairs", "device", "begun", "state", "command"}}
	for i, k := range audits {
		state := "done"
		if k.FinishedMS == 0 {
			state = "not done"
		}
		rows = append(rows, []string{
			strconv.FormatInt(k.ID, 10), strconv.Itoa(pairs[i]), report.Line(k.Device), ago(k.CreatedMS, now), state, report.Line(strings.Join(k.Command, " ")),
		})
	}
	return ignoreClosed(report.Columns(a.stdout, rows, map[int]bool{2: true, 3: true, 4: true, 5: true}))
}
