package llm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/kernelwright/kernelwright"
)

// Allowance is how much may be used. 0 is no limit.
type Allowance struct {
	USD    float64       `toml:"usd" json:"usd"`
	Tokens int64         `toml:"tokens" json:"tokens"`       // in and out
	Calls  int64         `toml:"calls" json:"calls"`         // attempts count
	Wall   time.Duration `toml:"wall_time" json:"wall_time"` // waiting for the model, summed over calls
}

// Allowances is what each run, each day (UTC, all runs together) and each day of
// a model ("provider:model") may use.
type Allowances struct {
	Run    Allowance            `toml:"run" json:"run"`
	Day    Allowance            `toml:"day" json:"day"`
	Models map[string]Allowance `toml:"models" json:"models"`
}

// Validate reports the first value that is no limit. Its text begins with the
// key.
func (a Allowances) Validate() error {
	check := func(key string, a Allowance) error {
		if a.USD < 0 || math.IsNaN(a.USD) || math.IsInf(a.USD, 0) || a.Tokens < 0 || a.Calls < 0 || a.Wall < 0 {
			return fmt.Errorf("%s: a limit is above 0, and 0 is none", key)
		}
		return nil
	}
	if err := check("run", a.Run); err != nil {
		return err
	}
	if err := check("day", a.Day); err != nil {
		return err
	}
	for name, m := range a.Models {
		if err := check(fmt.Sprintf("models.%q", name), m); err != nil {
			return err
		}
	}
	return nil
}

// Scope narrows what was spent. A zero field does not.
type Scope struct {
	Run   int64     // calls of this run
	Since time.Time // that ended then or later
	Model string    // of this model: Model.Name()
}

// Spent is what calls have used.
type Spent struct {
	kernelwright.Spend
	Wall time.Duration
}

// Charge is one attempt that has ended, answered or not.
type Charge struct {
	Key   Key
	Model string // Model.Name()
	// Usage is what it consumed. Of an attempt that failed but may have been
	// billed it is the most that it can have been, and Estimated.
	Usage   Usage
	USD     *float64 // nil: the price is not known
	EndedMS int64    // Unix milliseconds
	Took    time.Duration
	Failed  Kind // "": it was answered
}

// Ledger keeps what was spent, over restarts. It is safe for concurrent use.
type Ledger interface {
	// Spent sums the charges within the scope.
	Spent(ctx context.Context, s Scope) (Spent, error)
	// Book adds a charge; what it has acknowledged survives a crash.
	Book(ctx context.Context, c Charge) error
}

// Budget refuses calls that could go beyond what is allowed. One Budget watches
// over all models that share the allowances: it knows what calls in flight may
// still cost. Calls of other processes it knows once they are booked.
type Budget struct {
	allowed Allowances
	prices  Prices
	ledger  Ledger
	now     func() time.Time

	mu       sync.Mutex // held from the look at what was spent to the reservation
	inFlight map[*reservation]struct{}
	settled  chan struct{} // closed when a call ends, and made anew
}

// reservation is what a call in flight may consume at most.
type reservation struct {
	run   int64
	model string
	use
}

// use is an amount of everything that is limited.
type use struct {
	usd    float64
	tokens int64
	calls  int64
	wall   time.Duration
}

func (u *use) add(o use) {
	u.usd += o.usd
	u.tokens += o.tokens
	u.calls += o.calls
	u.wall += o.wall
}

// NewBudget returns a budget over what the ledger knows. now is the wall clock;
// nil takes the machine's.
func NewBudget(a Allowances, p Prices, l Ledger, now func() time.Time) *Budget {
	if now == nil {
		now = time.Now
	}
	return &Budget{allowed: a, prices: p, ledger: l, now: now, inFlight: make(map[*reservation]struct{}), settled: make(chan struct{})}
}

// Watch returns a model that asks m only where the budget has what the call could
// cost at worst: a prompt of PromptBound tokens, a reply of maxTokens (or the
// request's), one call, and timeout, which is the deadline that m has. Otherwise
// it fails with Kind OverBudget. Where only calls in flight stand in the way, it
// waits until they have ended and their true cost is known. Where less time is left than timeout, the call
// is made and ended when that is over.
// Each call is booked with what it consumed; one that failed after it was sent,
// so that it may have been billed, with its worst case.
func (b *Budget) Watch(m Model, maxTokens int, timeout time.Duration) Model {
	return &watched{m, b, maxTokens, timeout}
}

type watched struct {
	Model
	budget    *Budget
	maxTokens int
	timeout   time.Duration
}

// Generate implements Model.
func (m *watched) Generate(ctx context.Context, r Request) (Reply, error) {
	worst := Usage{In: PromptBound(r), Out: int64(m.maxTokens), Estimated: true}
	if r.MaxTokens > 0 {
		worst.Out = int64(r.MaxTokens)
	}
	b := m.budget
	held, err := b.reserve(ctx, m.Name(), r.Key, worst, m.timeout)
	if err != nil {
		return Reply{}, err
	}
	inner, cancel := ctx, func() {}
	if held.wall < m.timeout {
		inner, cancel = context.WithTimeout(ctx, held.wall)
	}
	began := b.now()
	reply, err := m.Model.Generate(inner, r)
	outOfTime := err != nil && inner.Err() != nil && ctx.Err() == nil
	cancel()

	c := Charge{Key: r.Key, Model: m.Name(), Usage: reply.Usage, EndedMS: b.now().UnixMilli(), Took: b.now().Sub(began)}
	var e *Error
	switch {
	case err == nil:
	case errors.As(err, &e):
		c.Failed, c.Usage = e.Kind, Usage{}
		if e.mayBeBilled() {
			c.Usage = worst
		}
	default:
		c.Failed, c.Usage = Late, worst
	}
	c.USD = b.prices.Cost(m.Name(), c.Usage)
	if bookErr := b.settle(ctx, held, c); bookErr != nil {
		return Reply{}, fmt.Errorf("book a call of %s: %w", m.Name(), bookErr)
	}
	if outOfTime {
		return Reply{}, &Error{Kind: OverBudget, Model: m.Name(), Text: fmt.Sprintf("the call was ended after the %v that the budget of time had left", held.wall)}
	}
	return reply, err
}

// mayBeBilled reports whether a call that failed so had reached the model.
func (e *Error) mayBeBilled() bool {
	switch e.Kind {
	case Late, Truncated, Malformed:
		return true
	case Unavailable: // without a status the connection broke on the way
		return e.Status == 0 || e.Status == http.StatusOK
	}
	return false
}

// reserve holds what a call may consume, or refuses it.
func (b *Budget) reserve(ctx context.Context, model string, key Key, worst Usage, timeout time.Duration) (*reservation, error) {
	price, priced := b.prices.Of(model)
	need := use{price.worst(worst.In, worst.Out), worst.In + worst.Out, 1, timeout}
	for {
		held, settled, err := b.tryReserve(ctx, model, key, need, priced)
		if held != nil || err != nil {
			return held, err
		}
		select {
		case <-settled:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// tryReserve returns neither a reservation nor an error where calls in flight
// must end first; settled is closed when one has.
func (b *Budget) tryReserve(ctx context.Context, model string, key Key, need use, priced bool) (*reservation, <-chan struct{}, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	y, mo, d := b.now().UTC().Date()
	day := time.Date(y, mo, d, 0, 0, 0, 0, time.UTC)
	wait := false
	for _, limit := range []struct {
		name    string
		allowed Allowance
		applies bool
		scope   Scope
	}{
		{"of this run", b.allowed.Run, key.Run != 0, Scope{Run: key.Run}},
		{"of today (UTC)", b.allowed.Day, true, Scope{Since: day}},
		{"of this model today (UTC)", b.allowed.Models[model], true, Scope{Since: day, Model: model}},
	} {
		if !limit.applies || limit.allowed == (Allowance{}) {
			continue
		}
		spent, err := b.ledger.Spent(ctx, limit.scope)
		if err != nil {
			return nil, nil, fmt.Errorf("look up what was spent: %w", err)
		}
		used := use{spent.USD, spent.TokensIn + spent.TokensOut, spent.Calls, spent.Wall}
		if why := limit.allowed.refuse(need, used, priced); why != "" {
			return nil, nil, &Error{
				Kind: OverBudget, Model: model, Text: fmt.Sprintf("the budget %s: %s", limit.name, why),
				Hint: "raise it under [budget], or lower max_tokens",
			}
		}
		used.add(b.reserved(limit.scope))
		wait = wait || limit.allowed.refuse(need, used, priced) != ""
		if limit.allowed.Wall > 0 { // a call can be ended
			need.wall = min(need.wall, limit.allowed.Wall-used.wall)
		}
	}
	if wait {
		return nil, b.settled, nil
	}
	held := &reservation{key.Run, model, need}
	b.inFlight[held] = struct{}{}
	return held, nil, nil
}

// reserved is what calls in flight may consume within a scope.
func (b *Budget) reserved(s Scope) (sum use) {
	for held := range b.inFlight {
		if (s.Run == 0 || s.Run == held.run) && (s.Model == "" || s.Model == held.model) {
			sum.add(held.use)
		}
	}
	return sum
}

// refuse says why a call cannot be made, or "".
func (a Allowance) refuse(need, used use, priced bool) string {
	switch {
	case a.USD > 0 && !priced:
		return "it is one of money, and the price of the model is not known; write it under [llm.prices]"
	case a.USD > 0 && used.usd+need.usd > a.USD:
		return fmt.Sprintf("$%.4f of $%.4f are left, and the call could cost $%.4f", max(a.USD-used.usd, 0), a.USD, need.usd)
	case a.Tokens > 0 && used.tokens+need.tokens > a.Tokens:
		return fmt.Sprintf("%d of %d tokens are left, and the call could take %d", max(a.Tokens-used.tokens, 0), a.Tokens, need.tokens)
	case a.Calls > 0 && used.calls+need.calls > a.Calls:
		return fmt.Sprintf("all of %d calls are used", a.Calls)
	case a.Wall > 0 && used.wall >= a.Wall:
		return fmt.Sprintf("nothing of %v of waiting for models is left", a.Wall)
	}
	return ""
}

// settle books a call and lets go of what was held for it. The booking outlives
// the call's context: the money is spent.
func (b *Budget) settle(ctx context.Context, held *reservation, c Charge) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	err := b.ledger.Book(context.WithoutCancel(ctx), c)
	delete(b.inFlight, held)
	close(b.settled)
	b.settled = make(chan struct{})
	return err
}
