package daemon

import (
	"testing"
	"time"

	"github.com/kernelwright/kernelwright"
)

// stands waits until a run has a status.
func (b *bench) stands(run int64, want kernelwright.RunStatus) {
	b.t.Helper()
	for end := time.Now().Add(testWait); ; time.Sleep(time.Millisecond) {
		r, err := b.store.Run(b.t.Context(), run)
		if err != nil {
			b.t.Fatal(err)
		}
		if r.Status == want {
			return
		}
		if time.Now().After(end) {
			b.t.Fatalf("run %d stays %s", run, r.Status)
		}
	}
}

// A run that is paused keeps the round in progress and goes on from it; one that is
// cancelled ends after it, stays cancelled when its file is found again, and can be
// queued once more.
func TestARunIsPausedAndCancelled(t *testing.T) {
	b := newBench(t)
	b.hw.enter, b.hw.leave = make(chan struct{}), make(chan struct{})
	b.start(nil)
	b.drop("a.py", "softmax")
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	rounds := func(want int) {
		t.Helper()
		if all, err := b.store.Rounds(t.Context(), 1); err != nil || len(all) != want {
			t.Errorf("%d rounds, want %d, %v", len(all), want, err)
		}
	}
	<-b.hw.enter
	check(b.store.Pause(t.Context(), 1))
	b.heeded("paused")
	rounds(1)
	check(b.store.Resume(t.Context(), 1))
	<-b.hw.enter
	check(b.store.Cancel(t.Context(), 1))
	b.heeded("cancelled")
	b.stands(1, kernelwright.RunCancelled)
	rounds(2)
	b.halt()

	b.hw.enter, b.hw.leave = nil, nil
	b.start(nil)
	// Its file is looked at before this one.
	b.drop("b.py", "other")
	if done := b.next(); done.Data.Run.TaskName != "b" || len(b.runs()) != 2 {
		t.Errorf("%+v", b.runs())
	}
	again, _, err := b.store.Requeue(t.Context(), 1, 0)
	check(err)
	if done := b.next(); done.Data.Run.ID != again.ID || done.Data.Run.Status != kernelwright.RunDone || done.Written.Kernel == "" {
		t.Errorf("%+v", done)
	}
}

// heeded lets the evaluation in progress end once the Runner was told why its run is held
// back, and waits until it has let go of the run.
func (b *bench) heeded(held string) {
	b.t.Helper()
	b.logged("a run ends its round in progress, as somebody wants\" run=1 \"it is\"=" + held)
	b.hw.leave <- struct{}{}
	b.logged("run stopped, as somebody wants\" run=1 task=a \"it is\"=" + held)
}
