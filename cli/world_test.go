package cli

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/store"
)

// disk mounts a file system of so many bytes, which readOnly then protects.
func disk(t *testing.T, size int) (dir string, readOnly func()) {
	t.Helper()
	dir = t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0755", size)); err != nil {
		t.Skipf("no small disk can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir, func() {
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
	}
}

// says runs a command line and returns what it says to people, with its code.
func says(t *testing.T, args ...string) (int, string) {
	t.Helper()
	var out, errs bytes.Buffer
	err := runWith(t.Context(), args, []string{"HOME=" + t.TempDir(), "KERNELWRIGHT_PYTHON=" + filepath.Join(t.TempDir(), "none")}, strings.NewReader(""), &out, &errs)
	Explain(&errs, err)
	return ExitCode(err), out.String() + errs.String()
}

func wantSaid(t *testing.T, code int, said string, want int, parts ...string) {
	t.Helper()
	if code != want {
		t.Errorf("code %d, want %d: %s", code, want, said)
	}
	for _, part := range parts {
		if !strings.Contains(said, part) {
			t.Errorf("%q is not in: %s", part, said)
		}
	}
}

// A data folder on a read-only disk is read, and whoever would write is told
// why not.
func TestReadOnlyDataFolder(t *testing.T) {
	dir, readOnly := disk(t, 8<<20)
	reference := filepath.Join(t.TempDir(), "a.py")
	if err := os.WriteFile(reference, []byte("class Model: pass\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(filepath.Join(dir, store.FileName))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.CreateRun(t.Context(), kernelwright.Run{TaskName: "kept", Status: kernelwright.RunFailed, Reason: "x"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	readOnly()
	code, said := says(t, "history", "ls", "--data-dir", dir)
	wantSaid(t, code, said, ExitOK, "kept")
	code, said = says(t, "history", "show", "1", "--data-dir", dir)
	wantSaid(t, code, said, ExitOK, "kept")
	code, said = says(t, "history", "check", "--data-dir", dir)
	wantSaid(t, code, said, ExitOK, "sound")
	for _, args := range [][]string{{"run", reference}, {"eval", reference, reference}, {"daemon", "--watch", t.TempDir()}} {
		code, said = says(t, append(args, "--data-dir", dir)...)
		wantSaid(t, code, said, ExitFailure, "error: data folder "+dir, "read-only file system", "hint: check who owns it and whether its disk is mounted read-only")
	}
}

// Results go to a full disk, or a read-only one: one sentence, and the record
// still has everything.
func TestResultsCannotBeWritten(t *testing.T) {
	data := t.TempDir()
	s, err := store.Open(filepath.Join(data, store.FileName))
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("it failed and this is why ", 10000)
	if _, err := s.CreateRun(t.Context(), kernelwright.Run{TaskName: "kept", Status: kernelwright.RunInvalid, Reason: "x", Detail: long}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	out, readOnly := disk(t, 64<<10)
	code, said := says(t, "history", "show", "1", "--out", out, "--data-dir", data)
	wantSaid(t, code, said, ExitFailure, "no space left on device", "hint: the disk is full: make room, then write the results again")
	if n := strings.Count(said, "cannot write"); n != 1 {
		t.Errorf("%d files are named: %s", n, said)
	}
	for _, entry := range must(os.ReadDir(out))(t) {
		if strings.HasPrefix(entry.Name(), ".") {
			t.Errorf("half of a file stayed: %s", entry.Name())
		}
	}
	readOnly()
	code, said = says(t, "history", "show", "1", "--out", out, "--data-dir", data)
	wantSaid(t, code, said, ExitFailure, "read-only file system", "hint: the folder cannot be written")
	code, said = says(t, "history", "show", "1", "--out", t.TempDir(), "--data-dir", data)
	wantSaid(t, code, said, ExitOK, "written: ")
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// What the disk refuses has the same hint wherever it comes from.
func TestFullDisksHaveOneHint(t *testing.T) {
	for _, err := range []error{
		&kernelwright.InfrastructureError{Op: "evaluate", Err: fmt.Errorf("OSError: [Errno 28] No space left on device")},
		dataError("/x", &os.PathError{Op: "write", Path: "/x/lock", Err: unix.ENOSPC}),
		fmt.Errorf("record: %w", unix.EDQUOT),
	} {
		if code, _, hint := explain(err); code != ExitFailure || !strings.HasPrefix(hint, "make room on that disk") {
			t.Errorf("%v: %d, %q", err, code, hint)
		}
	}
}

// What only saves time is dropped after a month, and nothing else is.
func TestWhatIsRememberedIsForgotten(t *testing.T) {
	s, err := store.Open(filepath.Join(t.TempDir(), store.FileName))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, kind := range []string{"verdict", "baselines", "ceilings"} {
		if err := s.Put(t.Context(), kind, "key", []byte("value")); err != nil {
			t.Fatal(err)
		}
	}
	r := &room{store: s, log: slog.New(slog.DiscardHandler)}
	left := func() (kinds []string) {
		for _, kind := range []string{"verdict", "baselines", "ceilings"} {
			if _, found, err := s.Get(t.Context(), kind, "key"); err != nil {
				t.Fatal(err)
			} else if found {
				kinds = append(kinds, kind)
			}
		}
		return kinds
	}
	r.forget(t.Context(), time.Now().Add(29*24*time.Hour))
	if got := left(); len(got) != 3 {
		t.Errorf("after 29 days %q are left", got)
	}
	r.forget(t.Context(), time.Now().Add(31*24*time.Hour))
	if got := left(); !slices.Equal(got, []string{"ceilings"}) {
		t.Errorf("after 31 days %q are left", got)
	}
}
