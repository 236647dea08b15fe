package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
)

// Salvaged says what Salvage brought over, by table.
type Salvaged struct {
	Path string           `json:"path"`
	Kept map[string]int64 `json:"kept"`
	// Lost is rows that could not be read, or that are nothing without one that
	// could not be. Where whole pages are damaged it counts the keys that were
	// asked for in vain.
	Lost map[string]int64 `json:"lost"`
	// Cut lists runs that were not at their end and lost a round in between:
	// they go on from the round before it.
	Cut []int64 `json:"cut"`
}

// Salvage copies whatever can be read of the database at from into a new file
// at to, which is then sound: a run that lacks something says so. It changes
// nothing at from. A file at to is an error; its folder is made.
func Salvage(ctx context.Context, from, to string, progress func(string)) (Salvaged, error) {
	to, err := filepath.Abs(to)
	if err != nil {
		return Salvaged{}, err
	}
	if _, err := os.Lstat(to); err == nil {
		return Salvaged{}, fmt.Errorf("%s is there already: name a file that is not", to)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return Salvaged{}, err
	}
	from, drop, err := lengthened(from, filepath.Dir(to))
	if err != nil {
		return Salvaged{}, err
	}
	defer drop()
	src, version, err := openToExamine(ctx, from)
	if err != nil {
		return Salvaged{}, err
	}
	defer src.close()
	steps, err := migrations()
	if err != nil {
		return Salvaged{}, err
	}
	// With the schema that the rows are of; the next one to open it migrates.
	dst, err := open(ctx, to, steps[:version], true)
	if err != nil {
		return Salvaged{}, err
	}
	s := salvage{src: src, version: version, dst: dst, out: Salvaged{Path: to, Kept: map[string]int64{}, Lost: map[string]int64{}, Cut: []int64{}}}
	if err = errors.Join(s.run(ctx, progress), dst.Close()); err == nil {
		err = flush(to)
	}
	if err != nil {
		for _, suffix := range []string{"", "-wal", "-shm"} {
			_ = os.Remove(to + suffix) // half a copy is none
		}
		return Salvaged{}, err
	}
	return s.out, nil
}

// lengthened returns the path of a copy, below dir, of a file that was cut
// short: SQLite reads one only at its full length, the end of which is then a
// hole. Any other file stays where it is. Drop removes the copy.
func lengthened(path, dir string) (_ string, drop func(), err error) {
	drop = func() {}
	f, err := os.Open(path)
	if err != nil {
		return "", drop, err
	}
	defer f.Close()
	head := make([]byte, headerBytes)
	info, err := f.Stat()
	if err != nil {
		return "", drop, err
	}
	if _, err := f.ReadAt(head, 0); err != nil || !bytes.HasPrefix(head, magic) || info.Size() >= fileBytes(head) || logBytes(path) > 0 {
		return path, drop, nil // what is wrong with it is told when it is opened
	}
	temp, err := os.MkdirTemp(dir, ".salvage-")
	if err != nil {
		return "", drop, err
	}
	drop = func() { _ = os.RemoveAll(temp) } // what stays behind is only space
	copied, err := os.Create(filepath.Join(temp, FileName))
	if err == nil {
		_, err = io.Copy(copied, f)
		err = errors.Join(err, copied.Truncate(fileBytes(head)), copied.Close())
	}
	if err != nil {
		drop()
		return "", func() {}, err
	}
	return copied.Name(), drop, nil
}

// flush waits until a file is on the disk.
func flush(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

type salvage struct {
	src     *examined
	version int // of its schema, and of the copy's
	dst     *Store
	out     Salvaged
	gone    map[int64]bool // texts that were pruned
}

func (s *salvage) run(ctx context.Context, progress func(string)) error {
	// Where that cannot be read, texts without content count as lost.
	s.gone, _ = prunedTexts(ctx, s.src, s.version)
	// Nobody else knows the file, and half a copy is deleted: no log is needed.
	if _, err := s.dst.write.ExecContext(ctx, `PRAGMA foreign_keys = 0; PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF`); err != nil {
		return err
	}
	for _, t := range tables {
		if !t.has(s.version) || t.follows {
			continue
		}
		progress("copying " + t.name)
		if err := s.copyTable(ctx, t.name, t.key); err != nil {
			return fmt.Errorf("copy %s: %w", t.name, err)
		}
	}
	progress("dropping what refers to something lost")
	if err := s.prune(ctx); err != nil {
		return fmt.Errorf("drop what is incomplete: %w", err)
	}
	progress("building the search index")
	if err := s.index(ctx); err != nil {
		return fmt.Errorf("build the search index: %w", err)
	}
	for _, t := range tables {
		if !t.has(s.version) {
			continue
		}
		var n int64
		if err := s.dst.read.QueryRowContext(ctx, `SELECT count(*) FROM `+t.name).Scan(&n); err != nil {
			return err
		}
		s.out.Lost[t.name] += max(s.out.Kept[t.name]-n, 0) // more than was copied there is of what follows from it
		s.out.Kept[t.name] = n
	}
	return nil
}

// copyTable copies the rows that can be read.
func (s *salvage) copyTable(ctx context.Context, table, key string) error {
	names, err := scanNames(s.dst.read.QueryContext(ctx, `SELECT name FROM pragma_table_info(?)`, table))
	if err != nil {
		return err
	}
	columns := strings.Join(names, ", ")
	insert := `INSERT OR IGNORE INTO ` + table + ` (` + columns + `) VALUES (?` + strings.Repeat(", ?", len(names)-1) + `)`
	tx, err := s.dst.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
	// Triggers give what is copied a digest of its own: it has to fit before.
	recorded := "1"
	if columns, has, err := digested(ctx, s.dst.read, table); err != nil {
		return err
	} else if has {
		recorded = asRecorded(columns)
	}
	query := columns + ", " + recorded
	see := func(rows *sql.Rows) error {
		values := make([]any, len(names))
		into := make([]any, len(names), len(names)+1)
		for i := range values {
			into[i] = &values[i]
		}
		var recorded bool
		if err := rows.Scan(append(into, &recorded)...); err != nil {
			return err
		}
		if !recorded && table == "verdicts" {
			var err error
			if recorded, err = s.verdictAgain(ctx, tx, names, values); err != nil {
				return err
			}
		}
		if !recorded || !s.whole(table, names, values) {
			s.out.Lost[table]++
			return nil
		}
		res, err := tx.ExecContext(ctx, insert, values...)
		var n int64
		if err == nil {
			n, err = res.RowsAffected() // 0: read before, or a constraint that the damage broke
		}
		s.out.Kept[table] += n
		return err
	}
	if key != "" {
		lost, err := ranges(ctx, s.src.DB, table, key, query, see)
		if err != nil {
			return err
		}
		s.out.Lost[table] += lost
		return tx.Commit()
	}
	// From both ends to where it breaks.
	for _, order := range []string{"", " DESC"} {
		broken, err := each(ctx, s.src.DB, `SELECT `+query+` FROM `+table+` ORDER BY `+names[0]+order, see)
		if err != nil {
			return err
		}
		if !broken {
			break
		}
		if order != "" {
			s.out.Lost[table]++ // at least
		}
	}
	return tx.Commit()
}

// verdictAgain puts into a verdict's row what its text says, and reports whether
// that is what was recorded: then its digest fits.
func (s *salvage) verdictAgain(ctx context.Context, tx *sql.Tx, names []string, values []any) (bool, error) {
	row := map[string]any{}
	for i, name := range names {
		row[name] = values[i]
	}
	id, ok := row["text"].(int64)
	if !ok {
		return false, nil
	}
	var v kernelwright.Verdict
	if err := s.dst.textJSON(ctx, tx, id, &v); err != nil {
		return false, ctx.Err() // it was lost, or is no verdict's
	}
	row["exported"] = nil
	if hash, err := hex.DecodeString(v.ExportedSHA256); err == nil && len(hash) > 0 {
		var exported int64
		err := tx.QueryRowContext(ctx, `SELECT id FROM texts WHERE hash = ?`, hash).Scan(&exported)
		if err != nil {
			return false, ctx.Err()
		}
		row["exported"] = exported
	}
	for name, value := range verdictValues(v) {
		row[name] = value
	}
	again := make([]any, len(names))
	var digested []any
	for i, name := range names {
		again[i] = row[name]
		if name != digestColumn {
			digested = append(digested, row[name])
		}
	}
	var fits bool
	err := tx.QueryRowContext(ctx, `SELECT digest_of(?`+strings.Repeat(", ?", len(digested)-1)+`) IS ?`, append(digested, row[digestColumn])...).Scan(&fits)
	if err == nil && fits {
		copy(values, again)
	}
	return fits, err
}

// each shows the rows of a query, up to where they cannot be read: broken.
func each(ctx context.Context, db *sql.DB, query string, see func(*sql.Rows) error) (broken bool, err error) {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return true, ctx.Err()
	}
	defer rows.Close()
	for rows.Next() {
		if err := see(rows); err != nil {
			return false, err
		}
	}
	return rows.Err() != nil, ctx.Err()
}

func scanNames(rows *sql.Rows, err error) ([]string, error) {
	if err != nil {
		return nil, err
	}
	return scanAll(rows, func(r *sql.Rows) (name string, err error) { return name, r.Scan(&name) })
}

// whole reports whether a row's own content is; and a text is not indexed yet.
func (s *salvage) whole(table string, names []string, values []any) bool {
	at := map[string]int{}
	for i, name := range names {
		at[name] = i
	}
	switch table {
	case "texts":
		hash, ok1 := values[at["hash"]].([]byte)
		size, ok2 := values[at["size"]].(int64)
		body, ok3 := values[at["body"]].([]byte)
		values[at["indexed"]] = int64(0)
		if id, ok := values[at["id"]].(int64); ok && len(body) == 0 && s.gone[id] {
			values[at["body"]] = []byte{} // an empty one comes as nothing
			return ok1 && ok2 && len(hash) == sha256.Size
		}
		return ok1 && ok2 && ok3 && s.src.whole(hash, size, body) == nil
	case "cache":
		body, ok := values[at["value"]].([]byte)
		_, err := s.src.dec.DecodeAll(body, nil)
		return ok && err == nil
	}
	return true
}

// salvaged begins the reason of a run that lost something and is kept all the
// same.
const salvaged = "salvaged: "

// dropped is what is nothing without something that was lost, in an order in
// which one dropping brings on the next.
var dropped = []struct {
	query string
	versions
}{
	{query: `UPDATE runs SET detail = NULL WHERE detail NOT IN (SELECT id FROM texts)`},
	{query: `UPDATE runs SET task_source = NULL, task_graph = NULL, task_detail = NULL
		WHERE task_source NOT IN (SELECT id FROM texts) OR task_graph NOT IN (SELECT id FROM texts) OR task_detail NOT IN (SELECT id FROM texts)`},
	{query: `UPDATE runs SET device_detail = NULL WHERE device_detail NOT IN (SELECT id FROM texts)`},
	{query: `DELETE FROM tasks WHERE source NOT IN (SELECT id FROM texts) OR detail NOT IN (SELECT id FROM texts) OR graph NOT IN (SELECT id FROM texts)`},
	{query: `DELETE FROM devices WHERE detail NOT IN (SELECT id FROM texts)`},
	{`DELETE FROM baselines WHERE source NOT IN (SELECT id FROM texts) OR detail NOT IN (SELECT id FROM texts)`, baselines},
	{query: `DELETE FROM verdicts WHERE text NOT IN (SELECT id FROM texts) OR exported NOT IN (SELECT id FROM texts)`},
	{query: `DELETE FROM rounds WHERE candidate NOT IN (SELECT id FROM texts) OR verdict NOT IN (SELECT id FROM verdicts)`},
	// A run whose own row was lost is worth as much as its rounds.
	{query: `INSERT INTO runs (id, task, task_name, path, device, device_key, strategy, coder, judge, seed, max_rounds, settings, status, stop, reason, hint,
		created, started, finished, task_source, task_graph, task_detail, device_detail)
		SELECT r.run, r.task, coalesce(t.name, ''), '', '', r.device_key, '', '', '', 0, count(*), '', 'failed', '', '` + salvaged + `all but its rounds was lost', '',
		min(r.started), min(r.started), max(r.finished), t.source, t.graph, t.detail, d.detail
		FROM rounds r LEFT JOIN tasks t ON t.fingerprint = r.task LEFT JOIN devices d ON d.key = r.device_key
		WHERE r.run NOT IN (SELECT id FROM runs) GROUP BY r.run`},
	{query: gaps},
	{query: `UPDATE runs SET reason = '` + salvaged + `some of its rounds were lost' WHERE id IN
		(SELECT run FROM rounds GROUP BY run HAVING min(idx) <> 0 OR max(idx) <> count(*) - 1)`},
	{query: `DELETE FROM feedback WHERE text NOT IN (SELECT id FROM texts) OR (run, idx) NOT IN (SELECT run, idx FROM rounds)`},
	{query: `DELETE FROM certificates WHERE verdict NOT IN (SELECT id FROM verdicts) OR (run, idx) NOT IN (SELECT run, idx FROM rounds)
		OR sha256 <> '' AND sha256 IS NOT (SELECT lower(hex(t.hash)) FROM verdicts v JOIN texts t ON t.id = v.exported WHERE v.id = verdict)`},
	{query: `DELETE FROM metrics WHERE name NOT IN (SELECT id FROM metric_names) OR (run, idx) NOT IN (SELECT run, idx FROM rounds)`},
	{`DELETE FROM messages WHERE run NOT IN (SELECT id FROM runs) OR text NOT IN (SELECT id FROM texts)`, messages},
	// A call was paid for, whatever of it is lost.
	{`WITH RECURSIVE gone(id) AS (SELECT id FROM turns WHERE text NOT IN (SELECT id FROM texts) OR detail NOT IN (SELECT id FROM texts)
		OR before >= id OR before NOT IN (SELECT id FROM turns) UNION SELECT t.id FROM turns t JOIN gone ON t.before = gone.id)
		DELETE FROM turns WHERE id IN (SELECT id FROM gone)`, calls},
	{`UPDATE calls SET turn = NULL WHERE turn NOT IN (SELECT id FROM turns)`, calls},
	{`UPDATE calls SET request = NULL WHERE request NOT IN (SELECT id FROM texts)`, calls},
	{`UPDATE calls SET reasoning = NULL WHERE reasoning NOT IN (SELECT id FROM texts)`, calls},
	{`UPDATE calls SET text = NULL, reply = NULL WHERE text NOT IN (SELECT id FROM texts) OR reply NOT IN (SELECT id FROM texts)`, calls},
	{`WITH RECURSIVE gone(id) AS (SELECT id FROM calls WHERE tokens NOT IN (SELECT id FROM texts) OR follows >= id
		OR follows NOT IN (SELECT id FROM calls WHERE tokens IS NOT NULL) UNION SELECT c.id FROM calls c JOIN gone ON c.follows = gone.id)
		UPDATE calls SET tokens = NULL, follows = NULL WHERE id IN (SELECT id FROM gone)`, calls},
	{`UPDATE calls SET run = NULL WHERE run NOT IN (SELECT id FROM runs)`, calls},
	{`UPDATE charges SET run = NULL WHERE run NOT IN (SELECT id FROM runs)`, calls},
	{query: `DELETE FROM queue WHERE run NOT IN (SELECT id FROM runs WHERE status IN ('queued', 'running'))`},
	{query: `DELETE FROM files WHERE run <> 0 AND run NOT IN (SELECT id FROM runs)`}, // then it is queued again
	// A bench that lacks a run makes it again.
	{`DELETE FROM benches WHERE detail NOT IN (SELECT id FROM texts)`, benches},
	{`DELETE FROM bench_runs WHERE bench NOT IN (SELECT id FROM benches) OR run NOT IN (SELECT id FROM runs)`, benches},
	// An audit that lacks a pair evaluates it again.
	{`DELETE FROM audits WHERE detail NOT IN (SELECT id FROM texts)`, audits},
	{`DELETE FROM audit_pairs WHERE audit NOT IN (SELECT id FROM audits) OR verdict NOT IN (SELECT id FROM verdicts)
		OR reference_text NOT IN (SELECT id FROM texts) OR candidate_text NOT IN (SELECT id FROM texts)`, audits},
	// An episode that lost something is not trained on.
	{`DELETE FROM samples WHERE mask NOT IN (SELECT id FROM texts) OR run NOT IN (SELECT run FROM episodes)
		OR NOT EXISTS (SELECT 1 FROM calls c WHERE c.run = samples.run AND c.round = samples.round AND c.seq = samples.seq AND c.agent = 'coder' AND c.text IS NOT NULL)`, episodes},
	{`DELETE FROM samples WHERE run IN (SELECT run FROM samples GROUP BY run HAVING min(idx) <> 0 OR max(idx) <> count(*) - 1)`, episodes},
	{`DELETE FROM samples WHERE run NOT IN (SELECT id FROM runs)`, episodes},
	{`DELETE FROM episodes WHERE run NOT IN (SELECT id FROM runs)`, episodes},
	{`DELETE FROM policies WHERE files NOT IN (SELECT id FROM texts)`, policies},
	{`DELETE FROM promotions WHERE policy NOT IN (SELECT version FROM policies WHERE removed = 0)`, policies},
	{`DELETE FROM task_sets WHERE settings NOT IN (SELECT id FROM texts)`, taskSets},
	{`DELETE FROM task_draws WHERE set_id NOT IN (SELECT id FROM task_sets) OR source NOT IN (SELECT id FROM texts) OR detail NOT IN (SELECT id FROM texts)`, taskSets},
	// A gate decides from its outcomes, again where need be.
	{`DELETE FROM gates WHERE settings NOT IN (SELECT id FROM texts)`, gates},
	{`UPDATE gates SET decision = '', detail = NULL, decided = 0 WHERE detail NOT IN (SELECT id FROM texts) OR (decision <> '') <> (detail IS NOT NULL)`, gates},
	{`DELETE FROM gate_tasks WHERE gate NOT IN (SELECT id FROM gates)`, gates},
	{`INSERT INTO task_gates (fingerprint, gate, used) SELECT t.fingerprint, g.name, g.created FROM gate_tasks t JOIN gates g ON g.id = t.gate
		WHERE t.fingerprint NOT IN (SELECT fingerprint FROM task_gates)`, gates},
	{`DELETE FROM gate_outcomes WHERE (gate, place) NOT IN (SELECT gate, place FROM gate_tasks)`, gates},
	{`DELETE FROM pipelines WHERE settings NOT IN (SELECT id FROM texts)`, stages},
	{`DELETE FROM stages WHERE pipeline NOT IN (SELECT id FROM pipelines) OR inputs NOT IN (SELECT id FROM texts) OR budget NOT IN (SELECT id FROM texts)`, stages},
	// Its folder has what it left: gone on with, it says so again.
	{`UPDATE stages SET status = 'stopped', outputs = NULL WHERE status IN ('done', 'skipped') AND (outputs IS NULL OR outputs NOT IN (SELECT id FROM texts))`, stages},
	{`UPDATE runs SET lessons = NULL WHERE lessons NOT IN (SELECT id FROM texts)`, lessons},
	{`DELETE FROM prunings WHERE text NOT IN (SELECT id FROM texts WHERE length(body) = 0)`, prunings},
	{query: `UPDATE rounds SET (task, device_key) = (SELECT task, device_key FROM runs WHERE id = run)`},
	{query: `UPDATE rounds AS r SET (standing, ms) = (SELECT ` + standingByVerdict + `, CASE WHEN c.candidate_ms > 0 THEN c.candidate_ms ELSE v.candidate_ms END
		FROM verdicts v LEFT JOIN certificates ce ON ce.run = r.run AND ce.idx = r.idx LEFT JOIN verdicts c ON c.id = ce.verdict WHERE v.id = r.verdict)`},
	{`DELETE FROM lessons WHERE (run, idx) NOT IN (SELECT run, idx FROM rounds) OR run NOT IN (SELECT run FROM rounds WHERE standing = 2)`, lessons},
	{query: `UPDATE runs SET best = ` + bestOfRun},
	{learnAll, lessons},
	// A run that waited and lost its turn would wait for ever.
	{query: `INSERT INTO queue (run, priority, state, attempts, available, owner, claimed, created)
		SELECT id, 0, 'waiting', 0, 0, '', 0, created FROM runs WHERE status = 'queued' AND id NOT IN (SELECT run FROM queue)`},
	{`DELETE FROM holds WHERE run <> 0 AND run NOT IN (SELECT run FROM queue)`, holds},
	{`DELETE FROM events`, holds}, // of the copying
	{`DELETE FROM run_facets`, facets},
	{strings.ReplaceAll(newFacets, "%[1]s", ""), facets},
	{`INSERT INTO run_facets (` + facetColumns + `) ` + facetRow, facets},
	{strings.Join(sumAll, "; "), facets},
	{strings.Join(sumAllTasks, "; "), taskSums},
}

// gaps is the rounds of unfinished runs that come after one that was lost.
const gaps = `DELETE FROM rounds WHERE (run, idx) IN (
	SELECT r.run, r.idx FROM (SELECT run, idx, row_number() OVER (PARTITION BY run ORDER BY idx) - 1 AS place FROM rounds) r
	JOIN runs ON runs.id = r.run WHERE r.idx <> r.place AND runs.status IN ('queued', 'running')) RETURNING run`

func (s *salvage) prune(ctx context.Context) error {
	return s.dst.inTx(ctx, func(tx *sql.Tx) error {
		for _, d := range dropped {
			if !d.has(s.version) {
				continue
			}
			if d.query != gaps {
				if _, err := tx.ExecContext(ctx, d.query); err != nil {
					return err
				}
				continue
			}
			rows, err := tx.QueryContext(ctx, d.query)
			if err != nil {
				return err
			}
			cut, err := scanAll(rows, func(r *sql.Rows) (run int64, err error) { return run, r.Scan(&run) })
			if err != nil {
				return err
			}
			seen := map[int64]bool{}
			for _, run := range cut {
				if !seen[run] {
					seen[run] = true
					s.out.Cut = append(s.out.Cut, run)
				}
			}
		}
		return nil
	})
}

// index makes the search index anew.
func (s *salvage) index(ctx context.Context) error {
	always := versions{}
	plain := func(extra, text string) (string, error) { return text, nil }
	for _, kind := range []struct {
		query string // the text's number, and what else its words are made of
		words func(extra, text string) (string, error)
		versions
	}{
		{`SELECT source, name FROM tasks`, func(name, text string) (string, error) { return taskWords(name, text), nil }, always},
		{`SELECT candidate, note FROM rounds`, func(note, text string) (string, error) { return candidateWords(note, text), nil }, always},
		{`SELECT text, '' FROM verdicts WHERE id IN (SELECT verdict FROM rounds UNION SELECT verdict FROM certificates)`, func(_, text string) (string, error) {
			var v kernelwright.Verdict
			err := json.Unmarshal([]byte(text), &v)
			return verdictWords(v), err
		}, always},
		{`SELECT text, '' FROM feedback`, func(_, text string) (string, error) {
			var f kernelwright.Feedback
			err := json.Unmarshal([]byte(text), &f)
			return feedbackWords(f), err
		}, always},
		{`SELECT detail, '' FROM runs WHERE detail IS NOT NULL`, plain, always},
		{`SELECT text, '' FROM messages`, plain, messages},
		{`SELECT text, '' FROM turns`, plain, calls},
		{`SELECT text, '' FROM calls WHERE text IS NOT NULL`, plain, calls},
		{`SELECT reasoning, '' FROM calls WHERE reasoning IS NOT NULL`, plain, calls},
		{`SELECT reply, '' FROM calls WHERE reply IS NOT NULL`, func(_, text string) (string, error) {
			var rest llm.Reply
			err := json.Unmarshal([]byte(text), &rest)
			return callWords(rest.ToolCalls), err
		}, calls},
	} {
		if !kind.has(s.version) {
			continue
		}
		rows, err := s.dst.read.QueryContext(ctx, kind.query)
		if err != nil {
			return err
		}
		type entry struct {
			id    int64
			extra string
		}
		entries, err := scanAll(rows, func(r *sql.Rows) (e entry, err error) { return e, r.Scan(&e.id, &e.extra) })
		if err != nil {
			return err
		}
		err = s.dst.inTx(ctx, func(tx *sql.Tx) error {
			for _, e := range entries {
				text, err := s.dst.text(ctx, tx, e.id)
				if err != nil {
					return err
				}
				words, err := kind.words(e.extra, text)
				if err != nil {
					return fmt.Errorf("text %d: %w", e.id, err)
				}
				if _, err := s.dst.putText(ctx, tx, text, words); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
