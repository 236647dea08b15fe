package pipeline

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/internal/soak"
	"github.com/kernelwright/kernelwright/judge"
	"github.com/kernelwright/kernelwright/prompts"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/episodes"
	"github.com/kernelwright/kernelwright/trainer/gate"
	"github.com/kernelwright/kernelwright/trainer/policies"
	"github.com/kernelwright/kernelwright/trainer/rl"
	"github.com/kernelwright/kernelwright/trainer/tasks"
	"github.com/kernelwright/kernelwright/trainer/teach"
)

// childEnv names the data folder in which this program is to train, as a process of its
// own that can be killed.
const childEnv = "KERNELWRIGHT_TEST_PIPELINE"

func TestMain(m *testing.M) {
	if folder := os.Getenv(childEnv); folder != "" {
		if err := train(folder); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// said is what a child tells its parent, a line each.
type said struct {
	Pipeline    int64             `json:"pipeline"`
	Stage       string            `json:"stage"`
	Status      store.StageStatus `json:"status"`
	Reason      string            `json:"reason"`
	Ended       bool              `json:"ended"`
	Part        string            `json:"part"`
	Step, Steps int
	Note        string
}

// reference is a task of one pointwise operation, and answer a candidate for it.
func reference(expression string) string {
	return "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n        return " + expression +
		"\n\n\ndef get_inputs():\n    return [torch.randn(64, 256)]\n\n\ndef get_init_inputs():\n    return []\n"
}

func answer(expression string) string {
	return "```python\nimport torch\nimport torch.nn as nn\nfrom kernelwright import native\n\nlib = native(language=\"cpp\", source=r\"\"\"\nextern \"C\" void f(const float* x, float* y, long long n) {\n" +
		"  for (long long i = 0; i < n; ++i) y[i] = " + expression + ";\n}\n\"\"\")\n\n\nclass ModelNew(nn.Module):\n    def forward(self, x):\n        y = torch.empty_like(x)\n        lib.f(x, y, x.numel())\n        return y\n```\n"
}

// The tasks of the tests: what is learned of the first two is half right.
var given = []struct {
	split        store.Split
	source       string
	right, wrong string
}{
	{store.TrainSplit, reference("torch.relu(x)"), answer("x[i] < 0 ? 0 : x[i]"), answer("x[i] < 1 ? 0 : x[i]")},
	{store.TrainSplit, reference("-x"), answer("-x[i]"), answer("-x[i] - 1")},
	{store.CompositionsSplit, reference("torch.relu(-x)"), "", ""},
	{store.KindsSplit, reference("torch.abs(x)"), "", ""},
}

// lesson is the recipe of the tests.
func lesson() Recipe {
	r := Small()
	r.WarmupSteps, r.AgenticSteps, r.TasksPerStep, r.SamplesPerTask, r.AnswerTokens = 2, 1, 2, 4, 160
	r.CollectSamples, r.Rounds, r.RFTEpochs, r.CriticEpochs, r.Batch = 2, 2, 1, 1, 4
	r.Threads = 1
	r.Gate = gate.DefaultSettings
	r.Gate.Tasks, r.Gate.Looks, r.Gate.Samples = 1, 1, 2
	return r
}

// train runs pipeline 1 to its end, then pipeline 2 to its gate, which tasks that served
// one do not get through again; every day through the stage in which pipeline 1 was killed.
func train(folder string) error {
	ctx := context.Background()
	w, err := openWorld(ctx, folder, os.Stdout)
	if err != nil {
		return err
	}
	defer w.close()
	if err := w.base(ctx); err != nil {
		return err
	}
	for id := int64(1); id <= 2; id++ {
		p, err := Open(ctx, w.parts, id)
		if errors.Is(err, store.ErrNotFound) {
			p, err = Begin(ctx, w.parts, Settings{Small: true, Base: "policy:v1", Recipe: lesson()})
		}
		if err != nil {
			return err
		}
		err = w.train(ctx, p)
		if err = errors.Join(err, p.Close()); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) train(ctx context.Context, p *Pipeline) error {
	if err := w.tasks(ctx, Set(p.ID(), 1)); err != nil {
		return err
	}
	if p.ID() == 1 {
		return p.Run(ctx)
	}
	behind := GateStage
	if soak.Daily() {
		behind = Collect
	}
	for _, s := range Stages {
		if s.Name == behind {
			return nil
		}
		if err := p.RunStage(ctx, s.Name, false); err != nil {
			return err
		}
	}
	return nil
}

// world is a data folder with all that is round it.
type world struct {
	folder    string
	store     *store.Store
	hardware  *recorded
	parts     Parts
	evaluator *hwfeedback.Evaluator
}

func openWorld(ctx context.Context, folder string, out io.Writer) (*world, error) {
	s, err := store.Open(filepath.Join(folder, store.FileName))
	if err != nil {
		return nil, err
	}
	w := &world{folder: folder, store: s}
	python := os.Getenv("KERNELWRIGHT_TEST_PYTHON")
	o := hwfeedback.Options{DataDir: folder, Python: python, Threads: 1, Baselines: []string{"eager"}, StrictInputs: true, Unmeasured: true, Log: slog.New(slog.DiscardHandler)}
	w.evaluator, err = hwfeedback.Open(ctx, o, s, &hwfeedback.FileLeases{Dir: filepath.Join(folder, "leases")})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if w.hardware, err = newRecorded(w.evaluator, filepath.Join(folder, "verdicts.jsonl")); err != nil {
		return nil, errors.Join(err, w.close())
	}
	templates, err := prompts.LoadTemplates("")
	if err != nil {
		return nil, errors.Join(err, w.close())
	}
	tell := json.NewEncoder(out)
	w.parts = Parts{
		Store: s, DataDir: folder, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Python: func(ctx context.Context) (rl.Python, error) {
			return rl.Open(ctx, rl.Options{DataDir: folder, Python: python})
		},
		Tasks: func(context.Context, Recipe, int64) (Tasks, error) {
			return Tasks{Close: func() error { return nil }}, nil // the set is there
		},
		Episodes: func(context.Context) (episodes.Options, error) {
			return episodes.Options{
				Store: s, Judge: judge.Rules{}, Prompts: templates, Settings: forge.DefaultSettings(), Log: slog.New(slog.DiscardHandler),
				Hardware: func(context.Context, episodes.Conditions) (episodes.Hardware, error) { return w.hardware, nil },
			}, nil
		},
		Verifiers: func(context.Context) ([]teach.Hardware, error) { return []teach.Hardware{w.hardware}, nil },
		Tell: func(e Event) {
			_ = tell.Encode(said{e.Stage.Pipeline, e.Stage.Stage, e.Stage.Status, e.Stage.Reason, e.Ended, e.Part, e.Step, e.Steps, e.Note}) // the parent may have gone
		},
	}
	return w, nil
}

func (w *world) close() error { return errors.Join(w.evaluator.Close(), w.store.Close()) }

// tasks records the set of a pipeline as it would have been made.
func (w *world) tasks(ctx context.Context, name string) error {
	set, err := w.store.BeginTaskSet(ctx, name, []byte(`{}`))
	if err != nil {
		return err
	}
	for i, g := range given {
		t := tasks.Task{Split: g.split, Index: int64(i), Fingerprint: kernelwright.HashText(g.source), Origin: "imported", Level: 1, File: fmt.Sprintf("%s/%d_task.py", g.split, i)}
		detail, err := json.Marshal(t)
		if err != nil {
			return err
		}
		if err := w.store.SaveTaskDraw(ctx, set.ID, store.TaskDraw{Index: t.Index, Split: g.split, Fingerprint: t.Fingerprint, Source: g.source, Detail: detail}); err != nil {
			return err
		}
	}
	return w.store.FinishTaskSet(ctx, set.ID, true)
}

// base makes policy v1: it has learned a right and a wrong answer to each training
// task, so that it has something to be rewarded for and something to unlearn.
func (w *world) base(ctx context.Context) error {
	registry := policies.Open(w.store, w.folder)
	if _, err := registry.Find(ctx, "v1"); err == nil {
		return nil
	}
	o, err := w.parts.Episodes(ctx)
	if err != nil {
		return err
	}
	var lines bytes.Buffer
	for _, g := range given {
		if g.right == "" {
			continue
		}
		t, err := w.hardware.Inspect(ctx, "reference", g.source)
		if err != nil {
			return err
		}
		r := lesson().request(1)
		r.Reference = g.source
		prompt, err := episodes.First(ctx, o, r, t, w.hardware.Device())
		if err != nil {
			return err
		}
		for _, a := range []string{g.right, g.wrong} {
			line, err := json.Marshal(map[string]any{"prompt": prompt, "answer": a})
			if err != nil {
				return err
			}
			lines.Write(append(line, '\n'))
		}
	}
	pairs := filepath.Join(w.folder, "pairs.jsonl")
	if err := os.WriteFile(pairs, lines.Bytes(), 0o644); err != nil {
		return err
	}
	python, err := w.parts.Python(ctx)
	if err != nil {
		return err
	}
	p := program{python: python, module: "rl.bootstrap", folder: filepath.Join(w.folder, "base"), home: w.folder, tell: func(line) {}, settings: map[string]any{
		"pairs": []string{pairs}, "epochs": 60, "batch": 4, "parameters": 100_000, "vocabulary": 700, "layers": 2, "context": 2048,
		"optimiser": map[string]any{"lr": 5e-3, "warmup": 5, "schedule": "cosine"}, "machine": map[string]any{"device": "cpu", "threads": 1}, "saving": map[string]any{"every": 1000},
	}}
	var end trained
	if err := p.run(ctx, &end); err != nil {
		return err
	}
	_, err = registry.Add(ctx, end.Policy, "nothing", "", policies.Origin{})
	return err
}

// recorded is the real hardware, which verifies and does not time, and whose verdicts
// are written down: of the same bytes they are the same for all who train in the folder.
type recorded struct {
	*hwfeedback.Evaluator
	mu    sync.Mutex
	file  *os.File
	known map[string]kernelwright.Verdict
	asked int // of the hardware
}

type recordedLine struct {
	Key     string               `json:"key"`
	Verdict kernelwright.Verdict `json:"verdict"`
}

func newRecorded(e *hwfeedback.Evaluator, path string) (*recorded, error) {
	r := &recorded{Evaluator: e, known: map[string]kernelwright.Verdict{}}
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for line := range bytes.Lines(text) {
		var l recordedLine
		if json.Unmarshal(line, &l) == nil { // else a kill cut it short
			r.known[l.Key] = l.Verdict
		}
	}
	r.file, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	return r, err
}

// EvaluateBatch implements episodes.Hardware.
func (r *recorded) EvaluateBatch(ctx context.Context, t kernelwright.Task, cs []kernelwright.Candidate, l kernelwright.Level, yield func(int, kernelwright.Verdict) error) error {
	for i, c := range cs {
		v, known := r.Known(ctx, t, c, l)
		if !known {
			var err error
			if v, err = (hwfeedback.Untimed{Evaluator: r.Evaluator}).Evaluate(ctx, t, c, l); err != nil {
				return err
			}
			r.keep(t, c, v)
		}
		if err := yield(i, v); err != nil {
			return err
		}
	}
	return nil
}

func (r *recorded) keep(t kernelwright.Task, c kernelwright.Candidate, v kernelwright.Verdict) {
	// Nothing was timed, so that a busy machine cannot decide: what is told is whether it is
	// right.
	v.Speedups = map[string]kernelwright.Speedup{"eager": {Value: 1, Low: 0.99, High: 1.01}}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	key := kernelwright.HashText(t.Source + "\x00" + c.Source)
	r.known[key] = v
	line, err := json.Marshal(recordedLine{key, v})
	if err == nil {
		_, err = r.file.Write(append(line, '\n'))
	}
	if err != nil {
		panic(err)
	}
}

// Known implements episodes.Hardware.
func (r *recorded) Known(_ context.Context, t kernelwright.Task, c kernelwright.Candidate, _ kernelwright.Level) (kernelwright.Verdict, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok := r.known[kernelwright.HashText(t.Source+"\x00"+c.Source)]
	v.Cached = ok
	return v, ok
}

// needs skips a test where what it runs is not there.
func needs(t *testing.T) {
	t.Helper()
	if os.Getenv("KERNELWRIGHT_TEST_PYTHON") == "" {
		t.Skip("KERNELWRIGHT_TEST_PYTHON names no Python that has PyTorch")
	}
	if os.Getenv("KERNELWRIGHT_TEST_TRAINING") == "" {
		t.Skip("KERNELWRIGHT_TEST_TRAINING names no folder with what training needs (make training)")
	}
}

// newFolder is a data folder with what torch.compile precompiles once on a machine, which
// takes half a minute.
func newFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	kept, err := filepath.Glob(filepath.Join(os.Getenv("KERNELWRIGHT_TEST_CACHE"), "inductor-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range kept {
		if err := os.CopyFS(filepath.Join(dir, "cache", filepath.Base(folder)), os.DirFS(folder)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// start starts this program as a trainer, until stop says of what it tells that it is to
// be killed, or to its end. It returns all that was told.
func start(t *testing.T, folder string, kill func(said) bool) (all []said, killed bool) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+folder, "PYTHONPATH="+os.Getenv("KERNELWRIGHT_TEST_TRAINING"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Minute
	var log strings.Builder
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var s said
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			t.Errorf("%s: %v", lines.Text(), err)
			continue
		}
		all = append(all, s)
		if !killed && kill(s) {
			killed = true
			_ = cmd.Process.Kill() // it may have ended
		}
	}
	if err := cmd.Wait(); err != nil && !killed {
		t.Fatalf("%v\n%s", err, log.String())
	}
	return all, killed
}
