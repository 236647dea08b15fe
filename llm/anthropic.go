package llm

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"strings"
	"unicode/utf8"
)

// messagesAPI is Anthropic's protocol of that name.
type messagesAPI struct{}

// Claude before 4.7 takes sampling parameters, thinks on a budget of tokens, and
// is held to a schema as the arguments of a tool that it must call. Later ones
// refuse all three: they think by themselves, as far as an effort goes, and take a
// schema as such.
var elderClaude = regexp.MustCompile(`^claude-(instant|[23]|(opus|sonnet|haiku)-4(-[0156])?(-\d{8})?$)`)

// write implements dialect. langchaingo sends of each of a model's turns the
// first part alone, so each part comes as a turn here and they are joined again;
// it knows neither tool_choice nor a schema, and thinks for few models.
func (messagesAPI) write(fields map[string]json.RawMessage, c *call) error {
	r, o := c.request, c.options
	for _, key := range []string{"temperature", "top_p", "stream", "tools", "thinking"} {
		delete(fields, key)
	}
	values := map[string]any{"max_tokens": c.maxTokens()}
	if *o.Stream {
		values["stream"] = true
	}
	var tools []any
	for _, t := range r.Tools {
		tools = append(tools, map[string]any{"name": t.Name, "description": t.Description, "input_schema": t.Parameters})
	}
	if len(tools) > 0 {
		values["tools"], values["tool_choice"] = tools, map[string]string{"type": "auto"}
	}
	thinking := c.thinkingBudget()
	if t, p := or(r.Temperature, o.Temperature), or(r.TopP, o.TopP); *o.Sampling && thinking == 0 {
		if t != nil { // some refuse both together
			values["temperature"] = min(*t, 1)
		} else if p != nil {
			values["top_p"] = *p
		}
	}
	if thinking > 0 {
		values["thinking"] = map[string]any{"type": "enabled", "budget_tokens": thinking}
	}
	if c.schemaTool() {
		values["tools"] = []any{map[string]any{
			"name": r.Schema.Name, "description": "Takes the answer.", "input_schema": r.Schema.Schema,
		}}
		values["tool_choice"] = map[string]string{"type": "tool", "name": r.Schema.Name}
	}
	if !elderClaude.MatchString(c.model) {
		output := make(map[string]any)
		if o.ReasoningEffort != "" {
			values["thinking"] = map[string]string{"type": "adaptive"}
			output["effort"] = o.ReasoningEffort
		}
		if r.Schema != nil && *o.JSONSchema && strict(r.Schema.Schema) {
			output["format"] = map[string]any{"type": "json_schema", "schema": r.Schema.Schema}
		}
		if len(output) > 0 {
			values["output_config"] = output
		}
	}
	if err := setAll(fields, values); err != nil {
		return err
	}
	marks := c.cacheMarks()
	if first := r.Messages[0]; marks[0] && first.Role == System {
		block, err := json.Marshal(anthropicBlock{Type: "text", Text: first.Text})
		if err != nil {
			return err
		}
		blocks, err := cachedBlocks(first, block)
		if err != nil {
			return err
		}
		if err := set(fields, "system", blocks); err != nil {
			return err
		}
	}
	return joinTurns(fields, r.Messages, c.origin, marks)
}

// maxCacheMarks is how many places of a request may be marked for the cache.
const maxCacheMarks = 4

// cacheMarks returns the messages that are marked: the first one that a later call
// shares, which other runs may share too, and the last ones. Before a mark the
// provider looks for what it has cached 20 blocks back at most, so the end of the
// request before is best one of them.
func (c *call) cacheMarks() map[int]bool {
	if !*c.options.PromptCache {
		return nil
	}
	var at []int
	for i, m := range c.request.Messages {
		if m.Shared > 0 && m.Role != Assistant && strings.TrimSpace(m.Text) != "" {
			at = append(at, i)
		}
	}
	if n := len(at); n > maxCacheMarks {
		at = append(at[:1], at[n-maxCacheMarks+1:]...)
	}
	marks := make(map[int]bool)
	for _, i := range at {
		marks[i] = true
	}
	return marks
}

// cachedBlocks marks a message's block for the cache. Where only the beginning of a
// text is shared, that becomes a block of its own.
func cachedBlocks(m Message, block json.RawMessage) ([]json.RawMessage, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(block, &fields); err != nil {
		return nil, err
	}
	n := min(m.Shared, len(m.Text))
	for n > 0 && n < len(m.Text) && !utf8.RuneStart(m.Text[n]) {
		n--
	}
	begin, rest := m.Text[:n], m.Text[n:]
	out := []json.RawMessage{nil}
	if m.Role != ToolRole && strings.TrimSpace(rest) != "" {
		if strings.TrimSpace(begin) == "" { // which would be refused
			return []json.RawMessage{block}, nil
		}
		after := maps.Clone(fields)
		if err := errors.Join(set(fields, "text", begin), set(after, "text", rest)); err != nil {
			return nil, err
		}
		b, err := json.Marshal(after)
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	if err := set(fields, "cache_control", map[string]string{"type": "ephemeral"}); err != nil {
		return nil, err
	}
	var err error
	out[0], err = json.Marshal(fields)
	return out, err
}

// schemaTool reports whether a reply is held to its schema by a tool. None can be
// forced on a model that thinks.
func (c *call) schemaTool() bool {
	return c.request.Schema != nil && *c.options.JSONSchema && len(c.request.Tools) == 0 &&
		elderClaude.MatchString(c.model) && c.thinkingBudget() == 0
}

// minThinking is the least that the protocol allows.
const minThinking = 1024

// thinkingBudget is how many of a reply's tokens an elder model thinks for, as its
// effort says; 0: it does not.
func (c *call) thinkingBudget() int {
	if !elderClaude.MatchString(c.model) {
		return 0
	}
	share := map[string]float64{"minimal": 0.1, "low": 0.2, "medium": 0.5, "high": 0.8}[c.options.ReasoningEffort]
	n := int(share * float64(c.maxTokens()))
	if n < minThinking {
		return 0
	}
	return n
}

// joinTurns joins turns in a row of the same role, and puts before each of the
// model's what it carried. origin tells for each of langchaingo's turns which
// message it is a part of, marks which messages are marked for the cache.
func joinTurns(fields map[string]json.RawMessage, messages []Message, origin []int, marks map[int]bool) error {
	type turn struct {
		Role    string            `json:"role"`
		Content []json.RawMessage `json:"content"`
	}
	var parts, out []turn
	if err := json.Unmarshal(fields["messages"], &parts); err != nil {
		return err
	}
	if len(parts) != len(origin) {
		return fmt.Errorf("%d turns were made of %d parts", len(parts), len(origin))
	}
	last := -1
	for i, p := range parts {
		var blocks []json.RawMessage
		if m := messages[origin[i]]; origin[i] != last && p.Role == "assistant" && json.Unmarshal(m.Carry, &blocks) == nil {
			p.Content = append(blocks, p.Content...)
		}
		last = origin[i]
		if marks[last] && len(p.Content) == 1 { // as all have that can be marked
			var err error
			if p.Content, err = cachedBlocks(messages[last], p.Content[0]); err != nil {
				return err
			}
		}
		if n := len(out); n > 0 && out[n-1].Role == p.Role {
			out[n-1].Content = append(out[n-1].Content, p.Content...)
			continue
		}
		out = append(out, p)
	}
	return set(fields, "messages", out)
}

type anthropicBlock struct {
	Type      string          `json:"type"`
	Text      string          `json:"text,omitempty"`
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name,omitempty"`
	Input     json.RawMessage `json:"input,omitempty"`
	Thinking  *string         `json:"thinking,omitempty"`
	Signature string          `json:"signature,omitempty"`
	Data      string          `json:"data,omitempty"`
}

type anthropicUsage struct {
	Input    *count `json:"input_tokens"`
	Output   *count `json:"output_tokens"`
	Created  *count `json:"cache_creation_input_tokens"`
	CacheHit *count `json:"cache_read_input_tokens"`
}

type anthropicMessage struct {
	Type       string           `json:"type"`
	ID         string           `json:"id"`
	Model      string           `json:"model"`
	Content    []anthropicBlock `json:"content"`
	StopReason string           `json:"stop_reason"`
	Usage      *anthropicUsage  `json:"usage"`
	Error      json.RawMessage  `json:"error"`
}

type anthropicEvent struct {
	Type    string            `json:"type"`
	Message *anthropicMessage `json:"message"`
	Index   int               `json:"index"`
	Block   *anthropicBlock   `json:"content_block"`
	Delta   struct {
		Type       string `json:"type"`
		Text       string `json:"text"`
		JSON       string `json:"partial_json"`
		Thinking   string `json:"thinking"`
		Signature  string `json:"signature"`
		StopReason string `json:"stop_reason"`
	} `json:"delta"`
	Usage *anthropicUsage `json:"usage"`
}

// reader implements dialect.
func (messagesAPI) reader(c *call) reader { return &messageReader{answer: newAnswer(c), call: c} }

type messageReader struct {
	*answer
	call   *call
	blocks []*blockBuilder
	// What went in: afresh, into the cache, out of the cache.
	input, created, cached int64
}

// read implements reader.
func (a *messageReader) read(data []byte, stream bool) (bool, error) {
	if !stream {
		var m anthropicMessage
		if err := json.Unmarshal(data, &m); err != nil {
			return false, fmt.Errorf("not what a message looks like: %w", err)
		}
		if m.Type == "error" || said(m.Error) {
			return false, &refusal{body: data}
		}
		if m.Type != "message" && m.Content == nil {
			return false, fmt.Errorf("a message without content: %w", errForeign)
		}
		return true, a.take(&m)
	}
	var e anthropicEvent
	if err := json.Unmarshal(data, &e); err != nil {
		return false, fmt.Errorf("not what an event of a message looks like: %w", err)
	}
	switch e.Type {
	case "error":
		return false, &refusal{body: data}
	case "message_start":
		if e.Message == nil {
			return false, fmt.Errorf("a message begins without a message")
		}
		return false, a.take(e.Message)
	case "content_block_start":
		if e.Block == nil || e.Index != len(a.blocks) {
			return false, fmt.Errorf("block %d of a message begins after %d blocks", e.Index, len(a.blocks))
		}
		var given map[string]json.RawMessage
		if json.Unmarshal(e.Block.Input, &given) == nil && len(given) == 0 { // the arguments follow
			e.Block.Input = nil
		}
		return false, a.takeBlock(e.Block)
	case "content_block_delta":
		if e.Index < 0 || e.Index >= len(a.blocks) {
			return false, fmt.Errorf("block %d of a message goes on after %d blocks", e.Index, len(a.blocks))
		}
		b := a.blocks[e.Index]
		keep(&b.signature, e.Delta.Signature)
		for _, part := range []struct {
			to   *strings.Builder
			text string
		}{{&a.text, e.Delta.Text}, {&b.thinking, e.Delta.Thinking}, {b.args(), e.Delta.JSON}} {
			if part.text == "" {
				continue
			}
			if part.to == nil {
				return false, fmt.Errorf("arguments in a block that calls no tool")
			}
			if err := a.write(part.to, part.text); err != nil {
				return false, err
			}
		}
	case "message_delta":
		keep(&a.finish, e.Delta.StopReason)
		a.takeUsage(e.Usage)
	case "message_stop":
		return true, nil
	}
	return false, nil // pings, ends of blocks, and what comes to be
}

// blockBuilder is one block of a message as it grows.
type blockBuilder struct {
	kind, signature, data string
	thinking              strings.Builder
	call                  *callBuilder
}

// args is where arguments go; nil for a block that has none.
func (b *blockBuilder) args() *strings.Builder {
	if b.call == nil {
		return nil
	}
	return &b.call.args
}

func (a *messageReader) take(m *anthropicMessage) error {
	keep(&a.id, m.ID)
	keep(&a.model, m.Model)
	keep(&a.finish, m.StopReason)
	a.takeUsage(m.Usage)
	for i := range m.Content {
		if err := a.takeBlock(&m.Content[i]); err != nil {
			return err
		}
	}
	return nil
}

func (a *messageReader) takeBlock(b *anthropicBlock) error {
	block := &blockBuilder{kind: b.Type, signature: b.Signature, data: b.Data}
	a.blocks = append(a.blocks, block)
	if err := a.grow(64 + len(b.Signature) + len(b.Data)); err != nil {
		return err
	}
	if b.Thinking != nil {
		if err := a.write(&block.thinking, *b.Thinking); err != nil {
			return err
		}
	}
	if b.Type == "tool_use" {
		var err error
		if block.call, err = a.addCall(b.ID, b.Name); err != nil {
			return err
		}
		return a.write(&block.call.args, string(b.Input))
	}
	return a.write(&a.text, b.Text)
}

// takeUsage takes over the counts that are there: the last event has the final
// ones, and not all of them.
func (a *messageReader) takeUsage(u *anthropicUsage) {
	if u == nil {
		return
	}
	latest := func(to *int64, from *count) {
		if from != nil {
			*to = int64(*from)
		}
	}
	latest(&a.input, u.Input)
	latest(&a.created, u.Created)
	latest(&a.cached, u.CacheHit)
	if a.usage == nil {
		a.usage = &Usage{}
	}
	latest(&a.usage.Out, u.Output)
	// What went through the cache is not in the count of the input.
	a.usage.In, a.usage.CachedIn, a.usage.CacheWrite = a.input+a.created+a.cached, a.cached, a.created
}

// close implements reader. Reasoning becomes text, and goes back as it came
// where tools were called.
func (a *messageReader) close() (Reply, error) {
	var back []anthropicBlock
	for _, b := range a.blocks {
		switch b.kind {
		case "thinking":
			text := b.thinking.String()
			if a.reasoning.Len() > 0 {
				a.reasoning.WriteString("\n\n")
			}
			a.reasoning.WriteString(text)
			back = append(back, anthropicBlock{Type: b.kind, Thinking: &text, Signature: b.signature})
		case "redacted_thinking":
			back = append(back, anthropicBlock{Type: b.kind, Data: b.data})
		}
	}
	reply := a.reply(a.call.request)
	if a.call.schemaTool() && len(reply.ToolCalls) > 0 {
		reply.Text, reply.ToolCalls = reply.ToolCalls[0].Arguments, nil
		if reply.Stop == StopTools {
			reply.Stop = StopEnd
		}
	}
	if len(back) == 0 || len(reply.ToolCalls) == 0 {
		return reply, nil
	}
	var err error
	reply.Carry, err = json.Marshal(back)
	return reply, err
}

// statusOfError is what HTTP would say of an error inside a stream.
var statusOfError = map[string]int{
	"invalid_request_error": http.StatusBadRequest, "authentication_error": http.StatusUnauthorized,
	"billing_error": http.StatusPaymentRequired, "permission_error": http.StatusForbidden,
	"not_found_error": http.StatusNotFound, "request_too_large": http.StatusRequestEntityTooLarge,
	"rate_limit_error": http.StatusTooManyRequests, "api_error": http.StatusInternalServerError,
	"timeout_error": http.StatusGatewayTimeout, "overloaded_error": 529,
}
