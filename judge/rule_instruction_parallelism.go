package judge

import (
	"fmt"

	"github.com/kernelwright/kernelwright/metrics"
)

// lowIPC is what a loop that waits for its own last result gets; independent
// operations give 2 and more.
const lowIPC = 1.5

// instructionParallelism is for vector code whose operations wait for each
// other.
func instructionParallelism(v view) (finding, bool) {
	ipc, counted := v.metric(metrics.InstructionsPerCycle)
	if v.or(metrics.VectorisedLoops, 0) <= 0 || !starved(v) || (counted && ipc >= lowIPC) {
		return finding{}, false
	}
	how := "with the loops vectorised"
	if counted {
		how = fmt.Sprintf("at %.2f instructions a cycle", ipc)
	}
	return finding{
		bottleneck: fmt.Sprintf("Latency: neither memory (%s) nor arithmetic (%s) is near its ceiling, %s: each operation waits for the one before.",
			percent(v.or(metrics.MemoryShare, 0)), percent(v.or(metrics.ComputeShare, 0)), how),
		method:   "Keep more independent operations in flight",
		plan:     "Unroll the inner loop and give each copy its own accumulator, so that four or more chains run beside each other; join them after the loop.",
		evidence: v.evidence(metrics.InstructionsPerCycle, metrics.VectorisedLoops, metrics.ComputeShare, metrics.MemoryShare, metrics.CacheMissShare),
		moves:    []move{{"unroll", toUp}, {"chains", toUp}, {"vector", toUp}},
	}, true
}
