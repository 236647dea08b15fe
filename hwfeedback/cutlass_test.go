package hwfeedback

import (
	"os"
	"path/filepath"
	"testing"
)

func TestAVerdictWithAnotherCUTLASSIsAnother(t *testing.T) {
	const source = "#include <cute/tensor.hpp>"
	root := t.TempDir()
	header := filepath.Join(root, "include", "cute", "tensor.hpp")
	version := filepath.Join(root, "include", "cutlass", "version.h")
	write := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(root, link); err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for _, step := range []struct {
		name, path string
		change     func()
	}{
		{"no checkout is named", "", func() {}},
		{"it holds nothing", root, func() {}},
		{"a release", root, func() { write(header, "a"); write(version, "#define CUTLASS_MAJOR 4") }},
		{"the next", root, func() { write(version, "#define CUTLASS_MAJOR 14") }},
		{"a header that was changed", root, func() { write(header, "ab") }},
	} {
		step.change()
		t.Setenv("CUTLASS_PATH", step.path)
		got := cutlassOf(source)
		if before, known := seen[got]; known || got == "" {
			t.Errorf("%s: got %q, as where %s", step.name, got, before)
		}
		seen[got] = step.name
		if again := cutlassOf(source); again != got {
			t.Errorf("%s: got %q, then %q", step.name, got, again)
		}
		if other := cutlassOf("#include <cuda_fp16.h>"); other != "" {
			t.Errorf("%s: a source without its headers has %q", step.name, other)
		}
	}
	direct := cutlassOf(source)
	t.Setenv("CUTLASS_PATH", link)
	if got := cutlassOf(source); got != direct {
		t.Errorf("by a link: got %q, want %q", got, direct)
	}
}
