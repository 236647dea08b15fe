package llm_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/llm/llmtest"
)

// says is a transport that answers every request with this.
type says struct {
	status      int
	contentType string
	body        string
}

func (s says) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: s.status, Header: http.Header{"Content-Type": {s.contentType}}, Body: io.NopCloser(strings.NewReader(s.body)), Request: r,
	}, nil
}

// from opens a model whose server answers with this.
func from(t testing.TB, name string, s says) llm.Model {
	t.Helper()
	m, err := llm.Open(name, llm.Options{HTTP: s, MaxReplyBytes: 64 << 10, Getenv: func(string) string { return llmtest.Canary }})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

const (
	asJSON   = "application/json"
	asEvents = "text/event-stream"
)

// chunk is an event of a stream.
func chunk(s string) string { return "data: " + s + "\n\n" }

func TestHostileReplies(t *testing.T) {
	done := chunk(`{"choices":[{"delta":{},"finish_reason":"stop"}]}`)
	bare := func(r llm.Reply) bool {
		return r.Text == "a" && r.PromptIDs == nil && r.TokenIDs == nil && r.LogProbs == nil
	}
	for _, test := range []struct {
		name, model string
		s           says
		kind        llm.Kind
		check       func(llm.Reply) bool // where there is no error
	}{
		{"an empty body", "openai:m", says{200, asJSON, ""}, llm.Malformed, nil},
		{"null", "openai:m", says{200, asJSON, "null"}, llm.Malformed, nil},
		{"no choices", "openai:m", says{200, asJSON, `{"choices":[]}`}, llm.Malformed, nil},
		{"no message", "openai:m", says{200, asJSON, `{"choices":[{"finish_reason":"stop"}]}`}, "", func(r llm.Reply) bool { return r.Text == "" && r.Stop == llm.StopEnd }},
		{"content is a number", "openai:m", says{200, asJSON, `{"choices":[{"message":{"content":7},"finish_reason":"stop"}]}`}, llm.Malformed, nil},
		{"content in parts", "openai:m", says{200, asJSON, `{"choices":[{"message":{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},"finish_reason":"stop"}]}`}, "", func(r llm.Reply) bool { return r.Text == "ab" }},
		{"half of a body", "openai:m", says{200, asJSON, `{"choices":[{"message":{"content":"abc`}, llm.Malformed, nil},
		{"a page instead", "openai:m", says{200, "text/html", "<html>log in</html>"}, llm.Malformed, nil},
		{"an error with 200", "openai:m", says{200, asJSON, `{"error":{"message":"no","code":"insufficient_quota"}}`}, llm.Quota, nil},
		{"an error with 200 and no more", "openai:m", says{200, asJSON, `{"error":{"message":"no"}}`}, llm.Unavailable, nil},
		{"an error with a code and 200", "openrouter:m", says{200, asJSON, `{"error":{"message":"slow down","code":429}}`}, llm.RateLimited, nil},
		{"an error of one choice", "openrouter:m", says{200, asEvents, chunk(`{"choices":[{"delta":{},"finish_reason":"error","error":{"code":502,"message":"gone"}}]}`)}, llm.Unavailable, nil},
		{"a reason that is a failure", "openrouter:m", says{200, asEvents, chunk(`{"choices":[{"delta":{"content":"a"},"finish_reason":"error"}]}`)}, llm.Unavailable, nil},
		{"aborted", "vllm:m", says{200, asEvents, chunk(`{"choices":[{"delta":{"content":"a"},"finish_reason":"abort"}]}`)}, llm.Truncated, nil},
		{"done without a reason", "vllm:m", says{200, asEvents, chunk(`{"choices":[{"delta":{"content":"a"}}]}`) + chunk("[DONE]")}, llm.Truncated, nil},
		{"a reason and no done", "vllm:m", says{200, asEvents, chunk(`{"choices":[{"delta":{"content":"a"}}]}`) + done}, "", func(r llm.Reply) bool { return r.Text == "a" && r.Usage.Estimated }},
		{"a reason nobody knows", "vllm:m", says{200, asJSON, `{"choices":[{"message":{"content":"a"},"finish_reason":"eos"}]}`}, "", func(r llm.Reply) bool { return r.Stop == llm.StopEnd }},
		{"a filter by name", "google:m", says{200, asJSON, `{"choices":[{"message":{"content":null},"finish_reason":"content_filter: PROHIBITED_CONTENT"}]}`}, "", func(r llm.Reply) bool { return r.Stop == llm.StopFiltered }},
		{"a call that went wrong", "google:m", says{200, asJSON, `{"choices":[{"message":{"content":null},"finish_reason":"function_call_filter: MALFORMED_FUNCTION_CALL"}]}`}, llm.Malformed, nil},
		{"no empty lines", "vllm:m", says{200, asEvents, "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\ndata:{\"choices\":[{\"delta\":{\"content\":\"b\"},\"finish_reason\":\"stop\"}]}\ndata: [DONE]"}, "", func(r llm.Reply) bool { return r.Text == "ab" }},
		{"CRLF, a mark of byte order, comments, other fields", "vllm:m", says{200, asEvents, "\ufeff: hi\r\nevent: x\r\nid: 1\r\nretry: 5\r\ndata: {\"choices\":\r\ndata: [{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}\r\n\r\n"}, "", func(r llm.Reply) bool { return r.Text == "a" }},
		{"other choices", "vllm:m", says{200, asEvents, chunk(`{"choices":[{"index":1,"delta":{"content":"no"}},{"index":0,"delta":{"content":"yes"}}]}`) + done}, "", func(r llm.Reply) bool { return r.Text == "yes" }},
		{"reasoning under both names", "vllm:m", says{200, asEvents, chunk(`{"choices":[{"delta":{"reasoning":"hm","reasoning_content":"hm"}}]}`) + done}, "", func(r llm.Reply) bool { return r.Reasoning == "hm" }},
		{"thoughts in the text", "vllm:m", says{200, asJSON, `{"choices":[{"message":{"content":"<think>\nhm\n</think>\n\nyes"},"finish_reason":"stop"}]}`}, "", func(r llm.Reply) bool { return r.Reasoning == "hm" && r.Text == "yes" }},
		{"thoughts without an end", "vllm:m", says{200, asJSON, `{"choices":[{"message":{"content":"<think>\nhm"},"finish_reason":"length"}]}`}, "", func(r llm.Reply) bool { return r.Text == "<think>\nhm" && r.Stop == llm.StopLength }},
		{"token ids", "vllm:m", says{200, asEvents, chunk(`{"prompt_token_ids":[1,2],"choices":[{"delta":{"content":"a"},"token_ids":[3],"logprobs":{"content":[{"logprob":-0.5}]}}]}`) + chunk(`{"choices":[{"delta":{"content":"b"},"token_ids":[4],"logprobs":{"content":[{"logprob":-1}]},"finish_reason":"stop"}]}`)}, "", func(r llm.Reply) bool {
			return reflect.DeepEqual(r.PromptIDs, []int{1, 2}) && reflect.DeepEqual(r.TokenIDs, []int{3, 4}) && reflect.DeepEqual(r.LogProbs, []float64{-0.5, -1})
		}},
		{"token ids that are none", "vllm:m", says{200, asJSON, `{"prompt_token_ids":"x","choices":[{"message":{"content":"a"},"finish_reason":"stop","token_ids":["a"],"logprobs":7,"meta_info":[]}]}`}, "", bare},
		{"fewer token ids than tokens", "vllm:m", says{200, asJSON, `{"choices":[{"message":{"content":"a"},"finish_reason":"stop","token_ids":[3],"logprobs":{"content":[{"logprob":-1}]}}],"usage":{"prompt_tokens":5,"completion_tokens":2}}`}, "", bare},
		{"fewer log-probabilities than token ids", "vllm:m", says{200, asJSON, `{"choices":[{"message":{"content":"a"},"finish_reason":"stop","token_ids":[3,4],"logprobs":{"content":[{"logprob":-1}]}}]}`}, "", bare},
		{"a log-probability that is missing", "llamacpp:m", says{200, asJSON, `{"choices":[{"message":{"content":"a"},"finish_reason":"stop","logprobs":{"content":[{"id":3,"logprob":null}]}}]}`}, "", bare},
		{"a triple that is none", "sglang:m", says{200, asJSON, `{"choices":[{"message":{"content":"a"},"finish_reason":"stop","meta_info":{"output_token_logprobs":[[-1,3,"a"],[null,4,null]]}}]}`}, "", bare},
		{"an id below 0", "llamacpp:m", says{200, asJSON, `{"choices":[{"message":{"content":"a"},"finish_reason":"stop","logprobs":{"content":[{"id":-1,"logprob":-1}]}}]}`}, "", bare},
		{"a token's text that looks like an id", "vllm:m", says{200, asJSON, `{"choices":[{"message":{"content":"a"},"finish_reason":"stop","logprobs":{"content":[{"token":"token_id:x","logprob":-1}]}}]}`}, "", bare},
		{"parallel calls that all have the index 0", "vllm:m", says{200, asEvents, chunk(`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}}]}}]}`) + chunk(`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"b","function":{"name":"g","arguments":"{"}}]}}]}`) + chunk(`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"}"}}]},"finish_reason":"tool_calls"}]}`)}, "", func(r llm.Reply) bool {
			return reflect.DeepEqual(r.ToolCalls, []llm.ToolCall{{ID: "a", Name: "f", Arguments: "{}"}, {ID: "b", Name: "g", Arguments: "{}"}})
		}},
		{"the same id twice", "vllm:m", says{200, asJSON, `{"choices":[{"message":{"tool_calls":[{"id":"a","function":{"name":"f","arguments":{"x":1}}},{"id":"a","function":{"name":"g"}}]},"finish_reason":"stop"}]}`}, "", func(r llm.Reply) bool {
			return r.Stop == llm.StopTools && reflect.DeepEqual(r.ToolCalls, []llm.ToolCall{{ID: "a", Name: "f", Arguments: `{"x":1}`}, {ID: "call_1_1", Name: "g", Arguments: "{}"}})
		}},
		{"negative usage", "vllm:m", says{200, asJSON, `{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":-5,"completion_tokens":-9}}`}, "", func(r llm.Reply) bool { return r.Usage.In > 0 && r.Usage.Estimated }},
		{"usage that is too large", "vllm:m", says{200, asJSON, `{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1e300,"completion_tokens":"7"}}`}, "", func(r llm.Reply) bool { return r.Usage.Estimated }},
		{"more from the cache than went in, more thought than said", "vllm:m", says{200, asJSON, `{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":99},"completion_tokens_details":{"reasoning_tokens":99}}}`}, "", func(r llm.Reply) bool { return r.Usage == llm.Usage{In: 10, CachedIn: 10, Out: 3, Reasoning: 3} }},
		{"thought that only the total counts", "google:m", says{200, asJSON, `{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":3,"total_tokens":20}}`}, "", func(r llm.Reply) bool { return r.Usage == llm.Usage{In: 10, Out: 10, Reasoning: 7} }},
		{"a stream of comments without an end", "vllm:m", says{200, asEvents, strings.Repeat(": ping\n\n", 500_000) + done}, llm.Malformed, nil},
		{"usage in fractions", "vllm:m", says{200, asJSON, `{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":12.0,"completion_tokens":3.0,"prompt_tokens_details":null}}`}, "", func(r llm.Reply) bool { return r.Usage == llm.Usage{In: 12, Out: 3} }},
		{"bytes that are no text", "vllm:m", says{200, asJSON, "{\"choices\":[{\"message\":{\"content\":\"a\xff\"},\"finish_reason\":\"stop\"}]}"}, "", func(r llm.Reply) bool { return r.Text == "a\ufffd" }},
		{"the key in the reply", "openai:m", says{200, asJSON, fmt.Sprintf(`{"id":%q,"model":%q,"choices":[{"message":{"content":"it is %s.","reasoning":"%s","reasoning_details":["%s"],"tool_calls":[{"id":"x","function":{"name":"f","arguments":"{\"k\":\"%s\"}"},"extra_content":"%s"}]},"finish_reason":"stop"}]}`, llmtest.Canary, llmtest.Canary, llmtest.Canary, llmtest.Canary, llmtest.Canary, llmtest.Canary, llmtest.Canary)}, "", func(r llm.Reply) bool { return r.Text == "it is [key]." && json.Valid(r.Carry) }},
		{"too much", "openai:m", says{200, asJSON, `{"choices":[{"message":{"content":"` + strings.Repeat("x", 65<<10) + `"},"finish_reason":"stop"}]}`}, llm.Malformed, nil},
		{"a filtered prompt", "openai:m", says{400, asJSON, `{"error":{"message":"filtered","code":"content_filter"}}`}, "", func(r llm.Reply) bool { return r.Stop == llm.StopFiltered && r.Usage.Estimated }},
		{"a prompt that is filtered once the answer has begun", "openai:m", says{200, asEvents, chunk(`{"error":{"message":"filtered","type":"content_filter","code":400}}`)}, "", func(r llm.Reply) bool { return r.Stop == llm.StopFiltered && r.Usage.Estimated }},
		{"arguments whose bytes are no text", "vllm:m", says{200, asJSON, "{\"choices\":[{\"message\":{\"tool_calls\":[{\"id\":\"a\",\"function\":{\"name\":\"f\",\"arguments\":{\"x\":\"\xff\"}}}]},\"finish_reason\":\"stop\"}]}"}, "", func(r llm.Reply) bool { return r.ToolCalls[0].Arguments == "{\"x\":\"\ufffd\"}" }},
		{"an id that is ours, and one that is missing", "vllm:m", says{200, asJSON, `{"choices":[{"message":{"tool_calls":[{"id":"call_1_1","function":{"name":"f"}},{"function":{"name":"g"}}]},"finish_reason":"stop"}]}`}, "", func(r llm.Reply) bool { return r.ToolCalls[1].ID == "call_1_2" }},
		{"an event of empty lines without an end", "vllm:m", says{200, asEvents, strings.Repeat("data:\n", 400_000)}, llm.Malformed, nil},
		{"deep JSON", "openai:m", says{200, asJSON, strings.Repeat("[", 100_000)}, llm.Unavailable, nil},

		{"an empty message", "anthropic:m", says{200, asJSON, `{}`}, llm.Malformed, nil},
		{"a message without blocks", "anthropic:m", says{200, asJSON, `{"type":"message","content":[],"stop_reason":"end_turn"}`}, "", func(r llm.Reply) bool { return r.Text == "" && r.Stop == llm.StopEnd }},
		{"an error with 200", "anthropic:m", says{200, asJSON, `{"type":"error","error":{"type":"overloaded_error","message":"no"}}`}, llm.Unavailable, nil},
		{"blocks of kinds to come", "anthropic:m", says{200, asJSON, `{"type":"message","content":[{"type":"server_tool_use","id":"x","name":"y","input":{}},{"type":"text","text":"a"}],"stop_reason":"end_turn"}`}, "", func(r llm.Reply) bool { return r.Text == "a" && r.ToolCalls == nil }},
		{"no room left", "anthropic:m", says{200, asJSON, `{"type":"message","content":[{"type":"text","text":"a"}],"stop_reason":"model_context_window_exceeded"}`}, "", func(r llm.Reply) bool { return r.Stop == llm.StopContext }},
		{"a piece of no block", "anthropic:m", says{200, asEvents, chunk(`{"type":"content_block_delta","index":3,"delta":{"type":"text_delta","text":"a"}}`)}, llm.Malformed, nil},
		{"a piece of a block before the first", "anthropic:m", says{200, asEvents, chunk(`{"type":"content_block_delta","index":-1,"delta":{"type":"text_delta","text":"a"}}`)}, llm.Malformed, nil},
		{"a block too far", "anthropic:m", says{200, asEvents, chunk(`{"type":"content_block_start","index":1000000,"content_block":{"type":"text"}}`)}, llm.Malformed, nil},
		{"arguments of a text", "anthropic:m", says{200, asEvents, chunk(`{"type":"content_block_start","index":0,"content_block":{"type":"text"}}`) + chunk(`{"type":"content_block_delta","index":0,"delta":{"partial_json":"{"}}`)}, llm.Malformed, nil},
		{"a stop without a reason", "anthropic:m", says{200, asEvents, chunk(`{"type":"message_start","message":{"usage":{"input_tokens":5}}}`) + chunk(`{"type":"message_stop"}`)}, llm.Truncated, nil},
		{"the cache counts", "anthropic:m", says{200, asJSON, `{"type":"message","content":[{"type":"text","text":"a"}],"stop_reason":"end_turn","usage":{"input_tokens":5,"cache_creation_input_tokens":20,"cache_read_input_tokens":100,"output_tokens":7}}`}, "", func(r llm.Reply) bool { return r.Usage == llm.Usage{In: 125, CachedIn: 100, CacheWrite: 20, Out: 7} }},
		{"thoughts where no tool is called", "anthropic:m", says{200, asJSON, `{"type":"message","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"a"}],"stop_reason":"end_turn"}`}, "", func(r llm.Reply) bool { return r.Carry == nil && r.Reasoning == "hm" }},
		{"thoughts that are hidden", "anthropic:m", says{200, asJSON, `{"type":"message","content":[{"type":"redacted_thinking","data":"xyz"},{"type":"tool_use","id":"a","name":"f","input":{"x":1}}],"stop_reason":"tool_use"}`}, "", func(r llm.Reply) bool {
			return string(r.Carry) == `[{"type":"redacted_thinking","data":"xyz"}]` && r.Stop == llm.StopTools
		}},
	} {
		t.Run(test.model+", "+test.name, func(t *testing.T) {
			m := from(t, test.model, test.s)
			reply, err := m.Generate(t.Context(), llmtest.Ask("hello"))
			llmtest.NoKey(t, reply)
			if err != nil {
				llmtest.NoKey(t, err)
			}
			if kindOf(err) != test.kind || err == nil && !test.check(reply) {
				t.Errorf("kind %q, want %q: %+v, %v", kindOf(err), test.kind, reply, err)
			}
		})
	}
}

// Only what was never a model's answer points at base_url: a reply that is broken
// came from the right place.
func TestHintsOfBrokenReplies(t *testing.T) {
	for _, test := range []struct {
		name, model string
		s           says
		elsewhere   bool
	}{
		{"a page", "openai:m", says{200, "text/html", "\n<!doctype html><html>log in</html>"}, true},
		{"other JSON", "vllm:m", says{200, asJSON, `{"status":"ok"}`}, true},
		{"other JSON", "anthropic:m", says{200, asJSON, `{"status":"ok"}`}, true},
		{"half of a reply", "llamacpp:m", says{200, asJSON, `{"choices":[{"message":{"content":"abc`}, false},
		{"no choices", "llamacpp:m", says{200, asJSON, `{"choices":[]}`}, false},
		{"nonsense in a stream", "llamacpp:m", says{200, asEvents, chunk(`{"choices":[{"delta":{"content":"a"}}]}`) + chunk(`{"choices": [ this is`)}, false},
		{"half of a message", "anthropic:m", says{200, asJSON, `{"type":"message","content":[{"type":"te`}, false},
		{"a reply that breaks off", "vllm:m", says{200, asEvents, chunk(`{"choices":[{"delta":{"content":"a"}}]}`)}, false},
	} {
		_, err := from(t, test.model, test.s).Generate(t.Context(), llmtest.Ask("hello"))
		var e *llm.Error
		if !errors.As(err, &e) || strings.Contains(e.Hint, "base_url") != test.elsewhere || e.Hint == "" {
			t.Errorf("%s: %s: %v, hint %q", test.model, test.name, err, e.Hint)
		}
	}
}

// stays answers every request with this and leaves the connection open.
type stays struct{ body string }

func (s stays) RoundTrip(r *http.Request) (*http.Response, error) {
	in, out := io.Pipe()
	go func() { _, _ = io.WriteString(out, s.body) }()
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {asEvents}}, Body: in, Request: r}, nil
}

// A reply that is whole is not waited for until its time is up.
func TestAConnectionThatStaysOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := llm.Open("vllm:m", llm.Options{HTTP: stays{"data: {\"choices\":[{\"delta\":{\"content\":\"yes\"},\"finish_reason\":\"stop\"}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2}}\n\n"}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		began := time.Now()
		reply, err := m.Generate(ctx, llmtest.Ask("hello"))
		if took := time.Since(began); err != nil || reply.Text != "yes" || reply.Usage != (llm.Usage{In: 5, Out: 2}) || took > time.Minute {
			t.Errorf("%+v, %v after %v", reply, err, took)
		}
	})
}

// What is cut to a length is cut after the key was taken out.
func TestHalfAKey(t *testing.T) {
	for n := 270; n <= 300; n++ {
		for _, body := range []string{fmt.Sprintf(`{"error":{"message":"%s%s"}}`, strings.Repeat("x", n), llmtest.Canary), strings.Repeat("x", n) + llmtest.Canary} {
			_, err := from(t, "openai:m", says{401, asJSON, body}).Generate(t.Context(), llmtest.Ask("hello"))
			if kindOf(err) != llm.BadKey || strings.Contains(fmt.Sprint(err), llmtest.Canary[:3]) {
				t.Errorf("after %d letters: %v", n, err)
			}
		}
	}
}

func TestErrorBodies(t *testing.T) {
	for _, test := range []struct {
		status int
		body   string
		kind   llm.Kind
		after  time.Duration
		text   string
	}{
		{429, `[{"error":{"code":429,"message":"You exceeded your current quota, please check your plan and billing details. Please retry in 34.5s.","status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"34.5s"}]}}]`, llm.RateLimited, 34500 * time.Millisecond, "HTTP 429"},
		{400, `[{"error":{"code":400,"message":"API key not valid.","status":"INVALID_ARGUMENT","details":[{"reason":"API_KEY_INVALID"}]}}]`, llm.BadKey, 0, ""},
		{402, `{"error":{"message":"Insufficient Balance","type":"unknown_error"}}`, llm.Quota, 0, "Insufficient Balance"},
		{400, `{"object":"error","message":"This model's maximum context length is 4096 tokens. However, you requested 5000","type":"BadRequestError","code":400}`, llm.TooLong, 0, ""},
		{404, `{"object":"error","message":"The model does not exist.","code":404}`, llm.UnknownModel, 0, `"m"`},
		{404, "404 page not found", llm.UnknownModel, 0, "404 page not found"},
		{400, `{"error":"model 'x' not found"}`, llm.UnknownModel, 0, "model 'x' not found"},
		{400, `{"error":"tool x not found"}`, llm.BadRequest, 0, ""},
		{422, `{"detail":[{"loc":["body"],"msg":"field required"}]}`, llm.BadRequest, 0, ""},
		{400, `{"error":{"message":"Unsupported value: 'temperature' does not support 0.2 with this model.","param":"temperature"}}`, llm.BadRequest, 0, "temperature"},
		{500, `{"error":null}`, llm.Unavailable, 0, "the server failed (HTTP 500)"},
		{503, "", llm.Unavailable, 0, "(HTTP 503)"},
		{408, `{}`, llm.Unavailable, 0, ""},
		{413, `too large`, llm.TooLong, 0, ""},
		{302, ``, llm.BadRequest, 0, "elsewhere"},
		{418, `{"message":"line one\nline two\u0007` + strings.Repeat("x", 10_000) + `"}`, llm.BadRequest, 0, "line one line two xxx"},
	} {
		m := from(t, "vllm:m", says{test.status, asJSON, test.body})
		_, err := m.Generate(t.Context(), llmtest.Ask("hello"))
		var e *llm.Error
		if !errors.As(err, &e) || e.Kind != test.kind || e.RetryAfter != test.after || e.Status != test.status || !strings.Contains(e.Text, test.text) || len(e.Text) > 500 {
			t.Errorf("%d %.60s: %+v", test.status, test.body, e)
		}
	}
}

// Addresses where nobody answers are told apart from servers that fail.
func TestUnreachable(t *testing.T) {
	closed := "http://" + llmtest.Nobody(t) + "/v1"
	tls := httptest.NewUnstartedServer(http.NotFoundHandler())
	tls.Config.ErrorLog = log.New(io.Discard, "", 0)
	tls.StartTLS()
	defer tls.Close()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	base := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		if strings.HasPrefix(address, "no-such-host.invalid:") { // no test asks the network
			return nil, &net.OpError{Op: "dial", Net: network, Err: &net.DNSError{Err: "no such host", Name: "no-such-host.invalid", IsNotFound: true}}
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
	defer base.CloseIdleConnections()
	for _, test := range []struct{ url, hint string }{
		{closed, "check base_url, and that the server runs"},
		{"http://no-such-host.invalid/v1", "check base_url and the network"},
		{tls.URL + "/v1", "certificates"},
		{strings.Replace(plain.URL, "http:", "https:", 1) + "/v1", "begin with http://"},
	} {
		m, err := llm.Open("mine:m", llm.Options{BaseURL: test.url, HTTP: base})
		if err != nil {
			t.Fatal(err)
		}
		_, err = m.Generate(t.Context(), llmtest.Ask("hello"))
		var e *llm.Error
		if !errors.As(err, &e) || e.Kind != llm.Unreachable || !strings.Contains(e.Hint, test.hint) || !e.Temporary() {
			t.Errorf("%s: %+v", test.url, e)
		}
	}
}

// The key is in nothing that the whole stack says, records or books, however a
// call ends.
func TestNoKeyAnywhere(t *testing.T) {
	answers := []llmtest.Answer{{Text: "the key is " + llmtest.Canary}, {Text: "x", Reasoning: llmtest.Canary}}
	for _, p := range []llmtest.Problem{
		llmtest.WrongKey, llmtest.NoRight, llmtest.NoModel, llmtest.TooMany, llmtest.NoMoney, llmtest.Overloaded,
		llmtest.Broken, llmtest.PromptTooLong, llmtest.BadField, llmtest.Page, llmtest.Moved,
	} {
		answers = append(answers, llmtest.Answer{Problem: p})
	}
	for _, f := range []llmtest.Fault{
		llmtest.Cut, llmtest.NoStop, llmtest.Reset, llmtest.Refused, llmtest.Garbage, llmtest.Endless, llmtest.LongLine, llmtest.InStream,
	} {
		answers = append(answers, llmtest.Answer{Text: llmtest.Canary, Fault: f})
	}
	for _, d := range doubles {
		s := d.start(t)
		o := s.Options()
		o.Attempts, o.MaxReplyBytes = 1, 64<<10
		journal, ledger := &llmtest.Journal{}, &llmtest.Ledger{}
		m, err := llm.New(d.model, o, llm.Services{Journal: journal, Budget: llm.NewBudget(llm.Allowances{}, nil, ledger, nil)})
		if err != nil {
			t.Fatal(err)
		}
		for i, a := range answers {
			s.Say(a)
			reply, err := m.Generate(t.Context(), keyed("hello", llm.Key{Run: 1, Seq: i}))
			llmtest.NoKey(t, reply)
			if err != nil {
				llmtest.NoKey(t, err)
			}
			if (err == nil) != (i < 2) {
				t.Errorf("%s: answer %d: %v", d.model, i, err)
			}
		}
		llmtest.NoKey(t, m)
		llmtest.NoKey(t, open(t, d.model, s, nil))
		llmtest.NoKey(t, journal.Records())
		llmtest.NoKey(t, ledger.Charges())
		if len(ledger.Charges()) != len(answers) || len(journal.Records()) != 3 { // a prompt that is too long is recorded
			t.Errorf("%d charges, %d records", len(ledger.Charges()), len(journal.Records()))
		}
	}
}

// FuzzReply feeds both protocols, streamed and whole: whatever comes, there is a
// reply that has ended and can be recorded, or an error of a kind.
func FuzzReply(f *testing.F) {
	for _, seed := range []string{
		`{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}`,
		"data: {\"choices\":[{\"delta\":{\"content\":\"a\",\"tool_calls\":[{\"index\":0,\"id\":\"x\",\"function\":{\"name\":\"f\",\"arguments\":\"{\"}}]},\"finish_reason\":\"tool_calls\"}]}\n\ndata: [DONE]\n\n",
		"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":3}}}\n\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"f\",\"input\":{}}}\n\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"partial_json\":\"{\"}}\n\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"tool_use\"}}\n\n",
		`{"type":"message","content":[{"type":"thinking","thinking":"a","signature":"b"},{"type":"tool_use","input":[]}],"stop_reason":"tool_use"}`,
		`{"error":{"code":429}}`, "data:\n\ndata: [", "\r\n\r\n",
	} {
		f.Add(seed, uint8(0))
		f.Add(seed, uint8(3))
	}
	f.Fuzz(func(t *testing.T, body string, how uint8) {
		name, kind := "vllm:m", asJSON
		if how&1 != 0 {
			kind = asEvents
		}
		if how&2 != 0 {
			name = "anthropic:m"
		}
		r := llmtest.Ask("hello")
		if how&4 != 0 {
			r.Schema = &llm.Schema{Name: "f", Schema: json.RawMessage(`{"type":"object"}`)}
		}
		reply, err := from(t, name, says{200, kind, body}).Generate(t.Context(), r)
		checkAnswer(t, reply, err)
		if err != nil {
			return
		}
		// The turn can be said again, and the reply recorded.
		r.Messages = append(r.Messages, reply.Message())
		r.Digest(name)
		if _, err := from(t, name, says{200, kind, body}).Generate(t.Context(), r); err != nil && kindOf(err) == llm.BadRequest {
			t.Errorf("the turn cannot be sent back: %v", err)
		}
	})
}

// FuzzErrorBody feeds what servers write about failures.
func FuzzErrorBody(f *testing.F) {
	for _, seed := range []string{
		`{"error":{"message":"no","code":"x","type":"y","param":"z"}}`, `[{"error":{"code":429,"details":[{"retryDelay":"3s"}]}}]`,
		`{"error":"no"}`, `{"message":7}`, "<html>", "", `{"error":{"details":[{"retryDelay":"-999999h"}]}}`,
	} {
		f.Add(seed, 429)
	}
	f.Fuzz(func(t *testing.T, body string, status int) {
		if status < 201 || status > 999 {
			return
		}
		reply, err := from(t, "openai:m", says{status, asJSON, body}).Generate(t.Context(), llmtest.Ask("hello"))
		checkAnswer(t, reply, err)
		var e *llm.Error
		if errors.As(err, &e) && (status >= 300 && e.Status != status || e.RetryAfter < 0 || e.RetryAfter > 24*time.Hour) {
			t.Errorf("%+v", e)
		}
	})
}

func checkAnswer(t *testing.T, reply llm.Reply, err error) {
	t.Helper()
	if err != nil {
		var e *llm.Error
		if !errors.As(err, &e) || e.Kind == "" || e.Text == "" || strings.ContainsAny(e.Text, "\n\r\x00") || len(e.Text) > 4*400 {
			t.Errorf("%#v", err)
		}
		return
	}
	if reply.Stop == "" || reply.Usage.In < 0 || reply.Usage.Out < 0 || reply.Usage.CachedIn > reply.Usage.In {
		t.Errorf("%+v", reply)
	}
	seen := make(map[string]bool)
	for _, c := range reply.ToolCalls {
		if c.ID == "" || seen[c.ID] {
			t.Errorf("calls %+v", reply.ToolCalls)
		}
		seen[c.ID] = true
	}
	b, err := json.Marshal(reply)
	if err != nil {
		t.Fatal(err)
	}
	var again llm.Reply
	if err := json.Unmarshal(b, &again); err != nil || again.Text != reply.Text {
		t.Errorf("a record of it differs: %v", err)
	}
}
