package llm

import (
	"context"
	"crypto/rand"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
)

// Broker is where policies in training answer. To those who ask, a policy is a
// Model like any other, whose Generate waits until somebody posts the reply;
// those who sample it list or claim the calls that wait. Safe for concurrent
// use; it has no goroutine of its own.
type Broker struct {
	expiry time.Duration

	mu     sync.Mutex
	calls  []*policyCall // oldest first; those that wait
	more   chan struct{} // closed when a call comes, and made anew
	closed bool
}

type policyCall struct {
	Pending
	answer chan policyAnswer // holds one; sent to by who takes the call off the list
}

type policyAnswer struct {
	reply Reply
	err   *Error
}

// Pending is a call that waits for its reply.
type Pending struct {
	ID      string // of this call alone
	Policy  string // Model.Name(): "training:NAME"
	Key     Key
	Request Request // Append says whether it goes on where the last one ended
	SinceMS int64   // Unix milliseconds
	Claimed bool
}

// DefaultExpiry is how long a call waits for a sampler that may have died.
const DefaultExpiry = 30 * time.Minute

// NewBroker returns a broker whose calls wait for expiry; 0 is DefaultExpiry.
func NewBroker(expiry time.Duration) *Broker {
	if expiry == 0 {
		expiry = DefaultExpiry
	}
	return &Broker{expiry: expiry, more: make(chan struct{})}
}

// TrainingProvider is the provider of policies in training: "training:NAME". It is
// internal: no settings can name it.
const TrainingProvider = "training"

// Model returns the policy of that name, such as "training:NAME".
func (b *Broker) Model(name string) Model { return &policy{name, b} }

// ModelIn is Model for a policy whose window is known.
func (b *Broker) ModelIn(name string, w Window) Model { return fixed{b.Model(name), w} }

type policy struct {
	name   string
	broker *Broker
}

// Name implements Model.
func (p *policy) Name() string { return p.name }

// Generate implements Model.
func (p *policy) Generate(ctx context.Context, r Request) (Reply, error) {
	b := p.broker
	if err := ctx.Err(); err != nil {
		return Reply{}, err
	}
	if len(r.Messages) == 0 {
		return Reply{}, &Error{Kind: BadRequest, Model: p.name, Text: noMessages}
	}
	c := &policyCall{
		Pending: Pending{ID: rand.Text(), Policy: p.name, Key: r.Key, Request: r, SinceMS: time.Now().UnixMilli()},
		answer:  make(chan policyAnswer, 1),
	}
	if !b.add(c) {
		return Reply{}, p.stopped()
	}
	timer := time.NewTimer(b.expiry)
	defer timer.Stop()
	var late error
	select {
	case a := <-c.answer:
		return a.unpack()
	case <-ctx.Done():
		late = ctx.Err()
	case <-timer.C:
		late = &Error{Kind: Late, Model: p.name, Text: fmt.Sprintf("nobody posted a reply in %v", b.expiry), Hint: "see whether the sampler still runs"}
	}
	if b.take(c.ID) == nil { // whoever took it has answered, or is about to
		return (<-c.answer).unpack()
	}
	return Reply{}, late
}

func (p *policy) stopped() *Error {
	return &Error{Kind: Unreachable, Model: p.name, Text: "the training that would answer has ended"}
}

func (a policyAnswer) unpack() (Reply, error) {
	if a.err != nil {
		return Reply{}, a.err
	}
	return a.reply, nil
}

func (b *Broker) add(c *policyCall) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.calls = append(b.calls, c)
	close(b.more)
	b.more = make(chan struct{})
	return true
}

// take takes a call off the list; nil where it is not on it. Who gets it must
// answer it.
func (b *Broker) take(id string) *policyCall {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.IndexFunc(b.calls, func(c *policyCall) bool { return c.ID == id })
	if i < 0 {
		return nil
	}
	c := b.calls[i]
	b.calls = slices.Delete(b.calls, i, i+1)
	return c
}

// Pending returns the calls that wait, oldest first, claimed or not.
func (b *Broker) Pending() []Pending {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]Pending, len(b.calls))
	for i, c := range b.calls {
		out[i] = c.Pending
	}
	return out
}

// Claim waits until a call of the policy waits that nobody has claimed, and
// returns up to n of them, oldest first. It fails once ctx is done, or the broker
// closed.
func (b *Broker) Claim(ctx context.Context, policy string, n int) ([]Pending, error) {
	for {
		out, more, closed := b.claim(policy, n)
		if len(out) > 0 {
			return out, nil
		}
		if closed {
			return nil, fmt.Errorf("claim calls of %s: the broker is closed", policy)
		}
		select {
		case <-more:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (b *Broker) claim(policy string, n int) (out []Pending, more chan struct{}, closed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.calls {
		if len(out) == n {
			break
		}
		if c.Policy == policy && !c.Claimed {
			c.Claimed = true
			out = append(out, c.Pending)
		}
	}
	return out, b.more, b.closed
}

// Post answers a call. The reply may have the ids of the prompt's and of the reply's
// tokens, from which Usage is counted (else estimated), and of each of the latter its
// log-probability. Only the first answer to a call is taken. The error is a
// *PostError where the reply cannot be.
func (b *Broker) Post(id string, r Reply) error {
	if err := CheckPosted(r); err != nil {
		return err
	}
	c := b.take(id)
	if c == nil {
		return noCall(id)
	}
	r.Usage = Usage{In: int64(len(r.PromptIDs)), Out: int64(len(r.TokenIDs))}
	if len(r.PromptIDs) == 0 {
		r.Usage.In, r.Usage.Estimated = promptEstimate(c.Request), true
	}
	if len(r.TokenIDs) == 0 {
		r.Usage.Out, r.Usage.Estimated = tokensIn(len(r.Text)), true
	}
	c.answer <- policyAnswer{reply: r}
	return nil
}

func noCall(id string) error {
	return fmt.Errorf("no call %q waits: it was answered, has expired, or never was", id)
}

// Close ends all calls that wait, and every later one. It may be called again.
func (b *Broker) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	b.closed = true
	for _, c := range b.calls {
		c.answer <- policyAnswer{err: (&policy{name: c.Policy}).stopped()}
	}
	b.calls = nil
	close(b.more)
}

// PostError says why a reply cannot be a policy's. Its text begins with the field.
type PostError struct{ Text string }

func (e *PostError) Error() string { return e.Text }

// MaxPostedTokens is how many ids a posted prompt, or reply, may have.
const MaxPostedTokens = 1 << 20

// CheckPosted says why a reply cannot be a policy's, by a *PostError.
func CheckPosted(r Reply) error {
	bad := func(format string, args ...any) error { return &PostError{fmt.Sprintf(format, args...)} }
	switch r.Stop {
	case StopEnd, StopLength, StopContext, StopTools, StopFiltered, StopRefused:
	default:
		return bad("stop is %q: it must be one of %q, %q, %q, %q, %q, %q", r.Stop, StopEnd, StopLength, StopContext, StopTools, StopFiltered, StopRefused)
	}
	for name, ids := range map[string][]int{"prompt_ids": r.PromptIDs, "token_ids": r.TokenIDs} {
		if len(ids) > MaxPostedTokens {
			return bad("%s has %d ids: %d at most", name, len(ids), MaxPostedTokens)
		}
		for i, id := range ids {
			if id < 0 || id > math.MaxInt32 {
				return bad("%s[%d] is %d: an id is from 0 to %d", name, i, id, math.MaxInt32)
			}
		}
	}
	if n := len(r.LogProbs); n > 0 && n != len(r.TokenIDs) {
		return bad("%d log_probs for %d token_ids", n, len(r.TokenIDs))
	}
	for i, c := range r.ToolCalls {
		if c.ID == "" || c.Name == "" {
			return bad("tool_calls[%d] has no id or no name", i)
		}
	}
	for i, p := range r.LogProbs {
		if math.IsNaN(p) || math.IsInf(p, 0) || p > 1e-3 { // sampled in low precision it may be a little above 0
			return bad("log_probs[%d] is %v: no logarithm of a probability", i, p)
		}
	}
	return nil
}
