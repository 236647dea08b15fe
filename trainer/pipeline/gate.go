package pipeline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/coder"
	"github.com/kernelwright/kernelwright/internal/wholefile"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/episodes"
	"github.com/kernelwright/kernelwright/trainer/gate"
	"github.com/kernelwright/kernelwright/trainer/policies"
	"github.com/kernelwright/kernelwright/trainer/serving"
	"github.com/kernelwright/kernelwright/trainer/tasks"
	"github.com/kernelwright/kernelwright/trainer/teach"
)

// holdGate takes the policy in, and holds it against the best one so far on the
// held-out tasks of this pipeline. Where none has ever served, that is the policy that
// the pipeline began with.
func holdGate(ctx context.Context, w *work) (out Outputs, skipped string, err error) {
	candidate, opponent, err := w.contenders(ctx)
	if err != nil {
		return out, "", err
	}
	_, held, err := w.tasks(ctx, "held_out.jsonl", store.CompositionsSplit, store.KindsSplit)
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
	return out, "", w.decide(ctx, &out, held, candidate, opponent)
}

// contenders are the two policies of the gate.
func (w *work) contenders(ctx context.Context) (candidate, opponent policies.Policy, err error) {
	if s := w.l.settings; s.Trial() {
		if candidate, err = w.l.policies.Find(ctx, s.Candidate); err == nil {
			opponent, err = w.l.policies.Find(ctx, s.Opponent)
		}
		return candidate, opponent, badPolicy(err)
	}
	first, last := w.in[Bootstrap], w.in[Agentic]
	began, err := w.add(ctx, first.Policy, first.Base, Bootstrap)
	if err != nil {
		return candidate, opponent, err
	}
	if candidate, err = w.add(ctx, last.Policy, began.Name(), Agentic); err != nil {
		return candidate, opponent, err
	}
	return w.sides(ctx, candidate, began)
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
func (w *work) decide(ctx context.Context, out *Outputs, held []tasks.Task, candidate, opponent policies.Policy) error {
	name := w.gate()
	g := gate.Gate{
		Record: w.l.parts.Store, Name: name, Settings: w.recipe().Gate, Seed: uint64(w.seed()), Coder: builtin{w}, Unprotected: w.l.parts.Unprotected, Log: w.l.parts.Log,
		Progress: func(p gate.Progress) { w.tell(Event{Part: "answers", Step: p.Played, Steps: p.Wanted}) },
	}
	us, them := &player{w: w, policy: candidate}, &player{w: w, policy: opponent}
	decision, err := g.Run(ctx, us, them, held)
	var few *gate.FewTasksError
	if errors.As(err, &few) {
		hint := "`kernelwright train run --stage synthesise --again` makes other tasks"
		if w.l.settings.Trial() {
			hint = "another --seed makes other tasks"
		}
		return &StageError{Status: store.StageBadInput, Reason: few.Error(), Hint: hint}
	}
	if err != nil {
		return fmt.Errorf("the gate: %w", err)
	}
	row, err := w.l.parts.Store.GateNamed(ctx, name)
	if err != nil {
		return err
	}
	out.Gate, out.Decision, out.Reason = row.ID, decision.Decision, decision.Reason
	if out.HeldOut, err = w.heldOut(ctx, row.ID); err != nil {
		return err
	}
	return w.own(ctx, out, us, held)
}

// prompts writes what a policy is asked of tasks to a file.
func (w *work) prompts(ctx context.Context, path string, all []tasks.Task) error {
	o, h, err := w.hardware(ctx)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	lines := json.NewEncoder(&text)
	for _, t := range all {
		task, err := h.Inspect(ctx, "reference", t.Source)
		if err != nil {
			return err
		}
		asked, err := episodes.First(ctx, o, w.question(t), task, h.Device())
		if err == nil {
			err = lines.Encode(map[string]any{"task": t.Fingerprint, "messages": asked})
		}
		if err != nil {
			return fmt.Errorf("the prompt of task %.12s: %w", t.Fingerprint, err)
		}
	}
	return wholefile.Write(path, text.Bytes())
}

// conditions are those of the answers at a gate.
var conditions = episodes.Conditions{StrictInputs: true}

// hardware returns what the policies' answers are evaluated by, with what its episodes are made of.
func (w *work) hardware(ctx context.Context) (episodes.Options, episodes.Hardware, error) {
	o, err := w.l.parts.Episodes(ctx)
	if err != nil {
		return o, nil, err
	}
	h, err := o.Hardware(ctx, conditions)
	return o, h, err
}

// question is what an episode of a held-out task is to be: of one answer.
func (w *work) question(t tasks.Task) episodes.Request {
	r := w.recipe().request(1)
	r.Reference = t.Source
	return r
}

// written is an answer of a policy, as rl.answers leaves it.
type written struct {
	Task      string    `json:"task"`
	Sample    int       `json:"sample"`
	Text      string    `json:"text"`
	PromptIDs []int     `json:"prompt_ids"`
	TokenIDs  []int     `json:"token_ids"`
	LogProbs  []float64 `json:"logprobs"`
	Finish    string    `json:"finish_reason"`
}

// player is a policy at a gate. What it has answered is on the disk, in parts.
type player struct {
	w       *work
	policy  policies.Policy
	answers map[string][]written // by task; nil: no part was read
	parts   int                  // that are whole
}

// Name implements gate.Player.
func (p *player) Name() string { return kernelwright.PolicyPrefix + p.policy.Name() }

// Play implements gate.Player.
func (p *player) Play(ctx context.Context, t tasks.Task, sample int) (gate.Outcome, error) {
	all := p.answers[t.Fingerprint]
	if len(all) <= sample {
		return gate.Outcome{}, fmt.Errorf("%s has %d answers to task %.12s", p.Name(), len(all), t.Fingerprint)
	}
	if len(all[sample].TokenIDs) == 0 { // its prompt left no room
		return outcome(t, sample, nil, kernelwright.RewardNotCorrect), nil
	}
	v, reward, err := p.evaluate(ctx, t, all[sample])
	return outcome(t, sample, v, reward), err
}

// evaluate has an answer evaluated as an episode.
func (p *player) evaluate(ctx context.Context, t tasks.Task, a written) (*kernelwright.Verdict, int, error) {
	env, err := p.w.l.environment(ctx)
	if err != nil {
		return nil, 0, err
	}
	r := p.w.question(t)
	r.Policy = p.w.version(p.policy.Name())
	begun, err := env.episodes.Start(ctx, r)
	if err != nil {
		return nil, 0, err
	}
	end, err := env.episodes.Turn(ctx, begun.ID, episodes.Turn{Text: &a.Text, PromptIDs: a.PromptIDs, TokenIDs: a.TokenIDs, LogProbs: a.LogProbs, Finish: a.Finish})
	if err == nil && !end.Done {
		end, err = env.episodes.GiveUp(ctx, begun.ID)
	}
	switch {
	case err != nil:
		return nil, 0, err
	case end.Reward == nil:
		return nil, 0, fmt.Errorf("episode %d has no reward: %s", begun.ID, end.Dropped)
	}
	return end.Verdict, *end.Reward, nil
}

// outcome is what an answer to a task came to, as a gate has it. Where it left nothing that
// was evaluated, v is nil.
func outcome(t tasks.Task, sample int, v *kernelwright.Verdict, reward int) gate.Outcome {
	o := gate.Outcome{Task: t.Fingerprint, Split: t.Split, Sample: sample, Built: built(v), Reward: reward, Correct: reward > 0}
	if v != nil && o.Correct {
		o.Eager, o.Compile = v.Speedups["eager"].Value, v.Speedups["compile"].Value
		if v.Speedup != nil {
			o.Speedup = v.Speedup.Value
		}
	}
	return o
}

// built reports whether the candidate of a verdict was built.
func built(v *kernelwright.Verdict) bool {
	return v != nil && v.Status != kernelwright.Rejected && v.Status != kernelwright.BuildFailed
}

// Prepare implements gate.Player. Both policies of a gate draw by the same seeds.
func (p *player) Prepare(ctx context.Context, all []tasks.Task) error {
	if err := p.read(); err != nil {
		return err
	}
	var left []tasks.Task
	for _, t := range all {
		if p.answers[t.Fingerprint] == nil {
			left = append(left, t)
		}
	}
	if len(left) == 0 {
		return nil
	}
	if err := p.w.l.policies.Check(ctx, p.policy); err != nil {
		return badPolicy(err)
	}
	prompts := p.w.folder(p.part() + ".jsonl")
	if err := p.w.prompts(ctx, prompts, left); err != nil {
		return err
	}
	var end struct{}
	err := p.w.program(ctx, p.part(), "rl.answers", map[string]any{
		"policy": p.policy.Folder, "prompts": prompts, "samples": p.w.recipe().Gate.Samples, "seed": p.w.l.settings.Seed*1_009 + int64(p.parts),
		"sampling": p.w.sampling(), "machine": p.w.machine(),
	}, &end)
	if err != nil {
		return err
	}
	return p.read()
}

// part is the name of the part that is written next.
func (p *player) part() string { return fmt.Sprintf("%s-%d", p.policy.Name(), p.parts+1) }

// read reads the parts that are whole.
func (p *player) read() error {
	if p.answers == nil {
		p.answers = map[string][]written{}
	}
	for {
		path := p.w.folder(p.part(), "answers.jsonl")
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		for line := range bytes.Lines(text) {
			var a written
			if err := json.Unmarshal(line, &a); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			p.answers[a.Task] = append(p.answers[a.Task], a)
		}
		p.parts++
	}
}

// heldOut are the rates of the candidate's answers that a gate rests on.
func (w *work) heldOut(ctx context.Context, id int64) (*HeldOut, error) {
	all, err := w.l.parts.Store.GateTasks(ctx, id)
	if err != nil {
		return nil, err
	}
	outcomes, err := w.l.parts.Store.GateOutcomes(ctx, id)
	if err != nil {
		return nil, err
	}
	splits := map[int]store.Split{}
	for _, t := range all {
		if t.Void == "" {
			splits[t.Place] = t.Split
		}
	}
	out := &HeldOut{}
	for _, o := range outcomes {
		split, counts := splits[o.Place]
		if !counts || o.Player != store.GateCandidate {
			continue
		}
		to := &out.Compositions
		if split == store.KindsSplit {
			to = &out.Kinds
		}
		if *to == nil {
			*to = &Rates{}
		}
		(*to).add(o)
	}
	for _, r := range []*Rates{out.Compositions, out.Kinds} {
		if r != nil {
			n := float64(r.N)
			r.Built, r.Correct, r.FasterEager, r.FasterCompile, r.Reward = r.Built/n, r.Correct/n, r.FasterEager/n, r.FasterCompile/n, r.Reward/n
		}
	}
	return out, nil
}

// add counts one; the sums are made shares at the end.
func (r *Rates) add(o store.GateOutcome) {
	r.N++
	r.Reward += float64(o.Reward)
	for milestone, to := range map[int]*float64{1: &r.Correct, 2: &r.FasterEager, 3: &r.FasterCompile} {
		if o.Reward >= milestone {
			*to++
		}
	}
	if o.Built {
		r.Built++
	}
}

// looks is how many points of a task's schedule space a right answer is compared with at
// first contact, in minutes; else it is teach's choice.
const looks = 1 << 10

// own says how much of the candidate's right answers is its own: no copy of what it was
// taught by, or of a point of the built-in Coder's schedule space.
func (w *work) own(ctx context.Context, out *Outputs, p *player, held []tasks.Task) error {
	right, err := w.right(ctx, out.Gate, p, held)
	if err != nil || len(right) == 0 {
		return err
	}
	var taught []string
	if path := w.in[Bootstrap].Pairs; path != "" {
		pairs, err := teach.Read(w.path(path))
		if err == nil {
			taught, err = teach.Sources(pairs)
		}
		if err != nil {
			return err
		}
	}
	_, h, err := w.hardware(ctx)
	if err != nil {
		return err
	}
	most := int64(0)
	if w.l.settings.Small {
		most = looks
	}
	n, err := teach.Measure(ctx, right, taught, h.Device(), most, w.seed())
	out.Novelty = &n
	return err
}

// right are the candidate's answers that a gate found to be correct.
func (w *work) right(ctx context.Context, id int64, p *player, held []tasks.Task) ([]teach.Candidate, error) {
	if err := p.read(); err != nil {
		return nil, err
	}
	_, h, err := w.hardware(ctx)
	if err != nil {
		return nil, err
	}
	all, err := w.l.parts.Store.GateTasks(ctx, id)
	if err != nil {
		return nil, err
	}
	outcomes, err := w.l.parts.Store.GateOutcomes(ctx, id)
	if err != nil {
		return nil, err
	}
	sources, names := map[string]string{}, map[int]string{}
	for _, t := range held {
		sources[t.Fingerprint] = t.Source
	}
	for _, t := range all {
		names[t.Place] = t.Fingerprint
	}
	var right []teach.Candidate
	for _, of := range outcomes {
		answers := p.answers[names[of.Place]]
		if of.Player != store.GateCandidate || !of.Correct || len(answers) <= of.Sample {
			continue
		}
		a := answers[of.Sample]
		c, err := coder.Read(a.Text, "", p.Name())
		if err != nil {
			return nil, err
		}
		task, err := h.Inspect(ctx, "reference", sources[a.Task])
		if err != nil {
			return nil, err
		}
		right = append(right, teach.Candidate{Task: task, Source: c.Source, Tokens: len(a.TokenIDs)})
	}
	return right, nil
}

// promote has the policy serve that the gate let through, once it has answered. One that
// cannot answer is refused: what served before goes on.
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
	if w.l.parts.Smoke != nil {
		err := w.l.parts.Smoke(ctx, p)
		if mute := new(serving.MuteError); errors.As(err, &mute) {
			out.Decision, out.Reason = gate.Refused, mute.Error()
			return out, "the gate let it through, and it does not serve: " + mute.Error(), nil
		}
		if err != nil {
			return out, "", fmt.Errorf("ask %s before it serves: %w", p.Name(), err)
		}
	}
	return out, "", badPolicy(w.l.policies.Promote(ctx, p, g.Gate, g.Reason))
}
