package forge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
)

// Difference is where a replay left the record.
type Difference struct {
	Round    int    `json:"round"`
	What     string `json:"what"`                  // "candidate", "parent", "feedback", "verdict", "certificate" or "stop"
	Recorded string `json:"recorded" holds:"json"` // source, JSON, or reason; empty for none
	Replayed string `json:"replayed" holds:"json"`
}

// String says it in one sentence, without the texts.
func (d *Difference) String() string {
	switch {
	case d.Recorded == "":
		return fmt.Sprintf("round %d: the replay gave a %s where the record has none", d.Round, d.What)
	case d.Replayed == "":
		return fmt.Sprintf("round %d: the replay gave no %s where the record has one", d.Round, d.What)
	}
	return fmt.Sprintf("round %d: another %s than in the record", d.Round, d.What)
}

// Error lets a difference end a strategy.
func (d *Difference) Error() string { return d.String() }

// Replay runs the strategy of a recorded run again, with the recorded verdicts
// in place of measuring, and returns the first thing that came out otherwise,
// or nil. Of the parts it takes Coder, Judge, Model, Journal, Skills, Prompts,
// Device and Lessons, those that the run was given:
// agents that can be asked again, or that answer from the record
// (llm.NotRecorded where they have nothing there). It measures, builds and
// records nothing. The error is a context's, or says that an agent failed.
func Replay(ctx context.Context, rounds []kernelwright.Round, task kernelwright.Task, run kernelwright.Run, parts Parts) (*Difference, error) {
	settings, err := ParseSettings(run.Settings)
	if err != nil {
		return nil, err
	}
	done := run.Status == kernelwright.RunDone || run.Status == kernelwright.RunDeclined
	r := &replay{run: run, rounds: rounds, done: done, end: make(chan struct{})}
	if len(rounds) == 0 && !done {
		close(r.end)
	}
	p := Parts{
		Evaluator: r, Recorder: r, Device: parts.Device, Settings: settings, Lessons: parts.Lessons, Journal: parts.Journal, Skills: parts.Skills,
		Prompts: parts.Prompts, Halt: r.end, restamp: r.restamp,
	}
	if parts.Coder != nil {
		p.Coder = replayCoder{parts.Coder, r}
	}
	if parts.Judge != nil {
		p.Judge = replayJudge{parts.Judge, r}
	}
	if parts.Model != nil {
		p.Model = replayModel{parts.Model, r}
	}
	strategy, err := New(run.Strategy, p)
	if err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	out, err := strategy.Run(ctx, run, task)
	var d *Difference
	switch {
	case errors.As(err, &d):
		return d, nil
	case errors.Is(err, ErrHalted):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("replay: %w", err)
	case r.at < len(rounds):
		return &Difference{Round: r.at, What: "stop", Replayed: string(out.Stop)}, nil
	case done && out.Stop != run.Stop:
		return &Difference{Round: len(rounds), What: "stop", Recorded: string(run.Stop), Replayed: string(out.Stop)}, nil
	}
	return nil, nil
}

// replay is the record in the places of evaluator and recorder. What differs
// from it is returned as an error, which ends the strategy.
type replay struct {
	run    kernelwright.Run
	rounds []kernelwright.Round
	done   bool
	at     int           // rounds that came out as recorded
	end    chan struct{} // closed where the record of a run that is not done ends
}

// Rounds returns none: the strategy begins anew.
func (r *replay) Rounds(context.Context, int64) ([]kernelwright.Round, error) { return nil, nil }

// next is the recorded round that the strategy is at.
func (r *replay) next() (kernelwright.Round, error) {
	if r.at >= len(r.rounds) {
		return kernelwright.Round{}, &Difference{Round: r.at, What: "stop", Recorded: string(r.run.Stop)}
	}
	return r.rounds[r.at], nil
}

func (r *replay) Evaluate(_ context.Context, _ kernelwright.Task, c kernelwright.Candidate, level kernelwright.Level) (kernelwright.Verdict, error) {
	if level == kernelwright.Certify {
		return r.certificate(c)
	}
	round, err := r.next()
	if err != nil {
		return kernelwright.Verdict{}, err
	}
	if err := sameCandidate(round, c); err != nil {
		return kernelwright.Verdict{}, err
	}
	return round.Verdict, nil
}

func (r *replay) certificate(c kernelwright.Candidate) (kernelwright.Verdict, error) {
	at := 0
	for i, round := range r.rounds {
		if round.Candidate != c {
			continue
		}
		if at = i; round.Certificate != nil {
			return *round.Certificate, nil
		}
	}
	if !r.done { // it was interrupted before that
		return kernelwright.Verdict{}, ErrHalted
	}
	return kernelwright.Verdict{}, &Difference{Round: at, What: "certificate", Replayed: string(kernelwright.Certify)}
}

func (r *replay) AppendRound(_ context.Context, got kernelwright.Round) error {
	want, err := r.next()
	if err != nil {
		return err
	}
	if err := sameCandidate(want, got.Candidate); err != nil {
		return err
	}
	if a, b := want.After(), got.After(); a != b {
		return &Difference{Round: r.at, What: "parent", Recorded: fmt.Sprint(a), Replayed: fmt.Sprint(b)}
	}
	if err := differ(r.at, "verdict", want.Verdict, got.Verdict); err != nil {
		return err
	}
	if err := differ(r.at, "feedback", want.Feedback, got.Feedback); err != nil {
		return err
	}
	if r.at++; r.at == len(r.rounds) && !r.done {
		close(r.end)
	}
	return nil
}

// SetCertificate keeps nothing: it is the record's own.
func (r *replay) SetCertificate(context.Context, int64, int, kernelwright.Verdict) error { return nil }

// restamp gives a round the times of the record. Before the Judge is asked, the
// time counts that was read then, which the record does not have: where the
// Judge was asked it was not yet over the limit.
func (r *replay) restamp(round *kernelwright.Round) {
	if round.Index >= len(r.rounds) {
		return
	}
	want := r.rounds[round.Index]
	round.StartedMS, round.FinishedMS = want.StartedMS, want.FinishedMS
	if want.Feedback != nil && round.Feedback == nil {
		round.FinishedMS = round.StartedMS
	}
}

// unasked is the error of an agent that the record has no answer of. Where the
// budget ended the run, that is why there is none.
func (r *replay) unasked(err error) error {
	var model *llm.Error
	if errors.As(err, &model) && model.Kind == llm.NotRecorded && r.run.Stop == kernelwright.StopBudget {
		return &llm.Error{Kind: llm.OverBudget, Model: model.Model, Text: model.Text}
	}
	return err
}

type replayCoder struct {
	coder  Coder
	record *replay
}

func (c replayCoder) Name() string { return c.coder.Name() }

func (c replayCoder) Propose(ctx context.Context, in kernelwright.CoderInput) (kernelwright.Candidate, error) {
	got, err := c.coder.Propose(ctx, in)
	return got, c.record.unasked(err)
}

// Enumerate implements Enumerator, of a Coder that does.
func (c replayCoder) Enumerate(ctx context.Context, in kernelwright.CoderInput, most int) ([]kernelwright.Candidate, kernelwright.Space, error) {
	coder, ok := c.coder.(Enumerator)
	if !ok {
		return nil, kernelwright.Space{}, fmt.Errorf("the Coder %s has no schedule space", c.coder.Name())
	}
	return coder.Enumerate(ctx, in, most)
}

type replayJudge struct {
	judge  Judge
	record *replay
}

func (j replayJudge) Name() string { return j.judge.Name() }

func (j replayJudge) Judge(ctx context.Context, in kernelwright.JudgeInput) (kernelwright.Feedback, error) {
	got, err := j.judge.Judge(ctx, in)
	return got, j.record.unasked(err)
}

type replayModel struct {
	model  llm.Model
	record *replay
}

func (m replayModel) Name() string { return m.model.Name() }

// Unwrap returns the model that is asked again.
func (m replayModel) Unwrap() llm.Model { return m.model }

func (m replayModel) Generate(ctx context.Context, q llm.Request) (llm.Reply, error) {
	got, err := m.model.Generate(ctx, q)
	return got, m.record.unasked(err)
}

func sameCandidate(round kernelwright.Round, c kernelwright.Candidate) error {
	if c.Source != round.Candidate.Source || c.Language != round.Candidate.Language {
		return &Difference{Round: round.Index, What: "candidate", Recorded: round.Candidate.Source, Replayed: c.Source}
	}
	return nil
}

// differ compares two values by their JSON, the form in which they are kept.
func differ(round int, what string, recorded, replayed any) error {
	a, err := text(recorded)
	if err != nil {
		return err
	}
	b, err := text(replayed)
	if err != nil {
		return err
	}
	if a != b {
		return &Difference{Round: round, What: what, Recorded: a, Replayed: b}
	}
	return nil
}

func text(v any) (string, error) {
	b, err := json.Marshal(v)
	if string(b) == "null" {
		return "", err
	}
	return string(b), err
}
