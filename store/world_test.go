package store

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	kw "github.com/kernelwright/kernelwright"
)

// smallDisk mounts a file system of so many bytes.
func smallDisk(t *testing.T, size int) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", size)); err != nil {
		t.Skipf("no file system can be mounted here (%v), so no disk is full in this test", err)
	}
	t.Cleanup(func() { ok(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// occupy takes what room is left on a disk but for some bytes.
func occupy(t *testing.T, dir string, leave int64) (release func()) {
	t.Helper()
	var s unix.Statfs_t
	ok(t, unix.Statfs(dir, &s))
	path := filepath.Join(dir, "occupied")
	f := must(os.Create(path))(t)
	if n := int64(s.Bavail)*s.Bsize - leave; n > 0 {
		ok(t, unix.Fallocate(int(f.Fd()), 0, 0, n))
	}
	ok(t, f.Close())
	return func() { ok(t, os.Remove(path)) }
}

// The disk fills up under a writer: what it was told is recorded is, what was
// refused is not, and with room again it goes on.
func TestFullDisk(t *testing.T) {
	dir := smallDisk(t, 2<<20)
	path := filepath.Join(dir, FileName)
	s, err := Open(path)
	ok(t, err)
	run := must(s.CreateRun(t.Context(), kw.Run{Task: "f", DeviceKey: "d", Status: kw.RunRunning}))(t)
	kept := 0
	for ; ; kept++ {
		r := round(run.ID, kept, kw.Correct, 1)
		r.Candidate.Source = incompressible(kept)
		if err = s.AppendRound(t.Context(), r); err != nil {
			break
		}
		if kept > 1000 {
			t.Fatal("the disk is never full")
		}
	}
	if !errors.Is(Trouble(err), ErrFull) {
		t.Errorf("got %v", err)
	}
	release := occupy(t, dir, 0)
	for i := 0; err == nil || i == 0; i++ { // a log that is there already has some room
		err = s.Put(t.Context(), "k", fmt.Sprint(i), []byte(incompressible(i)))
	}
	if !errors.Is(Trouble(err), ErrFull) {
		t.Errorf("the cache: %v", err)
	}
	if n := len(must(s.Rounds(t.Context(), run.ID))(t)); n != kept {
		t.Errorf("%d rounds of %d are read", n, kept)
	}
	ok(t, s.Close())
	// A new process, with the disk still full.
	if s, err = Open(path); err == nil {
		if n := len(must(s.Rounds(t.Context(), run.ID))(t)); n != kept {
			t.Errorf("%d rounds of %d are read on a full disk", n, kept)
		}
		ok(t, s.Close())
	} else if !errors.Is(Trouble(err), ErrFull) && !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got %v", err)
	}
	release()
	ok(t, unix.Mount("", dir, "", unix.MS_REMOUNT, "size=8m"))
	s, err = Open(path)
	ok(t, err)
	ok(t, s.AppendRound(t.Context(), round(run.ID, kept, kw.Correct, 1)))
	ok(t, s.Close())
	if e := examine(t, path); !e.Sound() || e.Rows["rounds"] != int64(kept)+1 {
		t.Errorf("%+v", e)
	}
}

func incompressible(n int) string {
	var b []byte
	x := uint64(n)*2654435761 + 1
	for len(b) < 40<<10 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b = fmt.Appendf(b, "%x ", x)
	}
	return string(b)
}

// A history cannot even be begun: nothing stays behind that the next start
// would take for one.
func TestFullDiskFromTheStart(t *testing.T) {
	dir := smallDisk(t, 2<<20)
	path := filepath.Join(dir, FileName)
	for _, leave := range []int64{0, 4 << 10, 16 << 10, 64 << 10, 128 << 10} {
		release := occupy(t, dir, leave)
		s, err := Open(path)
		if err == nil {
			t.Logf("with %d bytes it fits", leave)
			ok(t, s.Close())
			ok(t, os.Remove(path))
		} else {
			if !errors.Is(Trouble(err), ErrFull) && !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("with %d bytes: %v", leave, err)
			}
			if left := must(os.ReadDir(dir))(t); len(left) != 1 {
				t.Errorf("with %d bytes it left %v", leave, left)
			}
		}
		release()
	}
	s, err := Open(path)
	ok(t, err)
	ok(t, s.Close())
}

// A salvage into a disk that is too small says so and leaves nothing.
func TestSalvageOntoAFullDisk(t *testing.T) {
	path := lived(t, 90)
	for _, size := range []int{128 << 10, 512 << 10} { // too small to begin; too small to end
		dir := smallDisk(t, size)
		if _, err := Salvage(t.Context(), path, filepath.Join(dir, "new.db"), quiet); !errors.Is(Trouble(err), ErrFull) {
			t.Errorf("%d bytes: %v", size, err)
		}
		if left := must(os.ReadDir(dir))(t); len(left) != 0 {
			t.Errorf("%d bytes: left behind: %v", size, left)
		}
	}
}

// On a read-only disk a history is read, and nothing else; and it is not called
// damaged.
func TestReadOnlyDisk(t *testing.T) {
	dir := smallDisk(t, 8<<20)
	path := filepath.Join(dir, FileName)
	whole := must(os.ReadFile(lived(t, 5)))(t)
	ok(t, os.WriteFile(path, whole, 0o600))
	ok(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	if _, err := Open(path); !errors.Is(err, syscall.EROFS) {
		t.Errorf("open: %v", err)
	}
	s, err := OpenToRead(path)
	ok(t, err)
	if n := len(must(s.Runs(t.Context(), RunFilter{}))(t)); n != 5 {
		t.Errorf("%d runs", n)
	}
	if err := s.Put(t.Context(), "k", "v", nil); !errors.Is(Trouble(err), ErrReadOnly) {
		t.Errorf("a write: %v", err)
	}
	ok(t, s.Close())
	if e := examine(t, path); !e.Sound() {
		t.Errorf("%+v", e.Faults)
	}
	to := filepath.Join(t.TempDir(), FileName)
	must(Salvage(t.Context(), path, to, quiet))(t)
	if after := must(os.ReadFile(path))(t); !bytes.Equal(whole, after) {
		t.Error("it was changed")
	}

	// What is only in the log cannot be seen there: that is said.
	ok(t, unix.Mount("", dir, "", unix.MS_REMOUNT, ""))
	log := binaryLog()
	ok(t, os.WriteFile(path+"-wal", log, 0o600))
	ok(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	if s, err := OpenToRead(path); err == nil {
		t.Error("a log was passed over")
		s.Close()
	}
}

// binaryLog is the beginning of a write-ahead log.
func binaryLog() []byte {
	return append([]byte{0x37, 0x7f, 0x06, 0x82}, make([]byte, 64)...)
}

// A log that is none is not deleted, and neither is the database touched.
func TestADamagedLogIsLeftAlone(t *testing.T) {
	path := lived(t, 3)
	before := must(os.ReadFile(path))(t)
	log := []byte(incompressible(7))
	ok(t, os.WriteFile(path+"-wal", log, 0o600))
	for range 2 {
		_, err := Open(path)
		var damaged *DamagedError
		if !errors.As(err, &damaged) || damaged.Hint == "" {
			t.Errorf("got %v", err)
		}
	}
	if !bytes.Equal(before, must(os.ReadFile(path))(t)) || !bytes.Equal(log, must(os.ReadFile(path+"-wal"))(t)) {
		t.Error("it was changed")
	}
	ok(t, os.Rename(path+"-wal", path+"-kept"))
	if e := examine(t, path); !e.Sound() {
		t.Errorf("%+v", e.Faults)
	}
	// Zeros, as a power cut leaves them, and a half-written beginning are nothing.
	for _, nothing := range [][]byte{make([]byte, 5000), {0x37}, {}} {
		ok(t, os.WriteFile(path+"-wal", nothing, 0o600))
		s, err := Open(path)
		ok(t, err)
		ok(t, s.Close())
	}
}

func TestAFolderInItsPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), FileName)
	ok(t, os.Mkdir(path, 0o700))
	var damaged *DamagedError
	if _, err := Open(path); !errors.As(err, &damaged) {
		t.Errorf("got %v", err)
	}
	if _, err := Examine(t.Context(), path, quiet); !errors.As(err, &damaged) {
		t.Errorf("got %v", err)
	}
}

// A database of a later version is refused by all who open one, and is the same
// byte for byte afterwards.
func TestALaterVersionIsLeftAlone(t *testing.T) {
	path := lived(t, 2)
	s, err := Open(path)
	ok(t, err)
	_, err = s.write.Exec(`PRAGMA user_version = 99`)
	ok(t, err)
	ok(t, s.Close())
	before := must(os.ReadFile(path))(t)
	var newer *NewerError
	if _, err := Open(path); !errors.As(err, &newer) || newer.Version != 99 {
		t.Errorf("open: %v", err)
	}
	if _, err := Examine(t.Context(), path, quiet); !errors.As(err, &newer) {
		t.Errorf("examine: %v", err)
	}
	if _, err := Salvage(t.Context(), path, filepath.Join(t.TempDir(), "new.db"), quiet); !errors.As(err, &newer) {
		t.Errorf("salvage: %v", err)
	}
	if !bytes.Equal(before, must(os.ReadFile(path))(t)) {
		t.Error("it was changed")
	}
}
