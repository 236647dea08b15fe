package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/daemon"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/gate"
	"github.com/kernelwright/kernelwright/trainer/pipeline"
	"github.com/kernelwright/kernelwright/trainer/policies"
	"github.com/kernelwright/kernelwright/trainer/teach"
)

type trainRunCmd struct {
	Pipeline int64  `arg:"" optional:"" help:"Number of the pipeline to go on with. Without it: the last one that was begun with the same flags and settings and has not come to its end, else a new one."`
	Small    bool   `help:"First contact: a tiny model from nothing, every stage, minutes on two cores."`
	Base     string `help:"What is trained: smollm2, a model's folder or GGUF file, or policy:current; without it the serving policy, else a small model from nothing." placeholder:"MODEL"`
	Stage    string `help:"Do this stage alone." placeholder:"NAME"`
	Again    bool   `help:"With --stage: do it again though it is finished."`
	Seed     int64  `help:"Same seed, same tasks and verdicts: same policy." placeholder:"N" default:"1"`
	deviceFlags
}

// Help is shown below the flags.
func (trainRunCmd) Help() string {
	return "The stages are " + strings.Join(pipeline.Names(), ", ") + ". Each is recorded with what it was given and what it left, and can be stopped (an interrupt lets a step finish) or killed: the same command goes on. The gate holds the policy against the best one so far on held-out tasks, and decides whether it serves; the Coder is still whom coder.name names. With --json an object a stage is printed, the gate's last. What training needs beside PyTorch is installed at the first start, once: 100 MB to download. docs/training.md has the recipe."
}

// Run trains.
func (c trainRunCmd) Run(a *app) (err error) {
	a.lines = true
	if err := c.check(); err != nil {
		return err
	}
	r, err := a.open(true)
	if held, ok := errors.AsType[*daemon.HeldError](err); ok {
		return &Error{Code: ExitHeld, Err: held, Hint: "stop that process; or a daemon trains by itself where training.schedule.cron is set (docs/nights.md)"}
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	r, id, settings, err := c.prepare(a.ctx, r)
	if err != nil {
		return err
	}
	show := newProgress(a.stderr)
	defer show.done()
	say := &trainTeller{a: a, show: show, seen: map[string]bool{}}
	parts, shut := r.trainParts(a, show, say.tell)
	defer func() { err = errors.Join(err, shut()) }()
	p, err := begin(a.ctx, parts, id, settings)
	if err != nil {
		return err
	}
	show.begin(fmt.Sprintf("pipeline %d", p.ID()))
	if c.Stage != "" {
		err = p.RunStage(a.ctx, c.Stage, c.Again)
	} else {
		err = p.Run(a.ctx)
	}
	show.done()
	if err = errors.Join(err, p.Close()); err != nil {
		return errors.Join(say.failed, stageFailure(a.ctx, err))
	}
	return errors.Join(say.failed, say.end(r, p.ID()))
}

// prepare finds the pipeline that is gone on with, and its conditions; its number is 0
// where a new one is to begin.
func (c trainRunCmd) prepare(ctx context.Context, r *room) (*room, int64, pipeline.Settings, error) {
	asked, err := c.settings(ctx, r)
	if err != nil {
		return r, 0, asked, err
	}
	id, settings, err := c.find(ctx, r.store, asked)
	if err != nil {
		return r, 0, settings, err
	}
	r, err = c.conditions(r, settings.Small)
	return r, id, settings, err
}

// check says what is wrong with the flags.
func (c trainRunCmd) check() error {
	switch {
	case c.Stage != "" && !slices.Contains(pipeline.Names(), c.Stage):
		return usage(fmt.Sprintf("there is no stage %q", c.Stage), "stages are "+strings.Join(pipeline.Names(), ", "))
	case c.Again && c.Stage == "":
		return usage("--again needs a stage", "name it with --stage")
	case c.Pipeline != 0 && (c.Small || c.Base != ""):
		return usage("a pipeline that was begun keeps its settings", "leave --small and --base out, or leave the number out to begin another one")
	case c.Pipeline < 0:
		return usage(fmt.Sprintf("there is no pipeline %d", c.Pipeline), "`kernelwright train ls` lists them")
	}
	if c.Base == "" || c.Base == pipeline.SmolLM2 || strings.HasPrefix(c.Base, kernelwright.PolicyPrefix) {
		return nil
	}
	info, err := os.Stat(c.Base)
	switch {
	case err != nil:
		return &Error{Code: ExitUsage, Text: "the base " + c.Base, Err: err, Hint: "name smollm2, policy:current, or the folder of a model of Hugging Face's"}
	case info.IsDir():
		if _, err := os.Stat(filepath.Join(c.Base, "config.json")); err != nil {
			if _, err := os.Stat(filepath.Join(c.Base, "adapter_config.json")); err != nil {
				return usage(fmt.Sprintf("the base %s is no model's folder: it has no config.json", c.Base), "name a folder that transformers' save_pretrained wrote")
			}
		}
	case filepath.Ext(c.Base) != ".gguf":
		return usage(fmt.Sprintf("the base %s is no folder and no GGUF file", c.Base), "name the folder of a model of Hugging Face's, or a *.gguf file")
	}
	return nil
}

// smallAtOnce is how many candidates a small pipeline has verified side by side. A
// verification keeps a core busy; each candidate is timed alone.
const smallAtOnce = 2

// conditions are those that rewards are reached under: eager and torch.compile are what
// they are held against, and what a policy writes runs in the strict sandbox. A small
// pipeline trains on the CPU.
func (c trainRunCmd) conditions(r *room, small bool) (*room, error) {
	if r.config.Sandbox != "strict" {
		return r, usage(fmt.Sprintf("the sandbox is %s, and what a policy writes runs in the strict one alone", r.config.Sandbox), "give --sandbox strict")
	}
	with := r.config
	with.Evaluation.Baselines = []string{"eager", "compile"}
	if small {
		if c.Device == "" {
			with.Device = "cpu"
		}
		with.Evaluation.AtOnce = max(with.Evaluation.AtOnce, min(smallAtOnce, runtime.GOMAXPROCS(0)))
	}
	return r.under(with), nil
}

// settings are what a new pipeline is begun with.
func (c trainRunCmd) settings(ctx context.Context, r *room) (pipeline.Settings, error) {
	s := pipeline.Settings{Small: c.Small, Base: c.Base, Seed: c.Seed, Recipe: r.recipe(c.Small)}
	if s.Base == "" && !c.Small {
		var err error
		s.Unnamed = r.config.Training.Base == ""
		if s.Base, err = r.base(ctx); err != nil {
			return s, err
		}
	}
	if s.Base != "" && s.Base != pipeline.SmolLM2 && !strings.HasPrefix(s.Base, kernelwright.PolicyPrefix) {
		whole, err := filepath.Abs(s.Base)
		if err != nil {
			return s, err
		}
		s.Base = whole
	}
	if s.Small && s.Base != "" {
		s.Recipe = s.Recipe.ForModel()
	}
	return s, ctx.Err()
}

// base is what is trained where nobody says: what the settings name, else the policy
// that serves, else a model from nothing.
func (r *room) base(ctx context.Context) (string, error) {
	if named := r.config.Training.Base; named != "" {
		return named, nil
	}
	p, err := r.policies.Find(ctx, policies.Current)
	if none, ok := errors.AsType[*policies.Error](err); ok && none.Missing {
		return "", nil
	}
	return kernelwright.PolicyPrefix + p.Name(), err
}

// recipe is that of the settings.
func (r *room) recipe(small bool) pipeline.Recipe {
	if small {
		return pipeline.Small()
	}
	t := r.config.Training
	p := pipeline.Default()
	p.LowMS, p.HighMS = milliseconds(t.EagerMin), milliseconds(t.EagerMax)
	p.Tasks[store.TrainSplit] = t.Tasks
	p.Tasks[store.TaughtSplit] = max(0, t.Pairs/teach.DefaultEach-t.Tasks)
	p.Pairs, p.WarmupSteps, p.AgenticSteps, p.TasksPerStep, p.SamplesPerTask = t.Pairs, t.WarmupSteps, t.AgenticSteps, t.TasksPerStep, t.SamplesPerTask
	p.Rounds, p.AnswerTokens, p.Lora, p.Processes = t.Rounds, t.AnswerTokens, t.LoraRank, t.Processes
	return p
}

// find returns the number and the settings of the pipeline that is gone on with; 0: a
// new one is to begin, with the settings that it was given.
func (c trainRunCmd) find(ctx context.Context, s *store.Store, asked pipeline.Settings) (int64, pipeline.Settings, error) {
	var found pipeline.Settings
	id, err := pipeline.Newest(ctx, s, func(p store.Pipeline, of pipeline.Settings) (bool, error) {
		found = of
		switch {
		case c.Pipeline != 0:
			return p.ID == c.Pipeline, nil
		case c.Stage != "" && !c.Small && c.Base == "":
			return !of.Trial(), nil
		}
		return (p.FinishedMS == 0 || c.Stage != "") && asked.Same(of), nil
	})
	switch {
	case err == nil:
		return id, found, nil
	case !errors.Is(err, store.ErrNotFound):
		return 0, found, err
	case c.Pipeline != 0:
		return 0, found, notFound(fmt.Sprintf("there is no pipeline %d", c.Pipeline), "`kernelwright train ls` lists them")
	case c.Stage != "" && c.Stage != pipeline.Synthesise:
		return 0, found, notFound("no pipeline was begun with these flags and settings, so nothing is there for stage "+c.Stage, "`kernelwright train run` does what comes before, too; `kernelwright train ls` lists the pipelines")
	}
	return 0, asked, nil
}

// begin opens the pipeline of a number, or a new one.
func begin(ctx context.Context, parts pipeline.Parts, id int64, s pipeline.Settings) (*pipeline.Pipeline, error) {
	if id == 0 {
		return pipeline.Begin(ctx, parts, s)
	}
	return pipeline.Open(ctx, parts, id)
}

// newestPipeline is the number of the one that was begun last, or store.ErrNotFound.
func newestPipeline(ctx context.Context, s *store.Store) (int64, error) {
	all, err := s.Pipelines(ctx, store.Page{Oldest: true})
	if err == nil && len(all) == 0 {
		err = store.ErrNotFound
	}
	if err != nil {
		return 0, err
	}
	return all[len(all)-1].ID, nil
}

// stageFailure says what ended a pipeline.
func stageFailure(ctx context.Context, err error) error {
	var stage *pipeline.StageError
	if !errors.As(err, &stage) {
		return interruption(ctx, err)
	}
	switch stage.Status {
	case store.StageStopped:
		return errInterrupted
	case store.StageBadInput:
		return &Error{Code: ExitUsage, Text: stage.Reason, Hint: stage.Hint}
	}
	return &Error{Code: ExitFailure, Text: strings.ReplaceAll(string(stage.Status), "_", " ") + ": " + stage.Reason, Hint: stage.Hint}
}

// stageObject is what --json prints of a stage.
type stageObject struct {
	store.Stage
	Seconds  float64           `json:"seconds" keep:"zero"`
	HeldOut  *pipeline.HeldOut `json:"held_out"`
	Decision string            `json:"decision,omitempty"`
	Outputs  *pipeline.Outputs `json:"outputs"`
}

func stageObjectOf(s store.Stage) (stageObject, error) {
	o := stageObject{Stage: s, Seconds: s.Seconds}
	if len(s.Outputs) == 0 {
		return o, nil
	}
	o.Outputs = &pipeline.Outputs{}
	if err := json.Unmarshal(s.Outputs, o.Outputs); err != nil {
		return o, fmt.Errorf("the outputs of stage %s: %w", s.Stage, err)
	}
	o.HeldOut, o.Decision = o.Outputs.HeldOut, o.Outputs.Decision
	o.Outputs.HeldOut = nil // it is said once
	return o, nil
}

// trainTeller says what a pipeline does: on standard error as it goes, and with --json
// each stage on standard output when it ends.
type trainTeller struct {
	a      *app
	show   *progress
	seen   map[string]bool
	gate   *stageObject
	turned *stageObject // what became of the promotion
	failed error
}

func (t *trainTeller) tell(e pipeline.Event) {
	s := e.Stage
	switch {
	case e.Ended:
		t.ended(s)
	case e.Part == "":
		fmt.Fprintf(lines{t.show}, "%s: begins\n", s.Stage)
	default:
		text := e.Part
		if e.Steps > 0 {
			text = fmt.Sprintf("%s %d of %d", e.Part, e.Step, e.Steps)
		}
		if note := stepNote(e.Metrics); note != "" {
			text += "  " + note
		}
		if e.Note != "" && e.Steps == 0 {
			fmt.Fprintf(lines{t.show}, "%s: %s\n", s.Stage, report.Line(e.Note))
		}
		t.show.step(s.Stage, text)
	}
}

// stepNote is what is said of a step.
func stepNote(metrics map[string]any) string {
	var parts []string
	for _, name := range []string{"loss", "reward", "correct_rate", "value_loss", "entropy"} {
		if v, ok := metrics[name].(float64); ok {
			parts = append(parts, fmt.Sprintf("%s %.3g", strings.ReplaceAll(name, "_", " "), v))
		}
	}
	return strings.Join(parts, ", ")
}

func (t *trainTeller) ended(s store.Stage) {
	o, err := stageObjectOf(s)
	if err != nil {
		t.failed = errors.Join(t.failed, err)
		return
	}
	line := fmt.Sprintf("%s: %s, %.0f s, %d verdicts", s.Stage, strings.ReplaceAll(string(s.Status), "_", " "), s.Seconds, s.Verdicts)
	if s.Reason != "" {
		line += "  " + report.Line(s.Reason)
	}
	if h := o.HeldOut; h != nil {
		line += "  held out: " + ratesLine("compositions", h.Compositions) + "; " + ratesLine("kinds", h.Kinds)
	}
	fmt.Fprintln(lines{t.show}, line)
	switch {
	case !t.a.json:
	case s.Stage == pipeline.GateStage && s.Status.Finished():
		t.gate = &o // it is the last one: what comes after it belongs to it
	case s.Stage == pipeline.Promote && s.Status.Finished():
		t.turned = &o
	default:
		t.failed = errors.Join(t.failed, t.a.printLine(o))
	}
}

func ratesLine(name string, r *pipeline.Rates) string {
	if r == nil {
		return "no " + name
	}
	return fmt.Sprintf("%s %.0f %% correct, reward %.2f", name, 100*r.Correct, r.Reward)
}

// end prints what came of it all.
func (t *trainTeller) end(r *room, id int64) error {
	if t.a.json && t.gate == nil {
		return nil // of one stage alone
	}
	stages, err := r.store.Stages(context.WithoutCancel(t.a.ctx), id)
	if err != nil {
		return err
	}
	power, err := r.power(context.WithoutCancel(t.a.ctx), id, stages)
	if err != nil {
		return err
	}
	if t.a.json {
		return t.a.printLine(lastObjectOf(*t.gate, t.turned, stages, power))
	}
	if err := printStages(t.a, stages); err != nil || len(power) == 0 {
		return err
	}
	return t.a.printf("gate: %s\n", gate.Odds(power))
}

// lastObject is what --json prints of the gate, with what is said of the whole pipeline.
type lastObject struct {
	stageObject
	// Novel is the share of the right answers at the gate that are no copies of what the
	// policy was taught by, or of a point of the built-in Coder's schedules.
	Novel              *float64         `json:"novel"`
	Novelty            *teach.Novelty   `json:"novelty"`
	TokensPerCandidate *float64         `json:"tokens_per_candidate"`
	CharactersPerToken *float64         `json:"characters_per_token"`
	StageVerdicts      map[string]int64 `json:"stage_verdicts"`
	Power              []gate.Strength  `json:"power"` // of the gate: what simulated nights say of its settings
}

// lastObjectOf is it. A policy that the gate let through, and that could not answer, is
// refused.
func lastObjectOf(held stageObject, turned *stageObject, stages []store.Stage, power []gate.Strength) lastObject {
	o := lastObject{stageObject: held, StageVerdicts: map[string]int64{}, Power: power}
	if turned != nil && turned.Decision != "" && turned.Decision != held.Decision {
		o.Decision, o.Reason = turned.Decision, turned.Reason
	}
	for _, s := range stages {
		o.StageVerdicts[s.Stage] += s.Verdicts
	}
	if held.Outputs != nil && held.Outputs.Novelty != nil {
		n := held.Outputs.Novelty
		o.Novelty, o.TokensPerCandidate, o.CharactersPerToken = n, n.Tokens, n.CharactersPerToken
		if n.Share != nil {
			novel := 1 - *n.Share
			o.Novel = &novel
		}
	}
	return o
}

// power is what simulated nights say of the last gate of a pipeline; where none had to be
// held, of the one that it would have had. It is nil before that.
func (r *room) power(ctx context.Context, id int64, stages []store.Stage) ([]gate.Strength, error) {
	for _, s := range slices.Backward(stages) {
		o, err := stageObjectOf(s)
		if err != nil {
			return nil, err
		}
		if s.Stage != pipeline.GateStage || o.Outputs == nil {
			continue
		}
		if o.Outputs.Gate == 0 {
			row, err := r.store.Pipeline(ctx, id)
			if err != nil {
				return nil, err
			}
			var of pipeline.Settings
			err = json.Unmarshal(row.Settings, &of)
			return gate.Strengths(of.Recipe.Gate, gate.StrengthNights), err
		}
		held, err := r.store.Gate(ctx, o.Outputs.Gate)
		if err != nil {
			return nil, err
		}
		read, err := gate.Read(ctx, r.store, held.Name)
		return read.Powers, err
	}
	return nil, nil
}
