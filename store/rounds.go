package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/kernelwright/kernelwright"
)

// ConflictError says that a round was recorded before with other content.
type ConflictError struct {
	RunID int64
	Index int
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("round %d of run %d is recorded already, with other content", e.Index, e.RunID)
}

// How far a round came, as the index behind Best orders it.
const (
	standingNone      = 0
	standingCorrect   = 1
	standingCertified = 2
)

// AppendRound records the next round of a run: candidate, verdict, feedback
// and metrics, all or nothing. Recording the same round again does nothing;
// other content under the same index is a *ConflictError, and an index that
// leaves a gap is an error. A certificate in it is ignored: SetCertificate.
func (s *Store) AppendRound(ctx context.Context, r kernelwright.Round) error {
	r.Certificate, r.CertifiedMS = nil, 0
	whole, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("record round %d of run %d: %w", r.Index, r.RunID, err)
	}
	digest := sha256.Sum256(whole)
	err = s.inTx(ctx, func(tx *sql.Tx) error { return s.appendRound(ctx, tx, r, digest[:]) })
	if err != nil {
		return fmt.Errorf("record round %d of run %d: %w", r.Index, r.RunID, err)
	}
	return nil
}

func (s *Store) appendRound(ctx context.Context, tx *sql.Tx, r kernelwright.Round, digest []byte) error {
	var before []byte
	err := tx.QueryRowContext(ctx, `SELECT digest FROM rounds WHERE run = ? AND idx = ?`, r.RunID, r.Index).Scan(&before)
	switch {
	case err == nil && bytes.Equal(before, digest):
		return nil
	case err == nil:
		return &ConflictError{RunID: r.RunID, Index: r.Index}
	case !errors.Is(err, sql.ErrNoRows):
		return err
	}
	var task, key string
	var next int
	var pinned bool
	err = tx.QueryRowContext(ctx, `SELECT task, device_key, (SELECT coalesce(max(idx) + 1, 0) FROM rounds WHERE run = id),
		task_source IS NOT NULL AND device_detail IS NOT NULL FROM runs WHERE id = ?`, r.RunID).
		Scan(&task, &key, &next, &pinned)
	if errors.Is(err, sql.ErrNoRows) {
		return ErrNotFound
	}
	if err != nil {
		return err
	}
	if r.Index != next {
		return fmt.Errorf("the next round is %d", next)
	}
	if next == 0 && !pinned { // a task or device that was recorded only after its run
		if err := s.pin(ctx, tx, r.RunID); err != nil {
			return err
		}
	}
	candidate, err := s.putText(ctx, tx, r.Candidate.Source, candidateWords(r.Candidate.Note, r.Candidate.Source))
	if err != nil {
		return err
	}
	verdict, err := s.putVerdict(ctx, tx, r.Verdict)
	if err != nil {
		return err
	}
	standing := standingNone
	if r.Verdict.Status.OK() && r.Verdict.CandidateMS > 0 {
		standing = standingCorrect
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO rounds (run, idx, task, device_key, standing, ms, candidate, language, origin, note, verdict,
		started, finished, overhead_ms, digest, parent) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		r.RunID, r.Index, task, key, standing, r.Verdict.CandidateMS, candidate, r.Candidate.Language, r.Candidate.Origin, r.Candidate.Note,
		verdict, r.StartedMS, r.FinishedMS, r.OverheadMS, digest, r.Parent)
	if err != nil {
		return err
	}
	if f := r.Feedback; f != nil {
		text, err := s.putJSON(ctx, tx, f, feedbackWords(*f))
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO feedback (run, idx, kind, rule, text) VALUES (?, ?, ?, ?, ?)`,
			r.RunID, r.Index, f.Kind, f.Rule, text); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Verdict.Metrics)) {
		if err := putMetric(ctx, tx, r.RunID, r.Index, name, r.Verdict.Metrics[name]); err != nil {
			return err
		}
	}
	// It came to something: failures before this are no reason to give up.
	if _, err := tx.ExecContext(ctx, `UPDATE queue SET attempts = 0 WHERE run = ?`, r.RunID); err != nil {
		return err
	}
	return updateBest(ctx, tx, r.RunID)
}

func putMetric(ctx context.Context, tx *sql.Tx, run int64, index int, name string, value float64) error {
	if _, err := tx.ExecContext(ctx, `INSERT INTO metric_names (name) VALUES (?) ON CONFLICT (name) DO NOTHING`, name); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO metrics (run, idx, name, value) VALUES (?, ?, (SELECT id FROM metric_names WHERE name = ?), ?)`,
		run, index, name, value)
	return err
}

// putVerdict records a verdict. The exported file is kept as a text of its
// own: it is most of a certificate, and the same for each one of a kernel.
func (s *Store) putVerdict(ctx context.Context, tx *sql.Tx, v kernelwright.Verdict) (int64, error) {
	return s.putVerdictAs(ctx, tx, v, verdictWords(v))
}

// putVerdictAs is putVerdict with the words that search finds it by.
func (s *Store) putVerdictAs(ctx context.Context, tx *sql.Tx, v kernelwright.Verdict, words string) (int64, error) {
	var exported any
	if v.Exported != "" {
		id, err := s.putText(ctx, tx, v.Exported, "")
		if err != nil {
			return 0, err
		}
		exported = id
		v.Exported = ""
	}
	text, err := s.putJSON(ctx, tx, v, words)
	if err != nil {
		return 0, err
	}
	var id int64
	err = tx.QueryRowContext(ctx, `SELECT id FROM verdicts WHERE text = ?`, text).Scan(&id)
	if !errors.Is(err, sql.ErrNoRows) {
		return id, err
	}
	columns, values := "text, exported", []any{text, exported}
	for name, value := range verdictValues(v) {
		columns += ", " + name
		values = append(values, value)
	}
	err = tx.QueryRowContext(ctx, `INSERT INTO verdicts (`+columns+`) VALUES (?`+strings.Repeat(", ?", len(values)-1)+`) RETURNING id`, values...).Scan(&id)
	return id, err
}

// verdictValues is what the columns of a verdict repeat of its text, by name.
func verdictValues(v kernelwright.Verdict) map[string]any {
	var value, low, high any
	against := ""
	if v.Speedup != nil {
		value, low, high, against = v.Speedup.Value, v.Speedup.Low, v.Speedup.High, v.Speedup.Against
	}
	return map[string]any{
		"status": string(v.Status), "reason": v.Reason, "level": string(v.Level), "candidate_ms": v.CandidateMS,
		"speedup": value, "speedup_low": low, "speedup_high": high, "against": against, "headroom": v.Headroom,
	}
}

// What each kind of text is found by.

func taskWords(name, source string) string { return name + "\n" + source }

func candidateWords(note, source string) string { return note + "\n" + source }

func feedbackWords(f kernelwright.Feedback) string {
	return strings.Join([]string{f.Issue, f.Why, f.Fix, f.Bottleneck, f.Method, f.Plan, f.WantedStop, f.Unusable}, "\n")
}

func verdictWords(v kernelwright.Verdict) string {
	words := append([]string{string(v.Status), v.Reason, v.Hint, v.Output, v.Build.Log}, v.Evidence...)
	for _, d := range v.Build.Errors {
		words = append(words, d.Message)
	}
	return strings.Join(words, "\n")
}

func (s *Store) verdict(ctx context.Context, q querier, id int64) (kernelwright.Verdict, error) {
	var v kernelwright.Verdict
	var text int64
	var exported sql.NullInt64
	if err := q.QueryRowContext(ctx, `SELECT text, exported FROM verdicts WHERE id = ?`, id).Scan(&text, &exported); err != nil {
		return v, fmt.Errorf("read verdict %d: %w", id, err)
	}
	if err := s.textJSON(ctx, q, text, &v); err != nil {
		return v, err
	}
	var err error
	v.Exported, err = s.optionalText(ctx, q, exported)
	return v, err
}

// SetCertificate records the strict verdict on a round's candidate, whether it
// certifies it or not. Setting an equal one again does nothing; another one is
// a *ConflictError.
func (s *Store) SetCertificate(ctx context.Context, runID int64, index int, v kernelwright.Verdict) error {
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		id, err := s.putVerdict(ctx, tx, v)
		if err != nil {
			return err
		}
		var before int64
		err = tx.QueryRowContext(ctx, `SELECT verdict FROM certificates WHERE run = ? AND idx = ?`, runID, index).Scan(&before)
		switch {
		case err == nil && before == id:
			return nil
		case err == nil:
			return &ConflictError{RunID: runID, Index: index}
		case !errors.Is(err, sql.ErrNoRows):
			return err
		}
		standing, sha := standingNone, ""
		if v.Status == kernelwright.Certified {
			standing, sha = standingCertified, v.ExportedSHA256
		}
		res, err := tx.ExecContext(ctx, `UPDATE rounds SET standing = ?1, ms = CASE WHEN ?2 > 0 THEN ?2 ELSE ms END WHERE run = ?3 AND idx = ?4`,
			standing, v.CandidateMS, runID, index)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n != 1 {
			return errors.Join(err, ErrNotFound)
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO certificates (run, idx, verdict, sha256, created) VALUES (?, ?, ?, ?, ?)`,
			runID, index, id, sha, s.nowMS()); err != nil {
			return err
		}
		return updateBest(ctx, tx, runID)
	})
	if err != nil {
		return fmt.Errorf("certificate of round %d of run %d: %w", index, runID, err)
	}
	return nil
}

const bestOfRun = `(SELECT idx FROM rounds WHERE run = runs.id AND standing > 0 ORDER BY standing DESC, ms, idx LIMIT 1)`

func updateBest(ctx context.Context, tx *sql.Tx, run int64) error {
	_, err := tx.ExecContext(ctx, `UPDATE runs SET best = `+bestOfRun+` WHERE id = ?`, run)
	return err
}

const roundQuery = `SELECT r.run, r.idx, r.candidate, r.language, r.origin, r.note, r.verdict, r.started, r.finished, r.overhead_ms,
	r.parent, f.text, c.verdict, coalesce(c.created, 0) FROM rounds r
	LEFT JOIN feedback f ON f.run = r.run AND f.idx = r.idx
	LEFT JOIN certificates c ON c.run = r.run AND c.idx = r.idx `

// roundRow is a round before its texts were read.
type roundRow struct {
	round                 kernelwright.Round
	candidate, verdict    int64
	feedback, certificate sql.NullInt64
}

func scanRound(scan func(...any) error) (row roundRow, err error) {
	r := &row.round
	return row, scan(&r.RunID, &r.Index, &row.candidate, &r.Candidate.Language, &r.Candidate.Origin, &r.Candidate.Note, &row.verdict,
		&r.StartedMS, &r.FinishedMS, &r.OverheadMS, &r.Parent, &row.feedback, &row.certificate, &r.CertifiedMS)
}

func (s *Store) fill(ctx context.Context, row roundRow) (kernelwright.Round, error) {
	r := row.round
	var err error
	if r.Candidate.Source, err = s.text(ctx, s.read, row.candidate); err != nil {
		return r, err
	}
	if r.Verdict, err = s.verdict(ctx, s.read, row.verdict); err != nil {
		return r, err
	}
	if row.feedback.Valid {
		r.Feedback = new(kernelwright.Feedback)
		if err := s.textJSON(ctx, s.read, row.feedback.Int64, r.Feedback); err != nil {
			return r, err
		}
	}
	if row.certificate.Valid {
		v, err := s.verdict(ctx, s.read, row.certificate.Int64)
		if err != nil {
			return r, err
		}
		r.Certificate = &v
	}
	return r, nil
}

// Rounds returns the recorded rounds of a run, in order. A run without any, or
// an unknown one, has none.
func (s *Store) Rounds(ctx context.Context, runID int64) ([]kernelwright.Round, error) {
	return s.RoundsAfter(ctx, runID, -1, -1)
}

// RoundsAfter is Rounds after an index, at most limit of them; -1 is no limit.
func (s *Store) RoundsAfter(ctx context.Context, runID int64, index, limit int) ([]kernelwright.Round, error) {
	rows, err := s.read.QueryContext(ctx, roundQuery+`WHERE r.run = ? AND r.idx > ? ORDER BY r.idx LIMIT ?`, runID, index, limit)
	if err != nil {
		return nil, err
	}
	found, err := scanAll(rows, func(r *sql.Rows) (roundRow, error) { return scanRound(r.Scan) })
	if err != nil {
		return nil, err
	}
	return s.fillAll(ctx, found)
}

// fillAll reads the texts of rounds.
func (s *Store) fillAll(ctx context.Context, found []roundRow) ([]kernelwright.Round, error) {
	return aside(found, func(row roundRow) (kernelwright.Round, error) { return s.fill(ctx, row) })
}

// aside reads each of what was found, side by side: texts lie apart, and a disk that is
// asked for one after the other lets each wait.
func aside[T, R any](found []T, read func(T) (R, error)) ([]R, error) {
	all := make([]R, len(found))
	errs := make([]error, len(found))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(maxReaders, (len(found)+1)/2) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(found); i = int(next.Add(1)) - 1 {
				all[i], errs[i] = read(found[i])
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Round returns one round, or ErrNotFound.
func (s *Store) Round(ctx context.Context, runID int64, index int) (kernelwright.Round, error) {
	return s.oneRound(ctx, fmt.Sprintf("round %d of run %d", index, runID), `WHERE r.run = ? AND r.idx = ?`, runID, index)
}

// Best returns the best round of any run on a reference and a device: the fastest
// certified kernel, or where there is none the fastest correct candidate (its
// Certificate is then nil). It is ErrNotFound where there is neither. The
// reference is the hex SHA-256 of its text, one of those with the task's
// fingerprint; empty: whose text was not kept.
func (s *Store) Best(ctx context.Context, task, reference, deviceKey string) (kernelwright.Round, error) {
	text, err := s.textOf(ctx, reference)
	if err != nil {
		return kernelwright.Round{}, fmt.Errorf("best kernel: %w", err)
	}
	return s.oneRound(ctx, "best kernel", bestQuery, task, deviceKey, text)
}

const bestQuery = `WHERE r.task = ? AND r.device_key = ? AND r.standing > 0 AND (SELECT task_source FROM runs WHERE id = r.run) IS ?
	ORDER BY r.standing DESC, r.ms, r.run, r.idx LIMIT 1`

// ByExport returns the certified round whose exported file has this SHA-256
// (hex): where a NAME.best.py came from. ErrNotFound where it is none of ours.
func (s *Store) ByExport(ctx context.Context, sha256 string) (kernelwright.Round, error) {
	if sha256 == "" {
		return kernelwright.Round{}, ErrNotFound
	}
	return s.oneRound(ctx, "kernel "+sha256, `WHERE c.sha256 = ? ORDER BY r.run LIMIT 1`, sha256)
}

func (s *Store) oneRound(ctx context.Context, what, where string, args ...any) (kernelwright.Round, error) {
	row, err := scanRound(s.read.QueryRowContext(ctx, roundQuery+where, args...).Scan)
	if errors.Is(err, sql.ErrNoRows) {
		return row.round, fmt.Errorf("%s: %w", what, ErrNotFound)
	}
	if err != nil {
		return row.round, err
	}
	return s.fill(ctx, row)
}

// Metric returns the values of one metric over the rounds of a run, by round.
func (s *Store) Metric(ctx context.Context, runID int64, name string) (map[int]float64, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT idx, value FROM metrics WHERE run = ? AND name = (SELECT id FROM metric_names WHERE name = ?)`, runID, name)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	values := map[int]float64{}
	for rows.Next() {
		var index int
		var value float64
		if err := rows.Scan(&index, &value); err != nil {
			return nil, err
		}
		values[index] = value
	}
	return values, rows.Err()
}

// Measured is the value of a metric in a round of a run.
type Measured struct {
	Round int     `json:"round"`
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

// Metrics returns what was measured in the rounds of a run, by round and name; of one
// name where that is given. At most limit are those after another one, the zero Measured
// with round -1 being before all.
func (s *Store) Metrics(ctx context.Context, runID int64, name string, after Measured, limit int) ([]Measured, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT m.idx, n.name, m.value FROM metrics m JOIN metric_names n ON n.id = m.name
		WHERE m.run = ?1 AND m.idx >= ?2 AND (m.idx, n.name) > (?2, ?3) AND (?4 = '' OR n.name = ?4) ORDER BY m.idx, n.name LIMIT ?5`, runID, after.Round, after.Name, name, limit)
	if err != nil {
		return nil, err
	}
	return scanAll(rows, func(r *sql.Rows) (m Measured, err error) { return m, r.Scan(&m.Round, &m.Name, &m.Value) })
}
