package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/kernelwright/kernelwright"
)

// Job is a run's place in the queue.
type Job struct {
	ID       int64
	RunID    int64
	Priority int // higher goes first; equal ones in the order they came
	Attempts int // how often it was claimed, this time included
}

// Enqueue records a new run together with its place in the queue.
func (s *Store) Enqueue(ctx context.Context, r kernelwright.Run, priority int) (kernelwright.Run, error) {
	err := s.inTx(ctx, func(tx *sql.Tx) (err error) {
		r.Status = kernelwright.RunQueued
		if r, err = s.createRun(ctx, tx, r); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO queue (run, priority, state, attempts, available, owner, claimed, created)
			VALUES (?, ?, 'waiting', 0, 0, '', 0, ?)`, r.ID, priority, s.nowMS())
		return err
	})
	return r, err
}

// Claim gives the next waiting job to owner (see Self), or reports that none
// is due. The run is then running; StartedMS is set the first time. A claimed
// job is the owner's until Finish, Return, Retry or Recover.
func (s *Store) Claim(ctx context.Context, owner string) (Job, bool, error) {
	var j Job
	found := false
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		now := s.nowMS()
		err := tx.QueryRowContext(ctx, `UPDATE queue SET state = 'claimed', owner = ?1, claimed = ?2, attempts = attempts + 1
			WHERE id = (SELECT id FROM queue WHERE state = 'waiting' AND available <= ?2 ORDER BY priority DESC, id LIMIT 1)
			RETURNING id, run, priority, attempts`, owner, now).Scan(&j.ID, &j.RunID, &j.Priority, &j.Attempts)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		found = true
		_, err = tx.ExecContext(ctx, `UPDATE runs SET status = ?, started = CASE started WHEN 0 THEN ? ELSE started END WHERE id = ?`,
			kernelwright.RunRunning, now, j.RunID)
		return err
	})
	return j, found, err
}

// Finish records how a claimed run ended and takes it off the queue, at once.
func (s *Store) Finish(ctx context.Context, j Job, r kernelwright.Run) error {
	if r.ID != j.RunID {
		return fmt.Errorf("finish job %d: it is for run %d, not %d", j.ID, j.RunID, r.ID)
	}
	return s.inTx(ctx, func(tx *sql.Tx) error {
		if err := s.updateRun(ctx, tx, r); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `DELETE FROM queue WHERE id = ?`, j.ID)
		return err
	})
}

// Return puts a claimed job back as if it had not been claimed: for a stop in
// the middle, after which the next start goes on from the last round.
func (s *Store) Return(ctx context.Context, j Job) error {
	return s.putBack(ctx, j, -1, 0)
}

// Retry puts a claimed job back after a failure that was not its own, not to
// be claimed before a time (Unix milliseconds).
func (s *Store) Retry(ctx context.Context, j Job, notBeforeMS int64) error {
	return s.putBack(ctx, j, 0, notBeforeMS)
}

func (s *Store) putBack(ctx context.Context, j Job, attempts int, available int64) error {
	return s.inTx(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `UPDATE queue SET state = 'waiting', owner = '', claimed = 0, attempts = attempts + ?, available = ?
			WHERE id = ? AND state = 'claimed'`, attempts, available, j.ID)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE runs SET status = ? WHERE id = ?`, kernelwright.RunQueued, j.RunID)
		return err
	})
}

// Recover puts back every job whose owner is no longer alive, and returns how
// many. The daemon calls it when it starts, with Alive. The attempt that died
// counts, so that a run which kills its process does not come back for ever.
func (s *Store) Recover(ctx context.Context, alive func(owner string) bool) (int, error) {
	recovered := 0
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		rows, err := tx.QueryContext(ctx, `SELECT id, run, owner FROM queue WHERE state = 'claimed'`)
		if err != nil {
			return err
		}
		type claim struct {
			id, run int64
			owner   string
		}
		claims, err := scanAll(rows, func(r *sql.Rows) (c claim, err error) { return c, r.Scan(&c.id, &c.run, &c.owner) })
		if err != nil {
			return err
		}
		for _, c := range claims {
			if alive(c.owner) {
				continue
			}
			if _, err := tx.ExecContext(ctx, `UPDATE queue SET state = 'waiting', owner = '', claimed = 0 WHERE id = ?`, c.id); err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, `UPDATE runs SET status = ? WHERE id = ?`, kernelwright.RunQueued, c.run); err != nil {
				return err
			}
			recovered++
		}
		return nil
	})
	return recovered, err
}

// Cancel takes a run that is still waiting off the queue. It reports whether
// it was: a claimed run is its owner's to end.
func (s *Store) Cancel(ctx context.Context, runID int64) (bool, error) {
	res, err := s.write.ExecContext(ctx, `DELETE FROM queue WHERE run = ? AND state = 'waiting'`, runID)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n > 0, err
}

// QueueLength returns how many jobs wait, due or not, and how many are claimed.
func (s *Store) QueueLength(ctx context.Context) (waiting, claimed int, err error) {
	err = s.read.QueryRowContext(ctx, `SELECT count(*) FILTER (WHERE state = 'waiting'), count(*) FILTER (WHERE state = 'claimed') FROM queue`).
		Scan(&waiting, &claimed)
	return waiting, claimed, err
}
