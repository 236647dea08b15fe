package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
)

// Policy is a version of the Coder's weights. Its files lie in a folder of their own.
type Policy struct {
	Version   int64
	Digest    string // of its files: no two versions have the same
	Base      string // what it was trained from
	License   string
	Pipeline  int64 // that made it; 0: a person brought it
	Stage     string
	Bytes     int64
	Files     json.RawMessage // of package policies
	CreatedMS int64
	RemovedMS int64 // 0: its folder is there
}

// Promotion is when a policy began to serve. The last one says what serves.
type Promotion struct {
	ID        int64
	Policy    int64
	Rollback  bool  // it had served before, and does again
	Gate      int64 // that decided; 0: a person did
	Reason    string
	CreatedMS int64
}

// ServesError says that a policy cannot be removed.
type ServesError struct{ Version int64 }

func (e *ServesError) Error() string { return fmt.Sprintf("policy v%d serves", e.Version) }

// SavePolicy records a policy and returns it with its version: that of the same
// content where there is one, be it a removed one, of which everything else stays as
// it was. place puts the files of that version where they belong; where it fails,
// nothing is recorded.
func (s *Store) SavePolicy(ctx context.Context, p Policy, place func(version int64) error) (Policy, error) {
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		err := tx.QueryRowContext(ctx, `SELECT version FROM policies WHERE digest = ?`, p.Digest).Scan(&p.Version)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			text, err := s.putText(ctx, tx, string(p.Files), "")
			if err != nil {
				return err
			}
			err = tx.QueryRowContext(ctx, `INSERT INTO policies (digest, base, license, pipeline, stage, bytes, files, created, removed) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0) RETURNING version`,
				p.Digest, p.Base, p.License, p.Pipeline, p.Stage, p.Bytes, text, s.nowMS()).Scan(&p.Version)
			if err != nil {
				return err
			}
		case err != nil:
			return err
		default:
			if _, err := tx.ExecContext(ctx, `UPDATE policies SET removed = 0 WHERE version = ? AND removed <> 0`, p.Version); err != nil {
				return err
			}
		}
		return place(p.Version)
	})
	if err != nil {
		return Policy{}, err
	}
	return s.Policy(ctx, p.Version)
}

// Policy returns a version, removed or not, or ErrNotFound.
func (s *Store) Policy(ctx context.Context, version int64) (Policy, error) {
	all, err := s.policies(ctx, s.read, `WHERE version = ?`, version)
	if err == nil && len(all) == 0 {
		return Policy{}, fmt.Errorf("policy v%d: %w", version, ErrNotFound)
	}
	if err != nil {
		return Policy{}, err
	}
	return all[0], nil
}

// Policies returns a page of the versions, removed ones too.
func (s *Store) Policies(ctx context.Context, p Page) ([]Policy, error) {
	which, args := p.query("", "version", nil)
	return s.policies(ctx, s.read, which, args...)
}

func (s *Store) policies(ctx context.Context, db querier, which string, args ...any) ([]Policy, error) {
	rows, err := db.QueryContext(ctx, `SELECT version, digest, base, license, pipeline, stage, bytes, files, created, removed FROM policies `+which, args...)
	if err != nil {
		return nil, err
	}
	type row struct {
		policy Policy
		files  int64
	}
	found, err := scanAll(rows, func(r *sql.Rows) (w row, err error) {
		p := &w.policy
		return w, r.Scan(&p.Version, &p.Digest, &p.Base, &p.License, &p.Pipeline, &p.Stage, &p.Bytes, &w.files, &p.CreatedMS, &p.RemovedMS)
	})
	all := make([]Policy, len(found))
	for i, w := range found {
		text, err := s.text(ctx, db, w.files)
		if err != nil {
			return nil, err
		}
		all[i] = w.policy
		all[i].Files = json.RawMessage(text)
	}
	return all, err
}

// RemovePolicy records that the folder of a version goes. The version that serves stays:
// *ServesError.
func (s *Store) RemovePolicy(ctx context.Context, version int64) error {
	return s.inTx(ctx, func(tx *sql.Tx) error {
		var serves sql.NullInt64
		if err := tx.QueryRowContext(ctx, `SELECT policy FROM promotions ORDER BY id DESC LIMIT 1`).Scan(&serves); err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		if serves.Valid && serves.Int64 == version {
			return &ServesError{version}
		}
		done, err := tx.ExecContext(ctx, `UPDATE policies SET removed = ? WHERE version = ? AND removed = 0`, s.nowMS(), version)
		if err != nil {
			return err
		}
		if n, err := done.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, fmt.Errorf("policy v%d: %w", version, ErrNotFound))
		}
		return nil
	})
}

// Promote records the promotion that choose makes of those that there were, the oldest
// first; false records none. No other promotion comes between. A policy that is not there,
// or was removed, is ErrNotFound.
func (s *Store) Promote(ctx context.Context, choose func(before []Promotion) (Promotion, bool, error)) error {
	return s.inTx(ctx, func(tx *sql.Tx) error {
		before, err := promotions(ctx, tx)
		if err != nil {
			return err
		}
		p, chosen, err := choose(before)
		if err != nil || !chosen {
			return err
		}
		var there bool
		if err := tx.QueryRowContext(ctx, `SELECT count(*) > 0 FROM policies WHERE version = ? AND removed = 0`, p.Policy).Scan(&there); err != nil {
			return err
		}
		if !there {
			return fmt.Errorf("policy v%d: %w", p.Policy, ErrNotFound)
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO promotions (policy, rollback, gate, reason, created) VALUES (?, ?, ?, ?, ?)`, p.Policy, p.Rollback, p.Gate, p.Reason, s.nowMS())
		return err
	})
}

// Promotions returns all of them, the oldest first.
func (s *Store) Promotions(ctx context.Context) ([]Promotion, error) { return promotions(ctx, s.read) }

func promotions(ctx context.Context, db querier) ([]Promotion, error) {
	rows, err := db.QueryContext(ctx, `SELECT id, policy, rollback, gate, reason, created FROM promotions ORDER BY id`)
	if err != nil {
		return nil, err
	}
	return scanAll(rows, func(r *sql.Rows) (p Promotion, err error) {
		return p, r.Scan(&p.ID, &p.Policy, &p.Rollback, &p.Gate, &p.Reason, &p.CreatedMS)
	})
}
