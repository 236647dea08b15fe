package store

import (
	"context"
	"database/sql"
	"errors"

	"github.com/kernelwright/kernelwright"
)

// Baseline is a program that somebody registered as a baseline of a task, for
// one kind of device.
type Baseline struct {
	kernelwright.NamedBaseline
	Task        string                  `json:"task"`                       // fingerprint
	Reference   string                  `json:"reference_sha256,omitempty"` // of the text that it was certified for; empty in old records
	TaskName    string                  `json:"task_name"`
	Device      kernelwright.DeviceKind `json:"device"`
	Path        string                  `json:"path"`               // where its file was
	Status      kernelwright.Status     `json:"status"`             // of the verdict that let it in
	CandidateMS float64                 `json:"ms" unknown:"0"`     // what it took then
	DeviceKey   string                  `json:"device_key"`         // and where
	AddedMS     int64                   `json:"added_at" time:"ms"` // Unix milliseconds
}

// Of reports whether it is a baseline for a reference's text: for the one that it
// was certified for. An old record does not say which: it goes by the task.
func (b Baseline) Of(source string) bool {
	return b.Reference == "" || b.Reference == kernelwright.HashText(source)
}

// SaveBaseline records a baseline, or puts it in the place of the one that has
// its name.
func (s *Store) SaveBaseline(ctx context.Context, b Baseline) error {
	if b.Task == "" || b.Device == "" || b.Name == "" {
		return errors.New("record a baseline: it lacks a task, a device or a name")
	}
	return s.inTx(ctx, func(tx *sql.Tx) error {
		source, err := s.putText(ctx, tx, b.Source, "")
		if err != nil {
			return err
		}
		b.Source, b.AddedMS = "", s.nowMS()
		detail, err := s.putJSON(ctx, tx, b, "")
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO baselines (task, device, name, source, detail, added) VALUES (?, ?, ?, ?, ?, ?)
			ON CONFLICT (task, device, name) DO UPDATE SET source = excluded.source, detail = excluded.detail, added = excluded.added`,
			b.Task, b.Device, b.Name, source, detail, b.AddedMS)
		return err
	})
}

// Baselines returns those of a task on a kind of device, by name; of every
// task or kind where either is empty.
func (s *Store) Baselines(ctx context.Context, task string, device kernelwright.DeviceKind) ([]Baseline, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT source, detail FROM baselines
		WHERE (?1 = '' OR task = ?1) AND (?2 = '' OR device = ?2) ORDER BY task, device, name`, task, device)
	if err != nil {
		return nil, err
	}
	type texts struct{ source, detail int64 }
	found, err := scanAll(rows, func(r *sql.Rows) (t texts, err error) { return t, r.Scan(&t.source, &t.detail) })
	if err != nil {
		return nil, err
	}
	all := make([]Baseline, len(found))
	for i, t := range found {
		if err := s.textJSON(ctx, s.read, t.detail, &all[i]); err != nil {
			return nil, err
		}
		if all[i].Source, err = s.text(ctx, s.read, t.source); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// RemoveBaseline forgets a baseline, or returns ErrNotFound.
func (s *Store) RemoveBaseline(ctx context.Context, task string, device kernelwright.DeviceKind, name string) error {
	res, err := s.write.ExecContext(ctx, `DELETE FROM baselines WHERE task = ? AND device = ? AND name = ?`, task, device, name)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n > 0 {
		return err
	}
	return ErrNotFound
}
