package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/pipeline"
	"github.com/kernelwright/kernelwright/trainer/teach"
)

type trainLsCmd struct{}

// Run lists pipelines.
func (trainLsCmd) Run(a *app) (err error) {
	r, err := a.openRecord()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	all, err := r.store.Pipelines(a.ctx, store.Page{Oldest: true})
	if err != nil {
		return err
	}
	found := []pipelineObject{}
	for _, p := range all {
		o, err := r.pipelineObject(a.ctx, p)
		if err != nil {
			return err
		}
		found = append(found, o)
	}
	if a.json {
		return a.printJSON(map[string]any{"pipelines": found})
	}
	if len(found) == 0 {
		return a.printf("no pipelines: `kernelwright train run --small` begins one\n")
	}
	rows := [][]string{{"pipeline", "begun", "base", "stage", "status", "decision"}}
	for _, o := range found {
		base := o.Base
		if base == "" {
			base = "nothing"
		}
		rows = append(rows, []string{strconv.FormatInt(o.ID, 10), ago(o.CreatedMS, time.Now()), report.Line(base), o.Stage, strings.ReplaceAll(o.Status, "_", " "), o.Decision})
	}
	return ignoreClosed(report.Columns(a.stdout, rows, map[int]bool{1: true, 2: true, 3: true, 4: true, 5: true}))
}

// pipelineObject is what is said of a pipeline in one line.
type pipelineObject struct {
	ID         int64   `json:"pipeline"`
	CreatedMS  int64   `json:"created" time:"ms"`
	FinishedMS int64   `json:"finished" time:"ms"`
	Small      bool    `json:"small"`
	Base       string  `json:"base"`
	Stage      string  `json:"stage"` // the last one
	Status     string  `json:"status"`
	Seconds    float64 `json:"seconds" keep:"zero"`
	Verdicts   int64   `json:"verdicts" keep:"zero"`
	Decision   string  `json:"decision"`
}

func (r *room) pipelineObject(ctx context.Context, p store.Pipeline) (pipelineObject, error) {
	var s pipeline.Settings
	if err := json.Unmarshal(p.Settings, &s); err != nil {
		return pipelineObject{}, fmt.Errorf("the settings of pipeline %d: %w", p.ID, err)
	}
	o := pipelineObject{ID: p.ID, CreatedMS: p.CreatedMS, FinishedMS: p.FinishedMS, Small: s.Small, Base: s.Base}
	if s.Trial() { // nothing is trained
		o.Base = s.Candidate
	}
	stages, err := r.store.Stages(ctx, p.ID)
	if err != nil {
		return o, err
	}
	for _, st := range stages {
		one, err := stageObjectOf(st)
		if err != nil {
			return o, err
		}
		o.Stage, o.Status = st.Stage, r.shownStatus(st)
		o.Seconds, o.Verdicts = o.Seconds+st.Seconds, o.Verdicts+st.Verdicts
		if st.Stage == pipeline.GateStage {
			o.Decision = one.Decision
		}
	}
	return o, nil
}

// statusInterrupted is of a stage whose process is gone.
const statusInterrupted = "interrupted"

// shownStatus is a stage's status: one that runs where nobody works was interrupted.
func (r *room) shownStatus(s store.Stage) string {
	if s.Status == store.StageRunning && !worked(r.folder) {
		return statusInterrupted
	}
	return string(s.Status)
}

// worked reports whether the process that holds the data folder is there.
func worked(folder string) bool {
	text, err := os.ReadFile(filepath.Join(folder, "lock"))
	var holder struct {
		PID int `json:"pid"`
	}
	if err != nil || json.Unmarshal(text, &holder) != nil || holder.PID <= 0 {
		return false
	}
	_, err = os.Stat(filepath.Join("/proc", strconv.Itoa(holder.PID)))
	return err == nil
}

type trainShowCmd struct {
	Pipeline int64  `arg:"" help:"Number of the pipeline."`
	Stage    string `arg:"" optional:"" help:"A stage: what it was given, what it left, and its curves."`
}

// Run shows a pipeline or a stage.
func (c trainShowCmd) Run(a *app) (err error) {
	r, err := a.openRecord()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	stages, err := r.stagesOf(a.ctx, c.Pipeline)
	if err != nil {
		return err
	}
	if c.Stage == "" {
		if a.json {
			return a.printJSON(map[string]any{"pipeline": c.Pipeline, "stages": objectsOf(stages)})
		}
		return printStages(a, stages)
	}
	stages = slices.DeleteFunc(stages, func(s store.Stage) bool { return s.Stage != c.Stage })
	if len(stages) == 0 {
		return notFound(fmt.Sprintf("pipeline %d has begun no stage %s", c.Pipeline, c.Stage), "`kernelwright train show "+fmt.Sprint(c.Pipeline)+"` lists those that it has")
	}
	return r.showStage(a, stages)
}

// stagesOf returns the attempts of a pipeline, or that there is none.
func (r *room) stagesOf(ctx context.Context, id int64) ([]store.Stage, error) {
	if _, err := r.store.Pipeline(ctx, id); err != nil {
		if errors.Is(err, store.ErrNotFound) {
			return nil, notFound(fmt.Sprintf("there is no pipeline %d", id), "`kernelwright train ls` lists them")
		}
		return nil, err
	}
	return r.store.Stages(ctx, id)
}

func objectsOf(stages []store.Stage) []stageObject {
	all := []stageObject{}
	for _, s := range stages {
		if o, err := stageObjectOf(s); err == nil {
			all = append(all, o)
		}
	}
	return all
}

// printStages prints a row for each attempt at a stage.
func printStages(a *app, stages []store.Stage) error {
	rows := [][]string{{"", "", "", "", "compositions", "", "", "", "", "", "kinds"}, {"stage", "status", "seconds", "verdicts", "n", "built", "correct", "> eager", "> compile", "reward", "n", "built", "correct", "> eager", "> compile", "reward"}}
	var first, last *pipeline.HeldOut
	var notes []string
	for _, s := range stages {
		o, err := stageObjectOf(s)
		if err != nil {
			return err
		}
		name := s.Stage
		if s.Attempt > 1 {
			name += fmt.Sprintf(" (%d)", s.Attempt)
		}
		row := []string{name, strings.ReplaceAll(string(s.Status), "_", " "), fmt.Sprintf("%.0f", s.Seconds), fmt.Sprint(s.Verdicts)}
		if h := o.HeldOut; h != nil {
			row = append(append(row, rateCells(h.Compositions)...), rateCells(h.Kinds)...)
			if first == nil {
				first = h
			}
			if s.Stage != pipeline.GateStage { // it has other tasks, and more answers
				last = h
			}
		}
		rows = append(rows, row)
		if s.Reason != "" {
			notes = append(notes, s.Stage+": "+report.Line(s.Reason))
		}
		notes = append(notes, counted(s.Stage, o.Outputs)...)
	}
	if err := report.Columns(a.stdout, rows, map[int]bool{0: true, 1: true}); err != nil {
		return ignoreClosed(err)
	}
	if note := heldNote(first, last); note != "" {
		notes = append(notes, note)
	}
	if len(notes) == 0 {
		return nil
	}
	return a.printf("\n%s\n", strings.Join(notes, "\n"))
}

func rateCells(r *pipeline.Rates) []string {
	if r == nil {
		return []string{"0", "–", "–", "–", "–", "–"}
	}
	p := func(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) }
	return []string{fmt.Sprint(r.N), p(r.Built), p(r.Correct), p(r.FasterEager), p(r.FasterCompile), fmt.Sprintf("%.2f", r.Reward)}
}

// counted is what of a stage's numbers is said in words.
func counted(stage string, o *pipeline.Outputs) (notes []string) {
	if o == nil {
		return nil
	}
	c := o.Counts
	if from, there := c["reward_first"]; there {
		notes = append(notes, fmt.Sprintf("%s: mean reward on training tasks %.2f in the first step, %.2f in the last; %.0f %% and %.0f %% correct", stage, from, c["reward_last"], 100*c["correct_first"], 100*c["correct_last"]))
	}
	if n := o.Novelty; n != nil && n.Share != nil {
		notes = append(notes, stage+": "+noveltyLine(n))
	}
	if o.Decision != "" && stage == pipeline.GateStage {
		notes = append(notes, fmt.Sprintf("gate: policy v%d is %s: %s", o.Version, o.Decision, report.Line(o.Reason)))
	}
	return notes
}

// noveltyLine says how much of a policy's right answers is its own.
func noveltyLine(n *teach.Novelty) string {
	said := fmt.Sprintf("%.0f %% of %d right answers to held-out tasks (%d different ones) are no copies: neither of what was taught nor of a schedule of the built-in Coder", 100*(1-*n.Share), n.Candidates, n.Different)
	if n.Whole < n.Candidates {
		said += fmt.Sprintf("; %d were compared with a part of their task's schedules", n.Candidates-n.Whole)
	}
	if n.Tokens != nil && n.CharactersPerToken != nil {
		said += fmt.Sprintf("; %.0f tokens a candidate, %.1f characters a token", *n.Tokens, *n.CharactersPerToken)
	}
	return said
}

// heldNote says whether the reward on held-out tasks rose.
func heldNote(first, last *pipeline.HeldOut) string {
	if first == nil || last == nil || first == last {
		return ""
	}
	var parts []string
	for _, s := range []struct {
		name     string
		from, to *pipeline.Rates
	}{{"compositions", first.Compositions, last.Compositions}, {"kinds", first.Kinds, last.Kinds}} {
		if s.from == nil || s.to == nil {
			continue
		}
		word := "did not rise"
		if s.to.Reward > s.from.Reward {
			word = "rose"
		}
		parts = append(parts, fmt.Sprintf("the mean reward on held-out %s %s: %.2f before, %.2f after", s.name, word, s.from.Reward, s.to.Reward))
	}
	return strings.Join(parts, "\n")
}

// showStage prints the last attempt at a stage.
func (r *room) showStage(a *app, attempts []store.Stage) error {
	s := attempts[len(attempts)-1]
	folder := pipeline.StageFolder(r.folder, s)
	curves, err := curvesOf(folder)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(map[string]any{"attempts": objectsOf(attempts), "folder": folder, "curves": curves})
	}
	if err := a.printf("%s, attempt %d of pipeline %d: %s, %.0f s, %d verdicts, begun %d times\n", s.Stage, s.Attempt, s.Pipeline, strings.ReplaceAll(r.shownStatus(s), "_", " "), s.Seconds, s.Verdicts, s.Starts); err != nil {
		return err
	}
	for _, text := range []struct{ name, text string }{{"why", s.Reason}, {"hint", s.Hint}, {"inputs", string(s.Inputs)}, {"budget", string(s.Budget)}, {"outputs", string(s.Outputs)}, {"files", short(folder)}} {
		if text.text == "" {
			continue
		}
		if err := a.printf("%-8s %s\n", text.name, report.Line(text.text)); err != nil {
			return err
		}
	}
	for _, c := range curves {
		if err := a.printf("\n%s\n", c.Part); err != nil {
			return err
		}
		if err := c.table(a); err != nil {
			return err
		}
	}
	return nil
}

// curve is what a part of a stage measured, step by step.
type curve struct {
	Part  string               `json:"part"`
	Steps []map[string]float64 `json:"steps"`
	at    time.Time
}

// curvesOf returns the curves of a stage, the oldest part first.
func curvesOf(folder string) ([]curve, error) {
	found, err := filepath.Glob(filepath.Join(folder, "*", pipeline.MetricsFile))
	if err != nil {
		return nil, err
	}
	all := []curve{}
	for _, path := range found {
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		steps, err := pipeline.Curve(filepath.Dir(path))
		if err != nil {
			return nil, err
		}
		all = append(all, curve{filepath.Base(filepath.Dir(path)), steps, info.ModTime()})
	}
	slices.SortFunc(all, func(x, y curve) int { return x.at.Compare(y.at) })
	return all, nil
}

// shownMetrics are what is shown of a curve, as far as it has them.
var shownMetrics = []string{
	"loss", "reward", "compiled_rate", "correct_rate", "faster_eager_rate", "faster_compile_rate", "speedup_p50", "entropy", "kl_k3", "length", "turns",
	"truncated_rate", "distinct_rate", "cached_rate", "value_loss", "explained_variance", "gradient_norm",
}

// table prints the first and the last steps.
func (c curve) table(a *app) error {
	var names []string
	for _, name := range shownMetrics {
		if slices.ContainsFunc(c.Steps, func(s map[string]float64) bool { _, there := s[name]; return there }) {
			names = append(names, name)
		}
	}
	rows := [][]string{{"step"}}
	for _, name := range names {
		rows[0] = append(rows[0], strings.ReplaceAll(name, "_", " "))
	}
	const shown = 20
	for i, s := range c.Steps {
		if i > 0 && i < len(c.Steps)-shown {
			continue
		}
		row := []string{fmt.Sprintf("%.0f", s["step"])}
		for _, name := range names {
			cell := "–"
			if v, there := s[name]; there {
				cell = fmt.Sprintf("%.4g", v)
			}
			row = append(row, cell)
		}
		rows = append(rows, row)
	}
	return ignoreClosed(report.Columns(a.stdout, rows, nil))
}

type trainRmCmd struct {
	Pipeline int64 `arg:"" help:"Number of the pipeline."`
}

// Run removes a pipeline.
func (c trainRmCmd) Run(a *app) (err error) {
	if err := a.recorded(); err != nil {
		return err
	}
	r, err := a.open(true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if _, err := r.stagesOf(a.ctx, c.Pipeline); err != nil {
		return err
	}
	if err := pipeline.Remove(a.ctx, r.store, r.folder, c.Pipeline); err != nil {
		return dataError(r.folder, err)
	}
	if a.json {
		return a.printJSON(map[string]any{"removed": c.Pipeline})
	}
	return a.printf("pipeline %d is removed; its set of tasks and the policies that were taken in are kept\n", c.Pipeline)
}
