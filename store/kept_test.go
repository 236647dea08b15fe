package store

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	kw "github.com/kernelwright/kernelwright"
)

// Kernels of one device are held against what another said of the same source,
// and of nothing else.
func TestKeptKernelsElsewhere(t *testing.T) {
	s := openTest(t)
	ctx := t.Context()
	kernel := func(name string) attempt { return attempt{ms: 2, source: "class ModelNew: # " + name} }
	teach(t, s, "d", "a", "certified", attempt{ms: 4}, kernel("a")) // 1
	teach(t, s, "d", "a", "certified", attempt{ms: 3})              // 2, slower
	teach(t, s, "d", "b", "uncertified", kernel("b"))               // 3
	teach(t, s, "d", "c", "certified", kernel("c"))                 // 4
	teach(t, s, "f", "c", "certified", kernel("c"))                 // 5, the same on a third
	teach(t, s, "e", "a", "certified", kernel("other"))             // 6, its own
	listed := func(task string) string {
		t.Helper()
		var all []string
		for _, k := range must(s.Kept(ctx, "e", task))(t) {
			there := "not asked"
			if k.There != nil {
				there = fmt.Sprintf("%s in %d, %s", k.There.Verdict.Status, k.There.RunID, k.There.Verdict.DeviceKey)
			}
			all = append(all, fmt.Sprintf("%s %d/%d: %s", k.Task, k.RunID, k.Index, there))
		}
		return strings.Join(all, "; ")
	}
	if got := listed(""); got != "task a 1/1: not asked; task c 4/0: not asked" {
		t.Fatal(got)
	}
	if got := listed("task c"); got != "task c 4/0: not asked" {
		t.Error(got)
	}
	if got := listed("task b") + listed("none"); got != "" {
		t.Error(got)
	}
	// What was only found correct is still to be asked; then it failed, then it held.
	teach(t, s, "e", "a", "uncertified", kernel("a")) // 7
	if got := listed("task a"); got != "task a 1/1: not asked" {
		t.Error(got)
	}
	run := must(s.CreateRun(ctx, kw.Run{Task: "task a", DeviceKey: "e", Device: "cpu"}))(t) // 8
	failing := round(run.ID, 0, kw.Wrong, 0)
	failing.Candidate.Source = "class ModelNew: # a"
	ok(t, s.AppendRound(ctx, failing))
	if got := listed("task a"); got != "task a 1/1: wrong in 8, e" {
		t.Error(got)
	}
	teach(t, s, "e", "a", "certified", kernel("a")) // 9
	if got := listed(""); got != "task a 1/1: certified in 9, e; task c 4/0: not asked" {
		t.Error(got)
	}
	// Nothing of this has changed what each device has.
	if best := must(s.Best(ctx, "task a", kw.HashText("a"), "d"))(t); best.RunID != 1 {
		t.Errorf("%+v", best)
	}
	if k := must(s.KeptOf(ctx, 2, "e"))(t); k.Index != 0 || k.MS != 3 || k.There != nil {
		t.Errorf("%+v", k)
	}
	for _, run := range []int64{3, 99} {
		if _, err := s.KeptOf(ctx, run, "e"); !errors.Is(err, ErrNotFound) {
			t.Errorf("run %d: %v", run, err)
		}
	}
}
