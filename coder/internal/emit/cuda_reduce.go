package emit

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright/coder/internal/plan"
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
	pieces                int                    // of a row, of a pass that is done for what it writes: see written
	back                  bool                   // the last parts first: those that the kernel before has just read
	steps                 int                    // vectors of a row, or elements of a column
	kept                  map[*plan.Value]string // loads that stay in registers from pass to pass
	held                  map[*plan.Value]string // loads that stay in shared memory
	filled                map[*plan.Value]bool   // of those in registers, already loaded
	names                 []string               // of the parts' results
	ending                bool                   // the kernel after the last part: one block a row
	team                  int                    // blocks that hold a row between them; see cuda_team.go
	room                  int                    // elements of each held load that a block holds
	whole                 bool                   // that is all of its part
	after                 func()                 // what a walk does after each step, or nil
}

// carry is what threads hold of one reduction, or of two that share a pass.
type carry struct {
	a, with *plan.Anchor // with is the second of a pair, else nil
	typ     string
	init    string
	last    string // of a search: the position that stands for none
}

func (g *gpu) carry(a *plan.Anchor, accs []*plan.Anchor) carry {
	t := cppTypes[a.Operand.DType]
	c := carry{a: a}
	for _, d := range accs {
		if d.With == a {
			c.with = d
		}
	}
	at, last := "int", "INT_MAX"
	if g.k.RowLength() > positionsLimit {
		at, last = "long long", "LLONG_MAX"
	}
	switch op := a.Value.Op; {
	case c.with != nil && op == "mean":
		c.typ, c.init = "kw::Welford<"+t+">", "0, 0, 0"
	case c.with != nil:
		c.typ, c.init = "kw::MaxSum<"+t+">", literal(math.Inf(-1), a.Operand.DType)+", 0"
	case op == "prod":
		c.typ, c.init = "kw::Product<"+accumulator(a.Value.DType)+">", "1"
	case op == "max":
		c.typ, c.init = "kw::Max<"+t+">", literal(math.Inf(-1), a.Operand.DType)
	case op == "min":
		c.typ, c.init = "kw::Min<"+t+">", literal(math.Inf(1), a.Operand.DType)
	case op == "maxnum":
		c.typ, c.init = "kw::MaxNum<"+t+">", literal(math.Inf(-1), a.Operand.DType)
	case op == "argmax":
		c.typ, c.init = "kw::ArgMax<"+t+", "+at+">", literal(math.Inf(-1), a.Operand.DType)+", "+last
	case op == "argmin":
		c.typ, c.init = "kw::ArgMin<"+t+", "+at+">", literal(math.Inf(1), a.Operand.DType)+", "+last
	default:
		c.typ, c.init = "kw::Sum<"+accumulator(a.Value.DType)+">", "0"
	}
	if strings.HasPrefix(a.Value.Op, "arg") {
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
func (g *gpu) keepScratch(a *plan.Anchor, parts, bytes int) {
	n := parts * bytes * g.g.Rows()
	if g.g.Lanes {
		n *= g.g.Groups[g.g.Inner].Size
	}
	g.device.scratch[g.k] = append(g.device.scratch[g.k], scratch{name: fmt.Sprintf("part%d", a.Value.ID), bytes: n, batch: g.k.Batch})
}

func (g *gpu) reductions() {
	r := &reducing{gpu: g, parts: 1, kept: map[*plan.Value]string{}, held: map[*plan.Value]string{}, filled: map[*plan.Value]bool{}}
	g.k.Join(false)
	r.spread()
	if !r.keep() {
		g.k.Join(g.knobs.Get("passes", 1) == 1)
		r.hold()
	}
	last := 0
	for _, a := range g.k.Anchors {
		last = max(last, a.Stage)
	}
	for _, s := range g.k.Stores {
		if !s.Row {
			last = max(last, g.k.StageOf(s.Value))
		}
	}
	if r.team > 0 {
		r.teams(last)
		return
	}
	if r.g.Lanes && len(r.held) > 0 {
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
	for _, a := range g.k.Anchors {
		if a.With == nil {
			c := g.carry(a, g.k.Anchors)
			r.names = append(r.names, fmt.Sprintf("part%d", a.Value.ID))
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
	if slices.ContainsFunc(g.k.Stores, func(s plan.Store) bool { return s.Row }) {
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
func (r *reducing) of(stage int) (accs []*plan.Anchor, stores []plan.Store) {
	for _, a := range r.k.Anchors {
		if a.Stage == stage {
			accs = append(accs, a)
		}
	}
	for _, s := range r.k.Stores {
		if !s.Row && r.k.StageOf(s.Value) == stage {
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
func laneBlocks(g plan.Geometry, columns, x int) int { return g.Rows() * ((columns + x - 1) / x) }

// narrow halves what a block takes, but not below 32, until each multiprocessor has a
// block.
func (t Target) narrow(x int, blocks func(x int) int) int {
	for x > 32 && blocks(x) < t.multiprocessors {
		x /= 2
	}
	return x
}

// spread chooses the threads: so many that each takes its share of a row. Short
// rows share a block.
func (r *reducing) spread() {
	width, rows := r.g.Groups[r.g.Inner].Size, r.g.Rows()
	r.steps = 1
	for _, i := range r.g.Order {
		r.steps *= r.g.Groups[i].Size
	}
	var blocks int
	if r.g.Lanes {
		columns := (width + r.vector - 1) / r.vector
		// Threads side by side take 512 bytes of each row: a sector of memory that
		// two blocks share would be read twice.
		r.x = min(max(powerAbove(columns), 1), laneColumns/r.vector)
		few := func(x int) bool { return laneBlocks(r.g, columns, x) < r.device.on.multiprocessors }
		r.x = r.device.on.narrow(r.x, func(x int) int { return laneBlocks(r.g, columns, x) })
		along := 16
		// Blocks that take 128 bytes of each row, and more rows at once, cost less than
		// parts of rows that a second launch joins.
		if narrow := 32 / r.vector; narrow < r.x && few(r.x) && !few(narrow) {
			for r.x > narrow && few(r.x) {
				r.x, along = r.x/2, along*2
			}
		}
		r.y = min(powerBelow(r.steps/r.knobs.Get("share", 4)), laneThreads/r.x, along)
		r.y = max(r.y, 32/r.x)
		r.block = r.x * r.y
		blocks = laneBlocks(r.g, columns, r.x)
	} else {
		r.steps *= width / r.vector
		share := r.knobs.Get("share", 4)
		if rows < fewRows {
			share = max(share/4, 1) // whoever has the device for itself waits the less the less each thread does
		}
		r.threads = min(powerAbove((r.steps+share-1)/share), 1024)
		r.block = max(r.threads, leastBlock)
		r.rowsPerBlock = r.block / r.threads
		blocks = (rows + r.rowsPerBlock - 1) / r.rowsPerBlock
	}
	asked := r.knobs.Get("split", 1)
	if asked == 0 || (asked == 1 && r.device.on.filled(blocks)) {
		return
	}
	// A part takes enough steps to be worth a launch of its own.
	along := r.y
	if !r.g.Lanes {
		along = 256
	}
	most := powerBelow(r.steps / (along * 2))
	want := asked
	switch two := 2 * r.device.on.multiprocessors; {
	case r.device.on.filled(blocks):
	case r.g.Lanes:
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
		if !r.g.Lanes {
			r.threads, r.block, r.rowsPerBlock = 256, 256, 1
		}
	}
}

// oncePerRow reports whether rows are read once, and nothing of full size written.
func (r *reducing) oncePerRow() bool {
	return !r.g.Lanes && !slices.ContainsFunc(r.k.Stores, func(s plan.Store) bool { return !s.Row }) &&
		!slices.ContainsFunc(r.k.Anchors, func(a *plan.Anchor) bool { return a.Stage > 0 })
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
	if r.g.Lanes {
		return r.parts
	}
	return max(r.parts, powerBelow(r.steps*r.vector*4/pieceBytes))
}

// loads returns what passes over a row load, with how many of them do.
func (r *reducing) loads() (found []*plan.Value, passes map[*plan.Value]int) {
	stages := map[*plan.Value]map[int]bool{}
	use := func(root *plan.Value, stage int) {
		plan.Visit(root, func(v *plan.Value) {
			if !r.neighbours(v) || !r.k.Varies(v) {
				return
			}
			if stages[v] == nil {
				stages[v] = map[int]bool{}
				found = append(found, v)
			}
			stages[v][stage] = true
		})
	}
	for _, a := range r.k.Anchors {
		use(a.Operand, a.Stage)
	}
	for _, s := range r.k.Stores {
		if !s.Row {
			use(s.Value, r.k.StageOf(s.Value))
		}
	}
	passes = map[*plan.Value]int{}
	for v, in := range stages {
		passes[v] = len(in)
	}
	return found, passes
}

// again returns the loads that more than one pass over a row takes.
func (r *reducing) again() []*plan.Value {
	found, passes := r.loads()
	return slices.DeleteFunc(found, func(v *plan.Value) bool { return passes[v] < 2 })
}

// keep has the loads that more than one pass takes stay in registers, if a row's
// share of a thread is small enough, and reports whether they do.
func (r *reducing) keep() bool {
	if r.parts > 1 || r.knobs.Get("keep", 1) == 0 || r.knobs.Get("team", 0) > 1 {
		return false
	}
	found := r.again()
	if len(found) == 0 || r.share()*r.vector*len(found) > min(keptElements, keptInBlock/r.block) {
		return false
	}
	for _, v := range found {
		r.kept[v] = fmt.Sprintf("kept%d", v.ID)
	}
	return true
}

// share is how many steps one thread takes at most.
func (r *reducing) share() int {
	along := r.threads
	if r.g.Lanes {
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
	if r.g.Lanes {
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
	case r.g.Lanes:
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
		if along := r.along(); !r.g.Lanes && r.steps >= 10*along*pieces && r.steps*r.vector+along*pieces < positionsLimit {
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
		r.line("%s %s[share][V];", element(l.v.DType), l.name)
	}
	r.decode("far", "row", r.g.Outer)
}

type keptLoad struct {
	v    *plan.Value
	name string
}

// inOrder returns loads by their number.
func inOrder(named map[*plan.Value]string) []keptLoad {
	var out []keptLoad
	for v, n := range named {
		out = append(out, keptLoad{v, n})
	}
	slices.SortFunc(out, func(a, b keptLoad) int { return a.v.ID - b.v.ID })
	return out
}

func (r *reducing) along() int {
	if r.g.Lanes {
		return r.y
	}
	return r.threads
}

// stepsText is the number of steps of a row, which with the vectors that the
// pointers allow is a constant.
func (r *reducing) stepsText() string {
	var sizes []string
	for _, i := range r.g.Order {
		sizes = append(sizes, r.size(i))
	}
	if !r.g.Lanes {
		sizes = append(sizes, fmt.Sprintf("(%s / V)", r.size(r.g.Inner)))
	}
	if len(sizes) == 0 {
		return "1"
	}
	return strings.Join(sizes, " * ")
}
