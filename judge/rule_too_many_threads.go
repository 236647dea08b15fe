package judge

import (
	"fmt"

	"github.com/kernelwright/kernelwright/metrics"
)

// tooManyThreads is for a small task whose threads wait for each other longer
// than they work.
func tooManyThreads(v view) (finding, bool) {
	set, ok := v.metric(metrics.WorkingSetBytes)
	if !ok || set <= 0 || set >= worthThreads || v.or(metrics.Threads, 1) < 2 || v.or(metrics.CoreUse, 0) < 1.3/v.or(metrics.Threads, 1) {
		return finding{}, false
	}
	return finding{
		bottleneck: fmt.Sprintf("Threads on a small task: %.0f of them share %s, and starting and joining them costs a few microseconds of the %.3g us.",
			v.or(metrics.Threads, 1), byteSize(set), 1000*v.verdict.CandidateMS),
		method:   "Run on fewer cores",
		plan:     fmt.Sprintf("Start threads only above %s of data (an if clause on the OpenMP directive), and run this size on one core.", byteSize(worthThreads)),
		evidence: v.evidence(metrics.Threads, metrics.CoreUse, metrics.WorkingSetBytes),
		moves:    []move{{"threads", toLeast}, {"threads", toDown}},
	}, true
}
