package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/internal/await"
	"github.com/kernelwright/kernelwright/internal/soak"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/episodes"
)

// trainingServer is a process of `train serve`.
type trainingServer struct {
	t    *testing.T
	url  string
	c    command
	said *strings.Builder
}

func (r runner) serveTraining() *trainingServer {
	r.t.Helper()
	c := r.command("train", "serve", "--listen", "127.0.0.1:0", "--json")
	out, err := c.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	s := &trainingServer{t: r.t, c: c, said: &strings.Builder{}}
	c.Stderr = s.said
	if err := c.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	line, err := bufio.NewReader(out).ReadBytes('\n')
	var at struct{ URL, Address string }
	if err == nil {
		err = json.Unmarshal(line, &at)
	}
	if err != nil || at.URL != "http://"+at.Address {
		_ = c.Wait()
		r.t.Fatalf("%q, %v\n%s", line, err, s.said)
	}
	s.url = at.URL
	return s
}

// post sends a request, and returns its status and what is in the answer.
func (s *trainingServer) post(path string, body any) (int, episodes.Answer) {
	s.t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		s.t.Fatal(err)
	}
	answer, err := http.Post(s.url+path, "application/json", bytes.NewReader(b))
	if err != nil {
		s.t.Fatalf("%v\n%s", err, s.said)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	var a episodes.Answer
	if err == nil && answer.StatusCode < 300 {
		err = json.Unmarshal(text, &a)
	}
	if err != nil {
		s.t.Fatalf("%d %s: %v", answer.StatusCode, text, err)
	}
	if answer.StatusCode >= 500 {
		s.t.Errorf("%d %s", answer.StatusCode, text)
	}
	return answer.StatusCode, a
}

// Episodes with real verdicts, over real HTTP: their rewards, a server that is killed
// while some are open, and one that is told to stop.
func TestTrainServe(t *testing.T) {
	if !soak.Turn(t, 1, 6) {
		t.Skip("it has its turn every sixth day: package episodes has its service every day")
	}
	t.Parallel()
	python := os.Getenv("KERNELWRIGHT_TEST_PYTHON")
	if python == "" {
		t.Skip("KERNELWRIGHT_TEST_PYTHON names no Python that has PyTorch")
	}
	softmax, err := os.ReadFile("../examples/softmax.py")
	if err != nil {
		t.Fatal(err)
	}
	reference := strings.Replace(string(softmax), "2048, 1024", "256, 512", 1)
	r := runner{t: t, python: python, data: newData(t)}
	s := r.serveTraining()
	answers := func(name string) string {
		text, err := os.ReadFile(filepath.Join("../examples/candidates", name))
		if err != nil {
			t.Fatal(err)
		}
		return "Here it is.\n```python\n" + string(text) + "\n```\n"
	}
	start := func() episodes.Answer {
		code, a := s.post("/v1/episodes", map[string]any{"reference": reference, "strategy": "rounds", "rounds": 1, "policy_version": "v1"})
		if code != http.StatusCreated || a.Done || !strings.Contains(a.Messages[len(a.Messages)-1].Content, "torch.softmax") {
			t.Fatalf("%d %+v", code, a)
		}
		return a
	}
	finish := func(id int64, text string) episodes.Answer {
		code, a := s.post(fmt.Sprintf("/v1/episodes/%d/turns", id), map[string]any{"call": 0, "text": text})
		if code != http.StatusOK || !a.Done || a.Reward == nil || *a.Reward != episodes.Reward(a.Verdict) {
			t.Errorf("%d %+v", code, a)
		}
		return a
	}
	right := start()
	switch code, a := s.post(fmt.Sprintf("/v1/episodes/%d/turns", right.ID), map[string]any{"call": 0, "text": answers("softmax_native.py")}); {
	case code == http.StatusOK && a.Status == store.EpisodeDropped && strings.Contains(a.Dropped, "too noisy"): // on a busy machine
	case code != http.StatusOK || a.Verdict == nil || a.Verdict.Status != kernelwright.Correct || *a.Reward < 1:
		t.Errorf("%d %+v", code, a)
	}
	for i := range 2 { // the second time it is remembered
		if a := finish(start().ID, answers("softmax_unstable.py")); a.Verdict.Status.OK() || *a.Reward != -1 || a.Verdict.Cached != (i == 1) {
			t.Errorf("%d: %+v", i, a)
		}
	}
	if a := finish(start().ID, "```python\nclass ModelNew(torch.nn.Module\n```"); *a.Reward != -1 {
		t.Errorf("%+v", a)
	}
	open := start()
	if err := s.c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = s.c.Wait() // as it was killed
	await.Until(t, "all have ended", func() bool { return len(r.processes()) == 0 })

	e, err := store.Examine(t.Context(), filepath.Join(r.data, store.FileName), func(string) {})
	if err != nil || !e.Sound() {
		t.Errorf("%+v, %v", e.Faults, err)
	}
	s = r.serveTraining()
	if code, _ := s.post(fmt.Sprintf("/v1/episodes/%d/turns", open.ID), map[string]any{"text": "late"}); code != http.StatusGone {
		t.Errorf("an episode of the server that was killed: %d", code)
	}
	if err := s.c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := s.c.Wait(); err != nil {
		t.Errorf("told to stop: %v\n%s", err, s.said)
	}
	talk, err := r.command("history", "show", fmt.Sprint(right.ID), "--talk").CombinedOutput()
	if err != nil || !strings.Contains(string(talk), "training:v1 as coder") || !strings.Contains(string(talk), "Here it is.") {
		t.Errorf("%v %s", err, talk)
	}
	r.command("history", "replay", fmt.Sprint(right.ID)).mustRun(t)
	if left := r.processes(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
