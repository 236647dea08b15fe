package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

type trainNightsCmd struct {
	Limit int `help:"At most so many, the latest; 0: all." default:"20" placeholder:"N"`
}

// nightRow is what is said of a night.
type nightRow struct {
	store.Night
	// State is running, stopped (it goes on when the daemon runs) or ended.
	State   string  `json:"state"`
	WorkedS float64 `json:"worked_s"` // that its pipeline was at work
	GPUS    float64 `json:"gpu_s"`    // of all its GPUs together
}

// Run lists nights.
func (c trainNightsCmd) Run(a *app) (err error) {
	if c.Limit < 0 {
		return usage("a number of nights cannot be negative", "--limit 0 is for all")
	}
	r, err := a.openRecord()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	found, err := r.store.Nights(a.ctx, store.Page{Limit: c.Limit})
	if err != nil {
		return err
	}
	rows := make([]nightRow, len(found))
	for i, n := range found {
		state := "ended"
		if n.Open() {
			state = map[bool]string{true: "running", false: "stopped"}[store.Alive(n.Owner)]
		}
		rows[i] = nightRow{n, state, float64(n.WorkedMS) / 1000, float64(n.GPUMS) / 1000}
	}
	table, on, err := r.config.Training.Schedule.Timetable()
	if err != nil {
		return err
	}
	var next int64
	if on {
		next = table.Next(time.Now()).UnixMilli()
	}
	if a.json {
		type listed struct {
			Nights []nightRow `json:"nights"`
			Next   int64      `json:"next" time:"ms"` // by the schedule; null where there is none
		}
		return a.printJSON(listed{rows, next})
	}
	return printNights(a, rows, next)
}

func printNights(a *app, nights []nightRow, next int64) error {
	if len(nights) > 0 {
		rows := [][]string{{"night", "began", "ended", "why", "at work", "GPU", "gave way", "pipeline", "decision"}}
		for _, n := range nights {
			ended, why, pipeline := n.State, "", ""
			if !n.Open() {
				ended, why = localTime(n.EndedMS), string(n.Stop)
			}
			if n.Pipeline != 0 {
				pipeline = fmt.Sprint(n.Pipeline)
			}
			rows = append(rows, []string{fmt.Sprint(n.ID), localTime(n.BegunMS), ended, why, span(n.WorkedMS), span(n.GPUMS), fmt.Sprint(n.Yields), pipeline, report.Line(n.Decision)})
		}
		if err := report.Columns(a.stdout, rows, map[int]bool{1: true, 2: true, 3: true, 8: true}); err != nil {
			return ignoreClosed(err)
		}
		for _, n := range nights {
			if n.Stop == store.NightFailed {
				if err := a.printf("night %d failed: %s\n", n.ID, report.Line(n.Reason)); err != nil {
					return err
				}
			}
		}
	} else if err := a.printf("there was no night yet\n"); err != nil {
		return err
	}
	if next == 0 {
		return a.printf("none is planned: `training.schedule.cron` says when the daemon trains by itself\n")
	}
	return a.printf("the next begins at %s, where a daemon runs then and no run waits\n", localTime(next))
}

func localTime(ms int64) string { return time.UnixMilli(ms).Format("2006-01-02 15:04") }

// span is a length of time in seconds, or minutes and hours.
func span(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	if d >= time.Hour {
		return d.Round(time.Minute).String()
	}
	return d.Round(time.Second).String()
}
