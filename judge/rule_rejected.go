package judge

import "github.com/kernelwright/kernelwright/metrics"

import "github.com/kernelwright/kernelwright"

// rejected passes on which rule of the policy a candidate breaks.
func rejected(v view) (finding, bool) {
	if v.verdict.Status != kernelwright.Rejected {
		return finding{}, false
	}
	fix := "Mend what is named there: the file has to define ModelNew, custom code must cover at least one operator of the task, and the reference and what torch.compile and torch.jit make may not be called."
	if v.verdict.Hint != "" {
		fix = oneLine(v.verdict.Hint)
	}
	return finding{
		issue:    "The candidate breaks the policy: " + oneLine(v.verdict.Reason),
		why:      "A candidate that breaks the policy is not kept, whatever it computes.",
		fix:      fix,
		evidence: v.evidence(metrics.CustomShare, metrics.PyTorchShare, metrics.VendorShare),
	}, true
}
