package llm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kernelwright/kernelwright"
)

// How a server is asked for the length of its context.
type contextQuestion string

const (
	askProps  contextQuestion = "props"  // llama.cpp: GET /props, beside /v1
	askModels contextQuestion = "models" // vLLM, sglang: GET /v1/models
	askShow   contextQuestion = "show"   // Ollama: POST /api/show, GET /api/ps
)

// contextQuestions are those that a provider's server may answer. One that no name
// here stands for may be any of these servers. Those that are not here are others'
// services: their contexts are long, and they tell of none.
var contextQuestions = map[string][]contextQuestion{
	"llamacpp": {askProps}, "vllm": {askModels}, "sglang": {askModels}, "ollama": {askShow},
}

// Bounds on asking. It comes before the first call of a model, which must not wait
// for a server that does not answer such questions.
const (
	contextTimeout  = 3 * time.Second
	maxContextBytes = 4 << 20
)

// Ollama's own length where neither the model nor the server was given one. It is
// longer where there is much memory of a GPU; the model, once it is loaded, tells.
const ollamaDefault = 4096

// Bounds of what is believed of a server, in tokens.
const (
	leastContext = 128
	mostContext  = 100_000_000
)

// Bounds of bytes to a token, and what a prompt has at least whose count is learned
// from: of a short one most is what the server puts round it.
const (
	leastPerToken  = 1.5
	mostPerToken   = 4.5
	codePerToken   = 3.5 // of code and what is said of it
	learnedPrompts = 100
)

// span is what is known of a model's context. Safe for concurrent use.
type span struct {
	mu       sync.Mutex
	asked    bool    // there is no sense in asking again
	context  int     // tokens; 0: not known
	source   string  // whence
	server   string  // which server it is, where that was seen
	assumed  bool    // by Ollama's default: the loaded model knows better, and is asked once
	loaded   bool    // that was done
	learned  bool    // from a reply that was cut off, which a longer one corrects
	perToken float64 // bytes; 0: nobody has counted
}

// Window implements windowed.
func (m *remote) Window(ctx context.Context, _ Key) (Window, bool, error) {
	return m.window(ctx), false, ctx.Err()
}

// ContextSource says whence the length of a model's context is known: a few words,
// or "".
func ContextSource(m Model) string {
	for m != nil {
		if r, ok := m.(*remote); ok {
			r.span.mu.Lock()
			defer r.span.mu.Unlock()
			return r.span.source
		}
		if r, ok := m.(*recorded); ok {
			m = r.model
			continue
		}
		outer, ok := m.(interface{ Unwrap() Model })
		if !ok {
			return ""
		}
		m = outer.Unwrap()
	}
	return ""
}

// window is what is known now, after the server was asked where that was not done.
func (m *remote) window(ctx context.Context) Window {
	s := &m.span
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.asked && s.context == 0 && m.options.ContextLength > 0 {
		s.asked, s.context, s.source = true, m.options.ContextLength, "the settings"
	}
	if !s.asked {
		m.askContext(ctx, s)
	}
	return Window{Context: s.context, Reply: m.options.MaxTokens, BytesPerToken: s.perToken, server: s.server}
}

// askContext asks the server in each way that it may answer. A server that is not
// there, or not ready, is asked again before the next call; one that answers
// something else is not.
func (m *remote) askContext(ctx context.Context, s *span) {
	questions, known := contextQuestions[m.provider]
	if _, named := providers[m.provider]; !known && !named {
		questions = []contextQuestion{askModels, askProps}
	}
	ctx, cancel := context.WithTimeout(ctx, contextTimeout)
	defer cancel()
	s.asked = true
	for _, q := range questions {
		found, again := m.askHow(ctx, q)
		if again {
			s.asked = false
			return
		}
		if found.context < leastContext || found.context > mostContext {
			continue
		}
		s.context, s.source, s.assumed = found.context, found.source, found.assumed
		if !known {
			s.server = found.server
		}
		m.note("the length of a model's context is known", s)
		return
	}
}

// note tells the log of what is known.
func (m *remote) note(what string, s *span) {
	if m.options.Log != nil {
		m.options.Log.Info(what, "model", m.name, "tokens", s.context, "from", s.source)
	}
}

// told is what a server says of its context.
type toldContext struct {
	context int
	source  string
	server  string
	assumed bool
}

// askHow asks in one way. again says that the server is not there or not ready, or
// that nobody waits any more.
func (m *remote) askHow(ctx context.Context, q contextQuestion) (found toldContext, again bool) {
	base := strings.TrimRight(m.options.BaseURL, "/")
	root := strings.TrimSuffix(base, "/v1")
	switch q {
	case askModels:
		body, again := m.get(ctx, base+"/models", nil)
		return modelsContext(body, m.model), again
	case askProps:
		body, again := m.get(ctx, root+"/props?model="+url.QueryEscape(m.model), nil)
		return propsContext(body), again
	}
	asked, err := json.Marshal(map[string]string{"model": m.model})
	if err != nil {
		return toldContext{}, false
	}
	show, again := m.get(ctx, root+"/api/show", asked)
	if again || show == nil {
		return toldContext{}, again
	}
	loaded, again := m.get(ctx, root+"/api/ps", nil)
	return ollamaContext(show, loaded, m.model), again
}

// get asks one address, with a body by POST. Without an answer of status 200 the
// body is nil.
func (m *remote) get(ctx context.Context, address string, body []byte) (answer []byte, again bool) {
	method := http.MethodGet
	if body != nil {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
	if err != nil {
		return nil, false
	}
	req.Header = http.Header{"Accept": {"application/json"}, "User-Agent": {"kernelwright/" + kernelwright.Version}}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	m.sign(req.Header, m.key())
	resp, err := m.base.RoundTrip(req) // which follows no redirection
	if err != nil {
		return nil, !errors.Is(ctx.Err(), context.DeadlineExceeded)
	}
	defer resp.Body.Close()
	defer context.AfterFunc(ctx, func() { _ = resp.Body.Close() })() // whatever carries it
	if resp.StatusCode != http.StatusOK {
		return nil, resp.StatusCode == http.StatusServiceUnavailable || resp.StatusCode == http.StatusTooManyRequests
	}
	answer, err = io.ReadAll(io.LimitReader(resp.Body, maxContextBytes))
	if err != nil {
		return nil, false
	}
	return answer, false
}

// modelsContext reads vLLM's and sglang's list of models. An adapter has the length
// of the model that it is one of; where nothing has the name, the only model counts.
func modelsContext(body []byte, model string) toldContext {
	var list struct {
		Data []struct {
			ID     string `json:"id"`
			Parent string `json:"parent"`
			Owner  string `json:"owned_by"`
			Length count  `json:"max_model_len"`
		} `json:"data"`
	}
	if json.Unmarshal(body, &list) != nil {
		return toldContext{}
	}
	found := toldContext{source: "its server's /v1/models"}
	for hops := 0; hops < 3 && found.context == 0; hops++ {
		for _, d := range list.Data {
			if d.ID != model && len(list.Data) > 1 {
				continue
			}
			found.context, found.server = int(d.Length), d.Owner
			model = d.Parent
			break
		}
	}
	if found.server != "vllm" && found.server != "sglang" {
		found.server = ""
	}
	return found
}

// propsContext reads llama.cpp's settings: the length of one slot, which is what a
// call has.
func propsContext(body []byte) toldContext {
	var props struct {
		Settings struct {
			Length count `json:"n_ctx"`
		} `json:"default_generation_settings"`
		Length count `json:"n_ctx"` // where servers have it that came before the settings
	}
	if json.Unmarshal(body, &props) != nil {
		return toldContext{}
	}
	return toldContext{context: int(max(props.Settings.Length, props.Length)), source: "its server's /props, of one slot", server: "llamacpp"}
}

// numCtx is the line of a Modelfile's parameters.
var numCtx = regexp.MustCompile(`(?m)^\s*num_ctx\s+(\d{1,9})\s*$`)

// ollamaContext reads what Ollama says of a model. What it gives a call is num_ctx
// of the model's parameters, else what the server was started with, of which only a
// loaded model tells, else its default; never more than the model was made for.
func ollamaContext(show, loaded []byte, model string) toldContext {
	var about struct {
		Parameters string         `json:"parameters"`
		Info       map[string]any `json:"model_info"`
	}
	if json.Unmarshal(show, &about) != nil {
		return toldContext{}
	}
	own := 0 // what the model was made for
	for key, v := range about.Info {
		if n, ok := v.(float64); ok && strings.HasSuffix(key, ".context_length") && n >= leastContext && n < mostContext {
			own = int(n)
		}
	}
	capped := func(n int) int {
		if own > 0 {
			return min(n, own)
		}
		return n
	}
	if set := numCtx.FindStringSubmatch(about.Parameters); set != nil {
		if n, err := strconv.Atoi(set[1]); err == nil {
			return toldContext{context: capped(n), source: "num_ctx of its Modelfile", server: "ollama"}
		}
	}
	var running struct {
		Models []struct {
			Name    string `json:"name"`
			Model   string `json:"model"`
			Context count  `json:"context_length"`
		} `json:"models"`
	}
	if json.Unmarshal(loaded, &running) == nil {
		for _, r := range running.Models {
			for _, name := range []string{r.Name, r.Model} {
				if r.Context > 0 && strings.TrimSuffix(name, ":latest") == strings.TrimSuffix(model, ":latest") {
					return toldContext{context: int(r.Context), source: "what Ollama has loaded it with", server: "ollama"}
				}
			}
		}
	}
	source := "Ollama's default"
	if own > ollamaDefault {
		source = fmt.Sprintf("Ollama's default; the model itself can have %d", own)
	}
	return toldContext{context: capped(ollamaDefault), source: source, server: "ollama", assumed: true}
}

// perToken is how many bytes a token has of a request whose prompt a server counted; 0
// where that says nothing. Whether a model is shown tools and schemas, servers decide:
// where tokens would be longer with them than those of code are, they were not counted.
func perToken(r Request, tokens int) float64 {
	if tokens < learnedPrompts {
		return 0
	}
	per := float64(promptBytes(r)) / float64(tokens)
	if per > codePerToken {
		bare := r
		bare.Tools, bare.Schema = nil, nil
		per = min(per, max(float64(promptBytes(bare))/float64(tokens), bytesPerToken))
	}
	return min(max(math.Floor(per*100)/100, leastPerToken), mostPerToken)
}

// count takes the server's own count of a prompt in: at once where it has more tokens
// than was thought, slowly where it has fewer.
func (s *span) count(per float64) {
	switch {
	case per == 0:
	case s.perToken == 0 || per < s.perToken:
		s.perToken = per
	default:
		s.perToken = math.Round((s.perToken+(per-s.perToken)/4)*100) / 100
	}
}

// learn takes in what an answered call says of the context, and tells a reply that
// the context cut off from one that had all that it was to have.
func (m *remote) learn(c *call) {
	s := &m.span
	s.mu.Lock()
	defer s.mu.Unlock()
	reply, sent := &c.reply, c.maxTokens()
	counted := !reply.Usage.Estimated
	used := int(reply.Usage.In + reply.Usage.Out)
	if counted && (s.context == 0 || int(reply.Usage.In) < s.context-s.context/8) { // else the server may have cut the prompt
		s.count(perToken(c.request, int(reply.Usage.In)))
	}
	if s.assumed && !s.loaded { // it is now
		s.asked, s.loaded = false, true
	}
	if counted && s.learned && used > s.context {
		s.context = used
	}
	if reply.Stop != StopLength && reply.Stop != StopContext {
		return
	}
	early := counted && reply.Usage.Out > 0 && used >= leastContext && int(reply.Usage.Out) < sent-sent/16 && !bareBound(int(reply.Usage.Out))
	switch {
	case reply.Stop == StopContext, // as the server says
		sent < c.wanted(),
		s.context > 0 && used >= s.context-s.context/64,
		early && m.tells():
		reply.Stop = StopContext
	default:
		return
	}
	if early && m.tells() && (s.context == 0 || used < s.context-s.context/64) {
		s.asked, s.context, s.source, s.learned = true, used, "a reply that was cut off there", true
		m.note("the length of a model's context was learned", s)
	}
	if m.options.Log != nil {
		m.options.Log.Warn("the model's context was full before its reply ended", "model", m.name, "prompt", reply.Usage.In, "reply", reply.Usage.Out,
			"hint", longer(m.name, s.server))
	}
}

// tells reports whether a reply that ends early tells of the context: others' services
// have contexts that no prompt here fills, and bounds of their own on replies.
func (m *remote) tells() bool {
	_, own := contextQuestions[m.provider]
	_, named := providers[m.provider]
	return own || !named
}

// bareBound reports whether a number of tokens is one at which somebody may have set
// a bound on replies: where a context is full, prompt and reply make a round number.
func bareBound(out int) bool { return out%256 == 0 }

// refusedAsTooLong takes in what a refusal says of the context. Of one that does not
// say how long it is, two thirds of what was sent are taken for it, and the server is
// asked again.
func (m *remote) refusedAsTooLong(c *call) {
	s := &m.span
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.err.Prompt > 0 {
		s.count(perToken(c.request, c.err.Prompt))
	}
	switch {
	case c.err.Context > 0 && (s.context == 0 || c.err.Context < s.context || s.learned):
		s.asked, s.context, s.source, s.learned = true, c.err.Context, "a refusal", false
		m.note("the length of a model's context was learned", s)
	case c.err.Context == 0:
		if n := c.window.Estimate(c.request) * 2 / 3; s.context == 0 || n < s.context {
			s.context, s.source, s.learned = n, "a refusal that names no length", true
		}
		s.asked = m.options.ContextLength > 0
	}
	c.err.Hint = longer(m.name, s.server)
}

// What servers write about the length of a context, and about that of a prompt.
var (
	saidContext = regexps(`context length (?:is|of)(?: only)? (\d+)`, `context length \(?(\d+)`, `available context size \(?(\d+)`, `context window of (\d+)`,
		`maximum number of tokens allowed \(?(\d+)`, `maximum model length of (\d+)`, `maximum allowed length \(?(\d+)`, `tokens > (\d+) maximum`)
	saidPrompt = regexps(`(\d+) input tokens`, `\((\d+) in the messages`, `(\d+) tokens from the input messages`, `(?:the input|input length|request|requested tokens) \((\d+)`,
		`prompt is too long: (\d+) tokens`, `messages resulted in (\d+) tokens`, `input token count \(?(\d+)`, `prompt \((?:total )?length (\d+)\)`)
)

func regexps(all ...string) []*regexp.Regexp {
	out := make([]*regexp.Regexp, len(all))
	for i, r := range all {
		out[i] = regexp.MustCompile(r)
	}
	return out
}

// saidTokens is the number that the first of the forms finds; 0 where none does.
func saidTokens(text string, forms []*regexp.Regexp) int {
	for _, form := range forms {
		if found := form.FindStringSubmatch(text); found != nil {
			if n, err := strconv.Atoi(found[1]); err == nil && n <= mostContext {
				return n
			}
		}
	}
	return 0
}
