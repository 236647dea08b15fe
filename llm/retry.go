package llm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// The waits between attempts.
const (
	firstWait = time.Second
	maxWait   = time.Minute
	// A server that wants to be left alone for longer than this is not waited
	// for: whoever runs a daemon is better told.
	maxServerWait = 5 * time.Minute
)

// WithRetry returns a model that asks up to attempts times, where an error may
// pass (Error.Temporary). It waits a second at first and about twice as long each
// time, never less than the server asked for; a fifth of each wait is chance, so
// that many callers do not come back together. random returns numbers in [0, 1);
// nil takes the runtime's. log is told why and how long is waited: a run would
// seem to hang; nil: nobody is.
func WithRetry(m Model, attempts int, random func() float64, log *slog.Logger) Model {
	if random == nil {
		random = rand.Float64
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &retry{m, attempts, random, log}
}

type retry struct {
	Model
	attempts int
	random   func() float64
	log      *slog.Logger
}

// Unwrap returns the model that is asked again.
func (m *retry) Unwrap() Model { return m.Model }

// Generate implements Model.
func (m *retry) Generate(ctx context.Context, r Request) (Reply, error) {
	waits := &waits{random: m.random, growth: backoff.ExponentialBackOff{
		InitialInterval: firstWait, MaxInterval: maxWait, Multiplier: 2,
	}}
	tries := 0
	reply, err := backoff.Retry(ctx, func() (Reply, error) {
		tries++
		reply, err := m.Model.Generate(ctx, r)
		if err == nil {
			return reply, nil
		}
		if !errors.As(err, &waits.last) || !waits.last.Temporary() {
			return Reply{}, backoff.Permanent(err)
		}
		return Reply{}, err
	}, backoff.WithBackOff(waits), backoff.WithMaxTries(uint(max(m.attempts, 1))), backoff.WithMaxElapsedTime(0),
		backoff.WithNotify(func(err error, wait time.Duration) {
			m.log.Info("a model is asked again", "in", wait.Round(time.Second/10), "attempt", fmt.Sprintf("%d of %d", tries+1, m.attempts), "error", err)
		}))
	if err == nil {
		return reply, nil
	}
	if ctx.Err() != nil {
		return Reply{}, ctx.Err()
	}
	var e *Error
	if !errors.As(err, &e) {
		return Reply{}, err
	}
	told := *e
	if e.RetryAfter > maxServerWait {
		told.Hint = fmt.Sprintf("it asks to be left alone for %v: try then", e.RetryAfter.Round(time.Second))
	} else if tries > 1 {
		told.Text += fmt.Sprintf(" (attempt %d of %d)", tries, m.attempts)
	}
	return Reply{}, &told
}

// waits is how long to wait after each failure.
type waits struct {
	growth backoff.ExponentialBackOff
	random func() float64
	last   *Error // the failure that is waited after
}

// Reset implements backoff.BackOff.
func (w *waits) Reset() { w.growth.Reset() }

// NextBackOff implements backoff.BackOff.
func (w *waits) NextBackOff() time.Duration {
	if w.last.RetryAfter > maxServerWait {
		return backoff.Stop
	}
	own := w.growth.NextBackOff()
	wait := max(own, w.last.RetryAfter)
	return wait + time.Duration(w.random()*0.25*float64(own))
}
