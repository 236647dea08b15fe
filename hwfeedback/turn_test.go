package hwfeedback

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/internal/await"
)

func takes(t *testing.T, turn *turn, goesOn bool) Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	l, err := turn.take(ctx, "cuda:0", goesOn)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func gives(t *testing.T, turn *turn, l Lease, goesOn bool) {
	t.Helper()
	if err := turn.give(l, goesOn); err != nil {
		t.Fatal(err)
	}
}

// isFree tells whether another process would get the device, as is expected or
// not: one that is free is given however slow this machine is.
func isFree(t *testing.T, leases Leaser, device string, expected bool) bool {
	t.Helper()
	wait := 20 * time.Millisecond
	if expected {
		wait = 2 * time.Minute
	}
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	l, err := leases.Acquire(ctx, device)
	if err != nil {
		return false
	}
	l.Release()
	return true
}

// What is kept for the next evaluation is given to who waits for it meanwhile.
func TestWhatIsKeptIsGivenUp(t *testing.T) {
	leases := &FileLeases{Dir: t.TempDir()}
	turn := newTurn(leases, time.Hour)
	gives(t, turn, takes(t, turn, true), true)
	turn.mu.Lock()
	kept := turn.kept
	turn.over.Stop()
	turn.mu.Unlock()
	waiting := make(chan error, 1)
	go func() {
		l, err := leases.Acquire(t.Context(), "cuda:0")
		if err == nil {
			err = l.Release()
		}
		waiting <- err
	}()
	await.Until(t, "it waits", func() bool { return leases.Wanted("cuda:0") })
	turn.rest(kept, "cuda:0", time.Now().Add(time.Hour))
	if err := <-waiting; err != nil {
		t.Error(err)
	}
}

func TestATurnGoesOn(t *testing.T) {
	leases := &FileLeases{Dir: t.TempDir()}
	turn := newTurn(leases, time.Hour)
	first := takes(t, turn, true)
	gives(t, turn, first, true)
	if isFree(t, leases, "cuda:0", false) {
		t.Fatal("nobody has kept it")
	}
	second := takes(t, turn, true)
	if second != first {
		t.Error("it did not go on")
	}
	gives(t, turn, second, false)
	if !isFree(t, leases, "cuda:0", true) {
		t.Fatal("somebody who met a candidate may be left, and the turn goes on")
	}
	gives(t, turn, takes(t, turn, true), true)
	other := takes(t, turn, false)
	if other.Fence() <= first.Fence() {
		t.Errorf("who does not go on has lease %d after %d", other.Fence(), first.Fence())
	}
	gives(t, turn, other, true)
	turn.close()
	if !isFree(t, leases, "cuda:0", true) {
		t.Fatal("it is kept after the end")
	}
	gives(t, turn, takes(t, turn, true), true)
	if !isFree(t, leases, "cuda:0", true) {
		t.Fatal("it is kept anew after the end")
	}
}

func TestATurnEndsByItself(t *testing.T) {
	leases := &FileLeases{Dir: t.TempDir()}
	for _, idle := range []time.Duration{0, 50 * time.Millisecond} {
		turn := newTurn(leases, idle)
		gives(t, turn, takes(t, turn, true), true)
		if l, err := leases.Acquire(t.Context(), "cuda:0"); err != nil {
			t.Fatal(err)
		} else {
			l.Release()
		}
	}
}

// Who wants it gets it before the turn goes on, and then it is our turn again.
func TestATurnEndsForOthers(t *testing.T) {
	leases := &FileLeases{Dir: t.TempDir()}
	for i, idle := range []time.Duration{time.Hour, time.Hour, 0} {
		turn := newTurn(leases, idle)
		first := takes(t, turn, true)
		if leases.Wanted("cuda:0") {
			t.Fatal("nobody waits")
		}
		theirs := make(chan Lease, 1)
		go func() {
			l, err := leases.Acquire(t.Context(), "cuda:0")
			if err != nil {
				t.Error(err)
			}
			theirs <- l
		}()
		await.Until(t, "they wait", func() bool { return leases.Wanted("cuda:0") })
		time.Sleep(time.Duration(i) * 400 * time.Millisecond) // they look ever less often
		gives(t, turn, first, true)
		ours := make(chan Lease)
		go func() {
			l, err := turn.take(t.Context(), "cuda:0", true)
			if err != nil {
				t.Error(err)
			}
			ours <- l
		}()
		select {
		case <-ours:
			t.Fatal("they did not have it")
		case l := <-theirs:
			l.Release()
		}
		next := <-ours
		if next == first {
			t.Error("it went on all the same")
		}
		gives(t, turn, next, true)
		turn.close()
	}
}

// Who waits and has been stopped is not waited for.
func TestATurnDoesNotWaitForTheStopped(t *testing.T) {
	leases := &FileLeases{Dir: t.TempDir()}
	turn := newTurn(leases, time.Hour)
	first := takes(t, turn, true)
	stopped, err := leases.open("cuda:0", ".wanted")
	if err != nil {
		t.Fatal(err)
	}
	defer stopped.Close()
	if err := flock(stopped, unix.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	looked := func(ago time.Duration) {
		t.Helper()
		then := time.Now().Add(-ago)
		if err := os.Chtimes(stopped.Name(), then, then); err != nil {
			t.Fatal(err)
		}
	}
	looked(-time.Minute) // however late we ask
	if !leases.Wanted("cuda:0") {
		t.Error("nobody waits who looks")
	}
	looked(time.Minute)
	gives(t, turn, first, true)
	if l := takes(t, turn, true); l != first {
		t.Error("somebody was waited for who does not look")
	} else {
		gives(t, turn, l, true)
	}
	turn.close()
}

// Of several who all want the device at all times each has it about as often.
func TestTurnsAreFair(t *testing.T) {
	leases := &FileLeases{Dir: t.TempDir()}
	var had [3]atomic.Int64
	var left atomic.Int64
	left.Store(180)
	var all sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for i := range had {
		all.Go(func() {
			turn := newTurn(leases, time.Second)
			defer turn.close()
			for {
				l, err := turn.take(ctx, "cuda:0", true)
				if err != nil {
					return
				}
				time.Sleep(20 * time.Millisecond)
				had[i].Add(1)
				if left.Add(-1) <= 0 {
					cancel()
				}
				if err := turn.give(l, true); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	least, most := had[0].Load(), int64(0)
	for i := range had {
		least, most = min(least, had[i].Load()), max(most, had[i].Load())
	}
	t.Log(had[0].Load(), had[1].Load(), had[2].Load())
	if least < 5 || most > 10*least {
		t.Errorf("one has had it %d times, another %d", least, most)
	}
}

// On a busy machine writing down whose the device is takes longer than a look.
func TestALookThatTakesLongIsNoError(t *testing.T) {
	slow := true
	leases := &FileLeases{Dir: t.TempDir(), NextFence: func(ctx context.Context, _ string) (int64, error) {
		if slow {
			<-ctx.Done()
			return 0, ctx.Err()
		}
		return 7, nil
	}}
	turn := newTurn(leases, 0)
	if l, err := turn.takeFree(t.Context(), "cuda:0"); l != nil || err != nil {
		t.Errorf("got %v, %v", l, err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if l, err := turn.takeFree(ended, "cuda:0"); l != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("who was told to end: %v, %v", l, err)
	}
	slow = false
	l, err := turn.takeFree(t.Context(), "cuda:0")
	if l == nil || err != nil {
		t.Fatalf("got %v, %v", l, err)
	}
	gives(t, turn, l, false)
}

// Requests of one evaluator do not wait for its own turn to end.
func TestOneAfterTheOther(t *testing.T) {
	turn := newTurn(&FileLeases{Dir: t.TempDir()}, time.Hour)
	first := takes(t, turn, true)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	var held *HeldError
	if _, err := turn.take(ctx, "cuda:0", true); !errors.As(err, &held) || held.Holder != "this process" || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	var all sync.WaitGroup
	for _, goesOn := range []bool{true, false, true, true, false} {
		all.Go(func() { gives(t, turn, takes(t, turn, goesOn), true) })
	}
	gives(t, turn, first, true)
	all.Wait()
	turn.close()
}

func TestWhichEvaluationsGoOn(t *testing.T) {
	b := newBench(t)
	b.turn.idle = time.Hour
	for i, tt := range []struct {
		source string
		free   bool
	}{{"good at_rest", false}, {"good at_rest 2", false}, {"good", true}, {"crash at_rest", false}, {"good 3", true}} {
		b.evaluate(tt.source, kernelwright.Quick)
		if isFree(t, b.turn.leases, "cpu", tt.free) != tt.free {
			t.Errorf("%d, %s: free %v", i, tt.source, !tt.free)
		}
	}
	b.evaluate("good at_rest 4", kernelwright.Quick)
	if _, err := b.MeasureBaselines(t.Context(), aTask); err != nil || !isFree(t, b.turn.leases, "cpu", true) {
		t.Errorf("another kind of request: %v", err)
	}
	b.evaluate("good at_rest 5", kernelwright.Quick)
	b.Close()
	if !isFree(t, b.turn.leases, "cpu", true) {
		t.Error("it is kept after the end")
	}
}

func TestWhoEndsAfterItsVerdictHasTheDeviceNoLonger(t *testing.T) {
	b := openBenchWith(t, Options{DataDir: t.TempDir(), KeepWarm: time.Minute}, &memoryCache{})
	b.turn.idle = time.Hour
	kept := func() bool {
		b.turn.mu.Lock()
		defer b.turn.mu.Unlock()
		return b.turn.kept != nil
	}
	b.evaluate("good at_rest", kernelwright.Quick)
	if kept() {
		t.Error("it is kept after a single one")
	}
	var keeps []bool
	next := []kernelwright.Candidate{{Source: "good at_rest 2"}, {Source: "good at_rest 3"}}
	if err := b.EvaluateBatch(t.Context(), aTask, next, kernelwright.Quick, func(int, kernelwright.Verdict) error {
		keeps = append(keeps, kept())
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(keeps, []bool{true, false}) {
		t.Errorf("of a batch: kept %v", keeps)
	}
}
