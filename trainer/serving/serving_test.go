package serving_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kernelwright/kernelwright/internal/await"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/llm/llmtest"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/policies"
	"github.com/kernelwright/kernelwright/trainer/rl"
	"github.com/kernelwright/kernelwright/trainer/serving"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		ok(t, err)
		return v
	}
}

// python is what real servers run by.
func python(t testing.TB) rl.Python {
	t.Helper()
	p := rl.Python{Interpreter: os.Getenv("KERNELWRIGHT_TEST_PYTHON"), Path: filepath.SplitList(os.Getenv("KERNELWRIGHT_TEST_TRAINING"))}
	if p.Interpreter == "" || len(p.Path) == 0 {
		t.Skip("KERNELWRIGHT_TEST_PYTHON and KERNELWRIGHT_TEST_TRAINING name no Python that has PyTorch and transformers: make training")
	}
	p.Path = append([]string{must(filepath.Abs(".."))(t)}, p.Path...)
	return p
}

// tinyPolicies makes policies of some 20,000 parameters, which speak of nothing.
func tinyPolicies(t testing.TB, p rl.Python, n int) (folders []string) {
	t.Helper()
	dir := t.TempDir()
	c := exec.Command(p.Interpreter, "-c", `
import sys
from pathlib import Path
from rl import tiny
for i in range(int(sys.argv[2])):
    tiny.make(Path(sys.argv[1]) / str(i), ["0123456789", "say it again"], 20_000, 260, 1, 512, i)
`, dir, fmt.Sprint(n))
	c.Env = append(os.Environ(), "PYTHONPATH="+strings.Join(p.Path, ":"))
	if said, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	for i := range n {
		folders = append(folders, filepath.Join(dir, fmt.Sprint(i)))
	}
	return folders
}

// spoiled is a copy of a policy whose weights are no numbers.
func spoiled(t testing.TB, p rl.Python, folder string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "spoiled")
	c := exec.Command(p.Interpreter, "-c", `
import shutil, sys
from safetensors.torch import load_file, save_file
shutil.copytree(sys.argv[1], sys.argv[2])
path = sys.argv[2] + "/model.safetensors"
weights = {k: v * float("nan") for k, v in load_file(path).items()}
import os
os.remove(path)
save_file(weights, path, {"format": "pt"})
`, folder, to)
	c.Env = append(os.Environ(), "PYTHONPATH="+strings.Join(p.Path, ":"))
	if said, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	return to
}

func registry(t testing.TB) *policies.Registry {
	t.Helper()
	data := t.TempDir()
	s := must(store.Open(filepath.Join(data, store.FileName)))(t)
	t.Cleanup(func() { ok(t, s.Close()) })
	return policies.Open(s, data)
}

// Real policies by real servers: the contract of a model, ids and log-probabilities, a
// promotion while calls are under way, a server that is killed, a folder that was changed,
// and nothing left in the end.
func TestServed(t *testing.T) {
	p := python(t)
	r := registry(t)
	ctx := t.Context()
	var versions []policies.Policy
	for _, folder := range tinyPolicies(t, p, 2) {
		versions = append(versions, must(r.Add(ctx, folder, "", "", policies.Origin{}))(t))
	}
	ok(t, r.Promote(ctx, versions[0], 0, "why"))
	servers := serving.New(serving.Options{Python: func(context.Context) (rl.Python, error) { return p, nil }, Check: r.Check, Device: "cpu"})
	t.Cleanup(servers.Close)
	most := 64
	open := func(name string) llm.Model {
		return must(llm.Open(name, llm.Options{Policies: serving.Source{Policies: r, Servers: servers}, MaxTokens: most}))(t)
	}
	current := open("policy:current")

	t.Run("a model like any other", func(t *testing.T) {
		llmtest.Suite(t, func(*testing.T) llmtest.Subject { return llmtest.Subject{Model: current, NoSchema: true} })
	})

	t.Run("tokens", func(t *testing.T) {
		ask := llmtest.Ask("0123")
		seed := int64(5)
		ask.Seed = &seed
		reply := must(current.Generate(ctx, ask))(t)
		again := must(current.Generate(ctx, ask))(t)
		if len(reply.TokenIDs) == 0 || len(reply.TokenIDs) != len(reply.LogProbs) || len(reply.PromptIDs) == 0 || !slices.Equal(reply.TokenIDs, again.TokenIDs) {
			t.Errorf("%+v", reply)
		}
		if reply.Model != "policy:v1" || llm.Author(current.Name(), reply) != "policy:v1" || llm.Author("vllm:x", reply) != "vllm:x" {
			t.Errorf("%q answered", reply.Model)
		}
		w, _, err := llm.WindowOf(ctx, current, llm.Key{})
		if err != nil || w.Context != 512 {
			t.Errorf("%+v, %v", w, err)
		}
		long := llmtest.Ask(strings.Repeat("x", 2000))
		var failed *llm.Error
		if _, err := current.Generate(ctx, long); !errors.As(err, &failed) || failed.Kind != llm.TooLong || failed.Context != 512 {
			t.Errorf("got %+v", failed)
		}
		if _, err := current.Generate(ctx, llm.Request{Messages: long.Messages, Tools: []llm.Tool{{Name: "x"}}}); !errors.As(err, &failed) || failed.Kind != llm.NoTools {
			t.Errorf("got %v", err)
		}
	})

	t.Run("a promotion while calls are under way", func(t *testing.T) {
		before := must(r.Find(ctx, "current"))(t)
		at, release, err := servers.Acquire(ctx, before) // such a call
		ok(t, err)
		ok(t, r.Promote(ctx, versions[1], 3, "better"))
		reply := must(current.Generate(ctx, llmtest.Ask("a")))(t)
		if reply.Model != "policy:v2" {
			t.Errorf("%q answered after the promotion", reply.Model)
		}
		if !healthy(t, at) {
			t.Error("the server of the call that was under way is gone")
		}
		release()
		if by := must(open("policy:v1").Generate(ctx, llmtest.Ask("a")))(t).Model; by != "policy:v1" {
			t.Errorf("%q answered in the place of v1", by)
		}
		must(r.Rollback(ctx, "why"))(t)
		if by := must(current.Generate(ctx, llmtest.Ask("a")))(t).Model; by != "policy:v1" {
			t.Errorf("%q answered after going back", by)
		}
	})

	t.Run("a folder that was changed", func(t *testing.T) {
		ok(t, os.WriteFile(filepath.Join(versions[1].Folder, "more.json"), []byte("{}"), 0o644))
		var failed *llm.Error
		servers := serving.New(serving.Options{Python: func(context.Context) (rl.Python, error) { return p, nil }, Check: r.Check})
		defer servers.Close()
		m := must(llm.Open("policy:v2", llm.Options{Policies: serving.Source{Policies: r, Servers: servers}}))(t)
		if _, err := m.Generate(ctx, llmtest.Ask("a")); !errors.As(err, &failed) || failed.Kind != llm.BadRequest || !strings.Contains(failed.Text, "was changed: more.json was not in it") || failed.Hint == "" {
			t.Errorf("got %v", err)
		}
	})

	t.Run("a smoke request", func(t *testing.T) {
		ok(t, servers.Smoke(ctx, versions[0]))
		broken := spoiled(t, p, versions[0].Folder)
		unchecked := serving.New(serving.Options{Python: func(context.Context) (rl.Python, error) { return p, nil }, Device: "cpu"})
		defer unchecked.Close()
		var mute *serving.MuteError
		err := unchecked.Smoke(ctx, policies.Policy{Version: 9, Folder: broken})
		if !errors.As(err, &mute) || mute.Policy.Version != 9 || !strings.HasPrefix(err.Error(), "policy v9 cannot answer: ") || mute.Hint() == "" {
			t.Errorf("got %v", err)
		}
	})

	t.Run("a server that is killed", func(t *testing.T) {
		m := must(llm.New("policy:v1", llm.Options{Policies: serving.Source{Policies: r, Servers: servers}, MaxTokens: most}, llm.Services{}))(t)
		at, release, err := servers.Acquire(ctx, versions[0])
		ok(t, err)
		release()
		killServer(t, at)
		if reply := must(m.Generate(ctx, llmtest.Ask("a")))(t); reply.Model != "policy:v1" {
			t.Errorf("%+v", reply)
		}
	})
	servers.Close()
	if left := processes(t, r); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

// healthy reports whether a server is there.
func healthy(t testing.TB, at serving.Endpoint) bool {
	t.Helper()
	answer, err := http.Get(strings.TrimSuffix(at.URL, "/v1") + "/health")
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	return answer.StatusCode == http.StatusOK
}

// killServer kills who listens at an endpoint.
func killServer(t testing.TB, at serving.Endpoint) {
	t.Helper()
	for _, pid := range children(t) {
		text, _ := os.ReadFile(filepath.Join("/proc", pid, "environ"))
		if strings.Contains(string(text), serving.TokenEnv+"="+at.Token) {
			n := 0
			fmt.Sscan(pid, &n)
			ok(t, syscall.Kill(n, syscall.SIGKILL))
			return
		}
	}
	t.Fatal("no process has that token")
}

func children(t testing.TB) (pids []string) {
	t.Helper()
	tasks := must(filepath.Glob("/proc/self/task/*/children"))(t)
	for _, path := range tasks {
		text, err := os.ReadFile(path)
		if err == nil {
			pids = append(pids, strings.Fields(string(text))...)
		}
	}
	return pids
}

// processes are the servers that run.
func processes(t testing.TB, _ *policies.Registry) (all []string) {
	t.Helper()
	for _, pid := range children(t) {
		if line, err := os.ReadFile(filepath.Join("/proc", pid, "cmdline")); err == nil && strings.Contains(string(line), "rl.serve") {
			all = append(all, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return all
}

// program is a program in the place of Python: it speaks rl.serve's protocol with its
// parent, and computes nothing.
func program(t testing.TB, script string) rl.Python {
	t.Helper()
	path := filepath.Join(t.TempDir(), "python")
	ok(t, os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755))
	return rl.Python{Interpreter: path, Path: []string{"/a", "/b"}}
}

const says = `read settings
echo "$settings $PYTHONPATH $SECRET" >>"$0.said"
echo '{"event": "ready", "url": "http://127.0.0.1:9/v1", "context": 128}'
cat >/dev/null
`

func said(t testing.TB, p rl.Python) []string {
	t.Helper()
	text, err := os.ReadFile(p.Interpreter + ".said")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	ok(t, err)
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

func policy(version int64) policies.Policy {
	return policies.Policy{Version: version, Folder: fmt.Sprintf("/p/v%d", version)}
}

func serve(t testing.TB, p rl.Python, o serving.Options) *serving.Servers {
	t.Helper()
	o.Python = func(context.Context) (rl.Python, error) { return p, nil }
	s := serving.New(o)
	t.Cleanup(s.Close)
	return s
}

// A server is shared by all who ask for a version, stays while one of them does and for a
// while, and ends then. It sees no secret.
func TestServersAreShared(t *testing.T) {
	t.Setenv("SECRET", "a provider's key")
	p := program(t, says)
	s := serve(t, p, serving.Options{Idle: time.Millisecond, Device: "cpu"})
	var all sync.WaitGroup
	releases := make(chan func(), 40)
	for i := range 40 {
		all.Go(func() {
			at, release, err := s.Acquire(t.Context(), policy(int64(1+i%2)))
			if err != nil || at.URL != "http://127.0.0.1:9/v1" || at.Context != 128 || len(at.Token) < 20 || at.Model != fmt.Sprintf("policy:v%d", 1+i%2) {
				t.Errorf("%+v, %v", at, err)
				return
			}
			releases <- release
		})
	}
	all.Wait()
	close(releases)
	if got := said(t, p); len(got) != 2 || strings.Contains(strings.Join(got, ""), "provider") || !strings.HasSuffix(got[0], " /a:/b ") {
		t.Errorf("started: %q", got)
	}
	var settings map[string]any
	ok(t, json.NewDecoder(strings.NewReader(said(t, p)[0])).Decode(&settings))
	if !strings.HasPrefix(settings["policy"].(string), "/p/v") || settings["device"] != "cpu" {
		t.Errorf("%v", settings)
	}
	for release := range releases {
		release()
		release() // twice is once
	}
	await.Until(t, "they have ended", func() bool { return len(running(t, p)) == 0 })
	_, release, err := s.Acquire(t.Context(), policy(1))
	ok(t, err)
	if got := said(t, p); len(got) != 3 {
		t.Errorf("started: %q", got)
	}
	s.Close()
	release()
	if _, _, err := s.Acquire(t.Context(), policy(1)); err == nil {
		t.Error("served after the end")
	}
	if left := running(t, p); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

// running are the processes of a program.
func running(t testing.TB, p rl.Python) (all []string) {
	t.Helper()
	for _, pid := range children(t) {
		if line, err := os.ReadFile(filepath.Join("/proc", pid, "cmdline")); err == nil && strings.Contains(string(line), p.Interpreter) {
			all = append(all, pid)
		}
	}
	return all
}

// What keeps a policy from being served is one sentence, and the next who asks tries anew.
func TestServersThatDoNotStart(t *testing.T) {
	lasting := `echo '{"event": "error", "kind": "BadInput", "reason": "the tokenizer does not fit", "hint": "name another"}'; exit 2`
	for _, c := range []struct {
		script, want, hint string
		lasting            bool
	}{
		{lasting, "the tokenizer does not fit", "name another", true},
		{`echo '{"event": "error", "kind": "OutOfMemory", "reason": "there is too little memory", "hint": "end something"}'; exit 5`, "there is too little memory", "end something", false},
		{`echo 'No module named rl' >&2; exit 1`, "the server of a policy ended as it started: No module named rl", "", false},
		{`kill -9 $$`, "there is too little memory for it, it seems", "end what else", false},
		{`echo nonsense; cat >/dev/null`, "the server of a policy ended as it started", "", false},
		{`exec 1>&-; cat >/dev/null`, "the server of a policy ended as it started: it said nothing", "", false},
	} {
		p := program(t, c.script)
		s := serve(t, p, serving.Options{})
		for range 2 {
			_, _, err := s.Acquire(t.Context(), policy(1))
			failed := new(serving.Error)
			if !errors.As(err, &failed) || !strings.Contains(failed.Text, c.want) || !strings.Contains(failed.Hint, c.hint) || failed.Lasting != c.lasting {
				t.Errorf("%s: %+v, want %q", c.script, err, c.want)
			}
		}
		s.Close()
		if left := running(t, p); len(left) != 0 {
			t.Errorf("left: %q", left)
		}
	}
	s := serve(t, rl.Python{Interpreter: "/none/python"}, serving.Options{})
	if _, _, err := s.Acquire(t.Context(), policy(1)); err == nil || !strings.Contains(err.Error(), "/none/python cannot be started") {
		t.Errorf("got %v", err)
	}
}

// Where memory is short, a server that nobody uses makes room.
func TestIdleServersMakeRoom(t *testing.T) {
	p := program(t, `read settings
if ! mkdir "$0.memory" 2>/dev/null; then
  echo '{"event": "error", "kind": "OutOfMemory", "reason": "there is too little memory", "hint": "end something"}'; exit 5
fi
echo '{"event": "ready", "url": "http://127.0.0.1:9/v1", "context": 128}'
cat >/dev/null
rmdir "$0.memory"
`)
	s := serve(t, p, serving.Options{})
	_, release, err := s.Acquire(t.Context(), policy(1))
	ok(t, err)
	if _, _, err := s.Acquire(t.Context(), policy(2)); err == nil || !strings.Contains(err.Error(), "too little memory") {
		t.Errorf("one that is used made room: %v", err)
	}
	release()
	_, other, err := s.Acquire(t.Context(), policy(2))
	ok(t, err)
	other()
}

// Who does not wait leaves; one that takes too long is given up.
func TestServersThatTakeLong(t *testing.T) {
	p := program(t, `cat >/dev/null`)
	s := serve(t, p, serving.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan error, 1)
	go func() {
		_, _, err := s.Acquire(ctx, policy(1))
		asked <- err
	}()
	await.Until(t, "it has begun", func() bool { return len(running(t, p)) > 0 })
	cancel()
	if err := <-asked; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	s.Close()
	if left := running(t, p); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
	s = serve(t, p, serving.Options{Start: 50 * time.Millisecond})
	if _, _, err := s.Acquire(t.Context(), policy(1)); err == nil || err.Error() != "the server of policy v1 did not start in 50ms" {
		t.Errorf("got %v", err)
	}
}

// A GGUF file's model is written by the program, which says what is wrong with it.
func TestConvert(t *testing.T) {
	p := program(t, `read settings
echo "$settings" >>"$0.said"
echo '{"event": "end", "policy": "/out"}'
`)
	ok(t, serving.Convert(t.Context(), p, "/a.gguf", "/out"))
	if got := said(t, p)[0]; got != `{"policy":"/a.gguf","into":"/out"}` {
		t.Errorf("told %q", got)
	}
	p = program(t, `echo '{"event": "error", "kind": "BadInput", "reason": "a.gguf cannot be read as GGUF", "hint": "name another"}'; exit 2`)
	failed := new(serving.Error)
	if err := serving.Convert(t.Context(), p, "/a.gguf", "/out"); !errors.As(err, &failed) || failed.Text != "a.gguf cannot be read as GGUF" || failed.Hint != "name another" {
		t.Errorf("got %v", err)
	}
}

// What is wrong with a policy is told from what is wrong with its server.
func TestSmoke(t *testing.T) {
	answer := func(status int, body string) *httptest.Server {
		return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") == "Bearer " {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			w.WriteHeader(status)
			fmt.Fprint(w, body)
		}))
	}
	for _, c := range []struct {
		status     int
		body, want string
		mute       bool
	}{
		{200, `{"choices": [{"token_ids": [1], "logprobs": {"content": [{"logprob": -0.5}]}}]}`, "", false},
		{200, `{"choices": [{"token_ids": [1], "logprobs": {"content": [{"logprob": NaN}]}}]}`, "not finite", true},
		{200, `{"choices": [{"token_ids": [1], "logprobs": {"content": [{"logprob": null}]}}]}`, "without a log-probability", true},
		{200, `{"choices": [{"token_ids": [], "logprobs": {"content": []}}]}`, "no tokens", true},
		{200, `{"choices": []}`, "no tokens", true},
		{503, `{"error": {"message": "the policy cannot compute the answer: shapes"}}`, "cannot compute the answer: shapes", true},
		{503, `{"error": {"message": "there is too little memory for the answer"}}`, "too little memory", false},
		{500, `?`, "status 500", true},
	} {
		server := answer(c.status, c.body)
		p := program(t, `read settings
echo '{"event": "ready", "url": "`+server.URL+`/v1", "context": 128}'
cat >/dev/null
`)
		err := serve(t, p, serving.Options{}).Smoke(t.Context(), policy(3))
		mute := new(serving.MuteError)
		if said := fmt.Sprint(err); c.want == "" && err != nil || !strings.Contains(said, c.want) || errors.As(err, &mute) != c.mute {
			t.Errorf("%s: %v", c.body, err)
		}
		server.Close()
	}
	var gone *serving.Error
	if err := serve(t, program(t, says), serving.Options{}).Smoke(t.Context(), policy(1)); !errors.As(err, &gone) || errors.As(err, new(*serving.MuteError)) {
		t.Errorf("a server that is not there: %v", err)
	}
	bad := program(t, `echo '{"event": "error", "kind": "BadInput", "reason": "the tokenizer does not fit", "hint": "name another"}'; exit 2`)
	if err := serve(t, bad, serving.Options{}).Smoke(t.Context(), policy(1)); !errors.As(err, new(*serving.MuteError)) || !strings.Contains(err.Error(), "the tokenizer does not fit") {
		t.Errorf("a policy that cannot be loaded: %v", err)
	}
}

// Serve ends with its context, and says so where the server ended by itself.
func TestServe(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p := program(t, says)
	err := serving.Serve(ctx, p, serving.Local{Folder: "/p", Name: "policy:v1", Host: "127.0.0.1", Device: "cpu"}, func(at serving.Endpoint) error {
		if at.URL != "http://127.0.0.1:9/v1" || at.Model != "policy:v1" || len(running(t, p)) == 0 {
			t.Errorf("%+v", at)
		}
		cancel()
		return nil
	})
	if err != nil || len(running(t, p)) != 0 {
		t.Errorf("got %v", err)
	}
	p = program(t, `echo '{"event": "ready", "url": "http://127.0.0.1:9/v1", "context": 128}'; echo 'it broke' >&2; exit 3`)
	if err := serving.Serve(t.Context(), p, serving.Local{}, func(serving.Endpoint) error { return nil }); err == nil || err.Error() != "the policy's server has ended: exit status 3: it broke" {
		t.Errorf("got %v", err)
	}
}
