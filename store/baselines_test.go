package store

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/kernelwright/kernelwright"
)

func TestBaselines(t *testing.T) {
	s := openTest(t)
	ctx := t.Context()
	of := func(task string, device kernelwright.DeviceKind, name, source string) Baseline {
		return Baseline{
			NamedBaseline: kernelwright.NamedBaseline{Name: name, Source: source, Language: kernelwright.CPP},
			Task:          task, TaskName: "n", Device: device, Path: "/p", Status: kernelwright.Certified, CandidateMS: 1.5, DeviceKey: "k",
		}
	}
	for _, b := range []Baseline{of("t", "cpu", "b", "1"), of("t", "cpu", "a", "2"), of("t", "cuda", "a", "3"), of("u", "cpu", "a", "1"), of("t", "cpu", "b", "4")} {
		if err := s.SaveBaseline(ctx, b); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.SaveBaseline(ctx, of("", "cpu", "a", "1")); err == nil {
		t.Fatal("a baseline without a task was recorded")
	}
	sources := func(task string, device kernelwright.DeviceKind) (found string) {
		all, err := s.Baselines(ctx, task, device)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range all {
			found += b.Name + b.Source
			want := of(b.Task, b.Device, b.Name, b.Source)
			if want.AddedMS = b.AddedMS; b != want || b.AddedMS == 0 {
				t.Fatalf("recorded %+v, found %+v", want, b)
			}
		}
		return found
	}
	// The last one of a name counts.
	if got := sources("t", "cpu"); got != "a2b4" {
		t.Fatal(got)
	}
	if got := sources("", ""); got != "a2b4a3a1" {
		t.Fatal(got)
	}
	if err := s.RemoveBaseline(ctx, "t", "cpu", "a"); err != nil {
		t.Fatal(err)
	}
	if err := s.RemoveBaseline(ctx, "t", "cpu", "a"); !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	if got := sources("", ""); got != "b4a3a1" {
		t.Fatal(got)
	}
}

// One that an earlier version wrote is examined, and salvaged, as it is.
func TestExaminesEveryEarlierVersion(t *testing.T) {
	steps, err := migrations()
	ok(t, err)
	for from := 1; from <= len(steps); from++ {
		path := filepath.Join(t.TempDir(), FileName)
		s, err := open(t.Context(), path, steps[:from], true)
		ok(t, err)
		ok(t, s.Close())
		e, err := Examine(t.Context(), path, func(string) {})
		ok(t, err)
		if len(e.Faults) > 0 {
			t.Errorf("version %d: %+v", from, e.Faults)
		}
		_, err = Salvage(t.Context(), path, filepath.Join(t.TempDir(), "new.db"), func(string) {})
		ok(t, err)
	}
}
