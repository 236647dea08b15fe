package llmtest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright/llm"
)

// NewOpenAI starts a server that speaks OpenAI's chat completions.
func NewOpenAI(t testing.TB) *Server { return newServer(t, chat{}, "/v1") }

// NewGoogle starts a server that speaks them as Google does: no index in the
// pieces of a call, a signature on each call that must come back with it, errors
// in a list, reasoning counted in the total alone.
func NewGoogle(t testing.TB) *Server { return newServer(t, chat{google: true}, "/v1beta/openai") }

// NewCompatible starts one that speaks them as servers of open models do:
// max_tokens bounds a reply, reasoning is shown, no key is refused.
func NewCompatible(t testing.TB) *Server { return newServer(t, chat{open: true}, "/v1") }

// NewOpenRouter starts one that speaks them as OpenRouter does before models of
// Anthropic's: marks for the cache stand in parts of a content, and what was written
// to it is counted.
func NewOpenRouter(t testing.TB) *Server {
	return newServer(t, chat{open: true, router: true}, "/api/v1")
}

type chat struct{ google, open, router bool }

func (c chat) path() string { return "/chat/completions" }

func (c chat) signed(h http.Header) bool { return h.Get("Authorization") == "Bearer "+Canary }

func (c chat) check(body object) (wrong, last string) {
	known := []string{
		"model", "messages", "temperature", "top_p", "stream", "stream_options", "stop", "seed", "tools", "tool_choice",
		"response_format", "reasoning_effort", "max_tokens", "max_completion_tokens", "logprobs",
	}
	if c.open {
		known = append(known, "return_token_ids", "return_tokens_as_token_ids", "return_prompt_token_ids", "return_meta_info", "top_logprobs")
	}
	if key := unknown(body, known...); key != "" {
		return "unknown argument: " + key, ""
	}
	model, _ := body["model"].(string)
	_, oldMax := body["max_tokens"]
	_, newMax := body["max_completion_tokens"]
	_, temperature := body["temperature"]
	_, seed := body["seed"]
	reasons := strings.HasPrefix(model, "gpt-5") || strings.HasPrefix(model, "o3")
	switch {
	case model == "":
		return "you must provide a model parameter", ""
	case oldMax && newMax:
		return "max_tokens and max_completion_tokens cannot both be set", ""
	case (c.google || c.open) && !oldMax:
		return "max_tokens is missing", ""
	case !c.google && !c.open && reasons && oldMax:
		return "Unsupported parameter: 'max_tokens' is not supported with this model.", ""
	case reasons && temperature:
		return "Unsupported value: 'temperature' does not support this value with this model.", ""
	case c.google && seed:
		return "Unknown name \"seed\": Cannot find field.", ""
	}
	messages := list(body, "messages")
	if len(messages) == 0 {
		return "[] is too short - 'messages'", ""
	}
	if c.router {
		if wrong := wrongMarks(body); wrong != "" {
			return wrong, ""
		}
	}
	open := make(map[string]bool)
	for _, m := range messages {
		if _, ok := m["cache_control"]; ok {
			return "cache_control stands beside a content, not in it", ""
		}
		for _, part := range list(m, "content") {
			if _, marked := part["cache_control"]; part["type"] != "text" || marked && !c.router {
				return "a part of a content is not what it can be", ""
			}
		}
		for _, call := range list(m, "tool_calls") {
			id, _ := call["id"].(string)
			f, _ := call["function"].(object)
			name, _ := f["name"].(string)
			arguments, isString := f["arguments"].(string)
			switch {
			case id == "" || call["type"] != "function":
				return "a tool call without id or type", ""
			case !callName.MatchString(name):
				return "Invalid 'tool_calls[0].function.name': string does not match pattern '^[a-zA-Z0-9_-]+$'", ""
			case !isString || !json.Valid([]byte(arguments)):
				return "arguments of a tool call are no JSON", ""
			case c.google && call["extra_content"] == nil:
				return "Function call is missing a thought_signature in functionCall parts.", ""
			}
			open[id] = true
		}
		if id, _ := m["tool_call_id"].(string); m["role"] == "tool" {
			if !open[id] {
				return "messages with role 'tool' must be a response to a message before it with 'tool_calls'", ""
			}
			delete(open, id)
		}
		last, _ = m["content"].(string)
		for _, part := range list(m, "content") {
			text, _ := part["text"].(string)
			last += text
		}
	}
	if len(open) > 0 {
		return "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'", ""
	}
	return "", last
}

func (c chat) obey(_ object, a Answer) Answer { return a }

func (c chat) problem(p Problem, text string) (int, string) {
	status, code, kind, message := http.StatusBadRequest, "", "invalid_request_error", text
	switch p {
	case WrongKey:
		status, code, message = http.StatusUnauthorized, "invalid_api_key", "Incorrect API key provided: "+Canary
	case NoRight:
		status, message = http.StatusForbidden, "Project does not have access to it"
	case NoModel:
		status, code, message = http.StatusNotFound, "model_not_found", "The model `m` does not exist"
	case TooMany:
		status, code, kind, message = http.StatusTooManyRequests, "rate_limit_exceeded", "tokens", "Rate limit reached for m"
	case NoMoney:
		status, code, kind, message = http.StatusTooManyRequests, "insufficient_quota", "insufficient_quota", "You exceeded your current quota, please check your plan and billing details."
	case Overloaded:
		status, kind, message = http.StatusServiceUnavailable, "server_error", "The engine is currently overloaded"
	case Broken:
		status, kind, message = http.StatusInternalServerError, "server_error", "The server had an error; the key was "+Canary
	case PromptTooLong:
		code, message = "context_length_exceeded", "This model's maximum context length is 8192 tokens."
	}
	e := object{"error": object{"message": message, "type": kind, "param": nil, "code": code}}
	if c.google {
		list := []object{{"error": object{"code": status, "message": message, "status": strings.ToUpper(kind)}}}
		if p == WrongKey {
			status = http.StatusBadRequest
			list[0]["error"] = object{"code": status, "message": "API key not valid. Please pass a valid API key.", "status": "INVALID_ARGUMENT"}
		}
		return status, textOf(list)
	}
	return status, textOf(e)
}

func (c chat) finish(a Answer) any {
	if a.Fault == NoStop {
		return nil
	}
	switch a.Stop {
	case llm.StopLength:
		return "length"
	case llm.StopFiltered:
		return "content_filter"
	}
	if len(a.Tools) > 0 && !c.google { // which says "stop"
		return "tool_calls"
	}
	return "stop"
}

func (c chat) usage(a Answer) object {
	u := a.usage()
	out := u.Out
	if c.google {
		out -= u.Reasoning
	}
	in := object{"cached_tokens": u.CachedIn}
	if c.router {
		in["cache_write_tokens"] = u.CacheWrite
	}
	return object{
		"prompt_tokens": u.In, "completion_tokens": out, "total_tokens": u.In + u.Out,
		"prompt_tokens_details":     in,
		"completion_tokens_details": object{"reasoning_tokens": u.Reasoning},
	}
}

// calls are the tool calls of a reply; pieces of them have an index each.
func (c chat) calls(a Answer, pieces bool) []object {
	var out []object
	for i, t := range a.Tools {
		call := object{"type": "function", "function": object{"name": t.Name, "arguments": t.Arguments}}
		if t.ID != "" {
			call["id"] = t.ID
		}
		if pieces && !c.google {
			call["index"] = i
		}
		if c.google {
			call["extra_content"] = object{"google": object{"thought_signature": fmt.Sprint("signature ", i)}}
		}
		out = append(out, call)
	}
	return out
}

// message is a reply's, in one piece.
func (c chat) message(a Answer) object {
	m := object{"role": "assistant", "content": a.Text}
	if a.Stop == llm.StopRefused {
		m["content"], m["refusal"] = nil, a.Text
	}
	if a.Reasoning != "" {
		m["reasoning_content"] = a.Reasoning
	}
	if len(a.Tools) > 0 {
		m["tool_calls"] = c.calls(a, false)
	}
	return m
}

func (c chat) whole(a Answer) string {
	v := object{
		"id": "chatcmpl-1", "object": "chat.completion", "model": "m-2026-01-01",
		"choices": []object{{"index": 0, "message": c.message(a), "finish_reason": c.finish(a)}},
	}
	if !a.NoUsage {
		v["usage"] = c.usage(a)
	}
	return textOf(v)
}

func (c chat) events(a Answer) []string {
	var out []string
	add := func(delta object, finish any) {
		out = append(out, event("", object{
			"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m-2026-01-01",
			"choices": []object{{"index": 0, "delta": delta, "finish_reason": finish}},
		}))
	}
	out = append(out, ": OPENROUTER PROCESSING\n\n")
	add(object{"role": "assistant", "content": ""}, nil)
	for _, p := range pieces(a.Reasoning, a.Pieces) {
		add(object{"reasoning_content": p}, nil)
	}
	for _, p := range pieces(a.Text, a.Pieces) {
		if a.Stop == llm.StopRefused {
			add(object{"refusal": p}, nil)
		} else {
			add(object{"content": p}, nil)
		}
	}
	for i, call := range c.calls(a, true) {
		if c.google {
			add(object{"tool_calls": []object{call}}, nil)
			continue
		}
		// The name first, then the arguments in two pieces.
		f := call["function"].(object)
		arguments := f["arguments"].(string)
		f["arguments"] = ""
		add(object{"tool_calls": []object{call}}, nil)
		for _, p := range pieces(arguments, 2) {
			add(object{"tool_calls": []object{{"index": i, "function": object{"arguments": p}}}}, nil)
		}
	}
	add(object{}, c.finish(a))
	if !a.NoUsage {
		out = append(out, event("", object{"id": "chatcmpl-1", "choices": []object{}, "usage": c.usage(a)}))
	}
	return append(out, "data: [DONE]\n\n")
}

func (c chat) more() string {
	return event("", object{"choices": []object{{"index": 0, "delta": object{"content": strings.Repeat("again ", 100)}}}})
}

func (c chat) inStream() string {
	return event("", object{"error": object{"code": 502, "message": "Provider disconnected; the key was " + Canary}})
}
