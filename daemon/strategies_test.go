package daemon

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/store"
)

// refusing is a Coder whose model does not answer.
type refusing struct {
	fakeCoder
	err   *llm.Error
	asked *int
}

func (r refusing) Propose(context.Context, kernelwright.CoderInput) (kernelwright.Candidate, error) {
	*r.asked++
	return kernelwright.Candidate{}, r.err
}

// What another attempt would meet again ends a run at once, with what to do
// about it; anything else is tried again.
func TestAModelThatNeverAnswersEndsARunAtOnce(t *testing.T) {
	for kind, again := range map[llm.Kind]bool{llm.BadKey: false, llm.UnknownModel: false, llm.TooLong: false, llm.Unavailable: true, llm.RateLimited: true} {
		t.Run(strings.ReplaceAll(string(kind), " ", "_"), func(t *testing.T) {
			b := newBench(t)
			w := b.daemon().Worker
			asked := 0
			w.Coder = refusing{err: &llm.Error{Kind: kind, Model: "openai:m", Text: "it does not answer", Hint: "do this"}, asked: &asked}
			w.Results.Folder = t.TempDir()
			ctx := t.Context()
			if _, err := w.Enqueue(ctx, Request{Path: "/x/a.py", Name: "a", Source: "softmax", Settings: forge.Settings{Rounds: 2}}, store.File{Path: "/x/a.py"}, 0); err != nil {
				t.Fatal(err)
			}
			job, ok, err := b.store.Claim(ctx, store.Self())
			if err != nil || !ok {
				t.Fatal(ok, err)
			}
			run, err := b.store.Run(ctx, job.RunID)
			if err != nil {
				t.Fatal(err)
			}
			done, err := w.Run(ctx, run, &job)
			waiting, _, qerr := b.store.QueueLength(ctx)
			if err == nil || qerr != nil || asked != 1 || (waiting == 1) != again {
				t.Fatalf("asked %d times, %d wait: %v %v", asked, waiting, err, qerr)
			}
			if again {
				return
			}
			kept, err := b.store.Run(ctx, job.RunID)
			if err != nil || kept.Status != kernelwright.RunFailed || kept.Reason != "openai:m: it does not answer" || kept.Hint != "do this" {
				t.Errorf("%+v, %v", kept, err)
			}
			if done.Data.Run.Hint != "do this" {
				t.Errorf("the report says %q", done.Data.Run.Hint)
			}
		})
	}
}

// acting is a model that writes one candidate, verifies it and finishes.
type acting struct{}

func (acting) Name() string { return "fake:actor" }

func (acting) Generate(_ context.Context, r llm.Request) (llm.Reply, error) {
	call := func(name string, args map[string]string) (llm.Reply, error) {
		b, err := json.Marshal(args)
		return llm.Reply{Stop: llm.StopTools, ToolCalls: []llm.ToolCall{{ID: "1", Name: name, Arguments: string(b)}}}, err
	}
	switch len(r.Messages) {
	case 2:
		return call("write", map[string]string{"path": "model_new.py", "content": "class ModelNew: pass\n"})
	case 4:
		return call("verify", nil)
	}
	return call("finish", map[string]string{"reason": "That is all."})
}

// A run is run by the strategy that it was recorded with, whatever is wanted of
// later ones.
func TestARunKeepsItsStrategy(t *testing.T) {
	b := newBench(t)
	w := b.daemon().Worker
	w.Model, w.Results.Folder = acting{}, t.TempDir()
	settings := forge.Settings{Rounds: 4, Metrics: forge.SelectedMetrics, Beam: forge.BeamSettings{Width: 2, Samples: 1}, React: forge.ReactSettings{Turns: 9}}
	for _, c := range []struct {
		strategy, recorded, coder, settings string
		rounds                              int
	}{
		{"", "rounds", "fake", forge.Settings{Rounds: 4}.String(), 4},
		{"beam", "beam", "fake", forge.Settings{Rounds: 4, Beam: settings.Beam}.String(), 4},
		{"react", "react", "fake:actor", forge.Settings{Rounds: 4, React: settings.React}.String(), 1},
	} {
		run, _, err := w.Start(t.Context(), Request{Path: "/x/" + c.recorded + ".py", Name: "a", Source: "softmax", Strategy: c.strategy, Settings: settings})
		if err != nil {
			t.Fatal(err)
		}
		done, err := w.Run(t.Context(), run, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := done.Data.Run
		if got.Strategy != c.recorded || got.Coder != c.coder || got.Settings != c.settings || len(done.Data.Rounds) != c.rounds || got.Status != kernelwright.RunDone {
			t.Errorf("%+v, %d rounds", got, len(done.Data.Rounds))
		}
	}
	run, _, err := w.Start(t.Context(), Request{Path: "/x/b.py", Name: "b", Source: "softmax", Strategy: "greedy", Settings: settings})
	if err != nil {
		t.Fatal(err)
	}
	if done, err := w.Run(t.Context(), run, nil); err == nil || !strings.Contains(done.Data.Run.Reason, `no strategy "greedy"`) {
		t.Errorf("%+v %v", done.Data.Run, err)
	}
}
