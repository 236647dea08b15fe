package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/tasks"
)

// synthesise makes the pipeline's own set of tasks. Its held-out tasks are like none of
// an earlier set, so that none serves two gates.
func synthesise(ctx context.Context, w *work) (Outputs, string, error) {
	// Another pipeline of the data folder, and a stage that is repeated, draw other tasks; the
	// kinds that are held out stay those of the folder's first set.
	seed := w.l.settings.Seed*1_000_003 + w.row.Pipeline*1_009 + int64(w.row.Attempt)
	out := Outputs{Set: Set(w.row.Pipeline, w.row.Attempt), Counts: map[string]float64{}}
	set, err := w.l.parts.Store.TaskSet(ctx, out.Set)
	if errors.Is(err, store.ErrNotFound) || err == nil && set.FinishedMS == 0 {
		if err := w.look(ctx); err != nil {
			return out, "", err
		}
		var made Tasks
		if made, err = w.l.parts.Tasks(ctx, w.recipe(), seed); err != nil {
			return out, "", err
		}
		set, err = w.makeTasks(ctx, made)
		err = errors.Join(err, made.Close())
	}
	if err != nil {
		return out, "", err
	}
	draws, err := w.l.parts.Store.TaskDraws(ctx, set.ID, true)
	if err != nil {
		return out, "", err
	}
	all, err := tasks.Decode(draws)
	if err != nil {
		return out, "", err
	}
	for _, t := range all {
		out.Counts[string(t.Split)]++
		if t.Split == store.TrainSplit && t.HasRoom() {
			out.Counts["train_with_room"]++
		}
	}
	return out, "", tasks.WriteFolder(tasks.Folder(w.l.parts.DataDir, set.Name), all)
}

func (w *work) makeTasks(ctx context.Context, made Tasks) (store.TaskSet, error) {
	text, err := json.Marshal(made.Settings)
	if err != nil {
		return store.TaskSet{}, err
	}
	set, err := w.l.parts.Store.BeginTaskSet(ctx, Set(w.row.Pipeline, w.row.Attempt), text)
	if err != nil {
		return set, err
	}
	// What the machine reaches differs from one measurement to the next: what was begun
	// stays as it was.
	var begun tasks.Settings
	if err := json.Unmarshal(set.Settings, &begun); err != nil {
		return set, fmt.Errorf("the settings of the set %s: %w", set.Name, err)
	}
	asked := &counter{}
	for i, h := range made.Maker.Hardware {
		made.Maker.Hardware[i] = counted{h, asked}
	}
	before, noted := w.asked, time.Time{}
	made.Maker.Progress = func(p tasks.Progress) {
		w.asked = before + asked.n.Load()
		if time.Since(noted) >= noteEvery {
			noted = time.Now()
			if err := w.note(ctx); err != nil {
				w.l.parts.Log.Warn("how far a stage is cannot be recorded", "error", err)
			}
		}
		kept, wanted := 0, 0
		for _, split := range store.Splits {
			kept, wanted = kept+p.Kept[split], wanted+p.Wanted[split]
		}
		w.tell(Event{Part: "tasks", Step: kept, Steps: wanted, Note: p.Task})
	}
	err = made.Maker.Make(ctx, set, begun)
	w.asked = before + asked.n.Load()
	var barren *tasks.BarrenError
	if errors.As(err, &barren) {
		return set, &StageError{Status: store.StageBadInput, Reason: err.Error(), Hint: "widen training.eager_min and training.eager_max, or ask for fewer tasks; what was kept stays"}
	}
	return set, err
}

// counter counts verdicts that were asked for.
type counter struct{ n atomic.Int64 }

type counted struct {
	tasks.Hardware
	asked *counter
}

// Evaluate implements tasks.Hardware.
func (c counted) Evaluate(ctx context.Context, t kernelwright.Task, cand kernelwright.Candidate, l kernelwright.Level) (kernelwright.Verdict, error) {
	c.asked.n.Add(1)
	return c.Hardware.Evaluate(ctx, t, cand, l)
}

func makeFolder(path string) error { return os.MkdirAll(path, 0o755) }
