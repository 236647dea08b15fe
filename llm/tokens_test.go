package llm_test

import (
	"bytes"
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/llm/llmtest"
)

// One setting brings the tokens of every server that has them; what one does not
// have is said once, and nothing is made up.
func TestTokenIDsOfEachServer(t *testing.T) {
	tokens := llmtest.Tokens{Prompt: []int{1, 2, 3}, Reply: []int{7, 8}, LogProbs: []float64{-0.5, -1.25}}
	all := llm.Reply{PromptIDs: tokens.Prompt, TokenIDs: tokens.Reply, LogProbs: tokens.LogProbs}
	own := llm.Reply{TokenIDs: tokens.Reply, LogProbs: tokens.LogProbs}
	const none, noPrompt = "gives no token ids", "none of the prompt's"
	for _, test := range []struct {
		model string
		form  llmtest.Form
		want  llm.Reply
		said  string
	}{
		{"vllm:m", llmtest.VLLM, all, ""},
		{"vllm:m", llmtest.OldVLLM, own, noPrompt},
		{"sglang:m", llmtest.SGLang, all, ""},
		{"sglang:m", llmtest.OldSGLang, all, ""},
		{"llamacpp:m", llmtest.LlamaCPP, own, noPrompt},
		{"ollama:m", llmtest.Ollama, llm.Reply{}, none},
		// Whoever it is: only its address is known.
		{"mine:m", llmtest.VLLM, all, ""}, {"mine:m", llmtest.SGLang, all, ""}, {"mine:m", llmtest.LlamaCPP, own, noPrompt}, {"mine:m", llmtest.Ollama, llm.Reply{}, none},
	} {
		t.Run(test.model+" at "+string(test.form), func(t *testing.T) {
			s := llmtest.NewServing(t, llmtest.Serving{Form: test.form})
			var log bytes.Buffer
			yes := true
			m := open(t, test.model, s, func(o *llm.Options) {
				o.TokenIDs, o.Stream, o.Log = &yes, &yes, slog.New(slog.NewTextHandler(&log, nil))
			})
			for range 2 {
				s.Say(llmtest.Answer{Text: "yes", Tokens: &tokens})
				got, err := m.Generate(t.Context(), llmtest.Ask("hello"))
				if err != nil {
					t.Fatal(err)
				}
				got = llm.Reply{PromptIDs: got.PromptIDs, TokenIDs: got.TokenIDs, LogProbs: got.LogProbs}
				if !reflect.DeepEqual(got, test.want) {
					t.Errorf("%+v, want %+v", got, test.want)
				}
			}
			if n := strings.Count(log.String(), "level=WARN"); test.said == "" && n != 0 || test.said != "" && (n != 1 || !strings.Contains(log.String(), test.said) || !strings.Contains(log.String(), "model="+test.model)) {
				t.Errorf("the log says\n%s", &log)
			}
			// One that is not asked says nothing of its tokens, and nobody misses them.
			s.Say(llmtest.Answer{Text: "yes", Tokens: &tokens})
			if got, err := open(t, test.model, s, nil).Generate(t.Context(), llmtest.Ask("hello")); err != nil || got.TokenIDs != nil || s.Asked()[2].Stream != true || s.Asked()[1].Stream {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

// A count that does not fit the ids says that they are not all: a policy would be
// trained on what was never sampled.
func TestTokenIDsThatAreNotAll(t *testing.T) {
	s := llmtest.NewServing(t, llmtest.Serving{Form: llmtest.LlamaCPP})
	var log bytes.Buffer
	yes := true
	m := open(t, "llamacpp:m", s, func(o *llm.Options) { o.TokenIDs, o.Log = &yes, slog.New(slog.NewTextHandler(&log, nil)) })
	for range 2 {
		s.Say(llmtest.Answer{Text: "yes", Tokens: &llmtest.Tokens{Reply: []int{7}, LogProbs: []float64{-1}}, Usage: &llm.Usage{In: 9, Out: 2}})
		got, err := m.Generate(t.Context(), llmtest.Ask("hello"))
		if err != nil || got.TokenIDs != nil || got.LogProbs != nil || got.Text != "yes" {
			t.Errorf("%+v, %v", got, err)
		}
	}
	if strings.Count(log.String(), "are not those of all tokens") != 1 {
		t.Errorf("the log says\n%s", &log)
	}
}

// A server that refuses to be asked, and a provider that never has any: both are
// said with what to do.
func TestTokenIDsThatCannotBeAsked(t *testing.T) {
	yes := true
	s := llmtest.NewServing(t, llmtest.Serving{Form: llmtest.Transformers})
	_, err := open(t, "mine:m", s, func(o *llm.Options) { o.TokenIDs = &yes }).Generate(t.Context(), llmtest.Ask("hello"))
	var e *llm.Error
	if !errors.As(err, &e) || e.Kind != llm.BadRequest || !strings.Contains(e.Hint, "token_ids = false") {
		t.Errorf("%v, hint %q", err, e.Hint)
	}
	for _, name := range []string{"openai:m", "anthropic:m", "google:m", "openrouter:m", "deepseek:m"} {
		_, err := llm.Open(name, llm.Options{TokenIDs: &yes, Getenv: func(string) string { return llmtest.Canary }})
		who, _, _ := strings.Cut(name, ":")
		if !errors.As(err, &e) || e.Kind != llm.BadRequest || !strings.Contains(err.Error(), "token_ids: "+who+" gives no token ids") || !strings.Contains(e.Hint, "leave token_ids out") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
