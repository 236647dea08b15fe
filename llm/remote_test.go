package llm_test

import (
	"errors"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/llm/llmtest"
)

// doubles are the servers that stand for the providers.
var doubles = []struct {
	name, model string
	start       func(testing.TB) *llmtest.Server
	anthropic   bool
	writes      bool // what was written to a cache is counted
}{
	{"openai", "openai:gpt-4.1", llmtest.NewOpenAI, false, false},
	{"openai that reasons", "openai:gpt-5.4", llmtest.NewOpenAI, false, false},
	{"google", "google:gemini-3-pro", llmtest.NewGoogle, false, false},
	{"vllm", "vllm:Qwen/Qwen3-32B", llmtest.NewCompatible, false, false},
	{"another", "mine:org/model:8b", llmtest.NewCompatible, false, false},
	{"openrouter", "openrouter:anthropic/claude-sonnet-5.5", llmtest.NewOpenRouter, false, true},
	{"anthropic", "anthropic:claude-sonnet-5-5", llmtest.NewAnthropic, true, true},
	{"an elder of anthropic", "anthropic:claude-sonnet-4-5-20250929", llmtest.NewAnthropic, true, true},
}

// open opens a model at a double. Its bound is little above the longest text that the suite has,
// for tests read endless answers up to it.
func open(t testing.TB, name string, s *llmtest.Server, change func(*llm.Options)) llm.Model {
	t.Helper()
	o := s.Options()
	o.MaxReplyBytes = 384 << 10
	if change != nil {
		change(&o)
	}
	m, err := llm.Open(name, o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestProviders(t *testing.T) {
	for _, d := range doubles {
		for _, stream := range []bool{true, false} {
			name := d.name + ", streamed"
			if !stream {
				name = d.name + ", whole"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				llmtest.Suite(t, func(t *testing.T) llmtest.Subject {
					s := d.start(t)
					m := open(t, d.model, s, func(o *llm.Options) { o.Stream = &stream })
					return llmtest.Subject{Model: m, Say: s.Say, Whole: !stream && d.anthropic, NoRefusal: d.anthropic, NoCacheWrite: !d.writes}
				})
			})
		}
	}
}

// Everything that New puts round a model keeps the contract.
func TestStack(t *testing.T) {
	llmtest.Suite(t, func(t *testing.T) llmtest.Subject {
		s := llmtest.NewOpenAI(t)
		o := s.Options()
		o.Attempts, o.Concurrency, o.RequestsPerMinute, o.TokensPerMinute, o.MaxReplyBytes = 1, 8, 1<<20, 1<<30, 384<<10
		budget := llm.NewBudget(llm.Allowances{Day: llm.Allowance{USD: 1000, Wall: time.Hour}}, llm.Prices{"openai:*": {In: 1, Out: 1}}, &llmtest.Ledger{}, nil)
		m, err := llm.New("openai:gpt-4.1", o, llm.Services{Journal: &llmtest.Journal{}, Budget: budget})
		if err != nil {
			t.Fatal(err)
		}
		return llmtest.Subject{Model: m, Say: s.Say, NoCacheWrite: true}
	})
}

// kindOf is the kind of an error, or "".
func kindOf(err error) llm.Kind {
	var e *llm.Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return ""
}
