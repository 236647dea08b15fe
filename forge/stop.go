package forge

import (
	"time"

	"github.com/kernelwright/kernelwright"
)

// stopAfter says whether a run with these rounds goes on, from the rounds
// alone. why is set where the Judge gave one.
func stopAfter(rounds []kernelwright.Round, s Settings) (stop kernelwright.StopReason, why string) {
	if len(rounds) == 0 {
		return "", ""
	}
	if f := rounds[len(rounds)-1].Feedback; f != nil && f.Kind == kernelwright.Stop {
		return kernelwright.StopJudge, f.Why
	}
	return limit(rounds, s), ""
}

// limit says which of the run's limits these rounds have reached.
func limit(rounds []kernelwright.Round, s Settings) kernelwright.StopReason {
	if b := best(rounds); b != nil && s.HeadroomStop > 0 && b.Verdict.Headroom >= s.HeadroomStop && !b.Verdict.Speedup.Slower() {
		return kernelwright.StopHeadroom
	}
	if s.Patience > 0 && sinceProgress(rounds) >= s.Patience {
		return kernelwright.StopNoProgress
	}
	if len(rounds) >= s.Rounds {
		return kernelwright.StopRounds
	}
	if s.WallTime > 0 && spent(rounds) >= s.WallTime {
		return kernelwright.StopWallTime
	}
	return ""
}

// spent is the time that the rounds took, whoever ran them and whenever.
func spent(rounds []kernelwright.Round) time.Duration {
	var ms int64
	for _, r := range rounds {
		ms += max(r.FinishedMS-r.StartedMS, 0) // records are foreign bytes
	}
	return time.Duration(ms) * time.Millisecond
}

// sinceProgress counts the rounds after the last one that was better than all
// before it beyond the noise of measuring. Small gains add up: each is held
// against the last progress, not against the round before. Before the first
// correct candidate there is nothing to make progress from, and it is 0.
func sinceProgress(rounds []kernelwright.Round) int {
	at := -1
	for i, r := range rounds {
		if kept(r) && (at < 0 || r.Verdict.FasterThan(rounds[at].Verdict)) {
			at = i
		}
	}
	if at < 0 {
		return 0
	}
	return len(rounds) - 1 - at
}

// kept reports whether a round's candidate may become the kernel of its run.
func kept(r kernelwright.Round) bool { return r.Verdict.Status.OK() && r.Verdict.CandidateMS > 0 }

// best is the fastest correct round by its quick verdict; the earlier of equals.
func best(rounds []kernelwright.Round) *kernelwright.Round {
	var b *kernelwright.Round
	for i := range rounds {
		if r := &rounds[i]; kept(*r) && (b == nil || r.Verdict.CandidateMS < b.Verdict.CandidateMS) {
			b = r
		}
	}
	return b
}
