package store

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"

	kw "github.com/kernelwright/kernelwright"
)

func aBench() kw.Bench {
	return kw.Bench{
		References:     []kw.Reference{{Name: "softmax", Path: "/x/softmax.py", SHA256: "ab"}, {Name: "gelu", Path: "/x/gelu.py", SHA256: "cd"}},
		Configurations: []kw.Configuration{{Strategy: "rounds", Coder: "builtin", Judge: "rules", Language: kw.CPP, Rounds: 3}},
		Seeds:          []int64{0}, Device: "cpu", DeviceClass: "d", Command: []string{"kernelwright", "bench", "x"},
	}
}

func TestBenchesAndTheirRuns(t *testing.T) {
	s := must(Open(filepath.Join(t.TempDir(), FileName)))(t)
	defer s.Close()
	ctx := t.Context()
	_, err := s.LatestBench(ctx, aBench().Key())
	if !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	first := must(s.CreateBench(ctx, aBench()))(t)
	second := must(s.CreateBench(ctx, aBench()))(t)
	other := aBench()
	other.DeviceClass = "e"
	must(s.CreateBench(ctx, other))(t)
	if got := must(s.LatestBench(ctx, first.Key()))(t); asJSON(t, got) != asJSON(t, second) {
		t.Errorf("%+v, want %+v", got, second)
	}
	if got := must(s.Benches(ctx, Page{Limit: 2}))(t); len(got) != 2 || got[0].DeviceClass != "e" || got[1].ID != second.ID {
		t.Errorf("%+v", got)
	}

	member := func(reference int) (run int64) {
		r := must(s.CreateRun(ctx, kw.Run{TaskName: "x", Status: kw.RunRunning}, WithMember(second.ID, kw.Member{Reference: reference})))(t)
		return r.ID
	}
	last, replaced := member(1), member(0)
	again := member(0)
	want := []kw.Member{{RunID: again}, {Reference: 1, RunID: last}}
	if got := must(s.Members(ctx, second.ID))(t); !slices.Equal(got, want) || replaced == again {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := must(s.Members(ctx, first.ID))(t); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	// A run that belongs to no bench is not recorded either.
	before := must(s.Runs(ctx, RunFilter{}))(t)
	if _, err := s.CreateRun(ctx, kw.Run{TaskName: "x"}, WithMember(99, kw.Member{})); err == nil {
		t.Error("a run was recorded for a bench that is not there")
	}
	if after := must(s.Runs(ctx, RunFilter{}))(t); len(after) != len(before) {
		t.Errorf("%d runs, %d before", len(after), len(before))
	}

	ok(t, s.FinishBench(ctx, second.ID))
	if got := must(s.Bench(ctx, second.ID))(t); got.FinishedMS == 0 {
		t.Errorf("%+v", got)
	}
	if err := s.FinishBench(ctx, 99); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}

func TestKeysTellBenchesApart(t *testing.T) {
	keys := map[string]string{aBench().Key(): "itself"}
	for name, change := range map[string]func(*kw.Bench){
		"a file":        func(b *kw.Bench) { b.References[0].SHA256 = "ef" },
		"its path":      func(b *kw.Bench) { b.References[0].Path = "/y/softmax.py" },
		"the order":     func(b *kw.Bench) { slices.Reverse(b.References) },
		"the rounds":    func(b *kw.Bench) { b.Configurations[0].Rounds = 4 },
		"the seeds":     func(b *kw.Bench) { b.Seeds = []int64{1} },
		"the device":    func(b *kw.Bench) { b.DeviceClass = "e" },
		"the baselines": func(b *kw.Bench) { b.Baselines = []string{"eager"} },
		"the version":   func(b *kw.Bench) { b.Version = "x" },
	} {
		b := aBench()
		change(&b)
		if same, found := keys[b.Key()]; found {
			t.Errorf("%s changes nothing beside %s", name, same)
		}
		keys[b.Key()] = name
	}
	// What says nothing of the runs does not count.
	b := aBench()
	b.ID, b.Command, b.CreatedMS, b.References[0].Name = 7, nil, 1, "y"
	if keys[b.Key()] != "itself" {
		t.Error("another key for the same runs")
	}
}

// A salvaged bench has the runs that are left: it makes the others again.
func TestASalvagedBenchLacksWhatWasLost(t *testing.T) {
	path := lived(t, 5)
	s := must(Open(path))(t)
	b := must(s.CreateBench(t.Context(), aBench()))(t)
	var runs []int64
	for i := range 2 {
		r := must(s.CreateRun(t.Context(), kw.Run{TaskName: "x", Status: kw.RunRunning}, WithMember(b.ID, kw.Member{Reference: i})))(t)
		runs = append(runs, r.ID)
	}
	_, err := s.write.Exec(`PRAGMA foreign_keys = 0; DELETE FROM runs WHERE id = ?`, runs[0])
	ok(t, err)
	ok(t, s.Close())
	to := filepath.Join(t.TempDir(), FileName)
	out := must(Salvage(t.Context(), path, to, quiet))(t)
	if out.Lost["bench_runs"] != 1 || out.Kept["benches"] != 1 {
		t.Errorf("%+v", out)
	}
	if e := examine(t, to); !e.Sound() {
		t.Errorf("%+v", e.Faults)
	}
	s = must(Open(to))(t)
	defer s.Close()
	if got := must(s.Members(t.Context(), b.ID))(t); len(got) != 1 || got[0].RunID != runs[1] {
		t.Errorf("%+v", got)
	}
}
