package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// lowering turns a graph into values, and into the items that must exist in
// memory: what torch computes, what torch takes, and what forward returns.
type lowering struct {
	values
	Graph   *Graph
	env     map[string][]*Value // outputs of each node and input by name
	items   []item
	buffers []*Buffer
	Covered []string          // operators that became part of a kernel
	stores  map[*Value]*Value // materialised value to its load
	Kept    []string          // operators left to torch
	fuse    bool              // false stores the result of every operator
}

// item is one step before kernels are formed: a call of torch, or a value to
// be stored.
type item struct {
	call  *TorchCall
	store *Buffer
}

// TorchCall is an operator left to torch.
type TorchCall struct {
	Node GraphNode
	Args map[Reference]*Value // loads
	Outs []*Buffer            // nil entries for outputs that kernels cannot hold
	Vars []string             // a Python variable for each output
}

// lowerer makes the outputs of a node from its arguments. It reports false to
// leave the node to torch, and must then not have stored anything.
type lowerer func(l *lowering, n GraphNode) ([]*Value, bool)

// lowerers is by the operator's name without namespace and overload; a node
// with several overloads tells them apart by its arguments.
var lowerers = map[string]lowerer{}

// views are operators that only move or keep elements: they cost nothing and
// cover nothing.
var views = map[string]lowerer{}

func opName(op string) string {
	parts := strings.Split(op, ".")
	if len(parts) < 2 {
		return op
	}
	return strings.TrimSuffix(parts[1], "_")
}

// arg returns an argument by position or name.
func (n GraphNode) arg(i int, name string) Arg {
	if i >= 0 && i < len(n.Args) {
		return n.Args[i]
	}
	return n.Kwargs[name]
}

func (n GraphNode) number(i int, name string, otherwise float64) float64 {
	if f, ok := n.arg(i, name).number(); ok {
		return f
	}
	return otherwise
}

func (n GraphNode) dtype() DType { return DType(n.Outputs[0].DType) }

func lower(g *Graph, fuse bool) (*lowering, error) {
	l := &lowering{Graph: g, fuse: fuse, env: map[string][]*Value{}, stores: map[*Value]*Value{}}
	for _, in := range g.Inputs {
		if in.IsTensor() {
			batch := g.Batch != nil && slices.Contains(g.Batch.Inputs, in.Name)
			l.source(in.Name, in.TensorMeta, batch, false)
		}
	}
	for _, p := range slices.Concat(g.Parameters, g.Constants) {
		if len(p.Data) == 1 && Numel(p.Shape) == 1 && DType(p.DType).known() {
			c, _ := p.Data[0].number()
			l.env[p.Name] = []*Value{l.constant(c, DType(p.DType), p.Shape)}
			continue
		}
		l.source(p.Name, p.TensorMeta, false, true)
	}
	for _, n := range g.Nodes {
		if err := l.node(n); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (l *lowering) source(name string, m TensorMeta, batch, state bool) {
	b := &Buffer{Name: "v_" + name, Shape: m.Shape, DType: DType(m.DType), Batch: batch, State: state, step: -1}
	if state {
		b.Name = "s_" + name
	}
	l.buffers = append(l.buffers, b)
	l.env[name] = []*Value{l.load(b)}
}

func (l *lowering) node(n GraphNode) error {
	if len(n.Outputs) == 0 {
		return fmt.Errorf("operator %s has no output", n.Op)
	}
	name := opName(n.Op)
	if l.fits(n) {
		if f := views[name]; f != nil {
			if out, ok := f(l, n); ok {
				l.env[n.Name] = out
				return nil
			}
		} else if f := lowerers[name]; f != nil {
			if out, ok := f(l, n); ok {
				for i, v := range out {
					if v != nil && (i >= len(n.Outputs) || !slices.Equal(v.Shape, n.Outputs[i].Shape) || string(v.DType) != n.Outputs[i].DType) {
						return fmt.Errorf("lowering %s gave %s%v instead of %s%v", n.Op, v.DType, v.Shape, n.Outputs[i].DType, n.Outputs[i].Shape)
					}
				}
				if !l.fuse {
					for i, v := range out {
						if v != nil && v.Kind != Load && v.Kind != Constant {
							out[i] = l.materialise(v)
						}
					}
				}
				l.env[n.Name] = out
				l.Covered = append(l.Covered, "aten."+name)
				return nil
			}
		}
	}
	return l.leave(n)
}

// fits reports whether all tensors of a node have types and sizes that kernels
// can hold.
func (l *lowering) fits(n GraphNode) bool {
	for _, o := range n.Outputs {
		if o.DType != "none" && (!DType(o.DType).known() || Numel(o.Shape) == 0) {
			return false
		}
	}
	ok := true
	n.refs(func(a Arg) {
		v, found := l.ref(a)
		ok = ok && found && v.DType.known() && Numel(v.Shape) > 0
	})
	return ok
}

// refs calls f for each reference among the arguments.
func (n GraphNode) refs(f func(Arg)) {
	var walk func(a Arg)
	walk = func(a Arg) {
		if a.Kind == argRef {
			f(a)
		}
		for _, c := range a.List {
			walk(c)
		}
	}
	for _, a := range n.Args {
		walk(a)
	}
	for _, k := range slices.Sorted(maps.Keys(n.Kwargs)) {
		walk(n.Kwargs[k])
	}
}

func (l *lowering) ref(a Arg) (*Value, bool) {
	outs := l.env[a.S]
	i := max(a.Item, 0)
	if i >= len(outs) || outs[i] == nil {
		return nil, false
	}
	return outs[i], true
}

// tensor returns an argument as a value: a tensor's, or a scalar of type d.
func (l *lowering) tensor(a Arg, d DType) (*Value, bool) {
	if a.Kind == argRef {
		return l.ref(a)
	}
	if f, ok := a.number(); ok {
		return l.constant(f, d, nil), true
	}
	return nil, false
}

// used reports whether anything takes one of several outputs of a node.
func (l *lowering) used(name string, output int) bool {
	found := false
	look := func(a Arg) { found = found || (a.S == name && max(a.Item, 0) == output) }
	for _, n := range l.Graph.Nodes {
		n.refs(look)
	}
	_ = l.Graph.Outputs.leaves(func(a Arg) error {
		if a.Kind == argRef {
			look(a)
		}
		return nil
	})
	return found
}

// leave makes the node a call of torch.
func (l *lowering) leave(n GraphNode) error {
	c := &TorchCall{Node: n, Args: map[Reference]*Value{}}
	var err error
	n.refs(func(a Arg) {
		v, ok := l.ref(a)
		if !ok {
			err = fmt.Errorf("%s takes %s, which no operator computes", n.Op, a.S)
			return
		}
		if key := a.Reference(); c.Args[key] == nil {
			c.Args[key] = l.inMemory(v)
		}
	})
	if err != nil {
		return err
	}
	outs := make([]*Value, len(n.Outputs))
	for i, o := range n.Outputs {
		name := "v_" + n.Name
		if n.Many {
			name = fmt.Sprintf("v_%s_%d", n.Name, i)
		}
		c.Vars = append(c.Vars, name)
		if o.DType == "none" {
			c.Outs = append(c.Outs, nil)
			continue
		}
		b := &Buffer{Name: name, Shape: o.Shape, DType: DType(o.DType), Batch: o.Batch}
		l.buffers = append(l.buffers, b)
		c.Outs = append(c.Outs, b)
		outs[i] = l.load(b)
	}
	l.env[n.Name] = outs
	l.items = append(l.items, item{call: c})
	l.Kept = append(l.Kept, "aten."+opName(n.Op))
	return nil
}

// inMemory returns a load of v that torch can express as a strided view of a
// buffer, storing v first if need be.
func (l *lowering) inMemory(v *Value) *Value {
	if v.Kind == Load && len(v.Args) == 0 {
		if _, ok := Strides(v); ok {
			return v
		}
	}
	return l.materialise(v)
}

// Strides returns the strides of a load that is a plain view.
func Strides(v *Value) ([]int, bool) {
	s, ok := v.Idx[0].plain(len(v.Shape))
	if !ok || v.Idx[0].Off < 0 || slices.ContainsFunc(s, func(n int) bool { return n < 0 }) {
		return nil, false
	}
	return s, true
}

// materialise has a kernel store v, and returns a load of it.
func (l *lowering) materialise(v *Value) *Value {
	if w := l.stores[v]; w != nil {
		return w
	}
	b := &Buffer{Name: fmt.Sprintf("out%d", len(l.stores)), Shape: v.Shape, DType: v.DType, value: v}
	l.buffers = append(l.buffers, b)
	l.items = append(l.items, item{store: b})
	w := l.load(b)
	l.stores[v] = w
	return w
}

// view is values.view with materialising where that is needed.
func (l *lowering) view(v *Value, shape []int, m []Index) *Value {
	if w, ok := l.values.view(v, shape, m); ok {
		return w
	}
	if w, ok := l.values.view(l.materialise(v), shape, m); ok {
		return w
	}
	panic("coder: affine views of a dense buffer always exist")
}

// reshape is values.reshape with materialising where that is needed.
func (l *lowering) reshape(v *Value, shape []int) *Value {
	if w, ok := l.values.reshape(v, shape); ok {
		return w
	}
	dense := l.materialise(v)
	idx := make([]Index, len(shape))
	for i := range shape {
		idx[i] = along(i)
	}
	w := *dense
	w.Shape, w.Cost, w.Idx = shape, 0, []Index{Flat(idx, shape, shape)}
	return l.intern(w)
}

// Holds reports whether v depends on an anchor of one of these kinds without
// passing through memory.
func Holds(v *Value, kinds ...ValueKind) bool {
	seen := map[*Value]bool{}
	var walk func(*Value) bool
	walk = func(v *Value) bool {
		if seen[v] {
			return false
		}
		seen[v] = true
		if slices.Contains(kinds, v.Kind) {
			return true
		}
		return slices.ContainsFunc(v.Args, walk)
	}
	return walk(v)
}

// operand returns v in a form that a reduction or scan can take: windows and
// scans are computed once, in memory.
func (l *lowering) operand(v *Value) *Value {
	if Holds(v, Pool, Scan) {
		return l.materialise(v)
	}
	return v
}

func normalDim(d, rank int) (int, bool) {
	if rank == 0 && (d == 0 || d == -1) {
		return 0, true
	}
	if d < 0 {
		d += rank
	}
	return d, d >= 0 && d < rank
}

// normalDims returns dims sorted, from the front; all of them for none given.
func normalDims(a Arg, rank int) ([]int, bool) {
	dims, ok := a.ints()
	if a.Kind == argNone || (ok && len(dims) == 0) {
		all := make([]int, rank)
		for i := range all {
			all[i] = i
		}
		return all, true
	}
	if !ok {
		return nil, false
	}
	out := make([]int, len(dims))
	for i, d := range dims {
		if out[i], ok = normalDim(d, rank); !ok {
			return nil, false
		}
	}
	slices.Sort(out)
	return slices.Compact(out), true
}
