package tasks

import (
	"bufio"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/internal/wholefile"
)

// The Python that crawls operators, composes tasks and compares them.
//
//go:embed compose/*.py
var composeFiles embed.FS

// composeHash is over the embedded files: other files compose other tasks.
var composeHash = sync.OnceValue(func() string {
	sum := sha256.New()
	entries, err := fs.ReadDir(composeFiles, "compose")
	if err != nil {
		panic(err) // it is embedded
	}
	for _, e := range entries {
		text, err := composeFiles.ReadFile(path.Join("compose", e.Name()))
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(sum, "%s %d\n", e.Name(), len(text))
		sum.Write(text)
	}
	return hex.EncodeToString(sum.Sum(nil))[:12]
})

// unpack writes the embedded Python below a data folder and returns where.
// Files are written in place by rename: processes that start together agree.
func unpack(dataDir string) (string, error) {
	folder := filepath.Join(dataDir, "compose", composeHash())
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	entries, err := fs.ReadDir(composeFiles, "compose")
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		text, err := composeFiles.ReadFile(path.Join("compose", e.Name()))
		if err != nil {
			return "", err
		}
		if err := wholefile.Write(filepath.Join(folder, e.Name()), text); err != nil {
			return "", err
		}
	}
	return folder, nil
}

// service is one Python process that answers requests, one at a time. It is
// started by the first request, and again after it died.
type service struct {
	interpreter, folder string

	mu      sync.Mutex
	process *exec.Cmd
	stdin   io.WriteCloser
	answers *bufio.Reader
	said    *tail
	prepare func(ctx context.Context, s *service) error // makes a new process ready
	after   after                                       // nil: time.AfterFunc
}

// after calls a function some time from now, unless it is stopped or reset before.
type after func(time.Duration, func()) alarm

type alarm interface {
	Reset(time.Duration) bool
	Stop() bool
}

// answerTimeout is how long a process may say nothing: it is no composition any more.
// What takes longer tells of its progress.
const answerTimeout = 10 * time.Minute

var (
	errServiceDied = errors.New("the process that composes tasks ended")
	// errServiceSilent is an errServiceDied: the process was ended for it.
	errServiceSilent = fmt.Errorf("%w: it said nothing for %v", errServiceDied, answerTimeout)
)

// ask sends a request and reads the answer into v. Lines before it that tell of
// progress go to told. A process that ends is an errServiceDied, one that is silent too
// long an errServiceSilent. It is the request's fault: the next one has another process.
func (s *service) ask(ctx context.Context, request, v any, told func(n, of int)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		if err := s.start(); err != nil {
			return err
		}
		if s.prepare != nil {
			if err := s.prepare(ctx, s); err != nil {
				s.end()
				if errors.Is(err, errServiceDied) { // it is not the request's fault
					err = fmt.Errorf("make the process that composes tasks ready: %v", err) //nolint:errorlint // see above
				}
				return err
			}
		}
	}
	return s.exchange(ctx, request, v, told)
}

// exchange is ask on a process that runs. The caller holds mu.
func (s *service) exchange(ctx context.Context, request, v any, told func(n, of int)) error {
	waits, end := context.WithCancelCause(ctx)
	defer end(nil)
	after := s.after
	if after == nil {
		after = func(d time.Duration, f func()) alarm { return time.AfterFunc(d, f) }
	}
	silent := after(answerTimeout, func() { end(errServiceSilent) })
	defer silent.Stop()
	pid, ended := s.process.Process.Pid, make(chan struct{})
	stop := context.AfterFunc(waits, func() {
		defer close(ended)
		killAll(pid)
	})
	settled := sync.OnceFunc(func() {
		if !stop() {
			<-ended // before the number may be another's
		}
	})
	defer settled()
	died := func(cause error) error {
		settled()
		return s.died(ctx, waits, cause)
	}
	line, err := json.Marshal(request)
	if err != nil {
		return err
	}
	if _, err := s.stdin.Write(append(line, '\n')); err != nil {
		return died(err)
	}
	for {
		line, err := s.answers.ReadBytes('\n')
		if err != nil {
			return died(err)
		}
		silent.Reset(answerTimeout)
		var progress struct{ Tried, Of int }
		if err := json.Unmarshal(line, &progress); err == nil && progress.Of > 0 {
			if told != nil {
				told(progress.Tried, progress.Of)
			}
			continue
		}
		settled()
		if waits.Err() != nil { // it has answered, and was ended after that
			s.end()
		}
		return json.Unmarshal(line, v)
	}
}

// died ends a process that does not answer and says why: the caller's context, or how
// the wait for it ended.
func (s *service) died(ctx, waits context.Context, cause error) error {
	s.end()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if waits.Err() != nil {
		return context.Cause(waits)
	}
	return fmt.Errorf("%w (%w): %s", errServiceDied, cause, s.said.last())
}

func (s *service) start() error {
	cmd := exec.Command(s.interpreter, "-u", filepath.Join(s.folder, "serve.py"))
	cmd.Env = hwfeedback.PythonEnv("PYTHONDONTWRITEBYTECODE=1", "OMP_NUM_THREADS=1", "CUDA_VISIBLE_DEVICES=", "PYTHONHASHSEED=0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	s.said = &tail{}
	cmd.Stderr = s.said
	cmd.WaitDelay = time.Second
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the process that composes tasks: %w", err)
	}
	s.process, s.stdin, s.answers = cmd, stdin, bufio.NewReaderSize(stdout, 1<<20)
	return nil
}

// end kills the process, if there is one, and waits for it.
func (s *service) end() {
	if s.process == nil {
		return
	}
	killAll(s.process.Process.Pid)
	_ = s.stdin.Close()
	_ = s.process.Wait() // it was killed
	s.process = nil
}

// killAll ends a process that was not waited for, and then its children, which hold its
// pipe: a parent that sees a child end first takes that for the operator's doing.
func killAll(pid int) {
	_ = syscall.Kill(pid, syscall.SIGKILL) // it may be gone
	_ = syscall.Kill(-pid, syscall.SIGKILL)
}

// Close ends the process. It may be called twice.
func (s *service) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end()
}

// tail keeps the end of what a process prints.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if n := len(t.text) - 4096; n > 0 {
		t.text = t.text[n:]
	}
	return len(b), nil
}

// last returns the last line.
func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(t.text)), "\n")
	return lines[len(lines)-1]
}
