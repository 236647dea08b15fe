package cli

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
)

// What eval writes is certified by what it writes beside it, over what it wrote before.
func TestEvalExport(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "mine.py")
	beside := filepath.Join(filepath.Dir(out), "relu.certificate.json")
	const doc = "\"\"\"Relu.\n\nCertificate: relu.certificate.json\n\"\"\"\n"
	for _, text := range []string{doc + "class ModelNew: ...\n", doc + "class ModelNew: pass\n"} {
		v := exportedBy(text)
		if err := (evalCmd{Export: out}).export(v); err != nil {
			t.Fatal(err)
		}
		written, err := os.ReadFile(out)
		if err != nil || string(written) != text {
			t.Fatalf("%q, %v", written, err)
		}
		certificate, err := os.ReadFile(beside)
		if err != nil {
			t.Fatal(err)
		}
		held, err := report.ReadCertificate(certificate)
		if err != nil {
			t.Fatal(err)
		}
		if problems := held.Belongs(text); len(problems) > 0 || held.File != "mine.py" || held.On != "cpu, a processor" || held.Issued == "" {
			t.Errorf("%v %+v", problems, held.Certificate)
		}
	}
}

// The certificate of another file stays, and nothing is written.
func TestEvalExportLeavesAnothersCertificate(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	of := func(name string) string { return filepath.Join(folder, name) }
	const text = "Certificate: relu.certificate.json\n"
	if err := (evalCmd{Export: of("relu.best.py")}).export(exportedBy(text)); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(of("relu.certificate.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := (evalCmd{Export: of("same.py")}).export(exportedBy(text)); err != nil {
		t.Error("it certifies these bytes, too:", err)
	}
	if err := (evalCmd{Export: of("mine.py")}).export(exportedBy(text + "other\n")); err == nil || !strings.Contains(err.Error(), "no certificate of this kernel") {
		t.Error(err)
	}
	if _, err := os.Stat(of("mine.py")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if after, err := os.ReadFile(of("relu.certificate.json")); err != nil || string(after) != string(before) {
		t.Error(err)
	}
}

func exportedBy(text string) outcome {
	return outcome{Verdict: kernelwright.Verdict{
		Status: kernelwright.Certified, CandidateMS: 2, Baselines: map[string]float64{"eager": 4}, Exported: text, ExportedSHA256: kernelwright.HashText(text),
	}, task: kernelwright.Task{Name: "relu", Fingerprint: "f"}, device: kernelwright.Device{Kind: kernelwright.CPUDevice, Name: "a processor"}}
}
