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
	maxRecentCutMin = 200    // of what the last tool said
	maxCutNote      = 100    // of what says that it was cut
)

// talk is what the model has been told and has said. It is shortened by itself
// alone, so the same answers always lead to the same requests.
type talk struct {
	head   []llm.Message // who it is and what it is to do
	middle string        // what stands for turns that were left out
	turns  []turn
	limit  int  // tokens, the next answer included
	goesOn bool // the next request begins with the last one and its answer
	left   []string
}

// turn is an answer with what its tools said.
type turn struct {
	reply   llm.Message
	results []llm.Message
	brief   []llm.Message // the same with verdicts whole, and else a line for each thing that was said
	notes   []string      // one line for each thing that was said
	verdict bool          // one of them is a verdict
	short   int           // how much of it went
}

// How much of a turn is there: all of it, its verdicts, or what it was about.
const (
	whole = iota
	inBrief
	inShort
)

// What goes of a talk that does not fit, first what goes first. The system's text, the
// reference, and a verdict that was given last, never go.
const (
	leftOldResults = "what old tools said, and long texts in old calls"
	leftOldTurns   = "the oldest turns, for which a summary stands"
	leftRecent     = "what tools said in the last turns but verdicts, and long texts in calls"
	leftLastTurns  = "the oldest of the last turns, for which a summary stands"
	leftOurWords   = "our own words in full"
	leftLast       = "long texts of the last turn"
)

// TalkCuts are these, in their order.
var TalkCuts = []string{leftOldResults, leftOldTurns, leftRecent, leftLastTurns, leftOurWords, leftLast}

func newTalk(head []llm.Message, limit int) talk { return talk{head: head, limit: limit} }

// clone is a talk that can be shortened while this one stays.
func (t *talk) clone() talk {
	c := *t
	c.turns, c.left = slices.Clone(t.turns), slices.Clone(t.left)
	return c
}

func (t *talk) add(n turn) { t.turns = append(t.turns, n) }

// sent says that a request was answered.
func (t *talk) sent() { t.goesOn = true }

// begin changes what the talk begins with.
func (t *talk) begin(head []llm.Message) { t.head, t.goesOn = head, false }

// restart begins the talk anew. soFar stands for what was said before.
func (t *talk) restart(head []llm.Message, soFar func() string) {
	t.left = nil
	if len(t.turns) > 0 || t.middle != "" {
		t.turns, t.middle = nil, soFar()
		t.leave(leftOldTurns)
	}
	t.begin(head)
}

// leave notes that something was left out. What is gone stays gone.
func (t *talk) leave(what string) {
	if !slices.Contains(t.left, what) {
		t.left = append(t.left, what)
	}
}

// room is how many bytes of the limit a request may have.
func (t *talk) room() int { return (t.limit - min(replyTokens, t.limit/4)) * bytesPerToken }

// messages returns the talk for a request, shortened where it would not fit into so
// many bytes, and whether it only goes on. What was said last is shortened only where
// last says so. soFar says what stands for turns that are left out.
func (t *talk) messages(room int, last bool, soFar func() string) ([]llm.Message, bool) {
	if t.bytes() > room {
		t.compact(room, soFar)
		if last {
			t.compactLast(room)
		}
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
// the oldest turns are left out, of which soFar tells.
func (t *talk) compact(room int, soFar func() string) {
	for i := 0; i < len(t.turns)-recentTurns && t.bytes() > room/2; i++ {
		t.turns[i].shorten(inShort)
		t.leave(leftOldResults)
	}
	drop := func(n int, what string) {
		t.turns = slices.Clone(t.turns[n:])
		t.middle = soFar()
		t.leave(what)
	}
	if t.bytes() > room/2 && len(t.turns) > recentTurns {
		drop(len(t.turns)-recentTurns, leftOldTurns)
	}
	for i := 0; i < len(t.turns)-1 && t.bytes() > room; i++ {
		t.turns[i].shorten(inBrief)
		t.leave(leftRecent)
	}
	for len(t.turns) > 1 && t.bytes() > room {
		drop(1, leftLastTurns)
	}
}

// compactLast shortens the one turn that is left, until the talk fits.
func (t *talk) compactLast(room int) {
	if len(t.turns) == 0 || t.bytes() <= room {
		return
	}
	last := &t.turns[len(t.turns)-1]
	last.shortenCalls()
	t.leave(leftLast)
	if t.bytes() > room {
		last.reply.Carry = nil // which its provider may want back, and cannot have
	}
	if last.verdict && t.bytes() > room {
		last.shorten(inBrief)
	}
	last.results = slices.Clone(last.results)
	for i := range last.results {
		if over := t.bytes() - room; over > 0 && !last.verdict {
			text := &last.results[i].Text
			*text = cutOff(*text, max(len(*text)-over-maxCutNote, maxRecentCutMin))
		}
	}
	if t.bytes() > room {
		last.shorten(inBrief)
	}
}

// shortenCalls cuts what an answer said at length.
func (n *turn) shortenCalls() {
	if len(n.reply.Text) > maxOldText {
		n.reply.Text = bounded(n.reply.Text, maxOldText) + "\n(the rest is left out)"
	}
	n.reply.ToolCalls = slices.Clone(n.reply.ToolCalls)
	for i := range n.reply.ToolCalls {
		c := &n.reply.ToolCalls[i]
		c.Arguments = shortArguments(c.Arguments)
	}
}

// shorten leaves of a turn its verdicts, or what it was about.
func (n *turn) shorten(to int) {
	if n.short >= to {
		return
	}
	n.short = to
	n.shortenCalls()
	if to == inBrief && n.brief != nil {
		n.results = n.brief
		return
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
