package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/gate"
	"github.com/kernelwright/kernelwright/trainer/pipeline"
	"github.com/kernelwright/kernelwright/trainer/policies"
)

type policyGateCmd struct {
	Policy  string `arg:"" help:"The policy that is to be shown to be better: v3."`
	Against string `help:"The policy that it is held against; without it the best one so far." placeholder:"NAME"`
	Small   bool   `help:"Small tasks on the CPU, and few of them, as train run --small has; without it the conditions under which the policy was trained, or those of the settings."`
	Promote bool   `help:"Have it serve if the gate lets it through."`
	Seed    int64  `help:"Another seed, other tasks." placeholder:"N" default:"1"`
	deviceFlags
}

// Help is shown below the flags.
func (policyGateCmd) Help() string {
	return "The gate of docs/gate.md by itself: tasks are made that are like none of the data folder's, and none of them serves another gate. It is recorded as a pipeline of two stages, synthesise and gate; stopped or killed, the same command goes on with it. `policy show` has its page."
}

// Run holds the gate.
func (c policyGateCmd) Run(a *app) (err error) {
	r, err := a.open(true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	settings, err := c.settings(a.ctx, r)
	if err != nil {
		return err
	}
	under, err := trainRunCmd{deviceFlags: c.deviceFlags}.conditions(r, settings.Small)
	if err != nil {
		return err
	}
	show := newProgress(a.stderr)
	defer show.done()
	quiet := *a
	quiet.json = false // the stages are not what is asked for
	say := &trainTeller{a: &quiet, show: show, seen: map[string]bool{}}
	parts, shut := under.trainParts(a, show, say.tell)
	defer func() { err = errors.Join(err, shut()) }()
	id, err := pipeline.Newest(a.ctx, r.store, func(p store.Pipeline, of pipeline.Settings) (bool, error) {
		return p.FinishedMS == 0 && settings.Same(of), nil
	})
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	p, err := begin(a.ctx, parts, id, settings)
	if err != nil {
		return err
	}
	show.begin(fmt.Sprintf("gate of %s", strings.TrimPrefix(settings.Candidate, kernelwright.PolicyPrefix)))
	err = p.Run(a.ctx)
	show.done()
	if err = errors.Join(err, p.Close()); err != nil {
		return stageFailure(a.ctx, err)
	}
	return c.end(a, under, p.ID())
}

// settings are those of the gate.
func (c policyGateCmd) settings(ctx context.Context, r *room) (pipeline.Settings, error) {
	s := pipeline.Settings{Small: c.Small, Seed: c.Seed}
	candidate, err := r.policies.Find(ctx, c.Policy)
	if err != nil {
		return s, err
	}
	opponent, err := r.opponent(ctx, c.Against)
	if err != nil {
		return s, err
	}
	if candidate.Version == opponent.Version {
		return s, usage(fmt.Sprintf("policy %s cannot be held against itself", candidate.Name()), "name another one with --against; `kernelwright policy ls` lists them")
	}
	s.Candidate, s.Opponent = kernelwright.PolicyPrefix+candidate.Name(), kernelwright.PolicyPrefix+opponent.Name()
	s.Recipe = r.recipe(c.Small)
	if !c.Small && candidate.Origin.Pipeline > 0 {
		row, err := r.store.Pipeline(ctx, candidate.Origin.Pipeline)
		var of pipeline.Settings
		switch {
		case err == nil:
			if err := json.Unmarshal(row.Settings, &of); err != nil {
				return s, fmt.Errorf("the settings of pipeline %d: %w", row.ID, err)
			}
			s.Small, s.Recipe = of.Small, of.Recipe
		case !errors.Is(err, store.ErrNotFound):
			return s, err
		}
	}
	s.Recipe = s.Recipe.ForTrial()
	return s, nil
}

// opponent is the policy of a name; of none the best one so far.
func (r *room) opponent(ctx context.Context, name string) (policies.Policy, error) {
	if name != "" {
		return r.policies.Find(ctx, name)
	}
	p, err := r.policies.Best(ctx)
	if none := new(policies.Error); errors.As(err, &none) && none.Missing {
		return p, usage("no policy has ever served, so there is none to be held against", "name one with --against; `kernelwright policy ls` lists them")
	}
	return p, err
}

// end says what was decided, and does what that asks for.
func (c policyGateCmd) end(a *app, r *room, id int64) error {
	stages, err := r.store.Stages(a.ctx, id)
	if err != nil {
		return err
	}
	var held int64
	for _, s := range stages {
		o, err := stageObjectOf(s)
		if err != nil {
			return err
		}
		if s.Stage == pipeline.GateStage && o.Outputs != nil {
			held = o.Outputs.Gate
		}
	}
	row, err := r.store.Gate(a.ctx, held)
	if err != nil {
		return err
	}
	page, err := pageOf(a.ctx, r.store, row)
	if err != nil {
		return err
	}
	if a.json {
		err = a.printJSON(page)
	} else {
		err = a.printf("%s", report.Clean(page.page))
	}
	if err != nil || !c.Promote || page.Decision != gate.Promoted {
		return err
	}
	p, err := r.policies.Find(a.ctx, row.Candidate)
	if err != nil {
		return err
	}
	_, what, err := r.promote(a, p, held, fmt.Sprintf("gate %d let it through", held))
	if err != nil || a.json {
		return err
	}
	return a.printf("\npolicy %s %s\n", p.Name(), what)
}
