package daemon

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/store"
)

// two starts a daemon on two devices, whose evaluations wait.
func (b *bench) two(change func(*Daemon)) (first, second *fakeHardware) {
	b.t.Helper()
	first, second = b.hw, &fakeHardware{key: "second"}
	first.key = "first"
	for _, hw := range []*fakeHardware{first, second} {
		hw.enter, hw.leave = make(chan struct{}), make(chan struct{})
	}
	b.start(func(d *Daemon) {
		other := *d.Runner
		other.Evaluator = second
		d.More = []*Runner{&other}
		if change != nil {
			change(d)
		}
	})
	return first, second
}

// free lets evaluations through from now on.
func (f *fakeHardware) free() {
	close(f.leave)
	go func() {
		for range f.enter {
		}
	}()
}

func TestTwoDevicesWorkAtTheSameTime(t *testing.T) {
	b := newBench(t)
	b.drop("a.py", "softmax")
	b.drop("b.py", "relu")
	first, second := b.two(func(d *Daemon) { d.UntilIdle = true })
	<-first.enter // both are at work, neither waits for the other
	<-second.enter
	first.free()
	second.free()
	keys := map[string]bool{}
	for range 2 {
		done := b.next()
		if done.Data.Run.Status != kernelwright.RunDone || len(done.Data.Rounds) != 3 {
			t.Fatalf("%+v", done.Data.Run)
		}
		keys[done.Data.Run.DeviceKey] = true
		for _, r := range done.Data.Rounds {
			if r.Verdict.DeviceKey != done.Data.Run.DeviceKey {
				t.Errorf("run %d has a verdict of %s", done.Data.Run.ID, r.Verdict.DeviceKey)
			}
		}
	}
	if len(keys) != 2 {
		t.Errorf("%v", keys)
	}
	if err := <-b.done; err != nil {
		t.Fatal(err)
	}
	b.stop = nil
	close(first.enter)
	close(second.enter)
}

func TestADeviceThatFallsIllIsLeft(t *testing.T) {
	b := newBench(t)
	path := b.drop("a.py", "softmax")
	first, second := b.two(func(d *Daemon) { d.UntilIdle = true })
	// One of the two has the run; it records a round and then loses its device.
	faulty, healthy := first, second
	select {
	case <-first.enter:
	case <-second.enter:
		faulty, healthy = second, first
	}
	faulty.leave <- struct{}{}
	<-faulty.enter
	faulty.fall(errors.New("the GPU has fallen off the bus"))
	faulty.leave <- struct{}{}
	b.goesOnOn(healthy)
	b.logged("fallen off the bus")
	runs := b.runs()
	if len(runs) != 2 {
		t.Fatalf("%+v", runs)
	}
	old := runs[1]
	if old.Status != kernelwright.RunFailed || !strings.Contains(old.Reason, "run 2 does it anew") || old.DeviceKey != faulty.key {
		t.Errorf("%+v", old)
	}
	rounds, err := b.store.Rounds(context.Background(), old.ID)
	if err != nil || len(rounds) == 0 {
		t.Errorf("%d rounds, %v: what was recorded stays", len(rounds), err)
	}
	if text := b.read(strings.TrimSuffix(path, ".py") + ".best.py"); text == "" {
		t.Error("the results are there")
	}
}

// goesOnOn lets the run end on the device that is healthy, and the daemon with it.
func (b *bench) goesOnOn(healthy *fakeHardware) {
	b.t.Helper()
	<-healthy.enter
	healthy.free()
	done := b.next()
	if done.Data.Run.Status != kernelwright.RunDone || done.Data.Run.DeviceKey != healthy.key || len(done.Data.Rounds) != 3 {
		b.t.Fatalf("%+v", done.Data.Run)
	}
	if err := <-b.done; err != nil {
		b.t.Fatal(err)
	}
	b.stop = nil
	close(healthy.enter)
	b.logged("a device takes no more runs")
}

// The reference is what meets it: nobody calls its file invalid.
func TestADeviceThatIsLostInAnInspectionIsLeft(t *testing.T) {
	b := newBench(t)
	path := b.drop("a.py", "softmax")
	lost := make(chan *fakeHardware, 1)
	first, second := b.two(func(d *Daemon) {
		d.UntilIdle = true
		var once sync.Once
		for _, w := range append(d.More, d.Runner) {
			hw := w.Evaluator.(*fakeHardware)
			hw.begins = func() { // of whichever has the run
				once.Do(func() {
					hw.fall(errors.New("Model's forward met a GPU that does not work: CUDA error: GPU is lost"))
					lost <- hw
				})
			}
		}
	})
	faulty, healthy := <-lost, first
	if faulty == first {
		healthy = second
	}
	b.goesOnOn(healthy)
	b.logged("GPU is lost")
	if runs := b.runs(); len(runs) != 1 { // it had no rounds: the same run goes on
		t.Errorf("%+v", runs)
	}
	if faulty.evaluate != 0 || b.read(strings.TrimSuffix(path, ".py")+".best.py") == "" {
		t.Errorf("%d candidates met the lost device", faulty.evaluate)
	}
}

// A worker that cannot be killed keeps the lease of its device: that is left
// until the worker has ended.
func TestADeviceThatAHungWorkerKeepsIsLeft(t *testing.T) {
	b := newBench(t)
	b.drop("a.py", "softmax")
	leases := &hwfeedback.FileLeases{Dir: filepath.Join(t.TempDir(), "leases")}
	lease, err := leases.Acquire(t.Context(), "cuda:0")
	if err != nil {
		t.Fatal(err)
	}
	worker, err := syscall.Dup(int(lease.File().Fd())) // as a worker has it
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Release(); err != nil {
		t.Fatal(err)
	}
	check := func(ctx context.Context) error { // as an evaluator's does
		ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		free, err := leases.Acquire(ctx, "cuda:0")
		if held := (*hwfeedback.HeldError)(nil); errors.As(err, &held) && !held.Left {
			return nil
		}
		if err != nil {
			return err
		}
		return free.Release()
	}
	clock := newFakeClock()
	first, second := b.two(func(d *Daemon) {
		d.Watcher.Clock = System{}
		for _, w := range append(d.More, d.Runner) {
			w.Clock = clock
			w.Evaluator.(*fakeHardware).check = check
		}
	})
	hung, healthy := first, second
	select {
	case <-first.enter:
	case <-second.enter:
		hung, healthy = second, first
	}
	hung.fall(errors.New("the verdict: not there after 30m"))
	hung.leave <- struct{}{}
	<-healthy.enter // the run goes on there
	b.logged("a device takes no more runs")
	b.logged("that has not ended yet")
	clock.WaitFor(faultyFor)
	clock.Advance(faultyFor)
	clock.WaitFor(faultyFor) // it was looked at, and is left for as long again
	if strings.Contains(b.log.String(), "takes runs again") {
		t.Error("the device is still held")
	}
	if err := syscall.Close(worker); err != nil {
		t.Fatal(err)
	}
	hung.fall(nil)
	clock.Advance(faultyFor)
	b.logged("a device takes runs again")
	hung.free()
	healthy.free()
	if done := b.next(); done.Data.Run.Status != kernelwright.RunDone || done.Data.Run.DeviceKey != healthy.key {
		t.Errorf("%+v", done.Data.Run)
	}
	b.halt()
	close(hung.enter)
	close(healthy.enter)
}

func TestTheLastDeviceIsNotLeft(t *testing.T) {
	b := newBench(t)
	b.drop("a.py", "softmax")
	b.drop("b.py", "relu") // both devices fail at once
	first, second := b.two(nil)
	second.fall(errors.New("it is lost"))
	first.fall(errors.New("it is lost"))
	for _, hw := range []*fakeHardware{first, second} {
		hw.free()
	}
	// One is left; the other, alone then, tries again and again as a single one does.
	b.logged("a device takes no more runs")
	b.logged("a run failed and is tried again")
	if n := strings.Count(b.log.String(), "a device takes no more runs"); n != 1 {
		t.Errorf("%d devices were left", n)
	}
	b.halt()
	close(first.enter)
	close(second.enter)
}

func TestARunThatMakesDevicesIllIsGivenUp(t *testing.T) {
	b := newBench(t)
	b.drop("a.py", "softmax")
	first, second := b.two(func(d *Daemon) {
		for _, w := range append(d.More, d.Runner) {
			w.Attempts = 2
		}
	})
	for _, hw := range []*fakeHardware{first, second} {
		hw.fall(errors.New("it is wedged"))
		hw.free()
	}
	if done := b.next(); done.Data.Run.Status != kernelwright.RunFailed || !strings.Contains(done.Data.Run.Reason, "it is wedged") {
		t.Errorf("%+v", done.Data.Run)
	}
	b.halt()
	close(first.enter)
	close(second.enter)
}

func TestARunOfAnotherVersionIsBegunAnewByHand(t *testing.T) {
	b := newBench(t)
	ctx := context.Background()
	w := b.daemon().Runner
	q := Request{Path: "/x/a.py", Name: "a", Source: "softmax"}
	old, resumed, err := w.Start(ctx, q)
	if err != nil || resumed {
		t.Fatal(resumed, err)
	}
	if again, resumed, err := w.Start(ctx, q); err != nil || !resumed || again.ID != old.ID {
		t.Fatalf("%+v, %v, %v", again, resumed, err)
	}
	old.DeviceKey = "of another version"
	if err := b.store.UpdateRun(ctx, old); err != nil {
		t.Fatal(err)
	}
	round := kernelwright.Round{
		RunID: old.ID, Candidate: kernelwright.Candidate{Source: "x", Language: kernelwright.CPP},
		Verdict: kernelwright.Verdict{Status: kernelwright.Wrong, Level: kernelwright.Quick, Candidate: kernelwright.HashText("x"), DeviceKey: old.DeviceKey},
	}
	if err := b.store.AppendRound(ctx, round); err != nil {
		t.Fatal(err)
	}
	if fresh, resumed, err := w.Start(ctx, q); err != nil || resumed || fresh.ID == old.ID {
		t.Fatalf("%+v, %v, %v", fresh, resumed, err)
	}
}

func TestRunsOfADeviceWaitForIt(t *testing.T) {
	b := newBench(t)
	ctx := context.Background()
	w := b.daemon().Runner
	run, err := w.Enqueue(ctx, Request{Path: "/x/a.py", Name: "a", Source: "softmax"}, store.File{Path: "/x/a.py"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	claim := func(want bool, elsewhere ...string) store.Job {
		t.Helper()
		job, ok, err := b.store.Claim(ctx, store.Self(), elsewhere...)
		if err != nil || ok != want {
			t.Fatalf("claimed: %v, %v", ok, err)
		}
		return job
	}
	job := claim(true, "other")
	run.DeviceKey = "other"
	if err := b.store.UpdateRun(ctx, run); err != nil {
		t.Fatal(err)
	}
	if err := b.store.Return(ctx, job); err != nil {
		t.Fatal(err)
	}
	// Without rounds it is nobody's yet.
	if err := b.store.Return(ctx, claim(true, "other")); err != nil {
		t.Fatal(err)
	}
	round := kernelwright.Round{
		RunID: run.ID, Candidate: kernelwright.Candidate{Source: "x", Language: kernelwright.CPP},
		Verdict: kernelwright.Verdict{Status: kernelwright.Wrong, Level: kernelwright.Quick, Candidate: kernelwright.HashText("x"), DeviceKey: "other"},
	}
	if err := b.store.AppendRound(ctx, round); err != nil {
		t.Fatal(err)
	}
	claim(false, "other", "third")
	claim(true, "third")
}
