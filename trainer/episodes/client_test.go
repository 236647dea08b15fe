package episodes

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/kernelwright/kernelwright/llm/llmtest"
)

const clientFile = "../../examples/clients/rejection_sampling.py"

// The client of docs/episodes.md, as it stands there, samples a model's server and
// keeps what has a reward.
func TestClient(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no python3")
	}
	client, err := os.ReadFile(clientFile)
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/episodes.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "```python\n"+string(client)+"```\n") {
		t.Error("docs/episodes.md shows another client")
	}
	if n := bytes.Count(client, []byte("\n")); n > 60 {
		t.Errorf("it has %d lines", n)
	}

	w := newWorld(t)
	model := llmtest.NewOpenAI(t)
	var mu sync.Mutex
	asked := 0
	words := []string{"wrong", "plain", "faster", "fastest"}
	model.Reply = func(q llmtest.Asked) llmtest.Answer {
		mu.Lock()
		defer mu.Unlock()
		asked++
		if asked == 1 {
			return llmtest.Answer{Text: "I would rather not."}
		}
		return llmtest.Answer{Text: file(words[asked%len(words)])}
	}
	dir := t.TempDir()
	for _, name := range []string{"a.py", "b.py"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("class Model: pass # "+name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := exec.CommandContext(t.Context(), python, clientFile, filepath.Join(dir, "a.py"), filepath.Join(dir, "b.py"), "--server", w.url,
		"--sampler", model.URL, "--model", "m", "--samples", "5", "--rounds", "2", "--out", filepath.Join(dir, "kept.jsonl"))
	run.Env = append(os.Environ(), "OPENAI_API_KEY="+llmtest.Canary)
	out, err := run.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	kept, err := os.ReadFile(filepath.Join(dir, "kept.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	stats := w.episodes.Stats()
	if lines := int64(bytes.Count(kept, []byte("\n"))); stats.Done != 10 || lines != 10-stats.Rewards[-1] || lines == 0 {
		t.Errorf("%d lines: %+v\n%s", lines, stats, out)
	}
	for line := range strings.Lines(string(kept)) {
		var e struct {
			Episode int64
			Reward  int
			Calls   []struct {
				Messages   []Message
				Completion string
			}
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		last := e.Calls[len(e.Calls)-1]
		if e.Reward < 1 || last.Completion == "" || last.Messages[0].Role != "system" {
			t.Errorf("%+v", e)
		}
	}
}
