package daydata

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	kw "github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/coder"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/judge"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/llm/llmtest"
	"github.com/kernelwright/kernelwright/prompts"
	"github.com/kernelwright/kernelwright/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hardware evaluates by what a candidate says of itself. That runs on real hardware are
// taken shows cli/testdata/python/models.txtar.
type hardware struct{}

func (hardware) Evaluate(_ context.Context, task kw.Task, c kw.Candidate, level kw.Level) (kw.Verdict, error) {
	v := kw.Verdict{Status: kw.Correct, Level: level, Task: task.Fingerprint, Candidate: kw.HashText(c.Source), CandidateMS: 1}
	v.Speedups = map[string]kw.Speedup{"eager": {Value: 2, Low: 1.9, High: 2.1, Against: "eager"}, "compile": {Value: 1.3, Low: 1.2, High: 1.4, Against: "compile"}}
	fastest := v.Speedups["compile"]
	v.Speedup = &fastest
	switch {
	case strings.Contains(c.Source, "wrong"):
		return kw.Verdict{Status: kw.Wrong, Reason: "it differs at /home/me/out.py:3 from the reference", Level: level}, nil
	case strings.Contains(c.Source, "cheat"):
		return kw.Verdict{Status: kw.Cheated, Reason: "it deceives", Level: level}, nil
	case strings.Contains(c.Source, "uncertain") && level == kw.Certify:
		v.Status = kw.Wrong
	case level == kw.Certify:
		v.Status, v.Exported = kw.Certified, c.Source
		v.ExportedSHA256 = kw.HashText(v.Exported)
	}
	return v, nil
}

// world is a record and what runs are made with.
type world struct {
	t       *testing.T
	store   *store.Store
	prompts *prompts.Templates
}

func newWorld(t *testing.T) *world {
	t.Helper()
	s, err := store.Open(filepath.Join(t.TempDir(), store.FileName))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	templates, err := prompts.LoadTemplates("")
	if err != nil {
		t.Fatal(err)
	}
	return &world{t, s, templates}
}

// answer is a completion whose candidate is what the words say.
func answer(words string) string {
	return "Here.\n```python\n" + candidate(words) + "```\n"
}

func candidate(words string) string {
	return "from kernelwright import native\nimport torch\n\nlib = native(language=\"cpp\", source=\"\"\"extern \"C\" void f() {}\"\"\")\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x  # " + words + "\n"
}

func call(name string, arguments map[string]string) llm.ToolCall {
	b, err := json.Marshal(arguments)
	if err != nil {
		panic(err)
	}
	return llm.ToolCall{ID: "call-" + name, Name: name, Arguments: string(b)}
}

// inWords is a call of a tool in the text.
func inWords(c llm.ToolCall) string {
	return fmt.Sprintf("```tool\n{\"tool\": %q, \"arguments\": %s}\n```", c.Name, c.Arguments)
}

// wish is a run that somebody wants.
type wish struct {
	name      string // of the model
	reference string
	strategy  string
	answers   []llmtest.Answer
	serving   *llmtest.Serving // nil: no token ids
	settings  func(*forge.Settings)
	with      []store.With
	judge     string // in the record
	open      bool   // it is not brought to its end
}

// run makes a run with a real client of a model, whose server is a double, and a real
// strategy, and returns its number.
func (w *world) run(q wish) int64 {
	w.t.Helper()
	ctx := w.t.Context()
	server := llmtest.NewCompatible(w.t)
	options := llm.Options{}
	if q.serving != nil {
		yes := true
		server, options.TokenIDs = llmtest.NewServing(w.t, *q.serving), &yes
	}
	server.Say(q.answers...)
	model, err := llm.New(q.name, options.Over(server.Options()), llm.Services{Journal: w.store})
	if err != nil {
		w.t.Fatal(err)
	}
	settings := forge.Settings{Rounds: len(q.answers), JudgeMode: forge.JudgeBoth, Patience: 9}
	if q.settings != nil {
		q.settings(&settings)
	}
	if q.strategy == "" {
		q.strategy = forge.RoundsStrategy
	}
	if q.judge == "" {
		q.judge = "rules"
	}
	task := kw.Task{Fingerprint: kw.HashText(q.reference), Name: "softmax", Source: q.reference}
	device := kw.Device{Kind: kw.CPUDevice, Key: "a test's", Name: "a test's CPU"}
	run, err := w.store.CreateRun(ctx, kw.Run{
		Task: task.Fingerprint, TaskName: task.Name, Path: "/home/somebody/softmax.py", Device: "cpu", DeviceKey: device.Key, Strategy: q.strategy, Coder: q.name, Judge: q.judge,
		Status: kw.RunRunning, Settings: settings.For(q.strategy).String(), StartedMS: 1,
	}, append(q.with, store.WithReference(q.reference))...)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.store.Describe(ctx, run, task, device, nil); err != nil {
		w.t.Fatal(err)
	}
	strategy, err := forge.New(q.strategy, forge.Parts{
		Coder: coder.Model{LLM: model, Prompts: w.prompts}, Judge: judge.Rules{}, Evaluator: hardware{}, Recorder: w.store, Device: device,
		Settings: settings, Model: model, Journal: w.store, Prompts: w.prompts,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	out, err := strategy.Run(ctx, run, task)
	if err != nil {
		w.t.Fatal(err)
	}
	if !q.open {
		run.Status, run.Stop, run.FinishedMS = out.Status, out.Stop, 2
	}
	if err := w.store.UpdateRun(ctx, run); err != nil {
		w.t.Fatal(err)
	}
	return run.ID
}

func says(texts ...string) (all []llmtest.Answer) {
	for _, text := range texts {
		all = append(all, llmtest.Answer{Text: text})
	}
	return all
}

// filter allows models whose names say so.
func filter() Filter {
	return Filter{
		TrainOn: func(model string) bool { return !strings.Contains(model, "closed") },
		Secret:  func(text string) bool { return strings.Contains(text, "xoxo-of-mine") },
	}
}

func (w *world) each(f Filter) (all []Trajectory, c Counts) {
	w.t.Helper()
	c, err := Each(w.t.Context(), w.store, f, func(t Trajectory) error {
		all = append(all, t)
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return all, c
}

// Of each strategy: what led to the certified kernel is taken, with its prompts and
// answers as they were, and nothing that came after it.
func TestWhatLedToAKernelIsTaken(t *testing.T) {
	w := newWorld(t)
	rounds := w.run(wish{name: "vllm:open", reference: "class Model: # rounds", answers: says(answer("wrong"), answer("right"))})
	beam := w.run(wish{name: "vllm:open", reference: "class Model: # beam", strategy: forge.BeamStrategy, settings: func(s *forge.Settings) {
		s.Beam = forge.BeamSettings{Width: 1, Samples: 2}
	}, answers: says(answer("wrong one"), answer("wrong two"), answer("right three"), answer("right four"))})
	react := w.run(wish{name: "vllm:open", reference: "class Model: # react", strategy: forge.ReactStrategy, settings: func(s *forge.Settings) {
		s.Rounds, s.React = 1, forge.ReactSettings{Turns: 8, TextTools: true}
	}, answers: says(inWords(call("write", map[string]string{"path": "model_new.py", "content": candidate("right")})), inWords(call("verify", map[string]string{})), inWords(call("finish", map[string]string{"reason": "done"})))})
	all, c := w.each(filter())
	if c.Runs != 3 || c.Trajectories != 3 || len(c.LeftOut) != 0 || c.Models["vllm:open"] != 3 {
		t.Fatalf("%+v", c)
	}
	for i, want := range []struct {
		run   int64
		calls []string // what each answer holds
	}{
		{rounds, []string{"wrong", "right"}}, {beam, []string{"wrong", "right"}}, {react, []string{"write", "verify"}},
	} {
		tr := all[i]
		if tr.Run != want.run || len(tr.Calls) != len(want.calls) || tr.Reward != 3 || tr.Verdict.Status != kw.Certified {
			t.Errorf("%+v", tr)
			continue
		}
		for j, text := range want.calls {
			if c := tr.Calls[j]; !strings.Contains(c.Text, text) || len(c.Messages) < 2 || c.Messages[0].Role != llm.System {
				t.Errorf("call %d of run %d: %+v", j, tr.Run, c)
			}
		}
	}
	if c.Calls != 6 {
		t.Errorf("%d calls", c.Calls)
	}
	if got := all[0].Calls[1].Messages; !strings.Contains(got[len(got)-1].Text, "it differs at out.py:3") {
		t.Errorf("the second prompt does not say what was wrong, or where it lies: %s", got[len(got)-1].Text)
	}
}

// Each reason, by a run that has no other.
func TestWhyARunIsLeftOut(t *testing.T) {
	bench := func(w *world) []store.With {
		b, err := w.store.CreateBench(w.t.Context(), kw.Bench{})
		if err != nil {
			w.t.Fatal(err)
		}
		return []store.With{store.WithMember(b.ID, kw.Member{})}
	}
	native := []llmtest.Answer{
		{Tools: []llm.ToolCall{call("write", map[string]string{"path": "model_new.py", "content": candidate("right")}), call("verify", map[string]string{})}}, {Tools: []llm.ToolCall{call("finish", map[string]string{"reason": "done"})}},
	}
	for reason, q := range map[string]wish{
		NotEnded:     {open: true, answers: says(answer("right"))},
		NotAllowed:   {name: "vllm:closed", answers: says(answer("right"))},
		Cheated:      {answers: says(answer("cheat"), answer("right"))},
		NotCertified: {answers: says(answer("uncertain"))},
		HeldOut:      {reference: "class Model: # held", answers: says(answer("right"))},
		Protected:    {reference: "class Model: # protected", answers: says(answer("right"))},
		Uncompared:   {reference: "class Model: # unread", answers: says(answer("right"))},
		HasSecret:    {reference: "class Model: # xoxo-of-mine", answers: says(answer("right"))},
		Invalid:      {answers: says("I would rather not.", answer("right"))},
		Invalid + " ": {strategy: forge.ReactStrategy, settings: func(s *forge.Settings) {
			s.Rounds, s.React = 1, forge.ReactSettings{Turns: 8, TextTools: true}
		}, answers: says("Let me think.", inWords(call("write", map[string]string{"path": "model_new.py", "content": candidate("right")})), inWords(call("verify", map[string]string{})))},
		Repeats: {answers: says(answer("wrong"), answer("wrong"), answer("right"))},
		NativeTools: {strategy: forge.ReactStrategy, answers: native, settings: func(s *forge.Settings) {
			s.Rounds, s.React = 1, forge.ReactSettings{Turns: 8}
		}},
	} {
		t.Run(reason, func(t *testing.T) {
			w := newWorld(t)
			w.holdOut("class Model: # held")
			if q.name == "" {
				q.name = "vllm:open"
			}
			if q.reference == "" {
				q.reference = "class Model: # " + reason
			}
			w.run(q)
			f := filter()
			f.Protected = func(_ context.Context, source string) (string, error) {
				switch {
				case strings.Contains(source, "protected"):
					return Protected, nil
				case strings.Contains(source, "unread"):
					return Uncompared, nil
				}
				return "", nil
			}
			if all, c := w.each(f); len(all) != 0 || c.Runs != 1 || c.LeftOut[strings.TrimSpace(reason)] != 1 {
				t.Errorf("%+v", c)
			}
		})
	}
	w := newWorld(t)
	w.run(wish{name: "vllm:open", reference: "class Model: # of a bench", answers: says(answer("right")), with: bench(w)})
	w.run(wish{name: "builtin:model", reference: "class Model: # evaluated", answers: says(answer("right")), judge: "x:closed"})
	once := wish{name: "vllm:open", reference: "class Model: # twice", answers: says(answer("right"))}
	w.run(once)
	w.run(once)
	if _, err := w.store.CreateRun(t.Context(), kw.Run{Coder: "builtin", Status: kw.RunDone}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.store.CreateRun(t.Context(), kw.Run{Coder: "training:p", Status: kw.RunRunning}, store.WithEpisode(store.Episode{Policy: "p", Rule: "last"})); err != nil {
		t.Fatal(err)
	}
	want := map[string]int{OfBench: 1, NotAllowed: 1, Repeats: 1, NoModel: 1}
	if all, c := w.each(filter()); len(all) != 1 || c.Runs != 5 || !maps.Equal(c.LeftOut, want) {
		t.Errorf("%+v", c)
	}
}

func (w *world) holdOut(reference string) {
	w.t.Helper()
	set, err := w.store.BeginTaskSet(w.t.Context(), "held", []byte(`{}`))
	if err == nil {
		err = w.store.SaveTaskDraw(w.t.Context(), set.ID, store.TaskDraw{Split: store.KindsSplit, Fingerprint: kw.HashText(reference), Source: reference})
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// tokens are an answer with what its server says of its tokens.
func tokens(text string, prompt, reply []int) llmtest.Answer {
	logs := make([]float64, len(reply))
	for i := range logs {
		logs[i] = -0.5 * float64(i+1)
	}
	return llmtest.Answer{Text: text, Tokens: &llmtest.Tokens{Prompt: prompt, Reply: reply, LogProbs: logs}}
}

// A call a line, of policies of ours as of other models, with token ids or without.
func TestExport(t *testing.T) {
	w := newWorld(t)
	vllm := &llmtest.Serving{Form: llmtest.VLLM}
	path := w.run(wish{name: "vllm:open", reference: "class Model: # reads /home/somebody/x.bin", serving: vllm, answers: []llmtest.Answer{tokens(answer("right"), []int{1, 2}, []int{7, 9})}})
	other := w.run(wish{name: "sglang:other", reference: "class Model: # other", answers: says(answer("wrong"), answer("right"))})
	folder := filepath.Join(t.TempDir(), "of", "days")
	for range 2 { // a second time puts the same in its place
		c, err := Export(t.Context(), w.store, filter(), folder)
		if err != nil || c.Trajectories != 2 || c.Calls != 3 {
			t.Fatalf("%+v %v", c, err)
		}
	}
	pairs := func() (all []pair) {
		text, err := os.ReadFile(filepath.Join(folder, PairsFile))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "somebody") {
			t.Errorf("a path left: %s", text)
		}
		for line := range strings.Lines(string(text)) {
			var p pair
			if err := json.Unmarshal([]byte(line), &p); err != nil {
				t.Fatal(err)
			}
			all = append(all, p)
		}
		return all
	}
	if all := pairs(); len(all) != 3 || all[0].Episode != fmt.Sprintf("run-%d", path) || all[0].Policy != "vllm:open" || all[2].Episode != fmt.Sprintf("run-%d", other) || all[2].Call != 1 ||
		all[2].Answer != answer("right") || all[2].Reward != 3 || len(all[2].Prompt) != 2 {
		t.Errorf("%+v", all)
	}
	read(t, folder)
	if left, err := os.ReadDir(folder); err != nil || len(left) != 1 {
		t.Errorf("%v %v", left, err)
	}
	if _, err := Export(t.Context(), w.store, Filter{}, folder); err == nil {
		t.Error("a filter that says nothing lets all pass")
	}
	broken := filter()
	broken.Protected = func(context.Context, string) (string, error) { return "", errors.New("out of order") }
	if _, err := Export(t.Context(), w.store, broken, folder); err == nil || !strings.Contains(err.Error(), "out of order") {
		t.Error(err)
	}
	if again := pairs(); len(again) != 3 {
		t.Error("what was exported is gone", again)
	}
}

// read has the training package read an export.
func read(t *testing.T, folder string) {
	t.Helper()
	python, training := os.Getenv("KERNELWRIGHT_TEST_PYTHON"), os.Getenv("KERNELWRIGHT_TEST_TRAINING")
	if python == "" || training == "" {
		t.Log("no training package reads it here: KERNELWRIGHT_TEST_PYTHON and KERNELWRIGHT_TEST_TRAINING name none")
		return
	}
	cmd := exec.CommandContext(t.Context(), python, "-c", "import sys, pathlib\nfrom rl import bootstrap\nprint(len(bootstrap.read_pairs(pathlib.Path(sys.argv[1]))))", filepath.Join(folder, PairsFile))
	cmd.Env = append(os.Environ(), "PYTHONPATH=..:"+training)
	said, err := cmd.CombinedOutput()
	if err != nil || string(said) != "3\n" {
		t.Errorf("%v: %s", err, said)
	}
}

func TestPathsDoNotLeave(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{`File "/home/a b/My Files/x.py", line 3`, `File "x.py", line 3`},
		{"/tmp/kw-1/src/kernel.cpp:12:3: error: expected ‘;’", "kernel.cpp:12:3: error: expected ‘;’"},
		{"In file included from /usr/include/c++/13/bits/stl.h:7,\n                 from /x/y.cpp:1:", "In file included from stl.h:7,\n                 from y.cpp:1:"},
		{"see ~/mine/notes.txt and ~bob/k.pem.", "see notes.txt and k.pem."},
		{"load(file:///srv/data/w.pt) or 'file:///srv/d/w 2.pt'", "load(w.pt) or 'w 2.pt'"},
		{"(/a/b/) [/c/d]", "(b) [d]"},
		// What is no path stays as it is.
		{"y = a / b / c; // x/y/z", "y = a / b / c; // x/y/z"},
		{"q = n/4/2 + x[i]/s/t;", "q = n/4/2 + x[i]/s/t;"},
		{"https://pytorch.org/docs/stable/x.html", "https://pytorch.org/docs/stable/x.html"},
		{"/* a */ x //b/c", "/* a */ x //b/c"},
		{"and/or, application/json, 3 / 4", "and/or, application/json, 3 / 4"},
	} {
		if got := withoutPaths(tt.text); got != tt.want {
			t.Errorf("%q became %q, want %q", tt.text, got, tt.want)
		}
	}
	for _, text := range []string{"-----BEGIN RSA PRIVATE KEY-----", "AKIAABCDEFGHIJKLMNOP", `password = "hunter22"`, `"api_key": 'abcdef123'`} {
		if !privateKey.MatchString(text) {
			t.Errorf("%q is no secret", text)
		}
	}
	for _, text := range []string{"def attention(query, key, value):", `mask_token = "x"`, "secret = compute(x)"} {
		if privateKey.MatchString(text) {
			t.Errorf("%q is a secret", text)
		}
	}
}
