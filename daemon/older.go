package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
)

// older is what became of a NAME.best.py that an earlier run had written, when one
// found nothing faster.
type older struct {
	keeps bool   // the certificate beside it is its own and stays, too
	says  string // empty where there was none
}

// olderKernel decides over base.best.py by the certificate beside it. A kernel of the
// same reference text that was not slower stays, with its certificate. One that
// was slower, or is of another text, is removed, as a new kernel would take its
// place: the record has it. What is not the file of that certificate is somebody's
// own and stays; the certificate beside it then becomes the new run's.
func olderKernel(base, reference string) (older, error) {
	path := base + ".best.py"
	name := filepath.Base(path)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return older{}, nil
	}
	if err != nil {
		return older{}, writeError(path, err)
	}
	certificate, err := os.ReadFile(base + ".certificate.json")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return older{}, writeError(base+".certificate.json", err)
	}
	var c report.Certificate
	readable := json.Unmarshal(certificate, &c) == nil // of none there is no text
	switch {
	case !readable || c.SHA256 != kernelwright.HashText(string(text)):
		return older{says: name + " was there before and is no certified file: it stays as it is"}, nil
	case c.Task.SHA256 != kernelwright.HashText(reference):
		return remove(path, fmt.Sprintf("%s of run %d was of another text of the reference and was removed; `%s` writes it", name, c.Run, report.Export(c.Run, c.Round)))
	case !report.HandedOut(c.Verdict):
		return remove(path, fmt.Sprintf("%s of run %d was slower than %s, too, and was removed; `%s` writes it", name, c.Run, report.Against(c.Verdict.Speedup), report.Export(c.Run, c.Round)))
	default:
		return older{keeps: true, says: fmt.Sprintf("%s of run %d stays, with its certificate: %s", name, c.Run, report.Measured(c.Verdict))}, nil
	}
}

func remove(path, says string) (older, error) {
	if err := os.Remove(path); err != nil {
		return older{}, writeError(path, err)
	}
	return older{says: says}, nil
}
