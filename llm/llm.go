// Package llm talks to language models. It declares one small interface, and
// holds what stands behind it: providers, and decorators that retry, limit,
// price, bound and record. A policy in training is a provider like any other.
package llm

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
)

// Model answers requests. An implementation is safe for concurrent use, keeps
// nothing between calls, and changes nothing in its request.
type Model interface {
	// Name says who it is in records: "provider:model".
	Name() string
	// Generate asks once and returns the whole reply. A reply that is no answer
	// (a refusal, a filter, cut off) is a reply: its Stop says so.
	// An error is an *Error, or the context's once ctx is done; Generate then
	// returns promptly.
	Generate(ctx context.Context, r Request) (Reply, error)
}

// Role says who speaks.
type Role string

// The roles of a talk.
const (
	System    Role = "system" // the first message, or none
	User      Role = "user"
	Assistant Role = "assistant"
	ToolRole  Role = "tool" // what a tool call brought
)

// Message is one turn of a talk.
type Message struct {
	Role      Role       `json:"role"`
	Text      string     `json:"text,omitempty"`
	ToolCalls []ToolCall `json:"tool_calls,omitempty"` // Assistant
	// Call and Name are of the tool call that a ToolRole message answers.
	Call string `json:"call,omitempty"`
	Name string `json:"name,omitempty"`
	// Carry is what the model's provider wants to see again with this turn, such
	// as signatures of its reasoning: Reply.Carry as it came. Nobody else reads it.
	Carry json.RawMessage `json:"carry,omitempty"` // Assistant
	// Shared is how many bytes of Text, with all that stands before them, a later
	// call is likely to begin with as well: a provider that wants to be told what to
	// cache is told. It is advice that changes no answer, so no record has it.
	Shared int `json:"-"` // System, User, ToolRole
}

// Tool is something that a model may call.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"` // a JSON schema of an object
}

// ToolCall is a model's wish. Arguments is what it wrote: it may be no JSON at
// all.
type ToolCall struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// Schema is the form that a reply must have: one JSON object. Where a provider
// can hold a model to it, it does; the reply is foreign text all the same.
type Schema struct {
	Name   string          `json:"name"`
	Schema json.RawMessage `json:"schema"`
}

// Key says which call of a run this is. Calls of a run with the same agent and
// round are numbered from 0 in Seq. A Key without a Run is of none: such a call is
// made, recorded and paid for, but not recalled.
type Key struct {
	Run   int64  `json:"run,omitempty"`
	Round int    `json:"round,omitempty" keep:"zero"`
	Agent string `json:"agent,omitempty"` // "coder" or "judge"
	Seq   int    `json:"seq,omitempty" keep:"zero"`
}

// Request is what a model is asked. Zero values leave it to the model's
// settings.
type Request struct {
	Key  Key    `json:"-"` // no model sees it
	Task string `json:"-"` // the name of the task that it is about; only a recording goes by it

	Messages    []Message `json:"messages"`
	Tools       []Tool    `json:"tools,omitempty"`
	Schema      *Schema   `json:"schema,omitempty"`
	MaxTokens   int       `json:"max_tokens,omitempty"` // of the reply, reasoning included
	Temperature *float64  `json:"temperature,omitempty"`
	TopP        *float64  `json:"top_p,omitempty"`
	Seed        *int64    `json:"seed,omitempty"`

	// Append says that Messages go on where the last call of the same run and
	// agent ended: they begin with its messages and its reply. Else they replace
	// what was said: the strategy forgets, or has compacted.
	Append bool `json:"append,omitempty"`

	// Fit is the window that the messages were fitted to, and what they leave out for
	// that. It is recorded with the call, and is no part of what is asked.
	Fit *Fit `json:"fit,omitempty"`
}

// Digest is the SHA-256 of what is asked of whom: the same request to the same
// model has the same one, whichever call it is.
func (r Request) Digest(model string) [sha256.Size]byte {
	r.Fit = nil
	b, err := json.Marshal(struct {
		Model   string  `json:"model"`
		Request Request `json:"request"`
	}{model, r})
	if err != nil { // a schema that is no JSON, which is ours
		panic(fmt.Sprintf("llm: a request that has no JSON form: %v", err))
	}
	return sha256.Sum256(b)
}

// Stop says why a reply ended.
type Stop string

// The reasons. A provider that gives none has cut the reply off: that is an
// error of Kind Truncated.
const (
	StopEnd      Stop = "end"
	StopLength   Stop = "length"  // it has MaxTokens
	StopContext  Stop = "context" // the model's context is full, before the reply had MaxTokens
	StopTools    Stop = "tools"   // it wants tools called
	StopFiltered Stop = "filtered"
	StopRefused  Stop = "refused"
	// Of a Record alone: the request did not fit the model's context, and Generate
	// fails with Kind TooLong. It decides how a run goes on, so a replay needs it.
	StopTooLong Stop = "too long"
	// So is that the model was not shown the request's tools (Kind NoTools); the rest
	// of the reply is what it said all the same.
	StopNoTools Stop = "no tools"
)

// Reply is what a model answered. All of it is foreign text.
type Reply struct {
	Text      string          `json:"text"`
	Reasoning string          `json:"reasoning,omitempty"` // where the provider shows it
	ToolCalls []ToolCall      `json:"tool_calls,omitempty"`
	Stop      Stop            `json:"stop"`
	Usage     Usage           `json:"usage"`
	Carry     json.RawMessage `json:"carry,omitempty"`      // for Message.Carry
	RequestID string          `json:"request_id,omitempty"` // as the provider names the call
	Model     string          `json:"model,omitempty"`      // as the provider names who answered: "gpt-5-2026-08-01"

	// Of a policy in training, and of servers that return them (Options.TokenIDs): the
	// ids of the prompt's and the reply's tokens, as they were sampled, and each of the
	// latter's log-probability, as the server has it. What a server does not give is
	// empty; PromptIDs or LogProbs may be so alone.
	PromptIDs []int     `json:"prompt_ids,omitempty"`
	TokenIDs  []int     `json:"token_ids,omitempty"`
	LogProbs  []float64 `json:"log_probs,omitempty"`
}

// Message returns the reply as a turn of the talk.
func (r Reply) Message() Message {
	return Message{Role: Assistant, Text: r.Text, ToolCalls: r.ToolCalls, Carry: r.Carry}
}

// Usage is what a call consumed, in tokens. Where the provider says nothing it
// is estimated, and Estimated is set.
type Usage struct {
	In         int64 `json:"in"`
	Out        int64 `json:"out"`                   // reasoning included
	CachedIn   int64 `json:"cached,omitempty"`      // part of In that was read from a cache, and cheaper
	CacheWrite int64 `json:"cache_write,omitempty"` // part of In that was written to one, and dearer
	Reasoning  int64 `json:"reasoning,omitempty"`
	Estimated  bool  `json:"estimated,omitempty"`
}

// Record is a call that was answered, be it by a refusal to read so much.
type Record struct {
	Key     Key      `json:"key"`
	Model   string   `json:"model"` // Model.Name()
	Request Request  `json:"request"`
	Reply   Reply    `json:"reply"`
	CostUSD *float64 `json:"cost_usd"`        // nil: the price is not known
	BeganMS int64    `json:"began" time:"ms"` // Unix milliseconds
	TookMS  int64    `json:"took"`            // waiting for limits included
}

// Journal remembers calls. What it has acknowledged survives a crash: a call
// that was answered is not paid for again.
type Journal interface {
	// Recall returns the record under the key whose request has the digest, and
	// whether there is one. One that has a reply comes before one that was too long.
	Recall(ctx context.Context, key Key, digest [sha256.Size]byte) (Record, bool, error)
	// Known reports whether any record is under the key.
	Known(ctx context.Context, key Key) (bool, error)
	// LastFit returns what the model's last call under the key was fitted to, and how it ended:
	// of those that were answered, else of those that were too long. The fit is nil
	// where it was fitted to nothing, stop "" where there is no such call.
	LastFit(ctx context.Context, key Key, model string) (fit *Fit, stop Stop, err error)
	// Append records a call; one of Run 0 belongs to none. Under one key there may be several with different
	// requests: a run that goes on with other settings asks another question.
	Append(ctx context.Context, r Record) error
}
