package cli

import (
	"encoding/csv"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/kernelwright/kernelwright/internal/ordered"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

type historySQLCmd struct {
	Query     string        `arg:"" optional:"" help:"A query that begins with SELECT or WITH; without one, the views and their columns."`
	CSV       bool          `name:"csv" help:"Print CSV."`
	Limit     int           `help:"At most so many rows; 0: all." default:"1000"`
	TimeLimit time.Duration `help:"Give up after this long; 0s: never." default:"10s" placeholder:"TIME"`
}

// Help is shown below the flags.
func (historySQLCmd) Help() string {
	return "Asks views of the record, which stay as they are from version to version: docs/history-sql.md describes their columns. Nothing can be written, and it works beside a daemon. In the table a value is cut after 100 characters; --csv and --json (one object a line) have all of it."
}

const (
	maxCell  = 100     // characters of a value in a table
	sqlHeap  = 1 << 30 // bytes
	tableTop = 100_000 // rows of a table, which is held to be aligned
)

// Run answers a query.
func (c historySQLCmd) Run(a *app) (err error) {
	a.lines = true
	switch {
	case c.CSV && a.json:
		return usage("--csv and --json are two forms", "leave one of them out")
	case c.Limit < 0:
		return usage(fmt.Sprintf("--limit is %d", c.Limit), "it takes a number of rows, and 0 for all")
	case c.TimeLimit < 0:
		return usage(fmt.Sprintf("--time-limit is %v", c.TimeLimit), `it takes a length of time such as "30s", and "0s" for none`)
	}
	r, err := a.openRecord()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if strings.TrimSpace(c.Query) == "" {
		return c.views(a, r.store)
	}
	out := c.writer(a)
	bounds := store.Bounds{Rows: c.Limit, Time: c.TimeLimit, Heap: sqlHeap}
	if _, table := out.(*tableRows); table && (c.Limit == 0 || c.Limit > tableTop) {
		bounds.Rows = tableTop
	}
	n := 0
	more, err := r.store.Select(a.ctx, c.Query, bounds, out.columns, func(row []any) error { n++; return out.row(row) })
	if err != nil {
		return sqlError(a, err)
	}
	if err := ignoreClosed(out.end()); err != nil {
		return err
	}
	if more {
		fmt.Fprintf(a.stderr, "kernelwright: only the first %d rows are shown: --limit %d shows more, --limit 0 with --csv or --json all\n", n, 10*n)
	}
	return nil
}

// sqlError gives what a query ends with its hint.
func sqlError(a *app, err error) error {
	var notRead *store.NotReadError
	var wrong *store.QueryError
	var late *store.TimeLimitError
	switch {
	case errors.As(err, &notRead):
		return usage(notRead.Error(), "give one query: kernelwright history sql 'SELECT task_name, candidate_ms FROM kernels'")
	case errors.As(err, &late):
		return &Error{Code: ExitFailure, Err: err, Hint: "raise --time-limit, or narrow the query: run and (run, round) are quick to look up"}
	case errors.As(err, &wrong):
		return usage("the query: "+wrong.Error(), "`kernelwright history sql` without a query lists the views and their columns")
	}
	return cutShort(a.ctx, ignoreClosed(err))
}

// views lists what can be asked.
func (c historySQLCmd) views(a *app, s *store.Store) error {
	all, err := s.Views(a.ctx)
	if err != nil {
		return err
	}
	out := c.writer(a)
	if err := out.columns([]string{"view", "columns"}); err != nil {
		return err
	}
	for len(all) > 0 {
		n := slices.IndexFunc(all, func(v store.ViewColumn) bool { return v.View != all[0].View })
		if n < 0 {
			n = len(all)
		}
		names := make([]string, n)
		for i, v := range all[:n] {
			names[i] = v.Column
		}
		var row []any
		if row = []any{all[0].View, strings.Join(names, ", ")}; a.json {
			row[1] = names
		}
		if err := out.row(row); err != nil {
			return ignoreClosed(err)
		}
		all = all[n:]
	}
	if t, table := out.(*tableRows); table {
		t.uncut = true
	}
	return ignoreClosed(out.end())
}

// rowWriter prints rows.
type rowWriter interface {
	columns([]string) error
	row([]any) error
	end() error
}

func (c historySQLCmd) writer(a *app) rowWriter {
	switch {
	case a.json:
		return &jsonRows{a: a}
	case c.CSV:
		return &csvRows{w: csv.NewWriter(a.stdout)}
	}
	return &tableRows{a: a}
}

// jsonRows prints an object a line.
type jsonRows struct {
	a     *app
	names []string
}

func (j *jsonRows) columns(names []string) error {
	seen := map[string]int{}
	for _, name := range names { // an object has a key once
		if seen[name]++; seen[name] > 1 {
			name = fmt.Sprintf("%s_%d", name, seen[name])
		}
		j.names = append(j.names, name)
	}
	return nil
}

func (j *jsonRows) row(values []any) error {
	o := make(ordered.Object, len(values))
	for i, v := range values {
		switch x := v.(type) {
		case []byte:
			v = hex.EncodeToString(x)
		case float64:
			if math.IsInf(x, 0) || math.IsNaN(x) {
				v = nil
			}
		}
		o[i] = ordered.Member{Key: j.names[i], Value: v}
	}
	return j.a.printLine(o)
}

func (j *jsonRows) end() error { return nil }

// csvRows prints CSV, NULL as nothing.
type csvRows struct{ w *csv.Writer }

func (c *csvRows) columns(names []string) error { return c.w.Write(names) }

func (c *csvRows) row(values []any) error {
	cells := make([]string, len(values))
	for i, v := range values {
		cells[i] = plainCell(v)
	}
	return c.w.Write(cells)
}

func (c *csvRows) end() error {
	c.w.Flush()
	return c.w.Error()
}

func plainCell(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case []byte:
		return hex.EncodeToString(v)
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	}
	return fmt.Sprint(v)
}

// tableRows prints a table, which is held until its widths are known.
type tableRows struct {
	a     *app
	rows  [][]string
	left  map[int]bool
	uncut bool
}

func (t *tableRows) columns(names []string) error {
	t.rows, t.left = [][]string{make([]string, len(names))}, map[int]bool{}
	for i, name := range names {
		t.rows[0][i] = report.Line(name)
	}
	return nil
}

func (t *tableRows) row(values []any) error {
	cells := make([]string, len(values))
	for i, v := range values {
		switch x := v.(type) {
		case nil:
			cells[i] = "–"
			continue
		case float64:
			cells[i] = strconv.FormatFloat(x, 'g', 6, 64)
			if x == math.Trunc(x) && math.Abs(x) < 1e15 {
				cells[i] = strconv.FormatFloat(x, 'f', -1, 64)
			}
			continue
		case int64:
		default:
			t.left[i] = true
		}
		// Before it is cleaned, so that a text of megabytes costs nothing.
		cells[i] = report.Line(cut(plainCell(v), 4*maxCell, ""))
	}
	t.rows = append(t.rows, cells)
	return nil
}

// cut returns a text's first characters, and a mark where there are more.
func cut(text string, characters int, mark string) string {
	if len(text) <= characters || utf8.RuneCountInString(text) <= characters {
		return text
	}
	n := 0
	for at := range text {
		if n++; n > characters {
			return text[:at] + mark
		}
	}
	return text
}

func (t *tableRows) end() error {
	if len(t.rows) == 1 {
		return t.a.printf("no rows\n")
	}
	for _, row := range t.rows[1:] {
		for i := range row {
			if !t.uncut {
				row[i] = cut(row[i], maxCell, "…")
			}
		}
	}
	return report.Columns(t.a.stdout, t.rows, t.left)
}
