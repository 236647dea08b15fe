package episodes

import "github.com/kernelwright/kernelwright"

// Margin is by how much a candidate has to beat a baseline: the interval's lower
// end clears it (CUDA Agent, arXiv 2602.24286). Timing may end once that is certain
// (hwfeedback.Options.Milestone).
const Margin = 0.05

// Reward is the milestone that a verdict reached. nil is a policy that left no
// candidate.
func Reward(v *kernelwright.Verdict) int {
	return milestone(v, func(baseline string) bool {
		s, measured := v.Speedups[baseline]
		return measured && s.Wins(Margin)
	})
}

// most is the milestone that a verdict may have reached: what its timing does not
// tell counts as a win. Where it is above Reward, the reward is not known. eager is
// always measured (hwfeedback.Baselines); a task may have no compile.
func most(v *kernelwright.Verdict) int {
	return milestone(v, func(baseline string) bool {
		s, measured := v.Speedups[baseline]
		noisy := s.Vague() || v.Timing.Disturbed
		return !measured && baseline == eager || measured && (s.Wins(Margin) || noisy && s.High > 1+Margin)
	})
}

// told reports whether a verdict has a reward: its timing tells the milestone.
func told(v *kernelwright.Verdict) bool {
	_, told := Told(v)
	return told
}

// The baselines of the milestones.
const (
	eager   = "eager"
	compile = "compile"
)

func milestone(v *kernelwright.Verdict, faster func(baseline string) bool) int {
	switch {
	case v == nil || !v.Status.OK():
		return kernelwright.RewardNotCorrect
	case !faster(eager):
		return kernelwright.RewardCorrect
	case !faster(compile):
		return kernelwright.RewardFasterThanEager
	}
	return kernelwright.RewardFasterThanCompile
}

// missing are the milestones' baselines that a correct candidate was not held against.
func missing(v *kernelwright.Verdict) (names []string) {
	if v == nil || !v.Status.OK() {
		return nil
	}
	for _, name := range []string{eager, compile} {
		if _, measured := v.Speedups[name]; !measured {
			names = append(names, name)
		}
	}
	return names
}

// Told returns the milestone that a verdict reached, and whether its timing tells it.
func Told(v *kernelwright.Verdict) (reward int, told bool) { return Reward(v), most(v) == Reward(v) }
