package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
)

// Pipeline is training from its tasks to its gate. Settings are JSON, of package
// pipeline.
type Pipeline struct {
	ID         int64           `json:"id"`
	Settings   json.RawMessage `json:"settings"`
	CreatedMS  int64           `json:"created" time:"ms"`
	FinishedMS int64           `json:"finished" time:"ms"` // 0: it has not come to its end
}

// StageStatus says how a stage stands.
type StageStatus string

// The statuses of a stage. All but the first three can be gone on with.
const (
	StageRunning     StageStatus = "running"
	StageDone        StageStatus = "done"
	StageSkipped     StageStatus = "skipped"       // there was nothing to do
	StageStopped     StageStatus = "stopped"       // on request; its step was finished
	StageBadInput    StageStatus = "bad_input"     // settings, a model's folder, trajectories
	StageCollapsed   StageStatus = "collapsed"     // a guard stopped it: a loss that is not finite, or a policy out of bounds
	StageUnreachable StageStatus = "unreachable"   // the environment or the sampler died
	StageMemory      StageStatus = "out_of_memory" // after the micro-batch had been halved
	StageDisk        StageStatus = "disk_full"
	StageFailed      StageStatus = "failed" // anything else
)

// Finished reports whether nothing is left to do.
func (s StageStatus) Finished() bool { return s == StageDone || s == StageSkipped }

// Stage is an attempt at a stage of a pipeline. Inputs, Budget and Outputs are JSON,
// of package pipeline.
type Stage struct {
	Pipeline int64           `json:"pipeline"`
	Stage    string          `json:"stage"`
	Attempt  int             `json:"attempt"`
	Status   StageStatus     `json:"status"`
	Inputs   json.RawMessage `json:"inputs"`
	Budget   json.RawMessage `json:"budget"`
	Outputs  json.RawMessage `json:"outputs"` // of one that is finished
	BegunMS  int64           `json:"began" time:"ms"`
	EndedMS  int64           `json:"ended" time:"ms"` // 0 while it runs
	Starts   int             `json:"starts"`
	Seconds  float64         `json:"seconds" keep:"zero"`
	Verdicts int64           `json:"verdicts" keep:"zero"`
	Exit     *int            `json:"exit"`
	Reason   string          `json:"reason"`
	Hint     string          `json:"hint"`
}

// BeginPipeline records a new pipeline.
func (s *Store) BeginPipeline(ctx context.Context, settings json.RawMessage) (Pipeline, error) {
	p := Pipeline{Settings: settings, CreatedMS: s.nowMS()}
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		text, err := s.putText(ctx, tx, string(settings), "")
		if err != nil {
			return err
		}
		return tx.QueryRowContext(ctx, `INSERT INTO pipelines (settings, created, finished) VALUES (?, ?, 0) RETURNING id`, text, p.CreatedMS).Scan(&p.ID)
	})
	return p, err
}

// FinishPipeline records whether a pipeline has come to its end.
func (s *Store) FinishPipeline(ctx context.Context, id int64, done bool) error {
	var at int64
	if done {
		at = s.nowMS()
	}
	_, err := s.write.ExecContext(ctx, `UPDATE pipelines SET finished = ? WHERE id = ?`, at, id)
	return err
}

// Pipelines returns a page of the pipelines.
func (s *Store) Pipelines(ctx context.Context, p Page) ([]Pipeline, error) {
	query, args := p.query(`SELECT id, settings, created, finished FROM pipelines`, "id", nil)
	return s.pipelines(ctx, query, args...)
}

// Pipeline returns one, or ErrNotFound.
func (s *Store) Pipeline(ctx context.Context, id int64) (Pipeline, error) {
	all, err := s.pipelines(ctx, `SELECT id, settings, created, finished FROM pipelines WHERE id = ?`, id)
	if err == nil && len(all) == 0 {
		return Pipeline{}, fmt.Errorf("pipeline %d: %w", id, ErrNotFound)
	}
	if err != nil {
		return Pipeline{}, err
	}
	return all[0], nil
}

func (s *Store) pipelines(ctx context.Context, query string, args ...any) ([]Pipeline, error) {
	rows, err := s.read.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	type row struct {
		p    Pipeline
		text int64
	}
	found, err := scanAll(rows, func(r *sql.Rows) (w row, err error) {
		return w, r.Scan(&w.p.ID, &w.text, &w.p.CreatedMS, &w.p.FinishedMS)
	})
	if err != nil {
		return nil, err
	}
	all := make([]Pipeline, len(found))
	for i, w := range found {
		text, err := s.text(ctx, s.read, w.text)
		if err != nil {
			return nil, err
		}
		all[i] = w.p
		all[i].Settings = json.RawMessage(text)
	}
	return all, nil
}

// RemovePipeline forgets a pipeline and its stages.
func (s *Store) RemovePipeline(ctx context.Context, id int64) error {
	return s.inTx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `DELETE FROM stages WHERE pipeline = ?`, id); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `DELETE FROM pipelines WHERE id = ?`, id)
		return err
	})
}

// BeginStage records that a stage runs: the last attempt, where that is not finished
// and had the same inputs, else a new one. It returns the attempt as it is then.
func (s *Store) BeginStage(ctx context.Context, pipeline int64, stage string, inputs, budget json.RawMessage) (Stage, error) {
	attempt := 0
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		in, err := s.putText(ctx, tx, string(inputs), "")
		if err != nil {
			return err
		}
		limit, err := s.putText(ctx, tx, string(budget), "")
		if err != nil {
			return err
		}
		var last sql.NullInt64
		var status StageStatus
		var had int64
		err = tx.QueryRowContext(ctx, `SELECT attempt, status, inputs FROM stages WHERE pipeline = ? AND stage = ? ORDER BY attempt DESC LIMIT 1`, pipeline, stage).Scan(&last, &status, &had)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		if attempt = int(last.Int64); last.Valid && !status.Finished() && had == in {
			_, err = tx.ExecContext(ctx, `UPDATE stages SET status = ?, ended = 0, starts = starts + 1, exit = NULL, reason = '', hint = '' WHERE pipeline = ? AND stage = ? AND attempt = ?`,
				StageRunning, pipeline, stage, attempt)
			return err
		}
		attempt++
		_, err = tx.ExecContext(ctx, `INSERT INTO stages (pipeline, stage, attempt, status, inputs, budget, begun, ended, starts, seconds, verdicts, reason, hint)
			VALUES (?, ?, ?, ?, ?, ?, ?, 0, 1, 0, 0, '', '')`, pipeline, stage, attempt, StageRunning, in, limit, s.nowMS())
		return err
	})
	if err != nil {
		return Stage{}, fmt.Errorf("record stage %s of pipeline %d: %w", stage, pipeline, err)
	}
	all, err := s.stages(ctx, `WHERE pipeline = ? AND stage = ? AND attempt = ?`, pipeline, stage, attempt)
	if err != nil {
		return Stage{}, err
	}
	return all[0], nil
}

// SaveStage records how an attempt stands: status, outputs, seconds, verdicts, exit,
// reason and hint. Where its status says that it runs no more, that is its end.
func (s *Store) SaveStage(ctx context.Context, st Stage) error {
	var ended int64
	if st.Status != StageRunning {
		ended = s.nowMS()
	}
	return s.inTx(ctx, func(tx *sql.Tx) error {
		var outputs any
		if len(st.Outputs) > 0 {
			var err error
			if outputs, err = s.putText(ctx, tx, string(st.Outputs), ""); err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, `UPDATE stages SET status = ?, outputs = ?, ended = ?, seconds = ?, verdicts = ?, exit = ?, reason = ?, hint = ? WHERE pipeline = ? AND stage = ? AND attempt = ?`,
			st.Status, outputs, ended, st.Seconds, st.Verdicts, st.Exit, st.Reason, st.Hint, st.Pipeline, st.Stage, st.Attempt)
		return err
	})
}

// Stages returns all attempts at the stages of a pipeline, in the order in which they
// were begun.
func (s *Store) Stages(ctx context.Context, pipeline int64) ([]Stage, error) {
	return s.stages(ctx, `WHERE pipeline = ?`, pipeline)
}

func (s *Store) stages(ctx context.Context, where string, args ...any) ([]Stage, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT pipeline, stage, attempt, status, inputs, budget, outputs, begun, ended, starts, seconds, verdicts, exit, reason, hint
		FROM stages `+where+` ORDER BY begun, stage, attempt`, args...)
	if err != nil {
		return nil, err
	}
	type row struct {
		st             Stage
		inputs, budget int64
		outputs, exit  sql.NullInt64
	}
	found, err := scanAll(rows, func(r *sql.Rows) (w row, err error) {
		t := &w.st
		return w, r.Scan(&t.Pipeline, &t.Stage, &t.Attempt, &t.Status, &w.inputs, &w.budget, &w.outputs, &t.BegunMS, &t.EndedMS, &t.Starts, &t.Seconds, &t.Verdicts, &w.exit, &t.Reason, &t.Hint)
	})
	if err != nil {
		return nil, err
	}
	all := make([]Stage, len(found))
	for i, w := range found {
		st := w.st
		if w.exit.Valid {
			exit := int(w.exit.Int64)
			st.Exit = &exit
		}
		for _, part := range []struct {
			to *json.RawMessage
			of sql.NullInt64
		}{{&st.Inputs, sql.NullInt64{Int64: w.inputs, Valid: true}}, {&st.Budget, sql.NullInt64{Int64: w.budget, Valid: true}}, {&st.Outputs, w.outputs}} {
			text, err := s.optionalText(ctx, s.read, part.of)
			if err != nil {
				return nil, err
			}
			if text != "" {
				*part.to = json.RawMessage(text)
			}
		}
		all[i] = st
	}
	return all, nil
}

// PolicyVerdicts counts the verdicts that episodes of a policy got whose version
// begins so: each of their rounds has one.
func (s *Store) PolicyVerdicts(ctx context.Context, prefix string) (n int64, err error) {
	err = s.read.QueryRowContext(ctx, `SELECT count(*) FROM rounds WHERE run IN (SELECT run FROM episodes WHERE substr(policy, 1, length(?)) = ?)`, prefix, prefix).Scan(&n)
	return n, err
}
