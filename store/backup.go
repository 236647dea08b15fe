package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Backup writes the history at path, as it is at one moment, to a file that is not
// there, while others write to it: they do not wait. The file is whole, or not there; a
// process that is killed leaves a folder .kernelwright-backup-* beside it.
func Backup(ctx context.Context, path, to string) error {
	if _, err := os.Lstat(to); err == nil {
		return &os.PathError{Op: "write", Path: to, Err: os.ErrExist}
	}
	steps, err := migrations()
	if err != nil {
		return err
	}
	mode := "mode=ro&" + probePragmas
	if writable(filepath.Dir(path)) != nil {
		mode = frozen
	}
	if _, err := probe(ctx, path, len(steps), mode, false); err != nil {
		return err
	}
	half, err := os.MkdirTemp(filepath.Dir(to), ".kernelwright-backup-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(half) }() // what stays behind is only space
	made := filepath.Join(half, FileName)
	db, err := sql.Open("sqlite", dsn(path, mode))
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, `VACUUM INTO ?`, made); err != nil {
		return fmt.Errorf("back up the history: %w", wrap(path, err))
	}
	f, err := os.OpenFile(made, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	// A link never replaces what another process made meanwhile.
	if err = os.Link(made, to); err != nil && !errors.Is(err, os.ErrExist) {
		err = os.Rename(made, to) // a file system without links
	}
	return err
}

// Restore puts a copy of a history in the place of the one at path, for who alone has its
// folder. What was there is moved to a name with the time, which is returned; empty where
// nothing was. The copy is examined first, and an error leaves everything as it was. A
// process that is killed leaves the old one or the new one in its place, whole: the same
// call again finishes it.
func Restore(ctx context.Context, path, from string, now time.Time, progress func(string)) (old string, err error) {
	e, err := Examine(ctx, from, progress)
	if err != nil {
		return "", err
	}
	if !e.Sound() {
		return "", &DamagedError{Path: from, Err: errors.New(e.Faults[0].What), Hint: "`kernelwright history check --salvage FILE` of a data folder with it copies what can be read"}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	half, err := os.MkdirTemp(filepath.Dir(path), ".new-history-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(half) }() // what stays behind is only space
	progress("copying")
	made := filepath.Join(half, FileName)
	if err := Backup(ctx, from, made); err != nil { // with what lies in its log
		return "", err
	}
	if err := skipEvents(ctx, made, now); err != nil {
		return "", err
	}
	if _, err := os.Lstat(path); err == nil {
		old = path + ".before-" + now.UTC().Format("20060102T150405")
		if _, err := os.Lstat(old); err == nil {
			return "", &os.PathError{Op: "write", Path: old, Err: os.ErrExist}
		}
		// Opened and closed, its log is folded into it, and one name is all there is to
		// move: it gets the second name first, so that there is a record at any moment. A
		// damaged one keeps its log, which goes first: beside another file it would be
		// taken for that one's.
		if s, err := Open(path); err == nil {
			if err := s.Close(); err != nil {
				return "", err
			}
		}
		for _, suffix := range []string{"-wal", "-shm"} {
			if err := os.Rename(path+suffix, old+suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
				return "", err
			}
		}
		if os.Link(path, old) != nil { // a file system without links
			if err := os.Rename(path, old); err != nil {
				return "", err
			}
		}
	}
	return old, os.Rename(made, path)
}

// skipEvents has the next event of a record get a number that no record which this one
// takes the place of has given out: whoever comes back with such a number is told that there
// is a gap. Fewer events than milliseconds pass.
func skipEvents(ctx context.Context, path string, now time.Time) error {
	db, err := sql.Open("sqlite", dsn(path, "mode=rw"))
	if err != nil {
		return err
	}
	defer db.Close()
	for _, change := range []string{
		`UPDATE sqlite_sequence SET seq = max(seq, ?1) WHERE name = 'events'`,
		`INSERT INTO sqlite_sequence (name, seq) SELECT 'events', ?1 WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'events')`,
	} {
		if _, err := db.ExecContext(ctx, change, now.UnixMilli()); err != nil {
			return fmt.Errorf("restore the history: %w", wrap(path, err))
		}
	}
	return db.Close()
}
