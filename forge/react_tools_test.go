package forge_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	kw "github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
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
			first := journal.Records()[0]
			if first.Reply.Stop != llm.StopNoTools || len(first.Request.Tools) == 0 {
				t.Errorf("recorded first: %+v", first.Reply)
			}
			opening := journal.Records()[1].Request
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
