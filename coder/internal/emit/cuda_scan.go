package emit

import (
	"fmt"
	"slices"

	"github.com/kernelwright/kernelwright/coder/internal/plan"
)

// scanBlock is how many threads scan one row.
const scanBlock = 256

// scansAhead is how many tiles of a row are scanned at a time, while as many are on
// their way, and mostTiles how many registers have room for; both where a thread takes
// 16 bytes of each, else more.
const (
	scansAhead = 2
	mostTiles  = 4
)

// splitScanLength is the length of a part of a row below which it is not worth
// to read the row twice, so that several blocks share it, and scanBlocks how many
// such blocks each multiprocessor has at least: a block waits for each tile of its
// part, so that 6 rows of 1,000,003 in 192 parts took 63 us on an H200, where the
// bytes take 11.
const (
	splitScanLength = 1 << 12
	scanBlocks      = 4
)

// carried is what is kept of the elements so far of a scan.
func (g *gpu) carried(a *plan.Anchor) (typ, none string) {
	if a.Value.Op == "prod" {
		return fmt.Sprintf("kw::Product<%s>", accumulator(a.Value.DType)), "1"
	}
	return fmt.Sprintf("kw::Sum<%s>", accumulator(a.Value.DType)), "0"
}

func (g *gpu) scans() {
	if g.g.Lanes {
		g.scanColumns()
		return
	}
	parts := g.scanParts()
	if parts == 1 {
		g.scanRows("", &scanning{parts: 1})
		return
	}
	sc := &scanning{parts: parts}
	for _, a := range g.k.Anchors {
		typ, _ := g.carried(a)
		sc.names = append(sc.names, fmt.Sprintf("part%d", a.Value.ID))
		g.keepScratch(a, parts, sizeOf(typ))
	}
	if g.holdScan(sc) {
		g.scanRows("", sc)
		return
	}
	g.scanSums(sc)
	g.scanRows("_all", sc)
}

// scanning is how rows are scanned: whole by a block each, or in parts, each with
// a block of its own, of which names has what others need to know of it. Parts
// that blocks hold in shared memory are read once: each block tells the sum of its
// part, and waits for those of the parts before. That is the look-back of Merrill
// and Garland 2016, with all sums added in their order, so that the same input
// gives the same result. Else a kernel before sums the parts.
type scanning struct {
	parts int
	names []string
	held  map[*plan.Value]string
	begin map[*plan.Value]int // in bytes of shared memory
	bytes int
}

// held shared memory of a scan's block, and the parts of a row beyond which
// adding up those before takes longer than reading the row twice.
const (
	scanBeside    = 4
	mostScanParts = 4096
)

// holdScan has parts stay in shared memory, with more of them if need be.
func (g *gpu) holdScan(sc *scanning) bool {
	var loads []*plan.Value
	each := 0
	for _, r := range g.scanOperands() {
		plain := true
		plan.Visit(r, func(v *plan.Value) {
			switch {
			case v.Kind != plan.Load:
			case !g.neighbours(v):
				plain = false
			case !slices.Contains(loads, v):
				loads = append(loads, v)
				each += elementBytes(v.DType)
			}
		})
		if !plain {
			return false
		}
	}
	if each == 0 || g.knobs.Get("team", 0) < 2 {
		return false
	}
	room := (max(g.device.on.shared, leastShared)/scanBeside - 2<<10) / each / g.vector * g.vector
	width := g.g.Groups[g.g.Inner].Size
	parts := max(sc.parts, (width+room-1)/room)
	if parts > mostScanParts {
		return false
	}
	per := (width/g.vector + parts - 1) / parts * g.vector
	g.device.scratch[g.k] = nil
	sc.parts, sc.held, sc.begin = parts, map[*plan.Value]string{}, map[*plan.Value]int{}
	for _, a := range g.k.Anchors {
		typ, _ := g.carried(a)
		g.keepScratch(a, parts, sizeOf(typ))
	}
	for _, v := range loads {
		sc.held[v], sc.begin[v] = fmt.Sprintf("held%d", v.ID), sc.bytes
		sc.bytes += (per*elementBytes(v.DType) + 15) / 16 * 16
	}
	rows := g.g.Rows()
	told, ticket := fmt.Sprintf("told%d", g.k.At), fmt.Sprintf("ticket%d", g.k.At)
	sc.names = append(sc.names, told, ticket)
	g.device.scratch[g.k] = append(g.device.scratch[g.k], scratch{name: told, bytes: rows * parts * 4, batch: g.k.Batch}, scratch{name: ticket, bytes: counterBytes})
	return true
}

func (sc *scanning) sorted() []*plan.Value {
	var loads []*plan.Value
	for v := range sc.held {
		loads = append(loads, v)
	}
	slices.SortFunc(loads, func(a, b *plan.Value) int { return a.ID - b.ID })
	return loads
}

// intoHeld is where the loads of a part come from that is held.
func (sc *scanning) intoHeld(v *plan.Value) destination {
	if n := sc.held[v]; n != "" {
		return destination{held: n, slot: "at - from", whole: true}
	}
	return destination{}
}

// sumEarlier emits what a block does that holds its part, before it scans it:
// it sums the part, and what the parts before are told to be.
func (g *gpu) sumEarlier(sc *scanning) {
	operands := g.scanOperands()
	loads := sc.sorted()
	walk := func(f func()) {
		g.open("for (pos at = from + (pos)threadIdx.x * V; at < to; at += %d * V)", scanBlock)
		g.push()
		g.scanBase()
		f()
		g.pop()
		g.close()
	}
	walk(func() {
		g.line("const pos i%d = base;", g.g.Inner)
		for _, v := range loads {
			g.line("kw::copy_ahead<V>(%s + (at - from), %s + (%s));", sc.held[v], v.Buf.Name, g.index(v.Idx[0]))
		}
	})
	g.line("__pipeline_commit();")
	g.line("__pipeline_wait_prior(0);")
	for _, a := range g.k.Anchors {
		typ, none := g.carried(a)
		g.line("%s a%d = {%s};", typ, a.Value.ID, none)
	}
	walk(func() {
		saved := g.arrays
		g.arrays = map[*plan.Value]string{}
		g.fetch(operands, sc.intoHeld)
		g.scanned(func() {
			g.compute(g.innermost(), operands...)
			for _, a := range g.k.Anchors {
				g.line("a%d.v += %s;", a.Value.ID, g.text(a.Operand))
			}
		})
		g.arrays = saved
	})
	told := sc.names[len(sc.names)-2]
	at := func(a *plan.Anchor, part string) string {
		typ, _ := g.carried(a)
		return fmt.Sprintf("reinterpret_cast<%s*>(part%d)[row * %d + %s]", typ, a.Value.ID, sc.parts, part)
	}
	for _, a := range g.k.Anchors {
		g.line("a%d = kw::block_reduce<%d>(a%d);", a.Value.ID, scanBlock, a.Value.ID)
		g.line("if (threadIdx.x == 0) %s = a%d;", at(a, "part"), a.Value.ID)
	}
	g.open("if (threadIdx.x == 0)")
	g.line("__threadfence();")
	g.line("reinterpret_cast<volatile int*>(%s)[row * %d + part] = 1;", told, sc.parts)
	g.close()
	g.open("for (int p = threadIdx.x; p < part; p += %d)", scanBlock)
	g.line("while (reinterpret_cast<const volatile int*>(%s)[row * %d + p] == 0) __nanosleep(20);", told, sc.parts)
	g.line("__threadfence();")
	for _, a := range g.k.Anchors {
		g.line("carry%d.merge(kw::fresh(&%s));", a.Value.ID, at(a, "p"))
	}
	g.close()
	for _, a := range g.k.Anchors {
		g.line("carry%d = kw::block_reduce<%d>(carry%d);", a.Value.ID, scanBlock, a.Value.ID)
	}
}

// scanParts is into how many parts a row is cut where there are too few of them for
// the device: so that there are blocks for all of it, or into as many as the schedule
// asks for. Products and doubles are left whole: a part of theirs may overflow where
// the whole does not.
func (g *gpu) scanParts() int {
	rows := g.g.Rows()
	for _, a := range g.k.Anchors {
		if a.Value.Op != "sum" || a.Value.DType == plan.F64 {
			return 1
		}
	}
	width := g.g.Groups[g.g.Inner].Size
	most := min(powerBelow(width/splitScanLength), 1024)
	asked := g.knobs.Get("split", 1)
	if g.device.on.filled(rows) || most < 2 || asked == 0 {
		return 1
	}
	return min(most, max(asked, powerAbove((scanBlocks*g.device.on.multiprocessors+rows-1)/rows)))
}

// scanHead declares the row, and the part of it, that a block works on.
func (g *gpu) scanHead(parts int, number string) {
	g.sizes()
	if parts > 1 {
		g.line("constexpr pos per = ((%s) / V + %d) / %d * V;", g.size(g.g.Inner), parts-1, parts)
		g.line("const far row = %s / %d;", number, parts)
		g.line("const int part = %s %% %d;", number, parts)
		g.line("const pos from = part * per, to = from + per < width ? from + per : width;")
	} else {
		g.line("const far row = blockIdx.x;")
		g.line("const pos from = 0, to = width;")
	}
	g.decode("far", "row", g.g.Outer)
}

// scanBase declares where a thread's V elements lie: a reversed scan counts
// from the other end.
func (g *gpu) scanBase() {
	if g.k.Anchors[0].Value.Reverse {
		g.line("const pos base = width - V - at;")
	} else {
		g.line("const pos base = at;")
	}
}

// scanned runs over a thread's V elements in the order of the scan.
func (g *gpu) scanned(f func()) {
	g.line("#pragma unroll")
	g.open("for (int n = 0; n < V; ++n)")
	g.push()
	if g.k.Anchors[0].Value.Reverse {
		g.line("const int j = V - 1 - n;")
	} else {
		g.line("const int j = n;")
	}
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

// scanSums emits the kernel that sums each part of each row.
func (g *gpu) scanSums(sc *scanning) {
	parts, names := sc.parts, sc.names
	g.begin("_sums", scanBlock, names)
	g.scanHead(parts, "blockIdx.x")
	operands := g.scanOperands()
	g.compute(0, operands...)
	for _, a := range g.k.Anchors {
		typ, none := g.carried(a)
		g.line("%s a%d = {%s};", typ, a.Value.ID, none)
	}
	g.open("for (pos at = from + (pos)threadIdx.x * V; at < to; at += %d * V)", scanBlock)
	g.push()
	g.scanBase()
	saved := g.arrays
	g.arrays = map[*plan.Value]string{}
	g.fetch(operands, nil)
	g.scanned(func() {
		g.compute(g.innermost(), operands...)
		for _, a := range g.k.Anchors {
			g.line("a%d.v += %s;", a.Value.ID, g.text(a.Operand))
		}
	})
	g.arrays = saved
	g.pop()
	g.close()
	for i, a := range g.k.Anchors {
		typ, _ := g.carried(a)
		g.line("a%d = kw::block_reduce<%d>(a%d);", a.Value.ID, scanBlock, a.Value.ID)
		g.line("if (threadIdx.x == 0) reinterpret_cast<%s*>(%s)[row * %d + part] = a%d;", typ, names[i], parts, a.Value.ID)
	}
	g.end()
	g.start("_sums", scanBlock, fmt.Sprintf("rows * %d", parts), names)
}

// scanRows emits the kernel that scans rows, or parts of them whose sums are
// known: a block takes a tile after the other, and carries the sum on.
func (g *gpu) scanRows(suffix string, sc *scanning) {
	parts, names := sc.parts, sc.names
	g.begin(suffix, scanBlock, names)
	if sc.held != nil {
		// Blocks take parts in the order in which they come: those that one waits for are there.
		g.line("__shared__ unsigned number;")
		g.line("if (threadIdx.x == 0) number = atomicAdd(reinterpret_cast<unsigned*>(%s), 1u);", names[len(names)-1])
		g.line("__syncthreads();")
		g.line("extern __shared__ __align__(16) unsigned char shared[];")
		g.scanHead(parts, "number")
		for _, v := range sc.sorted() {
			g.line("%s* const %s = reinterpret_cast<%s*>(shared + %d);", element(v.DType), sc.held[v], element(v.DType), sc.begin[v])
		}
	} else {
		g.scanHead(parts, "blockIdx.x")
	}
	operands := g.scanOperands()
	roots := g.scanRoots()
	g.compute(0, roots...)
	for i, a := range g.k.Anchors {
		typ, none := g.carried(a)
		g.line("%s carry%d = {%s};", typ, a.Value.ID, none)
		if parts > 1 && sc.held == nil {
			g.line("for (int p = threadIdx.x; p < part; p += %d) carry%d.merge(reinterpret_cast<const %s*>(%s)[row * %d + p]);",
				scanBlock, a.Value.ID, typ, names[i], parts)
			g.line("carry%d = kw::block_reduce<%d>(carry%d);", a.Value.ID, scanBlock, a.Value.ID)
		}
	}
	if sc.held != nil {
		g.sumEarlier(sc)
	}
	// What the next tiles load is under way while this one is scanned.
	var loads []*plan.Value
	for _, r := range operands {
		if sc.held != nil {
			break
		}
		plan.Visit(r, func(v *plan.Value) {
			if (g.neighbours(v) || placed(v)) && !slices.Contains(loads, v) {
				loads = append(loads, v)
			}
		})
	}
	ahead := func(at string) {
		g.open("if (const pos at = %s; at < to)", at)
		g.scanBase()
		for _, v := range loads {
			if g.neighbours(v) {
				g.bring(v, destination{array: fmt.Sprintf("ahead%d[d]", v.ID)})
				continue
			}
			g.scanned(func() {
				g.compute(g.innermost(), v)
				g.line("ahead%d[d][j] = %s;", v.ID, g.text(v))
			})
		}
		g.close()
	}
	tiles := min(4*g.knobs.Get("unroll", scansAhead)/g.vector, mostTiles*min(4/g.vector, 2))
	for _, v := range loads {
		g.line("%s ahead%d[%d][V];", element(v.DType), v.ID, tiles)
	}
	each := func(f func()) {
		g.line("#pragma unroll")
		g.open("for (int d = 0; d < %d; ++d)", tiles)
		f()
		g.close()
	}
	if len(loads) > 0 {
		each(func() { ahead(fmt.Sprintf("from + (d * %d + (pos)threadIdx.x) * V", scanBlock)) })
	}
	g.open("for (pos begin = from; begin < to; begin += %d * V)", tiles*scanBlock)
	for _, v := range loads {
		g.line("%s x%d[%d][V];", element(v.DType), v.ID, tiles)
	}
	for _, a := range g.k.Anchors {
		typ, _ := g.carried(a)
		own := typ
		if g.briefly(a) {
			own = "float"
		}
		g.line("%s own%d[%d][V];", own, a.Value.ID, tiles)
		g.line("%s sum%d[%d], earlier%d[%d], all%d[%d];", typ, a.Value.ID, tiles, a.Value.ID, tiles, a.Value.ID, tiles)
	}
	// Tiles side by side: what threads hold of them is merged at one go.
	tile := func() {
		g.line("const pos at = begin + (d * %d + (pos)threadIdx.x) * V;", scanBlock)
		g.line("const bool live = at < to;")
	}
	saved := g.arrays
	there := func(v *plan.Value) destination {
		if slices.Contains(loads, v) {
			return destination{array: fmt.Sprintf("x%d[d]", v.ID), there: true}
		}
		return sc.intoHeld(v)
	}
	each(func() {
		g.push()
		tile()
		for _, v := range loads {
			g.line("#pragma unroll")
			g.line("for (int j = 0; j < V; ++j) x%d[d][j] = ahead%d[d][j];", v.ID, v.ID)
		}
		if len(loads) > 0 {
			ahead(fmt.Sprintf("begin + ((%d + d) * %d + (pos)threadIdx.x) * V", tiles, scanBlock))
		}
		for _, a := range g.k.Anchors {
			_, none := g.carried(a)
			if g.briefly(a) {
				g.line("float near%d = 0, four%d = 0;", a.Value.ID, a.Value.ID)
			}
			g.line("sum%d[d] = {%s};", a.Value.ID, none)
		}
		g.arrays = map[*plan.Value]string{}
		g.open("if (live)")
		g.push()
		g.scanBase()
		for _, v := range loads {
			g.arrays[v] = fmt.Sprintf("x%d[d]", v.ID)
		}
		g.fetch(operands, there)
		g.scanned(func() {
			g.compute(g.innermost(), operands...)
			for _, a := range g.k.Anchors {
				op := "+"
				if a.Value.Op == "prod" {
					op = "*"
				}
				if g.briefly(a) {
					// What is carried on has the errors of no more than four elements.
					g.line("own%d[d][j] = near%d += %s;", a.Value.ID, a.Value.ID, g.text(a.Operand))
					g.line("four%d += %s;", a.Value.ID, g.text(a.Operand))
					g.line("if (n %% 4 == 3 || n == V - 1) sum%d[d].v += four%d, four%d = 0;", a.Value.ID, a.Value.ID, a.Value.ID)
					continue
				}
				g.line("sum%d[d].v = sum%d[d].v %s %s;", a.Value.ID, a.Value.ID, op, g.text(a.Operand))
				g.line("own%d[d][j] = sum%d[d];", a.Value.ID, a.Value.ID)
			}
		})
		g.pop()
		g.close()
		g.arrays = saved
		g.pop()
	})
	for _, a := range g.k.Anchors {
		typ, none := g.carried(a)
		g.line("kw::block_scan<%d>(sum%d, %s{%s}, earlier%d, all%d);", scanBlock, a.Value.ID, typ, none, a.Value.ID, a.Value.ID)
	}
	each(func() {
		g.push()
		tile()
		g.open("if (live)")
		g.push()
		g.scanBase()
		g.arrays = map[*plan.Value]string{}
		for _, a := range g.k.Anchors {
			if g.briefly(a) {
				// In two floats: what the first leaves is added to the small number.
				g.line("const double before%d = carry%d.v + earlier%d[d].v;", a.Value.ID, a.Value.ID, a.Value.ID)
				g.line("const float high%d = (float)before%d, low%d = high%d - high%d == 0 ? (float)(before%d - high%d) : 0;",
					a.Value.ID, a.Value.ID, a.Value.ID, a.Value.ID, a.Value.ID, a.Value.ID, a.Value.ID)
			}
		}
		g.tile(nil, g.k.Stores, "", there, func() {
			for _, a := range g.k.Anchors {
				typ, _ := g.carried(a)
				if g.briefly(a) {
					g.line("const float s%d = high%d + (own%d[d][j] + low%d);", a.Value.ID, a.Value.ID, a.Value.ID, a.Value.ID)
					continue
				}
				g.line("%s run%d = carry%d;", typ, a.Value.ID, a.Value.ID)
				g.line("run%d.merge(earlier%d[d]);", a.Value.ID, a.Value.ID)
				g.line("run%d.merge(own%d[d][j]);", a.Value.ID, a.Value.ID)
				g.line("const %s s%d = (%s)run%d.v;", cppTypes[a.Value.DType], a.Value.ID, cppTypes[a.Value.DType], a.Value.ID)
			}
		})
		g.pop()
		g.close()
		g.arrays = saved
		for _, a := range g.k.Anchors {
			g.line("carry%d.merge(all%d[d]);", a.Value.ID, a.Value.ID)
		}
		g.pop()
	})
	g.close()
	g.end()
	if sc.held != nil {
		g.startHeld(suffix, scanBlock, sc.bytes, fmt.Sprintf("rows * %d", parts), names,
			fmt.Sprintf("cudaMemsetAsync(%s, 0, %d, stream);", names[len(names)-1], counterBytes),
			fmt.Sprintf("cudaMemsetAsync(%s, 0, rows * %d, stream);", names[len(names)-2], parts*4))
		return
	}
	blocks := "rows"
	if parts > 1 {
		blocks = fmt.Sprintf("rows * %d", parts)
	}
	g.start(suffix, scanBlock, blocks, names)
}

// placed reports whether a load's place follows from the element's position alone,
// as where a tensor is shifted by what is concatenated before it.
func placed(v *plan.Value) bool {
	if v.Kind != plan.Load || len(v.Args) == 0 {
		return false
	}
	alone := true
	for _, a := range v.Args {
		plan.Visit(a, func(w *plan.Value) {
			alone = alone && (w.Kind == plan.Position || w.Kind == plan.Constant || w.Kind == plan.Point)
		})
	}
	return alone
}

// scanColumns emits a scan along another dimension than the innermost: a thread
// takes V columns and goes along them.
func (g *gpu) scanColumns() {
	const block = 64 // few columns are spread over many multiprocessors
	g.begin("", block, nil)
	g.sizes()
	g.line("const far task = (far)blockIdx.x * %d + (int)threadIdx.x;", block)
	g.line("if (task >= rows * (width / V)) return;")
	g.line("const far row = task / (width / V);")
	g.line("const pos base = task %% (width / V) * V;")
	g.decode("far", "row", g.g.Outer)
	roots := g.scanRoots()
	g.compute(0, roots...)
	for _, a := range g.k.Anchors {
		_, none := g.carried(a)
		g.line("%s acc%d[V];", accumulator(a.Value.DType), a.Value.ID)
		g.line("#pragma unroll")
		g.line("for (int j = 0; j < V; ++j) acc%d[j] = %s;", a.Value.ID, none)
	}
	step := func() {
		g.tile(g.scanOperands(), g.k.Stores, "", nil, func() {
			for _, a := range g.k.Anchors {
				op := "+"
				if a.Value.Op == "prod" {
					op = "*"
				}
				g.line("acc%d[j] = acc%d[j] %s %s;", a.Value.ID, a.Value.ID, op, g.text(a.Operand))
				g.line("const %s s%d = (%s)acc%d[j];", cppTypes[a.Value.DType], a.Value.ID, cppTypes[a.Value.DType], a.Value.ID)
			}
		})
	}
	if len(g.g.Order) == 0 { // along a unit dimension
		step()
	} else {
		i := g.g.Order[0]
		g.line("#pragma unroll %d", g.knobs.Get("unroll", 4))
		if g.k.Anchors[0].Value.Reverse {
			g.open("for (pos i%d = %s - 1; i%d >= 0; --i%d)", i, g.size(i), i, i)
		} else {
			g.open("for (pos i%d = 0; i%d < %s; ++i%d)", i, i, g.size(i), i)
		}
		g.push()
		g.compute(1, roots...)
		step()
		g.pop()
		g.close()
	}
	g.end()
	g.start("", block, fmt.Sprintf("(rows * (width / V) + %d) / %d", block-1, block), nil)
}
