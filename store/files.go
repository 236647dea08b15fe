package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
)

// File is what is known of a reference file that the watcher has seen.
type File struct {
	Path        string // absolute
	Hash        string // of the content
	Size        int64
	ModTimeNS   int64  // Unix nanoseconds, as the file system gave it
	Fingerprint string // of the task; empty until it was read, or when it is none
	RunID       int64  // the run that it started or shares; 0 for none
	SeenMS      int64
}

const fileColumns = `path, hash, size, mtime, fingerprint, run, seen`

func scanFile(scan func(...any) error) (f File, err error) {
	return f, scan(&f.Path, &f.Hash, &f.Size, &f.ModTimeNS, &f.Fingerprint, &f.RunID, &f.SeenMS)
}

// SaveFile records what a path holds now. SeenMS is set here where it is 0.
func (s *Store) SaveFile(ctx context.Context, f File) error { return s.saveFile(ctx, s.write, f) }

func (s *Store) saveFile(ctx context.Context, q executor, f File) error {
	if f.SeenMS == 0 {
		f.SeenMS = s.nowMS()
	}
	_, err := q.ExecContext(ctx, `INSERT INTO files (`+fileColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (path) DO UPDATE SET hash = excluded.hash, size = excluded.size, mtime = excluded.mtime,
		fingerprint = excluded.fingerprint, run = excluded.run, seen = excluded.seen`,
		f.Path, f.Hash, f.Size, f.ModTimeNS, f.Fingerprint, f.RunID, f.SeenMS)
	if err != nil {
		return fmt.Errorf("record file %s: %w", f.Path, err)
	}
	return nil
}

// File returns what was last seen at a path, and whether anything was.
func (s *Store) File(ctx context.Context, path string) (File, bool, error) {
	f, err := scanFile(s.read.QueryRowContext(ctx, `SELECT `+fileColumns+` FROM files WHERE path = ?`, path).Scan)
	if errors.Is(err, sql.ErrNoRows) {
		return File{}, false, nil
	}
	return f, err == nil, err
}

// Files returns all files seen, by path.
func (s *Store) Files(ctx context.Context) ([]File, error) {
	return s.files(ctx, `SELECT `+fileColumns+` FROM files ORDER BY path`)
}

// FilesByHash returns the files with this content, by path.
func (s *Store) FilesByHash(ctx context.Context, hash string) ([]File, error) {
	return s.files(ctx, `SELECT `+fileColumns+` FROM files WHERE hash = ? ORDER BY path`, hash)
}

func (s *Store) files(ctx context.Context, query string, args ...any) ([]File, error) {
	rows, err := s.read.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return scanAll(rows, func(r *sql.Rows) (File, error) { return scanFile(r.Scan) })
}

const kindOwed = "owed" // of the cache: results that are not written yet, by path

// Owe notes that the results of a run are still to be written for a path.
func (s *Store) Owe(ctx context.Context, path string, run int64) error {
	return s.Put(ctx, kindOwed, path, strconv.AppendInt(nil, run, 10))
}

// Owed returns the run whose results are still to be written for a path, or 0.
func (s *Store) Owed(ctx context.Context, path string) (int64, error) {
	value, ok, err := s.Get(ctx, kindOwed, path)
	if err != nil || !ok {
		return 0, err
	}
	return strconv.ParseInt(string(value), 10, 64)
}

// Debts returns the runs whose results are still to be written, by path.
func (s *Store) Debts(ctx context.Context) (map[string]int64, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT key FROM cache WHERE kind = ?`, kindOwed)
	if err != nil {
		return nil, err
	}
	paths, err := scanAll(rows, func(r *sql.Rows) (path string, err error) { return path, r.Scan(&path) })
	if err != nil {
		return nil, err
	}
	debts := map[string]int64{}
	for _, path := range paths {
		run, err := s.Owed(ctx, path)
		if err != nil {
			return nil, err
		}
		if run != 0 { // else it was settled meanwhile
			debts[path] = run
		}
	}
	return debts, nil
}

// Settle notes that nothing is owed for a path.
func (s *Store) Settle(ctx context.Context, path string) error {
	_, err := s.write.ExecContext(ctx, `DELETE FROM cache WHERE kind = ? AND key = ?`, kindOwed, path)
	return err
}

// ForgetFile drops a path that is gone. Forgetting an unknown one is fine.
func (s *Store) ForgetFile(ctx context.Context, path string) error {
	_, err := s.write.ExecContext(ctx, `DELETE FROM files WHERE path = ?`, path)
	return err
}
