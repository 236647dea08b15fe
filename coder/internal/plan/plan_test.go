package plan

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/coder/internal/graphtest"
	"pgregory.net/rapid"
)

// TestPlans checks how many kernels and passes a graph takes, and what stays
// with torch.
func TestPlans(t *testing.T) {
	fixtures := graphtest.File(t, "../../testdata/graphs.jsonl")
	for name, want := range map[string]struct {
		kernels, stages, calls int
		knobs                  string
	}{
		"softmax":         {1, 2, 0, "passes prefetch threads tile unroll vector"},
		"softmax_0":       {1, 2, 0, "passes threads tile unroll vector"},
		"layer_norm":      {1, 2, 0, "passes prefetch threads tile unroll vector"},
		"group_norm":      {1, 2, 0, "threads tile unroll vector"},
		"rms_norm":        {1, 1, 0, "fuse prefetch threads tile unroll vector"},
		"masked_softmax":  {1, 2, 0, "fuse passes prefetch threads tile unroll vector"},
		"cross_entropy":   {2, 2, 0, "passes prefetch threads tile unroll vector"},
		"reverse_cumsum":  {1, 0, 0, "chains threads vector"},
		"linear_softmax":  {1, 2, 1, "fuse passes threads tile unroll vector"},
		"conv_pool":       {1, 0, 1, "fuse threads tile vector"},
		"group_norm_mish": {2, 2, 0, "fuse passes prefetch threads tile unroll vector"},
		"unary_mish":      {1, 0, 0, "threads tile vector"},
		"two_outputs":     {1, 1, 0, "fuse prefetch threads tile unroll vector"},
	} {
		f, ok := fixtures[name]
		if !ok {
			t.Errorf("%s: no fixture", name)
			continue
		}
		g, err := DecodeGraph(f.Graph)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		p, err := Make(g, true)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		kernels, stages, calls := 0, 0, 0
		for _, s := range p.Steps {
			if s.Call != nil {
				calls++
				continue
			}
			kernels++
			for _, a := range s.Kernel.Anchors {
				if a.Value.Kind == Reduce {
					stages = max(stages, a.Stage+1)
				}
			}
		}
		knobs := strings.Join(slices.Sorted(maps.Keys(DefaultSchedule(p, graphtest.CPU))), " ")
		if kernels != want.kernels || stages != want.stages || calls != want.calls || knobs != want.knobs {
			t.Errorf("%s: %d kernels, %d passes, %d calls, knobs %q; want %+v", name, kernels, stages, calls, knobs, want)
		}
	}
}

func (x Index) eval(at []int) int {
	v := x.Off
	for _, t := range x.Terms {
		i := at[t.Dim] / t.Div
		if t.Mod > 0 {
			i %= t.Mod
		}
		v += t.Coef * i
	}
	return v
}

// unravel returns the position of element n in row-major order.
func unravel(n int, shape []int) []int {
	at := make([]int, len(shape))
	for i := len(shape) - 1; i >= 0; i-- {
		at[i] = n % shape[i]
		n /= shape[i]
	}
	return at
}

// TestReshapeMaps checks chains of reshapes against what they mean.
func TestReshapeMaps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		factors := rapid.SliceOfN(rapid.IntRange(1, 4), 1, 5).Draw(t, "factors")
		shape := func(label string) []int {
			out := []int{1}
			for i, f := range factors {
				if rapid.Bool().Draw(t, label+strconv.Itoa(i)) {
					out = append(out, 1)
				}
				out[len(out)-1] *= f
			}
			return out
		}
		a, b, c := shape("a"), shape("b"), shape("c")
		first, ok := reshapeMap(a, b)
		if !ok {
			t.Skip()
		}
		second, ok := reshapeMap(b, c)
		if !ok {
			t.Skip()
		}
		for k := range a {
			x, ok := first[k].substitute(second, c)
			if !ok {
				continue
			}
			for n := range Numel(c) {
				if got, want := x.eval(unravel(n, c)), unravel(n, a)[k]; got != want {
					t.Fatalf("dimension %d of %v through %v over %v: element %d is at %d, not %d (%+v)", k, a, b, c, n, got, want, x)
				}
			}
		}
	})
}

func TestNoMoreThreadsThanAreMeasuredWith(t *testing.T) {
	for _, c := range []struct{ cores, processors, measured, want int }{
		{8, 16, 0, 8}, {8, 4, 0, 4}, {8, 16, 2, 2}, {8, 16, 16, 8}, {0, 4, 1, 1}, {0, 0, 0, 1}, {0, 0, 3, 3},
	} {
		d := kernelwright.Device{Specs: kernelwright.Specs{Cores: c.cores, Threads: c.processors}, Ceilings: kernelwright.Ceilings{CPUThreads: c.measured}}
		if got := usableCores(d); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}
