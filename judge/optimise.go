package judge

import (
	"fmt"

	"github.com/kernelwright/kernelwright"
)

// optimisationRules, what weighs most first: overhead that hides everything
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

// optimise returns the one optimisation for a correct verdict, or stop.
func optimise(in kernelwright.JudgeInput, s search) kernelwright.Feedback {
	now := view{in.Task, in.Device, in.Current.Candidate, in.Current.Verdict}
	if now.verdict.Headroom >= NearFloor {
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
	if v.verdict.Headroom >= NearFloor {
		return stop("at_the_floor", fmt.Sprintf("Round %d is at %s of the roofline.", base.round, percent(v.verdict.Headroom)), v.evidence())
	}
	found := ask(optimisationRules, v)
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
	n, ok := s.next(wanted)
	if !ok {
		return stop("schedules_exhausted", fmt.Sprintf(
			"Every schedule one knob away from the best (round %d, %.4g ms) was tried and none is faster.", base.round, base.verdict.CandidateMS), v.evidence())
	}
	f := found[0]
	out := kernelwright.Feedback{Kind: kernelwright.Optimisation, Rule: f.rule, Bottleneck: f.bottleneck, Evidence: f.evidence}
	if n.asked >= 0 {
		f = found[owner[n.asked]]
		out.Rule, out.Bottleneck, out.Evidence = f.rule, f.bottleneck, f.evidence
		out.Method = f.method + " (" + n.words + ")"
	} else {
		out.Rule = "local_search"
		out.Method = "Try the neighbouring schedule: " + n.words
	}
	out.Plan = fmt.Sprintf("Keep the code of %s and %s; %s.", where(base, s), n.words, meaning(n.step))
	out.Evidence[n.knob] = float64(n.from)
	if base.round != s.current.round {
		better := fmt.Sprintf("Round %d (%.4g ms) is faster than this one (%.4g ms): go back to its schedule. ",
			base.round, base.verdict.CandidateMS, s.current.verdict.CandidateMS)
		switch {
		case s.current.verdict.CandidateMS <= 0:
			better = fmt.Sprintf("Go back to the schedule of round %d (%.4g ms). ", base.round, base.verdict.CandidateMS)
		case s.current.verdict.CandidateMS <= base.verdict.CandidateMS*(1+realGain):
			better = fmt.Sprintf("This one (%.4g ms) is no faster than round %d (%.4g ms): go back to its schedule. ",
				s.current.verdict.CandidateMS, base.round, base.verdict.CandidateMS)
		}
		out.Plan = better + out.Plan
	}
	out.Knobs = s.difference(n.target)
	return out
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
	case "fuse":
		return say("intermediate results stay in registers", "smaller loops keep fewer streams open")
	case "items":
		return say("each thread has more loads under way", "more threads, and fewer registers for each")
	case "share":
		return say("each thread has more of a row, and more loads under way", "more threads take a row, each with fewer registers")
	case "keep":
		return say("rows stay on chip from pass to pass", "registers are spared, and rows are read again")
	case "team":
		return say("more blocks share a row in shared memory, so that each holds less of it", "fewer blocks wait for each other")
	case "split":
		return say("several blocks share a row, so that no multiprocessor is idle", "one launch does it all")
	case "static":
		return say("sizes become constants that the compiler can use", "one code serves all sizes")
	}
	return "nothing else changes"
}

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
	found := ask(optimisationRules, v)
	for _, f := range found {
		if f.done {
			return stop(f.rule, f.why, f.evidence)
		}
	}
	for _, f := range found {
		if said[f.rule] {
			continue
		}
		out := kernelwright.Feedback{Kind: kernelwright.Optimisation, Rule: f.rule,
			Bottleneck: f.bottleneck, Method: f.method, Plan: f.plan, Evidence: f.evidence}
		if best != nil && v.verdict.CandidateMS > best.Verdict.CandidateMS*(1+realGain) {
			out.Plan = fmt.Sprintf("The last change made it slower (%.4g ms; round %d had %.4g ms): take it back first. ",
				v.verdict.CandidateMS, best.Index, best.Verdict.CandidateMS) + out.Plan
			out.Evidence["best_ms"] = best.Verdict.CandidateMS
		}
		return out
	}
	return stop("advice_exhausted", "Everything that the measurements point at was advised already.", v.evidence())
}
