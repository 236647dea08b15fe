package hwfeedback

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright/internal/await"
)

// leaseHelper has this test's binary hold or wait for a lease as another process.
const leaseHelper = "KERNELWRIGHT_TEST_LEASE_HELPER"

// TestLeaseHelper is another process: "share" or "alone", and the folder. It says "has"
// when it has the device, and ends with its input.
func TestLeaseHelper(t *testing.T) {
	how, dir, ok := strings.Cut(os.Getenv(leaseHelper), " ")
	if !ok {
		t.Skip("only another test calls it")
	}
	leases := &FileLeases{Dir: dir}
	take := leases.Share
	if how == "alone" {
		take = leases.Acquire
	}
	if _, err := take(t.Context(), "cuda:0"); err != nil {
		t.Fatal(err)
	}
	fmt.Println("has")
	_, _ = os.Stdin.Read(make([]byte, 1))
}

// otherProcess is one that holds the device, or waits for it.
type otherProcess struct {
	cmd *exec.Cmd
	has chan struct{} // closed when it has the device
}

func another(t *testing.T, how string, leases *FileLeases) otherProcess {
	t.Helper()
	p := otherProcess{exec.Command(os.Args[0], "-test.run=^TestLeaseHelper$"), make(chan struct{})}
	p.cmd.Env = append(os.Environ(), leaseHelper+"="+how+" "+leases.Dir)
	if _, err := p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		if n, _ := out.Read(make([]byte, 3)); n == 3 {
			close(p.has)
		}
	}()
	t.Cleanup(p.kill)
	return p
}

// kill ends it as a crash does.
func (p otherProcess) kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL)
	_ = p.cmd.Wait()
}

func (p otherProcess) hasIt() bool {
	select {
	case <-p.has:
		return true
	default:
		return false
	}
}

// Shares go together, nothing goes with a device that somebody has alone, and who wants
// that waits for the shares there are: later ones wait for it.
func TestShares(t *testing.T) {
	leases := &FileLeases{Dir: t.TempDir()}
	share := func() Lease {
		t.Helper()
		l, err := Shared(leases).Acquire(t.Context(), "cuda:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	first, second := share(), share()
	if first.Fence() == second.Fence() || first.File() == second.File() {
		t.Error("one lease twice")
	}
	elsewhere := another(t, "share", leases)
	<-elsewhere.has
	alone, later := another(t, "alone", leases), make(chan Lease)
	await.Until(t, "it waits to be alone", func() bool { return leases.waits("cuda:0", ".alone") })
	go func() {
		l, err := leases.Share(t.Context(), "cuda:0")
		if err != nil {
			t.Error(err)
		}
		later <- l
	}()
	short, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	var held *HeldError
	if _, err := leases.Share(short, "cuda:0"); !errors.As(err, &held) || held.Left {
		t.Errorf("a share was given while somebody waited to be alone: %v", err)
	}
	if err := errors.Join(first.Release(), first.Release(), second.Release()); err != nil {
		t.Error(err)
	}
	if alone.hasIt() {
		t.Error("it was alone beside a share of another process")
	}
	elsewhere.kill() // its share goes with it
	<-alone.has
	select {
	case <-later:
		t.Error("a share beside who is alone")
	default:
	}
	alone.kill()
	if err := (<-later).Release(); err != nil {
		t.Error(err)
	}
}

// A crash of who waits to be alone keeps nobody waiting.
func TestWhoWaitedToBeAloneMayDie(t *testing.T) {
	leases := &FileLeases{Dir: t.TempDir()}
	first, err := leases.Share(t.Context(), "cuda:0")
	if err != nil {
		t.Fatal(err)
	}
	alone := another(t, "alone", leases)
	await.Until(t, "it waits to be alone", func() bool { return leases.waits("cuda:0", ".alone") })
	alone.kill()
	second, err := leases.Share(t.Context(), "cuda:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(first.Release(), second.Release()); err != nil {
		t.Error(err)
	}
}

// Many who verify and then time, as evaluations do: nobody is alone beside others, and
// everybody has a turn.
func TestSharesAndTurns(t *testing.T) {
	leases := &FileLeases{Dir: t.TempDir()}
	var verifying, timing, most, turns atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 4 {
				share, err := leases.Share(t.Context(), "cuda:0")
				if err != nil {
					t.Error(err)
					return
				}
				most.Store(max(most.Load(), verifying.Add(1)))
				if timing.Load() > 0 {
					t.Error("a share beside who is alone")
				}
				verifying.Add(-1)
				if err := share.Release(); err != nil { // before it waits: two would wait for each other
					t.Error(err)
				}
				alone, err := leases.Acquire(t.Context(), "cuda:0")
				if err != nil {
					t.Error(err)
					return
				}
				if timing.Add(1) != 1 || verifying.Load() > 0 {
					t.Error("not alone")
				}
				turns.Add(1)
				timing.Add(-1)
				if err := alone.Release(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if turns.Load() != 32 {
		t.Errorf("%d of 32 turns, %d shares at once", turns.Load(), most.Load())
	}
}
