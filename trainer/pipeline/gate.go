package pipeline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/gate"
	"github.com/kernelwright/kernelwright/trainer/policies"
	"github.com/kernelwright/kernelwright/trainer/tasks"
)

// holdGate takes the policy in, and holds it against the best one so far on the
// held-out tasks of this pipeline. Where none has ever served, that is the policy that
// the pipeline began with.
func holdGate(ctx context.Context, w *work) (out Outputs, skipped string, err error) {
	first, last := w.in[Bootstrap], w.in[Agentic]
	began, err := w.add(ctx, first.Policy, first.Base, Bootstrap)
	if err != nil {
		return out, "", err
	}
	candidate, err := w.add(ctx, last.Policy, began.Name(), Agentic)
	if err != nil {
		return out, "", err
	}
	candidate, opponent, err := w.sides(ctx, candidate, began)
	if err != nil {
		return out, "", err
	}
	file, held, err := w.tasks(ctx, "held_out.jsonl", store.CompositionsSplit, store.KindsSplit)
	if err != nil {
		return out, "", err
	}
	out.Version, out.Opponent = candidate.Version, opponent.Version
	if err := w.keep(&out.Policy, candidate.Folder); err != nil {
		return out, "", err
	}
	if candidate.Version == opponent.Version {
		out.Decision, out.Reason = gate.Refused, fmt.Sprintf("it is %s itself: nothing was learned", opponent.Name())
		out.HeldOut, err = w.reached(ctx, Agentic)
		return out, "", err
	}
	return out, "", w.decide(ctx, &out, file, held, candidate, opponent)
}

// add takes a policy in. The same content is the version that is there.
func (w *work) add(ctx context.Context, folder, base, stage string) (policies.Policy, error) {
	p, err := w.l.policies.Add(ctx, w.path(folder), base, w.in[Bootstrap].License, policies.Origin{Pipeline: w.row.Pipeline, Stage: stage})
	return p, badPolicy(err)
}

// sides are the two policies of the gate: the candidate, and the best one so far, or
// began where none has served. A gate that has begun keeps those that it began with,
// whatever was promoted meanwhile.
func (w *work) sides(ctx context.Context, candidate, began policies.Policy) (us, them policies.Policy, err error) {
	row, err := w.l.parts.Store.GateNamed(ctx, w.gate())
	if errors.Is(err, store.ErrNotFound) {
		them, err = w.l.policies.Best(ctx)
		if none, ok := errors.AsType[*policies.Error](err); ok && none.Missing {
			return candidate, began, nil
		}
		return candidate, them, err
	}
	if err != nil {
		return us, them, err
	}
	for name, to := range map[string]*policies.Policy{row.Candidate: &us, row.Opponent: &them} {
		*to, err = w.l.policies.Find(ctx, name)
		if gone, ok := errors.AsType[*policies.Error](err); ok && gone.Missing {
			return us, them, &StageError{Status: store.StageBadInput, Reason: fmt.Sprintf("gate %d cannot be held to its end: %s", row.ID, gone.Text), Hint: "`kernelwright train run --stage synthesise --again` makes other tasks, for another gate"}
		}
		if err != nil {
			return us, them, err
		}
	}
	return us, them, nil
}

// gate is the name of the attempt's gate.
func (w *work) gate() string {
	name := fmt.Sprintf("pipeline %d", w.row.Pipeline)
	if w.row.Attempt > 1 {
		name += fmt.Sprintf(", attempt %d", w.row.Attempt)
	}
	return name
}

// reached is what the policy of a stage reached when that measured it.
func (w *work) reached(ctx context.Context, stage string) (*HeldOut, error) {
	latest, err := w.l.latest(ctx)
	if err != nil {
		return nil, err
	}
	var of Outputs
	err = json.Unmarshal(latest[stage].Outputs, &of)
	return of.HeldOut, err
}

// decide holds the gate.
func (w *work) decide(ctx context.Context, out *Outputs, file string, held []tasks.Task, candidate, opponent policies.Policy) error {
	name := w.gate()
	g := gate.Gate{
		Record: w.l.parts.Store, Name: name, Settings: w.recipe().Gate, Coder: builtin{w}, Unprotected: w.l.parts.Unprotected, Log: w.l.parts.Log,
		Progress: func(p gate.Progress) { w.tell(Event{Part: "answers", Step: p.Played, Steps: p.Wanted}) },
	}
	us, them := &player{w: w, policy: candidate, file: file, held: held}, &player{w: w, policy: opponent, file: file, held: held}
	decision, err := g.Run(ctx, us, them, held)
	var few *gate.FewTasksError
	if errors.As(err, &few) {
		return &StageError{Status: store.StageBadInput, Reason: few.Error(), Hint: "`kernelwright train run --stage synthesise --again` makes other tasks"}
	}
	if err != nil {
		return fmt.Errorf("the gate: %w", err)
	}
	row, err := w.l.parts.Store.GateNamed(ctx, name)
	if err != nil {
		return err
	}
	out.Gate, out.Decision, out.Reason = row.ID, decision.Decision, decision.Reason
	if err := us.load(ctx); err != nil {
		return err
	}
	out.HeldOut = summed(held, us.answers)
	return nil
}

// Played is what came of a policy's answer to a task. Where it left nothing that was
// judged, Verdict is nil.
type Played struct {
	Task    string                `json:"task"`
	Split   store.Split           `json:"split"`
	Reward  *float64              `json:"reward"` // nil: a limit cut the episode
	Verdict *kernelwright.Verdict `json:"verdict"`
}

// reward is the milestone: what a limit cut left nothing.
func (p Played) reward() int {
	if p.Reward == nil {
		return -1
	}
	return int(*p.Reward)
}

// built reports whether the candidate was built.
func (p Played) built() bool {
	return p.Verdict != nil && p.Verdict.Status != kernelwright.Rejected && p.Verdict.Status != kernelwright.BuildFailed
}

// player is a policy at a gate. It answers all held-out tasks at once, as often as the
// gate asks: a batch of answers takes as long as one. What it answered is on the disk.
type player struct {
	w       *work
	policy  policies.Policy
	file    string
	held    []tasks.Task
	answers map[string][]Played // by task
	again   map[string]int      // how often each was asked for again
}

// Name implements gate.Player.
func (p *player) Name() string { return PolicyPrefix + p.policy.Name() }

// Play implements gate.Player. An answer that the machinery lost is asked for again.
func (p *player) Play(ctx context.Context, t tasks.Task, sample int) (gate.Outcome, error) {
	if err := p.load(ctx); err != nil {
		return gate.Outcome{}, err
	}
	if len(p.answers[t.Fingerprint]) <= sample {
		if err := p.more(ctx, t); err != nil {
			return gate.Outcome{}, err
		}
	}
	all := p.answers[t.Fingerprint]
	if len(all) <= sample {
		return gate.Outcome{}, fmt.Errorf("%s has %d answers to task %.12s that came to a reward", p.Name(), len(all), t.Fingerprint)
	}
	return outcome(t, sample, all[sample]), nil
}

// outcome is what an answer to a task came to, as a gate has it.
func outcome(t tasks.Task, sample int, a Played) gate.Outcome {
	o := gate.Outcome{Task: t.Fingerprint, Split: t.Split, Sample: sample, Built: a.built(), Reward: a.reward(), Correct: a.reward() > 0}
	if a.Verdict != nil && o.Correct {
		o.Eager, o.Compile = a.Verdict.Speedups["eager"].Value, a.Verdict.Speedups["compile"].Value
		if a.Verdict.Speedup != nil {
			o.Speedup = a.Verdict.Speedup.Value
		}
	}
	return o
}

// load has the policy answer all tasks, unless it has.
func (p *player) load(ctx context.Context) error {
	if p.answers != nil {
		return nil
	}
	found, err := p.play(ctx, p.policy.Name(), p.file, p.w.recipe().Gate.Samples, 0)
	if err == nil {
		p.answers, p.again = found, map[string]int{}
	}
	return err
}

// more has it answer one task once more. The part is the task's own: after a kill, what
// it has on the disk is found again.
func (p *player) more(ctx context.Context, t tasks.Task) error {
	p.again[t.Fingerprint]++
	again := p.again[t.Fingerprint]
	part := fmt.Sprintf("%s-more-%.12s-%d", p.policy.Name(), t.Fingerprint, again)
	file := p.w.folder(part + ".jsonl")
	if err := tasks.Export(file, []tasks.Task{t}); err != nil {
		return err
	}
	found, err := p.play(ctx, part, file, 1, again)
	if err != nil {
		return err
	}
	p.answers[t.Fingerprint] = append(p.answers[t.Fingerprint], found[t.Fingerprint]...)
	return nil
}

// play has the policy answer the tasks of a file; again counts from 1 what is asked for
// again. Both policies of a gate draw by the same seeds.
func (p *player) play(ctx context.Context, part, file string, samples, again int) (map[string][]Played, error) {
	path := p.w.folder(part, "outcomes.jsonl")
	if _, err := os.Stat(path); err != nil {
		if err := p.w.l.policies.Check(ctx, p.policy); err != nil {
			return nil, badPolicy(err)
		}
		seed := p.w.l.settings.Seed*1_009 + int64(again)
		if _, err := p.w.play(ctx, part, p.policy.Folder, file, samples, p.w.recipe().HeldRounds, true, seed); err != nil {
			var lost *StageError
			if again > 0 && errors.As(err, &lost) && lost.Status == store.StageUnreachable {
				return nil, nil // it has no outcome again, which the gate decides on
			}
			return nil, err
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	all := map[string][]Played{}
	for line := range bytes.Lines(text) {
		var a Played
		if err := json.Unmarshal(line, &a); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all[a.Task] = append(all[a.Task], a)
	}
	return all, nil
}

// summed are the rates of answers to held-out tasks.
func summed(held []tasks.Task, answers map[string][]Played) *HeldOut {
	out := &HeldOut{}
	for _, t := range held {
		to := &out.Compositions
		if t.Split == store.KindsSplit {
			to = &out.Kinds
		}
		for _, a := range answers[t.Fingerprint] {
			if *to == nil {
				*to = &Rates{}
			}
			(*to).add(a)
		}
	}
	for _, r := range []*Rates{out.Compositions, out.Kinds} {
		if r != nil {
			n := float64(r.N)
			r.Built, r.Correct, r.FasterEager, r.FasterCompile, r.Reward = r.Built/n, r.Correct/n, r.FasterEager/n, r.FasterCompile/n, r.Reward/n
		}
	}
	return out
}

// add counts one; the sums are made shares at the end.
func (r *Rates) add(a Played) {
	r.N++
	r.Reward += float64(a.reward())
	for milestone, to := range map[int]*float64{1: &r.Correct, 2: &r.FasterEager, 3: &r.FasterCompile} {
		if a.reward() >= milestone {
			*to++
		}
	}
	if a.built() {
		r.Built++
	}
}

// promote has the policy serve that the gate let through.
func promote(ctx context.Context, w *work) (out Outputs, skipped string, err error) {
	g := w.in[GateStage]
	out.Version, out.Gate, out.Decision = g.Version, g.Gate, g.Decision
	if g.Decision != gate.Promoted {
		return out, "the gate refused it: " + strings.TrimSuffix(g.Reason, "."), nil
	}
	p, err := w.l.policies.Find(ctx, fmt.Sprintf("v%d", g.Version))
	if err != nil {
		return out, "", badPolicy(err)
	}
	return out, "", badPolicy(w.l.policies.Promote(ctx, p, g.Gate, g.Reason))
}
