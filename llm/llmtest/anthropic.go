package llmtest

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright/llm"
)

// NewAnthropic starts a server that speaks Anthropic's messages.
func NewAnthropic(t testing.TB) *Server { return newServer(t, messages{}, "/v1") }

type messages struct{}

func (messages) path() string { return "/messages" }

func (messages) signed(h http.Header) bool {
	return h.Get("X-Api-Key") == Canary && h.Get("Anthropic-Version") != ""
}

func (messages) check(body object) (wrong, last string) {
	if key := unknown(body, "model", "messages", "system", "max_tokens", "temperature", "top_p", "stop_sequences", "stream", "tools", "tool_choice", "thinking", "output_config"); key != "" {
		return key + ": Extra inputs are not permitted", ""
	}
	maxTokens, _ := body["max_tokens"].(float64)
	temperature, hot := body["temperature"].(float64)
	_, nucleus := body["top_p"]
	thinking, thinks := body["thinking"].(object)
	choice, _ := body["tool_choice"].(object)
	model, _ := body["model"].(string)
	later := strings.Contains(model, "-5-5") // as all are since 4.7
	output, outputs := body["output_config"].(object)
	format, formatted := output["format"].(object)
	budget, budgeted := thinking["budget_tokens"].(float64)
	switch {
	case later && (hot || nucleus):
		return "`temperature` is deprecated for this model.", ""
	case later && budgeted:
		return "thinking.type: \"enabled\" is not supported for this model. Use \"adaptive\" and output_config.effort.", ""
	case later && choice["type"] == "tool":
		return "Thinking may not be enabled when tool_choice forces tool use.", ""
	case !later && outputs:
		return "output_config: Extra inputs are not permitted", ""
	case formatted && format["schema"].(object)["additionalProperties"] != false:
		return "output_config.format.schema: For 'object' type, 'additionalProperties' must be explicitly set to false", ""
	case hot && nucleus:
		return "`temperature` and `top_p` cannot both be specified for this model.", ""
	case thinks && choice["type"] == "tool":
		return "Thinking may not be enabled when tool_choice forces tool use.", ""
	case maxTokens < 1:
		return "max_tokens: Field required", ""
	case temperature > 1:
		return "temperature: range: 0..1", ""
	case budgeted && hot:
		return "`temperature` may only be set to 1 when thinking is enabled.", ""
	case budget >= maxTokens:
		return "`max_tokens` must be greater than `thinking.budget_tokens`", ""
	}
	if wrong := wrongMarks(body); wrong != "" {
		return wrong, ""
	}
	turns := list(body, "messages")
	if len(turns) == 0 || turns[0]["role"] != "user" {
		return "messages: first message must use the \"user\" role", ""
	}
	open := make(map[string]bool)
	role := ""
	for _, m := range turns {
		if m["role"] == role {
			return "messages: roles must alternate", ""
		}
		role, _ = m["role"].(string)
		results := len(open)
		for i, b := range list(m, "content") {
			switch b["type"] {
			case "text":
				if last, _ = b["text"].(string); strings.TrimSpace(last) == "" {
					return "messages: text content blocks must be non-empty", ""
				}
			case "thinking":
				if i != 0 || b["signature"] == "" {
					return "messages: Expected `thinking` to come first, with its signature", ""
				}
			case "tool_use":
				if _, ok := b["input"].(object); !ok {
					return "tool_use.input: Input should be a valid dictionary", ""
				}
				if name, _ := b["name"].(string); !callName.MatchString(name) {
					return "tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'", ""
				}
				open[b["id"].(string)] = true
			case "tool_result":
				id, _ := b["tool_use_id"].(string)
				if !open[id] {
					return "unexpected `tool_use_id` found in `tool_result` blocks: " + id, ""
				}
				delete(open, id)
				last, _ = b["content"].(string)
			}
		}
		if results > 0 && len(open) > 0 {
			return "`tool_use` ids were found without `tool_result` blocks immediately after", ""
		}
	}
	return "", last
}

// wrongMarks says what is wrong with the places that are marked for the cache.
func wrongMarks(body object) string {
	marked := 0
	for _, m := range append([]object{{"content": body["system"]}}, list(body, "messages")...) {
		for _, b := range list(m, "content") {
			control, ok := b["cache_control"].(object)
			switch {
			case !ok:
				continue
			case control["type"] != "ephemeral":
				return "cache_control.type: Input should be 'ephemeral'"
			case b["type"] == "thinking" || b["type"] == "redacted_thinking":
				return "cache_control cannot be set for thinking blocks"
			case b["type"] == "text" && b["text"] == "":
				return "cache_control cannot be set for empty text blocks"
			}
			marked++
		}
	}
	if marked > 4 {
		return fmt.Sprintf("A maximum of 4 blocks with cache_control may be provided. Found %d.", marked)
	}
	return ""
}

// obey has the model call the tool that it must call.
func (messages) obey(body object, a Answer) Answer {
	choice, _ := body["tool_choice"].(object)
	if name, ok := choice["name"].(string); ok && choice["type"] == "tool" && a.Fault == "" {
		a.Tools, a.Text = []llm.ToolCall{{ID: "forced", Name: name, Arguments: a.Text}}, ""
	}
	return a
}

func (messages) problem(p Problem, text string) (int, string) {
	status, kind, message := http.StatusBadRequest, "invalid_request_error", text
	switch p {
	case WrongKey:
		status, kind, message = http.StatusUnauthorized, "authentication_error", "invalid x-api-key "+Canary
	case NoRight:
		status, kind, message = http.StatusForbidden, "permission_error", "Your API key does not have permission to use the specified resource"
	case NoModel:
		status, kind, message = http.StatusNotFound, "not_found_error", "model: m"
	case TooMany:
		status, kind, message = http.StatusTooManyRequests, "rate_limit_error", "Number of request tokens has exceeded your per-minute rate limit"
	case NoMoney:
		message = "Your credit balance is too low to access the Anthropic API."
	case Overloaded:
		status, kind, message = 529, "overloaded_error", "Overloaded"
	case Broken:
		status, kind, message = http.StatusInternalServerError, "api_error", "Internal server error; the key was "+Canary
	case PromptTooLong:
		message = "prompt is too long: 210000 tokens > 200000 maximum"
	}
	return status, textOf(object{"type": "error", "error": object{"type": kind, "message": message}, "request_id": "req-1"})
}

func (messages) stop(a Answer) any {
	if a.Fault == NoStop {
		return nil
	}
	switch a.Stop {
	case llm.StopLength:
		return "max_tokens"
	case llm.StopRefused, llm.StopFiltered:
		return "refusal"
	}
	if len(a.Tools) > 0 {
		return "tool_use"
	}
	return "end_turn"
}

func (messages) usage(a Answer) object {
	u := a.usage()
	return object{
		"input_tokens": u.In - u.CachedIn - u.CacheWrite, "cache_read_input_tokens": u.CachedIn, "cache_creation_input_tokens": u.CacheWrite, "output_tokens": u.Out,
	}
}

// blocks are the content of a reply. Text comes in two blocks, as it does
// between calls.
func (messages) blocks(a Answer) []object {
	var out []object
	if a.Reasoning != "" {
		out = append(out, object{"type": "thinking", "thinking": a.Reasoning, "signature": "signature"})
	}
	for _, p := range pieces(a.Text, 2) {
		out = append(out, object{"type": "text", "text": p})
	}
	for _, t := range a.Tools {
		out = append(out, object{"type": "tool_use", "id": t.ID, "name": t.Name, "input": raw(t.Arguments)})
	}
	return out
}

func (m messages) whole(a Answer) string {
	v := object{
		"id": "msg_1", "type": "message", "role": "assistant", "model": "m-2026-01-01",
		"content": m.blocks(a), "stop_reason": m.stop(a), "stop_sequence": nil,
	}
	if !a.NoUsage {
		v["usage"] = m.usage(a)
	}
	return textOf(v)
}

func (m messages) events(a Answer) []string {
	start := object{"id": "msg_1", "type": "message", "role": "assistant", "model": "m-2026-01-01", "content": []any{}}
	end := object{"type": "message_delta", "delta": object{"stop_reason": m.stop(a), "stop_sequence": nil}}
	if !a.NoUsage {
		begun := m.usage(a)
		begun["output_tokens"] = 1
		start["usage"] = begun
		end["usage"] = object{"output_tokens": a.usage().Out}
	}
	out := []string{event("message_start", object{"type": "message_start", "message": start}), event("ping", object{"type": "ping"})}
	for i, b := range m.blocks(a) {
		var deltas []object
		switch b["type"] {
		case "thinking":
			for _, p := range pieces(a.Reasoning, a.Pieces) {
				deltas = append(deltas, object{"type": "thinking_delta", "thinking": p})
			}
			deltas = append(deltas, object{"type": "signature_delta", "signature": b["signature"]})
			b["thinking"], b["signature"] = "", ""
		case "text":
			for _, p := range pieces(b["text"].(string), a.Pieces) {
				deltas = append(deltas, object{"type": "text_delta", "text": p})
			}
			b["text"] = ""
		case "tool_use":
			for _, p := range pieces(string(b["input"].(raw)), 2) {
				deltas = append(deltas, object{"type": "input_json_delta", "partial_json": p})
			}
			b["input"] = object{}
		}
		out = append(out, event("content_block_start", object{"type": "content_block_start", "index": i, "content_block": b}))
		for _, d := range deltas {
			out = append(out, event("content_block_delta", object{"type": "content_block_delta", "index": i, "delta": d}))
		}
		out = append(out, event("content_block_stop", object{"type": "content_block_stop", "index": i}))
	}
	return append(out, event("message_delta", end), event("message_stop", object{"type": "message_stop"}))
}

func (messages) more() string {
	return event("content_block_start", object{"type": "ping"}) + event("content_block_delta", object{
		"type": "content_block_delta", "index": 0, "delta": object{"type": "text_delta", "text": strings.Repeat("again ", 100)},
	})
}

func (messages) inStream() string {
	return event("error", object{"type": "error", "error": object{"type": "overloaded_error", "message": "Overloaded; the key was " + Canary}})
}

// raw is arguments as the model wrote them. Within one JSON value they must be
// some themselves.
type raw string

// MarshalJSON implements json.Marshaler.
func (r raw) MarshalJSON() ([]byte, error) { return []byte(r), nil }
