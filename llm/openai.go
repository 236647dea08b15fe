package llm

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// chatCompletions is OpenAI's protocol of that name, and what others who speak
// it make of it.
type chatCompletions struct {
	maxField string // where the bound of the reply stands
	noSeed   bool   // the server refuses a seed
	// ids are the fields that ask for token ids; nil: the server never has them.
	ids map[string]any
	// marked is how the names of models begin whose server wants to be told what to
	// cache, by marks on parts of a message's content; "": it tells itself.
	marked string
}

// write implements dialect. langchaingo sends temperature 0 where none was
// asked for, never top_p or reasoning_effort, and a schema only in its own type.
func (d chatCompletions) write(fields map[string]json.RawMessage, c *call) error {
	r, o := c.request, c.options
	for _, key := range []string{"max_tokens", "max_completion_tokens", "temperature", "top_p", "seed", "stream", "stream_options", "response_format", "tools", "tool_choice"} {
		delete(fields, key)
	}
	values := map[string]any{d.maxField: c.maxTokens()}
	if *o.Sampling {
		if t := or(r.Temperature, o.Temperature); t != nil {
			values["temperature"] = *t
		}
		if p := or(r.TopP, o.TopP); p != nil {
			values["top_p"] = *p
		}
		if r.Seed != nil && !d.noSeed {
			values["seed"] = *r.Seed
		}
	}
	if o.ReasoningEffort != "" {
		values["reasoning_effort"] = o.ReasoningEffort
	}
	if *o.Stream {
		values["stream"] = true
		values["stream_options"] = map[string]bool{"include_usage": true}
	}
	if r.Schema != nil && *o.JSONSchema {
		values["response_format"] = map[string]any{"type": "json_schema", "json_schema": map[string]any{
			"name": r.Schema.Name, "schema": r.Schema.Schema, "strict": strict(r.Schema.Schema),
		}}
	}
	if len(r.Tools) > 0 {
		var tools []any
		for _, t := range r.Tools {
			tools = append(tools, map[string]any{"type": "function", "function": map[string]any{
				"name": t.Name, "description": t.Description, "parameters": t.Parameters,
			}})
		}
		values["tools"], values["tool_choice"] = tools, "auto"
	}
	if *o.TokenIDs {
		maps.Copy(values, d.ids)
	}
	if err := setAll(fields, values); err != nil {
		return err
	}
	if d.marked != "" && strings.HasPrefix(c.model, d.marked) {
		if err := markForCache(fields, c); err != nil {
			return err
		}
	}
	return carryBack(fields, r.Messages)
}

// markForCache makes parts of the contents that are marked for the cache. A mark
// stands in a part alone: on a message itself OpenRouter overlooks it.
func markForCache(fields map[string]json.RawMessage, c *call) error {
	marks := c.cacheMarks()
	if len(marks) == 0 {
		return nil
	}
	var turns []map[string]json.RawMessage
	if err := json.Unmarshal(fields["messages"], &turns); err != nil {
		return err
	}
	if len(turns) != len(c.request.Messages) {
		return fmt.Errorf("%d messages became %d turns", len(c.request.Messages), len(turns))
	}
	for i := range marks {
		m := c.request.Messages[i]
		part, err := json.Marshal(anthropicBlock{Type: "text", Text: m.Text})
		if err != nil {
			return err
		}
		parts, err := cachedBlocks(m, part)
		if err != nil {
			return err
		}
		if err := set(turns[i], "content", parts); err != nil {
			return err
		}
	}
	return set(fields, "messages", turns)
}

// strict reports whether a schema is one of those that OpenAI can hold a model
// to: every object names all its properties as required and allows no others.
func strict(schema json.RawMessage) bool {
	var s struct {
		Type       json.RawMessage            `json:"type"`
		Properties map[string]json.RawMessage `json:"properties"`
		Required   []string                   `json:"required"`
		Additional *json.RawMessage           `json:"additionalProperties"`
		Items      json.RawMessage            `json:"items"`
		AnyOf      []json.RawMessage          `json:"anyOf"`
	}
	if json.Unmarshal(schema, &s) != nil {
		return false
	}
	if string(s.Type) == `"object"` && (s.Additional == nil || string(*s.Additional) != "false") {
		return false
	}
	for name, p := range s.Properties {
		if !slices.Contains(s.Required, name) || !strict(p) {
			return false
		}
	}
	if s.Items != nil && !strict(s.Items) {
		return false
	}
	return !slices.ContainsFunc(s.AnyOf, func(x json.RawMessage) bool { return !strict(x) })
}

// chatCarry is Reply.Carry of this protocol: fields that the server added to its
// turn and to the calls in it, and wants to see there again. Google signs each
// call so, OpenRouter its reasoning; DeepSeek wants the reasoning itself.
type chatCarry struct {
	Turn  map[string]json.RawMessage            `json:"turn,omitempty"`
	Calls map[string]map[string]json.RawMessage `json:"calls,omitempty"` // by id
}

// carryBack puts what earlier replies carried where it came from. Turns that call
// tools stand in the same order on both sides.
func carryBack(fields map[string]json.RawMessage, messages []Message) error {
	var carried []chatCarry
	found := false
	for _, m := range messages {
		if len(m.ToolCalls) == 0 {
			continue
		}
		var c chatCarry
		if len(m.Carry) > 0 && json.Unmarshal(m.Carry, &c) == nil { // else it is of another protocol
			found = true
		}
		carried = append(carried, c)
	}
	if !found {
		return nil
	}
	var out []map[string]json.RawMessage
	if err := json.Unmarshal(fields["messages"], &out); err != nil {
		return err
	}
	for _, m := range out {
		var calls []map[string]json.RawMessage
		if m["tool_calls"] == nil || len(carried) == 0 {
			continue
		}
		if err := json.Unmarshal(m["tool_calls"], &calls); err != nil {
			return err
		}
		c := carried[0]
		carried = carried[1:]
		add(m, c.Turn)
		for _, call := range calls {
			var id string
			if err := json.Unmarshal(call["id"], &id); err != nil {
				return err
			}
			add(call, c.Calls[id])
		}
		if err := set(m, "tool_calls", calls); err != nil {
			return err
		}
	}
	return set(fields, "messages", out)
}

// add puts in what is not there.
func add(to, extra map[string]json.RawMessage) {
	for k, v := range extra {
		if _, ok := to[k]; !ok {
			to[k] = v
		}
	}
}

type chatAnswer struct {
	ID      string `json:"id"`
	Model   string `json:"model"`
	Choices []struct {
		Index        int             `json:"index"`
		Message      *chatMessage    `json:"message"`
		Delta        *chatMessage    `json:"delta"`
		FinishReason loose           `json:"finish_reason"`
		Error        json.RawMessage `json:"error"`

		TokenIDs  lenient[[]int]        `json:"token_ids"`
		PromptIDs lenient[[]int]        `json:"prompt_token_ids"`
		LogProbs  lenient[chatLogProbs] `json:"logprobs"`
		Meta      lenient[chatMeta]     `json:"meta_info"`
	} `json:"choices"`
	PromptIDs lenient[[]int]  `json:"prompt_token_ids"`
	Usage     *chatUsage      `json:"usage"`
	Error     json.RawMessage `json:"error"`
}

type chatMessage struct {
	Content          loose           `json:"content"`
	Refusal          loose           `json:"refusal"`
	ReasoningContent loose           `json:"reasoning_content"`
	Reasoning        loose           `json:"reasoning"`
	ReasoningDetails json.RawMessage `json:"reasoning_details"`
	ToolCalls        []chatCall      `json:"tool_calls"`
}

type chatCall struct {
	Index    *int   `json:"index"`
	ID       string `json:"id"`
	Function struct {
		Name      string        `json:"name"`
		Arguments argumentsText `json:"arguments"`
	} `json:"function"`
	Extra json.RawMessage `json:"extra_content"`
}

type chatUsage struct {
	Prompt     count `json:"prompt_tokens"`
	Completion count `json:"completion_tokens"`
	Total      count `json:"total_tokens"`
	Details    struct {
		Cached count `json:"cached_tokens"`
		Writes count `json:"cache_write_tokens"` // OpenRouter; OpenAI where writing costs
	} `json:"prompt_tokens_details"`
	Hit        count `json:"prompt_cache_hit_tokens"` // DeepSeek
	OutDetails struct {
		Reasoning count `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
}

func (u chatUsage) usage() *Usage {
	out := Usage{
		In: int64(u.Prompt), Out: int64(u.Completion),
		CachedIn: int64(max(u.Hit, u.Details.Cached)), CacheWrite: int64(u.Details.Writes), Reasoning: int64(u.OutDetails.Reasoning),
	}
	// Google counts reasoning in the total alone.
	if rest := int64(u.Total) - out.In - out.Out; rest > 0 {
		out.Out += rest
		out.Reasoning = max(out.Reasoning, rest)
	}
	return &out
}

// reader implements dialect.
func (d chatCompletions) reader(c *call) reader {
	return &chatReader{answer: newAnswer(c), call: c, at: make(map[int]int)}
}

type chatReader struct {
	*answer
	call    *call
	tokens  sampled
	at      map[int]int       // a call's index to its place
	extra   []json.RawMessage // of each call
	details []json.RawMessage // reasoning_details
	// Who says reasoning_content may want it back.
	wantsReasoning bool
}

// read implements reader.
func (a *chatReader) read(data []byte, stream bool) (bool, error) {
	if stream && strings.TrimSpace(string(data)) == "[DONE]" {
		return true, nil
	}
	if strings.HasPrefix(strings.TrimSpace(string(data)), "[") { // as Google has its errors
		return false, &refusal{body: data}
	}
	var v chatAnswer
	if err := json.Unmarshal(data, &v); err != nil {
		return false, fmt.Errorf("not what a chat completion looks like: %w", err)
	}
	if said(v.Error) {
		return false, &refusal{body: data}
	}
	keep(&a.id, v.ID)
	keep(&a.model, v.Model)
	if v.Usage != nil {
		a.usage = v.Usage.usage()
	}
	promptIDs := v.PromptIDs.v
	if !stream && v.Choices == nil {
		return false, fmt.Errorf("no chat completion: %w", errForeign)
	}
	if !stream && len(v.Choices) == 0 {
		return false, fmt.Errorf("a chat completion without a choice")
	}
	for _, choice := range v.Choices {
		if choice.Index != 0 {
			continue // one was asked for
		}
		if said(choice.Error) {
			return false, &refusal{body: fmt.Appendf(nil, `{"error":%s}`, choice.Error)}
		}
		keep(&a.finish, string(choice.FinishReason))
		before := len(a.tokens.ids)
		a.tokens.take(choice.TokenIDs.v, choice.LogProbs.v, choice.Meta.v)
		if len(promptIDs) == 0 {
			promptIDs = choice.PromptIDs.v
		}
		if err := a.grow(12*(len(a.tokens.ids)-before) + 4*len(promptIDs)); err != nil {
			return false, err
		}
		m := choice.Delta
		if !stream || m == nil {
			m = choice.Message
		}
		if m != nil {
			if err := a.take(m); err != nil {
				return false, err
			}
		}
	}
	if len(a.tokens.promptIDs) == 0 {
		a.tokens.promptIDs = promptIDs
	}
	return !stream, nil
}

func (a *chatReader) take(m *chatMessage) error {
	if m.Refusal != "" {
		a.refused = true
	}
	if err := a.write(&a.text, string(m.Content)+string(m.Refusal)); err != nil {
		return err
	}
	// Servers that know both names send the same under each.
	reasoning := string(m.ReasoningContent)
	if reasoning != "" {
		a.wantsReasoning = true
	} else {
		reasoning = string(m.Reasoning)
	}
	if err := a.write(&a.reasoning, reasoning); err != nil {
		return err
	}
	if said(m.ReasoningDetails) {
		var details []json.RawMessage
		if err := json.Unmarshal(m.ReasoningDetails, &details); err != nil {
			return fmt.Errorf("reasoning_details are no list: %w", err)
		}
		if err := a.grow(len(m.ReasoningDetails)); err != nil {
			return err
		}
		a.details = append(a.details, details...)
	}
	for _, c := range m.ToolCalls {
		if err := a.takeCall(c); err != nil {
			return err
		}
	}
	return nil
}

// takeCall adds a call, or a piece of one. Pieces of one call have one index; of
// servers that number none, or all of them 0, a new id begins a new call.
func (a *chatReader) takeCall(c chatCall) error {
	at := -1
	if c.Index != nil {
		if i, ok := a.at[*c.Index]; ok {
			at = i
		}
	} else if c.ID == "" && c.Function.Name == "" {
		at = len(a.calls) - 1
	}
	if at >= 0 && c.ID != "" && a.calls[at].id != "" && c.ID != a.calls[at].id {
		at = -1
	}
	if at < 0 {
		if _, err := a.addCall(c.ID, c.Function.Name); err != nil {
			return err
		}
		at = len(a.calls) - 1
		a.extra = append(a.extra, nil)
		if c.Index != nil {
			a.at[*c.Index] = at
		}
	}
	call := a.calls[at]
	keep(&call.id, c.ID)
	keep(&call.name, c.Function.Name)
	if said(c.Extra) {
		if err := a.grow(len(c.Extra)); err != nil {
			return err
		}
		a.extra[at] = c.Extra
	}
	return a.write(&call.args, string(c.Function.Arguments))
}

// close implements reader. Nothing is carried where no tool was called: no
// server asks for it then.
func (a *chatReader) close() (Reply, error) {
	reply := a.reply(a.call.request)
	counted := int64(0)
	if a.usage != nil {
		counted = a.usage.Out
	}
	a.call.lacks = a.tokens.into(&reply, counted)
	if len(reply.ToolCalls) == 0 {
		return reply, nil
	}
	var err error
	reply.Carry, err = a.carried(reply)
	return reply, err
}

func (a *chatReader) carried(reply Reply) (json.RawMessage, error) {
	c := chatCarry{Turn: make(map[string]json.RawMessage), Calls: make(map[string]map[string]json.RawMessage)}
	if len(a.details) > 0 {
		if err := set(c.Turn, "reasoning_details", a.details); err != nil {
			return nil, err
		}
	}
	if a.wantsReasoning {
		if err := set(c.Turn, "reasoning_content", reply.Reasoning); err != nil {
			return nil, err
		}
	}
	for i, extra := range a.extra {
		if extra != nil {
			c.Calls[reply.ToolCalls[i].ID] = map[string]json.RawMessage{"extra_content": extra}
		}
	}
	if len(c.Turn) == 0 && len(c.Calls) == 0 {
		return nil, nil
	}
	return json.Marshal(c)
}

// said reports whether an optional value is there.
func said(v json.RawMessage) bool { return len(v) > 0 && string(v) != "null" }

// keep sets a string that is not set.
func keep(to *string, s string) {
	if *to == "" {
		*to = s
	}
}
