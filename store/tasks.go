package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/kernelwright/kernelwright"
)

// SaveTask records a task, or replaces what was known of it.
func (s *Store) SaveTask(ctx context.Context, t kernelwright.Task) error {
	return s.inTx(ctx, func(tx *sql.Tx) error { return s.saveTask(ctx, tx, t) })
}

func (s *Store) saveTask(ctx context.Context, tx *sql.Tx, t kernelwright.Task) error {
	if t.Fingerprint == "" {
		return errors.New("record a task: it has no fingerprint")
	}
	source, err := s.putText(ctx, tx, t.Source, taskWords(t.Name, t.Source))
	if err != nil {
		return err
	}
	var graph any
	if len(t.Graph) > 0 {
		if graph, err = s.putText(ctx, tx, string(t.Graph), ""); err != nil {
			return err
		}
	}
	rest := t
	rest.Source, rest.Graph = "", nil
	detail, err := s.putJSON(ctx, tx, rest, "")
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO tasks (fingerprint, name, source, graph, detail, updated) VALUES (?, ?, ?, ?, ?, ?)
		ON CONFLICT (fingerprint) DO UPDATE SET name = excluded.name, source = excluded.source, graph = excluded.graph,
		detail = excluded.detail, updated = excluded.updated`,
		t.Fingerprint, t.Name, source, graph, detail, s.nowMS())
	return err
}

// Task returns the task as it was last recorded, or ErrNotFound.
func (s *Store) Task(ctx context.Context, fingerprint string) (kernelwright.Task, error) {
	return s.task(ctx, `SELECT source, graph, detail FROM tasks WHERE fingerprint = ?`, fingerprint)
}

// RunTask returns the task as the run saw it, or ErrNotFound when the run
// never came to have one.
func (s *Store) RunTask(ctx context.Context, runID int64) (kernelwright.Task, error) {
	return s.task(ctx, `SELECT task_source, task_graph, task_detail FROM runs WHERE id = ? AND task_source IS NOT NULL`, runID)
}

func (s *Store) task(ctx context.Context, query string, arg any) (kernelwright.Task, error) {
	var t kernelwright.Task
	var source, detail int64
	var graph sql.NullInt64
	err := s.read.QueryRowContext(ctx, query, arg).Scan(&source, &graph, &detail)
	if errors.Is(err, sql.ErrNoRows) {
		return t, fmt.Errorf("task %v: %w", arg, ErrNotFound)
	}
	if err != nil {
		return t, err
	}
	if err := s.textJSON(ctx, s.read, detail, &t); err != nil {
		return t, err
	}
	if t.Source, err = s.text(ctx, s.read, source); err != nil {
		return t, err
	}
	g, err := s.optionalText(ctx, s.read, graph)
	if g != "" {
		t.Graph = []byte(g)
	}
	return t, err
}

// Tasks returns tasks as they were last recorded, by fingerprint: at most limit of those
// after one, of a name where that is given.
func (s *Store) Tasks(ctx context.Context, name, after string, limit int) ([]kernelwright.Task, error) {
	query, args := `SELECT fingerprint FROM tasks WHERE fingerprint > ?`, []any{after}
	if name != "" {
		query, args = query+` AND name = ?`, append(args, name)
	}
	rows, err := s.read.QueryContext(ctx, query+` ORDER BY fingerprint LIMIT ?`, append(args, limit)...)
	if err != nil {
		return nil, err
	}
	found, err := scanAll(rows, func(r *sql.Rows) (f string, err error) { return f, r.Scan(&f) })
	if err != nil {
		return nil, err
	}
	return aside(found, func(fingerprint string) (kernelwright.Task, error) { return s.Task(ctx, fingerprint) })
}
