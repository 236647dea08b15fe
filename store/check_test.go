package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	kw "github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/internal/soak"
	"github.com/kernelwright/kernelwright/llm"
)

func quiet(string) {}

// histories are what lived has made, by how many runs they have.
var histories sync.Map

// lived returns the path of a history that has something of everything. It is
// closed. Each size is made once.
func lived(t testing.TB, runs int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), FileName)
	made, found := histories.Load(runs)
	if !found {
		made = live(t, path, runs)
		histories.Store(runs, made)
	}
	ok(t, os.WriteFile(path, made.([]byte), 0o600))
	return path
}

// live makes a history at the path and returns the file.
func live(t testing.TB, path string, runs int) []byte {
	t.Helper()
	s, err := Open(path)
	ok(t, err)
	ctx := t.Context()
	ok(t, s.SaveDevice(ctx, kw.Device{Key: "d", Name: "a CPU"}))
	for i := range runs {
		task := kw.Task{Fingerprint: fmt.Sprintf("f%d", i%7), Name: "softmax", Source: fmt.Sprintf("class Model: # %d", i%7), Graph: []byte(`{"nodes":[]}`)}
		ok(t, s.SaveTask(ctx, task))
		run := must(s.Enqueue(ctx, kw.Run{Task: task.Fingerprint, TaskName: task.Name, DeviceKey: "d", Detail: fmt.Sprintf("detail %d", i)}, 0))(t)
		ok(t, s.Put(ctx, "reference", fmt.Sprint(run.ID), []byte(task.Source)))
		ok(t, s.SaveFile(ctx, File{Path: fmt.Sprintf("/x/%d.py", i), RunID: run.ID}))
		for _, r := range talkOf(run.ID, i) {
			ok(t, s.Append(ctx, r))
		}
		if i == runs-1 {
			continue // it waits
		}
		job, found, err := s.Claim(ctx, Self())
		if err != nil || !found {
			t.Fatal(found, err)
		}
		for index := range 6 {
			r := round(run.ID, index, []kw.Status{kw.Correct, kw.Wrong, kw.Correct}[index%3], float64(10-index))
			r.Candidate.Source += strings.Repeat(fmt.Sprintf("\n    line%d = %d", index, i), 40)
			r.Feedback = &kw.Feedback{Kind: kw.Optimisation, Plan: fmt.Sprintf("plan %d of %d", index, i)}
			ok(t, s.AppendRound(ctx, r))
		}
		exported := fmt.Sprintf("# exported %d", i)
		must(s.Book(ctx, llm.Charge{Key: llm.Key{Run: run.ID}, Model: "p:m", Usage: llm.Usage{In: 1}}))(t)
		ok(t, s.SetCertificate(ctx, run.ID, 5, kw.Verdict{Status: kw.Certified, CandidateMS: 2, Exported: exported, ExportedSHA256: kw.HashText(exported)}))
		if i == runs-2 {
			continue // it is under way
		}
		run.Status = kw.RunDone
		ok(t, s.Finish(ctx, job, run))
	}
	ok(t, s.Close())
	return must(os.ReadFile(path))(t)
}

func examine(t testing.TB, path string) Examination {
	t.Helper()
	return must(Examine(t.Context(), path, quiet))(t)
}

func TestASoundHistoryIsSoundAndSoIsItsCopy(t *testing.T) {
	path := lived(t, 9)
	before := must(os.ReadFile(path))(t)
	e := examine(t, path)
	if !e.Sound() || e.Rows["rounds"] != 48 || e.Rows["queue"] != 2 || e.Rows["calls"] != 27 || e.Rows["turns"] != 37 {
		t.Errorf("%+v", e)
	}
	to := filepath.Join(t.TempDir(), "new", FileName)
	out := must(Salvage(t.Context(), path, to, quiet))(t)
	for table, n := range e.Rows {
		if out.Kept[table] != n || out.Lost[table] != 0 {
			t.Errorf("%s: %d of %d kept, %d lost", table, out.Kept[table], n, out.Lost[table])
		}
	}
	if e := examine(t, to); !e.Sound() {
		t.Errorf("the copy: %+v", e.Faults)
	}
	if after := must(os.ReadFile(path))(t); !bytes.Equal(before, after) {
		t.Error("the original was changed")
	}
	if _, err := Salvage(t.Context(), path, to, quiet); err == nil || !strings.Contains(err.Error(), "there already") {
		t.Errorf("over a file: %v", err)
	}
	a, b := contents(t, path), contents(t, to)
	if a != b {
		t.Errorf("the copy has other contents:\n%s\n%s", a, b)
	}
}

// contents is everything that the methods tell of a history.
func contents(t testing.TB, path string) string {
	t.Helper()
	s, err := Open(path)
	ok(t, err)
	defer s.Close()
	ctx := t.Context()
	var all []any
	for _, r := range must(s.Runs(ctx, RunFilter{Limit: 1000}))(t) {
		task, _ := s.RunTask(ctx, r.ID)
		device, _ := s.RunDevice(ctx, r.ID)
		all = append(all, must(s.Run(ctx, r.ID))(t), must(s.Rounds(ctx, r.ID))(t), must(s.Calls(ctx, r.ID))(t), must(s.Spend(ctx, r.ID))(t), task, device)
	}
	all = append(all, must(s.Files(ctx))(t))
	for _, words := range []string{"softmax", "line3", "because", "plan 2", "say"} {
		all = append(all, len(must(s.Search(ctx, words, 1000))(t)))
	}
	return asJSON(t, all)
}

// Each thing that can be wrong is found, by its own name.
func TestExamineNamesWhatIsWrong(t *testing.T) {
	whole := must(os.ReadFile(lived(t, 9)))(t)
	for damage, says := range map[string]string{
		`UPDATE texts SET body = (SELECT body FROM texts WHERE id = 2) WHERE id = 3`:    "texts are damaged",
		`UPDATE texts SET body = x'00' WHERE id = 3`:                                    "texts are damaged",
		`UPDATE texts SET size = size + 1 WHERE id = 3`:                                 "texts are damaged",
		`DELETE FROM texts WHERE id = 3`:                                                "rows refer to rows that are not there",
		`DELETE FROM rounds WHERE run = 2 AND idx = 3`:                                  "runs lack a round between two others",
		`DELETE FROM rounds WHERE run = 2 AND idx = 0`:                                  "runs lack a round between two others",
		`UPDATE rounds SET task = 'other' WHERE run = 2`:                                "rounds name another task or device than their run",
		`UPDATE runs SET best = 0 WHERE id = 2`:                                         "runs name a best round that is not their best",
		`UPDATE runs SET best = NULL WHERE id = 2`:                                      "runs name a best round that is not their best",
		`UPDATE rounds SET standing = 2 WHERE run = 2 AND idx = 1`:                      "rounds do not stand as their verdicts say",
		`UPDATE certificates SET sha256 = 'ab' WHERE run = 2`:                           "certified kernels have no file or another one than they name",
		`DELETE FROM texts_fts WHERE rowid = (SELECT max(id) FROM texts WHERE indexed)`: "texts are missing from the search index",
		`INSERT INTO texts_fts (rowid, body) VALUES (9999, 'x')`:                        "entries of the search index have no text",
		`DELETE FROM queue`: "runs wait for a turn that they do not have",
		`UPDATE runs SET status = 'done' WHERE status = 'queued'`:                        "runs have a turn although they ended",
		`UPDATE turns SET before = (SELECT max(id) FROM turns) WHERE before IS NOT NULL`: "turns of a talk go on from later ones",
		`UPDATE calls SET follows = id WHERE id = 2`:                                     "calls follow later ones",
		`UPDATE calls SET run = 99 WHERE id = 1`:                                         "rows refer to rows that are not there",
		`PRAGMA writable_schema = 1; DELETE FROM sqlite_schema WHERE name = 'runs_name'`: "pages or indexes are damaged",
	} {
		t.Run(damage, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), FileName)
			ok(t, os.WriteFile(path, whole, 0o600))
			s, err := Open(path)
			ok(t, err)
			_, err = s.write.Exec(`PRAGMA foreign_keys = 0; ` + damage)
			ok(t, err)
			ok(t, s.Close())
			e := examine(t, path)
			if !slices.ContainsFunc(e.Faults, func(f Fault) bool { return f.What == says && f.Count > 0 }) {
				t.Errorf("want %q: %+v", says, e.Faults)
			}
			to := filepath.Join(t.TempDir(), FileName)
			must(Salvage(t.Context(), path, to, quiet))(t)
			if e := examine(t, to); !e.Sound() {
				t.Errorf("salvaged: %+v", e.Faults)
			}
		})
	}
}

// Pages are overwritten at random, or the end of the file is missing. What is
// salvaged is sound, and every round of it is one that was recorded.
func TestSalvageAroundDamage(t *testing.T) {
	path := lived(t, 30)
	whole := must(os.ReadFile(path))(t)
	s, err := Open(path)
	ok(t, err)
	recorded := map[string]bool{}
	for _, r := range must(s.Runs(t.Context(), RunFilter{Limit: 1000}))(t) {
		for _, round := range must(s.Rounds(t.Context(), r.ID))(t) {
			round.Certificate, round.CertifiedMS = nil, 0 // it may be lost
			round.Feedback = nil
			recorded[asJSON(t, round)] = true
		}
	}
	ok(t, s.Close())
	const page = 4096
	pages := len(whole) / page
	schema := pagesOf(t, path, "sqlite_schema") // without it nothing can be read
	best := 0
	seeds := uint64(4) // one of them with its end cut off
	if soak.Long() {
		seeds = 100
	}
	for seed := range seeds {
		if seed < 2 && !soak.Turn(t, 3*int(seed), 6) {
			continue // of these two each page that cannot be read is asked for row by row
		}
		rng := rand.New(rand.NewPCG(seed, 0))
		content := slices.Clone(whole)
		for range 1 + rng.IntN(pages/10) {
			n := 4 + rng.IntN(pages-4)
			if slices.Contains(schema, int64(n+1)) {
				continue
			}
			at := page * n
			for i := at; i < at+page; i++ {
				content[i] = byte(rng.Uint32())
			}
		}
		if seed%4 == 0 {
			content = content[:len(content)-page*rng.IntN(pages/2)]
		}
		dir := t.TempDir()
		path, to := filepath.Join(dir, FileName), filepath.Join(dir, "new.db")
		ok(t, os.WriteFile(path, content, 0o600))
		if e, err := Examine(t.Context(), path, quiet); err == nil && e.Sound() && !bytes.Equal(content, whole) {
			t.Logf("seed %d: only free pages were hit", seed)
		}
		out, err := Salvage(t.Context(), path, to, quiet)
		if after := must(os.ReadFile(path))(t); !bytes.Equal(content, after) {
			t.Fatalf("seed %d: the original was changed", seed)
		}
		var damaged *DamagedError
		if errors.As(err, &damaged) {
			continue // the schema is gone
		}
		ok(t, err)
		if e := examine(t, to); !e.Sound() {
			t.Errorf("seed %d: %+v", seed, e.Faults)
		}
		s, err := Open(to)
		ok(t, err)
		n := 0
		for _, r := range must(s.Runs(t.Context(), RunFilter{Limit: 1000}))(t) {
			for _, round := range must(s.Rounds(t.Context(), r.ID))(t) {
				round.Certificate, round.CertifiedMS, round.Feedback = nil, 0, nil
				if !recorded[asJSON(t, round)] {
					t.Errorf("seed %d: round %d of run %d was never recorded so", seed, round.Index, round.RunID)
				}
				n++
			}
		}
		ok(t, s.Close())
		if int64(n) != out.Kept["rounds"] {
			t.Errorf("seed %d: %d rounds, %d said", seed, n, out.Kept["rounds"])
		}
		best = max(best, n)
		if left, _ := filepath.Glob(filepath.Join(dir, ".salvage-*")); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
	if best < len(recorded)/2 {
		t.Errorf("at most %d of %d rounds were salvaged", best, len(recorded))
	}
}

// A damaged key may be any number, and a damaged inner page hides all below it:
// neither costs more than some seconds and some memory, and what can be read on
// both sides is found.
func TestAHugeKey(t *testing.T) {
	const huge = 1 << 60
	path := lived(t, 9)
	s, err := Open(path)
	ok(t, err)
	var before int64
	ok(t, s.read.QueryRow(`SELECT count(*) FROM texts`).Scan(&before))
	mark := strings.Repeat("a page of its own. ", 180)
	_, err = s.write.Exec(`INSERT INTO texts (id, hash, size, body, indexed) VALUES (?, x'00', 1, ?, 0)`, huge, []byte(mark))
	ok(t, err)
	_, err = s.write.Exec(`PRAGMA foreign_keys = 0; UPDATE verdicts SET text = ? WHERE id = 1`, huge)
	ok(t, err)
	ok(t, s.Close())
	whole := must(os.ReadFile(path))(t)
	const page = 4096
	at := bytes.Index(whole, []byte(mark)) / page * page
	for name, damage := range map[string]func([]byte){
		"a key that is there":    func([]byte) {},
		"a page with such a key": func(b []byte) { clear(b[at : at+page]) },
	} {
		t.Run(name, func(t *testing.T) {
			content := slices.Clone(whole)
			damage(content)
			dir := t.TempDir()
			path, to := filepath.Join(dir, FileName), filepath.Join(dir, "new.db")
			ok(t, os.WriteFile(path, content, 0o600))
			if e := examine(t, path); e.Sound() {
				t.Error("nothing was found")
			}
			out := must(Salvage(t.Context(), path, to, quiet))(t)
			if e := examine(t, to); !e.Sound() {
				t.Errorf("salvaged: %+v", e.Faults)
			}
			if kept := out.Kept["texts"]; kept < before-40 || kept > before {
				t.Errorf("%d of %d texts were salvaged", kept, before)
			}
		})
	}
}

// An examination is stopped at once, and a salvage leaves no half copy.
func TestExamineAndSalvageAreCancelled(t *testing.T) {
	path := lived(t, 5)
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := Examine(ctx, path, func(string) { cancel() }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	to := filepath.Join(t.TempDir(), "new.db")
	ctx, cancel = context.WithCancel(t.Context())
	if _, err := Salvage(ctx, path, to, func(string) { cancel() }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if left := must(os.ReadDir(filepath.Dir(to)))(t); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
