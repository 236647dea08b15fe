package emit

import (
	"slices"

	"github.com/kernelwright/kernelwright/coder/internal/plan"
)

// largest returns the number of elements of the largest tensor that a kernel
// touches, or of the space that it walks.
func largest(k *plan.Kernel) int {
	most := plan.Numel(k.Space)
	for _, b := range k.Buffers() {
		most = max(most, plan.Numel(b.Shape))
	}
	return most
}

// far reports whether positions in a kernel's tensors need 64 bits.
func far(k *plan.Kernel) bool { return largest(k) >= positionsLimit }

// counted is how far a thread counts: over all elements of a map, and in a walk
// over rows to the end of a row as its tensors lie in memory. Divisions in 64
// bits cost four times as much, so it counts in 32 where they suffice.
func counted(k *plan.Kernel, g plan.Geometry) int {
	most := plan.Numel(k.Space)
	if k.Kind != plan.MapKernel {
		most = 1
		for i, t := range g.Groups {
			if !slices.Contains(g.Outer, i) {
				most *= t.Size
			}
		}
	}
	inside := func(x plan.Index) {
		n := max(x.Off, -x.Off)
		for _, t := range x.Terms {
			if i := g.Of[t.Dim]; i >= 0 && !slices.Contains(g.Outer, i) {
				n += max(t.Coef, -t.Coef) * t.Span(k.Space)
			}
		}
		most = max(most, n)
	}
	for _, a := range k.Anchors {
		if w := a.Value.Window; w != nil {
			most = max(most, plan.Numel(w.In))
			continue
		}
		plan.Visit(a.Operand, func(v *plan.Value) {
			if v.Kind == plan.Load {
				inside(v.Idx[0])
			}
		})
	}
	for _, s := range k.Stores {
		plan.Visit(s.Value, func(v *plan.Value) {
			if v.Kind == plan.Load {
				inside(v.Idx[0])
			}
		})
		if !s.Row {
			inside(plan.Flat(plan.Positions(k.Space), k.Space, k.Space))
		}
	}
	return most
}

// mostBatch is the largest batch for which positions can be counted; 0 for any.
func mostBatch(p *plan.Plan) int {
	most := 0
	limit := func(n int) {
		if m := positionsLimit / max(n/p.Graph.Batch.Size, 1); most == 0 || m < most {
			most = m
		}
	}
	for _, s := range p.Steps {
		k := s.Kernel
		if k == nil || !k.Batch {
			continue
		}
		g := k.Geometry()
		if !far(k) {
			limit(largest(k))
		} else if n := counted(k, g); n < positionsLimit && (k.Kind == plan.MapKernel || g.Groups[g.Inner].Batch) {
			limit(n)
		}
	}
	return most
}
