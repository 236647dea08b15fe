package judge

import "fmt"

// rooflineGap is what can be said when no metric points anywhere: how far
// there is to go. It speaks on any verdict.
func rooflineGap(v view) (finding, bool) {
	bound := v.verdict.Floor.Bound
	if bound == "" {
		bound = "memory"
	}
	e := v.evidence("memory_share", "cache_share", "compute_share", "core_use")
	gap := "how far it is from the roofline is not known"
	if v.verdict.Floor.MS > 0 {
		e["floor_ms"] = v.verdict.Floor.MS
		gap = fmt.Sprintf("%.4g ms where the %s floor is %.4g ms", v.verdict.CandidateMS, bound, v.verdict.Floor.MS)
	}
	return finding{
		bottleneck: "No single one stands out: " + gap + ".",
		method:     "Come nearer to the " + bound + " floor",
		plan:       "Read each input once and write each output once, in order, with all cores, full vectors and nothing between the loops.",
		evidence:   e,
	}, true
}
