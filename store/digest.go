package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"encoding/binary"
	"fmt"
	"hash"
	"math"
	"slices"
	"strings"
	"sync"

	"modernc.org/sqlite"
)

// digestBytes is how much of a SHA-256 a row carries: enough against chance, for
// rows of twenty bytes. Who means to deceive can make a digest anew.
const digestBytes = 8

// digestColumn is the column with the digest of a row's others.
const digestColumn = "row_digest"

func init() {
	// The arguments are looked at and not kept: hence volatile. Others end at a NUL.
	sqlite.MustRegisterFunction("digest_of", &sqlite.FunctionImpl{
		NArgs: -1, Deterministic: true, VolatileArgs: true,
		Scalar: func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
			h := sha256.New()
			for _, v := range args {
				if err := digestValue(h, v); err != nil {
					return nil, err
				}
			}
			return h.Sum(nil)[:digestBytes], nil
		},
	})
}

// digestValue adds a value, told from every other one by type and length.
func digestValue(h hash.Hash, v driver.Value) error {
	number := func(kind byte, n uint64) { h.Write(binary.LittleEndian.AppendUint64([]byte{kind}, n)) }
	switch v := v.(type) {
	case nil:
		h.Write([]byte{'n'})
	case int64:
		number('i', uint64(v)) //nolint:gosec // as bits
	case float64:
		number('r', math.Float64bits(v+0)) // -0 comes back from the file as 0
	case string:
		number('t', uint64(len(v)))
		h.Write([]byte(v))
	case []byte:
		number('b', uint64(len(v)))
		h.Write(v)
	default:
		return fmt.Errorf("a digest over a %T", v)
	}
	return nil
}

// digests is the first version whose rows carry digests.
var digests = versions{since: 10}

// Unchecked is something whose change would not be noticed.
type Unchecked struct {
	What string `json:"what"` // a table, or one of its columns as table.column
	Why  string `json:"why"`
}

// unchecked is what has no digest and is held to nothing else. A * at the
// end of a name stands for all that begin so.
var unchecked = []Unchecked{
	{"texts_fts_*", "the search index: a search may find less or more, and no number comes from it"},
	{"texts_words", "the search index's words: as above"},
	{"cache.id", "nothing refers to it"},
	{"events", "what listeners are told of the record, which has it all itself"},
	{"sqlite_sequence", "the next number of a run, a bench or a turn: one that is taken is never given out again"},
}

// digested returns the columns that a table's digests are made of, and whether
// it has any.
func digested(ctx context.Context, db querier, table string) ([]string, bool, error) {
	columns, err := scanNames(db.QueryContext(ctx, `SELECT name FROM pragma_table_info(?)`, table))
	if err != nil {
		return nil, false, err
	}
	has := slices.Contains(columns, digestColumn)
	columns = slices.DeleteFunc(columns, func(name string) bool {
		return name == digestColumn || slices.ContainsFunc(unchecked, func(u Unchecked) bool { return u.What == table+"."+name })
	})
	return columns, has, nil
}

// asRecorded is a condition that a row meets which its digest fits.
func asRecorded(columns []string) string {
	return digestColumn + ` IS digest_of(` + strings.Join(columns, ", ") + `)`
}

// DigestTriggers returns what has a connection keep the digests of the rows that
// it writes: for who records in bulk. The triggers are the connection's, not the
// file's: what else writes to the file leaves no digest that fits, and a file
// whose schema is small is easier to salvage. A cached value may be large, and
// is written with its digest at once.
func DigestTriggers(ctx context.Context, db *sql.DB) (string, error) {
	tables, err := scanNames(db.QueryContext(ctx, `SELECT t.name FROM pragma_table_list t JOIN pragma_table_info(t.name) c WHERE t.schema = 'main' AND t.type = 'table' AND c.name = '`+digestColumn+`' AND t.name <> 'cache'`))
	if err != nil {
		return "", err
	}
	var all strings.Builder
	for _, table := range tables {
		columns, _, err := digested(ctx, db, table)
		if err != nil {
			return "", err
		}
		key, err := scanNames(db.QueryContext(ctx, `SELECT name FROM pragma_table_info(?) WHERE pk > 0 ORDER BY pk`, table))
		if err != nil {
			return "", err
		}
		this := make([]string, len(key))
		for i, name := range key {
			this[i] = name + ` = NEW.` + name
		}
		digest := `UPDATE ` + table + ` SET ` + digestColumn + ` = digest_of(NEW.` + strings.Join(columns, `, NEW.`) + `) WHERE ` + strings.Join(this, ` AND `)
		fmt.Fprintf(&all, "CREATE TEMP TRIGGER %[1]s_added AFTER INSERT ON main.%[1]s BEGIN %[2]s; END;\nCREATE TEMP TRIGGER %[1]s_changed AFTER UPDATE OF %[3]s ON main.%[1]s BEGIN %[2]s; END;\n",
			table, digest, strings.Join(columns, ", "))
	}
	return all.String(), nil
}

// checkDigests holds every row to its digest.
func (e *Examination) checkDigests(ctx context.Context, db *examined, progress func(string)) {
	var changed Fault
	for _, t := range tables {
		if !t.has(e.Version) {
			continue
		}
		columns, has, err := digested(ctx, db, t.name)
		if err != nil || !has {
			e.unreadable(ctx, "table "+t.name, err)
			continue
		}
		progress("digests of " + t.name)
		key, err := scanNames(db.QueryContext(ctx, `SELECT name FROM pragma_table_info(?) WHERE pk > 0 ORDER BY pk`, t.name))
		if err != nil {
			e.unreadable(ctx, "table "+t.name, err)
			continue
		}
		where := make([]string, len(key))
		for i, name := range key {
			where[i] = `'` + name + ` ' || coalesce(` + name + `, '?')`
		}
		found, err := db.strings(ctx, `SELECT '`+t.name+`, ' || replace(`+strings.Join(where, ` || ', ' || `)+`, char(10), ' ') FROM `+t.name+` WHERE NOT (`+asRecorded(columns)+`)`)
		changed.Count += int64(len(found))
		changed.Examples = append(changed.Examples, found[:min(len(found), maxExamples-min(len(changed.Examples), maxExamples))]...)
		e.unreadable(ctx, "digests of "+t.name, err)
	}
	if changed.Count > 0 {
		changed.What = "rows are not as they were recorded"
		e.Faults = append(e.Faults, changed)
	}
	var made sql.NullInt64
	e.unreadable(ctx, "when digests were made", db.QueryRowContext(ctx, `SELECT max(made) FROM digests`).Scan(&made))
	e.DigestsMS = made.Int64
}

// checkSchema holds tables and indexes to those that a new database of
// the version has. The search index's own are SQLite's.
func (e *Examination) checkSchema(ctx context.Context, db *examined) {
	all, err := schemas()
	if err != nil {
		e.unreadable(ctx, "the schema", err)
		return
	}
	want := all[e.Version]
	have, err := schemaOf(ctx, db)
	e.unreadable(ctx, "the schema", err)
	var other []string
	for name, text := range want {
		if have[name] != text && err == nil {
			other = append(other, name)
		}
	}
	for name := range have {
		if _, known := want[name]; !known {
			other = append(other, name)
		}
	}
	if slices.Sort(other); len(other) > 0 {
		e.add("tables or indexes are not those of this version", other...)
	}
}

// schemas returns the schema of each version, from 0 on.
var schemas = sync.OnceValues(func() ([]map[string]string, error) {
	steps, err := migrations()
	if err != nil {
		return nil, err
	}
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return nil, err
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	all := []map[string]string{{}}
	for _, step := range steps {
		if _, err := db.Exec(step); err != nil {
			return nil, err
		}
		schema, err := schemaOf(context.Background(), db)
		if err != nil {
			return nil, err
		}
		all = append(all, schema)
	}
	return all, nil
})

func schemaOf(ctx context.Context, db querier) (map[string]string, error) {
	rows, err := db.QueryContext(ctx, `SELECT type || ' ' || name, tbl_name || ' ' || sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'texts\_fts\_%' ESCAPE '\' AND name NOT LIKE 'sqlite\_%' ESCAPE '\'`)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	_, err = scanAll(rows, func(r *sql.Rows) (_ struct{}, err error) {
		var name, text string
		err = r.Scan(&name, &text)
		all[name] = strings.Join(strings.Fields(text), " ")
		return struct{}{}, err
	})
	return all, err
}
