package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/daemon"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/internal/soak"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/episodes"
	"github.com/kernelwright/kernelwright/trainer/gate"
	"github.com/kernelwright/kernelwright/trainer/nights"
	"github.com/kernelwright/kernelwright/trainer/nights/nightstest"
	"github.com/kernelwright/kernelwright/trainer/pipeline"
	"github.com/kernelwright/kernelwright/trainer/policies"
	"github.com/kernelwright/kernelwright/trainer/tasks"
)

// promoter is a double of the staged pipeline: it trains until it is told to come to
// its gate, and promotes what it has made.
type promoter struct {
	registry *policies.Registry
	made     string        // a policy's folder
	begun    chan struct{} // told of each call
	gate     chan struct{}
}

func (p *promoter) Run(ctx context.Context, tell func(nights.Progress)) (nights.Outcome, error) {
	out := nights.Outcome{Progress: nights.Progress{Pipeline: 1, Stage: "agentic"}}
	tell(out.Progress)
	p.begun <- struct{}{}
	select {
	case <-ctx.Done():
		return out, nil
	case <-p.gate:
	}
	made, err := p.registry.Add(ctx, p.made, "tiny", "", policies.Origin{Pipeline: 1, Stage: "agentic"})
	if err == nil {
		err = p.registry.Promote(ctx, made, 0, "it is better")
	}
	out.Done, out.Decision = err == nil, "promoted"
	return out, err
}

// nightWorld is a daemon whose Coder is policy:current, with a schedule, and a clock that
// the test sets.
type nightWorld struct {
	t        *testing.T
	app      *app
	room     *room
	daemon   *daemon.Daemon
	clock    *nightstest.Clock
	watched  string
	training string // what programs need beside PyTorch
	other    string // a second policy's folder
	ended    chan daemon.Done
	done     chan error
	stop     context.CancelFunc
	dropped  int
}

// newNightWorld opens a data folder with settings, as variables of the environment. Each
// policy is one that speaks of nothing; the first serves.
func newNightWorld(t *testing.T, settings ...string) *nightWorld {
	t.Helper()
	python, training := os.Getenv("KERNELWRIGHT_TEST_PYTHON"), os.Getenv("KERNELWRIGHT_TEST_TRAINING")
	if python == "" || training == "" {
		t.Skip("KERNELWRIGHT_TEST_PYTHON and KERNELWRIGHT_TEST_TRAINING name no Python that has PyTorch and transformers")
	}
	dir, data := t.TempDir(), newData(t)
	c := exec.CommandContext(t.Context(), python, "-c", `
import sys
from pathlib import Path
from rl import tiny
for i in "12":
    tiny.make(Path(sys.argv[1]) / i, ["0123456789", "say it again"], 20_000, 260, 1, 4096, int(i))
`, dir)
	c.Env = append(os.Environ(), "PYTHONPATH=../trainer:"+training)
	if said, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	t.Setenv("PYTHONPATH", training)
	t.Setenv(hwfeedback.LeasesOfTests, leasesBelow(t.TempDir()))
	var log bytes.Buffer
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(log.String())
		}
	})
	ctx, stop := context.WithCancel(t.Context())
	w := &nightWorld{
		t: t, clock: nightstest.NewClock(nightstest.Eleven.Add(-time.Hour)), watched: t.TempDir(), training: training, other: filepath.Join(dir, "2"),
		ended: make(chan daemon.Done, 10), done: make(chan error, 1), stop: stop,
	}
	w.app = &app{ctx: ctx, stderr: &log, flags: map[string]string{}, env: append([]string{
		"HOME=" + data, "KERNELWRIGHT_DATA_DIR=" + data, "KERNELWRIGHT_PYTHON=" + python, "KERNELWRIGHT_TRAINING_PYTHON=" + python, oneThread, "KERNELWRIGHT_CODER_NAME=policy:current",
		"KERNELWRIGHT_ROUNDS_MAX=1", "KERNELWRIGHT_ROUNDS_JUDGE=none", "KERNELWRIGHT_EVALUATION_BASELINES=eager", "KERNELWRIGHT_TRAINING_SCHEDULE_CRON=" + nightstest.Cron, "KERNELWRIGHT_TRAINING_SCHEDULE_TIME_ZONE=UTC",
	}, settings...)}
	var err error
	if w.room, err = w.app.open(true); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.ok(w.room.close()) })
	first, err := w.room.policies.Add(ctx, filepath.Join(dir, "1"), "tiny", "", policies.Origin{})
	w.ok(err)
	w.ok(w.room.policies.Promote(ctx, first, 0, "the first"))
	by, err := w.room.agents()
	w.ok(err)
	es, err := w.room.evaluators(ctx, w.room.options(nil))
	w.ok(err)
	t.Cleanup(func() { w.ok(closeAll(es)) })
	t.Cleanup(stop)
	runner := w.room.runner(es[0], by)
	runner.Share = true
	w.daemon = &daemon.Daemon{
		Runner: runner, Watcher: &daemon.Watcher{Folders: []string{w.watched}, Patterns: []string{"*.py"}, Debounce: 10 * time.Millisecond, Log: w.room.log}, Lock: w.room.lock,
		Settings: w.room.strategy(), Ended: func(d daemon.Done) { w.ended <- d },
	}
	return w
}

func (w *nightWorld) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// start has the daemon run, with a pipeline for its nights.
func (w *nightWorld) start(p nights.Pipeline) {
	w.daemon.Nights = nights.New(nights.Plan{Table: nightstest.Table(w.t), Length: 8 * time.Hour}, w.room.store, p, w.daemon.Waiting, w.clock, w.room.log)
	go func() { w.done <- w.daemon.Run(w.app.ctx) }()
}

// end has it stop.
func (w *nightWorld) end() {
	w.t.Helper()
	w.stop()
	w.ok(<-w.done)
}

// answered drops a file, and waits until it was optimised by a policy.
func (w *nightWorld) answered(want string) {
	w.t.Helper()
	w.dropped++
	text := fmt.Sprintf("import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n        return x * %d\n\n\ndef get_inputs():\n    return [torch.randn(64, 64)]\n\n\ndef get_init_inputs():\n    return []\n", w.dropped+1)
	file := filepath.Join(w.watched, fmt.Sprintf("scale%d.py", w.dropped))
	w.ok(errors.Join(os.WriteFile(file+".part", []byte(text), 0o644), os.Rename(file+".part", file)))
	select {
	case d := <-w.ended:
		var origins []string
		for _, r := range d.Data.Rounds {
			origins = append(origins, r.Candidate.Origin)
		}
		if !slices.Equal(origins, []string{want}) {
			w.t.Errorf("file %d: rounds by %q, want %s (%s: %s)", w.dropped, origins, want, d.Data.Run.Status, d.Data.Run.Reason)
		}
	case err := <-w.done:
		w.t.Fatalf("the daemon ended: %v", err)
	}
}

// night waits for what is so of the last night.
func (w *nightWorld) night(is func(store.Night) bool) store.Night {
	w.t.Helper()
	for {
		night, err := w.room.store.LastNight(w.app.ctx)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			w.t.Fatal(err)
		}
		if err == nil && (is(night) || !night.Open()) {
			return night
		}
		select {
		case err := <-w.done:
			w.t.Fatalf("the daemon ended: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// A daemon whose Coder is policy:current: a night gives way to a file, and promotes; the
// next file is answered by the promoted policy, and after a rollback the one after it by
// the old one. Policies are small, and really served.
func TestANightPromotes(t *testing.T) {
	soak.Weekly(t)
	w := newNightWorld(t)
	p := &promoter{w.room.policies, w.other, make(chan struct{}, 10), make(chan struct{})}
	w.start(p)
	w.answered("policy:v1") // by day
	w.clock.Set(nightstest.Eleven)
	<-p.begun
	w.answered("policy:v1") // in the middle of the night
	<-p.begun
	p.gate <- struct{}{}
	if night := w.night(func(n store.Night) bool { return !n.Open() }); night.Stop != store.NightDone || night.Decision != "promoted" || night.Yields != 1 {
		t.Errorf("%+v", night)
	}
	w.answered("policy:v2")
	if _, err := w.room.policies.Rollback(w.app.ctx, "the old one was better"); err != nil {
		t.Fatal(err)
	}
	w.answered("policy:v1")
	w.end()
}

// scaled is a task that takes a product of matrices for what is a product of numbers: what
// a policy writes of it is faster beyond doubt, on a busy machine, too.
func scaled(rows, columns int) string {
	return fmt.Sprintf("import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def forward(self, x, v):\n        return x @ torch.diag(v)\n\n\ndef get_inputs():\n    return [torch.randn(%d, %d), torch.randn(%d)]\n\n\ndef get_init_inputs():\n    return []\n", rows, columns, columns)
}

// scaling is an answer to it; by is what each number is multiplied by.
func scaling(by string) string {
	return "```python\nimport torch\nimport torch.nn as nn\nfrom kernelwright import native\n\nlib = native(language=\"cpp\", source=r\"\"\"\nextern \"C\" void f(const float* x, const float* v, float* y, long long n, long long m) {\n" +
		"  for (long long i = 0; i < n; ++i)\n    for (long long j = 0; j < m; ++j) y[i * m + j] = x[i * m + j] * " + by + ";\n}\n\"\"\")\n\n\nclass ModelNew(nn.Module):\n    def forward(self, x, v):\n        y = torch.empty_like(x)\n        lib.f(x, v, y, x.shape[0], x.shape[1])\n        return y\n```\n"
}

// A night without a double: the schedule begins it, the pipeline trains a tiny policy that
// has learned right and wrong answers, gives way to a file, goes on, and its gate holds the
// policy against one that speaks of nothing, by verdicts of this machine. The next file is
// answered by the promoted policy, and after a rollback the one after it by the old one.
func TestANightWithARealGate(t *testing.T) {
	soak.Only(t)
	w := newNightWorld(t,
		"KERNELWRIGHT_TRAINING_BASE=policy:v2", "KERNELWRIGHT_TRAINING_WARMUP_STEPS=0", "KERNELWRIGHT_TRAINING_AGENTIC_STEPS=1", "KERNELWRIGHT_TRAINING_TASKS_PER_STEP=2",
		"KERNELWRIGHT_TRAINING_SAMPLES_PER_TASK=4", "KERNELWRIGHT_TRAINING_ROUNDS=1", "KERNELWRIGHT_TRAINING_ANSWER_TOKENS=400")
	w.taught()
	w.tasks("pipeline-1")
	w.start(nightly{app: w.app, room: w.room})
	w.clock.Set(nightstest.Eleven)
	w.night(func(n store.Night) bool { return w.stage(pipeline.Collect) })
	w.answered("policy:v1")
	night := w.night(func(n store.Night) bool { return !n.Open() })
	if night.Stop != store.NightDone || night.Decision != gate.Promoted || night.Yields < 1 || night.Pipeline != 1 {
		t.Fatalf("%+v", night)
	}
	now, err := w.room.policies.Find(w.app.ctx, policies.Current)
	w.ok(err)
	history, err := w.room.policies.History(w.app.ctx)
	w.ok(err)
	held, err := gate.Read(w.app.ctx, w.room.store, "pipeline 1")
	w.ok(err)
	if len(history) != 2 || history[1].Gate != held.ID || held.Candidate != "policy:"+now.Name() || held.Opponent != "policy:v1" || held.Reproduced == nil || !*held.Reproduced {
		t.Errorf("%+v by %+v", history, held)
	}
	t.Logf("%s: %s", now.Name(), held.Decision.Reason)
	w.answered("policy:" + now.Name())
	if _, err := w.room.policies.Rollback(w.app.ctx, "the old one was better"); err != nil {
		t.Fatal(err)
	}
	w.answered("policy:v1")
	w.end()
}

// stage reports whether a stage of pipeline 1 has begun.
func (w *nightWorld) stage(name string) bool {
	all, err := w.room.store.Stages(w.app.ctx, 1)
	w.ok(err)
	return slices.ContainsFunc(all, func(s store.Stage) bool { return s.Stage == name })
}

// taught adds policy v2, which has learned right answers to the tasks of training, and a
// wrong one.
func (w *nightWorld) taught() {
	w.t.Helper()
	r, err := trainRunCmd{}.conditions(w.room, false)
	w.ok(err)
	show := newProgress(io.Discard)
	defer show.done()
	parts, shut := r.trainParts(w.app, show, func(pipeline.Event) {})
	defer func() { w.ok(shut()) }()
	ctx := w.app.ctx
	o, err := parts.Episodes(ctx)
	w.ok(err)
	h, err := o.Hardware(ctx, episodes.Conditions{StrictInputs: true})
	w.ok(err)
	source := w.given()[0].Source
	task, err := h.Inspect(ctx, "reference", source)
	w.ok(err)
	asked, err := episodes.First(ctx, o, episodes.Request{Reference: source, Strategy: "rounds", Rounds: 1, Tools: "text", MaxTokens: r.config.Training.AnswerTokens}, task, h.Device())
	w.ok(err)
	var lines bytes.Buffer
	draw := rand.New(rand.NewPCG(1, 1))
	for range 32 { // of other sizes, so that these are told from what the answer hangs on
		prompt := resized(asked, 256+16*draw.IntN(16), 448+16*draw.IntN(12), 0.5+10*draw.Float64())
		for _, by := range []string{"v[j]", "v[j]", "v[i]"} {
			line, err := json.Marshal(map[string]any{"prompt": prompt, "answer": scaling(by)})
			w.ok(err)
			lines.Write(append(line, '\n'))
		}
	}
	dir := w.t.TempDir()
	pairs, settings := filepath.Join(dir, "pairs.jsonl"), filepath.Join(dir, "bootstrap.json")
	text, err := json.Marshal(map[string]any{
		"pairs": []string{pairs}, "out": filepath.Join(dir, "out"), "epochs": 3, "batch": 2, "parameters": 100_000, "vocabulary": 700, "layers": 2, "context": 4096,
		"optimiser": map[string]any{"lr": 1e-2, "warmup": 5, "schedule": "cosine"}, "machine": map[string]any{"device": "cpu", "threads": 1}, "saving": map[string]any{"every": 1000},
	})
	w.ok(err)
	w.ok(errors.Join(os.WriteFile(pairs, lines.Bytes(), 0o644), os.WriteFile(settings, text, 0o644)))
	c := exec.CommandContext(ctx, r.config.Training.Python, "-m", "rl.bootstrap", "--config", settings)
	c.Env = append(os.Environ(), "PYTHONPATH=../trainer:"+w.training)
	if said, err := c.CombinedOutput(); err != nil {
		w.t.Fatalf("%v: %s", err, said)
	}
	p, err := w.room.policies.Add(ctx, filepath.Join(dir, "out", "policy"), "nothing", "", policies.Origin{})
	if err != nil || p.Version != 2 {
		w.t.Fatalf("%s, %v", p.Name(), err)
	}
}

// resized is a prompt of the same task in another size.
func resized(asked []episodes.Message, rows, columns int, ms float64) []episodes.Message {
	out := slices.Clone(asked)
	for i := range out {
		for at, said := range map[string]string{
			`randn\(\d+, \d+\)`: fmt.Sprintf("randn(%d, %d)", rows, columns), `randn\(\d+\)`: fmt.Sprintf("randn(%d)", columns),
			`\[\d+, \d+\]`: fmt.Sprintf("[%d, %d]", rows, columns), `\[\d+\]`: fmt.Sprintf("[%d]", columns),
			`eager takes about [\d.]+ ms`: fmt.Sprintf("eager takes about %.3f ms", ms),
		} {
			out[i].Content = regexp.MustCompile(at).ReplaceAllString(out[i].Content, said)
		}
	}
	return out
}

// given are the tasks of the night: three to train on, and ten of each held-out set.
func (w *nightWorld) given() (all []tasks.Task) {
	add := func(split store.Split, rows, columns int) {
		source := scaled(rows, columns)
		n := len(all)
		all = append(all, tasks.Task{Split: split, Index: int64(n), Fingerprint: kernelwright.HashText(source), Origin: "imported", Level: 1, File: fmt.Sprintf("%s/%d_task.py", split, n), Source: source})
	}
	for i := range 3 {
		add(store.TrainSplit, 256+16*i, 512)
	}
	for i := range 10 {
		add(store.CompositionsSplit, 256+16*i, 544)
		add(store.KindsSplit, 256+16*i, 576)
	}
	return all
}

// tasks records them as a set that was made.
func (w *nightWorld) tasks(name string) {
	w.t.Helper()
	ctx := w.app.ctx
	set, err := w.room.store.BeginTaskSet(ctx, name, []byte(`{}`))
	w.ok(err)
	for _, g := range w.given() {
		detail, err := json.Marshal(g)
		w.ok(err)
		w.ok(w.room.store.SaveTaskDraw(ctx, set.ID, store.TaskDraw{Index: g.Index, Split: g.Split, Fingerprint: g.Fingerprint, Source: g.Source, Detail: detail}))
	}
	w.ok(w.room.store.FinishTaskSet(ctx, set.ID, true))
}
