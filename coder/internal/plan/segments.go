package plan

import (
	"fmt"
	"slices"
)

// Segment is consecutive kernels that Python calls as one function.
type Segment struct {
	Name    string
	Kernels []*Kernel
	Buffers []*Buffer // arguments, in order
	Batch   bool
	After   bool // it comes after a call of torch
}

// Segments cuts the steps at the calls of torch.
func (p *Plan) Segments() []Segment {
	var out []Segment
	open := false
	for i, s := range p.Steps {
		if s.Kernel == nil {
			open = false
			continue
		}
		if !open {
			out = append(out, Segment{Name: fmt.Sprintf("run%d", len(out)), After: i > 0})
			open = true
		}
		g := &out[len(out)-1]
		g.Kernels = append(g.Kernels, s.Kernel)
		g.Batch = g.Batch || s.Kernel.Batch
		for _, b := range s.Kernel.Buffers() {
			if !slices.Contains(g.Buffers, b) {
				g.Buffers = append(g.Buffers, b)
			}
		}
	}
	return out
}

// Buffers returns what a kernel reads, then what it writes.
func (k *Kernel) Buffers() []*Buffer {
	var out []*Buffer
	add := func(b *Buffer) {
		if !slices.Contains(out, b) {
			out = append(out, b)
		}
	}
	read := func(v *Value) {
		Visit(v, func(w *Value) {
			if w.Kind == Load {
				add(w.Buf)
			}
		})
	}
	for _, a := range k.Anchors {
		read(a.Operand)
	}
	for _, s := range k.Stores {
		read(s.Value)
	}
	for _, s := range k.Stores {
		add(s.Buf)
	}
	return out
}

// Writes reports whether a kernel writes a buffer.
func (k *Kernel) Writes(b *Buffer) bool {
	return slices.ContainsFunc(k.Stores, func(s Store) bool { return s.Buf == b })
}
