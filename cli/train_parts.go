package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"

	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/trainer/daydata"
	"github.com/kernelwright/kernelwright/trainer/episodes"
	"github.com/kernelwright/kernelwright/trainer/pipeline"
	"github.com/kernelwright/kernelwright/trainer/rl"
	"github.com/kernelwright/kernelwright/trainer/tasks"
	"github.com/kernelwright/kernelwright/trainer/teach"
)

// trainParts are what pipelines are made of, by the settings. The second result closes
// what they have opened.
func (r *room) trainParts(a *app, show *progress, tell func(pipeline.Event)) (pipeline.Parts, func() error) {
	t := &trained{room: r, open: map[episodes.Conditions]episodes.Hardware{}}
	p := pipeline.Parts{
		Store: r.store, DataDir: r.folder, Log: r.log, Tell: tell,
		Python: func(ctx context.Context) (rl.Python, error) {
			python, err := r.interpreter(ctx, t)
			if err != nil {
				return rl.Python{}, err
			}
			return rl.Open(ctx, rl.Options{DataDir: r.folder, Interpreter: python, Python: r.config.Training.Python, Progress: show.stage})
		},
		Tasks: func(ctx context.Context, recipe pipeline.Recipe, seed int64) (pipeline.Tasks, error) {
			return r.taskParts(a, show, recipe, seed)
		},
		Episodes: func(ctx context.Context) (episodes.Options, error) {
			if _, err := t.hardware(ctx, episodes.Conditions{StrictInputs: true}); err != nil {
				return episodes.Options{}, err
			}
			return t.options()
		},
		Verifiers: t.verifiers,
		DayData: func(ctx context.Context, folder string) (string, int, error) {
			filter, done, err := r.dayData(ctx, a.env)
			if err != nil {
				return "", 0, err
			}
			defer done()
			counts, err := daydata.Export(ctx, r.store, filter, folder)
			return filepath.Join(folder, daydata.PairsFile), counts.Trajectories, err
		},
		Smoke:  r.servers.Smoke,
		Leases: hwfeedback.LeaseFolder(), Unprotected: len(r.config.Training.Protected) == 0,
	}
	p.Measures, p.Trains = r.gpus()
	return p, t.close
}

// mostVerifiers is how many evaluators verify side by side: each has a PyTorch of its own in memory.
const mostVerifiers = 4

// verifiers are evaluators of the device of training that have it together, as nothing is timed.
func (t *trained) verifiers(ctx context.Context) (found []teach.Hardware, shut func() error, err error) {
	r := t.room
	o := r.options(func(stage, note string) { r.log.Debug(stage, "note", note) })
	o.StrictInputs, o.AtOnce = true, 1 // there are several of them
	var opened []*hwfeedback.Evaluator
	shut = func() error { return closeAll(opened) }
	leases := hwfeedback.Shared(r.leases())
	for range min(mostVerifiers, runtime.GOMAXPROCS(0)) {
		e, err := hwfeedback.Open(ctx, o, r.store, leases)
		if err != nil {
			return nil, nil, errors.Join(err, shut())
		}
		opened = append(opened, e)
		found = append(found, hwfeedback.Untimed{Evaluator: e})
	}
	return found, shut, nil
}

// interpreter is the Python that has PyTorch, which opening the hardware finds or makes.
func (r *room) interpreter(ctx context.Context, t *trained) (string, error) {
	if _, err := t.hardware(ctx, episodes.Conditions{StrictInputs: true}); err != nil {
		return "", err
	}
	return t.opened[0].Interpreter(), nil
}

// taskParts are what a set of tasks is made by.
func (r *room) taskParts(a *app, show *progress, recipe pipeline.Recipe, seed int64) (p pipeline.Tasks, err error) {
	maker, es, err := r.taskMaker(a, show)
	if err != nil {
		return p, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, closeAll(es))
		}
	}()
	catalogue, err := tasks.Crawl(a.ctx, r.folder, es[0].Interpreter(), es[0].Device().Key, func(n, of int) { show.step(pipeline.Synthesise, fmt.Sprintf("operators of PyTorch %d of %d", n, of)) })
	if err != nil {
		return p, err
	}
	c := trainTasksMakeCmd{Seed: seed, Small: recipe.LowMS < 1}
	s, err := c.settings(a, r, es[0], catalogue)
	if err != nil {
		return p, err
	}
	s.Wanted, s.LowMS, s.HighMS = recipe.Tasks, recipe.LowMS, recipe.HighMS
	if len(recipe.Kinds) > 0 {
		s.Kinds, s.Ranks, s.Shares, s.Modules = recipe.Kinds, recipe.Ranks, recipe.Shares, 0
	}
	maker.Catalogue, maker.Workers = catalogue, 1
	return pipeline.Tasks{Maker: maker, Settings: s, Close: func() error { return closeAll(es) }}, nil
}
