package episodes

import (
	"context"
	"errors"
	"sync"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/llm"
)

// First returns what the policy of an episode is asked first: the messages of Start's
// answer, of a task that was inspected. Of the options Prompts, Skills, Form, Judge and
// Settings count. Nothing is asked, measured or recorded. Errors are *BadError, or the
// context's.
func First(ctx context.Context, o Options, r Request, t kernelwright.Task, d kernelwright.Device) ([]Message, error) {
	if err := r.normalise(); err != nil {
		return nil, err
	}
	settings, err := r.settings(o.Settings)
	if err != nil {
		return nil, err
	}
	if err := runs(d, settings.Language); err != nil {
		return nil, err
	}
	asked := &overheard{Model: r.policy(llm.NewBroker(noExpiry), llm.TrainingProvider+":"+r.Policy)}
	p := o.parts(asked, settings, d)
	p.Recorder = noRounds{}
	strategy, err := forge.New(r.Strategy, p)
	if err != nil {
		return nil, err
	}
	t.Name = r.Name
	_, err = strategy.Run(ctx, kernelwright.Run{TaskName: r.Name, Seed: r.Seed}, t)
	var tooLong *llm.Error
	switch {
	case errors.Is(err, errAsked):
		return messages(asked.talk), nil
	case errors.As(err, &tooLong) && tooLong.Kind == llm.TooLong:
		return nil, bad("give the policy a longer context_length, or a shorter reference", "no prompt fits: %v", err)
	case err == nil:
		err = errors.New("the episode would end before its first call")
	}
	return nil, err
}

// errAsked ends a strategy at its first question.
var errAsked = errors.New("the first question is known")

// overheard is a policy that hears questions, and answers none. It keeps the first: a
// beam asks several at once.
type overheard struct {
	llm.Model
	mu    sync.Mutex
	talk  []llm.Message
	round int
}

// Unwrap has the policy's window found.
func (o *overheard) Unwrap() llm.Model { return o.Model }

// Generate implements llm.Model.
func (o *overheard) Generate(_ context.Context, r llm.Request) (llm.Reply, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.talk == nil || r.Key.Round < o.round {
		o.talk, o.round = r.Messages, r.Key.Round
	}
	return llm.Reply{}, errAsked
}

// noRounds is the record of an episode that has none.
type noRounds struct{ forge.Recorder }

// Rounds implements forge.Recorder.
func (noRounds) Rounds(context.Context, int64) ([]kernelwright.Round, error) { return nil, nil }
