package coder

import "fmt"

// scanBlock is how many threads scan one row.
const scanBlock = 256

// splitScanLength is the length of a part of a row below which it is not worth
// to read the row twice, so that several blocks share it.
const splitScanLength = 1 << 14

// carried is what is kept of the elements so far of a scan.
func (g *gpu) carried(a *anchor) (typ, none string) {
	if a.value.op == "prod" {
		g.used["Product"] = true
		return fmt.Sprintf("Product<%s>", accumulator(a.value.dtype)), "1"
	}
	g.used["Sum"] = true
	return fmt.Sprintf("Sum<%s>", accumulator(a.value.dtype)), "0"
}

func (g *gpu) scans() {
	if g.g.lanes {
		g.scanColumns()
		return
	}
	parts := g.scanParts()
	if parts == 1 {
		g.scanRows("", 1, nil)
		return
	}
	var names []string
	for _, a := range g.k.anchors {
		typ, _ := g.carried(a)
		names = append(names, fmt.Sprintf("part%d", a.value.id))
		g.keepScratch(a, parts, sizeOf(typ))
	}
	g.scanSums(parts, names)
	g.scanRows("_all", parts, names)
}

// scanParts is into how many parts a row is cut, so that there are blocks for
// the whole device. Products and doubles are left whole: a part of theirs may
// overflow where the whole does not.
func (g *gpu) scanParts() int {
	rows := 1
	for _, i := range g.g.outer {
		rows *= g.g.groups[i].size
	}
	for _, a := range g.k.anchors {
		if a.value.op != "sum" || a.value.dtype == f64 {
			return 1
		}
	}
	width := g.g.groups[g.g.inner].size
	most := min(powerBelow(width/splitScanLength), 1024)
	if rows >= g.device.multiprocessors || most < 2 || g.knobs.get("split", 1) == 0 {
		return 1
	}
	return min(most, powerAbove((2*g.device.multiprocessors+rows-1)/rows))
}

// scanHead declares the row, and the part of it, that a block works on.
func (g *gpu) scanHead(parts int) {
	g.sizes()
	if parts > 1 {
		g.line("constexpr pos per = ((%s) / V + %d) / %d * V;", g.size(g.g.inner), parts-1, parts)
		g.line("const far row = blockIdx.x / %d;", parts)
		g.line("const int part = blockIdx.x %% %d;", parts)
		g.line("const pos from = part * per, to = from + per < width ? from + per : width;")
	} else {
		g.line("const far row = blockIdx.x;")
		g.line("const pos from = 0, to = width;")
	}
	g.line("(void)row;")
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
func (g *gpu) scanSums(parts int, names []string) {
	g.used["across"] = true
	g.begin("_sums", scanBlock, names)
	g.scanHead(parts)
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
		g.line("a%d = across<%d>(a%d);", a.value.id, scanBlock, a.value.id)
		g.line("if (threadIdx.x == 0) reinterpret_cast<%s*>(%s)[row * %d + part] = a%d;", typ, names[i], parts, a.value.id)
	}
	g.end()
	g.start("_sums", scanBlock, fmt.Sprintf("rows * %d", parts), names)
}

// scanRows emits the kernel that scans rows, or parts of them whose sums are
// known: a block takes a tile after the other, and carries the sum on.
func (g *gpu) scanRows(suffix string, parts int, names []string) {
	g.used["before"] = true
	g.begin(suffix, scanBlock, names)
	g.scanHead(parts)
	operands := g.scanOperands()
	roots := g.scanRoots()
	g.compute(0, roots...)
	for i, a := range g.k.anchors {
		typ, none := g.carried(a)
		g.line("%s carry%d = {%s};", typ, a.value.id, none)
		if parts > 1 {
			g.used["across"] = true
			g.line("for (int p = threadIdx.x; p < part; p += %d) carry%d.merge(reinterpret_cast<const %s*>(%s)[row * %d + p]);",
				scanBlock, a.value.id, typ, names[i], parts)
			g.line("carry%d = across<%d>(carry%d);", a.value.id, scanBlock, a.value.id)
		}
	}
	g.open("for (pos tile = from; tile < to; tile += %d * V)", scanBlock)
	g.push()
	g.line("const pos at = tile + (pos)threadIdx.x * V;")
	g.line("const bool live = at < to;")
	for _, a := range g.k.anchors {
		typ, none := g.carried(a)
		g.line("%s own%d[V], sum%d = {%s};", typ, a.value.id, a.value.id, none)
	}
	saved := g.arrays
	g.arrays = map[*value]string{}
	g.open("if (live)")
	g.push()
	g.scanBase()
	g.fetch(operands, nil)
	g.scanned(func() {
		g.compute(g.innermost(), operands...)
		for _, a := range g.k.anchors {
			op := "+"
			if a.value.op == "prod" {
				op = "*"
			}
			g.line("sum%d.v = sum%d.v %s %s;", a.value.id, a.value.id, op, g.text(a.operand))
			g.line("own%d[j] = sum%d;", a.value.id, a.value.id)
		}
	})
	g.pop()
	g.close()
	for _, a := range g.k.anchors {
		typ, none := g.carried(a)
		g.line("%s earlier%d, all%d;", typ, a.value.id, a.value.id)
		g.line("before<%d>(sum%d, %s{%s}, earlier%d, all%d);", scanBlock, a.value.id, typ, none, a.value.id, a.value.id)
	}
	g.open("if (live)")
	g.push()
	g.scanBase()
	g.arrays = map[*value]string{}
	g.tile(nil, g.k.stores, "", nil, func() {
		for _, a := range g.k.anchors {
			typ, _ := g.carried(a)
			g.line("%s run%d = carry%d;", typ, a.value.id, a.value.id)
			g.line("run%d.merge(earlier%d);", a.value.id, a.value.id)
			g.line("run%d.merge(own%d[j]);", a.value.id, a.value.id)
			g.line("const %s s%d = (%s)run%d.v;", cppTypes[a.value.dtype], a.value.id, cppTypes[a.value.dtype], a.value.id)
		}
	})
	g.pop()
	g.close()
	g.arrays = saved
	for _, a := range g.k.anchors {
		g.line("carry%d.merge(all%d);", a.value.id, a.value.id)
	}
	g.pop()
	g.close()
	g.end()
	blocks := "rows"
	if parts > 1 {
		blocks = fmt.Sprintf("rows * %d", parts)
	}
	g.start(suffix, scanBlock, blocks, names)
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
	g.line("(void)row;")
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
