package teach

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	kw "github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/coder"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/episodes"
	"github.com/kernelwright/kernelwright/trainer/tasks"
)

const reference = `import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(torch.tanh(x), dim=-1)


def get_inputs():
    return [torch.randn(32, 128)]


def get_init_inputs():
    return []
`

// On the real hardware answers with drawn schedules are right, and what is not right is
// found to be so without a clock.
func TestPairsOnTheHardware(t *testing.T) {
	python := os.Getenv("KERNELWRIGHT_TEST_PYTHON")
	if python == "" {
		t.Skip("KERNELWRIGHT_TEST_PYTHON names no Python that has PyTorch")
	}
	data := t.TempDir()
	kept := must[[]string](t)(filepath.Glob(filepath.Join(os.Getenv("KERNELWRIGHT_TEST_CACHE"), "inductor-*")))
	for _, folder := range kept {
		if err := os.CopyFS(filepath.Join(data, "cache", filepath.Base(folder)), os.DirFS(folder)); err != nil {
			t.Fatal(err)
		}
	}
	cache := must[*store.Store](t)(store.Open(filepath.Join(data, store.FileName)))
	defer cache.Close()
	// Nothing is timed, so nothing of how fast this machine is counts.
	e := must[*hwfeedback.Evaluator](t)(hwfeedback.Open(t.Context(), hwfeedback.Options{
		DataDir: data, Python: python, Threads: 1, Baselines: []string{"eager"}, StrictInputs: true, Unmeasured: true, Log: slog.New(slog.DiscardHandler),
	}, cache, hwfeedback.Shared(&hwfeedback.FileLeases{Dir: filepath.Join(data, "leases")})))
	defer e.Close()
	h := hwfeedback.Untimed{Evaluator: e}
	o := options(t, filepath.Join(data, "pairs.jsonl"), h)
	s := Settings{Seed: 1, Each: 2, Request: episodes.Request{Rounds: 1}}
	all := []tasks.Task{{Source: reference, Fingerprint: "one", Split: store.TrainSplit}}
	counts := must[Counts](t)(Pairs(t.Context(), s, all, o))
	if counts.Pairs != 2 || counts.Verdicts != 2 {
		t.Fatalf("%+v", counts)
	}
	pairs := must[[]Pair](t)(Read(o.Out))
	task := must[kw.Task](t)(e.Inspect(t.Context(), "reference", reference))
	c := must[kw.Candidate](t)(coder.Read(pairs[0].Answer, kw.CPP, "x"))
	v := must[kw.Verdict](t)(h.Evaluate(t.Context(), task, c, kw.Quick))
	if !v.Status.OK() || !v.Cached || v.Speedup != nil || v.CandidateMS != 0 {
		t.Errorf("%+v", v)
	}
	c.Source = strings.ReplaceAll(c.Source, "        return ", "        return 1.01 * ") // Python's
	if v = must[kw.Verdict](t)(h.Evaluate(t.Context(), task, c, kw.Quick)); v.Status != kw.Wrong {
		t.Errorf("%s: %s", v.Status, v.Reason)
	}
}
