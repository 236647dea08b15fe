package store

import (
	"context"
	"database/sql"
)

// RunOfPeople is a run that somebody wanted, other than an episode of training.
type RunOfPeople struct {
	ID    int64
	Bench bool // it is part of a bench
}

// RunsOfPeople returns all of them in the order in which they were wanted.
func (s *Store) RunsOfPeople(ctx context.Context) ([]RunOfPeople, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT id, EXISTS (SELECT 1 FROM bench_runs WHERE run = runs.id) FROM runs
		WHERE NOT EXISTS (SELECT 1 FROM episodes WHERE run = runs.id) ORDER BY id`)
	if err != nil {
		return nil, err
	}
	return scanAll(rows, func(r *sql.Rows) (o RunOfPeople, err error) { return o, r.Scan(&o.ID, &o.Bench) })
}

// HeldOut returns the fingerprints of all tasks that are held out in any set.
func (s *Store) HeldOut(ctx context.Context) ([]string, error) {
	return scanNames(s.read.QueryContext(ctx, `SELECT DISTINCT fingerprint FROM task_draws WHERE reason = '' AND split IN (?, ?) ORDER BY fingerprint`, CompositionsSplit, KindsSplit))
}
