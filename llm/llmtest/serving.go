package llmtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright/llm"
)

// Serving is a server of open models, as it answers what others do not: how many
// tokens a prompt has, whether the model is shown tools, and which tokens it took.
type Serving struct {
	Form Form
	// HidesTools: tools are taken, and the model is not shown them.
	HidesTools bool
	// RefusesTools: requests with tools fail with the form's own words.
	RefusesTools bool
	// CountsNothing: there is no usage.
	CountsNothing bool
	// Context is that of its model; the zero value is one without a bound.
	Context Context
}

// Form is whose answers a server's are like.
type Form string

// The forms: those that have the ids of tokens, each in its own way, and two that
// have none.
const (
	VLLM         Form = "vLLM"
	OldVLLM      Form = "vLLM before token_ids" // ids as texts of logprobs
	SGLang       Form = "SGLang"
	OldSGLang    Form = "SGLang before token_ids" // ids in meta_info
	LlamaCPP     Form = "llama.cpp"
	Ollama       Form = "Ollama"
	Transformers Form = "transformers serve"
)

// Tokens are those of an answer, for servers that tell them.
type Tokens struct {
	Prompt, Reply []int
	LogProbs      []float64
}

// NewServing starts such a server.
func NewServing(t testing.TB, s Serving) *Server {
	server := newServer(t, &serving{chat{open: true}, s}, "/v1")
	server.context = s.Context
	return server
}

type serving struct {
	chat
	Serving
}

// noTools is what each form says where it takes no tools.
var noTools = map[Form]string{
	VLLM: `"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set`, LlamaCPP: "tools param requires --jinja flag",
	Ollama: "registry.ollama.ai/library/m:latest does not support tools",
}

func (s *serving) check(body object) (wrong, last string) {
	if len(list(body, "tools")) > 0 && s.RefusesTools {
		return noTools[s.Form], ""
	}
	_, ids := body["return_token_ids"]
	_, meta := body["return_meta_info"]
	switch stream, _ := body["stream"].(bool); {
	case s.Form == SGLang && stream && ids:
		return "return_token_ids is not supported with streaming on /v1/chat/completions. Please set stream=false when using return_token_ids=true.", ""
	case s.Form == Transformers && (ids || meta):
		return "Unexpected fields in the request: {'return_token_ids'}", ""
	}
	return s.chat.check(body)
}

// obey counts the prompt, and keeps what the request asks for.
func (s *serving) obey(body object, a Answer) Answer {
	a.NoUsage = a.NoUsage || s.CountsNothing
	if a.Usage == nil {
		shown := textOf(body["messages"])
		if tools, ok := body["tools"]; ok && !s.HidesTools {
			shown += textOf(tools)
		}
		out := int64(max(len(a.Text)/4, 1))
		if a.Tokens != nil {
			out = int64(len(a.Tokens.Reply))
		}
		a.Usage = &llm.Usage{In: int64(len(shown) / 4), Out: out}
	}
	yes := func(key string) bool { v, _ := body[key].(bool); return v }
	if a.Tokens != nil {
		a.asked = slices.DeleteFunc([]string{"logprobs", "return_token_ids", "return_tokens_as_token_ids", "return_prompt_token_ids", "return_meta_info"},
			func(key string) bool { return !yes(key) })
	}
	return a
}

func (s *serving) whole(a Answer) string {
	choice := object{"index": 0, "message": s.message(a), "finish_reason": s.finish(a)}
	v := object{"id": "chatcmpl-1", "object": "chat.completion", "model": "m-2026-01-01", "choices": []object{choice}}
	if !a.NoUsage {
		v["usage"] = s.usage(a)
	}
	asked := func(key string) bool { return slices.Contains(a.asked, key) }
	t := a.Tokens
	if t == nil {
		return textOf(v)
	}
	var content []object
	for i, p := range t.LogProbs {
		c := object{"token": fmt.Sprint("t", t.Reply[i]), "logprob": p, "bytes": []int{116}, "top_logprobs": []object{}}
		switch {
		case s.Form == LlamaCPP:
			c["id"] = t.Reply[i]
		case (s.Form == VLLM || s.Form == OldVLLM) && asked("return_tokens_as_token_ids"):
			c["token"] = fmt.Sprint("token_id:", t.Reply[i])
		}
		content = append(content, c)
	}
	if asked("logprobs") && s.Form != Transformers {
		choice["logprobs"] = object{"content": content}
	}
	switch {
	case s.Form == VLLM && asked("return_token_ids"):
		v["prompt_token_ids"], choice["token_ids"] = t.Prompt, t.Reply
	case s.Form == SGLang && asked("return_token_ids"):
		choice["prompt_token_ids"], choice["token_ids"] = t.Prompt, t.Reply
	}
	if strings.HasPrefix(string(s.Form), "SGLang") && asked("return_prompt_token_ids") {
		choice["prompt_token_ids"] = t.Prompt
	}
	if strings.HasPrefix(string(s.Form), "SGLang") && asked("return_meta_info") && asked("logprobs") {
		var triples [][]any
		for i, p := range t.LogProbs {
			triples = append(triples, []any{p, t.Reply[i], nil})
		}
		choice["meta_info"] = object{"output_token_logprobs": triples, "completion_tokens": len(t.Reply)}
	}
	return textOf(v)
}
