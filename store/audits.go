package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/kernelwright/kernelwright"
)

// CreateAudit records a new audit, without any pair, and returns it with its ID.
// CreatedMS is set here where it is 0.
func (s *Store) CreateAudit(ctx context.Context, a kernelwright.Audit) (kernelwright.Audit, error) {
	if a.CreatedMS == 0 {
		a.CreatedMS = s.nowMS()
	}
	a.ID, a.FinishedMS = 0, 0
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		detail, err := s.putJSON(ctx, tx, a, "")
		if err != nil {
			return err
		}
		return tx.QueryRowContext(ctx, `INSERT INTO audits (key, detail, created, finished) VALUES (?, ?, ?, 0) RETURNING id`,
			a.Key(), detail, a.CreatedMS).Scan(&a.ID)
	})
	if err != nil {
		return a, fmt.Errorf("record an audit: %w", err)
	}
	return a, nil
}

// KeepAudited records what was said of a pair, in the place of what was. Pass tells
// the pairs that were seen since the audit was begun or gone on with.
func (s *Store) KeepAudited(ctx context.Context, audit, pass int64, p kernelwright.AuditPair) error {
	if p.EvaluatedMS == 0 {
		p.EvaluatedMS = s.nowMS()
	}
	var claimed any
	against := ""
	if p.Claim != nil {
		claimed, against = p.Claim.Speedup, p.Claim.Against
	}
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		var texts [2]any
		for i, text := range []string{p.ReferenceText, p.CandidateText} {
			if text == "" {
				continue
			}
			id, err := s.putText(ctx, tx, text, "") // search is of runs
			if err != nil {
				return err
			}
			texts[i] = id
		}
		verdict, err := s.putVerdictAs(ctx, tx, p.Verdict, "")
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO audit_pairs (audit, reference, candidate, idx, claimed, against, key, reference_text, candidate_text, verdict, judged, pass)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (audit, reference, candidate) DO UPDATE SET idx = excluded.idx, claimed = excluded.claimed, against = excluded.against, key = excluded.key,
			reference_text = excluded.reference_text, candidate_text = excluded.candidate_text, verdict = excluded.verdict, judged = excluded.judged, pass = excluded.pass`,
			audit, p.Reference, p.Candidate, p.Index, claimed, against, p.Key, texts[0], texts[1], verdict, p.EvaluatedMS, pass)
		return err
	})
	if err != nil {
		return fmt.Errorf("record a pair of audit %d: %w", audit, err)
	}
	return nil
}

// Audited returns the latest verdict that any audit has reached under a key since a
// time (Unix milliseconds), and when it was reached.
func (s *Store) Audited(ctx context.Context, key string, sinceMS int64) (v kernelwright.Verdict, judgedMS int64, found bool, err error) {
	var id int64
	err = s.read.QueryRowContext(ctx, `SELECT verdict, judged FROM audit_pairs WHERE key = ? AND judged >= ? ORDER BY judged DESC LIMIT 1`, key, sinceMS).Scan(&id, &judgedMS)
	if errors.Is(err, sql.ErrNoRows) {
		return v, 0, false, nil
	}
	if err != nil {
		return v, 0, false, err
	}
	v, err = s.verdict(ctx, s.read, id)
	return v, judgedMS, err == nil, err
}

// FinishAudit records that an audit has come to its end, and drops the pairs that
// were not seen in this pass: they are not in the set any more.
func (s *Store) FinishAudit(ctx context.Context, id, pass int64) error {
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `DELETE FROM audit_pairs WHERE audit = ? AND pass <> ?`, id, pass); err != nil {
			return err
		}
		res, err := tx.ExecContext(ctx, `UPDATE audits SET finished = ? WHERE id = ?`, s.nowMS(), id)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n > 0 {
			return err
		}
		return ErrNotFound
	})
	if err != nil {
		return fmt.Errorf("record audit %d: %w", id, err)
	}
	return nil
}

// AuditPairs gives each pair of an audit to see, in the set's order, without its
// texts. An error of see ends it.
func (s *Store) AuditPairs(ctx context.Context, audit int64, see func(kernelwright.AuditPair) error) error {
	return s.AuditPairsFrom(ctx, audit, 0, -1, see)
}

// AuditPairsFrom is AuditPairs from a place on, of at most limit pairs; -1: no limit.
func (s *Store) AuditPairsFrom(ctx context.Context, audit int64, from, limit int, see func(kernelwright.AuditPair) error) error {
	return s.auditPairs(ctx, see, `audit = ? ORDER BY idx, candidate LIMIT ? OFFSET ?`, audit, limit, from)
}

// AuditPair returns a pair of an audit by its place in the set, without its texts, or
// ErrNotFound.
func (s *Store) AuditPair(ctx context.Context, audit int64, index int) (pair kernelwright.AuditPair, err error) {
	found := false
	err = s.auditPairs(ctx, func(p kernelwright.AuditPair) error {
		pair, found = p, true
		return nil
	}, `audit = ? AND idx = ? ORDER BY candidate LIMIT 1`, audit, index)
	if err == nil && !found {
		err = fmt.Errorf("pair %d of audit %d: %w", index, audit, ErrNotFound)
	}
	return pair, err
}

func (s *Store) auditPairs(ctx context.Context, see func(kernelwright.AuditPair) error, which string, args ...any) error {
	type row struct {
		kernelwright.AuditPair
		verdict int64
	}
	rows, err := s.read.QueryContext(ctx, `SELECT reference, candidate, idx, claimed, against, key, verdict, judged FROM audit_pairs WHERE `+which, args...)
	if err != nil {
		return err
	}
	all, err := scanAll(rows, func(r *sql.Rows) (p row, err error) {
		var claimed sql.NullFloat64
		var against string
		err = r.Scan(&p.Reference, &p.Candidate, &p.Index, &claimed, &against, &p.Key, &p.verdict, &p.EvaluatedMS)
		if claimed.Valid {
			p.Claim = &kernelwright.Claim{Speedup: claimed.Float64, Against: against}
		}
		return p, err
	})
	if err != nil {
		return err
	}
	for page := range slices.Chunk(all, 200) { // a verdict is large
		verdicts, err := aside(page, func(p row) (kernelwright.Verdict, error) { return s.verdict(ctx, s.read, p.verdict) })
		if err != nil {
			return err
		}
		for i, p := range page {
			p.Verdict = verdicts[i]
			if err := see(p.AuditPair); err != nil {
				return err
			}
		}
	}
	return nil
}

// AuditCounts returns how many pairs of an audit have which status.
func (s *Store) AuditCounts(ctx context.Context, audit int64) (map[kernelwright.Status]int, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT v.status, count(*) FROM audit_pairs p JOIN verdicts v ON v.id = p.verdict WHERE p.audit = ? GROUP BY 1`, audit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	counts := map[kernelwright.Status]int{}
	for rows.Next() {
		var status kernelwright.Status
		var n int
		if err := rows.Scan(&status, &n); err != nil {
			return nil, err
		}
		counts[status] = n
	}
	return counts, rows.Err()
}

// Audit returns an audit, or ErrNotFound.
func (s *Store) Audit(ctx context.Context, id int64) (kernelwright.Audit, error) {
	return s.oneAudit(ctx, fmt.Sprintf("audit %d", id), `WHERE id = ?`, id)
}

// LatestAudit returns the audit with this key that was begun last, or ErrNotFound.
func (s *Store) LatestAudit(ctx context.Context, key string) (kernelwright.Audit, error) {
	return s.oneAudit(ctx, "an audit like this", `WHERE key = ? ORDER BY id DESC LIMIT 1`, key)
}

// Audits returns a page of the audits, and how many pairs each has.
func (s *Store) Audits(ctx context.Context, p Page) (audits []kernelwright.Audit, pairs []int, err error) {
	query, args := p.query(`SELECT id, detail, finished, (SELECT count(*) FROM audit_pairs WHERE audit = id) FROM audits`, "id", nil)
	rows, err := s.read.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, nil, err
	}
	type counted struct {
		benchRow
		pairs int
	}
	found, err := scanAll(rows, func(r *sql.Rows) (c counted, err error) { return c, r.Scan(&c.id, &c.detail, &c.finished, &c.pairs) })
	if err != nil {
		return nil, nil, err
	}
	for _, row := range found {
		a, err := s.fillAudit(ctx, row.benchRow)
		if err != nil {
			return nil, nil, err
		}
		audits, pairs = append(audits, a), append(pairs, row.pairs)
	}
	return audits, pairs, nil
}

func (s *Store) oneAudit(ctx context.Context, what, where string, arg any) (kernelwright.Audit, error) {
	var row benchRow
	err := s.read.QueryRowContext(ctx, `SELECT id, detail, finished FROM audits `+where, arg).Scan(&row.id, &row.detail, &row.finished)
	if errors.Is(err, sql.ErrNoRows) {
		return kernelwright.Audit{}, fmt.Errorf("%s: %w", what, ErrNotFound)
	}
	if err != nil {
		return kernelwright.Audit{}, err
	}
	return s.fillAudit(ctx, row)
}

func (s *Store) fillAudit(ctx context.Context, row benchRow) (a kernelwright.Audit, err error) {
	err = s.textJSON(ctx, s.read, row.detail, &a)
	a.ID, a.FinishedMS = row.id, row.finished
	return a, err
}
