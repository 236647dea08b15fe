package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// Work says what did the work of a forward, with its shares of the time, the
// largest first: "62 % own kernels, 38 % PyTorch's operators". Empty where nothing is known.
func Work(w kernelwright.WorkReport) string {
	type part struct {
		share float64
		name  string
	}
	parts := []part{
		{w.Custom, "own kernels"}, {w.Vendor, "vendors' libraries"}, {w.PyTorch, "PyTorch's operators"},
		{w.Compiled, "compiled by inductor"}, {w.Graph, "replayed by a CUDA graph"},
	}
	slices.SortStableFunc(parts, func(a, b part) int {
		switch {
		case a.share > b.share:
			return -1
		case a.share < b.share:
			return 1
		}
		return 0
	})
	var said []string
	for _, p := range parts {
		if p.share >= 0.005 {
			said = append(said, fmt.Sprintf("%.0f %% %s", 100*p.share, p.name))
		}
	}
	return strings.Join(said, ", ")
}

// OthersWork is Work where own kernels take less than half of the time, and empty
// where they take more: what a table has to say.
func OthersWork(w kernelwright.WorkReport) string {
	if w.Custom >= 0.5 {
		return ""
	}
	return Work(w)
}
