package forge

import (
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
)

// What a run ended with is said as its certificate has it.
func TestSummariesOfCertifiedKernels(t *testing.T) {
	for says, s := range map[string]*kernelwright.Speedup{
		"Certified round 1, 1.50x the speed of eager (1.40 to 1.60), after 2 rounds: the rounds were used up.":                                                 {Value: 1.5, Low: 1.4, High: 1.6, Against: "eager"},
		"Certified round 1, 1.02x the speed of eager (0.98 to 1.06), which is no measurable difference, after 2 rounds: ":                                      {Value: 1.02, Low: 0.98, High: 1.06, Against: "eager"},
		"Certified round 1, 1.10x the speed of eager (0.60 to 1.90), which is too wide an interval to tell, after 2 rounds: ":                                  {Value: 1.1, Low: 0.6, High: 1.9, Against: "eager"},
		"Nothing faster was found after 2 rounds: the best certified kernel, of round 1, has 0.90x the speed of eager (0.81 to 0.95): the rounds were used up": {Value: 0.9, Low: 0.81, High: 0.95, Against: "eager"},
		"Certified round 1, of unknown speedup, after 2 rounds: ":                                                                                              nil,
	} {
		best := &kernelwright.Round{Index: 1, Certificate: &kernelwright.Verdict{Status: kernelwright.Certified, Speedup: s}}
		out := Outcome{Status: kernelwright.RunDone, Stop: kernelwright.StopRounds, Best: best}
		if got := summarise(out, make([]kernelwright.Round, 2), Settings{}, "", "round"); !strings.HasPrefix(got, says) {
			t.Errorf("%q, want %q", got, says)
		}
	}
}
