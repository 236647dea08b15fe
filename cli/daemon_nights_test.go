package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright/daemon"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/internal/soak"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/nights"
	"github.com/kernelwright/kernelwright/trainer/policies"
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

// testTime shows what it is set to. Its timers ring at once.
type testTime struct {
	mu  sync.Mutex
	now time.Time
}

func (c *testTime) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (*testTime) After(time.Duration) <-chan time.Time { return time.After(10 * time.Millisecond) }

func (c *testTime) set(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = now
}

// A daemon whose Coder is policy:current: a night gives way to a file, and promotes; the
// next file is answered by the promoted policy, and after a rollback the one after it by
// the old one. Policies are small, and really served.
func TestANightPromotes(t *testing.T) {
	soak.Weekly(t)
	python, training := os.Getenv("KERNELWRIGHT_TEST_PYTHON"), os.Getenv("KERNELWRIGHT_TEST_TRAINING")
	if python == "" || training == "" {
		t.Skip("KERNELWRIGHT_TEST_PYTHON and KERNELWRIGHT_TEST_TRAINING name no Python that has PyTorch and transformers")
	}
	dir, watched, data := t.TempDir(), t.TempDir(), newData(t)
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
	defer stop()
	a := &app{ctx: ctx, stderr: &log, flags: map[string]string{}, env: []string{
		"HOME=" + data, "KERNELWRIGHT_DATA_DIR=" + data, "KERNELWRIGHT_PYTHON=" + python, "KERNELWRIGHT_TRAINING_PYTHON=" + python, oneThread, "KERNELWRIGHT_CODER_NAME=policy:current",
		"KERNELWRIGHT_ROUNDS_MAX=1", "KERNELWRIGHT_ROUNDS_JUDGE=none", "KERNELWRIGHT_EVALUATION_BASELINES=eager", "KERNELWRIGHT_TRAINING_SCHEDULE_CRON=0 23 * * *", "KERNELWRIGHT_TRAINING_SCHEDULE_TIME_ZONE=UTC",
	}}
	r, err := a.open(true)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	}()
	first, err := r.policies.Add(ctx, filepath.Join(dir, "1"), "tiny", "", policies.Origin{})
	if err == nil {
		err = r.policies.Promote(ctx, first, 0, "the first")
	}
	if err != nil {
		t.Fatal(err)
	}
	by, err := r.agents()
	if err != nil {
		t.Fatal(err)
	}
	es, err := r.evaluators(ctx, r.options(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := closeAll(es); err != nil {
			t.Error(err)
		}
	}()
	w := r.worker(es[0], by)
	w.Share = true
	ended := make(chan daemon.Done, 10)
	d := &daemon.Daemon{
		Worker: w, Watcher: &daemon.Watcher{Folders: []string{watched}, Patterns: []string{"*.py"}, Debounce: 10 * time.Millisecond, Log: r.log}, Lock: r.lock,
		Settings: r.strategy(), Ended: func(done daemon.Done) { ended <- done },
	}
	p := &promoter{r.policies, filepath.Join(dir, "2"), make(chan struct{}, 10), make(chan struct{})}
	eleven := time.Date(2026, 11, 27, 23, 0, 0, 0, time.UTC)
	clock := &testTime{now: eleven.Add(-time.Hour)}
	table, _, err := r.config.Training.Schedule.Timetable()
	if err != nil {
		t.Fatal(err)
	}
	d.Nights = nights.New(nights.Plan{Table: table, Length: 8 * time.Hour}, r.store, p, d.Waiting, clock, r.log)
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	n := 0
	answered := func(want string) {
		t.Helper()
		n++
		text := fmt.Sprintf("import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n        return x * %d\n\n\ndef get_inputs():\n    return [torch.randn(64, 64)]\n\n\ndef get_init_inputs():\n    return []\n", n+1)
		file := filepath.Join(watched, fmt.Sprintf("scale%d.py", n))
		if err := errors.Join(os.WriteFile(file+".part", []byte(text), 0o644), os.Rename(file+".part", file)); err != nil {
			t.Fatal(err)
		}
		select {
		case d := <-ended:
			var origins []string
			for _, r := range d.Data.Rounds {
				origins = append(origins, r.Candidate.Origin)
			}
			if !slices.Equal(origins, []string{want}) {
				t.Errorf("file %d: rounds by %q, want %s (%s: %s)", n, origins, want, d.Data.Run.Status, d.Data.Run.Reason)
			}
		case err := <-done:
			t.Fatalf("the daemon ended: %v", err)
		}
	}
	answered("policy:v1") // by day
	clock.set(eleven)
	<-p.begun
	answered("policy:v1") // in the middle of the night
	<-p.begun
	p.gate <- struct{}{}
	for {
		if night, err := r.store.LastNight(ctx); err != nil {
			t.Fatal(err)
		} else if !night.Open() {
			if night.Stop != store.NightDone || night.Decision != "promoted" || night.Yields != 1 {
				t.Errorf("%+v", night)
			}
			break
		}
		time.Sleep(time.Millisecond)
	}
	answered("policy:v2")
	if _, err := r.policies.Rollback(ctx, "the old one was better"); err != nil {
		t.Fatal(err)
	}
	answered("policy:v1")
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
