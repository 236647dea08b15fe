package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernelwright/kernelwright/store"
)

// Lock is the hold of one process on a data folder. The kernel lets go of it
// when the process is gone, however it went.
type Lock struct {
	file   *os.File
	holder Holder
}

// Holder is what the holder of a data folder wrote of itself.
type Holder struct {
	PID     int    `json:"pid"`
	SinceMS int64  `json:"since"`
	Command string `json:"command"`
	URL     string `json:"url,omitempty"` // of its HTTP API
}

// HeldError says who holds a data folder.
type HeldError struct {
	Folder string
	Holder Holder // zero where the holder had not yet written
}

func (e *HeldError) Error() string {
	if e.Holder.PID == 0 {
		return fmt.Sprintf("another process holds the data folder %s", e.Folder)
	}
	since := time.UnixMilli(e.Holder.SinceMS).Format("2006-01-02 15:04:05")
	text := fmt.Sprintf("process %d holds the data folder %s since %s: %s", e.Holder.PID, e.Folder, since, e.Holder.Command)
	if e.Holder.URL != "" {
		text += "; it serves " + e.Holder.URL
	}
	return text
}

// AcquireLock takes the data folder, which is made where it is not there. A
// *HeldError says who has it.
func AcquireLock(folder string, args []string, now time.Time) (*Lock, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(folder, "lock"), os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock(file); err != nil {
		defer file.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("locking %s: %w", file.Name(), err)
		}
		return nil, &HeldError{Folder: folder, Holder: readHolder(file)}
	}
	l := &Lock{file, Holder{PID: os.Getpid(), SinceMS: now.UnixMilli(), Command: strings.Join(args, " ")}}
	if err := l.say(); err != nil {
		file.Close()
		return nil, err
	}
	return l, nil
}

// say writes who holds it.
func (l *Lock) say() error {
	b, err := json.Marshal(l.holder)
	if err == nil {
		err = l.file.Truncate(0)
	}
	if err == nil {
		_, err = l.file.WriteAt(append(b, '\n'), 0)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", l.file.Name(), err)
	}
	return nil
}

// Serves writes beside the holder where it serves its HTTP API.
func (l *Lock) Serves(url string) error {
	l.holder.URL = url
	return l.say()
}

// HoldGuest takes one run of an outside agent for this process, and leaves the
// data folder to whoever wants it: such a run stays open for hours, and beside it
// a daemon is to work. A *HeldError says who has it.
func HoldGuest(folder string, run int64, now time.Time) (*Lock, error) {
	return AcquireLock(guestFolder(folder, run), os.Args, now)
}

func guestFolder(folder string, run int64) string {
	return filepath.Join(folder, "guests", strconv.FormatInt(run, 10))
}

// readHolder returns what a lock file says, and nothing of one that is being
// written, or damaged: without it the message only says less.
func readHolder(r io.Reader) Holder {
	var h Holder
	b, err := io.ReadAll(io.LimitReader(r, 64<<10))
	if err != nil || json.Unmarshal(b, &h) != nil || h.PID < 0 {
		return Holder{}
	}
	for _, text := range []*string{&h.Command, &h.URL} {
		*text = strings.Join(strings.Fields(*text), " ")
		if r := []rune(*text); len(r) > maxCommand {
			*text = string(r[:maxCommand]) + "…"
		}
	}
	return h
}

// maxCommand is how much of a command line a message shows, in characters.
const maxCommand = 200

// flock takes the lock, or gives up after glimpse: those who only ask whether
// somebody holds it hold it for an instant themselves.
func flock(file *os.File) error {
	for looks := 0; ; looks++ { // counted, since a machine may stand still for as long
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil || !errors.Is(err, syscall.EWOULDBLOCK) || looks == 20 {
			return err
		}
		time.Sleep(glimpse / 20)
	}
}

const glimpse = 200 * time.Millisecond

// Usable returns a *store.GoneError where the folder's lock is not the one that
// is held: then nothing keeps another process out.
func (l *Lock) Usable() error {
	if l == nil || l.file == nil {
		return nil
	}
	held, err := l.file.Stat()
	if err != nil {
		return err
	}
	return store.StillAt(l.file.Name(), held)
}

// Release lets go of the folder. It may be called twice.
func (l *Lock) Release() error {
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	if errors.Is(err, fs.ErrClosed) {
		return nil
	}
	return err
}

// FolderHeldError says that another daemon writes results to a folder.
type FolderHeldError struct {
	Folder string
	PID    int // 0 where the system does not say
}

func (e *FolderHeldError) Error() string {
	who := "another daemon"
	if e.PID != 0 {
		who = fmt.Sprintf("the daemon of process %d", e.PID)
	}
	return fmt.Sprintf("%s writes its results to %s", who, e.Folder)
}

// HoldFolder keeps other daemons, whatever their data folders, from writing
// results to the same folder: one's certificate would stand beside the other's
// kernel. Nothing is left in it. Where the file system knows no locks, or the
// folder is not there, nobody is kept out.
func HoldFolder(dir string) (*Lock, error) {
	f, err := os.Open(dir)
	if err != nil {
		return &Lock{}, nil //nolint:nilerr // whoever writes there says what is wrong
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		held := &FolderHeldError{Folder: dir, PID: flockHolder(f)}
		return nil, errors.Join(held, f.Close())
	}
	return &Lock{file: f}, nil
}

// NestedError says that another daemon watches, and writes results to, folders
// of which some are the same.
type NestedError struct {
	Folder string
	Around string // what the other one watches; empty: something within Folder
}

func (e *NestedError) Error() string {
	if e.Around == "" {
		return fmt.Sprintf("another daemon watches a folder within %s, and writes its results there", e.Folder)
	}
	return fmt.Sprintf("another daemon watches %s, within which %s lies, and writes its results there", e.Around, e.Folder)
}

// Trees is the hold of one process on folders with all that is below them.
type Trees struct{ files []*os.File }

// The bytes of a folder that are locked for shared reading, each as a mark.
const (
	markTree  = 0 // all that is below this folder is watched
	markBelow = 1 // some folder below this one is watched
)

// HoldTrees keeps out daemons that watch folders within one of these, where
// these are watched with their subfolders, and those that watch one around
// these. HoldFolder keeps out those that watch the same. Folders that cannot be
// marked keep nobody out.
func HoldTrees(dirs []string, recursive bool) (*Trees, error) {
	var roots []string
	for _, dir := range dirs {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			roots = append(roots, real)
		}
	}
	if recursive { // what lies within another of one's own belongs to that
		all := slices.Clone(roots)
		roots = slices.DeleteFunc(roots, func(dir string) bool {
			return slices.ContainsFunc(all, func(other string) bool { return slices.Contains(above(dir), other) })
		})
	}
	t := &Trees{}
	// First the marks: of two that begin at once, one at least sees the other.
	for _, dir := range roots {
		if recursive {
			t.mark(dir, markTree)
		}
		for _, outer := range above(dir) {
			t.mark(outer, markBelow)
		}
	}
	for _, dir := range roots {
		if recursive && marked(dir, markBelow) {
			return nil, errors.Join(&NestedError{Folder: dir}, t.Release())
		}
		for _, outer := range above(dir) {
			if marked(outer, markTree) {
				return nil, errors.Join(&NestedError{Folder: dir, Around: outer}, t.Release())
			}
		}
	}
	return t, nil
}

// above returns the folders that a folder lies in, the nearest first.
func above(dir string) []string {
	var all []string
	for parent := filepath.Dir(dir); parent != dir; dir, parent = parent, filepath.Dir(parent) {
		all = append(all, parent)
	}
	return all
}

func (t *Trees) mark(dir string, at int64) {
	f, err := os.Open(dir)
	if err != nil {
		return
	}
	lock := unix.Flock_t{Type: unix.F_RDLCK, Whence: io.SeekStart, Start: at, Len: 1}
	if unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock) != nil {
		f.Close()
		return
	}
	t.files = append(t.files, f)
}

// marked reports whether anybody marked a folder: a mark keeps writers out.
func marked(dir string, at int64) bool {
	f, err := os.Open(dir)
	if err != nil {
		return false
	}
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: at, Len: 1}
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock) == nil && lock.Type != unix.F_UNLCK
}

// Release takes the marks away.
func (t *Trees) Release() error {
	var errs []error
	for _, f := range t.files {
		errs = append(errs, f.Close())
	}
	t.files = nil
	return errors.Join(errs...)
}

// flockHolder asks the system who has locked a file.
func flockHolder(f *os.File) int {
	info, err := f.Stat()
	if err != nil {
		return 0
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0
	}
	this := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	locks, _ := os.ReadFile("/proc/locks")
	for line := range strings.Lines(string(locks)) {
		// 1: FLOCK  ADVISORY  WRITE 4711 08:01:131 0 EOF
		if fields := strings.Fields(line); len(fields) > 5 && fields[1] == "FLOCK" && fields[5] == this {
			pid, _ := strconv.Atoi(fields[4])
			return max(pid, 0) // -1 is a process of another namespace
		}
	}
	return 0
}
