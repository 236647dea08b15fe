package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/daemon"
	"github.com/kernelwright/kernelwright/internal/soak"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/llm/llmtest"
	"github.com/kernelwright/kernelwright/prompts"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

// gateway stands before a model's server, as those of companies do. It keeps what
// was asked and answered.
type gateway struct {
	*httptest.Server
	t  testing.TB
	to string // the server's URL
	// first is what the gateway answers itself to the first calls, in order.
	first []string
	// change is done to what else is asked.
	change func(body map[string]any)

	mu     sync.Mutex
	passed []exchange
}

// exchange is one call of a model as the server saw and answered it.
type exchange struct {
	sent    map[string]any
	status  int
	answer  string
	id      string
	in, out int64
}

func newGateway(t testing.TB, to string) *gateway {
	g := &gateway{t: t, to: to}
	g.Server = httptest.NewServer(g)
	t.Cleanup(func() {
		g.CloseClientConnections()
		g.Close()
	})
	return g
}

// Patterns of what a server says of a call.
var (
	tokensIn  = regexp.MustCompile(`"prompt_tokens": ?(\d+)`)
	tokensOut = regexp.MustCompile(`"completion_tokens": ?(\d+)`)
	callID    = regexp.MustCompile(`"id": ?"(chatcmpl-[^"]+)"`)
)

// ServeHTTP implements http.Handler.
func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	call := strings.HasSuffix(r.URL.Path, "/chat/completions")
	var e exchange
	if call {
		if err := json.Unmarshal(body, &e.sent); err != nil {
			g.t.Errorf("a request that is no JSON: %v", err)
		}
		if text, ok := g.own(); ok {
			e.answer, e.status = text, http.StatusOK
			g.keep(e)
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, text)
			return
		}
		if g.change != nil {
			g.change(e.sent)
			if body, err = json.Marshal(e.sent); err != nil {
				g.t.Error(err)
			}
		}
	}
	out, err := http.NewRequestWithContext(r.Context(), r.Method, g.to+r.URL.Path, bytes.NewReader(body))
	if err != nil {
		g.t.Error(err)
		return
	}
	out.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultTransport.RoundTrip(out)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	w.Header().Set("Content-Type", resp.Header.Get("Content-Type"))
	w.WriteHeader(resp.StatusCode)
	var kept bytes.Buffer
	piece := make([]byte, 32<<10)
	for {
		n, err := resp.Body.Read(piece)
		kept.Write(piece[:n])
		if _, lost := w.Write(piece[:n]); lost != nil {
			return
		}
		w.(http.Flusher).Flush()
		if err != nil {
			break
		}
	}
	if call {
		e.answer, e.status = kept.String(), resp.StatusCode
		g.keep(e)
	}
}

// own takes the next of the gateway's own answers.
func (g *gateway) own() (string, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.first) == 0 {
		return "", false
	}
	text := g.first[0]
	g.first = g.first[1:]
	b, err := json.Marshal(map[string]any{
		"id": "chatcmpl-own", "model": "gateway", "usage": map[string]int{"prompt_tokens": 1, "completion_tokens": 1},
		"choices": []any{map[string]any{"index": 0, "finish_reason": "stop", "message": map[string]string{"role": "assistant", "content": text}}},
	})
	if err != nil {
		g.t.Error(err)
	}
	return string(b), true
}

func (g *gateway) keep(e exchange) {
	last := func(p *regexp.Regexp) (n int64) {
		if all := p.FindAllStringSubmatch(e.answer, -1); len(all) > 0 {
			n, _ = strconv.ParseInt(all[len(all)-1][1], 10, 64) // digits
		}
		return n
	}
	e.in, e.out = last(tokensIn), last(tokensOut)
	if m := callID.FindStringSubmatch(e.answer); m != nil {
		e.id = m[1]
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.passed = append(g.passed, e)
}

// exchanges returns what passed through so far.
func (g *gateway) exchanges() []exchange {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.passed)
}

// trial is what all cases of TestModelServer share.
type trial struct {
	runner
	source string // of the reference
	seed   int64
	rows   []string
}

const servedModel = "llamacpp:" + llmtest.LlamaModel

// tried adds a line to the table.
func (tr *trial) tried(t *testing.T, what, format string, args ...any) {
	row := fmt.Sprintf("| %s | %s |", what, fmt.Sprintf(format, args...))
	t.Log(row)
	tr.rows = append(tr.rows, row)
}

// session is one run of the reference with a model's server.
type session struct {
	*trial
	t    *testing.T
	seed int64 // tells its run from the others
	env  []string
	args []string
	said string // by its commands so far
}

// session begins one with the server at a URL: what it says stays short.
func (tr *trial) session(t *testing.T, url, settings string, args ...string) *session {
	t.Helper()
	tr.seed++
	path := filepath.Join(t.TempDir(), "config.toml")
	text := fmt.Sprintf("[llm]\nmax_tokens = 96\nattempts = 2\n[llm.providers.llamacpp]\nbase_url = %q\n%s", url+"/v1", settings)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	args = append([]string{"run", tr.reference, "--seed", strconv.FormatInt(tr.seed, 10), "--out", t.TempDir(), "--headroom", "1", "--patience", "100", "--wall-time", "24h"}, args...)
	return &session{trial: tr, t: t, seed: tr.seed, env: []string{"KERNELWRIGHT_CONFIG=" + path}, args: args}
}

func (s *session) with(env ...string) *session {
	s.env = append(s.env, env...)
	return s
}

func (s *session) command(args ...string) command {
	c := s.runner.command(args...)
	c.Env = append(slices.DeleteFunc(c.Env, func(v string) bool { return strings.HasPrefix(v, soak.Env+"=") }), s.env...)
	return c
}

// run runs the command to its end, whose code must be one of these.
func (s *session) run(codes ...int) {
	s.t.Helper()
	c := s.command(s.args...)
	out, _ := c.CombinedOutput() // the code says it
	s.said += string(out)
	if code := c.ProcessState.ExitCode(); !slices.Contains(codes, code) {
		s.t.Fatalf("exit code %d, not one of %v:\n%s", code, codes, out)
	}
}

// start starts the command, so that something can be done to its server meanwhile.
func (s *session) start() *process {
	s.t.Helper()
	c := s.command(s.args...)
	stderr, err := c.StderrPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = c.Process.Kill() // it may have ended
		_ = c.Wait()
	})
	return &process{runner: s.runner, Cmd: c.Cmd, lines: bufio.NewScanner(stderr)}
}

func (s *session) mustSay(parts ...string) {
	s.t.Helper()
	for _, part := range parts {
		if !strings.Contains(s.said, part) {
			s.t.Errorf("it did not say %q:\n%s", part, s.said)
		}
	}
}

// record reads what is kept of the run. There is one, and all of it is there.
func (s *session) record() report.Data {
	s.t.Helper()
	db, err := store.Open(filepath.Join(s.data, store.FileName))
	if err != nil {
		s.t.Fatal(err)
	}
	defer db.Close()
	if err := db.Check(s.t.Context()); err != nil {
		s.t.Error(err)
	}
	runs, err := db.Runs(s.t.Context(), store.RunFilter{Limit: 1000})
	if err != nil {
		s.t.Fatal(err)
	}
	runs = slices.DeleteFunc(runs, func(r kernelwright.Run) bool { return r.Seed != s.seed })
	if len(runs) != 1 {
		s.t.Fatalf("%d runs have the seed %d", len(runs), s.seed)
	}
	d, err := daemon.Load(s.t.Context(), db, runs[0].ID)
	if err != nil {
		s.t.Fatal(err)
	}
	for i, r := range d.Rounds {
		if r.Index != i {
			s.t.Errorf("round %d stands at %d", r.Index, i)
		}
	}
	return d
}

// ended checks a run that is over: how it ended, and that its decisions follow
// from its record.
func (s *session) ended(stop kernelwright.StopReason) report.Data {
	s.t.Helper()
	d := s.record()
	if d.Run.FinishedMS == 0 || d.Run.Stop != stop {
		s.t.Errorf("the run is %s and stopped by %q, want %q: %s\n%s", d.Run.Status, d.Run.Stop, stop, d.Run.Reason, s.said)
	}
	if len(d.Rounds) == 0 {
		return d // there are no decisions to make again
	}
	out, err := s.command("history", "replay", strconv.FormatInt(d.Run.ID, 10)).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("the same decisions")) {
		s.t.Errorf("it does not replay: %v\n%s", err, out)
	}
	return d
}

// counted checks that a run's calls are those that passed through the gateway, and
// their tokens the server's own count.
func (s *session) counted(d report.Data, passed []exchange) (in, out int64) {
	s.t.Helper()
	by := map[string]exchange{}
	for _, e := range passed {
		switch {
		case e.status != http.StatusOK:
		case strings.Contains(asJSON(s.t, e.sent["messages"]), "Answer with the word ok."):
			in, out = in+e.in, out+e.out // whether the model is shown tools: no part of the talk
		default:
			by[e.id] = e
		}
	}
	for _, c := range d.Talk {
		u, e := c.Reply.Usage, by[c.Reply.RequestID]
		if u.Estimated || u.In != e.in || u.Out != e.out || u.In == 0 || e.sent == nil {
			s.t.Errorf("%+v: %+v was recorded of %q, and the server counted %d and %d", c.Key, u, c.Reply.RequestID, e.in, e.out)
		}
		in, out = in+u.In, out+u.Out
	}
	if len(d.Talk) != len(by) {
		s.t.Errorf("%d calls are recorded and %d were answered", len(d.Talk), len(by))
	}
	if d.Spend.TokensIn != in || d.Spend.TokensOut != out {
		s.t.Errorf("%d and %d tokens were spent, and %d and %d in calls", d.Spend.TokensIn, d.Spend.TokensOut, in, out)
	}
	return in, out
}

// calls are those of one agent.
func calls(d report.Data, agent string) []llm.Record {
	return slices.DeleteFunc(slices.Clone(d.Talk), func(r llm.Record) bool { return r.Key.Agent != agent })
}

// prompt is all that a request says.
func prompt(r llm.Record) string {
	var text strings.Builder
	for _, m := range r.Request.Messages {
		text.WriteString(m.Text + "\n")
	}
	return text.String()
}

// holds checks that a prompt has parts.
func holds(t *testing.T, r llm.Record, parts ...string) {
	t.Helper()
	said := prompt(r)
	for _, part := range parts {
		if part == "" || !strings.Contains(said, part) {
			t.Errorf("the prompt of %+v does not hold %q:\n%s", r.Key, part, said)
		}
	}
}

// statuses counts verdicts.
func statuses(d report.Data) string {
	n := map[string]int{}
	for _, r := range d.Rounds {
		n[string(r.Verdict.Status)]++
	}
	var out []string
	for _, status := range slices.Sorted(maps.Keys(n)) {
		out = append(out, fmt.Sprintf("%d %s", n[status], status))
	}
	return strings.Join(out, ", ")
}

// told checks that each Coder's prompt of rounds holds the reference, and from the
// second round on what became of the last answer.
func (s *session) told(d report.Data) {
	s.t.Helper()
	for _, c := range calls(d, "coder") {
		holds(s.t, c, s.source)
		if c.Key.Round == 0 {
			continue
		}
		toldOf(s.t, c, d.Rounds[c.Key.Round-1])
	}
}

// toldOf checks what a prompt says of the round from which it goes on. Of an answer without a candidate
// that is its beginning, and what is wrong with it.
func toldOf(t *testing.T, c llm.Record, last kernelwright.Round) {
	t.Helper()
	answer := last.Candidate.Source
	if last.Verdict.Build.Form == kernelwright.FormAnswer {
		holds(t, c, "reason: "+last.Verdict.Reason, "hint: "+last.Verdict.Hint)
		if len(answer) > 400 && strings.Contains(prompt(c), answer) {
			t.Errorf("the prompt of %+v holds the whole answer without a candidate:\n%s", c.Key, answer)
		}
		return
	}
	if f := c.Request.Fit; f == nil || !slices.ContainsFunc(f.LeftOut, func(what string) bool { return strings.Contains(what, "candidate") }) {
		holds(t, c, string(prompts.Fence("last answer", answer, prompts.MaxCandidateBytes)))
	}
	switch f := last.Feedback; {
	case f == nil:
		holds(t, c, last.Verdict.Reason)
	case f.Kind == kernelwright.Correction:
		holds(t, c, f.Issue, f.Why, f.Fix)
	default:
		holds(t, c, f.Bottleneck, f.Method, f.Plan)
	}
}

// wrongCandidate multiplies where the reference adds.
const wrongCandidate = "One pass.\n\n```python\n" + `import torch
import torch.nn as nn
from kernelwright import native

lib = native(language="cpp", source=r"""
#include <math.h>
extern "C" void f(const float* x, const float* y, float* out, long long n) {
  for (long long i = 0; i < n; i++) out[i] = tanhf(x[i]) * y[i] * x[i];
}
""")


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty_like(x)
        lib.f(x.contiguous(), y.contiguous(), out, x.numel())
        return out
` + "```\n"

// forceTool has the server's model begin its answer with a call of a tool, which
// its grammar then holds to the tools' schemas. By itself a model so small calls
// none.
func forceTool(body map[string]any) {
	messages, _ := body["messages"].([]any)
	body["messages"] = append(messages, map[string]any{"role": "assistant", "content": "<tool_call>\n{\"name\": \""})
	body["tool_choice"] = "required"
}

// TestModelServer has a real model's server as Coder and Judge: llama.cpp's, with
// a model of 135 million parameters. What it writes is nonsense. What is looked at
// is what the program makes of that: no run is lost, statuses and messages are
// right, prompts hold the reference and what became of the last answer, and tokens
// are the server's count.
func TestModelServer(t *testing.T) {
	soak.Only(t)
	python := os.Getenv("KERNELWRIGHT_TEST_PYTHON")
	if python == "" {
		t.Skip("KERNELWRIGHT_TEST_PYTHON names no Python that has PyTorch")
	}
	reference, err := filepath.Abs("../examples/small_tanh.py")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	tr := &trial{runner: runner{t: t, python: python, data: newData(t), reference: reference}, source: strings.TrimSpace(string(source))}
	for _, c := range []struct {
		name string
		run  func(t *testing.T, tr *trial)
	}{
		{"rounds", servedRounds}, {"beam", servedBeam}, {"judge", servedJudge}, {"react", servedReact}, {"contexts", servedContexts},
		{"failures", servedFailures}, {"doctor", servedDoctor},
	} {
		t.Run(c.name, func(t *testing.T) {
			began, before := time.Now(), len(tr.rows)
			tr.t = t
			c.run(t, tr)
			t.Logf("%s: %d lines in %v", c.name, len(tr.rows)-before, time.Since(began).Round(time.Second))
		})
	}
	t.Log("what was tried, and what came of it\n\n| tried | what came of it |\n|---|---|\n" + strings.Join(tr.rows, "\n"))
}

func servedRounds(t *testing.T, tr *trial) {
	server := llmtest.StartLlama(t, 8192, "")
	g := newGateway(t, server.URL)
	s := tr.session(t, g.URL, "", "--coder", servedModel, "--judge", "rules", "--rounds", "3")
	s.run(ExitNotFound)
	d := s.ended(kernelwright.StopRounds)
	in, out := s.counted(d, g.exchanges())
	s.told(d)
	s.mustSay("language models: 3 calls", "no certified kernel for ")
	if n := len(calls(d, "coder")); n != 3 || len(d.Rounds) != 3 || len(d.Talk) != 3 {
		t.Errorf("%d rounds, %d calls, %d of the Coder", len(d.Rounds), len(d.Talk), n)
	}
	for _, r := range d.Rounds[:2] { // the last one has no reader
		if r.Feedback == nil || r.Feedback.Kind != kernelwright.Correction || r.Verdict.Reason == "" {
			t.Errorf("round %d is %s (%s) with the feedback %+v", r.Index, r.Verdict.Status, r.Verdict.Reason, r.Feedback)
		}
	}
	tr.tried(t, "rounds, the model as Coder, rules as Judge, 8,192", "%d rounds, %s; %d tokens in, %d out, as the server counts; each prompt holds the reference and the last verdict; replays", len(d.Rounds), statuses(d), in, out)
}

func servedBeam(t *testing.T, tr *trial) {
	server := llmtest.StartLlama(t, 8192, "")
	g := newGateway(t, server.URL)
	s := tr.session(t, g.URL, "[beam]\nwidth = 2\nsamples = 2\n", "--coder", servedModel, "--judge", "rules", "--strategy", "beam", "--rounds", "6")
	s.run(ExitNotFound)
	d := s.ended(kernelwright.StopRounds)
	in, out := s.counted(d, g.exchanges())
	keys := map[llm.Key]bool{}
	for _, c := range d.Talk {
		keys[c.Key] = true
		holds(t, c, s.source)
		if c.Key.Round >= 4 { // the second generation goes on from one of the first
			r := d.Rounds[c.Key.Round]
			parent := r.Index - 1
			if r.Parent != nil {
				parent = *r.Parent
			}
			toldOf(t, c, d.Rounds[parent])
		}
	}
	if len(d.Rounds) != 6 || len(keys) != 6 {
		t.Errorf("%d rounds, %d calls of different keys", len(d.Rounds), len(keys))
	}
	tr.tried(t, "beam, 2 × 2, four calls at once at a server that answers one", "%d rounds, %s; %d tokens in, %d out; each call is recorded once; replays", len(d.Rounds), statuses(d), in, out)
}

func servedJudge(t *testing.T, tr *trial) {
	server := llmtest.StartLlama(t, 8192, "")

	// A candidate that is wrong, so that the Judge has something to read.
	g := newGateway(t, server.URL)
	g.first = []string{wrongCandidate}
	s := tr.session(t, g.URL, "max_tokens = 200\n", "--coder", servedModel, "--judge", servedModel, "--rounds", "2")
	s.run(ExitNotFound)
	d := s.ended(kernelwright.StopRounds)
	first := d.Rounds[0]
	if first.Verdict.Status != kernelwright.Wrong {
		t.Fatalf("round 0 is %s: %s", first.Verdict.Status, first.Verdict.Reason)
	}
	for _, e := range g.exchanges() {
		said := asJSON(t, e.sent)
		if e.id != "chatcmpl-own" && strings.Contains(said, "You judge kernels") != strings.Contains(said, "response_format") {
			t.Error("the Judge's calls alone are held to a schema")
		}
	}
	for _, c := range calls(d, "judge") {
		holds(t, c, s.source, first.Verdict.Reason, strings.TrimSpace(first.Candidate.Source))
		if !kindFirst.MatchString(c.Reply.Text) {
			t.Errorf("the Judge's answer does not begin with its kind: %s", c.Reply.Text)
		}
		for _, e := range first.Verdict.Evidence[:min(1, len(first.Verdict.Evidence))] {
			holds(t, c, e)
		}
	}
	s.told(d)
	tr.tried(t, "rounds, a wrong candidate, the model as Judge", "round 0 wrong (%s); %d calls of the Judge, held to a schema; its feedback is %s; the next prompt holds it", report.Line(first.Verdict.Reason), len(calls(d, "judge")), whose(first.Feedback))

	// The built-in Coder's are right, and measured.
	g = newGateway(t, server.URL)
	s = tr.session(t, g.URL, "max_tokens = 200\n", "--coder", "builtin", "--judge", servedModel, "--rounds", "3")
	s.run(ExitOK)
	d = s.record()
	in, out := s.counted(d, g.exchanges())
	if d.Run.Status != kernelwright.RunDone || d.Run.Stop != kernelwright.StopRounds && d.Run.Stop != kernelwright.StopJudge {
		t.Errorf("the run is %s and stopped by %q", d.Run.Status, d.Run.Stop)
	}
	var fed []string
	for _, r := range d.Rounds {
		if r.Feedback == nil {
			continue
		}
		if err := r.Feedback.Validate(); err != nil {
			t.Errorf("round %d: %v", r.Index, err)
		}
		fed = append(fed, whose(r.Feedback))
	}
	for _, c := range calls(d, "judge") {
		if at := d.Rounds[c.Key.Round].Verdict; at.Status.OK() {
			holds(t, c, s.source, fmt.Sprintf("candidate_ms = %.4g ms", at.CandidateMS))
		}
	}
	if len(calls(d, "judge")) == 0 || !d.Rounds[0].Verdict.Status.OK() {
		t.Errorf("the Judge was asked %d times, and round 0 is %s", len(calls(d, "judge")), d.Rounds[0].Verdict.Status)
	}
	tr.tried(t, "rounds, the built-in Coder, the model as Judge, measured", "certified after %d rounds, stopped by %s; feedback: %s; %d tokens in, %d out", len(d.Rounds), d.Run.Stop, strings.Join(fed, ", "), in, out)
}

// kindFirst is how an answer begins that is held to a schema which has its kind first.
var kindFirst = regexp.MustCompile(`^\s*\{\s*"kind"\s*:`)

// whose says who a feedback is by.
func whose(f *kernelwright.Feedback) string {
	switch {
	case f == nil:
		return "none"
	case strings.Contains(f.Rule, "could not be read"):
		return "the rules', since the model's could not be read"
	case f.Rule == "":
		return "the model's (" + string(f.Kind) + ")"
	}
	return "the rules' (" + f.Rule + ")"
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func servedReact(t *testing.T, tr *trial) {
	// A template that shows the tools, and a gateway that wants one called.
	server := llmtest.StartLlama(t, 8192, llmtest.LlamaTools)
	g := newGateway(t, server.URL)
	g.change = forceTool
	s := tr.session(t, g.URL, "", "--coder", servedModel, "--judge", "rules", "--strategy", "react", "--rounds", "3").with("KERNELWRIGHT_REACT_TURNS=6")
	s.run(ExitNotFound)
	d := s.record()
	in, out := s.counted(d, g.exchanges())
	called := map[string]int{}
	for i, c := range calls(d, "coder") {
		for _, call := range c.Reply.ToolCalls {
			called[call.Name]++
			if call.ID == "" || c.Reply.Stop == llm.StopTools && !json.Valid([]byte(call.Arguments)) {
				t.Errorf("a call without a number or with broken arguments: %+v", call)
			}
		}
		if i == 0 {
			continue
		}
		// What the last call brought stands in this request, under its number.
		before := calls(d, "coder")[i-1]
		for _, call := range before.Reply.ToolCalls[:min(1, len(before.Reply.ToolCalls))] {
			if !slices.ContainsFunc(c.Request.Messages, func(m llm.Message) bool { return m.Role == llm.ToolRole && m.Call == call.ID && m.Text != "" }) {
				t.Errorf("call %d is not told what %s brought", i, call.Name)
			}
		}
	}
	if len(called) == 0 {
		t.Errorf("no tool was called:\n%s", s.said)
	}
	native := calls(d, "coder")[0].Reply.Usage.In
	tr.tried(t, "react, native tools, a template that shows them", "%d answers, tools called: %s; stopped by %s; %d tokens in, %d out", len(d.Talk), strings.Join(countsOf(called), ", "), d.Run.Stop, in, out)

	// The model's own template leaves them out, and the server does not say so. It is
	// found out, and the model is told of them in words.
	server = llmtest.StartLlama(t, 8192, "")
	g = newGateway(t, server.URL)
	s = tr.session(t, g.URL, "", "--coder", servedModel, "--judge", "rules", "--strategy", "react", "--rounds", "3").with("KERNELWRIGHT_REACT_TURNS=20")
	s.run(ExitNotFound)
	d = s.ended(kernelwright.StopDeclined)
	s.counted(d, g.exchanges())
	s.mustSay("its server does not show the model its tools", "it called no tool in 8 answers in a row")
	own := calls(d, "coder")
	if len(own) < 2 || own[0].Reply.Stop != llm.StopNoTools || len(own[0].Request.Tools) == 0 {
		t.Fatalf("%d calls are recorded, the first as %+v", len(own), own[0].Reply)
	}
	for _, c := range own[1:] {
		holds(t, c, "```tool")
		if len(c.Request.Tools) > 0 || c.Reply.Stop == llm.StopNoTools {
			t.Errorf("%+v has %d tools and ended by %s", c.Key, len(c.Request.Tools), c.Reply.Stop)
		}
	}
	tr.tried(t, "react, native tools, a server that leaves them out of the prompt", "found out by its count; %d answers with tools in words; ended: it called no tool in 8 answers in a row. The first prompt has %d tokens, with tools %d", len(own)-1, own[0].Reply.Usage.In, native)

	// In words.
	g = newGateway(t, server.URL)
	s = tr.session(t, g.URL, "", "--coder", servedModel, "--judge", "rules", "--strategy", "react", "--rounds", "3").with("KERNELWRIGHT_REACT_TURNS=4", "KERNELWRIGHT_REACT_TEXT_TOOLS=true")
	s.run(ExitNotFound)
	d = s.ended(kernelwright.StopTurns)
	in, out = s.counted(d, g.exchanges())
	for i, c := range calls(d, "coder") {
		holds(t, c, "```tool", `"path"`)
		if i > 0 {
			last := c.Request.Messages[len(c.Request.Messages)-1]
			if last.Role != llm.User || !strings.Contains(last.Text, "called") && !strings.Contains(last.Text, "call") {
				t.Errorf("after an answer without a call it is told %+v", last)
			}
		}
	}
	for _, e := range g.exchanges() {
		if e.sent["tools"] != nil {
			t.Error("a call had tools")
		}
	}
	tr.tried(t, "react, tools in words", "%d answers, stopped by %s; each is told what was wrong; %d tokens in, %d out", len(d.Talk), d.Run.Stop, in, out)
}

func countsOf(counts map[string]int) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		out = append(out, fmt.Sprintf("%d %s", counts[name], name))
	}
	return out
}

// fits checks that a run's calls kept to a context, prompt and reply together, and
// that what was left out for that is recorded.
func (s *session) fits(d report.Data, context int) {
	s.t.Helper()
	for _, c := range d.Talk {
		if u := c.Reply.Usage; c.Reply.Stop == llm.StopTooLong || u.In+u.Out > int64(context) {
			s.t.Errorf("%+v took %d and %d tokens of %d and ended by %s", c.Key, u.In, u.Out, context, c.Reply.Stop)
		}
		if f := c.Request.Fit; f == nil || f.Context != context {
			s.t.Errorf("%+v was fitted to %+v, and the context has %d tokens", c.Key, f, context)
		}
	}
}

// leftOut lists what calls were fitted by.
func leftOut(d report.Data) string {
	all := map[string]int{}
	for _, c := range d.Talk {
		if f := c.Request.Fit; f != nil {
			if f.Compact {
				all["in few words"]++
			}
			for _, what := range f.LeftOut {
				all["without "+what]++
			}
		}
	}
	if len(all) == 0 {
		return "nothing is left out"
	}
	return strings.Join(countsOf(all), ", ")
}

func servedContexts(t *testing.T, tr *trial) {
	// Nothing fits. The server comes back with a longer context: the run goes on.
	server := llmtest.StartLlama(t, 512, "")
	g := newGateway(t, server.URL)
	s := tr.session(t, g.URL, "", "--coder", servedModel, "--judge", "rules", "--rounds", "2")
	s.run(ExitFailure, ExitUsage)
	s.mustSay("the prompt does not fit", "the model's context of 512", "-c (--ctx-size)", "has stopped; the same command goes on from there")
	if d := s.record(); d.Run.FinishedMS != 0 || len(d.Rounds) != 0 {
		t.Errorf("the run is %s with %d rounds", d.Run.Status, len(d.Rounds))
	}
	server.Kill()
	server.Context = 4096
	server.Return()
	s.run(ExitNotFound)
	s.mustSay("going on with run")
	d := s.ended(kernelwright.StopRounds)
	s.told(d)
	s.fits(d, 4096)
	tr.tried(t, "rounds, 512, then 4,096", "with 512 the run stopped and said so; with 4,096 the same command went on: %d rounds, %s; %s", len(d.Rounds), statuses(d), leftOut(d))

	// No max_tokens is set: a reply goes on until the context is full.
	g = newGateway(t, server.URL)
	s = tr.session(t, g.URL, "max_tokens = 16384\n", "--coder", servedModel, "--judge", "rules", "--rounds", "2")
	s.run(ExitNotFound)
	d = s.ended(kernelwright.StopRounds)
	s.counted(d, g.exchanges())
	s.told(d)
	s.fits(d, 4096)
	var sizes []string
	for _, c := range calls(d, "coder") {
		u := c.Reply.Usage
		sizes = append(sizes, fmt.Sprintf("%d + %d (%s)", u.In, u.Out, c.Reply.Stop))
		if c.Reply.Stop == llm.StopLength {
			t.Errorf("%+v took %d and %d tokens and ended by %s", c.Key, u.In, u.Out, c.Reply.Stop)
		}
	}
	tr.tried(t, "rounds, 4,096, max_tokens of 16,384", "%d rounds, %s; tokens in and out: %s; %s", len(d.Rounds), statuses(d), strings.Join(sizes, ", "), leftOut(d))

	// What a Judge is shown of a measured candidate is more, and is shortened.
	for _, context := range []int{4096, 2048} {
		if context != server.Context {
			server.Kill()
			server.Context = context
			server.Return()
		}
		g = newGateway(t, server.URL)
		s = tr.session(t, g.URL, "", "--coder", "builtin", "--judge", servedModel, "--rounds", "2")
		s.run(ExitOK)
		d = s.record()
		s.counted(d, g.exchanges())
		s.fits(d, context)
		for _, c := range calls(d, "judge") {
			holds(t, c, d.Rounds[c.Key.Round].Verdict.Reason)
		}
		tr.tried(t, fmt.Sprintf("rounds, the model as Judge, %d", context), "certified after %d rounds; %d calls of the Judge; %s", len(d.Rounds), len(d.Talk), leftOut(d))
	}

	g = newGateway(t, server.URL)
	s = tr.session(t, g.URL, "", "--coder", servedModel, "--judge", "rules", "--rounds", "3")
	s.run(ExitNotFound)
	d = s.ended(kernelwright.StopRounds)
	s.counted(d, g.exchanges())
	s.told(d)
	s.fits(d, 2048)
	tr.tried(t, "rounds, 2,048", "%d rounds, %s; %s", len(d.Rounds), statuses(d), leftOut(d))

	g = newGateway(t, server.URL)
	s = tr.session(t, g.URL, "", "--coder", servedModel, "--judge", "rules", "--strategy", "react", "--rounds", "2").with("KERNELWRIGHT_REACT_TEXT_TOOLS=true")
	s.run(ExitNotFound)
	d = s.ended(kernelwright.StopDeclined)
	s.counted(d, g.exchanges())
	s.fits(d, 2048)
	s.mustSay("it called no tool in 8 answers in a row")
	tr.tried(t, "react, tools in words, 2,048", "%d answers; ended: it called no tool in 8 answers in a row; %s", len(d.Talk), leftOut(d))
}

// broken checks a run of two rounds whose second call broke off and was made again:
// each call is recorded once, and the attempt that broke off is booked besides.
func (s *session) broken() report.Data {
	s.t.Helper()
	d := s.ended(kernelwright.StopRounds)
	var in, out int64
	for _, c := range d.Talk {
		in, out = in+c.Reply.Usage.In, out+c.Reply.Usage.Out
	}
	if len(d.Rounds) != 2 || len(d.Talk) != 2 || d.Spend.TokensIn <= in || d.Spend.TokensOut <= out || d.Spend.AtWorst == 0 {
		s.t.Errorf("%d rounds, %d calls of %d and %d tokens, and spent %+v", len(d.Rounds), len(d.Talk), in, out, d.Spend)
	}
	s.told(d)
	return d
}

// servedFailures does to a server, in the middle of an answer, what machines do.
func servedFailures(t *testing.T, tr *trial) {
	server := llmtest.StartLlama(t, 8192, "")

	// It dies and does not come back: the run stops, and goes on when it is there.
	s := tr.session(t, server.URL, "", "--coder", servedModel, "--judge", "rules", "--rounds", "2")
	p := s.start()
	p.until("round 0 of 2")
	server.Answering()
	server.Kill()
	p.wait(ExitFailure)
	p.mustSay("has stopped; the same command goes on from there")
	p.mustSay("nobody answers there")
	before := s.record()
	if before.Run.FinishedMS != 0 || len(before.Rounds) != 1 || len(before.Talk) != 1 {
		t.Errorf("after the kill the run is %s with %d rounds and %d calls", before.Run.Status, len(before.Rounds), len(before.Talk))
	}
	out, err := s.command("history", "ls").CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("it stopped: "+servedModel+": nobody answers there")) {
		t.Errorf("history ls: %v\n%s", err, out)
	}
	server.Return()
	s.run(ExitNotFound)
	s.mustSay("going on with run")
	d := s.broken()
	same(t, d.Rounds[:1], before.Rounds)
	if d.Talk[0].Reply.RequestID != before.Talk[0].Reply.RequestID {
		t.Error("what was answered was asked again")
	}
	tr.tried(t, "the server is killed in the middle of a call, and is gone", "the run stopped (nobody answers there) and kept its round; when the server was back the same command went on: %d rounds, each call recorded once, %d calls booked", len(d.Rounds), d.Spend.Calls)

	// It dies and comes back: the run waits for it.
	s = tr.session(t, server.URL, "attempts = 12\n", "--coder", servedModel, "--judge", "rules", "--rounds", "2")
	p = s.start()
	p.until("round 0 of 2")
	server.Answering()
	server.Kill()
	p.until("a model is asked again")
	server.Return()
	p.wait(ExitNotFound)
	d = s.broken()
	tr.tried(t, "the server is killed in the middle of a call, and comes back", "the run waited and went on: %d rounds, each call recorded once, %d calls booked", len(d.Rounds), d.Spend.Calls)

	// It says nothing for longer than the timeout, which is far above what its calls
	// took: the attempt is left, and made again.
	slowest := int64(5000)
	for _, c := range d.Talk[:1] {
		slowest = max(slowest, c.TookMS)
	}
	timeout := 3 * time.Duration(slowest) * time.Millisecond
	s = tr.session(t, server.URL, fmt.Sprintf("attempts = 3\ntimeout = %q\n", timeout), "--coder", servedModel, "--judge", "rules", "--rounds", "2")
	p = s.start()
	p.until("round 0 of 2")
	server.Answering()
	server.Pause()
	p.until("no reply within")
	server.GoOn()
	p.wait(ExitNotFound)
	p.mustSay("a model is asked again")
	d = s.broken()
	tr.tried(t, "the server pauses in the middle of a call, for longer than the timeout", "the attempt was left after %v and made again: %d rounds, each call recorded once, %d calls booked", timeout, len(d.Rounds), d.Spend.Calls)
}

func servedDoctor(t *testing.T, tr *trial) {
	doctor := func(url string) string {
		t.Helper()
		s := tr.session(t, url, "").with("KERNELWRIGHT_CODER_NAME=" + servedModel)
		out, err := s.command("doctor", "--models").CombinedOutput()
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "model "+servedModel) {
				return strings.Join(strings.Fields(line), " ")
			}
		}
		t.Errorf("the model is not in\n%s", out)
		return ""
	}
	say := func(what, line string, parts ...string) {
		t.Helper()
		for _, part := range parts {
			if !strings.Contains(line, part) {
				t.Errorf("%s: %q does not hold %q", what, line, part)
			}
		}
		tr.tried(t, "doctor --models, "+what, "%s", line)
	}
	server := llmtest.StartLlama(t, 4096, "")
	say("llama.cpp", doctor(server.URL), "ok model", "it answered in", "its context has 4096 tokens", "it is not shown tools, so react has it call them in text", "token ids and log-probabilities", "it holds replies to a schema", "log-probabilities")
	server.Kill()
	say("nobody there", doctor(server.URL), "-- model", "nobody answers there")

	server = llmtest.StartLlama(t, 8192, llmtest.LlamaTools)
	say("a template with tools", doctor(server.URL), "its context has 8192 tokens", "it is shown tools")
	g := newGateway(t, server.URL)
	g.change = func(body map[string]any) {
		for _, name := range []string{"tools", "tool_choice", "response_format", "logprobs", "top_logprobs"} {
			delete(body, name)
		}
	}
	say("a gateway that drops what it does not know", doctor(g.URL), "it is not shown tools", "it does not hold replies to a schema", "its server gives no token ids where it is asked for them")
}
