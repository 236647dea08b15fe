package pipeline

import "context"

// rft trains the policy on what it did well itself. Where that was nothing, the policy
// stays as it is.
func rft(ctx context.Context, w *work) (out Outputs, skipped string, err error) {
	r := w.recipe()
	before := w.path(w.in[Warmup].Policy)
	var end trained
	pairs := []string{}
	if path := w.in[Collect].Pairs; path != "" { // of people's runs
		pairs = append(pairs, w.path(path))
	}
	err = w.program(ctx, "train", "rl.rft", map[string]any{
		"policy": before, "pairs": pairs, "trajectories": []string{w.path(w.in[Collect].Trajectories)}, "may_be_none": true, "epochs": r.RFTEpochs, "batch": r.Batch,
		"longest": r.Context, "seed": w.seed(), "lora": map[string]any{"rank": r.Lora}, "machine": w.machine(),
		"optimiser": map[string]any{"lr": r.RFTLR, "warmup": 2, "schedule": "cosine"}, "saving": map[string]any{"every": max(1, r.SaveEvery)},
	}, &end)
	if err != nil {
		return out, "", err
	}
	out.Counts = map[string]float64{"episodes": float64(end.Episodes), "kept": float64(end.Kept)}
	if end.Policy == "" {
		end.Policy, skipped = before, "no episode was rewarded, so there is nothing to learn from"
	}
	if err := w.keep(&out.Policy, end.Policy); err != nil {
		return out, "", err
	}
	return out, skipped, w.measure(ctx, end.Policy, &out)
}
