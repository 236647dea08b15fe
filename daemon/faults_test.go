package daemon

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/internal/soak"
	"github.com/kernelwright/kernelwright/store"
)

// pass lets time pass in small steps until something is so.
func (w *watching) pass(what string, so func() bool) {
	w.t.Helper()
	for end := time.Now().Add(testWait); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("%s: never\n%s", what, w.log.String())
		}
		w.clock.Advance(DefaultDebounce)
	}
}

func (w *watching) says(text string) {
	w.t.Helper()
	w.pass(text, func() bool { return strings.Contains(w.log.String(), text) })
}

func (w *watching) finds(name string) {
	w.t.Helper()
	w.pass(name, func() bool {
		select {
		case got := <-w.found:
			if got != w.path(name) {
				w.t.Fatalf("found %s, want %s", got, name)
			}
			return true
		default:
			return false
		}
	})
}

func (w *watching) times(text string) int { return strings.Count(w.log.String(), text) }

// must is for the steps of a test that have nothing to do with what it shows.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A watched folder goes, in all the ways that one can, and comes back: that is
// said once each, and what lies in it then, and what is dropped later, is found.
func TestAWatchedFolderGoesAndComesBack(t *testing.T) {
	for _, how := range []struct {
		name     string
		goes     func(t *testing.T, dir string)
		back     func(t *testing.T, dir string)
		recreate bool
	}{
		{"deleted", func(t *testing.T, dir string) { must(t, os.RemoveAll(dir)) }, func(t *testing.T, dir string) { must(t, os.MkdirAll(dir, 0o755)) }, true},
		{"renamed away", func(t *testing.T, dir string) { must(t, os.Rename(dir, dir+".away")) }, func(t *testing.T, dir string) { must(t, os.Rename(dir+".away", dir)) }, false},
		{"renamed away, another made", func(t *testing.T, dir string) { must(t, os.Rename(dir, dir+".away")) }, func(t *testing.T, dir string) { must(t, os.MkdirAll(dir, 0o755)) }, true},
		{"its parent renamed", func(t *testing.T, dir string) { must(t, os.Rename(filepath.Dir(dir), filepath.Dir(dir)+".away")) },
			func(t *testing.T, dir string) { must(t, os.Rename(filepath.Dir(dir)+".away", filepath.Dir(dir))) }, false},
		{"replaced by a file", func(t *testing.T, dir string) {
			must(t, os.RemoveAll(dir))
			must(t, os.WriteFile(dir, nil, 0o600))
		}, func(t *testing.T, dir string) {
			must(t, os.Remove(dir))
			must(t, os.MkdirAll(dir, 0o755))
		}, true},
		{"replaced by a link that leads nowhere, then somewhere", func(t *testing.T, dir string) {
			must(t, os.RemoveAll(dir))
			must(t, os.Symlink(dir+".target", dir))
		}, func(t *testing.T, dir string) { must(t, os.MkdirAll(dir+".target", 0o755)) }, true},
	} {
		t.Run(how.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "parent", "watched")
			must(t, os.MkdirAll(filepath.Join(dir, "sub"), 0o755))
			w := startWatch(t, nil, func(w *Watcher) { w.Folders = []string{dir} })
			w.dir = dir
			w.write("sub/before.py", "1")
			w.finds("sub/before.py")
			how.goes(t, dir)
			w.says("a watched folder is gone")
			w.clock.Advance(10 * DefaultPoll)
			how.back(t, dir)
			if how.recreate {
				w.write("while.py", "2")
				w.finds("while.py")
			} else {
				w.finds("sub/before.py") // the daemon knows it and does nothing
			}
			w.says("a watched folder is back")
			w.write("sub/after.py", "3")
			w.finds("sub/after.py")
			w.write("sub/last.py", "4")
			w.finds("sub/last.py")
			if n, m := w.times("is gone"), w.times("is back"); n != 1 || m != 1 {
				t.Errorf("said %d and %d times:\n%s", n, m, w.log.String())
			}
		})
	}
}

// Another folder takes the place between two looks: nothing is gone, and the
// events of the old one are of no use.
func TestAWatchedFolderIsReplacedByAnother(t *testing.T) {
	for _, link := range []bool{false, true} {
		dir := filepath.Join(t.TempDir(), "watched")
		must(t, os.MkdirAll(filepath.Join(dir, "sub"), 0o755))
		w := startWatch(t, nil, func(w *Watcher) { w.Folders = []string{dir} })
		w.dir = dir
		w.write("sub/a.py", "1")
		w.finds("sub/a.py")
		other := filepath.Join(t.TempDir(), "other")
		must(t, os.MkdirAll(filepath.Join(other, "sub"), 0o755))
		must(t, os.WriteFile(filepath.Join(other, "sub", "b.py"), []byte("2"), 0o600))
		must(t, os.Rename(dir, dir+".away"))
		if link {
			must(t, os.Symlink(other, dir))
		} else {
			must(t, os.Rename(other, dir))
		}
		w.finds("sub/b.py")
		w.write("sub/c.py", "3")
		w.finds("sub/c.py")
		must(t, os.WriteFile(filepath.Join(dir+".away", "sub", "x.py"), []byte("4"), 0o600))
		w.clock.Advance(DefaultPoll)
		w.write("sub/d.py", "5")
		w.finds("sub/d.py")
	}
}

// inNamespaces runs the calling test once more in a child with a user and a
// mount namespace of its own, and reports whether this is that child. There the
// limits on inotify are the child's to set, and so are mounts.
func inNamespaces(t *testing.T) bool {
	t.Helper()
	if os.Getenv("KERNELWRIGHT_TEST_CHILD") == t.Name() {
		return true
	}
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
	c.Env = append(os.Environ(), "KERNELWRIGHT_TEST_CHILD="+t.Name())
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out := &syncBuffer{}
	c.Stdout, c.Stderr = out, out
	if err := c.Start(); err != nil {
		t.Skipf("no user namespace can be made here: %v", err)
	}
	err := c.Wait()
	if text := out.String(); strings.Contains(text, "--- SKIP") {
		t.Skip(text)
	} else if err != nil || !strings.Contains(text, "--- PASS") {
		t.Errorf("%v\n%s", err, text)
	}
	return false
}

func TestInotifyLimits(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	for _, limit := range []struct {
		name, value string
		watches     int
	}{{"max_inotify_watches", "3", 3}, {"max_inotify_instances", "0", 0}} {
		path := "/proc/sys/user/" + limit.name
		before, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, []byte(limit.value), 0o600)
		}
		if err != nil {
			t.Skipf("the limit cannot be set here: %v", err)
		}
		files := map[string]string{}
		for i := range 6 {
			files[fmt.Sprintf("sub%d/a.py", i)] = "x"
		}
		w := startWatch(t, files, nil)
		for i := range 6 {
			w.finds(fmt.Sprintf("sub%d/a.py", i))
		}
		w.write("sub5/new/b.py", "y")
		w.finds("sub5/new/b.py")
		w.clock.Advance(10 * DefaultPoll)
		if w.times("WARN") != 1 || w.times("scanning them every 2s instead; raise fs.inotify.max_user_watches") != 1 {
			t.Errorf("%s: once is enough:\n%s", limit.name, w.log.String())
		}
		must(t, os.WriteFile(path, before, 0o600))
	}
}

// A file system that is unmounted and mounted again under a watched folder.
func TestAWatchedFolderIsUnmounted(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	disk, dir := t.TempDir(), filepath.Join(t.TempDir(), "watched")
	must(t, os.MkdirAll(dir, 0o755))
	mount := func() {
		t.Helper()
		if err := syscall.Mount(disk, dir, "", syscall.MS_BIND, ""); err != nil {
			t.Skipf("nothing can be mounted here: %v", err)
		}
	}
	mount()
	defer syscall.Unmount(dir, syscall.MNT_DETACH)
	w := startWatch(t, nil, func(w *Watcher) { w.Folders = []string{dir} })
	w.dir = dir
	w.write("a.py", "1")
	w.finds("a.py")
	must(t, syscall.Unmount(dir, syscall.MNT_DETACH))
	w.says("a watched folder is back") // what it hid
	must(t, os.WriteFile(filepath.Join(disk, "b.py"), []byte("2"), 0o600))
	mount()
	w.finds("a.py")
	w.finds("b.py")
	w.write("c.py", "3")
	w.finds("c.py")
}

// Folders that other hosts change are scanned from the start.
func TestAFileSystemThatIsSilent(t *testing.T) {
	w := startWatch(t, map[string]string{"a.py": "1"}, func(w *Watcher) { w.Silent = func(string) string { return "NFS" } })
	w.finds("a.py")
	w.write("sub/b.py", "2")
	w.finds("sub/b.py")
	w.clock.Advance(10 * DefaultPoll)
	if n := w.times("is on NFS, which does not tell of every change"); n != 1 {
		t.Errorf("said %d times:\n%s", n, w.log.String())
	}
	if kind := silentFileSystem("/proc"); kind != "" {
		t.Errorf("/proc is %q", kind)
	}
}

// More happens than the system keeps events for, while the watcher is busy:
// every file is found once all the same, and that is said once.
func TestTheQueueOfEventsOverflows(t *testing.T) {
	const files = 5000 // twice, of two events each; the system keeps 16,384
	if b, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events"); err != nil || strings.TrimSpace(string(b)) != "16384" {
		t.Skipf("the system keeps %s events: %v", b, err)
	}
	var mu sync.Mutex
	seen := map[string]int{}
	busy, goOn := make(chan struct{}), make(chan struct{})
	w := startWatch(t, map[string]string{"first.py": "1"}, func(w *Watcher) {
		w.Found = func(_ context.Context, path string) error {
			if filepath.Base(path) == "first.py" {
				close(busy)
				<-goOn
			}
			mu.Lock()
			defer mu.Unlock()
			seen[path]++
			return nil
		}
	})
	w.settled()
	<-busy
	for round := range 2 {
		for i := range files {
			must(t, os.WriteFile(w.path(fmt.Sprintf("%d-%d.py", round, i)), []byte("x"), 0o600))
		}
	}
	close(goOn)
	w.pass("all found", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(seen) == 2*files+1
	})
	w.says("changes may have been missed") // the scan of each minute may have come first
	mu.Lock()
	defer mu.Unlock()
	for path, n := range seen {
		if n != 1 {
			t.Errorf("%s was found %d times", path, n)
		}
	}
	if n := w.times("changes may have been missed"); n != 1 {
		t.Errorf("said %d times:\n%.2000s", n, w.log.String())
	}
}

// Errors of the system that come again and again are told once.
func TestAnErrorOfTheSystemIsToldOnce(t *testing.T) {
	notify := make(chan *fsnotify.Watcher, 1)
	w := startWatch(t, nil, func(w *Watcher) {
		w.Notify = func() (*fsnotify.Watcher, error) {
			n, err := fsnotify.NewWatcher()
			notify <- n
			return n, err
		}
	})
	n := <-notify
	for i := range 3 {
		n.Errors <- fsnotify.ErrEventOverflow
		w.write(fmt.Sprintf("%d.py", i), "x")
		w.finds(fmt.Sprintf("%d.py", i))
	}
	if n := w.times("changes may have been missed"); n != 1 {
		t.Errorf("said %d times", n)
	}
}

// Results of a run whose folder went away meanwhile are written when it is
// back, and nothing is done again.
func TestResultsOfAFolderThatWentAreWrittenWhenItIsBack(t *testing.T) {
	b := newBench(t)
	b.dir = filepath.Join(b.dir, "watched")
	must(t, os.MkdirAll(b.dir, 0o755))
	release := b.held(func(d *Daemon) { d.Watcher.Poll = 10 * time.Millisecond })
	path := b.drop("a.py", "softmax")
	<-b.hw.enter
	must(t, os.Rename(b.dir, b.dir+".away"))
	b.logged("a watched folder is gone")
	release()
	done := b.next()
	if done.WriteErr == nil || done.Data.Run.Status != kernelwright.RunDone {
		t.Fatalf("%s, %v", done.Data.Run.Status, done.WriteErr)
	}
	must(t, os.Rename(b.dir+".away", b.dir))
	kernel := strings.TrimSuffix(path, ".py") + ".best.py"
	for end := time.Now().Add(testWait); ; time.Sleep(time.Millisecond) {
		if owed, err := b.store.Owed(t.Context(), path); err == nil && owed == 0 {
			break
		} else if time.Now().After(end) {
			t.Fatalf("still owed: %d, %v", owed, err)
		}
	}
	b.read(kernel)
	b.halt()
	close(b.hw.enter)
	if runs := b.runs(); len(runs) != 1 || b.hw.evaluate != 3 {
		t.Errorf("%d runs, %d evaluations", len(runs), b.hw.evaluate)
	}
	// Who takes the results away does not find them there again.
	must(t, os.Remove(kernel))
	b.start(func(d *Daemon) { d.UntilIdle = true })
	must(t, <-b.done)
	b.stop()
	b.stop = nil
	if _, err := os.Stat(kernel); err == nil {
		t.Error("results that were taken away are there again")
	}
}

// Results that could not be written are written by the daemon that owes them,
// once they can be, with a line for each.
func TestResultsThatAreOwedAreWrittenAtAScan(t *testing.T) {
	b := newBench(t)
	clock := newFakeClock()
	out := filepath.Join(t.TempDir(), "out")
	must(t, os.WriteFile(out, nil, 0o600))
	w := &watching{t: t, clock: clock, log: b.log}
	b.start(func(d *Daemon) { d.Runner.Clock, d.Runner.Results.Folder = clock, out })
	a := b.drop("a.py", "softmax")
	var done Done
	w.pass("the run ends", func() bool {
		select {
		case done = <-b.ended:
			return true
		default:
			return false
		}
	})
	var unwritten *WriteError
	if !errors.As(done.WriteErr, &unwritten) || !strings.Contains(unwritten.Hint, "history show 1 --out") {
		t.Errorf("%v: %+v", done.WriteErr, unwritten)
	}
	w.says("it is tried again every minute")
	for range 3 {
		clock.Advance(rescanEvery)
		time.Sleep(20 * time.Millisecond)
	}
	if n := w.times("results could not be written"); n != 1 {
		t.Errorf("said %d times", n)
	}
	must(t, os.Remove(out))
	w.says("results that were owed are written")
	b.read(filepath.Join(out, "a.best.py"))
	if owed, err := b.store.Owed(t.Context(), a); err != nil || owed != 0 {
		t.Errorf("still owed: %d, %v", owed, err)
	}
	clock.Advance(rescanEvery)
	time.Sleep(20 * time.Millisecond)
	if n := w.times("results that were owed are written"); n != 1 {
		t.Errorf("said %d times", n)
	}
}

// The record or the lock is deleted or replaced under a daemon, at rest or over
// a run: it stops and says so.
func TestADataFolderThatGoesAwayEndsTheDaemon(t *testing.T) {
	for _, busy := range []bool{false, true} {
		for name, away := range map[string]func(data string) error{
			"record deleted": func(data string) error { return os.Remove(filepath.Join(data, store.FileName)) },
			"folder moved":   func(data string) error { return os.Rename(data, data+".away") },
			"lock deleted":   func(data string) error { return os.Remove(filepath.Join(data, "lock")) },
			"lock replaced": func(data string) error {
				lock := filepath.Join(data, "lock")
				return errors.Join(os.WriteFile(lock+".other", nil, 0o600), os.Rename(lock+".other", lock))
			},
		} {
			t.Run(fmt.Sprintf("%s, busy=%v", name, busy), func(t *testing.T) {
				b := newBench(t)
				lock, err := AcquireLock(b.data, nil, time.Now())
				must(t, err)
				defer lock.Release()
				change := func(d *Daemon) {
					d.Lock, d.Watcher.Poll, d.Runner.Grace = lock, 10*time.Millisecond, 10*time.Millisecond
				}
				if busy {
					b.held(change)
					b.drop("a.py", "softmax")
					<-b.hw.enter
				} else {
					b.start(change)
				}
				must(t, away(b.data))
				var gone *store.GoneError
				select {
				case err := <-b.done:
					if !errors.As(err, &gone) || gone.Replaced != (name == "lock replaced") {
						t.Errorf("%v", err)
					}
				case <-time.After(testWait):
					t.Fatal("it goes on")
				}
				b.stop = nil
			})
		}
	}
}

// Damage that is met while files are taken, or runs worked on, ends the daemon
// with the sentence for it, and nothing is logged for each file.
func TestDamageEndsTheDaemon(t *testing.T) {
	for _, busy := range []bool{false, true} {
		b := newBench(t)
		for i := range 200 {
			must(t, b.store.Put(t.Context(), "k", fmt.Sprint(i), []byte(strings.Repeat(fmt.Sprint(i), 2000))))
		}
		release := b.held(nil)
		if busy {
			b.drop("a.py", "softmax")
			<-b.hw.enter
		}
		// The log is folded in, so that pages are read from the file.
		db, err := sql.Open("sqlite", filepath.Join(b.data, store.FileName))
		must(t, err)
		_, err = db.Exec(`PRAGMA wal_checkpoint(TRUNCATE)`)
		must(t, err)
		must(t, db.Close())
		path := filepath.Join(b.data, store.FileName)
		whole, err := os.ReadFile(path)
		must(t, err)
		for i := 4096; i < len(whole); i++ {
			whole[i] ^= 0xa5
		}
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		must(t, err)
		_, err = f.WriteAt(whole[4096:], 4096)
		must(t, err)
		must(t, f.Close())
		if busy {
			release()
		} else {
			b.drop("a.py", "softmax")
			b.drop("b.py", "log softmax")
		}
		var damaged *store.DamagedError
		select {
		case err := <-b.done:
			if !errors.As(err, &damaged) {
				t.Errorf("%v", err)
			}
		case <-time.After(testWait):
			t.Fatal("it goes on")
		}
		b.stop = nil
		if busy {
			close(b.hw.enter)
		}
		if n := strings.Count(b.log.String(), "could not be taken"); n > 0 {
			t.Errorf("said %d times", n)
		}
	}
}

// Who waits until nothing is left is told that a file could not be taken.
func TestAFileThatCouldNotBeTakenIsToldAtTheEnd(t *testing.T) {
	b := newBench(t)
	path := b.drop("a.py", "softmax")
	db, err := sql.Open("sqlite", filepath.Join(b.data, store.FileName))
	must(t, err)
	defer db.Close()
	_, err = db.Exec(`CREATE TRIGGER never BEFORE INSERT ON runs BEGIN SELECT raise(FAIL, 'no room'); END`)
	must(t, err)
	b.start(func(d *Daemon) { d.UntilIdle = true })
	err = <-b.done
	b.stop = nil
	var untaken *UntakenError
	if !errors.As(err, &untaken) || !slices.Equal(untaken.Paths, []string{path}) || !strings.Contains(err.Error(), "no room") {
		t.Errorf("%v", err)
	}
}

// queued waits until so many runs wait or run, and returns how many it found.
func (b *bench) queued(want int) int {
	b.t.Helper()
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		waiting, claimed, err := b.store.QueueLength(context.Background())
		must(b.t, err)
		if waiting+claimed >= want || time.Now().After(end) {
			return waiting + claimed
		}
	}
}

// Many files are dropped at once: each is queued exactly once.
func TestManyFilesAtOnce(t *testing.T) {
	files := 1000
	if soak.Long() {
		files = 5000
	}
	b := newBench(t)
	release := b.held(nil)
	b.drop("first.py", "first")
	<-b.hw.enter // and holds the device
	staged := filepath.Join(t.TempDir(), "many")
	must(t, os.MkdirAll(staged, 0o755))
	for i := range files - 1 {
		must(t, os.WriteFile(filepath.Join(staged, fmt.Sprintf("t%04d.py", i)), fmt.Appendf(nil, "softmax over %d", i), 0o600))
	}
	began := time.Now()
	must(t, os.Rename(staged, filepath.Join(b.dir, "many")))
	n := b.queued(files)
	took := time.Since(began)
	t.Logf("%d files queued in %v; %s", n, took.Round(time.Millisecond), memory())
	// A second scan, and every file told of again, change nothing.
	b.drop("last.py", "last")
	b.logged("last.py")
	if n := b.queued(files + 1); n != files+1 {
		t.Errorf("%d in the queue", n)
	}
	paths := map[string]int{}
	for f := (store.RunFilter{Limit: 10_000}); ; {
		runs, err := b.store.Runs(t.Context(), f)
		must(t, err)
		for _, r := range runs {
			paths[r.Path]++
		}
		if len(runs) < f.Limit {
			break
		}
		f.Before = runs[len(runs)-1].ID
	}
	if len(paths) != files+1 {
		t.Errorf("%d files have a run", len(paths))
	}
	for path, n := range paths {
		if n != 1 {
			t.Errorf("%s has %d runs", path, n)
		}
	}
	release()
	b.halt()
	close(b.hw.enter)
}

// busy reports whether more processes want a core than there are.
func busy(t *testing.T) bool {
	t.Helper()
	text, err := os.ReadFile("/proc/loadavg")
	must(t, err)
	var load float64
	_, err = fmt.Sscan(string(text), &load)
	must(t, err)
	return load > float64(runtime.NumCPU())
}

func memory() string {
	b, _ := os.ReadFile("/proc/self/status")
	var kept []string
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "VmHWM") || strings.HasPrefix(line, "VmRSS") {
			kept = append(kept, strings.Join(strings.Fields(line), " "))
		}
	}
	return strings.Join(kept, ", ")
}

// A dropped file is queued, on a machine that is at rest and on one whose cores
// all have something else to do. Soaking, that takes half a second at most: a time
// is asserted nowhere else, and there alone where no other program works.
func TestADroppedFileIsQueuedSoon(t *testing.T) {
	drops := 3
	if soak.Long() {
		drops = 300
	}
	for _, load := range []bool{false, true} {
		t.Run(fmt.Sprintf("load=%v", load), func(t *testing.T) {
			b := newBench(t)
			release := b.held(func(d *Daemon) { d.Watcher.Debounce = DefaultDebounce })
			b.drop("first.py", "first")
			<-b.hw.enter
			if load {
				var stop atomic.Bool
				var burning sync.WaitGroup
				for range runtime.NumCPU() {
					burning.Go(func() {
						for !stop.Load() {
						}
					})
				}
				defer burning.Wait()
				defer stop.Store(true)
			}
			var took []time.Duration
			for i := range drops {
				began := time.Now()
				path := b.drop(fmt.Sprintf("t%d.py", i), fmt.Sprintf("softmax over %d", i))
				for end := began.Add(testWait); ; time.Sleep(time.Millisecond) {
					f, found, err := b.store.File(t.Context(), path)
					must(t, err)
					if found && f.RunID != 0 {
						break
					}
					if time.Now().After(end) {
						t.Fatal("it is never queued")
					}
				}
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			p50, p99 := took[len(took)/2], took[len(took)*99/100]
			t.Logf("%d drops: p50 %v, p99 %v, longest %v", drops, p50.Round(time.Millisecond), p99.Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond))
			switch {
			case !soak.Long() || p99 <= 500*time.Millisecond:
			case !load && busy(t):
				t.Log("not measured: the machine is busy")
			default:
				t.Errorf("queued after %v (half of them), %v (99 %%)", p50, p99)
			}
			release()
			b.halt()
			close(b.hw.enter)
		})
	}
}

// A file with the content of one that waits, whose task then turns out to be
// one that was optimised before: both get its results.
func TestCopiesOfAKnownTaskGetItsResults(t *testing.T) {
	b := newBench(t)
	b.start(nil)
	b.drop("a.py", "softmax")
	b.next()
	b.halt()
	release := b.held(nil)
	b.drop("other.py", "log softmax")
	<-b.hw.enter
	for _, name := range []string{"b.py", "c.py"} {
		b.drop(name, "softmax # in other words")
	}
	b.logged("one run stands for both")
	release()
	b.next()
	if done := b.next(); done.WriteErr != nil {
		t.Error(done.WriteErr)
	}
	for _, name := range []string{"b.best.py", "c.best.py", "b.certificate.json", "c.certificate.json"} {
		b.read(filepath.Join(b.dir, name))
	}
	b.halt()
	close(b.hw.enter)
}

// A run over which its process dies again and again ends as failed, with a
// report that says so, and others are done before it.
func TestARunThatKillsItsProcessEnds(t *testing.T) {
	b := newBench(t)
	ctx := t.Context()
	w := b.daemon().Runner
	// Not in the watched folder: a file whose run failed is tried again there.
	dir := t.TempDir()
	for _, source := range []string{"deadly", "softmax"} {
		name, path := source, filepath.Join(dir, source+".py")
		must(t, os.WriteFile(path, []byte(source), 0o600))
		file := store.File{Path: path, Hash: kernelwright.HashText(source)}
		_, err := w.Enqueue(ctx, Request{Path: path, Name: name, Source: source, Settings: b.daemon().Settings}, file, 0)
		must(t, err)
	}
	// It dies twice before the other one has its turn; then the other one is
	// put off too, for as long as this test needs.
	for died := 0; died < maxDeaths; {
		job, found, err := b.store.Claim(ctx, "a process that died")
		if err != nil || !found {
			t.Fatal(found, err)
		}
		if job.RunID != 1 {
			must(t, b.store.Retry(ctx, job, 100*time.Millisecond))
			continue
		}
		died++
		if _, err := b.store.Recover(ctx, func(string) bool { return false }); err != nil {
			t.Fatal(err)
		}
	}
	b.start(nil)
	byRun := map[int64]Done{}
	for range 2 {
		d := b.next()
		byRun[d.Data.Run.ID] = d
	}
	if r := byRun[1].Data.Run; r.Status != kernelwright.RunFailed || !strings.Contains(r.Reason, "died 20 times in a row") {
		t.Errorf("%s: %s", r.Status, r.Reason)
	}
	if r := byRun[2].Data.Run; r.Status != kernelwright.RunDone {
		t.Errorf("%s: %s", r.Status, r.Reason)
	}
	if text := b.read(filepath.Join(dir, "deadly.report.md")); !strings.Contains(text, "died 20 times") {
		t.Errorf("%.500s", text)
	}
}
