package store

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	kw "github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/llm"
)

var (
	_ forge.Recorder = (*Store)(nil)
	_ llm.Journal    = (*Store)(nil)
)

func TestMain(m *testing.M) {
	if path := os.Getenv("KERNELWRIGHT_STORE_TEST_WRITER"); path != "" {
		writeForEver(path)
	}
	if verb := os.Getenv(killedVerb); verb != "" {
		if err := killed(verb, os.Getenv(killedRecord), os.Getenv(killedCopy)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func openTest(t testing.TB) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), FileName))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func asJSON(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	ok(t, err)
	return string(b)
}

func newRun(t testing.TB, s *Store) kw.Run {
	t.Helper()
	return must(s.CreateRun(t.Context(), kw.Run{Task: "f", TaskName: "softmax", Device: "cpu", DeviceKey: "d", Strategy: "rounds"}))(t)
}

func round(run int64, index int, status kw.Status, ms float64) kw.Round {
	return kw.Round{RunID: run, Index: index, Candidate: kw.Candidate{Source: fmt.Sprintf("class ModelNew: # %d of %d", index, run), Language: kw.CPP},
		Verdict:   kw.Verdict{Status: status, Reason: "Because.", CandidateMS: ms, Metrics: map[string]float64{"core_use": 0.5, "threads": 2}},
		StartedMS: 1, FinishedMS: 2, OverheadMS: 0.25}
}

func TestMigratesFromEveryEarlierVersion(t *testing.T) {
	steps, err := migrations()
	ok(t, err)
	// A version that does not exist yet stands for the next one, so that the
	// way from the latest real version on is walked too.
	steps = append(steps, `CREATE TABLE future (x); INSERT INTO future VALUES (1);`)
	for from := 1; from < len(steps); from++ { // a file appears with version 1 in it
		t.Run(fmt.Sprintf("from %d", from), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), FileName)
			s, err := open(t.Context(), path, steps[:from], true)
			ok(t, err)
			_, err = s.write.Exec(`INSERT INTO cache (kind, key, value, created) VALUES ('k', 'v', x'', 1)`)
			ok(t, err)
			ok(t, s.Close())
			for range 2 { // the second time there is nothing to do
				s, err = open(t.Context(), path, steps, true)
				ok(t, err)
				var version, rows, kept int
				ok(t, s.read.QueryRow(`SELECT (SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM future), (SELECT count(*) FROM cache)`).Scan(&version, &rows, &kept))
				if version != len(steps) || rows != 1 || kept != 1 {
					t.Errorf("version %d, %d rows, %d kept", version, rows, kept)
				}
				ok(t, s.Close())
			}
			var newer *NewerError
			if _, err := Open(path); !errors.As(err, &newer) || newer.Version != len(steps) {
				t.Errorf("a newer version: %v", err)
			}
		})
	}
}

func TestAFailedMigrationChangesNothing(t *testing.T) {
	steps, err := migrations()
	ok(t, err)
	path := filepath.Join(t.TempDir(), FileName)
	if _, err := open(t.Context(), path, append(slices.Clone(steps), `CREATE TABLE half (x); CREATE TABLE half (x);`), true); err == nil {
		t.Fatal("it passed")
	}
	s, err := Open(path)
	ok(t, err)
	defer s.Close()
	var tables int
	ok(t, s.read.QueryRow(`SELECT count(*) FROM sqlite_schema WHERE name = 'half'`).Scan(&tables))
	if tables != 0 {
		t.Error("half of a migration stayed")
	}
}

func TestTwoOpenersMigrateOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), FileName)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			s, err := Open(path)
			if err != nil {
				t.Error(err)
				return
			}
			if err := s.Put(context.Background(), "k", "v", nil); err != nil {
				t.Error(err)
			}
			s.Close()
		})
	}
	wg.Wait()
}

func TestDamagedFilesAreLeftAlone(t *testing.T) {
	good := filepath.Join(t.TempDir(), FileName)
	s, err := Open(good)
	ok(t, err)
	run := newRun(t, s)
	for i := range 20 {
		ok(t, s.AppendRound(t.Context(), round(run.ID, i, kw.Correct, 1)))
	}
	ok(t, s.Close())
	whole, err := os.ReadFile(good)
	ok(t, err)
	foreign := filepath.Join(t.TempDir(), "foreign.db")
	db, err := sql.Open("sqlite", foreign)
	ok(t, err)
	_, err = db.Exec(`CREATE TABLE theirs (x)`)
	ok(t, err)
	db.Close()
	other, err := os.ReadFile(foreign)
	ok(t, err)
	scrambled := slices.Clone(whole)
	for i := 100; i < 4096; i++ {
		scrambled[i] ^= 0xa5
	}
	for name, content := range map[string][]byte{
		"empty": nil, "text": []byte("these are somebody's notes, and not a database at all"), "short": whole[:10], "cut": whole[:1000],
		"schema scrambled": scrambled, "another program": other,
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), FileName)
			ok(t, os.WriteFile(path, content, 0o600))
			s, err := Open(path)
			var damaged *DamagedError
			if !errors.As(err, &damaged) {
				t.Errorf("opened: %v", err)
			}
			if s != nil {
				s.Close()
			}
			if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, content) {
				t.Errorf("the file was changed: %v", err)
			}
		})
	}
	t.Run("damage further in is found when it is read", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), FileName)
		content := slices.Clone(whole)
		for i := len(content) / 4; i < len(content); i++ {
			content[i] ^= 0xa5
		}
		ok(t, os.WriteFile(path, content, 0o600))
		s, err := Open(path)
		if err != nil {
			return // found at once: as good
		}
		defer s.Close()
		if s.Check(t.Context()) == nil {
			t.Error("the check found nothing")
		}
		if _, err := s.Rounds(t.Context(), run.ID); err == nil {
			t.Error("the rounds were read")
		}
	})
}

func TestAnOddFolderName(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a folder with # and ?", FileName)
	s, err := Open(path)
	ok(t, err)
	ok(t, s.Close())
	ok(t, s.Close())
	if info, err := os.Stat(path); err != nil || info.Size() == 0 {
		t.Errorf("the database is elsewhere: %v", err)
	}
	if left := must(filepath.Glob(filepath.Join(filepath.Dir(path), ".new-*")))(t); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func drawVerdict(t *rapid.T, label string) kw.Verdict {
	number := rapid.Float64Range(0, 1e6)
	v := kw.Verdict{
		Status: rapid.SampledFrom([]kw.Status{kw.Correct, kw.Wrong, kw.Crashed, kw.Certified}).Draw(t, label+" status"),
		Reason: rapid.String().Draw(t, label+" reason"), Output: rapid.StringN(0, 50, 200).Draw(t, label+" output"),
		CandidateMS: number.Draw(t, label+" ms"), Headroom: number.Draw(t, label+" headroom"), Baselines: map[string]float64{},
		Metrics:  rapid.MapOfN(rapid.StringMatching(`[a-z_]{1,8}`), number, 0, 5).Draw(t, label+" metrics"),
		Evidence: rapid.SliceOf(rapid.String()).Draw(t, label+" evidence"),
		Exported: rapid.StringN(0, 40, 100).Draw(t, label+" exported"),
	}
	if rapid.Bool().Draw(t, label+" timed") {
		v.Speedup = &kw.Speedup{Value: number.Draw(t, label+" speedup"), Low: 1, High: 2, Against: "eager"}
	}
	return v
}

func TestRoundsRoundTrip(t *testing.T) {
	s := openTest(t)
	rapid.Check(t, func(rt *rapid.T) {
		ctx := context.Background()
		run, err := s.CreateRun(ctx, kw.Run{Task: rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "task"), DeviceKey: "d"})
		if err != nil {
			rt.Fatal(err)
		}
		var want []kw.Round
		for i := range rapid.IntRange(0, 5).Draw(rt, "rounds") {
			r := kw.Round{RunID: run.ID, Index: i, StartedMS: rapid.Int64().Draw(rt, "started"), FinishedMS: rapid.Int64().Draw(rt, "finished"),
				OverheadMS: rapid.Float64Range(0, 1e3).Draw(rt, "overhead"),
				Candidate:  kw.Candidate{Source: rapid.String().Draw(rt, "source"), Language: kw.CPP, Note: rapid.String().Draw(rt, "note")}, Verdict: drawVerdict(rt, "verdict")}
			if i > 0 && rapid.Bool().Draw(rt, "branched") {
				parent := rapid.IntRange(0, i-1).Draw(rt, "parent")
				r.Parent = &parent
			}
			if rapid.Bool().Draw(rt, "evaluated") {
				r.Feedback = &kw.Feedback{Kind: kw.Optimisation, Bottleneck: rapid.String().Draw(rt, "bottleneck"), Knobs: map[string]int{"tile": rapid.Int().Draw(rt, "tile")}}
			}
			for range rapid.IntRange(1, 2).Draw(rt, "times") { // again is fine
				if err := s.AppendRound(ctx, r); err != nil {
					rt.Fatal(err)
				}
			}
			if rapid.Bool().Draw(rt, "certify") {
				v := drawVerdict(rt, "certificate")
				r.Certificate = &v
				for range 2 {
					if err := s.SetCertificate(ctx, run.ID, i, v); err != nil {
						rt.Fatal(err)
					}
				}
			}
			want = append(want, r)
		}
		got, err := s.Rounds(ctx, run.ID)
		if err != nil || len(got) != len(want) {
			rt.Fatalf("%d rounds of %d: %v", len(got), len(want), err)
		}
		for i := range want {
			if got[i].CertifiedMS != 0 != (want[i].Certificate != nil) {
				rt.Fatalf("round %d: certified at %d", i, got[i].CertifiedMS)
			}
			got[i].CertifiedMS = 0
			a, err1 := json.Marshal(want[i])
			b, err2 := json.Marshal(got[i])
			if err1 != nil || err2 != nil || !bytes.Equal(a, b) {
				rt.Fatalf("round %d:\n%s\n%s", i, a, b)
			}
		}
		// The run's best is what a plain look at its rounds gives.
		best, rank := -1, func(r kw.Round) (int, float64) {
			switch {
			case r.Certificate != nil && r.Certificate.Status == kw.Certified:
				ms := r.Certificate.CandidateMS
				if ms == 0 {
					ms = r.Verdict.CandidateMS
				}
				return 2, ms
			case r.Certificate == nil && r.Verdict.Status.OK() && r.Verdict.CandidateMS > 0:
				return 1, r.Verdict.CandidateMS
			}
			return 0, 0
		}
		for i, r := range want {
			standing, ms := rank(r)
			if standing == 0 {
				continue
			}
			if best < 0 {
				best = i
			} else if s0, ms0 := rank(want[best]); standing > s0 || standing == s0 && ms < ms0 {
				best = i
			}
		}
		full, err := s.Run(ctx, run.ID)
		if err != nil || (full.Best == nil) != (best < 0) || full.Best != nil && full.Best.Index != best {
			rt.Fatalf("best is %+v, want %d: %v", full.Best, best, err)
		}
	})
	ok(t, s.Check(t.Context()))
}

func TestAppendRoundRefuses(t *testing.T) {
	s := openTest(t)
	run := newRun(t, s)
	r := round(run.ID, 0, kw.Correct, 1)
	ok(t, s.AppendRound(t.Context(), r))
	other := r
	other.Verdict.CandidateMS = 2
	var conflict *ConflictError
	if err := s.AppendRound(t.Context(), other); !errors.As(err, &conflict) {
		t.Errorf("other content: %v", err)
	}
	if err := s.AppendRound(t.Context(), round(run.ID, 2, kw.Correct, 1)); err == nil || !strings.Contains(err.Error(), "next round is 1") {
		t.Errorf("gap: %v", err)
	}
	if err := s.AppendRound(t.Context(), round(99, 0, kw.Correct, 1)); !errors.Is(err, ErrNotFound) {
		t.Errorf("no run: %v", err)
	}
	if err := s.SetCertificate(t.Context(), run.ID, 5, kw.Verdict{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("no round: %v", err)
	}
	ok(t, s.SetCertificate(t.Context(), run.ID, 0, kw.Verdict{Status: kw.Certified}))
	if err := s.SetCertificate(t.Context(), run.ID, 0, kw.Verdict{Status: kw.Wrong}); !errors.As(err, &conflict) {
		t.Errorf("another certificate: %v", err)
	}
	moved := run
	moved.Task = "other"
	if err := s.UpdateRun(t.Context(), moved); err == nil {
		t.Error("a run with rounds changed its task")
	}
	if m := must(s.Metric(t.Context(), run.ID, "threads"))(t); len(m) != 1 || m[0] != 2 {
		t.Errorf("metric: %v", m)
	}
}

func TestBest(t *testing.T) {
	s, ctx := openTest(t), t.Context()
	if _, err := s.Best(ctx, "f", "", "d"); !errors.Is(err, ErrNotFound) {
		t.Errorf("nothing there: %v", err)
	}
	a, b := newRun(t, s), newRun(t, s)
	ok(t, s.AppendRound(ctx, round(a.ID, 0, kw.Wrong, 0.1)))
	ok(t, s.AppendRound(ctx, round(a.ID, 1, kw.Correct, 3)))
	ok(t, s.AppendRound(ctx, round(b.ID, 0, kw.Correct, 2)))
	if r := must(s.Best(ctx, "f", "", "d"))(t); r.RunID != b.ID {
		t.Errorf("fastest correct: %+v", r)
	}
	ok(t, s.SetCertificate(ctx, a.ID, 1, kw.Verdict{Status: kw.Certified, CandidateMS: 3.1, ExportedSHA256: "abc", Exported: "import torch"}))
	if r := must(s.Best(ctx, "f", "", "d"))(t); r.RunID != a.ID || r.Certificate == nil || r.Certificate.Exported != "import torch" {
		t.Errorf("certified goes first: %+v", r)
	}
	ok(t, s.SetCertificate(ctx, b.ID, 0, kw.Verdict{Status: kw.Wrong}))
	if r := must(s.Run(ctx, b.ID))(t); r.Best != nil {
		t.Errorf("its certification failed: %+v", r.Best)
	}
	if r := must(s.ByExport(ctx, "abc"))(t); r.RunID != a.ID {
		t.Errorf("by export: %+v", r)
	}
	if _, err := s.Best(ctx, "f", "", "another device"); !errors.Is(err, ErrNotFound) {
		t.Errorf("another device: %v", err)
	}
	runs := must(s.Runs(ctx, RunFilter{}))(t)
	if len(runs) != 2 || runs[0].ID != b.ID || runs[1].Best.Certificate.CandidateMS != 3.1 || runs[1].Best.Verdict.CandidateMS != 3 {
		t.Errorf("%s", asJSON(t, runs))
	}
}

func TestRunsFilterAndPage(t *testing.T) {
	s, ctx := openTest(t), t.Context()
	for i := range 7 {
		r := kw.Run{Task: fmt.Sprint(i % 2), TaskName: "n", Path: fmt.Sprint("/p", i), DeviceKey: "d", Detail: "a traceback", Settings: "{}", Seed: int64(i)}
		created := must(s.CreateRun(ctx, r))(t)
		if i == 3 {
			created.Status, created.Reason, created.FinishedMS = kw.RunDone, "r", 9
			ok(t, s.UpdateRun(ctx, created))
		}
	}
	ids := func(f RunFilter) (ids []int64) {
		for _, r := range must(s.Runs(ctx, f))(t) {
			ids = append(ids, r.ID)
		}
		return ids
	}
	for _, c := range []struct {
		filter RunFilter
		want   []int64
	}{
		{RunFilter{Limit: 3}, []int64{7, 6, 5}},
		{RunFilter{Limit: 3, Before: 5}, []int64{4, 3, 2}},
		{RunFilter{Task: "1"}, []int64{6, 4, 2}},
		{RunFilter{Status: kw.RunDone}, []int64{4}},
		{RunFilter{Path: "/p2"}, []int64{3}},
		{RunFilter{Name: "n", DeviceKey: "d", Task: "0", Before: 6}, []int64{5, 3, 1}},
		{RunFilter{Name: "x"}, nil},
	} {
		if got := ids(c.filter); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v, want %v", c.filter, got, c.want)
		}
	}
	r := must(s.Run(ctx, 4))(t)
	if r.Detail != "a traceback" || r.Status != kw.RunDone || r.Seed != 3 || r.Path != "/p3" {
		t.Errorf("%+v", r)
	}
	if _, err := s.Run(ctx, 99); !errors.Is(err, ErrNotFound) {
		t.Errorf("no such run: %v", err)
	}
	if err := s.UpdateRun(ctx, kw.Run{ID: 99}); !errors.Is(err, ErrNotFound) {
		t.Errorf("no such run: %v", err)
	}
}

func TestWorked(t *testing.T) {
	s, ctx := openTest(t), t.Context()
	for _, r := range []kw.Run{
		{Task: "a", TaskName: "n", Path: "/p", DeviceKey: "d1"}, {Task: "b", TaskName: "n", Path: "/p", DeviceKey: "d1"},
		{Task: "a", TaskName: "n", Path: "/p", DeviceKey: "d2"}, {Task: "a", TaskName: "n", Path: "/q", DeviceKey: "d1"},
		{Task: "", TaskName: "n", Path: "/p"}, {Task: "c", TaskName: "other", Path: "/r", DeviceKey: "d1"},
	} {
		must(s.CreateRun(ctx, r))(t)
	}
	for _, tt := range []struct {
		f    RunFilter
		want []Worked
	}{
		{RunFilter{Name: "n"}, []Worked{{"a", "", "d1", 4}, {"a", "", "d2", 3}, {"b", "", "d1", 2}}},
		{RunFilter{Path: "/p"}, []Worked{{"a", "", "d2", 3}, {"b", "", "d1", 2}, {"a", "", "d1", 1}}},
		{RunFilter{Task: "a"}, []Worked{{"a", "", "d1", 4}, {"a", "", "d2", 3}}},
		{RunFilter{Name: "nobody's"}, nil},
	} {
		if got := must(s.Worked(ctx, tt.f))(t); !slices.Equal(got, tt.want) {
			t.Errorf("%+v: %v", tt.f, got)
		}
	}
}

func TestARunKeepsItsTaskAndDevice(t *testing.T) {
	s, ctx := openTest(t), t.Context()
	task := kw.Task{Fingerprint: "f", Name: "softmax", Source: "class Model: pass", Graph: []byte(`{"nodes":[]}`), Inputs: []kw.TensorSpec{{Shape: []int{2}, DType: "float32"}}, EagerMS: 1}
	device := kw.Device{Kind: kw.CPUDevice, Key: "d", Ceilings: kw.Ceilings{MemoryGBs: 10}}
	ok(t, s.SaveTask(ctx, task))
	ok(t, s.SaveDevice(ctx, device))
	run := newRun(t, s)
	ok(t, s.AppendRound(ctx, round(run.ID, 0, kw.Correct, 1)))
	later, faster := task, device
	later.EagerMS, faster.Ceilings.MemoryGBs = 2, 20
	ok(t, s.SaveTask(ctx, later))
	ok(t, s.SaveDevice(ctx, faster))
	run.Status = kw.RunDone
	ok(t, s.UpdateRun(ctx, run))
	if got := must(s.RunTask(ctx, run.ID))(t); asJSON(t, got) != asJSON(t, task) {
		t.Errorf("%+v", got)
	}
	if got := must(s.Task(ctx, "f"))(t); asJSON(t, got) != asJSON(t, later) {
		t.Errorf("%+v", got)
	}
	if got := must(s.RunDevice(ctx, run.ID))(t); asJSON(t, got) != asJSON(t, device) {
		t.Errorf("%+v", got)
	}
	if got := must(s.Device(ctx, "d"))(t); asJSON(t, got) != asJSON(t, faster) {
		t.Errorf("%+v", got)
	}
	if all := must(s.Devices(ctx))(t); len(all) != 1 {
		t.Errorf("%+v", all)
	}
	if _, err := s.Task(ctx, "none"); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
}

func TestARunIsDoneAnew(t *testing.T) {
	s, ctx := openTest(t), t.Context()
	file := File{Path: "/a.py", Hash: "h"}
	first := must(s.Enqueue(ctx, kw.Run{Task: "f", Path: "/a.py"}, 7, WithReference("text"), WithFile(file), WithOwed("/b.py")))(t)
	ok(t, s.SaveFile(ctx, File{Path: "/b.py", Hash: "h", RunID: first.ID}))
	job, _, err := s.Claim(ctx, Self())
	ok(t, err)
	first.Status = kw.RunFailed
	if _, err := s.Repeat(ctx, Job{ID: job.ID, RunID: first.ID + 1}, first, kw.Run{}, nil); err == nil {
		t.Error("a job is for its run")
	}
	again := must(s.Repeat(ctx, job, first, kw.Run{Path: "/a.py"}, func(by int64) string { return fmt.Sprint("see ", by) }))(t)
	if r := must(s.Run(ctx, first.ID))(t); r.Status != kw.RunFailed || r.Reason != fmt.Sprint("see ", again.ID) {
		t.Errorf("%+v", r)
	}
	for _, path := range []string{"/a.py", "/b.py"} {
		if f, _, err := s.File(ctx, path); err != nil || f.RunID != again.ID {
			t.Errorf("%+v, %v", f, err)
		}
	}
	if owed := must(s.Owed(ctx, "/b.py"))(t); owed != again.ID {
		t.Errorf("run %d is owed", owed)
	}
	if text, found, err := s.Reference(ctx, again.ID); text != "text" || !found || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	next, found, err := s.Claim(ctx, Self())
	if err != nil || !found || next.RunID != again.ID || next.Priority != 7 || next.Attempts != 2 {
		t.Errorf("%+v, %v, %v", next, found, err)
	}

	// The file has changed meanwhile, and its new content has a run of its own.
	ok(t, s.SaveFile(ctx, File{Path: "/a.py", Hash: "new", RunID: 99}))
	ok(t, s.SaveFile(ctx, File{Path: "/b.py", Hash: "new", RunID: 99}))
	again.Status = kw.RunFailed
	none := must(s.Repeat(ctx, next, again, kw.Run{Path: "/a.py"}, func(by int64) string { return fmt.Sprint("see ", by) }))(t)
	if r := must(s.Run(ctx, again.ID))(t); none.ID != 0 || r.Reason != "see 0" {
		t.Errorf("%+v, %+v", none, r)
	}
	if waiting, claimed, err := s.QueueLength(ctx); waiting+claimed != 0 || err != nil {
		t.Errorf("%d and %d, %v", waiting, claimed, err)
	}
}

func TestQueue(t *testing.T) {
	s, ctx := openTest(t), t.Context()
	now := time.UnixMilli(5000)
	s.now = func() time.Time { return now }
	var ids []int64
	for _, priority := range []int{0, 5, 0} {
		ids = append(ids, must(s.Enqueue(ctx, kw.Run{Task: "f"}, priority))(t).ID)
	}
	claim := func(owner string) Job {
		t.Helper()
		j, found, err := s.Claim(ctx, owner)
		if err != nil || !found {
			t.Fatalf("claim: %v %v", found, err)
		}
		return j
	}
	a := claim("dead")
	b := claim(Self())
	if a.RunID != ids[1] || b.RunID != ids[0] || a.Attempts != 1 {
		t.Fatalf("order: %+v %+v", a, b)
	}
	if r := must(s.Run(ctx, a.RunID))(t); r.Status != kw.RunRunning || r.StartedMS != 5000 {
		t.Errorf("%+v", r)
	}
	if n := must(s.Recover(ctx, Alive))(t); n != 1 {
		t.Errorf("%d recovered, want the dead one's only", n)
	}
	if again := claim(Self()); again.RunID != a.RunID || again.Attempts != 2 {
		t.Errorf("%+v", again)
	} else {
		ok(t, s.Retry(ctx, again, 4*time.Second))
	}
	ok(t, s.Return(ctx, b))
	if again := claim(Self()); again.RunID != b.RunID || again.Attempts != 1 {
		t.Errorf("returned: %+v", again)
	} else {
		ok(t, s.Hold(ctx, again, "it waits", "mend it"))
	}
	if r := must(s.Run(ctx, b.RunID))(t); r.Status != kw.RunQueued || r.Reason != "it waits" || r.Hint != "mend it" {
		t.Errorf("held: %+v", r)
	}
	if again := claim(Self()); again.RunID != b.RunID || again.Attempts != 1 {
		t.Errorf("held: %+v", again)
	}
	if r := must(s.Run(ctx, b.RunID))(t); r.Status != kw.RunRunning || r.Reason+r.Hint != "" {
		t.Errorf("claimed again: %+v", r)
	}
	if waited := must(s.Supersede(ctx, ids[2], "changed"))(t); !waited {
		t.Error("a waiting job was not taken off")
	}
	if r := must(s.Run(ctx, ids[2]))(t); r.Status != kw.RunFailed || r.Reason != "changed" || r.FinishedMS != 5000 {
		t.Errorf("%+v", r)
	}
	if waited := must(s.Supersede(ctx, ids[0], "changed"))(t); waited {
		t.Error("a claimed job was taken off")
	}
	if _, found, err := s.Claim(ctx, Self()); found || err != nil {
		t.Errorf("before its time: %v %v", found, err)
	}
	now = time.UnixMilli(9000)
	last := claim(Self())
	r := must(s.Run(ctx, last.RunID))(t)
	if r.StartedMS != 5000 {
		t.Errorf("started again at %d", r.StartedMS)
	}
	r.Status = kw.RunDone
	if err := s.Finish(ctx, b, r); err == nil {
		t.Error("finished another job's run")
	}
	ok(t, s.Finish(ctx, last, r))
	if waiting, claimed, err := s.QueueLength(ctx); waiting != 0 || claimed != 1 || err != nil {
		t.Errorf("%d %d %v", waiting, claimed, err)
	}
	if r := must(s.Run(ctx, last.RunID))(t); r.Status != kw.RunDone {
		t.Errorf("%+v", r)
	}
}

// A run that comes to nothing again and again lets others go first; one death
// it is forgiven, and a recorded round makes good for all.
func TestAFruitlessRunWaitsBehindOthers(t *testing.T) {
	s, ctx := openTest(t), t.Context()
	first := must(s.Enqueue(ctx, kw.Run{Task: "f", DeviceKey: "d"}, 0))(t).ID
	second := must(s.Enqueue(ctx, kw.Run{Task: "g", DeviceKey: "d"}, 0))(t).ID
	die := func(want int64, attempts int) Job {
		t.Helper()
		j, found, err := s.Claim(ctx, "dead")
		if err != nil || !found || j.RunID != want || j.Attempts != attempts {
			t.Fatalf("%+v %v %v, want run %d", j, found, err, want)
		}
		must(s.Recover(ctx, Alive))(t)
		return j
	}
	die(first, 1)
	die(first, 2)
	die(second, 1)
	j := die(second, 2)
	die(first, 3)
	ok(t, s.AppendRound(ctx, round(second, 0, kw.Correct, 1)))
	if n := must(s.Attempts(ctx, j))(t); n != 0 {
		t.Errorf("%d attempts after a round", n)
	}
	die(second, 1)
	die(second, 2)
	die(second, 3)
}

// The clock may be set while a run waits for another attempt: by a day back it
// is due at once, by a day forward too, and neither changes the order.
func TestTheQueueOutlivesAClockThatIsSet(t *testing.T) {
	for _, jump := range []time.Duration{-24 * time.Hour, 24 * time.Hour, -time.Minute} {
		s, ctx := openTest(t), t.Context()
		now := time.UnixMilli(1_790_000_000_000)
		s.now = func() time.Time { return now }
		first := must(s.Enqueue(ctx, kw.Run{Task: "f"}, 0))(t).ID
		j, _, err := s.Claim(ctx, Self())
		ok(t, err)
		ok(t, s.Retry(ctx, j, 10*time.Second))
		if _, found, err := s.Claim(ctx, Self()); found || err != nil {
			t.Errorf("claimed before its pause was over: %v", err)
		}
		now = now.Add(jump)
		second := must(s.Enqueue(ctx, kw.Run{Task: "g"}, 0))(t).ID
		for _, want := range []int64{first, second} {
			if j, found, err := s.Claim(ctx, Self()); !found || err != nil || j.RunID != want {
				t.Errorf("after %v: %+v %v %v, want run %d", jump, j, found, err, want)
			}
		}
	}
}

// A run, the text that it is about and the file that it is for are recorded
// together or not at all.
func TestARunIsRecordedWithWhatItNeeds(t *testing.T) {
	s, ctx := openTest(t), t.Context()
	r := must(s.Enqueue(ctx, kw.Run{Task: "f"}, 0, WithReference("text"), WithFile(File{Path: "/a", Hash: "h"}), WithOwed("/a")))(t)
	if text, found, err := s.Reference(ctx, r.ID); text != "text" || !found || err != nil {
		t.Errorf("%q %v %v", text, found, err)
	}
	if f, found, err := s.File(ctx, "/a"); f.RunID != r.ID || !found || err != nil {
		t.Errorf("%+v %v %v", f, found, err)
	}
	if id := must(s.Owed(ctx, "/a"))(t); id != r.ID {
		t.Errorf("owed: %d", id)
	}
	ok(t, s.Settle(ctx, "/a"))
	if id := must(s.Owed(ctx, "/a"))(t); id != 0 {
		t.Errorf("still owed: %d", id)
	}
	torn := errors.New("the process died here")
	_, err := s.Enqueue(ctx, kw.Run{Task: "g"}, 0, WithReference("other"), WithFile(File{Path: "/b", Hash: "i"}),
		func(context.Context, *Store, *sql.Tx, int64) error { return torn })
	if !errors.Is(err, torn) {
		t.Fatal(err)
	}
	if _, found, err := s.File(ctx, "/b"); found || err != nil {
		t.Errorf("the file of a run that is not there: %v", err)
	}
	if waiting, _, err := s.QueueLength(ctx); waiting != 1 || err != nil {
		t.Errorf("%d wait, %v", waiting, err)
	}
}

func TestOneJobOneOwner(t *testing.T) {
	s := openTest(t)
	const jobs = 40
	for range jobs {
		must(s.Enqueue(t.Context(), kw.Run{}, 0))(t)
	}
	var mu sync.Mutex
	seen := map[int64]int{}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for {
				j, found, err := s.Claim(context.Background(), fmt.Sprint(i))
				if err != nil {
					t.Error(err)
				}
				if !found {
					return
				}
				mu.Lock()
				seen[j.RunID]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for id, n := range seen {
		if n != 1 {
			t.Errorf("run %d was claimed %d times", id, n)
		}
	}
	if len(seen) != jobs {
		t.Errorf("%d jobs of %d", len(seen), jobs)
	}
}

func TestAlive(t *testing.T) {
	if !Alive(Self()) {
		t.Error("this process is not alive")
	}
	for _, name := range []string{"", "x", "0@1@b", "-1@2@3", strings.Replace(Self(), "@", "@1", 1)} {
		if Alive(name) {
			t.Errorf("%q is alive", name)
		}
	}
}

func TestFilesFencesAndCache(t *testing.T) {
	s, ctx := openTest(t), t.Context()
	f := File{Path: "/a/softmax.py", Hash: "h", Size: 3, ModTimeNS: 1 << 60, Fingerprint: "f", RunID: 2, SeenMS: 8}
	ok(t, s.SaveFile(ctx, f))
	copied := f
	copied.Path = "/b/copy.py"
	ok(t, s.SaveFile(ctx, copied))
	if got, found, err := s.File(ctx, f.Path); got != f || !found || err != nil {
		t.Errorf("%+v %v %v", got, found, err)
	}
	if got := must(s.FilesByHash(ctx, "h"))(t); len(got) != 2 {
		t.Errorf("%+v", got)
	}
	ok(t, s.ForgetFile(ctx, f.Path))
	if _, found, err := s.File(ctx, f.Path); found || err != nil {
		t.Errorf("forgotten: %v %v", found, err)
	}
	if got := must(s.Files(ctx))(t); len(got) != 1 || got[0] != copied {
		t.Errorf("%+v", got)
	}
	for want := range int64(3) {
		if got := must(s.NextFence(ctx, "cpu"))(t); got != want+1 {
			t.Errorf("fence %d, want %d", got, want+1)
		}
	}
	if got := must(s.NextFence(ctx, "cuda:0"))(t); got != 1 {
		t.Errorf("another device's fence: %d", got)
	}
	for _, value := range [][]byte{{}, []byte("x"), bytes.Repeat([]byte("long "), 1e5)} {
		ok(t, s.Put(ctx, "verdict", "k", value))
		if got, found, err := s.Get(ctx, "verdict", "k"); !bytes.Equal(got, value) || !found || err != nil {
			t.Errorf("%d bytes: %v %v", len(got), found, err)
		}
	}
	if _, found, err := s.Get(ctx, "other", "k"); found || err != nil {
		t.Errorf("%v %v", found, err)
	}
	if n := must(s.Forget(ctx, "verdict", 1<<60))(t); n != 1 {
		t.Errorf("forgot %d", n)
	}
}

func TestSearch(t *testing.T) {
	s, ctx := openTest(t), t.Context()
	ok(t, s.SaveTask(ctx, kw.Task{Fingerprint: "f", Name: "softmax", Source: "import torch\nclass Model: return torch.softmax(x)\n"}))
	run := newRun(t, s)
	r := round(run.ID, 0, kw.BuildFailed, 0)
	r.Candidate.Source = "lib = native('_mm256_fmadd_ps')\n" + strings.Repeat("x", 300)
	r.Verdict.Build.Errors = []kw.Diagnostic{{Line: 3, Message: "expected semicolon"}}
	r.Feedback = &kw.Feedback{Kind: kw.Correction, Issue: "a missing semicolon", Why: "w", Fix: "put it there"}
	ok(t, s.AppendRound(ctx, r))
	ok(t, s.Append(ctx, llm.Record{Key: llm.Key{Run: run.ID, Agent: "coder"}, Model: "p:m",
		Request: llm.Request{Messages: []llm.Message{{Role: llm.User, Text: "please use Ärmel"}}},
		Reply:   llm.Reply{Text: "sleeves", Reasoning: "he means a garment", ToolCalls: []llm.ToolCall{{Name: "write", Arguments: `{"text": "a\nsewn\tseam"}`}}}}))
	kinds := func(query string) string {
		var kinds []string
		for _, h := range must(s.Search(ctx, query, 0))(t) {
			kinds = append(kinds, h.Kind)
			if len(h.Excerpt) > maxExcerpt || strings.Contains(h.Excerpt, "\n") {
				t.Errorf("excerpt %q", h.Excerpt)
			}
		}
		slices.Sort(kinds)
		return strings.Join(kinds, " ")
	}
	for query, want := range map[string]string{
		"softmax": "task", "_mm256_fmadd_ps": "candidate", "_mm256*": "candidate", "semicolon": "feedback verdict", "missing semicolon": "feedback",
		"ärmel": "message", "sleeves": "message", "garment": "message", "sewn": "message", "nowhere": "", "": "", "*": "", `"`: "", `softmax" OR "x`: "", "NEAR(": "", "softmax\x00": "task", "torch softmax": "task",
	} {
		if got := kinds(query); got != want {
			t.Errorf("%q: %q, want %q", query, got, want)
		}
	}
}

// A beginning finds what its words do, also of a history that is written to meanwhile, and
// beside words and what is none.
func TestSearchOfBeginnings(t *testing.T) {
	s, ctx := openTest(t), t.Context()
	run := newRun(t, s)
	for i := range 40 {
		r := round(run.ID, i, kw.Wrong, 0)
		r.Candidate.Source = fmt.Sprintf("class ModelNew: zeta%d zebra_%d %s", i%5, i, []string{"Zett", "zänk", "zeta"}[i%3])
		ok(t, s.AppendRound(ctx, r))
		for _, query := range []string{"zet*", "ze*", "zebra_*", "ZETA*", "zett*", "none*", "zä*", "z-*", "zeta1* zebra_*", "zet* ze*", "zebra_1* class", "-- zett*", "zeta * zett*", "class* modelnew"} {
			var want []string
			for _, word := range strings.Fields(query) {
				if stem, prefix := strings.CutSuffix(word, "*"); prefix && stem != "" {
					want = append(want, quotedWord(stem)+"*")
				} else if stem != "" {
					want = append(want, quotedWord(stem))
				}
			}
			ids := func(match string) []string {
				return must(scanNames(s.read.Query(`SELECT rowid FROM texts_fts WHERE texts_fts MATCH ? ORDER BY rowid`, match)))(t)
			}
			match := must(s.ftsMatch(ctx, query))(t)
			if have, want := ids(match), ids(strings.Join(want, " ")); !slices.Equal(have, want) {
				t.Fatalf("%s after %d: %v by %s, not %v", query, i, have, match, want)
			}
		}
	}
	if match := must(s.ftsMatch(ctx, "zett*"))(t); match != `("zett")` {
		t.Error(match)
	}
	if match := must(s.ftsMatch(ctx, "zebra_*"))(t); match != `"zebra_"*` { // forty words
		t.Error(match)
	}
}

// The list of words is that of the index, of a history that was there before it too.
func TestWordsOfTheIndex(t *testing.T) {
	path := filepath.Join(t.TempDir(), FileName)
	s := must(Open(path))(t)
	run := newRun(t, s)
	for i, text := range []string{
		"Softmax_2 2d f32x4", "Ärmel zänk naïve e\u0301te\u0301 \u212aelvin", "x\ue000y 漢字 Ωmega a\u00adb", strings.Repeat("w", 3000) + "-A_1.b_",
		"softmax를 softmaxが tất ǟx ǆ й xй ﬁne ß ẞ tİ a\u0330b a\u0332b a\u0489b", "ñ ñandú Ÿ ơn ưa ćma łąka øre \U0001d400b",
	} {
		r := round(run.ID, i, kw.Wrong, 0)
		r.Candidate.Source = text
		ok(t, s.AppendRound(t.Context(), r))
	}
	ok(t, s.Close())
	lists := func() (have, want []string) {
		db := tampered(t, path)
		changeQuietly(t, db, `CREATE VIRTUAL TABLE temp.indexed_words USING fts5vocab(main, texts_fts, row)`)
		have = must(scanNames(db.Query(`SELECT word FROM texts_words ORDER BY 1`)))(t)
		want = must(scanNames(db.Query(`SELECT term FROM temp.indexed_words WHERE term NOT GLOB '[0-9]*' UNION SELECT '' ORDER BY 1`)))(t)
		ok(t, db.Close())
		return have, want
	}
	have, want := lists()
	if len(want) < 30 || !slices.Equal(have, want) {
		t.Errorf("the words are %q, not %q", have, want)
	}
	db := tampered(t, path)
	changeQuietly(t, db, `DROP TABLE texts_words`)
	changeQuietly(t, db, `PRAGMA user_version = 23`)
	ok(t, db.Close())
	ok(t, must(Open(path))(t).Close())
	if have, want := lists(); !slices.Equal(have, want) {
		t.Errorf("after the migration the words are %q, not %q", have, want)
	}
}

// A history whose search index is damaged is opened, and told of.
func TestWordsOfADamagedIndex(t *testing.T) {
	path := filepath.Join(t.TempDir(), FileName)
	s := must(Open(path))(t)
	run := newRun(t, s)
	ok(t, s.AppendRound(t.Context(), round(run.ID, 0, kw.Wrong, 0)))
	ok(t, s.Close())
	db := tampered(t, path)
	changeQuietly(t, db, `DROP TABLE texts_words`)
	changeQuietly(t, db, `UPDATE texts_fts_data SET block = x'0000' WHERE id > 10`)
	changeQuietly(t, db, `PRAGMA user_version = 23`)
	ok(t, db.Close())
	s = must(OpenToRead(path))(t)
	defer s.Close()
	if rounds := must(s.Rounds(t.Context(), run.ID))(t); len(rounds) != 1 {
		t.Errorf("%d rounds", len(rounds))
	}
	var damaged *DamagedError
	if err := s.Usable(); !errors.As(err, &damaged) {
		t.Errorf("%v", err)
	}
}

// What failed is found: by what it says, by why, and by how far it came.
func TestSearchOfWhatFailed(t *testing.T) {
	s, ctx := openTest(t), t.Context()
	run := newRun(t, s)
	broken := round(run.ID, 0, kw.BuildFailed, 0)
	broken.Verdict.Reason, broken.Verdict.Build.Log = "it does not compile", "ptxas fatal: out of registers"
	broken.Feedback = &kw.Feedback{Kind: kw.Correction, Issue: "i", Why: "w", Fix: "f", Unusable: "it answered in rhymes"}
	wrong := round(run.ID, 1, kw.Wrong, 0)
	wrong.Verdict.Reason, wrong.Verdict.Evidence = "wrong on family planted", []string{"element [3, 1] is nan"}
	passed, kept := round(run.ID, 2, kw.Correct, 2), round(run.ID, 3, kw.Correct, 1)
	for _, r := range []kw.Round{broken, wrong, passed, kept} {
		ok(t, s.AppendRound(ctx, r))
	}
	refusal := kw.Verdict{Status: kw.Cheated, Level: kw.Certify, Reason: "it kept an output of an earlier call"}
	ok(t, s.SetCertificate(ctx, run.ID, 2, refusal))
	ok(t, s.SetCertificate(ctx, run.ID, 3, kw.Verdict{Status: kw.Certified, Level: kw.Certify, CandidateMS: 1}))
	bad, err := s.CreateRun(ctx, kw.Run{TaskName: "bad", Status: kw.RunInvalid, Reason: "get_inputs() gives a string", Hint: "let it give tensors", Detail: "Traceback\n  TypeError: quagga"})
	ok(t, err)
	for _, c := range []struct {
		query Query
		want  string
	}{
		{Query{Words: "ptxas"}, "verdict 1/0 build_failed"},
		{Query{Words: "rhymes"}, "feedback 1/0 build_failed"},
		{Query{Words: "nan"}, "verdict 1/1 wrong"},
		{Query{Words: "earlier call"}, "certificate 1/2 correct cheated"},
		{Query{Words: "get_inputs()"}, fmt.Sprintf("run %d/-1", bad.ID)},
		{Query{Words: "STRING tens*"}, fmt.Sprintf("run %d/-1", bad.ID)},
		{Query{Words: "strin"}, ""},
		{Query{Words: "quagga"}, fmt.Sprintf("run %d/-1", bad.ID)},
		{Query{Words: "gives", Statuses: []kw.Status{kw.Wrong}}, ""},
		{Query{Statuses: []kw.Status{kw.Wrong}}, "verdict 1/1 wrong"},
		{Query{Statuses: []kw.Status{kw.BuildFailed, kw.Cheated}}, "verdict 1/2 correct cheated; verdict 1/0 build_failed"},
		{Query{Statuses: []kw.Status{kw.Correct}}, "verdict 1/2 correct cheated"},
		{Query{Statuses: []kw.Status{kw.Certified}}, "verdict 1/3 certified"},
		{Query{Words: "family", Statuses: []kw.Status{kw.Wrong}}, "verdict 1/1 wrong"},
		{Query{Words: "family", Statuses: []kw.Status{kw.Crashed}}, ""},
		{Query{Statuses: []kw.Status{kw.BuildFailed, kw.Wrong}, Limit: 1}, "verdict 1/1 wrong"},
	} {
		var got []string
		for _, h := range must(s.Find(ctx, c.query))(t) {
			got = append(got, strings.TrimSpace(fmt.Sprintf("%s %d/%d %s %s", h.Kind, h.RunID, h.Round, h.Status, h.Refused)))
		}
		if strings.Join(got, "; ") != c.want {
			t.Errorf("%+v: %q, want %q", c.query, got, c.want)
		}
	}
}

// More of a text's places than are shown do not hide the one that is asked for.
func TestSearchPastManyPlaces(t *testing.T) {
	s, ctx := openTest(t), t.Context()
	run := newRun(t, s)
	for i := range 20 {
		status := kw.Wrong
		if i == 19 {
			status = kw.Crashed
		}
		r := round(run.ID, i, status, 0)
		r.Candidate.Source = "the same everywhere"
		ok(t, s.AppendRound(ctx, r))
	}
	found := must(s.Find(ctx, Query{Words: "everywhere", Statuses: []kw.Status{kw.Crashed}}))(t)
	if len(found) != 1 || found[0].Round != 19 {
		t.Errorf("found %+v", found)
	}
	if found := must(s.Find(ctx, Query{Words: "everywhere"}))(t); len(found) != maxHitsPerText {
		t.Errorf("%d hits of one text", len(found))
	}
}

func FuzzSearch(f *testing.F) {
	s := openTest(f)
	ok(f, s.SaveTask(f.Context(), kw.Task{Fingerprint: "f", Name: "ⱥİ", Source: "class Model"}))
	for _, q := range []string{"a*", `"`, "a OR b", "^x", "-", "{a}:b", "İ model", "\xff"} {
		f.Add(q)
	}
	f.Fuzz(func(t *testing.T, query string) {
		if len(query) > 1000 {
			return
		}
		if _, err := s.Search(t.Context(), query, 3); err != nil {
			t.Fatal(err)
		}
	})
}

func TestTextsAreKeptOnce(t *testing.T) {
	s, ctx := openTest(t), t.Context()
	run := newRun(t, s)
	for i := range 4 {
		r := round(run.ID, i, kw.Wrong, 0)
		r.Candidate.Source = strings.Repeat("the same source\n", 100)
		ok(t, s.AppendRound(ctx, r))
	}
	var texts, verdicts, stored int
	ok(t, s.read.QueryRow(`SELECT count(*), sum(length(body)), (SELECT count(*) FROM verdicts) FROM texts`).Scan(&texts, &stored, &verdicts))
	if texts != 2 || verdicts != 1 || stored > 1000 {
		t.Errorf("%d texts in %d bytes, %d verdicts", texts, stored, verdicts)
	}
}

// Readers go on while a writer holds its transaction open.
func TestReadersDoNotWaitForTheWriter(t *testing.T) {
	s, ctx := openTest(t), t.Context()
	run := newRun(t, s)
	ok(t, s.AppendRound(ctx, round(run.ID, 0, kw.Correct, 1)))
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.Exec(`UPDATE runs SET reason = 'changing'`); err != nil {
			return err
		}
		// A reader that had to wait would get an error once its busy timeout is over.
		if r, err := s.Run(ctx, run.ID); err != nil || r.Reason != "" {
			return fmt.Errorf("%+v: %w", r, err)
		}
		return nil
	})
	ok(t, err)
	if _, err := s.read.Exec(`DELETE FROM runs`); err == nil {
		t.Error("a reader wrote")
	}
}

// The indexes must carry the commands that people wait for.
func TestQueriesUseIndexes(t *testing.T) {
	s := openTest(t)
	for _, q := range []string{
		roundQuery + strings.NewReplacer("= ?", "= 'f'", "IS ?", "IS 7").Replace(bestQuery),
		roundQuery + `WHERE r.run = 1 ORDER BY r.idx`,
		strings.NewReplacer("= ?", "= 'f'", "(?, ?)", "('a', 'b')").Replace(workedQuery("task")),
		strings.NewReplacer("= ?", "= 'f'", "(?, ?)", "('a', 'b')").Replace(workedQuery("path")),
		strings.NewReplacer("= ?", "= 'f'", "(?, ?)", "('a', 'b')").Replace(workedQuery("task_name")),
		strings.ReplaceAll(workedTexts("task_name"), "= ?", "= 'f'"),
		strings.ReplaceAll(workedTexts("path"), "= ?", "= 'f'"),
		strings.ReplaceAll(workedTexts("task"), "= ?", "= 'f'"),
		`SELECT ` + runColumns + ` FROM runs WHERE runs.task_name = 'n' AND runs.id < 9 ORDER BY runs.id DESC LIMIT 50`,
		`SELECT ` + runColumns + ` FROM runs WHERE runs.path = 'p' ORDER BY runs.id DESC LIMIT 50`,
		`SELECT ` + runColumns + ` FROM runs WHERE runs.task = 'f' ORDER BY runs.id DESC LIMIT 50`,
		`SELECT ` + runColumns + ` FROM runs WHERE runs.status = 'done' AND runs.id < 9 ORDER BY runs.id DESC LIMIT 50`,
		`SELECT 1 FROM certificates WHERE verdict = 7`,
		`SELECT 1 FROM runs WHERE detail = 7`,
		strings.NewReplacer("(?, ?)", "('a', 'b')").Replace(kindSetQuery),
		strings.NewReplacer("?2", "'d'", "?3", "'k'").Replace(lessonsOfKinds) + ` ORDER BY run DESC, idx LIMIT 9`,
	} {
		rows, err := s.read.Query(`EXPLAIN QUERY PLAN ` + q)
		ok(t, err)
		plan := must(scanAll(rows, func(r *sql.Rows) (detail string, err error) {
			var a, b, c int
			return detail, r.Scan(&a, &b, &c, &detail)
		}))(t)
		for _, step := range plan {
			if strings.HasPrefix(step, "SCAN") || strings.Contains(step, "TEMP B-TREE") {
				t.Errorf("%s\n%s", q, strings.Join(plan, "\n"))
			}
		}
	}
}

// answered is a call in a round, in a talk that goes on from round to round.
func answered(run int64, round int) llm.Record {
	r := llm.Record{Key: llm.Key{Run: run, Round: round, Agent: "coder"}, Model: "p:m", Reply: llm.Reply{Text: fmt.Sprint("answer ", round), Usage: llm.Usage{In: 2, Out: 1}}}
	for i := range round + 1 {
		r.Request.Messages = append(r.Request.Messages, say(llm.User, fmt.Sprint("question ", i)))
	}
	return r
}

// writeForEver appends rounds and calls and says after each that it is
// recorded, until it is killed.
func writeForEver(path string) {
	s, err := Open(path)
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	for {
		j, err := s.Enqueue(ctx, kw.Run{Task: "f", DeviceKey: "d"}, 0)
		if err != nil {
			panic(err)
		}
		if _, _, err := s.Claim(ctx, Self()); err != nil {
			panic(err)
		}
		for i := range 20 {
			r := round(j.ID, i, kw.Correct, 1)
			r.Feedback = &kw.Feedback{Kind: kw.Optimisation, Plan: fmt.Sprint(i)}
			if err := s.AppendRound(ctx, r); err != nil {
				panic(err)
			}
			call := answered(j.ID, i)
			if err := s.Append(ctx, call); err != nil {
				panic(err)
			}
			if _, err := s.Book(ctx, llm.Charge{Key: call.Key, Model: call.Model, Usage: call.Reply.Usage}); err != nil {
				panic(err)
			}
			fmt.Printf("%d %d\n", j.ID, i)
		}
	}
}

// A writer is killed at arbitrary moments: every round and every call that it
// said was recorded is there and whole, and so is the database.
func TestKilledWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), FileName)
	for _, lines := range []int{1, 7, 25, 60} {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), "KERNELWRIGHT_STORE_TEST_WRITER="+path)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		ok(t, err)
		ok(t, cmd.Start())
		said := map[int64]int{} // rounds by run
		scanner := bufio.NewScanner(out)
		for n := 0; scanner.Scan(); n++ {
			if n == lines {
				ok(t, cmd.Process.Kill())
			}
			var run int64
			var index int
			if _, err := fmt.Sscan(scanner.Text(), &run, &index); err == nil {
				said[run] = index + 1
			}
		}
		if err := cmd.Wait(); err == nil {
			t.Fatal("the writer ended by itself")
		}
		s, err := Open(path)
		ok(t, err)
		ok(t, s.Check(t.Context()))
		if len(said) == 0 {
			t.Error("the writer said nothing")
		}
		for run, n := range said {
			rounds := must(s.Rounds(t.Context(), run))(t)
			if len(rounds) < n {
				t.Errorf("run %d: %d rounds of %d", run, len(rounds), n)
			}
			for i := range n {
				recall(t, s, answered(run, i))
			}
			if spent := must(s.Spend(t.Context(), run))(t); spent.Calls < int64(n) {
				t.Errorf("run %d: %d charges of %d", run, spent.Calls, n)
			}
			for i, r := range rounds {
				if r.Feedback == nil || r.Candidate.Source == "" || len(must(s.Metric(t.Context(), run, "threads"))(t)) != len(rounds) {
					t.Errorf("round %d of run %d is torn", i, run)
				}
			}
		}
		if waiting, claimed, err := s.QueueLength(t.Context()); err != nil || claimed == 0 {
			t.Errorf("%d waiting, %d claimed: %v", waiting, claimed, err)
		} else if n := must(s.Recover(t.Context(), Alive))(t); n != claimed {
			t.Errorf("%d of %d recovered", n, claimed)
		}
		for {
			if _, found, err := s.Claim(t.Context(), Self()); err != nil {
				t.Fatal(err)
			} else if !found {
				break
			}
		}
		// What this process holds is not for the next round of the test.
		must(s.Recover(t.Context(), func(string) bool { return false }))(t)
		ok(t, s.Close())
	}
}
