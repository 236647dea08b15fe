package emit

import (
	"fmt"

	"github.com/kernelwright/kernelwright/coder/internal/plan"
)

// Columns that registers cannot keep from pass to pass are held in shared memory,
// where each thread has a place of its own for what it takes: nobody waits for
// another one but to merge what they found.

const (
	someCache  = 32 << 20 // bytes of a second-level cache, where the device does not say
	mergeBytes = 24 << 10 // of shared memory, by which the threads of a column merge what they found
)

// holdColumns has the loads that more than one pass takes stay in shared memory, if
// a block of 16 columns or more has room for them: where two such blocks have, one
// of them reads or writes while the other one computes.
func (r *reducing) holdColumns() {
	if r.parts > 1 || r.knobs.Get("keep", 1) == 0 {
		return
	}
	found := r.again()
	bytes := 0 // of an element of each
	for _, v := range found {
		bytes += elementBytes(v.DType)
	}
	all := r.g.Rows() * r.steps * r.g.Groups[r.g.Inner].Size * bytes
	cache := r.device.on.cache
	if cache <= 0 {
		cache = someCache
	}
	if all < cache/2 { // the next pass finds it there
		return
	}
	for blocks := 2; blocks > 0; blocks-- {
		room := max(r.device.on.shared, leastShared)/blocks - mergeBytes
		for columns := 32; columns >= 16 && columns >= r.vector; columns /= 2 {
			x := columns / r.vector
			y := min(laneThreads/x, powerBelow(r.steps))
			if (r.steps+y-1)/y*y*columns*bytes > room {
				continue
			}
			r.x, r.y, r.block = x, y, x*y
			for _, v := range found {
				r.held[v] = fmt.Sprintf("held%d", v.ID)
			}
			return
		}
	}
}

// ownSlot is where a thread has what it takes at one step.
func (r *reducing) ownSlot() string {
	return fmt.Sprintf("(at / %d * %d + (int)threadIdx.x) * V", r.y, r.block)
}

// heldColumns emits the kernel of columns that are held.
func (r *reducing) heldColumns(last int) {
	r.begin("", r.block, nil)
	r.head()
	r.line("extern __shared__ __align__(16) unsigned char shared[];")
	loads, bytes := inOrder(r.held), 0 // those of a thread's one column
	var values []*plan.Value
	for _, l := range loads {
		values = append(values, l.v)
		typ := element(l.v.DType)
		r.line("%s* const %s = reinterpret_cast<%s*>(shared + %d * V);", typ, l.name, typ, bytes)
		bytes += (r.share()*r.block*elementBytes(l.v.DType) + 15) / 16 * 16
	}
	r.line("#pragma unroll 4")
	r.open("for (pos at = y; at < steps; at += %d)", r.y)
	r.push()
	r.within()
	r.line("const pos i%d = base;", r.g.Inner)
	for n := range len(r.g.Order) {
		r.compute(n+1, values...)
	}
	for _, l := range loads {
		r.line("kw::copy_ahead<V>(%s + %s, %s + (%s));", l.name, r.ownSlot(), l.v.Buf.Name, r.index(l.v.Idx[0]))
	}
	r.pop()
	r.close()
	r.line("__pipeline_commit();")
	r.line("__pipeline_wait_prior(0);")
	r.line(`asm volatile("" ::: "memory");`) // what was copied is not loaded before
	for stage := range last + 1 {
		r.pass(stage)
	}
	r.rowStores()
	r.end()
	r.startHeld("", r.block, bytes*r.vector, r.blocks(), nil)
}
