package pipeline

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kernelwright/kernelwright/trainer/rl"
)

// host is a process that has imported what programs need, and forks one for each: one
// at a time.
type host struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *bufio.Reader
}

// newHost starts one. It lives until close.
func newHost(python rl.Python, home string) (*host, error) {
	cmd := exec.Command(python.Interpreter, "-m", "rl.host")
	cmd.Dir, cmd.Env = home, python.Env(home)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &host{cmd, stdin, bufio.NewReaderSize(out, 1<<16)}, nil
}

// close ends it and waits for that.
func (h *host) close() {
	_ = h.stdin.Close() // it ends by itself then
	_ = syscall.Kill(-h.cmd.Process.Pid, syscall.SIGKILL)
	_ = h.cmd.Wait() // as it was killed
}

// start has a program forked and waits for its end, as program.start does.
func (h *host) start(ctx context.Context, p *program, hear func([]byte)) (exit, error) {
	env := map[string]string{}
	for _, v := range p.env {
		if name, value, ok := strings.Cut(v, "="); ok {
			env[name] = value
		}
	}
	request, err := json.Marshal(map[string]any{"module": p.module, "config": p.config(), "folder": p.folder, "log": p.log(), "env": env})
	if err != nil {
		return exit{}, err
	}
	if _, err := h.stdin.Write(append(request, '\n')); err != nil {
		return exit{}, fmt.Errorf("the process that starts programs is gone: %w", err)
	}
	var pid atomic.Int64
	forked, over := make(chan struct{}), make(chan struct{})
	watched := make(chan struct{})
	go func() { // asks it to stop when ctx is done
		defer close(watched)
		select {
		case <-ctx.Done():
		case <-over:
			return
		}
		select {
		case <-forked:
		case <-over:
			return
		}
		_ = syscall.Kill(int(pid.Load()), syscall.SIGTERM) // it may have ended
		select {
		case <-time.After(stopGrace):
			_ = syscall.Kill(-int(pid.Load()), syscall.SIGKILL)
		case <-over:
		}
	}()
	defer func() {
		close(over)
		<-watched
		if n := pid.Load(); n > 0 {
			_ = syscall.Kill(-int(n), syscall.SIGKILL) // what is left of its processes
		}
	}()
	for {
		text, err := h.lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) { // killed, with all that it forked
			return exit{signal: syscall.SIGKILL}, nil
		}
		if err != nil {
			return exit{}, err
		}
		var l struct {
			Event string `json:"event"`
			PID   int64  `json:"pid"`
			Code  int    `json:"code"`
		}
		_ = json.Unmarshal(text, &l) // else it is none of the host's
		switch l.Event {
		case "forked":
			pid.Store(l.PID)
			close(forked)
		case "exit":
			if l.Code < 0 {
				return exit{signal: syscall.Signal(-l.Code)}, nil
			}
			return exit{code: l.Code}, nil
		default:
			hear(text)
		}
	}
}
