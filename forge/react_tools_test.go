package forge_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	kw "github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/judge"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/llm/llmtest"
)

// A server that takes tools and does not show them to its model, or takes none: the
// model is told of them in words from then on, and works. The run goes on where it
// was interrupted and is replayed with the same requests.
func TestReactOfAModelThatSeesNoTools(t *testing.T) {
	source := "import torch\nclass ModelNew(torch.nn.Module): pass\n"
	block := func(tool, arguments string) string {
		return fmt.Sprintf("```tool\n{\"tool\": %q, \"arguments\": %s}\n```\n", tool, arguments)
	}
	inWords := []string{
		block("write", writing("model_new.py", source)) + block("verify", "{}"),
		block("write", writing("model_new.py", source+"# more\n")) + block("verify", "{}"),
		block("finish", `{"reason": "enough"}`), block("finish", `{"reason": "enough"}`),
	}
	for _, serving := range []llmtest.Serving{
		{Form: llmtest.LlamaCPP, HidesTools: true, Context: llmtest.Context{Server: "llamacpp", Tokens: 4096, PerToken: 4}}, {Form: llmtest.VLLM, HidesTools: true, Context: llmtest.Context{Server: "vllm", Tokens: 2048, PerToken: 4}},
		{Form: llmtest.LlamaCPP, HidesTools: true}, {Form: llmtest.Transformers, HidesTools: true}, {Form: llmtest.Ollama, RefusesTools: true}, {Form: llmtest.VLLM, RefusesTools: true},
	} {
		t.Run(fmt.Sprint(serving.Form), func(t *testing.T) {
			s := llmtest.NewServing(t, serving)
			fails := false
			s.Reply = func(q llmtest.Asked) llmtest.Answer {
				body, err := json.Marshal(q.Body)
				if err != nil {
					t.Error(err)
				}
				said := strings.Count(string(body), `"role":"assistant"`)
				switch {
				case strings.Contains(q.Last, "Answer with the word ok"):
					return llmtest.Answer{Text: "ok"}
				case q.Body["tools"] != nil || !strings.Contains(string(body), "```tool"):
					return llmtest.Answer{Text: "Give me tools and I will write it."}
				case fails && said == 1:
					return llmtest.Answer{Problem: llmtest.Broken}
				}
				return llmtest.Answer{Text: inWords[min(said, len(inWords)-1)]}
			}
			journal, record := &llmtest.Journal{}, &memory{}
			settings := forge.Settings{Rounds: 5, JudgeMode: forge.JudgeScore}
			run := kw.Run{ID: 1, Seed: 1, Strategy: forge.ReactStrategy, Status: kw.RunDone}
			task := kw.Task{Name: "t", Source: "class Model: pass\n"}
			attempt := func() (forge.Outcome, error) { // a process of its own
				o := s.Options()
				o.Attempts = 1
				m, err := llm.New("llamacpp:m", o, llm.Services{Journal: journal})
				if err != nil {
					t.Fatal(err)
				}
				strategy, err := forge.New(forge.ReactStrategy, forge.Parts{Journal: journal, Evaluator: correct{}, Recorder: record, Settings: settings, Model: m})
				if err != nil {
					t.Fatal(err)
				}
				return strategy.Run(t.Context(), run, task)
			}
			fails = true
			var failed *llm.Error
			if _, err := attempt(); !errors.As(err, &failed) || failed.Kind != llm.Unavailable || len(record.rounds) != 1 {
				t.Fatalf("%v, %d rounds", err, len(record.rounds))
			}
			fails = false
			before := len(s.Asked())
			out, err := attempt()
			if err != nil || out.Stop != kw.StopDeclined || len(record.rounds) != 2 || out.Best == nil || out.Best.Index != 1 {
				t.Fatalf("%+v, %d rounds, %v", out, len(record.rounds), err)
			}
			for _, q := range s.Asked()[before:] { // what was found out is in the record
				if q.Body["tools"] != nil || strings.Contains(q.Last, "Answer with the word ok") {
					t.Errorf("it is asked again: %v", q.Body)
				}
			}
			talk := slices.DeleteFunc(journal.Records(), func(r llm.Record) bool { return r.Reply.Stop == llm.StopTooLong })
			first := talk[0]
			if first.Reply.Stop != llm.StopNoTools || len(first.Request.Tools) == 0 {
				t.Errorf("recorded first: %+v", first.Reply)
			}
			opening := talk[1].Request
			if f := opening.Fit; f == nil || !f.NoTools || f.Compact != (serving.Context.Tokens > 0) {
				t.Errorf("it is fitted to %+v", f)
			}
			if opening.Tools != nil || opening.Append || len(opening.Messages) != 2 || !strings.Contains(opening.Messages[0].Text, "write(path, content): Write a whole file.") {
				t.Errorf("then it is told %+v", opening)
			}
			run.Settings, run.Stop = settings.String(), out.Stop
			d, err := forge.Replay(t.Context(), record.rounds, task, run, forge.Parts{Journal: journal, Model: llm.Replay("llamacpp:m", journal)})
			if d != nil || err != nil {
				t.Errorf("replayed: %v, %v", d, err)
			}
		})
	}
}

// A server that hides its tools from one process on, in the middle of a talk that its
// model's context does not hold: the talk goes on in words, and is replayed.
func TestReactThatLosesItsToolsInASmallContext(t *testing.T) {
	for _, tokens := range []int{2048, 4096, 6000, 8192} {
		s := llmtest.NewServing(t, llmtest.Serving{Form: llmtest.LlamaCPP, HidesTools: true, Context: llmtest.Context{Server: "llamacpp", Tokens: tokens, PerToken: 4}})
		lost, n := false, 0
		s.Reply = func(q llmtest.Asked) llmtest.Answer {
			n++
			switch {
			case strings.Contains(q.Last, "Answer with the word ok"):
				return llmtest.Answer{Text: "ok"}
			case lost && q.Body["tools"] != nil:
				return llmtest.Answer{Text: "I have none."}
			case lost:
				call := fmt.Sprintf(`{"tool": "write", "arguments": %s}`, writing("model_new.py", theCandidate(n, 1000)))
				return llmtest.Answer{Text: "```tool\n" + call + "\n```\n```tool\n{\"tool\": \"verify\", \"arguments\": {}}\n```\n"}
			case n > 12:
				return llmtest.Answer{Problem: llmtest.Broken}
			}
			call := [][2]string{{"write", writing("model_new.py", theCandidate(n, 1000))}, {"verify", "{}"}, {"read", `{"path": "model_new.py"}`}, {"profile", "{}"}}[n%4]
			return llmtest.Answer{Tools: []llm.ToolCall{{ID: fmt.Sprint("call_", n), Name: call[0], Arguments: call[1]}}}
		}
		journal, record := &llmtest.Journal{}, &memory{}
		settings := forge.Settings{Rounds: 7}
		run := kw.Run{ID: 1, Seed: 1, Strategy: forge.ReactStrategy, Status: kw.RunDone}
		task := kw.Task{Name: "t", Source: "class Model: pass\n"}
		attempt := func() (forge.Outcome, error) {
			o := s.Options()
			o.Attempts = 1
			m, err := llm.New("llamacpp:m", o, llm.Services{Journal: journal})
			if err != nil {
				t.Fatal(err)
			}
			st, err := forge.New(forge.ReactStrategy, forge.Parts{Journal: journal, Evaluator: &talkative{}, Recorder: record, Settings: settings, Model: m, Judge: judge.Rules{}})
			if err != nil {
				t.Fatal(err)
			}
			return st.Run(t.Context(), run, task)
		}
		var failed *llm.Error
		if _, err := attempt(); !errors.As(err, &failed) || failed.Kind != llm.Unavailable || len(record.rounds) < 2 {
			t.Fatalf("%v, %d rounds", err, len(record.rounds))
		}
		lost = true
		out, err := attempt()
		if err != nil || len(record.rounds) != 7 {
			t.Fatalf("%d: %+v, %d rounds, %v", tokens, out, len(record.rounds), err)
		}
		talk := journal.Records()
		at := slices.IndexFunc(talk, func(r llm.Record) bool { return r.Reply.Stop == llm.StopNoTools })
		if at < 8 || at+1 >= len(talk) {
			t.Fatalf("%d: of %d calls it is the %dth", tokens, len(talk), at)
		}
		anew := talk[at+1].Request
		if anew.Tools != nil || anew.Append || len(anew.Messages) != 2 || !strings.Contains(anew.Messages[1].Text, "The rounds so far:") || !slices.Equal(anew.Fit.LeftOut, []string{"the oldest turns, for which a summary stands"}) {
			t.Errorf("%d: it goes on with %+v", tokens, anew)
		}
		for i, r := range talk {
			if r.Request.Fit == nil || r.Request.Fit.Estimate(r.Request) > tokens || r.Request.Fit.NoTools != (i == at+1) {
				t.Errorf("%d: call %d is fitted to %+v", tokens, i, r.Request.Fit)
			}
		}
		run.Settings, run.Stop = settings.For(forge.ReactStrategy).String(), out.Stop
		if d, err := forge.Replay(t.Context(), record.rounds, task, run, forge.Parts{Journal: journal, Model: llm.Replay("llamacpp:m", journal), Judge: judge.Rules{}}); d != nil || err != nil {
			t.Errorf("%d: replayed: %v, %v", tokens, d, err)
		}
	}
}
