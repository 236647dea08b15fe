package episodes

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/llm"
)

// Bounds of what a trainer may send.
const (
	maxName       = 200
	maxRounds     = 200
	maxContext    = 100_000_000 // tokens
	maxText       = 4 << 20     // bytes of a completion
	maxToolCalls  = 1000        // of a completion; the strategy does fewer
	maxCallsBytes = 4 << 20
	maxExpiry     = 24 * 60 * 60 // seconds
	// maxValues is how many values a body has: four lists of a turn, and its calls.
	maxValues = 4*llm.MaxPostedTokens + 10*maxToolCalls
	maxSaid   = 300 // bytes of what a decoder says, which may repeat what was sent
)

// The rules of what an episode's reward is of.
const (
	RewardLast = "last" // what the policy leaves
	RewardBest = "best" // the best verdict that it reached
)

// How a policy calls tools.
const (
	toolsNative = "native"
	toolsText   = "text"
)

// DefaultPolicy is the version of a policy that its trainer gives no name.
const DefaultPolicy = "policy"

// Request is what an episode is to be. What it leaves open is as in the settings.
type Request struct {
	Reference string `json:"reference"` // its source
	Name      string `json:"name,omitempty"`
	Policy    string `json:"policy_version,omitempty"` // as the trainer calls it; empty: DefaultPolicy

	Strategy      string                `json:"strategy,omitempty"` // empty: rounds
	Rounds        int                   `json:"rounds,omitempty"`
	Turns         int                   `json:"turns,omitempty"`          // of react
	ContextTokens int                   `json:"context_tokens,omitempty"` // of react: beyond it the talk is compacted
	Tools         string                `json:"tools,omitempty"`          // of react: native, text
	Judge         forge.JudgeMode       `json:"judge,omitempty"`
	Language      kernelwright.Language `json:"language,omitempty"`
	Seed          int64                 `json:"seed,omitempty"`

	Reward       string `json:"reward,omitempty"` // empty: RewardLast
	StrictInputs *bool  `json:"strict_inputs,omitempty"`

	// ContextLength is what the policy's prompt and reply may take together, and
	// MaxTokens what its reply may, in tokens; 0: not known.
	ContextLength int `json:"context_length,omitempty"`
	MaxTokens     int `json:"max_tokens,omitempty"`

	// Session is what its trainer calls all that it begins together, to give it up
	// together; empty: none.
	Session string `json:"session,omitempty"`
	// ExpiresS is after how many seconds without a turn it expires; 0: Options.Expiry.
	ExpiresS int `json:"expires_s,omitempty"`
}

// policyName is what a version can be called: it stands in the name of a Coder.
var policyName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// BadError is a request that cannot be. Its text begins with the field.
type BadError struct{ Text, Hint string }

func (e *BadError) Error() string { return e.Text }

func bad(hint, format string, args ...any) error {
	return &BadError{fmt.Sprintf(format, args...), hint}
}

// decode reads one JSON object, and refuses fields that it does not know.
func decode(body []byte, into any) error {
	if n := separators(body); n > maxValues { // before memory is taken for each
		return bad(fmt.Sprintf("a list has %d at most", llm.MaxPostedTokens), "the body has %d values: %d at most", n, maxValues)
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("something follows the object")
		}
	}
	const hint = "docs/episodes.md has the fields"
	kind, isKind := errors.AsType[*json.UnmarshalTypeError](err)
	wrong, isList := errors.AsType[*listError](err)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF):
		return bad(hint, "the body is empty: it takes a JSON object")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return bad(hint, "the body is not what is asked for: it ends in the middle")
	case isList:
		return bad("each is a list of numbers; where JSON has none, as for NaN, some encoders write null", "%s", cut(wrong.Error()))
	case isKind && kind.Field == "":
		return bad(hint, "the body is not what is asked for: it is %s, and has to be an object", kind.Value)
	case isKind:
		return bad(hint, "%s is %s: it takes %s", cut(kind.Field), cut(kind.Value), takes(kind.Type))
	}
	return bad(hint, "the body is not what is asked for: %s", cut(strings.TrimPrefix(err.Error(), "json: ")))
}

// takes says in words what a field takes.
func takes(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a text"
	case reflect.Slice:
		return "a list"
	default:
		return "an object"
	}
}

// list is of numbers, none of which may be missing.
type list[T int | float64] []T

// listError is of a list that holds something else than its numbers.
type listError struct{ held string }

func (e *listError) Error() string {
	return "prompt_ids, token_ids, logprobs or mask holds " + e.held
}

// UnmarshalJSON implements json.Unmarshaler: encoding/json would make a 0 of a null.
func (l *list[T]) UnmarshalJSON(text []byte) error {
	if bytes.LastIndex(text, []byte("null")) > 0 { // else there is no list at all
		return &listError{"null"}
	}
	err := json.Unmarshal(text, (*[]T)(l))
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return &listError{wrong.Value}
	}
	return err
}

// cut returns the beginning of what was said.
func cut(said string) string {
	if len(said) <= maxSaid {
		return said
	}
	return strings.ToValidUTF8(said[:maxSaid], "") + "..."
}

// separators counts the commas of a JSON text that stand in none of its strings.
func separators(body []byte) (n int) {
	inside := false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case c == '"':
			inside = !inside
		case inside && c == '\\':
			i++
		case !inside && c == ',':
			n++
		}
	}
	return n
}

// normalise fills in what is left open, and reports the first thing that cannot be.
func (r *Request) normalise() error {
	for _, d := range []struct {
		field     *string
		otherwise string
	}{{&r.Name, "reference"}, {&r.Policy, DefaultPolicy}, {&r.Strategy, forge.RoundsStrategy}, {&r.Reward, RewardLast}, {&r.Tools, toolsNative}} {
		if *d.field == "" {
			*d.field = d.otherwise
		}
	}
	if r.StrictInputs == nil {
		strict := true
		r.StrictInputs = &strict
	}
	switch {
	case r.Reference == "":
		return bad("it takes the source of a reference: Model, get_inputs() and get_init_inputs()", "reference is missing")
	case len(r.Name) > maxName:
		return bad("", "name has %d bytes: %d at most", len(r.Name), maxName)
	case !policyName.MatchString(r.Policy):
		return bad("letters, digits and . _ - make a name of at most 64", "policy_version is %.80q", r.Policy)
	case !slices.Contains(forge.Strategies, r.Strategy):
		return bad("it is one of "+strings.Join(forge.Strategies, ", "), "strategy is %.80q", r.Strategy)
	case r.Reward != RewardLast && r.Reward != RewardBest:
		return bad("it is last or best", "reward is %.80q", r.Reward)
	case r.Tools != toolsNative && r.Tools != toolsText:
		return bad("it is native or text", "tools is %.80q", r.Tools)
	case len(r.Session) > maxName:
		return bad("", "session has %d bytes: %d at most", len(r.Session), maxName)
	case r.ExpiresS < 0 || r.ExpiresS > maxExpiry:
		return bad("a day is the most", "expires_s is %d: it is from 1 to %d", r.ExpiresS, maxExpiry)
	case r.Rounds < 0 || r.Rounds > maxRounds:
		return bad("", "rounds is %d: it is from 1 to %d", r.Rounds, maxRounds)
	case r.ContextLength < 0 || r.ContextLength > maxContext || r.MaxTokens < 0 || r.MaxTokens > maxContext:
		return bad("", "context_length or max_tokens is %d or %d: both are from 1 to %d", r.ContextLength, r.MaxTokens, maxContext)
	case r.ContextLength > 0 && r.MaxTokens >= r.ContextLength:
		return bad("", "max_tokens is %d, which leaves no room for a prompt in a context_length of %d", r.MaxTokens, r.ContextLength)
	case r.Language != "" && !r.Language.Known():
		return bad("it is one of "+strings.Join(kernelwright.LanguageNames(kernelwright.AllLanguages()), ", "), "language is %.80q", r.Language)
	}
	return nil
}

// settings are the strategy's, over those that a request leaves open.
func (r *Request) settings(s forge.Settings) (forge.Settings, error) {
	set := func(to *int, n int) {
		if n != 0 {
			*to = n
		}
	}
	set(&s.Rounds, r.Rounds)
	set(&s.React.Turns, r.Turns)
	set(&s.React.ContextTokens, r.ContextTokens)
	s.React.TextTools = r.Tools == toolsText
	if r.Judge != "" {
		s.JudgeMode = r.Judge
	}
	if r.Language != "" {
		s.Language = r.Language
	}
	s.Uncertified = true
	s.WallTime = 0 // it would count the trainer's
	s = s.For(r.Strategy)
	if err := s.Validate(); err != nil {
		return s, bad("", "%v", err)
	}
	return s, nil
}

// ToolCall is one in OpenAI's form.
type ToolCall struct {
	ID       string       `json:"id,omitempty"`
	Type     string       `json:"type,omitempty"` // "function"
	Function FunctionCall `json:"function"`
}

// FunctionCall is what is called. Arguments is JSON in a text, as the model wrote it.
type FunctionCall struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// Turn is a completion of the policy.
type Turn struct {
	// Call is which call it answers, as the Answer said. Without it, it is the one that
	// waits; who may post twice gives it.
	Call *int `json:"call,omitempty"`

	Text      *string    `json:"text"`
	ToolCalls []ToolCall `json:"tool_calls,omitempty"`
	Finish    string     `json:"finish_reason,omitempty"` // empty: stop, or tool_calls where there are some
	Policy    string     `json:"policy_version,omitempty"`

	// What it is trained on: all may be left out. Mask has a 1 for each of TokenIDs
	// that is the policy's own; without it all are.
	PromptIDs list[int]     `json:"prompt_ids,omitempty"`
	TokenIDs  list[int]     `json:"token_ids,omitempty"`
	LogProbs  list[float64] `json:"logprobs,omitempty"`
	Mask      list[int]     `json:"mask,omitempty"`
}

// finishes are the reasons that servers give.
var finishes = map[string]llm.Stop{
	"stop": llm.StopEnd, "length": llm.StopLength, "context": llm.StopContext, "tool_calls": llm.StopTools,
	"content_filter": llm.StopFiltered, "refusal": llm.StopRefused,
}

// reply is the turn as the policy's reply, or why it cannot be one.
func (t *Turn) reply() (llm.Reply, error) {
	size := 0
	for _, c := range t.ToolCalls {
		size += len(c.ID) + len(c.Function.Name) + len(c.Function.Arguments)
	}
	switch {
	case t.Text == nil && len(t.ToolCalls) == 0:
		return llm.Reply{}, bad(`it takes what the policy wrote: {"text": "..."}`, "text is missing")
	case t.Text != nil && len(*t.Text) > maxText:
		return llm.Reply{}, bad("", "text has %d bytes: %d at most", len(*t.Text), maxText)
	case len(t.ToolCalls) > maxToolCalls || size > maxCallsBytes:
		return llm.Reply{}, bad("", "tool_calls are %d with %d bytes: %d with %d at most", len(t.ToolCalls), size, maxToolCalls, maxCallsBytes)
	case t.Policy != "" && !policyName.MatchString(t.Policy):
		return llm.Reply{}, bad("letters, digits and . _ - make a name of at most 64", "policy_version is %.80q", t.Policy)
	case t.Mask != nil && len(t.Mask) != len(t.TokenIDs):
		return llm.Reply{}, bad("", "mask has %d values for %d token_ids", len(t.Mask), len(t.TokenIDs))
	}
	for i, m := range t.Mask {
		if m != 0 && m != 1 {
			return llm.Reply{}, bad("", "mask[%d] is %d: it is 0 or 1", i, m)
		}
	}
	stop, known := finishes[t.finish()]
	if !known {
		return llm.Reply{}, bad("it is stop, length, context, tool_calls, content_filter or refusal", "finish_reason is %.80q", t.Finish)
	}
	r := llm.Reply{Stop: stop, PromptIDs: t.PromptIDs, TokenIDs: t.TokenIDs, LogProbs: t.LogProbs}
	if t.Text != nil {
		r.Text = *t.Text
	}
	for i, c := range t.ToolCalls {
		if c.ID == "" {
			c.ID = fmt.Sprintf("call_%d", i)
		}
		r.ToolCalls = append(r.ToolCalls, llm.ToolCall{ID: c.ID, Name: c.Function.Name, Arguments: c.Function.Arguments})
	}
	if err := llm.CheckPosted(r); err != nil {
		return llm.Reply{}, bad("", "%s", strings.ReplaceAll(err.Error(), "log_probs", "logprobs")) // as they are called here
	}
	return r, nil
}

func (t *Turn) finish() string {
	switch {
	case t.Finish != "":
		return t.Finish
	case len(t.ToolCalls) > 0:
		return "tool_calls"
	}
	return "stop"
}

// digest is the same for the same completion, whichever call it is said to answer. Its
// lists, which may be long, are read as they are.
func (t *Turn) digest() [sha256.Size]byte {
	short := *t
	short.Call, short.PromptIDs, short.TokenIDs, short.LogProbs, short.Mask = nil, nil, nil, nil, nil
	h := sha256.New()
	b, err := json.Marshal(short)
	if err != nil { // it has texts and numbers alone
		return [sha256.Size]byte{}
	}
	var number [8]byte
	add := func(n uint64) {
		binary.LittleEndian.PutUint64(number[:], n)
		h.Write(number[:])
	}
	add(uint64(len(b)))
	h.Write(b)
	for _, list := range [][]int{t.PromptIDs, t.TokenIDs, t.Mask} {
		add(uint64(len(list)))
		for _, n := range list {
			add(uint64(n))
		}
	}
	for _, p := range t.LogProbs {
		add(math.Float64bits(p))
	}
	return [sha256.Size]byte(h.Sum(nil))
}
