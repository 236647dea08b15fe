package forge

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/kernelwright/kernelwright/llm"
)

// The text protocol, for models that cannot be given tools: each call is a block
//
//	```tool
//	{"tool": "read", "arguments": {"path": "model_new.py"}}
//	```
//
// whose fences stand alone on their lines and which holds one JSON object with
// these two keys and no other. Calls are done in their order, and answered in
// one message. What is not a call, between or round the blocks, is talk.
const (
	toolFence  = "```tool"
	closeFence = "```"
)

// badCall is the name of a call that could not be read; no tool has it. Its
// arguments are the sentence that says why.
const badCall = "\x00bad"

// readable reports whether a call could be read.
func readable(c llm.ToolCall) bool { return c.Name != badCall }

// calls returns what a reply wants done. complaint is one sentence where that
// is nothing.
func (a *actor) calls(r llm.Reply) (calls []llm.ToolCall, complaint string) {
	if calls = r.ToolCalls; a.words {
		calls = textCalls(r.Text)
	}
	if len(calls) > 0 {
		return calls, ""
	}
	switch r.Stop {
	case llm.StopLength, llm.StopContext:
		return nil, cutShort(r.Stop) + " before it called a tool: be shorter, and write a long file in parts, with write and then edit. The tools are " + a.toolNames() + "."
	case llm.StopRefused, llm.StopFiltered:
		return nil, "Your answer was withheld before it called a tool: go on with the work by calling one of " + a.toolNames() + "."
	}
	if a.words {
		return nil, "You called no tool. A call is a block that begins with a line ```tool, holds one JSON object with \"tool\" and \"arguments\", and ends with a line ```. The tools are " + a.toolNames() + "."
	}
	return nil, "You called no tool: call one of " + a.toolNames() + "."
}

// cutOffReply reports whether an answer ended before its end.
func cutOffReply(stop llm.Stop) bool { return stop == llm.StopLength || stop == llm.StopContext }

// cutShort says what ended an answer.
func cutShort(stop llm.Stop) string {
	if stop == llm.StopContext {
		return "Your answer was cut off because your context is full, of which little is left,"
	}
	return "Your answer was cut off, because it had as many tokens as an answer may have,"
}

// textCalls reads the calls in a model's text.
func textCalls(text string) []llm.ToolCall {
	var calls []llm.ToolCall
	var block *strings.Builder
	for line := range strings.Lines(text) {
		switch mark := strings.TrimSpace(line); {
		case block == nil && mark == toolFence:
			block = &strings.Builder{}
		case block != nil && mark == closeFence:
			calls = append(calls, textCall(block.String()))
			block = nil
		case block != nil:
			block.WriteString(line)
		}
	}
	if block != nil {
		calls = append(calls, llm.ToolCall{Name: badCall, Arguments: "the block of the call does not end: it needs a line ``` of its own"})
	}
	return calls
}

func textCall(block string) llm.ToolCall {
	bad := func(format string, args ...any) llm.ToolCall {
		return llm.ToolCall{Name: badCall, Arguments: fmt.Sprintf(format, args...)}
	}
	if len(block) > maxArgumentBytes {
		return bad("the call has %d bytes: %d at most", len(block), maxArgumentBytes)
	}
	var call struct {
		Tool      string          `json:"tool"`
		Arguments json.RawMessage `json:"arguments"`
	}
	dec := json.NewDecoder(strings.NewReader(block))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&call); err != nil {
		return bad("the call is no JSON object with \"tool\" and \"arguments\": %s", oneLine(err.Error(), 200))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return bad("there is text after the JSON object: one call a block")
	}
	if call.Tool == "" {
		return bad("the call names no tool: \"tool\" is missing")
	}
	return llm.ToolCall{Name: call.Tool, Arguments: string(call.Arguments)}
}

// answers puts what tools said into a turn: as messages of the talk, in brief, and in
// one line each.
func (a *actor) answers(t *turn, calls []llm.ToolCall, results []result) {
	for _, r := range results {
		t.notes, t.verdict = append(t.notes, r.note), t.verdict || r.verdict
	}
	t.results = a.messages(calls, results, func(r result) string { return r.text })
	t.brief = a.messages(calls, results, func(r result) string {
		if r.verdict {
			return r.text
		}
		return r.note + " (shortened)"
	})
}

// messages are what tools said, of each what say says.
func (a *actor) messages(calls []llm.ToolCall, results []result, say func(result) string) (messages []llm.Message) {
	var b strings.Builder
	for i, c := range calls {
		text := say(results[i])
		if !a.words {
			messages = append(messages, llm.Message{Role: llm.ToolRole, Text: text, Call: c.ID, Name: c.Name})
			continue
		}
		name := c.Name
		if name == badCall {
			name = "the call"
		}
		fmt.Fprintf(&b, "%d. %s\n%s\n", i+1, oneLine(name, 100), text)
	}
	if a.words {
		messages = []llm.Message{{Role: llm.User, Text: b.String()}}
	}
	return messages
}
