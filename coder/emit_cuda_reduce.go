package coder

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// reducing is how a reduction is spread: threads of one row side by side (T of
// them), or, where rows lie side by side, X threads over columns and Y along
// them; and into how many parts a row is cut, each with a block of its own.
type reducing struct {
	*gpu
	threads, rowsPerBlock int // of a row; rows of a block
	x, y                  int
	block                 int
	parts                 int
	pieces                int               // of a row, of a pass that is done for what it writes: see written
	back                  bool              // the last parts first: those that the kernel before has just read
	steps                 int               // vectors of a row, or elements of a column
	kept                  map[*value]string // loads that stay in registers from pass to pass
	held                  map[*value]string // loads that stay in shared memory
	filled                map[*value]bool   // of those in registers, already loaded
	names                 []string          // of the parts' results
	ending                bool              // the kernel after the last part: one block a row
	team                  int               // blocks that hold a row between them; see emit_cuda_team.go
	room                  int               // elements of each held load that a block holds
	whole                 bool              // that is all of its part
	after                 func()            // what a walk does after each step, or nil
}

// carry is what threads hold of one reduction, or of two that share a pass.
type carry struct {
	a, with *anchor // with is the second of a pair, else nil
	typ     string
	init    string
	last    string // of a search: the position that stands for none
}

func (g *gpu) carry(a *anchor, accs []*anchor) carry {
	t := cppTypes[a.operand.dtype]
	c := carry{a: a}
	for _, d := range accs {
		if d.with == a {
			c.with = d
		}
	}
	at, last := "int", "INT_MAX"
	if g.k.rowLength() > positionsLimit {
		at, last = "long long", "LLONG_MAX"
	}
	switch op := a.value.op; {
	case c.with != nil && op == "mean":
		c.typ, c.init = "kw::Welford<"+t+">", "0, 0, 0"
	case c.with != nil:
		c.typ, c.init = "kw::MaxSum<"+t+">", literal(-inf, a.operand.dtype)+", 0"
	case op == "prod":
		c.typ, c.init = "kw::Product<"+accumulator(a.value.dtype)+">", "1"
	case op == "max":
		c.typ, c.init = "kw::Max<"+t+">", literal(-inf, a.operand.dtype)
	case op == "min":
		c.typ, c.init = "kw::Min<"+t+">", literal(inf, a.operand.dtype)
	case op == "maxnum":
		c.typ, c.init = "kw::MaxNum<"+t+">", literal(-inf, a.operand.dtype)
	case op == "argmax":
		c.typ, c.init = "kw::ArgMax<"+t+", "+at+">", literal(-inf, a.operand.dtype)+", "+last
	case op == "argmin":
		c.typ, c.init = "kw::ArgMin<"+t+", "+at+">", literal(inf, a.operand.dtype)+", "+last
	default:
		c.typ, c.init = "kw::Sum<"+accumulator(a.value.dtype)+">", "0"
	}
	if strings.HasPrefix(a.value.op, "arg") {
		c.last = last
	}
	return c
}

// sizeOf returns the bytes of a carry, a type of kw/reduce.h, kw/softmax.h or kw/welford.h.
func sizeOf(typ string) int {
	form, of, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(typ, "kw::"), ">"), "<")
	switch {
	case form == "MaxSum" || (strings.HasPrefix(form, "Arg") && of != "float, int"):
		return 16
	case form == "Welford":
		return 24
	case of == "float" || of == "int":
		return 4
	}
	return 8
}

// keepScratch has memory for each part of each row, or of each column.
func (g *gpu) keepScratch(a *anchor, parts, bytes int) {
	n := parts * bytes * g.g.rows()
	if g.g.lanes {
		n *= g.g.groups[g.g.inner].size
	}
	g.device.scratch[g.k] = append(g.device.scratch[g.k], scratch{name: fmt.Sprintf("part%d", a.value.id), bytes: n, batch: g.k.batch})
}

func (g *gpu) reductions() {
	r := &reducing{gpu: g, parts: 1, kept: map[*value]string{}, held: map[*value]string{}, filled: map[*value]bool{}}
	g.k.join(false)
	r.spread()
	if !r.keep() {
		g.k.join(g.knobs.get("passes", 1) == 1)
		r.hold()
	}
	last := 0
	for _, a := range g.k.anchors {
		last = max(last, a.stage)
	}
	for _, s := range g.k.stores {
		if !s.row {
			last = max(last, g.k.stageOf(s.value))
		}
	}
	if r.team > 0 {
		r.teams(last)
		return
	}
	if r.g.lanes && len(r.held) > 0 {
		r.heldColumns(last)
		return
	}
	if r.parts == 1 {
		g.begin("", r.block, nil)
		r.head()
		for stage := range last + 1 {
			r.pass(stage)
		}
		r.rowStores()
		g.end()
		g.start("", r.block, r.blocks(), nil)
		return
	}
	for _, a := range g.k.anchors {
		if a.with == nil {
			c := g.carry(a, g.k.anchors)
			r.names = append(r.names, fmt.Sprintf("part%d", a.value.id))
			g.keepScratch(a, r.parts, sizeOf(c.typ))
		}
	}
	launches := 0
	for stage := range last + 1 {
		accs, stores := r.of(stage)
		if len(accs)+len(stores) == 0 {
			continue
		}
		suffix := fmt.Sprintf("_%d", stage)
		r.back = launches%2 > 0
		launches++
		r.pieces = r.parts
		if len(accs) == 0 {
			r.pieces = r.written()
		}
		g.begin(suffix, r.block, r.names)
		r.head()
		for earlier := range stage {
			r.recall(earlier)
		}
		r.pass(stage)
		g.end()
		g.start(suffix, r.block, r.blocks(), r.names)
		clear(g.rowed)
	}
	if slices.ContainsFunc(g.k.stores, func(s store) bool { return s.row }) {
		whole := r.parts
		g.begin("_rows", r.block, r.names)
		r.ending = true
		r.head()
		for earlier := range last + 1 {
			r.recall(earlier)
		}
		r.rowStores()
		g.end()
		r.parts = 1
		g.start("_rows", r.block, r.blocks(), r.names)
		r.parts = whole
	}
}

// of returns the reductions and full stores of a stage.
func (r *reducing) of(stage int) (accs []*anchor, stores []store) {
	for _, a := range r.k.anchors {
		if a.stage == stage {
			accs = append(accs, a)
		}
	}
	for _, s := range r.k.stores {
		if !s.row && r.k.stageOf(s.value) == stage {
			stores = append(stores, s)
		}
	}
	return accs, stores
}

// Of columns a block takes so many at most, with so many threads.
const (
	laneColumns = 128
	laneThreads = 512
)

// laneBlocks is how many blocks take x columns, or vectors of them, each.
func (g geometry) laneBlocks(columns, x int) int { return g.rows() * ((columns + x - 1) / x) }

// narrow halves what a block takes, but not below 32, until each multiprocessor has a
// block.
func (t target) narrow(x int, blocks func(x int) int) int {
	for x > 32 && blocks(x) < t.multiprocessors {
		x /= 2
	}
	return x
}

// spread chooses the threads: so many that each takes its share of a row. Short
// rows share a block.
func (r *reducing) spread() {
	width, rows := r.g.groups[r.g.inner].size, r.g.rows()
	r.steps = 1
	for _, i := range r.g.order {
		r.steps *= r.g.groups[i].size
	}
	var blocks int
	if r.g.lanes {
		columns := (width + r.vector - 1) / r.vector
		// Threads side by side take 512 bytes of each row: a sector of memory that
		// two blocks share would be read twice.
		r.x = min(max(powerAbove(columns), 1), laneColumns/r.vector)
		few := func(x int) bool { return r.g.laneBlocks(columns, x) < r.device.on.multiprocessors }
		r.x = r.device.on.narrow(r.x, func(x int) int { return r.g.laneBlocks(columns, x) })
		along := 16
		// Blocks that take 128 bytes of each row, and more rows at once, cost less than
		// parts of rows that a second launch joins.
		if narrow := 32 / r.vector; narrow < r.x && few(r.x) && !few(narrow) {
			for r.x > narrow && few(r.x) {
				r.x, along = r.x/2, along*2
			}
		}
		r.y = min(powerBelow(r.steps/r.knobs.get("share", 4)), laneThreads/r.x, along)
		r.y = max(r.y, 32/r.x)
		r.block = r.x * r.y
		blocks = r.g.laneBlocks(columns, r.x)
	} else {
		r.steps *= width / r.vector
		share := r.knobs.get("share", 4)
		if rows < fewRows {
			share = max(share/4, 1) // whoever has the device for itself waits the less the less each thread does
		}
		r.threads = min(powerAbove((r.steps+share-1)/share), 1024)
		r.block = max(r.threads, leastBlock)
		r.rowsPerBlock = r.block / r.threads
		blocks = (rows + r.rowsPerBlock - 1) / r.rowsPerBlock
	}
	asked := r.knobs.get("split", 1)
	if asked == 0 || (asked == 1 && r.device.on.filled(blocks)) {
		return
	}
	// A part takes enough steps to be worth a launch of its own.
	along := r.y
	if !r.g.lanes {
		along = 256
	}
	most := powerBelow(r.steps / (along * 2))
	want := asked
	switch two := 2 * r.device.on.multiprocessors; {
	case r.device.on.filled(blocks):
	case r.g.lanes:
		// Blocks of many threads, of which a multiprocessor has room for two: one more would
		// wait for the others. 24 blocks of columns in 11 parts took 68 us on an H200, and 73
		// in 16.
		want = max(want, two/blocks)
	default:
		want = max(want, powerAbove((two+blocks-1)/blocks))
	}
	if r.oncePerRow() {
		// Nothing but the last kernel reads what the parts leave, so there may be more.
		bytes := r.steps * r.vector * 4
		want = max(want, min(powerBelow(bytes/partBytes), powerBelow(mostParts/rows)))
	}
	if parts := min(want, most); parts > 1 {
		r.parts = parts
		if !r.g.lanes {
			r.threads, r.block, r.rowsPerBlock = 256, 256, 1
		}
	}
}

// oncePerRow reports whether rows are read once, and nothing of full size written.
func (r *reducing) oncePerRow() bool {
	return !r.g.lanes && !slices.ContainsFunc(r.k.stores, func(s store) bool { return !s.row }) &&
		!slices.ContainsFunc(r.k.anchors, func(a *anchor) bool { return a.stage > 0 })
}

// Bytes of a part of a row that is read once, and of how many such parts there are by
// themselves at most, of all rows. On an H200 the sum of 4.3 GB takes 2 % less in
// 4,096 parts than in 512.
const (
	partBytes = 1 << 20
	mostParts = 1 << 12
)

// pieceBytes is what a block takes of a row in a pass that only writes. Each reads
// first what all parts left: 4 KiB for a sum in 512. Of 7.5 GB an H200 writes
// the quotients in 3.7 ms by blocks that take 64 or 128 KiB, and in 4.8 by 512
// blocks: what is read and what is written at one time lies close together then.
const pieceBytes = 1 << 16

// written is into how many pieces, each with a block of its own, a pass cuts a row
// from which nothing but a full store comes.
func (r *reducing) written() int {
	if r.g.lanes {
		return r.parts
	}
	return max(r.parts, powerBelow(r.steps*r.vector*4/pieceBytes))
}

// loads returns what passes over a row load, with how many of them do.
func (r *reducing) loads() (found []*value, passes map[*value]int) {
	stages := map[*value]map[int]bool{}
	use := func(root *value, stage int) {
		visit(root, func(v *value) {
			if !r.neighbours(v) || !r.k.varies(v) {
				return
			}
			if stages[v] == nil {
				stages[v] = map[int]bool{}
				found = append(found, v)
			}
			stages[v][stage] = true
		})
	}
	for _, a := range r.k.anchors {
		use(a.operand, a.stage)
	}
	for _, s := range r.k.stores {
		if !s.row {
			use(s.value, r.k.stageOf(s.value))
		}
	}
	passes = map[*value]int{}
	for v, in := range stages {
		passes[v] = len(in)
	}
	return found, passes
}

// again returns the loads that more than one pass over a row takes.
func (r *reducing) again() []*value {
	found, passes := r.loads()
	return slices.DeleteFunc(found, func(v *value) bool { return passes[v] < 2 })
}

// keep has the loads that more than one pass takes stay in registers, if a row's
// share of a thread is small enough, and reports whether they do.
func (r *reducing) keep() bool {
	if r.parts > 1 || r.knobs.get("keep", 1) == 0 || r.knobs.get("team", 0) > 1 {
		return false
	}
	found := r.again()
	if len(found) == 0 || r.share()*r.vector*len(found) > min(keptElements, keptInBlock/r.block) {
		return false
	}
	for _, v := range found {
		r.kept[v] = fmt.Sprintf("kept%d", v.id)
	}
	return true
}

// share is how many steps one thread takes at most.
func (r *reducing) share() int {
	along := r.threads
	if r.g.lanes {
		along = r.y
	}
	return (r.steps + along - 1) / along
}

// blocks is how many blocks there are, as the host computes it.
func (r *reducing) blocks() string {
	out := "rows"
	if r.rowsPerBlock > 1 {
		out = fmt.Sprintf("(rows + %d) / %d", r.rowsPerBlock-1, r.rowsPerBlock)
	}
	if r.g.lanes {
		out = fmt.Sprintf("rows * ((width / V + %d) / %d)", r.x-1, r.x)
	}
	if r.parts > 1 {
		out = fmt.Sprintf("(%s) * %d", out, r.pieces)
	}
	return out
}

// head declares which row, or columns, and which part a thread works on. All
// threads stay to the end: those without a row take the first, and store
// nothing.
func (r *reducing) head() {
	r.sizes()
	number, pieces := "(int)blockIdx.x", 1
	if r.parts > 1 && !r.ending {
		pieces = r.pieces
		if r.back {
			number = "(int)(gridDim.x - 1 - blockIdx.x)"
		}
	}
	r.line("const int number = %s;", number)
	switch {
	case r.g.lanes:
		// Blocks side by side read what lies side by side: on an H200 4 % more of it a
		// second than where they are the parts of the same columns.
		r.line("const int lane = threadIdx.x %% %d, y = threadIdx.x / %d;", r.x, r.x)
		r.line("const int tiles = (int)((width / V + %d) / %d), part = number / tiles %% %d;", r.x-1, r.x, pieces)
		r.line("const far row = number / tiles / %d;", pieces)
		r.line("const pos first = ((pos)(number %% tiles) * %d + lane) * V;", r.x)
		r.line("const bool live = first < width;")
		r.line("const pos base = live ? first : 0;")
	case r.rowsPerBlock > 1:
		r.line("const int lane = threadIdx.x %% %d, part = 0;", r.threads)
		r.line("const far mine = (far)number * %d + (int)threadIdx.x / %d;", r.rowsPerBlock, r.threads)
		r.line("const bool live = mine < rows;")
		r.line("const far row = live ? mine : 0;")
	default:
		r.line("const int lane = threadIdx.x %% %d, part = number %% %d;", r.threads, pieces)
		if pieces > 1 {
			r.line("const far row = number / %d;", pieces)
		} else {
			r.line("const far row = number;")
		}
		r.line("const bool live = true;")
	}
	steps := r.stepsText()
	if pieces > 1 {
		per := fmt.Sprintf("(steps + %d) / %d", pieces-1, pieces)
		// Blocks begin where their threads would come by, at lines of the cache: in between
		// they read a tenth less a second, on an H200.
		if along := r.along(); !r.g.lanes && r.steps >= 10*along*pieces && r.steps*r.vector+along*pieces < positionsLimit {
			per = fmt.Sprintf("(%s + %d) / %d * %d", per, along-1, along, along)
		}
		r.line("constexpr pos steps = %s, per = %s;", steps, per)
		r.line("const pos from = part * per, to = from + per < steps ? from + per : steps;")
	} else {
		r.line("constexpr pos steps = %s;", steps)
		if len(r.kept) > 0 {
			r.line("constexpr int share = (steps + %d) / %d;", r.along()-1, r.along())
		}
	}
	for _, l := range inOrder(r.kept) {
		r.line("%s %s[share][V];", element(l.v.dtype), l.name)
	}
	r.decode("far", "row", r.g.outer)
}

type keptLoad struct {
	v    *value
	name string
}

// inOrder returns loads by their number.
func inOrder(named map[*value]string) []keptLoad {
	var out []keptLoad
	for v, n := range named {
		out = append(out, keptLoad{v, n})
	}
	slices.SortFunc(out, func(a, b keptLoad) int { return a.v.id - b.v.id })
	return out
}

func (r *reducing) along() int {
	if r.g.lanes {
		return r.y
	}
	return r.threads
}

// stepsText is the number of steps of a row, which with the vectors that the
// pointers allow is a constant.
func (r *reducing) stepsText() string {
	var sizes []string
	for _, i := range r.g.order {
		sizes = append(sizes, r.size(i))
	}
	if !r.g.lanes {
		sizes = append(sizes, fmt.Sprintf("(%s / V)", r.size(r.g.inner)))
	}
	if len(sizes) == 0 {
		return "1"
	}
	return strings.Join(sizes, " * ")
}

// within declares the positions of one step from its number, at.
func (r *reducing) within() {
	if r.g.lanes {
		r.decode("pos", "at", r.g.order)
		return
	}
	if len(r.g.order) == 0 {
		r.line("const pos base = at * V;")
		return
	}
	r.line("const pos base = at %% (%s / V) * V, step = at / (%s / V);", r.size(r.g.inner), r.size(r.g.inner))
	r.decode("pos", "step", r.g.order)
}

// walk runs f over the steps of this thread.
func (r *reducing) walk(f func(into func(*value) destination)) {
	first := "lane"
	if r.g.lanes {
		first = "y"
	}
	if len(r.kept) > 0 {
		r.line("#pragma unroll")
		r.open("for (int c = 0; c < share; ++c)")
		r.push()
		r.line("const pos at = %s + c * %d;", first, r.along())
		if r.steps%r.along() != 0 || !r.g.lanes && r.steps*r.vector%r.along() != 0 {
			r.line("if (c == share - 1 && steps %% %d != 0 && at >= steps) break;", r.along())
		}
		r.within()
		f(func(v *value) destination {
			if n := r.kept[v]; n != "" {
				return destination{array: n + "[c]", there: r.filled[v]}
			}
			return destination{}
		})
		r.pop()
		r.close()
		return
	}
	from, to := r.bounds()
	r.line("#pragma unroll %d", r.ahead())
	r.open("for (pos at = %s + %s; at < %s; at += %d)", from, first, to, r.along())
	r.push()
	r.within()
	f(r.intoHeld)
	if r.after != nil {
		r.after()
	}
	r.pop()
	r.close()
}

// bounds are the steps of a block: those of its part of a row.
func (r *reducing) bounds() (from, to string) {
	if r.parts > 1 || r.team > 0 {
		return "from", "to"
	}
	return "0", "steps"
}

// ahead is how many loads a thread has under way: more where each is of fewer bytes.
func (r *reducing) ahead() int { return r.knobs.get("unroll", loadsAhead) * 4 / r.vector }

// intoHeld is where a step's loads go.
func (r *reducing) intoHeld(v *value) destination {
	n := r.held[v]
	switch {
	case n == "":
		return destination{}
	case r.g.lanes:
		return destination{held: n, whole: true, slot: r.ownSlot()}
	}
	return destination{held: n, whole: r.whole}
}

// index of a thread's carry.
func (r *reducing) j() string {
	if r.g.lanes {
		return "[j]"
	}
	return ""
}

// columns runs over the V columns of a thread, or does once what is to be done
// for a row.
func (r *reducing) columns(f func()) {
	if !r.g.lanes {
		f()
		return
	}
	r.line("#pragma unroll")
	r.open("for (int j = 0; j < V; ++j)")
	f()
	r.close()
}

// take is the statement that takes one element of an anchor's operand, into its
// vector where it has one.
func (r *reducing) take(brief []*anchor, a *anchor, to string) {
	if slices.Contains(brief, a) {
		r.line("v%d[j] = %s;", a.value.id, bare(r.text(a.operand)))
		return
	}
	r.add(a, to, bare(r.text(a.operand)))
}

// brief declares, for a sum, where the elements of one vector stand that are added up
// before that goes into the sum's double, if the schedule allows float32 for it:
// conversions to double are an eighth as many a cycle as additions. It returns the
// sums that have one so far, and this one where it has.
func (r *reducing) brief(so []*anchor, a *anchor) []*anchor {
	if !r.briefly(a) {
		return so
	}
	r.line("float v%d[V];", a.value.id)
	return append(so, a)
}

// briefly reports whether the schedule allows float32 for the elements of one thread
// that an anchor adds up.
func (g *gpu) briefly(a *anchor) bool {
	return g.inexactly(a) && g.vector > 1 && !g.g.lanes
}

// inexactly reports whether the schedule allows a sum of float32 more than its double's
// error.
func (g *gpu) inexactly(a *anchor) bool { return g.knobs.get("approx", 0) == 1 && a.adds() }

// adds reports whether an anchor is a sum, a mean or a running sum of float32.
func (a *anchor) adds() bool {
	v := a.value
	return (v.kind == reduce || v.kind == scan) && (v.op == "sum" || v.op == "mean") && v.dtype == f32 && a.operand.dtype == f32
}

// add is the statement that takes one element.
func (r *reducing) add(a *anchor, to, x string) {
	switch a.value.op {
	case "prod":
		r.line("%s.v *= %s;", to, x)
	case "max", "min", "maxnum":
		r.line("%s.add(%s);", to, x)
	case "argmax", "argmin":
		at := "0"
		switch {
		case r.g.lanes && len(r.g.order) > 0:
			at = fmt.Sprintf("i%d", r.g.order[0])
		case !r.g.lanes:
			at = fmt.Sprintf("i%d", r.g.inner)
		}
		r.line("%s.add(%s, %s);", to, x, at)
	default:
		r.line("%s.v += %s;", to, x)
	}
}

// pass emits one walk over the rows, and the results of its reductions.
func (r *reducing) pass(stage int) {
	accs, stores := r.of(stage)
	if len(accs)+len(stores) == 0 {
		return
	}
	var operands []*value
	for _, a := range accs {
		if a.with == nil {
			operands = append(operands, a.operand)
		}
	}
	all := slices.Concat(operands, storedValues(stores))
	r.compute(0, all...)
	r.perColumn(all)
	var carries []carry
	for _, a := range accs {
		if a.with != nil {
			continue
		}
		c := r.carry(a, accs)
		carries = append(carries, c)
		if r.g.lanes {
			r.line("%s a%d[V];", c.typ, a.value.id)
			r.columns(func() { r.line("a%d[j] = {%s};", a.value.id, c.init) })
		} else {
			r.line("%s a%d = {%s};", c.typ, a.value.id, c.init)
		}
	}
	guard := "live"
	if slices.ContainsFunc(carries, func(c carry) bool { return c.with != nil }) {
		r.joined(carries, stores)
	} else {
		r.walk(func(into func(*value) destination) {
			for n := range len(r.g.order) {
				r.compute(n+1, all...)
			}
			var brief []*anchor
			for _, c := range carries {
				brief = r.brief(brief, c.a)
			}
			r.tile(operands, stores, guard, into, func() {
				for _, c := range carries {
					r.take(brief, c.a, fmt.Sprintf("a%d%s", c.a.value.id, r.j()))
				}
			})
			for _, a := range brief {
				r.line("a%d.v += kw::pairwise_sum(v%d);", a.value.id, a.value.id)
			}
		})
	}
	for _, root := range all {
		visit(root, func(v *value) { r.filled[v] = r.filled[v] || r.kept[v] != "" })
	}
	r.merge(carries)
}

// merge joins what the threads hold. Where a row has parts it is left for the
// next kernel, else it becomes the results.
func (r *reducing) merge(carries []carry) {
	if r.team > 0 {
		r.meet(carries)
		return
	}
	for _, c := range carries {
		id := c.a.value.id
		r.columns(func() {
			if r.g.lanes {
				r.line("a%d[j] = kw::column_reduce<%d, %d>(a%d[j]);", id, r.x, r.y, id)
			} else {
				r.line("a%d = kw::block_reduce<%d>(a%d);", id, r.threads, id)
			}
			if r.parts == 1 {
				return
			}
			if r.g.lanes {
				r.line("if (y == 0 && live) reinterpret_cast<%s*>(part%d)[(row * %d + part) * width + base + j] = a%d[j];", c.typ, id, r.parts, id)
			} else {
				r.line("if (lane == 0 && live) reinterpret_cast<%s*>(part%d)[row * %d + part] = a%d;", c.typ, id, r.parts, id)
			}
		})
		if r.parts == 1 {
			r.results(c)
		}
	}
}

// results declares what the rest of the kernel reads of a carry.
func (r *reducing) results(c carry) {
	give := func(v *value, text string) {
		t := cppTypes[v.dtype]
		if r.g.lanes {
			r.line("%s r%d[V];", t, v.id)
			r.columns(func() { r.line("r%d[j] = (%s)%s;", v.id, t, text) })
		} else {
			r.line("const %s r%d = (%s)%s;", t, v.id, t, text)
		}
	}
	a := fmt.Sprintf("a%d%s", c.a.value.id, r.j())
	switch op := c.a.value.op; {
	case c.with != nil:
		give(c.a.value, a+".v")
		give(c.with.value, a+".s")
	case op == "mean" && c.a.value.dtype == f32: // a double's last bit does not show in it
		give(c.a.value, fmt.Sprintf("(%s.v * (1.0 / %d))", a, r.k.rowLength()))
	case op == "mean":
		give(c.a.value, fmt.Sprintf("(%s.v / %d)", a, r.k.rowLength()))
	case strings.HasPrefix(op, "arg"):
		give(c.a.value, fmt.Sprintf("(%s.at == %s ? 0 : %s.at)", a, c.last, a))
	default:
		give(c.a.value, a+".v")
	}
}

// recall reads back what the parts left of a stage.
func (r *reducing) recall(stage int) {
	accs, _ := r.of(stage)
	for _, a := range accs {
		if a.with != nil {
			continue
		}
		c := r.carry(a, accs)
		id := a.value.id
		if r.g.lanes {
			r.line("%s a%d[V];", c.typ, id)
			r.columns(func() {
				r.line("a%d[j] = {%s};", id, c.init)
				r.line("for (int p = y; p < %d; p += %d) a%d[j].merge(reinterpret_cast<const %s*>(part%d)[(row * %d + p) * width + base + j]);",
					r.parts, r.y, id, c.typ, id, r.parts)
				r.line("a%d[j] = kw::column_reduce<%d, %d>(a%d[j]);", id, r.x, r.y, id)
			})
		} else {
			r.line("%s a%d = {%s};", c.typ, id, c.init)
			r.line("for (int p = lane; p < %d; p += %d) a%d.merge(reinterpret_cast<const %s*>(part%d)[row * %d + p]);",
				r.parts, r.threads, id, c.typ, id, r.parts)
			r.line("a%d = kw::block_reduce<%d>(a%d);", id, r.threads, id)
		}
		r.results(c)
	}
}

// joined emits a walk in which pairs of reductions share a pass: the first of a
// pair over a few steps, then the second with that result: of exponentials under what
// is the largest by then, of squares about these steps' own mean, which are merged with
// what came before. Where all of these steps are there nobody asks for each.
func (r *reducing) joined(carries []carry, stores []store) {
	first := "lane"
	if r.g.lanes {
		first = "y"
	}
	from, to := r.bounds()
	u, along := r.ahead(), r.along()
	r.open("for (pos begin = %s + %s; begin < %s; begin += %d * %d)", from, first, to, u, along)
	r.open("if (begin + %d * %d < %s)", u-1, along, to)
	r.together(carries, stores, u, "")
	r.close()
	r.open("else")
	r.together(carries, stores, u, to)
	r.close()
	r.close()
}

// together emits u steps of a joined walk, those below `to` or, where that is empty,
// all.
func (r *reducing) together(carries []carry, stores []store, u int, to string) {
	var firsts, seconds []*value
	for _, c := range carries {
		firsts = append(firsts, c.a.operand)
		if c.with != nil {
			seconds = append(seconds, c.with.operand)
		}
	}
	all := slices.Concat(firsts, seconds, storedValues(stores))
	r.push()
	var loads []*value
	for _, v := range all {
		visit(v, func(w *value) {
			if r.neighbours(w) && r.k.varies(w) && !slices.Contains(loads, w) {
				loads = append(loads, w)
			}
		})
	}
	for _, v := range loads {
		r.line("%s ahead%d[%d][V];", element(v.dtype), v.id, u)
	}
	for _, c := range carries {
		if c.with == nil {
			continue
		}
		typ, init := r.local(c)
		if r.g.lanes {
			r.line("%s p%d[V];", typ, c.a.value.id)
			r.columns(func() { r.line("p%d[j] = {%s};", c.a.value.id, init) })
		} else {
			r.line("%s p%d = {%s};", typ, c.a.value.id, init)
		}
	}
	more := strconv.Itoa(u)
	if to != "" {
		more = "more"
		r.line("int more = 0;")
	}
	// All loads are under way before the first of them is waited for: a step past
	// the end loads the first one again.
	r.line("#pragma unroll")
	r.open("for (int c = 0; c < %d; ++c)", u)
	r.push()
	if to == "" {
		r.line("const pos at = begin + c * %d;", r.along())
	} else {
		r.line("const bool inside = begin + c * %d < %s;", r.along(), to)
		r.line("const pos at = inside ? begin + c * %d : begin;", r.along())
		r.line("more += inside;")
	}
	r.within()
	for n := range len(r.g.order) {
		r.compute(n+1, loads...)
	}
	for _, v := range loads {
		d := r.intoHeld(v)
		d.array = fmt.Sprintf("ahead%d[c]", v.id)
		r.bring(v, d)
	}
	r.pop()
	r.close()
	walk := func(f func(into func(*value) destination)) {
		r.line("#pragma unroll")
		r.open("for (int c = 0; c < %d; ++c)", u)
		r.push()
		r.line("const pos at = begin + c * %d;", r.along())
		if to != "" {
			r.line("if (at >= %s) break;", to)
		}
		r.within()
		f(func(v *value) destination {
			if slices.Contains(loads, v) {
				return destination{array: fmt.Sprintf("ahead%d[c]", v.id), there: true}
			}
			return destination{}
		})
		r.pop()
		r.close()
	}
	walk(func(into func(*value) destination) {
		for n := range len(r.g.order) {
			r.compute(n+1, slices.Concat(firsts, storedValues(stores))...)
		}
		var brief []*anchor
		to := map[*anchor]string{}
		for _, c := range carries {
			to[c.a] = fmt.Sprintf("a%d%s", c.a.value.id, r.j())
			if c.with != nil {
				to[c.a] = fmt.Sprintf("p%d%s", c.a.value.id, r.j())
				continue // it is the middle of what the second adds up
			}
			brief = r.brief(brief, c.a)
		}
		r.tile(firsts, stores, "live", into, func() {
			for _, c := range carries {
				r.take(brief, c.a, to[c.a])
			}
		})
		for _, a := range brief {
			r.line("%s.v += kw::pairwise_sum(v%d);", to[a], a.value.id)
		}
	})
	if slices.ContainsFunc(carries, func(c carry) bool { return c.with != nil && c.a.value.op == "mean" }) {
		r.line("const double fraction = kw::reciprocal(%s * %s);", more, r.taken())
	}
	// What is known after these few steps stands where the row's results would: the
	// largest so far, and the mean of these alone.
	for _, c := range carries {
		if c.with == nil {
			continue
		}
		id, t := c.a.value.id, cppTypes[c.a.value.dtype]
		text := fmt.Sprintf("a%d%s.under()", id, r.j())
		if c.a.value.op == "mean" {
			text = fmt.Sprintf("(%s)(p%d%s.v * fraction)", t, id, r.j())
		} else {
			r.columns(func() { r.line("a%d%s.raise(p%d%s.v);", id, r.j(), id, r.j()) })
		}
		if r.g.lanes {
			r.line("%s r%d[V];", t, id)
			r.columns(func() { r.line("r%d[j] = %s;", id, text) })
			r.line("%s q%d[V];", r.summed(c.with), id)
			r.columns(func() { r.line("q%d[j] = 0;", id) })
		} else {
			r.line("const %s r%d = %s;", t, id, text)
			r.line("%s q%d = 0;", r.summed(c.with), id)
		}
	}
	r.terms = map[*value]bool{}
	for _, c := range carries {
		if c.with != nil && c.a.value.op == "maxnum" && r.inexactly(c.with) {
			r.terms[c.with.operand] = true
		}
	}
	r.compute(0, seconds...)
	walk(func(into func(*value) destination) {
		for n := range len(r.g.order) {
			r.compute(n+1, seconds...)
		}
		var brief []*anchor
		for _, c := range carries {
			if c.with != nil {
				brief = r.brief(brief, c.with)
			}
		}
		r.tile(seconds, nil, "", into, func() {
			for _, c := range carries {
				switch {
				case c.with == nil:
				case slices.Contains(brief, c.with):
					r.take(brief, c.with, "")
				default:
					r.line("q%d%s += %s;", c.a.value.id, r.j(), r.text(c.with.operand))
				}
			}
		})
		for _, c := range carries {
			if slices.Contains(brief, c.with) {
				r.line("q%d += kw::pairwise_sum(v%d);", c.a.value.id, c.with.value.id)
			}
		}
	})
	for _, c := range carries {
		if c.with == nil {
			continue
		}
		id, j := c.a.value.id, r.j()
		r.columns(func() {
			if c.a.value.op == "mean" {
				r.line("a%d%s.merge({(double)(%s * %s), p%d%s.v * fraction, q%d%s});", id, j, more, r.taken(), id, j, id, j)
			} else {
				r.line("a%d%s.s += q%d%s;", id, j, id, j)
			}
		})
	}
	r.terms = nil
	r.pop()
}

// mostBrief is how many elements a sum takes one after the other in float32, where the
// schedule allows that: what equal ones lose then is two units in the last place.
const mostBrief = 16

// summed is the type in which the second of a pair is added up over a few steps.
func (r *reducing) summed(a *anchor) string {
	if r.inexactly(a) && r.ahead() <= mostBrief {
		return "float"
	}
	return "double"
}

// taken is how many elements of one row a thread takes in a step.
func (r *reducing) taken() string {
	if r.g.lanes {
		return "1"
	}
	return "V"
}

// local is what the first of a pair is carried in over a few steps.
func (r *reducing) local(c carry) (typ, init string) {
	if c.a.value.op == "mean" {
		return "kw::Sum<double>", "0" // equal elements have themselves for their mean
	}
	return "kw::MaxNum<" + cppTypes[c.a.operand.dtype] + ">", literal(-inf, c.a.operand.dtype)
}

// perColumn computes once per column what a walk would compute for each of its
// elements.
func (r *reducing) perColumn(all []*value) {
	found := r.invariants(all)
	if len(found) == 0 {
		return
	}
	for _, v := range found {
		r.line("%s w%d[V];", cppTypes[v.dtype], v.id)
	}
	r.each(func() {
		r.compute(r.innermost(), found...)
		for _, v := range found {
			r.line("w%d[j] = %s;", v.id, r.text(v))
		}
	})
	for _, v := range found {
		r.rowed[v] = fmt.Sprintf("w%d", v.id)
	}
}

// rowStores writes what there is one of for each row.
func (r *reducing) rowStores() {
	var rows []store
	for _, s := range r.k.stores {
		if s.row {
			rows = append(rows, s)
		}
	}
	if len(rows) == 0 {
		return
	}
	roots := storedValues(rows)
	r.compute(0, roots...)
	if r.g.lanes {
		r.open("if (y == 0 && live)")
		r.each(func() {
			r.compute(r.innermost(), roots...)
			for _, s := range rows {
				r.line("%s[%s] = %s;", s.buf.name, r.at(s), r.text(s.value))
			}
		})
		r.close()
		return
	}
	if r.team > 0 {
		r.open("if (lane == 0 && part == 0)")
	} else {
		r.open("if (lane == 0 && live)")
	}
	for _, s := range rows {
		r.line("%s[%s] = %s;", s.buf.name, r.at(s), r.text(s.value))
	}
	r.close()
}
