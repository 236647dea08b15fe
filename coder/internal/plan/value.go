package plan

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// DType is an element type that kernels can hold.
type DType string

// The types of elements.
const (
	F32  DType = "float32"
	F64  DType = "float64"
	I64  DType = "int64"
	I32  DType = "int32"
	Bool DType = "bool"
)

func (d DType) known() bool {
	return d == F32 || d == F64 || d == I64 || d == I32 || d == Bool
}

// Floating reports whether elements have fractions.
func (d DType) Floating() bool { return d == F32 || d == F64 }

// Buffer is memory that a plan reads or writes, densely packed.
type Buffer struct {
	Name  string // of the Python variable
	Shape []int
	DType DType
	Batch bool   // the leading dimension is the batch
	value *Value // what a kernel stores here; nil where it comes from outside
	State bool   // a parameter or constant of the module
	step  int    // that produces it; -1 for what is there at the start
}

// ValueKind is how a value is computed.
type ValueKind int

// The kinds of value.
const (
	Constant ValueKind = iota
	Position           // the index idx[0] itself, an int64
	Load               // buf at idx[0], plus stride*clamp(args[0]) for a gather
	Point              // op of args, element by element
	Access             // the result of the anchor args[0] at idx
	Reduce             // op over dims of args[0]
	Scan               // op along dims[0] of args[0]
	Pool               // op over windows of args[0]
)

// Value is one node of the expression graph that operators are lowered to. Each
// is a function from the positions along its shape to an element. Equal values
// are the same pointer.
type Value struct {
	ID    int
	Kind  ValueKind
	Op    string
	DType DType
	Shape []int
	Args  []*Value
	Idx   []Index
	Buf   *Buffer
	Const float64 // of a Constant

	Stride, Size int // of the gathered dimension
	dims         []int
	Reverse      bool
	Window       *Window

	Cost int     // of one element, in multiply-adds, what is below it included
	out  *Buffer // where an anchor's result is kept for other kernels
}

// Window is the geometry of a pooling over the last dimensions of an operand.
type Window struct {
	Kernel, Stride, Padding, Dilation, In []int
	Divisor                               int  // of an average; 0 counts the elements
	Counted                               bool // the average counts padding
}

// values makes values, each one once.
type values struct {
	byKey map[string]*Value
	All   []*Value
}

func (vs *values) intern(v Value) *Value {
	var b strings.Builder
	fmt.Fprintf(&b, "%d|%s|%s|%v|%v|%x|%d|%d|%v|%v", v.Kind, v.Op, v.DType, v.Shape, v.Idx, math.Float64bits(v.Const),
		v.Stride, v.Size, v.dims, v.Reverse)
	for _, a := range v.Args {
		fmt.Fprintf(&b, "|%d", a.ID)
	}
	if v.Buf != nil {
		fmt.Fprintf(&b, "|%p", v.Buf)
	}
	if v.Window != nil {
		fmt.Fprintf(&b, "|%v", *v.Window)
	}
	key := b.String()
	if w := vs.byKey[key]; w != nil {
		return w
	}
	if vs.byKey == nil {
		vs.byKey = map[string]*Value{}
	}
	v.ID = len(vs.All)
	for _, a := range v.Args {
		v.Cost += a.Cost
	}
	if v.Kind == Access {
		v.Cost = 0
	}
	v.Cost += pointCost(v)
	w := &v
	vs.byKey[key] = w
	vs.All = append(vs.All, w)
	return w
}

// pointCost is a rough cost of one operation in multiply-adds.
func pointCost(v Value) int {
	if v.Kind != Point {
		return 1
	}
	switch v.Op {
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

func (vs *values) constant(c float64, d DType, shape []int) *Value {
	return vs.intern(Value{Kind: Constant, Const: c, DType: d, Shape: shape})
}

// load reads a whole buffer.
func (vs *values) load(b *Buffer) *Value {
	idx := make([]Index, len(b.Shape))
	for i := range b.Shape {
		idx[i] = along(i)
	}
	return vs.intern(Value{Kind: Load, Buf: b, DType: b.DType, Shape: b.Shape, Idx: []Index{Flat(idx, b.Shape, b.Shape)}})
}

// whole accesses all of an anchor's result.
func (vs *values) whole(anchor *Value) *Value {
	idx := make([]Index, len(anchor.Shape))
	for i := range idx {
		idx[i] = along(i).normal(anchor.Shape)
	}
	return vs.intern(Value{Kind: Access, Args: []*Value{anchor}, DType: anchor.DType, Shape: anchor.Shape, Idx: idx})
}

// view re-indexes v: element i of the result is element m(i) of v. It reports
// false where an index would have no simple form; then v must be materialised.
func (vs *values) view(v *Value, shape []int, m []Index) (*Value, bool) {
	return vs.viewMemo(v, shape, m, map[*Value]*Value{})
}

func (vs *values) viewMemo(v *Value, shape []int, m []Index, memo map[*Value]*Value) (*Value, bool) {
	if w := memo[v]; w != nil {
		return w, true
	}
	w := *v
	w.Shape, w.Cost, w.out = shape, 0, nil
	if v.Kind != Constant {
		w.Idx = make([]Index, len(v.Idx))
		for i, x := range v.Idx {
			y, ok := x.substitute(m, shape)
			if !ok {
				return nil, false
			}
			w.Idx[i] = y
		}
	}
	if v.Kind == Point || v.Kind == Load {
		w.Args = make([]*Value, len(v.Args))
		for i, a := range v.Args {
			b, ok := vs.viewMemo(a, shape, m, memo)
			if !ok {
				return nil, false
			}
			w.Args[i] = b
		}
	}
	out := vs.intern(w)
	memo[v] = out
	return out, true
}

// reshape is view by row-major order.
func (vs *values) reshape(v *Value, shape []int) (*Value, bool) {
	if slices.Equal(v.Shape, shape) {
		return v, true
	}
	m, ok := reshapeMap(v.Shape, shape)
	if !ok {
		return nil, false
	}
	return vs.view(v, shape, m)
}

// expand broadcasts v to shape, dimensions aligned at the right.
func (vs *values) expand(v *Value, shape []int) *Value {
	if slices.Equal(v.Shape, shape) {
		return v
	}
	m := make([]Index, len(v.Shape))
	lead := len(shape) - len(v.Shape)
	for i, d := range v.Shape {
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
func (vs *values) point(op string, d DType, args ...*Value) *Value {
	shapes := make([][]int, len(args))
	for i, a := range args {
		shapes[i] = a.Shape
	}
	shape, ok := broadcast(shapes...)
	if !ok {
		panic(fmt.Sprintf("coder: operands of %s with shapes %v", op, shapes))
	}
	wide := make([]*Value, len(args))
	for i, a := range args {
		wide[i] = vs.expand(a, shape)
	}
	return vs.intern(Value{Kind: Point, Op: op, DType: d, Shape: shape, Args: wide})
}

func (vs *values) cast(v *Value, d DType) *Value {
	if v.DType == d {
		return v
	}
	if v.Kind == Constant {
		c := v.Const
		if !d.Floating() {
			c = math.Trunc(c)
		}
		if d == Bool && v.Const != 0 {
			c = 1
		}
		return vs.constant(c, d, v.Shape)
	}
	return vs.point("cast", d, v)
}

// reduce reduces dims of v away; keep leaves them as size 1.
func (vs *values) reduce(op string, d DType, v *Value, dims []int, keep bool) *Value {
	var shape []int
	for i, n := range v.Shape {
		if !slices.Contains(dims, i) {
			shape = append(shape, n)
		}
	}
	r := vs.whole(vs.intern(Value{Kind: Reduce, Op: op, DType: d, Shape: shape, Args: []*Value{v}, dims: dims}))
	if !keep {
		return r
	}
	return vs.unsqueeze(r, dims, v.Shape)
}

// unsqueeze puts the reduced dimensions back, with size 1.
func (vs *values) unsqueeze(r *Value, dims []int, full []int) *Value {
	shape := slices.Clone(full)
	var m []Index
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
