package pipeline

import (
	"context"
	"errors"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/coder"
	"github.com/kernelwright/kernelwright/trainer/episodes"
	"github.com/kernelwright/kernelwright/trainer/gate"
	"github.com/kernelwright/kernelwright/trainer/tasks"
)

// builtin is the built-in Coder beside a gate: its first candidate, under the conditions
// of the policies' answers.
type builtin struct{ w *work }

// Name implements gate.Player.
func (builtin) Name() string { return coder.Builtin{}.Name() }

// Prepare implements gate.Player: it writes when it is asked.
func (builtin) Prepare(context.Context, []tasks.Task) error { return nil }

// Play implements gate.Player. A task that the Coder declines has no right answer of it.
func (b builtin) Play(ctx context.Context, t tasks.Task, sample int) (gate.Outcome, error) {
	_, h, err := b.w.hardware(ctx)
	if err != nil {
		return gate.Outcome{}, err
	}
	task, err := h.Inspect(ctx, "reference", t.Source)
	if err != nil {
		return gate.Outcome{}, err
	}
	c, err := coder.Builtin{}.Propose(ctx, kernelwright.CoderInput{Task: task, Device: h.Device()})
	if _, declined := errors.AsType[*kernelwright.DeclinedError](err); declined {
		return outcome(t, sample, nil, kernelwright.RewardNotCorrect), nil
	}
	if err != nil {
		return gate.Outcome{}, err
	}
	b.w.asked++
	var out gate.Outcome
	err = h.EvaluateBatch(ctx, task, []kernelwright.Candidate{c}, kernelwright.Quick, func(_ int, v kernelwright.Verdict) error {
		out = outcome(t, sample, &v, episodes.Reward(&v))
		return nil
	})
	return out, err
}
