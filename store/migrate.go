package store

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// migrations returns the SQL of every version, oldest first: the first brings
// an empty database to version 1. A file that was released never changes.
func migrations() ([]string, error) {
	names, err := fs.Glob(migrationFiles, "migrations/*.sql") // sorted
	if err != nil {
		return nil, err
	}
	steps := make([]string, len(names))
	for i, name := range names {
		if want := fmt.Sprintf("migrations/%04d.sql", i+1); name != want {
			return nil, fmt.Errorf("migration %s is out of order: want %s", name, want)
		}
		b, err := migrationFiles.ReadFile(name)
		if err != nil {
			return nil, err
		}
		steps[i] = string(b)
	}
	return steps, nil
}

// NewerError says that a database was written by a later version of the
// program, which knows things this one would lose.
type NewerError struct {
	Path          string
	Version, Know int
}

func (e *NewerError) Error() string {
	return fmt.Sprintf("%s has schema version %d, and this program knows versions up to %d", e.Path, e.Version, e.Know)
}

// migrate brings db forward through the steps that it has not had. Each step
// and its version number commit together, and the version is read again inside
// the transaction, so two processes may start at once.
func migrate(ctx context.Context, db *sql.DB, path string, steps []string) error {
	for {
		done, err := migrateOne(ctx, db, path, steps)
		if done || err != nil {
			return err
		}
	}
}

func migrateOne(ctx context.Context, db *sql.DB, path string, steps []string) (done bool, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
	var version int
	if err := tx.QueryRowContext(ctx, `PRAGMA user_version`).Scan(&version); err != nil {
		return false, err
	}
	if version < 0 {
		return false, &DamagedError{Path: path, Err: fmt.Errorf("its schema version is %d", version)}
	}
	if version > len(steps) {
		return false, &NewerError{Path: path, Version: version, Know: len(steps)}
	}
	if version == len(steps) {
		return true, nil
	}
	if _, err := tx.ExecContext(ctx, steps[version]); err != nil {
		return false, fmt.Errorf("migrate to version %d: %w", version+1, err)
	}
	if _, err := tx.ExecContext(ctx, fmt.Sprintf(`PRAGMA application_id=%d; PRAGMA user_version=%d`, applicationID, version+1)); err != nil {
		return false, fmt.Errorf("migrate to version %d: %w", version+1, err)
	}
	return false, tx.Commit()
}
