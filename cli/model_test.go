package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/llm/llmtest"
)

// double is a server that plays a Coder and a Judge from files of a script. It
// knows by the prompt who is asked.
type double struct {
	server *llmtest.Server
	asked  chan struct{} // one for each request, as it comes in
	first  llmtest.Answer
	other  llmtest.Answer // to who is asked what others are asked
	later  llmtest.Answer
	judge  llmtest.Answer
	acts   []llmtest.Answer // of one that is given tools, in order

	mu       sync.Mutex
	hold     int           // requests until one is held; 0: none is
	held     chan struct{} // ends the holding
	answered map[string]int
}

// doubles is the commands that scripts have for a model's server.
type doubles struct {
	t  testing.TB
	mu sync.Mutex
	of map[*testscript.TestScript]*double
}

func newDoubles(t testing.TB) *doubles {
	return &doubles{t: t, of: map[*testscript.TestScript]*double{}}
}

func (d *doubles) get(ts *testscript.TestScript) *double {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.of[ts]
}

// serve SETTINGS FIRST LATER JUDGE [OTHER]: a server for openai:test, and settings
// that name it. The Coder says FIRST to a task and LATER to a verdict, and OTHER
// to a task that several samples are asked for.
func (d *doubles) serve(ts *testscript.TestScript, _ bool, args []string) {
	s := &double{server: llmtest.NewOpenAI(d.t), asked: make(chan struct{}, 1000), held: make(chan struct{}), answered: map[string]int{}}
	if len(args) == 4 {
		args = append(args, args[1])
	}
	for i, a := range []*llmtest.Answer{&s.first, &s.later, &s.judge, &s.other} {
		*a = llmtest.Answer{Text: ts.ReadFile(args[i+1]), Usage: &llm.Usage{In: 1000, Out: 200}}
	}
	s.server.Reply = s.reply
	d.mu.Lock()
	d.of[ts] = s
	d.mu.Unlock()
	settings := fmt.Sprintf("[llm.providers.openai]\nbase_url = %q\nattempts = 1\n[llm.prices.\"openai:test\"]\nin = 1.0\nout = 10.0\nas_of = \"2026-11-23\"\n", s.server.URL)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(settings), 0o600))
	ts.Setenv("KEY", llmtest.Canary)
}

func (s *double) reply(q llmtest.Asked) llmtest.Answer {
	s.asked <- struct{}{}
	body, err := json.Marshal(q.Body)
	if err != nil {
		panic(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.later
	switch text := string(body); {
	case strings.Contains(text, "You judge kernels"):
		a = s.judge
	case q.Body["tools"] != nil:
		a = s.acts[min(strings.Count(text, `"role":"assistant"`), len(s.acts)-1)]
	case !strings.Contains(text, "data: last answer") && strings.Contains(text, "Others are asked the same"):
		a = s.other
	case !strings.Contains(text, "data: last answer"):
		a = s.first
	}
	if s.hold > 0 {
		if s.hold--; s.hold == 0 {
			a.Hold = s.held
			return a
		}
	}
	s.answered[string(body)]++
	return a
}

// acts FILE: what the model of the server does that is given tools, a call a line:
// a tool with its arguments in JSON, or "write PATH FILE".
func (d *doubles) act(ts *testscript.TestScript, _ bool, args []string) {
	s := d.get(ts)
	var acts []llmtest.Answer
	for line := range strings.Lines(ts.ReadFile(args[0])) {
		name, arguments, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name == "write" {
			path, file, _ := strings.Cut(arguments, " ")
			b, err := json.Marshal(map[string]string{"path": path, "content": ts.ReadFile(file)})
			ts.Check(err)
			arguments = string(b)
		}
		acts = append(acts, llmtest.Answer{
			Tools: []llm.ToolCall{{ID: fmt.Sprintf("call-%d", len(acts)), Name: name, Arguments: arguments}}, Usage: &llm.Usage{In: 1000, Out: 200},
		})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acts = acts
}

// holdback N: the Nth request from now on is not answered, with 0 none. What was
// answered before is forgotten.
func (d *doubles) holdback(ts *testscript.TestScript, _ bool, args []string) {
	s := d.get(ts)
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.answered)
	_, err := fmt.Sscan(args[0], &s.hold)
	ts.Check(err)
}

// asked N: waits until there were N requests since the last time, and fails where
// there were more, or one was answered that had been before.
func (d *doubles) wasAsked(ts *testscript.TestScript, neg bool, args []string) {
	s := d.get(ts)
	var n int
	_, err := fmt.Sscan(args[0], &n)
	ts.Check(err)
	for i := range n {
		select {
		case <-s.asked:
		case <-time.After(5 * time.Minute): // nobody asks any more
			ts.Fatalf("%d requests of %d", i, n)
		}
	}
	if len(s.asked) > 0 {
		ts.Fatalf("%d requests, and %d more", n, len(s.asked))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, times := range s.answered {
		if times > 1 {
			ts.Fatalf("one request was answered %d times", times)
		}
	}
}
