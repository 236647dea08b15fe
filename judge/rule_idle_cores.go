package judge

import (
	"fmt"

	"github.com/kernelwright/kernelwright/metrics"
)

const (
	// coreUseLeast is the share of the cores' time that a parallel loop with
	// even blocks reaches.
	coreUseLeast = 0.7
	// worthThreads is the work below which starting threads costs more than
	// they save: about 20 us of one core's streaming.
	worthThreads = 256 << 10
)

// idleCores is for a big task that runs on fewer cores than there are.
func idleCores(v view) (finding, bool) {
	cores := v.device.Specs.Cores
	if v.device.Ceilings.CPUThreads > 0 {
		cores = v.device.Ceilings.CPUThreads
	}
	threads := v.or(metrics.Threads, float64(cores)) // what it was allowed
	use, ok := v.metric(metrics.CoreUse)
	if !ok || cores < 2 || threads < 2 || use >= coreUseLeast || v.or(metrics.WorkingSetBytes, float64(v.task.LeastBytes)) < worthThreads {
		return finding{}, false
	}
	f := finding{
		bottleneck: fmt.Sprintf("Idle cores: %s of the time of %.0f threads is used, over a working set of %s.", percent(use), threads,
			byteSize(v.or(metrics.WorkingSetBytes, float64(v.task.LeastBytes)))),
		method:   "Split the outer loop over all cores",
		plan:     "Put an OpenMP parallel for on the outermost independent loop with at least one block per core; where that loop is short, collapse it with the next.",
		evidence: v.evidence(metrics.CoreUse, metrics.Threads, metrics.WorkingSetBytes),
		moves:    []move{{"threads", toMost}, {"tile", toDown}},
	}
	if use > 1/threads*1.3 { // more than one core at work: they end at different times
		f.method = "Even the work out between the cores"
		f.plan = "Use more and smaller blocks than there are cores, all of the same size, so that no core waits for the last one."
	}
	return f, true
}
