package episodes

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	kw "github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/internal/soak"
	"github.com/kernelwright/kernelwright/store"
)

const scaleReference = `import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(64, 256)]


def get_init_inputs():
    return []
`

// scale is a candidate that computes an expression so often that it is slower than eager
// on any machine.
func scale(expression string) string {
	return `import torch
import torch.nn as nn

from kernelwright import native

lib = native(
    language="cpp",
    source=r"""
extern "C" void scale(const float* x, float* y, long long n) {
    for (int again = 0; again < 100; again++)
        for (long long i = 0; i < n; i++) ((volatile float*)y)[i] = ` + expression + `;
}
""",
)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.scale(x, y, x.numel())
        return y
`
}

// evaluator is the real one, of the CPU.
func evaluator(t *testing.T, python string) Hardware {
	t.Helper()
	data := t.TempDir()
	// What torch.compile prepares once on a machine takes half a minute.
	kept, err := filepath.Glob(filepath.Join(os.Getenv("KERNELWRIGHT_TEST_CACHE"), "inductor-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range kept {
		if err := os.CopyFS(filepath.Join(data, "cache", filepath.Base(folder)), os.DirFS(folder)); err != nil {
			t.Fatal(err)
		}
	}
	cache, err := store.Open(filepath.Join(data, store.FileName))
	if err != nil {
		t.Fatal(err)
	}
	o := hwfeedback.Options{DataDir: data, Python: python, Threads: 1, Baselines: []string{eager}, StrictInputs: true, Unmeasured: true}
	e, err := hwfeedback.Open(t.Context(), o, cache, &hwfeedback.FileLeases{Dir: filepath.Join(data, "leases")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if err := cache.Close(); err != nil {
			t.Error(err)
		}
	})
	return &hwfeedback.Profiling{Evaluator: e}
}

// Episodes of react by a policy's stand-in, which calls tools and writes kernels: they
// are compiled and evaluated for real, the talk becomes so long that it is compacted, and a
// policy is trained on what came of it by a step of PPO. What has to hold of the step,
// rl/tests/react.py says.
func TestAReactEpisodeIsTrainedOn(t *testing.T) {
	soak.Weekly(t) // test_react.py does it every day, with a double of this server
	python, training := os.Getenv("KERNELWRIGHT_TEST_PYTHON"), os.Getenv("KERNELWRIGHT_TEST_TRAINING")
	if python == "" || training == "" {
		t.Skip("KERNELWRIGHT_TEST_PYTHON and KERNELWRIGHT_TEST_TRAINING name no Python that can train")
	}
	right, wrong := scale("x[i] < 0 ? 0 : x[i]"), scale("x[i] < 1 ? 0 : x[i]")
	long := "#" + strings.Repeat("abcdefgh", 8) + "\n"
	write := func(source string, lines int) string {
		return acts(false, act("write", map[string]string{"path": "model_new.py", "content": source + strings.Repeat(long, lines)}))["text"].(string)
	}
	do := func(tool string) string { return acts(false, act(tool, nil))["text"].(string) }
	finish := acts(false, act("finish", map[string]string{"reason": "enough"}))["text"].(string)
	script := func(last string) []string {
		return []string{write(wrong, 190), do("verify"), write(wrong, 190), do("list"), write(wrong, 190), write(last, 0), do("compile"), do("verify"), finish, finish}
	}

	hardware := evaluator(t, python)
	w := newWorld(t, func(o *Options) {
		o.Hardware = func(context.Context, Conditions) (Hardware, error) { return hardware, nil }
	})
	dir := t.TempDir()
	scripts, err := json.Marshal([][]string{script(right), script(wrong)})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"reference.py": scaleReference, "scripts.json": string(scripts)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tests, err := filepath.Abs("../rl/tests")
	if err != nil {
		t.Fatal(err)
	}
	run := exec.CommandContext(t.Context(), python, filepath.Join(tests, "react.py"), "--url", w.url, "--out", dir,
		"--reference", filepath.Join(dir, "reference.py"), "--scripts", filepath.Join(dir, "scripts.json"))
	run.Env = append(os.Environ(), "HF_HUB_OFFLINE=1", "PYTHONDONTWRITEBYTECODE=1",
		"PYTHONPATH="+strings.Join([]string{filepath.Dir(filepath.Dir(tests)), tests, training}, string(os.PathListSeparator)))
	var said bytes.Buffer
	run.Stderr = &said
	out, err := run.Output()
	if err != nil {
		t.Fatalf("%v\n%s%s", err, out, said.String())
	}
	var found struct {
		Episodes []struct {
			ID, Status string
			Reward     float64
			Contexts   []string
			Tokens     int
		}
	}
	if err := json.Unmarshal(out, &found); err != nil || len(found.Episodes) != 2 {
		t.Fatalf("%s: %v", out, err)
	}
	t.Logf("%s", out)
	samples := w.samples("")
	for i, e := range found.Episodes {
		want, status := kw.RewardCorrect, kw.Correct
		if i == 1 {
			want, status = kw.RewardNotCorrect, kw.Wrong
		}
		id, err := strconv.ParseInt(e.ID, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		rounds, err := w.store.Rounds(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if len(rounds) != 2 || rounds[0].Verdict.Status != kw.Wrong || rounds[1].Verdict.Status != status || rounds[1].Verdict.Build.Form != "native" {
			t.Errorf("episode %s has %d rounds: %+v", e.ID, len(rounds), rounds)
			continue
		}
		if last := &rounds[1].Verdict; e.Reward != float64(want) || Reward(last) != want || e.Status != string(last.Status) {
			t.Errorf("episode %s was trained on with reward %v, %s: its verdict is %s", e.ID, e.Reward, e.Status, last.Status)
		}
		var contexts []string
		tokens := 0
		for _, s := range samples {
			if fmt.Sprint(s.Episode) != e.ID {
				continue
			}
			contexts = append(contexts, s.Context)
			tokens += len(s.ResponseIDs)
		}
		if !slices.Equal(contexts, e.Contexts) || !slices.Contains(contexts[1:], contextReplace) || !slices.Contains(contexts, contextAppend) || tokens != e.Tokens {
			t.Errorf("episode %s: %d tokens, %q were sampled, %d tokens, %q trained on", e.ID, tokens, contexts, e.Tokens, e.Contexts)
		}
	}
}
