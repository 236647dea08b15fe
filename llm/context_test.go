package llm_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/llm/llmtest"
)

// call is a key of a run.
var aCall = llm.Key{Run: 1, Agent: "coder"}

func windowOf(t *testing.T, m llm.Model) llm.Window {
	t.Helper()
	w, _, err := llm.WindowOf(t.Context(), m, aCall)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// Each server is asked in its own way, once, before the first call; what the settings
// say is not asked.
func TestTheContextIsAskedOfTheServer(t *testing.T) {
	for name, test := range map[string]struct {
		model   string
		context llmtest.Context
		set     int
		want    int
		source  string
		told    string
	}{
		"llama.cpp":                {"llamacpp:m", llmtest.Context{Server: "llamacpp", Tokens: 2048}, 0, 2048, "its server's /props, of one slot", "/props"},
		"vLLM":                     {"vllm:m", llmtest.Context{Server: "vllm", Tokens: 32768}, 0, 32768, "its server's /v1/models", "/v1/models"},
		"an adapter of vLLM's":     {"vllm:adapter", llmtest.Context{Server: "vllm", Tokens: 32768}, 0, 32768, "its server's /v1/models", "/v1/models"},
		"sglang":                   {"sglang:m", llmtest.Context{Server: "sglang", Tokens: 4096}, 0, 4096, "its server's /v1/models", "/v1/models"},
		"Ollama, a Modelfile":      {"ollama:m", llmtest.Context{Server: "ollama", Tokens: 8192, Made: 131072, Parameters: "stop \"<end>\"\nnum_ctx    8192\n"}, 0, 8192, "num_ctx of its Modelfile", "/api/show /api/ps"},
		"Ollama, loaded":           {"ollama:m", llmtest.Context{Server: "ollama", Tokens: 32768, Made: 131072, Loaded: true}, 0, 32768, "what Ollama has loaded it with", "/api/show /api/ps"},
		"Ollama, not loaded":       {"ollama:m", llmtest.Context{Server: "ollama", Tokens: 4096, Made: 131072}, 0, 4096, "Ollama's default; the model itself can have 131072", "/api/show /api/ps"},
		"Ollama, a short model":    {"ollama:m", llmtest.Context{Server: "ollama", Tokens: 2048, Made: 2048}, 0, 2048, "Ollama's default", "/api/show /api/ps"},
		"another, which is vLLM":   {"mine:m", llmtest.Context{Server: "vllm", Tokens: 4096}, 0, 4096, "its server's /v1/models", "/v1/models"},
		"another, llama.cpp":       {"mine:m", llmtest.Context{Server: "llamacpp", Tokens: 4096}, 0, 4096, "its server's /props, of one slot", "/props"},
		"one that tells nothing":   {"mine:m", llmtest.Context{}, 0, 0, "", ""},
		"a service":                {"deepseek:m", llmtest.Context{Server: "vllm", Tokens: 4096}, 0, 0, "", ""},
		"the settings win":         {"vllm:m", llmtest.Context{Server: "vllm", Tokens: 32768}, 8192, 8192, "the settings", ""},
		"a length that is no such": {"llamacpp:m", llmtest.Context{Server: "llamacpp", Tokens: 3}, 0, 0, "", "/props"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := llmtest.NewContext(t, test.context)
			m := open(t, test.model, s, func(o *llm.Options) { o.ContextLength = test.set })
			for range 3 {
				if w := windowOf(t, llm.WithDeadline(m, llm.DefaultTimeout)); w.Context != test.want || w.Reply != llm.DefaultMaxTokens {
					t.Fatalf("%+v, want a context of %d", w, test.want)
				}
			}
			if got := llm.ContextSource(m); got != test.source {
				t.Errorf("known from %q, want %q", got, test.source)
			}
			if told := strings.Join(s.Told(), " "); told != test.told {
				t.Errorf("asked at %q, want %q", told, test.told)
			}
		})
	}
}

// broken is a server that cannot be asked for its context.
type broken struct {
	status int
	err    error
	asked  int
}

func (b *broken) RoundTrip(r *http.Request) (*http.Response, error) {
	b.asked++
	if b.err != nil {
		return nil, b.err
	}
	return says{b.status, asJSON, `{"default_generation_settings": [`}.RoundTrip(r)
}

// A failure to ask is no error, and is tried again only where the server may not have
// been there yet.
func TestAContextThatIsNotTold(t *testing.T) {
	for name, test := range map[string]struct {
		server *broken
		asked  int
	}{
		"nonsense":     {&broken{status: 200}, 1},
		"no such path": {&broken{status: 404}, 1},
		"not ready":    {&broken{status: 503}, 3},
		"not there":    {&broken{err: errors.New("refused")}, 3},
	} {
		m, err := llm.Open("llamacpp:m", llm.Options{HTTP: test.server})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if w := windowOf(t, m); w.Context != 0 {
				t.Errorf("%s: %+v", name, w)
			}
		}
		if test.server.asked != test.asked {
			t.Errorf("%s: asked %d times, want %d", name, test.server.asked, test.asked)
		}
	}
}

// long is a request of so many bytes.
func long(bytes int) llm.Request {
	return llm.Request{Messages: []llm.Message{{Role: llm.User, Text: strings.Repeat("ab ", bytes/3)}}}
}

// A reply that the context cut off is told apart from one that had all its tokens,
// and the user is told.
func TestWhatCutsAReplyOff(t *testing.T) {
	for name, test := range map[string]struct {
		model   string
		context llmtest.Context
		most    int // tokens of the reply that are asked for
		usage   *llm.Usage
		want    llm.Stop
		known   int // afterwards
	}{
		"the context, which is known":       {"llamacpp:m", llmtest.Context{Server: "llamacpp", Tokens: 2048}, 0, nil, llm.StopContext, 2048},
		"the context, which nobody told":    {"mine:m", llmtest.Context{Tokens: 2000}, 0, nil, llm.StopContext, 2000},
		"max_tokens":                        {"llamacpp:m", llmtest.Context{Server: "llamacpp", Tokens: 2048}, 300, nil, llm.StopLength, 2048},
		"max_tokens, the context unknown":   {"mine:m", llmtest.Context{Tokens: 2000}, 300, nil, llm.StopLength, 0},
		"a bound of the server's":           {"mine:m", llmtest.Context{}, 0, &llm.Usage{In: 700, Out: 1024}, llm.StopLength, 0},
		"a bound of a service's":            {"deepseek:m", llmtest.Context{}, 0, &llm.Usage{In: 700, Out: 1000}, llm.StopLength, 0},
		"Ollama, of which more was thought": {"ollama:m", llmtest.Context{Server: "ollama", Tokens: 2048, Made: 131072}, 0, nil, llm.StopContext, 2048},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := llmtest.NewContext(t, test.context)
			s.Say(llmtest.Answer{Text: strings.Repeat("and ", 5000), Stop: llm.StopLength, Usage: test.usage})
			var log bytes.Buffer
			m := open(t, test.model, s, func(o *llm.Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
			r := long(2400)
			r.MaxTokens = test.most
			reply, err := m.Generate(t.Context(), r)
			if err != nil || reply.Stop != test.want {
				t.Fatalf("it ended by %q, want %q: %v", reply.Stop, test.want, err)
			}
			if w := windowOf(t, m); w.Context != test.known {
				t.Errorf("afterwards the context is %d, want %d", w.Context, test.known)
			}
			if told := strings.Contains(log.String(), "context was full before its reply ended"); told != (test.want == llm.StopContext) {
				t.Errorf("the log:\n%s", log.String())
			}
		})
	}
}

// What a server says in a refusal is learned, and so is what it counts.
func TestARefusalTeaches(t *testing.T) {
	for name, text := range map[string]string{
		"vLLM":                  `This model's maximum context length is 4096 tokens. However, you requested 20384 tokens (4000 in the messages, 16384 in the completion). Please reduce the length of the messages or completion.`,
		"vLLM, of the reply":    `'max_tokens' or 'max_completion_tokens' is too large: 16384. This model's maximum context length is 4096 tokens and your request has 4000 input tokens (16384 > 4096 - 4000).`,
		"vLLM, the last":        `You passed 4000 input tokens and requested 16384 output tokens. However, the model's context length is only 4096 tokens, resulting in a maximum input length of 1.`,
		"sglang":                `The input (4000 tokens) is longer than the model's context length (4096 tokens).`,
		"sglang, with a reply":  `Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of 20384 tokens: 4000 tokens from the input messages and 16384 tokens for the completion.`,
		"llama.cpp":             `request (4000 tokens) exceeds the available context size (4096 tokens), try increasing it`,
		"llama-cpp-python":      `Requested tokens (4000) exceed context window of 4096`,
		"Anthropic":             `prompt is too long: 4000 tokens > 4096 maximum`,
		"Google":                `The input token count (4000) exceeds the maximum number of tokens allowed (4096).`,
		"OpenAI":                `This model's maximum context length is 4096 tokens. However, your messages resulted in 4000 tokens. Please reduce the length of the messages.`,
		"sglang, another bound": `Input length (4000 tokens) exceeds the maximum allowed length (4096 tokens).`,
	} {
		m := from(t, "vllm:m", says{400, asJSON, fmt.Sprintf(`{"error":{"message":%q}}`, text)})
		_, err := m.Generate(t.Context(), long(9000))
		var e *llm.Error
		if !errors.As(err, &e) || e.Kind != llm.TooLong || e.Context != 4096 || e.Prompt != 4000 {
			t.Errorf("%s: %+v", name, e)
			continue
		}
		if w := windowOf(t, m); w.Context != 4096 || w.BytesPerToken != 2.25 {
			t.Errorf("%s: %+v", name, w)
		}
	}
	m := from(t, "vllm:m", says{200, asJSON, `{"error":{"code":500,"message":"the request exceeds the available context size","type":"exceed_context_size_error","n_prompt_tokens":1407,"n_ctx":256}}`})
	_, err := m.Generate(t.Context(), long(9000))
	if e := new(llm.Error); !errors.As(err, &e) || e.Kind != llm.TooLong || e.Context != 256 || e.Prompt != 1407 {
		t.Errorf("llama.cpp: %v", err)
	}
}

// The bytes of a token are learned from what the server counts: at once where it
// counts more, slowly where it counts less.
func TestBytesOfATokenAreLearned(t *testing.T) {
	s := llmtest.NewOpenAI(t)
	m := open(t, "openai:gpt-4.1", s, nil)
	r := long(3000)
	for i, test := range []struct {
		in   int64
		want float64
	}{{1200, 2.5}, {1000, 2.63}, {2000, 1.5}, {20, 1.5}, {1 << 20, 1.5}, {600, 2.25}} {
		s.Say(llmtest.Answer{Text: "ok", Usage: &llm.Usage{In: test.in, Out: 3}})
		if _, err := m.Generate(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if w := windowOf(t, m); w.BytesPerToken != test.want {
			t.Errorf("after call %d a token has %v bytes, want %v", i, w.BytesPerToken, test.want)
		}
	}
}

// Tools that a server does not show the model are none of the prompt that it counts.
func TestToolsThatAreNotCounted(t *testing.T) {
	s := llmtest.NewOpenAI(t)
	m := open(t, "openai:gpt-4.1", s, nil)
	r := long(3000)
	r.Tools = []llm.Tool{{Name: "read", Description: strings.Repeat("reads ", 300), Parameters: []byte(`{"type": "object", "properties": {}}`)}}
	for _, test := range []struct {
		in   int64
		want float64
	}{{1000, 3}, {1900, 2.54}} {
		s.Say(llmtest.Answer{Text: "ok", Usage: &llm.Usage{In: test.in, Out: 3}})
		if _, err := m.Generate(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if w := windowOf(t, m); w.BytesPerToken != test.want {
			t.Errorf("of %d tokens one has %v bytes, want %v", test.in, w.BytesPerToken, test.want)
		}
	}
}

// shrinking writes a request of up to so many bytes, a tenth less each time, but never
// below least.
func shrinking(bytes, least int, asked *[]llm.Window) func(llm.Window) (llm.Request, []string, error) {
	return func(w llm.Window) (llm.Request, []string, error) {
		*asked = append(*asked, w)
		var left []string
		for size := bytes; ; size = size * 9 / 10 {
			r := long(size)
			switch {
			case w.Holds(r, 256):
				return r, left, nil
			case size*9/10 < least:
				return r, left, llm.ErrNoFit
			}
			left = append(left, "a tenth")
		}
	}
}

func never(llm.Window) bool { return false }

// Whatever a server counts, and whatever it tells: a request that can be made shorter
// is answered, by every kind of server, and stays within the context.
func TestAskingWithinAContext(t *testing.T) {
	for _, server := range []string{"llamacpp", "vllm", "sglang", "ollama"} {
		for _, tokens := range []int{2048, 4096, 32768} {
			for _, per := range []float64{2, 2.6, 3, 4.2} {
				t.Run(fmt.Sprintf("%s of %d at %v", server, tokens, per), func(t *testing.T) {
					t.Parallel()
					c := llmtest.Context{Server: server, Tokens: tokens, PerToken: per, Made: 131072}
					if server == "ollama" {
						c.Parameters = fmt.Sprintf("num_ctx %d", tokens)
					}
					s := llmtest.NewContext(t, c)
					m := open(t, server+":m", s, nil)
					var asked []llm.Window
					reply, err := llm.Ask(t.Context(), m, aCall, never, shrinking(150_000, 1000, &asked))
					if err != nil || reply.Text != "ok" {
						t.Fatalf("%+v, %v", reply, err)
					}
					if len(asked) > 3 {
						t.Errorf("written %d times", len(asked))
					}
					for _, w := range asked {
						if w.Context != tokens {
							t.Errorf("written for %+v", w)
						}
					}
				})
			}
		}
	}
}

// A server that tells nothing and names nothing is asked with half as much each time.
func TestAskingWithoutKnowing(t *testing.T) {
	s := llmtest.NewOpenAI(t)
	s.Say(llmtest.Answer{Problem: llmtest.NoMoney})
	m := from(t, "vllm:m", says{413, asJSON, `{}`})
	var asked []llm.Window
	_, err := llm.Ask(t.Context(), m, aCall, never, shrinking(30_000, 1000, &asked))
	if kindOf(err) != llm.TooLong || len(asked) != 4 {
		t.Fatalf("asked %d times: %v", len(asked), err)
	}
	for i, w := range asked[1:] {
		if before := asked[i].Context; w.Context == 0 || before != 0 && w.Context > before*7/10 {
			t.Errorf("the windows are %+v", asked)
		}
	}
}

// Where nothing sensible fits, the error names the server's own setting.
func TestNothingFits(t *testing.T) {
	for model, want := range map[string]string{
		"llamacpp:m": "--ctx-size", "vllm:m": "--max-model-len", "sglang:m": "--context-length", "ollama:m": "OLLAMA_CONTEXT_LENGTH", "mine:m": "llama.cpp: -c", "deepseek:m": "a longer context",
	} {
		s := llmtest.NewContext(t, llmtest.Context{})
		m := open(t, model, s, func(o *llm.Options) { o.ContextLength = 2048 })
		var asked []llm.Window
		_, err := llm.Ask(t.Context(), m, aCall, never, shrinking(30_000, 20_000, &asked))
		var e *llm.Error
		if !errors.As(err, &e) || e.Kind != llm.TooLong || !strings.Contains(e.Hint, want) || !strings.Contains(e.Text, "2048") {
			t.Errorf("%s: %v, hint %q", model, err, e.Hint)
		}
		if len(s.Asked()) != 0 {
			t.Errorf("%s: it was asked", model)
		}
	}
}

// A call that was answered is made again as it was, whatever was learned since, and
// what was left out is recorded.
func TestAFitIsRecorded(t *testing.T) {
	s := llmtest.NewContext(t, llmtest.Context{Server: "llamacpp", Tokens: 4096, PerToken: 2})
	j := &llmtest.Journal{}
	o := s.Options()
	m, err := llm.New("llamacpp:m", o, llm.Services{Journal: j})
	if err != nil {
		t.Fatal(err)
	}
	var asked []llm.Window
	ask := func(m llm.Model) llm.Reply {
		t.Helper()
		reply, err := llm.Ask(t.Context(), m, aCall, func(w llm.Window) bool { return w.Context == 4096 }, shrinking(20_000, 1000, &asked))
		if err != nil {
			t.Fatal(err)
		}
		return reply
	}
	first := ask(m)
	records := j.Records()
	last := records[len(records)-1].Request
	if last.Fit == nil || last.Fit.Context != 4096 || !last.Fit.Compact || len(last.Fit.LeftOut) == 0 {
		t.Fatalf("recorded: %+v", last.Fit)
	}
	answered := asked[len(asked)-1]
	for name, again := range map[string]llm.Model{"gone on": m, "replayed": llm.Replay("llamacpp:m", j)} {
		asked = nil
		if got := ask(again); got.Text != first.Text || len(asked) != 1 || asked[0].Context != answered.Context || asked[0].BytesPerToken != answered.BytesPerToken || !asked[0].Compact {
			t.Errorf("%s: %+v in %+v", name, got, asked)
		}
	}
	if got := j.Records(); len(got) != len(records) {
		t.Errorf("%d calls were made, and then %d", len(records), len(got))
	}
}

// A caller that has left is not kept waiting by the question.
func TestNobodyWaitsForAContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m := open(t, "llamacpp:m", llmtest.NewContext(t, llmtest.Context{Server: "llamacpp", Tokens: 4096}), nil)
	if _, _, err := llm.WindowOf(ctx, m, aCall); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if w := windowOf(t, m); w.Context != 4096 { // it is asked by who comes next
		t.Errorf("%+v", w)
	}
}

// Where the model is not shown its tools, the request is written again without them for
// the same window, however often it was too long before, and made so at once when it is
// made again. Where nothing fits without tools, it is that which is said.
func TestAskingWithoutTools(t *testing.T) {
	s := llmtest.NewServing(t, llmtest.Serving{Form: llmtest.LlamaCPP, RefusesTools: true, Context: llmtest.Context{Server: "llamacpp", Tokens: 4096}})
	j := &llmtest.Journal{}
	tool := []llm.Tool{{Name: "read", Description: "Show a file.", Parameters: json.RawMessage(`{"type":"object"}`)}}
	ask := func(m llm.Model, key llm.Key, room int) (written []llm.Window, err error) {
		_, err = llm.Ask(t.Context(), m, key, func(llm.Window) bool { return true }, func(w llm.Window) (r llm.Request, _ []string, err error) {
			written = append(written, w)
			r.Messages = []llm.Message{{Role: llm.User, Text: strings.Repeat("abc ", 200)}}
			if !w.NoTools {
				r.Tools = tool
			} else if room == 0 {
				err = llm.ErrNoFit
			}
			return r, nil, err
		})
		return written, err
	}
	m, err := llm.New("llamacpp:m", s.Options(), llm.Services{Journal: j})
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range []llm.Model{m, llm.Replay("llamacpp:m", j)} {
		written, err := ask(m, aCall, 1)
		if err != nil || len(written) != 2-i || written[0].NoTools != (i == 1) || written[0].Context != 4096 || !written[0].Compact {
			t.Errorf("%+v, %v", written, err)
		}
		if last := written[len(written)-1]; !last.NoTools || last.Context != 4096 || !last.Compact {
			t.Errorf("at last for %+v", last)
		}
	}
	records := j.Records()
	if len(records) != 2 || records[0].Reply.Stop != llm.StopNoTools || records[0].Request.Fit.NoTools || !records[1].Request.Fit.NoTools || records[1].Request.Tools != nil {
		t.Errorf("recorded: %+v", records)
	}
	other := aCall
	other.Seq++
	if _, err := ask(m, other, 0); kindOf(err) != llm.TooLong {
		t.Errorf("%v", err)
	}
}
