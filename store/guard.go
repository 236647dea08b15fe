package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
)

// guard sees every error of a database. One that says that the file is damaged
// becomes a *DamagedError, whoever asked, and is remembered: some who ask can
// do without an answer, and nobody can do without the file.
type guard struct {
	path    string
	driver  driver.Driver
	dsn     string
	damaged *atomic.Pointer[DamagedError]
	begin   *atomic.Pointer[string]
}

// guarded opens a database whose errors are seen. Damage is where they are kept;
// begin is what new connections run first, from when it is there; nil: nothing.
func guarded(path, pragmas string, damage *atomic.Pointer[DamagedError], begin *atomic.Pointer[string]) (*sql.DB, error) {
	name := dsn(path, pragmas)
	plain, err := sql.Open("sqlite", name) // connects to nothing: for its driver
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	return sql.OpenDB(&guard{path, plain.Driver(), name, damage, begin}), nil
}

func (g *guard) see(err error) error {
	if err == nil {
		return nil
	}
	err = wrap(g.path, err)
	var damaged *DamagedError
	if errors.As(err, &damaged) {
		g.damaged.CompareAndSwap(nil, damaged)
	}
	return err
}

// Connect makes one more connection.
func (g *guard) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := g.driver.Open(g.dsn)
	if err != nil {
		return nil, g.see(err)
	}
	whole, ok := c.(conn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("the driver's connection is a %T", c), c.Close())
	}
	if g.begin != nil && g.begin.Load() != nil {
		if _, err := whole.ExecContext(ctx, *g.begin.Load(), nil); err != nil {
			return nil, errors.Join(g.see(err), c.Close())
		}
	}
	return guardedConn{whole, g}, nil
}

// Driver returns the driver underneath.
func (g *guard) Driver() driver.Driver { return g.driver }

// conn is what the driver's connections can do and database/sql asks for.
type conn interface {
	driver.Conn
	driver.ConnPrepareContext
	driver.ConnBeginTx
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

type guardedConn struct {
	conn
	guard *guard
}

func (c guardedConn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	tx, err := c.conn.BeginTx(ctx, o)
	if err != nil {
		return nil, c.guard.see(err)
	}
	return guardedTx{tx, c.guard}, nil
}

func (c guardedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	result, err := c.conn.ExecContext(ctx, query, args)
	return result, c.guard.see(err)
}

func (c guardedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	rows, err := c.conn.QueryContext(ctx, query, args)
	if err != nil {
		return nil, c.guard.see(err)
	}
	return guardedRows{rows, c.guard}, nil
}

type guardedTx struct {
	driver.Tx
	guard *guard
}

func (t guardedTx) Commit() error { return t.guard.see(t.Tx.Commit()) }

type guardedRows struct {
	driver.Rows
	guard *guard
}

func (r guardedRows) Next(into []driver.Value) error { return r.guard.see(r.Rows.Next(into)) }

// GoneError says that a file that is open is no longer the one at its path:
// whatever is written goes where nobody finds it.
type GoneError struct {
	Path     string
	Replaced bool // by another; else it was deleted or moved
}

func (e *GoneError) Error() string {
	what := "was deleted or moved"
	if e.Replaced {
		what = "was replaced by another file"
	}
	return fmt.Sprintf("%s %s while it was in use", e.Path, what)
}

// StillAt returns a *GoneError where another file than this one, or none,
// stands at a path.
func StillAt(path string, file os.FileInfo) error {
	now, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return &GoneError{Path: path}
	case err != nil:
		return nil //nolint:nilerr // it cannot be said: whoever works with it will be told why
	case !os.SameFile(now, file):
		return &GoneError{Path: path, Replaced: true}
	}
	return nil
}

// Usable says why nothing more should be recorded, or nil: damage that anybody
// met (*DamagedError), or a file that is not at its path any more (*GoneError).
func (s *Store) Usable() error {
	if damaged := s.damage.Load(); damaged != nil {
		return damaged
	}
	return StillAt(s.path, s.file)
}
