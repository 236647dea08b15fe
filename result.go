package kernelwright

// Result says what a run that is done came to.
type Result string

// The results. They stand in the record: one that means something else by now needs a
// migration.
const (
	ResultFaster        Result = "faster"         // certified, faster than the fastest baseline by its whole interval
	ResultNoDifference  Result = "no_difference"  // certified, and the interval holds 1
	ResultUndecided     Result = "undecided"      // certified, and the interval is too wide to tell
	ResultNotTimed      Result = "not_timed"      // certified, without a speedup
	ResultNothingFaster Result = "nothing_faster" // certified, and slower by its whole interval
	ResultNotCertified  Result = "not_certified"
)

// ResultOf is what a run came to whose kernel was certified with this speedup.
func ResultOf(s *Speedup) Result {
	switch {
	case s == nil:
		return ResultNotTimed
	case s.Slower():
		return ResultNothingFaster
	case s.Wins(0):
		return ResultFaster
	case s.Vague():
		return ResultUndecided
	}
	return ResultNoDifference
}
