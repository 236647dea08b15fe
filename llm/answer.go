package llm

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
)

// answer is a reply that grows as it is read: in one piece or in many.
type answer struct {
	max  int64 // bytes of text, reasoning and arguments
	size int64

	text, reasoning strings.Builder
	calls           []*callBuilder
	refused         bool // the text is a refusal
	finish          string
	usage           *Usage
	model, id       string
}

type callBuilder struct {
	id, name string
	args     strings.Builder
}

func newAnswer(c *call) *answer { return &answer{max: c.options.MaxReplyBytes} }

// grow counts n more bytes that are kept.
func (a *answer) grow(n int) error {
	if a.size += int64(n); a.size > a.max {
		return errTooLarge
	}
	return nil
}

func (a *answer) write(to *strings.Builder, s string) error {
	to.WriteString(s)
	return a.grow(len(s))
}

func (a *answer) addCall(id, name string) (*callBuilder, error) {
	c := &callBuilder{id: id, name: name}
	a.calls = append(a.calls, c)
	return c, a.grow(64 + len(id) + len(name))
}

func (a *answer) reason() string { return a.finish }

// The reasons to stop, of all protocols, in lower case. One that is not here is
// an end.
var stops = map[string]Stop{
	"length": StopLength, "max_tokens": StopLength, "model_context_window_exceeded": StopContext,
	"tool_calls": StopTools, "function_call": StopTools, "tool_use": StopTools,
	"content_filter": StopFiltered, "safety": StopFiltered, "recitation": StopFiltered, "blocklist": StopFiltered,
	"prohibited_content": StopFiltered, "spii": StopFiltered, "sensitive": StopFiltered,
	"refusal": StopRefused,
}

// Reasons that are failures: the model's server gave up in the middle.
var failedStops = map[string]Kind{
	"error": Unavailable, "insufficient_system_resource": Unavailable,
	"abort": Truncated, "network_error": Truncated, "null": Truncated,
	"malformed_function_call": Malformed,
}

// byReason looks a reason up. Google writes some as "content_filter: SAFETY".
func byReason[T any](table map[string]T, reason string) (T, bool) {
	general, special, _ := strings.Cut(strings.ToLower(reason), ":")
	if v, ok := table[strings.TrimSpace(special)]; ok {
		return v, true
	}
	v, ok := table[strings.TrimSpace(general)]
	return v, ok
}

// reply closes the answer to r. finish must be known.
func (a *answer) reply(r Request) Reply {
	out := Reply{
		Text: a.text.String(), Reasoning: a.reasoning.String(),
		Model: a.model, RequestID: a.id,
	}
	if out.Reasoning == "" {
		out.Text, out.Reasoning = cutThoughts(out.Text)
	}
	out.ToolCalls = a.toolCalls(len(r.Messages))
	out.Stop = StopEnd
	if s, ok := byReason(stops, a.finish); ok {
		out.Stop = s
	}
	switch {
	case a.refused:
		out.Stop = StopRefused
	case out.Stop == StopEnd && len(out.ToolCalls) > 0: // some say "stop" all the same
		out.Stop = StopTools
	case out.Stop == StopTools && len(out.ToolCalls) == 0:
		out.Stop = StopEnd
	}
	out.Usage = usageOr(a.usage, r, out)
	return out
}

// toolCalls gives each call an id of its own where the server gave none, or the
// same one twice: what a call brought could not be told from another's. turn
// makes it unlike those of earlier turns.
func (a *answer) toolCalls(turn int) []ToolCall {
	var out []ToolCall
	seen := make(map[string]bool)
	for i, c := range a.calls {
		id := c.id
		for n := 0; id == "" || seen[id]; n++ {
			id = fmt.Sprintf("call_%d_%d", turn, i+n)
		}
		seen[id] = true
		args := c.args.String()
		if strings.TrimSpace(args) == "" {
			args = "{}"
		}
		out = append(out, ToolCall{ID: id, Name: c.name, Arguments: args})
	}
	return out
}

// cutThoughts takes off what a model thought aloud at the beginning, where its
// server does not: many open models do so between these marks.
func cutThoughts(text string) (rest, thoughts string) {
	const begin, end = "<think>", "</think>"
	after, ok := strings.CutPrefix(strings.TrimLeft(text, " \t\r\n"), begin)
	if !ok {
		return text, ""
	}
	thoughts, rest, ok = strings.Cut(after, end)
	if !ok {
		return text, ""
	}
	return strings.TrimLeft(rest, "\r\n"), strings.TrimSpace(thoughts)
}

// usageOr returns what the server counted, or an estimate where it counted
// nothing. No prompt has no tokens, so who says 0 of them has not counted them.
func usageOr(u *Usage, r Request, reply Reply) Usage {
	if u != nil && (u.In > 0 || u.Out > 0) {
		v := *u
		if v.In <= 0 {
			v.In, v.Estimated = promptEstimate(r), true
		}
		v.CachedIn = min(v.CachedIn, v.In)
		v.CacheWrite = min(v.CacheWrite, v.In-v.CachedIn)
		v.Reasoning = min(v.Reasoning, v.Out)
		return v
	}
	return Usage{In: promptEstimate(r), Out: tokensIn(replyBytes(reply)), Estimated: true}
}

func replyBytes(reply Reply) int {
	n := len(reply.Text) + len(reply.Reasoning)
	for _, c := range reply.ToolCalls {
		n += len(c.Name) + len(c.Arguments)
	}
	return n
}

// maxAdded is how many tokens a server may put before a prompt, beyond PromptBound,
// and be believed: gateways have prompts of their own.
const maxAdded = 16 << 10

// believed is as much of a reply's usage as the call can have had: a prompt of
// PromptBound and maxAdded tokens, a reply of max_tokens, or of as many as it has
// bytes. A number beyond that would be taken from budgets, and hold all later calls
// back where tokens by the minute are limited.
func (c *call) believed(reply Reply) Usage {
	u := reply.Usage
	u.In = min(u.In, PromptBound(c.request)+maxAdded)
	u.Out = min(u.Out, max(int64(c.maxTokens()), int64(replyBytes(reply))))
	if u.In == reply.Usage.In && u.Out == reply.Usage.Out {
		return u
	}
	u.CachedIn = min(u.CachedIn, u.In)
	u.CacheWrite = min(u.CacheWrite, u.In-u.CachedIn)
	u.Reasoning = min(u.Reasoning, u.Out)
	u.Estimated = true
	if c.options.Log != nil {
		c.options.Log.Warn("a server counts more tokens than the call can have had; the most that it can have had is booked", "model", c.name,
			"in", reply.Usage.In, "booked_in", u.In, "out", reply.Usage.Out, "booked_out", u.Out)
	}
	return u
}

// bytesPerToken is what a token of English or code has at least, on average.
const bytesPerToken = 3

func tokensIn(bytes int) int64 { return int64(math.Ceil(float64(bytes) / bytesPerToken)) }

// promptEstimate is about how many tokens a prompt has.
func promptEstimate(r Request) int64 { return tokensIn(promptBytes(r)) + 8*int64(len(r.Messages)) }

// PromptBound is the most tokens that a prompt can have. A token of the
// vocabularies in use stands for at least one byte, so there are no more of them
// than bytes; what a provider puts round each message, round the tools and
// before all of it was seen to be below these additions.
func PromptBound(r Request) int64 {
	n := int64(promptBytes(r)) + 512 + 32*int64(len(r.Messages))
	for _, m := range r.Messages {
		for _, c := range m.ToolCalls {
			n += int64(len(objectOr(c.Arguments)) - len(c.Arguments))
		}
	}
	if len(r.Tools) > 0 || r.Schema != nil {
		n += 1024 + 128*int64(len(r.Tools))
	}
	return n
}

func promptBytes(r Request) int {
	n := 0
	for _, m := range r.Messages {
		n += len(m.Text) + len(m.Carry) + len(m.Call) + len(m.Name)
		for _, c := range m.ToolCalls {
			n += len(c.ID) + len(c.Name) + len(c.Arguments)
		}
	}
	for _, t := range r.Tools {
		n += len(t.Name) + len(t.Description) + len(t.Parameters)
	}
	if r.Schema != nil {
		n += len(r.Schema.Name) + len(r.Schema.Schema)
	}
	return n
}

// loose is a string that some servers send as null, or as a list of parts with
// text.
type loose string

// UnmarshalJSON implements json.Unmarshaler.
func (l *loose) UnmarshalJSON(b []byte) error {
	var s string
	if len(b) == 0 || string(b) == "null" {
		return nil
	}
	if b[0] == '"' {
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
		*l = loose(s)
		return nil
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if b[0] != '[' {
		return errors.New("a text is neither a string nor a list of parts")
	}
	if err := json.Unmarshal(b, &parts); err != nil {
		return err
	}
	for _, p := range parts {
		s += p.Text
	}
	*l = loose(s)
	return nil
}

// argumentsText is what a model wrote as arguments: a string, or, of some
// servers, the object itself.
type argumentsText string

// UnmarshalJSON implements json.Unmarshaler.
func (a *argumentsText) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		var s string
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
		*a = argumentsText(s)
		return nil
	}
	if string(b) != "null" {
		*a = argumentsText(b)
	}
	return nil
}

// count is a number of tokens. Some servers write 12.0, and whoever writes
// nonsense has counted nothing.
type count int64

// UnmarshalJSON implements json.Unmarshaler.
func (c *count) UnmarshalJSON(b []byte) error {
	var f float64
	if json.Unmarshal(b, &f) == nil && f >= 0 && f < 1e12 {
		*c = count(f)
	}
	return nil
}

// objectOr returns arguments as the object that providers want to see again in
// a talk; what is none is put into one, so that the model sees its mistake.
func objectOr(arguments string) string {
	var object map[string]json.RawMessage
	if json.Unmarshal([]byte(arguments), &object) == nil && object != nil {
		return arguments
	}
	b, err := json.Marshal(map[string]string{"not_json": arguments})
	if err != nil {
		return "{}"
	}
	return string(b)
}

// or returns the first that is set.
func or(a, b *float64) *float64 {
	if a != nil {
		return a
	}
	return b
}
