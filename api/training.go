package api

import (
	"context"
	"encoding/json"

	"github.com/kernelwright/kernelwright/store"
)

// policyRow is a version of the Coder's weights.
type policyRow struct {
	Version   int64           `json:"version"`
	Serves    bool            `json:"serves"`
	Digest    string          `json:"digest"`
	Base      string          `json:"base"`
	License   string          `json:"license"`
	Pipeline  int64           `json:"pipeline" unknown:"0"`
	Stage     string          `json:"stage"`
	Bytes     int64           `json:"bytes"`
	Files     json.RawMessage `json:"files"`
	CreatedMS int64           `json:"created" time:"ms"`
	RemovedMS int64           `json:"removed" time:"ms"`
}

// promotionRow is when a policy began to serve.
type promotionRow struct {
	ID        int64  `json:"id"`
	Policy    int64  `json:"policy"`
	Rollback  bool   `json:"rollback"`
	Gate      int64  `json:"gate" unknown:"0"`
	Reason    string `json:"reason"`
	CreatedMS int64  `json:"created" time:"ms"`
}

type nightRow struct {
	store.Night
	WorkedS float64 `json:"worked_s"`
	GPUS    float64 `json:"gpu_s"`
}

// training has the routes of nights, pipelines, stages and policies.
func (a *API) training() {
	get(a, "/api/v1/nights", "List nights.", func(ctx context.Context, in *Ordered) (*answer[list[nightRow]], error) {
		p, err := in.numbered()
		if err != nil {
			return nil, err
		}
		found, err := a.o.Store.Nights(ctx, p)
		rows := make([]nightRow, len(found))
		for i, n := range found {
			rows[i] = nightRow{n, float64(n.WorkedMS) / 1000, float64(n.GPUMS) / 1000}
		}
		return page(in.Paged, rows, func(n nightRow) int64 { return n.ID }, err)
	})
	get(a, "/api/v1/pipelines", "List pipelines.", func(ctx context.Context, in *Ordered) (*answer[list[store.Pipeline]], error) {
		p, err := in.numbered()
		if err != nil {
			return nil, err
		}
		found, err := a.o.Store.Pipelines(ctx, p)
		return page(in.Paged, found, func(p store.Pipeline) int64 { return p.ID }, err)
	})
	get(a, "/api/v1/pipelines/{id}/stages", "List the attempts at the stages of a pipeline, in the order in which they were begun.", func(ctx context.Context, in *struct {
		Number
		Paged
	}) (*answer[list[store.Stage]], error) {
		if _, err := a.o.Store.Pipeline(ctx, in.ID); err != nil {
			return nil, err
		}
		found, err := a.o.Store.Stages(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		return slice(in.Paged, found)
	})
	get(a, "/api/v1/policies", "List policies, removed ones too.", func(ctx context.Context, in *Ordered) (*answer[list[policyRow]], error) {
		p, err := in.numbered()
		if err != nil {
			return nil, err
		}
		found, err := a.o.Store.Policies(ctx, p)
		if err != nil {
			return nil, err
		}
		promotions, err := a.o.Store.Promotions(ctx)
		var serves int64
		for _, p := range promotions {
			serves = p.Policy
		}
		rows := make([]policyRow, len(found))
		for i, p := range found {
			rows[i] = policyRow{p.Version, p.Version == serves, p.Digest, p.Base, p.License, p.Pipeline, p.Stage, p.Bytes, p.Files, p.CreatedMS, p.RemovedMS}
		}
		return page(in.Paged, rows, func(p policyRow) int64 { return p.Version }, err)
	})
	get(a, "/api/v1/promotions", "List promotions and rollbacks, the oldest first.", func(ctx context.Context, in *Paged) (*answer[list[promotionRow]], error) {
		found, err := a.o.Store.Promotions(ctx)
		if err != nil {
			return nil, err
		}
		rows := make([]promotionRow, len(found))
		for i, p := range found {
			rows[i] = promotionRow(p)
		}
		return slice(*in, rows)
	})
}
