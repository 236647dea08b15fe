package pipeline

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/store"
)

// probed is what rl.probe says of a base.
type probed struct {
	Parameters int64   `json:"parameters"`
	Vocabulary int     `json:"vocabulary"`
	Context    int     `json:"context"`
	Sampled    float64 `json:"sampled_per_second"` // tokens
	Trained    float64 `json:"trained_per_second"`
}

const (
	// promptTokens and answerShare are what a prompt and an answer are taken to have where
	// nothing is known yet: the tokens, and the share of those that an answer may have.
	promptTokens = 800
	answerShare  = 0.6
	// verdictTime is what a verdict is taken to cost on a CPU.
	verdictTime = 4 * time.Second
	// longWork is what is worth saying how long it takes.
	longWork = time.Hour
)

// look looks at a model that somebody names before tasks are made for it: one that cannot
// be trained is found in a minute, and how long the work takes here is said.
func (w *work) look(ctx context.Context) error {
	name := w.l.settings.Base
	if name == "" || strings.HasPrefix(name, kernelwright.PolicyPrefix) {
		return nil
	}
	base, err := w.base(ctx, name)
	if err != nil {
		return err
	}
	w.tell(Event{Part: "look", Note: "the base is loaded, and samples and trains for a moment: that takes a minute or two"})
	var p probed
	settings := map[string]any{"policy": base.path, "lora": map[string]any{"rank": w.recipe().Lora}, "machine": w.machine()}
	if err := w.program(ctx, "look", "rl.probe", settings, &p); err != nil {
		return err
	}
	note := fmt.Sprintf("%s: %.1f M parameters, %d tokens of vocabulary, %d of context; it samples %.0f and trains on %.0f tokens a second here", base.name, float64(p.Parameters)/1e6, p.Vocabulary, p.Context, p.Sampled, p.Trained)
	w.tell(Event{Part: "look", Note: note})
	if e := w.recipe().estimate(p); e.all() > longWork {
		w.tell(Event{Part: "look", Note: fmt.Sprintf("the stages take about %s on this machine (sampling %s, training %s, verdicts %s); `kernelwright train run --small`, without --base, takes minutes", about(e.all()), about(e.sampling), about(e.training), about(e.verdicts))})
	}
	return nil
}

// estimate is how long the stages after synthesise take.
type estimate struct{ sampling, training, verdicts time.Duration }

func (e estimate) all() time.Duration { return e.sampling + e.training + e.verdicts }

// estimate is made of what the recipe asks for and how fast a base is.
func (r Recipe) estimate(p probed) estimate {
	held := r.Tasks[store.CompositionsSplit] + r.Tasks[store.KindsSplit]
	measured := 4 * held * r.HeldSamples * r.HeldRounds
	gated := 2 * 2 * r.Gate.Tasks * r.Gate.Samples
	collected := r.Tasks[store.TrainSplit] * r.CollectSamples * r.Rounds
	episodes := r.TasksPerStep * r.SamplesPerTask
	trained := episodes * (r.WarmupSteps + r.AgenticSteps*r.Rounds)
	answers := float64(measured + gated + collected + trained)

	answer := answerShare * float64(r.AnswerTokens)
	row := promptTokens + answer
	// In passes forward and back of a row. A step of PPO goes forward twice, through the policy
	// and the critic, and back once and twice. Forward alone costs a third.
	rows := float64(r.Pairs*r.Epochs+collected*(r.RFTEpochs+r.CriticEpochs)) + float64(trained)*(3+2.0/3)
	seconds := func(s float64) time.Duration {
		return time.Duration(min(s, math.MaxInt64/4/float64(time.Second)) * float64(time.Second))
	}
	return estimate{
		sampling: seconds(answers * (answer/p.Sampled + promptTokens/(3*p.Trained))),
		training: seconds(rows * row / p.Trained),
		// A task that is taught is looked at and calibrated, which takes about a verdict.
		verdicts: seconds((answers + float64(r.Pairs+r.Tasks[store.TaughtSplit])) * verdictTime.Seconds()),
	}
}

// about says a time as one says what is not known better.
func about(d time.Duration) string {
	switch hours := d.Hours(); {
	case hours < 1:
		return fmt.Sprintf("%.0f minutes", max(1, d.Minutes()))
	case hours < 48:
		return fmt.Sprintf("%.0f hours", hours)
	default:
		return fmt.Sprintf("%.0f days", hours/24)
	}
}
