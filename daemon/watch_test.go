package daemon

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// testWait bounds what should happen at once; a test that reaches it fails.
const testWait = 2 * time.Minute

type watching struct {
	*Watcher
	t     *testing.T
	dir   string
	clock *fakeClock
	found chan string
	log   *syncBuffer
}

// startWatch runs a watcher over a folder that holds files already.
func startWatch(t *testing.T, files map[string]string, change func(*Watcher)) *watching {
	t.Helper()
	w := &watching{t: t, dir: t.TempDir(), clock: newFakeClock(), found: make(chan string, 100), log: &syncBuffer{}}
	for name, text := range files {
		w.write(name, text)
	}
	w.Watcher = &Watcher{
		Folders: []string{w.dir}, Patterns: []string{"*.py"}, Recursive: true, Clock: w.clock,
		Log:   slog.New(slog.NewTextHandler(w.log, nil)),
		Found: func(_ context.Context, path string) error { w.found <- path; return nil },
	}
	if change != nil {
		change(w.Watcher)
	}
	w.Init()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *watching) path(name string) string { return filepath.Join(w.dir, name) }

func (w *watching) write(name, text string) {
	w.t.Helper()
	path := w.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		w.t.Fatal(err)
	}
	// Whole at once, under a name that does not count before: a file written in
	// place tells of itself several times, and the clock here moves only once.
	staged := filepath.Join(filepath.Dir(path), ".staged")
	if err := os.WriteFile(staged, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Rename(staged, path); err != nil {
		w.t.Fatal(err)
	}
}

// settled lets the debounce pass once the watcher has begun to wait.
func (w *watching) settled() {
	w.t.Helper()
	w.clock.WaitFor(DefaultDebounce)
	w.clock.Advance(DefaultDebounce)
}

func (w *watching) expect(names ...string) {
	w.t.Helper()
	for _, name := range names {
		select {
		case got := <-w.found:
			if got != w.path(name) {
				w.t.Fatalf("found %s, want %s", got, name)
			}
		case <-time.After(testWait):
			w.t.Fatalf("%s was not found", name)
		}
	}
}

func (w *watching) nothing() {
	w.t.Helper()
	select {
	case got := <-w.found:
		w.t.Fatalf("found %s, want nothing", got)
	default:
	}
}

// A folder that holds a record is a data folder, whosever it is.
func TestDataFoldersAreNotWatched(t *testing.T) {
	w := startWatch(t, map[string]string{"a.py": "1", "data/kernelwright.db": "x", "data/b.py": "2", "data/harness/c.py": "3"}, nil)
	w.settled()
	w.expect("a.py")
	w.write("data/harness/d.py", "4")
	w.write("e.py", "5")
	w.settled()
	w.expect("e.py")
	w.nothing()
}

func TestFilesFromBeforeTheStartAreFound(t *testing.T) {
	w := startWatch(t, map[string]string{
		"a.py": "1", "sub/deep/b.py": "2", "note.txt": "3", ".hidden.py": "4", ".git/c.py": "5",
		"__pycache__/d.py": "6", "a.best.py": "7", "empty/x": "",
	}, nil)
	if w.Idle() {
		t.Error("idle before the first scan")
	}
	w.settled()
	w.expect("a.py", "sub/deep/b.py")
	w.nothing()
}

func TestNewAndChangedFilesAreFoundOnce(t *testing.T) {
	w := startWatch(t, nil, nil)
	w.clock.WaitFor(rescanEvery)
	w.write("a.py", "one")
	w.settled()
	w.expect("a.py")
	w.write("a.py", "another")
	w.settled()
	w.expect("a.py")
	w.clock.Advance(rescanEvery)
	w.clock.WaitFor(rescanEvery)
	w.nothing()
}

func TestAFileStillBeingWrittenWaits(t *testing.T) {
	// Without events, which may come or not come before the clock moves: what
	// decides is that the file is another one when its wait is over.
	w := startWatch(t, map[string]string{"a.py": "beg"}, func(w *Watcher) { w.Notify = noEvents })
	w.clock.WaitFor(DefaultDebounce)
	w.write("a.py", "beginning")
	w.clock.Advance(DefaultDebounce)
	w.clock.WaitFor(DefaultDebounce)
	w.nothing()
	w.clock.Advance(DefaultDebounce)
	w.expect("a.py")
}

func TestNewFoldersAreEntered(t *testing.T) {
	w := startWatch(t, nil, nil)
	w.clock.WaitFor(rescanEvery)
	staged := filepath.Join(t.TempDir(), "new")
	if err := os.MkdirAll(filepath.Join(staged, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(staged, "sub", "a.py"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(staged, w.path("new")); err != nil {
		t.Fatal(err)
	}
	w.settled()
	w.expect("new/sub/a.py")
	w.write("new/sub/b.py", "y")
	w.settled()
	w.expect("new/sub/b.py")
}

func TestARenamedFileIsFoundUnderItsNewName(t *testing.T) {
	w := startWatch(t, map[string]string{"a.txt": "x"}, nil)
	w.clock.WaitFor(rescanEvery)
	if err := os.Rename(w.path("a.txt"), w.path("b.py")); err != nil {
		t.Fatal(err)
	}
	w.settled()
	w.expect("b.py")
}

func TestNotRecursiveAndPatternsAndSkip(t *testing.T) {
	w := startWatch(t, map[string]string{"ref_a.py": "1", "b.py": "2", "sub/ref_c.py": "3"}, func(w *Watcher) {
		w.Recursive, w.Patterns = false, []string{"ref_*.py"}
	})
	w.settled()
	w.expect("ref_a.py")
	w.nothing()
	w2 := startWatch(t, map[string]string{"a.py": "1", "out/b.py": "2"}, func(w *Watcher) {
		w.Skip = []string{filepath.Join(w.Folders[0], "out")}
	})
	w2.settled()
	w2.expect("a.py")
	w2.nothing()
}

func TestWithoutEventsItScans(t *testing.T) {
	w := startWatch(t, map[string]string{"a.py": "1"}, func(w *Watcher) { w.Notify = noEvents })
	w.settled()
	w.expect("a.py")
	w.write("sub/b.py", "2")
	w.clock.Advance(DefaultPoll)
	w.settled()
	w.expect("sub/b.py")
	if !strings.Contains(w.log.String(), "scanning them every 2s instead") || !strings.Contains(w.log.String(), "max_user_instances") {
		t.Error(w.log.String())
	}
}

// noEvents is a system that has no more watches to give.
func noEvents() (*fsnotify.Watcher, error) { return nil, syscall.EMFILE }

func TestAFileThatCouldNotBeTakenIsToldOfAgain(t *testing.T) {
	fail := true
	found := make(chan bool, 10)
	w := startWatch(t, map[string]string{"a.py": "1"}, func(w *Watcher) {
		w.Found = func(context.Context, string) error {
			found <- fail
			if fail {
				fail = false
				return errors.New("the store is busy")
			}
			return nil
		}
	})
	w.settled()
	<-found
	w.clock.Advance(rescanEvery)
	w.settled()
	if <-found {
		t.Error("the second time succeeds")
	}
}

func TestFoldersThatCannotBeWatched(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for folder, want := range map[string]string{filepath.Join(dir, "none"): "is not there", file: "is a file"} {
		w := &Watcher{Folders: []string{folder}}
		if err := w.Run(context.Background()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v", err)
		}
	}
}
