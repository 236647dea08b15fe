package forge_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	kw "github.com/kernelwright/kernelwright"
	llmcoder "github.com/kernelwright/kernelwright/coder"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/judge"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/llm/llmtest"
	"github.com/kernelwright/kernelwright/prompts"
)

// talkative is hardware that has much to say: of every third candidate that it does
// not compile, of the next that it is wrong, and of the third where its time goes.
type talkative struct {
	mu   sync.Mutex
	seen int
}

func (h *talkative) Evaluate(_ context.Context, _ kw.Task, c kw.Candidate, l kw.Level) (kw.Verdict, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := kw.Verdict{Level: l, Candidate: kw.HashText(c.Source), Output: strings.Repeat("it printed this\n", 40)}
	if l == kw.Certify {
		v.Status, v.CandidateMS = kw.Certified, 0.4
		return v, nil
	}
	h.seen++
	switch h.seen % 3 {
	case 1:
		v.Status, v.Reason = kw.BuildFailed, "the compiler refuses it"
		v.Build.Log = strings.Repeat("candidate.cpp:12:5: note: in expansion of macro\n", 200)
		for i := range 4 {
			v.Build.Errors = append(v.Build.Errors, kw.Diagnostic{Line: 12 + i, Message: "expected ';' before 'for'"})
		}
	case 2:
		v.Status, v.Reason, v.Hint = kw.Wrong, "element [3, 17] is 0.25 where 0.75 is right", "the last block of a row is left out"
		for _, family := range []string{"base", "scaled_up", "negated"} {
			v.Correctness.Families = append(v.Correctness.Families, kw.FamilyReport{Name: family, Gates: true, MaxError: 0.5, MaxBound: 1e-6, RMSError: 0.1, RMSBound: 1e-7})
		}
	default:
		v.Status, v.CandidateMS, v.Headroom = kw.Correct, 1/float64(h.seen), 0.3
		v.Speedup = &kw.Speedup{Value: 1.2, Low: 1.1, High: 1.3, Against: "compile"}
		v.Baselines = map[string]float64{"eager": 2, "compile": 1.5}
		v.Metrics = map[string]float64{"memory_share": 0.4, "compute_share": 0.1, "core_use": 0.5}
		v.Profile = &kw.Profile{Tool: "ncu", Launches: 2, Metrics: map[string]float64{}}
		for i := range 60 {
			v.Profile.Metrics[fmt.Sprintf("sm__inst_executed_pipe_%02d.avg.pct_of_peak_sustained_active", i)] = float64(i)
		}
		for i := range 6 {
			v.Work.Launches = append(v.Work.Launches, kw.Launch{Name: fmt.Sprint("kernel_", i), Count: 1, MS: 0.1})
			v.Build.Missed = append(v.Build.Missed, kw.Diagnostic{Line: i, Message: "not vectorised: a call of a function"})
		}
	}
	return v, nil
}

// theCandidate is a file of so many bytes, unlike that of any other number.
func theCandidate(n, bytes int) string {
	text := fmt.Sprintf("import torch\n# take %d\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x\n", n)
	return text + strings.Repeat("# what the file says of itself\n", max(bytes-len(text), 0)/31)
}

// writerOf answers as a Coder, a Judge and a model with tools do, with files of so
// many bytes.
func writerOf(bytes int) func(llmtest.Asked) llmtest.Answer {
	var mu sync.Mutex
	n, acted := 0, 0
	return func(a llmtest.Asked) llmtest.Answer {
		mu.Lock()
		defer mu.Unlock()
		n++
		switch {
		case a.Body["tools"] != nil:
			calls := [][2]string{
				{"read", `{"path": "reference.py"}`}, {"read", `{"path": "kernelwright.py"}`}, {"write", writing("model_new.py", theCandidate(n, bytes))}, {"compile", "{}"}, {"verify", "{}"},
				{"read", `{"path": "model_new.py"}`}, {"skill", `{"name": "reductions"}`}, {"profile", "{}"}, {"edit", `{"path": "model_new.py", "old": "return x", "new": "return  x"}`},
			}
			c := calls[acted%len(calls)]
			acted++
			return llmtest.Answer{Tools: []llm.ToolCall{{ID: fmt.Sprint("call_", n), Name: c[0], Arguments: c[1]}}}
		case a.Body["response_format"] != nil && strings.Contains(a.Last, "The candidate is correct"):
			return llmtest.Answer{Text: `{"kind": "optimisation", "bottleneck": "memory", "method": "one pass", "plan": "fuse the loops", "why": "", "evidence": []}`}
		case a.Body["response_format"] != nil:
			return llmtest.Answer{Text: `{"kind": "correction", "issue": "a fault", "why": "so it is", "fix": "mend line 3", "evidence": []}`}
		}
		return llmtest.Answer{Text: "One change.\n```python\n" + theCandidate(n, bytes) + "```\n"}
	}
}

// Whatever the context and the server: no request exceeds the context, the reference
// and the verdict are whole, what was left out is recorded, and the run is replayed.
func TestPromptsFitTheContext(t *testing.T) {
	source, err := os.ReadFile("../examples/layer_norm.py")
	if err != nil {
		t.Fatal(err)
	}
	skills, err := prompts.LoadSkills("")
	if err != nil {
		t.Fatal(err)
	}
	task := kw.Task{Name: "layer_norm", Source: string(source), Operators: []string{"aten.layer_norm"}, LeastBytes: 1 << 20, Inputs: []kw.TensorSpec{{Name: "x", Shape: []int{16, 1024}, DType: "float32"}}}
	device := kw.Device{Kind: kw.CPUDevice, Name: "a CPU", Specs: kw.Specs{Cores: 8, VectorBits: 512}, Ceilings: kw.Ceilings{MemoryGBs: 100, CPUThreads: 8}}
	var lessons []kw.Lesson
	for i := range 12 {
		lessons = append(lessons, kw.Lesson{TaskName: fmt.Sprint("task_", i), Rule: "memory_bound", Method: "one pass over the rows", Tried: "it was tried here", Outcome: kw.LessonFaster, FromMS: 2, ToMS: 1})
	}
	for _, strategy := range forge.Strategies {
		for _, mode := range []forge.JudgeMode{forge.JudgeBoth, forge.JudgeSelf} {
			for _, server := range []string{"llamacpp", "vllm"} {
				for _, tokens := range []int{2048, 4096, 32768} {
					if mode == forge.JudgeSelf && server != "llamacpp" {
						continue // it differs by the server no more than with a Judge
					}
					t.Run(fmt.Sprintf("%s %s %s of %d", strategy, mode, server, tokens), func(t *testing.T) {
						t.Parallel()
						s := llmtest.NewContext(t, llmtest.Context{Server: server, Tokens: tokens, PerToken: 2.8})
						s.Reply = writerOf(1100)
						journal, record := &llmtest.Journal{}, &memory{}
						m, err := llm.New(server+":m", s.Options(), llm.Services{Journal: journal})
						if err != nil {
							t.Fatal(err)
						}
						parts := forge.Parts{Device: device, Evaluator: &talkative{}, Recorder: record, Journal: journal, Model: m, Lessons: lessons, Prompts: templates(t),
							Coder: llmcoder.Model{LLM: m, Prompts: templates(t), Skills: skills}, Judge: judge.Model{LLM: m, Prompts: templates(t), Skills: skills},
							Settings: forge.Settings{Rounds: 7, JudgeMode: mode, React: forge.ReactSettings{Turns: 80}}, Skills: skills}
						st, err := forge.New(strategy, parts)
						if err != nil {
							t.Fatal(err)
						}
						run := kw.Run{ID: 1, Seed: 1, Strategy: strategy, Status: kw.RunDone}
						out, err := st.Run(t.Context(), run, task)
						if err != nil || len(record.rounds) != 7 {
							t.Fatalf("%+v, %d rounds: %v", out, len(record.rounds), err)
						}
						fitted(t, journal.Records(), record.rounds, task, tokens, strategy == forge.ReactStrategy)
						correct := slices.ContainsFunc(record.rounds, func(r kw.Round) bool { return r.Verdict.Status == kw.Correct })
						if !correct {
							t.Error("no answer was long enough to be whole")
						}
						run.Settings, run.Stop = parts.Settings.For(strategy).String(), out.Stop
						again := parts
						again.Model, again.Coder = llm.Replay(server+":m", journal), llmcoder.Model{LLM: llm.Replay(server+":m", journal), Prompts: templates(t), Skills: skills}
						again.Judge = judge.Model{LLM: llm.Replay(server+":m", journal), Prompts: templates(t), Skills: skills}
						if d, err := forge.Replay(t.Context(), record.rounds, task, run, again); d != nil || err != nil {
							t.Errorf("replayed: %v, %v", d, err)
						}
					})
				}
			}
		}
	}
}

// fitted checks the calls of a run.
func fitted(t *testing.T, calls []llm.Record, rounds []kw.Round, task kw.Task, tokens int, talk bool) {
	t.Helper()
	left, refused := map[string]int{}, 0
	for _, c := range calls {
		if c.Key.Agent == "compile" {
			continue
		}
		if c.Reply.Stop == llm.StopTooLong {
			refused++
		}
		r := c.Request
		name := fmt.Sprintf("round %d, call %d of the %s", c.Key.Round, c.Key.Seq, c.Key.Agent)
		if r.Fit == nil || r.Fit.Context != tokens {
			t.Errorf("%s is fitted to %+v", name, r.Fit)
			continue
		}
		if r.Fit.Compact != (tokens <= prompts.CompactContext) {
			t.Errorf("%s is compact: %v", name, r.Fit.Compact)
		}
		if n := r.Fit.Estimate(r); n+256 > tokens {
			t.Errorf("%s has %d tokens of %d", name, n, tokens)
		}
		for _, what := range r.Fit.LeftOut {
			left[what]++
		}
		text := ""
		for _, m := range r.Messages {
			text += m.Text + "\n"
		}
		if !strings.Contains(text, strings.TrimSpace(task.Source)) {
			t.Errorf("%s: the reference is not whole", name)
		}
		switch last := r.Messages[len(r.Messages)-1]; {
		case talk && last.Name == "verify":
			for _, line := range []string{"round ", "Rounds left"} {
				if !strings.Contains(last.Text, line) {
					t.Errorf("%s: of the verdict is left\n%s", name, last.Text)
				}
			}
		case talk:
		case c.Key.Agent == "coder": // whether a Judge has read the verdict or not
			at := rounds[c.Key.Round].After()
			for first := true; at >= 0 && rounds[at].Verdict.Build.Form == kw.FormAnswer; at, first = rounds[at].After(), false {
				if why := rounds[at].Verdict.Reason; first && !strings.Contains(text, "held no candidate:\n```data: answer without a candidate\nreason: "+why) {
					t.Errorf("%s does not say that %s:\n%s", name, why, text)
				}
			}
			if at >= 0 {
				whole(t, name, text, rounds[at].Verdict)
			}
		default:
			whole(t, name, text, rounds[c.Key.Round].Verdict)
		}
	}
	switch {
	case tokens == 2048 && len(left) == 0:
		t.Error("nothing was left out")
	case tokens == 32768 && !talk && len(left) > 0:
		t.Errorf("left out: %v", left)
	case refused > 8: // a beam asks for several at once
		t.Errorf("%d requests were refused as too long", refused)
	}
	t.Logf("%d calls, left out: %v", len(calls), left)
}

// whole checks that a prompt has all of a verdict.
func whole(t *testing.T, name, text string, v kw.Verdict) {
	t.Helper()
	if facts := string(prompts.VerdictFacts(v)); !strings.Contains(text, facts) {
		t.Errorf("%s lacks of the verdict\n%s\nand is\n%s", name, facts, text)
	}
}

// A context in which nothing sensible fits ends the run with what to do.
func TestAContextThatIsTooSmall(t *testing.T) {
	for _, strategy := range forge.Strategies {
		s := llmtest.NewContext(t, llmtest.Context{Server: "llamacpp", Tokens: 2048})
		m, err := llm.New("llamacpp:m", s.Options(), llm.Services{})
		if err != nil {
			t.Fatal(err)
		}
		parts := forge.Parts{Device: kw.Device{Kind: kw.CPUDevice}, Evaluator: &talkative{}, Recorder: &memory{}, Model: m, Coder: llmcoder.Model{LLM: m, Prompts: templates(t)},
			Judge: judge.Rules{}, Settings: forge.Settings{Rounds: 2}}
		st, err := forge.New(strategy, parts)
		if err != nil {
			t.Fatal(err)
		}
		_, err = st.Run(t.Context(), kw.Run{ID: 1}, kw.Task{Name: "t", Source: "class Model:\n" + strings.Repeat("    # what it does, at length\n", 300)})
		var e *llm.Error
		if !errors.As(err, &e) || e.Kind != llm.TooLong || !strings.Contains(e.Hint, "--ctx-size") || len(s.Asked()) > 0 {
			t.Errorf("%s: %v, %+v", strategy, err, e)
		}
	}
}

// docs/strategies.md has the order of what goes of a talk.
func TestTheOrderOfATalkIsDocumented(t *testing.T) {
	b, err := os.ReadFile("../docs/strategies.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for _, what := range forge.TalkCuts {
		_, after, ok := strings.Cut(text, "\n| "+what+" | ")
		if !ok {
			t.Fatalf("%q is not in its place", what)
		}
		text = after
	}
}

// An answer that the context cut off is told so, to the user and to the model.
func TestAnAnswerThatTheContextCutsOff(t *testing.T) {
	s := llmtest.NewContext(t, llmtest.Context{Server: "llamacpp", Tokens: 2048})
	s.Reply = writerOf(9000)
	m, err := llm.New("llamacpp:m", s.Options(), llm.Services{})
	if err != nil {
		t.Fatal(err)
	}
	record := &memory{}
	run := func(strategy string) {
		t.Helper()
		st, err := forge.New(strategy, forge.Parts{Device: kw.Device{Kind: kw.CPUDevice}, Evaluator: &talkative{}, Recorder: record, Judge: judge.Rules{}, Model: m,
			Coder: llmcoder.Model{LLM: m, Prompts: templates(t)}, Settings: forge.Settings{Rounds: 2, React: forge.ReactSettings{Turns: 2}}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := st.Run(t.Context(), kw.Run{ID: 1}, kw.Task{Name: "t", Source: "class Model: pass\n"}); err != nil {
			t.Fatal(err)
		}
	}
	run(forge.RoundsStrategy)
	if v := record.rounds[0].Verdict; v.Status != kw.Rejected || !strings.Contains(v.Reason, "the model's context was full") {
		t.Errorf("%+v", v)
	}
	if said := s.Asked()[1].Last; !strings.Contains(said, "the model's context was full") || !strings.Contains(said, "much shorter file") {
		t.Errorf("it is told\n%s", said)
	}
	record.rounds = nil
	s.Reply = func(llmtest.Asked) llmtest.Answer { return llmtest.Answer{Text: strings.Repeat("I think. ", 1000)} }
	run(forge.ReactStrategy)
	asked := s.Asked()
	last := asked[len(asked)-1]
	messages, _ := last.Body["messages"].([]any)
	if n := len(fmt.Sprint(messages)); !strings.Contains(last.Last, "because your context is full") || n > 4000 {
		t.Errorf("in react %d bytes are sent, and it is told\n%s", n, last.Last)
	}
}
