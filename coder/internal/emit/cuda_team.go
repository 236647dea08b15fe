package emit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/coder/internal/plan"
)

// Rows that registers cannot keep from pass to pass are held in shared memory by a
// team of blocks, of which each holds a part, and which wait for each other where a
// pass needs all of the row. Where a thread has used an element for the last time
// it asks for that of the next row in its place. What does not fit is read again,
// soon enough to be in the second-level cache. So a row is read once from memory,
// whatever its length up to what the whole chip holds.

const (
	teamsBeside  = 2         // blocks of a multiprocessor: one computes while another one waits
	teamThreads  = 512       // of a block
	teamRow      = 1 << 13   // elements of a row, below which registers do unless the tensor is as large as that: a softmax of rows of 1,024 took 6 us on an H200, and 50 in teams of two
	teamLine     = 32        // elements, 128 bytes of most: where a block's part of a row begins
	teamBytes    = 128 << 20 // of a tensor, from which reading it once makes good for what it costs to launch blocks that wait for each other
	sharedBytes  = 8 << 20   // of what all rows share, which the second-level cache keeps beside what streams through it
	counterBytes = 128       // apart are the counters of two teams
	warpMerges   = 64        // blocks of a team whose results each warp merges for itself
	leastShared  = 99 << 10  // bytes of shared memory that a multiprocessor has
)

// sharedMemory is the bytes of shared memory that blocks of a multiprocessor can
// have together, by architecture (CUDA Programming Guide, table of technical
// specifications per compute capability); where it is not listed, the least.
var sharedMemory = map[string]int{"sm_80": 163 << 10, "sm_87": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10, "sm_103": 227 << 10}

// GPU is the target of a GPU: what is not known of it is assumed, or 0.
func GPU(d kernelwright.Device) Target {
	on := Target{GPU: true, multiprocessors: d.Specs.Cores, shared: leastShared, cache: int(d.Specs.L2Bytes)}
	for _, isa := range d.Specs.ISA {
		if n := sharedMemory[strings.TrimRight(isa, "af")]; n > 0 {
			on.shared = n
		}
	}
	return on
}

// hold has the loads that more than one pass takes stay in shared memory, where
// the blocks that are there at once can hold a row.
func (r *reducing) hold() {
	wanted := r.knobs.Get("team", 0)
	if r.g.Lanes {
		r.holdColumns()
		return
	}
	if wanted == 0 || r.knobs.Get("keep", 1) == 0 {
		return
	}
	found := r.again()
	bytes := 0 // of a step
	for _, v := range found {
		bytes += r.vector * elementBytes(v.DType)
	}
	if bytes == 0 {
		return
	}
	rows := r.g.Rows()
	line := teamLine / r.vector
	each := (max(r.device.on.shared, leastShared)/teamsBeside - 3<<10) / bytes / line * line // steps that a block holds
	there := teamsBeside * r.device.on.multiprocessors
	least := (r.steps + each - 1) / each
	if least > there && r.steps*4/5 > there*each { // a fifth may be read again
		return
	}
	least = min(least, there)
	team := max(wanted, least)
	if wanted == 1 {
		if rows*r.steps*bytes < teamBytes || r.shared() > sharedBytes {
			return
		}
		team = evenly(rows, r.steps, least, there)
	}
	team = max(min(team, there, r.steps), 2)
	per := (r.steps + team*line - 1) / (team * line) * line
	r.team, r.parts = team, 1
	r.room, r.whole = min(per, each)*r.vector, per <= each
	r.threads = min(max(powerAbove((per+r.knobs.Get("share", 4)-1)/r.knobs.Get("share", 4)), leastBlock), teamThreads)
	r.block, r.rowsPerBlock = r.threads, 1
	for _, v := range found {
		r.held[v] = fmt.Sprintf("held%d", v.ID)
	}
}

// evenly returns the size of teams, from the least that holds a row on, with which
// the blocks have the least to do, to within 4 %: hardly one is left over, and none
// has more steps of a row than others. Fewer of them wait for each other sooner.
func evenly(rows, steps, least, there int) int {
	turns := func(team int) int {
		teams := min(there/team, rows)
		return (rows + teams - 1) / teams * ((steps + team*teamThreads - 1) / (team * teamThreads))
	}
	most := min(4*least, there)
	fewest := turns(least)
	for team := least + 1; team <= most; team++ {
		fewest = min(fewest, turns(team))
	}
	for team := least; team < most; team++ {
		if turns(team)*25 <= fewest*26 {
			return team
		}
	}
	return most
}

// shared is the bytes of what is as long as a row and the same for all rows. Plain
// kernels read that for many rows at once, teams for one after the other.
func (r *reducing) shared() int {
	bytes := 0
	all, _ := r.loads()
	for _, v := range all {
		if !slices.ContainsFunc(v.Idx[0].Terms, func(t plan.Term) bool { return slices.Contains(r.g.Outer, r.g.Of[t.Dim]) }) {
			bytes += r.steps * r.vector * elementBytes(v.DType)
		}
	}
	return bytes
}

func elementBytes(d plan.DType) int {
	switch d {
	case plan.Bool:
		return 1
	case plan.F32, plan.I32:
		return 4
	}
	return 8
}

// heldLoads returns what is held, in order, with where it begins in shared memory,
// and the bytes of all of it.
func (r *reducing) heldLoads() (all []keptLoad, at []int, bytes int) {
	all = inOrder(r.held)
	for _, l := range all {
		at = append(at, bytes)
		bytes += (r.room*elementBytes(l.v.DType) + 15) / 16 * 16
	}
	return all, at, bytes
}

// teams emits the kernel of rows that a team of blocks holds. Blocks stay, and go
// from row to row.
func (r *reducing) teams(last int) {
	loads, begins, bytes := r.heldLoads()
	there := teamsBeside * r.device.on.multiprocessors / r.team
	// Of what the blocks leave for each other there are two copies: the fastest may
	// be one meeting ahead.
	for _, a := range r.k.Anchors {
		if a.With == nil {
			c := r.carry(a, r.k.Anchors)
			name := fmt.Sprintf("part%d", a.Value.ID)
			r.names = append(r.names, name)
			r.device.scratch[r.k] = append(r.device.scratch[r.k], scratch{name: name, bytes: 2 * there * r.team * sizeOf(c.typ)})
		}
	}
	arrived := fmt.Sprintf("arrived%d", r.k.At)
	r.names = append(r.names, arrived)
	r.device.scratch[r.k] = append(r.device.scratch[r.k], scratch{name: arrived, bytes: there * counterBytes})
	r.beside = teamsBeside
	r.begin("", r.block, r.names)
	r.sizes()
	r.line("extern __shared__ __align__(16) unsigned char shared[];")
	r.line("constexpr pos steps = %s, line = %d / V, per = (steps + %d * line - 1) / (%d * line) * line, room = %d / V;", r.stepsText(), teamLine, r.team, r.team, r.room)
	r.line("const int lane = threadIdx.x;")
	r.line("const bool live = true;")
	r.line("const int team = blockIdx.x / %d, part = blockIdx.x %% %d, teams = gridDim.x / %d;", r.team, r.team, r.team)
	r.line("const pos from = part * per, to = from + per < steps ? from + per : steps;")
	r.line("unsigned met = 0;")
	// ask has a thread ask for its elements of a row at one step, where it holds them.
	ask := func() {
		r.line("const pos i%d = base;", r.g.Inner)
		for i, l := range loads {
			r.line("kw::copy_ahead<V>(reinterpret_cast<%s*>(shared + %d) + (at - from) * V, %s + (%s));", element(l.v.DType), begins[i], l.v.Buf.Name, r.index(l.v.Idx[0]))
		}
	}
	of := func(row string, do func()) {
		r.open("")
		r.line("const far row = %s;", row)
		r.decode("far", "row", r.g.Outer)
		do()
		r.close()
	}
	fill := func() {
		r.line("#pragma unroll 4")
		r.open("for (pos at = from + lane; at < to && at - from < room; at += %d)", r.threads)
		r.within()
		ask()
		r.close()
	}
	for i, l := range loads {
		r.line("const %s* const %s = reinterpret_cast<const %s*>(shared + %d);", element(l.v.DType), l.name, element(l.v.DType), begins[i])
	}
	r.open("if (team < rows)")
	of("team", fill)
	r.close()
	r.open("for (far row = team; row < rows; row += teams)")
	r.push()
	r.line("__pipeline_commit();")
	r.line("__pipeline_wait_prior(0);")
	r.line(`asm volatile("" ::: "memory");`) // what was copied is not loaded before
	r.line("const far next = row + teams;")
	r.decode("far", "row", r.g.Outer)
	final := last
	for accs, stores := r.of(final); len(accs)+len(stores) == 0; accs, stores = r.of(final) {
		final--
	}
	accs, _ := r.of(final)
	within := !slices.ContainsFunc(accs, func(a *plan.Anchor) bool { return a.With != nil })
	for stage := range last + 1 {
		if stage == final && within {
			r.after = func() {
				r.open("if (next < rows && at - from < room)")
				r.push()
				of("next", ask)
				r.pop()
				r.close()
			}
		}
		r.pass(stage)
		r.after = nil
	}
	if !within {
		r.open("if (next < rows)")
		of("next", fill)
		r.close()
	}
	r.rowStores()
	r.pop()
	r.close()
	r.end()
	known := fmt.Sprintf("there%d", r.k.At)
	r.launched("", r.names, false, func(kernel, args string) {
		r.device.launch("    static int %s[kw::devices];", known)
		r.device.launch("    const long long most = kw::there(%s, %d, %d, %s) / %d;", kernel, r.block, bytes, known, r.team)
		r.device.launch("    const long long teams = rows < most && rows < %d ? rows : most < %d ? most : %d;", there, there, there)
		r.device.launch("    cudaMemsetAsync(%s, 0, %d, stream);", r.names[len(r.names)-1], there*counterBytes)
		r.device.launch("    if (rows > 0) kw::together(%s, teams > 0 ? teams : 1, %d, %d, %d, stream, %s);", kernel, r.team, r.block, bytes, args)
	})
}

// meet merges what the blocks of a team hold. Each leaves its own, waits until
// all have, and merges what they left.
func (r *reducing) meet(carries []carry) {
	if len(carries) == 0 {
		return
	}
	slot := func(c carry, part string) string {
		return fmt.Sprintf("reinterpret_cast<%s*>(part%d)[((met & 1) * teams + team) * %d + %s]", c.typ, c.a.Value.ID, r.team, part)
	}
	for _, c := range carries {
		id := c.a.Value.ID
		r.line("a%d = kw::block_reduce<%d>(a%d);", id, r.threads, id)
		r.line("if (lane == 0) %s = a%d;", slot(c, "part"), id)
	}
	r.line("kw::meet(reinterpret_cast<unsigned*>(%s + team * %d), (met + 1) * %du);", r.names[len(r.names)-1], counterBytes, r.team)
	for _, c := range carries {
		id := c.a.Value.ID
		r.line("a%d = {%s};", id, c.init)
		if r.team <= warpMerges {
			r.line("for (int p = lane %% 32; p < %d; p += 32) a%d.merge(kw::fresh(&%s));", r.team, id, slot(c, "p"))
			r.line("a%d = kw::block_reduce<32>(a%d);", id, id)
			continue
		}
		r.line("for (int p = lane; p < %d; p += %d) a%d.merge(kw::fresh(&%s));", r.team, r.threads, id, slot(c, "p"))
		r.line("a%d = kw::block_reduce<%d>(a%d);", id, r.threads, id)
	}
	r.line("++met;")
	for _, c := range carries {
		r.results(c)
	}
}
