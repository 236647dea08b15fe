package cli

import (
	"fmt"

	"github.com/kernelwright/kernelwright/coder"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/judge"
)

type historyReplayCmd struct {
	ID int64 `arg:"" name:"run" help:"Number of the run."`
}

// Run makes a run's decisions again, with the recorded verdicts, and says
// where they come out otherwise. It measures nothing.
func (c historyReplayCmd) Run(a *app) error {
	d, err := a.openRounds(c.ID)
	if err != nil {
		return err
	}
	if want := (coder.Builtin{}).Name(); d.Run.Coder != want {
		return usage(fmt.Sprintf("run %d was coded by %q, which cannot be asked again", c.ID, d.Run.Coder), "only runs of the built-in Coder and Judge are replayed")
	}
	diff, err := forge.Replay(a.ctx, d.Rounds, d.Task, d.Run, forge.Parts{Device: d.Device, Coder: coder.Builtin{}, Judge: judge.Rules{}})
	if err != nil {
		return cutShort(a.ctx, err)
	}
	said := a.json
	if said {
		if err := a.printJSON(map[string]any{"run": c.ID, "rounds": len(d.Rounds), "same": diff == nil, "difference": diff}); err != nil {
			return err
		}
		a.json = false // the object is out; the exit code says the rest
	}
	if diff != nil {
		return &Error{Code: ExitFailure, Text: fmt.Sprintf("run %d does not replay: %s", c.ID, diff), Hint: "the record is of another version, or an agent is not deterministic"}
	}
	if said {
		return nil
	}
	return a.printf("run %d replays: %d rounds, the same decisions\n", c.ID, len(d.Rounds))
}
