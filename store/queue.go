package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/kernelwright/kernelwright"
)

// Job is a run's place in the queue.
type Job struct {
	ID       int64
	RunID    int64
	Priority int // higher goes first; equal ones in the order they came
	Attempts int // how often it was claimed since its last recorded round, this time included
}

// Enqueue records a new run together with its place in the queue.
func (s *Store) Enqueue(ctx context.Context, r kernelwright.Run, priority int, with ...With) (kernelwright.Run, error) {
	err := s.inTx(ctx, func(tx *sql.Tx) (err error) {
		r.Status = kernelwright.RunQueued
		if r, err = s.createRun(ctx, tx, r, with); err != nil {
			return err
		}
		return s.enqueue(ctx, tx, r.ID, priority)
	})
	return r, err
}

func (s *Store) enqueue(ctx context.Context, tx *sql.Tx, run int64, priority int) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO queue (run, priority, state, attempts, available, owner, claimed, created)
		VALUES (?, ?, 'waiting', 0, 0, '', 0, ?)`, run, priority, s.nowMS())
	return err
}

// Claim gives the next waiting job to owner (see Self), or reports that none
// is due. The run is then running; StartedMS is set the first time. A claimed
// job is the owner's until Finish, Return, Retry or Recover. A run that came to
// nothing twice waits behind those of its priority that did not. The clock may
// be set: a job that was put back in what is now the future is due. Elsewhere
// are the keys of other devices: runs that have rounds of theirs are left alone.
// So are runs that are held back.
func (s *Store) Claim(ctx context.Context, owner string, elsewhere ...string) (Job, bool, error) {
	var j Job
	found := false
	others, err := json.Marshal(elsewhere)
	if err != nil {
		return j, false, err
	}
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		now := s.nowMS()
		err := tx.QueryRowContext(ctx, `UPDATE queue SET state = 'claimed', owner = ?1, claimed = ?2, attempts = attempts + 1
			WHERE id = (SELECT id FROM queue WHERE state = 'waiting' AND (available <= ?2 OR claimed > ?2)
				AND NOT EXISTS (SELECT 1 FROM holds WHERE holds.run IN (0, queue.run))
				AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = queue.run AND device_key IN (SELECT value FROM json_each(?3))
					AND EXISTS (SELECT 1 FROM rounds WHERE rounds.run = runs.id))
				ORDER BY priority DESC, max(attempts - 1, 0), id LIMIT 1)
			RETURNING id, run, priority, attempts`, owner, now, string(others)).Scan(&j.ID, &j.RunID, &j.Priority, &j.Attempts)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		found = true
		_, err = tx.ExecContext(ctx, `UPDATE runs SET status = ?, started = CASE started WHEN 0 THEN ? ELSE started END, reason = '', hint = '' WHERE id = ?`,
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
		return leaveQueue(ctx, tx, j.RunID)
	})
}

// Repeat records that a claimed run has ended without having done what it was
// for, and a new one that waits in the queue to do it: the files and the debts
// of the first are the second's. Why is told which run that is; 0 says that the
// file holds something else by now, so that nothing is to be done anew.
func (s *Store) Repeat(ctx context.Context, j Job, ended, again kernelwright.Run, why func(by int64) string) (kernelwright.Run, error) {
	if ended.ID != j.RunID {
		return again, fmt.Errorf("repeat job %d: it is for run %d, not %d", j.ID, j.RunID, ended.ID)
	}
	source, _, err := s.Reference(ctx, ended.ID)
	if err != nil {
		return again, err
	}
	debts, err := s.Debts(ctx)
	if err != nil {
		return again, err
	}
	err = s.inTx(ctx, func(tx *sql.Tx) (err error) {
		var wanted, changed bool
		if err := tx.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM files WHERE run = ?1), EXISTS (SELECT 1 FROM files WHERE path = ?2 AND run NOT IN (0, ?1))`,
			ended.ID, ended.Path).Scan(&wanted, &changed); err != nil {
			return err
		}
		if changed && !wanted {
			ended.Reason = why(0)
			if err := s.updateRun(ctx, tx, ended); err != nil {
				return err
			}
			return leaveQueue(ctx, tx, ended.ID)
		}
		if stop, err := s.cancelled(ctx, tx, ended.ID); stop || err != nil {
			return err
		}
		again.Status = kernelwright.RunQueued
		with := []With{WithReference(source)}
		for path, run := range debts {
			if run == ended.ID {
				with = append(with, WithOwed(path))
			}
		}
		if again, err = s.createRun(ctx, tx, again, with); err != nil {
			return err
		}
		ended.Reason = why(again.ID)
		if err := s.updateRun(ctx, tx, ended); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `UPDATE files SET run = ? WHERE run = ?`, again.ID, ended.ID); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `UPDATE holds SET run = ? WHERE run = ?`, again.ID, ended.ID); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE queue SET run = ?, state = 'waiting', owner = '', claimed = 0, available = 0 WHERE id = ?`, again.ID, j.ID)
		return err
	})
	return again, err
}

// Return puts a claimed job back as if it had not been claimed: for a stop in
// the middle, after which the next start goes on from the last round.
func (s *Store) Return(ctx context.Context, j Job) error {
	return s.putBack(ctx, j, 1, 0, "", "")
}

// Hold puts a claimed job back as Return does, and records of its run what it
// waits for.
func (s *Store) Hold(ctx context.Context, j Job, reason, hint string) error {
	return s.putBack(ctx, j, 1, 0, reason, hint)
}

// Retry puts a claimed job back after a failure that was not its own, to be
// claimed after a pause.
func (s *Store) Retry(ctx context.Context, j Job, pause time.Duration) error {
	return s.putBack(ctx, j, 0, pause, "", "")
}

func (s *Store) putBack(ctx context.Context, j Job, forgiven int, pause time.Duration, reason, hint string) error {
	return s.inTx(ctx, func(tx *sql.Tx) error {
		now := s.nowMS()
		res, err := tx.ExecContext(ctx, `UPDATE queue SET state = 'waiting', owner = '', claimed = ?, attempts = max(attempts - ?, 0), available = ?
			WHERE id = ? AND state = 'claimed'`, now, forgiven, now+pause.Milliseconds(), j.ID)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return err
		}
		if done, err := s.cancelled(ctx, tx, j.RunID); done || err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE runs SET status = ?, reason = ?, hint = ? WHERE id = ?`, kernelwright.RunQueued, reason, hint, j.RunID)
		return err
	})
}

// Attempts returns how often a claimed job was claimed since the last recorded
// round of its run.
func (s *Store) Attempts(ctx context.Context, j Job) (n int, err error) {
	err = s.read.QueryRowContext(ctx, `SELECT attempts FROM queue WHERE id = ?`, j.ID).Scan(&n)
	return n, err
}

// Recover puts back every job whose owner is no longer alive, and returns how
// many. The daemon calls it when it starts, with Alive. The attempt that died
// counts, so that a run which kills its process does not keep others waiting.
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
			if _, err := s.cancelled(ctx, tx, c.run); err != nil {
				return err
			}
			recovered++
		}
		return nil
	})
	return recovered, err
}

// Supersede takes a run that is still waiting off the queue and records why.
// It reports whether it was: a claimed run is its owner's to end.
func (s *Store) Supersede(ctx context.Context, runID int64, reason string) (waited bool, err error) {
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		if err := tx.QueryRowContext(ctx, `SELECT count(*) > 0 FROM queue WHERE run = ? AND state = 'waiting'`, runID).Scan(&waited); err != nil || !waited {
			return err
		}
		if err := leaveQueue(ctx, tx, runID); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `UPDATE runs SET status = ?, reason = ?, finished = ? WHERE id = ?`, kernelwright.RunFailed, reason, s.nowMS(), runID)
		return err
	})
	return waited, err
}

// QueueLength returns how many jobs wait, due or not, and how many are claimed. Those
// that are held back do not wait.
func (s *Store) QueueLength(ctx context.Context) (waiting, claimed int, err error) {
	err = s.read.QueryRowContext(ctx, `SELECT count(*) FILTER (WHERE state = 'waiting' AND NOT EXISTS (SELECT 1 FROM holds WHERE holds.run IN (0, queue.run))),
		count(*) FILTER (WHERE state = 'claimed') FROM queue`).
		Scan(&waiting, &claimed)
	return waiting, claimed, err
}

// Queued is a job as it stands in the queue.
type Queued struct {
	Run       int64  `json:"run"`
	Job       int64  `json:"job"`
	Task      string `json:"task"` // fingerprint
	TaskName  string `json:"task_name"`
	Path      string `json:"path"`
	State     string `json:"state"` // "claimed" or "waiting"
	Hold      Held   `json:"hold"`  // why it is held back; empty: it is not, or the whole queue is
	Priority  int    `json:"priority"`
	Attempts  int    `json:"attempts"`
	DueMS     int64  `json:"due" time:"ms"` // not before
	CreatedMS int64  `json:"created" time:"ms"`
}

// Queue returns at most limit jobs: those that are claimed, then those that wait, by
// priority and in the order they came. After is the last of the page before; its zero
// value is before all.
func (s *Store) Queue(ctx context.Context, after Queued, limit int) ([]Queued, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT q.run, q.id, r.task, r.task_name, r.path, q.state, q.priority, q.attempts, q.available, q.created, coalesce(h.wanted, '')
		FROM queue q JOIN runs r ON r.id = q.run LEFT JOIN holds h ON h.run = q.run WHERE ?1 = '' OR (q.state, -q.priority, q.id) > (?1, -?2, ?3) ORDER BY q.state, q.priority DESC, q.id LIMIT ?4`,
		after.State, after.Priority, after.Job, limit)
	if err != nil {
		return nil, err
	}
	return scanAll(rows, func(r *sql.Rows) (q Queued, err error) {
		return q, r.Scan(&q.Run, &q.Job, &q.Task, &q.TaskName, &q.Path, &q.State, &q.Priority, &q.Attempts, &q.DueMS, &q.CreatedMS, &q.Hold)
	})
}
