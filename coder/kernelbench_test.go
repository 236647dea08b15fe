package coder

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestLevel2OfKernelBench counts what of KernelBench's level 2 is covered on a GPU,
// and holds the committed list of twenty against it.
func TestLevel2OfKernelBench(t *testing.T) {
	text, err := os.ReadFile("../bench/kernelbench_level2.txt")
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for line := range strings.Lines(string(text)) {
		name, _, _ := strings.Cut(line, "#")
		if name = strings.TrimSpace(name); name != "" && !slices.Contains(listed, name) {
			listed = append(listed, name)
		}
	}
	if len(listed) != 20 {
		t.Errorf("the list names %d references", len(listed))
	}
	folder := os.Getenv("KERNELWRIGHT_TEST_KERNELBENCH")
	if folder == "" || testPython == "" {
		t.Skip("KERNELWRIGHT_TEST_KERNELBENCH names no folder with KernelBench's level2 in it, or KERNELWRIGHT_TEST_PYTHON no Python with torch: what is covered is not counted")
	}
	files, err := filepath.Glob(filepath.Join(folder, "level2", "*.py"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no reference is below %s, %v", folder, err)
	}
	captured, err := runScript("testdata/capture_files.py", files...)
	if err != nil {
		t.Fatal(err)
	}
	covered := map[string]bool{}
	for _, f := range readFixtures(t, captured) {
		in := onGPU(f)
		if string(f.Graph) == "null" {
			in.Task.Graph = nil
		}
		if _, err := (Builtin{}).Propose(context.Background(), in); err != nil {
			t.Logf("%s: %v", f.Name, err)
			continue
		}
		covered["level2/"+f.Name+".py"] = true
	}
	t.Logf("%d of %d are covered", len(covered), len(files))
	for _, name := range listed {
		if !covered[name] {
			t.Errorf("%s is on the list and not covered", name)
		}
	}
}
