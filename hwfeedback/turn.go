package hwfeedback

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/kernelwright/kernelwright"
)

const (
	// turnIdle is how long an evaluator keeps the device for its next evaluation.
	// As long have it the processes that the last one began for that.
	turnIdle = 3 * time.Second
	// turnLooks is how often it looks meanwhile whether somebody waits.
	turnLooks = 30
	// turnLook is how often it looks whether those have gone that it let go first.
	turnLook = 20 * time.Millisecond
)

// turn is an evaluator's hold on its device. It may go on from one evaluation to
// the next: the processes that one begins for the next have the device until
// they are there, and who waited for them would wait for what it needs itself.
type turn struct {
	leases Leaser
	idle   time.Duration // turnIdle; 0: it never goes on
	free   chan struct{} // has a token while no request has the device
	had    string        // the device; whoever has the token may read and write it

	mu     sync.Mutex
	kept   Lease // of the last evaluation, until the next, or until it is over
	over   *time.Timer
	closed bool
}

func newTurn(leases Leaser, idle time.Duration) *turn {
	t := &turn{leases: leases, idle: idle, free: make(chan struct{}, 1)}
	t.free <- struct{}{}
	return t
}

// take waits for the device or the end of the context. Who may go on is content
// with what the last evaluation has left, processes that begin. Who else wants
// the device has it between two requests.
func (t *turn) take(ctx context.Context, device string, goesOn bool) (Lease, error) {
	select {
	case <-t.free:
	case <-ctx.Done():
		return nil, &HeldError{device, holder{PID: os.Getpid()}.String(), false, context.Cause(ctx)}
	}
	kept, wanted := t.withdraw(false), t.had != "" && t.leases.Wanted(device)
	if kept != nil && goesOn && !wanted {
		return kept, nil
	}
	if kept != nil {
		_ = kept.Release() // what it says is informative: the lock is gone with the file
	}
	if wanted {
		t.letOthers(ctx, device)
	}
	lease, err := t.leases.Acquire(ctx, device)
	if err != nil {
		t.free <- struct{}{}
		return nil, err
	}
	t.had = device
	return lease, nil
}

// takeFree is take, by who may go on, of a device that nobody has and nobody waits
// for; nil where somebody does. A worker of ours that was killed is nobody: it goes.
func (t *turn) takeFree(ctx context.Context, device string) (Lease, error) {
	select {
	case <-t.free:
	default:
		return nil, nil
	}
	wanted := t.had != "" && t.leases.Wanted(device)
	kept := t.withdraw(false)
	if kept != nil && !wanted {
		return kept, nil
	}
	if kept != nil {
		_ = kept.Release()
	}
	var lease Lease
	var err error
	if !wanted {
		looking, stop := context.WithTimeout(ctx, turnLook)
		defer stop()
		lease, err = t.leases.Acquire(looking, device)
	}
	var held *HeldError
	if errors.As(err, &held) && held.Left {
		lease, err = t.leases.Acquire(ctx, device)
	}
	if lease == nil || err != nil {
		t.free <- struct{}{}
		// Who has it only just is not told from who writes down for long that it is ours.
		if ctx.Err() == nil && (errors.As(err, &held) || errors.Is(err, context.DeadlineExceeded)) {
			err = nil
		}
		return nil, err
	}
	t.had = device
	return lease, nil
}

// letOthers returns when nobody waits for the device any more, or somebody does
// for long. They look at it now and then, and we would always be first.
func (t *turn) letOthers(ctx context.Context, device string) {
	look := time.NewTicker(turnLook)
	defer look.Stop()
	for until := time.Now().Add(kernelwright.Training.Yield.Duration); t.leases.Wanted(device) && time.Now().Before(until); {
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
	}
}

// give ends a request. The device is kept for the next one where the turn may
// go on: nobody who met a candidate may be left, and nobody wait.
func (t *turn) give(lease Lease, goesOn bool) error {
	defer func() { t.free <- struct{}{} }()
	goesOn = goesOn && t.idle > 0 && !t.leases.Wanted(t.had)
	t.mu.Lock()
	defer t.mu.Unlock()
	if !goesOn || t.closed {
		return lease.Release()
	}
	t.kept = lease
	device, until := t.had, time.Now().Add(t.idle)
	t.over = time.AfterFunc(t.idle/turnLooks, func() { t.rest(lease, device, until) })
	return nil
}

// rest gives up what is kept once it is time to, or somebody waits for it: a policy that is
// to write the next candidate, say.
func (t *turn) rest(lease Lease, device string, until time.Time) {
	left := time.Until(until)
	wanted := left > 0 && t.leases.Wanted(device)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.kept != lease: // it was taken up
	case left > 0 && !wanted:
		t.over = time.AfterFunc(min(left, t.idle/turnLooks), func() { t.rest(lease, device, until) })
	default:
		t.kept = nil
		_ = lease.Release()
	}
}

// close does, and has nothing kept again.
func (t *turn) close() {
	if kept := t.withdraw(true); kept != nil {
		_ = kept.Release()
	}
}

// withdraw returns what is kept, which it then is no more.
func (t *turn) withdraw(closed bool) Lease {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = t.closed || closed
	kept := t.kept
	if t.kept = nil; kept != nil {
		t.over.Stop()
	}
	return kept
}
