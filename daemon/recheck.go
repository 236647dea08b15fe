package daemon

import (
	"context"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/store"
)

// Recheck has a kernel that was certified on another device certified on the
// Runner's, as a run of its own with the kernel as its one candidate. One that
// was stopped goes on. What comes of it is in the run's rounds; errors are those
// of Run.
func (r *Runner) Recheck(ctx context.Context, k store.Kept) (Done, error) {
	kernel, err := r.Store.Round(ctx, k.RunID, k.Index)
	if err != nil {
		return Done{}, err
	}
	task, err := r.Store.RunTask(ctx, k.RunID)
	if err != nil {
		return Done{}, err
	}
	of, err := r.Store.Run(ctx, k.RunID)
	if err != nil {
		return Done{}, err
	}
	by := *r
	by.Coder, by.RecordOnly, by.Lessons, by.Share = forge.Given{Candidate: kernel.Candidate}, true, false, false
	q := Request{
		Path:     of.Path,
		Name:     of.TaskName,
		Source:   task.Source,
		Strategy: forge.RecheckStrategy,
		Settings: forge.Settings{Rounds: 1, JudgeMode: forge.JudgeNone},
	}
	fresh := by.newRun(q)
	device := r.Evaluator.Device()
	fresh.Task, fresh.Device, fresh.DeviceKey = task.Fingerprint, device.String(), device.Key
	open, err := r.Store.Runs(ctx, store.RunFilter{Task: fresh.Task, DeviceKey: fresh.DeviceKey, Status: kernelwright.RunRunning})
	if err != nil {
		return Done{}, err
	}
	for _, old := range open {
		if !sameRequest(old, fresh) {
			continue
		}
		rounds, err := r.Store.Rounds(ctx, old.ID)
		if err != nil {
			return Done{}, err
		}
		source, err := r.reference(ctx, old)
		if err != nil || source != q.Source || !r.current(rounds) {
			continue
		}
		if len(rounds) == 0 || rounds[0].Candidate.Source == kernel.Candidate.Source {
			return by.Run(ctx, old, nil)
		}
	}
	run, err := by.begin(ctx, fresh, q)
	if err != nil {
		return Done{}, err
	}
	return by.Run(ctx, run, nil)
}
