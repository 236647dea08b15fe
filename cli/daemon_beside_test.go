package cli

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/config"
	"github.com/kernelwright/kernelwright/daemon"
	"github.com/kernelwright/kernelwright/internal/soak"
	"github.com/kernelwright/kernelwright/store"
)

// A daemon that is given an address and no folder has one for what is sent to it.
func TestADaemonOfUploadsAlone(t *testing.T) {
	t.Parallel()
	python := os.Getenv("KERNELWRIGHT_TEST_PYTHON")
	if python == "" {
		t.Skip("KERNELWRIGHT_TEST_PYTHON names no Python that has PyTorch")
	}
	b := newBatch(t, python, 1)
	p := b.startCommand("daemon", "--listen", "127.0.0.1:0")
	code, sent := p.served().ask("POST", "/api/v1/tasks", "application/json", strings.NewReader(`{"name": "bad.py", "source": "class Model: 1\n"}`))
	if want := filepath.Join(b.data, uploads, "bad.py"); code != http.StatusCreated || sent["path"] != want {
		t.Error(code, sent, want)
	}
	if text, err := os.ReadFile(filepath.Join(b.data, uploads, "bad.py")); err != nil || string(text) != "class Model: 1\n" {
		t.Errorf("%q %v", text, err)
	}
	p.kill()
}

// The daemon drops texts at its start and at each tick, by the time that the tick says.
func TestPruneDaily(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	s := must(store.Open(filepath.Join(t.TempDir(), store.FileName)))(t)
	defer s.Close()
	now := time.Now()
	ended := func(days int) kernelwright.Run {
		run := must(s.CreateRun(ctx, kernelwright.Run{TaskName: "softmax", Coder: "builtin"}))(t)
		for i, status := range []kernelwright.Status{kernelwright.Wrong, kernelwright.Correct} {
			source := fmt.Sprintf("class ModelNew: # %d of %d%s", i, run.ID, strings.Repeat(" and more", 200))
			err := s.AppendRound(ctx, kernelwright.Round{RunID: run.ID, Index: i, Candidate: kernelwright.Candidate{Source: source}, Verdict: kernelwright.Verdict{Status: status, CandidateMS: 1}})
			must(run, err)(t)
		}
		run.Status, run.FinishedMS = kernelwright.RunDone, now.AddDate(0, 0, -days).UnixMilli()
		must(run, s.UpdateRun(ctx, run))(t)
		return run
	}
	pruned := func(run kernelwright.Run) bool {
		rounds := must(s.Rounds(ctx, run.ID))(t)
		if rounds[1].Candidate.Source == store.PrunedText {
			t.Error("the best round's text is gone")
		}
		return rounds[0].Candidate.Source == store.PrunedText
	}
	old, young := ended(40), ended(10)
	r := &room{store: s, log: slog.New(slog.DiscardHandler), config: config.Config{Retention: config.Retention{Days: 30, LeastBytes: 500}}}
	tick := make(chan time.Time) // one that is taken says that what came before is done
	wait := r.pruneDaily(ctx, tick)
	tick <- now.AddDate(0, 0, 1)
	if !pruned(old) || pruned(young) {
		t.Errorf("at the start: %v and %v are pruned, want the older run's text alone", pruned(old), pruned(young))
	}
	tick <- now.AddDate(0, 0, 25)
	tick <- now.AddDate(0, 0, 26)
	if !pruned(young) {
		t.Error("25 days later the younger run's text is still there")
	}
	stop()
	wait()
	kept := &room{store: s, log: r.log}
	kept.pruneDaily(t.Context(), nil)() // without a policy there is nothing to wait for
}

// Two processes never train in one data folder: the second says who has it, and that a
// daemon may do it.
func TestTrainRunBesideADaemon(t *testing.T) {
	dir := t.TempDir()
	lock := must(daemon.AcquireLock(dir, []string{"kernelwright", "daemon"}, time.Now()))(t)
	defer lock.Release()
	code, said := says(t, "train", "run", "--small", "--data-dir", dir)
	wantSaid(t, code, said, ExitHeld, "kernelwright daemon", "holds the data folder "+dir, "training.schedule.cron")
	if _, err := os.Stat(filepath.Join(dir, store.FileName)); err == nil {
		t.Error("it has begun a record")
	}
}

// A trainer plays an episode with a daemon that works on a file: its reward is that of a
// real verdict, and both get the device in turn.
func TestEpisodesOfADaemon(t *testing.T) {
	soak.Weekly(t)
	t.Parallel()
	python := os.Getenv("KERNELWRIGHT_TEST_PYTHON")
	if python == "" {
		t.Skip("KERNELWRIGHT_TEST_PYTHON names no Python that has PyTorch")
	}
	softmax := string(must(os.ReadFile("../examples/softmax.py"))(t))
	small := strings.Replace(softmax, "2048, 1024", "256, 512", 1)
	right := string(must(os.ReadFile("../examples/candidates/softmax_native.py"))(t))
	b := newBatch(t, python, 1)
	settings := filepath.Join(t.TempDir(), "config.toml")
	must(settings, os.WriteFile(settings, []byte("[http]\nepisodes = true\n"), 0o600))(t)
	p := b.start("--config", settings, "--listen", "127.0.0.1:0", "--rounds", "2")
	served := p.served()
	sent := fmt.Sprintf(`{"name": "beside.py", "source": %q}`, fmt.Sprintf(reference, "torch.tanh(x) * 4.5"))
	if code, v := served.ask("POST", "/api/v1/tasks", "application/json", strings.NewReader(sent)); code != http.StatusCreated {
		t.Fatal(code, v)
	}
	code, e := served.ask("POST", "/v1/episodes", "application/json", strings.NewReader(fmt.Sprintf(`{"reference": %q, "strategy": "rounds", "rounds": 1, "policy_version": "v1"}`, small)))
	if code != http.StatusCreated || e["done"] != false {
		t.Fatal(code, e)
	}
	turn := fmt.Sprintf(`{"call": 0, "text": %q}`, "Here it is.\n```python\n"+right+"\n```\n")
	code, a := served.ask("POST", fmt.Sprintf("/v1/episodes/%v/turns", e["id"]), "application/json", strings.NewReader(turn))
	verdict, _ := a["verdict"].(map[string]any)
	switch noisy, _ := a["dropped"].(string); {
	case code == http.StatusOK && strings.Contains(noisy, "too noisy"): // on a busy machine
	case code != http.StatusOK || a["done"] != true || verdict["status"] != string(kernelwright.Correct) || a["reward"].(float64) < 1:
		t.Errorf("%d %v", code, a)
	}
	served.follow("0", func(kind string, data map[string]any) bool {
		return kind == "run" && data["task_name"] == "beside" && data["status"] == string(kernelwright.RunDone)
	})
}
