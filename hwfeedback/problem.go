package hwfeedback

import (
	"context"

	"github.com/kernelwright/kernelwright"
)

// forAGPU is what builder_client.py says of code in CUDA, too.
var forAGPU = kernelwright.Shared.ForAGPU

// Problem says why a candidate comes to nothing on this device, as far as its text
// tells that, and which status that is; "" where it must be tried. Nothing of it is
// run, and no device is needed.
func (e *Evaluator) Problem(ctx context.Context, cand kernelwright.Candidate) (kernelwright.Status, string, error) {
	p, err := e.parse(ctx, e.super, cand.Source, "candidate")
	if err != nil {
		return "", "", requestError(err)
	}
	switch {
	case len(p.Problems) > 0 && p.Hash == "":
		return kernelwright.BuildFailed, p.Problems[0], nil
	case len(p.Problems) > 0:
		return kernelwright.Rejected, p.Problems[0], nil
	case p.Language == kernelwright.CUDA && e.gpu == nil:
		return kernelwright.NeedsGPU, "it needs a GPU: " + forAGPU, nil
	}
	return "", "", nil
}

// Given returns the parameter by which a reference's forward takes a function of its
// file, if nobody gives another one; "" where there is none. Nothing of it is run, and
// no device is needed.
func (e *Evaluator) Given(ctx context.Context, reference string) (string, error) {
	p, err := e.parse(ctx, e.super, reference, "reference")
	if err != nil {
		return "", requestError(err)
	}
	return p.Given, nil
}
