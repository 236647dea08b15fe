package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

// refusing is a Coder whose model does not answer after its first round, while
// there is a reason.
type refusing struct {
	fakeCoder
	mu    sync.Mutex
	err   *llm.Error
	asked int
}

func (r *refusing) Propose(ctx context.Context, in kernelwright.CoderInput) (kernelwright.Candidate, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	if r.err != nil && in.Round > 0 {
		return kernelwright.Candidate{}, r.err
	}
	return r.fakeCoder.Propose(ctx, in)
}

func (r *refusing) say(err *llm.Error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

func refusal(kind llm.Kind) *llm.Error {
	return &llm.Error{Kind: kind, Model: "openai:m", Text: "it does not answer", Hint: "do this"}
}

// What another attempt would meet again ends a run at once, with what to do
// about it; what somebody can mend holds it; anything else is tried again.
func TestAModelThatDoesNotAnswer(t *testing.T) {
	for kind, c := range map[llm.Kind]struct {
		status kernelwright.RunStatus
		reason string
	}{
		llm.BadKey: {kernelwright.RunQueued, "it waits: openai:m: it does not answer"}, llm.UnknownModel: {kernelwright.RunQueued, "it waits: openai:m: it does not answer"},
		llm.Quota: {kernelwright.RunQueued, "it waits: openai:m: it does not answer"}, llm.TooLong: {kernelwright.RunFailed, "openai:m: it does not answer"},
		llm.BadRequest: {kernelwright.RunFailed, "openai:m: it does not answer"}, llm.Unavailable: {kernelwright.RunQueued, ""}, llm.RateLimited: {kernelwright.RunQueued, ""},
	} {
		t.Run(strings.ReplaceAll(string(kind), " ", "_"), func(t *testing.T) {
			b := newBench(t)
			w := b.daemon().Runner
			model := &refusing{err: refusal(kind)}
			w.Coder, w.Results.Folder = model, t.TempDir()
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
			if held := strings.HasPrefix(c.reason, "it waits"); errors.As(err, new(*RefusedError)) != held {
				t.Errorf("%v", err)
			}
			waiting, _, qerr := b.store.QueueLength(ctx)
			kept, kerr := b.store.Run(ctx, job.RunID)
			if err == nil || qerr != nil || kerr != nil || model.asked != 2 || (waiting == 1) != (c.status == kernelwright.RunQueued) {
				t.Fatalf("asked %d times, %d wait: %v %v %v", model.asked, waiting, err, qerr, kerr)
			}
			if kept.Status != c.status || kept.Reason != c.reason || c.reason != "" && !strings.HasPrefix(kept.Hint, "do this") {
				t.Errorf("%+v", kept)
			}
			if c.status == kernelwright.RunFailed && done.Data.Run.Hint != "do this" {
				t.Errorf("the report says %q", done.Data.Run.Hint)
			}
		})
	}
}

// A run that no queue holds stops where a model refuses: it says why until it goes
// on, and shows what it has.
func TestARunStopsWhereAModelRefuses(t *testing.T) {
	b := newBench(t)
	w := b.daemon().Runner
	model := &refusing{err: refusal(llm.TooLong)}
	w.Coder, w.Results.Folder = model, t.TempDir()
	q := Request{Path: "/x/a.py", Name: "a", Source: "softmax", Settings: forge.Settings{Rounds: 2}}
	run, _, err := w.Start(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	done, err := w.Run(t.Context(), run, nil)
	if kept := b.runs()[0]; !errors.As(err, new(*llm.Error)) || kept.Reason != "it stopped: openai:m: it does not answer" || kept.Hint != "do this" {
		t.Errorf("%+v, %v", kept, err)
	}
	if s := done.Summary(); done.Data.Run.Status != kernelwright.RunRunning || s.Rounds != 1 || s.MS <= 0 || s.Reason == "" {
		t.Errorf("%+v", s)
	}
	model.say(nil)
	run, resumed, err := w.Start(t.Context(), q)
	if err != nil || !resumed {
		t.Fatal(resumed, err)
	}
	w.Observe = func(forge.Event) {
		if kept := b.runs()[0]; kept.Reason != "" || kept.Hint != "" {
			t.Errorf("it goes on, and says %q", kept.Reason)
		}
	}
	if done, err = w.Run(t.Context(), run, nil); err != nil || done.Data.Run.Status != kernelwright.RunDone || done.Data.Run.Reason != "" {
		t.Errorf("%+v, %v", done.Data.Run, err)
	}
}

// A run that a budget ends says which one, though it has a kernel.
func TestARunThatABudgetEndsSaysSo(t *testing.T) {
	b := newBench(t)
	w := b.daemon().Runner
	w.Coder, w.Results.Folder = &refusing{err: refusal(llm.OverBudget)}, t.TempDir()
	run, _, err := w.Start(t.Context(), Request{Path: "/x/a.py", Name: "a", Source: "softmax", Settings: forge.Settings{Rounds: 2}})
	if err != nil {
		t.Fatal(err)
	}
	done, err := w.Run(t.Context(), run, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := done.Summary()
	if s.Status != string(kernelwright.Certified) || !strings.Contains(s.Reason, "the budget does not allow another call (it does not answer)") || !strings.Contains(s.Hint, "[budget]") {
		t.Errorf("%+v", s)
	}
	var table strings.Builder
	if err := report.Table(&table, []report.Summary{s}); err != nil || !strings.Contains(table.String(), "a: Certified round 0") {
		t.Errorf("%v\n%s", err, table.String())
	}
}

// Runs wait for a model whose key is refused: it is asked again, less and less
// often, and at the next start, and they go on from where they were.
func TestRunsWaitForAModelThatIsMended(t *testing.T) {
	b := newBench(t)
	model, clock := &refusing{err: refusal(llm.BadKey)}, newFakeClock()
	start := func() {
		b.start(func(d *Daemon) { d.Runner.Coder, d.Runner.Clock, d.Watcher.Clock = model, clock, System{} })
	}
	start()
	b.drop("a.py", "softmax a")
	clock.WaitFor(askAgain)
	b.drop("b.py", "softmax b")
	b.logged("path=" + filepath.Join(b.dir, "b.py"))
	clock.Advance(askAgain)
	clock.WaitFor(2 * askAgain)
	if model.asked != 3 { // round 0, and round 1 twice
		t.Errorf("it was asked %d times", model.asked)
	}
	b.logged(`a model refuses: its runs wait" run=1 error="openai:m: it does not answer" hint="do this" "asked again in"=2m0s`)
	for i, want := range []string{"", "it waits: openai:m: it does not answer"} { // the newest first
		if r := b.runs()[i]; r.Status != kernelwright.RunQueued || r.Reason != want {
			t.Errorf("%+v", r)
		}
	}
	model.say(nil)
	clock.Advance(2 * askAgain)
	for range 2 {
		if d := b.next(); d.Data.Run.Status != kernelwright.RunDone || d.Data.Run.Reason != "" || len(d.Data.Rounds) != 3 {
			t.Errorf("%+v", d.Data.Run)
		}
	}
	if b.hw.evaluate != 6 {
		t.Errorf("%d verdicts: a round was done twice, or lost", b.hw.evaluate)
	}

	// The key is mended where a running process cannot see it: at the next start.
	model.say(refusal(llm.UnknownModel))
	b.drop("c.py", "softmax c")
	b.logged("run=3 error=")
	b.halt()
	if r := b.runs()[0]; r.Status != kernelwright.RunQueued || !strings.HasPrefix(r.Hint, "do this; it is asked again") {
		t.Errorf("%+v", r)
	}

	// Who waits for the end is told that there is none.
	err := func() error {
		d := b.daemon()
		d.Runner.Coder, d.UntilIdle = model, true
		return d.Run(t.Context())
	}()
	var refused *RefusedError
	if !errors.As(err, &refused) || err.Error() != "openai:m: it does not answer; what is queued waits, and goes on at the next start" {
		t.Errorf("%v", err)
	}
	model.say(nil)
	start()
	if d := b.next(); d.Data.Run.ID != 3 || d.Data.Run.Status != kernelwright.RunDone || len(d.Data.Rounds) != 3 {
		t.Errorf("%+v", d.Data.Run)
	}
}

// other is the same Coder under a name that its provider knows.
type renamed struct{ *refusing }

func (renamed) Name() string { return "openai:known" }

// A name is mended in the settings: what waited for the wrong one is done anew by
// the right one, once.
func TestAMendedNameDoesAnewWhatWaited(t *testing.T) {
	b := newBench(t)
	model, clock := &refusing{err: refusal(llm.UnknownModel)}, newFakeClock()
	b.start(func(d *Daemon) { d.Runner.Coder, d.Runner.Clock, d.Watcher.Clock = model, clock, System{} })
	path := b.drop("a.py", "softmax")
	clock.WaitFor(askAgain)
	b.halt()
	model.say(nil)
	d := b.daemon()
	d.Runner.Coder, d.UntilIdle = renamed{model}, true
	if err := d.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	runs := b.runs() // the newest first
	old := runs[len(runs)-1]
	if old.Coder != "fake" || old.Status != kernelwright.RunFailed || old.Reason == "" {
		t.Errorf("%+v", old)
	}
	rounds := 0
	for _, r := range runs[:len(runs)-1] {
		recorded, err := b.store.Rounds(t.Context(), r.ID)
		if rounds += len(recorded); err != nil || r.Coder != "openai:known" || r.Status != kernelwright.RunDone {
			t.Errorf("%+v, %v", r, err)
		}
	}
	if rounds != 3 || b.read(strings.TrimSuffix(path, ".py")+".best.py") == "" {
		t.Errorf("%d rounds in %d runs", rounds, len(runs)-1)
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
	w := b.daemon().Runner
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
