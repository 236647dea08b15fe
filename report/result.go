package report

import (
	"fmt"

	"github.com/kernelwright/kernelwright"
)

// What a run that is done came to, as the record has it. Runs that end otherwise have
// their status.
const (
	Faster        = string(kernelwright.ResultFaster)
	NoDifference  = string(kernelwright.ResultNoDifference)
	Undecided     = string(kernelwright.ResultUndecided)
	NotTimed      = string(kernelwright.ResultNotTimed)
	NothingFaster = string(kernelwright.ResultNothingFaster)
	NotCertified  = string(kernelwright.ResultNotCertified)
)

// Result says what a run came to.
func Result(run kernelwright.RunStatus, rounds []kernelwright.Round) string {
	_, v, ok := Best(rounds)
	switch {
	case run != kernelwright.RunDone:
		return string(run)
	case !ok || v.Status != kernelwright.Certified:
		return NotCertified
	}
	return string(kernelwright.ResultOf(v.Speedup))
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
