package cli

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kernelwright/kernelwright/internal/await"
	"github.com/kernelwright/kernelwright/internal/soak"
	"github.com/kernelwright/kernelwright/store"
)

// makeModel is a command of scripts: `makemodel DIR CONTENT` writes a folder like a
// model's, which computes nothing.
func makeModel(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(writeModel(ts.MkAbs(args[0]), args[1]))
}

func writeModel(dir, content string) error {
	header := fmt.Sprintf(`{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}`, len(content), len(content))
	weights := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header+content...)
	err := os.MkdirAll(dir, 0o755)
	for name, text := range map[string]string{
		"config.json": "{}", "tokenizer.json": "{}", "README.md": "---\nlicense: apache-2.0\n---\n", "model.safetensors": string(weights),
	} {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	return err
}

// A run by a real policy: each round names the version that wrote it, also after a
// promotion, and the record is replayed without one.
func TestPolicyAsCoder(t *testing.T) {
	soak.Weekly(t)
	t.Parallel()
	python, training := os.Getenv("KERNELWRIGHT_TEST_PYTHON"), os.Getenv("KERNELWRIGHT_TEST_TRAINING")
	if python == "" || training == "" {
		t.Skip("KERNELWRIGHT_TEST_PYTHON and KERNELWRIGHT_TEST_TRAINING name no Python that has PyTorch and transformers")
	}
	dir := t.TempDir()
	c := exec.Command(python, "-c", `
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
	r := runner{t: t, python: python, data: newData(t)}
	run := func(args ...string) (out string) {
		t.Helper()
		c := r.command(append(args, "--json")...)
		c.Env = append(c.Env, "KERNELWRIGHT_TRAINING_PYTHON="+python, "PYTHONPATH="+training)
		var said bytes.Buffer
		c.Stderr = &said
		text, err := c.Output()
		if err != nil && args[0] != "run" { // which tells by its code that nothing was certified
			t.Fatalf("%s: %v\n%s%s", strings.Join(args, " "), err, text, said.String())
		}
		return string(text)
	}
	run("policy", "add", filepath.Join(dir, "1"))
	run("policy", "add", filepath.Join(dir, "2"))
	run("policy", "promote", "v1")
	reference := filepath.Join(dir, "softmax.py")
	text, err := os.ReadFile("../examples/softmax.py")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(reference, []byte(strings.Replace(string(text), "2048, 1024", "256, 512", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	optimise := func() {
		out := run("run", reference, "--coder", "policy:current", "--rounds", "1", "--judge-mode", "none")
		if !strings.Contains(out, `"stop": "rounds"`) {
			t.Fatal(out)
		}
	}
	optimise()
	run("policy", "promote", "v2")
	if err := os.WriteFile(reference, append(text, "# another text\n"...), 0o644); err != nil {
		t.Fatal(err)
	}
	optimise()
	s, err := store.Open(filepath.Join(r.data, store.FileName))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i, want := range []string{"policy:v1", "policy:v2"} {
		rounds, err := s.Rounds(t.Context(), int64(i+1))
		if err != nil || len(rounds) != 1 || rounds[0].Candidate.Origin != want {
			t.Errorf("run %d: %+v, %v", i+1, rounds, err)
		}
		calls, err := s.Calls(t.Context(), int64(i+1))
		if err != nil || len(calls) == 0 || calls[0].Reply.Model != want || calls[0].Model != "policy:current" || len(calls[0].Reply.TokenIDs) == 0 || len(calls[0].Reply.LogProbs) == 0 {
			t.Errorf("run %d: %d calls, %v", i+1, len(calls), err)
		}
	}
	if out := run("history", "replay", "1"); !strings.Contains(out, `"same": true`) {
		t.Error(out)
	}

	serve := r.command("policy", "serve", "v2", "--json")
	serve.Env = append(serve.Env, "KERNELWRIGHT_TRAINING_PYTHON="+python, "PYTHONPATH="+training)
	out, err := serve.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = serve.Process.Kill(); _ = serve.Wait() })
	var at struct{ URL, Model string }
	if err := json.NewDecoder(out).Decode(&at); err != nil || at.Model != "policy:v2" {
		t.Fatalf("%+v, %v", at, err)
	}
	answer, err := http.Post(at.URL+"/chat/completions", "application/json", strings.NewReader(`{"messages": [{"role": "user", "content": "a"}], "max_tokens": 3}`))
	if err != nil {
		t.Fatal(err)
	}
	told, err := io.ReadAll(answer.Body)
	answer.Body.Close()
	if err != nil || answer.StatusCode != http.StatusOK || !strings.Contains(string(told), `"token_ids"`) {
		t.Errorf("%d %s, %v", answer.StatusCode, told, err)
	}
	// Its server ends with it, however it ends.
	if err := serve.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = serve.Wait() // as it was killed
	await.Until(t, "its server has ended", func() bool {
		answer, err := http.Get(strings.TrimSuffix(at.URL, "/v1") + "/health")
		if err == nil {
			answer.Body.Close()
		}
		return err != nil
	})
}
