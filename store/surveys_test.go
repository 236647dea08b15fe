package store

import (
	"slices"
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
	if got, err := s.SpendingByTask(ctx, 1764417600001, 10); err != nil || len(got) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}
