package forge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/kernelwright/kernelwright"
)

// Difference is where a replay left the record.
type Difference struct {
	Round    int    `json:"round"`
	What     string `json:"what"`     // "candidate", "feedback", "verdict" or "stop"
	Recorded string `json:"recorded"` // source, JSON, or reason; empty for none
	Replayed string `json:"replayed"`
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

// Replay makes the decisions of a recorded run again, with the recorded
// verdicts in place of measuring, and returns the first that came out
// otherwise, or nil. Each decision is made from the record, so one difference
// does not drag others behind it. The error is a context's, or says that an
// agent failed.
func Replay(ctx context.Context, rounds []kernelwright.Round, task kernelwright.Task, device kernelwright.Device, run kernelwright.Run, coder Coder, judge Judge) (*Difference, error) {
	settings, err := ParseSettings(run.Settings)
	if err != nil {
		return nil, err
	}
	settings = settings.withDefaults()
	if judge == nil && settings.JudgeMode.asked() {
		return nil, errors.New("replay: there is no Judge")
	}
	for i, round := range rounds {
		before := rounds[:i]
		if stop, _ := stopAfter(before, settings); stop != "" {
			return &Difference{Round: i, What: "stop", Replayed: string(stop)}, nil
		}
		c, err := coder.Propose(ctx, coderInput(run, task, device, settings, before))
		var declined *kernelwright.DeclinedError
		if errors.As(err, &declined) {
			return &Difference{Round: i, What: "candidate", Recorded: round.Candidate.Source}, nil
		}
		if err != nil {
			return nil, fmt.Errorf("replay round %d: coder: %w", i, err)
		}
		if c.Source != round.Candidate.Source || c.Language != round.Candidate.Language {
			return &Difference{Round: i, What: "candidate", Recorded: round.Candidate.Source, Replayed: c.Source}, nil
		}
		if earlier := duplicateOf(c, before); earlier != nil {
			want := earlier.Verdict
			want.Cached = true
			if d, err := differ(i, "verdict", round.Verdict, want); d != nil || err != nil {
				return d, err
			}
		}
		d, err := replayJudge(ctx, run, task, device, settings, before, round, judge)
		if d != nil || err != nil {
			return d, err
		}
	}
	return replayEnd(ctx, rounds, task, device, run, settings, coder)
}

func replayJudge(ctx context.Context, run kernelwright.Run, task kernelwright.Task, device kernelwright.Device, settings Settings, before []kernelwright.Round, round kernelwright.Round, judge Judge) (*Difference, error) {
	unjudged := round
	unjudged.Feedback = nil
	stop, _ := stopAfter(append(before[:len(before):len(before)], unjudged), settings)
	in, asked := judgeInput(run, task, device, settings, before, round)
	// The time that counted was read before the Judge was asked and the
	// recorded one after: where only that ended the run, either is right.
	if stop == kernelwright.StopWallTime && round.Feedback != nil {
		stop = ""
	}
	if stop != "" || !asked {
		if round.Feedback != nil {
			return differ(round.Index, "feedback", round.Feedback, nil)
		}
		return nil, nil
	}
	f, err := judge.Judge(ctx, in)
	if err != nil {
		return nil, fmt.Errorf("replay round %d: judge: %w", round.Index, err)
	}
	if round.Feedback == nil {
		return differ(round.Index, "feedback", nil, f)
	}
	return differ(round.Index, "feedback", round.Feedback, f)
}

// replayEnd checks that the run ended where and why the record says. A run
// that is not done yet has nothing to compare.
func replayEnd(ctx context.Context, rounds []kernelwright.Round, task kernelwright.Task, device kernelwright.Device, run kernelwright.Run, settings Settings, coder Coder) (*Difference, error) {
	if run.Status != kernelwright.RunDone && run.Status != kernelwright.RunDeclined {
		return nil, nil
	}
	stop, _ := stopAfter(rounds, settings)
	if stop == "" {
		_, err := coder.Propose(ctx, coderInput(run, task, device, settings, rounds))
		var declined *kernelwright.DeclinedError
		if errors.As(err, &declined) {
			stop = kernelwright.StopDeclined
		} else if err != nil {
			return nil, fmt.Errorf("replay round %d: coder: %w", len(rounds), err)
		}
	}
	if stop != run.Stop {
		return &Difference{Round: len(rounds), What: "stop", Recorded: string(run.Stop), Replayed: string(stop)}, nil
	}
	return nil, nil
}

// differ compares two values by their JSON, the form in which they are kept.
func differ(round int, what string, recorded, replayed any) (*Difference, error) {
	a, err := text(recorded)
	if err != nil {
		return nil, err
	}
	b, err := text(replayed)
	if err != nil || a == b {
		return nil, err
	}
	return &Difference{Round: round, What: what, Recorded: a, Replayed: b}, nil
}

func text(v any) (string, error) {
	if v == nil {
		return "", nil
	}
	b, err := json.Marshal(v)
	return string(b), err
}
