package store

import (
	"errors"
	"slices"
	"testing"

	kw "github.com/kernelwright/kernelwright"
)

// References of one fingerprint are grouped, and each text has its own runs, best
// kernels and answers of other devices. Whichever is recorded first.
func TestTextsOfOneTaskAreKeptApart(t *testing.T) {
	for _, order := range [][]string{{"relu", "tanh"}, {"tanh", "relu"}} {
		s, ctx := openTest(t), t.Context()
		begin := func(text, device string) kw.Run {
			t.Helper()
			run := must(s.CreateRun(ctx, kw.Run{TaskName: "n", Path: "/" + text, Device: "cpu", Strategy: "rounds"}))(t)
			run.Task, run.DeviceKey = "f", device
			ok(t, s.Describe(ctx, run, kw.Task{Fingerprint: "f", Name: "n", Source: text}, kw.Device{Kind: kw.CPUDevice, Key: device}, nil))
			return run
		}
		end := func(run kw.Run, ms float64) {
			t.Helper()
			r := round(run.ID, 0, kw.Correct, ms)
			r.Candidate.Source = "class ModelNew: pass" // the same kernel for both
			ok(t, s.AppendRound(ctx, r))
			ok(t, s.SetCertificate(ctx, run.ID, 0, kw.Verdict{Status: kw.Certified, CandidateMS: ms, Exported: "# e", ExportedSHA256: kw.HashText("# e")}))
			run.Status = kw.RunDone
			ok(t, s.UpdateRun(ctx, run))
		}
		first, second := begin(order[0], "d"), begin(order[1], "d")
		// What was recorded last of the task is the second's.
		first.Status = kw.RunRunning
		ok(t, s.UpdateRun(ctx, first))
		for i, run := range []kw.Run{first, second} {
			if task := must(s.RunTask(ctx, run.ID))(t); task.Source != order[i] {
				t.Errorf("run %d is about %q", run.ID, task.Source)
			}
		}
		end(first, 1)
		end(second, 2)
		for i, text := range order {
			if r := must(s.Best(ctx, "f", kw.HashText(text), "d"))(t); r.RunID != int64(1+i) {
				t.Errorf("the best of %s is of run %d", text, r.RunID)
			}
		}
		if _, err := s.Best(ctx, "f", kw.HashText("gelu"), "d"); !errors.Is(err, ErrNotFound) {
			t.Errorf("a text that nobody worked on: %v", err)
		}
		for _, f := range []RunFilter{{Task: "f"}, {Name: "n"}} {
			want := []Worked{{"f", kw.HashText(order[1]), "d", 2}, {"f", kw.HashText(order[0]), "d", 1}}
			if got := must(s.Worked(ctx, f))(t); !slices.Equal(got, want) {
				t.Errorf("%+v: %+v", f, got)
			}
		}
		if got := must(s.Worked(ctx, RunFilter{Path: "/" + order[0]}))(t); len(got) != 1 || got[0].Reference != kw.HashText(order[0]) {
			t.Errorf("by path: %+v", got)
		}
		// Another device is asked about each, and its answer about one is none about the other.
		there := func() (asked []string) {
			t.Helper()
			for _, k := range must(s.Kept(ctx, "e", ""))(t) {
				said := "not asked"
				if k.There != nil {
					said = string(k.There.Verdict.Status)
				}
				i := slices.IndexFunc(order, func(text string) bool { return kw.HashText(text) == k.Reference })
				asked = append(asked, order[i]+" "+said)
			}
			return asked
		}
		if got := there(); !slices.Equal(got, []string{order[0] + " not asked", order[1] + " not asked"}) {
			t.Error(got)
		}
		end(begin(order[1], "e"), 3)
		if got := there(); !slices.Equal(got, []string{order[0] + " not asked", order[1] + " certified"}) {
			t.Error(got)
		}
		ok(t, s.Check(ctx))
	}
}

// A baseline is of the text that it was certified for; an old record does not say
// of which.
func TestABaselineIsOfOneText(t *testing.T) {
	b := Baseline{Task: "f", Reference: kw.HashText("relu")}
	if !b.Of("relu") || b.Of("relu # again") {
		t.Error("it is a baseline for another text")
	}
	if b.Reference = ""; !b.Of("relu") {
		t.Error("an old record is lost")
	}
}
