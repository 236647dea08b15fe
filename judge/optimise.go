package judge

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// optimisationRules are those for a CPU, what weighs most first: overhead that hides everything
// else, then who does the work, then how the cores are used, then what they
// wait for.
var optimisationRules = []rule{
	{"call_overhead", callOverhead},
	{"vendor_library", vendorLibrary},
	{"pytorch_share", pytorchShare},
	{"idle_cores", idleCores},
	{"too_many_threads", tooManyThreads},
	{"memory_ceiling", memoryCeiling},
	{"compute_ceiling", computeCeiling},
	{"not_vectorised", notVectorised},
	{"extra_passes", extraPasses},
	{"cache_bound", cacheBound},
	{"instruction_parallelism", instructionParallelism},
	{"roofline_gap", rooflineGap},
}

// gpuRules are those for a GPU. Their findings come in the order of what each
// would bring, by its own estimate (see attainable); of equals the one that is
// nearer to a cause goes first.
var gpuRules = []rule{
	{"vendor_library", vendorLibrary},
	{"pytorch_share", pytorchShare},
	{"launch_bound", launchBound},
	{"vendor_share", vendorShare},
	{"idle_sms", ofKernels(idleSMs)},
	{"tail", ofKernels(tail)},
	{"uncoalesced", ofKernels(uncoalesced)},
	{"extra_traffic", extraTraffic},
	{"spills", ofKernels(spills)},
	{"bank_conflicts", ofKernels(bankConflicts)},
	{"barriers", ofKernels(barriers)},
	{"narrow_accesses", ofKernels(narrowAccesses)},
	{"occupancy_bound", ofKernels(occupancyBound)},
	{"l2_bound", ofKernels(l2Bound)},
	{"l1_bound", ofKernels(l1Bound)},
	{"compute_bound", ofKernels(computeBound)},
	{"latency_bound", ofKernels(latencyBound)},
	{"memory_bound", memoryBound},
	{"roofline_gap", rooflineGap},
}

// findings is what there is to say of a correct verdict, what weighs most first.
func findings(v view) []finding {
	if v.device.Kind == kernelwright.CUDADevice {
		return attainable(ask(gpuRules, v), v)
	}
	return ask(optimisationRules, v)
}

// optimise returns the one optimisation for a correct verdict, or stop.
func optimise(in kernelwright.JudgeInput, s search) kernelwright.Feedback {
	now := view{in.Task, in.Device, in.Current.Candidate, in.Current.Verdict}
	if now.atTheFloor() {
		return stop("at_the_floor", fmt.Sprintf("The candidate is at %s of the roofline: less than the ceilings are known to.", percent(now.verdict.Headroom)), now.evidence())
	}
	if !s.known {
		return optimiseByWords(in, now)
	}
	base := s.base()
	v := now
	if base.round != s.current.round {
		v.verdict = base.verdict
	}
	if v.atTheFloor() {
		return stop("at_the_floor", fmt.Sprintf("Round %d is at %s of the roofline.", base.round, percent(v.verdict.Headroom)), v.evidence())
	}
	found := findings(v)
	for _, f := range found {
		if f.done {
			return stop(f.rule, f.why, f.evidence)
		}
	}
	var wanted []move
	var owner []int // which finding wants it
	for i, f := range found {
		for _, m := range f.moves {
			wanted, owner = append(wanted, m), append(owner, i)
		}
	}
	wanted, owner = s.past.moves(base, found, wanted, owner)
	n, ok := s.next(wanted)
	if !ok {
		return stop("schedules_exhausted", fmt.Sprintf(
			"Every schedule that differs in one knob from the best (round %d, %.4g ms), and those beside what is nearly as fast, were tried and none is faster%s.", base.round, base.verdict.CandidateMS, s.shunned()), v.evidence())
	}
	f := found[0]
	out := kernelwright.Feedback{Kind: kernelwright.Optimisation, Rule: f.rule, Bottleneck: f.bottleneck, Evidence: f.evidence}
	tried := s.past.step("", n.step)
	if n.asked >= 0 {
		f = found[owner[n.asked]]
		out.Rule, out.Bottleneck, out.Evidence = f.rule, f.bottleneck, f.evidence
		out.Method = f.method + " (" + n.words + ")"
		tried = s.past.step(f.rule, n.step)
	} else {
		out.Rule = "local_search"
		out.Method = "Try the neighbouring schedule: " + n.words
		if distance(n.start, n.step) > 1 {
			out.Method = "Try a schedule further away: " + n.words
		}
	}
	out.Plan = strings.TrimSpace(back(n.start, base, s.current) + fmt.Sprintf("Keep the code of %s and %s; %s. %s", where(n.start, s), n.words, meaning(n.step), tried))
	out.Evidence[n.knob] = float64(n.from)
	out.Knobs = s.difference(n.target)
	return out
}

// back says why the next schedule starts from an earlier round's, where it does
// not start from the current one.
func back(from, best, current point) string {
	ms := current.verdict.CandidateMS
	switch {
	case from.round == current.round:
		return ""
	case from.round != best.round:
		return fmt.Sprintf("Beside the fastest, round %d (%.4g ms), all was tried: go on from the schedule of round %d (%.4g ms). ",
			best.round, best.verdict.CandidateMS, from.round, from.verdict.CandidateMS)
	case ms <= 0:
		return fmt.Sprintf("Go back to the schedule of round %d (%.4g ms). ", best.round, best.verdict.CandidateMS)
	case ms <= best.verdict.CandidateMS*(1+realGain):
		return fmt.Sprintf("This one (%.4g ms) is no faster than round %d (%.4g ms): go back to its schedule. ", ms, best.round, best.verdict.CandidateMS)
	}
	return fmt.Sprintf("Round %d (%.4g ms) is faster than this one (%.4g ms): go back to its schedule. ", best.round, best.verdict.CandidateMS, ms)
}

func where(base point, s search) string {
	if base.round == s.current.round {
		return "this candidate"
	}
	return fmt.Sprintf("round %d", base.round)
}

// meaning says what a step of a shared knob does to the code.
func meaning(st step) string {
	more := st.to > st.from
	say := func(ifMore, ifLess string) string {
		if more {
			return ifMore
		}
		return ifLess
	}
	switch st.knob {
	case "threads":
		return say("the outer loop is split over more cores", "fewer cores start and wait for each other")
	case "vector":
		return say("each instruction does more elements", "shorter vectors leave a shorter tail and lower the pressure on registers")
	case "unroll":
		return say("more independent operations hide the latency of each", "fewer live values spare registers")
	case "tile":
		return say("larger blocks pay the loop's own cost less often", "smaller blocks stay in a nearer cache")
	case "passes":
		return say("each pass over the data is simpler", "passes share more, so that less is read or computed again")
	case "chains":
		return say("more running values hide the latency of each", "fewer running values spare registers")
	case "nontemporal":
		return say("stores go past the cache, so that lines are not read before they are overwritten", "the output stays in the cache for whoever reads it next")
	case "prefetch":
		return say("the next row is on its way while this one is worked on", "fewer instructions a row")
	case "fuse":
		return say("intermediate results stay in registers", "smaller loops keep fewer streams open")
	case "stage":
		return say("windows share what they have of a column, by shared memory", "each window is read by its own thread, without a barrier")
	case "items":
		return say("each thread has more loads under way", "more threads, and fewer registers for each")
	case "share":
		return say("each thread has more of a row, and more loads under way", "more threads take a row, each with fewer registers")
	case "keep":
		return say("rows stay on chip from pass to pass", "registers are spared, and rows are read again")
	case "team":
		switch {
		case st.from == 0 && st.to == 1:
			return "where registers do not keep a row blocks share it in shared memory, and it is read once"
		case st.to == 0:
			return "no block waits for others"
		case st.from == 1:
			return "another number of blocks shares a row in shared memory"
		}
		return say("more blocks share a row in shared memory, so that each holds less of it", "fewer blocks wait for each other")
	case "pdl":
		return say("the next kernel's blocks come while this one ends (programmatic dependent launch)", "each kernel starts when the one before has ended")
	case "persistent":
		return say("as many blocks as fit at once go from one piece of work to the next, and no wave is left half empty", "each block has one piece of work, and another takes its place")
	case "approx":
		return say("divisions, and exponentials that are added up, have no branch and may be off by two units in the last place, and a sum takes a few elements at a time in float32", "divisions are rounded as IEEE 754 says, exponentials as in CUDA's library, and each element of a sum is taken in double")
	case "split":
		return say("several blocks share a row, so that no multiprocessor is idle", "one launch does it all")
	case "static":
		return say("sizes become constants that the compiler can use", "one code serves all sizes")
	}
	return "nothing else changes"
}

// adviceExhausted is the rule by which a run ends whose candidates have no schedule.
const adviceExhausted = "advice_exhausted"

// optimiseByWords is for a candidate without a schedule: it says the first
// thing that was not said before.
func optimiseByWords(in kernelwright.JudgeInput, v view) kernelwright.Feedback {
	said := map[string]bool{}
	var best *kernelwright.Round
	for i := range in.History {
		r := &in.History[i]
		if r.Feedback != nil && r.Feedback.Kind == kernelwright.Optimisation {
			said[r.Feedback.Rule] = true
		}
		if r.Verdict.Status.OK() && r.Verdict.CandidateMS > 0 && (best == nil || r.Verdict.CandidateMS < best.Verdict.CandidateMS) {
			best = r
		}
	}
	found := findings(v)
	for _, f := range found {
		if f.done {
			return stop(f.rule, f.why, f.evidence)
		}
	}
	earlier := past(in.Lessons)
	for _, f := range earlier.findings(found) {
		if said[f.rule] {
			continue
		}
		out := kernelwright.Feedback{Kind: kernelwright.Optimisation, Rule: f.rule,
			Bottleneck: f.bottleneck, Method: f.method, Plan: strings.TrimSpace(f.plan + " " + earlier.words(f.rule).String()), Evidence: f.evidence}
		if best != nil && v.verdict.CandidateMS > best.Verdict.CandidateMS*(1+realGain) {
			out.Plan = fmt.Sprintf("The last change made it slower (%.4g ms; round %d had %.4g ms): take it back first. ",
				v.verdict.CandidateMS, best.Index, best.Verdict.CandidateMS) + out.Plan
			out.Evidence["best_ms"] = best.Verdict.CandidateMS
		}
		return out
	}
	why := "Everything that the measurements point at was advised already."
	if slices.ContainsFunc(found, func(f finding) bool { return !said[f.rule] }) {
		why = "Everything that the measurements point at was advised already, or mostly made tasks like this one slower on this device."
	}
	return stop(adviceExhausted, why, v.evidence())
}
