package store

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
)

// The best kernel of a task on a device is its fastest certified one, else its fastest
// correct one; a task without one has no row.
func TestBestFiguresAreOnePerTaskAndDevice(t *testing.T) {
	s := openTest(t)
	ctx := t.Context()
	for _, key := range []string{"one", "two"} {
		if err := s.SaveDevice(ctx, kernelwright.Device{Kind: kernelwright.CPUDevice, Key: key, Name: key}); err != nil {
			t.Fatal(err)
		}
	}
	record := func(task, device string, certified int, times ...float64) {
		t.Helper()
		if err := s.SaveTask(ctx, kernelwright.Task{Fingerprint: task, Name: task, Source: "class Model: pass\n"}); err != nil {
			t.Fatal(err)
		}
		run, err := s.CreateRun(ctx, kernelwright.Run{Task: task, TaskName: task, DeviceKey: device, Device: "cpu"})
		if err != nil {
			t.Fatal(err)
		}
		for i, ms := range times {
			v := kernelwright.Verdict{Status: kernelwright.Correct, Level: kernelwright.Quick, CandidateMS: ms}
			if ms == 0 {
				v.Status = kernelwright.Wrong
			}
			if err := s.AppendRound(ctx, kernelwright.Round{RunID: run.ID, Index: i, Candidate: kernelwright.Candidate{Source: task + device, Language: kernelwright.CPP}, Verdict: v}); err != nil {
				t.Fatal(err)
			}
		}
		if certified >= 0 {
			v := kernelwright.Verdict{Status: kernelwright.Certified, Level: kernelwright.Certify, CandidateMS: 9, Exported: "x", ExportedSHA256: kernelwright.HashText("x")}
			if err := s.SetCertificate(ctx, run.ID, certified, v); err != nil {
				t.Fatal(err)
			}
		}
	}
	record("a", "one", -1, 3, 2, 4)
	record("a", "two", 0, 3, 2)
	record("b", "one", -1, 0)
	got, err := s.BestFigures(ctx, []string{"b", "a", "none"})
	if err != nil {
		t.Fatal(err)
	}
	type best struct {
		task, device string
		run          int64
		round        int
		ms           float64
	}
	var found []best
	for _, f := range got {
		found = append(found, best{f.Task, f.DeviceKey, f.Run, f.Round, f.CandidateMS})
	}
	if want := []best{{"a", "one", 1, 1, 2}, {"a", "two", 2, 0, 9}}; !slices.Equal(found, want) {
		t.Errorf("%+v, not %+v", found, want)
	}
}

func TestSpendingByTaskHasTheMostFirst(t *testing.T) {
	s := openTest(t)
	ctx := t.Context()
	for i, name := range []string{"cheap", "dear", "dear"} {
		run, err := s.CreateRun(ctx, kernelwright.Run{TaskName: name})
		if err != nil {
			t.Fatal(err)
		}
		usd := float64(i)
		if _, err := s.Book(ctx, llm.Charge{Key: llm.Key{Run: run.ID, Agent: "coder"}, Model: "p:m", Usage: llm.Usage{In: 2, Out: 1}, USD: &usd, EndedMS: 1764417600000}); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.SpendingByTask(ctx, 0, 10)
	if err != nil || len(got) != 2 || got[0].TaskName != "dear" || got[0].Runs != 2 || got[0].USD != 3 || got[1].Calls != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	if got, err := s.SpendingByTask(ctx, 1764417600000+dayMS, 10); err != nil || len(got) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

// A history from before sums, and one from before those of tasks, has them when it is
// opened, as has what is salvaged from it; what took their place before is gone.
func TestSpendingByTaskOfAnEarlierHistory(t *testing.T) {
	steps := must(migrations())(t)
	ctx := t.Context()
	for from, sums := range map[int]string{20: "", 22: strings.Join(sumAll, "; ")} {
		path, copied := filepath.Join(t.TempDir(), FileName), filepath.Join(t.TempDir(), FileName)
		s, err := open(ctx, path, steps[:from], true)
		ok(t, err)
		for _, name := range []string{"cheap", "dear", "dear"} {
			must(s.CreateRun(ctx, kernelwright.Run{TaskName: name, Status: kernelwright.RunDone}))(t)
		}
		for _, charge := range [][2]int{{1, 3}, {2, 3}, {2, 4}, {3, 5}, {1, 6}, {2, 6}} { // run and day
			must(s.write.Exec(`INSERT INTO charges (run, round, agent, seq, model, tokens_in, tokens_out, cached, thought, estimated, cost_usd, ended, took, failed)
				VALUES (?1, 0, 'coder', 0, 'p:m', 2, 1, 0, 0, 0, ?1, ?2 * 86400000, 1, '')`, charge[0], charge[1]))(t)
		}
		must(s.write.Exec(`INSERT INTO cache (kind, key, value, created) VALUES ('spent', '0', x'00', 1); ` + sums))(t)
		ok(t, s.Close())
		must(Salvage(ctx, path, copied, quiet))(t)
		for _, path := range []string{path, copied} {
			s := must(Open(path))(t)
			for since, want := range map[int64][]TaskSpending{
				0:           {spending("dear", 2, 4, 9), spending("cheap", 1, 2, 2)},
				4*dayMS + 5: {spending("dear", 2, 3, 7), spending("cheap", 1, 1, 1)},
				6 * dayMS:   {spending("dear", 1, 1, 2), spending("cheap", 1, 1, 1)},
				7 * dayMS:   nil,
			} {
				if got := must(s.SpendingByTask(ctx, since, 5))(t); !slices.Equal(got, want) {
					t.Errorf("from %d, since %d: %+v", from, since, got)
				}
			}
			if got := must(s.SpendingByTask(ctx, 0, 1))(t); len(got) != 1 || got[0].TaskName != "dear" {
				t.Errorf("the first: %+v", got)
			}
			if _, found, err := s.Get(ctx, "spent", "0"); found || err != nil {
				t.Error("sums of an earlier form are kept:", err)
			}
			ok(t, s.Close())
			if e := examine(t, path); !e.Sound() {
				t.Errorf("from %d: %+v", from, e.Faults)
			}
		}
	}
}

func spending(name string, runs, calls int64, usd float64) TaskSpending {
	return TaskSpending{name, runs, kernelwright.Spend{Calls: calls, TokensIn: 2 * calls, TokensOut: calls, USD: usd}}
}

// What is asked most today is first although days that are over have others; and of sums
// that are not those of their runs `history check` tells.
func TestSpendingOfTodayCounts(t *testing.T) {
	s := openTest(t)
	ctx := t.Context()
	for i := range int64(6) {
		run := must(s.CreateRun(ctx, kernelwright.Run{TaskName: fmt.Sprint("task ", i), Status: kernelwright.RunDone}))(t)
		for day := range 3 + i%2 { // those of odd runs are asked on day 3, which is not over
			usd := float64(10 - i)
			if day == 3 {
				usd = float64(20 * i)
			}
			must(s.Book(ctx, llm.Charge{Key: llm.Key{Run: run.ID, Agent: "coder"}, Model: "p:m", Usage: llm.Usage{In: 1}, USD: &usd, EndedMS: day * dayMS}))(t)
		}
	}
	var names []string
	for _, of := range must(s.SpendingByTask(ctx, 0, 4))(t) {
		names = append(names, fmt.Sprint(of.TaskName, " ", of.Runs, " ", of.USD))
	}
	if want := []string{"task 5 1 115", "task 3 1 81", "task 1 1 47", "task 0 1 30"}; !slices.Equal(names, want) {
		t.Errorf("%q", names)
	}
	must(s.write.Exec(`UPDATE charge_tasks SET calls = calls + 1 WHERE task_name = 'task 2' AND day = 1`))(t)
	must(s.write.Exec(`DELETE FROM charge_tasks WHERE task_name = 'task 4'`))(t)
	path := s.Path()
	ok(t, s.Close())
	if e := examine(t, path); len(e.Faults) != 1 || e.Faults[0].What != "sums of tasks are not those of their runs" || e.Faults[0].Count != 2 {
		t.Errorf("%+v", e.Faults)
	}
}
