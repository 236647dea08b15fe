package llm_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/llm/llmtest"
)

// What a server counts is believed as far as the call can have had it. What is
// beyond is said in the log, and neither booked nor waited for by later calls.
func TestAbsurdUsage(t *testing.T) {
	const asked, told = 53, 4 // bytes; of tokens there are no more
	const mostIn = 16<<10 + 512 + 32 + asked
	chat := func(usage string) string {
		return `{"choices":[{"message":{"role":"assistant","content":"2 up"},"finish_reason":"stop"}],"usage":` + usage + `}`
	}
	message := func(usage string) string {
		return `{"type":"message","content":[{"type":"text","text":"2 up"}],"stop_reason":"end_turn","usage":` + usage + `}`
	}
	estimate := llm.Usage{In: 26, Out: 2, Estimated: true}
	for _, test := range []struct {
		name, model, body string
		want              llm.Usage
		said              bool
	}{
		{"as it can be", "vllm:m", chat(`{"prompt_tokens":14000,"completion_tokens":64}`), llm.Usage{In: 14000, Out: 64}, false},
		{"too many of both", "vllm:m", chat(`{"prompt_tokens":999999999999,"completion_tokens":65}`), llm.Usage{In: mostIn, Out: 64, Estimated: true}, true},
		{"parts of too many", "vllm:m", chat(`{"prompt_tokens":9e11,"completion_tokens":9e11,"prompt_tokens_details":{"cached_tokens":8e11,"cache_write_tokens":1e11},"completion_tokens_details":{"reasoning_tokens":9e11}}`),
			llm.Usage{In: mostIn, Out: 64, CachedIn: mostIn, Reasoning: 64, Estimated: true}, true},
		{"in the total alone", "google:m", chat(`{"prompt_tokens":10,"completion_tokens":1,"total_tokens":90000000000}`), llm.Usage{In: 10, Out: 64, Reasoning: 64, Estimated: true}, true},
		{"no number of tokens", "vllm:m", chat(`{"prompt_tokens":1e18,"completion_tokens":-5}`), estimate, false},
		{"below nothing", "vllm:m", chat(`{"prompt_tokens":-1e18,"completion_tokens":5}`), llm.Usage{In: estimate.In, Out: 5, Estimated: true}, false},
		{"of Anthropic's", "anthropic:claude-sonnet-5-5", message(`{"input_tokens":5,"cache_read_input_tokens":9e11,"output_tokens":9e11}`), llm.Usage{In: mostIn, CachedIn: mostIn, Out: 64, Estimated: true}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				m, err := llm.New(test.model, llm.Options{
					HTTP: says{200, asJSON, test.body}, MaxTokens: 64, TokensPerMinute: 100_000, Log: slog.New(slog.NewTextHandler(&log, nil)),
					Getenv: func(string) string { return llmtest.Canary },
				}, llm.Services{})
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				for range 2 {
					r := llmtest.Ask(strings.Repeat("w", asked))
					reply, err := m.Generate(t.Context(), r)
					if err != nil {
						t.Fatal(err)
					}
					if len(reply.Text) != told || reply.Usage != test.want {
						t.Errorf("%+v, want %+v", reply.Usage, test.want)
					}
				}
				if took := time.Since(began); took != 0 {
					t.Errorf("the next call waited for %v", took)
				}
				if said := strings.Contains(log.String(), "more tokens than the call can have had"); said != test.said {
					t.Errorf("the log says\n%s", &log)
				}
				if test.said && !strings.Contains(log.String(), fmt.Sprint("model=", test.model)) {
					t.Errorf("the log does not name the model:\n%s", &log)
				}
			})
		})
	}
}
