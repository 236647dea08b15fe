package report

import (
	"errors"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
)

// dropInData is a certified round whose kernel has this text.
func dropInData(kernel string) (Data, kernelwright.Round) {
	d := Data{Run: kernelwright.Run{ID: 7, Device: "cpu", TaskName: "3 Row-sum"}, Task: kernelwright.Task{
		Name: "3 Row-sum", Source: "import torch\n\nclass Model(torch.nn.Module):\n    pass\n",
		Inputs: []kernelwright.TensorSpec{{Name: "x", DType: "float32"}, {Name: "class", DType: "float32"}}, Outputs: []kernelwright.TensorSpec{{DType: "float32"}},
	}}
	v := kernelwright.Verdict{Status: kernelwright.Certified, CandidateMS: 2, Exported: kernel}
	return d, kernelwright.Round{RunID: 7, Index: 2, Certificate: &v}
}

// Whatever a kernel's text is, it is found again in the operator's file, byte for byte,
// and a changed byte of it or around it is told.
func TestAnOperatorHoldsItsKernel(t *testing.T) {
	for _, kernel := range []string{"class ModelNew: pass\n", "x = r\"\"\"a\n\"\"\"\n", "x = '''a'''; y = \"\"\"b\"\"\"\n", "no line end", "a\r\nb\n", "\\\n", "x = '<&>é'\n"} {
		d, r := dropInData(kernel)
		text, err := CustomOp(d, r, DropIn{Module: "op", Self: "op.py"})
		if err != nil {
			t.Fatal(err)
		}
		found, ok := kernelIn(text)
		if !ok || found != kernel {
			t.Errorf("%q: %q", kernel, found)
		}
		as := ExportedAs{Form: "custom-op", Files: map[string]string{"op.py": kernelwright.HashText(text)}}
		certificate, err := CertificateFor(d, r, as)
		if err != nil {
			t.Fatal(err)
		}
		held, err := ReadCertificate(certificate)
		if err != nil {
			t.Fatal(err)
		}
		if problems := append(held.Belongs(text), held.Belongs(kernel)...); len(problems) > 0 {
			t.Errorf("%q: %v", kernel, problems)
		}
		at := strings.Index(text, "KERNEL = ") + len("KERNEL = ") + 5
		if problems := held.Belongs(text[:at] + "#" + text[at:]); len(problems) != 2 || !strings.Contains(problems[0], "kernel") {
			t.Errorf("a byte more in %q: %v", kernel, problems)
		}
		if problems := held.Belongs(text + "#"); len(problems) != 1 || !strings.Contains(problems[0], "it was edited") {
			t.Errorf("a byte more behind: %v", problems)
		}
	}
}

func TestOperatorsThatCannotBe(t *testing.T) {
	d, r := dropInData("class ModelNew: pass\n")
	text, err := CustomOp(d, r, DropIn{Module: "op", Self: "op.py"})
	if err != nil || !strings.Contains(text, "def forward(self, x, input1):") || !strings.Contains(text, `NAME = "kernelwright::kernel_3_row_sum_`) || strings.Contains(text, "register_autograd") {
		t.Errorf("%v\n%s", err, text)
	}
	var cannot *ErrNoDropIn
	ints := d
	ints.Task.Outputs = []kernelwright.TensorSpec{{DType: "int64"}}
	if _, err := CustomOp(ints, r, DropIn{Autograd: true}); !errors.As(err, &cannot) || !strings.Contains(cannot.Why, "not differentiable") {
		t.Error(err)
	}
	none := d
	none.Task.Inputs = nil
	if _, err := CustomOp(none, r, DropIn{}); !errors.As(err, &cannot) {
		t.Error(err)
	}
	for name, want := range map[string]string{"a b": "a_b", "3x": "kernel_3x", "class": "class_0", "": "kernel_0", "Kernel": "kernel_0", "é": "kernel_0"} {
		if got := Identifier(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
	for _, text := range []string{"", "{}", "[]", `{"format": 9, "sha256": "` + strings.Repeat("a", 64) + `"}`, `{"format": 2, "sha256": "x"}`} {
		if _, err := ReadCertificate([]byte(text)); err == nil {
			t.Errorf("%s is a certificate", text)
		}
	}
}

func TestAFileNamesItsCertificate(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{
		"\"\"\"Softmax.\n\nCertificate: softmax.certificate.json\n\"\"\"\n": "softmax.certificate.json",
		"Certificate: a.certificate.json\r\n":                               "a.certificate.json",
		"class ModelNew: ...\n":                                             "",
		"# Certificate: softmax.certificate.json\n":                         "",
		"Certificate: ../softmax.certificate.json\n":                        "",
		"Certificate: softmax.json\n":                                       "",
		"Certificate: " + strings.Repeat("a", 240) + ".certificate.json\n":  "",
	} {
		if got := CertificateIn(file); got != want {
			t.Errorf("%q names %q, not %q", file, got, want)
		}
	}
}
