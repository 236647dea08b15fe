package llm

import (
	"context"
	"fmt"
	"time"
)

// WithDeadline returns a model each of whose calls may take d.
func WithDeadline(m Model, d time.Duration) Model { return &deadline{m, d} }

type deadline struct {
	Model
	limit time.Duration
}

// Unwrap returns the model that is held to it.
func (m *deadline) Unwrap() Model { return m.Model }

// Generate implements Model.
func (m *deadline) Generate(ctx context.Context, r Request) (Reply, error) {
	inner, cancel := context.WithTimeout(ctx, m.limit)
	defer cancel()
	reply, err := m.Model.Generate(inner, r)
	if err != nil && inner.Err() != nil && ctx.Err() == nil {
		return Reply{}, &Error{
			Kind: Late, Model: m.Name(), Text: fmt.Sprintf("no reply within %v", m.limit), Err: context.DeadlineExceeded,
			Hint: "set timeout for this model, or a smaller max_tokens",
		}
	}
	return reply, err
}
