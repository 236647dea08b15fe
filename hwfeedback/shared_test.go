package hwfeedback

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright/internal/await"
)

// Users of one process have a device together, and others when all of them are gone;
// who waits elsewhere is not kept waiting by more of them.
func TestSharedLeases(t *testing.T) {
	files := &FileLeases{Dir: t.TempDir()}
	l := Shared(files)
	take := func() Lease {
		t.Helper()
		lease, err := l.Acquire(t.Context(), "cpu")
		if err != nil {
			t.Fatal(err)
		}
		return lease
	}
	first, second := take(), take()
	if first.File() != second.File() || first.Fence() != second.Fence() {
		t.Error("two leases")
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	var held *HeldError
	if _, err := files.Acquire(short, "cpu"); !errors.As(err, &held) {
		t.Fatalf("another took it: %v", err)
	}
	if err := errors.Join(first.Release(), first.Release()); err != nil {
		t.Error(err)
	}
	// Another process waits: it comes before a third user here.
	waits := make(chan Lease)
	go func() {
		lease, err := files.Acquire(t.Context(), "cpu")
		if err != nil {
			t.Error(err)
			lease = second
		}
		waits <- lease
	}()
	await.Until(t, "it waits", func() bool { return files.Wanted("cpu") })
	third := make(chan error)
	go func() {
		lease, err := l.Acquire(t.Context(), "cpu")
		if err == nil {
			err = lease.Release()
		}
		third <- err
	}()
	select {
	case err := <-third:
		t.Fatalf("who waited was passed over: %v", err)
	case <-waits:
		t.Fatal("it was not held")
	case <-time.After(20 * time.Millisecond):
	}
	if err := second.Release(); err != nil {
		t.Error(err)
	}
	if err := errors.Join((<-waits).Release(), <-third); err != nil {
		t.Error(err)
	}
	if err := take().Release(); err != nil {
		t.Error(err)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if _, err := l.Acquire(stopped, "cpu"); err == nil {
		t.Error("a wait that is over got the device")
	}
}
