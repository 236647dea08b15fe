package hwfeedback

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright/internal/soak"
)

// openWarm opens an Evaluator that leaves its server behind.
func openWarm(t *testing.T, o Options, cache Cache) *Evaluator {
	t.Helper()
	if o.Python = os.Getenv("KERNELWRIGHT_TEST_PYTHON"); o.Python == "" {
		t.Skip("KERNELWRIGHT_TEST_PYTHON names no Python that has PyTorch")
	}
	o.KeepWarm, o.Unmeasured = time.Minute, true
	e, err := Open(t.Context(), o, cache, &FileLeases{Dir: filepath.Join(o.DataDir, "leases")})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func serverOf(e *Evaluator) int { return e.super.server.pid }

func isGone(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		// One of ours that has ended is not reaped before we end.
		b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil || strings.Contains(string(b), ") Z ") {
			return
		}
	}
	t.Errorf("process %d lives on", pid)
}

func isThere(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, 0); err != nil {
		t.Errorf("process %d has ended: %v", pid, err)
	}
}

func TestServerIsKeptWarm(t *testing.T) {
	if !soak.Turn(t, 3, 6) {
		t.Skip("it has its turn every sixth day: the scripts of cli keep servers warm every day")
	}
	// A folder whose path no socket's address could hold.
	data := filepath.Join(t.TempDir(), strings.Repeat("long", 40))
	o, cache := Options{DataDir: data}, &memoryCache{}
	first := openWarm(t, o, cache)
	second := openWarm(t, o, cache)
	server := serverOf(first)
	if server == 0 || serverOf(second) != server {
		t.Errorf("servers %d and %d", server, serverOf(second))
	}
	referee := second.super.referee
	left := []int{first.super.referee.pid, referee.pid} // the last that the server heard of
	first.Close()
	if referee.isDead() {
		t.Error("it took another's referee along")
	}
	second.Close()
	if other := openWarm(t, Options{DataDir: data, Sandbox: "weak"}, cache); serverOf(other) == server {
		t.Error("a weak sandbox shares a server that listens")
	} else {
		other.Close()
	}

	third := openWarm(t, o, cache)
	if serverOf(third) != server || !slices.Contains(left, third.super.referee.pid) {
		t.Errorf("nobody waited: server %d of %d, referee %d of %v", serverOf(third), server, third.super.referee.pid, left)
	}
	if task, err := third.Inspect(t.Context(), "self-test", selfTestReference); err != nil || task.Fingerprint == "" {
		t.Errorf("a referee that had waited: %v", err)
	}
	// Who wants a fresh start gets one, and leaves nobody the old one.
	if err := third.super.renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := third.super.versions(t.Context()); err != nil || serverOf(third) == server {
		t.Errorf("the same server again, %v", err)
	}
	isGone(t, server)
	third.Close()

	fourth := openWarm(t, o, cache)
	server = serverOf(fourth)
	if err := syscall.Kill(server, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	isGone(t, server)
	if _, err := fourth.super.versions(t.Context()); err != nil {
		t.Errorf("after the server was killed: %v", err)
	}
	fourth.Close()

	fifth := openWarm(t, o, cache)
	server, referee = serverOf(fifth), fifth.super.referee
	fifth.Close()
	isThere(t, referee.pid)
	if err := os.RemoveAll(data); err != nil {
		t.Fatal(err)
	}
	isGone(t, server)
	isGone(t, referee.pid)
}

// Without a server that can be kept, one is started as ever, whose error is
// the one to read.
func TestWarmServerThatDoesNotStart(t *testing.T) {
	dir := t.TempDir()
	python := filepath.Join(dir, "python")
	if err := os.WriteFile(python, []byte("#!/bin/sh\necho 'ImportError: no torch here' >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	w := warmServers{filepath.Join(dir, "warm"), pythonEnv{Interpreter: python}, dir, nil, time.Minute}
	_, err := w.connect(t.Context())
	var said *harnessError
	if !errors.As(err, &said) || !strings.Contains(said.output, "no torch here") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(w.path(".sock")); err == nil {
		t.Error("a socket without a server was left")
	}
	want := errors.New("as ever")
	start := w.first(func(context.Context) (*forkServer, error) { return nil, want }, slog.New(slog.DiscardHandler))
	for range 2 {
		if _, err := start(t.Context()); !errors.Is(err, want) {
			t.Errorf("got %v", err)
		}
	}
}
