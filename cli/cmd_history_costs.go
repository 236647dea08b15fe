package cli

import (
	"errors"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

type historyCostsCmd struct {
	Days int `help:"Only the last so many days; 0: all." default:"0" placeholder:"N"`
}

// Run says what language models were asked and what that cost, attempts that
// failed included.
func (c historyCostsCmd) Run(a *app) (err error) {
	if c.Days < 0 {
		return usage("a number of days cannot be negative", "leave --days out for all")
	}
	r, err := a.openRecord()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	var since int64
	if c.Days > 0 {
		y, m, d := time.Now().UTC().Date()
		since = time.Date(y, m, d-c.Days+1, 0, 0, 0, 0, time.UTC).UnixMilli()
	}
	days, err := r.store.Spending(a.ctx, since)
	if err != nil {
		return err
	}
	var all kernelwright.Spend
	for _, day := range days {
		all = all.Add(day.Spend)
	}
	if a.json {
		return a.printJSON(map[string]any{"days": append([]store.Spending{}, days...), "all": all})
	}
	if len(days) == 0 {
		return a.printf("no language model was asked\n")
	}
	rows := [][]string{{"day (UTC)", "model", "cost", "what was asked"}}
	for _, day := range days {
		rows = append(rows, []string{time.UnixMilli(day.DayMS).UTC().Format(time.DateOnly), report.Line(day.Model), report.Cost(day.Spend), report.Spent(day.Spend)})
	}
	rows = append(rows, []string{"all", "", report.Cost(all), report.Spent(all)})
	return ignoreClosed(report.Columns(a.stdout, rows, map[int]bool{0: true, 1: true, 3: true}))
}
