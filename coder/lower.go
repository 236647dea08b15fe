package coder

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
	g       *graph
	env     map[string][]*value // outputs of each node and input by name
	items   []item
	buffers []*buffer
	covered []string          // operators that became part of a kernel
	stores  map[*value]*value // materialised value to its load
	kept    []string          // operators left to torch
	fuse    bool              // false stores the result of every operator
}

// item is one step before kernels are formed: a call of torch, or a value to
// be stored.
type item struct {
	call  *torchCall
	store *buffer
}

// torchCall is an operator left to torch.
type torchCall struct {
	node graphNode
	args map[reference]*value // loads
	outs []*buffer            // nil entries for outputs that kernels cannot hold
	vars []string             // a Python variable for each output
}

// lowerer makes the outputs of a node from its arguments. It reports false to
// leave the node to torch, and must then not have stored anything.
type lowerer func(l *lowering, n graphNode) ([]*value, bool)

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
func (n graphNode) arg(i int, name string) arg {
	if i >= 0 && i < len(n.Args) {
		return n.Args[i]
	}
	return n.Kwargs[name]
}

func (n graphNode) number(i int, name string, otherwise float64) float64 {
	if f, ok := n.arg(i, name).number(); ok {
		return f
	}
	return otherwise
}

func (n graphNode) dtype() dtype { return dtype(n.Outputs[0].DType) }

func lower(g *graph, fuse bool) (*lowering, error) {
	l := &lowering{g: g, fuse: fuse, env: map[string][]*value{}, stores: map[*value]*value{}}
	for _, in := range g.Inputs {
		if in.isTensor() {
			batch := g.Batch != nil && slices.Contains(g.Batch.Inputs, in.Name)
			l.source(in.Name, in.tensorMeta, batch, false)
		}
	}
	for _, p := range slices.Concat(g.Parameters, g.Constants) {
		if len(p.Data) == 1 && numel(p.Shape) == 1 && dtype(p.DType).known() {
			c, _ := p.Data[0].number()
			l.env[p.Name] = []*value{l.constant(c, dtype(p.DType), p.Shape)}
			continue
		}
		l.source(p.Name, p.tensorMeta, false, true)
	}
	for _, n := range g.Nodes {
		if err := l.node(n); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (l *lowering) source(name string, m tensorMeta, batch, state bool) {
	b := &buffer{name: "v_" + name, shape: m.Shape, dtype: dtype(m.DType), batch: batch, state: state, step: -1}
	if state {
		b.name = "s_" + name
	}
	l.buffers = append(l.buffers, b)
	l.env[name] = []*value{l.load(b)}
}

func (l *lowering) node(n graphNode) error {
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
					if v != nil && (i >= len(n.Outputs) || !slices.Equal(v.shape, n.Outputs[i].Shape) || string(v.dtype) != n.Outputs[i].DType) {
						return fmt.Errorf("lowering %s gave %s%v instead of %s%v", n.Op, v.dtype, v.shape, n.Outputs[i].DType, n.Outputs[i].Shape)
					}
				}
				if !l.fuse {
					for i, v := range out {
						if v != nil && v.kind != load && v.kind != constant {
							out[i] = l.materialise(v)
						}
					}
				}
				l.env[n.Name] = out
				l.covered = append(l.covered, "aten."+name)
				return nil
			}
		}
	}
	return l.leave(n)
}

// fits reports whether all tensors of a node have types and sizes that kernels
// can hold.
func (l *lowering) fits(n graphNode) bool {
	for _, o := range n.Outputs {
		if o.DType != "none" && (!dtype(o.DType).known() || numel(o.Shape) == 0) {
			return false
		}
	}
	ok := true
	n.refs(func(a arg) {
		v, found := l.ref(a)
		ok = ok && found && v.dtype.known() && numel(v.shape) > 0
	})
	return ok
}

// refs calls f for each reference among the arguments.
func (n graphNode) refs(f func(arg)) {
	var walk func(a arg)
	walk = func(a arg) {
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

func (l *lowering) ref(a arg) (*value, bool) {
	outs := l.env[a.S]
	i := max(a.Item, 0)
	if i >= len(outs) || outs[i] == nil {
		return nil, false
	}
	return outs[i], true
}

// tensor returns an argument as a value: a tensor's, or a scalar of type d.
func (l *lowering) tensor(a arg, d dtype) (*value, bool) {
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
	look := func(a arg) { found = found || (a.S == name && max(a.Item, 0) == output) }
	for _, n := range l.g.Nodes {
		n.refs(look)
	}
	_ = l.g.Outputs.leaves(func(a arg) error {
		if a.Kind == argRef {
			look(a)
		}
		return nil
	})
	return found
}

// leave makes the node a call of torch.
func (l *lowering) leave(n graphNode) error {
	c := &torchCall{node: n, args: map[reference]*value{}}
	var err error
	n.refs(func(a arg) {
		v, ok := l.ref(a)
		if !ok {
			err = fmt.Errorf("%s takes %s, which no operator computes", n.Op, a.S)
			return
		}
		if key := a.reference(); c.args[key] == nil {
			c.args[key] = l.inMemory(v)
		}
	})
	if err != nil {
		return err
	}
	outs := make([]*value, len(n.Outputs))
	for i, o := range n.Outputs {
		name := "v_" + n.Name
		if n.Many {
			name = fmt.Sprintf("v_%s_%d", n.Name, i)
		}
		c.vars = append(c.vars, name)
		if o.DType == "none" {
			c.outs = append(c.outs, nil)
			continue
		}
		b := &buffer{name: name, shape: o.Shape, dtype: dtype(o.DType), batch: o.Batch}
		l.buffers = append(l.buffers, b)
		c.outs = append(c.outs, b)
		outs[i] = l.load(b)
	}
	l.env[n.Name] = outs
	l.items = append(l.items, item{call: c})
	l.kept = append(l.kept, "aten."+opName(n.Op))
	return nil
}

// inMemory returns a load of v that torch can express as a strided view of a
// buffer, storing v first if need be.
func (l *lowering) inMemory(v *value) *value {
	if v.kind == load && len(v.args) == 0 {
		if _, ok := strides(v); ok {
			return v
		}
	}
	return l.materialise(v)
}

// strides returns the strides of a load that is a plain view.
func strides(v *value) ([]int, bool) {
	s, ok := v.idx[0].plain(len(v.shape))
	if !ok || v.idx[0].off < 0 || slices.ContainsFunc(s, func(n int) bool { return n < 0 }) {
		return nil, false
	}
	return s, true
}

// materialise has a kernel store v, and returns a load of it.
func (l *lowering) materialise(v *value) *value {
	if w := l.stores[v]; w != nil {
		return w
	}
	b := &buffer{name: fmt.Sprintf("out%d", len(l.stores)), shape: v.shape, dtype: v.dtype, value: v}
	l.buffers = append(l.buffers, b)
	l.items = append(l.items, item{store: b})
	w := l.load(b)
	l.stores[v] = w
	return w
}

// view is values.view with materialising where that is needed.
func (l *lowering) view(v *value, shape []int, m []index) *value {
	if w, ok := l.values.view(v, shape, m); ok {
		return w
	}
	if w, ok := l.values.view(l.materialise(v), shape, m); ok {
		return w
	}
	panic("coder: affine views of a dense buffer always exist")
}

// reshape is values.reshape with materialising where that is needed.
func (l *lowering) reshape(v *value, shape []int) *value {
	if w, ok := l.values.reshape(v, shape); ok {
		return w
	}
	dense := l.materialise(v)
	idx := make([]index, len(shape))
	for i := range shape {
		idx[i] = along(i)
	}
	w := *dense
	w.shape, w.cost, w.idx = shape, 0, []index{flat(idx, shape, shape)}
	return l.intern(w)
}

// holds reports whether v depends on an anchor of one of these kinds without
// passing through memory.
func holds(v *value, kinds ...valueKind) bool {
	seen := map[*value]bool{}
	var walk func(*value) bool
	walk = func(v *value) bool {
		if seen[v] {
			return false
		}
		seen[v] = true
		if slices.Contains(kinds, v.kind) {
			return true
		}
		return slices.ContainsFunc(v.args, walk)
	}
	return walk(v)
}

// operand returns v in a form that a reduction or scan can take: windows and
// scans are computed once, in memory.
func (l *lowering) operand(v *value) *value {
	if holds(v, pool, scan) {
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
func normalDims(a arg, rank int) ([]int, bool) {
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
