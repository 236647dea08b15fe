package store

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright/internal/soak"
)

const (
	killedVerb   = "KERNELWRIGHT_STORE_TEST_KILLED" // backup or restore
	killedRecord = "KERNELWRIGHT_STORE_TEST_RECORD"
	killedCopy   = "KERNELWRIGHT_STORE_TEST_COPY"
)

// killed backs up or restores, and says where it is.
func killed(verb, record, file string) error {
	fmt.Println("begun")
	var err error
	if verb == "backup" {
		err = Backup(context.Background(), record, file)
	} else {
		_, err = Restore(context.Background(), record, file, time.Now(), func(step string) { fmt.Println(step) })
	}
	fmt.Println("ended")
	return err
}

// killAt starts a process, lets it say so many lines and go on for a moment, and kills it.
// It reports whether it was at its end before that.
func killAt(t *testing.T, verb, record, file string, lines int, more time.Duration) (ended bool) {
	t.Helper()
	c := exec.CommandContext(t.Context(), os.Args[0])
	c.Env = append(os.Environ(), killedVerb+"="+verb, killedRecord+"="+record, killedCopy+"="+file)
	c.Stderr = os.Stderr
	out := must(c.StdoutPipe())(t)
	ok(t, c.Start())
	said := bufio.NewScanner(out)
	for n := 0; n < lines && said.Scan(); n++ {
		ended = said.Text() == "ended"
	}
	time.Sleep(more) // any moment will do
	ok(t, c.Process.Kill())
	for said.Scan() {
		ended = ended || said.Text() == "ended"
	}
	if err := c.Wait(); err == nil {
		ended = true
	}
	return ended
}

// holdsRows holds a file to the rows that it has to have: those of one of some records.
func holdsRows(t *testing.T, path string, of ...map[string]int64) {
	t.Helper()
	e := examine(t, path)
	if !e.Sound() {
		t.Fatalf("%s: %+v", path, e.Faults)
	}
	for _, rows := range of {
		if reflect.DeepEqual(e.Rows, rows) {
			return
		}
	}
	t.Fatalf("%s has %v, want one of %v", path, e.Rows, of)
}

// Backups and restorations are killed at many moments: the record is whole at any of them,
// the backup is whole or not there, and the next call does it.
func TestCopiesThatAreKilled(t *testing.T) {
	kills := 4
	if soak.Long() {
		kills = 150
	}
	rng := rand.New(rand.NewPCG(uint64(soak.Day(t)), 7))
	path, other := everything(t, 2), everything(t, 1)
	ours, theirs := examine(t, path).Rows, examine(t, other).Rows
	folder := t.TempDir()
	begun := time.Now()
	ok(t, Backup(t.Context(), path, filepath.Join(folder, "whole.db")))
	least := time.Since(begun)
	moment := func() time.Duration { return time.Duration(rng.Float64() * float64(least)) }
	ended := map[string]int{}
	for n := range kills {
		to := filepath.Join(folder, fmt.Sprintf("%d.db", n))
		if killAt(t, "backup", path, to, 1, 2*moment()) {
			ended["backup"]++
		}
		holdsRows(t, path, ours)
		if _, err := os.Lstat(to); err == nil {
			holdsRows(t, to, ours)
			ok(t, os.Remove(to))
		} else if !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		ok(t, Backup(t.Context(), path, to))
		holdsRows(t, to, ours)
	}
	for n := range kills {
		if killAt(t, "restore", path, other, 1+rng.IntN(20), moment()) {
			ended["restore"]++
		}
		holdsRows(t, path, ours, theirs)
		for _, old := range must(filepath.Glob(path + ".before-*"))(t) {
			holdsRows(t, old, ours)
			ok(t, os.Remove(old))
		}
		must(Restore(t.Context(), path, other, time.Unix(1e9+int64(n), 0), quiet))(t)
		holdsRows(t, path, theirs)
		must(Restore(t.Context(), path, filepath.Join(folder, "whole.db"), time.Unix(2e9+int64(n), 0), quiet))(t)
		holdsRows(t, path, ours)
		for _, old := range must(filepath.Glob(path + ".before-*"))(t) {
			ok(t, os.Remove(old))
		}
	}
	t.Logf("%d kills of each; at their end before: %v", kills, ended)
}
