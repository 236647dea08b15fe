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
	if err := writeAtomic(path, []byte("whole")); err != nil {
		t.Fatal(err)
	}
	for f, want := range map[string]bool{dead: false, alive: true, foreign: true, path: true} {
		if _, err := os.Stat(f); (err == nil) != want {
			t.Errorf("%s: %v", f, err)
		}
	}
}
