package cli

import (
	"errors"
	"fmt"

	"github.com/kernelwright/kernelwright/forge"
)

type historyReplayCmd struct {
	ID int64 `arg:"" name:"run" help:"Number of the run."`
}

// Run makes a run's decisions again, with the recorded verdicts, and says
// where they come out otherwise. It measures nothing, and asks no model: what
// models answered is in the record.
func (c historyReplayCmd) Run(a *app) (err error) {
	r, d, err := a.openRun(c.ID)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := hasRounds(d); err != nil {
		return err
	}
	by, err := r.replaying(d.Run)
	if err != nil {
		return err
	}
	lessons, err := r.store.RunLessons(a.ctx, c.ID)
	if err != nil {
		return err
	}
	diff, err := forge.Replay(a.ctx, d.Rounds, d.Task, d.Run, forge.Parts{
		Device:  d.Device,
		Lessons: lessons,
		Coder:   by.coder,
		Judge:   by.judge,
		Model:   by.model,
		Journal: r.store,
		Skills:  by.skills,
		Prompts: by.prompts,
	})
	if err != nil {
		return cutShort(a.ctx, err)
	}
	var failed error
	if diff != nil {
		failed = &Error{Code: ExitFailure, Text: fmt.Sprintf("run %d does not replay: %s", c.ID, diff), Hint: "the record is of another version, or an agent is not deterministic"}
	}
	if a.json {
		return a.printLast(map[string]any{"run": c.ID, "rounds": len(d.Rounds), "same": diff == nil, "difference": diff}, failed)
	}
	if failed != nil {
		return failed
	}
	unit := "rounds"
	if len(d.Rounds) == 1 {
		unit = "round"
	}
	return a.printf("run %d replays: %d %s, the same decisions\n", c.ID, len(d.Rounds), unit)
}
