package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
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
