// Package pipeline trains a policy by stages: tasks, a start on the built-in Coder's
// candidates, PPO of one turn, collected trajectories, rejection fine-tuning, a critic,
// PPO of several turns, and a gate that decides what serves. Every stage is a row in
// the store and a folder; it can be stopped, killed, gone on with and repeated.
package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/episodes"
	"github.com/kernelwright/kernelwright/trainer/policies"
	"github.com/kernelwright/kernelwright/trainer/rl"
	"github.com/kernelwright/kernelwright/trainer/tasks"
	"github.com/kernelwright/kernelwright/trainer/teach"
)

// Parts are what a pipeline is made of. Log and Tell may be nil.
type Parts struct {
	Store   *store.Store
	DataDir string
	// Python finds or makes the environment of the programs.
	Python func(ctx context.Context) (rl.Python, error)
	// Tasks opens what decides on tasks.
	Tasks func(ctx context.Context, r Recipe, seed int64) (Tasks, error)
	// Episodes opens what episodes are made of, or returns what it opened before.
	Episodes func(ctx context.Context) (episodes.Options, error)
	// Verifiers open what says of the built-in Coder's candidates whether they are right, side
	// by side; the second result closes it.
	Verifiers func(ctx context.Context) ([]teach.Hardware, func() error, error)
	// DayData writes what of people's runs may be learned from to a folder, as pairs of a
	// prompt and an answer, and returns their file and how many runs they are of; nil: there
	// is none.
	DayData func(ctx context.Context, folder string) (pairs string, runs int, err error)
	// Smoke asks a policy once, before it serves; a *serving.MuteError says that it cannot
	// answer. nil: none is asked.
	Smoke func(ctx context.Context, p policies.Policy) error
	// Leases is the folder of the devices' leases, which programs hold while they compute;
	// empty: they take none. Trains are the numbers of the GPUs that they are to use: where
	// there are several, those on which nothing is measured; Measures those that are measured on.
	Leases           string
	Trains, Measures []int
	// Unprotected: no file is protected, which every page of a gate says.
	Unprotected bool
	Tell        func(Event)
	Log         *slog.Logger
}

// gpus are those of so many processes: those on which nothing is measured, if they are enough.
func (p Parts) gpus(processes int) []int {
	if len(p.Trains) >= max(1, processes) {
		return p.Trains
	}
	return append(append([]int{}, p.Measures...), p.Trains...)
}

// Tasks are a maker of tasks, what a set is to be, and what closes the hardware.
type Tasks struct {
	Maker    tasks.Maker
	Settings tasks.Settings
	Close    func() error
}

// Event is something that has happened to a stage.
type Event struct {
	Stage store.Stage
	// Ended: the stage runs no more. Step of Steps is what its program has done, where
	// Steps is not 0.
	Ended       bool
	Part        string // of the stage: "train", "measure", ...
	Step, Steps int
	Metrics     map[string]any
	Note        string
}

// Pipeline runs the stages of one training.
type Pipeline struct {
	parts    Parts
	row      store.Pipeline
	settings Settings
	python   *rl.Python
	host     *host
	env      *environment
	policies *policies.Registry
}

// Begin records a new pipeline.
func Begin(ctx context.Context, p Parts, s Settings) (*Pipeline, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	row, err := p.Store.BeginPipeline(ctx, text)
	if err != nil {
		return nil, err
	}
	return of(p, row)
}

// Open returns a pipeline that was begun.
func Open(ctx context.Context, p Parts, id int64) (*Pipeline, error) {
	row, err := p.Store.Pipeline(ctx, id)
	if err != nil {
		return nil, err
	}
	return of(p, row)
}

func of(p Parts, row store.Pipeline) (*Pipeline, error) {
	if p.Log == nil {
		p.Log = slog.New(slog.DiscardHandler)
	}
	if p.Tell == nil {
		p.Tell = func(Event) {}
	}
	l := &Pipeline{parts: p, row: row, policies: policies.Open(p.Store, p.DataDir)}
	if err := json.Unmarshal(row.Settings, &l.settings); err != nil {
		return nil, fmt.Errorf("the settings of pipeline %d: %w", row.ID, err)
	}
	return l, nil
}

// Newest returns the number of the newest pipeline that may be meant, or
// store.ErrNotFound.
func Newest(ctx context.Context, s *store.Store, meant func(store.Pipeline, Settings) (bool, error)) (int64, error) {
	all, err := s.Pipelines(ctx, store.Page{Oldest: true})
	if err != nil {
		return 0, err
	}
	for _, p := range slices.Backward(all) {
		var of Settings
		if err := json.Unmarshal(p.Settings, &of); err != nil {
			return 0, fmt.Errorf("the settings of pipeline %d: %w", p.ID, err)
		}
		if is, err := meant(p, of); is || err != nil {
			return p.ID, err
		}
	}
	return 0, fmt.Errorf("a pipeline with these settings: %w", store.ErrNotFound)
}

// ID is its number.
func (l *Pipeline) ID() int64 { return l.row.ID }

// Folder is where a pipeline's files are.
func Folder(dataDir string, id int64) string {
	return filepath.Join(dataDir, "training", strconv.FormatInt(id, 10))
}

// StageFolder is where an attempt's files are.
func StageFolder(dataDir string, s store.Stage) string {
	return filepath.Join(Folder(dataDir, s.Pipeline), fmt.Sprintf("%s-%d", s.Stage, s.Attempt))
}

// Remove forgets a pipeline and removes its files. Sets of tasks stay, for what was
// held out is never trained on, and policies that were taken in do.
func Remove(ctx context.Context, s *store.Store, dataDir string, id int64) error {
	// Files of which nothing is recorded are in nobody's way. A pipeline without its files is.
	if err := s.RemovePipeline(ctx, id); err != nil {
		return err
	}
	return os.RemoveAll(Folder(dataDir, id))
}

// Close closes what stages have opened.
func (l *Pipeline) Close() error {
	var err error
	if l.host != nil {
		l.host.close()
		l.host = nil
	}
	if l.env != nil {
		err = l.env.close()
		l.env = nil
	}
	return err
}

// Run brings the pipeline to its gate. A stage that is finished and whose inputs are
// still the same is not done again. Where ctx is done, the step in progress is
// finished and the error is a *StageError with StageStopped.
func (l *Pipeline) Run(ctx context.Context) error {
	for _, s := range l.stages() {
		if err := l.stage(ctx, s, false); err != nil {
			return err
		}
	}
	return l.parts.Store.FinishPipeline(context.WithoutCancel(ctx), l.row.ID, true)
}

// RunStage does one stage, whose predecessors must be finished. One that is finished
// is done again where again says so.
func (l *Pipeline) RunStage(ctx context.Context, name string, again bool) error {
	for _, s := range l.stages() {
		if s.Name == name {
			if err := l.stage(ctx, s, again); err != nil || l.row.FinishedMS != 0 {
				return err
			}
			whole, err := l.whole(ctx)
			if err != nil || !whole {
				return err
			}
			return l.parts.Store.FinishPipeline(context.WithoutCancel(ctx), l.row.ID, true)
		}
	}
	return fmt.Errorf("there is no stage %q", name)
}

// whole reports whether every stage is finished, with what those before it left last.
func (l *Pipeline) whole(ctx context.Context) (bool, error) {
	latest, err := l.latest(context.WithoutCancel(ctx))
	if err != nil {
		return false, err
	}
	for _, s := range l.stages() {
		last, there := latest[s.Name]
		if !there || !last.Status.Finished() {
			return false, nil
		}
		in, err := l.inputs(s, latest)
		if err != nil {
			return false, err
		}
		inputs, err := json.Marshal(in)
		if err != nil {
			return false, err
		}
		if string(last.Inputs) != string(inputs) {
			return false, nil
		}
	}
	return true, nil
}

// stage brings one stage to its end.
func (l *Pipeline) stage(ctx context.Context, s Stage, again bool) error {
	if ctx.Err() != nil {
		return &StageError{Status: store.StageStopped, Reason: "stopped between two stages", Hint: "the same command goes on"}
	}
	latest, err := l.latest(ctx)
	if err != nil {
		return err
	}
	in, err := l.inputs(s, latest)
	if err != nil {
		return err
	}
	inputs, err := json.Marshal(in)
	if err != nil {
		return err
	}
	if last, there := latest[s.Name]; there && last.Status.Finished() && string(last.Inputs) == string(inputs) && !again {
		l.parts.Tell(Event{Stage: last, Ended: true})
		return nil
	}
	budget, err := json.Marshal(s.budget(l.settings))
	if err != nil {
		return err
	}
	if l.row.FinishedMS != 0 { // what comes after this stage has to be done again
		if err := l.parts.Store.FinishPipeline(ctx, l.row.ID, false); err != nil {
			return err
		}
		l.row.FinishedMS = 0
	}
	row, err := l.parts.Store.BeginStage(ctx, l.row.ID, s.Name, inputs, budget)
	if err != nil {
		return err
	}
	w := &work{l: l, row: row, in: in, began: time.Now(), before: row.Seconds}
	recorded, err := l.parts.Store.PolicyVerdicts(ctx, w.version("")+"-")
	if err != nil {
		return err
	}
	w.asked = max(0, row.Verdicts-recorded)
	w.tell(Event{})
	out, skipped, err := s.run(ctx, w)
	return w.end(ctx, out, skipped, err)
}

// latest returns the newest attempt at each stage.
func (l *Pipeline) latest(ctx context.Context) (map[string]store.Stage, error) {
	all, err := l.parts.Store.Stages(ctx, l.row.ID)
	found := map[string]store.Stage{}
	for _, s := range all {
		if s.Attempt >= found[s.Stage].Attempt {
			found[s.Stage] = s
		}
	}
	return found, err
}

// inputs are the outputs of the stages that a stage needs, by their names.
func (l *Pipeline) inputs(s Stage, latest map[string]store.Stage) (map[string]Input, error) {
	in := map[string]Input{}
	for _, name := range s.needs {
		before, there := latest[name]
		if !there || !before.Status.Finished() {
			return nil, &StageError{Status: store.StageBadInput, Reason: fmt.Sprintf("stage %s needs what %s leaves, and that is not done", s.Name, name), Hint: "`kernelwright train run` does what comes before, too"}
		}
		var out Outputs
		if err := json.Unmarshal(before.Outputs, &out); err != nil {
			return nil, fmt.Errorf("the outputs of stage %s: %w", name, err)
		}
		out.HeldOut, out.Counts, out.Novelty = nil, nil, nil // they decide nothing
		in[name] = Input{Attempt: before.Attempt, Outputs: out}
	}
	return in, nil
}

// Input is what a stage before left.
type Input struct {
	Attempt int `json:"attempt"`
	Outputs
}

// work is an attempt at a stage in progress.
type work struct {
	l      *Pipeline
	row    store.Stage
	in     map[string]Input
	began  time.Time
	before float64 // seconds of earlier starts
	asked  int64   // verdicts that belong to no episode
}

// recipe is the pipeline's. A base that is a policy has been taught.
func (w *work) recipe() Recipe {
	r := w.l.settings.Recipe
	if strings.HasPrefix(w.l.settings.Base, kernelwright.PolicyPrefix) {
		r.Tasks = maps.Clone(r.Tasks)
		delete(r.Tasks, store.TaughtSplit)
	}
	return r
}

// folder is a folder of the attempt.
func (w *work) folder(parts ...string) string {
	return filepath.Join(append([]string{StageFolder(w.l.parts.DataDir, w.row)}, parts...)...)
}

// within is a path as outputs have it, and path the reverse.
func (w *work) within(path string) (string, error) { return filepath.Rel(w.l.parts.DataDir, path) }

func (w *work) path(within string) string {
	if within == "" || filepath.IsAbs(within) {
		return within
	}
	return filepath.Join(w.l.parts.DataDir, within)
}

// version is what the attempt's policy is called in a part of it.
func (w *work) version(part string) string {
	name := fmt.Sprintf("p%d-%s-%d", w.row.Pipeline, w.row.Stage, w.row.Attempt)
	if part != "" {
		name += "-" + part
	}
	return name
}

func (w *work) tell(e Event) {
	e.Stage = w.row
	w.l.parts.Tell(e)
}

// note keeps how far the attempt is: a kill takes none of it away.
func (w *work) note(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	w.row.Seconds = w.before + time.Since(w.began).Seconds()
	n, err := w.l.parts.Store.PolicyVerdicts(ctx, w.version("")+"-")
	if err != nil {
		return err
	}
	w.row.Verdicts = n + w.asked
	return w.l.parts.Store.SaveStage(ctx, w.row)
}

// end records what became of the attempt, and says so.
func (w *work) end(ctx context.Context, out Outputs, skipped string, err error) error {
	w.row.Exit = nil
	switch known := (*StageError)(nil); {
	case err == nil:
		text, failed := json.Marshal(out)
		if failed != nil {
			return failed
		}
		w.row.Status, w.row.Outputs = store.StageDone, text
		if w.row.Reason = skipped; skipped != "" {
			w.row.Status = store.StageSkipped
		}
	case errors.As(err, &known):
		w.row.Status, w.row.Reason, w.row.Hint = known.Status, known.Reason, known.Hint
		if known.Exit != 0 {
			w.row.Exit = &known.Exit
		}
	case ctx.Err() != nil:
		w.row.Status, w.row.Reason, w.row.Hint = store.StageStopped, "stopped on request", "the same command goes on"
		err = &StageError{Status: store.StageStopped, Reason: w.row.Reason, Hint: w.row.Hint}
	case full(err):
		w.row.Status, w.row.Reason = store.StageDisk, err.Error()
		w.row.Hint = "free some space and give the same command again: it goes on where it was"
	default:
		w.row.Status, w.row.Reason, w.row.Hint = store.StageFailed, err.Error(), "the same command tries again, from where it was"
	}
	if failed := w.note(ctx); failed != nil {
		return errors.Join(err, failed)
	}
	w.row.EndedMS = time.Now().UnixMilli()
	w.tell(Event{Ended: true})
	return err
}
