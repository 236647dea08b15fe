package store

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
)

// Examination is what Examine found.
type Examination struct {
	Path    string           `json:"path"`
	Version int              `json:"version"` // of the schema
	Rows    map[string]int64 `json:"rows"`    // by table; -1 where they cannot be counted
	Faults  []Fault          `json:"faults"`
	// Unchecked is what may be changed in the file without being noticed.
	Unchecked []Unchecked `json:"unchecked"`
	// DigestsMS is when rows from before got their digests, in Unix milliseconds:
	// what was changed in them earlier is not noticed. 0: there were none.
	DigestsMS int64 `json:"digests_made_at" time:"ms"`
}

// Fault is one kind of thing that is wrong.
type Fault struct {
	What     string   `json:"what"`
	Count    int64    `json:"count"`
	Examples []string `json:"examples"` // at most maxExamples
}

const maxExamples = 5

// Sound reports whether nothing is wrong.
func (e Examination) Sound() bool { return len(e.Faults) == 0 }

func (e *Examination) add(what string, examples ...string) {
	e.Faults = append(e.Faults, Fault{What: what, Count: int64(len(examples)), Examples: examples[:min(len(examples), maxExamples)]})
}

// tables is what Examine counts and Salvage copies, in the order in which they
// refer to each other. Key is the integer column that their rows are found by;
// empty where that is a text, or where they matter little. What follows from others is
// made anew.
var tables = []struct {
	name, key string
	versions
	follows bool
}{
	{name: "facets", key: "id", versions: facets}, {name: "texts", key: "id"}, {name: "tasks"}, {name: "devices"}, {name: "fences"}, {name: "runs", key: "id"}, {name: "verdicts", key: "id"},
	{name: "rounds", key: "run"}, {name: "feedback", key: "run"}, {name: "certificates", key: "run"}, {name: "metric_names"}, {name: "metrics", key: "run"},
	{name: "messages", key: "run", versions: messages}, {name: "cache"}, {name: "files"}, {name: "queue"}, {name: "baselines", versions: baselines},
	{name: "turns", key: "id", versions: calls}, {name: "calls", key: "id", versions: calls}, {name: "charges", key: "id", versions: calls},
	{name: "benches", key: "id", versions: benches}, {name: "bench_runs", key: "bench", versions: benches}, {name: "lessons", key: "run", versions: lessons},
	{name: "audits", key: "id", versions: audits}, {name: "audit_pairs", key: "audit", versions: audits},
	{name: "digests", versions: digests}, {name: "episodes", key: "run", versions: episodes}, {name: "samples", key: "run", versions: episodes},
	{name: "task_sets", key: "id", versions: taskSets}, {name: "task_draws", key: "set_id", versions: taskSets}, {name: "task_gates", versions: taskSets},
	{name: "nights", key: "id", versions: nights},
	{name: "policies", key: "version", versions: policies}, {name: "promotions", key: "id", versions: policies},
	{name: "gates", key: "id", versions: gates}, {name: "gate_tasks", key: "gate", versions: gates}, {name: "gate_outcomes", key: "gate", versions: gates},
	{name: "pipelines", key: "id", versions: stages}, {name: "stages", key: "pipeline", versions: stages},
	{name: "holds", key: "run", versions: holds},
	{name: "prunings", key: "text", versions: prunings},
	{name: "run_facets", versions: facets, follows: true}, {name: "charge_days", versions: facets, follows: true}, {name: "charge_runs", versions: facets, follows: true},
	{name: "charge_tasks", versions: taskSums, follows: true},
}

// versions is which versions of the schema have something: from one up to, but
// without, another; 0 is no bound.
type versions struct{ since, until int }

func (v versions) has(version int) bool {
	return version >= v.since && (v.until == 0 || version < v.until)
}

// What not every version has.
var (
	baselines = versions{since: 4}
	messages  = versions{until: 5}
	calls     = versions{since: 5}
	benches   = versions{since: 6}
	lessons   = versions{since: 7}
	audits    = versions{since: 13}
	episodes  = versions{since: 12}
	taskSets  = versions{since: 11}
	nights    = versions{since: 15}
	policies  = versions{since: 16}
	gates     = versions{since: 17}
	stages    = versions{since: 18}
	holds     = versions{since: 19}
	prunings  = versions{since: 20}
	facets    = versions{since: 21} // and sums of charges
	taskSums  = versions{since: 23}
	wordList  = versions{since: 24}
)

// expectations are queries that find nothing in a sound history. Each returns
// one text a row, which says where.
var expectations = []struct {
	what, query string
	versions
}{
	{what: "texts are missing from the search index", query: `SELECT 'text ' || id FROM texts WHERE indexed AND id NOT IN (SELECT id FROM texts_fts_docsize) OR indexed NOT IN (0, 1)`},
	{what: "entries of the search index have no text", query: `SELECT 'text ' || id FROM texts_fts_docsize WHERE id NOT IN (SELECT id FROM texts WHERE indexed)`},
	{what: "texts are pruned and there", query: `SELECT 'text ' || text FROM prunings JOIN texts ON id = text WHERE length(body) > 0`, versions: prunings},
	{what: "runs lack a round between two others", query: `SELECT 'run ' || run FROM rounds WHERE run NOT IN (SELECT id FROM runs WHERE reason LIKE '` + salvaged + `%')
		GROUP BY run HAVING min(idx) <> 0 OR max(idx) <> count(*) - 1`},
	{what: "rounds name another task or device than their run", query: `SELECT 'round ' || r.idx || ' of run ' || r.run FROM rounds r JOIN runs ON runs.id = r.run
		WHERE r.task <> runs.task OR r.device_key <> runs.device_key`},
	{what: "runs name a best round that is not their best", query: `SELECT 'run ' || id FROM runs WHERE best IS NOT ` + bestOfRun},
	{what: "rounds do not stand as their verdicts say", query: `SELECT 'round ' || r.idx || ' of run ' || r.run FROM rounds r JOIN verdicts v ON v.id = r.verdict
		LEFT JOIN certificates ce ON ce.run = r.run AND ce.idx = r.idx LEFT JOIN verdicts c ON c.id = ce.verdict WHERE r.standing <> ` + standingByVerdict},
	{what: "certified kernels have no file or another one than they name", query: `SELECT 'round ' || ce.idx || ' of run ' || ce.run FROM certificates ce JOIN verdicts v ON v.id = ce.verdict
		LEFT JOIN texts t ON t.id = v.exported WHERE ce.sha256 <> '' AND ce.sha256 IS NOT lower(hex(t.hash))`},
	{what: "runs wait for a turn that they do not have", query: `SELECT 'run ' || id FROM runs WHERE status = 'queued' AND id NOT IN (SELECT run FROM queue)`},
	{what: "runs have a turn although they ended", query: `SELECT 'run ' || runs.id FROM queue JOIN runs ON runs.id = queue.run WHERE runs.status NOT IN ('queued', 'running')`},
	{what: "runs are held back that are not in the queue", query: `SELECT 'run ' || run FROM holds WHERE run <> 0 AND run NOT IN (SELECT run FROM queue)`, versions: holds},
	{what: "turns of a talk go on from later ones", query: `SELECT 'turn ' || id FROM turns WHERE before >= id`, versions: calls},
	{what: "calls follow later ones", query: `SELECT 'call ' || id FROM calls WHERE follows >= id`, versions: calls},
	{what: "episodes are done without a reward, or have one that they cannot have", query: `SELECT 'episode ' || run FROM episodes
		WHERE (status = 'done') <> (reward IS NOT NULL) OR (status = 'done') <> (place IS NOT NULL) OR reward NOT IN (-1, 1, 2, 3)`, versions: episodes},
	{what: "samples are of episodes that are not done", query: `SELECT 'call ' || idx || ' of episode ' || run FROM samples WHERE run NOT IN (SELECT run FROM episodes WHERE status = 'done')`, versions: episodes},
	{what: "samples are of calls that are not there", query: `SELECT 'call ' || idx || ' of episode ' || s.run FROM samples s
		WHERE NOT EXISTS (SELECT 1 FROM calls c WHERE c.run = s.run AND c.round = s.round AND c.seq = s.seq AND c.agent = 'coder' AND c.text IS NOT NULL)
		AND s.run NOT IN (SELECT id FROM runs WHERE reason LIKE '` + salvaged + `%')`, versions: episodes},
	{what: "nights are over without a reason, or have one and are not", query: `SELECT 'night ' || id FROM nights WHERE (ended = 0) <> (stop = '')`, versions: nights},
	{what: "a policy serves that was removed", query: `SELECT 'v' || version FROM policies WHERE removed <> 0
		AND version = (SELECT policy FROM promotions ORDER BY id DESC LIMIT 1)`, versions: policies},
	{what: "gates are decided without their numbers, or have them without a decision", query: `SELECT 'gate ' || id FROM gates
		WHERE decision NOT IN ('', 'promoted', 'refused') OR (decision <> '') <> (decided > 0) OR (decision <> '') <> (detail IS NOT NULL)`, versions: gates},
	{what: "tasks of gates served another one", query: `SELECT 'task ' || t.place || ' of gate ' || t.gate FROM gate_tasks t JOIN gates g ON g.id = t.gate
		JOIN task_gates s ON s.fingerprint = t.fingerprint WHERE s.gate <> g.name`, versions: gates},
	{what: "outcomes of gates have a reward that they cannot have", query: `SELECT player || ', sample ' || sample || ' of task ' || place || ' of gate ' || gate FROM gate_outcomes
		WHERE reward NOT IN (-1, 1, 2, 3) OR (reward > 0) <> correct`, versions: gates},
	{what: "stages are finished without what they left, or have left it and are not", query: `SELECT 'stage ' || stage || ' of pipeline ' || pipeline FROM stages
		WHERE (status IN ('done', 'skipped')) <> (outputs IS NOT NULL) OR (status = 'running') <> (ended = 0)`, versions: stages},
	{what: "lessons are of runs without a certified kernel", query: `SELECT 'run ' || run FROM lessons WHERE run NOT IN (SELECT run FROM rounds WHERE standing = 2) GROUP BY run`, versions: lessons},
	{what: "changes are missing from the lessons", query: `SELECT 'round ' || r.idx || ' of run ' || r.run` + teaching + `
		AND NOT EXISTS (SELECT 1 FROM lessons l WHERE l.run = r.run AND l.idx = r.idx)`, versions: lessons},
	{what: "runs are not chosen by what they are", query: `SELECT 'run ' || run FROM (SELECT ` + facetColumns + ` FROM run_facets EXCEPT ` + facetRow + `)
		UNION SELECT 'run ' || id FROM runs WHERE id NOT IN (SELECT run FROM run_facets)`, versions: facets},
	{what: "sums of charges are not those of the charges", query: `SELECT 'day ' || c.day FROM charge_days c LEFT JOIN (` + chargeTotals + `GROUP BY 1, 2) t ON t.day = c.day AND t.model = c.model WHERE ` + otherTotals + `
		UNION SELECT 'day ' || day FROM (` + chargeTotals + ` AND ended < ` + summedUntil + ` GROUP BY 1, 2) t WHERE (day, model) NOT IN (SELECT day, model FROM charge_days)
		UNION SELECT 'run ' || c.run FROM charge_runs c LEFT JOIN (` + chargeTotals + `GROUP BY 1, 3) t ON t.day = c.day AND t.run = c.run WHERE ` + otherTotals + ` OR c.task_name IS NOT (SELECT task_name FROM runs WHERE id = c.run)
		UNION SELECT 'run ' || run FROM (` + chargeTotals + ` AND run IS NOT NULL AND ended < ` + summedUntil + ` GROUP BY 1, 3) t WHERE (day, run) NOT IN (SELECT day, run FROM charge_runs)`, versions: facets},
	{what: "sums of tasks are not those of their runs", query: `SELECT c.task_name FROM charge_tasks c LEFT JOIN (SELECT day, task_name, sum(calls) AS calls, sum(tokens_in) AS tokens_in, sum(tokens_out) AS tokens_out, sum(cost_usd) AS usd
			FROM charge_runs GROUP BY 1, 2) t ON t.day = c.day AND t.task_name = c.task_name WHERE ` + otherTotals + `
		UNION SELECT task_name FROM charge_runs WHERE (task_name, day) NOT IN (SELECT task_name, day FROM charge_tasks)`, versions: taskSums},
}

// Sums of charges t, and whether those c that are kept are others. Dollars may differ by
// the order in which they were added.
const (
	chargeTotals = `SELECT ended / 86400000 AS day, model, run, count(*) AS calls, sum(tokens_in) AS tokens_in, sum(tokens_out) AS tokens_out, coalesce(sum(cost_usd), 0) AS usd FROM charges WHERE 1 `
	otherTotals  = `(c.calls, c.tokens_in, c.tokens_out) IS NOT (t.calls, t.tokens_in, t.tokens_out) OR abs(c.cost_usd - t.usd) > 1e-9 * t.usd`
)

// standingByVerdict is a round's standing as AppendRound and SetCertificate
// set it, over its verdict v and its certificate's c.
const standingByVerdict = `CASE WHEN c.status = 'certified' THEN 2 WHEN c.status IS NOT NULL THEN 0
	WHEN v.status IN ('correct', 'certified') AND v.candidate_ms > 0 THEN 1 ELSE 0 END`

// Examine reads every byte of the database at path and holds it against what it
// says of itself. It changes nothing, and works beside a daemon. Whatever can
// be read is examined even where the rest is damaged; an error says that
// nothing could be: *DamagedError or *NewerError, or why the file cannot be
// opened. Progress is told what is being read.
func Examine(ctx context.Context, path string, progress func(string)) (Examination, error) {
	e := Examination{Path: path, Rows: map[string]int64{}, Faults: []Fault{}, Unchecked: unchecked}
	db, version, err := openToExamine(ctx, path)
	if err != nil {
		return e, err
	}
	defer db.close()
	e.Path, e.Version = db.path, version

	progress("the file")
	readAhead(ctx, db.path)
	progress("pages and indexes")
	found, err := db.strings(ctx, `PRAGMA integrity_check(20)`)
	if found = slices.DeleteFunc(found, func(s string) bool { return s == "ok" || strings.HasPrefix(s, "***") }); len(found) > 0 {
		e.add("pages or indexes are damaged", found...)
	}
	e.unreadable(ctx, "the pages", err)
	progress("references")
	found, err = db.strings(ctx, `SELECT "table" || ' row ' || coalesce(rowid, '?') || ' refers to ' || parent FROM pragma_foreign_key_check`)
	if len(found) > 0 {
		e.add("rows refer to rows that are not there", found...)
	}
	e.unreadable(ctx, "references", err)
	for _, t := range tables {
		if !t.has(version) {
			continue
		}
		var n int64
		if err := db.QueryRowContext(ctx, `SELECT count(*) FROM `+t.name).Scan(&n); err != nil {
			e.unreadable(ctx, "table "+t.name, err)
			n = -1
		}
		e.Rows[t.name] = n
	}
	for _, x := range expectations {
		if !x.has(version) {
			continue
		}
		progress("whether " + x.what)
		found, err := db.strings(ctx, x.query)
		if len(found) > 0 {
			e.add(x.what, found...)
		}
		e.unreadable(ctx, "whether "+x.what, err)
	}
	if digests.has(version) {
		e.checkDigests(ctx, db, progress)
	} else {
		e.Unchecked = append([]Unchecked{{"the columns of every table but texts", fmt.Sprintf("rows of schema version %d carry no digests; the next command that opens the record makes them", version)}}, unchecked...)
	}
	e.checkSchema(ctx, db)
	if err := e.readTexts(ctx, db, progress); err != nil {
		return e, err
	}
	return e, ctx.Err()
}

// readAhead has the system keep the file in memory where half of what is free
// holds it: an examination comes to every page, in an order in which a disk is
// slow. What goes wrong will be met again.
func readAhead(ctx context.Context, path string) {
	f, err := os.Open(path)
	if err != nil {
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() > availableMemory()/2 {
		return
	}
	for block := make([]byte, 8<<20); err == nil && ctx.Err() == nil; {
		_, err = f.Read(block)
	}
}

// availableMemory returns bytes, 0 where the system does not say.
func availableMemory() int64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, found := strings.CutPrefix(line, "MemAvailable:"); found {
			kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if err != nil {
				return 0
			}
			return kb << 10
		}
	}
	return 0
}

// unreadable notes that a question could not be answered. They share a fault.
func (e *Examination) unreadable(ctx context.Context, what string, err error) {
	const kind = "some of it cannot be read"
	if err == nil || ctx.Err() != nil {
		return
	}
	if n := len(e.Faults); n == 0 || e.Faults[n-1].What != kind {
		e.Faults = append(e.Faults, Fault{What: kind})
	}
	last := &e.Faults[len(e.Faults)-1]
	last.Count++
	last.Examples = append(last.Examples, what+": "+err.Error())
}

// readTexts holds every text against its hash.
func (e *Examination) readTexts(ctx context.Context, db *examined, progress func(string)) error {
	var bad []string
	n, told := 0, time.Now()
	gone, err := prunedTexts(ctx, db.DB, e.Version)
	e.unreadable(ctx, "which texts were pruned", err)
	lost, err := ranges(ctx, db.DB, "texts", "id", `id, hash, size, body`, func(rows *sql.Rows) error {
		var id, size int64
		var hash, body []byte
		err := rows.Scan(&id, &hash, &size, &body) // a damaged row's may be of other types
		if recorded := gone[id] && len(body) == 0 && len(hash) == sha256.Size; err == nil && !recorded {
			err = db.whole(hash, size, body)
		}
		if err != nil {
			bad = append(bad, fmt.Sprintf("text %d: %v", id, err))
		}
		if n++; time.Since(told) > time.Second {
			progress(fmt.Sprintf("texts: %d of %d", n, e.Rows["texts"]))
			told = time.Now()
		}
		return nil
	})
	if len(bad) > 0 {
		e.add("texts are damaged", bad...)
	}
	if lost > 0 {
		e.Faults = append(e.Faults, Fault{What: "texts are on pages that cannot be read", Count: lost, Examples: []string{}})
	}
	return err
}

// prunedTexts returns which texts were pruned, as rows say that fit their digests.
func prunedTexts(ctx context.Context, db querier, version int) (map[int64]bool, error) {
	gone := map[int64]bool{}
	if !prunings.has(version) {
		return gone, nil
	}
	rows, err := db.QueryContext(ctx, `SELECT text FROM prunings WHERE `+asRecorded([]string{"text", "bytes", "at"}))
	if err != nil {
		return gone, err
	}
	ids, err := scanAll(rows, func(r *sql.Rows) (id int64, err error) { return id, r.Scan(&id) })
	for _, id := range ids {
		gone[id] = true
	}
	return gone, err
}

// examined is a database opened in a way that never changes it.
type examined struct {
	*sql.DB
	path string
	dec  *zstd.Decoder
}

// close has nothing to tell: nothing was written.
func (x *examined) close() {
	x.dec.Close()
	_ = x.Close()
}

func openToExamine(ctx context.Context, path string) (*examined, int, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, 0, err
	}
	steps, err := migrations()
	if err != nil {
		return nil, 0, err
	}
	// Even a log that SQLite would recover is only read, and never folded in.
	mode := "mode=ro&" + probePragmas
	if writable(filepath.Dir(path)) != nil {
		mode = frozen
	}
	version, err := probe(ctx, path, len(steps), mode, false)
	if err != nil {
		return nil, 0, err
	}
	db, err := sql.Open("sqlite", dsn(path, mode))
	if err != nil {
		return nil, 0, err
	}
	db.SetMaxOpenConns(1)
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxTextBytes))
	if err != nil {
		return nil, 0, errors.Join(err, db.Close())
	}
	return &examined{db, path, dec}, version, nil
}

// strings returns the first column, up to where it can be read.
func (x *examined) strings(ctx context.Context, query string) ([]string, error) {
	rows, err := x.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return all, err
		}
		all = append(all, strings.Split(s, "\n")...) // an integrity check has several in one
	}
	return all, rows.Err()
}

// whole says what is wrong with a text, or nil.
func (x *examined) whole(hash []byte, size int64, body []byte) error {
	text, err := x.dec.DecodeAll(body, nil)
	switch {
	case err != nil:
		return err
	case len(hash) != sha256.Size || sha256.Sum256(text) != [sha256.Size]byte(hash):
		return errors.New("its content does not match its hash")
	case int64(len(text)) != size:
		return errors.New("its content does not have its size")
	}
	return nil
}

// rangeSize is how many keys are read at once: one damaged page costs so many
// single questions at most.
const rangeSize = 1024

// fruitless is how many questions in a row may bring no row before what follows
// is given up: a damaged key may be any number, and a damaged inner page hides
// all that is below it.
const fruitless = 1 << 17

// ranges reads the rows of a table by integer key, around what is damaged:
// upwards, and where that ends in nothing but damage, downwards. See may be
// called twice with the same row. It returns how many keys were asked for in
// vain. Errors are see's, or the context's.
func ranges(ctx context.Context, db *sql.DB, table, key, columns string, see func(*sql.Rows) error) (lost int64, err error) {
	last := min(max(lastKey(ctx, db, table, key), 0), math.MaxInt64-1)
	var seeErr error
	asked, rowless := 0, false // questions since a row came, and whether the last one brought none
	gaveUp := errors.New("nothing but damage")
	// Read once: to ask takes less than to have the question read.
	question, unread := db.PrepareContext(ctx, `SELECT `+columns+` FROM `+table+` WHERE `+key+` >= ? AND `+key+` < ?`)
	if unread == nil {
		defer question.Close() //nolint:errcheck // only read
	}
	read := func(low, high int64) error {
		asked++
		rowless = true
		if unread != nil {
			return unread
		}
		rows, err := question.QueryContext(ctx, low, high)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			asked, rowless = 0, false
			if seeErr = see(rows); seeErr != nil {
				return seeErr
			}
		}
		return rows.Err()
	}
	var around func(low, high int64, down bool) error
	around = func(low, high int64, down bool) error {
		err := read(low, high)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case seeErr != nil:
			return seeErr
		case high-low == 1:
			lost++
			if asked > fruitless {
				return gaveUp
			}
			return nil
		}
		middle := low + (high-low)/2
		halves := [][2]int64{{low, middle}, {middle, high}}
		if down {
			slices.Reverse(halves)
		}
		for _, half := range halves {
			if err := around(half[0], half[1], down); err != nil {
				return err
			}
		}
		return nil
	}
	size := int64(rangeSize)
	next := func() {
		if !rowless {
			size = rangeSize
		} else if size < math.MaxInt64/4 {
			size *= 2 // a gap costs little
		}
	}
	low := int64(0)
	for low <= last && err == nil {
		high := last + 1
		if last-low >= size {
			high = low + size
		}
		if err = around(low, high, false); err == nil {
			low = high
			next()
		}
	}
	if errors.Is(err, gaveUp) { // as far as that, but not what lies above
		asked, size, err = 0, rangeSize, nil
		for high := last + 1; high > low && err == nil; next() {
			below := low
			if high-low > size {
				below = high - size
			}
			err = around(below, high, true)
			high = below
		}
		if errors.Is(err, gaveUp) {
			err = nil
		}
	}
	return lost, cmp.Or(err, ctx.Err())
}

// lastKey returns a key that none in the table exceeds. Where the end of the
// table is damaged, one that refers to it knows.
func lastKey(ctx context.Context, db *sql.DB, table, key string) int64 {
	others := map[string][]string{
		"texts":    {"SELECT max(id) FROM texts_fts_docsize", "SELECT max(text) FROM verdicts"},
		"verdicts": {"SELECT max(verdict) FROM rounds"},
	}[table]
	if key == "run" || table == "runs" {
		others = []string{"SELECT max(id) FROM runs", "SELECT seq FROM sqlite_sequence WHERE name = 'runs'", "SELECT max(run) FROM rounds"}
	}
	for _, query := range append([]string{`SELECT max(` + key + `) FROM ` + table}, others...) {
		var last sql.NullInt64
		if db.QueryRowContext(ctx, query).Scan(&last) == nil {
			return last.Int64
		}
	}
	return 1 << 16 // where nothing is known: each key that is not there costs a question
}
