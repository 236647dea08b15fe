package pipeline

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"time"

	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/episodes"
	"github.com/kernelwright/kernelwright/trainer/rl"
	"github.com/kernelwright/kernelwright/trainer/tasks"
)

// The names of the stages.
const (
	Synthesise = "synthesise"
	Bootstrap  = "bootstrap"
	Warmup     = "warmup"
	Collect    = "collect"
	RFT        = "rft"
	Critic     = "critic"
	Agentic    = "agentic"
	GateStage  = "gate"
	Promote    = "promote"
)

// Stage is a kind of stage.
type Stage struct {
	Name  string
	needs []string // the stages whose outputs it works on
	// budget is what it may use, as the record has it.
	budget func(Settings) map[string]any
	// run does it, or goes on with it. What it returns as skipped says why there was
	// nothing to do.
	run func(ctx context.Context, w *work) (out Outputs, skipped string, err error)
}

// Stages are all of them, in their order.
var Stages = []Stage{
	{Synthesise, nil, func(s Settings) map[string]any { return map[string]any{"tasks": s.Recipe.Tasks} }, synthesise},
	{Bootstrap, []string{Synthesise}, func(s Settings) map[string]any {
		return map[string]any{"pairs": s.Recipe.Pairs, "epochs": s.Recipe.Epochs}
	}, bootstrap},
	{Warmup, []string{Synthesise, Bootstrap}, func(s Settings) map[string]any { return ofPPO(s, s.Recipe.WarmupSteps, 1) }, warmup},
	{Collect, []string{Synthesise, Warmup}, func(s Settings) map[string]any {
		return map[string]any{"samples": s.Recipe.CollectSamples, "rounds": s.Recipe.Rounds}
	}, collect},
	{RFT, []string{Synthesise, Warmup, Collect}, func(s Settings) map[string]any { return map[string]any{"epochs": s.Recipe.RFTEpochs} }, rft},
	{Critic, []string{Collect, RFT}, func(s Settings) map[string]any { return map[string]any{"epochs": s.Recipe.CriticEpochs} }, critic},
	{Agentic, []string{Synthesise, RFT, Critic}, func(s Settings) map[string]any { return ofPPO(s, s.Recipe.AgenticSteps, s.Recipe.Rounds) }, agentic},
	{GateStage, []string{Synthesise, Bootstrap, Agentic}, func(s Settings) map[string]any { return map[string]any{"gate": s.Recipe.Gate} }, holdGate},
	{Promote, []string{GateStage}, func(Settings) map[string]any { return map[string]any{} }, promote},
}

// trial are those of a gate by itself.
var trial = []Stage{Stages[0], {GateStage, []string{Synthesise}, Stages[7].budget, holdGate}}

// stages are the pipeline's.
func (l *Pipeline) stages() []Stage {
	if l.settings.Trial() {
		return trial
	}
	return Stages
}

func ofPPO(s Settings, steps, rounds int) map[string]any {
	return map[string]any{"steps": steps, "tasks_per_step": s.Recipe.TasksPerStep, "samples_per_task": s.Recipe.SamplesPerTask, "rounds": rounds}
}

// Names are the stages' names.
func Names() []string {
	all := make([]string, len(Stages))
	for i, s := range Stages {
		all[i] = s.Name
	}
	return all
}

// full reports whether there was no room on a disk.
func full(err error) bool {
	return errors.Is(store.Trouble(err), store.ErrFull) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// noteEvery is how often is recorded how far a stage is.
const noteEvery = time.Second

// program runs one of package rl's programs as a part of the attempt. What it says at
// its end is read into end.
func (w *work) program(ctx context.Context, part, module string, settings map[string]any, end any) error {
	return w.programIn(ctx, w.recipe().Processes, part, module, settings, end)
}

// programIn is program in so many processes.
func (w *work) programIn(ctx context.Context, processes int, part, module string, settings map[string]any, end any) error {
	python, err := w.l.interpreter(ctx)
	if err != nil {
		return err
	}
	var by *host
	if processes <= 1 {
		if by, err = w.l.starter(python); err != nil {
			return err
		}
	}
	p := program{host: by, python: python, module: module, folder: w.folder(part), settings: settings, home: w.l.parts.DataDir, processes: processes}
	if w.l.env != nil {
		p.env = w.l.env.env()
	}
	var noted time.Time
	p.tell = func(l line) {
		switch l.Event {
		case "step":
			if time.Since(noted) >= noteEvery {
				noted = time.Now()
				if err := w.note(ctx); err != nil {
					w.l.parts.Log.Warn("how far a stage is cannot be recorded", "error", err)
				}
			}
			w.tell(Event{Part: part, Step: l.Step, Steps: l.Steps, Metrics: l.Metrics})
		case "note":
			w.tell(Event{Part: part, Note: l.Text})
		}
	}
	err = p.run(ctx, end)
	if err != nil && by != nil { // it may be what was killed
		by.close()
		w.l.host = nil
	}
	return err
}

// interpreter finds or makes the environment of the programs, once.
func (l *Pipeline) interpreter(ctx context.Context) (rl.Python, error) {
	if l.python == nil {
		p, err := l.parts.Python(ctx)
		if err != nil {
			return p, err
		}
		l.python = &p
	}
	return *l.python, nil
}

// starter is what starts programs on a CPU, where importing takes longer than a small
// stage: nil for a GPU, which no fork can use.
func (l *Pipeline) starter(python rl.Python) (*host, error) {
	if l.settings.Recipe.Device != "cpu" {
		return nil, nil
	}
	if l.host == nil {
		h, err := newHost(python, l.parts.DataDir)
		if err != nil {
			return nil, err
		}
		l.host = h
	}
	return l.host, nil
}

// environment begins to serve episodes, once.
func (l *Pipeline) environment(ctx context.Context) (*environment, error) {
	if l.env != nil {
		return l.env, nil
	}
	o, err := l.parts.Episodes(ctx)
	if err != nil {
		return nil, err
	}
	l.env, err = serve(ctx, o)
	return l.env, err
}

// tasks returns the tasks of the pipeline's set that are of some splits, and writes
// them to a file of the attempt.
func (w *work) tasks(ctx context.Context, name string, splits ...store.Split) (string, []tasks.Task, error) {
	set, err := w.l.parts.Store.TaskSet(ctx, w.in[Synthesise].Set)
	if err != nil {
		return "", nil, err
	}
	draws, err := w.l.parts.Store.TaskDraws(ctx, set.ID, true)
	if err != nil {
		return "", nil, err
	}
	all, err := tasks.Decode(draws)
	if err != nil {
		return "", nil, err
	}
	var chosen []tasks.Task
	for _, split := range splits {
		for _, t := range all {
			if t.Split == split {
				chosen = append(chosen, t)
			}
		}
	}
	path := w.folder(name)
	if err := makeFolder(filepath.Dir(path)); err != nil {
		return "", nil, err
	}
	return path, chosen, tasks.Export(path, chosen)
}

// machine says how programs use the machine.
func (w *work) machine() map[string]any {
	r := w.recipe()
	return map[string]any{"device": r.Device, "micro_tokens": r.MicroTokens, "threads": r.Threads, "gpus": w.l.parts.gpus(r.Processes), "leases": w.l.parts.Leases}
}

// sampling is how answers are sampled.
func (w *work) sampling() map[string]any { return map[string]any{"tokens": w.recipe().AnswerTokens} }

// seed is that of the attempt: a stage that is repeated draws otherwise.
func (w *work) seed() int64 { return w.l.settings.Seed*1_000_003 + int64(w.row.Attempt) }

// request is how an episode is begun: what a policy is asked depends on it, so pairs
// are made for the same.
func (r Recipe) request(rounds int) episodes.Request {
	return episodes.Request{Strategy: "rounds", Rounds: rounds, Tools: "text", MaxTokens: r.AnswerTokens}
}

// parallel is how many episodes a program has open: their verdicts come one after the
// other in any case.
const parallel = 64

// played is what rl.collect says at its end.
type played struct {
	Episodes     int              `json:"episodes"`
	Lost         int              `json:"lost"`
	All          Rates            `json:"all"`
	Splits       map[string]Rates `json:"splits"`
	Trajectories string           `json:"trajectories"`
	Outcomes     string           `json:"outcomes"`
	Tokens       float64          `json:"tokens"`
	Characters   float64          `json:"characters_per_token"`
}

// play has a policy answer tasks, so often and with so many rounds.
func (w *work) play(ctx context.Context, part, policy, file string, samples, rounds int, held bool, seed int64) (played, error) {
	env, err := w.l.environment(ctx)
	if err != nil {
		return played{}, err
	}
	name := w.version(filepath.Base(part))
	served, err := env.settings(name, w.recipe().request(rounds), parallel)
	if err != nil {
		return played{}, err
	}
	var end played
	return end, w.program(ctx, part, "rl.collect", map[string]any{
		"policy": policy, "tasks": file, "samples_per_task": samples, "held_out": held, "seed": seed, "name": name, "sampling": w.sampling(),
		"environment": served, "machine": w.machine(),
	}, &end)
}

// measure says what a policy reaches on held-out tasks.
func (w *work) measure(ctx context.Context, policy string, out *Outputs) error {
	file, held, err := w.tasks(ctx, "held_out.jsonl", store.CompositionsSplit, store.KindsSplit)
	if err != nil || len(held) == 0 {
		return err
	}
	r := w.recipe()
	// The same draws in each stage: what differs is the policy.
	end, err := w.play(ctx, "measure", policy, file, r.HeldSamples, r.HeldRounds, true, w.l.settings.Seed)
	if err != nil {
		return fmt.Errorf("measure the policy: %w", err)
	}
	out.HeldOut = &HeldOut{}
	for split, to := range map[store.Split]**Rates{store.CompositionsSplit: &out.HeldOut.Compositions, store.KindsSplit: &out.HeldOut.Kinds} {
		if rates, there := end.Splits[string(split)]; there {
			*to = &rates
		}
	}
	return nil
}

// trained is what the programs that train say at their end.
type trained struct {
	Policy   string         `json:"policy"`
	Critic   string         `json:"critic"`
	Steps    int            `json:"steps"`
	Episodes int            `json:"episodes"`
	Kept     int            `json:"kept"`
	LeftOut  map[string]int `json:"left_out"`
	Rows     int            `json:"rows"`
	Variance *float64       `json:"held_out_explained_variance"`
}

// keep puts a path into outputs.
func (w *work) keep(to *string, path string) error {
	within, err := w.within(path)
	*to = within
	return err
}
