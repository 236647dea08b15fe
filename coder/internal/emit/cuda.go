package emit

import (
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/kernelwright/kernelwright/coder/internal/plan"
)

// cuda emits a plan as CUDA: kernels, and one function for the host a segment,
// which launches them on the stream that it is given.
type cuda struct {
	*cpp
	on      Target
	host    strings.Builder
	scratch map[*plan.Kernel][]scratch
	kernels []*plan.Kernel // of the function
	after   bool           // a call of torch comes before it
	follows bool           // something has been launched already
}

// scratch is memory that blocks of one kernel leave for those of the next.
type scratch struct {
	name  string
	bytes int  // with the batch as captured
	batch bool // it grows with the batch
}

// Sizes of launches.
const (
	mapBlock       = 256           // threads of a block whose threads have nothing to do with each other
	leastBlock     = 128           // threads of a block that takes several rows
	keptElements   = 64            // of a row that one thread may keep in registers
	keptInBlock    = 1 << 15       // and all threads of a block: half of a multiprocessor's registers
	loadsAhead     = 4             // vectors that a thread asks for before it waits
	defaultDevice  = 132           // multiprocessors where the device does not say
	positionsLimit = 1<<31 - 1<<20 // of elements that 32 bits count: a loop's counter passes the end of what it counts
)

// emitCUDA returns the whole CUDA source, and what memory each kernel needs
// beside its buffers.
func emitCUDA(p *plan.Plan, knobs plan.Knobs, on Target) (string, map[*plan.Kernel][]scratch) {
	if on.multiprocessors <= 0 {
		on.multiprocessors = defaultDevice
	}
	e := &cuda{cpp: &cpp{plan: p, knobs: knobs, alone: true}, on: on, scratch: map[*plan.Kernel][]scratch{}}
	var bodies strings.Builder
	for _, s := range p.Segments() {
		var launches strings.Builder
		e.kernels, e.after, e.follows = s.Kernels, s.After, s.After
		for _, k := range s.Kernels {
			e.out.Reset()
			e.host.Reset()
			e.kernel(k)
			bodies.WriteString(tidied(counting(k, e.out.String())))
			launches.WriteString(e.host.String())
		}
		e.out.Reset()
		e.function(s, launches.String())
		bodies.WriteString(e.out.String())
	}
	return includes(bodies.String()) + "\n" + bodies.String(), e.scratch
}

// function writes what Python calls.
func (e *cuda) function(s plan.Segment, launches string) {
	writes := func(b *plan.Buffer) bool {
		return slices.ContainsFunc(s.Kernels, func(k *plan.Kernel) bool { return k.Writes(b) })
	}
	parameters := e.parameters(s.Buffers, writes, false, false)
	for _, k := range s.Kernels {
		for _, m := range e.scratch[k] {
			parameters += ", unsigned char* " + m.name
		}
	}
	if s.Batch {
		parameters += ", long long batch"
	}
	e.open(`extern "C" void %s(%s, cudaStream_t stream)`, s.Name, parameters)
	e.out.WriteString(tidied(launches))
	e.close()
}

func (e *cuda) launch(format string, args ...any) {
	e.host.WriteString("  ")
	fmt.Fprintf(&e.host, format, args...)
	e.host.WriteByte('\n')
}

// gpu is the state while one kernel is emitted.
type gpu struct {
	*body
	device   *cuda
	vector   int                    // elements that a thread takes side by side
	column   column                 // of outputs that a thread of a pooling takes
	across   string                 // where along the last dimension a pooling's window is looked at; "" everywhere
	taken    bool                   // a pooling's window has been taken already
	resident bool                   // no more blocks than are on the device at once, each with one piece of work after the other
	beside   int                    // blocks that are to be on a multiprocessor at once; 0 for any
	arrays   map[*plan.Value]string // loads of V elements that are there: an array
	terms    map[*plan.Value]bool   // exponentials of which nothing but a sum is made
}

func (e *cuda) kernel(k *plan.Kernel) {
	b := &body{
		cpp:    e.cpp,
		k:      k,
		g:      k.Geometry(),
		names:  map[*plan.Value]string{},
		cached: map[*plan.Value]bool{},
		ready:  map[*plan.Value]bool{},
		rowed:  map[*plan.Value]string{},
	}
	g := &gpu{body: b, device: e, arrays: map[*plan.Value]string{}}
	b.special = g.special
	g.vector = g.widest()
	switch k.Kind {
	case plan.ReduceKernel:
		g.reductions()
	case plan.ScanKernel:
		g.scans()
	default:
		g.maps()
	}
}

// widest is how many elements a thread can take side by side: as many as the
// knob says, divide the innermost loop, and make 16 bytes.
func (g *gpu) widest() int {
	if slices.ContainsFunc(g.k.Anchors, func(a *plan.Anchor) bool { return a.Value.Kind == plan.Pool }) {
		return 1
	}
	inner := g.g.Groups[g.g.Inner]
	n := inner.Size
	if inner.Batch {
		n /= g.plan.Graph.Batch.Size
	}
	v := g.knobs.Get("vector", 4)
	for v > 1 && n%v != 0 {
		v /= 2
	}
	return v
}

// special writes the values that have another form here than in C++.
func (g *gpu) special(v *plan.Value) string {
	switch {
	case v.Kind == plan.Access && v.Args[0].Kind == plan.Scan:
		return fmt.Sprintf("s%d", v.Args[0].ID)
	case v.Kind == plan.Access && v.Args[0].Kind == plan.Reduce && g.g.Lanes:
		return fmt.Sprintf("r%d[j]", v.Args[0].ID)
	case v.Kind == plan.Access:
		return fmt.Sprintf("r%d", v.Args[0].ID)
	case g.rowed[v] != "":
		return g.rowed[v] + "[j]"
	case g.terms[v]:
		return fmt.Sprintf("kw::term(%s)", bare(g.text(v.Args[0])))
	}
	return ""
}

// neighbours reports whether a load takes V elements that lie side by side, the
// first of them at a multiple of V.
func (g *gpu) neighbours(v *plan.Value) bool {
	if v.Kind != plan.Load || len(v.Args) > 0 || g.window != nil {
		return false
	}
	inner := g.g.Groups[g.g.Inner]
	if len(inner.Dims) == 0 {
		return false
	}
	last := inner.Dims[len(inner.Dims)-1]
	along := false
	for _, t := range v.Idx[0].Terms {
		switch {
		case g.position(t.Dim) == "":
		case t.Dim == last:
			if along || t.Coef != 1 || t.Div != 1 || t.Mod != 0 {
				return false
			}
			along = true
		case t.Coef%g.vector != 0:
			return false
		}
	}
	return along && v.Idx[0].Off%g.vector == 0
}

// innermost is the level of what changes from element to element.
func (g *gpu) innermost() int { return len(g.g.Order) + 1 }

// destination is where V neighbours are put: an array of the thread's own where
// nothing else is said.
type destination struct {
	array string // that outlives the step
	there bool   // it is filled already
	held  string // shared memory from which they come, as far as they are in its room
	slot  string // where there; empty for a step's
	whole bool   // all are
}

// fetch loads what the roots need of V neighbours each into arrays. into says
// where those go that are kept; nil for none.
func (g *gpu) fetch(all []*plan.Value, into func(*plan.Value) destination) {
	for _, r := range all {
		plan.Visit(r, func(v *plan.Value) {
			if g.arrays[v] != "" || !g.neighbours(v) {
				return
			}
			var d destination
			if into != nil {
				d = into(v)
			}
			g.arrays[v] = g.bring(v, d)
		})
	}
}

// bring loads V neighbours, and returns the array in which they are then.
func (g *gpu) bring(v *plan.Value, d destination) string {
	name := d.array
	if name == "" {
		name = fmt.Sprintf("x%d", v.ID)
		g.line("%s %s[V];", element(v.DType), name)
	} else if d.there {
		return name
	}
	if d.held != "" {
		if d.slot == "" {
			d.slot = "(at - from) * V"
		}
		g.line("%skw::load<V>(%s, %s + %s);", map[bool]string{false: "if (at - from < room) "}[d.whole], name, d.held, d.slot)
	}
	if !d.whole {
		g.line("%skw::load<V>(%s, %s + %s);", map[bool]string{true: "else "}[d.held != ""], name, v.Buf.Name, g.atBase(bracketed(g.index(v.Idx[0]))))
	}
	return name
}

// atBase is an index of the first of V neighbours.
func (g *gpu) atBase(index string) string {
	inner := fmt.Sprintf("i%d", g.g.Inner)
	return eachName(index, func(name string) string {
		if name == inner {
			return "base"
		}
		return name
	})
}

// element is the type in which an element lies in memory.
func element(d plan.DType) string {
	if d == plan.Bool {
		return "unsigned char"
	}
	return cppTypes[d]
}

// each runs over the V elements from base on.
func (g *gpu) each(f func()) {
	g.line("#pragma unroll")
	g.open("for (int j = 0; j < V; ++j)")
	g.push()
	g.line("const pos i%d = base + j;", g.g.Inner)
	for v, name := range g.arrays {
		text := name + "[j]"
		if v.DType == plan.Bool {
			text = "(" + text + " != 0)"
		}
		g.name(v, text)
	}
	f()
	g.pop()
	g.close()
}

// tile computes operands at V neighbours, has use take them, and then writes the
// stores, of which guard, if not empty, says whether they are this thread's.
func (g *gpu) tile(operands []*plan.Value, stores []plan.Store, guard string, into func(*plan.Value) destination, use func()) {
	saved := g.arrays
	g.arrays = map[*plan.Value]string{}
	g.fetch(slices.Concat(operands, plan.StoredValues(stores)), into)
	for _, s := range stores {
		g.line("%s y_%s[V];", element(s.Buf.DType), s.Buf.Name)
	}
	g.each(func() {
		for _, a := range g.k.Anchors {
			if a.Value.Kind == plan.Pool {
				g.pooled(a)
			}
		}
		g.computeOnce(operands...)
		if use != nil {
			use()
		}
		g.computeOnce(plan.StoredValues(stores)...)
		for _, s := range stores {
			g.line("y_%s[j] = %s;", s.Buf.Name, bare(g.text(s.Value)))
		}
	})
	for _, s := range stores {
		if guard != "" {
			guard = "if (" + strings.TrimSuffix(strings.TrimPrefix(guard, "if ("), ") ") + ") "
		}
		g.line("%skw::store<V>(%s + %s, y_%s);", guard, s.Buf.Name, g.atBase(bracketed(g.at(s))), s.Buf.Name)
	}
	g.arrays = saved
}

// begin opens a kernel.
func (g *gpu) begin(suffix string, block int, more []string) {
	if g.vector > 1 {
		g.line("template <int V>")
	}
	follows := g.pdl() && (g.device.after || len(g.device.kernels) > 1 || suffix != "") // a part of several has a suffix
	parameters := g.parameters(g.k.Buffers(), g.k.Writes, true, false, g.written(follows)...)
	for _, m := range more {
		parameters += ", unsigned char* " + m
	}
	if g.k.Batch {
		parameters += ", const long long batch"
	}
	bounds := strconv.Itoa(block)
	if g.beside > 0 {
		bounds += ", " + strconv.Itoa(g.beside)
	}
	g.open("__global__ void __launch_bounds__(%s) kernel%d%s(%s)", bounds, g.k.At, suffix, parameters)
	if g.vector <= 1 {
		g.line("constexpr int V = 1;")
	}
	g.push()
	if follows {
		g.line("kw::begins();")
	}
}

// written returns what kernels of the function write, where they do not wait for each
// other to end, and after a call of torch all but weights: if the call launches
// nothing, who comes before may have written anything. Of a pointer that says that
// nobody else writes there, const and __restrict__, what is read may be read before a
// kernel has waited.
func (g *gpu) written(follows bool) []*plan.Buffer {
	var found []*plan.Buffer
	for _, k := range g.device.kernels {
		for _, b := range k.Buffers() {
			if follows && (k.Writes(b) || g.device.after && !b.State) {
				found = append(found, b)
			}
		}
	}
	return found
}

// pdl reports whether kernels are launched before the one before has ended.
func (g *gpu) pdl() bool { return g.knobs.Get("pdl", 0) == 1 }

func (g *gpu) end() {
	g.pop()
	g.close()
	g.line("")
}

// start launches a kernel with the vectors that the pointers allow. blocks may
// use V, rows and width.
func (g *gpu) start(suffix string, block int, blocks string, more []string) {
	follows := g.device.follows && g.pdl()
	known := fmt.Sprintf("follows%d%s", g.k.At, suffix)
	var before []string
	if !g.resident {
		before = append(before, "  const long long blocks = "+blocks+";")
	}
	g.launched(suffix, more, !g.resident, func(kernel, args string) {
		if g.resident {
			at := fmt.Sprintf("there%d%s", g.k.At, suffix)
			g.device.launch("  static int %s[kw::devices];", at)
			g.device.launch("  const long long all = %s, most = kw::there(%s, %d, 0, %s), blocks = most > 0 && most < all ? most : all;", blocks, kernel, block, at)
		}
		if follows {
			g.device.launch("  static int %s[kw::devices];", known)
			g.device.launch("  if (blocks > 0) kw::follow(%s, blocks, %d, stream, %s, %s);", kernel, block, known, args)
			return
		}
		g.device.launch("  if (blocks > 0) %s<<<(unsigned)blocks, %d, 0, stream>>>(%s);", kernel, block, args)
	}, before...)
}

// startHeld starts blocks that hold so many bytes in shared memory, after what is to be
// done first.
func (g *gpu) startHeld(suffix string, block, bytes int, blocks string, more []string, first ...string) {
	known := fmt.Sprintf("there%d", g.k.At)
	g.launched(suffix, more, false, func(kernel, args string) {
		g.device.launch("    static int %s[kw::devices];", known)
		g.device.launch("    kw::there(%s, %d, %d, %s);", kernel, block, bytes, known)
		for _, l := range first {
			g.device.launch("    %s", l)
		}
		g.device.launch("    if (blocks > 0) %s<<<(unsigned)blocks, %d, %d, stream>>>(%s);", kernel, block, bytes, args)
	}, "  const long long blocks = "+blocks+";")
}

// launched has the host call once for each choice of V; at one place, if both kernels
// are alike to who launches them.
func (g *gpu) launched(suffix string, more []string, alike bool, call func(kernel, args string), before ...string) {
	var args, pointers []string
	for _, b := range g.k.Buffers() {
		pointers = append(pointers, b.Name)
		switch {
		case b.DType != plan.Bool:
			args = append(args, b.Name)
		case g.k.Writes(b):
			args = append(args, "(unsigned char*)"+b.Name)
		default:
			args = append(args, "(const unsigned char*)"+b.Name)
		}
	}
	args = append(args, more...)
	if g.k.Batch {
		args = append(args, "batch")
	}
	e := g.device
	e.launch("{")
	e.launch("  const long long rows = %s, width = %s;", g.rows(), g.size(g.g.Inner))
	if g.vector > 1 {
		e.launch("  const int V = kw::aligned(%s) ? %d : 1;", strings.Join(pointers, ", "), g.vector)
	} else {
		e.launch("  const int V = 1;")
	}
	for _, l := range before {
		e.launch("%s", l)
	}
	name, all := fmt.Sprintf("kernel%d%s", g.k.At, suffix), strings.Join(args, ", ")
	switch {
	case g.vector > 1 && alike:
		e.launch("  const auto %s_V = V > 1 ? %s<%d> : %s<1>;", name, name, g.vector, name)
		call(name+"_V", all)
	case g.vector > 1:
		e.launch("  if (V > 1) {")
		call(fmt.Sprintf("%s<%d>", name, g.vector), all)
		e.launch("  } else {")
		call(name+"<1>", all)
		e.launch("  }")
	default:
		call(name, all)
	}
	e.launch("}")
	e.follows = true
}

// rows is how many rows there are, or tiles' rows of columns.
func (g *gpu) rows() string {
	if len(g.g.Outer) == 0 {
		return "1"
	}
	var sizes []string
	for _, i := range g.g.Outer {
		sizes = append(sizes, g.tasks(i))
	}
	return strings.Join(sizes, " * ")
}

// tasks is how many positions along a group are told apart by the number of a
// task: a column of outputs counts as one.
func (g *gpu) tasks(i int) string {
	if g.column.rows > 1 && i == g.column.group {
		return fmt.Sprintf("((%s + %d) / %d)", g.size(i), g.column.rows-1, g.column.rows)
	}
	return g.size(i)
}

func (g *gpu) sizes() {
	g.line("const far rows = %s;", g.rows())
	g.line("const pos width = %s;", g.size(g.g.Inner))
}

// decode declares the position along each of some groups from one number.
func (g *gpu) decode(typ, number string, groups []int) {
	for n, i := range groups {
		var below []string
		for _, j := range groups[n+1:] {
			below = append(below, g.tasks(j))
		}
		x := number
		if len(below) > 0 {
			x = number + " / " + bracketed(strings.Join(below, " * "))
		}
		if n > 0 {
			x = fmt.Sprintf("%s %% %s", x, bracketed(g.tasks(i)))
		}
		if g.column.rows > 1 && i == g.column.group {
			g.line("const %s first = (%s) * %d;", typ, x, g.column.rows)
			continue
		}
		g.line("const %s i%d = %s;", typ, i, x)
	}
}

// maps emits a kernel none of whose elements depends on another. A thread with
// several items asks for what all of them load before it waits for the first.
func (g *gpu) maps() {
	items := g.knobs.Get("items", 1)
	if l, c := g.poolLine(items); l != nil {
		g.column = c
		g.lines(l)
		return
	}
	g.column = g.poolColumn(3, 4)
	g.resident = g.knobs.Get("persistent", 0) == 1
	g.begin("", mapBlock, nil)
	g.sizes()
	all := plan.StoredValues(g.k.Stores)
	var loads []*plan.Value
	if items > 1 && !slices.ContainsFunc(g.k.Anchors, func(a *plan.Anchor) bool { return a.Value.Kind == plan.Pool }) {
		for _, r := range all {
			plan.Visit(r, func(v *plan.Value) {
				if g.neighbours(v) && !slices.Contains(loads, v) {
					loads = append(loads, v)
				}
			})
		}
	}
	array := func(v *plan.Value) string { return fmt.Sprintf("ahead%d[item]", v.ID) }
	g.line("const pos tasks = rows * (width / V);")
	if g.resident {
		g.open("for (pos block = blockIdx.x; block * %d < tasks; block += gridDim.x)", items*mapBlock)
		g.push()
	}
	if len(loads) > 0 {
		for _, v := range loads {
			g.line("%s ahead%d[%d][V];", element(v.DType), v.ID, items)
		}
		g.items(items, func() {
			g.line("const pos task = own < tasks ? own : tasks - 1;")
			g.task()
			for _, v := range loads {
				g.bring(v, destination{array: array(v)})
			}
		})
	}
	g.items(items, func() {
		g.line("const pos task = own;")
		g.line("if (task >= tasks) return;")
		g.task()
		if g.column.rows > 1 {
			g.line("const pos i%d = base;", g.g.Inner)
			g.emptied(g.k.Anchors[0], g.column.rows)
			g.windows(g.k.Anchors[0])
			g.line("#pragma unroll")
			g.open("for (int n = 0; n < %d; ++n)", g.column.rows)
			g.push()
			g.line("const far i%d = first + n;", g.column.group)
			g.line("if (i%d >= %s) break;", g.column.group, g.size(g.column.group))
		}
		for n := range len(g.g.Order) + 1 {
			g.compute(n, all...)
		}
		g.tile(nil, g.k.Stores, "", func(v *plan.Value) destination {
			if slices.Contains(loads, v) {
				return destination{array: array(v), there: true}
			}
			return destination{}
		}, nil)
		if g.column.rows > 1 {
			g.pop()
			g.close()
		}
	})
	if g.resident {
		g.pop()
		g.close()
	}
	g.end()
	g.start("", mapBlock, fmt.Sprintf("(rows * (width / V) + %d) / %d", items*mapBlock-1, items*mapBlock), nil)
}

// items runs over what a thread of a map does.
func (g *gpu) items(items int, f func()) {
	block := "(pos)blockIdx.x"
	if g.resident {
		block = "block"
	}
	if items == 1 {
		g.line("const pos own = %s * %d + (pos)threadIdx.x;", block, mapBlock)
		f()
		return
	}
	g.line("#pragma unroll")
	g.open("for (int item = 0; item < %d; ++item)", items)
	g.push()
	g.line("const pos own = (%s * %d + item) * %d + (pos)threadIdx.x;", block, items, mapBlock)
	f()
	g.pop()
	g.close()
}

// task declares the positions of a map's task from its number.
func (g *gpu) task() {
	if len(g.g.Outer) > 0 {
		g.line("const pos row = task / (width / V), base = task %% (width / V) * V;")
	} else {
		g.line("const pos base = task * V;")
	}
	g.decode("far", "row", g.g.Outer)
}

// powerBelow returns the largest power of two that is at most n, and 1 for less.
func powerBelow(n int) int {
	if n < 1 {
		return 1
	}
	return 1 << (bits.Len(uint(n)) - 1)
}

// powerAbove returns the least power of two that is at least n.
func powerAbove(n int) int {
	p := powerBelow(n)
	if p < n {
		p *= 2
	}
	return p
}
