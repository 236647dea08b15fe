package hwfeedback

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/internal/soak"
)

// real opens an Evaluator over the real harness.
func real(t *testing.T, data string, cache Cache) *Evaluator {
	t.Helper()
	python := os.Getenv("KERNELWRIGHT_TEST_PYTHON")
	if python == "" {
		t.Skip("skipped: KERNELWRIGHT_TEST_PYTHON names no interpreter with PyTorch")
	}
	e, err := Open(t.Context(), Options{
		DataDir:     data,
		Python:      python,
		CertifyTime: time.Second, // how exactly anything is known is no matter
		Baselines:   baselinesToday(t),
		Log:         slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Progress:    func(stage, note string) { t.Logf("%s: %s", stage, note) },
	}, cache, &FileLeases{Dir: filepath.Join(data, "leases")})
	if err != nil {
		var setup *SetupError
		if errors.As(err, &setup) {
			t.Fatalf("%s\nhint: %s\n%s", setup.Reason, setup.Hint, setup.Detail)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// baselinesToday are those that are measured: every sixth day all of them, which compile for
// long, and every day one that is compiled.
func baselinesToday(t *testing.T) []string {
	if soak.Turn(t, 2, 6) {
		return Baselines
	}
	return Baselines[:2]
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", bytes.TrimRight(p, "\n"))
	return len(p), nil
}

func show(t *testing.T, v any) {
	t.Helper()
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", b)
}

func TestEndToEnd(t *testing.T) {
	data, cache := t.TempDir(), &memoryCache{}
	// What torch.compile precompiles once on a machine takes half a minute.
	for _, pattern := range []string{"inductor-*", "allocator"} {
		kept, err := filepath.Glob(filepath.Join(os.Getenv("KERNELWRIGHT_TEST_CACHE"), pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, folder := range kept {
			if err := os.CopyFS(filepath.Join(data, "cache", filepath.Base(folder)), os.DirFS(folder)); err != nil {
				t.Fatal(err)
			}
		}
	}
	e := real(t, data, cache)
	if d := e.Device(); d.Ceilings.MemoryGBs <= 0 || d.Ceilings.FP32GFLOPs <= 0 || d.Ceilings.CPUThreads != e.threads {
		t.Errorf("ceilings %+v", d.Ceilings)
	}
	heard := map[string]json.RawMessage{}
	e.super.heard = func(kind string, result json.RawMessage) { heard[kind] = result }
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()

	task, err := e.Inspect(ctx, "relu", selfTestReference)
	if err != nil {
		t.Fatal(err)
	}
	if len(task.Inputs) != 1 || len(task.Outputs) != 1 || task.LeastBytes != 2*64*1024*4 || task.NeededBytes != task.LeastBytes || len(task.Fingerprint) != 64 {
		show(t, task)
		t.Errorf("the task is wrong")
	}
	if len(task.Graph) == 0 {
		t.Errorf("no graph: %s", task.GraphNote)
	}
	good := kernelwright.Candidate{Source: selfTestCandidate, Language: kernelwright.CPP}
	v, err := e.Evaluate(ctx, task, good, kernelwright.Quick)
	if err != nil {
		t.Fatal(err)
	}
	show(t, v)
	if v.Status != kernelwright.Correct || v.CandidateMS <= 0 || v.Speedup == nil || v.Build.Form != "native" {
		t.Fatalf("the self-test is %s: %s", v.Status, v.Reason)
	}
	for _, name := range baselinesToday(t) {
		if v.Baselines[name] <= 0 {
			t.Errorf("no baseline %s", name)
		}
	}
	var spoken struct {
		Task struct {
			kernelwright.Task
			Graph json.RawMessage `json:"graph"`
		} `json:"task"`
	}
	strictly(t, "inspect", heard["inspect"], &spoken)
	strictly(t, "evaluate", heard["evaluate"], &evaluateReply{})
	again, err := e.Evaluate(ctx, task, good, kernelwright.Quick)
	if err != nil || again.Cached != keeps(v) { // what a busy machine showed is measured again
		t.Errorf("cached: %v; %v", again.Cached, err)
	}
	measured, err := e.MeasureBaselines(ctx, task) // which are known by now
	for _, name := range baselinesToday(t) {
		if err != nil || measured[name].MedianMS <= 0 {
			t.Errorf("baseline %s alone: %+v, %v", name, measured[name], err)
		}
	}

	for name, tt := range map[string]struct {
		source string
		want   kernelwright.Status
	}{
		"wrong":         {strings.Replace(selfTestCandidate, "x[i] > 0.0f ||", "x[i] > 0.5f ||", 1), kernelwright.Wrong},
		"build failed":  {strings.Replace(selfTestCandidate, "long long i = 0;", "long long i = 0", 1), kernelwright.BuildFailed},
		"crashed":       {strings.Replace(selfTestCandidate, "y[i] = x[i]", "y[i + (1ll << 40)] = x[i]", 1), kernelwright.Crashed},
		"does not load": {"import nothing_of_this_name\n" + selfTestCandidate, ""},
	} {
		t.Run(name, func(t *testing.T) {
			v, err := e.Evaluate(ctx, task, kernelwright.Candidate{Source: tt.source, Language: kernelwright.CPP}, kernelwright.Quick)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%s: %s (%s)", v.Status, v.Reason, v.Hint)
			if v.Reason == "" || v.Status.OK() || (tt.want != "" && v.Status != tt.want) {
				show(t, v)
				t.Errorf("got %s, want %s", v.Status, tt.want)
			}
		})
	}

	_, err = e.Inspect(ctx, "bad", "import torch\nclass Model(torch.nn.Module):\n  pass\n")
	var invalid *kernelwright.InvalidTaskError
	if !errors.As(err, &invalid) || invalid.Hint == "" {
		t.Errorf("a bad reference: %v", err)
	}
	standalone, err := e.Export(ctx, good)
	if err != nil || strings.Contains(standalone, "from kernelwright import") || !strings.Contains(standalone, "class ModelNew") {
		t.Errorf("export: %v\n%s", err, standalone)
	}
	report, err := e.Doctor(ctx)
	if err != nil {
		t.Fatal(err)
	}
	show(t, report)

	// A candidate that never ends, and a caller who does not wait: the device is free again at once.
	endless := strings.Replace(selfTestCandidate, "for (", "for (volatile int on = 1; on;) {}\n  for (", 1)
	brief, stop := context.WithCancel(ctx)
	var once sync.Once
	e.super.progress = func(stage, note string) {
		if stage == "verify" {
			once.Do(func() { time.AfterFunc(3*time.Second, stop) })
		}
	}
	if _, err := e.Evaluate(brief, task, kernelwright.Candidate{Source: endless, Language: kernelwright.CPP}, kernelwright.Quick); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	soon, done := context.WithTimeout(ctx, hangs)
	defer done()
	lease, err := e.turn.leases.Acquire(soon, "cpu")
	if err != nil {
		t.Fatal(err)
	}
	lease.Release()

	pid := e.super.server.cmd.Process.Pid
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(-pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the group lives on: %v", err)
	}
}

// strictly decodes a reply of the harness: a field that this side does not
// know was misspelt by one of the two.
func strictly(t *testing.T, kind string, result json.RawMessage, into any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(result))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		t.Errorf("%s: %v in %.2000s", kind, err, result)
	}
}
