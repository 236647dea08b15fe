package plan

import (
	"slices"

	"github.com/kernelwright/kernelwright"
)

// Knobs is a schedule: the named knobs of a plan, each with its value and choices.
type Knobs map[string]kernelwright.Knob

// Get returns the value of a knob, and otherwise where there is none of that name.
func (s Knobs) Get(name string, otherwise int) int {
	if k, ok := s[name]; ok {
		return k.Value
	}
	return otherwise
}

// Sizes from which a choice makes a difference.
const (
	ParallelCost   = 1 << 16 // multiply-adds below which threads cost more than they save
	StreamingBytes = 1 << 20 // an output below this stays in the cache anyway
	cachedRow      = 1 << 15 // elements of a row that may be kept beside the row itself
	homeRow        = 1 << 20 // and of one that is kept where it is stored in the end
	firstLevelRow  = 1 << 13 // elements of a row that a first-level cache of 32 KiB holds
	homelessRow    = 1 << 12 // and of one that it holds with as much beside it
	prefetchedRow  = 1 << 12 // elements of a row that may be asked for while another is worked on
	shortRow       = 1 << 9  // and of one that the processor's own prefetcher comes too late for
	cacheLine      = 16      // elements
)

// usableCores returns how many cores a kernel may use: who computes on more than
// it is measured with is rejected.
func usableCores(d kernelwright.Device) int {
	cores := d.Specs.Cores
	for _, most := range []int{d.Specs.Threads, d.Ceilings.CPUThreads} {
		if most > 0 && (cores == 0 || most < cores) {
			cores = most
		}
	}
	return max(cores, 1)
}

// DefaultSchedule is the conservative start: all cores, the widest vectors,
// nothing that could go wrong.
func DefaultSchedule(p *Plan, d kernelwright.Device) Knobs {
	s := Knobs{}
	cores := usableCores(d)
	var threads []int
	for n := 1; n < cores; n *= 2 {
		threads = append(threads, n)
	}
	s["threads"] = kernelwright.Knob{Value: cores, Choices: append(threads, cores)}
	vectors := []int{1, 4, 8}
	if d.Specs.VectorBits >= 512 || slices.ContainsFunc(d.Specs.ISA, func(i string) bool { return i == "avx512f" }) {
		vectors = append(vectors, 16)
	}
	var scans, rows, sums, lanes, columns, big, cached, joins, onePass, dear bool
	longest, follow := 0, 0 // rows of which something is kept, and that may be asked for
	for _, st := range p.Steps {
		k := st.Kernel
		if k == nil {
			continue
		}
		g := k.Geometry()
		rows = rows || (k.Kind == ReduceKernel && !g.Lanes)
		lanes = lanes || g.Lanes
		scans = scans || (k.Kind == ScanKernel && !g.Lanes)
		columns = columns || (k.Kind == ReduceKernel && g.Lanes)
		for _, a := range k.Anchors {
			sums = sums || (a.Value.Kind == Reduce && (a.Value.Op == "sum" || a.Value.Op == "mean") && a.Value.DType == F32)
		}
		for _, b := range k.Stores {
			big = big || (Streamable(k, b) && Numel(b.Buf.Shape)*4 >= StreamingBytes)
		}
		if k.RowsFollow(g) {
			follow = max(follow, k.RowLength())
		}
		if len(k.Cacheable(g)) > 0 {
			cached = true
			longest = max(longest, k.RowLength())
		}
		dear = dear || k.isDear()
		if op := k.Joins(); op != "" {
			joins = true
			onePass = onePass || (g.Lanes && op == "mean") || (!g.Lanes && k.RowLength() > firstLevelRow)
		}
	}
	// The widest vectors lower the clock of some processors: where much is computed
	// they are worth it, else memory is waited for in any case.
	width := 8
	if dear {
		width = vectors[len(vectors)-1]
	}
	s["vector"] = kernelwright.Knob{Value: width, Choices: vectors}
	if rows || columns {
		s["unroll"] = kernelwright.Knob{Value: 1, Choices: []int{1, 2, 4, 8}}
	}
	switch {
	case rows && sums && !lanes:
		s["tile"] = kernelwright.Knob{Value: 0, Choices: []int{0, 512, 2048, 8192}}
	case lanes:
		s["tile"] = kernelwright.Knob{Value: 512, Choices: []int{64, 128, 256, 512, 1024, 2048, 4096}}
	}
	// passes: 3 goes over a row for each reduction and computes anew what was not
	// stored; 2 keeps dear values of a row between its passes; 1 has reductions
	// share a pass where one can be corrected as the other moves on. To keep an
	// exponential is cheaper than to compute it again, as long as a row may be kept
	// at all. Else one pass is faster where a row does not fit the first-level cache,
	// and for means of rows side by side, whose tiles do not; under a maximum of rows
	// side by side the second exponential costs what the second reading would.
	if cached || joins {
		k := kernelwright.Knob{Value: 3, Choices: []int{3}}
		if cached {
			k.Choices = append([]int{2}, k.Choices...)
		}
		if joins {
			k.Choices = append([]int{1}, k.Choices...)
		}
		switch {
		case cached:
			k.Value = 2
			if tile, ok := s["tile"]; ok && !lanes && longest >= 2048 {
				tile.Value = 2048
				s["tile"] = tile
			}
		case onePass:
			k.Value = 1
		}
		s["passes"] = k
	}
	if follow > 0 {
		k := kernelwright.Knob{Value: 0, Choices: []int{0, 1}}
		if follow <= shortRow {
			k.Value = 1
		}
		s["prefetch"] = k
	}
	if scans {
		// How many rows, or parts of one, are scanned side by side: four hide the
		// latency of an addition.
		s["chains"] = kernelwright.Knob{Value: 4, Choices: []int{1, 2, 4, 8}}
	}
	if big {
		s["nontemporal"] = kernelwright.Knob{Value: 0, Choices: []int{0, 1}}
	}
	if len(p.Covered) > 1 {
		s["fuse"] = kernelwright.Knob{Value: 1, Choices: []int{0, 1}}
	}
	return s
}

// Streamable reports whether a store may go past the cache: a full one of
// floats.
func Streamable(k *Kernel, b Store) bool {
	return !b.Row && b.Buf.DType == F32 && k.Kind != ScanKernel
}

// With returns the schedule with some knobs set, as far as they exist and
// have that choice.
func (s Knobs) With(knobs map[string]int) Knobs {
	out := Knobs{}
	for name, k := range s {
		if v, ok := knobs[name]; ok && slices.Contains(k.Choices, v) {
			k.Value = v
		}
		out[name] = k
	}
	return out
}

// Safer returns the schedule one step nearer to plain code, and false at the
// end of that way. The order goes from what is most likely to be at fault.
func (s Knobs) Safer() (Knobs, bool) {
	steps := []map[string]int{
		{"nontemporal": 0},
		{"team": 0},
		{"pdl": 0},
		{"persistent": 0},
		{"approx": 0},
		{"split": s.plainSplit()},
		{"passes": 3},
		{"keep": 0},
		{"stage": 0},
		{"items": 1},
		{"chains": 1},
		{"unroll": 1, "tile": s.plainTile()},
		{"vector": 4},
		{"vector": 1},
		{"threads": 1},
		{"fuse": 0},
	}
	for _, knobs := range steps {
		next := s.With(knobs)
		if knobs["vector"] == 4 && s.Get("vector", 0) == 1 {
			continue
		}
		for name := range knobs {
			if next[name].Value != s[name].Value {
				return next, true
			}
		}
	}
	return s, false
}

// plainSplit cuts rows as little as may be.
func (s Knobs) plainSplit() int {
	if k, ok := s["split"]; ok {
		return slices.Min(k.Choices)
	}
	return 0
}

func (s Knobs) plainTile() int {
	if k, ok := s["tile"]; ok && slices.Contains(k.Choices, 0) {
		return 0
	}
	return 512
}
