package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
)

// putText records a text unless it is there already and returns its id. index
// is what full-text search finds it by: the text, an extract of it, or nothing.
func (s *Store) putText(ctx context.Context, tx *sql.Tx, text, index string) (int64, error) {
	hash := sha256.Sum256([]byte(text))
	var id int64
	var indexed, gone bool
	err := tx.QueryRowContext(ctx, `SELECT id, indexed, length(body) = 0 FROM texts WHERE hash = ?`, hash[:]).Scan(&id, &indexed, &gone)
	if err == nil && gone { // it was pruned, and is said again
		if _, err = tx.ExecContext(ctx, `UPDATE texts SET body = ? WHERE id = ?`, s.enc.EncodeAll([]byte(text), []byte{}), id); err == nil {
			_, err = tx.ExecContext(ctx, `DELETE FROM prunings WHERE text = ?`, id)
		}
		if err != nil {
			return 0, fmt.Errorf("record a text: %w", err)
		}
	}
	if errors.Is(err, sql.ErrNoRows) {
		body := s.enc.EncodeAll([]byte(text), nil)
		err = tx.QueryRowContext(ctx, `INSERT INTO texts (hash, size, indexed, body) VALUES (?, ?, 0, ?) RETURNING id`,
			hash[:], len(text), body).Scan(&id)
	}
	if err != nil {
		return 0, fmt.Errorf("record a text: %w", err)
	}
	if indexed || index == "" {
		return id, nil
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO texts_fts (rowid, body) VALUES (?, ?)`, id, index); err != nil {
		return 0, fmt.Errorf("index a text: %w", err)
	}
	if s.hasWordList {
		if _, err := tx.ExecContext(ctx, WordsQuery, NewWords(index)); err != nil {
			return 0, fmt.Errorf("index a text: %w", err)
		}
	}
	_, err = tx.ExecContext(ctx, `UPDATE texts SET indexed = 1 WHERE id = ?`, id)
	return id, err
}

// putJSON records v's JSON as a text.
func (s *Store) putJSON(ctx context.Context, tx *sql.Tx, v any, index string) (int64, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return 0, err
	}
	return s.putText(ctx, tx, string(b), index)
}

// text returns a recorded text. It checks the hash: a text that was damaged on
// disk is an error, never a wrong answer.
func (s *Store) text(ctx context.Context, q querier, id int64) (string, error) {
	k := keptText{id: id}
	if err := q.QueryRowContext(ctx, `SELECT hash, body FROM texts WHERE id = ?`, id).Scan(&k.hash, &k.body); err != nil {
		return "", fmt.Errorf("read text %d: %w", id, err)
	}
	return s.open(ctx, q, k)
}

// keptText is a row of texts.
type keptText struct {
	id         int64
	hash, body []byte
}

// open returns the text of a row, as text does.
func (s *Store) open(ctx context.Context, q querier, k keptText) (string, error) {
	if len(k.body) == 0 {
		if is, err := pruned(ctx, q, k.id); err != nil || is {
			return PrunedText, err
		}
	}
	text, err := s.dec.DecodeAll(k.body, nil)
	if err == nil && (len(k.hash) != sha256.Size || sha256.Sum256(text) != [sha256.Size]byte(k.hash)) {
		err = errors.New("its content does not match its hash")
	}
	if err != nil {
		return "", &DamagedError{Path: s.path, Err: fmt.Errorf("text %d: %w", k.id, err)}
	}
	return string(text), nil
}

// Text returns the recorded text with this SHA-256 (hex), or ErrNotFound.
func (s *Store) Text(ctx context.Context, sha256 string) (string, error) {
	id, err := s.textOf(ctx, sha256)
	if err != nil || !id.Valid {
		return "", fmt.Errorf("text %s: %w", sha256, ErrNotFound)
	}
	return s.text(ctx, s.read, id.Int64)
}

// textOf returns the id of the text with this SHA-256 (hex), null for none, or
// ErrNotFound.
func (s *Store) textOf(ctx context.Context, sha256 string) (id sql.NullInt64, err error) {
	if sha256 == "" {
		return id, nil
	}
	hash, err := hex.DecodeString(sha256)
	if err != nil {
		return id, ErrNotFound
	}
	err = s.read.QueryRowContext(ctx, `SELECT id FROM texts WHERE hash = ?`, hash).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return id, ErrNotFound
	}
	return id, err
}

// optionalText is text for a column that may be null.
func (s *Store) optionalText(ctx context.Context, q querier, id sql.NullInt64) (string, error) {
	if !id.Valid {
		return "", nil
	}
	return s.text(ctx, q, id.Int64)
}

func (s *Store) textJSON(ctx context.Context, q querier, id int64, v any) error {
	text, err := s.text(ctx, q, id)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(text), v)
}
