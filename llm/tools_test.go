package llm_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/llm/llmtest"
)

// tooled asks with a tool, as a call of a run.
func tooled(seq int) llm.Request {
	r := keyed("work on it", llm.Key{Run: 1, Agent: "coder", Seq: seq})
	r.Task = "softmax"
	r.Tools = []llm.Tool{{Name: "read", Description: "Show a file.", Parameters: json.RawMessage(`{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}`)}}
	return r
}

// Whether a server shows a model its tools is found out where the model calls none:
// from what the server counts, once. What was found is recorded, so that a replay and
// a run that goes on have it too.
func TestToolsThatTheModelIsNotShown(t *testing.T) {
	reading := llmtest.Answer{Tools: []llm.ToolCall{{ID: "a", Name: "read", Arguments: `{"path":"x"}`}}}
	talking := llmtest.Answer{Text: "I would read the file."}
	for _, test := range []struct {
		name   string
		model  string
		server llmtest.Serving
		first  llmtest.Answer
		kind   llm.Kind
		asked  int // requests that two calls with tools make
		said   string
	}{
		{"shown, and called", "llamacpp:m", llmtest.Serving{Form: llmtest.LlamaCPP}, reading, "", 2, ""},
		{"shown, and not called", "llamacpp:m", llmtest.Serving{Form: llmtest.LlamaCPP}, talking, "", 4, ""},
		{"hidden by a template", "llamacpp:m", llmtest.Serving{Form: llmtest.LlamaCPP, HidesTools: true}, talking, llm.NoTools, 3, "tokens with them and"},
		{"hidden", "ollama:m", llmtest.Serving{Form: llmtest.Ollama, HidesTools: true}, talking, llm.NoTools, 3, "tokens with them and"},
		{"hidden", "mine:m", llmtest.Serving{Form: llmtest.Transformers, HidesTools: true}, talking, llm.NoTools, 3, "tokens with them and"},
		{"by a server that counts nothing", "mine:m", llmtest.Serving{Form: llmtest.Transformers, HidesTools: true, CountsNothing: true}, talking, "", 4, ""},
		{"refused", "llamacpp:m", llmtest.Serving{Form: llmtest.LlamaCPP, RefusesTools: true}, talking, llm.NoTools, 0, "requires --jinja flag"},
		{"refused", "ollama:m", llmtest.Serving{Form: llmtest.Ollama, RefusesTools: true}, talking, llm.NoTools, 0, "does not support tools"},
		{"refused", "vllm:m", llmtest.Serving{Form: llmtest.VLLM, RefusesTools: true}, talking, llm.NoTools, 0, "--enable-auto-tool-choice"},
		{"by one who sells it: nobody asks", "openrouter:m", llmtest.Serving{Form: llmtest.Ollama, HidesTools: true}, talking, "", 2, ""},
	} {
		t.Run(test.model+", "+test.name, func(t *testing.T) {
			s := llmtest.NewServing(t, test.server)
			var log bytes.Buffer
			o := s.Options()
			o.Log = slog.New(slog.NewTextHandler(&log, nil))
			journal, ledger := &llmtest.Journal{}, &llmtest.Ledger{}
			services := llm.Services{Journal: journal, Budget: llm.NewBudget(llm.Allowances{}, nil, ledger, nil)}
			m, err := llm.New(test.model, o, services)
			if err != nil {
				t.Fatal(err)
			}
			if !test.server.RefusesTools {
				s.Say(test.first)
			}
			reply, err := m.Generate(t.Context(), tooled(0))
			if kindOf(err) != test.kind || err == nil && reply.Text != test.first.Text {
				t.Fatalf("%+v, %v", reply, err)
			}
			if _, err := m.Generate(t.Context(), tooled(1)); kindOf(err) != test.kind {
				t.Errorf("the next: %v", err)
			}
			if n := len(s.Asked()); n != test.asked {
				t.Errorf("%d requests, want %d", n, test.asked)
			}
			if n := strings.Count(log.String(), "a model is not shown its tools"); n != len(test.kind)/len(llm.NoTools) || !strings.Contains(log.String(), test.said) {
				t.Errorf("the log says\n%s", &log)
			}
			if n := len(ledger.Charges()); test.asked > 0 && n != test.asked {
				t.Errorf("%d charges of %d requests", n, test.asked)
			}
			if test.kind == "" {
				return
			}
			first := journal.Records()[0]
			if first.Reply.Stop != llm.StopNoTools || len(journal.Records()) != 2 || test.asked > 0 && (first.Reply.Text != test.first.Text || first.Reply.Usage.In == 0) {
				t.Errorf("recorded %+v", journal.Records())
			}
			// In words it is asked as ever.
			words := tooled(0)
			words.Tools = nil
			if reply, err := m.Generate(t.Context(), words); err != nil || reply.Text != "ok" {
				t.Errorf("in words: %+v, %v", reply, err)
			}
			// A run that goes on, with a server that has tools by now, goes on as it went.
			better := llmtest.NewServing(t, llmtest.Serving{Form: test.server.Form})
			again, err := llm.New(test.model, better.Options(), services)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range []llm.Model{again, llm.Replay(test.model, journal)} {
				if _, err := m.Generate(t.Context(), tooled(0)); kindOf(err) != llm.NoTools || len(better.Asked()) != 0 {
					t.Errorf("again: %v", err)
				}
				if reply, err := m.Generate(t.Context(), words); err != nil || reply.Text != "ok" || len(better.Asked()) != 0 {
					t.Errorf("again, in words: %+v, %v", reply, err)
				}
			}
			// So does a recording of the run.
			said, err := json.Marshal(map[string]any{"run": map[string]string{"task_name": "softmax"}, "talk": journal.Records()})
			if err != nil {
				t.Fatal(err)
			}
			played, err := llm.New(recordingOf(t, string(said)), llm.Options{}, llm.Services{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := played.Generate(t.Context(), tooled(0)); kindOf(err) != llm.NoTools {
				t.Errorf("a recording: %v", err)
			}
			words.Task = "softmax"
			if reply, err := played.Generate(t.Context(), words); err != nil || reply.Text != "ok" {
				t.Errorf("a recording, in words: %+v, %v", reply, err)
			}
		})
	}
}

// The words of servers that take no tools, with the statuses that they come with:
// none is asked again, and where no tools were sent they mean something else.
func TestRefusalsOfTools(t *testing.T) {
	for _, test := range []struct {
		model string
		s     says
	}{
		{"llamacpp:m", says{500, asJSON, `{"error":{"code":500,"message":"tools param requires --jinja flag","type":"server_error"}}`}},
		{"llamacpp:m", says{500, asJSON, `{"error":{"code":500,"message":"Unsupported param: tools","type":"server_error"}}`}},
		{"ollama:m", says{400, asJSON, `{"error":{"message":"registry.ollama.ai/library/m:latest does not support tools","type":"api_error","param":null,"code":null}}`}},
		{"vllm:m", says{400, asJSON, `{"error":{"message":"\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set","type":"BadRequestError","param":null,"code":400}}`}},
		{"openrouter:m", says{404, asJSON, `{"error":{"message":"No endpoints found that support tool use. To learn more about provider routing, visit: https://openrouter.ai/docs","code":404}}`}},
	} {
		_, err := from(t, test.model, test.s).Generate(t.Context(), tooled(0))
		var e *llm.Error
		if !errors.As(err, &e) || e.Kind != llm.NoTools || e.Temporary() || !strings.Contains(e.Hint, "native_tools = false") {
			t.Errorf("%s: %v", test.model, err)
		}
		if _, err := from(t, test.model, test.s).Generate(t.Context(), llmtest.Ask("hello")); err == nil || kindOf(err) == llm.NoTools {
			t.Errorf("%s, without tools: %v", test.model, err)
		}
	}
}

// Many who ask at once find it out once.
func TestToolsOfManyAtOnce(t *testing.T) {
	s := llmtest.NewServing(t, llmtest.Serving{Form: llmtest.LlamaCPP, HidesTools: true})
	m, err := llm.New("llamacpp:m", s.Options(), llm.Services{})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			if _, err := m.Generate(t.Context(), tooled(i)); kindOf(err) != llm.NoTools {
				t.Errorf("%v", err)
			}
		})
	}
	wg.Wait()
	probes := 0
	for _, a := range s.Asked() {
		if a.Last == "Answer with the word ok." {
			probes++
		}
	}
	if probes != 2 {
		t.Errorf("it was asked %d times whether the model sees tools", probes)
	}
}
