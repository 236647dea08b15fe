package coder

import (
	"fmt"
	"slices"
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
func (g *gpu) carried(a *anchor) (typ, none string) {
	if a.value.op == "prod" {
		return fmt.Sprintf("kw::Product<%s>", accumulator(a.value.dtype)), "1"
	}
	return fmt.Sprintf("kw::Sum<%s>", accumulator(a.value.dtype)), "0"
}

func (g *gpu) scans() {
	if g.g.lanes {
		g.scanColumns()
		return
	}
	parts := g.scanParts()
	if parts == 1 {
		g.scanRows("", &scanning{parts: 1})
		return
	}
	sc := &scanning{parts: parts}
	for _, a := range g.k.anchors {
		typ, _ := g.carried(a)
		sc.names = append(sc.names, fmt.Sprintf("part%d", a.value.id))
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
	held  map[*value]string
	begin map[*value]int // in bytes of shared memory
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
	var loads []*value
	each := 0
	for _, r := range g.scanOperands() {
		plain := true
		visit(r, func(v *value) {
			switch {
			case v.kind != load:
			case !g.neighbours(v):
				plain = false
			case !slices.Contains(loads, v):
				loads = append(loads, v)
				each += elementBytes(v.dtype)
			}
		})
		if !plain {
			return false
		}
	}
	if each == 0 || g.knobs.get("team", 0) < 2 {
		return false
	}
	room := (max(g.device.on.shared, leastShared)/scanBeside - 2<<10) / each / g.vector * g.vector
	width := g.g.groups[g.g.inner].size
	parts := max(sc.parts, (width+room-1)/room)
	if parts > mostScanParts {
		return false
	}
	per := (width/g.vector + parts - 1) / parts * g.vector
	g.device.scratch[g.k] = nil
	sc.parts, sc.held, sc.begin = parts, map[*value]string{}, map[*value]int{}
	for _, a := range g.k.anchors {
		typ, _ := g.carried(a)
		g.keepScratch(a, parts, sizeOf(typ))
	}
	for _, v := range loads {
		sc.held[v], sc.begin[v] = fmt.Sprintf("held%d", v.id), sc.bytes
		sc.bytes += (per*elementBytes(v.dtype) + 15) / 16 * 16
	}
	rows := g.g.rows()
	told, ticket := fmt.Sprintf("told%d", g.k.at), fmt.Sprintf("ticket%d", g.k.at)
	sc.names = append(sc.names, told, ticket)
	g.device.scratch[g.k] = append(g.device.scratch[g.k], scratch{name: told, bytes: rows * parts * 4, batch: g.k.batch}, scratch{name: ticket, bytes: counterBytes})
	return true
}

func (sc *scanning) sorted() []*value {
	var loads []*value
	for v := range sc.held {
		loads = append(loads, v)
	}
	slices.SortFunc(loads, func(a, b *value) int { return a.id - b.id })
	return loads
}

// intoHeld is where the loads of a part come from that is held.
func (sc *scanning) intoHeld(v *value) destination {
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
		g.line("const pos i%d = base;", g.g.inner)
		for _, v := range loads {
			g.line("kw::copy_ahead<V>(%s + (at - from), %s + (%s));", sc.held[v], v.buf.name, g.index(v.idx[0]))
		}
	})
	g.line("__pipeline_commit();")
	g.line("__pipeline_wait_prior(0);")
	for _, a := range g.k.anchors {
		typ, none := g.carried(a)
		g.line("%s a%d = {%s};", typ, a.value.id, none)
	}
	walk(func() {
		saved := g.arrays
		g.arrays = map[*value]string{}
		g.fetch(operands, sc.intoHeld)
		g.scanned(func() {
			g.compute(g.innermost(), operands...)
			for _, a := range g.k.anchors {
				g.line("a%d.v += %s;", a.value.id, g.text(a.operand))
			}
		})
		g.arrays = saved
	})
	told := sc.names[len(sc.names)-2]
	at := func(a *anchor, part string) string {
		typ, _ := g.carried(a)
		return fmt.Sprintf("reinterpret_cast<%s*>(part%d)[row * %d + %s]", typ, a.value.id, sc.parts, part)
	}
	for _, a := range g.k.anchors {
		g.line("a%d = kw::block_reduce<%d>(a%d);", a.value.id, scanBlock, a.value.id)
		g.line("if (threadIdx.x == 0) %s = a%d;", at(a, "part"), a.value.id)
	}
	g.open("if (threadIdx.x == 0)")
	g.line("__threadfence();")
	g.line("reinterpret_cast<volatile int*>(%s)[row * %d + part] = 1;", told, sc.parts)
	g.close()
	g.open("for (int p = threadIdx.x; p < part; p += %d)", scanBlock)
	g.line("while (reinterpret_cast<const volatile int*>(%s)[row * %d + p] == 0) __nanosleep(20);", told, sc.parts)
	g.line("__threadfence();")
	for _, a := range g.k.anchors {
		g.line("carry%d.merge(kw::fresh(&%s));", a.value.id, at(a, "p"))
	}
	g.close()
	for _, a := range g.k.anchors {
		g.line("carry%d = kw::block_reduce<%d>(carry%d);", a.value.id, scanBlock, a.value.id)
	}
}

// scanParts is into how many parts a row is cut where there are too few of them for
// the device: so that there are blocks for all of it, or into as many as the schedule
// asks for. Products and doubles are left whole: a part of theirs may overflow where
// the whole does not.
func (g *gpu) scanParts() int {
	rows := g.g.rows()
	for _, a := range g.k.anchors {
		if a.value.op != "sum" || a.value.dtype == f64 {
			return 1
		}
	}
	width := g.g.groups[g.g.inner].size
	most := min(powerBelow(width/splitScanLength), 1024)
	asked := g.knobs.get("split", 1)
	if g.device.on.filled(rows) || most < 2 || asked == 0 {
		return 1
	}
	return min(most, max(asked, powerAbove((scanBlocks*g.device.on.multiprocessors+rows-1)/rows)))
}

// scanHead declares the row, and the part of it, that a block works on.
func (g *gpu) scanHead(parts int, number string) {
	g.sizes()
	if parts > 1 {
		g.line("constexpr pos per = ((%s) / V + %d) / %d * V;", g.size(g.g.inner), parts-1, parts)
		g.line("const far row = %s / %d;", number, parts)
		g.line("const int part = %s %% %d;", number, parts)
		g.line("const pos from = part * per, to = from + per < width ? from + per : width;")
	} else {
		g.line("const far row = blockIdx.x;")
		g.line("const pos from = 0, to = width;")
	}
	g.decode("far", "row", g.g.outer)
}

// scanBase declares where a thread's V elements lie: a reversed scan counts
// from the other end.
func (g *gpu) scanBase() {
	if g.k.anchors[0].value.reverse {
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
	if g.k.anchors[0].value.reverse {
		g.line("const int j = V - 1 - n;")
	} else {
		g.line("const int j = n;")
	}
	g.line("const pos i%d = base + j;", g.g.inner)
	for v, name := range g.arrays {
		text := name + "[j]"
		if v.dtype == boole {
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
	for _, a := range g.k.anchors {
		typ, none := g.carried(a)
		g.line("%s a%d = {%s};", typ, a.value.id, none)
	}
	g.open("for (pos at = from + (pos)threadIdx.x * V; at < to; at += %d * V)", scanBlock)
	g.push()
	g.scanBase()
	saved := g.arrays
	g.arrays = map[*value]string{}
	g.fetch(operands, nil)
	g.scanned(func() {
		g.compute(g.innermost(), operands...)
		for _, a := range g.k.anchors {
			g.line("a%d.v += %s;", a.value.id, g.text(a.operand))
		}
	})
	g.arrays = saved
	g.pop()
	g.close()
	for i, a := range g.k.anchors {
		typ, _ := g.carried(a)
		g.line("a%d = kw::block_reduce<%d>(a%d);", a.value.id, scanBlock, a.value.id)
		g.line("if (threadIdx.x == 0) reinterpret_cast<%s*>(%s)[row * %d + part] = a%d;", typ, names[i], parts, a.value.id)
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
			g.line("%s* const %s = reinterpret_cast<%s*>(shared + %d);", element(v.dtype), sc.held[v], element(v.dtype), sc.begin[v])
		}
	} else {
		g.scanHead(parts, "blockIdx.x")
	}
	operands := g.scanOperands()
	roots := g.scanRoots()
	g.compute(0, roots...)
	for i, a := range g.k.anchors {
		typ, none := g.carried(a)
		g.line("%s carry%d = {%s};", typ, a.value.id, none)
		if parts > 1 && sc.held == nil {
			g.line("for (int p = threadIdx.x; p < part; p += %d) carry%d.merge(reinterpret_cast<const %s*>(%s)[row * %d + p]);",
				scanBlock, a.value.id, typ, names[i], parts)
			g.line("carry%d = kw::block_reduce<%d>(carry%d);", a.value.id, scanBlock, a.value.id)
		}
	}
	if sc.held != nil {
		g.sumEarlier(sc)
	}
	// What the next tiles load is under way while this one is scanned.
	var loads []*value
	for _, r := range operands {
		if sc.held != nil {
			break
		}
		visit(r, func(v *value) {
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
				g.bring(v, destination{array: fmt.Sprintf("ahead%d[d]", v.id)})
				continue
			}
			g.scanned(func() {
				g.compute(g.innermost(), v)
				g.line("ahead%d[d][j] = %s;", v.id, g.text(v))
			})
		}
		g.close()
	}
	tiles := min(4*g.knobs.get("unroll", scansAhead)/g.vector, mostTiles*min(4/g.vector, 2))
	for _, v := range loads {
		g.line("%s ahead%d[%d][V];", element(v.dtype), v.id, tiles)
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
		g.line("%s x%d[%d][V];", element(v.dtype), v.id, tiles)
	}
	for _, a := range g.k.anchors {
		typ, _ := g.carried(a)
		own := typ
		if g.briefly(a) {
			own = "float"
		}
		g.line("%s own%d[%d][V];", own, a.value.id, tiles)
		g.line("%s sum%d[%d], earlier%d[%d], all%d[%d];", typ, a.value.id, tiles, a.value.id, tiles, a.value.id, tiles)
	}
	// Tiles side by side: what threads hold of them is merged at one go.
	tile := func() {
		g.line("const pos at = begin + (d * %d + (pos)threadIdx.x) * V;", scanBlock)
		g.line("const bool live = at < to;")
	}
	saved := g.arrays
	there := func(v *value) destination {
		if slices.Contains(loads, v) {
			return destination{array: fmt.Sprintf("x%d[d]", v.id), there: true}
		}
		return sc.intoHeld(v)
	}
	each(func() {
		g.push()
		tile()
		for _, v := range loads {
			g.line("#pragma unroll")
			g.line("for (int j = 0; j < V; ++j) x%d[d][j] = ahead%d[d][j];", v.id, v.id)
		}
		if len(loads) > 0 {
			ahead(fmt.Sprintf("begin + ((%d + d) * %d + (pos)threadIdx.x) * V", tiles, scanBlock))
		}
		for _, a := range g.k.anchors {
			_, none := g.carried(a)
			if g.briefly(a) {
				g.line("float near%d = 0, four%d = 0;", a.value.id, a.value.id)
			}
			g.line("sum%d[d] = {%s};", a.value.id, none)
		}
		g.arrays = map[*value]string{}
		g.open("if (live)")
		g.push()
		g.scanBase()
		for _, v := range loads {
			g.arrays[v] = fmt.Sprintf("x%d[d]", v.id)
		}
		g.fetch(operands, there)
		g.scanned(func() {
			g.compute(g.innermost(), operands...)
			for _, a := range g.k.anchors {
				op := "+"
				if a.value.op == "prod" {
					op = "*"
				}
				if g.briefly(a) {
					// What is carried on has the errors of no more than four elements.
					g.line("own%d[d][j] = near%d += %s;", a.value.id, a.value.id, g.text(a.operand))
					g.line("four%d += %s;", a.value.id, g.text(a.operand))
					g.line("if (n %% 4 == 3 || n == V - 1) sum%d[d].v += four%d, four%d = 0;", a.value.id, a.value.id, a.value.id)
					continue
				}
				g.line("sum%d[d].v = sum%d[d].v %s %s;", a.value.id, a.value.id, op, g.text(a.operand))
				g.line("own%d[d][j] = sum%d[d];", a.value.id, a.value.id)
			}
		})
		g.pop()
		g.close()
		g.arrays = saved
		g.pop()
	})
	for _, a := range g.k.anchors {
		typ, none := g.carried(a)
		g.line("kw::block_scan<%d>(sum%d, %s{%s}, earlier%d, all%d);", scanBlock, a.value.id, typ, none, a.value.id, a.value.id)
	}
	each(func() {
		g.push()
		tile()
		g.open("if (live)")
		g.push()
		g.scanBase()
		g.arrays = map[*value]string{}
		for _, a := range g.k.anchors {
			if g.briefly(a) {
				// In two floats: what the first leaves is added to the small number.
				g.line("const double before%d = carry%d.v + earlier%d[d].v;", a.value.id, a.value.id, a.value.id)
				g.line("const float high%d = (float)before%d, low%d = high%d - high%d == 0 ? (float)(before%d - high%d) : 0;",
					a.value.id, a.value.id, a.value.id, a.value.id, a.value.id, a.value.id, a.value.id)
			}
		}
		g.tile(nil, g.k.stores, "", there, func() {
			for _, a := range g.k.anchors {
				typ, _ := g.carried(a)
				if g.briefly(a) {
					g.line("const float s%d = high%d + (own%d[d][j] + low%d);", a.value.id, a.value.id, a.value.id, a.value.id)
					continue
				}
				g.line("%s run%d = carry%d;", typ, a.value.id, a.value.id)
				g.line("run%d.merge(earlier%d[d]);", a.value.id, a.value.id)
				g.line("run%d.merge(own%d[d][j]);", a.value.id, a.value.id)
				g.line("const %s s%d = (%s)run%d.v;", cppTypes[a.value.dtype], a.value.id, cppTypes[a.value.dtype], a.value.id)
			}
		})
		g.pop()
		g.close()
		g.arrays = saved
		for _, a := range g.k.anchors {
			g.line("carry%d.merge(all%d[d]);", a.value.id, a.value.id)
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
func placed(v *value) bool {
	if v.kind != load || len(v.args) == 0 {
		return false
	}
	alone := true
	for _, a := range v.args {
		visit(a, func(w *value) {
			alone = alone && (w.kind == position || w.kind == constant || w.kind == point)
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
	g.decode("far", "row", g.g.outer)
	roots := g.scanRoots()
	g.compute(0, roots...)
	for _, a := range g.k.anchors {
		_, none := g.carried(a)
		g.line("%s acc%d[V];", accumulator(a.value.dtype), a.value.id)
		g.line("#pragma unroll")
		g.line("for (int j = 0; j < V; ++j) acc%d[j] = %s;", a.value.id, none)
	}
	step := func() {
		g.tile(g.scanOperands(), g.k.stores, "", nil, func() {
			for _, a := range g.k.anchors {
				op := "+"
				if a.value.op == "prod" {
					op = "*"
				}
				g.line("acc%d[j] = acc%d[j] %s %s;", a.value.id, a.value.id, op, g.text(a.operand))
				g.line("const %s s%d = (%s)acc%d[j];", cppTypes[a.value.dtype], a.value.id, cppTypes[a.value.dtype], a.value.id)
			}
		})
	}
	if len(g.g.order) == 0 { // along a unit dimension
		step()
	} else {
		i := g.g.order[0]
		g.line("#pragma unroll %d", g.knobs.get("unroll", 4))
		if g.k.anchors[0].value.reverse {
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
