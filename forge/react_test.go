package forge_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	kw "github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/internal/soak"
	"github.com/kernelwright/kernelwright/judge"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/llm/llmtest"
	"github.com/kernelwright/kernelwright/store"
)

// script is a model that calls what it is told to, and keeps what it was told.
type script struct {
	calls [][]string // of an answer: tool, arguments, tool, arguments, ...
	mu    sync.Mutex
	seen  []llm.Request
}

func (*script) Name() string { return "scripted:model" }

func (s *script) Generate(_ context.Context, r llm.Request) (llm.Reply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, r)
	if len(s.seen) > len(s.calls) {
		return llm.Reply{}, errors.New("the script is over")
	}
	reply := llm.Reply{Stop: llm.StopTools}
	answer := s.calls[len(s.seen)-1]
	for i := 0; i+1 < len(answer); i += 2 {
		reply.ToolCalls = append(reply.ToolCalls, llm.ToolCall{ID: fmt.Sprint(len(s.seen), ".", i), Name: answer[i], Arguments: answer[i+1]})
	}
	return reply, nil
}

// told returns what the tools said to answer n, from 0.
func (s *script) told(n int) string {
	if n+1 >= len(s.seen) {
		return ""
	}
	var b strings.Builder
	for _, m := range s.seen[n+1].Messages[len(s.seen[n].Messages)+1:] {
		b.WriteString(m.Text + "\n")
	}
	return b.String()
}

func writing(name, content string) string {
	b, err := json.Marshal(map[string]string{"path": name, "content": content})
	if err != nil {
		panic(err)
	}
	return string(b)
}

// memory records rounds.
type memory struct{ rounds []kw.Round }

func (m *memory) Rounds(context.Context, int64) ([]kw.Round, error) {
	return slices.Clone(m.rounds), nil
}

func (m *memory) AppendRound(_ context.Context, r kw.Round) error {
	m.rounds = append(m.rounds, r)
	return nil
}

func (m *memory) SetCertificate(_ context.Context, _ int64, i int, v kw.Verdict) error {
	m.rounds[i].Certificate = &v
	return nil
}

const scaleCandidate = `import torch
import torch.nn as nn

from kernelwright import native

lib = native(
    language="cpp",
    source=r"""
extern "C" void scale(const float* x, float* y, long long n) {
#pragma omp parallel for
    for (long long i = 0; i < n; i++) y[i] = %s;
}
""",
)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.scale(x, y, x.numel())
        return y
`

// shown returns the candidate that the prompt shows for a language.
func shown(t *testing.T, language string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "prompts", "templates", "react_form_"+language+".tmpl"))
	if err != nil {
		t.Fatal(err)
	}
	_, code, _ := strings.Cut(string(text), "```python\n")
	code, _, ok := strings.Cut(code, "```\n")
	if !ok {
		t.Fatalf("there is no candidate in the form of %s", language)
	}
	return code
}

// A model works with the real compiler and the real evaluator, and what it made
// is certified.
func TestReactOnTheRealHardware(t *testing.T) {
	soak.Weekly(t) // a model's run with the real evaluator is made every sixth day (cli/testdata/python/models.txtar)
	python := os.Getenv("KERNELWRIGHT_TEST_PYTHON")
	if python == "" {
		t.Skip("skipped: KERNELWRIGHT_TEST_PYTHON names no interpreter with PyTorch")
	}
	data := t.TempDir()
	// What torch.compile prepares once on a machine takes half a minute.
	kept, err := filepath.Glob(filepath.Join(os.Getenv("KERNELWRIGHT_TEST_CACHE"), "inductor-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range kept {
		if err := os.CopyFS(filepath.Join(data, "cache", filepath.Base(folder)), os.DirFS(folder)); err != nil {
			t.Fatal(err)
		}
	}
	cache, err := store.Open(filepath.Join(data, store.FileName)) // else each verdict calibrates anew
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	e, err := hwfeedback.Open(t.Context(), hwfeedback.Options{DataDir: data, Python: python, Threads: 1, Baselines: []string{"eager"}, CertifyTime: time.Second, Unmeasured: true}, cache,
		&hwfeedback.FileLeases{Dir: filepath.Join(data, "leases")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	reference := "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n        return torch.relu(x) * 0.5 + x * x\n\n\n" +
		"def get_inputs():\n    return [torch.randn(256, 1024)]\n\n\ndef get_init_inputs():\n    return []\n"
	task, err := e.Inspect(t.Context(), "scale", reference)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath(filepath.Join(os.Getenv("CUDA_HOME"), "bin", "nvcc")); err == nil {
		built, err := e.Build(t.Context(), kw.Candidate{Source: shown(t, "cuda")}, []string{"sm_90a"})
		if err != nil || built[0].Status != "built" {
			t.Errorf("the form of a candidate in CUDA: %+v %v", built, err)
		}
		built, err = e.Build(t.Context(), kw.Candidate{Source: example(t, "example_cuda.py"), Language: kw.CUDA}, []string{"sm_90a"})
		if err != nil || len(built) != 1 || built[0].Status != "built" || len(built[0].Report.Kernels) != 1 {
			t.Errorf("the example in CUDA: %+v %v", built, err)
		}
	}
	model := &script{calls: [][]string{
		{"list", "{}", "read", `{"path": "reference.py"}`, "write", writing("reference.py", "x")},
		{"write", writing("model_new.py", fmt.Sprintf(scaleCandidate, "x[i] *")), "compile", "{}"},
		{"write", writing("model_new.py", shown(t, "cpp")), "compile", "{}", "verify", "{}"},
		{"write", writing("model_new.py", fmt.Sprintf(scaleCandidate, "(x[i] < 0 ? 0 : x[i]) * 0.5f + x[i] * x[i]")), "verify", "{}"},
		{"profile", "{}"},
		{"finish", `{"reason": "It is at the memory's speed."}`}, // which is refused once where it is not that much faster
		{"finish", `{"reason": "It is at the memory's speed."}`},
	}}
	record := &memory{}
	strategy, err := forge.New(forge.ReactStrategy, forge.Parts{
		Model: model, Judge: judge.Rules{}, Evaluator: e, Recorder: record, Device: e.Device(), Settings: forge.Settings{Rounds: 5},
	})
	if err != nil {
		t.Fatal(err)
	}
	out, err := strategy.Run(t.Context(), kw.Run{ID: 1, Seed: 1}, task)
	for i := range model.calls {
		t.Logf("answer %d:\n%s", i, model.told(i))
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range record.rounds {
		t.Logf("round %d cost %v s", r.Index, r.Verdict.CostS)
	}
	if out.Best != nil {
		t.Logf("its certificate cost %v s", out.Best.Certificate.CostS)
	}
	for n, want := range [][]string{
		{"reference.py, ", "torch.relu(x) * 0.5", "reference.py is protected"},
		{"not built: ", "line "},
		{"built\n", "round 0: wrong", "Rounds left: 4"},
		{"round 1: correct, ", "eager takes ", "The best is that of round 1"},
		{"round 1: correct, ", "is in own code", "The Judge says:"},
	} {
		for _, w := range want {
			if !strings.Contains(model.told(n), w) {
				t.Errorf("answer %d was not told %q", n, w)
			}
		}
	}
	if len(record.rounds) != 2 || out.Stop != kw.StopDeclined || out.Best == nil || out.Best.Index != 1 || out.Best.Certificate.Exported == "" {
		t.Errorf("%d rounds, %+v", len(record.rounds), out)
	}
	if c := record.rounds[1].Candidate; c.Language != kw.CPP || c.Origin != "scripted:model" {
		t.Errorf("%+v", c)
	}
}

// correct says of every candidate that it is correct, and the faster the longer.
type correct struct{}

func (correct) Evaluate(_ context.Context, _ kw.Task, c kw.Candidate, l kw.Level) (kw.Verdict, error) {
	v := kw.Verdict{Status: kw.Correct, Level: l, CandidateMS: 1e6 / float64(len(c.Source)), Candidate: kw.HashText(c.Source)}
	if l == kw.Certify {
		v.Status = kw.Certified
	}
	return v, nil
}

// narrow is a model whose context takes so many bytes.
type narrow struct {
	llm.Model
	most int
}

func (n narrow) Generate(ctx context.Context, r llm.Request) (llm.Reply, error) {
	size := 0
	for _, m := range r.Messages {
		size += len(m.Text)
		for _, c := range m.ToolCalls {
			size += len(c.Arguments)
		}
	}
	if size > n.most {
		return llm.Reply{}, &llm.Error{Kind: llm.TooLong, Model: n.Name(), Text: "too long"}
	}
	return n.Model.Generate(ctx, r)
}

// A model whose context is smaller than the settings say is told less, and the run
// is replayed from its record.
func TestReactInASmallContext(t *testing.T) {
	long := "import torch\nclass ModelNew(torch.nn.Module): pass\n" + strings.Repeat("# a long comment\n", 1000)
	model := &script{calls: [][]string{
		{"write", writing("model_new.py", long), "verify", "{}"},
		{"read", `{"path": "model_new.py"}`},
		{"read", `{"path": "model_new.py"}`},
		{"read", `{"path": "model_new.py"}`},
		{"write", writing("model_new.py", long+"# more\n"), "verify", "{}"},
		{"finish", `{"reason": "enough"}`},
		{"finish", `{"reason": "enough"}`},
	}}
	journal, record := &llmtest.Journal{}, &memory{}
	settings := forge.Settings{Rounds: 5, JudgeMode: forge.JudgeScore}
	parts := forge.Parts{Journal: journal, Evaluator: correct{}, Recorder: record, Settings: settings, Model: llm.WithJournal(narrow{model, 60_000}, journal, nil, nil)}
	strategy, err := forge.New(forge.ReactStrategy, parts)
	if err != nil {
		t.Fatal(err)
	}
	run := kw.Run{ID: 1, Seed: 1, Strategy: forge.ReactStrategy, Status: kw.RunDone}
	out, err := strategy.Run(t.Context(), run, kw.Task{Name: "t", Source: "class Model: pass\n"})
	if err != nil || len(record.rounds) != 2 || out.Stop != kw.StopDeclined {
		t.Fatalf("%+v, %d rounds, %v", out, len(record.rounds), err)
	}
	refused := 0
	for _, r := range journal.Records() {
		if r.Reply.Stop == llm.StopTooLong {
			refused++
		}
	}
	if refused == 0 {
		t.Fatal("nothing was too long")
	}
	run.Settings, run.Stop = settings.String(), out.Stop
	d, err := forge.Replay(t.Context(), record.rounds, kw.Task{Name: "t", Source: "class Model: pass\n"}, run,
		forge.Parts{Journal: journal, Model: llm.Replay(model.Name(), journal)})
	if d != nil || err != nil {
		t.Errorf("replayed: %v, %v", d, err)
	}
}

// An answer with thousands of calls is not carried along in every request.
func TestReactOfTooManyCalls(t *testing.T) {
	many := make([]string, 0, 2*5000)
	for range 5000 {
		many = append(many, "list", "{}")
	}
	model := &script{calls: [][]string{many, {"finish", `{"reason": "enough"}`}, {"finish", `{"reason": "enough"}`}}}
	strategy, err := forge.New(forge.ReactStrategy, forge.Parts{Model: model, Evaluator: correct{}, Recorder: &memory{}, Settings: forge.Settings{JudgeMode: forge.JudgeScore}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := strategy.Run(t.Context(), kw.Run{ID: 1}, kw.Task{Name: "t", Source: "class Model: pass\n"}); err != nil {
		t.Fatal(err)
	}
	second := model.seen[1]
	last := second.Messages[len(second.Messages)-1]
	if n := len(second.Messages[2].ToolCalls); n != 16 || len(second.Messages) != 2+1+16 || second.Append || !strings.Contains(last.Text, "(4984 further calls of your answer not done: it may call 16 tools at most)") {
		t.Errorf("%d calls and %d messages go back, the last of which is %q", n, len(second.Messages), last.Text)
	}
}

// A run does not go on where its model's answers lead to other rounds.
func TestReactDiverges(t *testing.T) {
	source := "import torch\nclass ModelNew(torch.nn.Module): pass\n"
	for _, c := range []struct {
		name  string
		calls [][]string
	}{
		{"another candidate", [][]string{{"write", writing("model_new.py", source+"# another\n"), "verify", "{}"}}},
		{"an earlier end", [][]string{{"finish", `{"reason": "no"}`}, {"finish", `{"reason": "no"}`}}},
	} {
		record := &memory{}
		run := func(calls [][]string) error {
			strategy, err := forge.New(forge.ReactStrategy, forge.Parts{
				Model: &script{calls: calls}, Evaluator: correct{}, Recorder: record, Settings: forge.Settings{Rounds: 5, JudgeMode: forge.JudgeScore},
			})
			if err != nil {
				t.Fatal(err)
			}
			_, err = strategy.Run(t.Context(), kw.Run{ID: 1}, kw.Task{Name: "t", Source: "class Model: pass\n"})
			return err
		}
		if err := run([][]string{{"write", writing("model_new.py", source), "verify", "{}"}}); err == nil || len(record.rounds) != 1 {
			t.Fatalf("%v, %d rounds", err, len(record.rounds)) // the script is over
		}
		var diverged *forge.DivergedError
		if err := run(c.calls); !errors.As(err, &diverged) || diverged.Round != 0 || len(record.rounds) != 1 {
			t.Errorf("%s: %v, %d rounds", c.name, err, len(record.rounds))
		}
	}
}

// A model that calls nothing is told so, and left after some answers.
func TestReactThatCallsNothing(t *testing.T) {
	model := &script{calls: make([][]string, 100)}
	strategy, err := forge.New(forge.ReactStrategy, forge.Parts{Model: model, Evaluator: correct{}, Recorder: &memory{}, Settings: forge.Settings{JudgeMode: forge.JudgeScore}})
	if err != nil {
		t.Fatal(err)
	}
	out, err := strategy.Run(t.Context(), kw.Run{ID: 1}, kw.Task{Name: "t", Source: "class Model: pass\n"})
	if err != nil || out.Stop != kw.StopDeclined || !strings.Contains(out.Summary, "it called no tool in 8 answers in a row") || len(model.seen) != 8 || !strings.Contains(model.told(0), "You called no tool: call one of read, write, edit, list, search, compile, verify, profile, finish.") {
		t.Errorf("%+v, %v after %d answers, told %q", out, err, len(model.seen), model.told(0))
	}
}

// measured says more of a candidate than a score.
type measured struct{ failed bool }

func (m measured) Evaluate(_ context.Context, _ kw.Task, c kw.Candidate, l kw.Level) (kw.Verdict, error) {
	if m.failed {
		return kw.Verdict{Status: kw.Crashed, Level: l, Reason: "it crashed", Hint: "mind the bounds", Evidence: []string{"at line 7"}, Output: "printed"}, nil
	}
	return kw.Verdict{Status: kw.Correct, Level: l, CandidateMS: 2, Baselines: map[string]float64{"eager": 4}, Speedup: &kw.Speedup{Value: 2, Low: 1.9, High: 2.1, Against: "eager"},
		Headroom: 0.5, Metrics: map[string]float64{"memory_share": 0.4}}, nil
}

// Where a model is to go by the score alone, it is shown no more.
func TestReactOfScores(t *testing.T) {
	for _, mode := range []forge.JudgeMode{forge.JudgeSelf, forge.JudgeScore} {
		for _, failed := range []bool{false, true} {
			model := &script{calls: [][]string{{"write", writing("model_new.py", "import torch\nclass ModelNew(torch.nn.Module): pass\n"), "profile", "{}"}}}
			strategy, err := forge.New(forge.ReactStrategy, forge.Parts{Model: model, Evaluator: measured{failed}, Recorder: &memory{}, Settings: forge.Settings{Rounds: 5, JudgeMode: mode}})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := strategy.Run(t.Context(), kw.Run{ID: 1}, kw.Task{Name: "t", Source: "class Model: pass\n"}); err == nil {
				t.Fatal("the script is not over")
			}
			told := model.told(0)
			all := []string{"eager takes 4 ms", "50 % of the roofline", "memory_share = 0.4"}
			score := "2.00x the speed of eager"
			if failed {
				all, score = []string{"hint: mind the bounds", "- at line 7", "printed"}, "round 0: crashed"
			}
			if !strings.Contains(told, score) {
				t.Errorf("%s: it is not told %q:\n%s", mode, score, told)
			}
			for _, text := range all {
				if strings.Contains(told, text) != (mode != forge.JudgeScore) {
					t.Errorf("%s: %q is in, or is not:\n%s", mode, text, told)
				}
			}
		}
	}
}

// aliased is a model that another one answers for: a policy by an alias.
type aliased struct{ *script }

func (aliased) Name() string { return "policy:current" }

func (a aliased) Generate(ctx context.Context, r llm.Request) (llm.Reply, error) {
	reply, err := a.script.Generate(ctx, r)
	reply.Model = fmt.Sprint("policy:v", len(a.seen))
	return reply, err
}

// Rounds name the version of a policy that asked for their verdict.
func TestReactNamesTheVersion(t *testing.T) {
	model := aliased{&script{calls: [][]string{{"write", writing("model_new.py", "import torch\nclass ModelNew(torch.nn.Module): pass\n")}, {"profile", "{}"}}}}
	rounds := &memory{}
	strategy, err := forge.New(forge.ReactStrategy, forge.Parts{Model: model, Evaluator: measured{}, Recorder: rounds, Settings: forge.Settings{Rounds: 5, JudgeMode: forge.JudgeSelf}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := strategy.Run(t.Context(), kw.Run{ID: 1}, kw.Task{Name: "t", Source: "class Model: pass\n"}); err == nil {
		t.Fatal("the script is not over")
	}
	if len(rounds.rounds) != 1 || rounds.rounds[0].Candidate.Origin != "policy:v2" {
		t.Errorf("%+v", rounds.rounds)
	}
}
