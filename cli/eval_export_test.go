package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
)

// What eval writes is certified by what it writes beside it, over older ones.
func TestEvalExport(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "mine.py")
	beside := filepath.Join(filepath.Dir(out), "relu.certificate.json")
	for _, text := range []string{"class ModelNew: ...\n", "class ModelNew: pass\n"} {
		v := outcome{Verdict: kernelwright.Verdict{
			Status: kernelwright.Certified, CandidateMS: 2, Baselines: map[string]float64{"eager": 4}, Exported: text, ExportedSHA256: kernelwright.HashText(text),
		}, task: kernelwright.Task{Name: "relu", Fingerprint: "f"}, device: kernelwright.Device{Kind: kernelwright.CPUDevice, Name: "a processor"}}
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
