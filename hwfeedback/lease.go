package hwfeedback

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernelwright/kernelwright"
)

// Leaser hands out devices. A lease excludes everything else that measures on
// the device, in this process and in others.
type Leaser interface {
	// Acquire waits until the device is free or the context ends.
	Acquire(ctx context.Context, device string) (Lease, error)
	// Share waits until nobody has the device alone, nor waits to have it: the lease is
	// for what nobody times, beside others of its kind. Who wants the device alone then
	// gives this one up first.
	Share(ctx context.Context, device string) (Lease, error)
	// Wanted tells whether somebody waits for the device.
	Wanted(device string) bool
}

// Lease is the right to measure on a device. Its File is handed to every
// worker: the device is free when the last process that holds it is gone, so
// a worker that outlives its lease still keeps others away.
type Lease interface {
	File() *os.File
	// Fence grows with every lease of the device in one data folder: who holds an
	// older number has lost it.
	Fence() int64
	// Release gives up this process's hold. It may be called more than once.
	Release() error
}

// FileLeases is a Leaser over one lock file a device: a lease is a lock of it, exclusive
// or shared. Who waits shares a lock of a second file (.wanted), by which those are asked
// who could go on; who waits to be alone that of a third (.alone), too, and nobody takes
// a share meanwhile. So who wants to be alone waits for the shares there are, and no more.
type FileLeases struct {
	Dir string // is made; whoever else may write to it could keep us waiting
	// NextFence returns a number greater than every earlier one of the device.
	// Without it the lock file itself counts.
	NextFence func(ctx context.Context, device string) (int64, error)
	// Waiting is told once per Acquire that has to wait, and for whom.
	Waiting func(device, holder string)

	mu       sync.Mutex
	shares   map[string]int // of this process, by device
	released chan struct{}  // closed when one is over; nil while nobody asks
}

// LeasesOfTests names another lease folder: tests do not wait for each other, nor
// for who works on the machine.
const LeasesOfTests = "KERNELWRIGHT_TEST_LEASES"

// LeaseFolder is where the leases of this machine's devices are kept: one place
// for all data folders of a user, because a device is one for all of them. Where
// a process keeps its temporary files, which its environment says, is no matter.
func LeaseFolder() string {
	if dir := os.Getenv(LeasesOfTests); dir != "" {
		return dir
	}
	roots := []string{"/tmp", "/var/tmp", "/dev/shm"}
	for _, root := range roots {
		if unix.Access(root, unix.W_OK|unix.X_OK) == nil {
			return leasesBelow(root)
		}
	}
	return leasesBelow(roots[0]) // which says why it cannot be
}

func leasesBelow(root string) string {
	return filepath.Join(root, fmt.Sprintf("kernelwright-%d", os.Getuid()), "leases")
}

const (
	// leaseWaitWorthTelling is when a wait is reported. A killed worker takes
	// some milliseconds to go, those that an evaluation starts for the next one
	// some seconds to come, and candidates that are verified at once wait for each
	// other: nobody needs to hear of that.
	leaseWaitWorthTelling    = time.Second / 2
	ownLeaseWaitWorthTelling = 10 * time.Second
)

// lastFence is more than a device will ever see; who reaches it by a damaged
// file begins anew.
const lastFence = math.MaxInt64 / 2

// holder is what the lock file says of whoever holds it. It informs people;
// the lock decides.
type holder struct {
	PID      int   `json:"pid"`
	Fence    int64 `json:"fence"`
	Since    int64 `json:"since"` // Unix milliseconds
	Released bool  `json:"released"`
}

func (h holder) String() string {
	switch {
	case h.PID == 0:
		return "another process"
	case h.Released:
		return fmt.Sprintf("a worker of process %d that has not ended yet", h.PID)
	case h.PID == os.Getpid():
		return "this process"
	}
	return fmt.Sprintf("process %d, since %s", h.PID, time.UnixMilli(h.Since).Format(time.TimeOnly))
}

// ended tells whether it was ours and is over: what still holds the device is a
// worker that does not end.
func (h holder) ended() bool { return h.Released && h.PID == os.Getpid() }

// worthTelling is how long one waits for this holder before anybody is told.
func (h holder) worthTelling() time.Duration {
	if h.PID == os.Getpid() {
		return ownLeaseWaitWorthTelling
	}
	return leaseWaitWorthTelling
}

// HeldError says that a device was waited for in vain.
type HeldError struct {
	Device, Holder string
	Left           bool  // by a worker of this process, whose lease is over
	Err            error // why the wait ended
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("device %s is held by %s: %v", e.Device, e.Holder, e.Err)
}

// Unwrap returns why the wait ended.
func (e *HeldError) Unwrap() error { return e.Err }

// Acquire waits for the device. When the context ends first, the error says
// who holds it and wraps the context's cause.
func (l *FileLeases) Acquire(ctx context.Context, device string) (Lease, error) {
	return l.lease(ctx, device, unix.LOCK_EX)
}

// Share waits for a share of the device; its error is Acquire's.
func (l *FileLeases) Share(ctx context.Context, device string) (Lease, error) {
	return l.lease(ctx, device, unix.LOCK_SH)
}

func (l *FileLeases) lease(ctx context.Context, device string, how int) (Lease, error) {
	if device == "" || strings.ContainsAny(device, "/\\\x00") || strings.HasPrefix(device, ".") {
		return nil, fmt.Errorf("lease a device: impossible name %q", device)
	}
	if err := os.MkdirAll(l.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("lease device %s: %w", device, err)
	}
	for _, dir := range []string{filepath.Dir(l.Dir), l.Dir} {
		if err := unshared(dir); err != nil {
			return nil, fmt.Errorf("lease device %s: %w", device, err)
		}
	}
	f, err := l.open(device, ".lock")
	if err != nil {
		return nil, fmt.Errorf("lease device %s: %w", device, err)
	}
	if err := l.lock(ctx, f, device, how); err != nil {
		f.Close()
		return nil, err
	}
	before := readHolder(f)
	fence := before.Fence%lastFence + 1
	if l.NextFence != nil {
		if fence, err = l.NextFence(ctx, device); err != nil {
			f.Close()
			return nil, fmt.Errorf("lease device %s: %w", device, err)
		}
	}
	h := holder{PID: os.Getpid(), Fence: fence, Since: time.Now().UnixMilli()}
	if err := writeHolder(f, h); err != nil {
		f.Close()
		return nil, fmt.Errorf("lease device %s: %w", device, err)
	}
	lease := &fileLease{leases: l, device: device, file: f, holder: h, shared: how == unix.LOCK_SH}
	if lease.shared {
		l.share(device, 1)
	}
	return lease, nil
}

// share counts the shares of this process, and returns how many there are.
func (l *FileLeases) share(device string, more int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shares == nil {
		l.shares = map[string]int{}
	}
	l.shares[device] += more
	return l.shares[device]
}

// end tells those of this process who wait that a lease is over.
func (l *FileLeases) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.released != nil {
		close(l.released)
		l.released = nil
	}
}

// ends is closed when the next lease of this process is over.
func (l *FileLeases) ends() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.released == nil {
		l.released = make(chan struct{})
	}
	return l.released
}

func (l *FileLeases) open(device, kind string) (*os.File, error) {
	return os.OpenFile(filepath.Join(l.Dir, strings.ReplaceAll(device, ":", "-")+kind), os.O_RDWR|os.O_CREATE, 0o644)
}

// Wanted tells whether somebody waits in Acquire or Share: all of them share a lock of
// another file meanwhile, and write to it. Who was stopped does not.
func (l *FileLeases) Wanted(device string) bool { return l.waits(device, ".wanted") }

// waits tells whether somebody who waits has locked a file of this kind.
func (l *FileLeases) waits(device, kind string) bool {
	f, err := l.open(device, kind)
	if err != nil {
		return true // then nobody can be asked to wait
	}
	defer f.Close()
	if flock(f, unix.LOCK_EX|unix.LOCK_NB) == nil {
		return false
	}
	info, err := f.Stat()
	return err != nil || time.Since(info.ModTime()) < kernelwright.Training.WaiterGone.Duration
}

// unshared returns an error for a folder that somebody else could change.
func unshared(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || (ok && int(s.Uid) != os.Getuid()) || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s is not a folder that only its user may change: remove it, or have who owns it do so", dir)
	}
	return nil
}

func (l *FileLeases) lock(ctx context.Context, f *os.File, device string, how int) error {
	wait := kernelwright.Training.FirstPoll.Duration
	started := time.Now()
	var marks []*os.File
	defer func() { closeAll(marks) }()
	for told := false; ; {
		ends := l.ends() // before it is looked at: what is over afterwards is told
		if how == unix.LOCK_EX || !l.waits(device, ".alone") {
			err := flock(f, how|unix.LOCK_NB)
			if err == nil {
				return nil
			}
			if !errors.Is(err, syscall.EWOULDBLOCK) {
				return fmt.Errorf("lease device %s: %w", device, err)
			}
		}
		if marks == nil {
			var err error
			if marks, err = l.mark(device, how); err != nil {
				return fmt.Errorf("lease device %s: %w", device, err)
			}
		}
		for _, mark := range marks {
			if _, err := mark.WriteAt([]byte{'\n'}, 0); err != nil {
				return fmt.Errorf("lease device %s: %w", device, err)
			}
		}
		if h := readHolder(f); !told && l.Waiting != nil && time.Since(started) >= h.worthTelling() {
			l.Waiting(device, h.String())
			told = true
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
			wait = min(wait*3/2, kernelwright.Training.LastPoll.Duration)
		case <-ends: // its processes are gone in a moment
			timer.Stop()
			wait = kernelwright.Training.FirstPoll.Duration
		case <-ctx.Done():
			timer.Stop()
			h := readHolder(f)
			return &HeldError{device, h.String(), h.ended(), context.Cause(ctx)}
		}
	}
}

// mark locks the files by which others see that somebody waits.
func (l *FileLeases) mark(device string, how int) (marks []*os.File, err error) {
	kinds := []string{".wanted"}
	if how == unix.LOCK_EX {
		kinds = append(kinds, ".alone")
	}
	for _, kind := range kinds {
		f, err := l.open(device, kind)
		if err != nil {
			return marks, err
		}
		marks = append(marks, f)
		if err := flock(f, unix.LOCK_SH); err != nil { // who asks has it for a moment
			return marks, err
		}
	}
	return marks, nil
}

func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

func readHolder(f *os.File) holder {
	var h holder
	b := make([]byte, 512)
	n, err := f.ReadAt(b, 0)
	line, _, _ := bytes.Cut(b[:n], []byte("\n")) // what a damaged file holds behind it stays there
	if (err != nil && !errors.Is(err, io.EOF)) || json.Unmarshal(line, &h) != nil {
		return holder{} // being written, or never was
	}
	if h.PID < 0 || h.Fence < 0 || h.Fence > lastFence {
		return holder{} // damaged: no process wrote this
	}
	return h
}

func writeHolder(f *os.File, h holder) error {
	b, err := json.Marshal(h)
	if err != nil {
		return err
	}
	// Padded rather than truncated: a crash in between leaves no shorter number behind.
	_, err = f.WriteAt(fmt.Appendf(nil, "%-*s\n", kernelwright.Training.HolderBytes, b), 0)
	return err
}

type fileLease struct {
	leases *FileLeases
	device string
	shared bool
	file   *os.File
	holder holder
	once   sync.Once
	err    error
}

func (l *fileLease) File() *os.File { return l.file }

func (l *fileLease) Fence() int64 { return l.holder.Fence }

// Release closes our descriptor. It does not unlock: a flock belongs to all
// duplicates of the descriptor together, and ends with the last of them.
func (l *fileLease) Release() error {
	l.once.Do(func() {
		l.holder.Released = !l.shared || l.leases.share(l.device, -1) == 0
		l.err = errors.Join(writeHolder(l.file, l.holder), l.file.Close())
		l.leases.end()
	})
	return l.err
}

// impatient is a Leaser that gives up on a device that is not free for so long.
type impatient struct {
	Leaser
	patience time.Duration
}

// Acquire waits no longer than that.
func (l impatient) Acquire(ctx context.Context, device string) (Lease, error) {
	ctx, cancel := l.limited(ctx)
	defer cancel()
	return l.Leaser.Acquire(ctx, device)
}

// Share waits no longer either.
func (l impatient) Share(ctx context.Context, device string) (Lease, error) {
	ctx, cancel := l.limited(ctx)
	defer cancel()
	return l.Leaser.Share(ctx, device)
}

func (l impatient) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, l.patience, fmt.Errorf("it was not free within %v", l.patience))
}
