package api

import (
	"context"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
)

type benchPage struct {
	Bench kernelwright.Bench    `json:"bench"`
	Runs  []kernelwright.Member `json:"runs" doc:"That were begun."`
}

type auditRow struct {
	kernelwright.Audit
	Pairs int `json:"pairs"`
}

// auditedPair is a pair of an audit in a list.
type auditedPair struct {
	Index int `json:"index" doc:"In the set, from 0."`
	report.AuditRow
}

// Number is of routes of what has one.
type Number struct {
	ID int64 `path:"id" minimum:"1"`
}

// benches has the routes of benches and audits.
func (a *API) benches() {
	get(a, "/api/v1/benches", "List benches.", func(ctx context.Context, in *Ordered) (*answer[list[kernelwright.Bench]], error) {
		p, err := in.numbered()
		if err != nil {
			return nil, err
		}
		found, err := a.o.Store.Benches(ctx, p)
		return page(in.Paged, found, func(b kernelwright.Bench) int64 { return b.ID }, err)
	})
	get(a, "/api/v1/benches/{id}", "A bench and its runs.", func(ctx context.Context, in *Number) (*answer[benchPage], error) {
		b, err := a.o.Store.Bench(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		runs, err := a.o.Store.Members(ctx, in.ID)
		return say(benchPage{b, append([]kernelwright.Member{}, runs...)}, err)
	})
	get(a, "/api/v1/audits", "List audits.", func(ctx context.Context, in *Ordered) (*answer[list[auditRow]], error) {
		p, err := in.numbered()
		if err != nil {
			return nil, err
		}
		found, pairs, err := a.o.Store.Audits(ctx, p)
		rows := make([]auditRow, len(found))
		for i := range found {
			rows[i] = auditRow{found[i], pairs[i]}
		}
		return page(in.Paged, rows, func(r auditRow) int64 { return r.ID }, err)
	})
	get(a, "/api/v1/audits/{id}/pairs", "List the pairs of an audit, claimed against measured: a line of audit --json each.", func(ctx context.Context, in *struct {
		Number
		Paged
	}) (*answer[list[auditedPair]], error) {
		if _, err := a.o.Store.Audit(ctx, in.ID); err != nil {
			return nil, err
		}
		var from int
		if err := in.from(&from); err != nil {
			return nil, err
		}
		from = max(from, 0)
		var found []auditedPair
		err := a.o.Store.AuditPairsFrom(ctx, in.ID, from, in.Limit+1, func(p kernelwright.AuditPair) error {
			found = append(found, auditedPair{p.Index, report.NewAuditRow(p)})
			return ctx.Err()
		})
		return page(in.Paged, found, func(auditedPair) int { return from + in.Limit }, err)
	})
	get(a, "/api/v1/audits/{id}/pairs/{index}", "A pair of an audit, with its whole verdict.", func(ctx context.Context, in *struct {
		Number
		Index int `path:"index" minimum:"0" doc:"Of the pair in the set, from 0."`
	}) (*answer[kernelwright.AuditPair], error) {
		p, err := a.o.Store.AuditPair(ctx, in.ID, in.Index)
		return say(p, err)
	})
}
