package episodes

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/store"
)

// Why an episode is ended from outside: the cause of its context.
var (
	errExpired = errors.New("nobody continued it")
	errGivenUp = errors.New("its trainer gave it up")
	errClosing = errors.New("the server was stopped")
)

// ConflictError is a turn that does not fit where its episode stands.
type ConflictError struct{ Text, Hint string }

func (e *ConflictError) Error() string { return e.Text }

// episode is one that is open, or ended a moment ago.
type episode struct {
	id      int64
	version string // of its policy
	rule    string // of its reward
	model   string // the policy's name
	session string // what its trainer calls those that it gives up together
	expiry  time.Duration
	broker  *llm.Broker
	ctx     context.Context
	cancel  context.CancelCauseFunc
	taken   chan struct{} // holds one: the call that waited was answered
	over    chan struct{} // closed when it has ended

	mu      sync.Mutex
	pending *llm.Pending  // the call that waits
	before  []llm.Message // what the last one was asked
	reply   llm.Message   // and what it replied
	calls   int           // answered
	samples []store.Sample
	posted  [sha256.Size]byte // the last turn
	answer  *Answer           // to that; nil while it is worked on
	ready   chan struct{}     // closed when the answer is there
	touched time.Time         // when it last began to wait for its trainer

	invalid  bool // the last turn held nothing
	tooLong  bool // it ended because a prompt does not fit the policy's context
	rounds   int
	unusable int64
	best     *kernelwright.Verdict // of the highest reward
	most     int                   // that one of its verdicts may have reached
}

// tooNoisy is why an episode has no reward whose timing tells none, measured twice.
const tooNoisy = "the machine is too noisy to tell"

// feed asks the trainer for one call of the policy after the other.
func (ep *episode) feed(maxTokens int, now func() time.Time) {
	for {
		calls, err := ep.broker.Claim(ep.ctx, ep.model, 1)
		if err != nil { // it has ended
			return
		}
		ep.ask(calls[0], maxTokens, now())
		select {
		case <-ep.taken:
		case <-ep.ctx.Done():
			return
		}
	}
}

func (ep *episode) ask(p llm.Pending, maxTokens int, now time.Time) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if ep.answer != nil { // it has ended since the call was claimed
		return
	}
	context := contextReplace
	talk, more := goesOn(p.Request, ep.before, ep.reply)
	if more {
		context = contextAppend
	}
	if p.Request.MaxTokens > 0 {
		maxTokens = p.Request.MaxTokens
	}
	ep.pending, ep.before = &p, p.Request.Messages
	ep.say(&Answer{ID: ep.id, Status: store.EpisodeOpen, Call: ep.calls, Context: context, Messages: messages(talk), Tools: tools(p.Request.Tools), MaxTokens: maxTokens, Invalid: ep.invalid}, now)
}

// say is called with mu held.
func (ep *episode) say(a *Answer, now time.Time) {
	ep.answer, ep.touched = a, now
	close(ep.ready)
}

// post takes a turn, and returns what is closed when its answer is there. The same
// turn again does nothing, and is not fresh.
func (ep *episode) post(t Turn, now time.Time) (ready <-chan struct{}, fresh bool, err error) {
	reply, err := t.reply()
	if err != nil {
		return nil, false, err
	}
	digest := t.digest()
	ep.mu.Lock()
	defer ep.mu.Unlock()
	waits := ep.answer != nil && !ep.answer.Done
	n := ep.calls
	if !waits {
		n--
	}
	if t.Call != nil {
		n = *t.Call
	}
	switch {
	case n == ep.calls-1 && digest == ep.posted:
		ep.touched = now
		return ep.ready, false, nil
	case n == ep.calls && waits:
	case ep.answer != nil && ep.answer.Done:
		return nil, false, &ConflictError{fmt.Sprintf("episode %d has ended, %s, after %s", ep.id, ep.answer.Status, plural(ep.calls, "call")), fmt.Sprintf("GET /v1/episodes/%d has its end; begin another one", ep.id)}
	case n >= 0 && n < ep.calls:
		return nil, false, &ConflictError{fmt.Sprintf("call %d was answered, with another completion or some calls ago", n), ep.stand()}
	default:
		return nil, false, &ConflictError{fmt.Sprintf("call %d is not asked", n), ep.stand()}
	}
	if len(reply.ToolCalls) > 0 && len(ep.pending.Request.Tools) == 0 {
		return nil, false, bad("calls in the text are part of text", "tool_calls were posted, and this call offers no tools")
	}
	if err := ep.broker.Post(ep.pending.ID, reply); err != nil {
		return nil, false, &ConflictError{"the call does not wait any more: " + err.Error(), "ask for the episode to see where it stands"}
	}
	version, key := ep.version, ep.pending.Key
	if t.Policy != "" {
		version = t.Policy
	}
	context := ep.answer.Context
	ep.samples = append(ep.samples, store.Sample{Index: ep.calls, Round: key.Round, Seq: key.Seq, Context: context, Finish: t.finish(), Policy: version, Mask: t.Mask})
	ep.calls++
	ep.invalid = false // until the strategy says otherwise
	ep.posted, ep.reply, ep.pending, ep.answer, ep.ready = digest, reply.Message(), nil, nil, make(chan struct{})
	ep.taken <- struct{}{}
	return ep.ready, true, nil
}

// stand says where the episode stands. mu is held.
func (ep *episode) stand() string {
	if ep.answer == nil {
		return fmt.Sprintf("call %d is being evaluated: post it again to wait for its answer", ep.calls-1)
	}
	return fmt.Sprintf("call %d waits", ep.calls)
}

// plural says how many there are of something.
func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// state is where it stands.
func (ep *episode) state() Answer {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if ep.answer == nil {
		return Answer{ID: ep.id, Status: store.EpisodeOpen, Call: ep.calls, Context: contextAppend, Messages: []Message{}, Working: true}
	}
	return *ep.answer
}

// answered is closed when the next answer is there.
func (ep *episode) answered() <-chan struct{} {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	return ep.ready
}

// first is where it stands at its beginning. One that has ended before the policy was
// asked anything is an error: *BadError where no prompt fits the policy's context.
func (ep *episode) first() (Answer, error) {
	a := ep.state()
	ep.mu.Lock()
	defer ep.mu.Unlock()
	switch {
	case !a.Done || a.Call > 0:
		return a, nil
	case a.Status == store.EpisodeLost:
		return a, errClosing
	case a.Status == store.EpisodeGivenUp || a.Status == store.EpisodeExpired:
		return a, &GoneError{store.Episode{Run: ep.id, Status: a.Status, Reason: a.Dropped}}
	case ep.tooLong:
		return a, bad("give the policy a longer context_length, or a shorter reference", "episode %d ended before its first call: %s", ep.id, a.Dropped)
	}
	return a, &kernelwright.InfrastructureError{Op: fmt.Sprintf("begin episode %d", ep.id), Err: errors.New(a.Dropped)}
}

// expired reports whether it has waited too long for its trainer.
func (ep *episode) expired(now time.Time) bool {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	return ep.answer != nil && !ep.answer.Done && now.Sub(ep.touched) >= ep.expiry
}

// said is when its last answer was.
func (ep *episode) said() time.Time {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	return ep.touched
}

// observe follows the rounds, and what the strategy complains of between them.
func (ep *episode) observe(e forge.Event) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if e.Kind == forge.Idle {
		ep.invalid = true
	}
	if e.Kind != forge.RoundDone {
		return
	}
	ep.rounds++
	if e.Verdict.Build.Form == kernelwright.FormAnswer {
		ep.unusable++
		ep.invalid = true
	}
	if ep.best == nil || Reward(e.Verdict) > Reward(ep.best) {
		v := *e.Verdict
		ep.best = &v
	}
	ep.most = max(ep.most, most(e.Verdict))
}

// outcome is what became of an episode: its record, with its samples, and the last
// answer.
func (ep *episode) outcome(out forge.Outcome, err error) (store.Episode, []store.Sample, Answer) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	e := store.Episode{Run: ep.id, Policy: ep.version, Rule: ep.rule, Status: store.EpisodeDone}
	a := Answer{ID: ep.id, Call: ep.calls, Context: contextAppend, Messages: []Message{}, Done: true, Invalid: ep.invalid, Rounds: ep.rounds, Stop: string(out.Stop)}
	cause := context.Cause(ep.ctx)
	switch {
	case err == nil && out.Stop == kernelwright.StopBudget:
		e.Status, e.Reason = store.EpisodeDropped, out.Summary
	case err == nil:
		v, known := ep.counts(out)
		if !known {
			e.Status, e.Reason = store.EpisodeDropped, tooNoisy
			break
		}
		reward := Reward(v)
		e.Reward, a.Verdict, a.Missing = &reward, v, missing(v)
	case errors.Is(cause, errExpired):
		e.Status, e.Reason = store.EpisodeExpired, cause.Error()
	case errors.Is(cause, errGivenUp):
		e.Status, e.Reason = store.EpisodeGivenUp, cause.Error()
	case errors.Is(cause, errClosing):
		e.Status, e.Reason = store.EpisodeLost, cause.Error()
	default:
		e.Status, e.Reason = store.EpisodeDropped, err.Error()
		var model *llm.Error
		ep.tooLong = errors.As(err, &model) && model.Kind == llm.TooLong
	}
	a.Status, a.Reward, a.Dropped = e.Status, e.Reward, e.Reason
	return e, ep.samples, a
}

// counts is the verdict that the reward is of, nil for none, and whether it is known
// that no other reward was reached. mu is held.
func (ep *episode) counts(out forge.Outcome) (v *kernelwright.Verdict, known bool) {
	if ep.rule == RewardBest {
		return ep.best, ep.most <= Reward(ep.best)
	}
	if out.Left != nil {
		v = &out.Left.Verdict
	}
	return v, told(v)
}

// end says the last answer.
func (ep *episode) end(a Answer, now time.Time) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if ep.answer != nil { // a call waited
		ep.ready = make(chan struct{})
	}
	ep.pending, ep.before, ep.samples, ep.reply, ep.best = nil, nil, nil, llm.Message{}, nil
	ep.say(&a, now)
	close(ep.over)
}
