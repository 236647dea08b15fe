package task

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
)

func fill(t *testing.T, folder string, files map[string]string) string {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

const modelNew = "import torch\nimport cuda_extension\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return cuda_extension.f(x)\n"

func TestAWorkFolderIsOneCandidate(t *testing.T) {
	folder := fill(t, filepath.Join(t.TempDir(), "tried[1]"), map[string]string{
		"model_new.py":          modelNew,
		"registry.h":            "#pragma once\n#include <string>\nint registry;",
		"binding.cpp":           "#include \"registry.h\"\nPYBIND11_MODULE(cuda_extension, m) {}",
		"kernels/a.cu":          "#include \"../registry.h\"\n#include \"elsewhere.h\"\nextern \"C\" void a();",
		"kernels/a_binding.cpp": "#include \"../registry.h\"\nvoid bind_a() { auto s = \"\"\"x\"; }",
		"kernels/notes.txt":     "not a source",
	})
	f, err := ReadCandidate(folder)
	if err != nil {
		t.Fatal(err)
	}
	if f.Name != "tried[1]" || f.Path != folder {
		t.Errorf("it is called %q, of %q", f.Name, f.Path)
	}
	const want = `import torch


def _work_folder():
    # The sources of a work folder, as they lay in it.
    from torch.utils.cpp_extension import load_inline

    return load_inline(
        name="cuda_extension",
        cpp_sources=[
            r'''
#include <string>
int registry;
void bind_a() { auto s = """x"; }
''',
            r"""// registry.h: above
PYBIND11_MODULE(cuda_extension, m) {}
""",
        ],
        cuda_sources=[
            r"""
#include <string>
int registry;
#include "elsewhere.h"
extern "C" void a();
""",
        ],
        extra_cflags=["-O3"],
        extra_cuda_cflags=["-O3", "--use_fast_math"],
        no_implicit_headers=True,
    )


cuda_extension = _work_folder()


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return cuda_extension.f(x)
`
	if f.Source != want {
		t.Errorf("got\n%s", f.Source)
	}
}

func TestWaysToImportTheExtension(t *testing.T) {
	for line, want := range map[string]string{
		"import cuda_extension":                    "cuda_extension = _work_folder()",
		"    import cuda_extension  # built":       "    cuda_extension = _work_folder()",
		"import cuda_extension as ext":             "ext = _work_folder()",
		"from cuda_extension import f":             "cuda_extension = _work_folder(); f = cuda_extension.f",
		"from cuda_extension import f as g, other": "cuda_extension = _work_folder(); g = cuda_extension.f; other = cuda_extension.other",
	} {
		if got := importsExtension.ReplaceAllStringFunc(line, inPlace); got != want {
			t.Errorf("%q becomes %q", line, got)
		}
	}
}

// What only looks like the import is left as it is: a program can read its strings.
func TestStringsOfAWorkFolderAreItsOwn(t *testing.T) {
	const line = "import cuda_extension\n"
	for name, c := range map[string]struct {
		model string
		kept  int // lines that stay
	}{
		"a docstring":        {"\"\"\"\n" + line + "\"\"\"\n" + line, 1},
		"single quotes":      {"x = '''\n" + line + line + "'''\n" + line, 2},
		"an escaped quote":   {"x = \"\"\"\\\"\"\"\n" + line + "\"\"\"\n" + line, 1},
		"a quote in a note":  {"# it isn't\n" + line, 0},
		"a note in a string": {"x = \"#\"\n" + line, 0},
		"a line without end": {"x = \"\n" + line, 0},
		"windows":            {"\"\"\"\r\nimport cuda_extension\r\n\"\"\"\r\nimport cuda_extension\r\n", 1},
	} {
		f, err := JoinFiles(map[string]string{"model_new.py": c.model, "a.cu": "int a;"})
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(f.Source, "import cuda_extension"); n != c.kept || strings.Count(f.Source, "cuda_extension = _work_folder()") != 1 {
			t.Errorf("%s: %d lines are left in\n%s", name, n, f.Source)
		}
	}
}

func TestWhatIsNoWorkFolder(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		says  string
	}{
		"empty":    {map[string]string{"x.txt": ""}, "without a model_new.py"},
		"binary":   {map[string]string{"model_new.py": modelNew, "a.cu": "\x7fELF\x00"}, "no Python source"},
		"large":    {map[string]string{"model_new.py": modelNew, "a.cu": strings.Repeat("// x\n", MaxBytes/5+1)}, "larger than"},
		"together": {map[string]string{"model_new.py": modelNew, "a.cu": strings.Repeat("// x\n", MaxBytes/6), "b.cu": strings.Repeat("// x\n", MaxBytes/6), "c.cu": strings.Repeat("// x\n", MaxBytes/6)}, "larger than"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ReadCandidate(fill(t, t.TempDir(), c.files))
			var invalid *kernelwright.InvalidTaskError
			if !errors.As(err, &invalid) || !strings.Contains(invalid.Reason, c.says) {
				t.Errorf("got %v", err)
			}
		})
	}
	// A header outside of the folder is the compiler's affair, and none of ours.
	outside := t.TempDir()
	fill(t, outside, map[string]string{"secret.h": "int secret;", "folder/model_new.py": modelNew, "folder/a.cu": "#include \"../secret.h\"\nint a;"})
	f, err := ReadCandidate(filepath.Join(outside, "folder"))
	if err != nil || strings.Contains(f.Source, "int secret") || !strings.Contains(f.Source, `#include "../secret.h"`) {
		t.Errorf("%v\n%s", err, f.Source)
	}
	if err := os.Symlink(filepath.Join(outside, "secret.h"), filepath.Join(outside, "folder", "link.h")); err != nil {
		t.Fatal(err)
	}
	fill(t, filepath.Join(outside, "folder"), map[string]string{"a.cu": "#include \"link.h\"\n"})
	if f, err := ReadCandidate(filepath.Join(outside, "folder")); err != nil || strings.Contains(f.Source, "int secret") {
		t.Errorf("%v\n%s", err, f.Source)
	}
	// Headers that include each other end, too.
	ring := fill(t, t.TempDir(), map[string]string{"model_new.py": modelNew, "a.h": "#include \"b.h\"\n", "b.h": "#include \"a.h\"\n", "a.cu": "#include \"a.h\"\n"})
	if _, err := ReadCandidate(ring); err != nil {
		t.Error(err)
	}
}

func TestAFileIsACandidate(t *testing.T) {
	path := filepath.Join(fill(t, t.TempDir(), map[string]string{"a.py": modelNew}), "a.py")
	if f, err := ReadCandidate(path); err != nil || f.Source != modelNew {
		t.Errorf("%v, %q", err, f.Source)
	}
}

// Files in memory make the candidate that the same files on a disk make, and
// reach nothing that is not among them.
func TestJoinedFilesAreTheFolder(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"native alone": {"model_new.py": "class ModelNew: pass\n", "notes.md": "x"},
		"headers": {
			"model_new.py": modelNew, "a.h": "#pragma once\nint a;", "binding.cpp": "#include \"a.h\"\n#include \"kernels/b.h\"\nint main_;",
			"kernels/b.h": "#include \"../a.h\"\nint b;", "kernels/k.cu": "#include \"b.h\"\n#include \"../../outside.h\"\n#include \"/etc/hostname\"\nint k;",
			"deeper/down/x.cu": "int never;", "kernels/.hidden.cu": "int hidden;",
		},
		"nothing built": {"model_new.py": modelNew},
		"a loop":        {"model_new.py": modelNew, "a.cpp": "#include \"b.h\"", "b.h": "#include \"b.h\"\nint b;"},
	} {
		onDisk, err1 := ReadCandidate(fill(t, t.TempDir(), files))
		inMemory, err2 := JoinFiles(files)
		if err1 != nil || err2 != nil || onDisk.Source != inMemory.Source {
			t.Errorf("%s: %v, %v\n%s\n%s", name, err1, err2, onDisk.Source, inMemory.Source)
		}
	}
	for name, files := range map[string]map[string]string{
		"no model_new.py": {"model.py": "x"},
		"binary":          {"model_new.py": "a\x00b"},
		"binary source":   {"model_new.py": modelNew, "a.cu": "a\x00b"},
		"too large":       {"model_new.py": modelNew, "a.cu": strings.Repeat("x", MaxBytes), "b.cu": "y"},
	} {
		var bad *kernelwright.InvalidTaskError
		if _, err := JoinFiles(files); !errors.As(err, &bad) || bad.Hint == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The kernels of the example in CUDA and what binds them are each one source.
func TestTheExamplesOfWorkFolders(t *testing.T) {
	for name, parts := range map[string][]string{
		"softmax_work_folder":      {"cpp_sources=[", "void softmax_rows(const float* x", "PYBIND11_MODULE(cuda_extension", "cuda_sources=[],"},
		"softmax_work_folder_cuda": {"cpp_sources=[", "PYBIND11_MODULE(cuda_extension", "cuda_sources=[", "softmax_kernel<<<", "\"--use_fast_math\""},
	} {
		f, err := ReadCandidate(filepath.Join("..", "examples", "candidates", name))
		if err != nil {
			t.Fatal(err)
		}
		rest := f.Source
		for _, part := range parts {
			_, after, found := strings.Cut(rest, part)
			if !found {
				t.Errorf("%s: no %q in its place in\n%s", name, part, f.Source)
			}
			rest = after
		}
		if strings.Contains(f.Source, "#include \"") || strings.Contains(f.Source, "import cuda_extension") {
			t.Errorf("%s: it is not one file:\n%s", name, f.Source)
		}
	}
}

func TestAWorkFolderMayBuildByItself(t *testing.T) {
	const model = `"""Notes."""
from __future__ import annotations
import os
import torch
from torch.utils.cpp_extension import load
here = os.path.dirname(__file__)
ops = load(name="ops", sources=["kernels/k.cpp", os.path.join(here, "binding.cpp")])
`
	files := map[string]string{"model_new.py": model, "kernels/k.cpp": "#include \"../common.h\"\n", "binding.cpp": "int b;\n", "common.h": "#pragma once\n", "notes.txt": "no source"}
	f, err := ReadCandidate(fill(t, t.TempDir(), files))
	if err != nil {
		t.Fatal(err)
	}
	head, tail, found := strings.Cut(f.Source, "__file__ = _work_folder()\n")
	if !found || !strings.HasPrefix(head, "\"\"\"Notes.\"\"\"\nfrom __future__ import annotations\ndef _work_folder():") || !strings.HasPrefix(tail, "import os\nimport torch\n") {
		t.Errorf("its files are not written first:\n%s", f.Source)
	}
	for _, want := range []string{`"kernels/k.cpp": r"""`, `"binding.cpp": r"""`, `"common.h": r"""`, "os.chdir(folder)"} {
		if !strings.Contains(head, want) {
			t.Errorf("there is no %s in it:\n%s", want, head)
		}
	}
	if strings.Contains(f.Source, "no source") {
		t.Error("it has a file that is no source")
	}
	joined, err := JoinFiles(files)
	if err != nil || joined.Source != f.Source {
		t.Errorf("in memory it is another: %v", err)
	}
	files["model_new.py"] = "import torch\n"
	if joined, err = JoinFiles(files); err != nil || joined.Source != "import torch\n" {
		t.Errorf("one that builds nothing was changed: %v", err)
	}
}
