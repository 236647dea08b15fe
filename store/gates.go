package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
)

// Gate is a policy held against another one. Settings and Detail are JSON, of
// package gate.
type Gate struct {
	ID        int64           `json:"id"`
	Name      string          `json:"name"` // of what holds it, which goes on with it by this name
	Candidate string          `json:"candidate"`
	Opponent  string          `json:"opponent"`
	Settings  json.RawMessage `json:"settings"`
	Decision  string          `json:"decision"` // "promoted" or "refused"; empty: it goes on
	Detail    json.RawMessage `json:"detail"`
	CreatedMS int64           `json:"created_at"`
	DecidedMS int64           `json:"decided_at"` // 0 while it goes on
}

// GateTask is a task that serves a gate.
type GateTask struct {
	Place       int // in the order in which they are played, from 0
	Fingerprint string
	Split       Split
	Unseen      bool   // it holds a primitive that no training task has
	Void        string // why its outcomes do not count; empty: they do
}

// The players of a gate.
const (
	GateCandidate = "candidate"
	GateOpponent  = "opponent"
	GateCoder     = "coder" // the built-in one, beside them
)

// GateOutcome is what one answer to a task came to.
type GateOutcome struct {
	Place   int    // of the task
	Player  string // GateCandidate, GateOpponent or GateCoder
	Sample  int    // from 0
	Built   bool
	Correct bool
	Reward  int // -1, 1, 2 or 3
	// Against the fastest baseline, eager and torch.compile; 0: not measured.
	Speedup, Eager, Compile float64
}

// BeginGate records a new gate and returns it, or the one that has the name.
func (s *Store) BeginGate(ctx context.Context, g Gate) (Gate, error) {
	if g.Name == "" {
		return Gate{}, errors.New("record a gate: it has no name")
	}
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		text, err := s.putText(ctx, tx, string(g.Settings), "")
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO gates (name, candidate, opponent, settings, decision, created, decided)
			SELECT ?, ?, ?, ?, '', ?, 0 WHERE NOT EXISTS (SELECT 1 FROM gates WHERE name = ?)`, g.Name, g.Candidate, g.Opponent, text, s.nowMS(), g.Name)
		return err
	})
	if err != nil {
		return Gate{}, fmt.Errorf("record the gate %s: %w", g.Name, err)
	}
	return s.GateNamed(ctx, g.Name)
}

// AddGateTasks records that tasks serve a gate, in their places. Where one has
// served another gate, none is recorded, and the error is a *GateError. Tasks
// that have their places already stay.
func (s *Store) AddGateTasks(ctx context.Context, gate int64, tasks []GateTask) error {
	g, err := s.Gate(ctx, gate)
	if err != nil {
		return err
	}
	return s.inTx(ctx, func(tx *sql.Tx) error {
		for _, t := range tasks {
			if err := s.useInGate(ctx, tx, g.Name, t.Fingerprint); err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, `INSERT INTO gate_tasks (gate, place, fingerprint, split, unseen, void) VALUES (?, ?, ?, ?, ?, '')
				ON CONFLICT DO NOTHING`, gate, t.Place, t.Fingerprint, t.Split, t.Unseen); err != nil {
				return err
			}
		}
		return nil
	})
}

// VoidGateTask records why the outcomes of a task do not count.
func (s *Store) VoidGateTask(ctx context.Context, gate int64, place int, why string) error {
	done, err := s.write.ExecContext(ctx, `UPDATE gate_tasks SET void = ? WHERE gate = ? AND place = ?`, why, gate, place)
	return s.touched(done, err, fmt.Sprintf("task %d of gate %d", place, gate))
}

// SaveGateOutcome records an outcome. A second one of the same answer changes
// nothing; nor does one that comes after the decision, which is an error.
func (s *Store) SaveGateOutcome(ctx context.Context, gate int64, o GateOutcome) error {
	return s.inTx(ctx, func(tx *sql.Tx) error {
		var decision string
		if err := tx.QueryRowContext(ctx, `SELECT decision FROM gates WHERE id = ?`, gate).Scan(&decision); err != nil {
			return fmt.Errorf("gate %d: %w", gate, err)
		}
		if decision != "" {
			return fmt.Errorf("record an outcome of gate %d: it has %s the candidate already", gate, decision)
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO gate_outcomes (gate, place, player, sample, built, correct, reward, speedup, eager, compile, ended)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (gate, place, player, sample) DO NOTHING`,
			gate, o.Place, o.Player, o.Sample, o.Built, o.Correct, o.Reward, o.Speedup, o.Eager, o.Compile, s.nowMS())
		return err
	})
}

// DecideGate records a decision with every number behind it. A gate decides
// once: the same decision again changes nothing, another one is an error.
func (s *Store) DecideGate(ctx context.Context, gate int64, decision string, detail json.RawMessage) error {
	return s.inTx(ctx, func(tx *sql.Tx) error {
		var was string
		if err := tx.QueryRowContext(ctx, `SELECT decision FROM gates WHERE id = ?`, gate).Scan(&was); err != nil {
			return fmt.Errorf("gate %d: %w", gate, err)
		}
		if was == decision {
			return nil
		}
		if was != "" {
			return fmt.Errorf("record that gate %d has %s the candidate: it has %s it already", gate, decision, was)
		}
		text, err := s.putText(ctx, tx, string(detail), "")
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE gates SET decision = ?, detail = ?, decided = ? WHERE id = ?`, decision, text, s.nowMS(), gate)
		return err
	})
}

// touched is ErrNotFound where a change met no row.
func (s *Store) touched(done sql.Result, err error, what string) error {
	if err != nil {
		return fmt.Errorf("record %s: %w", what, err)
	}
	if n, err := done.RowsAffected(); err != nil || n > 0 {
		return err
	}
	return fmt.Errorf("%s: %w", what, ErrNotFound)
}

// Gate returns a gate, or ErrNotFound.
func (s *Store) Gate(ctx context.Context, id int64) (Gate, error) {
	return s.oneGate(ctx, fmt.Sprintf("gate %d", id), `WHERE id = ?`, id)
}

// GateNamed returns the gate of a name, or ErrNotFound.
func (s *Store) GateNamed(ctx context.Context, name string) (Gate, error) {
	return s.oneGate(ctx, "gate "+name, `WHERE name = ?`, name)
}

func (s *Store) oneGate(ctx context.Context, what, where string, arg any) (Gate, error) {
	all, err := s.gates(ctx, where, arg)
	if err == nil && len(all) == 0 {
		return Gate{}, fmt.Errorf("%s: %w", what, ErrNotFound)
	}
	if err != nil {
		return Gate{}, err
	}
	return all[0], nil
}

// GatesOf returns the gates that a policy was the candidate of, the newest first.
func (s *Store) GatesOf(ctx context.Context, candidate string) ([]Gate, error) {
	return s.gates(ctx, `WHERE candidate = ? ORDER BY id DESC`, candidate)
}

func (s *Store) gates(ctx context.Context, where string, args ...any) ([]Gate, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT id, name, candidate, opponent, settings, decision, detail, created, decided FROM gates `+where, args...)
	if err != nil {
		return nil, err
	}
	type row struct {
		gate     Gate
		settings int64
		detail   sql.NullInt64
	}
	found, err := scanAll(rows, func(r *sql.Rows) (w row, err error) {
		g := &w.gate
		return w, r.Scan(&g.ID, &g.Name, &g.Candidate, &g.Opponent, &w.settings, &g.Decision, &w.detail, &g.CreatedMS, &g.DecidedMS)
	})
	if err != nil {
		return nil, err
	}
	all := make([]Gate, len(found))
	for i, w := range found {
		settings, err := s.text(ctx, s.read, w.settings)
		if err != nil {
			return nil, err
		}
		detail, err := s.optionalText(ctx, s.read, w.detail)
		if err != nil {
			return nil, err
		}
		all[i] = w.gate
		all[i].Settings = json.RawMessage(settings)
		if detail != "" {
			all[i].Detail = json.RawMessage(detail)
		}
	}
	return all, nil
}

// GateTasks returns the tasks of a gate by place.
func (s *Store) GateTasks(ctx context.Context, gate int64) ([]GateTask, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT place, fingerprint, split, unseen, void FROM gate_tasks WHERE gate = ? ORDER BY place`, gate)
	if err != nil {
		return nil, err
	}
	return scanAll(rows, func(r *sql.Rows) (t GateTask, err error) {
		return t, r.Scan(&t.Place, &t.Fingerprint, &t.Split, &t.Unseen, &t.Void)
	})
}

// GateOutcomes returns the outcomes of a gate, by place, player and sample.
func (s *Store) GateOutcomes(ctx context.Context, gate int64) ([]GateOutcome, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT place, player, sample, built, correct, reward, speedup, eager, compile FROM gate_outcomes WHERE gate = ? ORDER BY place, player, sample`, gate)
	if err != nil {
		return nil, err
	}
	return scanAll(rows, func(r *sql.Rows) (o GateOutcome, err error) {
		return o, r.Scan(&o.Place, &o.Player, &o.Sample, &o.Built, &o.Correct, &o.Reward, &o.Speedup, &o.Eager, &o.Compile)
	})
}
