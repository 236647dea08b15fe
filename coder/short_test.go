package coder

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/coder/internal/graphtest"
)

// TestKernelsAreShort holds the length of the median kernel for examples/ to what
// docs/headers.md says.
func TestKernelsAreShort(t *testing.T) {
	if testPython == "" {
		t.Skip("KERNELWRIGHT_TEST_PYTHON names no Python with torch: the examples are not captured")
	}
	text, err := captured("testdata/generate_examples.py", "../examples")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		on            func(*kernelwright.CoderInput)
		lines, tokens int
	}{
		"C++": {func(*kernelwright.CoderInput) {}, 47, 641},
		"CUDA": {func(in *kernelwright.CoderInput) {
			in.Language = kernelwright.CUDA
			in.Device = kernelwright.Device{Kind: kernelwright.CUDADevice, Specs: kernelwright.Specs{Cores: 132, L2Bytes: 50 << 20, ISA: []string{"sm_90a"}}}
		}, 83, 1175},
	} {
		var lines, tokens []int
		for _, f := range graphtest.Read(t, text) {
			in := input(f)
			c.on(&in)
			got, err := Builtin{}.Propose(context.Background(), in)
			if err != nil {
				continue // it declines
			}
			text := ""
			for line := range strings.Lines(got.Source) {
				if !strings.HasPrefix(line, "# kernelwright-schedule") {
					text += line
				}
			}
			lines = append(lines, strings.Count(text, "\n"))
			tokens = append(tokens, int(math.Round(float64(len(text))/2.6)))
		}
		if len(lines) < 25 {
			t.Fatalf("%d kernels", len(lines))
		}
		l, k := median(lines), median(tokens)
		t.Logf("%s: %d kernels, medians of %d lines and %d tokens", name, len(lines), l, k)
		if l > c.lines || k > c.tokens {
			t.Errorf("%s: %d lines and %d tokens, over %d and %d", name, l, k, c.lines, c.tokens)
		}
	}
}

func median(of []int) int {
	slices.Sort(of)
	return (of[(len(of)-1)/2] + of[len(of)/2]) / 2
}
