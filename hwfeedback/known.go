package hwfeedback

import (
	"context"

	"github.com/kernelwright/kernelwright"
)

// Known returns the verdict that Evaluate would take from the cache, and whether
// there is one. It needs no device, and waits for none.
func (e *Evaluator) Known(ctx context.Context, task kernelwright.Task, cand kernelwright.Candidate, level kernelwright.Level) (kernelwright.Verdict, bool) {
	return e.known(ctx, task, cand, e.options.Profile, level)
}

// Known is Evaluator.Known with that profile.
func (p Profiling) Known(ctx context.Context, task kernelwright.Task, cand kernelwright.Candidate, level kernelwright.Level) (kernelwright.Verdict, bool) {
	return p.known(ctx, task, cand, p.Profile, level)
}

func (e *Evaluator) known(ctx context.Context, task kernelwright.Task, cand kernelwright.Candidate, profile string, level kernelwright.Level) (kernelwright.Verdict, bool) {
	named, err := e.named(ctx, task)
	if err != nil || e.contains(cand) != nil { // Evaluate says what is wrong
		return kernelwright.Verdict{}, false
	}
	if e.gpu == nil || level != kernelwright.Quick {
		profile = ""
	}
	return e.recallVerdict(ctx, e.verdictKey(task, cand, level, named), profile)
}
