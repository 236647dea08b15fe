package store

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// opened is everything, open.
func opened(t *testing.T) *Store {
	t.Helper()
	s := must(Open(everything(t, 1)))(t)
	t.Cleanup(func() { ok(t, s.Close()) })
	return s
}

// ask returns the rows of a query as text.
func ask(t *testing.T, s *Store, query string, b Bounds) (names []string, rows [][]any, more bool, err error) {
	t.Helper()
	more, err = s.Select(t.Context(), query, b, func(n []string) error { names = n; return nil }, func(row []any) error {
		rows = append(rows, slices.Clone(row))
		return nil
	})
	return names, rows, more, err
}

func TestSelectReadsViews(t *testing.T) {
	s := opened(t)
	names, rows, more, err := ask(t, s, "SELECT run, standing, speedup, source FROM rounds -- ; no more\nORDER BY round;", Bounds{})
	if err != nil || more || !slices.Equal(names, []string{"run", "standing", "speedup", "source"}) {
		t.Fatal(names, more, err)
	}
	if len(rows) == 0 || rows[0][0] != int64(2) || !strings.Contains(rows[0][3].(string), "class ModelNew") {
		t.Errorf("%v", rows)
	}
	if _, rows, more, err = ask(t, s, "SELECT * FROM rounds, metrics", Bounds{Rows: 1}); err != nil || len(rows) != 1 || !more {
		t.Errorf("%d rows, more %v, %v", len(rows), more, err)
	}
	if _, rows, _, err = ask(t, s, "SELECT created, finished FROM runs", Bounds{}); err != nil || !regexp.MustCompile(`^\d{4}-\d\d-\d\dT[\d:]{8}\.\d{3}Z$`).MatchString(rows[0][0].(string)) || rows[0][1] != nil {
		t.Errorf("%v %v", rows, err)
	}
	views, err := s.Views(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range views { // each column can be read, and each view has rows
		_, rows, _, err := ask(t, s, "SELECT "+v.Column+" FROM "+v.View, Bounds{})
		if err != nil || len(rows) == 0 {
			t.Errorf("%v: %d rows, %v", v, len(rows), err)
		}
	}
}

// Whatever a query says, nothing is written: not to the record, not beside it.
func TestSelectWritesNothing(t *testing.T) {
	s := opened(t)
	beside := filepath.Join(t.TempDir(), "beside.db")
	for _, query := range []string{
		"DELETE FROM main.runs", "WITH x AS (SELECT 1) DELETE FROM main.runs", "SELECT 1; DELETE FROM main.runs", "SELECT ';'; DROP TABLE main.runs",
		"/* SELECT */ DELETE FROM main.runs", "PRAGMA query_only = 0", "SELECT 1; PRAGMA query_only = 0; DELETE FROM main.runs",
		"ATTACH '" + beside + "' AS o", "SELECT 1; ATTACH '" + beside + "' AS o", "VACUUM INTO '" + beside + "'", "SELECT load_extension('/x')",
		"INSERT INTO main.texts_fts (texts_fts) VALUES ('rebuild')", "CREATE TEMP TABLE x (y)", "", " -- nothing", "SELECT 1 /* ; */ ; SELECT 2",
		"SELECT writefile('" + beside + "', 'x')", "SELECT \"; DELETE", "SELECT 1\x00", "WITH d AS (SELECT 1) INSERT INTO main.fences VALUES ('a', 1, NULL)",
		"SELECT * FROM pragma_query_only(0)", "SELECT [;] DELETE FROM main.runs", "EXPLAIN DELETE FROM main.runs; DELETE FROM main.runs", strings.Repeat("SELECT 1 ", maxStatement),
	} {
		_, _, _, err := ask(t, s, query, Bounds{Time: time.Minute})
		var notRead *NotReadError
		var wrong *QueryError
		if !errors.As(err, &notRead) && !errors.As(err, &wrong) {
			t.Errorf("%.60q: %v", query, err)
		}
	}
	// Past the reader of statements, SQLite itself refuses.
	conn, done, err := s.onlyReading(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	for _, statement := range []string{"ATTACH '" + beside + "' AS o", "VACUUM INTO '" + beside + "'", "DELETE FROM main.runs", "PRAGMA query_only = 0; DELETE FROM main.runs"} {
		if _, err := conn.ExecContext(t.Context(), statement); err == nil {
			t.Errorf("%q was done", statement)
		}
	}
	if _, err := os.Stat(beside); !os.IsNotExist(err) {
		t.Errorf("%s: %v", beside, err)
	}
	if e, err := Examine(t.Context(), s.Path(), func(string) {}); err != nil || !e.Sound() || e.Rows["runs"] == 0 {
		t.Errorf("%+v %v", e, err)
	}
}

func TestSelectIsBounded(t *testing.T) {
	s := opened(t)
	_, _, _, err := ask(t, s, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n", Bounds{Time: 50 * time.Millisecond})
	var late *TimeLimitError
	if !errors.As(err, &late) {
		t.Errorf("an endless query: %v", err)
	}
	for _, query := range []string{"SELECT zeroblob(1 << 30)", "SELECT no FROM runs", `SELECT run FROM runs WHERE task_name = "softmax"`, "SELECT json_extract('{', '$')"} {
		_, _, _, err := ask(t, s, query, Bounds{})
		var wrong *QueryError
		if !errors.As(err, &wrong) || regexp.MustCompile(`\(\d+\)$`).MatchString(err.Error()) {
			t.Errorf("%s: %v", query, err)
		}
	}
}

// docs/history-sql.md has every column of every view, and no others.
func TestViewsAreDescribed(t *testing.T) {
	s := openTest(t)
	have, err := s.Views(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join("..", "docs", "history-sql.md"))
	if err != nil {
		t.Fatal(err)
	}
	var described []ViewColumn
	view := ""
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "## "); ok {
			view = strings.TrimSpace(name)
		}
		if cells := strings.Split(line, "|"); len(cells) > 2 {
			for _, m := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(cells[1], -1) {
				described = append(described, ViewColumn{view, m[1]})
			}
		}
	}
	order := func(a, b ViewColumn) int { return strings.Compare(a.View+"."+a.Column, b.View+"."+b.Column) }
	slices.SortFunc(have, order)
	slices.SortFunc(described, order)
	for _, v := range have {
		if !slices.Contains(described, v) {
			t.Errorf("%s.%s is not described", v.View, v.Column)
		}
	}
	for _, v := range described {
		if !slices.Contains(have, v) {
			t.Errorf("%s.%s is described and not there", v.View, v.Column)
		}
	}
}
