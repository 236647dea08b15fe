package emit

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/coder/internal/graphtest"
	"github.com/kernelwright/kernelwright/coder/internal/plan"
)

// graphFile has the graphs that are committed.
const graphFile = "../../testdata/graphs.jsonl"

func committedGraphs(t *testing.T) map[string]graphtest.Graph {
	t.Helper()
	return graphtest.File(t, graphFile)
}

// planned returns the plan of a fixture.
func planned(t *testing.T, name string) (*plan.Plan, graphtest.Graph) {
	t.Helper()
	f, ok := committedGraphs(t)[name]
	if !ok {
		t.Fatalf("%s: no fixture", name)
	}
	g, err := plan.DecodeGraph(f.Graph)
	if err != nil {
		t.Fatal(err)
	}
	p, err := plan.Make(g, true)
	if err != nil {
		t.Fatal(err)
	}
	return p, f
}

// plannedAs plans a fixture as if its tensors were of other sizes: 33 and 129 stand
// for these in its graph.
func plannedAs(t *testing.T, name string, rows, columns int) *plan.Plan {
	t.Helper()
	_, f := planned(t, name)
	return planOf(t, string(f.Resized(rows, columns)))
}

// planOf plans a graph.
func planOf(t *testing.T, graph string) *plan.Plan {
	t.Helper()
	g, err := plan.DecodeGraph([]byte(graph))
	if err != nil {
		t.Fatal(err)
	}
	p, err := plan.Make(g, true)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// holdsForms checks what a source has, and what it lacks.
func holdsForms(t *testing.T, source string, has, lacks []string) {
	t.Helper()
	for _, s := range has {
		if !strings.Contains(source, s) {
			t.Errorf("lacks %q:\n%s", s, source)
		}
	}
	for _, s := range lacks {
		if strings.Contains(source, s) {
			t.Errorf("has %q:\n%s", s, source)
		}
	}
}

// emitted returns the C++ of a fixture with some knobs set.
func emitted(t *testing.T, name string, knobs map[string]int) string {
	t.Helper()
	p, _ := planned(t, name)
	return emitCPP(p, plan.DefaultSchedule(p, graphtest.CPU).With(knobs))
}

// TestForms checks by what is written that a knob or a shape chooses the form
// of a loop that it should. That each form is right is TestCandidatesAreRight's.
func TestForms(t *testing.T) {
	for name, c := range map[string]struct {
		fixture   string
		knobs     map[string]int
		has, lack []string
	}{
		"a pooling computes its operand once along the line": {"conv_pool", nil,
			[]string{"float column", "[lane * 2 + 1]"}, nil},
		"a pooling pads its line": {"max_pool", nil,
			[]string{"const long long from", "[lane * 2 + 2]"}, nil},
		"softmax keeps its exponentials": {"softmax", nil,
			[]string{"scratch"}, []string{"block", "column"}},
		"softmax of long rows keeps them where its output goes": {"long_softmax", nil,
			[]string{"out0[40009 * i0 + i1] = exp_6;", "const float exp_6 = out0[40009 * i0 + i1];"}, []string{"scratch"}},
		"of two that are dear the last does": {"long_softmax_of_gelu", nil,
			[]string{"alignas(64) float scratch", "= out0[9001 * i0 + i1];"}, nil},
		"the next short row is asked for": {"softmax", nil,
			[]string{"kw::prefetch(v_inputs_0 + 129 * i0 + 129, 129);"}, nil},
		"no row is, where nobody says so": {"softmax", map[string]int{"prefetch": 0},
			nil, []string{"kw::prefetch"}},
		"no longer one is": {"long_softmax", nil,
			nil, []string{"kw::prefetch"}},
		"softmax in one pass, by blocks": {"softmax", map[string]int{"passes": 1},
			[]string{"long long block = 0", "*= kw::exp("}, []string{"scratch"}},
		"softmax in plain passes": {"softmax", map[string]int{"passes": 3},
			nil, []string{"scratch", "block"}},
		"softmax in one pass, rows side by side": {"softmax_0", map[string]int{"passes": 1, "threads": 1},
			[]string{"-__FLT_MAX__", "grown"}, []string{"long long block"}},
		"long rows are normalised in one pass": {"large_layer_norm", nil,
			[]string{"long long block = 0", "apart"}, nil},
		"short rows are not": {"layer_norm", nil,
			nil, []string{"block", "apart"}},
		"a group's channels are merged": {"large_group_norm", map[string]int{"passes": 1},
			[]string{"for (long long i2 = 0; i2 < 3; ++i2)", "seen + more"}, nil},
		"columns by Welford": {"column_var", nil,
			[]string{"++seen", "* share"}, nil},
		"rows are scanned side by side": {"cumsum", nil,
			[]string{"kw::scan_rows<4>(group * 4, "}, []string{"before"}},
		"rows are scanned one by one": {"cumsum", map[string]int{"chains": 1},
			nil, []string{"first + ", "scan_rows"}},
		"a reduction is a call": {"softmax", nil,
			[]string{"#include <kw/math.h>\n#include <kw/pack.h>\n#include <kw/parallel.h>\n#include <kw/reduce.h>\n", "const float maxnum_1 = kw::maxnum(129, [&](long long i1) {", "kw::sum"}, []string{"omp simd"}},
		"unrolled it is a loop": {"softmax", map[string]int{"unroll": 4, "passes": 3},
			[]string{"omp simd", "_3 = "}, []string{"kw::sum"}},
		"a map is": {"unary_mish", nil,
			[]string{"kw::tiles<", "kw::each(start, end, [&](long long i0) {", "kw::mish("}, []string{"omp ", "lanes"}},
		"without vectors it has a loop": {"unary_mish", map[string]int{"vector": 1},
			[]string{"#define KW_VECTOR 32\n", "for (long long i0 = start"}, []string{"kw::each"}},
		"a long row is scanned in two levels": {"wide_cumsum_one", nil,
			[]string{"before", "part += 4", "omp parallel for"}, nil},
		"threads share the search for the largest": {"wide_argmax_all", nil,
			[]string{"omp parallel for", "while (bad"}, nil},
		"one thread does not": {"wide_argmax_all", map[string]int{"threads": 1},
			nil, []string{"omp parallel for", "while (bad"}},
	} {
		t.Run(name, func(t *testing.T) {
			source := emitted(t, c.fixture, c.knobs)
			holdsForms(t, source, c.has, c.lack)
		})
	}
}

// TestDefaultPasses checks the rule by which the first schedule takes its passes.
func TestDefaultPasses(t *testing.T) {
	for name, want := range map[string]kernelwright.Knob{
		"softmax":          {Value: 2, Choices: []int{1, 2, 3}},
		"softmax_0":        {Value: 3, Choices: []int{1, 3}},
		"long_softmax":     {Value: 2, Choices: []int{1, 2, 3}},
		"layer_norm":       {Value: 3, Choices: []int{1, 3}},
		"large_layer_norm": {Value: 1, Choices: []int{1, 3}},
		"column_var":       {Value: 1, Choices: []int{1, 3}},
		"rms_norm":         {},
		"large_group_norm": {Value: 3, Choices: []int{1, 3}},
	} {
		f := committedGraphs(t)[name]
		g, err := plan.DecodeGraph(f.Graph)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		p, err := plan.Make(g, true)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		s := plan.DefaultSchedule(p, graphtest.CPU)
		if got := s["passes"]; got.Value != want.Value || !slices.Equal(got.Choices, want.Choices) {
			t.Errorf("%s: %+v, not %+v", name, got, want)
		}
		if _, ok := s["passes"]; !ok {
			continue
		}
		// To emit one form and then another must not leave marks in the plan.
		before := emitCPP(p, s.With(map[string]int{"passes": 3}))
		emitCPP(p, s.With(map[string]int{"passes": 1}))
		if emitCPP(p, maps.Clone(s).With(map[string]int{"passes": 3})) != before {
			t.Errorf("%s: the plan was changed", name)
		}
	}
}
