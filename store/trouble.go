package store

import (
	"errors"

	"modernc.org/sqlite" // the driver, too
	sqlite3 "modernc.org/sqlite/lib"
)

// What SQLite reports of the world around it, rather than of what it was asked.
// Trouble finds them in an error of any method.
var (
	ErrFull     = errors.New("the disk is full")
	ErrReadOnly = errors.New("the history cannot be written to")
	ErrBusy     = errors.New("another process has been writing to the history for too long")
	ErrDisk     = errors.New("the disk under the history fails")
	ErrDamaged  = errors.New("the history is damaged")
)

// Trouble returns which of these is behind an error, or nil.
func Trouble(err error) error {
	var damaged *DamagedError
	if errors.As(err, &damaged) {
		return ErrDamaged
	}
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return nil
	}
	if e.Code() == sqlite3.SQLITE_IOERR_SHMSIZE { // no room for the index of the log
		return ErrFull
	}
	switch e.Code() & 0xff { // above it is the extended code
	case sqlite3.SQLITE_FULL:
		return ErrFull
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH:
		return ErrReadOnly
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return ErrBusy
	case sqlite3.SQLITE_IOERR:
		return ErrDisk
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return ErrDamaged
	}
	return nil
}

// wrap names the file where an error says that it is damaged.
func wrap(path string, err error) error {
	if errors.Is(Trouble(err), ErrDamaged) {
		return &DamagedError{Path: path, Err: err}
	}
	return err
}
