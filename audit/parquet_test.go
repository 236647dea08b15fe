package audit

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"

	"github.com/kernelwright/kernelwright"
)

// archived is a row as the AI CUDA Engineer's archive has it, as far as it is of use.
type archived struct {
	Level      int32    `parquet:"Level_ID"`
	Task       int32    `parquet:"Task_ID"`
	Name       string   `parquet:"Kernel_Name"`
	Module     string   `parquet:"PyTorch_Code_Module"`
	Functional string   `parquet:"PyTorch_Code_Functional"`
	CUDA       *string  `parquet:"CUDA_Code,optional"`
	Speedup    *float64 `parquet:"CUDA_Speedup_Native,optional"`
	Others     []string `parquet:"Others,list"`
}

const (
	functional = "import torch\n\n\ndef module_fn(x: torch.Tensor) -> torch.Tensor:\n    return x + 1\n\n\nclass Model(torch.nn.Module):\n    def forward(self, x, fn=module_fn):\n        return fn(x)\n\n\ndef get_inputs():\n    return []\n\n\ndef get_init_inputs():\n    return []\n"
	bareCUDA   = "#include <torch/extension.h>\n\n__global__ void add(float* x) {}\n\ntorch::Tensor forward(torch::Tensor x) { return x; }\n\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {\n  m.def(\"forward\", &forward, \"add\");\n}\n"
)

// writeParquet writes a file of Parquet in groups of so many rows.
func writeParquet[T any](t *testing.T, path string, rows []T, group int) {
	t.Helper()
	var text bytes.Buffer
	w := parquet.NewGenericWriter[T](&text, parquet.PageBufferSize(1<<10))
	for i, row := range rows {
		if _, err := w.Write([]T{row}); err != nil {
			t.Fatal(err)
		}
		if i%group == group-1 {
			if err := w.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestParquet(t *testing.T) {
	two, zero := 2.0, 0.0
	cuda := bareCUDA
	python := aCandidate
	rows := []archived{
		{1, 3, "add_v1", aReference, functional, &cuda, &two, []string{"a", "b"}},
		{1, 3, "add_v2", aReference, functional, &python, nil, nil},
		{1, 4, "", aReference, "", nil, &zero, nil},
	}
	path := filepath.Join(t.TempDir(), "level_1.parquet")
	writeParquet(t, path, rows, 2)
	set, err := Find(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := set.Close(); err != nil {
			t.Error(err)
		}
	}()
	if len(set.Pairs) != 3 || set.Layouts[asParquet] != 3 {
		t.Fatalf("%+v", set)
	}
	for i, want := range []struct{ label, reference, candidate, problem string }{
		{":1 (add_v1)", functional, bareCUDA, ""},
		{":2 (add_v2)", aReference, aCandidate, ""},
		{":3 (level 1, task 4)", aReference, "", "no candidate was published for it"},
	} {
		p := set.Pairs[i]
		if p.Candidate.Label != path+want.label || (p.Claim != nil) != (i == 0) {
			t.Errorf("%+v", p)
		}
		if reference, err := p.Reference.ReadReference(); err != nil || reference != want.reference {
			t.Errorf("%s: %q, %v", want.label, reference, err)
		}
		candidate, err := p.Candidate.ReadCandidate()
		if candidate != want.candidate || (err == nil) != (want.problem == "") || err != nil && err.Error() != want.problem {
			t.Errorf("%s: %q, %v", want.label, candidate, err)
		}
	}
	got, err := audited(t, set, &Run{Devices: []Device{newDouble()}, Record: newMemory()})
	if err != nil || got["level_1.parquet:1 (add_v1)"] != kernelwright.Correct || got["level_1.parquet:3 (level 1, task 4)"] != kernelwright.NoCandidate {
		t.Errorf("%v, %v", got, err)
	}
}

// Texts are read in any order, over the ends of pages and groups.
func TestRowsOfParquet(t *testing.T) {
	type row struct {
		Reference string `parquet:"reference,dict"`
		Candidate string `parquet:"Candidate"`
	}
	var rows []row
	for i := range 500 {
		rows = append(rows, row{fmt.Sprintf("class Model: # %d\n", i%7), fmt.Sprintf("class ModelNew: # %d\n", i) + strings.Repeat("x", i)})
	}
	path := filepath.Join(t.TempDir(), "rows.parquet")
	writeParquet(t, path, rows, 123)
	set, err := Find(path, nil)
	if err != nil || len(set.Pairs) != len(rows) {
		t.Fatal(len(set.Pairs), err)
	}
	for _, step := range []int{1, 7, 499, 250} {
		for i := range rows {
			at := i * step % len(rows)
			r, err1 := set.Pairs[at].Reference.ReadReference()
			c, err2 := set.Pairs[at].Candidate.ReadCandidate()
			if err1 != nil || err2 != nil || r != rows[at].Reference || c != rows[at].Candidate {
				t.Fatalf("row %d: %q, %q, %v, %v", at, r, c, err1, err2)
			}
		}
	}
	if err := set.Close(); err != nil {
		t.Error(err)
	}
}

// A damaged file costs what cannot be read of it, and says so.
func TestDamagedParquet(t *testing.T) {
	type row struct {
		Reference string `parquet:"reference"`
		Candidate string `parquet:"candidate"`
	}
	var rows []row
	for i := range 50 {
		rows = append(rows, row{"class Model: pass\n", fmt.Sprintf("class ModelNew: # %d\n", i)})
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "set.parquet")
	writeParquet(t, path, rows, 10)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "other.py"), []byte(aCandidate), 0o644); err != nil {
		t.Fatal(err)
	}
	for at := 4; at < len(whole); at += 397 {
		damaged := bytes.Clone(whole)
		for i := at; i < min(at+40, len(damaged)); i++ {
			damaged[i] ^= 0xff
		}
		if err := os.WriteFile(path, damaged, 0o644); err != nil {
			t.Fatal(err)
		}
		set, err := Find(dir, nil)
		if err != nil || len(set.Pairs) < 1 {
			t.Fatalf("byte %d: %d pairs, %v", at, len(set.Pairs), err)
		}
		for _, p := range set.Pairs {
			_, _ = p.Candidate.ReadCandidate() // it gives an error or a text, and no panic
		}
		if err := set.Close(); err != nil {
			t.Error(err)
		}
	}
}
