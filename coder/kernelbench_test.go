package coder

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright/coder/internal/graphtest"
	"github.com/kernelwright/kernelwright/coder/internal/plan"
)

// TestLevelsOfKernelBench counts what of KernelBench's levels is covered on a GPU,
// and holds the committed lists against them. Of level 2 matrix products and
// convolutions are left to torch, of level 1's list nothing is.
func TestLevelsOfKernelBench(t *testing.T) {
	for _, c := range []struct {
		level string
		names int
		whole bool
	}{{"level1", 49, true}, {"level2", 20, false}} {
		t.Run(c.level, func(t *testing.T) {
			text, err := os.ReadFile("../bench/kernelbench_" + c.level + ".txt")
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
			if len(listed) != c.names {
				t.Errorf("the list names %d references", len(listed))
			}
			covered, all := coveredOf(t, c.level)
			on := 0
			for _, name := range listed {
				if left, found := covered[name]; !found {
					t.Errorf("%s is on the list and not covered", name)
				} else if on++; c.whole && len(left) > 0 {
					t.Errorf("%s: %s are left to torch", name, strings.Join(left, ", "))
				}
			}
			t.Logf("%d of %d are covered, %d of the list's %d", len(covered), all, on, len(listed))
		})
	}
}

// coveredOf returns the references of a level for which the Coder writes CUDA, by
// their paths as the lists have them, with the operators that it leaves to torch;
// and how many references there are.
func coveredOf(t *testing.T, level string) (map[string][]string, int) {
	t.Helper()
	folder := os.Getenv("KERNELWRIGHT_TEST_KERNELBENCH")
	if folder == "" || testPython == "" {
		t.Skip("KERNELWRIGHT_TEST_KERNELBENCH names no folder with KernelBench's levels in it, or KERNELWRIGHT_TEST_PYTHON no Python with torch: what is covered is not counted")
	}
	files, err := filepath.Glob(filepath.Join(folder, level, "*.py"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no reference is below %s, %v", filepath.Join(folder, level), err)
	}
	captured, err := runScript("testdata/capture_files.py", files...)
	if err != nil {
		t.Fatal(err)
	}
	covered := map[string][]string{}
	for _, f := range graphtest.Read(t, captured) {
		in := onGPU(f)
		if string(f.Graph) == "null" {
			in.Task.Graph = nil
		}
		if _, err := (Builtin{}).Propose(context.Background(), in); err != nil {
			t.Logf("%s: %v", f.Name, err)
			continue
		}
		covered[level+"/"+f.Name+".py"] = leftToTorch(t, f)
	}
	return covered, len(files)
}

func leftToTorch(t *testing.T, f graphtest.Graph) []string {
	t.Helper()
	g, err := plan.DecodeGraph(f.Graph)
	if err != nil {
		t.Fatalf("%s: %v", f.Name, err)
	}
	p, err := plan.Make(g, true)
	if err != nil {
		t.Fatalf("%s: %v", f.Name, err)
	}
	var left []string
	for _, s := range p.Steps {
		if s.Call != nil {
			left = append(left, s.Call.Node.Op)
		}
	}
	return left
}
