package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/kernelwright/kernelwright"
)

// Kept is a certified kernel, with what is recorded of it on a device other than
// the one that it is of.
type Kept struct {
	Task      string  `json:"task"`                       // fingerprint
	Reference string  `json:"reference_sha256,omitempty"` // of its text; empty where that was not kept
	TaskName  string  `json:"task_name"`
	RunID     int64   `json:"run"`
	Index     int     `json:"round"`
	Device    string  `json:"device"`
	DeviceKey string  `json:"device_key"`
	MS        float64 `json:"candidate_ms" unknown:"0"` // on its device

	// There is what the other device said of it last; nil where it was not asked.
	There *Elsewhere `json:"there,omitempty"`

	source    sql.NullInt64 // text of the reference
	candidate int64         // text
}

// Elsewhere is what a device said of a kernel of another one: of its certificate,
// or of the verdict that it did not come past.
type Elsewhere struct {
	RunID   int64                `json:"run"`
	Index   int                  `json:"round"`
	Verdict kernelwright.Verdict `json:"verdict"` // the key figures: as in Runs
}

// Kept returns the best certified kernel of every reference on every device but
// the one of this key, each once whatever devices have it, by task; of one task
// where a fingerprint is given.
func (s *Store) Kept(ctx context.Context, elsewhere, task string) ([]Kept, error) {
	var all []Kept
	seen := map[string]bool{}
	lastTask, lastKey := task, ""
	for {
		err := s.read.QueryRowContext(ctx, keptQuery, lastTask, lastKey).Scan(&lastTask, &lastKey)
		if errors.Is(err, sql.ErrNoRows) || err == nil && task != "" && lastTask != task {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		if lastKey == elsewhere {
			continue
		}
		best, err := s.bestOfTexts(ctx, lastTask, lastKey)
		if err != nil {
			return nil, err
		}
		for _, b := range best {
			k, err := s.kept(ctx, b.RunID, b.Index, elsewhere)
			if err != nil {
				return nil, err
			}
			if same := fmt.Sprint(k.Task, k.Reference, k.candidate); !seen[same] {
				seen[same] = true
				all = append(all, k)
			}
		}
	}
}

// bestOfTexts returns the best certified kernel of each text of a task on a
// device, the fastest first.
func (s *Store) bestOfTexts(ctx context.Context, task, deviceKey string) ([]Kept, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT run, idx FROM (SELECT r.run, r.idx, r.ms, row_number() OVER (PARTITION BY runs.task_source ORDER BY r.ms, r.run, r.idx) AS place
		FROM rounds r JOIN runs ON runs.id = r.run WHERE r.task = ? AND r.device_key = ? AND r.standing = 2) WHERE place = 1 ORDER BY ms, run, idx`, task, deviceKey)
	if err != nil {
		return nil, err
	}
	return scanAll(rows, func(r *sql.Rows) (k Kept, err error) { return k, r.Scan(&k.RunID, &k.Index) })
}

const keptQuery = `SELECT task, device_key FROM rounds WHERE standing > 0 AND (task, device_key) > (?, ?) ORDER BY task, device_key LIMIT 1`

// KeptOf returns the best kernel of a run, or ErrNotFound where none was
// certified.
func (s *Store) KeptOf(ctx context.Context, run int64, elsewhere string) (Kept, error) {
	var index int
	err := s.read.QueryRowContext(ctx, `SELECT best FROM runs JOIN rounds ON run = id AND idx = best AND standing = 2 WHERE id = ?`, run).Scan(&index)
	if errors.Is(err, sql.ErrNoRows) {
		return Kept{}, fmt.Errorf("a kernel of run %d: %w", run, ErrNotFound)
	}
	if err != nil {
		return Kept{}, err
	}
	return s.kept(ctx, run, index, elsewhere)
}

func (s *Store) kept(ctx context.Context, run int64, index int, elsewhere string) (Kept, error) {
	k := Kept{RunID: run, Index: index}
	err := s.read.QueryRowContext(ctx, `SELECT runs.task, runs.task_name, runs.device, runs.device_key, runs.task_source, coalesce((SELECT lower(hex(hash)) FROM texts WHERE texts.id = task_source), ''), r.ms, r.candidate FROM rounds r JOIN runs ON runs.id = r.run WHERE r.run = ? AND r.idx = ?`, run, index).
		Scan(&k.Task, &k.TaskName, &k.Device, &k.DeviceKey, &k.source, &k.Reference, &k.MS, &k.candidate)
	if err != nil {
		return k, err
	}
	var v, c verdictRow
	there := Elsewhere{}
	var device string
	// Where it was asked several times, one that certified it, else the last.
	err = s.read.QueryRowContext(ctx, `SELECT r.run, r.idx, runs.device, `+verdictColumns("v")+`, `+verdictColumns("c")+` FROM rounds r JOIN runs ON runs.id = r.run
		JOIN verdicts v ON v.id = r.verdict
		LEFT JOIN certificates ce ON ce.run = r.run AND ce.idx = r.idx
		LEFT JOIN verdicts c ON c.id = ce.verdict
		WHERE r.candidate = ? AND r.task = ? AND runs.task_source IS ? AND r.device_key = ? AND (c.id IS NOT NULL OR v.status <> 'correct')
		ORDER BY r.standing DESC, r.run DESC, r.idx LIMIT 1`, k.candidate, k.Task, k.source, elsewhere).
		Scan(append(append([]any{&there.RunID, &there.Index, &device}, v.into()...), c.into()...)...)
	if errors.Is(err, sql.ErrNoRows) {
		return k, nil
	}
	if err != nil {
		return k, err
	}
	of := kernelwright.Run{Task: k.Task, Device: device, DeviceKey: elsewhere}
	verdict := c.verdict(of)
	if verdict == nil {
		verdict = v.verdict(of)
	}
	there.Verdict = *verdict
	k.There = &there
	return k, nil
}
