package judge

import (
	"fmt"

	"github.com/kernelwright/kernelwright/metrics"
)

// aroundMS is how much longer one forward takes between two events than its
// kernels under ncu, at most: measured on an H200 for kernels of 31 to 503 us.
const aroundMS = 0.006

// launchBound is for a forward whose time goes into starting kernels. What an
// empty launch takes was measured on this GPU, with others queued behind it: that
// is what each launch but one costs, however little it does. Where somebody timed
// the kernels, what lies between them is known, too. One launch that takes no
// longer than an empty one leaves nothing to gain.
func launchBound(v view) (finding, bool) {
	n, ms := min(v.launched(), 1e9), v.verdict.CandidateMS
	if n < 1 || ms <= 0 {
		return finding{}, false
	}
	if n == 1 && v.launches(1) >= NearFloor && !v.verdict.Speedup.Slower() {
		return finding{done: true, evidence: v.evidence(metrics.CustomCalls),
			why: fmt.Sprintf("The one launch takes %.3g us, and an empty one %.3g us.", 1000*ms, v.device.Ceilings.CallUS)}, true
	}
	f := finding{
		bottleneck: fmt.Sprintf("Launches: %.0f of them in %.4g us, %.3g us each, where an empty one takes %.3g us.", n, 1000*ms, 1000*ms/n, v.device.Ceilings.CallUS),
		method:     "Launch fewer kernels",
		plan: "Join kernels that pass elements on to each other, have the last block of a reduction finish it instead of another kernel, and leave out memsets, copies and conversions; " +
			"in forward allocate each output once and do nothing else in Python. What is left can overlap from compute capability 9.0 on: programmatic dependent launch, with griddepcontrol.wait before a kernel reads, and nothing that the kernels before write read through const __restrict__ or __ldg.",
		evidence: v.evidence(metrics.CallOverheadShare, metrics.CustomCalls),
		gain:     v.launches(n - 1),
		moves:    []move{{"fuse", toMost}, {"pdl", toMost}, {"split", toLeast}},
	}
	f.evidence["launches"] = n
	if p := v.verdict.Profile; p != nil && p.MS > 0 {
		if between := within((ms - p.MS - aroundMS) / ms); between > f.gain {
			f.bottleneck = fmt.Sprintf("Gaps: the GPU works %.4g of the %.4g us, on %.0f launches; it waits for the next one in between.", 1000*p.MS, 1000*ms, n)
			f.evidence["kernels_ms"] = p.MS
			f.gain = between
		}
	}
	return f, f.gain > 0
}

// launched is how many launches a forward has, as far as somebody counted them.
func (v view) launched() float64 {
	if p := v.verdict.Profile; p != nil && p.Launches > 0 {
		return float64(p.Launches)
	}
	if n, ok := v.metric(metrics.Launches); ok && n >= 1 {
		return n
	}
	return v.or(metrics.CustomCalls, 0)
}
