package cli

import (
	"context"
	"net/http"

	"github.com/kernelwright/kernelwright/api"
	"github.com/kernelwright/kernelwright/daemon"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/pipeline"
	"github.com/kernelwright/kernelwright/ui"
)

// withPages puts the web pages before an API.
func (r *room) withPages(o api.Options, served *api.API) http.Handler {
	return ui.New(ui.Options{
		Store: r.store, Version: o.Version, API: served, Token: o.Token, ReadToken: o.ReadToken, Shown: o.Shown, Log: r.log, Bench: r.loadBench,
		Run: func(ctx context.Context, id int64, talk bool) (report.Data, error) {
			if talk {
				return daemon.Load(ctx, r.store, id)
			}
			return daemon.LoadQuiet(ctx, r.store, id)
		},
		Curves: func(s store.Stage) ([]ui.Curve, error) {
			found, err := curvesOf(pipeline.StageFolder(r.folder, s))
			all := make([]ui.Curve, len(found))
			for i, c := range found {
				all[i] = ui.Curve{Part: c.Part, Steps: c.Steps}
			}
			return all, err
		},
		Devices: func(ctx context.Context) []ui.Gauges {
			var all []ui.Gauges
			for _, d := range served.Devices(ctx) {
				all = append(all, ui.Gauges{Device: d.Device, Name: d.Name, Load: d.Load, TemperatureC: d.TemperatureC, ClockMHz: d.SMClockMHz, MemoryUsed: d.MemoryUsed})
			}
			return all
		},
		Budget: ui.Budget{USD: r.config.Budget.Day.USD, Tokens: r.config.Budget.Day.Tokens, Calls: r.config.Budget.Day.Calls},
	})
}
