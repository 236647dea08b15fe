package kernelwright

// CoderInput is all a Coder sees: the task, the device, its last candidate
// with the verdict on it, and the feedback. Not the whole talk.
type CoderInput struct {
	Task     Task
	Device   Device
	Language Language
	Round    int   // the round that the answer is for, from 0
	Seed     int64 // same seed, same input: same candidate
	Last     *Attempt
	Feedback *Feedback // nil at round 0, or with the Judge switched off
}

// Attempt is a candidate with the verdict on it.
type Attempt struct {
	Candidate Candidate
	Verdict   Verdict
}

// JudgeInput is all a Judge sees.
type JudgeInput struct {
	Task    Task
	Device  Device
	Want    FeedbackKind // Correction after a failed verdict, else Optimisation
	Current Attempt
	// History is the earlier rounds of this run, oldest first, without
	// Current. The rules read it so as not to advise the same thing twice.
	History []Round
	Seed    int64
}

// DeclinedError is a Coder's answer to a task that it cannot improve. Reason
// is one sentence.
type DeclinedError struct{ Reason string }

func (e *DeclinedError) Error() string { return e.Reason }
