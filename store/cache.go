package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// Get returns what Put recorded under kind and key, and whether there was
// anything.
func (s *Store) Get(ctx context.Context, kind, key string) ([]byte, bool, error) {
	var body []byte
	err := s.read.QueryRowContext(ctx, `SELECT value FROM cache WHERE kind = ? AND key = ?`, kind, key).Scan(&body)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("read the %s cache: %w", kind, err)
	}
	value, err := s.dec.DecodeAll(body, []byte{})
	if err != nil {
		return nil, false, &DamagedError{Path: s.path, Err: fmt.Errorf("%s cache: %w", kind, err)}
	}
	return value, true, nil
}

// Put records a value under kind and key, in place of what was there.
func (s *Store) Put(ctx context.Context, kind, key string, value []byte) error {
	return s.put(ctx, s.write, kind, key, value)
}

func (s *Store) put(ctx context.Context, q executor, kind, key string, value []byte) error {
	_, err := q.ExecContext(ctx, `INSERT INTO cache (kind, key, value, created, row_digest) VALUES (?1, ?2, ?3, ?4, digest_of(?1, ?2, ?3, ?4))
		ON CONFLICT (kind, key) DO UPDATE SET value = excluded.value, created = excluded.created, row_digest = excluded.row_digest`,
		kind, key, s.enc.EncodeAll(value, []byte{}), s.nowMS())
	if err != nil {
		return fmt.Errorf("write the %s cache: %w", kind, err)
	}
	return nil
}

// Forget drops a kind of cached values that were recorded before a time (Unix
// milliseconds), and returns how many.
func (s *Store) Forget(ctx context.Context, kind string, beforeMS int64) (int64, error) {
	res, err := s.write.ExecContext(ctx, `DELETE FROM cache WHERE kind = ? AND created < ?`, kind, beforeMS)
	if err != nil {
		return 0, fmt.Errorf("clear the %s cache: %w", kind, err)
	}
	return res.RowsAffected()
}
