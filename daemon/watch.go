package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/kernelwright/kernelwright/store"
)

// Tunables of the watcher.
const (
	// DefaultDebounce is long enough for an editor that writes a file in
	// several goes, and too short for a person to notice.
	DefaultDebounce = 250 * time.Millisecond
	// DefaultPoll is how often folders are scanned where nothing tells of
	// changes.
	DefaultPoll = 2 * time.Second
	// rescanEvery finds what no event told of. Whether the watched folders
	// themselves are still there is seen every Poll.
	rescanEvery = time.Minute
	// maxFolders and maxFiles bound what a watched home folder can cost.
	maxFolders = 20_000
	maxFiles   = 200_000
)

// ownSuffixes end the files that kernelwright writes beside a reference. They
// are never references.
var ownSuffixes = []string{".best.py", ".report.md", ".report.html", ".certificate.json"}

// Watcher tells of reference files in folders: those there at the start, new
// ones, and changed ones, once each has stopped changing. It follows
// litestream's: folders are watched before they are scanned, so that nothing
// falls between, and all state belongs to the goroutine of Run.
type Watcher struct {
	Folders   []string
	Patterns  []string
	Recursive bool
	Debounce  time.Duration // DefaultDebounce where zero
	Poll      time.Duration // DefaultPoll where zero; also how soon a folder that came back is seen
	// Skip names a folder that is left out, with all below it: the output
	// folder, the data folder.
	Skip []string
	Log  *slog.Logger
	// Clock is System where nil.
	Clock Clock
	// Found is called, in the goroutine of Run, for each file that is ready.
	// An error leaves the file to be told of again at the next scan.
	Found func(ctx context.Context, path string) error
	// Check is called, in the same goroutine, every Poll and with each error of
	// Found: its error ends Run. Nil: nothing does.
	Check func(error) error
	// Scanned is called, in the same goroutine, after each periodic scan; may be
	// nil.
	Scanned func(ctx context.Context)
	// Notify is fsnotify.NewWatcher where nil.
	Notify func() (*fsnotify.Watcher, error)
	// Silent names the kind of a folder's file system where that does not tell of
	// all changes; nil looks.
	Silent func(dir string) string

	busy atomic.Int64 // 1 until the first scan, plus the files that wait

	// Of the goroutine of Run only:
	notify  *fsnotify.Watcher // nil while polling
	watched map[string]identity
	known   map[string]stamp // what was told of each file
	waiting map[string]wait
	roots   map[string]identity // of Folders, those that are there
	said    map[string]bool     // warnings that are not repeated
	untaken map[string]error    // why files were found and could not be taken; to be read after Run
}

// identity tells a folder from another that takes its place.
type identity struct{ dev, inode uint64 }

// stamp is what of a file changes when its content does, or who may read it.
type stamp struct {
	size    int64
	mtime   time.Time
	changed int64 // Unix nanoseconds: with content, permission, links or name
	inode   uint64
}

type wait struct {
	last stamp
	due  time.Time
}

// Idle reports whether the first scan is over and no file waits. It may be
// called from any goroutine.
func (w *Watcher) Idle() bool { return w.busy.Load() == 0 }

// Init makes Idle false until the first scan is over. Call it before Run where
// something else looks at Idle.
func (w *Watcher) Init() { w.busy.Store(1) }

// Run watches until the context is done. Its error is a folder that cannot be
// watched at all, or Check's; what else goes wrong is logged and tried again.
func (w *Watcher) Run(ctx context.Context) error {
	if w.Clock == nil {
		w.Clock = System{}
	}
	if w.Debounce == 0 {
		w.Debounce = DefaultDebounce
	}
	if w.Poll == 0 {
		w.Poll = DefaultPoll
	}
	w.watched, w.known, w.waiting = map[string]identity{}, map[string]stamp{}, map[string]wait{}
	w.roots, w.said, w.untaken = map[string]identity{}, map[string]bool{}, map[string]error{}
	for i, dir := range w.Folders {
		abs, err := CheckFolder(dir)
		if err != nil {
			return err
		}
		w.Folders[i] = abs
	}
	open := w.Notify
	if open == nil {
		open = fsnotify.NewWatcher
	}
	notify, err := open()
	if err != nil {
		w.poll(err)
	} else {
		w.notify = notify
		defer func() {
			if w.notify != nil {
				_ = w.notify.Close() // it only ever fails when it is closed already
			}
		}()
	}
	w.present(true)
	if err := w.settle(ctx); err != nil {
		return err
	}
	rescan := w.Clock.After(w.interval())
	there := w.Clock.After(w.Poll)
	var events <-chan fsnotify.Event
	var errs <-chan error
	var timer <-chan time.Time
	var timerAt time.Time
	for {
		events, errs = nil, nil
		if w.notify != nil {
			events, errs = w.notify.Events, w.notify.Errors
		}
		if due, ok := w.next(); !ok {
			timer = nil
		} else if timer == nil || !due.Equal(timerAt) {
			timer, timerAt = w.Clock.After(max(0, due.Sub(w.Clock.Now()))), due
		}
		w.count()
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-events:
			if !ok {
				w.poll(errors.New("the system stopped telling"))
				rescan = w.Clock.After(0)
				continue
			}
			w.event(e)
		case err, ok := <-errs:
			if ok {
				w.once(err.Error(), "watching: changes may have been missed, scanning; this is said once", "error", err)
				w.scanAll()
			}
		case <-timer:
			timer = nil
			if err := w.settle(ctx); err != nil {
				return err
			}
		case <-rescan:
			w.scanAll()
			if w.Scanned != nil {
				w.Scanned(ctx)
			}
			rescan = w.Clock.After(w.interval())
		case <-there:
			if err := w.check(nil); err != nil {
				return err
			}
			w.present(false)
			there = w.Clock.After(w.Poll)
		}
	}
}

func (w *Watcher) check(err error) error {
	if w.Check == nil {
		return nil
	}
	return w.Check(err)
}

// CheckFolder says in a sentence why a folder cannot be watched, or returns
// its absolute path.
func CheckFolder(dir string) (string, error) {
	if dir == "" {
		return "", errors.New("the name of a watched folder is empty")
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("watched folder %s: %w", dir, err)
	}
	info, err := os.Stat(abs)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("watched folder %s is not there: %w", abs, fs.ErrNotExist)
	case err != nil:
		return "", fmt.Errorf("watched folder %s: %w", abs, err)
	case !info.IsDir():
		return "", fmt.Errorf("watched folder %s is a file", abs)
	}
	if _, err := os.ReadDir(abs); err != nil {
		return "", fmt.Errorf("watched folder %s cannot be read: %w", abs, err)
	}
	return abs, nil
}

func (w *Watcher) log() *slog.Logger {
	if w.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return w.Log
}

func (w *Watcher) interval() time.Duration {
	if w.notify == nil {
		return w.Poll
	}
	return rescanEvery
}

// poll gives up on events for good: half a watch would miss files in silence.
func (w *Watcher) poll(cause error) {
	hint := ""
	if errors.Is(cause, syscall.ENOSPC) || errors.Is(cause, syscall.EMFILE) {
		hint = "; raise fs.inotify.max_user_watches or fs.inotify.max_user_instances and start again to have them watched"
	}
	w.log().Warn(fmt.Sprintf("the system cannot watch these folders: scanning them every %v instead%s", w.Poll, hint), "error", cause)
	if w.notify != nil {
		_ = w.notify.Close()
		w.notify = nil
	}
	w.watched = map[string]identity{}
}

// once warns, unless it did before about the same.
func (w *Watcher) once(what, text string, attrs ...any) {
	if !w.said[what] {
		w.said[what] = true
		w.log().Warn(text, attrs...)
	}
}

// present sees which watched folders are there, and enters those that came or
// have another in their place: no event tells of a mount, or of a parent that
// was renamed.
func (w *Watcher) present(first bool) {
	for _, dir := range w.Folders {
		id, err := identify(dir)
		was, there := w.roots[dir]
		_, watched := w.watched[dir]
		switch {
		case err != nil && (there || first):
			delete(w.roots, dir)
			w.forget(dir)
			w.log().Warn(fmt.Sprintf("a watched folder is gone: looking for it every %v", w.Poll), "folder", dir, "error", err)
		case err != nil:
		case there && was == id && (watched || w.notify == nil || w.said[dir]):
		default:
			if !first {
				w.forget(dir)
				w.log().Info("a watched folder is back", "folder", dir)
			}
			w.roots[dir] = id
			if kind := w.silent(dir); kind != "" && w.notify != nil {
				w.poll(fmt.Errorf("%s is on %s, which does not tell of every change", dir, kind))
			}
			w.enter(dir)
		}
	}
}

func (w *Watcher) silent(dir string) string {
	if w.Silent != nil {
		return w.Silent(dir)
	}
	return silentFileSystem(dir)
}

// forget drops what is known of a folder and of everything below it.
func (w *Watcher) forget(dir string) {
	below := dir + string(filepath.Separator)
	for path := range w.watched {
		if path == dir || strings.HasPrefix(path, below) {
			if w.notify != nil {
				_ = w.notify.Remove(path) // the system may have forgotten it before
			}
			delete(w.watched, path)
		}
	}
	for path := range w.known {
		if strings.HasPrefix(path, below) {
			delete(w.known, path)
		}
	}
	for path := range w.waiting {
		if strings.HasPrefix(path, below) {
			delete(w.waiting, path)
		}
	}
}

// enter watches a folder and everything below it, then looks at what it holds.
func (w *Watcher) enter(dir string) {
	if w.notify != nil {
		w.watch(dir)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			w.once(dir, "cannot read a folder; this is said once", "folder", dir, "error", err)
		}
		return
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if e.IsDir() {
			if w.Recursive && w.wantsFolder(path) {
				w.enter(path)
			}
			continue
		}
		w.look(path)
	}
}

// watch has the system tell of changes in a folder, unless it does.
func (w *Watcher) watch(dir string) {
	id, err := identify(dir)
	if err != nil {
		return // reading it says why
	}
	if was, ok := w.watched[dir]; ok {
		if was == id {
			return
		}
		w.forget(dir) // another folder has taken its place
	}
	if len(w.watched) >= maxFolders {
		w.once("folders", fmt.Sprintf("more than %d folders: the rest is scanned once a minute", maxFolders), "folder", dir)
		return
	}
	err = w.notify.Add(dir)
	switch {
	case err == nil:
		w.watched[dir] = id
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EMFILE):
		w.poll(err)
	case !errors.Is(err, fs.ErrNotExist):
		w.once(dir, "cannot watch a folder, scanning it once a minute", "folder", dir, "error", err)
	}
}

// identify says which folder stands at a path; a link is followed.
func identify(dir string) (identity, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return identity{}, err
	}
	if !info.IsDir() {
		return identity{}, fmt.Errorf("%s is a file now", dir)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return identity{}, nil
	}
	return identity{st.Dev, st.Ino}, nil
}

// scanAll is the start scan again: for what no event told of, and instead of
// events.
func (w *Watcher) scanAll() {
	for path := range w.known {
		if _, err := os.Lstat(path); err != nil {
			delete(w.known, path)
		}
	}
	if w.notify != nil {
		// The kernel forgets a folder that is removed; so must we, or it would
		// not be watched when it comes back.
		told := map[string]bool{}
		for _, dir := range w.notify.WatchList() {
			told[dir] = true
		}
		for dir := range w.watched {
			if !told[dir] {
				delete(w.watched, dir)
			}
		}
	}
	for dir := range w.roots {
		w.enter(dir)
	}
}

func (w *Watcher) event(e fsnotify.Event) {
	if e.Op.Has(fsnotify.Remove) || e.Op.Has(fsnotify.Rename) {
		if _, folder := w.watched[e.Name]; folder {
			w.forget(e.Name)
		}
		delete(w.waiting, e.Name)
		delete(w.known, e.Name)
	}
	if !e.Op.Has(fsnotify.Create) && !e.Op.Has(fsnotify.Write) && !e.Op.Has(fsnotify.Chmod) {
		return
	}
	// Lstat: a link to a folder is not followed, it could lead round.
	info, err := os.Lstat(e.Name)
	if err != nil {
		return
	}
	if info.IsDir() {
		if e.Op.Has(fsnotify.Create) && w.Recursive && w.wantsFolder(e.Name) {
			w.enter(e.Name)
		}
		return
	}
	w.look(e.Name)
}

// look starts or goes on waiting for a file, unless it was told of as it is.
func (w *Watcher) look(path string) {
	if !w.wants(path) {
		return
	}
	s, err := stampOf(path)
	if err != nil || w.known[path] == s {
		return
	}
	if old, ok := w.waiting[path]; ok && old.last == s {
		return
	}
	if _, known := w.known[path]; !known && len(w.known)+len(w.waiting) >= maxFiles {
		w.once("files", fmt.Sprintf("more than %d files: the rest is left until some of these are gone", maxFiles), "path", path)
		return
	}
	w.waiting[path] = wait{last: s, due: w.Clock.Now().Add(w.Debounce)}
}

// settle tells of the files whose wait is over and that did not change in it.
// Its error is Check's.
func (w *Watcher) settle(ctx context.Context) error {
	now := w.Clock.Now()
	var ready []string
	for path, it := range w.waiting {
		if it.due.After(now) {
			continue
		}
		s, err := stampOf(path)
		if err != nil {
			delete(w.waiting, path)
			continue
		}
		if s != it.last {
			w.waiting[path] = wait{last: s, due: now.Add(w.Debounce)}
			continue
		}
		ready = append(ready, path)
	}
	slices.Sort(ready)
	for _, path := range ready {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // being told to stop is no failure
		}
		it := w.waiting[path]
		delete(w.untaken, path)
		if err := w.Found(ctx, path); err != nil && ctx.Err() == nil {
			if fatal := w.check(err); fatal != nil {
				return fatal
			}
			w.untaken[path] = err
			w.log().Error("a file was found and could not be taken; it is tried again at the next scan", "path", path, "error", err)
		} else if err == nil {
			w.known[path] = it.last
		}
		delete(w.waiting, path)
	}
	return nil
}

func (w *Watcher) next() (time.Time, bool) {
	var due time.Time
	for _, it := range w.waiting {
		if due.IsZero() || it.due.Before(due) {
			due = it.due
		}
	}
	return due, !due.IsZero()
}

func (w *Watcher) count() { w.busy.Store(int64(len(w.waiting))) }

func (w *Watcher) wantsFolder(path string) bool {
	name := filepath.Base(path)
	if strings.HasPrefix(name, ".") || name == "__pycache__" {
		return false
	}
	if slices.Contains(w.Skip, path) {
		return false
	}
	_, err := os.Lstat(filepath.Join(path, store.FileName)) // somebody's data folder
	return err != nil
}

func (w *Watcher) wants(path string) bool {
	name := filepath.Base(path)
	if strings.HasPrefix(name, ".") || OwnFile(name) {
		return false
	}
	for _, p := range w.Patterns {
		if ok, err := filepath.Match(p, name); ok && err == nil {
			return true
		}
	}
	return false
}

// OwnFile reports whether a file name is one that kernelwright gives to what
// it writes.
func OwnFile(name string) bool {
	return slices.ContainsFunc(ownSuffixes, func(s string) bool { return strings.HasSuffix(name, s) })
}

// stampOf also stamps what only looks like a file: a pipe, or a link that leads
// nowhere. Whoever put it there is told why it is no reference.
func stampOf(path string) (stamp, error) {
	info, err := os.Stat(path)
	if err != nil {
		if info, err = os.Lstat(path); err != nil {
			return stamp{}, err
		}
	}
	if info.IsDir() {
		return stamp{}, fmt.Errorf("%s is a folder", path)
	}
	s := stamp{size: info.Size(), mtime: info.ModTime()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		s.inode, s.changed = st.Ino, st.Ctim.Nano()
	}
	return s, nil
}
