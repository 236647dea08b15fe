package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/kernelwright/kernelwright"
)

// SaveDevice records a device with its specs and ceilings, or replaces what
// was known under its key.
func (s *Store) SaveDevice(ctx context.Context, d kernelwright.Device) error {
	return s.inTx(ctx, func(tx *sql.Tx) error { return s.saveDevice(ctx, tx, d) })
}

func (s *Store) saveDevice(ctx context.Context, tx *sql.Tx, d kernelwright.Device) error {
	if d.Key == "" {
		return errors.New("record a device: it has no key")
	}
	detail, err := s.putJSON(ctx, tx, d, "")
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO devices (key, name, detail, updated) VALUES (?, ?, ?, ?)
		ON CONFLICT (key) DO UPDATE SET name = excluded.name, detail = excluded.detail, updated = excluded.updated`,
		d.Key, d.Name, detail, s.nowMS())
	return err
}

// Device returns a device as it was last recorded, or ErrNotFound.
func (s *Store) Device(ctx context.Context, key string) (kernelwright.Device, error) {
	return s.device(ctx, `SELECT detail FROM devices WHERE key = ?`, key)
}

// RunDevice returns the device as the run saw it, or ErrNotFound.
func (s *Store) RunDevice(ctx context.Context, runID int64) (kernelwright.Device, error) {
	return s.device(ctx, `SELECT device_detail FROM runs WHERE id = ? AND device_detail IS NOT NULL`, runID)
}

func (s *Store) device(ctx context.Context, query string, arg any) (kernelwright.Device, error) {
	var d kernelwright.Device
	var detail int64
	err := s.read.QueryRowContext(ctx, query, arg).Scan(&detail)
	if errors.Is(err, sql.ErrNoRows) {
		return d, fmt.Errorf("device %v: %w", arg, ErrNotFound)
	}
	if err != nil {
		return d, err
	}
	return d, s.textJSON(ctx, s.read, detail, &d)
}

// Devices returns every device that was ever recorded, the latest first.
func (s *Store) Devices(ctx context.Context) ([]kernelwright.Device, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT detail FROM devices ORDER BY updated DESC, key`)
	if err != nil {
		return nil, err
	}
	ids, err := scanAll(rows, func(r *sql.Rows) (id int64, err error) { return id, r.Scan(&id) })
	if err != nil {
		return nil, err
	}
	devices := make([]kernelwright.Device, len(ids))
	for i, id := range ids {
		if err := s.textJSON(ctx, s.read, id, &devices[i]); err != nil {
			return nil, err
		}
	}
	return devices, nil
}

// NextFence returns a number larger than every one given out for the device
// before: work that carries an older one must not be believed any more.
func (s *Store) NextFence(ctx context.Context, device string) (int64, error) {
	var value int64
	err := s.write.QueryRowContext(ctx, `INSERT INTO fences (device, value) VALUES (?, 1)
		ON CONFLICT (device) DO UPDATE SET value = value + 1 RETURNING value`, device).Scan(&value)
	if err != nil {
		return 0, fmt.Errorf("fence for %s: %w", device, err)
	}
	return value, nil
}

// scanAll reads all rows and closes them.
func scanAll[T any](rows *sql.Rows, scan func(*sql.Rows) (T, error)) ([]T, error) {
	defer rows.Close()
	var all []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, rows.Err()
}
