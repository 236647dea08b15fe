package judge

import "github.com/kernelwright/kernelwright"

// cheated is for a candidate that was caught deceiving.
func cheated(v view) (finding, bool) {
	if v.verdict.Status != kernelwright.Cheated {
		return finding{}, false
	}
	why := "The result must be computed anew from the inputs of each call, by the time the call returns; it is measured and checked from another process."
	if len(v.verdict.Evidence) > 0 {
		why = oneLine(v.verdict.Evidence[0])
	}
	return finding{
		issue:    "The candidate deceives: " + oneLine(v.verdict.Reason),
		why:      why,
		fix:      "Write it without caches of results, work outside the call, changed inputs, or changes to the runtime.",
		evidence: v.evidence(),
	}, true
}
