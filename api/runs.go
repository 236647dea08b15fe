package api

import (
	"context"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/store"
)

type runParameters struct {
	Ordered
	Task      string `query:"task" maxLength:"200" doc:"Fingerprint of the task."`
	Name      string `query:"name" maxLength:"1000" doc:"Name of the task."`
	Path      string `query:"path" maxLength:"4096" doc:"Path of the reference."`
	DeviceKey string `query:"device_key" maxLength:"1000" doc:"Key of the device."`
	Status    string `query:"status" enum:"queued,running,done,invalid,declined,failed,cancelled" doc:"As it is recorded."`
	Strategy  string `query:"strategy" maxLength:"100"`
	Coder     string `query:"coder" maxLength:"500"`
	Since     string `query:"since" maxLength:"40" doc:"Created then or later: a date, or a time in ISO 8601."`
	Until     string `query:"until" maxLength:"40" doc:"Created before: a date, or a time in ISO 8601."`
}

// RunNumber is of routes of a run.
type RunNumber struct {
	Run int64 `path:"run" minimum:"1" doc:"Number of the run."`
}

// runPage is all of a run but its rounds.
type runPage struct {
	Run     kernelwright.Run      `json:"run"`
	Task    *kernelwright.Task    `json:"task" doc:"As the run saw it."`
	Device  *kernelwright.Device  `json:"device" doc:"As the run saw it."`
	Spend   kernelwright.Spend    `json:"spend"`
	Lessons []kernelwright.Lesson `json:"lessons" doc:"That it was given."`
}

// runs has the routes of runs.
func (a *API) runs() {
	get(a, "/api/v1/runs", "List runs, without tracebacks; their best rounds with key figures alone.", func(ctx context.Context, in *runParameters) (*answer[list[kernelwright.Run]], error) {
		p, err := in.numbered()
		if err != nil {
			return nil, err
		}
		f := store.RunFilter{
			Task: in.Task, Name: in.Name, Path: in.Path, DeviceKey: in.DeviceKey, Status: kernelwright.RunStatus(in.Status), Strategy: in.Strategy, Coder: in.Coder,
			Before: p.From, Oldest: p.Oldest, Limit: p.Limit,
		}
		if f.SinceMS, err = moment("since", in.Since); err != nil {
			return nil, err
		}
		if f.UntilMS, err = moment("until", in.Until); err != nil {
			return nil, err
		}
		found, err := a.o.Store.Runs(ctx, f)
		a.shown(found)
		return page(in.Paged, found, func(r kernelwright.Run) int64 { return r.ID }, err)
	})
	get(a, "/api/v1/runs/{run}", "A run with its best round, task, device and cost.", func(ctx context.Context, in *RunNumber) (*answer[runPage], error) {
		var p runPage
		var err error
		if p.Run, err = a.o.Store.Run(ctx, in.Run); err != nil {
			return nil, err
		}
		one := []kernelwright.Run{p.Run}
		a.shown(one)
		p.Run = one[0]
		task, err := a.o.Store.RunTask(ctx, in.Run)
		if p.Task, err = known(&task, err); err != nil {
			return nil, err
		}
		device, err := a.o.Store.RunDevice(ctx, in.Run)
		if p.Device, err = known(&device, err); err != nil {
			return nil, err
		}
		if p.Spend, err = a.o.Store.Spend(ctx, in.Run); err != nil {
			return nil, err
		}
		p.Lessons, err = a.o.Store.RunLessons(ctx, in.Run)
		if p.Lessons == nil {
			p.Lessons = []kernelwright.Lesson{}
		}
		return say(p, err)
	})
}

// shown gives runs the statuses that they are shown with.
func (a *API) shown(runs []kernelwright.Run) {
	if a.o.Shown == nil || len(runs) == 0 {
		return
	}
	status := a.o.Shown()
	for i := range runs {
		runs[i].Status = status(runs[i])
	}
}

// moment reads a time that a parameter has, as Unix milliseconds; 0 for none.
func moment(name, value string) (int64, error) {
	if value == "" {
		return 0, nil
	}
	for _, form := range []string{time.DateOnly, time.RFC3339} {
		if at, err := time.Parse(form, value); err == nil {
			return at.UnixMilli(), nil
		}
	}
	return 0, bad("query."+name+": it is no date or time", "write it as 2026-11-30, or as 2026-11-30T12:00:00Z")
}
