package emit

import (
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/coder/internal/plan"
)

// drifts reports whether blocks that take columns side by side read what lies
// between them twice, of a tensor that no cache holds: rows begin within sectors, and
// the longer the blocks run the further they are apart. Of 128 x 4096 x 4095 floats
// an H200 read 9 % more than there are in one part, 5 in two and 3 in four. Over a
// short column no block runs for long, and it may be kept on the chip.
func drifts(k *plan.Kernel, g plan.Geometry) bool {
	if k.Kind != plan.ReduceKernel || !g.Lanes || k.RowLength() < driftingRow {
		return false
	}
	elements := 1
	for _, of := range g.Groups {
		elements *= of.Size
	}
	return elements >= teamBytes/4 && g.Groups[g.Inner].Size%8 != 0
}

// driftingRow is the least elements of such a column.
const driftingRow = 1 << 10

// Rows of so many elements that fewer of them than these are not left to a block each:
// one of 1.9e9 took 319 ms on an H200, and 5.7 in parts.
const (
	fewRows = 16
	longRow = 1 << 16
)

// uncut is at most how many blocks a kernel has that cuts no row.
func uncut(g plan.Geometry) int {
	n := g.Rows()
	if g.Lanes {
		n *= (g.Groups[g.Inner].Size + 31) / 32
	}
	return n
}

// persistentSize is the least elements of a map for more than two waves of blocks on an
// H200, each thread with four.
const persistentSize = 1 << 21

// heldThreads is how many threads an H200 holds at a time, to within 3 %.
const heldThreads = 1 << 18

// widestAtFirst is how many elements side by side a thread of a reduction begins with.
// Of columns of which there are fewer than threads it has one: as much is under way, and
// a block has a quarter of the partial results to merge. The mean of 16 x 1024 x 512
// took 10.7 us on an H200, not 12.7, a log-softmax of 4 x 64 x 4096 4.9, not 6.0. It has
// four where blocks for every multiprocessor leave half of the device's threads out:
// then too little is under way, as in a softmax of 2 x 1000 x 10000, which took 157 us,
// not 86; and where shared memory is to hold what registers cannot, which then comes by
// 16 bytes.
func widestAtFirst(k *plan.Kernel, g plan.Geometry) int {
	if !g.Lanes || uncut(g)*32 >= heldThreads {
		return 4
	}
	on, width := Target{multiprocessors: defaultDevice}, g.Groups[g.Inner].Size
	blocks := laneBlocks(g, width, on.narrow(laneColumns, func(x int) int { return laneBlocks(g, width, x) }))
	writes := slices.ContainsFunc(k.Stores, func(s plan.Store) bool { return !s.Row })
	switch {
	case on.filled(blocks) && blocks*laneThreads < heldThreads/2,
		writes && k.RowLength() > 16*keptElements/4 && 4*plan.Numel(k.Space) >= someCache/2:
		return 4
	}
	return 1
}

// shareAtFirst is how many vectors of a row a thread begins with: four, or fewer where
// there were too few threads for the device, as long as no row has more than 256. On an
// H200 a cross entropy of 1024 x 1000 took 8.9, 7.8 and 6.8 us with four, two and one, a
// softmax of 2048 x 1024 6.5, 5.9 and 6.6.
func shareAtFirst(k *plan.Kernel, g plan.Geometry) int {
	share := 4
	threads := func(share int) int { return powerAbove((k.RowLength() + 4*share - 1) / (4 * share)) }
	for !g.Lanes && share > 1 && uncut(g)*threads(share) < heldThreads && threads(share/2) <= 256 {
		share /= 2
	}
	return share
}

// tilesAtFirst is how many tiles of a row, of four elements a thread, a scan begins with
// at a time: two, or the one that there is. One does where there are rows enough for more
// than a wave of blocks, which read while others write, and nothing but what memory holds
// is added up: of 32,768 rows of as many an H200 took 2.08 ms, and 2.15 with two. Of 512
// rows of 4,096 it took 6.3 us with two, 7.1 with one and 6.6 with all four, with sums in
// double.
func tilesAtFirst(k *plan.Kernel, g plan.Geometry) int {
	n := (k.RowLength() + 4*scanBlock - 1) / (4 * scanBlock)
	computed := slices.ContainsFunc(k.Anchors, func(a *plan.Anchor) bool { return a.Operand.Kind != plan.Load })
	if n == 1 || n > mostTiles && g.Rows() >= scanWave && !computed {
		return 1
	}
	return scansAhead
}

// scanWave is how many rows are more than a wave of blocks on an H200, each with one.
const scanWave = 1 << 10

// endsInFew reports whether a kernel is a reduction to so few numbers that its blocks, or
// those of its last part, take no room from blocks of the kernel before. Such ones gain
// by coming early: a loss over 2e6 or 4e6 elements took 7.8 and 12.5 us on an H200, not
// 9.5 and 14.2. A second kernel with as many blocks as the first takes their place, and
// then waits: a log-softmax in two took 16.5 us, not 15.1.
func endsInFew(k *plan.Kernel, g plan.Geometry) bool {
	whole := slices.ContainsFunc(k.Stores, func(s plan.Store) bool { return !s.Row })
	return k.Kind == plan.ReduceKernel && !whole && uncut(g) < fewRows
}

// kernelDivides reports whether a kernel divides float32, or takes a square root of it.
func kernelDivides(k *plan.Kernel) bool {
	found := false
	k.Visit(func(v *plan.Value) { found = found || divides(v) })
	return found
}

// divides reports whether a value is a quotient or a square root of float32, which an
// approximate one may differ from.
func divides(v *plan.Value) bool {
	switch {
	case v.DType != plan.F32:
		return false
	case v.Kind == plan.Pool && v.Op == "mean":
		n := divisorOf(v.Window)
		return plan.Numel(v.Window.Kernel) <= inFloat && (n == 0 || n&(n-1) != 0)
	}
	return v.Kind == plan.Point && (v.Op == "div" || v.Op == "sqrt")
}

// kernelDecides reports whether a kernel has quotients or square roots decide between
// numbers far from each other: by comparing them, or by making whole numbers of them.
func kernelDecides(k *plan.Kernel) bool {
	found := false
	inexact := func(v *plan.Value) (below bool) {
		plan.Visit(v, func(w *plan.Value) { below = below || divides(w) })
		return below
	}
	k.Visit(func(v *plan.Value) {
		switch {
		case v.Kind == plan.Reduce && strings.HasPrefix(v.Op, "arg"):
		case v.Kind == plan.Point && slices.Contains([]string{"floor", "ceil", "trunc", "round", "eq", "ne", "lt", "le", "gt", "ge"}, v.Op):
		case v.Kind == plan.Point && v.Op == "cast" && v.Args[0].DType.Floating() && !v.DType.Floating():
		default:
			return
		}
		found = found || slices.ContainsFunc(v.Args, inexact)
	})
	return found
}

// callDecides reports whether a call makes whole numbers, or what is like them, of
// numbers: of what a kernel leaves, for all that is known here.
func callDecides(c *plan.TorchCall) bool {
	name, _, _ := strings.Cut(strings.TrimPrefix(c.Node.Op, "aten."), ".")
	whole := slices.ContainsFunc(c.Node.Outputs, func(m plan.TensorMeta) bool {
		return !strings.HasPrefix(m.DType, "float") && !strings.HasPrefix(m.DType, "bfloat")
	})
	return whole || slices.Contains([]string{"fmod", "remainder", "round", "frac", "floor_divide", "floor", "ceil", "trunc", "sign", "heaviside"}, name)
}

// CUDASchedule is the start on a GPU: 16 bytes an access, rows kept on chip, and
// enough blocks for the whole device.
func CUDASchedule(p *plan.Plan) plan.Knobs {
	s := plan.Knobs{}
	var maps, waves, lined, columned, reduces, rows, scans, columns, long, apart, joins, few, ends, inexact, decides bool
	vector, share, largest := 4, 4, 0 // by the largest reduction
	tiles := scansAhead
	pooled := 0 // outputs of a pooling whose windows overlap, the fewest
	kernels := 0
	for _, st := range p.Steps {
		k := st.Kernel
		if k == nil {
			decides = decides || callDecides(st.Call)
			continue
		}
		kernels++
		g := k.Geometry()
		maps = maps || k.Kind == plan.MapKernel
		waves = waves || k.Kind == plan.MapKernel && !hasLine(k, g) && plan.Numel(k.Space) >= persistentSize
		lined = lined || hasLine(k, g)
		columned = columned || columnGroup(k, g) >= 0
		if n := plan.Numel(k.Space); (hasLine(k, g) || columnGroup(k, g) >= 0) && (pooled == 0 || n < pooled) {
			pooled = n
		}
		reduces = reduces || k.Kind == plan.ReduceKernel
		rows = rows || k.Kind == plan.ReduceKernel && !g.Lanes
		scans = scans || k.Kind == plan.ScanKernel && !g.Lanes
		columns = columns || k.Kind == plan.ScanKernel && g.Lanes
		if k.Kind == plan.ScanKernel && !g.Lanes {
			tiles = tilesAtFirst(k, g)
		}
		apart = apart || drifts(k, g)
		joint := k.Joins() != ""
		joins = joins || joint
		ends = endsInFew(k, g)
		adds := (k.Kind == plan.ReduceKernel || k.Kind == plan.ScanKernel) && (!g.Lanes || joint) && slices.ContainsFunc(k.Anchors, addsUp)
		inexact, decides = inexact || adds || kernelDivides(k), decides || kernelDecides(k)
		few = few || (k.Kind == plan.ReduceKernel || k.Kind == plan.ScanKernel) && uncut(g) < fewRows && k.RowLength() >= longRow
		long = long || !g.Lanes && (k.RowLength() >= teamRow || plan.Numel(k.Space) >= teamBytes/4)
		if n := plan.Numel(k.Space); k.Kind == plan.ReduceKernel && n > largest {
			vector, share, largest = widestAtFirst(k, g), shareAtFirst(k, g), n
		}
	}
	if maps || scans || columns {
		vector = 4
	}
	s["vector"] = kernelwright.Knob{Value: vector, Choices: []int{1, 2, 4}}
	if maps {
		// How many times a thread does what it does.
		s["items"] = kernelwright.Knob{Value: 1, Choices: []int{1, 2, 4}}
	}
	if waves {
		// Whether a grid is as large as the device, and its blocks go from one piece of work to
		// the next, so that no wave of blocks is left half empty.
		s["persistent"] = kernelwright.Knob{Value: 0, Choices: []int{0, 1}}
	}
	if lined {
		// Whether a pooling's windows share what they have of a column, by shared memory.
		start := 1
		if pooled < linedOutputs {
			start = 0
		}
		s["stage"] = kernelwright.Knob{Value: start, Choices: []int{0, 1}}
	}
	// Vectors of a row, or elements of a column, that one thread takes: more
	// hide the latency of each load, fewer leave more threads to hide it.
	switch {
	case reduces:
		s["share"] = kernelwright.Knob{Value: share, Choices: []int{1, 2, 4, 8, 16}}
	case columned:
		start := columnRows
		for start > 1 && pooled < start*columnThreads {
			start /= 2
		}
		s["share"] = kernelwright.Knob{Value: start, Choices: []int{1, 2, 4, 8, 16}}
	}
	switch {
	case reduces || columns:
		// Loads that a thread has under way.
		s["unroll"] = kernelwright.Knob{Value: loadsAhead, Choices: []int{1, 2, 4, 8}}
	case scans:
		s["unroll"] = kernelwright.Knob{Value: tiles, Choices: []int{1, 2, 4}}
	}
	if reduces || scans {
		// Whether a row is cut where there are too few of them for the device; from 2 on
		// into how many parts at least, of a reduction however many rows there are.
		start := 1
		if apart {
			start = 8
		}
		choices := []int{0, 1, 2, 4, 8, 16, 32}
		if few {
			choices = choices[1:] // 0 would leave the device to as many blocks
		}
		s["split"] = kernelwright.Knob{Value: start, Choices: choices}
	}
	if reduces {
		// Whether rows stay on the chip from pass to pass, where they fit.
		s["keep"] = kernelwright.Knob{Value: 1, Choices: []int{0, 1}}
	}
	if (rows || scans) && long {
		start := 0
		if rows {
			start = 1
		}
		// How many blocks hold a row between them in shared memory, at least, and wait
		// for each other; 0 for none, 1 for as many as share it evenly where registers do
		// not suffice and the tensor is large. Scans have them from 2 on.
		s["team"] = kernelwright.Knob{Value: start, Choices: []int{0, 1, 2, 4, 8, 16, 32, 64}}
	}
	if joins {
		s["passes"] = kernelwright.Knob{Value: 1, Choices: []int{1, 3}}
	}
	after := slices.ContainsFunc(p.Segments(), func(s plan.Segment) bool { return s.After })
	if kernels > 1 || reduces || scans || after {
		// Whether blocks of a kernel come while the one before is still at work, by
		// programmatic dependent launch, from compute capability 9.0 on. After a product or a
		// convolution of torch's an H200 took 5 to 9 % less.
		start := 0
		if ends || after {
			start = 1
		}
		s["pdl"] = kernelwright.Knob{Value: start, Choices: []int{0, 1}}
	}
	if inexact {
		// Whether divisions and square roots of float32, and exponentials that are added up, may
		// be off by two units in the last place, as Triton's are, and sums take a few elements of
		// it at a time. An exact division has a branch to what handles its corner cases, over
		// which a compiler moves no load: hardswish of an image and a residual is 378
		// instructions with them and 114 without.
		start := 1
		if decides {
			start = 0
		}
		s["approx"] = kernelwright.Knob{Value: start, Choices: []int{0, 1}}
	}
	if len(p.Covered) > 1 {
		s["fuse"] = kernelwright.Knob{Value: 1, Choices: []int{0, 1}}
	}
	return s
}
