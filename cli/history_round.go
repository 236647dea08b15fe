package cli

import (
	"errors"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/report"
)

// showRound prints all that is recorded of one round.
func (a *app) showRound(run int64, index int) (err error) {
	r, d, err := a.openRun(run)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := hasRounds(d); err != nil {
		return err
	}
	round, err := roundOf(d, index)
	if err != nil {
		return err
	}
	if a.json {
		calls := slices.DeleteFunc(append([]llm.Record{}, d.Talk...), func(c llm.Record) bool { return c.Key.Round != index })
		tried := slices.DeleteFunc(append([]llm.Charge{}, d.Attempts...), func(c llm.Charge) bool { return c.Key.Round != index })
		return a.printJSON(map[string]any{"run": run, "task": d.Task.Name, "round": round, "talk": calls, "attempts": attempts(tried)})
	}
	var b strings.Builder
	report.WriteRound(&b, d, round)
	return a.printf("%s", b.String())
}
