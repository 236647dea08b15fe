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
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
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

// maxExamined is the largest file, with its log, whose pages are all read before
// it is written to: 0.16 s for 218 MB in memory, about a second from a disk.
// What is damaged in a larger one is met when it is read (guard).
const maxExamined = 256 << 20

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
	path        string
	write       *sql.DB // one connection
	read        *sql.DB
	enc         *zstd.Encoder
	dec         *zstd.Decoder
	now         func() time.Time
	hasWordList bool // a copy that is made of an earlier version has none yet

	file   os.FileInfo // what was opened
	damage *atomic.Pointer[DamagedError]

	closeOnce sync.Once
	closeErr  error
}

// DamagedError says that a file is there but cannot be read as our database.
// It is never written to.
type DamagedError struct {
	Path string
	Err  error
	Hint string // where there is more to do than for any other
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("%s cannot be read as a history of kernelwright: %v", e.Path, e.Err)
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
	return open(context.Background(), path, steps, true)
}

// OpenToRead opens a database that is there to be read, a damaged one too, as
// far as it goes. Where its folder cannot
// be written, as on a read-only disk, nothing is: then a database of an earlier
// version, or one with changes that are not in the file yet, is refused.
func OpenToRead(path string) (*Store, error) {
	folder := filepath.Dir(path)
	steps, err := migrations()
	if err != nil {
		return nil, err
	}
	if writable(folder) == nil {
		return open(context.Background(), path, steps, false)
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, err
	}
	if logBytes(path) > 0 {
		return nil, fmt.Errorf("%s has changes beside it in %s-wal, and its folder cannot be written: copy both to another folder", path, FileName)
	}
	version, err := probe(context.Background(), path, len(steps), frozen, false)
	if err != nil {
		return nil, err
	}
	if version < len(steps) {
		return nil, fmt.Errorf("%s has schema version %d and its folder cannot be written, so it cannot be brought to version %d: copy it to another folder", path, version, len(steps))
	}
	damage := &atomic.Pointer[DamagedError]{}
	db, err := guarded(path, frozen+"&"+readerPragmas, damage, nil)
	if err != nil {
		return nil, err
	}
	return newStore(path, db, db, damage)
}

// frozen opens a file that nobody can change, without locks.
const frozen = "mode=ro&immutable=1"

// writable returns why nothing can be written into a folder, or nil.
func writable(folder string) error {
	if err := unix.Access(folder, unix.W_OK|unix.X_OK); err != nil {
		return &os.PathError{Op: "write into", Path: folder, Err: err}
	}
	return nil
}

// open examines the pages first where who opens it will write: on damaged ones
// a write may spread the damage.
func open(ctx context.Context, path string, steps []string, examine bool) (*Store, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if err := writable(filepath.Dir(path)); err != nil {
		return nil, err
	}
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		if err := create(ctx, path, steps); err != nil {
			return nil, fmt.Errorf("begin the history: %w", err)
		}
	}
	// Read-only, since closing would fold a log into a file that may be damaged.
	if _, err := probe(ctx, path, len(steps), "mode=ro&"+probePragmas, examine); err != nil {
		return nil, err
	}
	damage := &atomic.Pointer[DamagedError]{}
	write, err := openWriter(ctx, path, steps, damage)
	if err != nil {
		return nil, fmt.Errorf("open the history: %w", err)
	}
	read, err := guarded(path, readerPragmas, damage, nil)
	if err != nil {
		write.Close()
		return nil, err
	}
	s, err := newStore(path, write, read, damage)
	if err == nil && wordList.has(len(steps)) {
		s.hasWordList, err = true, listWords(ctx, write)
	}
	if err != nil && s != nil {
		err = errors.Join(err, s.Close())
	}
	return s, err
}

func openWriter(ctx context.Context, path string, steps []string, damage *atomic.Pointer[DamagedError]) (*sql.DB, error) {
	begin := &atomic.Pointer[string]{}
	write, err := guarded(path, writerPragmas, damage, begin)
	if err != nil {
		return nil, err
	}
	write.SetMaxOpenConns(1)
	err = migrate(ctx, write, path, steps)
	var triggers string
	if err == nil {
		triggers, err = DigestTriggers(ctx, write)
	}
	if err == nil {
		var events string
		events, err = eventTriggers(ctx, write)
		triggers += events
	}
	if err == nil {
		var noting string
		noting, err = facetTriggers(ctx, write)
		triggers += noting
	}
	if err == nil {
		_, err = write.ExecContext(ctx, triggers)
	}
	if err != nil {
		return nil, errors.Join(err, write.Close())
	}
	begin.Store(&triggers) // where another connection comes in its place
	return write, nil
}

// create makes a new database, whole or not at all: an empty or half-made file
// of this name is never ours, so it can be told from a loss.
func create(ctx context.Context, path string, steps []string) error {
	temp, err := os.MkdirTemp(filepath.Dir(path), ".new-history-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temp) }() // what stays behind is only space
	made := filepath.Join(temp, FileName)
	write, err := openWriter(ctx, made, steps, &atomic.Pointer[DamagedError]{})
	if err != nil {
		return err
	}
	// Closing folds the log into the file too, but does not say when it cannot.
	_, err = write.ExecContext(ctx, `PRAGMA wal_checkpoint(TRUNCATE)`)
	if err = errors.Join(err, write.Close()); err != nil {
		return err
	}
	if logBytes(made) > 0 {
		return errors.New("the log of its changes cannot be folded in")
	}
	// A link never replaces what another process made meanwhile.
	err = os.Link(made, path)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil { // a file system without links
		err = os.Rename(made, path)
	}
	return err
}

func newStore(path string, write, read *sql.DB, damage *atomic.Pointer[DamagedError]) (*Store, error) {
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
	file, err := os.Stat(path)
	if err != nil {
		return nil, errors.Join(err, write.Close(), read.Close())
	}
	return &Store{path: path, write: write, read: read, enc: enc, dec: dec, now: time.Now, file: file, damage: damage}, nil
}

func dsn(path, pragmas string) string {
	return (&url.URL{Scheme: "file", Path: path, RawQuery: pragmas}).String()
}

// probe looks at an existing file before anything is allowed to change it:
// switching a file to WAL already writes to it. It returns the schema's version.
// Examine has every page read, of a file that is small enough.
func probe(ctx context.Context, path string, know int, pragmas string, examine bool) (int, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	damaged := func(why string) (int, error) {
		return 0, &DamagedError{Path: path, Err: errors.New(why), Hint: "put a copy of it in its place, or move it aside and keep it: a new record is then begun"}
	}
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	switch {
	case !info.Mode().IsRegular():
		return damaged("it is no file")
	case info.Size() == 0:
		return damaged("it is empty")
	}
	head := make([]byte, headerBytes)
	if _, err := io.ReadFull(f, head); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return 0, err
	}
	if !bytes.HasPrefix(head, magic) {
		return damaged("it is not an SQLite file")
	}
	if want := fileBytes(head); info.Size() < want && logBytes(path) == 0 {
		return 0, &DamagedError{Path: path, Err: fmt.Errorf("it is cut short: %d of %d bytes are there", info.Size(), want)}
	}
	if !soundLog(path + "-wal") {
		return 0, &DamagedError{
			Path: path, Err: fmt.Errorf("the log of its last changes, %s-wal, is damaged", filepath.Base(path)),
			Hint: "move that log elsewhere and keep it: the record then ends a little earlier, and `kernelwright history check` says whether it is whole",
		}
	}
	db, err := sql.Open("sqlite", dsn(path, pragmas))
	if err != nil {
		return 0, err
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	var id, version int
	err = db.QueryRowContext(ctx, `SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version)
		FROM (SELECT count(*) FROM sqlite_schema)`).Scan(&id, &version)
	switch {
	case err != nil:
		return 0, wrap(path, err)
	case id != applicationID:
		return damaged("it belongs to another program")
	case version > know:
		return version, &NewerError{Path: path, Version: version, Know: know}
	}
	if examine && info.Size()+logBytes(path) <= maxExamined {
		return version, quickCheck(ctx, db, path)
	}
	return version, nil
}

// quickCheck reads every page and reports the first damage found.
func quickCheck(ctx context.Context, db *sql.DB, path string) error {
	var answer string
	if err := db.QueryRowContext(ctx, `PRAGMA quick_check(1)`).Scan(&answer); err != nil {
		return wrap(path, err)
	}
	if answer != "ok" {
		return &DamagedError{Path: path, Err: errors.New(answer)}
	}
	return nil
}

// headerBytes is as much of a file as says how long it should be.
const headerBytes = 32

// magic is what every SQLite file begins with.
var magic = []byte("SQLite format 3\x00")

// fileBytes returns how long a file with this header is when it is whole.
func fileBytes(head []byte) int64 {
	page := int64(binary.BigEndian.Uint16(head[16:]))
	if page == 1 {
		page = 65536
	}
	return page * int64(binary.BigEndian.Uint32(head[28:])) // sqlite.org/fileformat2.html, section 1.3
}

// logBytes returns the size of the write-ahead log of a database: pages in it
// may not be in the file yet.
func logBytes(path string) int64 {
	info, err := os.Stat(path + "-wal")
	if err != nil {
		return 0
	}
	return info.Size()
}

// soundLog reports whether a write-ahead log is absent, without content, or
// begins as SQLite's do. One that does not is deleted by SQLite unread, and
// whoever could have mended it is not asked. Zeros are what a power cut leaves.
func soundLog(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return true // absent; or SQLite will say why it cannot be read
	}
	defer f.Close()
	head := make([]byte, 4)
	if _, err := io.ReadFull(f, head); err != nil {
		return true
	}
	first := binary.BigEndian.Uint32(head)
	return first == 0 || first&^1 == 0x377f0682 // sqlite.org/fileformat2.html, section 4.1
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
	return quickCheck(ctx, s.read, s.path)
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
