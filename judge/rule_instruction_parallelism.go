package judge

import "fmt"

// lowIPC is what a loop that waits for its own last result gets; independent
// operations give 2 and more.
const lowIPC = 1.5

// instructionParallelism is for vector code whose operations wait for each
// other.
func instructionParallelism(v view) (finding, bool) {
	ipc, counted := v.metric("instructions_per_cycle")
	if v.or("vectorised_loops", 0) <= 0 || !starved(v) || (counted && ipc >= lowIPC) {
		return finding{}, false
	}
	how := "with the loops vectorised"
	if counted {
		how = fmt.Sprintf("at %.2f instructions a cycle", ipc)
	}
	return finding{
		bottleneck: fmt.Sprintf("Latency: neither memory (%s) nor arithmetic (%s) is near its ceiling, %s: each operation waits for the one before.",
			percent(v.or("memory_share", 0)), percent(v.or("compute_share", 0)), how),
		method:   "Keep more independent operations in flight",
		plan:     "Unroll the inner loop and give each copy its own accumulator, so that four or more chains run beside each other; join them after the loop.",
		evidence: v.evidence("instructions_per_cycle", "vectorised_loops", "compute_share", "memory_share", "cache_miss_share"),
		moves:    []move{{"unroll", toUp}, {"chains", toUp}, {"vector", toUp}},
	}, true
}
