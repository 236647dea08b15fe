package hwfeedback

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// warmServers are fork servers that outlive who started them, so that the next
// process need not import torch, which takes over a second. Each listens on a
// socket in the folder, named by all that it depends on, and ends by itself
// when nobody was connected for a while or when its socket is gone.
type warmServers struct {
	folder  string
	python  string
	harness string
	env     []string
	idle    time.Duration
}

// first returns a start that takes a warm server the first time. Who asks
// again has lost it, or does not trust it any more: that one is retired.
func (w warmServers) first(start func(context.Context) (*forkServer, error), log *slog.Logger) func(context.Context) (*forkServer, error) {
	asked := false
	return func(ctx context.Context) (*forkServer, error) {
		if asked {
			w.retire()
			return start(ctx)
		}
		asked = true
		f, err := w.connect(ctx)
		if err == nil || ctx.Err() != nil {
			return f, err
		}
		log.Debug("no fork server could be kept warm", "error", err)
		return start(ctx)
	}
}

// name tells servers apart that are not each other's equals: by interpreter,
// harness and environment, and by what a process inherits from its terminal.
func (w warmServers) name() string {
	h := sha256.New()
	fmt.Fprintln(h, w.python, w.harness, os.Getuid(), affinity())
	for _, v := range w.env {
		fmt.Fprintln(h, v)
	}
	for _, path := range []string{"/proc/self/cgroup", "/proc/self/limits"} {
		if b, err := os.ReadFile(path); err == nil {
			h.Write(b)
		}
	}
	if nice, err := unix.Getpriority(unix.PRIO_PROCESS, 0); err == nil {
		fmt.Fprintln(h, nice)
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

func (w warmServers) path(suffix string) string { return filepath.Join(w.folder, w.name()+suffix) }

// connect returns a connection to the server of this name, which it starts
// where there is none. Stopping what it returns ends what was forked over that
// connection, and leaves the server.
func (w warmServers) connect(ctx context.Context) (*forkServer, error) {
	if err := os.MkdirAll(w.folder, 0o700); err != nil {
		return nil, err
	}
	// Two that start at once share one server.
	lock, err := os.OpenFile(w.path(".lock"), os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	for {
		err := flock(lock, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(firstLeasePoll):
		}
	}
	if f, err := w.dial(ctx); err == nil || ctx.Err() != nil {
		return f, err
	}
	if err := w.start(); err != nil {
		return nil, err
	}
	f, err := w.dial(ctx)
	if err != nil {
		w.retire()
	}
	return f, err
}

// short is the socket's name in as few bytes as a socket's address allows,
// which are fewer than a path's. The caller closes the folder when it is done.
func (w warmServers) short() (string, *os.File, error) {
	dir, err := os.Open(w.folder)
	if err != nil {
		return "", nil, err
	}
	return "/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) + "/" + filepath.Base(w.path(".sock")), dir, nil
}

func (w warmServers) dial(ctx context.Context) (*forkServer, error) {
	address, dir, err := w.short()
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: address, Net: "unix"})
	if err != nil {
		return nil, err
	}
	f := newForkServer(&channel{conn})
	f.gone = f.dead // it is not ours to reap
	f.said = func() string { return fileTail(w.path(".log")) }
	if err := f.greet(ctx); err != nil {
		f.control.close()
		return nil, f.explain("the Python fork server did not answer", err)
	}
	return f, nil
}

// start leaves a server running that listens. That it came up shows when it
// answers.
func (w warmServers) start() error {
	w.retire()
	address, dir, err := w.short()
	if err != nil {
		return err
	}
	defer dir.Close()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: address, Net: "unix"})
	if err != nil {
		return err
	}
	listener.SetUnlinkOnClose(false)
	defer func() { _ = listener.Close() }()
	socket, err := listener.File()
	if err != nil {
		return err
	}
	defer socket.Close()
	log, err := os.OpenFile(w.path(".log"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(w.python, "-I", "-B", filepath.Join(w.harness, "forkserver.py"),
		"--path", w.path(".sock"), "--idle", strconv.FormatFloat(w.idle.Seconds(), 'f', -1, 64))
	cmd.Env, cmd.Dir = w.env, w.harness
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{socket} // descriptor 3
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", w.python, err)
	}
	return cmd.Process.Release()
}

// retire has nobody find the server any more; it ends when those who are
// connected have gone.
func (w warmServers) retire() { _ = os.Remove(w.path(".sock")) }

// fileTail returns the end of what a server printed.
func fileTail(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > stderrTail {
		_, _ = f.Seek(-stderrTail, io.SeekEnd)
	}
	b, _ := io.ReadAll(io.LimitReader(f, stderrTail))
	return strings.ToValidUTF8(strings.TrimSpace(string(b)), "\ufffd")
}
