package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/kernelwright/kernelwright"
)

// CreateBench records a new bench, without any run, and returns it with its ID.
// CreatedMS is set here where it is 0.
func (s *Store) CreateBench(ctx context.Context, b kernelwright.Bench) (kernelwright.Bench, error) {
	if b.CreatedMS == 0 {
		b.CreatedMS = s.nowMS()
	}
	b.ID, b.FinishedMS = 0, 0
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		detail, err := s.putJSON(ctx, tx, b, "")
		if err != nil {
			return err
		}
		return tx.QueryRowContext(ctx, `INSERT INTO benches (key, detail, created, finished) VALUES (?, ?, ?, 0) RETURNING id`,
			b.Key(), detail, b.CreatedMS).Scan(&b.ID)
	})
	if err != nil {
		return b, fmt.Errorf("record a bench: %w", err)
	}
	return b, nil
}

// WithMember makes a new run a bench's, in the place of one that it had there.
// The member's run is set here.
func WithMember(bench int64, m kernelwright.Member) With {
	return func(ctx context.Context, _ *Store, tx *sql.Tx, run int64) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO bench_runs (bench, reference, configuration, seed, run) VALUES (?, ?, ?, ?, ?)
			ON CONFLICT (bench, reference, configuration, seed) DO UPDATE SET run = excluded.run`,
			bench, m.Reference, m.Configuration, m.Seed, run)
		if err != nil {
			return fmt.Errorf("record run %d of bench %d: %w", run, bench, err)
		}
		return nil
	}
}

// Members returns the runs of a bench that were begun, by reference,
// configuration and seed.
func (s *Store) Members(ctx context.Context, bench int64) ([]kernelwright.Member, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT reference, configuration, seed, run FROM bench_runs WHERE bench = ?
		ORDER BY reference, configuration, seed`, bench)
	if err != nil {
		return nil, err
	}
	return scanAll(rows, func(r *sql.Rows) (m kernelwright.Member, err error) {
		return m, r.Scan(&m.Reference, &m.Configuration, &m.Seed, &m.RunID)
	})
}

// FinishBench records that every run of a bench has ended.
func (s *Store) FinishBench(ctx context.Context, id int64) error {
	res, err := s.write.ExecContext(ctx, `UPDATE benches SET finished = ? WHERE id = ?`, s.nowMS(), id)
	if err != nil {
		return fmt.Errorf("record bench %d: %w", id, err)
	}
	if n, err := res.RowsAffected(); err != nil || n > 0 {
		return err
	}
	return fmt.Errorf("bench %d: %w", id, ErrNotFound)
}

// Bench returns a bench, or ErrNotFound.
func (s *Store) Bench(ctx context.Context, id int64) (kernelwright.Bench, error) {
	return s.oneBench(ctx, fmt.Sprintf("bench %d", id), `WHERE id = ?`, id)
}

// LatestBench returns the bench with this key that was begun last, or
// ErrNotFound.
func (s *Store) LatestBench(ctx context.Context, key string) (kernelwright.Bench, error) {
	return s.oneBench(ctx, "a bench like this", `WHERE key = ? ORDER BY id DESC LIMIT 1`, key)
}

// Benches returns a page of the benches.
func (s *Store) Benches(ctx context.Context, p Page) ([]kernelwright.Bench, error) {
	query, args := p.query(`SELECT id, detail, finished FROM benches`, "id", nil)
	rows, err := s.read.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	found, err := scanAll(rows, func(r *sql.Rows) (b benchRow, err error) { return b, r.Scan(&b.id, &b.detail, &b.finished) })
	if err != nil {
		return nil, err
	}
	benches := make([]kernelwright.Bench, len(found))
	for i, row := range found {
		if benches[i], err = s.fillBench(ctx, row); err != nil {
			return nil, err
		}
	}
	return benches, nil
}

// benchRow is a bench before its text was read.
type benchRow struct{ id, detail, finished int64 }

func (s *Store) oneBench(ctx context.Context, what, where string, arg any) (kernelwright.Bench, error) {
	var row benchRow
	err := s.read.QueryRowContext(ctx, `SELECT id, detail, finished FROM benches `+where, arg).Scan(&row.id, &row.detail, &row.finished)
	if errors.Is(err, sql.ErrNoRows) {
		return kernelwright.Bench{}, fmt.Errorf("%s: %w", what, ErrNotFound)
	}
	if err != nil {
		return kernelwright.Bench{}, err
	}
	return s.fillBench(ctx, row)
}

func (s *Store) fillBench(ctx context.Context, row benchRow) (b kernelwright.Bench, err error) {
	err = s.textJSON(ctx, s.read, row.detail, &b)
	b.ID, b.FinishedMS = row.id, row.finished
	return b, err
}
