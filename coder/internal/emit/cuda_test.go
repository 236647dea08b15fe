package emit

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/coder/internal/graphtest"
	"github.com/kernelwright/kernelwright/coder/internal/plan"
)

// includeFolder is where <kw/...> lies.
const includeFolder = "../../../hwfeedback/harness/kwharness/build/include"

// cudaOf returns the CUDA of a fixture's candidate with some knobs set.
func cudaOf(t *testing.T, name string, knobs map[string]int) string {
	t.Helper()
	p, _ := planned(t, name)
	source, _ := emitCUDA(p, CUDASchedule(p).With(knobs), Target{GPU: true, multiprocessors: 132})
	return source
}

// TestCUDAForms checks by what is written that a knob or a shape chooses the
// form that it should. That each form is right is TestCUDACandidatesAreRight's.
func TestCUDAForms(t *testing.T) {
	for name, c := range map[string]struct {
		fixture   string
		knobs     map[string]int
		has, lack []string
	}{
		"rows stay in registers":                {"softmax", nil, []string{"kept"}, []string{"ahead"}},
		"rows that do not are read once less":   {"softmax", map[string]int{"keep": 0}, []string{"ahead", "kw::MaxSum<float>"}, []string{"kept"}},
		"or in plain passes":                    {"softmax", map[string]int{"keep": 0, "passes": 3}, nil, []string{"kept", "ahead"}},
		"columns are shared by threads":         {"softmax_0", nil, []string{"kw::column_reduce<"}, []string{"kw::block_reduce<"}},
		"a few long rows are cut and read once": {"wide_cumsum_one", map[string]int{"team": 2}, []string{"told0", "held"}, []string{"kernel0_sums"}},
		"or cut and read twice":                 {"wide_cumsum_one", nil, []string{"kernel0_sums", "kernel0_all"}, []string{"held"}},
		"unless that is switched off":           {"wide_cumsum_one", map[string]int{"split": 0}, nil, []string{"kernel0_sums", "held"}},
		"a long search is shared by blocks":     {"wide_argmax_all", nil, []string{"kw::ArgMax<float, int>*>(part"}, nil},
		"each kernel after the one before":      {"wide_argmax_all", map[string]int{"pdl": 0}, []string{"<<<"}, []string{"kw::follow(", "kw::begins()"}},
		"or as that one ends":                   {"wide_argmax_all", nil, []string{"<<<", "kw::follow(kernel0_rows", "  kw::begins();\n"}, nil},
		"but not where both need room":          {"softmax_0", map[string]int{"split": 4}, []string{"<<<"}, []string{"kw::follow(", "kw::begins()"}},
		"and so after a convolution":            {"conv_pool", nil, []string{"kw::follow(kernel", "const float* v"}, []string{"<<<", "const float* __restrict__ v_conv"}},
		"one has none before it":                {"softmax", map[string]int{"pdl": 1}, []string{"<<<"}, []string{"kw::follow(", "kw::begins()"}},
		"what is shifted is on its way as well": {"exclusive_sum", nil, []string{"ahead", "[d][j] = inputs_0_10"}, nil},
		"columns by Welford":                    {"column_var", map[string]int{"keep": 0}, []string{"kw::Welford<float>"}, nil},
		"a pooling's windows share columns":     {"max_pool", map[string]int{"stage": 1}, []string{"float line[", "const int q1 = at;"}, []string{"for (int k1"}},
		"or each has its own, unrolled":         {"max_pool", nil, []string{"for (int k1 = 0; k1 < 3; ++k1)"}, []string{"line["}},
		"and is masked where it is outside":     {"max_pool", nil, []string{"if (q0 >= 0 && q0 < ", "most(h, "}, []string{"continue;", "else"}},
		"as where they do not overlap":          {"conv_pool", nil, []string{"for (int k1 = 0; k1 < 2; ++k1)"}, []string{"line["}},
	} {
		t.Run(name, func(t *testing.T) {
			source := cudaOf(t, c.fixture, c.knobs)
			holdsForms(t, source, c.has, c.lack)
		})
	}
}

// TestWhatKernelsBeforeWriteIsNotReadEarly: ptxas has moved loads by const pointers
// that are __restrict__ before griddepcontrol.wait.
func TestWhatKernelsBeforeWriteIsNotReadEarly(t *testing.T) {
	kernel := regexp.MustCompile(`(?s)__global__ [^\n]* (kernel\w+)\(([^)]*)\) \{(.*?)\n}`)
	parameter := regexp.MustCompile(`(?:^|, )(const )?[\w ]+\*( __restrict__)? (\w+)`)
	seen := 0
	for _, f := range committedGraphs(t) {
		if string(f.Graph) == "null" {
			continue
		}
		g, err := plan.DecodeGraph(f.Graph)
		if err != nil {
			t.Fatal(err)
		}
		p, err := plan.Make(g, true)
		if err != nil {
			continue
		}
		source, _ := emitCUDA(p, CUDASchedule(p).With(map[string]int{"pdl": 1, "keep": 0}), Target{GPU: true, multiprocessors: 132})
		written := map[string]bool{}
		for _, s := range p.Segments() {
			for _, b := range s.Buffers {
				written[b.Name] = written[b.Name] || s.After && !b.State
			}
		}
		kernels := kernel.FindAllStringSubmatch(source, -1)
		for _, k := range kernels {
			for _, p := range parameter.FindAllStringSubmatch(k[2], -1) {
				written[p[3]] = written[p[3]] || p[1] == ""
			}
		}
		for _, k := range kernels {
			if !strings.Contains(k[3], "kw::begins();") {
				continue
			}
			for _, p := range parameter.FindAllStringSubmatch(k[2], -1) {
				if p[1] == "const " && written[p[3]] {
					seen++
				}
				if written[p[3]] && p[2] != "" {
					t.Errorf("%s: %s has %s __restrict__, which a kernel writes", f.Name, k[1], p[3])
				}
			}
		}
	}
	if seen == 0 {
		t.Error("no kernel reads what another one writes")
	}
}

// TestDivisionsBeginApproximate: where something is divided, but not where what comes
// of it may be rounded to another whole number.
func TestDivisionsBeginApproximate(t *testing.T) {
	const of = `,"outputs":[{"shape":[8,16],"dtype":"float32","strides":[16,1],"batch":true}],"many":false}`
	const rounded = `{"v":1,"inputs":[{"name":"x","path":[0],"shape":[8,16],"dtype":"float32","strides":[16,1]}],"parameters":[],"constants":[],"nodes":[` +
		`{"name":"s","op":"aten.sigmoid.default","args":[{"ref":"x"}],"kwargs":{}` + of + `,` +
		`{"name":"f","op":"aten.OP.default","args":[{"ref":"s"}],"kwargs":{}` + of + `],` +
		`"outputs":{"value":{"ref":"f"}},"batch":{"size":8,"inputs":["x"]}}`
	softmax, _ := planned(t, "softmax")
	pool, _ := planned(t, "max_pool")
	const twice = `{"name":"g","op":"aten.mul.Tensor","args":[{"ref":"f"},2.0],"kwargs":{}` + of
	const again = `"outputs":{"value":{"ref":"f"}}`
	for name, c := range map[string]struct {
		p    *plan.Plan
		want int
	}{
		"softmax": {softmax, 1}, "max_pool": {pool, -1},
		"relu of a sigmoid":      {planOf(t, strings.ReplaceAll(rounded, "OP", "relu")), 1},
		"floor of a sigmoid":     {planOf(t, strings.ReplaceAll(rounded, "OP", "floor")), 0},
		"torch's rounding of it": {planOf(t, strings.Replace(strings.Replace(strings.Replace(rounded, "aten.OP.default", "aten.frac.default", 1), `}],"outputs"`, `},`+twice+`],"outputs"`, 1), again, `"outputs":{"value":{"ref":"g"}}`, 1)), 0},
		"the place of its largest": {planOf(t, strings.Replace(strings.Replace(rounded, `"aten.OP.default","args":[{"ref":"s"}]`, `"aten.argmax.default","args":[{"ref":"s"},-1]`, 1),
			`"outputs":[{"shape":[8,16],"dtype":"float32","strides":[16,1],"batch":true}],"many":false}],`, `"outputs":[{"shape":[8],"dtype":"int64","strides":[1],"batch":true}],"many":false}],`, 1)), 0},
		"a comparison with it": {planOf(t, strings.Replace(strings.Replace(rounded, `"aten.OP.default","args":[{"ref":"s"}]`, `"aten.ge.Scalar","args":[{"ref":"s"},0.5]`, 1),
			`"float32","strides":[16,1],"batch":true}],"many":false}],`, `"bool","strides":[16,1],"batch":true}],"many":false}],`, 1)), 0},
	} {
		s := CUDASchedule(c.p)
		if got := s.Get("approx", -1); got != c.want {
			t.Errorf("%s begins with approx %d, not %d", name, got, c.want)
		}
		for value, want := range map[int]bool{0: false, 1: c.want >= 0} {
			source, err := Python(c.p, s.With(map[string]int{"approx": value}), Target{GPU: true})
			if has := strings.Contains(source, `"-prec-div=false"`); err != nil || has != want {
				t.Errorf("%s with approx %d: the flag is there: %v, %v", name, value, has, err)
			}
		}
	}
}

// TestPoolingsBeginBySize: lines, and columns of outputs, are for so many that the
// device is full all the same.
func TestPoolingsBeginBySize(t *testing.T) {
	_, f := planned(t, "max_pool")
	for batch, want := range map[int]string{6: "0 1", 1 << 12: "0 1", 1 << 13: "0 1", 1 << 14: "1 2", 1 << 15: "1 4", 1 << 20: "1 8"} {
		n := strconv.Itoa(batch)
		text := regexp.MustCompile(`(\[|"size": ?)6,`).ReplaceAllString(string(f.Graph), "${1}"+n+",")
		s := CUDASchedule(planOf(t, text))
		if got := fmt.Sprint(s.Get("stage", -1), " ", s.Get("share", -1)); got != want {
			t.Errorf("%d outputs begin with stage and share %s, not %s", batch*5*4*6, got, want)
		}
	}
}

// TestReductionsBeginBySize: rows have fewer vectors a thread, and columns one element,
// where threads were too few for the device; teams are for long rows and large tensors.
func TestReductionsBeginBySize(t *testing.T) {
	for _, c := range []struct {
		fixture             string
		rows, columns       int
		vector, share, team int
	}{
		{"softmax", 2048, 1024, 4, 2, -1},
		{"softmax", 1024, 2048, 4, 2, -1},
		{"softmax", 1024, 1000, 4, 1, -1},
		{"softmax", 8192, 1024, 4, 4, -1},
		{"softmax", 256, 4096, 4, 4, -1}, // a row has 256 threads
		{"softmax", 256, teamRow, 4, 4, 1},
		{"softmax", 256, teamRow - 8, 4, 4, -1},
		{"softmax", 1 << 13, 1 << 12, 4, 4, 1}, // 128 MiB
		{"softmax", 1<<13 - 1, 1 << 12, 4, 4, -1},
		{"softmax_0", 1024, 512, 1, 4, -1},
		{"softmax_0", 1000, 100 * laneColumns, 4, 4, -1}, // 100 blocks of 512 threads
		{"softmax_0", 64, heldThreads - 32, 1, 4, -1},
		{"softmax_0", 64, heldThreads, 4, 4, -1},
	} {
		s := CUDASchedule(plannedAs(t, c.fixture, c.rows, c.columns))
		if got := []int{s.Get("vector", -1), s.Get("share", -1), s.Get("team", -1)}; !slices.Equal(got, []int{c.vector, c.share, c.team}) {
			t.Errorf("%s of %d x %d begins with vector, share and team %v", c.fixture, c.rows, c.columns, got)
		}
	}
}

// TestResidentGrids: a map of more than two waves may have a grid as large as the device.
func TestResidentGrids(t *testing.T) {
	for rows, offered := range map[int]bool{1 << 14: false, 1 << 15: true} {
		p := plannedAs(t, "nested_inputs", rows, 64)
		s := CUDASchedule(p)
		if k, ok := s["persistent"]; ok != offered || k.Value != 0 {
			t.Errorf("%d rows: %v, %+v", rows, ok, k)
		}
		source, _ := emitCUDA(p, s.With(map[string]int{"persistent": 1}), Target{GPU: true, multiprocessors: 132})
		loop := []string{"block * 256 < tasks; block += gridDim.x)", "most = kw::there(kernel0<4>, 256, 0, there0)", "blocks = most > 0 && most < all ? most : all;"}
		if offered {
			holdsForms(t, source, loop, []string{"(int)blockIdx.x *"})
		} else {
			holdsForms(t, source, nil, append(loop, "gridDim"))
		}
	}
}

// TestRowsAreCutOnRequest: by itself the Coder cuts a row where over a quarter of the
// multiprocessors would have none, and then into enough parts for all of these.
func TestRowsAreCutOnRequest(t *testing.T) {
	for _, c := range []struct{ split, multiprocessors, parts int }{
		{0, 2, 1}, {1, 2, 1}, {2, 2, 2}, {8, 2, 8}, {32, 2, 16}, // of 9,001 elements at least 512 each
		{0, 132, 1}, {1, 132, 16}, {2, 132, 16}, {32, 132, 16}, {1, 9, 4}, {2, 9, 4}, {8, 9, 8},
		{1, 8, 1}, {2, 8, 2}, // six blocks leave two idle
	} {
		p, _ := planned(t, "large_layer_norm")
		source, _ := emitCUDA(p, CUDASchedule(p).With(map[string]int{"split": c.split}), Target{GPU: true, multiprocessors: c.multiprocessors})
		if want := fmt.Sprintf("part = number %% %d;", c.parts); strings.Contains(source, want) != (c.parts > 1) {
			t.Errorf("%+v: %q, or not, in\n%s", c, want, source)
		}
	}
}

// TestFewRowsAreAlwaysCut: a search that comes to a kernel of one block waits for it
// for a hundred times as long.
func TestFewRowsAreAlwaysCut(t *testing.T) {
	for space, may := range map[[2]int]bool{{1, 1 << 20}: false, {fewRows - 1, longRow}: false, {1, longRow - 1}: true, {fewRows, 1 << 20}: true} {
		s := CUDASchedule(plannedAs(t, "softmax", space[0], space[1]))
		if slices.Contains(s["split"].Choices, 0) != may {
			t.Errorf("%v: %v", space, s["split"].Choices)
		}
		// What is asked for after a failure cuts as little as may be.
		if safe, _ := s.With(map[string]int{"team": 0, "approx": 0, "split": 32}).Safer(); safe["split"].Value > 1 {
			t.Errorf("%v: safer than 32 is %d", space, safe["split"].Value)
		}
	}
}

// TestPartsOfALongRow: a pass that only writes has blocks that take 64 KiB, one after
// which nobody reads a row again parts of a MiB, and all begin at whole lines.
func TestPartsOfALongRow(t *testing.T) {
	for _, c := range []struct {
		fixture       string
		rows, columns int
		has           []string
	}{
		{"softmax", 1, 1 << 24, []string{"number % 512;", "number % 1024;", "per = ((steps + 511) / 512 + 255) / 256 * 256;"}},
		{"softmax", 1, 1 << 20, []string{"number % 512;", "per = (steps + 511) / 512;"}},
		{"mse", 1 << 14, 1 << 14, []string{"number % 1024;"}},
		{"mse", 1 << 10, 1 << 14, []string{"number % 512;"}},
		{"cross_entropy", 1, 1 << 28, []string{"number % 512;"}}, // each pass reads what the parts of those before left
	} {
		p := plannedAs(t, c.fixture, c.rows, c.columns)
		source, _ := emitCUDA(p, CUDASchedule(p).With(map[string]int{"team": 0}), Target{GPU: true, multiprocessors: 132})
		holdsForms(t, source, c.has, nil)
	}
}

// TestTilesAtATime: a scan begins with two, but with one where there is no other, or
// where there are rows enough.
func TestTilesAtATime(t *testing.T) {
	for size, tiles := range map[[2]int]int{
		{512, 100}: 1, {512, 1024}: 1, {512, 1025}: 2, {512, 3000}: 2, {512, 4097}: 2, {1024, 4096}: 2, {1024, 4097}: 1, {1 << 15, 1 << 15}: 1,
	} {
		columns := size[1]
		p := plannedAs(t, "cumsum", size[0], columns)
		s := CUDASchedule(p)
		if s["unroll"].Value != tiles {
			t.Errorf("%d rows of %d: %d tiles", size[0], columns, s["unroll"].Value)
		}
		most := 4
		if columns%4 > 0 {
			most = 8 // of one element for each thread, which registers have room for
		}
		source, _ := emitCUDA(p, s.With(map[string]int{"unroll": 4}), Target{GPU: true, multiprocessors: 132})
		holdsForms(t, source, []string{fmt.Sprintf("x0[%d][V]", most)}, []string{fmt.Sprintf("x0[%d][V]", 2*most)})
	}
}

// TestFewRowsHaveMoreThreads: nobody else wants the device.
func TestFewRowsHaveMoreThreads(t *testing.T) {
	for rows, threads := range map[int]int{fewRows - 1: 256, fewRows: 64} {
		p := plannedAs(t, "softmax", rows, 1024)
		source, _ := emitCUDA(p, CUDASchedule(p).With(map[string]int{"share": 4}), Target{GPU: true, multiprocessors: 132})
		holdsForms(t, source, []string{fmt.Sprintf("lane = threadIdx.x %% %d;", threads)}, nil)
	}
}

// TestJointPasses: nobody asks where a step ends if all are there, and what is added up
// meanwhile is in float32 if the schedule allows it, of not too many.
func TestJointPasses(t *testing.T) {
	for _, c := range []struct {
		knobs    map[string]int
		has, not []string
	}{
		{map[string]int{"unroll": 4, "approx": 1}, []string{"if (begin + 3 * 256 < steps) {", ".raise(p", "float q", "kw::term("}, []string{"double q"}},
		{map[string]int{"unroll": 4, "approx": 0}, []string{"if (begin + 3 * 256 < steps) {", "double q"}, []string{"float q", "kw::term("}},
		{map[string]int{"unroll": 8, "approx": 1, "vector": 1}, []string{"if (begin + 31 * ", "double q"}, []string{"float q"}},
	} {
		p := plannedAs(t, "softmax", 256, 4096)
		knobs := map[string]int{"keep": 0, "share": 4, "team": 0}
		maps.Copy(knobs, c.knobs)
		source, _ := emitCUDA(p, CUDASchedule(p).With(knobs), Target{GPU: true, multiprocessors: 132})
		holdsForms(t, source, c.has, c.not)
	}
}

// TestPartsOfAScan: few long rows are cut so that each multiprocessor has four blocks or
// more, but into parts of 4,096 elements or more; who asks for more gets more.
func TestPartsOfAScan(t *testing.T) {
	for _, c := range []struct{ rows, columns, split, parts int }{
		{6, 1000003, 1, 128}, {6, 1 << 16, 1, 16}, {1, 1 << 28, 1, 1024}, {64, 1 << 20, 1, 16}, {64, 1 << 20, 32, 32}, {64, 1 << 20, 8, 16}, {64, 1 << 16, 32, 16},
	} {
		p := plannedAs(t, "cumsum", c.rows, c.columns)
		source, _ := emitCUDA(p, CUDASchedule(p).With(map[string]int{"split": c.split}), Target{GPU: true, multiprocessors: 132})
		holdsForms(t, source, []string{fmt.Sprintf("/ %d * V;", c.parts), "kernel0_sums"}, nil)
	}
	for rows, split := range map[int]int{64: 0, 99: 8, 512: 1} {
		p := plannedAs(t, "cumsum", rows, 1<<20)
		source, _ := emitCUDA(p, CUDASchedule(p).With(map[string]int{"split": split}), Target{GPU: true, multiprocessors: 132})
		holdsForms(t, source, nil, []string{"kernel0_sums"})
	}
}

// TestColumnsInNarrowBlocks: where so there are blocks enough they take 128 bytes of
// a row each, not 512.
func TestColumnsInNarrowBlocks(t *testing.T) {
	for multiprocessors, want := range map[int]string{
		1: "lane = threadIdx.x % 32, y", 4: "lane = threadIdx.x % 16, y = threadIdx.x / 16", 8: "lane = threadIdx.x % 8, y = threadIdx.x / 8", 9: "part = number / tiles % 2",
	} {
		p := plannedAs(t, "softmax_0", 33, 256)
		source, _ := emitCUDA(p, CUDASchedule(p).With(map[string]int{"vector": 4}), Target{GPU: true, multiprocessors: multiprocessors})
		if !strings.Contains(source, want) {
			t.Errorf("%d multiprocessors: no %q in\n%s", multiprocessors, want, source)
		}
	}
}

// TestColumnsInParts: as many as two blocks of each multiprocessor take, and no more.
func TestColumnsInParts(t *testing.T) {
	for multiprocessors, parts := range map[int]int{132: 11, 144: 12, 200: 16} {
		p := plannedAs(t, "softmax_0", 6000, 3000)
		source, _ := emitCUDA(p, CUDASchedule(p), Target{GPU: true, multiprocessors: multiprocessors})
		holdsForms(t, source, []string{fmt.Sprintf("part = number / tiles %% %d;", parts)}, nil)
	}
}

// TestMisalignedColumnsInParts: what begins within a sector of memory shares it with
// the next block, which is to come to it soon.
func TestMisalignedColumnsInParts(t *testing.T) {
	for _, c := range []struct{ rows, columns, parts int }{
		{1 << 14, 4095, 8}, {1 << 14, 4096, 1}, {1 << 14, 4104, 1}, {1 << 14, 255, 1},
		{128, 1<<20 + 1, 1}, // a column of so few stays on the chip
	} {
		p := plannedAs(t, "softmax_0", c.rows, c.columns)
		source, _ := emitCUDA(p, CUDASchedule(p), Target{GPU: true, multiprocessors: 4})
		if want := fmt.Sprintf("part = number / tiles %% %d;", c.parts); strings.Contains(source, want) != (c.parts > 1) {
			t.Errorf("%d rows, %d columns: %q, or not, in\n%s", c.rows, c.columns, want, source)
		}
	}
}

// TestColumnsAreHeld: by blocks of 16 columns or more, two of a multiprocessor where they
// have room, and only where the second-level cache has not all of them for the next pass.
func TestColumnsAreHeld(t *testing.T) {
	for _, c := range []struct {
		rows, columns, keep int
		has                 string // empty: they are not held
	}{
		{400, 40000, 1, "lane = threadIdx.x % 8, y = threadIdx.x / 8"},
		{1000, 20000, 1, "lane = threadIdx.x % 4, y = threadIdx.x / 4"},
		{3000, 20000, 1, "512, 196608, stream>>>"},
		{4000, 20000, 1, ""}, {1000, 2000, 1, ""}, {1000, 20000, 0, ""},
	} {
		p := plannedAs(t, "softmax_0", c.rows, c.columns)
		source, _ := emitCUDA(p, CUDASchedule(p).With(map[string]int{"keep": c.keep}), Target{GPU: true, multiprocessors: 132, shared: 227 << 10, cache: 60 << 20})
		if c.has == "" {
			holdsForms(t, source, nil, []string{"copy_ahead"})
			continue
		}
		holdsForms(t, source, []string{"kw::copy_ahead<V>(held0 + ", c.has}, nil)
	}
}

// TestLongRowsAreHeldByTeams: where registers do not keep a row, the tensor is large,
// and rows do not share as much as they are long.
func TestLongRowsAreHeldByTeams(t *testing.T) {
	for _, c := range []struct {
		fixture string
		space   []int
		asked   int
		team    int
	}{
		{"softmax", []int{4096, 393216}, 1, 16}, // 256 of 264 blocks, of 1.5 MiB 96 KiB each
		{"softmax", []int{4096, 393216}, 2, 14}, // as many as hold it
		{"softmax", []int{4096, 393216}, 32, 32},
		{"softmax", []int{4096, 393216}, 0, 0},
		{"softmax", []int{64, 262144}, 1, 0},
		{"softmax", []int{65536, 4096}, 1, 0},
		{"softmax", []int{32, 1 << 25}, 1, 0}, // more than the chip holds
		{"layer_norm", []int{4096, 393216}, 1, 16},
		{"layer_norm", []int{16, 1 << 22}, 1, 0},
		{"cross_entropy", []int{4096, 131072}, 1, 0}, // reads them once anyway
	} {
		p := plannedAs(t, c.fixture, c.space[0], c.space[1])
		if s := CUDASchedule(p); s.Get("team", 0) != 1 {
			t.Errorf("%s: it starts with team = %d", c.fixture, s.Get("team", 0))
		}
		source, _ := emitCUDA(p, CUDASchedule(p).With(map[string]int{"team": c.asked}), GPU(kernelwright.Device{Specs: kernelwright.Specs{Cores: 132, ISA: []string{"sm_90a"}}}))
		want := fmt.Sprintf("team = blockIdx.x / %d,", c.team)
		if strings.Contains(source, want) != (c.team > 0) || strings.Contains(source, "held") != (c.team > 0) {
			t.Errorf("%s of %v: %q: %v", c.fixture, c.space, want, strings.Contains(source, want))
		}
	}
}

func TestEvenly(t *testing.T) {
	for _, c := range []struct{ rows, steps, least, there, want int }{
		{4096, 98304, 14, 264, 16}, {7168, 65536, 10, 264, 10}, {896, 524288, 74, 264, 86}, {1, 1 << 20, 147, 264, 256}, {64, 65536, 10, 264, 12}, {3, 5000, 2, 12, 4},
	} {
		if got := evenly(c.rows, c.steps, c.least, c.there); got != c.want || got < c.least || got > c.there {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

// TestCUDACompiles has nvcc compile the committed fixtures, for the oldest and
// the newest GPU that are written for.
func TestCUDACompiles(t *testing.T) {
	home := os.Getenv("CUDA_HOME")
	nvcc := filepath.Join(home, "bin", "nvcc")
	if _, err := os.Stat(nvcc); home == "" || err != nil {
		t.Skip("CUDA_HOME names no CUDA toolkit: kernels are not compiled")
	}
	var all strings.Builder
	included := map[string]bool{}
	long := plannedAs(t, "softmax", 33, teamRow)
	ofATeam, _ := emitCUDA(long, CUDASchedule(long).With(map[string]int{"team": 4}), Target{GPU: true, multiprocessors: 132})
	holdsForms(t, ofATeam, []string{"held", "kw::copy_ahead", "kw::meet(", "kw::together("}, nil)
	sources := map[string]string{"softmax_of_a_team": ofATeam}
	// Forms that no fixture's first schedule has.
	for _, c := range []struct {
		fixture       string
		rows, columns int
		knobs         map[string]int
	}{
		{"nested_inputs", 1 << 15, 64, map[string]int{"persistent": 1, "items": 2}},
		{"softmax", 33, 129, map[string]int{"keep": 0}},
		{"softmax", 33, 129, map[string]int{"keep": 0, "passes": 3, "approx": 0}},
		{"softmax", 33, 1 << 14, map[string]int{"split": 8, "pdl": 1}},
		{"softmax_0", 1 << 10, 129, map[string]int{"split": 4, "pdl": 1, "vector": 4}},
		{"cumsum", 33, 1 << 14, map[string]int{"team": 2}},
		{"wide_cumsum_one", 0, 0, map[string]int{"team": 2}},
		{"wide_cumsum_one", 0, 0, map[string]int{"split": 0}},
		{"max_pool", 0, 0, map[string]int{"stage": 1, "share": 4}},
		{"conv_pool", 0, 0, map[string]int{"items": 2}},
		{"large_layer_norm", 0, 0, map[string]int{"keep": 0, "split": 0}},
		{"column_var", 0, 0, map[string]int{"keep": 0}},
	} {
		p := plannedAs(t, c.fixture, max(c.rows, 33), max(c.columns, 129))
		s := CUDASchedule(p)
		for name, v := range c.knobs {
			if s.With(map[string]int{name: v}).Get(name, -1) != v {
				t.Errorf("%s has no %s %d", c.fixture, name, v)
			}
		}
		source, _ := emitCUDA(p, s.With(c.knobs), Target{GPU: true, multiprocessors: 132, shared: leastShared})
		sources[fmt.Sprintf("%s_%d", c.fixture, len(sources))] = source
	}
	for name, f := range committedGraphs(t) {
		g, err := plan.DecodeGraph(f.Graph)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		p, err := plan.Make(plan.Unbiased(g), true)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		code, err := Python(p, CUDASchedule(p), GPU(graphtest.GPU))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		_, source, _ := strings.Cut(code, "source=r\"\"\"\n")
		sources[name], _, _ = strings.Cut(source, `""")`)
	}
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		source := sources[name]
		all.WriteString("namespace " + name + " {\n")
		for line := range strings.Lines(source) {
			if strings.HasPrefix(line, "#include") {
				included[line] = true
				continue
			}
			all.WriteString(strings.ReplaceAll(line, `extern "C" void run`, "void run"))
		}
		all.WriteString("}\n")
	}
	file := filepath.Join(t.TempDir(), "all.cu")
	head := strings.Join(slices.Sorted(maps.Keys(included)), "")
	if err := os.WriteFile(file, []byte(head+all.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(nvcc, "-I"+includeFolder, "-std=c++17", "-fmad=false", "-Xcicc", "-O1", "-Xptxas", "-O1", "-gencode=arch=compute_80,code=sm_80",
		"-gencode=arch=compute_100,code=sm_100", "--threads", "2", "-c", file, "-o", file+".o").CombinedOutput()
	if err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
}
