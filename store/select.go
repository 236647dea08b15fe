package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	_ "embed"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

//go:embed views.sql
var views string

// maxStatement is the longest query that is read, in bytes.
const maxStatement = 1 << 20

// maxValue is how long one value of a query may be, in bytes.
const maxValue = maxTextBytes

func init() {
	sqlite.MustRegisterDeterministicScalarFunction("kept_text", 1, func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
		body, _ := args[0].([]byte)
		if len(body) == 0 { // it was pruned
			return nil, nil
		}
		dec, err := kindsDecoder()
		if err != nil {
			return nil, err
		}
		text, err := dec.DecodeAll(body, nil)
		return string(text), err
	})
	sqlite.MustRegisterDeterministicScalarFunction("iso_time", 1, func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
		ms, _ := args[0].(int64)
		if ms <= 0 {
			return nil, nil
		}
		return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z"), nil
	})
}

// NotReadError says that what was asked is no query that only reads.
type NotReadError struct{ Why string }

func (e *NotReadError) Error() string { return e.Why }

// TimeLimitError says that a query took longer than it may.
type TimeLimitError struct{ Limit time.Duration }

func (e *TimeLimitError) Error() string { return fmt.Sprintf("the query took longer than %v", e.Limit) }

// QueryError is what SQLite says of a query that it cannot answer.
type QueryError struct{ Err error }

func (e *QueryError) Error() string {
	text := e.Err.Error()
	text = strings.TrimPrefix(text, "SQL logic error: ")
	if i := strings.LastIndex(text, " ("); i > 0 && strings.HasSuffix(text, ")") { // its number
		text = text[:i]
	}
	return text
}

// Unwrap returns the cause.
func (e *QueryError) Unwrap() error { return e.Err }

// Bounds limit a query.
type Bounds struct {
	Rows int           // more are not given; 0: all are
	Time time.Duration // 0: any
	Heap int64         // bytes that SQLite may take from then on, in the whole process; 0: any
}

// Select answers a query over the views of views.sql: columns is called once with
// their names, row for each row. A value is an int64, float64, string, []byte or nil,
// and good until row returns. More says that there were rows beyond the bound. The
// query has a connection of its own, which cannot write, whatever the query says.
// Errors: *NotReadError, *QueryError, *TimeLimitError, what columns and row return,
// *DamagedError.
func (s *Store) Select(ctx context.Context, query string, b Bounds, columns func([]string) error, row func([]any) error) (more bool, err error) {
	query, err = oneQuery(query)
	if err != nil {
		return false, err
	}
	conn, done, err := s.onlyReading(ctx)
	if err != nil {
		return false, err
	}
	defer done()
	if b.Heap > 0 {
		if _, err := conn.ExecContext(ctx, fmt.Sprintf("PRAGMA hard_heap_limit = %d", b.Heap)); err != nil {
			return false, s.queryError(ctx, err)
		}
	}
	if b.Time > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, b.Time, &TimeLimitError{b.Time})
		defer cancel()
	}
	rows, err := conn.QueryContext(ctx, query)
	if err != nil {
		return false, s.queryError(ctx, err)
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		return false, s.queryError(ctx, err)
	}
	if err := columns(names); err != nil {
		return false, err
	}
	values, into := make([]any, len(names)), make([]any, len(names))
	for i := range values {
		into[i] = &values[i]
	}
	for n := 0; rows.Next(); n++ {
		if b.Rows > 0 && n == b.Rows {
			return true, nil
		}
		if err := rows.Scan(into...); err != nil {
			return false, s.queryError(ctx, err)
		}
		if err := row(values); err != nil {
			return false, err
		}
	}
	return false, s.queryError(ctx, rows.Err())
}

// ViewColumn is a column of a view that queries may ask.
type ViewColumn struct{ View, Column string }

// Views returns every column of every view, in their order.
func (s *Store) Views(ctx context.Context) ([]ViewColumn, error) {
	conn, done, err := s.onlyReading(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	rows, err := conn.QueryContext(ctx, `SELECT v.name, c.name FROM sqlite_temp_schema v JOIN pragma_table_info(v.name) c WHERE v.type = 'view' ORDER BY v.rowid, c.cid`)
	if err != nil {
		return nil, s.queryError(ctx, err)
	}
	return scanAll(rows, func(r *sql.Rows) (c ViewColumn, err error) { return c, r.Scan(&c.View, &c.Column) })
}

// onlyReading opens a connection that has the views, and cannot write: the file is
// opened to be read, nothing can be attached to it, and so nothing copied out of it.
func (s *Store) onlyReading(ctx context.Context) (*sql.Conn, func(), error) {
	mode := "mode=ro&" + probePragmas
	if writable(filepath.Dir(s.path)) != nil {
		mode = frozen
	}
	db, err := sql.Open("sqlite", dsn(s.path, mode+"&_defensive=1&_dqs=0"))
	if err != nil {
		return nil, nil, err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, nil, errors.Join(wrap(s.path, err), db.Close())
	}
	done := func() { _, _ = conn.Close(), db.Close() } // it only read
	_, err = conn.ExecContext(ctx, views+"PRAGMA query_only = 1;")
	for id, most := range map[int]int{sqlite3.SQLITE_LIMIT_ATTACHED: 0, sqlite3.SQLITE_LIMIT_LENGTH: maxValue} {
		if err == nil {
			_, err = sqlite.Limit(conn, id, most)
		}
	}
	if err != nil {
		done()
		return nil, nil, fmt.Errorf("make the views: %w", wrap(s.path, err))
	}
	return conn, done, nil
}

// queryError tells a query that is wrong from a record that is.
func (s *Store) queryError(ctx context.Context, err error) error {
	var late *TimeLimitError
	switch {
	case err == nil:
		return nil
	case errors.As(context.Cause(ctx), &late):
		return late
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(Trouble(err), ErrDamaged):
		return wrap(s.path, err)
	case errors.Is(Trouble(err), ErrReadOnly):
		return &NotReadError{"the query would write, and the record is only read"}
	}
	return &QueryError{err}
}

// oneQuery returns the one query that a text has, without what ends it, or a
// *NotReadError. It knows as much of SQL as tells where a statement ends: quotes and
// comments.
func oneQuery(text string) (string, error) {
	if len(text) > maxStatement {
		return "", &NotReadError{fmt.Sprintf("the query is longer than %d bytes", maxStatement)}
	}
	if strings.ContainsRune(text, 0) {
		return "", &NotReadError{"the query holds a byte that is 0"}
	}
	word, end := "", -1
	for i := 0; i < len(text); {
		next := skip(text[i:])
		blank := strings.TrimSpace(text[i:i+next]) == "" || strings.HasPrefix(text[i:], "--") || strings.HasPrefix(text[i:], "/*")
		switch {
		case blank:
		case text[i] == ';':
			if end < 0 {
				end = i
			}
		case end >= 0:
			return "", &NotReadError{"there is more than one query"}
		case word == "":
			word = strings.ToUpper(leadingWord(text[i:]))
		}
		i += next
	}
	switch word {
	case "SELECT", "WITH", "VALUES", "EXPLAIN":
	case "":
		return "", &NotReadError{"there is no query"}
	default:
		return "", &NotReadError{"a query begins with SELECT or WITH"}
	}
	if end >= 0 {
		text = text[:end]
	}
	return text, nil
}

// skip returns the length of the quoted text or comment that a text begins with, else
// 1. As in SQLite, one that does not end goes to the end.
func skip(text string) int {
	ends := func(from int, end string) int {
		if i := strings.Index(text[from:], end); i >= 0 {
			return from + i + len(end)
		}
		return len(text)
	}
	switch {
	case strings.HasPrefix(text, "--"):
		return ends(2, "\n")
	case strings.HasPrefix(text, "/*"):
		return ends(2, "*/")
	case text[0] == '\'' || text[0] == '"' || text[0] == '`':
		return ends(1, text[:1]) // a doubled quote begins another one at once
	case text[0] == '[':
		return ends(1, "]")
	}
	return 1
}

func leadingWord(text string) string {
	i := strings.IndexFunc(text, func(r rune) bool { return r < 'A' || r > 'z' || r > 'Z' && r < 'a' })
	if i < 0 {
		return text
	}
	return text[:i]
}
