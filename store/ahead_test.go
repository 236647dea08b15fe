package store

import (
	"os"
	"path/filepath"
	"testing"
)

func TestAFileIsReadAhead(t *testing.T) {
	if runtimeHasProc() && availableMemory() < 1<<20 {
		t.Errorf("%d bytes of memory are available", availableMemory())
	}
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, make([]byte, 20<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	readAhead(t.Context(), path) // ends at the end of the file
	readAhead(t.Context(), filepath.Join(t.TempDir(), "none"))
	readAhead(t.Context(), t.TempDir()) // a folder cannot be read
}

func runtimeHasProc() bool {
	_, err := os.Stat("/proc/meminfo")
	return err == nil
}
