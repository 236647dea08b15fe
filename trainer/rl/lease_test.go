package rl

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/internal/await"
)

// computing shares a device until its standard input ends, and lets those first who wait.
const computing = `
import select, sys
from rl.lease import Lease
lease = Lease(sys.argv[1], "cuda:0", lambda: print("finished", flush=True))
hold = lease.hold
def held():
    hold()
    print("held", flush=True)
lease.hold = held
lease.hold()
while not select.select([sys.stdin], [], [], 0.002)[0]:
    lease.breathe()
lease.let_go()
`

// The programs and who measures mean the same by a lease: these wait until those have
// finished what they began, are told of who holds the device, and then have it alone.
func TestProgramsLetMeasureFirst(t *testing.T) {
	python := os.Getenv("KERNELWRIGHT_TEST_PYTHON")
	if python == "" {
		t.Skip("KERNELWRIGHT_TEST_PYTHON names no Python")
	}
	leases := &hwfeedback.FileLeases{Dir: t.TempDir() + "/leases"}
	own, err := leases.Acquire(t.Context(), "cuda:0")
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), python, "-c", computing, leases.Dir)
	c.Env = append(os.Environ(), "PYTHONPATH=..")
	var said strings.Builder
	c.Stderr = &said
	stdin, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	next := func(want string) {
		t.Helper()
		if !lines.Scan() || lines.Text() != want {
			rest, _ := io.ReadAll(out)
			t.Fatalf("said %q, want %s\n%s%s", lines.Text(), want, rest, said.String())
		}
	}
	waits := func() { await.Until(t, "it waits for us", func() bool { return leases.Wanted("cuda:0") }) }
	waits()
	if err := own.Release(); err != nil {
		t.Fatal(err)
	}
	next("held")
	for range 3 {
		lease, err := leases.Acquire(t.Context(), "cuda:0")
		if err != nil {
			t.Fatal(err)
		}
		next("finished") // before we had it
		waits()
		if err := lease.Release(); err != nil {
			t.Fatal(err)
		}
		next("held")
	}
	_ = stdin.Close()
	next("finished")
	if err := c.Wait(); err != nil {
		t.Error(err, said.String())
	}
	// One that does not look meanwhile is named.
	still := exec.CommandContext(t.Context(), python, "-c", "import sys\nfrom rl.lease import Lease\nl = Lease(sys.argv[1], 'cuda:0', lambda: None)\nl.hold()\nprint('held', flush=True)\nsys.stdin.read()", leases.Dir)
	still.Env = c.Env
	stdin, err = still.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if out, err = still.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := still.Start(); err != nil {
		t.Fatal(err)
	}
	lines = bufio.NewScanner(out)
	next("held")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	var held *hwfeedback.HeldError
	if _, err := leases.Acquire(ctx, "cuda:0"); !errors.As(err, &held) || !strings.HasPrefix(held.Holder, fmt.Sprintf("process %d,", still.Process.Pid)) {
		t.Errorf("got %v", err)
	}
	_ = stdin.Close()
	if err := still.Wait(); err != nil {
		t.Error(err)
	}
	if lease, err := leases.Acquire(t.Context(), "cuda:0"); err != nil || lease.Release() != nil {
		t.Error(err)
	}
}
