package forge

import (
	"encoding/json"
	"slices"

	"github.com/kernelwright/kernelwright/llm"
)

// What a talk is shortened by. Code has somewhat over three bytes to a token.
const (
	bytesPerToken   = 3
	replyTokens     = 16_384 // kept free for the answer, or a quarter of the whole
	recentTurns     = 4      // stay as they are
	maxOldText      = 600    // bytes of an old answer
	maxOldArgument  = 200    // bytes of a text in an old call
	maxRecentCutMin = 2 << 10
)

// talk is what the model has been told and has said. It is shortened by itself
// alone, so the same answers always lead to the same requests.
type talk struct {
	head   []llm.Message // who it is and what it is to do
	middle string        // what stands for turns that were left out
	turns  []turn
	limit  int  // tokens, the next answer included
	goesOn bool // the next request begins with the last one and its answer
}

// turn is an answer with what its tools said.
type turn struct {
	reply   llm.Message
	results []llm.Message
	notes   []string // one line for each thing that was said
	short   bool
}

func newTalk(head []llm.Message, limit int) talk { return talk{head: head, limit: limit} }

func (t *talk) add(n turn) { t.turns = append(t.turns, n) }

// sent says that a request was answered.
func (t *talk) sent() { t.goesOn = true }

// halve makes a smaller talk of the next request.
func (t *talk) halve() { t.limit /= 2 }

// messages returns the talk for a request, shortened where it would not fit,
// and whether it only goes on. soFar says what stands for turns that are left
// out.
func (t *talk) messages(soFar func() string) ([]llm.Message, bool) {
	room := (t.limit - min(replyTokens, t.limit/4)) * bytesPerToken
	if t.bytes() > room {
		t.compact(room, soFar)
		t.goesOn = false
	}
	return t.flat(), t.goesOn
}

// flat returns the whole talk. What a later request begins with too is marked as
// shared: each message of the head, which outlives a compaction, the end of the
// request before this one, and the end of this one.
func (t *talk) flat() []llm.Message {
	all := slices.Clone(t.head)
	for i := range all {
		all[i].Shared = len(all[i].Text)
	}
	if t.middle != "" {
		all[len(all)-1].Text += "\n\n" + t.middle
	}
	for i, n := range t.turns {
		if i == len(t.turns)-1 {
			shareAll(all)
		}
		all = append(append(all, n.reply), n.results...)
	}
	shareAll(all)
	return all
}

// shareAll marks the last message as shared.
func shareAll(talk []llm.Message) {
	last := &talk[len(talk)-1]
	last.Shared = len(last.Text)
}

func (t *talk) bytes() int {
	n := len(t.middle)
	for _, m := range t.head {
		n += messageBytes(m)
	}
	for _, turn := range t.turns {
		n += messageBytes(turn.reply)
		for _, m := range turn.results {
			n += messageBytes(m)
		}
	}
	return n
}

func messageBytes(m llm.Message) int {
	n := len(m.Text) + len(m.Carry) + 16
	for _, c := range m.ToolCalls {
		n += len(c.Name) + len(c.Arguments) + 32
	}
	return n
}

// compact shortens the talk to half the room, so that it is not done at each
// turn: first what old tools said and old calls hold becomes a line each, then
// the oldest turns are left out, of which soFar tells. What was said last is cut
// only where nothing else is left.
func (t *talk) compact(room int, soFar func() string) {
	for i := 0; i < len(t.turns)-recentTurns && t.bytes() > room/2; i++ {
		t.turns[i].shorten()
	}
	if t.bytes() > room/2 && len(t.turns) > recentTurns {
		t.turns = slices.Clone(t.turns[len(t.turns)-recentTurns:])
		t.middle = soFar()
	}
	for len(t.turns) > 1 && t.bytes() > room {
		if !t.turns[0].short {
			t.turns[0].shorten()
			continue
		}
		t.turns = slices.Clone(t.turns[1:])
		t.middle = soFar()
	}
	if len(t.turns) == 1 && t.bytes() > room {
		t.turns[0].shorten()
		t.turns[0].reply.Carry = nil // which its provider may want back, and cannot have
	}
	for i := range t.head { // a reference of megabytes, in a small context
		if t.bytes() <= room {
			break
		}
		t.head[i].Text = bounded(t.head[i].Text, max(len(t.head[i].Text)-(t.bytes()-room), maxRecentCutMin))
	}
}

// shorten leaves of a turn what it was about.
func (n *turn) shorten() {
	if n.short {
		return
	}
	n.short = true
	if len(n.reply.Text) > maxOldText {
		n.reply.Text = bounded(n.reply.Text, maxOldText) + "\n(the rest is left out)"
	}
	n.reply.ToolCalls = slices.Clone(n.reply.ToolCalls)
	for i := range n.reply.ToolCalls {
		c := &n.reply.ToolCalls[i]
		c.Arguments = shortArguments(c.Arguments)
	}
	n.results = slices.Clone(n.results)
	for i := range n.results {
		text := ""
		for j, note := range n.notes {
			if j == i || len(n.results) == 1 {
				text += note + " (shortened)\n"
			}
		}
		n.results[i].Text = text
	}
}

// shortArguments cuts the long texts of a call's arguments, which stay a JSON
// object.
func shortArguments(text string) string {
	if len(text) <= maxOldArgument {
		return text
	}
	var given map[string]any
	if json.Unmarshal([]byte(text), &given) != nil {
		return "{}"
	}
	for name, v := range given {
		switch v := v.(type) {
		case string:
			if len(v) > maxOldArgument {
				given[name] = bounded(v, maxOldArgument) + " (the rest is left out)"
			}
		case float64, bool:
		default:
			delete(given, name)
		}
	}
	b, err := json.Marshal(given)
	if err != nil || len(b) > maxOldText*maxCalls {
		return "{}"
	}
	return string(b)
}
