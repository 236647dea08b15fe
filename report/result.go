package report

import (
	"fmt"

	"github.com/kernelwright/kernelwright"
)

// What a run that is done came to. Runs that end otherwise have their status.
const (
	Faster        = "faster"         // certified, faster than the fastest baseline by its whole interval
	NoDifference  = "no_difference"  // certified, and the interval holds 1
	Undecided     = "undecided"      // certified, and the interval is too wide to tell
	NotTimed      = "not_timed"      // certified, without a speedup
	NothingFaster = "nothing_faster" // certified, and slower by its whole interval: it is not handed out
	NotCertified  = "not_certified"
)

// Result says what a run came to.
func Result(run kernelwright.RunStatus, rounds []kernelwright.Round) string {
	_, v, ok := Best(rounds)
	switch {
	case run != kernelwright.RunDone:
		return string(run)
	case !ok || v.Status != kernelwright.Certified:
		return NotCertified
	case v.Speedup == nil:
		return NotTimed
	case v.Speedup.Slower():
		return NothingFaster
	case v.Speedup.Wins(0):
		return Faster
	case v.Speedup.Vague():
		return Undecided
	default:
		return NoDifference
	}
}

// HandedOut reports whether a certified kernel becomes NAME.best.py: one that is
// slower than the fastest baseline by its whole interval does not.
func HandedOut(v kernelwright.Verdict) bool {
	return v.Status == kernelwright.Certified && !v.Speedup.Slower()
}

// Export is the command that writes a certified kernel to a file.
func Export(run int64, round int) string {
	return fmt.Sprintf("kernelwright export %d --round %d --out PATH", run, round)
}

// slower says why a certified kernel is not handed out, and how it is had.
func slower(v kernelwright.Verdict, run int64, round int) string {
	return fmt.Sprintf("the kernel is slower than %s by its whole interval, so no file of it was written; `%s` writes it", Against(v.Speedup), Export(run, round))
}
