package forge

import (
	"context"
	"fmt"

	"github.com/kernelwright/kernelwright"
)

// Rounds is CudaForge's loop (arXiv 2511.01884). Round 0 generates; a failed
// candidate gets one correction, a correct one gets one optimisation; the
// Coder sees the task, its last candidate and the feedback, nothing else. At
// the end the fastest correct candidate is certified.
type Rounds struct{ Parts }

// Name returns "rounds".
func (*Rounds) Name() string { return RoundsStrategy }

// Run is Strategy's.
func (r *Rounds) Run(ctx context.Context, run kernelwright.Run, task kernelwright.Task) (Outcome, error) {
	return r.bring(ctx, run, task, "round", func(ctx context.Context, l *loop) error {
		if l.Coder == nil {
			return errNoCoder
		}
		for {
			if err := l.goOn(ctx); err != nil {
				return err
			}
			if err := l.round(ctx); err != nil {
				return fmt.Errorf("round %d: %w", len(l.rounds), err)
			}
		}
	})
}

func (l *loop) round(ctx context.Context) error {
	index := len(l.rounds)
	l.observe(Event{Kind: RoundStarted, Index: index})
	var a answer
	var err error
	in := l.coderInput(index, index-1, 0)
	l.outside(func() { a, err = l.ask(ctx, in) })
	if err != nil {
		return err
	}
	round := l.open(a, index-1)
	if !l.known(round, a) {
		if err := l.evaluate(ctx, round); err != nil {
			return err
		}
	}
	return l.close(ctx, round, a, true)
}
