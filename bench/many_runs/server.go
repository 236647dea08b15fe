package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/llm/llmtest"
)

// served is what a server says of itself at its end.
type served struct {
	Replies []string // a word of each that no other has
	Refused int
}

// owner is what a server of llmtest wants of a test.
type owner struct{ testing.TB }

func (owner) Helper()        {}
func (owner) Cleanup(func()) {} // the process ends

// slow is a model's server. Each reply has a word of its own.
type slow struct {
	wait time.Duration
	busy int

	mu    sync.Mutex
	asked int
	said  served
}

func (s *slow) reply(q llmtest.Asked) llmtest.Answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked++; s.busy > 0 && s.asked%s.busy == 0 {
		s.said.Refused++
		return llmtest.Answer{Problem: llmtest.TooMany, Header: http.Header{"Retry-After": {"1"}}}
	}
	word := fmt.Sprintf("reply%dend", len(s.said.Replies))
	s.said.Replies = append(s.said.Replies, word)
	held := make(chan struct{})
	time.AfterFunc(s.wait, func() { close(held) })
	a := llmtest.Answer{Text: kernel(word), Hold: held, Usage: &llm.Usage{In: 4000, Out: 1500}, Pieces: 400}
	messages, err := json.Marshal(q.Body["messages"])
	if err != nil {
		panic(err) // it was JSON
	}
	if strings.Contains(string(messages), "You judge kernels") {
		a.Text, a.Pieces = advice(word), 40
	}
	return a
}

// kernel is a candidate as long as kernels are.
func kernel(word string) string {
	return "One pass over the rows, with " + word + ".\n\n```python\nimport torch\nimport torch.nn as nn\nfrom kernelwright import native\n\nlib = native(language=\"cpp\", source=r\"\"\"\n// " + word +
		"\nextern \"C\" void softmax(const float* x, float* y, long long n) {\n" + strings.Repeat("    for (long long i = 0; i < n; i++) y[i] = x[i];\n", 80) +
		"}\n\"\"\")\n\n\nclass ModelNew(nn.Module):\n    def forward(self, x):\n        y = torch.empty_like(x)\n        lib.softmax(x, y, x.numel())\n        return y\n```\n"
}

func advice(word string) string {
	return fmt.Sprintf(`{"kind": "optimisation", "bottleneck": "memory, as %s has it", "method": "fewer passes", "plan": "join the loops", "why": "", "evidence": []}`, word)
}

// serve is the server's process: it says its address, and at the end of its input
// what it has served.
func serve(wait time.Duration, busy int) {
	s := &slow{wait: wait, busy: busy}
	server := llmtest.NewOpenAI(owner{})
	server.Reply = s.reply
	fmt.Println(server.URL)
	_, _ = io.Copy(io.Discard, os.Stdin)
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = json.NewEncoder(os.Stdout).Encode(s.said)
}

// server is the process of one.
type server struct {
	url   string
	cmd   *exec.Cmd
	input io.Closer
	says  *bufio.Reader
	once  sync.Once
	said  served
	err   error
}

func startServer(ctx context.Context, s settings) (*server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "-serve", "-wait", s.wait.String(), "-busy", fmt.Sprint(s.busy))
	cmd.Stderr = os.Stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	v := &server{cmd: cmd, input: input, says: bufio.NewReader(output)}
	if v.url, err = v.says.ReadString('\n'); err != nil {
		_, _ = v.stop()
		return nil, fmt.Errorf("the server does not start: %w", err)
	}
	v.url = strings.TrimSpace(v.url)
	return v, nil
}

// stop ends the process and returns what it has served.
func (v *server) stop() (served, error) {
	v.once.Do(func() {
		_ = v.input.Close()
		v.err = json.NewDecoder(v.says).Decode(&v.said)
		_ = v.cmd.Wait()
	})
	return v.said, v.err
}
