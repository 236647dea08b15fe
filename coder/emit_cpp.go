package coder

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// cpp emits a plan as C++ with OpenMP.
type cpp struct {
	plan  *plan
	knobs schedule
	out   strings.Builder
	depth int

	capped bool // it asks how many threads there are
	alone  bool // code of the function is no other thread's: what __restrict__ says of its parameters helps
}

var cppTypes = map[dtype]string{f32: "float", f64: "double", i64: "long long", i32: "int", boole: "bool"}

// chunks is into how many parts a row is cut when there are fewer rows than
// threads. Fixed, so that the result does not depend on the threads.
const chunks = 64

// emitCPP returns the whole C++ source.
func emitCPP(p *plan, knobs schedule) string {
	e := &cpp{plan: p, knobs: knobs}
	for _, s := range p.segments() {
		e.segment(s)
	}
	var head strings.Builder
	if e.capped {
		head.WriteString("#include <omp.h>\n")
	}
	fmt.Fprintf(&head, "#define KW_VECTOR %d\n%s\n", 32*knobs.get("vector", 8), includes(e.out.String()))
	return head.String() + e.out.String()
}

func (e *cpp) line(format string, args ...any) {
	e.out.WriteString(strings.Repeat("  ", e.depth))
	fmt.Fprintf(&e.out, format, args...)
	e.out.WriteByte('\n')
}

func (e *cpp) open(format string, args ...any) {
	e.line(strings.TrimLeft(format+" {", " "), args...)
	e.depth++
}

func (e *cpp) close() {
	e.depth--
	e.line("}")
}

// end closes a function that is the last argument of a call; in one line, where it has
// one statement that is short.
func (e *cpp) end() {
	e.depth--
	text := strings.TrimSuffix(e.out.String(), "\n")
	before, last, found := cutLast(text, "\n")
	above, head, more := cutLast(before, "\n")
	if more {
		above += "\n"
	}
	if last = strings.TrimSpace(last); found && strings.HasSuffix(head, "{") && strings.HasSuffix(last, ";") && len(head)+len(last) < longestLine {
		e.out.Reset()
		e.out.WriteString(above + head + " " + last + " });\n")
		return
	}
	e.line("});")
}

const longestLine = 120

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return "", s, false
}

// parameters writes buffers as parameters: of the function that Python calls,
// or of a kernel, where booleans are bytes because GCC has no vectors of bool, and
// nothing else has what a buffer has, but for those in shared.
func (e *cpp) parameters(bufs []*buffer, writes func(*buffer) bool, kernel, batch bool, shared ...*buffer) string {
	var out []string
	for _, b := range bufs {
		typ, restrict := cppTypes[b.dtype], ""
		if kernel {
			if e.alone && !slices.Contains(shared, b) {
				restrict = " __restrict__"
			}
			if b.dtype == boole {
				typ = "unsigned char"
			}
		}
		if !writes(b) {
			typ = "const " + typ
		}
		out = append(out, fmt.Sprintf("%s*%s %s", typ, restrict, b.name))
	}
	if batch {
		out = append(out, "long long batch")
	}
	return strings.Join(out, ", ")
}

// segment writes the function that Python calls: one kernel after the other.
func (e *cpp) segment(s segment) {
	writes := func(b *buffer) bool {
		return slices.ContainsFunc(s.kernels, func(k *kernel) bool { return k.writes(b) })
	}
	e.depth++
	e.alone = false
	kernels := e.captured(func() {
		for _, k := range s.kernels {
			if len(s.kernels) > 1 {
				e.open("")
			}
			e.kernel(k)
			if len(s.kernels) > 1 {
				e.close()
			}
		}
	})
	e.depth--
	e.open(`extern "C" void %s(%s)`, s.name, e.parameters(s.buffers, writes, true, s.batch))
	e.out.WriteString(kernels)
	e.close()
}

// body is the state while one kernel is emitted.
type body struct {
	*cpp
	k         *kernel
	g         geometry
	wide      bool // one row at a time, its parts spread over threads
	threads   int
	tile      int
	names     map[*value]string // values computed so far, in the open scopes
	scopes    [][]*value
	cached    map[*value]bool     // kept between passes, in a row's scratch
	home      map[*value]store    // of these, where the place of a store serves for that
	ready     map[*value]bool     // of those, already filled
	rowed     map[*value]string   // values per lane, computed before the rows are walked
	results   map[*value]string   // of reductions, those that have a name of their own
	from, to  string              // the lanes of a tile
	once      bool                // what is computed for an element is written once
	window    []string            // index expressions of a pooling's operand
	special   func(*value) string // how an emitter writes what it has another form for; nil: as C++
	builtin   string              // what stands before the names of C's functions
	loopsMade int                 // numbers what a loop declares beside itself
}

// size returns the number of iterations of a group as an expression.
func (b *body) size(i int) string {
	t := b.g.groups[i]
	if t.batch {
		rest := t.size / b.plan.g.Batch.Size
		if rest == 1 {
			return "batch"
		}
		return fmt.Sprintf("batch * %d", rest)
	}
	return strconv.Itoa(t.size)
}

func (b *body) kernelThreads() int {
	if b.k.cost() < parallelCost {
		return 1
	}
	return b.knobs.get("threads", 1)
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

func (e *cpp) kernel(k *kernel) {
	b := &body{cpp: e, builtin: "__builtin_", k: k, g: k.geometry(), names: map[*value]string{}, cached: map[*value]bool{}, ready: map[*value]bool{}, rowed: map[*value]string{}, results: map[*value]string{}}
	b.tile = max(e.knobs.get("tile", 512), 16)
	if e.knobs.get("tile", 512) == 0 {
		b.tile = 512
	}
	inner := b.g.groups[b.g.inner]
	if b.g.lanes && !inner.batch {
		b.tile = min(b.tile, inner.size)
	}
	b.tile = max(min(b.tile, k.columnTile()), 1)
	work := 1
	for _, i := range b.g.outer {
		work *= b.g.groups[i].size
	}
	if b.g.lanes {
		work *= (inner.size + b.tile - 1) / b.tile
	}
	threads := b.kernelThreads()
	b.threads = threads
	b.wide = k.kind == reduceKernel && threads > 1 && work < 2*threads && !k.batch
	// Parts that threads share are merged with the sum of all the parts at
	// hand: one pass after the other.
	k.join(e.knobs.get("passes", 3) == 1 && !b.wide)
	if e.knobs.get("passes", 3) == 2 && !b.wide {
		kept := k.cacheable(b.g)
		for _, v := range kept {
			b.cached[v] = true
		}
		if v, s := k.home(kept); v != nil {
			b.home = map[*value]store{v: s}
		}
	}
	side := 1
	if k.kind == scanKernel && !b.g.lanes {
		b.wide = splits(k, b.g, work, threads)
		// No more rows side by side than leave every thread something to do.
		for side = e.knobs.get("chains", 1); side > 1 && !b.wide && work < side*threads; {
			side /= 2
		}
	}
	b.push()
	defer b.pop()
	// The loop over rows, or over tiles of rows side by side.
	total, row := "1", ""
	if len(b.g.outer) > 0 {
		var sizes []string
		for _, i := range b.g.outer {
			sizes = append(sizes, b.size(i))
		}
		total, row = strings.Join(sizes, " * "), " row"
	}
	if len(b.g.outer) == 1 {
		row = fmt.Sprintf(" i%d", b.g.outer[0])
	}
	spread := threads > 1 && !b.wide && (work > 1 || k.batch) // where not, threads may share a row
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
		if b.g.lanes {
			b.open("for (long long start = 0; start < %s; start += %d)", b.size(b.g.inner), b.tile)
			b.line("const long long lanes = %s - start < %d ? %s - start : %d;", b.size(b.g.inner), b.tile, b.size(b.g.inner), b.tile)
		}
	case b.g.lanes && !inner.batch && b.tile == inner.size:
		// One tile is the whole row, and the compiler may know its length.
		b.open("%s(%s, [=](long long%s)", b.spread("parallel", spread), total, row)
		known = []string{"start = 0", fmt.Sprintf("lanes = %d", b.tile)}
		b.from, b.to = "0", strconv.Itoa(b.tile)
	case b.g.lanes:
		b.open("%s(%s, %s, [=](long long%s, long long start, long long end)", b.spread("tiles", spread), total, b.size(b.g.inner), row)
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
		case k.kind == reduceKernel:
			b.reductions()
		case k.kind == scanKernel && b.wide:
			b.splitScan(side)
		case k.kind == scanKernel:
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
	case b.g.lanes:
		b.close()
		b.close()
	default:
		b.close()
	}
}

// captured returns what f writes.
func (e *cpp) captured(f func()) string {
	before := e.out.String()
	e.out.Reset()
	f()
	text := e.out.String()
	e.out.Reset()
	e.out.WriteString(before)
	return text
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

func (b *body) name(v *value, text string) {
	b.names[v] = text
	b.scopes[len(b.scopes)-1] = append(b.scopes[len(b.scopes)-1], v)
}

// outerIndices declares the position along each loop that is spread; of one alone it
// is the loop's own variable.
func (b *body) outerIndices() {
	if len(b.g.outer) == 1 {
		return
	}
	for n, i := range b.g.outer {
		var below []string
		for _, j := range b.g.outer[n+1:] {
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
		lead := len(b.k.space) - len(b.window)
		if d >= lead {
			return b.window[d-lead]
		}
	}
	i := b.g.of[d]
	if i < 0 {
		return ""
	}
	t := b.g.groups[i]
	if len(t.dims) > 0 && t.dims[len(t.dims)-1] != d {
		return ""
	}
	return fmt.Sprintf("i%d", i)
}

func (b *body) index(x index) string {
	var parts []string
	for _, t := range x.terms {
		p := b.position(t.dim)
		if p == "" {
			continue
		}
		if t.div > 1 {
			p = fmt.Sprintf("%s / %d", bracketed(p), t.div)
		}
		if t.mod > 0 {
			p = fmt.Sprintf("%s %% %d", bracketed(p), t.mod)
		}
		if t.coef != 1 {
			p = fmt.Sprintf("%d * %s", t.coef, bracketed(p))
		}
		parts = append(parts, p)
	}
	if x.off != 0 || len(parts) == 0 {
		parts = append(parts, strconv.Itoa(x.off))
	}
	return strings.Join(parts, " + ")
}

// bracketed is an expression that stands in another one.
func bracketed(x string) string {
	if identifier(x) || strings.HasPrefix(x, "(") && whole(x, '(', ')') {
		return x
	}
	if _, err := strconv.ParseUint(x, 10, 64); err == nil {
		return x
	}
	at := strings.IndexAny(x, "[(")
	if at > 0 && identifier(strings.ReplaceAll(x[:at], "::", "_")) && whole(x[at:], x[at], map[byte]byte{'[': ']', '(': ')'}[x[at]]) {
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
func (b *body) level(v *value, memo map[*value]int) int {
	if l, ok := memo[v]; ok {
		return l
	}
	deepest := len(b.g.order) + 1
	of := func(x index) int {
		l := 0
		for _, t := range x.terms {
			i := b.g.of[t.dim]
			switch {
			case i < 0:
			case i == b.g.inner:
				l = deepest
			default:
				l = max(l, 1+slices.Index(b.g.order, i))
			}
		}
		return l
	}
	l := 0
	switch {
	case b.window != nil && v.kind != constant:
		l = deepest
	case v.kind == access:
		if v.args[0].kind != reduce || b.g.lanes {
			l = deepest
		}
	case v.kind == load || v.kind == position:
		l = of(v.idx[0])
	}
	if v.kind != access {
		for _, a := range v.args {
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
func (b *body) compute(level int, roots ...*value) {
	memo := map[*value]int{}
	inPlace := b.inPlace(level, memo, roots)
	var walk func(v *value)
	walk = func(v *value) {
		if b.names[v] != "" || v.kind == constant {
			return
		}
		if b.ready[v] {
			if level == len(b.g.order)+1 {
				b.line("const float %s = %s;", label(v), b.place(v))
				b.name(v, label(v))
			}
			return
		}
		if v.kind != access && b.rowed[v] == "" {
			for _, a := range v.args {
				walk(a)
			}
		}
		if b.level(v, memo) != level {
			return
		}
		text := b.expression(v)
		if v.kind == access || b.rowed[v] != "" {
			b.name(v, bracketed(text))
			return
		}
		if inPlace[v] && len(text) <= longestPart {
			b.name(v, bracketed(text))
			return
		}
		n := label(v)
		b.line("const %s %s = %s;", cppTypes[v.dtype], n, text)
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
func (b *body) computeOnce(roots ...*value) {
	b.once = true
	b.compute(len(b.g.order)+1, roots...)
	b.once = false
}

// longestPart is how many characters an expression has at most that stands in another.
const longestPart = 60

// inPlace returns the values that stand in the expression of the one value that needs
// them: at the same level, and once.
func (b *body) inPlace(level int, memo map[*value]int, roots []*value) map[*value]bool {
	uses := map[*value]int{}
	seen := map[*value]bool{}
	var walk func(v *value)
	walk = func(v *value) {
		if seen[v] {
			return
		}
		seen[v] = true
		if v.kind == constant || v.kind == access || b.names[v] != "" || b.ready[v] || b.rowed[v] != "" {
			return
		}
		for _, a := range v.args {
			uses[a]++
			if b.level(v, memo) != level || !b.takesParts(v) {
				uses[a]++
			}
			walk(a)
		}
	}
	for _, r := range roots {
		uses[r]++
		if !b.once || level != len(b.g.order)+1 {
			uses[r]++
		}
		walk(r)
	}
	found := map[*value]bool{}
	for v, n := range uses {
		if n == 1 && (v.kind == load || v.kind == point || v.kind == position) && !b.cached[v] && b.takesParts(v) {
			found[v] = true
		}
	}
	return found
}

// takesParts reports whether a value's operands may stand in its expression: each does
// once, and nobody looks for the statement.
func (b *body) takesParts(v *value) bool {
	if v.kind == load {
		return len(v.args) == 0
	}
	switch v.op {
	case "max", "min", "where": // which computes what it does not take, too: no branch
		return false
	case "abs":
		return v.dtype.floating()
	case "div", "sqrt":
		return b.special == nil // what is divided on a GPU is seen by who emulates it
	}
	return true
}

// place returns where the element of a value lies that is kept between passes.
func (b *body) place(v *value) string {
	if s, ok := b.home[v]; ok {
		return fmt.Sprintf("%s[%s]", s.buf.name, b.at(s))
	}
	return fmt.Sprintf("scratch%d[i%d]", v.id, b.g.inner)
}

// text returns how a computed value is written.
func (b *body) text(v *value) string {
	if v.kind == constant {
		return literal(v.c, v.dtype)
	}
	return b.names[v]
}

func literal(c float64, d dtype) string {
	switch d {
	case boole:
		return strconv.FormatBool(c != 0)
	case i64:
		return strconv.FormatInt(int64(c), 10) + "LL"
	case i32:
		return strconv.FormatInt(int64(c), 10)
	}
	suffix, bits := "f", 32
	if d == f64 {
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

func (b *body) expression(v *value) string {
	if b.special != nil {
		if s := b.special(v); s != "" {
			return s
		}
	}
	switch v.kind {
	case position:
		return "(" + b.index(v.idx[0]) + ")"
	case load:
		at := b.index(v.idx[0])
		if len(v.args) > 0 {
			i := b.text(v.args[0])
			last := v.size - 1
			at = fmt.Sprintf("%s + %d * (%s < 0 ? 0 : %s > %d ? %d : %s)", at, v.stride, i, i, last, last, i)
		}
		if v.dtype == boole {
			return fmt.Sprintf("%s[%s] != 0", v.buf.name, at)
		}
		return fmt.Sprintf("%s[%s]", v.buf.name, at)
	case access:
		a := v.args[0]
		switch {
		case b.results[a] != "":
			return b.results[a]
		case a.kind == scan:
			return fmt.Sprintf("s%d", a.id)
		case a.kind == pool || b.g.lanes:
			return fmt.Sprintf("r%d[i%d - start]", a.id, b.g.inner)
		}
		return fmt.Sprintf("r%d", a.id)
	}
	if n := b.rowed[v]; n != "" {
		return fmt.Sprintf("%s[i%d - start]", n, b.g.inner)
	}
	args := make([]string, len(v.args))
	for i, a := range v.args {
		args[i] = b.text(a)
	}
	suffix := ""
	if v.dtype == f32 {
		suffix = "f"
	}
	if op := infix[v.op]; op != "" {
		return fmt.Sprintf("%s %s %s", args[0], op, args[1])
	}
	if f := mathCalls[v.op]; f != "" && v.dtype.floating() {
		for i, a := range args {
			args[i] = bare(a)
		}
		return fmt.Sprintf("%s%s%s(%s)", b.builtin, f, suffix, strings.Join(args, ", "))
	}
	switch v.op {
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
		if v.op == "min" {
			sign = "<"
		}
		x, y := args[0], args[1]
		if !v.dtype.floating() {
			return fmt.Sprintf("%s %s %s ? %s : %s", x, sign, y, x, y)
		}
		if v.args[1].kind == constant && !math.IsNaN(v.args[1].c) {
			// One comparison does: with a NaN it is false, and x is kept.
			return fmt.Sprintf("%s %s %s ? %s : %s", y, sign, x, y, x)
		}
		return fmt.Sprintf("(%s %s %s) | (%s != %s) ? %s : %s", x, sign, y, x, x, x, y)
	case "cast":
		if v.dtype == boole {
			return args[0] + " != 0"
		}
		return fmt.Sprintf("(%s)%s", cppTypes[v.dtype], args[0])
	case "exp", "expm1", "log", "log1p", "tanh", "erf":
		return fmt.Sprintf("kw::%s(%s)", v.op, bare(args[0]))
	}
	panic("coder: no C++ for operation " + v.op)
}

// simd opens the innermost loop over [from, to).
func (b *body) simd(clause, variable, from, to string) {
	if b.knobs.get("vector", 8) > 1 {
		b.line("#pragma omp simd%s", clause)
	}
	b.open("for (long long %s = %s; %s < %s; ++%s)", variable, from, variable, to, variable)
}

// at returns where a store writes at the current position.
func (b *body) at(s store) string {
	dims := b.k.outer()
	if !s.row {
		dims = nil
		for d := range b.k.space {
			dims = append(dims, d)
		}
	}
	shape := make([]int, len(dims))
	for i, d := range dims {
		shape[i] = b.k.space[d]
	}
	var x index
	for i, n := range contiguous(shape) {
		if shape[i] != 1 {
			x.terms = append(x.terms, term{dims[i], n, 1, 0})
		}
	}
	return b.index(x)
}

// laneLoop runs over the lanes of a tile, with the position along the
// innermost dimension in its usual name.
func (b *body) laneLoop(f func()) {
	b.simd("", "lane", "0", "lanes")
	b.push()
	b.line("const long long i%d = start + lane;", b.g.inner)
	f()
	b.pop()
	b.close()
}

// storing writes full stores in the innermost loop of a tile or a block of
// a row; those that go past the cache through a buffer that stays in it.
func (b *body) storing(stores []store, first, count string, f func(func(store, string))) {
	var past []store
	if b.knobs.get("nontemporal", 0) == 1 {
		for _, s := range stores {
			if streamable(b.k, s) && numel(s.buf.shape)*4 >= streamingBytes {
				past = append(past, s)
			}
		}
	}
	for _, s := range past {
		b.line("alignas(64) float past_%s[%d];", s.buf.name, max(b.tile, 16))
	}
	f(func(s store, text string) {
		if slices.Contains(past, s) {
			b.line("past_%s[i%d - (%s)] = %s;", s.buf.name, b.g.inner, first, text)
			return
		}
		b.line("%s[%s] = %s;", s.buf.name, b.at(s), text)
	})
	for _, s := range past {
		b.line("{ const long long i%d = %s; kw::stream(%s + %s, past_%s, %s); }", b.g.inner, first, s.buf.name, bracketed(b.at(s)), s.buf.name, count)
	}
}

// each opens a loop over [from, to) in which nothing is carried, as vector code where
// the schedule has that.
func (b *body) each(variable, from, to string, f func()) {
	if b.knobs.get("vector", 8) > 1 {
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
	if b.knobs.get("vector", 8) > 1 {
		b.end()
	} else {
		b.close()
	}
}

// maps emits a kernel without reductions: one tile.
func (b *body) maps() {
	for _, a := range b.k.anchors {
		b.pool(a)
	}
	roots := storedValues(b.k.stores)
	b.compute(0, roots...)
	b.storing(b.k.stores, "start", "lanes", func(put func(store, string)) {
		b.each(fmt.Sprintf("i%d", b.g.inner), b.from, b.to, func() {
			b.computeOnce(roots...)
			for _, s := range b.k.stores {
				put(s, bare(b.text(s.value)))
			}
		})
	})
}
