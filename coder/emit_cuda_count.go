package coder

import (
	"slices"
)

// largest returns the number of elements of the largest tensor that a kernel
// touches, or of the space that it walks.
func largest(k *kernel) int {
	most := numel(k.space)
	for _, b := range k.buffers() {
		most = max(most, numel(b.shape))
	}
	return most
}

// far reports whether positions in a kernel's tensors need 64 bits.
func far(k *kernel) bool { return largest(k) >= positionsLimit }

// counted is how far a thread counts: over all elements of a map, and in a walk
// over rows to the end of a row as its tensors lie in memory. Divisions in 64
// bits cost four times as much, so it counts in 32 where they suffice.
func counted(k *kernel, g geometry) int {
	most := numel(k.space)
	if k.kind != mapKernel {
		most = 1
		for i, t := range g.groups {
			if !slices.Contains(g.outer, i) {
				most *= t.size
			}
		}
	}
	inside := func(x index) {
		n := max(x.off, -x.off)
		for _, t := range x.terms {
			if i := g.of[t.dim]; i >= 0 && !slices.Contains(g.outer, i) {
				n += max(t.coef, -t.coef) * t.span(k.space)
			}
		}
		most = max(most, n)
	}
	for _, a := range k.anchors {
		if w := a.value.window; w != nil {
			most = max(most, numel(w.in))
			continue
		}
		visit(a.operand, func(v *value) {
			if v.kind == load {
				inside(v.idx[0])
			}
		})
	}
	for _, s := range k.stores {
		visit(s.value, func(v *value) {
			if v.kind == load {
				inside(v.idx[0])
			}
		})
		if !s.row {
			inside(flat(positions(k.space), k.space, k.space))
		}
	}
	return most
}

// mostBatch is the largest batch for which positions can be counted; 0 for any.
func mostBatch(p *plan) int {
	most := 0
	limit := func(n int) {
		if m := positionsLimit / max(n/p.g.Batch.Size, 1); most == 0 || m < most {
			most = m
		}
	}
	for _, s := range p.steps {
		k := s.kernel
		if k == nil || !k.batch {
			continue
		}
		g := k.geometry()
		if !far(k) {
			limit(largest(k))
		} else if n := counted(k, g); n < positionsLimit && (k.kind == mapKernel || g.groups[g.inner].batch) {
			limit(n)
		}
	}
	return most
}
