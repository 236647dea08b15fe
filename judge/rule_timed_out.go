package judge

import "github.com/kernelwright/kernelwright"

// timedOut is for a candidate that did not come to an end.
func timedOut(v view) (finding, bool) {
	if v.verdict.Status != kernelwright.TimedOut {
		return finding{}, false
	}
	e := v.evidence()
	if v.task.EagerMS > 0 {
		e["eager_ms"] = v.task.EagerMS
	}
	return finding{
		issue:    "The candidate did not finish: " + oneLine(v.verdict.Reason),
		why:      "A loop does not end, threads wait for each other, or the algorithm does far more work than the reference.",
		fix:      "Check each loop's end and step, take out waiting between threads, and keep to one pass over the data for each reduction.",
		evidence: e,
		moves:    []move{{"threads", toLeast}},
	}, true
}
