package daemon

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/store"
)

// other is a device on which some kernels do not hold: one is wrong at once, one
// under the strict verdict.
type other struct{ *fakeHardware }

func (o other) Evaluate(ctx context.Context, t kernelwright.Task, c kernelwright.Candidate, level kernelwright.Level) (kernelwright.Verdict, error) {
	v, err := o.fakeHardware.Evaluate(ctx, t, c, level)
	if strings.Contains(t.Source, "wrong") || strings.Contains(t.Source, "fragile") && level == kernelwright.Certify {
		v.Status, v.Reason, v.CandidateMS, v.Speedup, v.Exported, v.ExportedSHA256 = kernelwright.Wrong, "it needs another machine", 0, nil, "", ""
	}
	return v, err
}

func TestKernelsAreRechecked(t *testing.T) {
	b := newBench(t)
	ctx := t.Context()
	w := b.daemon().Runner
	w.RecordOnly = true
	b.hw.key = "one"
	for _, source := range []string{"good", "wrong", "fragile"} {
		run, err := w.Begin(ctx, Request{Path: "/x/" + source + ".py", Name: source, Source: source, Settings: forge.Settings{Rounds: 2, JudgeMode: forge.JudgeBoth}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Run(ctx, run, nil); err != nil {
			t.Fatal(err)
		}
	}
	kept := func() map[string]store.Kept {
		t.Helper()
		all, err := b.store.Kept(ctx, "two", "")
		if err != nil || len(all) != 3 {
			t.Fatal(all, err)
		}
		m := map[string]store.Kept{}
		for _, k := range all {
			m[k.TaskName] = k
		}
		return m
	}
	b.hw.key = "two"
	there := *w
	there.Evaluator, there.Coder = other{b.hw}, nil
	for name, k := range kept() {
		if k.There != nil {
			t.Errorf("%s: %+v", name, k.There)
		}
		done, err := there.Recheck(ctx, k)
		if err != nil {
			t.Fatal(err)
		}
		r := done.Data.Run
		if r.Strategy != forge.RecheckStrategy || r.DeviceKey != "two" || r.Coder != "fake" || r.Judge != "none" || r.Path != "/x/"+name+".py" || r.Status != kernelwright.RunDone || len(done.Data.Rounds) != 1 {
			t.Errorf("%s: %+v", name, r)
		}
		if held := done.Data.Rounds[0].Certificate != nil && done.Data.Rounds[0].Certificate.Status == kernelwright.Certified; held != (name == "good") {
			t.Errorf("%s: held: %v", name, held)
		}
	}
	for name, want := range map[string]kernelwright.Status{"good": kernelwright.Certified, "wrong": kernelwright.Wrong, "fragile": kernelwright.Wrong} {
		k := kept()[name]
		if k.There == nil || k.There.Verdict.Status != want || want == kernelwright.Wrong && k.There.Verdict.Reason != "it needs another machine" {
			t.Errorf("%s: %+v", name, k.There)
		}
		// What the first device said stands.
		best, err := b.store.Best(ctx, k.Task, k.Reference, "one")
		if err != nil || best.RunID != k.RunID || best.Certificate.DeviceKey != "one" {
			t.Errorf("%s: %+v, %v", name, best, err)
		}
		_, err = b.store.Best(ctx, k.Task, k.Reference, "two")
		if (name == "good") != (err == nil) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if lessons, err := b.store.Lessons(ctx, store.LessonFilter{Devices: []string{"two"}}); err != nil || len(lessons) > 0 {
		t.Errorf("%v, %v", lessons, err)
	}
}

// One that was stopped goes on, and does not do twice what it did.
func TestARecheckGoesOn(t *testing.T) {
	b := newBench(t)
	w := b.daemon().Runner
	w.RecordOnly = true
	b.hw.key = "one"
	run, err := w.Begin(t.Context(), Request{Path: "/x/a.py", Name: "a", Source: "good", Settings: forge.Settings{Rounds: 1, JudgeMode: forge.JudgeNone}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Run(t.Context(), run, nil); err != nil {
		t.Fatal(err)
	}
	k, err := b.store.KeptOf(t.Context(), run.ID, "two")
	if err != nil {
		t.Fatal(err)
	}
	b.hw.key = "two"
	stopped, stop := context.WithCancel(t.Context())
	there := *w
	there.Observe = func(e forge.Event) {
		if e.Kind == forge.RoundDone { // before it is certified
			stop()
			b.hw.fall(errors.New("the machine goes down"))
		}
	}
	if _, err := there.Recheck(stopped, k); !errors.Is(err, ErrStopped) {
		t.Fatal(err)
	}
	b.hw.fall(nil)
	quick := b.hw.evaluate
	there.Observe = nil
	done, err := there.Recheck(t.Context(), k)
	if err != nil || done.Data.Run.ID != run.ID+1 || done.Data.Rounds[0].Certificate == nil || b.hw.evaluate != quick {
		t.Errorf("%+v, %v: %d evaluations, then %d", done.Data.Run, err, quick, b.hw.evaluate)
	}
}
