package llm_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright/internal/soak"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/llm/llmtest"
)

// TestOllama runs the contract against a real server with a tiny random model.
func TestOllama(t *testing.T) {
	binary := os.Getenv("KERNELWRIGHT_TEST_OLLAMA")
	if binary == "" {
		if !soak.Long() {
			t.Skip("KERNELWRIGHT_TEST_OLLAMA names no Ollama, and without KERNELWRIGHT_SOAK none is built")
		}
		binary = buildOllama(t)
	}
	url := serveOllama(t, binary)
	client := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(client.CloseIdleConnections)
	for _, stream := range []bool{true, false} {
		t.Run(fmt.Sprintf("stream %v", stream), func(t *testing.T) {
			llmtest.Suite(t, func(t *testing.T) llmtest.Subject {
				m, err := llm.Open("ollama:tiny", llm.Options{BaseURL: url + "/v1", Stream: &stream, HTTP: client})
				if err != nil {
					t.Fatal(err)
				}
				return llmtest.Subject{Model: m}
			})
		})
	}
	m, err := llm.Open("ollama:absent", llm.Options{BaseURL: url + "/v1", HTTP: client})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Generate(t.Context(), llmtest.Ask("hello")); kindOf(err) != llm.UnknownModel {
		t.Errorf("a model that is not there: %v", err)
	}
}

// buildOllama builds the last version that the module proxy can build.
func buildOllama(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "install", "github.com/ollama/ollama@v0.6.5")
	cmd.Env = append(os.Environ(), "GOBIN="+dir, "CGO_ENABLED=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build ollama: %v\n%s", err, out)
	}
	return filepath.Join(dir, "ollama")
}

// serveOllama starts a server that has the model "tiny", and returns its URL.
func serveOllama(t *testing.T, binary string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	home := t.TempDir()
	ctx, stop := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, binary, "serve")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = append(os.Environ(), "HOME="+home, "OLLAMA_HOST="+address, "OLLAMA_MODELS="+filepath.Join(home, "models"), "OLLAMA_CONTEXT_LENGTH=512")
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		stop()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		_ = cmd.Wait() // it was told to stop
		if t.Failed() {
			t.Logf("the server's log ends in\n%s", tail(log.String(), 4000))
		}
	})
	url := "http://" + address
	deadline := time.Now().Add(time.Minute)
	for {
		resp, err := http.Get(url)
		if err == nil {
			resp.Body.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the server does not come up: %v", err)
		}
		time.Sleep(50 * time.Millisecond) // another program, which gives no signal
	}
	model := llmtest.TinyGGUF(1)
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256(model))
	post(t, url+"/api/blobs/"+digest, model)
	create, err := json.Marshal(map[string]any{
		"model": "tiny", "stream": false, "files": map[string]string{"tiny.gguf": digest},
		"parameters": map[string]any{"num_thread": 1}, // more threads only wait for each other
		"template":   "{{ range .Messages }}{{ .Role }} {{ .Content }} {{ end }}",
	})
	if err != nil {
		t.Fatal(err)
	}
	post(t, url+"/api/create", create)
	return url
}

func post(t *testing.T, url string, body []byte) {
	t.Helper()
	resp, err := http.Post(url, "application/octet-stream", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		text, _ := io.ReadAll(resp.Body)
		t.Fatalf("%s: %s: %s", url, resp.Status, text)
	}
}

func tail(s string, n int) string { return s[max(len(s)-n, 0):] }
