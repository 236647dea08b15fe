package coder

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// dtype is an element type that kernels can hold.
type dtype string

const (
	f32   dtype = "float32"
	f64   dtype = "float64"
	i64   dtype = "int64"
	i32   dtype = "int32"
	boole dtype = "bool"
)

func (d dtype) known() bool {
	return d == f32 || d == f64 || d == i64 || d == i32 || d == boole
}

func (d dtype) floating() bool { return d == f32 || d == f64 }

// buffer is memory that a plan reads or writes, densely packed.
type buffer struct {
	name  string // of the Python variable
	shape []int
	dtype dtype
	batch bool   // the leading dimension is the batch
	value *value // what a kernel stores here; nil where it comes from outside
	state bool   // a parameter or constant of the module
	step  int    // that produces it; -1 for what is there at the start
}

type valueKind int

const (
	constant valueKind = iota
	position           // the index idx[0] itself, an int64
	load               // buf at idx[0], plus stride*clamp(args[0]) for a gather
	point              // op of args, element by element
	access             // the result of the anchor args[0] at idx
	reduce             // op over dims of args[0]
	scan               // op along dims[0] of args[0]
	pool               // op over windows of args[0]
)

// value is one node of the expression graph that operators are lowered to. Each
// is a function from the positions along its shape to an element. Equal values
// are the same pointer.
type value struct {
	id    int
	kind  valueKind
	op    string
	dtype dtype
	shape []int
	args  []*value
	idx   []index
	buf   *buffer
	c     float64

	stride, size int // of the gathered dimension
	dims         []int
	reverse      bool
	window       *window

	cost int     // of one element, in multiply-adds, what is below it included
	out  *buffer // where an anchor's result is kept for other kernels
}

// window is the geometry of a pooling over the last dimensions of an operand.
type window struct {
	kernel, stride, padding, dilation, in []int
	divisor                               int  // of an average; 0 counts the elements
	counted                               bool // the average counts padding
}

// values makes values, each one once.
type values struct {
	byKey map[string]*value
	all   []*value
}

func (vs *values) intern(v value) *value {
	var b strings.Builder
	fmt.Fprintf(&b, "%d|%s|%s|%v|%v|%x|%d|%d|%v|%v", v.kind, v.op, v.dtype, v.shape, v.idx, math.Float64bits(v.c),
		v.stride, v.size, v.dims, v.reverse)
	for _, a := range v.args {
		fmt.Fprintf(&b, "|%d", a.id)
	}
	if v.buf != nil {
		fmt.Fprintf(&b, "|%p", v.buf)
	}
	if v.window != nil {
		fmt.Fprintf(&b, "|%v", *v.window)
	}
	key := b.String()
	if w := vs.byKey[key]; w != nil {
		return w
	}
	if vs.byKey == nil {
		vs.byKey = map[string]*value{}
	}
	v.id = len(vs.all)
	for _, a := range v.args {
		v.cost += a.cost
	}
	if v.kind == access {
		v.cost = 0
	}
	v.cost += pointCost(v)
	w := &v
	vs.byKey[key] = w
	vs.all = append(vs.all, w)
	return w
}

// pointCost is a rough cost of one operation in multiply-adds.
func pointCost(v value) int {
	if v.kind != point {
		return 1
	}
	switch v.op {
	case "exp", "log", "expm1", "log1p", "tanh", "sigmoid", "softplus", "sin", "cos":
		return 16
	case "erf", "gelu", "gelu_tanh", "mish", "silu", "elu", "log_sigmoid":
		return 24
	case "pow":
		return 60
	case "div", "sqrt", "rsqrt":
		return 6
	}
	return 1
}

func (vs *values) constant(c float64, d dtype, shape []int) *value {
	return vs.intern(value{kind: constant, c: c, dtype: d, shape: shape})
}

// load reads a whole buffer.
func (vs *values) load(b *buffer) *value {
	idx := make([]index, len(b.shape))
	for i := range b.shape {
		idx[i] = along(i)
	}
	return vs.intern(value{kind: load, buf: b, dtype: b.dtype, shape: b.shape, idx: []index{flat(idx, b.shape, b.shape)}})
}

// whole accesses all of an anchor's result.
func (vs *values) whole(anchor *value) *value {
	idx := make([]index, len(anchor.shape))
	for i := range idx {
		idx[i] = along(i).normal(anchor.shape)
	}
	return vs.intern(value{kind: access, args: []*value{anchor}, dtype: anchor.dtype, shape: anchor.shape, idx: idx})
}

// view re-indexes v: element i of the result is element m(i) of v. It reports
// false where an index would have no simple form; then v must be materialised.
func (vs *values) view(v *value, shape []int, m []index) (*value, bool) {
	return vs.viewMemo(v, shape, m, map[*value]*value{})
}

func (vs *values) viewMemo(v *value, shape []int, m []index, memo map[*value]*value) (*value, bool) {
	if w := memo[v]; w != nil {
		return w, true
	}
	w := *v
	w.shape, w.cost, w.out = shape, 0, nil
	if v.kind != constant {
		w.idx = make([]index, len(v.idx))
		for i, x := range v.idx {
			y, ok := x.substitute(m, shape)
			if !ok {
				return nil, false
			}
			w.idx[i] = y
		}
	}
	if v.kind == point || v.kind == load {
		w.args = make([]*value, len(v.args))
		for i, a := range v.args {
			b, ok := vs.viewMemo(a, shape, m, memo)
			if !ok {
				return nil, false
			}
			w.args[i] = b
		}
	}
	out := vs.intern(w)
	memo[v] = out
	return out, true
}

// reshape is view by row-major order.
func (vs *values) reshape(v *value, shape []int) (*value, bool) {
	if slices.Equal(v.shape, shape) {
		return v, true
	}
	m, ok := reshapeMap(v.shape, shape)
	if !ok {
		return nil, false
	}
	return vs.view(v, shape, m)
}

// expand broadcasts v to shape, dimensions aligned at the right.
func (vs *values) expand(v *value, shape []int) *value {
	if slices.Equal(v.shape, shape) {
		return v
	}
	m := make([]index, len(v.shape))
	lead := len(shape) - len(v.shape)
	for i, d := range v.shape {
		if d != 1 {
			m[i] = along(lead + i)
		}
	}
	w, ok := vs.view(v, shape, m)
	if !ok {
		panic("coder: broadcasting needs no division") // along(k) substitutes into any index
	}
	return w
}

// broadcast returns the common shape of operands.
func broadcast(shapes ...[]int) ([]int, bool) {
	rank := 0
	for _, s := range shapes {
		rank = max(rank, len(s))
	}
	out := make([]int, rank)
	for i := range out {
		out[i] = 1
	}
	for _, s := range shapes {
		for i, d := range s {
			o := &out[rank-len(s)+i]
			if d != 1 && *o != 1 && d != *o {
				return nil, false
			}
			if d != 1 {
				*o = d
			}
		}
	}
	return out, true
}

// point applies op to operands, which are broadcast against each other. The
// operands have the types that op takes; the result has the type d.
func (vs *values) point(op string, d dtype, args ...*value) *value {
	shapes := make([][]int, len(args))
	for i, a := range args {
		shapes[i] = a.shape
	}
	shape, ok := broadcast(shapes...)
	if !ok {
		panic(fmt.Sprintf("coder: operands of %s with shapes %v", op, shapes))
	}
	wide := make([]*value, len(args))
	for i, a := range args {
		wide[i] = vs.expand(a, shape)
	}
	return vs.intern(value{kind: point, op: op, dtype: d, shape: shape, args: wide})
}

func (vs *values) cast(v *value, d dtype) *value {
	if v.dtype == d {
		return v
	}
	if v.kind == constant {
		c := v.c
		if !d.floating() {
			c = math.Trunc(c)
		}
		if d == boole && v.c != 0 {
			c = 1
		}
		return vs.constant(c, d, v.shape)
	}
	return vs.point("cast", d, v)
}

// reduce reduces dims of v away; keep leaves them as size 1.
func (vs *values) reduce(op string, d dtype, v *value, dims []int, keep bool) *value {
	var shape []int
	for i, n := range v.shape {
		if !slices.Contains(dims, i) {
			shape = append(shape, n)
		}
	}
	r := vs.whole(vs.intern(value{kind: reduce, op: op, dtype: d, shape: shape, args: []*value{v}, dims: dims}))
	if !keep {
		return r
	}
	return vs.unsqueeze(r, dims, v.shape)
}

// unsqueeze puts the reduced dimensions back, with size 1.
func (vs *values) unsqueeze(r *value, dims []int, full []int) *value {
	shape := slices.Clone(full)
	var m []index
	for i := range full {
		if slices.Contains(dims, i) {
			shape[i] = 1
		} else {
			m = append(m, along(i))
		}
	}
	w, ok := vs.view(r, shape, m)
	if !ok {
		panic("coder: a unit dimension needs no division")
	}
	return w
}
