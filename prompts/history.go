package prompts

import (
	"fmt"

	"github.com/kernelwright/kernelwright"
)

// maxEarlier is how many of the last rounds are told: advice that is older has
// mostly been overtaken.
const maxEarlier = 8

// EarlierRounds is what the rounds so far were advised and what came of it,
// oldest first.
func EarlierRounds(rounds []kernelwright.Round) Data {
	var f facts
	advice := "the first candidate"
	if n := len(rounds) - maxEarlier; n > 0 {
		f.add("%d rounds before these", n)
		advice = "on the advice before"
		rounds = rounds[n:]
	}
	for _, r := range rounds {
		came := Line(string(r.Verdict.Status), maxWord)
		if r.Verdict.Status.OK() && r.Verdict.CandidateMS > 0 {
			came = fmt.Sprintf("%s, %.4g ms", came, r.Verdict.CandidateMS)
		} else if r.Verdict.Reason != "" {
			came += ": " + Line(r.Verdict.Reason, maxSentence)
		}
		f.add("round %d, %s: %s", r.Index, advice, came)
		advice = "without advice"
		if fb := r.Feedback; fb != nil {
			advice = "advised: " + Line(fb.Fix+fb.Method, maxSentence)
			if fb.Plan != "" {
				advice += ": " + Line(fb.Plan, maxSentence)
			}
		}
	}
	if len(rounds) > 0 {
		f.add("and then, %s: the candidate here", advice)
	}
	return Fence("earlier rounds", f.b.String(), MaxFactsBytes)
}

// Lessons is what helped on other tasks.
func Lessons(sentences []string) Data {
	var f facts
	for _, s := range sentences[:min(len(sentences), maxListed)] {
		f.add("%s", Line(s, maxSentence))
	}
	return Fence("lessons from other tasks", f.b.String(), MaxFactsBytes)
}
