// Package store remembers everything: tasks, runs, rounds, verdicts, feedback,
// the queue and the caches, in one SQLite file. It is the only truth: what is
// not here did not happen.
//
// One connection writes, a pool of read-only ones reads, and readers never
// wait for the writer. Every method is safe for concurrent use, by several
// goroutines and by several processes. Times are Unix milliseconds.
package store

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	_ "modernc.org/sqlite" // the driver
)

// FileName is the name of the database inside a data folder.
const FileName = "kernelwright.db"

// applicationID marks our files in SQLite's header: "kwrt".
const applicationID = 0x6b777274

// maxReaders bounds the pool: more connections than that wait on memory
// bandwidth, not on each other.
const maxReaders = 8

// maxTextBytes is the largest text that is ever decompressed: a database that
// claims more is damaged or hostile.
const maxTextBytes = 256 << 20

// The pragmas of both kinds of connection. A transaction that starts deferred
// and then writes fails at once when another process wrote in between, however
// long it was told to wait: hence immediate for the writer.
const (
	writerPragmas = "_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_pragma=foreign_keys(1)&_txlock=immediate"
	readerPragmas = "_pragma=busy_timeout(10000)&_pragma=query_only(1)"
	probePragmas  = "_pragma=busy_timeout(10000)"
)

// Store is an open database. Open makes one.
type Store struct {
	path  string
	write *sql.DB // one connection
	read  *sql.DB
	enc   *zstd.Encoder
	dec   *zstd.Decoder
	now   func() time.Time

	closeOnce sync.Once
	closeErr  error
}

// DamagedError says that a file is there but cannot be read as our database.
// It is never written to.
type DamagedError struct {
	Path string
	Err  error
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("%s cannot be read as a kernelwright database (%v): restore it from a copy, or move it away to start afresh", e.Path, e.Err)
}

// Unwrap returns the cause.
func (e *DamagedError) Unwrap() error { return e.Err }

// ErrNotFound says that what was asked for by its identifier is not recorded.
var ErrNotFound = errors.New("not in the history")

// Open opens the database file at path, making it and its folder where they
// are missing, and migrates it forward. A file that is damaged, foreign or from
// a later version is refused (*DamagedError, *NewerError) and left as it is.
func Open(path string) (*Store, error) {
	steps, err := migrations()
	if err != nil {
		return nil, err
	}
	return open(context.Background(), path, steps)
}

func open(ctx context.Context, path string, steps []string) (*Store, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if err := probe(ctx, path, len(steps)); err != nil {
		return nil, err
	}
	write, err := sql.Open("sqlite", dsn(path, writerPragmas))
	if err != nil {
		return nil, err
	}
	write.SetMaxOpenConns(1)
	if err := migrate(ctx, write, path, steps); err != nil {
		write.Close()
		return nil, fmt.Errorf("open the history: %w", err)
	}
	read, err := sql.Open("sqlite", dsn(path, readerPragmas))
	if err != nil {
		write.Close()
		return nil, err
	}
	read.SetMaxOpenConns(maxReaders)
	read.SetMaxIdleConns(maxReaders)
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, errors.Join(err, write.Close(), read.Close())
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(maxReaders), zstd.WithDecoderMaxMemory(maxTextBytes))
	if err != nil {
		return nil, errors.Join(err, write.Close(), read.Close())
	}
	return &Store{path: path, write: write, read: read, enc: enc, dec: dec, now: time.Now}, nil
}

func dsn(path, pragmas string) string {
	return (&url.URL{Scheme: "file", Path: path, RawQuery: pragmas}).String()
}

// probe looks at an existing file before anything is allowed to change it:
// switching a file to WAL already writes to it.
func probe(ctx context.Context, path string, know int) error {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	head := make([]byte, 16)
	n, err := io.ReadFull(f, head)
	if n == 0 && errors.Is(err, io.EOF) {
		return nil // empty: nothing to lose
	}
	if !bytes.Equal(head, []byte("SQLite format 3\x00")) {
		return &DamagedError{Path: path, Err: errors.New("it is not an SQLite file")}
	}
	db, err := sql.Open("sqlite", dsn(path, probePragmas))
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	var id, version, tables int
	err = db.QueryRowContext(ctx, `SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_schema)`).
		Scan(&id, &version, &tables)
	switch {
	case err != nil:
		return &DamagedError{Path: path, Err: err}
	case tables == 0 && version == 0:
		return nil // another process is making it, or stopped just before
	case id != applicationID:
		return &DamagedError{Path: path, Err: errors.New("it belongs to another program")}
	case version > know:
		return &NewerError{Path: path, Version: version, Know: know}
	}
	return nil
}

// Close closes the database. Closing twice is fine.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		// Readers first: the last connection to go folds the log into the file.
		s.closeErr = errors.Join(s.read.Close(), s.write.Close(), s.enc.Close())
		s.dec.Close()
	})
	return s.closeErr
}

// Path returns the absolute path of the database file.
func (s *Store) Path() string { return s.path }

// Check reads the whole file and reports the first damage found. It takes
// seconds on a large history.
func (s *Store) Check(ctx context.Context) error {
	var answer string
	if err := s.read.QueryRowContext(ctx, `PRAGMA quick_check(1)`).Scan(&answer); err != nil {
		return &DamagedError{Path: s.path, Err: err}
	}
	if answer != "ok" {
		return &DamagedError{Path: s.path, Err: errors.New(answer)}
	}
	return nil
}

// inTx runs f in a writing transaction, which commits if f returns nil.
func (s *Store) inTx(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

func (s *Store) nowMS() int64 { return s.now().UnixMilli() }

// querier is what *sql.DB and *sql.Tx have in common for reading.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// executor is what *sql.DB and *sql.Tx have in common for writing.
type executor interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}
