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
	"strconv"
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
	"github.com/kernelwright/kernelwright/internal/timetable"
	"github.com/kernelwright/kernelwright/judge"
	"github.com/kernelwright/kernelwright/prompts"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/episodes"
	"github.com/kernelwright/kernelwright/trainer/nights"
	"github.com/kernelwright/kernelwright/trainer/policies"
	"github.com/kernelwright/kernelwright/trainer/rl"
	"github.com/kernelwright/kernelwright/trainer/serving"
	"github.com/kernelwright/kernelwright/trainer/tasks"
	"github.com/kernelwright/kernelwright/trainer/teach"
)

// childEnv names the data folder in which this program is to train by night, as a process
// of its own that can be killed, and lastEnv its last pipeline.
const (
	childEnv = "KERNELWRIGHT_TEST_PIPELINE"
	lastEnv  = "KERNELWRIGHT_TEST_LAST_PIPELINE"
)

// never is no pipeline's number.
const never = 1 << 40

func TestMain(m *testing.M) {
	if folder := os.Getenv(childEnv); folder != "" {
		last, err := strconv.ParseInt(os.Getenv(lastEnv), 10, 64)
		if err == nil {
			err = live(folder, last)
		}
		if err != nil {
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
func reference(expression string) string { return referenceOf(expression, 256) }

func referenceOf(expression string, columns int64) string {
	return "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n        return " + expression +
		fmt.Sprintf("\n\n\ndef get_inputs():\n    return [torch.randn(64, %d)]\n\n\ndef get_init_inputs():\n    return []\n", columns)
}

func answer(expression string) string {
	return "```python\nimport torch\nimport torch.nn as nn\nfrom kernelwright import native\n\nlib = native(language=\"cpp\", source=r\"\"\"\nextern \"C\" void f(const float* x, float* y, long long n) {\n" +
		"  for (long long i = 0; i < n; ++i) y[i] = " + expression + ";\n}\n\"\"\")\n\n\nclass ModelNew(nn.Module):\n    def forward(self, x):\n        y = torch.empty_like(x)\n        lib.f(x, y, x.numel())\n        return y\n```\n"
}

// given is a task of the tests, with a right and a wrong answer where it is one to train on.
type given struct {
	split        store.Split
	source       string
	right, wrong string
}

// taskSet is that of a pipeline: what is learned is half right, and held-out tasks are
// those that no other pipeline has, which the same answers fit.
func taskSet(pipeline int64) []given {
	return []given{
		{store.TrainSplit, reference("torch.relu(x)"), answer("x[i] < 0 ? 0 : x[i]"), answer("x[i] < 1 ? 0 : x[i]")},
		{store.TrainSplit, reference("-x"), answer("-x[i]"), answer("-x[i] - 1")},
		{store.CompositionsSplit, referenceOf("torch.relu(x)", 256+pipeline), "", ""},
		{store.KindsSplit, referenceOf("-x", 256+pipeline), "", ""},
	}
}

// lesson is the recipe of the tests.
func lesson() Recipe {
	r := Small()
	r.WarmupSteps, r.AgenticSteps, r.TasksPerStep, r.SamplesPerTask, r.AnswerTokens = 2, 1, 2, 4, 160
	r.CollectSamples, r.Rounds, r.RFTEpochs, r.CriticEpochs, r.Batch = 2, 2, 1, 1, 4
	r.Threads = 1
	// Two tasks decide, and may: else nothing were promoted.
	r.Gate.Tasks, r.Gate.Looks, r.Gate.Samples, r.Gate.Alpha, r.Gate.Level = 1, 1, 2, 0.49, 0.49
	return r
}

// live spends one night after the other until a pipeline is at its end, then brings one of
// the same settings to its gate, with nobody who disturbs it.
func live(folder string, last int64) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w, err := openWorld(ctx, folder, os.Stdout)
	if err != nil {
		return err
	}
	defer w.close()
	if err := w.base(ctx); err != nil {
		return err
	}
	table, err := timetable.Parse("0 * * * *", time.UTC)
	if err != nil {
		return err
	}
	nobody := func(context.Context) (int, error) { return 0, nil }
	plan := nights.Plan{Table: table, Length: 50 * time.Minute}
	nights.New(plan, w.store, &night{w, last, cancel}, nobody, nightClock{w.store}, slog.New(slog.DiscardHandler)).Run(ctx)
	ctx = context.Background()
	row, err := w.store.Pipeline(ctx, last)
	if err != nil {
		return err
	}
	var s Settings
	if err := json.Unmarshal(row.Settings, &s); err != nil {
		return err
	}
	p, err := Begin(ctx, w.parts, s)
	if err != nil {
		return err
	}
	if err := w.tasks(ctx, Set(p.ID(), 1), taskSet(last)); err != nil {
		return err
	}
	behind := GateStage
	if soak.Daily() {
		behind = Collect // the stages in which a pipeline is killed every day
	}
	for _, st := range Stages {
		if st.Name == behind {
			break
		}
		if err := p.RunStage(ctx, st.Name, false); err != nil {
			return errors.Join(err, p.Close())
		}
	}
	return p.Close()
}

// night is the pipeline as nights run it.
type night struct {
	w    *world
	last int64
	over context.CancelFunc // the last pipeline is at its end
}

// Run implements nights.Pipeline.
func (n *night) Run(ctx context.Context, tell func(nights.Progress)) (out nights.Outcome, err error) {
	if n.w.done(ctx, n.last) {
		n.over()
		return out, nil
	}
	p, err := n.w.next(ctx)
	if err != nil {
		return out, err
	}
	out.Pipeline = p.ID()
	tell(out.Progress)
	err = errors.Join(p.Run(ctx), p.Close())
	if stage, ok := errors.AsType[*StageError](err); ok && stage.Status == store.StageStopped {
		return out, nil
	}
	out.Done = err == nil
	if err != nil { // nothing but a kill may end a night here
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if n.w.done(ctx, n.last) {
		n.over()
	}
	return out, nil
}

func (w *world) done(ctx context.Context, pipeline int64) bool {
	row, err := w.store.Pipeline(ctx, pipeline)
	return err == nil && row.FinishedMS != 0
}

// next returns the pipeline that has not come to its end, or begins one on what serves.
func (w *world) next(ctx context.Context) (*Pipeline, error) {
	all, err := w.store.Pipelines(ctx, store.Page{Oldest: true})
	if err != nil {
		return nil, err
	}
	n := int64(len(all))
	var p *Pipeline
	if n > 0 && all[n-1].FinishedMS == 0 {
		p, err = Open(ctx, w.parts, n)
	} else {
		base := "policy:v1"
		if now, none := policies.Open(w.store, w.folder).Find(ctx, policies.Current); none == nil {
			base = kernelwright.PolicyPrefix + now.Name()
		}
		p, err = Begin(ctx, w.parts, Settings{Small: true, Base: base, Seed: n + 1, Recipe: lesson()})
	}
	if err != nil {
		return nil, err
	}
	return p, w.tasks(ctx, Set(p.ID(), 1), taskSet(p.ID()))
}

// nightClock shows a minute of the night that is open, or the hour in which the next is due.
type nightClock struct{ store *store.Store }

// Now implements nights.Clock.
func (c nightClock) Now() time.Time {
	n, err := c.store.LastNight(context.Background())
	switch {
	case err != nil:
		return time.Date(2026, 11, 27, 0, 0, 0, 0, time.UTC)
	case n.Open():
		return time.UnixMilli(n.DueMS).Add(time.Minute)
	}
	return time.UnixMilli(n.DueMS).Add(time.Hour)
}

// After implements nights.Clock.
func (nightClock) After(time.Duration) <-chan time.Time { return time.After(10 * time.Millisecond) }

// world is a data folder with all that is round it.
type world struct {
	folder    string
	store     *store.Store
	hardware  *recorded
	parts     Parts
	evaluator *hwfeedback.Evaluator
	served    *serving.Servers
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
		Store: s, DataDir: folder, Leases: filepath.Join(folder, "leases"), Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
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
		Smoke: w.servers(python).Smoke,
		Verifiers: func(context.Context) ([]teach.Hardware, func() error, error) {
			return []teach.Hardware{w.hardware}, func() error { return nil }, nil
		},
		Tell: func(e Event) {
			_ = tell.Encode(said{e.Stage.Pipeline, e.Stage.Stage, e.Stage.Status, e.Stage.Reason, e.Ended, e.Part, e.Step, e.Steps, e.Note}) // the parent may have gone
		},
	}
	return w, nil
}

// servers serve policies as everywhere else.
func (w *world) servers(python string) *serving.Servers {
	w.served = serving.New(serving.Options{
		Python: func(ctx context.Context) (rl.Python, error) {
			return rl.Open(ctx, rl.Options{DataDir: w.folder, Python: python})
		},
		Check: policies.Open(w.store, w.folder).Check, Device: "cpu", Leases: filepath.Join(w.folder, "leases"),
	})
	return w.served
}

func (w *world) close() error {
	if w.served != nil {
		w.served.Close()
	}
	return errors.Join(w.evaluator.Close(), w.store.Close())
}

// tasks records a set as it would have been made.
func (w *world) tasks(ctx context.Context, name string, all []given) error {
	set, err := w.store.BeginTaskSet(ctx, name, []byte(`{}`))
	if err != nil || set.FinishedMS != 0 {
		return err
	}
	for i, g := range all {
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
	for _, g := range taskSet(1) {
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
		"pairs": []string{pairs}, "epochs": 120, "batch": 2, "parameters": 100_000, "vocabulary": 700, "layers": 2, "context": 2048,
		"optimiser": map[string]any{"lr": 1e-2, "warmup": 5, "schedule": "cosine"}, "machine": map[string]any{"device": "cpu", "threads": 1}, "saving": map[string]any{"every": 1000},
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
	// Nothing was timed, so that a busy machine cannot decide: what is right counts as faster,
	// so that there is something to promote.
	fast := kernelwright.Speedup{Value: 1.5, Low: 1.4, High: 1.6}
	v.Speedups, v.Speedup = map[string]kernelwright.Speedup{"eager": fast, "compile": fast}, &fast
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
func start(t *testing.T, folder string, last int64, kill func(said) bool) (all []said, killed bool) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+folder, fmt.Sprintf("%s=%d", lastEnv, last), "PYTHONPATH="+os.Getenv("KERNELWRIGHT_TEST_TRAINING"))
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
