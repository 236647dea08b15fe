package llm

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// notShown is what a model that is not shown its tools is said to be.
const notShown = "the model is not shown its tools"

// WithJournal returns a model that answers from the journal what it has answered
// before: the same call of a run (Request.Key) with the same request. Every other
// reply is journaled before it is returned, and so is that a request was too long;
// such a one is asked again, because that costs nothing and the server may have
// changed. That the model was not shown its tools is journaled as well, and not asked
// again: whoever asked went on without them. now is the wall clock; nil takes the machine's.
func WithJournal(m Model, j Journal, p Prices, now func() time.Time) Model {
	if now == nil {
		now = time.Now
	}
	return &recorded{name: m.Name(), model: m, journal: j, prices: p, now: now}
}

// Replay returns a model of that name that answers from the journal alone. What
// is not there fails with Kind NotRecorded.
func Replay(name string, j Journal) Model { return &recorded{name: name, journal: j} }

type recorded struct {
	name    string
	model   Model // nil: replay
	journal Journal
	prices  Prices
	now     func() time.Time
}

// Name implements Model.
func (m *recorded) Name() string { return m.name }

// Window implements windowed: a call that was answered is made as it was, so that its
// answer is found. One that was refused as too long is asked again in another way,
// where it can be asked.
func (m *recorded) Window(ctx context.Context, key Key) (Window, bool, error) {
	if key.Run != 0 {
		fit, stop, err := m.journal.LastFit(ctx, key, m.name)
		if err != nil {
			return Window{}, false, fmt.Errorf("recall a call of %s: %w", m.name, err)
		}
		if stop != "" && (stop != StopTooLong || m.model == nil) {
			if fit == nil {
				fit = &Fit{}
			}
			return fit.Window, true, ctx.Err()
		}
	}
	if m.model == nil {
		return Window{}, false, ctx.Err()
	}
	return WindowOf(ctx, m.model, key)
}

// Generate implements Model.
func (m *recorded) Generate(ctx context.Context, r Request) (Reply, error) {
	if err := ctx.Err(); err != nil {
		return Reply{}, err
	}
	tooLong := false // as recorded
	if r.Key.Run != 0 {
		known, ok, err := m.journal.Recall(ctx, r.Key, r.Digest(m.name))
		if err != nil {
			return Reply{}, fmt.Errorf("recall a call of %s: %w", m.name, err)
		}
		tooLong = ok && known.Reply.Stop == StopTooLong
		if ok && known.Reply.Stop == StopNoTools { // what was asked in its place is recorded too
			return Reply{}, &Error{Kind: NoTools, Model: m.name, Text: notShown, Hint: noToolsHint}
		}
		if ok && !tooLong {
			return known.Reply, nil
		}
	}
	if m.model == nil && tooLong {
		return Reply{}, &Error{Kind: TooLong, Model: m.name, Text: "the request does not fit the model's context"}
	}
	if m.model == nil {
		return Reply{}, m.notRecorded(ctx, r.Key)
	}
	began := m.now()
	reply, err := m.model.Generate(ctx, r)
	cost := m.prices.Cost(m.name, reply.Usage)
	var failed *Error
	switch {
	case err == nil:
	case errors.As(err, &failed) && failed.Kind == TooLong && r.Key.Run != 0 && !tooLong:
		reply, cost = Reply{Stop: StopTooLong}, new(float64)
	case failed != nil && failed.Kind == NoTools && r.Key.Run != 0:
		cost = new(float64)
		if failed.reply != nil {
			reply = *failed.reply
			cost = m.prices.Cost(m.name, reply.Usage)
		}
		reply.Stop = StopNoTools
	default:
		return Reply{}, err
	}
	record := Record{
		Key: r.Key, Model: m.name, Request: r, Reply: reply, CostUSD: cost,
		BeganMS: began.UnixMilli(), TookMS: m.now().Sub(began).Milliseconds(),
	}
	// The reply is paid for: it is kept even where nobody waits for it any more.
	if lost := m.journal.Append(context.WithoutCancel(ctx), record); lost != nil {
		return Reply{}, fmt.Errorf("record a call of %s: %w", m.name, lost)
	}
	if failed != nil {
		return Reply{}, err
	}
	return reply, nil
}

func (m *recorded) notRecorded(ctx context.Context, k Key) error {
	e := &Error{Kind: NotRecorded, Model: m.name, Hint: "replay needs the version and the settings of the recorded run"}
	if k.Run == 0 {
		e.Text = "a call of no run is not recorded"
		return e
	}
	known, err := m.journal.Known(ctx, k)
	if err != nil {
		return fmt.Errorf("recall a call of %s: %w", m.name, err)
	}
	call := fmt.Sprintf("call %d of the %s in round %d of run %d", k.Seq, k.Agent, k.Round, k.Run)
	if known {
		e.Text = call + " was recorded with another request, or another model"
	} else {
		e.Text = call + " was never recorded"
	}
	return e
}
