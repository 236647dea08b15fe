package store

import (
	"context"
	"database/sql"
	"fmt"
)

// NightStop says why a night ended.
type NightStop string

// The reasons. A night that ended with any but the first goes on in the next one.
const (
	NightDone     NightStop = "done"      // its pipeline came to its gate
	NightHours    NightStop = "hours"     // its hours were over
	NightGPUHours NightStop = "gpu_hours" // its GPU hours were used up
	NightFailed   NightStop = "failed"    // its pipeline could not go on
	NightDaemon   NightStop = "daemon"    // no daemon ran until its hours were over
)

// Night is training that the daemon began by itself.
type Night struct {
	ID       int64     `json:"id"`
	DueMS    int64     `json:"due" time:"ms"`   // when the schedule wanted it
	UntilMS  int64     `json:"until" time:"ms"` // when its hours are over
	BegunMS  int64     `json:"began" time:"ms"`
	SeenMS   int64     `json:"seen" time:"ms"` // when it was last known to be under way
	EndedMS  int64     `json:"ended" time:"ms"`
	Owner    string    `json:"-"` // the process that had it last (Self)
	Stop     NightStop `json:"stop"`
	Reason   string    `json:"reason,omitempty"`
	WorkedMS int64     `json:"-"` // that its pipeline was at work
	GPUMS    int64     `json:"-"` // of all its GPUs together
	Yields   int64     `json:"yields" keep:"zero"`
	Pipeline int64     `json:"pipeline" unknown:"0"`
	Decision string    `json:"decision"` // of the gate
}

// Open reports whether it is not over.
func (n Night) Open() bool { return n.EndedMS == 0 }

// BeginNight records a night that begins, and returns it with its number. There is
// one at a time.
func (s *Store) BeginNight(ctx context.Context, n Night) (Night, error) {
	err := s.write.QueryRowContext(ctx, `INSERT INTO nights (due, until, begun, seen, ended, owner, stop, reason, worked_ms, gpu_ms, yields, pipeline, decision)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id`, nightValues(n)...).Scan(&n.ID)
	if err != nil {
		return n, fmt.Errorf("record a night: %w", err)
	}
	return n, nil
}

// SaveNight records how a night stands. One that is over stays as it is.
func (s *Store) SaveNight(ctx context.Context, n Night) error {
	res, err := s.write.ExecContext(ctx, `UPDATE nights SET (due, until, begun, seen, ended, owner, stop, reason, worked_ms, gpu_ms, yields, pipeline, decision) =
		(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) WHERE id = ? AND ended = 0`, append(nightValues(n), n.ID)...)
	if err == nil {
		var changed int64
		if changed, err = res.RowsAffected(); err == nil && changed == 0 {
			err = ErrNotFound
		}
	}
	if err != nil {
		return fmt.Errorf("record night %d: %w", n.ID, err)
	}
	return nil
}

func nightValues(n Night) []any {
	return []any{n.DueMS, n.UntilMS, n.BegunMS, n.SeenMS, n.EndedMS, n.Owner, n.Stop, n.Reason, n.WorkedMS, n.GPUMS, n.Yields,
		sql.NullInt64{Int64: n.Pipeline, Valid: n.Pipeline != 0}, n.Decision}
}

// Nights returns a page of the nights.
func (s *Store) Nights(ctx context.Context, p Page) ([]Night, error) {
	query, args := p.query(`SELECT id, due, until, begun, seen, ended, owner, stop, reason, worked_ms, gpu_ms, yields, pipeline, decision FROM nights`, "id", nil)
	rows, err := s.read.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return scanAll(rows, func(r *sql.Rows) (n Night, err error) {
		var pipeline sql.NullInt64
		err = r.Scan(&n.ID, &n.DueMS, &n.UntilMS, &n.BegunMS, &n.SeenMS, &n.EndedMS, &n.Owner, &n.Stop, &n.Reason, &n.WorkedMS, &n.GPUMS, &n.Yields, &pipeline, &n.Decision)
		n.Pipeline = pipeline.Int64
		return n, err
	})
}

// LastNight returns the newest night, or ErrNotFound.
func (s *Store) LastNight(ctx context.Context) (Night, error) {
	all, err := s.Nights(ctx, Page{Limit: 1})
	if err == nil && len(all) == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return Night{}, err
	}
	return all[0], nil
}
