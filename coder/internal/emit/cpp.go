package emit

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/kernelwright/kernelwright/coder/internal/plan"
)

// cpp emits a plan as C++ with OpenMP.
type cpp struct {
	writer
	plan  *plan.Plan
	knobs plan.Knobs

	capped bool // it asks how many threads there are
	alone  bool // code of the function is no other thread's: what __restrict__ says of its parameters helps
}

var cppTypes = map[plan.DType]string{plan.F32: "float", plan.F64: "double", plan.I64: "long long", plan.I32: "int", plan.Bool: "bool"}

// chunks is into how many parts a row is cut when there are fewer rows than
// threads. Fixed, so that the result does not depend on the threads.
const chunks = 64

// emitCPP returns the whole C++ source.
func emitCPP(p *plan.Plan, knobs plan.Knobs) string {
	e := &cpp{plan: p, knobs: knobs}
	for _, s := range p.Segments() {
		e.segment(s)
	}
	var head strings.Builder
	if e.capped {
		head.WriteString("#include <omp.h>\n")
	}
	fmt.Fprintf(&head, "#define KW_VECTOR %d\n%s\n", 32*knobs.Get("vector", 8), includes(e.out.String()))
	return head.String() + e.out.String()
}

// parameters writes buffers as parameters: of the function that Python calls,
// or of a kernel, where booleans are bytes because GCC has no vectors of bool, and
// nothing else has what a buffer has, but for those in shared.
func (e *cpp) parameters(bufs []*plan.Buffer, writes func(*plan.Buffer) bool, kernel, batch bool, shared ...*plan.Buffer) string {
	var out []string
	for _, b := range bufs {
		typ, restrict := cppTypes[b.DType], ""
		if kernel {
			if e.alone && !slices.Contains(shared, b) {
				restrict = " __restrict__"
			}
			if b.DType == plan.Bool {
				typ = "unsigned char"
			}
		}
		if !writes(b) {
			typ = "const " + typ
		}
		out = append(out, fmt.Sprintf("%s*%s %s", typ, restrict, b.Name))
	}
	if batch {
		out = append(out, "long long batch")
	}
	return strings.Join(out, ", ")
}

// segment writes the function that Python calls: one kernel after the other.
func (e *cpp) segment(s plan.Segment) {
	writes := func(b *plan.Buffer) bool {
		return slices.ContainsFunc(s.Kernels, func(k *plan.Kernel) bool { return k.Writes(b) })
	}
	e.depth++
	e.alone = false
	kernels := e.captured(func() {
		for _, k := range s.Kernels {
			if len(s.Kernels) > 1 {
				e.open("")
			}
			e.kernel(k)
			if len(s.Kernels) > 1 {
				e.close()
			}
		}
	})
	e.depth--
	e.open(`extern "C" void %s(%s)`, s.Name, e.parameters(s.Buffers, writes, true, s.Batch))
	e.out.WriteString(kernels)
	e.close()
}

// body is the state while one kernel is emitted.
type body struct {
	*cpp
	k         *plan.Kernel
	g         plan.Geometry
	wide      bool // one row at a time, its parts spread over threads
	threads   int
	tile      int
	names     map[*plan.Value]string // values computed so far, in the open scopes
	scopes    [][]*plan.Value
	cached    map[*plan.Value]bool       // kept between passes, in a row's scratch
	home      map[*plan.Value]plan.Store // of these, where the place of a store serves for that
	ready     map[*plan.Value]bool       // of those, already filled
	rowed     map[*plan.Value]string     // values per lane, computed before the rows are walked
	results   map[*plan.Value]string     // of reductions, those that have a name of their own
	from, to  string                     // the lanes of a tile
	once      bool                       // what is computed for an element is written once
	window    []string                   // index expressions of a pooling's operand
	special   func(*plan.Value) string   // how an emitter writes what it has another form for; nil: as C++
	builtin   string                     // what stands before the names of C's functions
	loopsMade int                        // numbers what a loop declares beside itself
}

// size returns the number of iterations of a group as an expression.
func (b *body) size(i int) string {
	t := b.g.Groups[i]
	if t.Batch {
		rest := t.Size / b.plan.Graph.Batch.Size
		if rest == 1 {
			return "batch"
		}
		return fmt.Sprintf("batch * %d", rest)
	}
	return strconv.Itoa(t.Size)
}

func (b *body) kernelThreads() int {
	if b.k.Cost() < plan.ParallelCost {
		return 1
	}
	return b.knobs.Get("threads", 1)
}

// parallel is the pragma that spreads a loop over threads: as many as the caller
// has (torch.set_num_threads), or fewer where that is the choice.
func (b *body) parallel(threads int) string {
	pragma := "#pragma omp parallel for schedule(static)"
	if b.all(threads) {
		return pragma
	}
	b.capped = true
	return fmt.Sprintf("%s num_threads(omp_get_max_threads() < %d ? omp_get_max_threads() : %d)", pragma, threads, threads)
}

// all reports whether so many threads are all that the caller has.
func (b *body) all(threads int) bool {
	k, ok := b.knobs["threads"]
	return ok && len(k.Choices) > 0 && threads >= slices.Max(k.Choices)
}

func (e *cpp) kernel(k *plan.Kernel) {
	b := &body{
		cpp:     e,
		builtin: "__builtin_",
		k:       k,
		g:       k.Geometry(),
		names:   map[*plan.Value]string{},
		cached:  map[*plan.Value]bool{},
		ready:   map[*plan.Value]bool{},
		rowed:   map[*plan.Value]string{},
		results: map[*plan.Value]string{},
	}
	b.tile = max(e.knobs.Get("tile", 512), 16)
	if e.knobs.Get("tile", 512) == 0 {
		b.tile = 512
	}
	inner := b.g.Groups[b.g.Inner]
	if b.g.Lanes && !inner.Batch {
		b.tile = min(b.tile, inner.Size)
	}
	b.tile = max(min(b.tile, k.ColumnTile()), 1)
	work := 1
	for _, i := range b.g.Outer {
		work *= b.g.Groups[i].Size
	}
	if b.g.Lanes {
		work *= (inner.Size + b.tile - 1) / b.tile
	}
	threads := b.kernelThreads()
	b.threads = threads
	b.wide = k.Kind == plan.ReduceKernel && threads > 1 && work < 2*threads && !k.Batch
	// Parts that threads share are merged with the sum of all the parts at
	// hand: one pass after the other.
	k.Join(e.knobs.Get("passes", 3) == 1 && !b.wide)
	if e.knobs.Get("passes", 3) == 2 && !b.wide {
		kept := k.Cacheable(b.g)
		for _, v := range kept {
			b.cached[v] = true
		}
		if v, s := k.Home(kept); v != nil {
			b.home = map[*plan.Value]plan.Store{v: s}
		}
	}
	side := 1
	if k.Kind == plan.ScanKernel && !b.g.Lanes {
		b.wide = splits(k, b.g, work, threads)
		// No more rows side by side than leave every thread something to do.
		for side = e.knobs.Get("chains", 1); side > 1 && !b.wide && work < side*threads; {
			side /= 2
		}
	}
	b.push()
	defer b.pop()
	// The loop over rows, or over tiles of rows side by side.
	total, row := "1", ""
	if len(b.g.Outer) > 0 {
		var sizes []string
		for _, i := range b.g.Outer {
			sizes = append(sizes, b.size(i))
		}
		total, row = strings.Join(sizes, " * "), " row"
	}
	if len(b.g.Outer) == 1 {
		row = fmt.Sprintf(" i%d", b.g.Outer[0])
	}
	spread := threads > 1 && !b.wide && (work > 1 || k.Batch) // where not, threads may share a row
	e.alone = e.alone || !spread
	b.from, b.to = "start", "end"
	var known []string // declared where the body needs it
	switch {
	case b.wide:
		// Threads share each row, and what they read is no function's own copy.
		if row = strings.TrimSpace(row); row == "" {
			row = "row"
		}
		b.open("for (long long %s = 0; %s < %s; ++%s)", row, row, total, row)
		if b.g.Lanes {
			b.open("for (long long start = 0; start < %s; start += %d)", b.size(b.g.Inner), b.tile)
			b.line("const long long lanes = %s - start < %d ? %s - start : %d;", b.size(b.g.Inner), b.tile, b.size(b.g.Inner), b.tile)
		}
	case b.g.Lanes && !inner.Batch && b.tile == inner.Size:
		// One tile is the whole row, and the compiler may know its length.
		b.open("%s(%s, [=](long long%s)", b.spread("parallel", spread), total, row)
		known = []string{"start = 0", fmt.Sprintf("lanes = %d", b.tile)}
		b.from, b.to = "0", strconv.Itoa(b.tile)
	case b.g.Lanes:
		b.open("%s(%s, %s, [=](long long%s, long long start, long long end)", b.spread("tiles", spread), total, b.size(b.g.Inner), row)
		known = []string{"lanes = end - start"}
	case side > 1 && !b.wide && b.scannedTogether(side, spread, total):
		return
	case side > 1 && !b.wide:
		b.line("const long long rows = %s;", total)
		b.open("%s((rows + %d) / %d, [=](long long group)", b.spread("parallel", spread), side-1, side)
		b.line("const long long first = group * %d;", side)
		b.sideBySide(side)
		b.end()
		return
	default:
		b.open("%s(%s, [=](long long%s)", b.spread("parallel", spread), total, row)
	}
	text := b.captured(func() {
		b.push()
		b.outerIndices()
		switch {
		case k.Kind == plan.ReduceKernel:
			b.reductions()
		case k.Kind == plan.ScanKernel && b.wide:
			b.splitScan(side)
		case k.Kind == plan.ScanKernel:
			b.scans()
		default:
			b.maps()
		}
		b.pop()
	})
	for _, n := range known {
		name, _, _ := strings.Cut(n, " ")
		if mentions(text, name) {
			b.line("const long long %s;", n)
		}
	}
	b.out.WriteString(text)
	switch {
	case !b.wide:
		b.end()
	case b.g.Lanes:
		b.close()
		b.close()
	default:
		b.close()
	}
}

// mentions reports whether a text has a name.
func mentions(text, name string) bool {
	found := false
	eachName(text, func(n string) string {
		found = found || n == name
		return n
	})
	return found
}

// spread is the call that spreads a loop: over as many threads as the caller has
// (torch.set_num_threads), or fewer where that is the choice.
func (b *body) spread(name string, threads bool) string {
	var given []string
	if name == "tiles" {
		given = append(given, strconv.Itoa(b.tile))
	}
	switch {
	case !threads:
		given = append(given, "1")
	case !b.all(b.threads):
		given = append(given, strconv.Itoa(b.threads))
	}
	if len(given) == 0 {
		return "kw::" + name
	}
	return fmt.Sprintf("kw::%s<%s>", name, strings.Join(given, ", "))
}

func (b *body) push() { b.scopes = append(b.scopes, nil) }

func (b *body) pop() {
	for _, v := range b.scopes[len(b.scopes)-1] {
		delete(b.names, v)
	}
	b.scopes = b.scopes[:len(b.scopes)-1]
}

func (b *body) name(v *plan.Value, text string) {
	b.names[v] = text
	b.scopes[len(b.scopes)-1] = append(b.scopes[len(b.scopes)-1], v)
}

// outerIndices declares the position along each loop that is spread; of one alone it
// is the loop's own variable.
func (b *body) outerIndices() {
	if len(b.g.Outer) == 1 {
		return
	}
	for n, i := range b.g.Outer {
		var below []string
		for _, j := range b.g.Outer[n+1:] {
			below = append(below, b.size(j))
		}
		x := "row"
		if len(below) > 0 {
			x = "row / " + bracketed(strings.Join(below, " * "))
		}
		if n > 0 {
			x = fmt.Sprintf("%s %% %s", x, bracketed(b.size(i)))
		}
		b.line("const long long i%d = %s;", i, x)
	}
}

// position returns the position along a dimension as an expression, empty for
// one that is walked as part of another.
func (b *body) position(d int) string {
	if b.window != nil {
		lead := len(b.k.Space) - len(b.window)
		if d >= lead {
			return b.window[d-lead]
		}
	}
	i := b.g.Of[d]
	if i < 0 {
		return ""
	}
	t := b.g.Groups[i]
	if len(t.Dims) > 0 && t.Dims[len(t.Dims)-1] != d {
		return ""
	}
	return fmt.Sprintf("i%d", i)
}

func (b *body) index(x plan.Index) string {
	var parts []string
	for _, t := range x.Terms {
		p := b.position(t.Dim)
		if p == "" {
			continue
		}
		if t.Div > 1 {
			p = fmt.Sprintf("%s / %d", bracketed(p), t.Div)
		}
		if t.Mod > 0 {
			p = fmt.Sprintf("%s %% %d", bracketed(p), t.Mod)
		}
		if t.Coef != 1 {
			p = fmt.Sprintf("%d * %s", t.Coef, bracketed(p))
		}
		parts = append(parts, p)
	}
	if x.Off != 0 || len(parts) == 0 {
		parts = append(parts, strconv.Itoa(x.Off))
	}
	return strings.Join(parts, " + ")
}

// bracketed is an expression that stands in another one.
func bracketed(x string) string {
	if plan.Identifier(x) || strings.HasPrefix(x, "(") && whole(x, '(', ')') {
		return x
	}
	if _, err := strconv.ParseUint(x, 10, 64); err == nil {
		return x
	}
	at := strings.IndexAny(x, "[(")
	if at > 0 && plan.Identifier(strings.ReplaceAll(x[:at], "::", "_")) && whole(x[at:], x[at], map[byte]byte{'[': ']', '(': ')'}[x[at]]) {
		return x // an element, or a call
	}
	return "(" + x + ")"
}

// bare is an expression that stands by itself.
func bare(x string) string {
	if strings.HasPrefix(x, "(") && whole(x, '(', ')') {
		return x[1 : len(x)-1]
	}
	return x
}

// whole reports whether the bracket that opens a text is closed at its end.
func whole(x string, opens, closes byte) bool {
	depth := 0
	for i := range len(x) {
		switch x[i] {
		case opens:
			depth++
		case closes:
			if depth--; depth == 0 {
				return i == len(x)-1
			}
		}
	}
	return false
}

// level is how deep a value must be computed: 0 once per row or tile, then one
// for each reduced loop, the innermost last.
func (b *body) level(v *plan.Value, memo map[*plan.Value]int) int {
	if l, ok := memo[v]; ok {
		return l
	}
	deepest := len(b.g.Order) + 1
	of := func(x plan.Index) int {
		l := 0
		for _, t := range x.Terms {
			i := b.g.Of[t.Dim]
			switch {
			case i < 0:
			case i == b.g.Inner:
				l = deepest
			default:
				l = max(l, 1+slices.Index(b.g.Order, i))
			}
		}
		return l
	}
	l := 0
	switch {
	case b.window != nil && v.Kind != plan.Constant:
		l = deepest
	case v.Kind == plan.Access:
		if v.Args[0].Kind != plan.Reduce || b.g.Lanes {
			l = deepest
		}
	case v.Kind == plan.Load || v.Kind == plan.Position:
		l = of(v.Idx[0])
	}
	if v.Kind != plan.Access {
		for _, a := range v.Args {
			l = max(l, b.level(a, memo))
		}
	}
	if b.cached[v] || b.rowed[v] != "" {
		l = deepest
	}
	memo[v] = l
	return l
}

// compute declares what the roots need at one level, in order. What one other value
// of this level needs alone, and once, is written in its place.
func (b *body) compute(level int, roots ...*plan.Value) {
	memo := map[*plan.Value]int{}
	inPlace := b.inPlace(level, memo, roots)
	var walk func(v *plan.Value)
	walk = func(v *plan.Value) {
		if b.names[v] != "" || v.Kind == plan.Constant {
			return
		}
		if b.ready[v] {
			if level == len(b.g.Order)+1 {
				b.line("const float %s = %s;", b.label(v), b.place(v))
				b.name(v, b.label(v))
			}
			return
		}
		if v.Kind != plan.Access && b.rowed[v] == "" {
			for _, a := range b.operands(v) {
				walk(a)
			}
		}
		if b.level(v, memo) != level {
			return
		}
		text := b.expression(v)
		if v.Kind == plan.Access || b.rowed[v] != "" {
			b.name(v, bracketed(text))
			return
		}
		if inPlace[v] && (len(text) <= longestPart || slices.Contains(roots, v) && len(text) <= longestRoot) {
			b.name(v, bracketed(text))
			return
		}
		n := b.label(v)
		b.line("const %s %s = %s;", cppTypes[v.DType], n, text)
		b.name(v, n)
		if b.cached[v] {
			b.line("%s = %s;", b.place(v), n)
		}
	}
	for _, r := range roots {
		walk(r)
	}
}

// computeOnce is compute for roots of which each is written once: they may stand where
// they are written.
func (b *body) computeOnce(roots ...*plan.Value) {
	b.once = true
	b.compute(len(b.g.Order)+1, roots...)
	b.once = false
}

// How many characters an expression has at most that stands in another, and one that
// stands where it is written.
const (
	longestPart = 60
	longestRoot = 90
)

// inPlace returns the values that stand in the expression of the one value that needs
// them: at the same level, and once.
func (b *body) inPlace(level int, memo map[*plan.Value]int, roots []*plan.Value) map[*plan.Value]bool {
	uses := map[*plan.Value]int{}
	seen := map[*plan.Value]bool{}
	var walk func(v *plan.Value)
	walk = func(v *plan.Value) {
		if seen[v] {
			return
		}
		seen[v] = true
		if v.Kind == plan.Constant || v.Kind == plan.Access || b.names[v] != "" || b.ready[v] || b.rowed[v] != "" {
			return
		}
		for _, a := range b.operands(v) {
			uses[a]++
			if b.level(v, memo) != level || !b.takesParts(v) {
				uses[a]++
			}
			walk(a)
		}
	}
	for _, r := range roots {
		uses[r]++
		if !b.once || level != len(b.g.Order)+1 {
			uses[r]++
		}
		walk(r)
	}
	found := map[*plan.Value]bool{}
	for v, n := range uses {
		if n == 1 && (v.Kind == plan.Load || v.Kind == plan.Point || v.Kind == plan.Position) && !b.cached[v] && b.takesParts(v) {
			found[v] = true
		}
	}
	return found
}

// takesParts reports whether a value's operands may stand in its expression: each does
// once, and nobody looks for the statement.
func (b *body) takesParts(v *plan.Value) bool {
	if v.Kind == plan.Load {
		return len(v.Args) == 0
	}
	if name, _ := b.function(v); name != "" {
		return true
	}
	switch v.Op {
	case "max", "min", "where": // which computes what it does not take, too: no branch
		return false
	case "abs":
		return v.DType.Floating()
	case "div", "sqrt":
		return b.special == nil // what is divided on a GPU is seen by who emulates it
	}
	return true
}

// place returns where the element of a value lies that is kept between passes.
func (b *body) place(v *plan.Value) string {
	if s, ok := b.home[v]; ok {
		return fmt.Sprintf("%s[%s]", s.Buf.Name, b.at(s))
	}
	return fmt.Sprintf("scratch%d[i%d]", v.ID, b.g.Inner)
}

// text returns how a computed value is written.
func (b *body) text(v *plan.Value) string {
	if v.Kind == plan.Constant {
		return literal(v.Const, v.DType)
	}
	return b.names[v]
}

func literal(c float64, d plan.DType) string {
	switch d {
	case plan.Bool:
		return strconv.FormatBool(c != 0)
	case plan.I64:
		return strconv.FormatInt(int64(c), 10) + "LL"
	case plan.I32:
		return strconv.FormatInt(int64(c), 10)
	}
	suffix, bits := "f", 32
	if d == plan.F64 {
		suffix, bits = "", 64
	} else {
		c = float64(float32(c))
	}
	switch {
	case math.IsNaN(c):
		return "__builtin_nan" + suffix + `("")`
	case math.IsInf(c, 1):
		return "__builtin_inf" + suffix + "()"
	case math.IsInf(c, -1):
		return "-__builtin_inf" + suffix + "()"
	}
	s := strconv.FormatFloat(c, 'g', -1, bits)
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	if c < 0 {
		return "(" + s + suffix + ")"
	}
	return s + suffix
}

// mathCalls are operations spelled as a function of the float type.
var mathCalls = map[string]string{
	"sqrt": "sqrt", "abs": "fabs", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "rint",
	"sin": "sin", "cos": "cos", "log2": "log2", "log10": "log10", "exp2": "exp2", "pow": "pow",
}

var infix = map[string]string{
	"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
	"and": "&", "or": "|",
}

func (b *body) expression(v *plan.Value) string {
	if b.special != nil {
		if s := b.special(v); s != "" {
			return s
		}
	}
	switch v.Kind {
	case plan.Position:
		return "(" + b.index(v.Idx[0]) + ")"
	case plan.Load:
		at := b.index(v.Idx[0])
		if len(v.Args) > 0 {
			i := b.text(v.Args[0])
			last := v.Size - 1
			at = fmt.Sprintf("%s + %d * (%s < 0 ? 0 : %s > %d ? %d : %s)", at, v.Stride, i, i, last, last, i)
		}
		if v.DType == plan.Bool {
			return fmt.Sprintf("%s[%s] != 0", v.Buf.Name, at)
		}
		return fmt.Sprintf("%s[%s]", v.Buf.Name, at)
	case plan.Access:
		a := v.Args[0]
		switch {
		case b.results[a] != "":
			return b.results[a]
		case a.Kind == plan.Scan:
			return fmt.Sprintf("s%d", a.ID)
		case a.Kind == plan.Pool || b.g.Lanes:
			return fmt.Sprintf("r%d[i%d - start]", a.ID, b.g.Inner)
		}
		return fmt.Sprintf("r%d", a.ID)
	}
	if n := b.rowed[v]; n != "" {
		return fmt.Sprintf("%s[i%d - start]", n, b.g.Inner)
	}
	if name, x := b.function(v); name != "" {
		return fmt.Sprintf("kw::%s(%s)", name, bare(b.text(x)))
	}
	args := make([]string, len(v.Args))
	for i, a := range v.Args {
		args[i] = b.text(a)
	}
	suffix := ""
	if v.DType == plan.F32 {
		suffix = "f"
	}
	if op := infix[v.Op]; op != "" {
		return fmt.Sprintf("%s %s %s", args[0], op, args[1])
	}
	if f := mathCalls[v.Op]; f != "" && v.DType.Floating() {
		for i, a := range args {
			args[i] = bare(a)
		}
		return fmt.Sprintf("%s%s%s(%s)", b.builtin, f, suffix, strings.Join(args, ", "))
	}
	switch v.Op {
	case "neg":
		return "-" + args[0]
	case "abs":
		return fmt.Sprintf("%s < 0 ? -%s : %s", args[0], args[0], args[0])
	case "not":
		return "!" + args[0]
	case "where":
		return fmt.Sprintf("%s ? %s : %s", args[0], args[1], args[2])
	case "max", "min": // a NaN on either side is the result
		sign := ">"
		if v.Op == "min" {
			sign = "<"
		}
		x, y := args[0], args[1]
		if !v.DType.Floating() {
			return fmt.Sprintf("%s %s %s ? %s : %s", x, sign, y, x, y)
		}
		if v.Args[1].Kind == plan.Constant && !math.IsNaN(v.Args[1].Const) {
			// One comparison does: with a NaN it is false, and x is kept.
			return fmt.Sprintf("%s %s %s ? %s : %s", y, sign, x, y, x)
		}
		return fmt.Sprintf("(%s %s %s) | (%s != %s) ? %s : %s", x, sign, y, x, x, x, y)
	case "cast":
		if v.DType == plan.Bool {
			return args[0] + " != 0"
		}
		return fmt.Sprintf("(%s)%s", cppTypes[v.DType], args[0])
	case "exp", "expm1", "log", "log1p", "tanh", "erf":
		return fmt.Sprintf("kw::%s(%s)", v.Op, bare(args[0]))
	}
	panic("coder: no C++ for operation " + v.Op)
}

// simd opens the innermost loop over [from, to).
func (b *body) simd(clause, variable, from, to string) {
	if b.knobs.Get("vector", 8) > 1 {
		b.line("#pragma omp simd%s", clause)
	}
	b.open("for (long long %s = %s; %s < %s; ++%s)", variable, from, variable, to, variable)
}

// at returns where a store writes at the current position.
func (b *body) at(s plan.Store) string {
	dims := b.k.Outer()
	if !s.Row {
		dims = nil
		for d := range b.k.Space {
			dims = append(dims, d)
		}
	}
	shape := make([]int, len(dims))
	for i, d := range dims {
		shape[i] = b.k.Space[d]
	}
	var x plan.Index
	for i, n := range plan.Contiguous(shape) {
		if shape[i] != 1 {
			x.Terms = append(x.Terms, plan.Term{Dim: dims[i], Coef: n, Div: 1})
		}
	}
	return b.index(x)
}

// laneLoop runs over the lanes of a tile, with the position along the
// innermost dimension in its usual name.
func (b *body) laneLoop(f func()) {
	b.simd("", "lane", "0", "lanes")
	b.push()
	b.line("const long long i%d = start + lane;", b.g.Inner)
	f()
	b.pop()
	b.close()
}

// storing writes full stores in the innermost loop of a tile or a block of
// a row; those that go past the cache through a buffer that stays in it.
func (b *body) storing(stores []plan.Store, first, count string, f func(func(plan.Store, string))) {
	var past []plan.Store
	if b.knobs.Get("nontemporal", 0) == 1 {
		for _, s := range stores {
			if plan.Streamable(b.k, s) && plan.Numel(s.Buf.Shape)*4 >= plan.StreamingBytes {
				past = append(past, s)
			}
		}
	}
	for _, s := range past {
		b.line("alignas(64) float past_%s[%d];", s.Buf.Name, max(b.tile, 16))
	}
	f(func(s plan.Store, text string) {
		if slices.Contains(past, s) {
			b.line("past_%s[i%d - (%s)] = %s;", s.Buf.Name, b.g.Inner, first, text)
			return
		}
		b.line("%s[%s] = %s;", s.Buf.Name, b.at(s), text)
	})
	for _, s := range past {
		b.line("{ const long long i%d = %s; kw::stream(%s + %s, past_%s, %s); }", b.g.Inner, first, s.Buf.Name, bracketed(b.at(s)), s.Buf.Name, count)
	}
}

// each opens a loop over [from, to) in which nothing is carried, as vector code where
// the schedule has that.
func (b *body) each(variable, from, to string, f func()) {
	if b.knobs.Get("vector", 8) > 1 {
		if from == "0" {
			from = ""
		} else {
			from += ", "
		}
		b.open("kw::each(%s%s, [&](long long %s)", from, to, variable)
	} else {
		b.open("for (long long %s = %s; %s < %s; ++%s)", variable, from, variable, to, variable)
	}
	b.push()
	f()
	b.pop()
	if b.knobs.Get("vector", 8) > 1 {
		b.end()
	} else {
		b.close()
	}
}

// maps emits a kernel without reductions: one tile.
func (b *body) maps() {
	for _, a := range b.k.Anchors {
		b.pool(a)
	}
	roots := plan.StoredValues(b.k.Stores)
	b.compute(0, roots...)
	b.storing(b.k.Stores, "start", "lanes", func(put func(plan.Store, string)) {
		b.each(fmt.Sprintf("i%d", b.g.Inner), b.from, b.to, func() {
			b.computeOnce(roots...)
			for _, s := range b.k.Stores {
				put(s, bare(b.text(s.Value)))
			}
		})
	})
}
