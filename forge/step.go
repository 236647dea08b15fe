package forge

import (
	"context"
	"fmt"

	"github.com/kernelwright/kernelwright"
)

// OutsideStrategy is the name in records of a run whose agent holds the loop
// itself.
const OutsideStrategy = "mcp"

// OutsideRounds is how many rounds such a run may have: as many turns as CUDA
// Agent's (arXiv 2602.24286).
const OutsideRounds = 200

// OutsideSettings are those of a run that only its agent ends. The Judge speaks
// of every verdict: an agent that does not want to hear it need not listen.
func OutsideSettings() Settings { return Settings{Rounds: OutsideRounds, JudgeMode: JudgeBoth} }

// FullError says that a run has all the rounds that it may have.
type FullError struct {
	Run    int64
	Rounds int
}

func (e *FullError) Error() string {
	return fmt.Sprintf("run %d has all the %d rounds that it may have", e.Run, e.Rounds)
}

// Given is a Coder that has one candidate, somebody else's.
type Given struct{ Candidate kernelwright.Candidate }

// Name is that of who wrote it.
func (g Given) Name() string { return g.Candidate.Origin }

// Propose returns the candidate.
func (g Given) Propose(context.Context, kernelwright.CoderInput) (kernelwright.Candidate, error) {
	return g.Candidate, nil
}

// Step is one round with the given candidate, for an agent that decides by
// itself what is tried and when to stop: the Coder is not asked, and what ends
// Run does not count, but for the number of rounds (*FullError). The round is as
// in Run: a verdict, the Judge's feedback, the record, and nothing recorded
// where there is an error. Steps of one run must not overlap.
func (r *Rounds) Step(ctx context.Context, run kernelwright.Run, task kernelwright.Task, c kernelwright.Candidate) (kernelwright.Round, error) {
	parts := r.Parts
	l, err := parts.begin(ctx, run, task)
	if err != nil {
		return kernelwright.Round{}, err
	}
	n := len(l.rounds)
	if n >= l.settings.Rounds {
		return kernelwright.Round{}, &FullError{run.ID, n}
	}
	if err := l.halted(ctx); err != nil {
		return kernelwright.Round{}, err
	}
	// The same text is in the same language.
	for i := 0; i < n && c.Language == ""; i++ {
		if l.rounds[i].Candidate.Source == c.Source {
			c.Language = l.rounds[i].Candidate.Language
		}
	}
	parts.Coder = Given{c}
	if err := l.round(ctx); err != nil {
		return kernelwright.Round{}, fmt.Errorf("round %d: %w", n, err)
	}
	return l.rounds[n], nil
}

// Certify has the candidate of a round certified, or the fastest first until
// one is where index is negative, and returns the round whose candidate was.
// Nil: none was, and the certificates that were recorded say why.
func (r *Rounds) Certify(ctx context.Context, run kernelwright.Run, task kernelwright.Task, index int) (*kernelwright.Round, error) {
	l, err := r.begin(ctx, run, task)
	if err != nil {
		return nil, err
	}
	if index < 0 {
		return l.certify(ctx)
	}
	if index >= len(l.rounds) {
		return nil, fmt.Errorf("run %d has no round %d", run.ID, index)
	}
	if r := l.rounds[index]; !kept(r) {
		return nil, fmt.Errorf("round %d is %s: only a correct candidate that was timed can be certified", index, r.Verdict.Status)
	}
	certified, err := l.certifyRound(ctx, index)
	if !certified || err != nil {
		return nil, err
	}
	return &l.rounds[index], nil
}
