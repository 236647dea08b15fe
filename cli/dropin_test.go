package cli

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/store"
)

// seedOperator records a run whose certified kernel is a file of the script, for a
// reference that is another: seedoperator DATA REFERENCE KERNEL.
func seedOperator(ts *testscript.TestScript, _ bool, args []string) {
	ctx := context.Background()
	s, err := store.Open(filepath.Join(ts.MkAbs(args[0]), store.FileName))
	ts.Check(err)
	defer func() { ts.Check(s.Close()) }()
	x := []kernelwright.TensorSpec{{Name: "x", Shape: []int{8, 16}, DType: "float32"}}
	task := kernelwright.Task{Fingerprint: "f", Name: "row_sum", Source: ts.ReadFile(args[1]), Inputs: x, Outputs: x}
	ts.Check(s.SaveTask(ctx, task))
	ts.Check(s.SaveDevice(ctx, kernelwright.Device{Kind: kernelwright.CPUDevice, Key: "key", Name: "a CPU"}))
	run, err := s.CreateRun(ctx, kernelwright.Run{Task: "f", TaskName: "row_sum", Device: "cpu", DeviceKey: "key", Strategy: "rounds", Coder: "other", Judge: "rules", Status: kernelwright.RunDone})
	ts.Check(err)
	ts.Check(s.AppendRound(ctx, kernelwright.Round{RunID: run.ID, Candidate: kernelwright.Candidate{Source: "x"}, Verdict: kernelwright.Verdict{Status: kernelwright.Correct, CandidateMS: 2}}))
	v := kernelwright.Verdict{Status: kernelwright.Certified, CandidateMS: 2, Exported: ts.ReadFile(args[2])}
	v.ExportedSHA256 = kernelwright.HashText(v.Exported)
	ts.Check(s.SetCertificate(ctx, run.ID, 0, v))
}

// A package installs without a network, and what is installed belongs to its certificate.
func TestAPackageInstalls(t *testing.T) {
	python := os.Getenv("KERNELWRIGHT_TEST_PYTHON")
	if python == "" {
		t.Skip("KERNELWRIGHT_TEST_PYTHON names no Python that has setuptools")
	}
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "package"),
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("KERNELWRIGHT_DATA_DIR", filepath.Join(e.WorkDir, "data"))
			e.Setenv("PYTHON", python)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"seedoperator": seedOperator},
		Condition: func(name string) (bool, error) {
			return exec.CommandContext(t.Context(), python, "-c", "import "+name).Run() == nil, nil
		},
	})
}
