package forge

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/prompts"
)

// The names of the strategies, as runs record them.
const (
	RoundsStrategy = "rounds"
	BeamStrategy   = "beam"
	ReactStrategy  = "react"
	// RecheckStrategy is that of a run which only asks whether a kernel of another
	// device holds on this one: rounds, with one candidate, which is Given.
	RecheckStrategy = "recheck"
	// ExhaustiveStrategy tries all that the Coder has: of benches.
	ExhaustiveStrategy = "exhaustive"
)

// Strategies are the names of all that look for a kernel.
var Strategies = []string{RoundsStrategy, BeamStrategy, ReactStrategy}

// Strategy takes a run from its task to its best kernel.
//
// Every decision follows from what was recorded, so a run that was interrupted
// anywhere goes on as if it had not been.
type Strategy interface {
	// Name is that of Strategies.
	Name() string
	// Run brings a run to its end: it reads the rounds recorded so far, goes on
	// from there, and certifies the best. The error is a context's, ErrHalted,
	// or infrastructure; after any of them Run can be called again. What was
	// asked of a model meanwhile is recalled, where its calls are recorded.
	Run(ctx context.Context, run kernelwright.Run, task kernelwright.Task) (Outcome, error)
}

// New returns the strategy of that name, made of the parts; an empty name is
// rounds, which every run was once.
func New(name string, p Parts) (Strategy, error) {
	switch name {
	case "", RoundsStrategy, RecheckStrategy:
		return &Rounds{p}, nil
	case BeamStrategy:
		return &Beam{p}, nil
	case ReactStrategy:
		return &React{p}, nil
	case ExhaustiveStrategy:
		return &Exhaustive{p}, nil
	}
	return nil, fmt.Errorf("there is no strategy %q: it must be %s", name, strings.Join(Strategies, ", "))
}

// Parts is what strategies are made of.
type Parts struct {
	Coder     Coder // of rounds and beam
	Judge     Judge // may be nil with a JudgeMode in which none is asked
	Evaluator Evaluator
	Recorder  Recorder
	Device    kernelwright.Device
	Settings  Settings
	// Lessons is what the Coder and the Judge are given of earlier runs.
	Lessons []kernelwright.Lesson

	// Model acts in react. Its calls have to be journaled, else a run that was
	// interrupted is a *DivergedError.
	Model llm.Model
	// Journal keeps what react's compile tool said, as calls of the agent
	// "compile", so that a run goes on and is replayed without building again. It
	// may be nil.
	Journal llm.Journal
	// Skills are what react's model may look up, nil for none, and Prompts what it
	// is told first; nil is the program's own.
	Skills  *prompts.Skills
	Prompts *prompts.Templates

	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Observe is called in the goroutine of Run, in order, and holds the run
	// up while it runs. It may be nil.
	Observe func(Event)
	// Halt, once closed, ends Run with ErrHalted after the round in progress
	// was recorded. Cancelling the context does not wait for the round, which
	// is then lost and done again. It may be nil.
	Halt <-chan struct{}

	// restamp sets a round's times to those of the record. Of Replay alone.
	restamp func(*kernelwright.Round)
}
