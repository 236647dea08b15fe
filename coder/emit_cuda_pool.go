package coder

import (
	"fmt"
	"slices"
	"strings"
)

// column is how many outputs below each other one thread of a pooling takes:
// rows that their windows share are read once.
type column struct{ group, rows int }

// columnRows is how many of them there are where windows overlap.
const columnRows = 8

// poolColumn returns the column of a kernel of one pooling whose windows overlap
// along the last dimension but one; else one row.
func (g *gpu) poolColumn() column {
	if len(g.k.anchors) != 1 || g.k.anchors[0].value.kind != pool {
		return column{}
	}
	w := g.k.anchors[0].value.window
	rank := len(w.kernel)
	d := rank - 2
	if rank < 2 || numel(w.kernel) > 64 {
		return column{}
	}
	dim := len(g.k.space) - 2
	i := g.g.of[dim]
	if i < 0 || i == g.g.inner || len(g.g.groups[i].dims) != 1 || g.g.groups[i].batch {
		return column{}
	}
	rows := min(columnRows, g.g.groups[i].size)
	for rows > 1 && len(w.lines(d, rows))*4 > rows*w.kernel[d]*3 {
		rows--
	}
	return column{i, rows}
}

// lines returns, in order and from the start of the first window, which positions
// along dimension d the windows of outputs side by side take.
func (w *window) lines(d, outputs int) []int {
	var out []int
	for n := range outputs {
		for k := range w.kernel[d] {
			if at := n*w.stride[d] + k*w.dilation[d]; !slices.Contains(out, at) {
				out = append(out, at)
			}
		}
	}
	slices.Sort(out)
	return out
}

// origin names where the first window of a pooling begins along a dimension.
func (a *anchor) origin(d int) string { return fmt.Sprintf("from%d_%d", a.value.id, d) }

// outputAt is the position of the thread's first output along a dimension of the window.
func (g *gpu) outputAt(w *window, d int) string {
	dim := len(g.k.space) - len(w.kernel) + d
	if g.column.rows > 1 && g.g.of[dim] == g.column.group {
		return "first"
	}
	if p := g.position(dim); p != "" {
		return p
	}
	return "0"
}

// pooled emits the window of one output, or what is left to do of one of a column.
func (g *gpu) pooled(a *anchor) {
	if g.column.rows > 1 {
		g.finish(a, fmt.Sprintf("p%d[n]", a.value.id))
		return
	}
	g.windows(a)
	g.finish(a, fmt.Sprintf("p%d[0]", a.value.id))
}

// windows declares p of a pooling, the windows' largest or sum: inside the tensor
// without a look at its borders.
func (g *gpu) windows(a *anchor) {
	v, w := a.value, a.value.window
	typ := cppTypes[v.dtype]
	if v.op == "mean" && numel(w.kernel) > 64 {
		typ = "double"
	}
	init := "0"
	if v.op == "max" {
		init = literal(-inf, v.dtype)
		g.used["most"] = true
	}
	rows := max(g.column.rows, 1)
	g.line("%s p%d[%d];", typ, v.id, rows)
	g.line("#pragma unroll")
	g.line("for (int n = 0; n < %d; ++n) p%d[n] = %s;", rows, v.id, init)
	padded := false
	inside := ""
	for d := range w.kernel {
		q := a.origin(d)
		g.line("const pos %s = %s * %d - %d;", q, g.outputAt(w, d), w.stride[d], w.padding[d])
		reach := w.dilation[d] * (w.kernel[d] - 1)
		if d == len(w.kernel)-2 && rows > 1 {
			reach += (rows - 1) * w.stride[d]
		}
		// A column may end past the last output.
		if w.padding[d] > 0 || (d == len(w.kernel)-2 && rows > 1) {
			padded = true
			inside += fmt.Sprintf(" && %s >= 0 && %s + %d < %d", q, q, reach, w.in[d])
		}
	}
	if padded {
		g.open("if (%s)", inside[4:])
		g.taps(a, 0, false)
		g.close()
		g.open("else")
		g.taps(a, 0, true)
		g.close()
	} else {
		g.taps(a, 0, false)
	}
}

// taps emits the loops over the window from dimension d on. checked leaves out
// what is outside the tensor.
func (g *gpu) taps(a *anchor, d int, checked bool) {
	w := a.value.window
	rank := len(w.kernel)
	look := func(d int, rest func()) {
		if checked {
			g.open("if (q%d >= 0 && q%d < %d)", d, d, w.in[d])
			rest()
			g.close()
		} else {
			rest()
		}
	}
	if d == rank-2 && g.column.rows > 1 {
		lines := w.lines(d, g.column.rows)
		g.line("constexpr int lines[] = {%s};", strings.Trim(strings.ReplaceAll(fmt.Sprint(lines), " ", ", "), "[]"))
		g.line("#pragma unroll")
		g.open("for (int line = 0; line < %d; ++line)", len(lines))
		g.line("const pos q%d = %s + lines[line];", d, a.origin(d))
		look(d, func() {
			g.line("%s h = %s;", cppTypes[a.value.dtype], map[bool]string{true: literal(-inf, a.value.dtype), false: "0"}[a.value.op == "max"])
			g.acrossLine(a, checked, "h")
			g.line("#pragma unroll")
			g.open("for (int n = 0; n < %d; ++n)", g.column.rows)
			g.line("const int k = lines[line] - n * %d;", w.stride[d])
			g.line("if (k >= 0 && k %% %d == 0 && k / %d < %d) %s", w.dilation[d], w.dilation[d], w.kernel[d], g.takes(a, fmt.Sprintf("p%d[n]", a.value.id), "h"))
			g.close()
		})
		g.close()
		return
	}
	if d == rank-1 {
		g.acrossLine(a, checked, fmt.Sprintf("p%d[0]", a.value.id))
		return
	}
	if w.kernel[d] <= 16 {
		g.line("#pragma unroll")
	}
	g.open("for (int k%d = 0; k%d < %d; ++k%d)", d, d, w.kernel[d], d)
	g.line("const pos q%d = %s + k%d * %d;", d, a.origin(d), d, w.dilation[d])
	look(d, func() { g.taps(a, d+1, checked) })
	g.close()
}

// acrossLine has `to` take what the window has along the last dimension.
func (g *gpu) acrossLine(a *anchor, checked bool, to string) {
	w := a.value.window
	d := len(w.kernel) - 1
	if w.kernel[d] <= 16 {
		g.line("#pragma unroll")
	}
	g.open("for (int k%d = 0; k%d < %d; ++k%d)", d, d, w.kernel[d], d)
	g.line("const pos q%d = %s + k%d * %d;", d, a.origin(d), d, w.dilation[d])
	if checked {
		g.line("if (q%d < 0 || q%d >= %d) continue;", d, d, w.in[d])
	}
	g.push()
	saved := g.window
	g.window = nil
	for i := range w.kernel {
		g.window = append(g.window, fmt.Sprintf("q%d", i))
	}
	g.compute(g.innermost(), a.operand)
	x := g.text(a.operand)
	g.window = saved
	g.line("%s", g.takes(a, to, x))
	g.pop()
	g.close()
}

// takes is the statement by which a window takes x.
func (g *gpu) takes(a *anchor, to, x string) string {
	if a.value.op == "max" {
		return fmt.Sprintf("%s = most(%s, %s);", to, x, to)
	}
	return fmt.Sprintf("%s += %s;", to, x)
}

// finish declares the result of a window.
func (g *gpu) finish(a *anchor, p string) {
	v, w := a.value, a.value.window
	typ := cppTypes[v.dtype]
	if v.op != "mean" {
		g.line("const %s r%d = %s;", typ, v.id, p)
		return
	}
	divisor := w.divisor
	if divisor == 0 && (w.counted || !slices.ContainsFunc(w.padding, func(p int) bool { return p > 0 })) {
		divisor = numel(w.kernel)
	}
	if divisor > 0 {
		g.line("const %s r%d = (%s)(%s / %d);", typ, v.id, typ, p, divisor)
		return
	}
	// Only what is inside counts.
	g.line("int inside%d = 1;", v.id)
	for d := range w.kernel {
		at := "0"
		if p := g.position(len(g.k.space) - len(w.kernel) + d); p != "" {
			at = p
		}
		g.line("{ const pos a = %s * %d - %d, z = a + %d; inside%d *= (z < %d ? z : %d) - (a > 0 ? a : 0); }",
			at, w.stride[d], w.padding[d], w.kernel[d], v.id, w.in[d], w.in[d])
	}
	g.line("const %s r%d = (%s)(%s / inside%d);", typ, v.id, typ, p, v.id)
}
