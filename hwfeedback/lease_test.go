package hwfeedback

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func TestLeaseExcludes(t *testing.T) {
	leases := &FileLeases{Dir: filepath.Join(t.TempDir(), "leases")}
	var holders, most atomic.Int32
	var mu sync.Mutex
	seen := map[int64]bool{}
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			l, err := leases.Acquire(t.Context(), "cpu")
			if err != nil {
				t.Error(err)
				return
			}
			if n := holders.Add(1); n > most.Load() {
				most.Store(n)
			}
			mu.Lock()
			if seen[l.Fence()] {
				t.Errorf("fence %d twice", l.Fence())
			}
			seen[l.Fence()] = true
			mu.Unlock()
			time.Sleep(time.Millisecond)
			holders.Add(-1)
			if err := errors.Join(l.Release(), l.Release()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if most.Load() != 1 {
		t.Errorf("%d held the device at once", most.Load())
	}
	for fence := int64(1); fence <= 16; fence++ {
		if !seen[fence] {
			t.Errorf("fence %d was never given", fence)
		}
	}
}

func TestLeaseDevicesAreApart(t *testing.T) {
	leases := &FileLeases{Dir: t.TempDir()}
	for _, device := range []string{"cpu", "cuda:0", "cuda:1"} {
		l, err := leases.Acquire(t.Context(), device)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Release()
	}
	for _, device := range []string{"", "../cpu", "a/b", ".hidden"} {
		if _, err := leases.Acquire(t.Context(), device); err == nil {
			t.Errorf("device %q was leased", device)
		}
	}
}

func TestLeaseNamesTheHolder(t *testing.T) {
	var told []string
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	enough := errors.New("who waits was told")
	leases := &FileLeases{Dir: t.TempDir(), Waiting: func(device, holder string) {
		told = append(told, device+" "+holder)
		time.AfterFunc(leaseWaitWorthTelling, func() { cancel(enough) }) // in which it is not told again
	}}
	l, err := leases.Acquire(t.Context(), "cpu")
	if err != nil {
		t.Fatal(err)
	}
	if err := writeHolder(l.File(), holder{PID: 1}); err != nil { // as another process would
		t.Fatal(err)
	}
	_, err = leases.Acquire(ctx, "cpu")
	if !errors.Is(err, enough) || !strings.Contains(err.Error(), "held by process 1, since") {
		t.Errorf("got %v", err)
	}
	if len(told) != 1 || !strings.HasPrefix(told[0], "cpu process 1, since ") {
		t.Errorf("told %q", told)
	}
	if err := l.Release(); err != nil {
		t.Fatal(err)
	}
	for h, want := range map[holder]string{
		{}:                                      "another process",
		{PID: 1, Released: true}:                "a worker of process 1 that has not ended yet",
		{PID: os.Getpid(), Released: true}:      "a worker of process ",
		{PID: 1, Since: time.Now().UnixMilli()}: "process 1, since ",
	} {
		if !strings.HasPrefix(h.String(), want) {
			t.Errorf("%+v is %q", h, h)
		}
		// Our own workers come and go all the time, and evaluations wait for each other.
		if ours := h.PID == os.Getpid(); (h.worthTelling() > 5*time.Second) != ours {
			t.Errorf("%+v is told of after %v", h, h.worthTelling())
		}
	}
}

// The device stays taken while any process holds a duplicate of the lease.
func TestLeaseOutlivesItsRelease(t *testing.T) {
	s := supervise(t, "")
	leases := &FileLeases{Dir: t.TempDir()}
	l, err := leases.Acquire(t.Context(), "cpu")
	if err != nil {
		t.Fatal(err)
	}
	result, err := s.request(t.Context(), "hold", nil, hangs, l.File())
	if err != nil {
		t.Fatal(err)
	}
	var holder struct{ PID int }
	if err := json.Unmarshal(result, &holder); err != nil || holder.PID <= 1 {
		t.Fatalf("%s, %v", result, err)
	}
	if err := l.Release(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := leases.Acquire(ctx, "cpu"); err == nil || !strings.Contains(err.Error(), "that has not ended yet") {
		t.Fatalf("got %v", err)
	}
	if err := syscall.Kill(holder.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	next, err := leases.Acquire(t.Context(), "cpu")
	if err != nil {
		t.Fatal(err)
	}
	if next.Fence() <= l.Fence() {
		t.Errorf("fence %d after %d", next.Fence(), l.Fence())
	}
	next.Release()
}

func TestLeaseFenceFromOutside(t *testing.T) {
	n, broken := int64(41), errors.New("the store is closed")
	leases := &FileLeases{Dir: t.TempDir(), NextFence: func(_ context.Context, device string) (int64, error) {
		if device != "cpu" {
			return 0, broken
		}
		n++
		return n, nil
	}}
	l, err := leases.Acquire(t.Context(), "cpu")
	if err != nil || l.Fence() != 42 {
		t.Fatalf("got %v", err)
	}
	l.Release()
	for range 2 { // a failed one leaves nothing locked
		if _, err := leases.Acquire(t.Context(), "other"); !errors.Is(err, broken) {
			t.Errorf("got %v", err)
		}
	}
}

func TestLeaseSurvivesDamage(t *testing.T) {
	dir := t.TempDir()
	for _, content := range []string{"", "{", "garbage", strings.Repeat("x", 4096), `{"pid":"no"}`} {
		if err := os.WriteFile(filepath.Join(dir, "cpu.lock"), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		l, err := (&FileLeases{Dir: dir}).Acquire(t.Context(), "cpu")
		if err != nil {
			t.Fatal(fmt.Sprintf("%.20q", content), err)
		}
		l.Release()
	}
}

func TestLeasesAreKeptWhereOnlyTheirUserMayChangeThem(t *testing.T) {
	dir := leasesBelow(t.TempDir())
	l, err := (&FileLeases{Dir: dir}).Acquire(t.Context(), "cpu")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Release(); err != nil {
		t.Fatal(err)
	}
	for _, shared := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(shared, 0o777); err != nil {
			t.Fatal(err)
		}
		if _, err := (&FileLeases{Dir: dir}).Acquire(t.Context(), "cpu"); err == nil || !strings.Contains(err.Error(), shared+" is not a folder that only its user may change") {
			t.Errorf("%s may be changed by all: %v", shared, err)
		}
		if err := os.Chmod(shared, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if _, err := (&FileLeases{Dir: link}).Acquire(t.Context(), "cpu"); err == nil {
		t.Error("a link was followed")
	}
}

// Two processes of a user meet at the device whatever their environments say.
func TestLeasesDoNotDependOnTheEnvironment(t *testing.T) {
	t.Setenv(LeasesOfTests, "")
	want := LeaseFolder()
	for _, name := range []string{"TMPDIR", "HOME", "XDG_RUNTIME_DIR", "XDG_DATA_HOME"} {
		t.Setenv(name, t.TempDir())
	}
	if got := LeaseFolder(); got != want || !strings.HasSuffix(got, fmt.Sprintf("/kernelwright-%d/leases", os.Getuid())) {
		t.Errorf("%s, then %s", want, got)
	}
}
