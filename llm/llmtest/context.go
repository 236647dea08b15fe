package llmtest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright/llm"
)

// Context is how a server deals with the length of its model's context. The words and
// the paths are those of the server that it stands for.
type Context struct {
	// Server is "llamacpp", "vllm", "sglang", "ollama", or "" for one that tells nothing.
	Server string
	// Tokens is the length; 0: none.
	Tokens int
	// PerToken is how many bytes a token has; 0: three.
	PerToken float64
	// Parameters are of the Modelfile, and Made is what the model was made for: Ollama's.
	Parameters string
	Made       int
	// Loaded: Ollama has the model in memory, and tells its length.
	Loaded bool
}

// NewContext starts a compatible server with such a context.
func NewContext(t testing.TB, c Context) *Server {
	t.Helper()
	s := NewCompatible(t)
	s.context = c
	return s
}

// Told returns the paths at which the server was asked for its context, in order.
func (s *Server) Told() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.told...)
}

// tell answers what is asked beside calls, and reports whether that was asked.
func (s *Server) tell(w http.ResponseWriter, r *http.Request) bool {
	c := s.context
	var answer any
	switch c.Server + " " + r.Method + " " + r.URL.Path {
	case "llamacpp GET /props":
		answer = object{"default_generation_settings": object{"n_ctx": c.Tokens, "params": object{}}, "total_slots": 4, "model_path": "m.gguf"}
	case "vllm GET /v1/models", "sglang GET /v1/models":
		answer = object{"object": "list", "data": []object{
			{"id": "other", "object": "model", "owned_by": c.Server, "max_model_len": 77},
			{"id": "m", "object": "model", "owned_by": c.Server, "max_model_len": c.Tokens},
			{"id": "adapter", "object": "model", "owned_by": c.Server, "parent": "m", "max_model_len": nil},
		}}
	case "ollama POST /api/show":
		answer = object{"parameters": c.Parameters, "model_info": object{"general.architecture": "llama", "llama.context_length": c.Made}}
	case "ollama GET /api/ps":
		running := []object{{"name": "other:latest", "model": "other:latest", "context_length": 77}}
		if c.Loaded {
			running = append(running, object{"name": "m:latest", "model": "m:latest", "context_length": c.Tokens})
		}
		answer = object{"models": running}
	default:
		return false
	}
	s.mu.Lock()
	s.told = append(s.told, r.URL.Path)
	s.mu.Unlock()
	if !s.protocol.signed(r.Header) {
		s.fail(w, WrongKey, "")
		return true
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, textOf(answer))
	return true
}

// prompt is how many tokens a request has.
func (c Context) prompt(body object) int {
	per := c.PerToken
	if per == 0 {
		per = 3
	}
	size := 0
	for _, key := range []string{"messages", "tools"} {
		if body[key] == nil {
			continue
		}
		for _, item := range list(body, key) {
			size += textBytes(item) + 12
		}
	}
	return int(float64(size) / per)
}

// textBytes is how many bytes the texts of a value have.
func textBytes(v any) int {
	n := 0
	switch v := v.(type) {
	case string:
		n = len(v)
	case object:
		for _, x := range v {
			n += textBytes(x)
		}
	case []any:
		for _, x := range v {
			n += textBytes(x)
		}
	}
	return n
}

// refusal is what a server with this context says to a request that it does not take;
// status 0 where it takes it.
func (c Context) refusal(body object) (status int, text string) {
	if c.Tokens == 0 {
		return 0, ""
	}
	prompt, most := c.prompt(body), 0
	if n, ok := body["max_tokens"].(float64); ok {
		most = int(n)
	}
	e := object{"message": "", "type": "BadRequestError", "code": http.StatusBadRequest}
	switch {
	case c.Server == "llamacpp" && prompt >= c.Tokens:
		e = object{"message": "the request exceeds the available context size, try increasing it", "type": "exceed_context_size_error", "code": http.StatusBadRequest,
			"n_prompt_tokens": prompt, "n_ctx": c.Tokens}
	case c.Server == "vllm" && prompt < c.Tokens && prompt+most > c.Tokens:
		e["message"] = fmt.Sprintf("'max_tokens' or 'max_completion_tokens' is too large: %d. This model's maximum context length is %d tokens and your request has %d input tokens (%d > %d - %d).",
			most, c.Tokens, prompt, most, c.Tokens, prompt)
	case c.Server == "vllm" && prompt >= c.Tokens:
		e["message"] = fmt.Sprintf("This model's maximum context length is %d tokens. However, your request has %d input tokens. Please reduce the length of the input messages.", c.Tokens, prompt)
	case c.Server == "sglang" && prompt >= c.Tokens:
		e["message"] = fmt.Sprintf("The input (%d tokens) is longer than the model's context length (%d tokens).", prompt, c.Tokens)
	case c.Server == "sglang" && prompt+most > c.Tokens:
		e["message"] = fmt.Sprintf("Requested token count exceeds the model's maximum context length of %d tokens. You requested a total of %d tokens: %d tokens from the input messages and %d tokens for the completion.",
			c.Tokens, prompt+most, prompt, most)
	default:
		return 0, ""
	}
	b, err := json.Marshal(object{"error": e})
	if err != nil {
		panic(err) // a test's own value
	}
	return http.StatusBadRequest, string(b)
}

// within makes an answer what fits: it ends where the context or max_tokens does.
func (c Context) within(body object, a Answer) Answer {
	if c.Tokens == 0 || a.Usage != nil {
		return a
	}
	per := c.PerToken
	if per == 0 {
		per = 3
	}
	prompt := min(c.prompt(body), c.Tokens-1) // Ollama cuts one that is longer
	size := len(a.Text) + len(a.Reasoning)
	for _, t := range a.Tools {
		size += len(t.Name) + len(t.Arguments)
	}
	out, room := int(float64(size)/per)+1, c.Tokens-prompt
	if n, ok := body["max_tokens"].(float64); ok {
		room = min(room, int(n))
	}
	if out > room {
		out = room
		a.Stop, a.Tools = llm.StopLength, nil
		a.Text = strings.ToValidUTF8(a.Text[:min(len(a.Text), int(float64(room)*per))], "")
	}
	a.Usage = &llm.Usage{In: int64(prompt), Out: int64(out)}
	return a
}
