// Package forge turns one task into one best kernel: a strategy asks a Coder
// for candidates, an evaluator for verdicts and a Judge for feedback, records
// each round, and has the best candidate certified at the end. It declares
// what it needs of each of them.
package forge

import (
	"context"
	"errors"

	"github.com/kernelwright/kernelwright"
)

// Coder writes candidates. An implementation is safe for concurrent use, keeps
// nothing between calls, and changes nothing in its input.
type Coder interface {
	// Name says who it is in records: "builtin", "provider:model".
	Name() string
	// Propose returns the candidate for the round that the input names. The
	// same input, seed included, gives the same candidate where the
	// implementation is deterministic at all. A *kernelwright.DeclinedError
	// says that it cannot improve this task (or no further); it ends the run
	// and is no failure. A *kernelwright.UnusableError says that its answer
	// holds no candidate; it costs a round. An *llm.Error of Kind OverBudget
	// ends the run. Any other error is infrastructure: the run can be resumed.
	// When ctx is done, Propose returns its error promptly.
	Propose(ctx context.Context, in kernelwright.CoderInput) (kernelwright.Candidate, error)
}

// Judge reads verdicts. An implementation is safe for concurrent use, keeps
// nothing between calls, and changes nothing in its input.
type Judge interface {
	// Name says who it is in records: "rules", "provider:model".
	Name() string
	// Judge returns one valid feedback (Feedback.Validate) of the kind that
	// the input wants, or of kind Stop. An *llm.Error of Kind OverBudget ends
	// the run. Any other error is infrastructure: the run can be resumed. When
	// ctx is done, Judge returns its error promptly.
	Judge(ctx context.Context, in kernelwright.JudgeInput) (kernelwright.Feedback, error)
}

// Evaluator says what the hardware thinks of a candidate. Whatever is wrong
// with the candidate is a verdict; an error is infrastructure, and says
// nothing about the candidate. Asking twice may answer from a cache.
type Evaluator interface {
	Evaluate(ctx context.Context, task kernelwright.Task, candidate kernelwright.Candidate, level kernelwright.Level) (kernelwright.Verdict, error)
}

// Batcher is an Evaluator that evaluates several candidates of a task sooner
// together than one by one. Each gets the verdict that Evaluate gives; yield is
// called with its index, in order, as soon as it is there. It ends at the first
// error, its own or yield's, which it returns or wraps.
type Batcher interface {
	EvaluateBatch(ctx context.Context, task kernelwright.Task, candidates []kernelwright.Candidate, level kernelwright.Level, yield func(int, kernelwright.Verdict) error) error
}

// Builder is an Evaluator that can build a candidate without measuring it.
type Builder interface {
	// BuildOnly returns what the compiler made of a candidate for the device.
	// failure is one sentence on why it was not built, or empty. The error is
	// infrastructure.
	BuildOnly(ctx context.Context, candidate kernelwright.Candidate) (report kernelwright.BuildReport, failure string, err error)
}

// Recorder remembers rounds. What it has acknowledged survives a crash.
type Recorder interface {
	// Rounds returns a run's rounds in order, certificates included.
	Rounds(ctx context.Context, runID int64) ([]kernelwright.Round, error)
	// AppendRound records the round, whole or not at all. The same round
	// again is fine; another one under the same index is an error.
	AppendRound(ctx context.Context, r kernelwright.Round) error
	// SetCertificate records the verdict at level certify on a round's
	// candidate, whether or not it certifies it.
	SetCertificate(ctx context.Context, runID int64, index int, v kernelwright.Verdict) error
}

// EventKind says what just happened in a run.
type EventKind string

// The events, in the order in which a round has them. Proposed and Feedback
// may be missing.
const (
	RoundStarted EventKind = "round_started"
	Proposed     EventKind = "proposed"
	Verdict      EventKind = "verdict"
	Feedback     EventKind = "feedback"
	RoundDone    EventKind = "round_done" // recorded
	Certifying   EventKind = "certifying"
	Certified    EventKind = "certified" // or not: its verdict says
	Finished     EventKind = "finished"
	// Idle: the model's answer called no tool that can be read, and it was told so. Of
	// react, between the events of rounds.
	Idle EventKind = "idle"
)

// Event is for live progress. What it points to must not be changed.
type Event struct {
	Kind      EventKind
	Run       kernelwright.Run
	Index     int // of the round
	Rounds    int // at most
	Candidate *kernelwright.Candidate
	Verdict   *kernelwright.Verdict
	Feedback  *kernelwright.Feedback
	Best      *kernelwright.Round // the fastest correct one so far
	Duplicate bool                // Verdict, RoundDone: it is an earlier round's, for the same source
	Outcome   *Outcome            // Finished
}

// Outcome is how a run ended.
type Outcome struct {
	Status kernelwright.RunStatus // done or declined
	Stop   kernelwright.StopReason
	Best   *kernelwright.Round // certified; nil where nothing was
	// Left is what the Coder left: the last round, and of react the verdict on its
	// folder. nil: no candidate. Of Settings.Uncertified alone.
	Left    *kernelwright.Round
	Rounds  int
	Summary string // one sentence
}

// ErrHalted is what a run returns that was asked to stop after the round in
// progress. It goes on from there when it is run again.
var ErrHalted = errors.New("halted after the round in progress")
