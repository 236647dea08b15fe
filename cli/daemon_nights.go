package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/kernelwright/kernelwright/daemon"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/nights"
	"github.com/kernelwright/kernelwright/trainer/pipeline"
)

// plan has a daemon train by the schedule of the settings, on a pipeline.
func (r *room) plan(d *daemon.Daemon, p nights.Pipeline) error {
	s := r.config.Training.Schedule
	table, on, err := s.Timetable()
	if err != nil || !on {
		return err
	}
	hours := func(n float64) time.Duration { return time.Duration(n * float64(time.Hour)) }
	plan := nights.Plan{Table: table, Length: hours(s.Hours), GPU: hours(s.GPUHours)}
	d.Nights = nights.New(plan, r.store, p, d.Waiting, daemon.System{}, r.log)
	return nil
}

// nightly is the staged pipeline as nights run it: that of `train run`.
type nightly struct {
	app  *app
	room *room
}

// Run implements nights.Pipeline.
func (n nightly) Run(ctx context.Context, tell func(nights.Progress)) (out nights.Outcome, err error) {
	c := trainRunCmd{}
	r, err := c.conditions(n.room)
	if err != nil {
		return out, err
	}
	settings, err := c.settings(ctx, r)
	if err != nil {
		return out, err
	}
	quiet := *n.app
	quiet.ctx, quiet.stderr = ctx, io.Discard
	show := newProgress(quiet.stderr)
	defer show.done()
	var mu sync.Mutex // over what is told
	began, gpus := time.Now(), gpusOf(settings.Recipe)
	parts, shut := r.trainParts(&quiet, show, func(e pipeline.Event) {
		mu.Lock()
		defer mu.Unlock()
		logStage(r, e)
		out.Progress = nights.Progress{Pipeline: e.Stage.Pipeline, Stage: e.Stage.Stage, GPU: time.Duration(gpus) * time.Since(began)}
		tell(out.Progress)
	})
	defer func() { err = errors.Join(err, shut()) }()
	p, err := n.open(ctx, r, parts, settings)
	if err != nil {
		return out, err
	}
	out.Pipeline = p.ID()
	err = errors.Join(p.Run(ctx), p.Close())
	out.GPU = time.Duration(gpus) * time.Since(began)
	var stage *pipeline.StageError
	switch {
	case errors.As(err, &stage) && stage.Status == store.StageStopped:
		return out, nil
	case errors.As(err, &stage):
		return out, fmt.Errorf("%s: %w", strings.ReplaceAll(string(stage.Status), "_", " "), err)
	case err != nil:
		return out, err
	}
	out.Done = true
	out.Decision, err = decision(context.WithoutCancel(ctx), r.store, p.ID())
	return out, err
}

// open returns the pipeline that has not come to its gate, or begins one, with a
// seed of its own. One that collapsed would collapse again.
func (n nightly) open(ctx context.Context, r *room, parts pipeline.Parts, s pipeline.Settings) (*pipeline.Pipeline, error) {
	all, err := r.store.Pipelines(ctx)
	if err != nil {
		return nil, err
	}
	for i := len(all) - 1; i >= 0; i-- {
		begun := all[i]
		var of pipeline.Settings
		if err := json.Unmarshal(begun.Settings, &of); err != nil {
			return nil, fmt.Errorf("the settings of pipeline %d: %w", begun.ID, err)
		}
		s.Seed = of.Seed
		like, err := json.Marshal(s)
		if err != nil {
			return nil, err
		}
		if begun.FinishedMS != 0 || string(like) != string(begun.Settings) {
			continue
		}
		stages, err := r.store.Stages(ctx, begun.ID)
		if err != nil {
			return nil, err
		}
		if last := len(stages) - 1; last >= 0 && stages[last].Status == store.StageCollapsed {
			continue
		}
		return pipeline.Open(ctx, parts, begun.ID)
	}
	s.Seed = 1
	if len(all) > 0 {
		s.Seed = all[len(all)-1].ID + 1
	}
	return pipeline.Begin(ctx, parts, s)
}

// decision is what the gate of a pipeline decided.
func decision(ctx context.Context, s *store.Store, id int64) (said string, err error) {
	stages, err := s.Stages(ctx, id)
	for _, stage := range stages {
		o, failed := stageObjectOf(stage)
		if failed != nil {
			return said, failed
		}
		if stage.Stage == pipeline.GateStage && o.Decision != "" {
			said = o.Decision
		}
	}
	return said, err
}

// gpusOf is how many GPUs a recipe trains on.
func gpusOf(r pipeline.Recipe) int {
	if r.Device == "cpu" {
		return 0
	}
	found, err := hwfeedback.Devices("cuda:all")
	if err != nil {
		return 0
	}
	return min(max(1, r.Processes), len(found))
}

func logStage(r *room, e pipeline.Event) {
	log := r.log.With("pipeline", e.Stage.Pipeline, "stage", e.Stage.Stage)
	switch {
	case e.Ended:
		attrs := []any{"status", e.Stage.Status, "seconds", int64(e.Stage.Seconds), "verdicts", e.Stage.Verdicts}
		if e.Stage.Reason != "" {
			attrs = append(attrs, "reason", e.Stage.Reason)
		}
		log.Info("a stage ended", attrs...)
	case e.Part == "":
		log.Info("a stage begins")
	case e.Note != "":
		log.Info("a stage", "part", e.Part, "note", e.Note)
	default:
		log.Debug("a step", "part", e.Part, "step", e.Step, "of", e.Steps)
	}
}
