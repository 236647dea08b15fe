package pipeline

import "context"

// critic fits values to everything that was collected, before any update of the policy
// uses them.
func critic(ctx context.Context, w *work) (out Outputs, skipped string, err error) {
	r := w.recipe()
	var end trained
	err = w.program(ctx, "train", "rl.critic", map[string]any{
		"policy": w.path(w.in[RFT].Policy), "trajectories": []string{w.path(w.in[Collect].Trajectories)}, "epochs": r.CriticEpochs, "batch": r.Batch,
		"seed": w.seed(), "lora": map[string]any{"rank": r.Lora}, "machine": w.machine(),
		"optimiser": map[string]any{"lr": r.CriticLR, "warmup": 2}, "saving": map[string]any{"every": max(1, r.SaveEvery)},
	}, &end)
	if err != nil {
		return out, "", err
	}
	if end.Variance != nil {
		out.Counts = map[string]float64{"held_out_explained_variance": *end.Variance}
	}
	return out, "", w.keep(&out.Critic, end.Critic)
}
