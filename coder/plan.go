package coder

import (
	"errors"
	"fmt"
	"slices"
)

// A plan says what is computed, in which loops, and where results live. It
// knows nothing of C++, Python or CUDA: emitters do.

type kernelKind int

const (
	mapKernel    kernelKind = iota // no element depends on another
	reduceKernel                   // rows along dims are reduced, in stages
	scanKernel                     // one running value along dims[0]
)

// kernel computes over one iteration space. All its values are functions of a
// position in that space.
type kernel struct {
	kind    kernelKind
	space   []int
	dims    []int // reduced or scanned
	anchors []*anchor
	stores  []store
	batch   bool // the leading dimension of space is the batch
	at      int  // number among the steps
}

// anchor is a reduction, scan or pooling of a kernel. Its operand is over the
// kernel's space, except for a pooling's, which is over the pooled tensor's.
type anchor struct {
	value   *value // as accesses name it
	operand *value
	stage   int     // of a reduction: the pass over a row in which it is done
	with    *anchor // the reduction whose pass it shares though it needs it; see join.go
}

// store writes value, over the kernel's space, to a dense buffer. A row store
// does not depend on the reduced dimensions and is written once per row.
type store struct {
	buf   *buffer
	value *value
	row   bool
}

// step is a kernel or a call of torch.
type step struct {
	kernel *kernel
	call   *torchCall
}

type plan struct {
	*lowering
	steps   []step
	outputs map[reference]*value // what forward returns, as loads
	name    string
}

// errBatch says that the leading dimension can't be left open after all.
var errBatch = errors.New("the batch is not a plain leading dimension")

// makePlan lowers and schedules a graph.
func makePlan(g *graph, fuse bool) (*plan, error) {
	p, err := buildPlan(g, fuse)
	if errors.Is(err, errBatch) {
		fixed := *g
		fixed.Batch = nil
		return buildPlan(&fixed, fuse)
	}
	return p, err
}

func buildPlan(g *graph, fuse bool) (*plan, error) {
	if g.Batch == nil {
		g = unmarked(g)
	}
	l, err := lower(g, fuse)
	if err != nil {
		return nil, err
	}
	p := &plan{lowering: l, outputs: map[reference]*value{}}
	err = g.Outputs.leaves(func(a arg) error {
		if a.Kind != argRef {
			return nil
		}
		v, ok := l.ref(a)
		if !ok {
			return fmt.Errorf("forward returns %s, which no operator computes", a.S)
		}
		p.outputs[a.reference()] = l.inMemory(v)
		return nil
	})
	if err != nil {
		return nil, err
	}
	placed := map[*value]*kernel{}
	for _, it := range l.items {
		if it.call != nil {
			for _, b := range it.call.outs {
				if b != nil {
					b.step = len(p.steps)
				}
			}
			p.steps = append(p.steps, step{call: it.call})
			continue
		}
		p.place(it.store, placed)
	}
	p.finish(placed)
	if err := p.markBatch(); err != nil {
		return nil, err
	}
	return p, nil
}

func unmarked(g *graph) *graph {
	out := *g
	out.Nodes = slices.Clone(g.Nodes)
	for i := range out.Nodes {
		out.Nodes[i].Outputs = slices.Clone(out.Nodes[i].Outputs)
		for j := range out.Nodes[i].Outputs {
			out.Nodes[i].Outputs[j].Batch = false
		}
	}
	return &out
}

// place puts a store, and the anchors under it, into kernels.
func (p *plan) place(b *buffer, placed map[*value]*kernel) {
	seen := map[*value]bool{}
	var walk func(v *value)
	walk = func(v *value) {
		if seen[v] {
			return
		}
		seen[v] = true
		for _, a := range v.args {
			walk(a)
		}
		if (v.kind != reduce && v.kind != scan && v.kind != pool) || placed[v] != nil {
			return
		}
		first := p.earliest(v.args[0], placed)
		for k := first; k < len(p.steps); k++ {
			if p.steps[k].kernel != nil && p.joinAnchor(p.steps[k].kernel, v, placed) {
				placed[v] = p.steps[k].kernel
				return
			}
		}
		kern := &kernel{space: v.args[0].shape, dims: v.dims, at: len(p.steps)}
		switch v.kind {
		case reduce:
			kern.kind = reduceKernel
		case scan:
			kern.kind = scanKernel
		default:
			kern.space = v.shape
		}
		kern.anchors = []*anchor{{value: v, operand: v.args[0]}}
		p.steps = append(p.steps, step{kernel: kern})
		placed[v] = kern
	}
	walk(b.value)
	for k := p.earliest(b.value, placed); k < len(p.steps); k++ {
		kern := p.steps[k].kernel
		if kern == nil {
			continue
		}
		if s, ok := p.fit(kern, b, placed); ok {
			kern.stores = append(kern.stores, s)
			b.step = k
			return
		}
	}
	kern := &kernel{space: b.shape, at: len(p.steps)}
	kern.stores = []store{{buf: b, value: b.value}}
	b.step = kern.at
	p.steps = append(p.steps, step{kernel: kern})
}

// earliest returns the first step in which v could be computed: beside the
// anchors it needs, and after the buffers.
func (p *plan) earliest(v *value, placed map[*value]*kernel) int {
	at := 0
	visit(v, func(w *value) {
		switch w.kind {
		case load:
			at = max(at, w.buf.step+1)
		case access:
			at = max(at, placed[w.args[0]].at)
		}
	})
	return at
}

// visit calls f for v and what is below it, without entering anchors.
func visit(v *value, f func(*value)) {
	seen := map[*value]bool{}
	var walk func(v *value)
	walk = func(v *value) {
		if seen[v] {
			return
		}
		seen[v] = true
		f(v)
		if v.kind != access {
			for _, a := range v.args {
				walk(a)
			}
		}
	}
	walk(v)
}

// joinAnchor adds an anchor to a kernel with the same loops.
func (p *plan) joinAnchor(k *kernel, v *value, placed map[*value]*kernel) bool {
	space := v.args[0].shape
	if v.kind == pool {
		space = v.shape
	}
	if !slices.Equal(space, k.space) {
		return false
	}
	pools := slices.ContainsFunc(k.anchors, func(a *anchor) bool { return a.value.kind == pool })
	switch v.kind {
	case reduce:
		if k.kind == scanKernel || pools || (k.kind == reduceKernel && !slices.Equal(k.dims, v.dims)) {
			return false
		}
	case scan:
		if k.kind == reduceKernel || pools || (k.kind == scanKernel && (!slices.Equal(k.dims, v.dims) || k.anchors[0].value.reverse != v.reverse)) {
			return false
		}
	case pool:
		if k.kind != mapKernel {
			return false
		}
	}
	if v.kind != pool && !p.aligned(k, v.args[0], placed) {
		return false
	}
	switch v.kind {
	case reduce:
		k.kind, k.dims = reduceKernel, v.dims
	case scan:
		k.kind, k.dims = scanKernel, v.dims
	}
	k.anchors = append(k.anchors, &anchor{value: v, operand: v.args[0]})
	return true
}

// outer returns the dimensions of the space that are not reduced.
func (k *kernel) outer() []int {
	var out []int
	for d := range k.space {
		if k.kind != reduceKernel || !slices.Contains(k.dims, d) {
			out = append(out, d)
		}
	}
	return out
}

// aligned reports whether a value over the kernel's space takes from the
// kernel's own anchors only the element of its own row or position.
func (p *plan) aligned(k *kernel, v *value, placed map[*value]*kernel) bool {
	ok := true
	visit(v, func(w *value) {
		if w.kind == access && placed[w.args[0]] == k && !k.own(w) {
			ok = false
		}
	})
	return ok
}

// own reports whether an access is to the row or position of the loop itself.
func (k *kernel) own(w *value) bool {
	if !slices.ContainsFunc(k.anchors, func(a *anchor) bool { return a.value == w.args[0] }) {
		return false
	}
	dims := k.outer()
	if w.args[0].kind != reduce {
		dims = dims[:0]
		for d := range k.space {
			dims = append(dims, d)
		}
	}
	if len(dims) != len(w.idx) {
		return false
	}
	for i, d := range dims {
		if !w.idx[i].equal(along(d).normal(k.space)) {
			return false
		}
	}
	return true
}

// fit expresses a store in a kernel's space: as one element per position, or
// as one per row.
func (p *plan) fit(k *kernel, b *buffer, placed map[*value]*kernel) (store, bool) {
	if numel(b.shape) == numel(k.space) {
		v, ok := p.values.reshape(b.value, k.space)
		if ok && p.aligned(k, v, placed) && p.useful(k, v) {
			return store{buf: b, value: v}, true
		}
	}
	if k.kind != reduceKernel {
		return store{}, false
	}
	outer := k.outer()
	shape := make([]int, len(outer))
	m := make([]index, len(outer))
	for i, d := range outer {
		shape[i], m[i] = k.space[d], along(d).normal(k.space)
	}
	if numel(b.shape) != numel(shape) {
		return store{}, false
	}
	v, ok := p.values.reshape(b.value, shape)
	if !ok {
		return store{}, false
	}
	v, ok = p.values.view(v, k.space, m)
	if !ok || !p.aligned(k, v, placed) {
		return store{}, false
	}
	return store{buf: b, value: v, row: true}, true
}

// useful reports whether computing v in the kernel's loops costs nothing that
// loops of its own would not: no index needs a division.
func (p *plan) useful(k *kernel, v *value) bool {
	ok := true
	visit(v, func(w *value) {
		for _, x := range w.idx {
			if _, plain := x.plain(len(k.space)); !plain {
				ok = false
			}
		}
	})
	return ok
}

// finish has anchors that other kernels need stored, and replaces the accesses
// there by loads.
func (p *plan) finish(placed map[*value]*kernel) {
	for _, s := range p.steps {
		k := s.kernel
		if k == nil {
			continue
		}
		for _, a := range k.anchors {
			a.operand = p.outside(k, a.operand, placed)
		}
		for i := range k.stores {
			k.stores[i].value = p.outside(k, k.stores[i].value, placed)
		}
	}
	for _, s := range p.steps {
		if s.kernel != nil {
			s.kernel.stages()
		}
	}
}

func (p *plan) outside(k *kernel, v *value, placed map[*value]*kernel) *value {
	memo := map[*value]*value{}
	var walk func(v *value) *value
	walk = func(v *value) *value {
		if w := memo[v]; w != nil {
			return w
		}
		out := v
		switch {
		case v.kind == access && (placed[v.args[0]] != k || !k.own(v)):
			b := p.keep(placed[v.args[0]], v.args[0])
			out = p.intern(value{kind: load, buf: b, dtype: b.dtype, shape: v.shape, idx: []index{flat(v.idx, b.shape, v.shape)}})
		case v.kind == point || (v.kind == load && len(v.args) > 0):
			w := *v
			w.cost, w.args = 0, nil
			for _, a := range v.args {
				w.args = append(w.args, walk(a))
			}
			out = p.intern(w)
		}
		memo[v] = out
		return out
	}
	return walk(v)
}

// keep has kernel k store an anchor's result.
func (p *plan) keep(k *kernel, v *value) *buffer {
	if v.out != nil {
		return v.out
	}
	b := &buffer{name: fmt.Sprintf("row%d", v.id), shape: v.shape, dtype: v.dtype, step: k.at}
	v.out = b
	p.buffers = append(p.buffers, b)
	idx := make([]index, 0, len(v.shape))
	dims := k.outer()
	if v.kind != reduce {
		dims = dims[:0]
		for d := range k.space {
			dims = append(dims, d)
		}
	}
	for _, d := range dims {
		idx = append(idx, along(d).normal(k.space))
	}
	w := p.intern(value{kind: access, args: []*value{v}, dtype: v.dtype, shape: k.space, idx: idx})
	k.stores = append(k.stores, store{buf: b, value: w, row: v.kind == reduce})
	return b
}

// stages numbers the passes over a row: a reduction whose operand needs
// another reduction comes one pass after it.
func (k *kernel) stages() {
	for _, a := range k.anchors {
		if a.value.kind == reduce {
			a.stage = k.stageOf(a.operand)
			if a.with != nil {
				a.stage = a.with.stage
			}
		}
	}
}

// stageOf returns the first pass in which a value over the kernel's space can
// be computed.
func (k *kernel) stageOf(v *value) int {
	s := 0
	visit(v, func(w *value) {
		if w.kind == access && w.args[0].kind == reduce {
			s = max(s, k.anchor(w.args[0]).stage+1)
		}
	})
	return s
}

func (k *kernel) anchor(v *value) *anchor {
	for _, a := range k.anchors {
		if a.value == v {
			return a
		}
	}
	panic("coder: access to an anchor of another kernel")
}

// markBatch finds the kernels and buffers whose leading dimension is the
// batch, and checks that nothing else depends on its size.
func (p *plan) markBatch() error {
	if p.g.Batch == nil {
		return nil
	}
	size := p.g.Batch.Size
	for _, s := range p.steps {
		k := s.kernel
		if k == nil {
			continue
		}
		var err error
		check := func(shape []int) func(*value) {
			return func(w *value) {
				if w.kind != load || !w.buf.batch {
					return
				}
				k.batch = true
				n := 0
				for _, t := range w.idx[0].terms {
					if t.dim == 0 {
						n += t.coef
						if t.div != 1 || t.mod != 0 {
							err = errBatch
						}
					}
				}
				rest := numel(w.buf.shape) / size
				if w.buf.shape[0] != size || len(shape) == 0 || shape[0] != size || n != rest || w.idx[0].off < 0 || w.idx[0].off >= rest {
					err = errBatch
				}
			}
		}
		for _, a := range k.anchors {
			visit(a.operand, check(a.operand.shape))
		}
		for _, st := range k.stores {
			visit(st.value, check(k.space))
		}
		if err != nil {
			return err
		}
		if !k.batch {
			continue
		}
		if len(k.space) == 0 || k.space[0] != size || (k.kind != mapKernel && slices.Contains(k.dims, 0)) {
			return errBatch
		}
		for _, st := range k.stores {
			if len(st.buf.shape) == 0 || st.buf.shape[0] != size {
				return errBatch
			}
			st.buf.batch = true
		}
	}
	return nil
}

func storedValues(stores []store) []*value {
	out := make([]*value, len(stores))
	for i, s := range stores {
		out[i] = s.value
	}
	return out
}

// visit calls f for each value of a kernel.
func (k *kernel) visit(f func(*value)) {
	for _, v := range storedValues(k.stores) {
		visit(v, f)
	}
	for _, a := range k.anchors {
		f(a.value)
		visit(a.operand, f)
	}
}
