package hwfeedback

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kernelwright/kernelwright"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hangs bounds what ends at once: who reaches it hangs, on a machine however busy.
const hangs = 2 * time.Minute

// double returns how to start the protocol double, misbehaving as mode says.
func double(t *testing.T, mode string) func(context.Context) (*forkServer, error) {
	t.Helper()
	python := os.Getenv("KERNELWRIGHT_TEST_PYTHON")
	if python == "" {
		found, err := exec.LookPath("python3")
		if err != nil {
			t.Skip("skipped: the protocol double needs a python3 on PATH")
		}
		python = found
	}
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"PATH=" + os.Getenv("PATH"), "PROTOCOL=" + filepath.Join(here, "harness"), "DOUBLE=" + mode}
	return func(ctx context.Context) (*forkServer, error) {
		return startForkServer(ctx, python, filepath.Join(here, "testdata", "double"), env, slog.New(slog.DiscardHandler))
	}
}

func supervise(t *testing.T, mode string) *supervisor {
	t.Helper()
	s := newSupervisor(double(t, mode), map[string]any{"colour": "blue"}, func(string, string) {}, slog.New(slog.DiscardHandler))
	t.Cleanup(s.close)
	return s
}

type echoed struct {
	Body   map[string]any    `json:"body"`
	PID    int               `json:"pid"`
	Served int               `json:"served"`
	Config map[string]string `json:"config"`
	Files  []string          `json:"files"`
}

func echo(t *testing.T, s *supervisor) echoed {
	t.Helper()
	result, err := s.request(context.Background(), "echo", map[string]any{"text": "a"}, hangs)
	if err != nil {
		t.Fatal(err)
	}
	var e echoed
	if err := json.Unmarshal(result, &e); err != nil {
		t.Fatal(err)
	}
	return e
}

// ends fails the test unless the process goes away.
func ends(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(hangs); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			return
		}
	}
	t.Errorf("process %d is still there", pid)
}

func TestRequests(t *testing.T) {
	s := supervise(t, "")
	first, second := echo(t, s), echo(t, s)
	if first.PID != second.PID || second.Served != 2 {
		t.Errorf("the referee was not kept: %+v, %+v", first, second)
	}
	if first.Config["colour"] != "blue" || first.Body["text"] != "a" {
		t.Errorf("got %+v", first)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := w.WriteString("lease"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	result, err := s.request(context.Background(), "echo", nil, hangs, r)
	if err != nil || !strings.Contains(string(result), `"files":["lease"]`) {
		t.Errorf("got %s, %v", result, err)
	}

	var notes []string
	s.progress = func(stage, note string) { notes = append(notes, stage+": "+note) }
	if _, err := s.request(context.Background(), "progress", nil, hangs); err != nil {
		t.Fatal(err)
	}
	if len(notes) != 3 || notes[2] != "verify: family 2" {
		t.Errorf("got %v", notes)
	}

	s.close()
	s.close()
	ends(t, first.PID)
	if _, err := s.request(context.Background(), "echo", nil, time.Second); !errors.Is(err, errEvaluatorClosed) {
		t.Errorf("after close: %v", err)
	}
}

func TestConcurrentRequests(t *testing.T) {
	s := supervise(t, "")
	var wg sync.WaitGroup
	var failed atomic.Int32
	for range 20 {
		wg.Go(func() {
			if _, err := s.request(context.Background(), "echo", nil, hangs); err != nil {
				failed.Add(1)
			}
		})
	}
	wg.Wait()
	if failed.Load() != 0 || echo(t, s).Served != 21 {
		t.Error("requests were lost")
	}
}

func TestRefereeFaults(t *testing.T) {
	for _, tt := range []struct{ kind, says string }{
		{"die", "MemoryError: no more"},
		{"garbage", "no JSON object"},
		{"oversize", "size limit"},
		{"wrong_id", "answered request"},
		{"hang", "no answer within 300ms"},
		{"infrastructure", "it is so"},
		{"kill_server", "died"},
	} {
		t.Run(tt.kind, func(t *testing.T) {
			s := supervise(t, "")
			before := echo(t, s)
			timeout := hangs
			if tt.kind == "hang" {
				timeout = 300 * time.Millisecond
			}
			_, err := s.request(context.Background(), tt.kind, nil, timeout)
			var infra *kernelwright.InfrastructureError
			if !errors.As(err, &infra) || infra.Op != tt.kind || !strings.Contains(err.Error(), tt.says) {
				t.Fatalf("got %v", err)
			}
			ends(t, before.PID)
			after := echo(t, s)
			if after.PID == before.PID || after.Served != 1 {
				t.Errorf("no fresh referee: %+v", after)
			}
		})
	}
}

func TestInvalidKeepsTheReferee(t *testing.T) {
	s := supervise(t, "")
	before := echo(t, s)
	_, err := s.request(context.Background(), "invalid", nil, hangs)
	var bad *kernelwright.InvalidTaskError
	if !errors.As(requestError(err), &bad) || bad.Reason != "it is so" || bad.Hint != "do this" || bad.Traceback != "there" {
		t.Errorf("got %v", err)
	}
	if after := echo(t, s); after.PID != before.PID {
		t.Error("the referee was replaced")
	}
}

func TestCancelKillsTheReferee(t *testing.T) {
	s := supervise(t, "")
	before := echo(t, s)
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("the user changed their mind")
	time.AfterFunc(100*time.Millisecond, func() { cancel(why) })
	if _, err := s.request(ctx, "hang", nil, time.Hour); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
	ends(t, before.PID)
	if after := echo(t, s); after.Served != 1 {
		t.Errorf("no fresh referee: %+v", after)
	}
	if _, err := s.request(ctx, "echo", nil, time.Hour); !errors.Is(err, why) {
		t.Errorf("an ended context was served: %v", err)
	}
}

func TestCancelWhileWaitingForTheSlot(t *testing.T) {
	s := supervise(t, "")
	echo(t, s)
	if err := s.acquire(context.Background()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := s.request(ctx, "echo", nil, time.Hour); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	s.release()
	echo(t, s)
}

func TestCloseDuringARequest(t *testing.T) {
	s := supervise(t, "")
	before := echo(t, s)
	done := make(chan error)
	go func() {
		_, err := s.request(context.Background(), "hang", nil, time.Hour)
		done <- err
	}()
	time.AfterFunc(100*time.Millisecond, s.close)
	if err := <-done; !errors.Is(err, errEvaluatorClosed) {
		t.Errorf("got %v", err)
	}
	s.close()
	ends(t, before.PID)
}

func TestServerDiesWhileIdle(t *testing.T) {
	s := supervise(t, "")
	before := echo(t, s)
	server := s.server
	if err := syscall.Kill(server.cmd.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-server.gone
	ends(t, before.PID) // it is in the server's group
	if after := echo(t, s); after.PID == before.PID {
		t.Error("the referee outlived its server")
	}
	if server == s.server {
		t.Error("no new server")
	}
}

func TestRenew(t *testing.T) {
	s := supervise(t, "")
	before := echo(t, s)
	if err := s.renew(context.Background()); err != nil {
		t.Fatal(err)
	}
	ends(t, before.PID)
	echo(t, s)
}

func TestServerFaults(t *testing.T) {
	for _, tt := range []struct{ mode, says string }{
		{"no_torch", "No module named 'torch'"},
		{"no_spawn", "no more processes"},
		{"dies_after_spawn", "died"},
	} {
		t.Run(tt.mode, func(t *testing.T) {
			s := supervise(t, tt.mode)
			_, err := s.request(context.Background(), "hang", nil, hangs)
			var infra *kernelwright.InfrastructureError
			if !errors.As(err, &infra) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v", err)
			}
		})
	}
	for _, mode := range []string{"slow", "flood"} {
		t.Run(mode, func(t *testing.T) { echo(t, supervise(t, mode)) })
	}
}

// A server that ignores orders is killed with all that it forked.
func TestDeafServer(t *testing.T) {
	s := supervise(t, "deaf")
	before := echo(t, s)
	if _, err := s.request(context.Background(), "hang", nil, 50*time.Millisecond); err == nil {
		t.Fatal("no error")
	}
	ends(t, before.PID)
	echo(t, s)
}

func TestStubbornServer(t *testing.T) {
	s := supervise(t, "stubborn")
	before := echo(t, s)
	s.close()
	ends(t, before.PID)
}

func TestStartIsCancelled(t *testing.T) {
	s := supervise(t, "never_ready")
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if _, err := s.request(ctx, "echo", nil, time.Hour); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestMissingInterpreter(t *testing.T) {
	_, err := startForkServer(context.Background(), filepath.Join(t.TempDir(), "python"), t.TempDir(), nil, slog.New(slog.DiscardHandler))
	if err == nil || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestTail(t *testing.T) {
	keep := &tail{limit: 10}
	for _, s := range []string{"0123456789", "abc\n", ""} {
		keep.add([]byte(s))
	}
	if got := keep.String(); got != "456789abc" {
		t.Errorf("got %q", got)
	}
	if got := lastLine("Traceback\n  x\nValueError: no\n\n"); got != "ValueError: no" {
		t.Errorf("got %q", got)
	}
}

// What is read of the versions without importing torch is what a server says.
func TestProbedVersionsAreTheServers(t *testing.T) {
	python := os.Getenv("KERNELWRIGHT_TEST_PYTHON")
	if python == "" {
		t.Skip("KERNELWRIGHT_TEST_PYTHON names no Python that has PyTorch")
	}
	p, err := probe(t.Context(), python)
	if err != nil {
		t.Fatal(err)
	}
	p.Stamp = p.stamp()
	out, err := exec.CommandContext(t.Context(), python, "-I", "-c", "import sys, torch; print(sys.version.split()[0], torch.__version__)").Output()
	if err != nil {
		t.Fatal(err)
	}
	if v := p.versions(); v["python"]+" "+v["torch"] != strings.TrimSpace(string(out)) {
		t.Errorf("got %v, and it says %q", v, out)
	}
}

// The server that compiles before torch is there starts, and reads a text.
func TestTheServerWithoutTorch(t *testing.T) {
	t.Parallel()
	python := os.Getenv("KERNELWRIGHT_TEST_PYTHON")
	if python == "" {
		t.Skip("KERNELWRIGHT_TEST_PYTHON names no Python that has PyTorch")
	}
	harness, err := filepath.Abs("harness")
	if err != nil {
		t.Fatal(err)
	}
	s := newSupervisor(func(ctx context.Context) (*forkServer, error) {
		return startForkServer(ctx, python, harness, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, slog.New(slog.DiscardHandler), "--early")
	}, map[string]any{}, func(string, string) {}, slog.New(slog.DiscardHandler))
	t.Cleanup(s.close)
	result, err := s.request(t.Context(), "parse", map[string]any{"source": "class ModelNew: pass\n", "what": "candidate", "sandbox": "weak"}, hangs)
	if err != nil || !strings.Contains(string(result), `"normalised_hash"`) {
		t.Fatalf("%s, %v", result, err)
	}
}
