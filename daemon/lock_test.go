package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright/store"
)

func TestOneProcessADataFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	l, err := AcquireLock(dir, []string{"kernelwright", "daemon"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	_, err = AcquireLock(dir, []string{"kernelwright", "run"}, time.Now())
	var held *HeldError
	if !errors.As(err, &held) || held.Holder.PID != os.Getpid() || !strings.HasSuffix(err.Error(), "kernelwright daemon") {
		t.Fatalf("%v", err)
	}
	if err := errors.Join(l.Release(), l.Release()); err != nil {
		t.Error(err)
	}
	l, err = AcquireLock(dir, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	// Who only looked is waited for.
	time.AfterFunc(glimpse/10, func() { l.Release() })
	next, err := AcquireLock(dir, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	next.Release()
}

func TestOneDaemonAFolderOfResults(t *testing.T) {
	dir := t.TempDir()
	l, err := HoldFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = HoldFolder(dir)
	var held *FolderHeldError
	if !errors.As(err, &held) || (held.PID != os.Getpid() && held.PID != 0) || held.Folder != dir {
		t.Fatalf("%v", err)
	}
	if err := l.Release(); err != nil {
		t.Error(err)
	}
	if l, err = HoldFolder(dir); err != nil {
		t.Fatal(err)
	}
	if err := l.Release(); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("%v, %v", entries, err)
	}
	// A folder that is not there keeps nobody out.
	if l, err = HoldFolder(filepath.Join(dir, "none")); err != nil || l.Release() != nil {
		t.Error(err)
	}
}

// Daemons whose folders lie in each other write to the same ones, if they look
// into subfolders.
func TestOneDaemonATreeOfResults(t *testing.T) {
	base := t.TempDir()
	at := func(name string) string { return filepath.Join(base, name) }
	for _, dir := range []string{"w/sub/deep", "w/other", "v"} {
		if err := os.MkdirAll(at(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(at("w/sub"), at("link")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		first  []string
		whole  bool // with its subfolders
		second []string
		also   bool // and the second
		free   bool
	}{
		{[]string{"w"}, true, []string{"w/sub"}, true, false},
		{[]string{"w"}, true, []string{"w/sub/deep"}, false, false},
		{[]string{"w"}, true, []string{"v", "link"}, true, false},
		{[]string{"w"}, false, []string{"w/sub"}, true, true},
		{[]string{"w/sub/deep"}, true, []string{"w"}, true, false},
		{[]string{"w/sub/deep"}, false, []string{"w"}, true, false},
		{[]string{"w/sub/deep"}, true, []string{"w"}, false, true},
		{[]string{"w/sub"}, true, []string{"w/other", "v"}, true, true},
		{[]string{"v"}, true, []string{"w", "w/sub", "w/sub/deep"}, true, true}, // one's own
		{[]string{"v"}, true, []string{"w", "w/sub"}, false, true},
	} {
		hold := func(names []string, recursive bool) (*Trees, error) {
			var dirs []string
			for _, n := range names {
				dirs = append(dirs, at(n))
			}
			return HoldTrees(dirs, recursive)
		}
		first, err := hold(tt.first, tt.whole)
		if err != nil {
			t.Fatal(err)
		}
		second, err := hold(tt.second, tt.also)
		var nested *NestedError
		if tt.free != (err == nil) || (err != nil && !errors.As(err, &nested)) {
			t.Errorf("%+v: %v", tt, err)
		}
		if err == nil {
			err = second.Release()
		} else {
			err = nil
		}
		if err = errors.Join(err, first.Release()); err != nil {
			t.Error(err)
		}
		if second, err = hold(tt.second, tt.also); err != nil {
			t.Errorf("%+v: nobody is there any more: %v", tt, err)
		} else {
			second.Release()
		}
	}
}

// What a process that was killed in the middle of writing left is gone after
// the next write; what one that lives is writing is left alone.
func TestHalfWrittenResultsAreSweptUp(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "softmax.best.py")
	dead := filepath.Join(dir, ".softmax.best.py.1@1@gone.123")
	alive := filepath.Join(dir, ".softmax.best.py."+store.Self()+".456")
	foreign := filepath.Join(dir, ".softmax.best.py.swp")
	for _, f := range []string{dead, alive, foreign} {
		if err := os.WriteFile(f, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := WriteFile(path, []byte("whole")); err != nil {
		t.Fatal(err)
	}
	for f, want := range map[string]bool{dead: false, alive: true, foreign: true, path: true} {
		if _, err := os.Stat(f); (err == nil) != want {
			t.Errorf("%s: %v", f, err)
		}
	}
}
