package ui

import (
	"context"
	"net/http"
	"slices"
	"strconv"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

// How much of what the first page shows.
const (
	shownQueue   = 50
	shownRunning = 16
	shownDone    = 10
	shownRounds  = 4
)

// nowBody is what goes on.
type nowBody struct {
	Ready   bool   // devices take runs
	Sent    string // the name of a file that was submitted just now, and is not queued yet
	Counts  store.Counts
	Devices []deviceNow
	Running []runNow
	Stopped int
	Queue   []store.Queued
	Paused  bool // the whole queue
	More    int  // in the queue, that are not shown
	Done    []runRow
}

// deviceNow is a device, how it is, and what works on it.
type deviceNow struct {
	kernelwright.Device
	Gauges Gauges
	Runs   []int64
}

// runNow is a run that is worked on.
type runNow struct {
	kernelwright.Run
	Rounds []report.PageRound // the last ones, the newest first
	Done   int
	Best   *kernelwright.Speedup
	Queued *store.Queued // nil: it is not of the queue
}

// runRow is a run in a table.
type runRow struct {
	kernelwright.Run
	Result string
	V      *kernelwright.Verdict // of its best kernel
	Lang   kernelwright.Language
}

func (u *UI) now() {
	build := func(r *http.Request) (view, error) {
		body, err := u.nowBody(r.Context())
		body.Sent = short(80, r.FormValue("sent"))
		return view{Title: "Now", At: "now", Body: body}, err
	}
	u.get("/{$}", "now", build)
	u.get("/now/live", "now_live", build)
}

func (u *UI) nowBody(ctx context.Context) (b nowBody, err error) {
	b.Ready = u.ready()
	if b.Counts, err = u.o.Store.Counts(ctx); err != nil {
		return b, err
	}
	running, err := u.o.Store.Runs(ctx, store.RunFilter{Status: kernelwright.RunRunning, Limit: 200})
	if err != nil {
		return b, err
	}
	u.shown(running)
	for _, run := range running {
		if run.Status != kernelwright.RunRunning {
			b.Stopped++
			continue
		}
		if len(b.Running) == shownRunning {
			continue
		}
		one, err := u.runNow(ctx, run)
		if err != nil {
			return b, err
		}
		b.Running = append(b.Running, one)
	}
	devices, err := u.o.Store.Devices(ctx)
	if err != nil {
		return b, err
	}
	var gauges []Gauges
	if u.o.Devices != nil {
		gauges = u.o.Devices(ctx)
	}
	for _, d := range devices {
		one := deviceNow{Device: d}
		for _, g := range gauges {
			if g.Device == d.String() && (g.Name == d.Name || d.Kind == kernelwright.CPUDevice) {
				one.Gauges = g
			}
		}
		for _, run := range b.Running {
			if run.DeviceKey == d.Key {
				one.Runs = append(one.Runs, run.ID)
			}
		}
		b.Devices = append(b.Devices, one)
	}
	b.Devices = b.Devices[:min(len(b.Devices), shownRunning)]
	if b.Queue, err = u.o.Store.Queue(ctx, store.Queued{}, shownQueue); err != nil {
		return b, err
	}
	for i := range b.Running {
		if at := slices.IndexFunc(b.Queue, func(q store.Queued) bool { return q.Run == b.Running[i].ID }); at >= 0 {
			b.Running[i].Queued = &b.Queue[at]
		}
	}
	if b.Paused, err = u.o.Store.QueuePaused(ctx); err != nil {
		return b, err
	}
	b.More = max(b.Counts.Waiting+b.Counts.Claimed-len(b.Queue), 0)
	done, err := u.o.Store.Runs(ctx, store.RunFilter{Limit: shownQueue})
	if err != nil {
		return b, err
	}
	for _, run := range done {
		if run.FinishedMS != 0 && len(b.Done) < shownDone {
			b.Done = append(b.Done, newRunRow(run))
		}
	}
	return b, nil
}

// shown gives runs the statuses that they are shown with.
func (u *UI) shown(runs []kernelwright.Run) {
	if u.o.Shown == nil || len(runs) == 0 {
		return
	}
	status := u.o.Shown()
	for i := range runs {
		runs[i].Status = status(runs[i])
	}
}

func newRunRow(run kernelwright.Run) runRow {
	row := runRow{Run: run}
	var rounds []kernelwright.Round
	if run.Best != nil {
		v := report.Counts(*run.Best)
		row.V, row.Lang, rounds = &v, run.Best.Candidate.Language, append(rounds, *run.Best)
	}
	row.Result = report.Result(run.Status, rounds)
	return row
}

func (u *UI) runNow(ctx context.Context, run kernelwright.Run) (runNow, error) {
	one := runNow{Run: run}
	found, err := u.o.Store.Figures(ctx, store.FiguresFilter{BeforeRun: run.ID + 1, Limit: 64})
	if err != nil {
		return one, err
	}
	for _, f := range found {
		if f.Run != run.ID {
			continue
		}
		one.Done++
		if f.Speedup != nil && f.Status.OK() && (one.Best == nil || f.Speedup.Value > one.Best.Value) {
			one.Best = f.Speedup
		}
		if len(one.Rounds) < shownRounds {
			one.Rounds = append(one.Rounds, report.PageRound{Index: f.Round, Status: string(f.Status), MS: f.CandidateMS, Speedup: f.Speedup, Note: f.Note, Reason: f.Reason})
		}
	}
	return one, nil
}

// number reads a number of a path.
func number(r *http.Request, name string) (int64, error) {
	n, err := strconv.ParseInt(r.PathValue(name), 10, 64)
	if err != nil || n < 0 {
		return 0, missing("There is no such "+name+".", "The history has what there is.")
	}
	return n, nil
}
