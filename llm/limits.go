package llm

import (
	"context"
	"time"

	"golang.org/x/time/rate"
)

// Limits is what an account allows. Models that share an account share one.
type Limits struct {
	slots            chan struct{}
	requests, tokens *rate.Limiter
}

// NewLimits returns limits of calls in flight, of requests and of tokens by the
// minute; 0 is no limit.
func NewLimits(concurrency, requestsPerMinute, tokensPerMinute int) *Limits {
	l := &Limits{}
	if concurrency > 0 {
		l.slots = make(chan struct{}, concurrency)
	}
	if requestsPerMinute > 0 {
		// A tenth of a minute's at once: bursts are what servers refuse.
		l.requests = rate.NewLimiter(rate.Limit(float64(requestsPerMinute)/60), max(requestsPerMinute/10, 1))
	}
	if tokensPerMinute > 0 {
		l.tokens = rate.NewLimiter(rate.Limit(float64(tokensPerMinute)/60), tokensPerMinute)
	}
	return l
}

// Watch returns a model that keeps to the limits, together with all others that
// they watch: calls wait for their turn.
func (l *Limits) Watch(m Model) Model { return &limited{m, l} }

type limited struct {
	Model
	*Limits
}

// Unwrap returns the model that waits for its turn.
func (m *limited) Unwrap() Model { return m.Model }

// Generate implements Model. The prompt's tokens are waited for as they are
// estimated; what a call took beyond them the next ones wait for.
func (m *limited) Generate(ctx context.Context, r Request) (Reply, error) {
	if m.slots != nil {
		select {
		case m.slots <- struct{}{}:
			defer func() { <-m.slots }()
		case <-ctx.Done():
			return Reply{}, ctx.Err()
		}
	}
	paid := 0
	if m.tokens != nil {
		// A prompt of more than a minute's tokens waits for a whole minute's.
		paid = int(min(promptEstimate(r), int64(m.tokens.Burst())))
		if err := wait(ctx, m.tokens, paid); err != nil {
			return Reply{}, err
		}
	}
	if m.requests != nil {
		if err := wait(ctx, m.requests, 1); err != nil {
			return Reply{}, err
		}
	}
	reply, err := m.Model.Generate(ctx, r)
	if m.tokens != nil {
		for owed := int(reply.Usage.In+reply.Usage.Out) - paid; owed > 0; owed -= m.tokens.Burst() {
			m.tokens.ReserveN(time.Now(), min(owed, m.tokens.Burst()))
		}
	}
	return reply, err
}

// wait waits for n of the limiter's. Its own Wait would give up before the
// context does, where it sees that the deadline will pass.
func wait(ctx context.Context, l *rate.Limiter, n int) error {
	r := l.ReserveN(time.Now(), n)
	timer := time.NewTimer(r.Delay())
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		r.Cancel()
		return ctx.Err()
	}
}
