package coder

import (
	"fmt"
	"slices"
)

// segment is consecutive kernels that Python calls as one function.
type segment struct {
	name    string
	kernels []*kernel
	buffers []*buffer // arguments, in order
	batch   bool
	after   bool // a call of torch
}

// segments cuts the steps at the calls of torch.
func (p *plan) segments() []segment {
	var out []segment
	open := false
	for i, s := range p.steps {
		if s.kernel == nil {
			open = false
			continue
		}
		if !open {
			out = append(out, segment{name: fmt.Sprintf("run%d", len(out)), after: i > 0})
			open = true
		}
		g := &out[len(out)-1]
		g.kernels = append(g.kernels, s.kernel)
		g.batch = g.batch || s.kernel.batch
		for _, b := range s.kernel.buffers() {
			if !slices.Contains(g.buffers, b) {
				g.buffers = append(g.buffers, b)
			}
		}
	}
	return out
}

// buffers returns what a kernel reads, then what it writes.
func (k *kernel) buffers() []*buffer {
	var out []*buffer
	add := func(b *buffer) {
		if !slices.Contains(out, b) {
			out = append(out, b)
		}
	}
	read := func(v *value) {
		visit(v, func(w *value) {
			if w.kind == load {
				add(w.buf)
			}
		})
	}
	for _, a := range k.anchors {
		read(a.operand)
	}
	for _, s := range k.stores {
		read(s.value)
	}
	for _, s := range k.stores {
		add(s.buf)
	}
	return out
}

func (k *kernel) writes(b *buffer) bool {
	return slices.ContainsFunc(k.stores, func(s store) bool { return s.buf == b })
}
