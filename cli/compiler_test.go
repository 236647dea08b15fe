package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
)

func TestCompilerErrorsHaveFileLineAndCode(t *testing.T) {
	t.Chdir(t.TempDir())
	folder, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"model_new.py": "x = 1\n", "kernels/a.cu": "int a;\n  int b\nint twice;\n", "binding.cpp": "int twice;\n", "notes.txt": "int b\n",
	} {
		path := filepath.Join("folder", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile("one.py", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	joined := candidateText{filepath.Join(folder, "folder"), "import torch\n  int b\nint twice;\nmade by joining"}
	single := candidateText{filepath.Join(folder, "one.py"), "int a\nint b;"}
	d := func(line int, message string) []kernelwright.Diagnostic {
		return []kernelwright.Diagnostic{{Line: line, Message: message}}
	}
	for _, tt := range []struct {
		name   string
		of     candidateText
		errors []kernelwright.Diagnostic
		want   string
	}{
		{"a file", single, d(2, "expected ;"), "one.py:2: expected ;\n       1 | int a\n  >    2 | int b;\n"},
		{"two in one line", single, append(d(1, "first"), d(1, "second")...), "one.py:1: first\n  >    1 | int a\none.py:1: second\n"},
		{"no line", single, d(0, "no compiler"), "no compiler\n"},
		{"a line that is not there", single, d(99, "odd"), "one.py:99: odd\n"},
		{"a work folder", joined, d(2, "expected ;"), "folder/kernels/a.cu:2: expected ;\n       1 | import torch\n  >    2 |   int b\n"},
		{"a line of two of its files", joined, d(3, "odd"), "line 3: odd\n       2 |   int b\n  >    3 | int twice;\n"},
		{"a line of none of them", joined, d(4, "odd"), "line 4: odd\n       3 | int twice;\n  >    4 | made by joining\n"},
		{"nothing was read", candidateText{}, d(4, "odd"), "line 4: odd\n"},
		{"foreign signs", single, d(1, "red\x1b[31m"), "one.py:1: red⟨U+001B⟩[31m\n  >    1 | int a\n"},
	} {
		var b strings.Builder
		writeErrors(&b, "", tt.errors, tt.of)
		if b.String() != tt.want {
			t.Errorf("%s:\n%s\nwant:\n%s", tt.name, b.String(), tt.want)
		}
	}
	var b strings.Builder
	for range maxCompilerErrors + 3 {
		single.source += "\n"
	}
	many := make([]kernelwright.Diagnostic, maxCompilerErrors+3)
	writeErrors(&b, "", many, single)
	if !strings.HasSuffix(b.String(), "and 3 more errors\n") {
		t.Errorf("got %q", b.String())
	}
}
