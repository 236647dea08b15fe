package kernelwright

// CoderInput is all a Coder sees: the task, the device, its last candidate
// with the verdict on it, and the feedback. Not the whole talk.
type CoderInput struct {
	Run      int64 // whose round it is; 0 for none
	Task     Task
	Device   Device
	Language Language
	Round    int       // the round that the answer is for, from 0
	Seed     int64     // same seed, same input: same candidate
	Last     *Attempt  // the last candidate; nil where there is none yet, and where a strategy starts anew
	Feedback *Feedback // nil at round 0, or with the Judge switched off
	Lessons  []Lesson  // as in JudgeInput

	View View // what there is to show of Last's verdict
	// FullMetrics: with ViewMetrics every metric is to be shown, not a selection.
	FullMetrics bool
	// Sample tells answers to one and the same input apart, from 0: a strategy
	// that asks several times wants several.
	Sample int
	// Unusable is what is wrong with the answer that came after Last, in the round
	// before this one: it held no candidate. nil where there was none.
	Unusable *UnusableError
	// SameAs is the earlier round of which Last's candidate is a repetition, so
	// that the Coder can be told; nil where it is none.
	SameAs *int
}

// View is how much of the verdict on its last candidate a Coder is to show to a
// model.
type View string

// The views. With ViewScore the verdict in the input holds no more than its name
// says: a status, a speedup, and for a rejected answer what was wrong with it.
const (
	ViewFeedback View = ""        // how far it came; what follows from it is in the feedback
	ViewMetrics  View = "metrics" // all of it, with its metrics: the Coder is its own Judge
	ViewScore    View = "score"
)

// Attempt is a candidate with the verdict on it.
type Attempt struct {
	Candidate Candidate
	Verdict   Verdict
}

// JudgeInput is all a Judge sees.
type JudgeInput struct {
	Run     int64 // whose round it is; 0 for none
	Task    Task
	Device  Device
	Want    FeedbackKind // Correction after a failed verdict, else Optimisation
	Current Attempt
	// History is the earlier rounds of this run, oldest first, without
	// Current. The rules read it so as not to advise the same thing twice.
	History []Round
	// Parent is the index of the round that Current goes on from, as a Round has it.
	Parent *int
	// Lessons is what earlier runs learned on this device, of tasks with
	// operators like this one's, the likest first. It is the same for every
	// round of a run, and part of its record.
	Lessons []Lesson
	Seed    int64
	// FullMetrics: a model is to be shown every metric, not a selection.
	FullMetrics bool
}

// DeclinedError is a Coder's answer to a task that it cannot improve. Reason
// is one sentence.
type DeclinedError struct{ Reason string }

func (e *DeclinedError) Error() string { return e.Reason }

// UnusableError is a Coder's answer that holds no candidate: a language model
// sent prose, half a file, or nothing. It costs a round, whose correction is
// Reason and Hint, and is no failure of the run.
type UnusableError struct {
	Answer string // as it came: foreign text
	Reason string // one sentence: what is wrong with it
	Hint   string // one sentence: what to send instead
	Origin string // who sent it
}

func (e *UnusableError) Error() string { return e.Reason }

// Spend is what language models were asked and what it cost.
type Spend struct {
	Calls     int64   `json:"calls"`
	TokensIn  int64   `json:"tokens_in"`
	TokensOut int64   `json:"tokens_out"`
	USD       float64 `json:"usd"`
	// Unpriced is how many of the calls are not in USD, because the price of
	// their model is not known.
	Unpriced int64 `json:"unpriced,omitempty"`
	// CachedIn and CacheWrite are what of TokensIn was read from providers' caches,
	// and written to them.
	CachedIn   int64 `json:"cached_in,omitempty"`
	CacheWrite int64 `json:"cache_write,omitempty"`
	// Unfinished is how many of the calls have not come back: they are still made, or
	// their process died. They count with the most that they can have cost.
	Unfinished int64 `json:"unfinished,omitempty"`
	// AtWorst is how many of the calls count with the most that they can have taken,
	// because nobody knows what they took: those that are unfinished, and those that
	// failed or were interrupted after the model may have begun. USDAtWorst is what of
	// USD they are.
	AtWorst    int64   `json:"at_worst,omitempty"`
	USDAtWorst float64 `json:"usd_at_worst,omitempty"`
}

// Add returns the sum of both.
func (s Spend) Add(o Spend) Spend {
	return Spend{
		s.Calls + o.Calls, s.TokensIn + o.TokensIn, s.TokensOut + o.TokensOut, s.USD + o.USD, s.Unpriced + o.Unpriced,
		s.CachedIn + o.CachedIn, s.CacheWrite + o.CacheWrite, s.Unfinished + o.Unfinished, s.AtWorst + o.AtWorst, s.USDAtWorst + o.USDAtWorst,
	}
}
