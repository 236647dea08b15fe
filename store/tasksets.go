package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
)

// Split says what a task of a set is for.
type Split string

// The splits. Tasks of compositions and kinds are held out: nothing is trained on them.
const (
	TrainSplit        Split = "train"
	ValSplit          Split = "val"
	CompositionsSplit Split = "compositions" // known operator kinds in compositions never seen
	KindsSplit        Split = "kinds"        // operator kinds never trained on
	// TaughtSplit is of tasks that a policy begins with what the built-in Coder writes for:
	// no reward is given for them, so nothing is timed.
	TaughtSplit Split = "taught"
)

// Splits are all of them, in the order in which they are told.
var Splits = []Split{TrainSplit, ValSplit, CompositionsSplit, KindsSplit, TaughtSplit}

// HeldOut reports whether tasks of the split are never trained on.
func (s Split) HeldOut() bool { return s == CompositionsSplit || s == KindsSplit }

// Trained reports whether a policy learns from tasks of the split.
func (s Split) Trained() bool { return s == TrainSplit || s == TaughtSplit }

// TaskSet is a set of tasks. Settings are JSON, of package tasks.
type TaskSet struct {
	ID         int64           `json:"id"`
	Name       string          `json:"name"`
	Settings   json.RawMessage `json:"settings"`
	CreatedMS  int64           `json:"created_at"`
	FinishedMS int64           `json:"finished_at"` // 0: more is to be drawn
}

// TaskDraw is one file that was drawn for a set, or brought to it.
type TaskDraw struct {
	Index       int64
	Split       Split
	Reason      string // why it was not kept; empty: it was
	Fingerprint string
	Source      string
	Detail      json.RawMessage // of package tasks
}

// OverlapError says that a task cannot be in a split, for what it is elsewhere.
type OverlapError struct {
	Fingerprint string
	Wanted, Is  Split
	Set         string // where it is that
}

func (e *OverlapError) Error() string {
	return fmt.Sprintf("task %.12s is in split %s of the set %s, so it cannot be in split %s", e.Fingerprint, e.Is, e.Set, e.Wanted)
}

// GateError says that a task has served another gate.
type GateError struct{ Fingerprint, Gate string }

func (e *GateError) Error() string {
	return fmt.Sprintf("task %.12s has served the gate %s, and a task serves one", e.Fingerprint, e.Gate)
}

// BeginTaskSet records a new set and returns it, or the one that has the name.
func (s *Store) BeginTaskSet(ctx context.Context, name string, settings json.RawMessage) (TaskSet, error) {
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		text, err := s.putText(ctx, tx, string(settings), "")
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO task_sets (name, settings, created, finished) VALUES (?, ?, ?, 0) ON CONFLICT (name) DO NOTHING`, name, text, s.nowMS())
		return err
	})
	if err != nil {
		return TaskSet{}, err
	}
	return s.TaskSet(ctx, name)
}

// FinishTaskSet records whether a set has all that it was to have.
func (s *Store) FinishTaskSet(ctx context.Context, id int64, done bool) error {
	var at int64
	if done {
		at = s.nowMS()
	}
	_, err := s.write.ExecContext(ctx, `UPDATE task_sets SET finished = ? WHERE id = ?`, at, id)
	return err
}

// TaskSet returns the set of a name, or ErrNotFound.
func (s *Store) TaskSet(ctx context.Context, name string) (TaskSet, error) {
	all, err := s.taskSets(ctx, `SELECT id, name, settings, created, finished FROM task_sets WHERE name = ?`, name)
	if err == nil && len(all) == 0 {
		return TaskSet{}, fmt.Errorf("task set %q: %w", name, ErrNotFound)
	}
	if err != nil {
		return TaskSet{}, err
	}
	return all[0], nil
}

// TaskSets returns all sets, the oldest first.
func (s *Store) TaskSets(ctx context.Context) ([]TaskSet, error) {
	return s.taskSets(ctx, `SELECT id, name, settings, created, finished FROM task_sets ORDER BY id`)
}

func (s *Store) taskSets(ctx context.Context, query string, args ...any) ([]TaskSet, error) {
	rows, err := s.read.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	type row struct {
		set  TaskSet
		text int64
	}
	found, err := scanAll(rows, func(r *sql.Rows) (w row, err error) {
		return w, r.Scan(&w.set.ID, &w.set.Name, &w.text, &w.set.CreatedMS, &w.set.FinishedMS)
	})
	if err != nil {
		return nil, err
	}
	all := make([]TaskSet, len(found))
	for i, w := range found {
		text, err := s.text(ctx, s.read, w.text)
		if err != nil {
			return nil, err
		}
		all[i] = w.set
		all[i].Settings = json.RawMessage(text)
	}
	return all, nil
}

// SaveTaskDraw records what became of a draw. A second time changes nothing. A
// task that would be trained on and held out is an *OverlapError.
func (s *Store) SaveTaskDraw(ctx context.Context, set int64, d TaskDraw) error {
	return s.SaveTaskDraws(ctx, set, []TaskDraw{d})
}

// SaveTaskDraws records several, or none of them.
func (s *Store) SaveTaskDraws(ctx context.Context, set int64, all []TaskDraw) error {
	return s.inTx(ctx, func(tx *sql.Tx) error {
		for _, d := range all {
			if err := s.saveTaskDraw(ctx, tx, set, d); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *Store) saveTaskDraw(ctx context.Context, tx *sql.Tx, set int64, d TaskDraw) error {
	var source, detail any
	if d.Reason == "" {
		if d.Fingerprint == "" {
			return errors.New("record a task of a set: it has no fingerprint")
		}
		if err := overlaps(ctx, tx, d); err != nil {
			return err
		}
		var err error
		if source, err = s.putText(ctx, tx, d.Source, ""); err != nil {
			return err
		}
	}
	if len(d.Detail) > 0 {
		var err error
		if detail, err = s.putText(ctx, tx, string(d.Detail), ""); err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO task_draws (set_id, idx, split, reason, fingerprint, source, detail) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`,
		set, d.Index, d.Split, d.Reason, d.Fingerprint, source, detail)
	return err
}

// overlaps returns an *OverlapError where the task is on the other side of the gate.
func overlaps(ctx context.Context, tx *sql.Tx, d TaskDraw) error {
	is := OverlapError{Fingerprint: d.Fingerprint, Wanted: d.Split}
	err := tx.QueryRowContext(ctx, `SELECT d.split, s.name FROM task_draws d JOIN task_sets s ON s.id = d.set_id
		WHERE d.fingerprint = ? AND d.reason = '' AND (d.split IN ('compositions', 'kinds')) <> ? LIMIT 1`, d.Fingerprint, d.Split.HeldOut()).Scan(&is.Is, &is.Set)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	return &is
}

// TaskDraws returns the draws of a set in their order; with kept, those alone
// that were kept, with their texts.
func (s *Store) TaskDraws(ctx context.Context, set int64, kept bool) ([]TaskDraw, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT idx, split, reason, fingerprint, source, detail FROM task_draws WHERE set_id = ? AND (NOT ? OR reason = '') ORDER BY idx`, set, kept)
	if err != nil {
		return nil, err
	}
	type row struct {
		draw           TaskDraw
		source, detail sql.NullInt64
	}
	found, err := scanAll(rows, func(r *sql.Rows) (w row, err error) {
		return w, r.Scan(&w.draw.Index, &w.draw.Split, &w.draw.Reason, &w.draw.Fingerprint, &w.source, &w.detail)
	})
	if err != nil {
		return nil, err
	}
	all := make([]TaskDraw, len(found))
	for i, w := range found {
		all[i] = w.draw
		if !kept {
			continue
		}
		if all[i].Source, err = s.optionalText(ctx, s.read, w.source); err != nil {
			return nil, err
		}
		detail, err := s.optionalText(ctx, s.read, w.detail)
		if err != nil {
			return nil, err
		}
		all[i].Detail = json.RawMessage(detail)
	}
	return all, nil
}

// TaskReasons counts the draws of a set by why they were not kept; those that
// were are under the empty reason.
func (s *Store) TaskReasons(ctx context.Context, set int64) (map[string]int64, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT reason, count(*) FROM task_draws WHERE set_id = ? GROUP BY reason`, set)
	if err != nil {
		return nil, err
	}
	type counted struct {
		reason string
		n      int64
	}
	found, err := scanAll(rows, func(r *sql.Rows) (c counted, err error) { return c, r.Scan(&c.reason, &c.n) })
	counts := make(map[string]int64, len(found))
	for _, c := range found {
		counts[c.reason] = c.n
	}
	return counts, err
}

// UseInGate records that held-out tasks serve a gate. Where one has served
// another one, none is recorded, and the error is a *GateError. The same gate
// may ask again.
func (s *Store) UseInGate(ctx context.Context, gate string, fingerprints []string) error {
	if gate == "" {
		return errors.New("record the tasks of a gate: it has no name")
	}
	return s.inTx(ctx, func(tx *sql.Tx) error {
		for _, f := range fingerprints {
			if err := s.useInGate(ctx, tx, gate, f); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *Store) useInGate(ctx context.Context, tx *sql.Tx, gate, fingerprint string) error {
	var served string
	err := tx.QueryRowContext(ctx, `SELECT gate FROM task_gates WHERE fingerprint = ?`, fingerprint).Scan(&served)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		_, err = tx.ExecContext(ctx, `INSERT INTO task_gates (fingerprint, gate, used) VALUES (?, ?, ?)`, fingerprint, gate, s.nowMS())
		return err
	case err != nil:
		return err
	case served != gate:
		return &GateError{fingerprint, served}
	}
	return nil
}

// GateOf returns the gate that a task has served, empty where it has served none.
func (s *Store) GateOf(ctx context.Context, fingerprint string) (string, error) {
	var gate string
	err := s.read.QueryRowContext(ctx, `SELECT gate FROM task_gates WHERE fingerprint = ?`, fingerprint).Scan(&gate)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return gate, err
}
