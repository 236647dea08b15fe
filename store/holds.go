package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"

	"github.com/kernelwright/kernelwright"
)

// Held says why a run of the queue is held back.
type Held string

// The reasons.
const (
	Paused    Held = "paused"
	Cancelled Held = "cancelled" // it ends as soon as its owner lets go of it
)

// PriorityLimit is the highest priority that somebody may give a run; the lowest is its
// negative.
const PriorityLimit = 1000

// StateError says that a run does not stand in a way that lets a change of the queue be.
type StateError struct{ Text, Hint string }

func (e *StateError) Error() string { return e.Text }

// Wanted returns why a run is held back; empty: it is not.
func (s *Store) Wanted(ctx context.Context, run int64) (h Held, err error) {
	err = s.read.QueryRowContext(ctx, `SELECT wanted FROM holds WHERE run = ?`, run).Scan(&h)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return h, err
}

// PauseQueue holds back every run that waits, or lets them be claimed again. Runs in
// progress go on.
func (s *Store) PauseQueue(ctx context.Context, paused bool) error {
	query := `DELETE FROM holds WHERE run = 0`
	if paused {
		query = `INSERT INTO holds (run, wanted) VALUES (0, 'paused') ON CONFLICT (run) DO NOTHING`
	}
	_, err := s.write.ExecContext(ctx, query)
	return err
}

// QueuePaused reports whether every run that waits is held back.
func (s *Store) QueuePaused(ctx context.Context) (bool, error) {
	h, err := s.Wanted(ctx, 0)
	return h != "", err
}

// Pause holds back a run of the queue: from now on, or where it is claimed as soon as its
// owner lets go of it. A *StateError says that it is not in the queue, or is cancelled.
func (s *Store) Pause(ctx context.Context, run int64) error {
	return s.inTx(ctx, func(tx *sql.Tx) error {
		_, held, err := inQueue(ctx, tx, run)
		if err != nil {
			return err
		}
		if held == Cancelled {
			return &StateError{fmt.Sprintf("run %d is being cancelled", run), "retry it once it has ended"}
		}
		return hold(ctx, tx, run, Paused)
	})
}

// Resume lets a run go on that was paused.
func (s *Store) Resume(ctx context.Context, run int64) error {
	return s.inTx(ctx, func(tx *sql.Tx) error {
		_, held, err := inQueue(ctx, tx, run)
		if err != nil {
			return err
		}
		if held == Cancelled {
			return &StateError{fmt.Sprintf("run %d is being cancelled", run), "retry it once it has ended"}
		}
		_, err = tx.ExecContext(ctx, `DELETE FROM holds WHERE run = ?`, run)
		return err
	})
}

// SetPriority gives a run of the queue another priority.
func (s *Store) SetPriority(ctx context.Context, run int64, priority int) error {
	return s.inTx(ctx, func(tx *sql.Tx) error {
		if _, _, err := inQueue(ctx, tx, run); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `UPDATE queue SET priority = ? WHERE run = ? AND priority <> ?`, priority, run, priority)
		return err
	})
}

// Cancel ends a run of the queue that waits, and says of one that is claimed that it is
// to end: its owner lets go of it. One that is cancelled already stays so.
func (s *Store) Cancel(ctx context.Context, run int64) error {
	return s.inTx(ctx, func(tx *sql.Tx) error {
		var status kernelwright.RunStatus
		if err := tx.QueryRowContext(ctx, `SELECT status FROM runs WHERE id = ?`, run).Scan(&status); err == nil && status == kernelwright.RunCancelled {
			return nil
		}
		state, _, err := inQueue(ctx, tx, run)
		if err != nil {
			return err
		}
		if state == "claimed" {
			return hold(ctx, tx, run, Cancelled)
		}
		return s.cancel(ctx, tx, run)
	})
}

func hold(ctx context.Context, tx *sql.Tx, run int64, why Held) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO holds (run, wanted) VALUES (?, ?) ON CONFLICT (run) DO UPDATE SET wanted = excluded.wanted WHERE wanted <> excluded.wanted`, run, why)
	return err
}

// cancel ends a run that nobody has claimed.
func (s *Store) cancel(ctx context.Context, tx *sql.Tx, run int64) error {
	if err := leaveQueue(ctx, tx, run); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, `UPDATE runs SET status = ?, reason = ?, hint = ?, finished = ? WHERE id = ?`,
		kernelwright.RunCancelled, "somebody cancelled it", fmt.Sprintf("`kernelwright queue retry %d` queues it again", run), s.nowMS(), run)
	return err
}

// cancelled ends a run that was let go of, where that is wanted.
func (s *Store) cancelled(ctx context.Context, tx *sql.Tx, run int64) (bool, error) {
	var wanted bool
	if err := tx.QueryRowContext(ctx, `SELECT count(*) > 0 FROM holds WHERE run = ? AND wanted = ?`, run, Cancelled).Scan(&wanted); err != nil || !wanted {
		return false, err
	}
	return true, s.cancel(ctx, tx, run)
}

// leaveQueue takes a run off the queue, with what it was held back for.
func leaveQueue(ctx context.Context, tx *sql.Tx, run int64) error {
	if _, err := tx.ExecContext(ctx, `DELETE FROM queue WHERE run = ?`, run); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, `DELETE FROM holds WHERE run = ?`, run)
	return err
}

// Offers is which changes of a run would not be refused.
type Offers struct{ Cancel, Pause, Resume, Retry bool }

// Offers returns what can be done with a run: with one that a command began, nothing.
func (s *Store) Offers(ctx context.Context, run int64) (o Offers, err error) {
	var state string
	var held Held
	var status kernelwright.RunStatus
	var dropped bool
	err = s.read.QueryRowContext(ctx, `SELECT r.status, coalesce(q.state, ''), coalesce(h.wanted, ''), EXISTS (SELECT 1 FROM files WHERE path = r.path)
		FROM runs r LEFT JOIN queue q ON q.run = r.id LEFT JOIN holds h ON h.run = r.id WHERE r.id = ?`, run).Scan(&status, &state, &held, &dropped)
	if errors.Is(err, sql.ErrNoRows) {
		return o, fmt.Errorf("run %d: %w", run, ErrNotFound)
	}
	if err != nil {
		return o, err
	}
	if state != "" {
		o.Cancel = held != Cancelled
		o.Pause, o.Resume = held == "", held == Paused
		return o, nil
	}
	if status != kernelwright.RunRunning && dropped {
		_, o.Retry, err = s.Reference(ctx, run)
	}
	return o, err
}

// inQueue returns how a run stands in the queue. A *StateError says that it does not.
func inQueue(ctx context.Context, tx *sql.Tx, run int64) (state string, h Held, err error) {
	err = tx.QueryRowContext(ctx, `SELECT state, coalesce((SELECT wanted FROM holds WHERE holds.run = queue.run), '') FROM queue WHERE run = ?`, run).Scan(&state, &h)
	if !errors.Is(err, sql.ErrNoRows) {
		return state, h, err
	}
	var status kernelwright.RunStatus
	err = tx.QueryRowContext(ctx, `SELECT status FROM runs WHERE id = ?`, run).Scan(&status)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return "", "", fmt.Errorf("run %d: %w", run, ErrNotFound)
	case err != nil:
		return "", "", err
	case status == kernelwright.RunRunning:
		return "", "", &StateError{fmt.Sprintf("run %d is not of the queue: the command that began it holds it", run), "interrupt that command"}
	}
	return "", "", &StateError{fmt.Sprintf("run %d has ended (%s)", run, status), fmt.Sprintf("`kernelwright queue retry %d` queues it again", run)}
}

// Requeue records a new run of what one that has ended was for, with its place in the
// queue: the files of the first are the second's. One that waits or works on the same
// already is returned instead, and fresh is false. A *StateError says that there is
// nothing to retry.
func (s *Store) Requeue(ctx context.Context, run int64, priority int) (again kernelwright.Run, fresh bool, err error) {
	old, err := s.Run(ctx, run)
	if err != nil {
		return again, false, err
	}
	source, kept, err := s.Reference(ctx, run)
	if err != nil {
		return again, false, err
	}
	again = kernelwright.Run{
		TaskName: old.TaskName, Path: old.Path, Device: string(kernelwright.CPUDevice), Strategy: old.Strategy,
		Coder: old.Coder, Judge: old.Judge, Seed: old.Seed, MaxRounds: old.MaxRounds, Settings: old.Settings, Status: kernelwright.RunQueued,
	}
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		other, err := s.sameInQueue(ctx, tx, old)
		if other != 0 || err != nil {
			again.ID = other
			return err
		}
		var status kernelwright.RunStatus
		var dropped bool
		if err := tx.QueryRowContext(ctx, `SELECT status, EXISTS (SELECT 1 FROM files WHERE path = runs.path) FROM runs WHERE id = ?`, run).Scan(&status, &dropped); err != nil {
			return err
		}
		switch {
		case status == kernelwright.RunRunning || !dropped:
			return &StateError{fmt.Sprintf("run %d is of a command, not of the queue", run), "`kernelwright run FILE` runs a file again"}
		case !kept:
			return &StateError{fmt.Sprintf("the reference of run %d was not kept", run), "submit the file again"}
		}
		if again, err = s.createRun(ctx, tx, again, []With{WithReference(source)}); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `UPDATE files SET run = ? WHERE run = ?`, again.ID, run); err != nil {
			return err
		}
		fresh = true
		return s.enqueue(ctx, tx, again.ID, priority)
	})
	if err == nil && !fresh {
		again, err = s.Run(ctx, again.ID)
	}
	return again, fresh, err
}

// sameInQueue returns the run of the queue that does what another one was for, itself
// where it has not ended; 0: none.
func (s *Store) sameInQueue(ctx context.Context, tx *sql.Tx, old kernelwright.Run) (id int64, err error) {
	text := `(SELECT value FROM cache WHERE kind = '` + kindReference + `' AND key = `
	err = tx.QueryRowContext(ctx, `SELECT runs.id FROM queue JOIN runs ON runs.id = queue.run WHERE runs.path = ?1 AND (runs.id = ?2 OR
		strategy = ?3 AND seed = ?4 AND settings = ?5 AND `+text+`CAST(runs.id AS TEXT)) = `+text+`?6)) ORDER BY runs.id DESC LIMIT 1`,
		old.Path, old.ID, old.Strategy, old.Seed, old.Settings, strconv.FormatInt(old.ID, 10)).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return id, err
}
