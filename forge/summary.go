package forge

import (
	"fmt"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// maxWhyBytes bounds somebody else's sentence within ours.
const maxWhyBytes = 500

// summarise says in one sentence how a run ended.
// unit is what patience counts.
func summarise(out Outcome, rounds []kernelwright.Round, s Settings, why, unit string) string {
	why = oneLine(why, maxWhyBytes)
	ended := map[kernelwright.StopReason]string{
		kernelwright.StopRounds:     "the rounds were used up",
		kernelwright.StopWallTime:   "the time was used up",
		kernelwright.StopHeadroom:   "the kernel is at the roofline",
		kernelwright.StopNoProgress: "none of the last " + plural(s.Patience, unit) + " was faster beyond the noise of measuring",
		kernelwright.StopJudge:      "the Judge saw nothing left to gain",
		kernelwright.StopDeclined:   "the Coder had nothing more to try",
		kernelwright.StopBudget:     "the budget does not allow another call",
		kernelwright.StopTurns:      "the turns were used up",
	}[out.Stop]
	if out.Status == kernelwright.RunDeclined && strings.TrimSpace(why) == "" {
		return "The Coder declined, and gave no reason."
	}
	if out.Status == kernelwright.RunDeclined {
		return "The Coder declined: " + sentence(why)
	}
	if why != "" {
		ended += " (" + strings.TrimSuffix(strings.TrimSpace(why), ".") + ")"
	}
	after := plural(len(rounds), "round")
	if out.Best == nil {
		if b := best(rounds); b != nil && s.Uncertified {
			return fmt.Sprintf("Round %d was the fastest correct one of %s, and nothing was to be certified: %s.", b.Index, after, ended)
		}
		if best(rounds) != nil {
			return fmt.Sprintf("No candidate passed certification after %s: %s.", after, ended)
		}
		if len(rounds) == 0 {
			return fmt.Sprintf("No candidate was tried: %s.", ended)
		}
		last := rounds[len(rounds)-1].Verdict
		return fmt.Sprintf("No candidate was correct after %s, the last one was %s: %s.", after, last.Status, ended)
	}
	v := out.Best.Certificate
	if s := v.Speedup; s.Slower() {
		return fmt.Sprintf("Nothing faster was found after %s: the best certified kernel, of round %d, has %.2fx the speed of %s (%.2f to %.2f): %s.",
			after, out.Best.Index, s.Value, s.Against, s.Low, s.High, ended)
	}
	speed := "of unknown speedup"
	if s := v.Speedup; s != nil {
		speed = fmt.Sprintf("%.2fx the speed of %s (%.2f to %.2f)", s.Value, s.Against, s.Low, s.High)
		if s.Vague() {
			speed += ", which is too wide an interval to tell"
		} else if s.Low <= 1 && s.High >= 1 {
			speed += ", which is no measurable difference"
		}
	}
	return fmt.Sprintf("Certified round %d, %s, after %s: %s.", out.Best.Index, speed, after, ended)
}

func sentence(s string) string {
	s = strings.TrimSpace(s)
	if s == "" || strings.HasSuffix(s, ".") {
		return s
	}
	return s + "."
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}
