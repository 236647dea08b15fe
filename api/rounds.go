package api

import (
	"context"
	"errors"
	"fmt"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/store"
)

// RoundNumber is of routes of a round.
type RoundNumber struct {
	RunNumber
	Round int `path:"round" minimum:"0" doc:"Index of the round, from 0."`
}

type figureParameters struct {
	Paged
	Task      string `query:"task" maxLength:"200" doc:"Fingerprint of the task."`
	Name      string `query:"name" maxLength:"1000" doc:"Name of the task."`
	DeviceKey string `query:"device_key" maxLength:"1000" doc:"Key of the device."`
	Language  string `query:"language" enum:"cuda,triton,cpp"`
	Status    string `query:"status" enum:"rejected,build_failed,crashed,timed_out,wrong,cheated,correct,certified" doc:"Of the certificate, else of the verdict."`
}

// rounds has the routes of rounds and what was measured in them.
func (a *API) rounds() {
	get(a, "/api/v1/runs/{run}/rounds", "List the rounds of a run, in order, whole.", func(ctx context.Context, in *struct {
		RunNumber
		Paged
	}) (*answer[list[kernelwright.Round]], error) {
		after := -1
		if err := errors.Join(in.from(&after), a.there(ctx, in.Run)); err != nil {
			return nil, err
		}
		found, err := a.o.Store.RoundsAfter(ctx, in.Run, after, in.Limit+1)
		return page(in.Paged, found, func(r kernelwright.Round) int { return r.Index }, err)
	})
	get(a, "/api/v1/runs/{run}/rounds/{round}", "A round: candidate, verdict, feedback, certificate.", func(ctx context.Context, in *RoundNumber) (*answer[kernelwright.Round], error) {
		return say(a.o.Store.Round(ctx, in.Run, in.Round))
	})
	get(a, "/api/v1/runs/{run}/metrics", "List what was measured in the rounds of a run.", func(ctx context.Context, in *struct {
		RunNumber
		Paged
		Name string `query:"name" maxLength:"200" doc:"Of this metric alone: docs/metrics.md has the names."`
	}) (*answer[list[store.Measured]], error) {
		after := store.Measured{Round: -1}
		if err := errors.Join(in.from(&after), a.there(ctx, in.Run)); err != nil {
			return nil, err
		}
		found, err := a.o.Store.Metrics(ctx, in.Run, in.Name, after, in.Limit+1)
		return page(in.Paged, found, func(m store.Measured) store.Measured { return store.Measured{Round: m.Round, Name: m.Name} }, err)
	})
	for _, of := range []struct {
		path, summary string
		kernels       bool
	}{
		{"/api/v1/verdicts", "List the key figures of rounds of all runs, the newest first.", false},
		{"/api/v1/kernels", "List certified kernels, the newest first.", true},
	} {
		get(a, of.path, of.summary, func(ctx context.Context, in *figureParameters) (*answer[list[store.Figures]], error) {
			var before place
			if err := in.from(&before); err != nil {
				return nil, err
			}
			found, err := a.o.Store.Figures(ctx, store.FiguresFilter{
				Task: in.Task, Name: in.Name, DeviceKey: in.DeviceKey, Language: kernelwright.Language(in.Language), Status: kernelwright.Status(in.Status),
				Certified: of.kernels, BeforeRun: before.Run, BeforeRound: before.Round, Limit: in.Limit + 1,
			})
			return page(in.Paged, found, func(f store.Figures) place { return place{f.Run, f.Round} }, err)
		})
	}
	get(a, "/api/v1/kernels/{sha256}", "The round that a certified file came from.", func(ctx context.Context, in *hash) (*answer[kernelwright.Round], error) {
		return say(a.o.Store.ByExport(ctx, in.SHA256))
	})
}

// there is nil where there is such a run.
func (a *API) there(ctx context.Context, run int64) error {
	_, err := a.o.Store.Run(ctx, run)
	if errors.Is(err, store.ErrNotFound) {
		return missing(fmt.Sprintf("there is no run %d", run), "/api/v1/runs lists them")
	}
	return err
}

// known is nil for what is not recorded.
func known[T any](v *T, err error) (*T, error) {
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return v, nil
}
