package pipeline

import (
	"context"
	"fmt"

	"github.com/kernelwright/kernelwright/store"
)

// collect has the policy play the production loop, and keeps what it did.
func collect(ctx context.Context, w *work) (out Outputs, skipped string, err error) {
	r := w.recipe()
	file, _, err := w.tasks(ctx, "tasks.jsonl", store.TrainSplit)
	if err != nil {
		return out, "", err
	}
	end, err := w.play(ctx, "train", w.path(w.in[Warmup].Policy), file, r.CollectSamples, r.Rounds, false, w.seed())
	if err != nil {
		return out, "", err
	}
	out.Counts = map[string]float64{
		"episodes": float64(end.Episodes), "lost": float64(end.Lost), "built": end.All.Built, "correct": end.All.Correct,
		"faster_eager": end.All.FasterEager, "faster_compile": end.All.FasterCompile, "reward": end.All.Reward,
	}
	if end.Tokens > 0 {
		out.Counts["tokens"], out.Counts["characters_per_token"] = end.Tokens, end.Characters
	}
	if err := w.byDay(ctx, &out); err != nil {
		return out, "", err
	}
	return out, "", w.keep(&out.Trajectories, end.Trajectories)
}

// byDay takes what the daemon recorded by day, as far as that may be trained on.
func (w *work) byDay(ctx context.Context, out *Outputs) error {
	if w.l.parts.DayData == nil {
		return nil
	}
	pairs, runs, err := w.l.parts.DayData(ctx, w.folder("day"))
	if err != nil {
		return fmt.Errorf("take what was recorded by day: %w", err)
	}
	out.Counts["runs_by_day"] = float64(runs)
	if runs == 0 {
		return nil
	}
	return w.keep(&out.Pairs, pairs)
}
