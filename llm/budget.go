package llm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Budget refuses calls that could go beyond what is allowed. One Budget watches
// over all models that share the allowances: it knows what calls in flight may
// still cost, and waits for them where only they stand in the way. Calls of other
// processes count as they are booked: with their worst case until they have ended.
type Budget struct {
	allowed Allowances
	ledger  Ledger
	now     func() time.Time

	mu       sync.Mutex            // held from the look at what was spent to the reservation
	prices   Prices                // replaced, never changed
	inFlight map[int64]reservation // by the id of its charge
	settled  chan struct{}         // closed when a call ends, and made anew
}

// reservation is what a call in flight may consume at most.
type reservation struct {
	id int64
	use
	charge Charge // as it was booked
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
	return &Budget{allowed: a, prices: p, ledger: l, now: now, inFlight: make(map[int64]reservation), settled: make(chan struct{})}
}

// with has the budget know a model's price, where it knows none.
func (b *Budget) with(model string, p Prices) {
	price, known := p.Of(model)
	if !known {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known = b.prices.Of(model); !known {
		b.prices = b.prices.and(model, price)
	}
}

func (b *Budget) priceList() Prices {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.prices
}

// Watch returns a model that asks m only where the budget has what the call could
// cost at worst: a prompt of PromptBound tokens, a reply of maxTokens (or the
// request's), one call, and timeout, which is the deadline that m has. Otherwise
// it fails with Kind OverBudget. Where only calls in flight stand in the way, it
// waits until they have ended and their true cost is known. Where less time is
// left than timeout, the call is made, and ended when that is over. Each call is
// booked before it is made, with its worst case, and afterwards with what it
// consumed; one that failed after it was sent, so that it may have been billed,
// keeps its worst case.
func (b *Budget) Watch(m Model, maxTokens int, timeout time.Duration) Model {
	return &watched{m, b, maxTokens, timeout}
}

type watched struct {
	Model
	budget    *Budget
	maxTokens int
	timeout   time.Duration
}

// Unwrap returns the model that is watched.
func (m *watched) Unwrap() Model { return m.Model }

// Generate implements Model.
func (m *watched) Generate(ctx context.Context, r Request) (Reply, error) {
	if err := ctx.Err(); err != nil {
		return Reply{}, err
	}
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

	c := held.charge
	c.EndedMS, c.Took = b.now().UnixMilli(), b.now().Sub(began)
	var e *Error
	switch {
	case err == nil:
		c.Failed, c.Usage, c.USD = "", reply.Usage, b.priceList().Cost(m.Name(), reply.Usage)
	case errors.As(err, &e):
		c.Failed = e.Kind
		if !e.mayBeBilled() {
			c.Usage, c.USD = Usage{}, b.priceList().Cost(m.Name(), Usage{})
		}
	case ctx.Err() != nil: // whoever asked has left
		c.Failed = Interrupted
	default:
		c.Failed = Late
	}
	if bookErr := b.settle(ctx, held, c); bookErr != nil {
		return Reply{}, fmt.Errorf("book a call of %s: %w", m.Name(), bookErr)
	}
	if outOfTime {
		return Reply{}, &Error{Kind: OverBudget, Model: m.Name(), Text: fmt.Sprintf("the call was ended after the %v that the budget of time had left", held.wall)}
	}
	return reply, err
}

// Allows reports, as an *Error, that no call of a model will ever be made: something
// that holds for it is limited in USD, and its price is not known.
func (b *Budget) Allows(model string) error {
	if _, priced := b.priceList().Of(model); priced {
		return nil
	}
	for _, limit := range []struct {
		key string
		usd float64
	}{
		{"budget.run", b.allowed.Run.USD}, {"budget.day", b.allowed.Day.USD}, {fmt.Sprintf("budget.models.%q", model), b.allowed.Models[model].USD},
	} {
		if limit.usd > 0 {
			return &Error{Kind: BadRequest, Model: model, Text: fmt.Sprintf("%s.usd limits what it may cost, and its price is not known", limit.key), Hint: priceHint(model)}
		}
	}
	return nil
}

func priceHint(model string) string {
	return fmt.Sprintf(`write its price under [llm.prices.%q]: in, out (USD for a million tokens) and as_of (the day that you looked); 0 where it costs nothing`, model)
}

// mayBeBilled reports whether a call that failed so had reached the model.
func (e *Error) mayBeBilled() bool {
	if e.begun {
		return true
	}
	switch e.Kind {
	case Late, Truncated, Malformed:
		return true
	case Unavailable: // without a status the connection broke on the way
		return e.Status == 0 || e.Status == http.StatusOK
	}
	return false
}

// reserve holds what a call may consume, or refuses it.
func (b *Budget) reserve(ctx context.Context, model string, key Key, worst Usage, timeout time.Duration) (reservation, error) {
	price, priced := b.priceList().Of(model)
	need := use{price.worst(worst.In, worst.Out), worst.In + worst.Out, 1, timeout}
	for {
		held, wait, err := b.tryReserve(ctx, model, key, worst, need, priced)
		if wait == nil || err != nil {
			return held, err
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return reservation{}, ctx.Err()
		}
	}
}

// tryReserve returns a reservation, which is booked, or an error; or, where calls
// in flight must end first, what is closed when one has.
func (b *Budget) tryReserve(ctx context.Context, model string, key Key, worst Usage, need use, priced bool) (reservation, <-chan struct{}, error) {
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
		{"of this run ([budget.run])", b.allowed.Run, key.Run != 0, Scope{Run: key.Run}},
		{"of today, UTC ([budget.day])", b.allowed.Day, true, Scope{Since: day}},
		{fmt.Sprintf("of this model today, UTC ([budget.models.%q])", model), b.allowed.Models[model], true, Scope{Since: day, Model: model}},
	} {
		if !limit.applies || limit.allowed == (Allowance{}) {
			continue
		}
		limit.scope.Except = slices.Collect(maps.Keys(b.inFlight))
		spent, err := b.ledger.Spent(ctx, limit.scope)
		if err != nil {
			return reservation{}, nil, fmt.Errorf("look up what was spent: %w", err)
		}
		used := use{spent.USD, spent.TokensIn + spent.TokensOut, spent.Calls, spent.Wall}
		if why := limit.allowed.refuse(need, used, priced); why != "" {
			hint := "raise it, or lower max_tokens"
			if limit.allowed.USD > 0 && !priced {
				hint = priceHint(model)
			}
			return reservation{}, nil, &Error{Kind: OverBudget, Model: model, Text: fmt.Sprintf("the budget %s: %s", limit.name, why), Hint: hint}
		}
		used.add(b.reserved(limit.scope))
		wait = wait || limit.allowed.refuse(need, used, priced) != ""
		if limit.allowed.Wall > 0 { // a call can be ended
			need.wall = min(need.wall, limit.allowed.Wall-used.wall)
		}
	}
	if wait {
		return reservation{}, b.settled, nil
	}
	c := Charge{Key: key, Model: model, Usage: worst, EndedMS: b.now().UnixMilli(), Took: need.wall, Failed: Unfinished}
	if priced {
		c.USD = &need.usd
	}
	// Not cut off in the middle: it would stay, and nothing be asked.
	id, err := b.ledger.Book(context.WithoutCancel(ctx), c)
	if err != nil {
		return reservation{}, nil, fmt.Errorf("book a call of %s: %w", model, err)
	}
	b.inFlight[id] = reservation{id, need, c}
	return b.inFlight[id], nil, nil
}

// reserved is what calls in flight may consume within a scope.
func (b *Budget) reserved(s Scope) (sum use) {
	for _, held := range b.inFlight {
		if (s.Run == 0 || s.Run == held.charge.Key.Run) && (s.Model == "" || s.Model == held.charge.Model) {
			sum.add(held.use)
		}
	}
	return sum
}

// settle books how a call ended and lets go of what was held for it. The booking
// outlives the call's context: the money is spent.
func (b *Budget) settle(ctx context.Context, held reservation, c Charge) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	err := b.ledger.Rebook(context.WithoutCancel(ctx), held.id, c)
	delete(b.inFlight, held.id)
	close(b.settled)
	b.settled = make(chan struct{})
	return err
}
