package episodes

import "github.com/kernelwright/kernelwright"

// margin is by how much a candidate has to beat a baseline: the interval's lower
// end clears it (CUDA Agent, arXiv 2602.24286).
const margin = 0.05

// The milestones of CUDA Agent's reward.
const (
	NotCorrect        = -1
	Correct           = 1
	FasterThanEager   = 2
	FasterThanCompile = 3 // than eager as well
)

// Reward is the milestone that a verdict reached. nil is a policy that left no
// candidate.
func Reward(v *kernelwright.Verdict) int {
	faster := func(baseline string) bool {
		s, measured := v.Speedups[baseline]
		return measured && s.Wins(margin)
	}
	switch {
	case v == nil || !v.Status.OK():
		return NotCorrect
	case !faster("eager"):
		return Correct
	case !faster("compile"):
		return FasterThanEager
	}
	return FasterThanCompile
}
