package judge

import (
	"fmt"

	"github.com/kernelwright/kernelwright/metrics"
)

// overheadShare is the share of the time from which calling, not computing,
// is what there is to gain.
const overheadShare = 0.3

// callOverhead is for tiny tasks, whose time goes into the calls themselves.
func callOverhead(v view) (finding, bool) {
	share, ok := v.metric(metrics.CallOverheadShare)
	if !ok || share < overheadShare {
		return finding{}, false
	}
	calls := v.or(metrics.CustomCalls, 0)
	return finding{
		bottleneck: fmt.Sprintf("Call overhead: %s of the %.3g us goes into calling, not into computing.", percent(share), 1000*v.verdict.CandidateMS),
		method:     "Make fewer and cheaper calls",
		plan: fmt.Sprintf("Join the %.0f native calls into one, allocate each output once with torch.empty, start no threads, and do no Python work per "+
			"element or per dimension in forward.", max(calls, 1)),
		evidence: v.evidence(metrics.CallOverheadShare, metrics.CustomCalls, metrics.Threads),
		moves:    []move{{"fuse", toMost}, {"threads", toLeast}, {"static", toMost}},
	}, true
}
