package emit

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright/coder/internal/plan"
)

// column is how many outputs below each other one thread of a pooling takes:
// rows that their windows share are read once.
type column struct{ group, rows int }

// columnRows is how many of them there are to begin with where windows overlap, and
// that leaves as many threads as an H100 holds twice. Of 8e5 outputs, one
// thread for 14 took 21 us there, for 8 of them 16.
const (
	columnRows    = 8
	columnThreads = 1 << 19
)

// linedOutputs are so many that a pooling begins with lines. A block of them loads,
// waits and stores, which other blocks hide where there are enough: 8e5 outputs took
// 8.9 to 11 us on an H100, where a thread for each, of torch.compile's, took 7.0.
const linedOutputs = 1 << 20

// line is a tile of a pooling in shared memory: of each column of inputs that
// windows along the last dimension share, what the window has of it in all other
// dimensions. Reads of it are aligned, and each column is computed once.
type line struct {
	outputs, parts int // of a row that a block takes at once, and the parts of a row
	rows           int // rows, or columns of outputs below each other, of a block
	lead, columns  int // inputs before those of the first window, and all of them
}

// Sizes of lines.
const (
	lineColumns = 1024     // inputs of a block with one item a thread
	lineBytes   = 16 << 10 // of shared memory: enough blocks have room beside each other
	lineBlocks  = 8        // of a multiprocessor, at least
	alignedRun  = 32       // elements of 128 bytes, which a warp reads at once
)

// onlyWindow returns the window of a kernel of one pooling, nil of others.
func onlyWindow(k *plan.Kernel) *plan.Window {
	if k.Kind != plan.MapKernel || len(k.Anchors) != 1 || k.Anchors[0].Value.Kind != plan.Pool {
		return nil
	}
	return k.Anchors[0].Value.Window
}

// hasLine reports whether a kernel is one pooling whose windows overlap along the
// last dimension, which has a loop of its own.
func hasLine(k *plan.Kernel, t plan.Geometry) bool {
	w := onlyWindow(k)
	if w == nil {
		return false
	}
	d := len(w.Kernel) - 1
	inner := t.Groups[t.Inner]
	return w.Kernel[d] > w.Stride[d] && len(inner.Dims) == 1 && inner.Dims[0] == len(k.Space)-1 && !inner.Batch
}

// poolLine returns the line of a kernel and the column with it, nil where it has
// none or no room for it.
func (g *gpu) poolLine(items int) (*line, column) {
	if g.knobs.Get("stage", 0) == 0 || !hasLine(g.k, g.g) {
		return nil, column{}
	}
	v := g.k.Anchors[0].Value
	w := v.Window
	d := len(w.Kernel) - 1
	c := g.poolColumn(6, 7)
	below := max(c.rows, 1)
	width, stride := g.g.Groups[g.g.Inner].Size, w.Stride[d]
	size := 4
	if poolType(v) == "double" {
		size = 8
	}
	most := min(lineBytes/(size*below), items*lineColumns)
	l := &line{}
	if w.In[d]%alignedRun == 0 && w.In[d] >= 4*alignedRun {
		l.lead = (alignedRun - w.Padding[d]%alignedRun) % alignedRun
	}
	span := func(outputs int) int { return l.lead + (outputs-1)*stride + w.Reach() }
	l.outputs = width
	if span(width) > most {
		fit := (most-l.lead-w.Reach())/stride + 1
		if fit < 2*alignedRun {
			return nil, column{}
		}
		// As many of each part, and parts begin where a run does.
		fit = fit / alignedRun * alignedRun
		parts := (width + fit - 1) / fit
		l.outputs = min(((width+parts-1)/parts+alignedRun-1)/alignedRun*alignedRun, fit)
	}
	l.parts = (width + l.outputs - 1) / l.outputs
	l.columns = span(l.outputs)
	l.rows = 1
	if l.parts == 1 {
		// Blocks enough for the whole device come first.
		all := plan.Numel(g.k.Space) / (width * below)
		l.rows = max(min(most/l.columns, all/(lineBlocks*g.device.on.multiprocessors)), 1)
	}
	return l, c
}

// inFloat is the most elements of a window that are added up in their own type.
const inFloat = 64

// poolType is the type in which a window is taken together.
func poolType(v *plan.Value) string {
	if v.Op == "mean" && plan.Numel(v.Window.Kernel) > inFloat {
		return "double"
	}
	return cppTypes[v.DType]
}

// lines emits a kernel of one pooling by lines.
func (g *gpu) lines(l *line) {
	a := g.k.Anchors[0]
	w := a.Value.Window
	d, rows := len(w.Kernel)-1, max(g.column.rows, 1)
	// Every so many of a count, which is divided by nothing where there is one.
	split := func(count string, by, of int, whole, rest string) {
		if of == 1 {
			g.line("constexpr int %s = 0;", whole)
			g.line("const int %s = %s;", rest, count)
			return
		}
		g.line("const int %s = %s / %d, %s = %s %% %d;", whole, count, by, rest, count, by)
	}
	g.begin("", mapBlock, nil)
	g.sizes()
	g.line("__shared__ %s line[%d][%d];", poolType(a.Value), l.rows*rows, l.columns)
	g.line("const far from = (far)(blockIdx.x / %d) * %d;", l.parts, l.rows)
	g.line("const pos part = blockIdx.x %% %d;", l.parts)
	g.line("#pragma unroll %d", max(8*w.Kernel[d]/(plan.Numel(w.Kernel)*rows), 1))
	g.open("for (int n = threadIdx.x; n < %d; n += %d)", l.rows*l.columns, mapBlock)
	g.push()
	split("n", l.columns, l.rows, "which", "c")
	g.line("const far row = from + which;")
	g.line("const pos at = part * %d - %d + c;", l.outputs*w.Stride[d], l.lead+w.Padding[d])
	g.decode("far", "row", g.g.Outer)
	g.emptied(a, rows)
	g.across = "at"
	g.open("if (row < rows && at >= 0 && at < %d)", w.In[d])
	g.windows(a)
	g.close()
	g.across = ""
	g.line("#pragma unroll")
	g.line("for (int n = 0; n < %d; ++n) line[which * %d + n][c] = p%d[n];", rows, rows, a.Value.ID)
	g.pop()
	g.close()
	g.line("__syncthreads();")

	g.open("for (int n = threadIdx.x; n < %d; n += %d)", l.rows*rows*l.outputs, mapBlock)
	g.push()
	split("n", l.outputs, l.rows*rows, "which", "o")
	g.line("const far row = from + which / %d;", rows)
	g.line("const pos base = part * %d + o;", l.outputs)
	g.line("if (row >= rows || base >= width) continue;")
	g.decode("far", "row", g.g.Outer)
	if rows > 1 {
		g.line("const far i%d = first + which %% %d;", g.column.group, rows)
		g.line("if (i%d >= %s) continue;", g.column.group, g.size(g.column.group))
	}
	g.emptied(a, 1)
	if w.Kernel[d] <= 16 {
		g.line("#pragma unroll")
	}
	g.open("for (int k = 0; k < %d; ++k)", w.Kernel[d])
	g.line("%s", g.takes(a, fmt.Sprintf("p%d[0]", a.Value.ID), fmt.Sprintf("line[which][o * %d + k * %d + %d]", w.Stride[d], w.Dilation[d], l.lead)))
	g.close()
	all := plan.StoredValues(g.k.Stores)
	for n := range len(g.g.Order) + 1 {
		g.compute(n, all...)
	}
	g.taken = true
	g.tile(nil, g.k.Stores, "", nil, nil)
	g.taken = false
	g.pop()
	g.close()
	g.end()
	g.start("", mapBlock, fmt.Sprintf("(rows + %d) / %d * %d", l.rows-1, l.rows, l.parts), nil)
}

// columnGroup returns the group of the last dimension but one of a kernel of one
// pooling, if it has a loop of its own; else -1.
func columnGroup(k *plan.Kernel, t plan.Geometry) int {
	w := onlyWindow(k)
	if w == nil || len(w.Kernel) < 2 || plan.Numel(w.Kernel) > 64 {
		return -1
	}
	i := t.Of[len(k.Space)-2]
	if i < 0 || i == t.Inner || len(t.Groups[i].Dims) != 1 || t.Groups[i].Batch {
		return -1
	}
	return i
}

// poolColumn returns the column of a kernel whose windows overlap along the last
// dimension but one so far that at most `share` of `of` rows are read that windows
// have; else one row.
func (g *gpu) poolColumn(share, of int) column {
	i := columnGroup(g.k, g.g)
	if i < 0 {
		return column{}
	}
	w := onlyWindow(g.k)
	d := len(w.Kernel) - 2
	rows := min(g.knobs.Get("share", columnRows), g.g.Groups[i].Size)
	for rows > 1 && len(linesOf(w, d, rows))*of > rows*w.Kernel[d]*share {
		rows--
	}
	return column{i, rows}
}

// linesOf returns, in order and from the start of the first window, which positions
// along dimension d the windows of outputs side by side take.
func linesOf(w *plan.Window, d, outputs int) []int {
	var out []int
	for n := range outputs {
		for k := range w.Kernel[d] {
			if at := n*w.Stride[d] + k*w.Dilation[d]; !slices.Contains(out, at) {
				out = append(out, at)
			}
		}
	}
	slices.Sort(out)
	return out
}

// originOf names where the first window of a pooling begins along a dimension.
func originOf(a *plan.Anchor, d int) string { return fmt.Sprintf("from%d_%d", a.Value.ID, d) }

// outputAt is the position of the thread's first output along a dimension of the window.
func (g *gpu) outputAt(w *plan.Window, d int) string {
	dim := len(g.k.Space) - len(w.Kernel) + d
	if g.column.rows > 1 && g.g.Of[dim] == g.column.group {
		return "first"
	}
	if p := g.position(dim); p != "" {
		return p
	}
	return "0"
}

// pooled emits the window of one output, or what is left to do of one of a column.
func (g *gpu) pooled(a *plan.Anchor) {
	if g.column.rows > 1 && !g.taken {
		g.finish(a, fmt.Sprintf("p%d[n]", a.Value.ID))
		return
	}
	if !g.taken {
		g.emptied(a, 1)
		g.windows(a)
	}
	g.finish(a, fmt.Sprintf("p%d[0]", a.Value.ID))
}

// emptied declares p of a pooling: what so many windows below each other come to
// before they have taken anything.
func (g *gpu) emptied(a *plan.Anchor, rows int) {
	v := a.Value
	g.line("%s p%d[%d];", poolType(v), v.ID, rows)
	g.line("#pragma unroll")
	g.line("for (int n = 0; n < %d; ++n) p%d[n] = %s;", rows, v.ID, neutralOf(a))
}

// windows has p of a pooling take its windows, or what they have of one column:
// inside the tensor without a look at its borders.
func (g *gpu) windows(a *plan.Anchor) {
	w := a.Value.Window
	rows := max(g.column.rows, 1)
	padded := false
	inside := ""
	for d := range w.Kernel {
		if g.across != "" && d == len(w.Kernel)-1 {
			continue
		}
		q := originOf(a, d)
		g.line("const pos %s = %s * %d - %d;", q, g.outputAt(w, d), w.Stride[d], w.Padding[d])
		reach := w.Dilation[d] * (w.Kernel[d] - 1)
		if d == len(w.Kernel)-2 && rows > 1 {
			reach += (rows - 1) * w.Stride[d]
		}
		// A column may end past the last output.
		if w.Padding[d] > 0 || (d == len(w.Kernel)-2 && rows > 1) {
			padded = true
			inside += fmt.Sprintf(" && %s >= 0 && %s + %d < %d", q, q, reach, w.In[d])
		}
	}
	switch {
	case padded && rows == 1 && g.across == "" && plan.Numel(w.Kernel) <= maskedWindow:
		g.taps(a, 0, masked)
	case padded:
		g.open("if (%s)", inside[4:])
		g.taps(a, 0, unchecked)
		g.close()
		g.open("else")
		g.taps(a, 0, branching)
		g.close()
	default:
		g.taps(a, 0, unchecked)
	}
}

// maskedWindow is the most elements of a window that are all asked for at once.
const maskedWindow = 32

// border is how a window leaves out what is outside the tensor.
type border int

const (
	unchecked border = iota // nothing is
	branching               // by branches: a warp that has both kinds of windows goes both ways
	masked                  // each element by itself, so that no load waits for another
)

// taps emits the loops over the window from dimension d on.
func (g *gpu) taps(a *plan.Anchor, d int, by border) {
	w := a.Value.Window
	rank := len(w.Kernel)
	look := func(d int, rest func()) {
		if by == branching {
			g.open("if (q%d >= 0 && q%d < %d)", d, d, w.In[d])
			rest()
			g.close()
		} else {
			rest()
		}
	}
	if d == rank-2 && g.column.rows > 1 {
		lines := linesOf(w, d, g.column.rows)
		g.line("constexpr int lines[] = {%s};", strings.Trim(strings.ReplaceAll(fmt.Sprint(lines), " ", ", "), "[]"))
		g.line("#pragma unroll")
		g.open("for (int line = 0; line < %d; ++line)", len(lines))
		g.line("const pos q%d = %s + lines[line];", d, originOf(a, d))
		look(d, func() {
			g.line("%s h = %s;", cppTypes[a.Value.DType], neutralOf(a))
			g.acrossLine(a, by, "h")
			g.line("#pragma unroll")
			g.open("for (int n = 0; n < %d; ++n)", g.column.rows)
			g.line("const int k = lines[line] - n * %d;", w.Stride[d])
			g.line("if (k >= 0 && k %% %d == 0 && k / %d < %d) %s", w.Dilation[d], w.Dilation[d], w.Kernel[d], g.takes(a, fmt.Sprintf("p%d[n]", a.Value.ID), "h"))
			g.close()
		})
		g.close()
		return
	}
	if d == rank-1 {
		g.acrossLine(a, by, fmt.Sprintf("p%d[0]", a.Value.ID))
		return
	}
	if w.Kernel[d] <= 16 {
		g.line("#pragma unroll")
	}
	g.open("for (int k%d = 0; k%d < %d; ++k%d)", d, d, w.Kernel[d], d)
	g.line("const pos q%d = %s + k%d * %d;", d, originOf(a, d), d, w.Dilation[d])
	look(d, func() { g.taps(a, d+1, by) })
	g.close()
}

// acrossLine has `to` take what the window has along the last dimension, or there of
// one column.
func (g *gpu) acrossLine(a *plan.Anchor, by border, to string) {
	w := a.Value.Window
	d := len(w.Kernel) - 1
	if g.across != "" {
		g.open("")
		g.line("const pos q%d = %s;", d, g.across)
	} else {
		if w.Kernel[d] <= 16 {
			g.line("#pragma unroll")
		}
		g.open("for (int k%d = 0; k%d < %d; ++k%d)", d, d, w.Kernel[d], d)
		g.line("const pos q%d = %s + k%d * %d;", d, originOf(a, d), d, w.Dilation[d])
		if by == branching {
			g.line("if (q%d < 0 || q%d >= %d) continue;", d, d, w.In[d])
		}
	}
	g.push()
	saved := g.window
	g.window = nil
	for i := range w.Kernel {
		g.window = append(g.window, fmt.Sprintf("q%d", i))
	}
	if by == masked {
		g.line("%s h = %s;", cppTypes[a.Value.DType], neutralOf(a))
		g.open("if (%s)", insideOf(w))
	}
	g.compute(g.innermost(), a.Operand)
	x := g.text(a.Operand)
	g.window = saved
	if by == masked {
		g.line("h = %s;", x)
		g.close()
		x = "h"
	}
	g.line("%s", g.takes(a, to, x))
	g.pop()
	g.close()
}

// insideOf is the condition that an element of a window, q0 and so on, is in the tensor.
func insideOf(w *plan.Window) string {
	var all []string
	for d := range w.Kernel {
		if w.Padding[d] > 0 {
			all = append(all, fmt.Sprintf("q%d >= 0 && q%d < %d", d, d, w.In[d]))
		}
	}
	return strings.Join(all, " && ")
}

// neutralOf is what changes no window.
func neutralOf(a *plan.Anchor) string {
	if a.Value.Op == "max" {
		return literal(math.Inf(-1), a.Value.DType)
	}
	return "0"
}

// takes is the statement by which a window takes x.
func (g *gpu) takes(a *plan.Anchor, to, x string) string {
	if a.Value.Op == "max" {
		return fmt.Sprintf("%s = kw::most(%s, %s);", to, x, to)
	}
	return fmt.Sprintf("%s += %s;", to, x)
}

// divisorOf is by what an average divides; 0 where that is not the same everywhere.
func divisorOf(w *plan.Window) int {
	if w.Divisor == 0 && (w.Counted || !slices.ContainsFunc(w.Padding, func(p int) bool { return p > 0 })) {
		return plan.Numel(w.Kernel)
	}
	return w.Divisor
}

// finish declares the result of a window.
func (g *gpu) finish(a *plan.Anchor, p string) {
	v, w := a.Value, a.Value.Window
	typ := cppTypes[v.DType]
	if v.Op != "mean" {
		g.line("const %s r%d = %s;", typ, v.ID, p)
		return
	}
	if divisor := divisorOf(w); divisor > 0 {
		g.line("const %s r%d = (%s)(%s / %d);", typ, v.ID, typ, p, divisor)
		return
	}
	// Only what is inside counts.
	g.line("int inside%d = 1;", v.ID)
	for d := range w.Kernel {
		at := "0"
		if p := g.position(len(g.k.Space) - len(w.Kernel) + d); p != "" {
			at = p
		}
		g.line("{ const pos a = %s * %d - %d, z = a + %d; inside%d *= (z < %d ? z : %d) - (a > 0 ? a : 0); }",
			at, w.Stride[d], w.Padding[d], w.Kernel[d], v.ID, w.In[d], w.In[d])
	}
	g.line("const %s r%d = (%s)(%s / inside%d);", typ, v.ID, typ, p, v.ID)
}
