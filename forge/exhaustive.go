package forge

import (
	"context"
	"fmt"

	"github.com/kernelwright/kernelwright"
)

// Enumerator is a Coder that can tell all that it has for a task.
type Enumerator interface {
	Coder
	// Enumerate returns the candidates of at most so many different programs, all there
	// are or those that the seed of the input draws, and how large its schedule space is.
	// The same input gives the same. Errors are Propose's.
	Enumerate(ctx context.Context, in kernelwright.CoderInput, most int) ([]kernelwright.Candidate, kernelwright.Space, error)
}

// SpaceRecorder is a Recorder that keeps how large the schedule space of a run was.
type SpaceRecorder interface {
	SetSpace(ctx context.Context, runID int64, s kernelwright.Space) error
}

// Exhaustive tries all that an Enumerator has for a task, at most as many candidates as
// there are rounds: the ceiling that whoever else writes candidates is held against.
// Nothing else ends it and no Judge is asked. At the end the fastest is certified.
type Exhaustive struct{ Parts }

// exhaustedAtOnce is how many candidates are handed in together: as many as the
// evaluator builds ahead, and one.
const exhaustedAtOnce = 9

// Name returns "exhaustive".
func (*Exhaustive) Name() string { return ExhaustiveStrategy }

// Run is Strategy's.
func (x *Exhaustive) Run(ctx context.Context, run kernelwright.Run, task kernelwright.Task) (Outcome, error) {
	return x.bring(ctx, run, task, "round", func(ctx context.Context, l *loop) error {
		coder, ok := l.Coder.(Enumerator)
		if l.Coder == nil {
			return errNoCoder
		}
		if !ok {
			return fmt.Errorf("there is no schedule space: the Coder %s has none", l.Coder.Name())
		}
		l.stops = func([]kernelwright.Round) (kernelwright.StopReason, string) { return "", "" }
		all, space, err := coder.Enumerate(ctx, l.coderInput(0, noParent, 0), l.settings.Rounds)
		if err != nil {
			return fmt.Errorf("coder: %w", err)
		}
		if keeper, ok := l.Recorder.(SpaceRecorder); ok {
			if err := keeper.SetSpace(ctx, run.ID, space); err != nil {
				return err
			}
		}
		if len(l.rounds) > len(all) {
			return fmt.Errorf("the record has %d rounds, and the Coder has %d programs", len(l.rounds), len(all))
		}
		for len(l.rounds) < len(all) {
			rest := all[len(l.rounds):]
			if err := l.tryAll(ctx, rest[:min(len(rest), exhaustedAtOnce)]); err != nil {
				return fmt.Errorf("round %d: %w", len(l.rounds), err)
			}
		}
		if space.Sampled {
			return &ended{stop: kernelwright.StopRounds}
		}
		return &ended{stop: kernelwright.StopDeclined, why: fmt.Sprintf("these are all %d programs of its schedule space, of %d points", space.Programs, space.Points)}
	})
}

// tryAll has candidates evaluated, none of which is in the rounds, and records each.
func (l *loop) tryAll(ctx context.Context, candidates []kernelwright.Candidate) error {
	if err := l.halted(ctx); err != nil {
		return err
	}
	l.observe(Event{Kind: RoundStarted, Index: len(l.rounds)})
	none := func(int) error { return nil }
	return l.evaluateAll(ctx, candidates, none, func(i int, v kernelwright.Verdict) error {
		if i > 0 {
			l.observe(Event{Kind: RoundStarted, Index: len(l.rounds)})
		}
		a := answer{candidate: candidates[i]}
		round := l.open(a, noParent)
		round.Verdict = v
		if err := l.close(ctx, round, a, false); err != nil {
			return err
		}
		return l.halted(ctx)
	})
}
