package cli

import (
	"context"
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
	app    *app
	room   *room
	served *served // nil: nobody is told of its steps
}

// Run implements nights.Pipeline.
func (n nightly) Run(ctx context.Context, tell func(nights.Progress)) (out nights.Outcome, err error) {
	c := trainRunCmd{}
	r, err := c.conditions(n.room, false)
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
		n.served.step(e)
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
// seed of its own.
func (n nightly) open(ctx context.Context, r *room, parts pipeline.Parts, s pipeline.Settings) (*pipeline.Pipeline, error) {
	newest := int64(0)
	id, err := pipeline.Newest(ctx, r.store, func(p store.Pipeline, of pipeline.Settings) (bool, error) {
		newest = max(newest, p.ID)
		s.Seed = of.Seed
		if p.FinishedMS != 0 || !s.Same(of) {
			return false, nil
		}
		hopeless, err := stuck(ctx, r.store, p.ID)
		return !hopeless, err
	})
	if err == nil {
		return pipeline.Open(ctx, parts, id)
	}
	if !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	s.Seed = newest + 1
	return pipeline.Begin(ctx, parts, s)
}

// failedNights are those after which a pipeline that failed is not gone on with.
const failedNights = 2

// stuck reports whether a pipeline would end like the last time: it collapsed, its
// input is bad, or it failed on several nights. It is not gone on with by night.
func stuck(ctx context.Context, s *store.Store, id int64) (bool, error) {
	stages, err := s.Stages(ctx, id)
	if err != nil || len(stages) == 0 {
		return false, err
	}
	switch stages[len(stages)-1].Status {
	case store.StageCollapsed, store.StageBadInput:
		return true, nil
	case store.StageFailed:
	default:
		return false, nil
	}
	all, err := s.Nights(ctx, store.Page{})
	failed := 0
	for _, n := range all {
		if n.Pipeline == id && n.Stop == store.NightFailed {
			failed++
		}
	}
	return failed >= failedNights, err
}

// decision is what the gate of a pipeline decided.
func decision(ctx context.Context, s *store.Store, id int64) (said string, err error) {
	stages, err := s.Stages(ctx, id)
	for _, stage := range stages {
		o, failed := stageObjectOf(stage)
		if failed != nil {
			return said, failed
		}
		// One that the gate let through, and that cannot answer, is refused after it.
		if (stage.Stage == pipeline.GateStage || stage.Stage == pipeline.Promote) && o.Decision != "" {
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
