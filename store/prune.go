package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"
)

// PrunedText stands in the place of a text that was pruned.
const PrunedText = "# this text was pruned: the retention policy dropped it\n"

// Retention says which texts may go: those of runs that ended before a time, and that
// have at least so many bytes.
type Retention struct {
	Before     time.Time
	LeastBytes int64
}

// Pruned says how much was dropped, or would be.
type Pruned struct {
	Runs  int64 `json:"runs"`  // that ended long enough ago and are in no use
	Texts int64 `json:"texts"` //
	Bytes int64 `json:"bytes"` // of the file, which new texts then take
}

// pruneBatch is how many texts are dropped in one transaction, for which writers wait.
const pruneBatch = 20_000

// prunable is the columns whose texts may go: talk and candidates. What refers to a text
// otherwise keeps it: verdicts, certificates, references, feedback, tokens.
var prunable = map[string]string{
	"rounds.candidate": `SELECT r.candidate FROM rounds r JOIN runs u ON u.id = r.run WHERE r.run NOT IN old OR r.standing = 2 OR r.idx IS u.best
		OR EXISTS (SELECT 1 FROM lessons l WHERE l.run = r.run AND l.idx = r.idx)
		OR EXISTS (SELECT 1 FROM lessons l JOIN rounds o ON o.run = l.run AND o.idx = l.idx WHERE l.run = r.run AND coalesce(o.parent, o.idx - 1) = r.idx)`,
	"turns.text":      `SELECT text FROM turns WHERE run IS NULL OR run NOT IN old OR id IN spoken`,
	"calls.text":      `SELECT text FROM calls WHERE text IS NOT NULL AND (run IS NULL OR run NOT IN old)`,
	"calls.reasoning": `SELECT reasoning FROM calls WHERE reasoning IS NOT NULL AND (run IS NULL OR run NOT IN old)`,
}

// oldRuns is the runs that ended before ?1 and that nothing is learned from: no episode
// that is open or done, no run of a model with a certified kernel, which is a trajectory
// to train on (package daydata).
const oldRuns = `old(run) AS (SELECT id FROM runs u WHERE status IN ('done', 'invalid', 'declined', 'failed') AND finished > 0 AND finished < ?1
	AND id NOT IN (SELECT run FROM episodes WHERE status IN ('open', 'done'))
	AND NOT (instr(coder, ':') > 0 AND EXISTS (SELECT 1 FROM rounds b WHERE b.run = u.id AND b.standing = 2)))`

// pruneQuery selects texts that may go: what old runs refer to and nothing else does. It
// asks the schema what refers to texts, so that a table to come keeps its own.
func pruneQuery(ctx context.Context, q querier) (string, error) {
	rows, err := q.QueryContext(ctx, `SELECT t.name || '.' || f."from" FROM pragma_table_list t JOIN pragma_foreign_key_list(t.name) f
		WHERE t.schema = 'main' AND t.type = 'table' AND f."table" = 'texts' AND t.name <> 'prunings' ORDER BY 1`)
	columns, err := scanNames(rows, err)
	if err != nil {
		return "", err
	}
	var kept []string
	found := 0
	for _, name := range columns {
		if query, may := prunable[name]; may {
			kept = append(kept, query)
			found++
			continue
		}
		table, column, _ := strings.Cut(name, ".")
		kept = append(kept, `SELECT `+column+` FROM `+table+` WHERE `+column+` IS NOT NULL`)
	}
	if found != len(prunable) {
		return "", fmt.Errorf("prune: %d of %d columns are in the schema", found, len(prunable))
	}
	return `WITH RECURSIVE ` + oldRuns + `,
	spoken(turn) AS (SELECT turn FROM calls WHERE turn IS NOT NULL AND (run IS NULL OR run NOT IN old) UNION SELECT before FROM turns JOIN spoken ON turns.id = spoken.turn WHERE before IS NOT NULL),
	kept(text) AS (` + strings.Join(kept, "\nUNION ") + `),
	gone(text) AS (SELECT candidate FROM rounds WHERE run IN old UNION SELECT text FROM turns WHERE run IN old
		UNION SELECT text FROM calls WHERE run IN old UNION SELECT reasoning FROM calls WHERE run IN old)
	SELECT id, length(body) FROM texts WHERE size >= ?2 AND length(body) > 0 AND id IN gone AND id NOT IN kept ORDER BY id LIMIT ?3`, nil
}

// Prunable counts what Prune would drop.
func (s *Store) Prunable(ctx context.Context, r Retention) (p Pruned, err error) {
	query, err := pruneQuery(ctx, s.read)
	if err != nil {
		return p, err
	}
	err = s.read.QueryRowContext(ctx, `SELECT count(*), coalesce(sum(bytes), 0) FROM (`+strings.Replace(query, "SELECT id, length(body) FROM texts", "SELECT id, length(body) AS bytes FROM texts", 1)+`)`,
		r.Before.UnixMilli(), r.LeastBytes, -1).Scan(&p.Texts, &p.Bytes)
	if err == nil {
		err = s.read.QueryRowContext(ctx, `WITH `+oldRuns+` SELECT count(*) FROM old`, r.Before.UnixMilli()).Scan(&p.Runs)
	}
	return p, err
}

// Prune drops the texts that the policy lets go. Their hashes stay, and that they were
// pruned is recorded with them: all of a batch or nothing. It may be stopped and given
// again. Progress is told how many are gone.
func (s *Store) Prune(ctx context.Context, r Retention, progress func(texts int64)) (p Pruned, err error) {
	query, err := pruneQuery(ctx, s.read)
	if err != nil {
		return p, err
	}
	if err := s.read.QueryRowContext(ctx, `WITH `+oldRuns+` SELECT count(*) FROM old`, r.Before.UnixMilli()).Scan(&p.Runs); err != nil {
		return p, err
	}
	for {
		n := int64(0)
		err := s.inTx(ctx, func(tx *sql.Tx) error {
			// What may go is asked in the transaction: nobody can begin to use a text meanwhile.
			rows, err := tx.QueryContext(ctx, query, r.Before.UnixMilli(), r.LeastBytes, pruneBatch)
			if err != nil {
				return err
			}
			type text struct{ id, bytes int64 }
			found, err := scanAll(rows, func(r *sql.Rows) (t text, err error) { return t, r.Scan(&t.id, &t.bytes) })
			if err != nil {
				return err
			}
			bytes := int64(0)
			for _, t := range found {
				if err := s.pruneText(ctx, tx, t.id, t.bytes); err != nil {
					return err
				}
				bytes += t.bytes
			}
			n = int64(len(found))
			p.Texts, p.Bytes = p.Texts+n, p.Bytes+bytes
			return nil
		})
		if err != nil {
			return p, fmt.Errorf("prune: %w", err)
		}
		progress(p.Texts)
		if n < pruneBatch {
			return p, nil
		}
	}
}

func (s *Store) pruneText(ctx context.Context, tx *sql.Tx, id, bytes int64) error {
	for _, statement := range []string{
		`DELETE FROM texts_fts WHERE rowid = ?1 AND (SELECT indexed FROM texts WHERE id = ?1)`,
		`UPDATE texts SET body = x'', indexed = 0 WHERE id = ?1`,
	} {
		if _, err := tx.ExecContext(ctx, statement, id); err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO prunings (text, bytes, at) VALUES (?, ?, ?)`, id, bytes, s.nowMS())
	return err
}

// pruned reports whether a text was pruned.
func pruned(ctx context.Context, q querier, id int64) (bool, error) {
	var one int
	err := q.QueryRowContext(ctx, `SELECT 1 FROM prunings WHERE text = ?`, id).Scan(&one)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// Sizes is how much room the record takes, in bytes.
type Sizes struct {
	File     int64 `json:"file_bytes"`
	Log      int64 `json:"log_bytes"`  // of changes that are not in the file yet
	Free     int64 `json:"free_bytes"` // of the file: what new rows take first
	Texts    int64 `json:"texts"`
	Whole    int64 `json:"texts_bytes"`  // of the texts, as they were
	Packed   int64 `json:"packed_bytes"` // as they are kept
	Pruned   int64 `json:"pruned"`       // texts
	PrunedBy int64 `json:"pruned_bytes"`
}

// Sizes measures.
func (s *Store) Sizes(ctx context.Context) (z Sizes, err error) {
	z.Log = logBytes(s.path)
	return z, s.read.QueryRowContext(ctx, `SELECT (SELECT page_count FROM pragma_page_count) * (SELECT page_size FROM pragma_page_size),
		(SELECT freelist_count FROM pragma_freelist_count) * (SELECT page_size FROM pragma_page_size),
		(SELECT count(*) FROM texts), (SELECT coalesce(sum(size), 0) FROM texts), (SELECT coalesce(sum(length(body)), 0) FROM texts),
		(SELECT count(*) FROM prunings), (SELECT coalesce(sum(bytes), 0) FROM prunings)`).Scan(&z.File, &z.Free, &z.Texts, &z.Whole, &z.Packed, &z.Pruned, &z.PrunedBy)
}

// Compact writes the file anew without what is free in it, and without words that stand in
// no text any more. Writers wait.
func (s *Store) Compact(ctx context.Context) error {
	_, err := s.write.ExecContext(ctx, `INSERT INTO texts_fts (texts_fts) VALUES ('optimize'); DELETE FROM texts_words`)
	if err == nil {
		err = listWords(ctx, s.write)
	}
	if err == nil {
		_, err = s.write.ExecContext(ctx, `VACUUM`)
	}
	if err != nil {
		return fmt.Errorf("compact the history: %w", err)
	}
	return nil
}
