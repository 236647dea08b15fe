package store

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// A backup is taken while another process writes, and has what was recorded before it,
// whole; the writer is killed, and the backup put in its record's place.
func TestBackupBesideAWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), FileName)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "KERNELWRIGHT_STORE_TEST_WRITER="+path)
	cmd.Stderr = os.Stderr
	out := must(cmd.StdoutPipe())(t)
	ok(t, cmd.Start())
	said := map[int64]int{}
	copies := t.TempDir()
	var backups []string
	scanner := bufio.NewScanner(out)
	for n := 0; scanner.Scan(); n++ {
		var run int64
		var index int
		if _, err := fmt.Sscan(scanner.Text(), &run, &index); err == nil {
			said[run] = index + 1
		}
		if n == 5 || n == 30 {
			to := filepath.Join(copies, fmt.Sprintf("%d.db", n))
			ok(t, Backup(t.Context(), path, to))
			backups = append(backups, to)
			s := must(OpenToRead(to))(t)
			for run, rounds := range said {
				if got := len(must(s.Rounds(t.Context(), run))(t)); got < rounds {
					t.Errorf("backup %d: run %d has %d rounds of %d", n, run, got, rounds)
				}
			}
			ok(t, s.Close())
		}
		if n == 40 {
			ok(t, cmd.Process.Kill())
		}
	}
	_ = cmd.Wait() // it was killed
	if err := Backup(t.Context(), path, backups[0]); !errors.Is(err, os.ErrExist) {
		t.Errorf("over a file: %v", err)
	}
	before := examine(t, path)
	old := must(Restore(t.Context(), path, backups[0], time.Unix(1e9, 0), func(string) {}))(t)
	restored, kept := examine(t, path), examine(t, old)
	if !restored.Sound() || !kept.Sound() || kept.Rows["rounds"] != before.Rows["rounds"] || restored.Rows["rounds"] >= before.Rows["rounds"] || restored.Rows["rounds"] == 0 {
		t.Errorf("restored %+v, kept %+v, before %+v", restored.Rows, kept.Rows, before.Rows)
	}
	s := must(Open(path))(t)
	newRun(t, s)
	ok(t, s.Close())
	for _, dir := range []string{copies, filepath.Dir(path)} {
		for _, left := range must(filepath.Glob(filepath.Join(dir, ".*")))(t) {
			t.Errorf("%s is left", left)
		}
	}
}

// A damaged backup restores nothing, and the record stays.
func TestADamagedBackupIsNotRestored(t *testing.T) {
	path, from := everything(t, 1), everything(t, 1)
	db := tampered(t, from)
	changeQuietly(t, db, `UPDATE verdicts SET status = 'wrong' WHERE status = 'certified'`)
	ok(t, db.Close())
	before := must(os.ReadFile(path))(t)
	var damaged *DamagedError
	if _, err := Restore(t.Context(), path, from, time.Unix(1e9, 0), func(string) {}); !errors.As(err, &damaged) {
		t.Error(err)
	}
	if string(must(os.ReadFile(path))(t)) != string(before) {
		t.Error("the record has changed")
	}
}
