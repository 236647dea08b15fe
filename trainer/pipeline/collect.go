package pipeline

import (
	"context"

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
	return out, "", w.keep(&out.Trajectories, end.Trajectories)
}
