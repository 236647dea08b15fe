package hwfeedback

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
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

	"github.com/kernelwright/kernelwright"
)

// warmServers are fork servers that outlive who started them, so that the next
// process need not import torch, which takes over a second. Each listens on a
// socket in the folder, named by all that it depends on, and ends by itself
// when nobody was connected for a while or when its socket is gone.
type warmServers struct {
	folder  string
	python  pythonEnv
	harness string
	env     []string
	idle    time.Duration
}

// warmReady is how long a server that was there before may take to answer; one
// that is being started has readyTimeout.
const warmReady = 10 * time.Second

// warmAnswers is how long one that has imported torch may take to say so: where it
// does not, who asks does without it.
const warmAnswers = 100 * time.Millisecond

const lockNow = unix.LOCK_EX | unix.LOCK_NB

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

// name tells servers apart that are not each other's equals: by what they have
// imported, by harness, environment and compiler, and by what a process
// inherits from whoever starts it.
func (w warmServers) name() string {
	h := sha256.New()
	fmt.Fprintln(h, w.python, w.harness, w.idle, os.Getuid(), affinity())
	for _, v := range w.env {
		fmt.Fprintln(h, v)
	}
	compiler, _ := exec.LookPath("g++") // none is a name too
	fmt.Fprintln(h, compiler)
	for _, path := range []string{"/proc/self/cgroup", "/proc/self/limits"} {
		if b, err := os.ReadFile(path); err == nil {
			h.Write(b)
		}
	}
	for _, space := range []string{"cgroup", "ipc", "mnt", "net", "pid", "user"} {
		link, _ := os.Readlink("/proc/self/ns/" + space)
		fmt.Fprintln(h, link)
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
	if err := w.makeFolder(); err != nil {
		return nil, err
	}
	lock, err := w.lock()
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	for {
		err := flock(lock, lockNow)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(kernelwright.Training.FirstPoll.Duration):
		}
	}
	wait := warmReady
	if w.young() {
		wait = readyTimeout
	}
	if f, err := w.dial(ctx, wait); err == nil || ctx.Err() != nil {
		return f, err
	}
	w.sweep()
	if err := w.start(); err != nil {
		return nil, err
	}
	f, err := w.dial(ctx, readyTimeout)
	if err != nil {
		w.retire()
		if said := fileTail(w.path(".log"), 0); said != "" {
			err = &harnessError{what: "the Python fork server did not start", err: err, output: said}
		}
	}
	return f, err
}

func (w warmServers) makeFolder() error {
	if err := os.MkdirAll(w.folder, 0o700); err != nil {
		return err
	}
	return os.Chmod(w.folder, 0o700)
}

// lock opens the file by which two that start at once share one server.
func (w warmServers) lock() (*os.File, error) {
	return os.OpenFile(w.path(".lock"), os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o600)
}

// sweep removes what servers that have ended left.
func (w warmServers) sweep() {
	logs, _ := filepath.Glob(filepath.Join(w.folder, "*.log"))
	for _, log := range logs {
		stem := strings.TrimSuffix(log, ".log")
		if _, err := os.Lstat(stem + ".sock"); errors.Is(err, fs.ErrNotExist) && log != w.path(".log") {
			_, _ = os.Remove(log), os.Remove(stem+".lock")
		}
	}
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

func (w warmServers) dial(ctx context.Context, timeout time.Duration) (*forkServer, error) {
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
	f.gone = f.dead  // it is not ours to reap
	var before int64 // what it printed for others
	if info, err := os.Stat(w.path(".log")); err == nil {
		before = info.Size()
	}
	f.said = func() string { return fileTail(w.path(".log"), before) }
	if err = ours(conn); err == nil {
		err = f.greet(ctx, timeout)
	}
	if err != nil {
		f.control.close()
		return nil, err
	}
	return f, nil
}

// ours checks that whoever listens is this user's.
func ours(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	if cerr := raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); cerr != nil {
		return cerr
	}
	if err == nil && int(peer.Uid) != os.Getuid() {
		err = fmt.Errorf("the socket is user %d's", peer.Uid)
	}
	return err
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
	cmd := exec.Command(w.python.Interpreter, "-I", "-B", filepath.Join(w.harness, forkServerScript),
		"--path", w.path(".sock"), "--idle", strconv.FormatFloat(w.idle.Seconds(), 'f', -1, 64))
	cmd.Env, cmd.Dir = w.env, w.harness
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{socket} // descriptor 3
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", w.python.Interpreter, err)
	}
	return cmd.Process.Release()
}

// retire has nobody find the server any more; it ends when those who are
// connected have gone.
func (w warmServers) retire() { _ = os.Remove(w.path(".sock")) }

// fileTail returns the end of what a server has printed since the file was as
// long as before.
func fileTail(path string, before int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil {
		before = max(before, info.Size()-stderrTail)
	}
	b, _ := io.ReadAll(io.NewSectionReader(f, before, stderrTail))
	return strings.ToValidUTF8(strings.TrimSpace(string(b)), "\ufffd")
}
