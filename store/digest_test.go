package store

import (
	"bytes"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	kw "github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/internal/soak"
	"github.com/kernelwright/kernelwright/llm"
)

// everything returns the path of a closed history in which each column of each
// table has a value somewhere.
func everything(t testing.TB, runs int) string {
	t.Helper()
	path := lived(t, runs)
	s, err := Open(path)
	ok(t, err)
	ctx := t.Context()
	ok(t, s.SaveFile(ctx, File{Path: "/y", Hash: "ab", Size: 1, ModTimeNS: 2, Fingerprint: "f0", RunID: 1}))
	_, err = s.NextFence(ctx, "cuda:0")
	ok(t, err)
	ok(t, s.SaveBaseline(ctx, Baseline{NamedBaseline: kw.NamedBaseline{Name: "cute", Source: "class ModelNew: # an expert's"}, Task: "f0", Device: kw.CPUDevice}))
	audit := must(s.CreateAudit(ctx, kw.Audit{Path: "/set"}))(t)
	ok(t, s.KeepAudited(ctx, audit.ID, 1, kw.AuditPair{
		Reference: "/set/ref.py", Candidate: "/set/new.py", Index: 1, Claim: &kw.Claim{Speedup: 2, Against: "eager"}, Key: "k",
		ReferenceText: "class Model: # of a set", CandidateText: "class ModelNew: # of a set", Verdict: kw.Verdict{Status: kw.Correct, CandidateMS: 3},
	}))
	bench := must(s.CreateBench(ctx, kw.Bench{}))(t)
	run := must(s.CreateRun(ctx, kw.Run{
		Task: "f0", DeviceKey: "d", Path: "/x/0.py", Device: "a CPU", Strategy: "beam", Coder: "builtin", Judge: "rules", Settings: "{}",
	}, WithMember(bench.ID, kw.Member{Seed: 1})))(t)
	ok(t, s.Describe(ctx, run, kw.Task{Fingerprint: "f0", Name: "softmax", Source: "class Model: # 0", Operators: []string{"softmax"}}, kw.Device{Key: "d", Name: "a CPU"}, []kw.Lesson{{Run: 1}}))
	first := round(run.ID, 0, kw.Correct, 5)
	first.Feedback = &kw.Feedback{Kind: kw.Optimisation, Rule: "memory"}
	ok(t, s.AppendRound(ctx, first))
	from := 0
	second := round(run.ID, 1, kw.Correct, 4)
	second.Candidate.Origin, second.Candidate.Note, second.Verdict.Level = "builtin", "tiles", kw.Quick
	second.Parent, second.Verdict.Speedup = &from, &kw.Speedup{Value: 1.8, Low: 1.7, High: 1.9, Against: "eager"}
	ok(t, s.AppendRound(ctx, second))
	ok(t, s.SetCertificate(ctx, run.ID, 1, kw.Verdict{Status: kw.Certified, CandidateMS: 2, Speedup: second.Verdict.Speedup, Exported: "# x", ExportedSHA256: kw.HashText("# x")}))
	run.Status, run.Stop, run.Reason, run.Hint = kw.RunDone, "rounds", "all rounds", "more rounds"
	ok(t, s.UpdateRun(ctx, run))
	usd := 0.5
	charge := must(s.Book(ctx, llm.Charge{Key: llm.Key{Run: run.ID, Agent: "coder"}, Model: "p:m"}))(t)
	ok(t, s.Rebook(ctx, charge, llm.Charge{Key: llm.Key{Run: run.ID}, Model: "p:m", USD: &usd, Failed: "it was too long"}))
	must(s.Book(ctx, llm.Charge{Key: llm.Key{Run: run.ID}, Model: "p:m", EndedMS: 3 * dayMS}))(t) // the days before it are over
	for seq, prompt := range [][]int{{1, 2}, {1, 2, 3, 4}} {
		ok(t, s.Append(ctx, llm.Record{
			Key: llm.Key{Run: run.ID, Agent: "coder", Seq: seq}, Model: "p:m", CostUSD: &usd,
			Request: llm.Request{Messages: []llm.Message{{Role: "user", Text: "go", Name: "n"}}, Temperature: &usd},
			Reply:   llm.Reply{Text: "well", Reasoning: "thought", PromptIDs: prompt, TokenIDs: []int{3}, ToolCalls: []llm.ToolCall{{ID: "1", Name: "compile", Arguments: "{}"}}},
		}))
	}
	two := 2
	endEpisode(t, s, openEpisode(t, s, "an answer"), EpisodeDone, &two, Sample{Context: "replace", Finish: "stop", Policy: "v1", Mask: []int{1, 0, 1}})
	old := must(s.CreateRun(ctx, kw.Run{Task: "f0", DeviceKey: "d", Path: "/x/0.py", Status: kw.RunDone, FinishedMS: 1}))(t)
	ok(t, s.AppendRound(ctx, round(old.ID, 0, kw.Wrong, 0)))
	if p := must(s.Prune(ctx, Retention{Before: time.UnixMilli(2)}, func(int64) {}))(t); p.Texts != 1 {
		t.Fatalf("%+v", p)
	}
	set := must(s.BeginTaskSet(ctx, "small", []byte(`{"seed":1}`)))(t)
	ok(t, s.SaveTaskDraw(ctx, set.ID, TaskDraw{Index: 1, Split: KindsSplit, Fingerprint: "f7", Source: "class Model: # 7", Detail: []byte(`{"level":1}`)}))
	ok(t, s.SaveTaskDraw(ctx, set.ID, TaskDraw{Index: 2, Split: TrainSplit, Reason: "too alike"}))
	ok(t, s.FinishTaskSet(ctx, set.ID, true))
	ok(t, s.UseInGate(ctx, "night 1", []string{"f7"}))
	night := must(s.BeginNight(ctx, Night{DueMS: 1, UntilMS: 9, BegunMS: 2, SeenMS: 2, Owner: "4711@1@2"}))(t)
	night.SeenMS, night.EndedMS, night.Stop, night.Reason, night.WorkedMS, night.GPUMS, night.Yields, night.Pipeline, night.Decision = 5, 6, NightDone, "it is over", 3, 3, 1, 7, "refused"
	ok(t, s.SaveNight(ctx, night))
	policy := must(s.SavePolicy(ctx, Policy{Digest: "ab", Base: "smollm2", License: "apache-2.0", Pipeline: 1, Stage: "agentic", Bytes: 9, Files: []byte(`[{"name":"a"}]`)}, func(int64) error { return nil }))(t)
	ok(t, s.Promote(ctx, func([]Promotion) (Promotion, bool, error) {
		return Promotion{Policy: policy.Version, Gate: 3, Reason: "faster"}, true, nil
	}))
	gate := must(s.BeginGate(ctx, Gate{Name: "night 1", Candidate: "v2", Opponent: "v1", Settings: []byte(`{"tasks":1}`)}))(t)
	ok(t, s.AddGateTasks(ctx, gate.ID, []GateTask{{Fingerprint: "f7", Split: KindsSplit, Unseen: true}, {Place: 1, Fingerprint: "f8", Split: KindsSplit}}))
	ok(t, s.VoidGateTask(ctx, gate.ID, 1, "the server of v2 ended"))
	ok(t, s.SaveGateOutcome(ctx, gate.ID, GateOutcome{Player: GateOpponent, Sample: 1, Built: true, Correct: true, Reward: 2, Speedup: 0.9, Eager: 1.4, Compile: 0.95}))
	ok(t, s.DecideGate(ctx, gate.ID, "refused", []byte(`{"reason":"no better"}`)))
	pipeline := must(s.BeginPipeline(ctx, []byte(`{"seed":7}`)))(t)
	ok(t, s.FinishPipeline(ctx, pipeline.ID, true))
	stage := must(s.BeginStage(ctx, pipeline.ID, "rft", []byte(`{"collect":1}`), []byte(`{"epochs":1}`)))(t)
	stage.Status, stage.Outputs, stage.Exit, stage.Reason, stage.Hint, stage.Seconds, stage.Verdicts = StageSkipped, []byte(`{"policy":"p"}`), new(int), "nothing to learn from", "collect more", 1.5, 3
	ok(t, s.SaveStage(ctx, stage))
	for _, q := range must(s.Queue(ctx, Queued{}, 1))(t) {
		ok(t, s.Pause(ctx, q.Run))
	}
	_, err = s.write.Exec(`INSERT INTO digests (made) VALUES (1)`)
	ok(t, err)
	ok(t, s.Close())
	return path
}

// restore puts a file in the place of a history, without what lies beside it.
func restore(t testing.TB, path string, content []byte) {
	t.Helper()
	for _, suffix := range []string{"-wal", "-shm"} {
		if err := os.Remove(path + suffix); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	ok(t, os.WriteFile(path, content, 0o600))
}

// tampered opens a history so that no trigger sees what is changed.
func tampered(t testing.TB, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", dsn(path, "_pragma=foreign_keys(0)"))
	ok(t, err)
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { db.Close() })
	return db
}

// changeQuietly runs a statement that leaves the digests as they were.
func changeQuietly(t testing.TB, db *sql.DB, statement string, args ...any) {
	t.Helper()
	must(db.Exec(statement, args...))(t)
}

// withoutDigests makes the schema what it was before rows had digests.
func withoutDigests(t testing.TB, db *sql.DB) {
	t.Helper()
	must(db.Exec(`DROP INDEX runs_detail; DROP INDEX certificates_verdict; DROP TABLE digests; DROP TABLE samples; DROP TABLE episodes;
		DROP TRIGGER temp.facets_of_new_run; DROP TRIGGER temp.facets_of_run; DROP TRIGGER temp.facets_of_new_task; DROP TRIGGER temp.facets_of_task; DROP TRIGGER temp.charges_renamed;
		DROP TABLE run_facets; DROP TABLE facets; DROP TABLE charge_days; DROP TABLE charge_runs; DROP TABLE charge_tasks;
		DROP INDEX runs_said; DROP INDEX tasks_name; DROP INDEX rounds_made`))(t) // but for the first three they came later
	for _, table := range tables {
		columns := must(scanNames(db.Query(`SELECT name FROM pragma_table_info(?)`, table.name)))(t)
		if !slices.Contains(columns, digestColumn) {
			continue
		}
		must(db.Exec(`DROP TRIGGER IF EXISTS temp.` + table.name + `_added; DROP TRIGGER IF EXISTS temp.` + table.name + `_changed; ALTER TABLE ` + table.name + ` DROP COLUMN ` + digestColumn))(t)
	}
}

// column is one of a table of the schema.
type column struct{ table, name string }

// change is what a value of a column becomes.
type change struct {
	column
	before, after any
	key           []any  // of its row
	update        string // with the value and the key
}

// Each column of each table of the schema, one byte of one value changed, in the long
// form each of its bytes in turn: `history check` notices it, or lists the column as not
// checked. Every day one column of each table is changed at once: each changed row is
// counted, and where one is not, they are changed one at a time to find which.
func TestEachColumnIsHeldToWhatWasRecorded(t *testing.T) {
	path := everything(t, 3)
	if e := examine(t, path); !e.Sound() {
		t.Fatalf("before: %+v", e.Faults)
	}
	db := tampered(t, path)
	rows, err := db.Query(`SELECT t.name, c.name FROM pragma_table_list t JOIN pragma_table_info(t.name) c WHERE t.type IN ('table', 'shadow') AND t.name <> 'sqlite_schema' AND t.schema = 'main' ORDER BY 1, c.cid`)
	ok(t, err)
	columns := must(scanAll(rows, func(r *sql.Rows) (c column, err error) { return c, r.Scan(&c.table, &c.name) }))(t)
	if len(columns) < 150 {
		t.Fatalf("only %d columns were found", len(columns))
	}
	used, skipped := map[string]bool{}, 0
	var alone []change                // where no digest counts
	together := map[string][]change{} // by table
	for _, c := range columns {
		listed := slices.IndexFunc(unchecked, func(u Unchecked) bool {
			return u.What == c.table || u.What == c.table+"."+c.name || strings.HasSuffix(u.What, "*") && strings.HasPrefix(c.table, strings.TrimSuffix(u.What, "*"))
		})
		if listed >= 0 {
			used[unchecked[listed].What] = true
			skipped++
			continue
		}
		all := changes(t, db, c)
		if soak.Long() || !slices.Contains(columns, column{c.table, digestColumn}) {
			alone = append(alone, all...)
		} else {
			together[c.table] = append(together[c.table], all...)
		}
	}
	ok(t, db.Close())
	whole := must(os.ReadFile(path))(t)
	faults := func(all ...change) []Fault {
		restore(t, path, whole)
		db := tampered(t, path)
		for _, c := range all {
			changeQuietly(t, db, c.update, append([]any{c.after}, c.key...)...)
		}
		ok(t, db.Close())
		return examine(t, path).Faults
	}
	for len(together) > 0 {
		var now []change
		for table, left := range together {
			now = append(now, left[0])
			if together[table] = left[1:]; len(left) == 1 {
				delete(together, table)
			}
		}
		if !slices.ContainsFunc(faults(now...), func(f Fault) bool { return f.What == changedRows && f.Count == int64(len(now)) }) {
			alone = append(alone, now...)
		}
	}
	for _, c := range alone {
		if len(faults(c)) == 0 && !sameText(t, c.before, c.after) {
			t.Errorf("%s.%s: %v became %v, and nothing was said", c.table, c.name, c.before, c.after)
		}
	}
	t.Logf("%d columns, of which %d are listed as not checked; %d changes were looked at alone", len(columns), skipped, len(alone))
	for _, u := range unchecked {
		if !used[u.What] || u.Why == "" {
			t.Errorf("%s is listed as not checked and is in no table, or without a reason", u.What)
		}
	}
}

// changedRows is the fault of rows that do not fit their digests.
const changedRows = "rows are not as they were recorded"

// changes returns what becomes of one value of a column.
func changes(t *testing.T, db *sql.DB, c column) (all []change) {
	t.Helper()
	key := must(scanNames(db.Query(`SELECT name FROM pragma_table_info(?) WHERE pk > 0 ORDER BY pk`, c.table)))(t)
	values, into := make([]any, 1+len(key)), make([]any, 1+len(key))
	for i := range values {
		into[i] = &values[i]
	}
	if err := db.QueryRow(`SELECT ` + strings.Join(append([]string{c.name}, key...), ", ") + ` FROM ` + c.table + ` WHERE ` + c.name + ` NOT IN ('', x'') LIMIT 1`).Scan(into...); err != nil {
		t.Errorf("%s.%s has no value to change: %v", c.table, c.name, err)
		return nil
	}
	update := `UPDATE OR REPLACE ` + c.table + ` SET ` + c.name + ` = ? WHERE ` + strings.Join(key, ` IS ? AND `) + ` IS ?`
	for _, other := range flips(t, values[0]) {
		all = append(all, change{c, values[0], other, values[1:], update})
	}
	return all
}

// flips returns a value with one bit of one byte changed: of its last byte, and in
// the long form of each in turn.
func flips(t testing.TB, value any) (others []any) {
	t.Helper()
	whole, real := []int{16}, []int{0} // a whole number's neighbour may be there
	if soak.Long() {
		whole = []int{0, 8, 16, 24, 32, 40, 48, 56}
		real = whole
	}
	bytewise := func(b []byte) (all [][]byte) {
		for i := range b {
			if soak.Long() || i == len(b)-1 {
				other := slices.Clone(b)
				other[i] ^= 0x10
				all = append(all, other)
			}
		}
		return all
	}
	switch v := value.(type) {
	case int64:
		for _, bit := range whole {
			others = append(others, v^1<<bit)
		}
	case float64:
		for _, bit := range real {
			others = append(others, math.Float64frombits(math.Float64bits(v)^1<<bit))
		}
	case string:
		for _, b := range bytewise([]byte(v)) {
			others = append(others, string(b))
		}
	case []byte:
		for _, b := range bytewise(v) {
			others = append(others, b)
		}
	default:
		t.Fatalf("a %T", value)
	}
	return others
}

// sameText reports whether two values are one text: compressed, it can be written
// in several ways.
func sameText(t testing.TB, value, other any) bool {
	t.Helper()
	a, compressed := value.([]byte)
	if !compressed {
		return false
	}
	dec := must(zstd.NewReader(nil))(t)
	defer dec.Close()
	before, err1 := dec.DecodeAll(a, nil)
	after, err2 := dec.DecodeAll(other.([]byte), nil)
	return err1 == nil && err2 == nil && bytes.Equal(before, after)
}

// Single bytes of the file, wherever they are: what a reader could tell apart is
// noticed.
func TestSingleBytesOfTheFile(t *testing.T) {
	path := everything(t, 20)
	whole := must(os.ReadFile(path))(t)
	before := dump(t, path)
	tries := 15
	if soak.Long() {
		tries = 5000
	}
	rng := rand.New(rand.NewPCG(7, 7))
	noticed, same := 0, 0
	for range tries {
		content := slices.Clone(whole)
		at := 4096 + rng.IntN(len(content)-4096)
		content[at] ^= byte(1 << rng.IntN(8))
		restore(t, path, content)
		e, err := Examine(t.Context(), path, quiet)
		switch {
		case err != nil || !e.Sound():
			noticed++
		case dump(t, path) == before:
			same++
		default:
			now, was := strings.Split(dump(t, path), "\n"), strings.Split(before, "\n")
			for i := range min(len(now), len(was)) {
				if now[i] != was[i] {
					t.Errorf("byte %d: nothing was said of\n%.300s, which was\n%.300s", at, now[i], was[i])
				}
			}
		}
		if after := must(os.ReadFile(path))(t); !bytes.Equal(after, content) {
			t.Fatal("the file was changed")
		}
	}
	if t.Logf("%d flips: %d noticed, %d without effect", tries, noticed, same); noticed == 0 {
		t.Error("nothing was noticed")
	}
}

// dump is every checked row of a history.
func dump(t testing.TB, path string) string {
	t.Helper()
	db, err := sql.Open("sqlite", dsn(path, "mode=ro"))
	ok(t, err)
	defer db.Close()
	dec := must(zstd.NewReader(nil))(t)
	defer dec.Close()
	var b strings.Builder
	for _, table := range tables {
		columns, _, err := digested(t.Context(), db, table.name)
		ok(t, err)
		if len(columns) == 0 {
			continue // of another version
		}
		rows, err := db.Query(`SELECT ` + strings.Join(columns, ", ") + ` FROM ` + table.name)
		ok(t, err)
		all := must(scanAll(rows, func(r *sql.Rows) (string, error) {
			values, into := make([]any, len(columns)), make([]any, len(columns))
			for i := range values {
				into[i] = &values[i]
			}
			err := r.Scan(into...)
			// Compressed, a text can be written in several ways.
			if body, compressed := values[len(values)-1].([]byte); compressed && table.name == "texts" {
				if text, err := dec.DecodeAll(body, nil); err == nil {
					values[len(values)-1] = text
				}
			}
			return fmt.Sprintf("%s %x\n", table.name, values), err
		}))(t)
		b.WriteString(strings.Join(all, ""))
	}
	return b.String()
}

// What is written by the store's own methods fits its digest, whatever the value.
func TestOddValuesFitTheirDigests(t *testing.T) {
	path := filepath.Join(t.TempDir(), FileName)
	s, err := Open(path)
	ok(t, err)
	ctx := t.Context()
	run := newRun(t, s)
	for i, v := range []float64{math.Copysign(0, -1), 1e300, -5, math.SmallestNonzeroFloat64, 3} {
		r := round(run.ID, i, kw.Correct, 1)
		r.Verdict.Metrics = map[string]float64{"odd": v}
		r.Candidate.Note = []string{"", "a\x00b", "\xff\xfe", "naïve", strings.Repeat("x", 9000)}[i]
		ok(t, s.AppendRound(ctx, r))
	}
	run.Status = kw.RunDone
	ok(t, s.UpdateRun(ctx, run))
	for _, value := range [][]byte{nil, {}, {0}, bytes.Repeat([]byte("y"), 1<<16)} {
		ok(t, s.Put(ctx, "k", "a", value))
		ok(t, s.Put(ctx, "k", fmt.Sprint(len(value)), value))
	}
	ok(t, s.Close())
	if e := examine(t, path); !e.Sound() || e.DigestsMS != 0 {
		t.Errorf("%+v", e)
	}
	db := tampered(t, path)
	changeQuietly(t, db, `UPDATE rounds SET note = CAST(x'610063' AS TEXT) WHERE idx = 1`) // behind the NUL
	ok(t, db.Close())
	e := examine(t, path)
	if len(e.Faults) != 1 || e.Faults[0].What != "rows are not as they were recorded" || e.Faults[0].Count != 1 || e.Faults[0].Examples[0] != fmt.Sprintf("rounds, run %d, idx 1", run.ID) {
		t.Errorf("%+v", e.Faults)
	}
}

// A history from before digests says that it has none; its rows get theirs when
// it is opened, which is said from then on. What was changed before passes.
func TestDigestsOfRowsFromBefore(t *testing.T) {
	steps, err := migrations()
	ok(t, err)
	path := filepath.Join(t.TempDir(), FileName)
	s, err := open(t.Context(), path, steps[:digests.since-1], true)
	ok(t, err)
	run := newRun(t, s)
	_, err = s.write.Exec(`INSERT INTO texts (id, hash, size, indexed, body) VALUES (1, x'00', 0, 0, x''); INSERT INTO verdicts (text, status, reason, level, candidate_ms, speedup, against, headroom)
		VALUES (1, 'certified', '', 'certify', 1, 1.8, 'eager', 0)`)
	ok(t, err)
	ok(t, s.Close())
	if e := examine(t, path); e.Unchecked[0].What != "the columns of every table but texts" || e.DigestsMS != 0 {
		t.Errorf("before: %+v", e)
	}
	s, err = Open(path)
	ok(t, err)
	var others int
	ok(t, s.read.QueryRow(`SELECT (SELECT count(*) FROM runs WHERE row_digest IS NULL) + (SELECT count(*) FROM verdicts WHERE row_digest IS NULL)`).Scan(&others))
	run.Status = kw.RunFailed
	ok(t, s.UpdateRun(t.Context(), run))
	ok(t, s.Close())
	e := examine(t, path)
	changed := func(e Examination) bool {
		return slices.ContainsFunc(e.Faults, func(f Fault) bool { return f.What == "rows are not as they were recorded" })
	}
	if others != 0 || changed(e) || e.DigestsMS == 0 || e.Unchecked[0].What == "the columns of every table but texts" {
		t.Errorf("after: %d without, %+v", others, e)
	}
	db := tampered(t, path)
	changeQuietly(t, db, `UPDATE verdicts SET speedup = 0.45`)
	ok(t, db.Close())
	if e := examine(t, path); !changed(e) {
		t.Errorf("changed: %+v", e.Faults)
	}
}

// A salvage leaves out what was changed, instead of giving it a digest.
func TestSalvageLeavesOutWhatWasChanged(t *testing.T) {
	path := everything(t, 3)
	db := tampered(t, path)
	changeQuietly(t, db, `UPDATE metrics SET value = value + 1 WHERE run = 1 AND idx = 0`)
	changeQuietly(t, db, `UPDATE files SET size = size + 1 WHERE path = '/x/0.py'`)
	ok(t, db.Close())
	e := examine(t, path)
	if len(e.Faults) != 1 || e.Faults[0].Count != 3 {
		t.Errorf("%+v", e.Faults)
	}
	to := filepath.Join(t.TempDir(), FileName)
	out := must(Salvage(t.Context(), path, to, quiet))(t)
	if out.Lost["metrics"] != 2 || out.Lost["files"] != 1 || out.Lost["rounds"] != 0 {
		t.Errorf("%+v", out)
	}
	if e := examine(t, to); !e.Sound() {
		t.Errorf("salvaged: %+v", e.Faults)
	}
}

// What a verdict's columns repeat is put right from its text: a certified speedup
// that became another one costs nothing. What they alone say is not guessed.
func TestSalvagePutsVerdictsRight(t *testing.T) {
	whole := must(os.ReadFile(everything(t, 3)))(t)
	for change, kept := range map[string]bool{
		`UPDATE verdicts SET speedup = 0.45 WHERE speedup IS NOT NULL`:                      true,
		`UPDATE verdicts SET status = 'wrong', candidate_ms = 9 WHERE status = 'certified'`: true,
		`UPDATE verdicts SET exported = NULL`:                                               true,
		`UPDATE verdicts SET text = (SELECT max(id) FROM texts) WHERE id = 1`:               false,
		`UPDATE verdicts SET row_digest = x'00' WHERE id = 1`:                               false,
		`UPDATE verdicts SET text = 1 - text WHERE id = 1`:                                  false,
	} {
		path := filepath.Join(t.TempDir(), FileName)
		restore(t, path, whole)
		before := examine(t, path).Rows["verdicts"]
		contentsBefore := contents(t, path)
		db := tampered(t, path)
		changeQuietly(t, db, change)
		ok(t, db.Close())
		if examine(t, path).Sound() {
			t.Errorf("%s: nothing was said", change)
		}
		to := filepath.Join(t.TempDir(), FileName)
		out := must(Salvage(t.Context(), path, to, quiet))(t)
		if lost := out.Lost["verdicts"]; (lost == 0) != kept || out.Kept["verdicts"]+lost != before {
			t.Errorf("%s: %d of %d lost, %d kept", change, lost, before, out.Kept["verdicts"])
		}
		if e := examine(t, to); !e.Sound() {
			t.Errorf("%s: salvaged: %+v", change, e.Faults)
		}
		if kept && contents(t, to) != contentsBefore {
			t.Errorf("%s: the copy has other contents", change)
		}
	}
}

// Tables and indexes are part of the record.
func TestAChangedSchemaIsNoticed(t *testing.T) {
	path := everything(t, 3)
	db := tampered(t, path)
	must(db.Exec(`DROP INDEX rounds_verdict; CREATE TABLE more (x)`))(t)
	ok(t, db.Close())
	e := examine(t, path)
	if len(e.Faults) != 1 || e.Faults[0].What != "tables or indexes are not those of this version" || !slices.Equal(e.Faults[0].Examples, []string{"index rounds_verdict", "table more"}) {
		t.Errorf("%+v", e.Faults)
	}
}

// Another connection in the place of the one that writes keeps digests as well.
func TestANewConnectionKeepsDigests(t *testing.T) {
	path := filepath.Join(t.TempDir(), FileName)
	s, err := Open(path)
	ok(t, err)
	c := must(s.write.Conn(t.Context()))(t)
	if err := c.Raw(func(any) error { return driver.ErrBadConn }); !errors.Is(err, driver.ErrBadConn) { // it is given up
		t.Fatal(err)
	}
	_ = c.Close()
	run := newRun(t, s)
	run.Status = kw.RunDone
	ok(t, s.UpdateRun(t.Context(), run))
	ok(t, s.Close())
	if e := examine(t, path); !e.Sound() || e.Rows["runs"] != 1 {
		t.Errorf("%+v", e)
	}
}
