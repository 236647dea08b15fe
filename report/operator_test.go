package report

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/internal/soak"
)

// PyTorch has an operator with weights in one graph, with gradients and without: the file
// holds itself against its reference. Each of the two has one day of six.
func TestAnOperatorIsOnePyTorchTakes(t *testing.T) {
	python := os.Getenv("KERNELWRIGHT_TEST_PYTHON")
	if python == "" {
		t.Skip("no Python with PyTorch: KERNELWRIGHT_TEST_PYTHON names one")
	}
	const reference = `import torch

class Model(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.linear = torch.nn.Linear(n, n)

    def forward(self, x, y):
        return torch.tanh(self.linear(x)), x + y

def get_inputs():
    return [torch.randn(8, 16), torch.randn(8, 16)]

def get_init_inputs():
    return [16]
`
	// It returns the same memory at each call, which the operator copies.
	const kernel = `import torch

class ModelNew(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.linear = torch.nn.Linear(n, n)
        self.out = None

    def forward(self, x, y):
        if self.out is None:
            self.out = torch.empty_like(x)
        torch.addmm(self.linear.bias, x, self.linear.weight.t(), out=self.out)
        return self.out.tanh_(), torch.add(x, y)
`
	spec := []kernelwright.TensorSpec{{Name: "x", DType: "float32"}, {Name: "y", DType: "float32"}}
	for i, autograd := range []bool{false, true} {
		if !soak.Turn(t, i, 6) {
			continue
		}
		d, r := dropInData(kernel)
		d.Task.Source, d.Task.Inputs, d.Task.Outputs = reference, spec, spec
		text, err := CustomOp(d, r, DropIn{Module: "op", Self: "op.py", Autograd: autograd})
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		path, twin := filepath.Join(dir, "op.py"), filepath.Join(dir, "twin.py")
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.WriteFile(twin, []byte(text), 0o600), os.WriteFile(filepath.Join(dir, "together.py"), []byte(together), 0o600)); err != nil {
			t.Fatal(err)
		}
		run := exec.CommandContext(t.Context(), python, path) //nolint:gosec // the test's own
		run.Env = append(os.Environ(), "TORCHINDUCTOR_CACHE_DIR="+filepath.Join(dir, "cache"))
		out, err := run.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "right alone and compiled in one graph, and opcheck passes") {
			t.Errorf("with gradients %v: %v\n%s", autograd, err, out)
		}
		if out, err := exec.CommandContext(t.Context(), python, filepath.Join(dir, "together.py")).CombinedOutput(); err != nil { //nolint:gosec // the test's own
			t.Errorf("with gradients %v: %v\n%s", autograd, err, out)
		}
	}
}

// together is a program in which two modules have one kernel, and one is loaded again.
const together = `import importlib

import op
import torch
import twin

assert twin.NAME == op.NAME + "_"
first = op.Kernel().eval()
for module in (twin, op):
    assert importlib.reload(module) is module
assert twin.NAME == op.NAME + "_"
x = torch.randn(8, 16)
with torch.no_grad():
    for model in (first, op.Kernel(), twin.Kernel()):
        model.load_state_dict(first.state_dict())
        for got, want in zip(model.eval()(x, x), first(x, x), strict=True):
            torch.testing.assert_close(got, want)
for wrong in ((16,), (1, 2)):
    try:
        op.Kernel(*wrong)
    except TypeError as e:
        assert "takes no arguments" in str(e)
    else:
        raise AssertionError(wrong)
`
