// Package plan says what is computed of a captured operator graph, in which loops, and
// where results live. It knows nothing of C++, Python or CUDA: package emit does.
package plan

import (
	"errors"
	"fmt"
	"slices"
)

// KernelKind is how the elements of a kernel depend on each other.
type KernelKind int

// The kinds of kernel.
const (
	MapKernel    KernelKind = iota // no element depends on another
	ReduceKernel                   // rows along dims are reduced, in stages
	ScanKernel                     // one running value along dims[0]
)

// Kernel computes over one iteration space. All its values are functions of a
// position in that space.
type Kernel struct {
	Kind    KernelKind
	Space   []int // its shape
	dims    []int // reduced or scanned
	Anchors []*Anchor
	Stores  []Store
	Batch   bool // the leading dimension of space is the batch
	At      int  // number among the steps
}

// Anchor is a reduction, scan or pooling of a kernel. Its operand is over the
// kernel's space, except for a pooling's, which is over the pooled tensor's.
type Anchor struct {
	Value   *Value // as accesses name it
	Operand *Value
	Stage   int     // of a reduction: the pass over a row in which it is done
	With    *Anchor // the reduction whose pass it shares though it needs it; see join.go
}

// Store writes value, over the kernel's space, to a dense buffer. A row store
// does not depend on the reduced dimensions and is written once per row.
type Store struct {
	Buf   *Buffer
	Value *Value
	Row   bool
}

// Step is a kernel or a call of torch.
type Step struct {
	Kernel *Kernel
	Call   *TorchCall
}

// Plan is the steps in which a graph is computed, with what was found on the way: its
// Graph, the operators that kernels cover (Covered), those left to torch (Kept), and all
// values (All).
type Plan struct {
	*lowering
	Steps   []Step
	Outputs map[Reference]*Value // what forward returns, as loads
	Name    string               // the task's
}

// errBatch says that the leading dimension can't be left open after all.
var errBatch = errors.New("the batch is not a plain leading dimension")

// Make lowers and schedules a graph.
func Make(g *Graph, fuse bool) (*Plan, error) {
	p, err := buildPlan(g, fuse)
	if errors.Is(err, errBatch) {
		fixed := *g
		fixed.Batch = nil
		return buildPlan(&fixed, fuse)
	}
	return p, err
}

func buildPlan(g *Graph, fuse bool) (*Plan, error) {
	if g.Batch == nil {
		g = unmarked(g)
	}
	l, err := lower(g, fuse)
	if err != nil {
		return nil, err
	}
	p := &Plan{lowering: l, Outputs: map[Reference]*Value{}}
	err = g.Outputs.leaves(func(a Arg) error {
		if a.Kind != argRef {
			return nil
		}
		v, ok := l.ref(a)
		if !ok {
			return fmt.Errorf("forward returns %s, which no operator computes", a.S)
		}
		p.Outputs[a.Reference()] = l.inMemory(v)
		return nil
	})
	if err != nil {
		return nil, err
	}
	placed := map[*Value]*Kernel{}
	for _, it := range l.items {
		if it.call != nil {
			for _, b := range it.call.Outs {
				if b != nil {
					b.step = len(p.Steps)
				}
			}
			p.Steps = append(p.Steps, Step{Call: it.call})
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

func unmarked(g *Graph) *Graph {
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
func (p *Plan) place(b *Buffer, placed map[*Value]*Kernel) {
	seen := map[*Value]bool{}
	var walk func(v *Value)
	walk = func(v *Value) {
		if seen[v] {
			return
		}
		seen[v] = true
		for _, a := range v.Args {
			walk(a)
		}
		if (v.Kind != Reduce && v.Kind != Scan && v.Kind != Pool) || placed[v] != nil {
			return
		}
		first := p.earliest(v.Args[0], placed)
		for k := first; k < len(p.Steps); k++ {
			if p.Steps[k].Kernel != nil && p.joinAnchor(p.Steps[k].Kernel, v, placed) {
				placed[v] = p.Steps[k].Kernel
				return
			}
		}
		kern := &Kernel{Space: v.Args[0].Shape, dims: v.dims, At: len(p.Steps)}
		switch v.Kind {
		case Reduce:
			kern.Kind = ReduceKernel
		case Scan:
			kern.Kind = ScanKernel
		default:
			kern.Space = v.Shape
		}
		kern.Anchors = []*Anchor{{Value: v, Operand: v.Args[0]}}
		p.Steps = append(p.Steps, Step{Kernel: kern})
		placed[v] = kern
	}
	walk(b.value)
	for k := p.earliest(b.value, placed); k < len(p.Steps); k++ {
		kern := p.Steps[k].Kernel
		if kern == nil {
			continue
		}
		if s, ok := p.fit(kern, b, placed); ok {
			kern.Stores = append(kern.Stores, s)
			b.step = k
			return
		}
	}
	kern := &Kernel{Space: b.Shape, At: len(p.Steps)}
	kern.Stores = []Store{{Buf: b, Value: b.value}}
	b.step = kern.At
	p.Steps = append(p.Steps, Step{Kernel: kern})
}

// earliest returns the first step in which v could be computed: beside the
// anchors it needs, and after the buffers.
func (p *Plan) earliest(v *Value, placed map[*Value]*Kernel) int {
	at := 0
	Visit(v, func(w *Value) {
		switch w.Kind {
		case Load:
			at = max(at, w.Buf.step+1)
		case Access:
			at = max(at, placed[w.Args[0]].At)
		}
	})
	return at
}

// Visit calls f for v and what is below it, without entering anchors.
func Visit(v *Value, f func(*Value)) {
	seen := map[*Value]bool{}
	var walk func(v *Value)
	walk = func(v *Value) {
		if seen[v] {
			return
		}
		seen[v] = true
		f(v)
		if v.Kind != Access {
			for _, a := range v.Args {
				walk(a)
			}
		}
	}
	walk(v)
}

// joinAnchor adds an anchor to a kernel with the same loops.
func (p *Plan) joinAnchor(k *Kernel, v *Value, placed map[*Value]*Kernel) bool {
	space := v.Args[0].Shape
	if v.Kind == Pool {
		space = v.Shape
	}
	if !slices.Equal(space, k.Space) {
		return false
	}
	pools := slices.ContainsFunc(k.Anchors, func(a *Anchor) bool { return a.Value.Kind == Pool })
	switch v.Kind {
	case Reduce:
		if k.Kind == ScanKernel || pools || (k.Kind == ReduceKernel && !slices.Equal(k.dims, v.dims)) {
			return false
		}
	case Scan:
		if k.Kind == ReduceKernel || pools || (k.Kind == ScanKernel && (!slices.Equal(k.dims, v.dims) || k.Anchors[0].Value.Reverse != v.Reverse)) {
			return false
		}
	case Pool:
		if k.Kind != MapKernel {
			return false
		}
	}
	if v.Kind != Pool && !p.aligned(k, v.Args[0], placed) {
		return false
	}
	switch v.Kind {
	case Reduce:
		k.Kind, k.dims = ReduceKernel, v.dims
	case Scan:
		k.Kind, k.dims = ScanKernel, v.dims
	}
	k.Anchors = append(k.Anchors, &Anchor{Value: v, Operand: v.Args[0]})
	return true
}

// Outer returns the dimensions of the space that are not reduced.
func (k *Kernel) Outer() []int {
	var out []int
	for d := range k.Space {
		if k.Kind != ReduceKernel || !slices.Contains(k.dims, d) {
			out = append(out, d)
		}
	}
	return out
}

// aligned reports whether a value over the kernel's space takes from the
// kernel's own anchors only the element of its own row or position.
func (p *Plan) aligned(k *Kernel, v *Value, placed map[*Value]*Kernel) bool {
	ok := true
	Visit(v, func(w *Value) {
		if w.Kind == Access && placed[w.Args[0]] == k && !k.own(w) {
			ok = false
		}
	})
	return ok
}

// own reports whether an access is to the row or position of the loop itself.
func (k *Kernel) own(w *Value) bool {
	if !slices.ContainsFunc(k.Anchors, func(a *Anchor) bool { return a.Value == w.Args[0] }) {
		return false
	}
	dims := k.Outer()
	if w.Args[0].Kind != Reduce {
		dims = dims[:0]
		for d := range k.Space {
			dims = append(dims, d)
		}
	}
	if len(dims) != len(w.Idx) {
		return false
	}
	for i, d := range dims {
		if !w.Idx[i].equal(along(d).normal(k.Space)) {
			return false
		}
	}
	return true
}

// fit expresses a store in a kernel's space: as one element per position, or
// as one per row.
func (p *Plan) fit(k *Kernel, b *Buffer, placed map[*Value]*Kernel) (Store, bool) {
	if Numel(b.Shape) == Numel(k.Space) {
		v, ok := p.values.reshape(b.value, k.Space)
		if ok && p.aligned(k, v, placed) && p.useful(k, v) {
			return Store{Buf: b, Value: v}, true
		}
	}
	if k.Kind != ReduceKernel {
		return Store{}, false
	}
	outer := k.Outer()
	shape := make([]int, len(outer))
	m := make([]Index, len(outer))
	for i, d := range outer {
		shape[i], m[i] = k.Space[d], along(d).normal(k.Space)
	}
	if Numel(b.Shape) != Numel(shape) {
		return Store{}, false
	}
	v, ok := p.values.reshape(b.value, shape)
	if !ok {
		return Store{}, false
	}
	v, ok = p.values.view(v, k.Space, m)
	if !ok || !p.aligned(k, v, placed) {
		return Store{}, false
	}
	return Store{Buf: b, Value: v, Row: true}, true
}

// useful reports whether computing v in the kernel's loops costs nothing that
// loops of its own would not: no index needs a division.
func (p *Plan) useful(k *Kernel, v *Value) bool {
	ok := true
	Visit(v, func(w *Value) {
		for _, x := range w.Idx {
			if _, plain := x.plain(len(k.Space)); !plain {
				ok = false
			}
		}
	})
	return ok
}

// finish has anchors that other kernels need stored, and replaces the accesses
// there by loads.
func (p *Plan) finish(placed map[*Value]*Kernel) {
	for _, s := range p.Steps {
		k := s.Kernel
		if k == nil {
			continue
		}
		for _, a := range k.Anchors {
			a.Operand = p.outside(k, a.Operand, placed)
		}
		for i := range k.Stores {
			k.Stores[i].Value = p.outside(k, k.Stores[i].Value, placed)
		}
	}
	for _, s := range p.Steps {
		if s.Kernel != nil {
			s.Kernel.stages()
		}
	}
}

func (p *Plan) outside(k *Kernel, v *Value, placed map[*Value]*Kernel) *Value {
	memo := map[*Value]*Value{}
	var walk func(v *Value) *Value
	walk = func(v *Value) *Value {
		if w := memo[v]; w != nil {
			return w
		}
		out := v
		switch {
		case v.Kind == Access && (placed[v.Args[0]] != k || !k.own(v)):
			b := p.keep(placed[v.Args[0]], v.Args[0])
			out = p.intern(Value{Kind: Load, Buf: b, DType: b.DType, Shape: v.Shape, Idx: []Index{Flat(v.Idx, b.Shape, v.Shape)}})
		case v.Kind == Point || (v.Kind == Load && len(v.Args) > 0):
			w := *v
			w.Cost, w.Args = 0, nil
			for _, a := range v.Args {
				w.Args = append(w.Args, walk(a))
			}
			out = p.intern(w)
		}
		memo[v] = out
		return out
	}
	return walk(v)
}

// keep has kernel k store an anchor's result.
func (p *Plan) keep(k *Kernel, v *Value) *Buffer {
	if v.out != nil {
		return v.out
	}
	b := &Buffer{Name: fmt.Sprintf("row%d", v.ID), Shape: v.Shape, DType: v.DType, step: k.At}
	v.out = b
	p.buffers = append(p.buffers, b)
	idx := make([]Index, 0, len(v.Shape))
	dims := k.Outer()
	if v.Kind != Reduce {
		dims = dims[:0]
		for d := range k.Space {
			dims = append(dims, d)
		}
	}
	for _, d := range dims {
		idx = append(idx, along(d).normal(k.Space))
	}
	w := p.intern(Value{Kind: Access, Args: []*Value{v}, DType: v.DType, Shape: k.Space, Idx: idx})
	k.Stores = append(k.Stores, Store{Buf: b, Value: w, Row: v.Kind == Reduce})
	return b
}

// stages numbers the passes over a row: a reduction whose operand needs
// another reduction comes one pass after it.
func (k *Kernel) stages() {
	for _, a := range k.Anchors {
		if a.Value.Kind == Reduce {
			a.Stage = k.StageOf(a.Operand)
			if a.With != nil {
				a.Stage = a.With.Stage
			}
		}
	}
}

// StageOf returns the first pass in which a value over the kernel's space can
// be computed.
func (k *Kernel) StageOf(v *Value) int {
	s := 0
	Visit(v, func(w *Value) {
		if w.Kind == Access && w.Args[0].Kind == Reduce {
			s = max(s, k.anchor(w.Args[0]).Stage+1)
		}
	})
	return s
}

func (k *Kernel) anchor(v *Value) *Anchor {
	for _, a := range k.Anchors {
		if a.Value == v {
			return a
		}
	}
	panic("coder: access to an anchor of another kernel")
}

// markBatch finds the kernels and buffers whose leading dimension is the
// batch, and checks that nothing else depends on its size.
func (p *Plan) markBatch() error {
	if p.Graph.Batch == nil {
		return nil
	}
	size := p.Graph.Batch.Size
	for _, s := range p.Steps {
		k := s.Kernel
		if k == nil {
			continue
		}
		var err error
		check := func(shape []int) func(*Value) {
			return func(w *Value) {
				if w.Kind != Load || !w.Buf.Batch {
					return
				}
				k.Batch = true
				n := 0
				for _, t := range w.Idx[0].Terms {
					if t.Dim == 0 {
						n += t.Coef
						if t.Div != 1 || t.Mod != 0 {
							err = errBatch
						}
					}
				}
				rest := Numel(w.Buf.Shape) / size
				if w.Buf.Shape[0] != size || len(shape) == 0 || shape[0] != size || n != rest || w.Idx[0].Off < 0 || w.Idx[0].Off >= rest {
					err = errBatch
				}
			}
		}
		for _, a := range k.Anchors {
			Visit(a.Operand, check(a.Operand.Shape))
		}
		for _, st := range k.Stores {
			Visit(st.Value, check(k.Space))
		}
		if err != nil {
			return err
		}
		if !k.Batch {
			continue
		}
		if len(k.Space) == 0 || k.Space[0] != size || (k.Kind != MapKernel && slices.Contains(k.dims, 0)) {
			return errBatch
		}
		for _, st := range k.Stores {
			if len(st.Buf.Shape) == 0 || st.Buf.Shape[0] != size {
				return errBatch
			}
			st.Buf.Batch = true
		}
	}
	return nil
}

// StoredValues returns what is stored.
func StoredValues(stores []Store) []*Value {
	out := make([]*Value, len(stores))
	for i, s := range stores {
		out[i] = s.Value
	}
	return out
}

// Visit calls f for each value of a kernel.
func (k *Kernel) Visit(f func(*Value)) {
	for _, v := range StoredValues(k.Stores) {
		Visit(v, f)
	}
	for _, a := range k.Anchors {
		f(a.Value)
		Visit(a.Operand, f)
	}
}
