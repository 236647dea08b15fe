package pipeline

import (
	"context"

	"github.com/kernelwright/kernelwright/store"
)

// warmup trains by PPO on episodes of one answer.
func warmup(ctx context.Context, w *work) (Outputs, string, error) {
	return w.ppo(ctx, w.in[Bootstrap].Policy, "", w.recipe().WarmupSteps, 1)
}

// agentic trains by PPO on episodes of several turns, with the critic that was fitted
// before.
func agentic(ctx context.Context, w *work) (Outputs, string, error) {
	return w.ppo(ctx, w.in[RFT].Policy, w.in[Critic].Critic, w.recipe().AgenticSteps, w.recipe().Rounds)
}

func (w *work) ppo(ctx context.Context, policy, critic string, steps, rounds int) (out Outputs, skipped string, err error) {
	r := w.recipe()
	if steps == 0 {
		if err := w.keep(&out.Policy, w.path(policy)); err != nil {
			return out, "", err
		}
		return out, "the recipe has no steps for it", w.measure(ctx, w.path(policy), &out)
	}
	file, _, err := w.tasks(ctx, "tasks.jsonl", store.TrainSplit)
	if err != nil {
		return out, "", err
	}
	env, err := w.l.environment(ctx)
	if err != nil {
		return out, "", err
	}
	served, err := env.settings(w.version("train"), r.request(rounds), parallel)
	if err != nil {
		return out, "", err
	}
	settings := map[string]any{
		"policy": w.path(policy), "critic": w.path(critic), "tasks": file, "steps": steps, "tasks_per_step": r.TasksPerStep, "samples_per_task": r.SamplesPerTask,
		"seed": w.seed(), "name": w.version("train"), "sampling": w.sampling(), "environment": served,
		"optimiser": map[string]any{"lr": r.ActorLR}, "critic_optimiser": map[string]any{"lr": r.CriticLR}, "lora": map[string]any{"rank": r.Lora},
		"machine": w.machine(), "saving": map[string]any{"every": r.SaveEvery},
	}
	if w.l.settings.Small {
		// A model that was made from nothing in minutes knows a dozen tasks by heart: it is surer
		// of each token than a healthy policy of a night.
		settings["bounds"] = map[string]any{"entropy_low": 1e-6}
	}
	var end trained
	if err := w.program(ctx, "train", "rl.ppo", settings, &end); err != nil {
		return out, "", err
	}
	if err := w.keep(&out.Policy, end.Policy); err != nil {
		return out, "", err
	}
	if err := w.keep(&out.Critic, end.Critic); err != nil {
		return out, "", err
	}
	if err := w.keep(&out.Trajectories, w.folder("train", "trajectories")); err != nil {
		return out, "", err
	}
	if out.Counts, err = w.rise(); err != nil {
		return out, "", err
	}
	return out, "", w.measure(ctx, end.Policy, &out)
}

// rise says what the first and the last step of PPO had of training tasks.
func (w *work) rise() (map[string]float64, error) {
	curve, err := Curve(w.folder("train"))
	if err != nil || len(curve) == 0 {
		return nil, err
	}
	said := map[string]float64{"steps": float64(len(curve))}
	for name, at := range map[string]map[string]float64{"first": curve[0], "last": curve[len(curve)-1]} {
		if reward, there := at["reward"]; there {
			said["reward_"+name] = reward
			said["correct_"+name] = 1 - at["reward_is_-1"]
		}
	}
	return said, nil
}
