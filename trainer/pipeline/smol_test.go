package pipeline

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright/trainer/rl"
)

// What downloads the model gets pip's settings, and no secret.
func TestTheDownloadGetsNoSecret(t *testing.T) {
	t.Setenv("OPENAI_API_KEY", "sk-secret")
	t.Setenv("PIP_INDEX_URL", "https://index.example/simple")
	python, into := filepath.Join(t.TempDir(), "python"), filepath.Join(t.TempDir(), "environment")
	if err := os.WriteFile(python, []byte("#!/bin/sh\nenv >"+into+"\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := fetchSmol(t.Context(), t.TempDir(), rl.Python{Interpreter: python}); err == nil {
		t.Error("pip failed, and that is not said")
	}
	said, err := os.ReadFile(into)
	if err != nil || strings.Contains(string(said), "sk-secret") || !strings.Contains(string(said), "PIP_INDEX_URL=https://index.example/simple") {
		t.Errorf("%v: %s", err, said)
	}
}
