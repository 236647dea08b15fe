package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright/report"
)

func TestAnEditedFileSaysWhatBecomesOfItsResults(t *testing.T) {
	path := filepath.Join(t.TempDir(), "softmax.py")
	with := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	kernel := report.Summary{Kernel: "softmax.best.py"}
	with("old\n")
	if got := edited(path, "old\n", kernel); got != "" {
		t.Errorf("nothing was edited: %q", got)
	}
	with("new\n")
	if got := edited(path, "old\n", kernel); got != "the file was edited meanwhile: these results are of what it was when the run began, the kernel that is handed out too; the same command begins a run of what it is now" {
		t.Errorf("got %q", got)
	}
	if got := edited(path, "", kernel); got != "" {
		t.Errorf("what was not read was not edited: %q", got)
	}
	with("\x00") // no task any more
	if got := edited(path, "old\n", report.Summary{}); !strings.HasPrefix(got, "the file was edited meanwhile: ") || strings.Contains(got, "kernel") {
		t.Errorf("got %q", got)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if got := edited(path, "old\n", report.Summary{}); got != "the file went away meanwhile: these results are of what it was when the run began" {
		t.Errorf("got %q", got)
	}
}
