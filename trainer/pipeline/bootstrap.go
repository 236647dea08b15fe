package pipeline

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/policies"
	"github.com/kernelwright/kernelwright/trainer/teach"
)

// bootstrap has a model learn what the built-in Coder writes, with schedules drawn at
// random: from nothing, or from a model that is given. A policy that has been trained
// before is taken as it is.
func bootstrap(ctx context.Context, w *work) (out Outputs, skipped string, err error) {
	name := w.l.settings.Base
	if strings.HasPrefix(name, kernelwright.PolicyPrefix) {
		p, err := w.l.policies.Find(ctx, name)
		if err == nil {
			err = w.l.policies.Check(ctx, p)
		}
		if err != nil {
			return out, "", badPolicy(err)
		}
		out.Base, out.License, out.Version = p.Name(), p.License, p.Version
		if err := w.keep(&out.Policy, p.Folder); err != nil {
			return out, "", err
		}
		return out, "the base is a policy that was trained before", w.measure(ctx, p.Folder, &out)
	}
	base, err := w.base(ctx, name)
	if err != nil {
		return out, "", err
	}
	out.Base, out.License = base.name, base.license
	pairs, err := w.pairs(ctx, &out)
	if err != nil {
		return out, "", err
	}
	r := w.recipe()
	updates := r.Epochs * (pairs + r.Batch - 1) / r.Batch
	var end trained
	err = w.programIn(ctx, max(r.BootstrapProcesses, r.Processes), "train", "rl.bootstrap", map[string]any{
		"pairs": []string{w.path(out.Pairs)}, "base": base.path, "epochs": r.Epochs, "batch": r.Batch, "longest": r.Context,
		"parameters": r.Parameters, "vocabulary": r.Vocabulary, "layers": r.Layers, "context": r.Context, "seed": w.seed(), "lora": map[string]any{"rank": r.Lora},
		"optimiser": map[string]any{"lr": r.PairsLR, "warmup": min(20, updates/5), "schedule": "cosine", "weight_decay": 0.01},
		"machine":   w.machine(), "saving": map[string]any{"every": max(10, updates/10)},
	}, &end)
	if err != nil {
		return out, "", err
	}
	out.Counts["updates"] = float64(end.Steps)
	if err := w.keep(&out.Policy, end.Policy); err != nil {
		return out, "", err
	}
	return out, "", w.measure(ctx, end.Policy, &out)
}

// badPolicy is what is said of a policy that cannot be begun with.
func badPolicy(err error) error {
	if known, ok := errors.AsType[*policies.Error](err); ok {
		return &StageError{Status: store.StageBadInput, Reason: known.Text, Hint: known.Hint}
	}
	if changed, ok := errors.AsType[*policies.ChangedError](err); ok {
		return &StageError{Status: store.StageBadInput, Reason: changed.Error(), Hint: changed.Hint()}
	}
	return err
}

// pairs writes what is learned from, and returns how many there are.
func (w *work) pairs(ctx context.Context, out *Outputs) (n int, err error) {
	_, taken, err := w.tasks(ctx, "tasks.jsonl", store.TaughtSplit, store.TrainSplit)
	if err != nil {
		return 0, err
	}
	o := teach.Options{Out: w.folder("pairs.jsonl"), Log: w.l.parts.Log, Progress: func(p teach.Progress) {
		w.tell(Event{Part: "pairs", Step: p.Tasks, Steps: p.Of})
	}}
	if o.Episodes, err = w.l.parts.Episodes(ctx); err != nil {
		return 0, err
	}
	hardware, shut, err := w.l.parts.Verifiers(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, shut()) }()
	o.Hardware = hardware
	r := w.recipe()
	s := teach.Settings{Seed: w.seed(), Each: max(1, (r.Pairs+len(taken)-1)/max(1, len(taken))), MaxBytes: r.AnswerBytes, Request: r.request(1)}
	taught, err := teach.Pairs(ctx, s, taken, o)
	if err != nil {
		return 0, fmt.Errorf("write pairs to learn from: %w", err)
	}
	w.asked = int64(taught.Verdicts)
	if taught.Pairs == 0 {
		return 0, &StageError{Status: store.StageBadInput, Reason: fmt.Sprintf("the built-in Coder wrote nothing right for any of %d tasks", len(taken)), Hint: "make more tasks, or begin with a policy (--base policy:NAME)"}
	}
	out.Counts = map[string]float64{"pairs": float64(taught.Pairs), "tasks_taught": float64(taught.Taught)}
	return taught.Pairs, w.keep(&out.Pairs, o.Out)
}

// model is what a policy is first trained from.
type model struct{ path, name, license string }

// base finds the model of a name; none is one from nothing.
func (w *work) base(ctx context.Context, name string) (model, error) {
	switch name {
	case "":
		return model{name: "nothing"}, nil
	case SmolLM2:
		python, err := w.l.interpreter(ctx)
		if err != nil {
			return model{}, err
		}
		w.tell(Event{Part: "model", Note: "SmolLM2-135M-Instruct, license " + smolLicense})
		path, err := fetchSmol(ctx, w.l.parts.DataDir, python, func(note string) { w.tell(Event{Part: "model", Note: note}) })
		return model{path, "SmolLM2-135M-Instruct", smolLicense}, err
	}
	whole, err := filepath.Abs(name)
	return model{path: whole, name: name}, err
}
