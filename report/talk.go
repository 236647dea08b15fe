package report

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
)

// Turn is something that was said in a call with a model: a message that the
// call before it did not have, or what the model answered. Its text is foreign. Or
// it is an attempt that was not answered.
type Turn struct {
	Key   llm.Key
	Model string
	Role  string // "system", "user", "assistant", "tool", "reasoning", which is the model's too, or "attempt"
	Text  string
	Note  string // of the last turn of a call: what it took
}

// attemptRole is the role of an attempt that was not answered.
const attemptRole = "attempt"

// Talk returns what was said in calls, which are in the order in which they were
// made. What a call repeats of the one before by the same agent is left out.
// Attempts at a call that were not answered stand before its answer, or where
// there is none, at the end of its round.
func Talk(calls []llm.Record, attempts []llm.Charge) (turns []Turn) {
	tried := func(which func(llm.Key) bool) {
		attempts = slices.DeleteFunc(slices.Clone(attempts), func(c llm.Charge) bool {
			if !which(c.Key) {
				return false
			}
			turns = append(turns, Turn{Key: c.Key, Model: c.Model, Role: attemptRole, Text: attemptText(c)})
			return true
		})
	}
	defer func() { tried(func(llm.Key) bool { return true }) }()
	before := map[string][]llm.Message{}
	for _, c := range calls {
		tried(func(k llm.Key) bool { return k.Round < c.Key.Round || k == c.Key })
		say := func(role, text string) {
			turns = append(turns, Turn{Key: c.Key, Model: c.Model, Role: role, Text: text})
		}
		messages, known := c.Request.Messages, before[c.Key.Agent]
		shared := 0
		for shared < min(len(messages), len(known)) && reflect.DeepEqual(messages[shared], known[shared]) {
			shared++
		}
		for _, m := range messages[shared:] {
			say(string(m.Role), saidText(m))
		}
		if c.Reply.Reasoning != "" {
			say("reasoning", c.Reply.Reasoning)
		}
		reply := c.Reply.Message()
		say(string(reply.Role), saidText(reply))
		turns[len(turns)-1].Note = callNote(c)
		before[c.Key.Agent] = append(messages[:len(messages):len(messages)], reply)
	}
	return turns
}

// saidText is a message with the tools that it calls, or the one that it is of.
func saidText(m llm.Message) string {
	var b strings.Builder
	if m.Role == llm.ToolRole && m.Name != "" {
		fmt.Fprintf(&b, "(of %s)\n", m.Name)
	}
	b.WriteString(m.Text)
	for _, c := range m.ToolCalls {
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "(calls %s with %s)", c.Name, c.Arguments)
	}
	return b.String()
}

// attemptText says how an attempt ended, and what was booked of it.
func attemptText(c llm.Charge) string {
	how := Line(string(c.Failed))
	if c.Failed == llm.Unfinished {
		how = "it did not come back"
	}
	u := c.Usage
	if u.In+u.Out == 0 {
		return "not answered: " + how + "; nothing was used"
	}
	s := kernelwright.Spend{Calls: 1, TokensIn: u.In, TokensOut: u.Out, CachedIn: u.CachedIn, CacheWrite: u.CacheWrite, Unpriced: 1, AtWorst: 1}
	if c.USD != nil {
		s.USD, s.USDAtWorst, s.Unpriced = *c.USD, *c.USD, 0
	}
	return fmt.Sprintf("not answered: %s; counted at worst: %s, %s", how, tokens(s), Cost(s))
}

func callNote(c llm.Record) string {
	u := c.Reply.Usage
	s := kernelwright.Spend{Calls: 1, TokensIn: u.In, TokensOut: u.Out, CachedIn: u.CachedIn, CacheWrite: u.CacheWrite, Unpriced: 1}
	if c.CostUSD != nil {
		s.USD, s.Unpriced = *c.CostUSD, 0
	}
	note := fmt.Sprintf("%s, %s", tokens(s), Cost(s))
	if u.Estimated {
		note = "about " + note
	}
	if c.TookMS > 0 {
		note += ", " + (time.Duration(c.TookMS) * time.Millisecond).Round(10*time.Millisecond).String()
	}
	if stop := c.Reply.Stop; stop != llm.StopEnd && stop != llm.StopTools && stop != "" {
		note += ", ended by: " + Line(string(stop))
	}
	if f := c.Request.Fit; f != nil {
		note += fitted(*f)
	}
	return note
}

// fitted says to which context a call was fitted, and what it left out for that.
func fitted(f llm.Fit) string {
	s := ""
	if f.Context > 0 {
		s = fmt.Sprintf(", in a context of %s", thousands(int64(f.Context)))
	}
	if f.Compact {
		s += ", in few words"
	}
	if len(f.LeftOut) > 0 {
		s += ", without: " + Line(strings.Join(f.LeftOut, "; "))
	}
	return s
}

func tokens(s kernelwright.Spend) string {
	cached := ""
	if s.CachedIn > 0 || s.CacheWrite > 0 {
		cached = fmt.Sprintf(" (%s from caches, %s to them)", thousands(s.CachedIn), thousands(s.CacheWrite))
	}
	return fmt.Sprintf("%s tokens in%s, %s out", thousands(s.TokensIn), cached, thousands(s.TokensOut))
}

// Cost writes what calls cost: "$0.03", "≥ $0.03" where the price of some is not
// known, "≤ $0.03" where some count at worst, "≈ $0.03" where both, "price unknown"
// where no price is known, and "–" where there were none.
func Cost(s kernelwright.Spend) string {
	switch {
	case s.Calls == 0:
		return "–"
	case s.Unpriced > 0 && s.USD == 0:
		return "price unknown"
	case s.Unpriced > 0 && s.USDAtWorst > 0:
		return "≈ " + usd(s.USD)
	case s.Unpriced > 0:
		return "≥ " + usd(s.USD)
	case s.USDAtWorst > 0:
		return "≤ " + usd(s.USD)
	}
	return usd(s.USD)
}

// usd keeps two digits that mean something of what is less than a dollar.
func usd(v float64) string {
	places := 2
	for at := 0.1; places < 6 && v > 0 && v < at; at /= 10 {
		places++
	}
	return fmt.Sprintf("$%.*f", places, v)
}

// Spent writes what was asked of models: "12 calls, 34,120 tokens in (20,000 from
// caches, 4,000 to them), 5,020 out, $0.03".
func Spent(s kernelwright.Spend) string {
	word := "calls"
	if s.Calls == 1 {
		word = "call"
	}
	text := fmt.Sprintf("%s %s, %s, %s", thousands(s.Calls), word, tokens(s), Cost(s))
	if s.Unpriced > 0 && s.USD == 0 {
		text += " (write it under [llm.prices])"
	} else if s.Unpriced > 0 {
		text += fmt.Sprintf(" (the price of %d is not known)", s.Unpriced)
	}
	return text + atWorst(s)
}

// atWorst says what of calls counts at worst: " (2 counted at worst: $0.02; 1 of
// them did not come back)".
func atWorst(s kernelwright.Spend) string {
	if s.AtWorst == 0 {
		return ""
	}
	text := fmt.Sprintf(" (%d counted at worst", s.AtWorst)
	if s.Unfinished == s.AtWorst {
		text = fmt.Sprintf(" (%d did not come back, counted at worst", s.AtWorst)
	}
	if s.USDAtWorst > 0 {
		text += ": " + usd(s.USDAtWorst)
	}
	if s.Unfinished > 0 && s.Unfinished < s.AtWorst {
		text += fmt.Sprintf("; %d of them did not come back", s.Unfinished)
	}
	return text + ")"
}

func thousands(n int64) string {
	s := fmt.Sprint(n)
	for at := len(s) - 3; at > 0 && s[at-1] != '-'; at -= 3 {
		s = s[:at] + "," + s[at:]
	}
	return s
}

// How much of a talk a report carries; the history has the whole.
const (
	maxTurn = 16 << 10  // bytes of one turn
	maxTalk = 256 << 10 // of all
)

// talkByRound is a talk as a report shows it, and the rounds that it has turns
// of beyond the recorded ones.
func talkByRound(d Data) (turns map[int][]Turn, beyond []int) {
	turns = map[int][]Turn{}
	left := maxTalk
	for _, t := range Talk(d.Talk, d.Attempts) {
		// Who goes on for megabytes need not be read to the end.
		begins := t.Text[:min(len(t.Text), 2*maxTurn)]
		text := Clean(begins)
		if most := min(maxTurn, max(left, 0)); len(text) > most || len(begins) < len(t.Text) {
			text = strings.ToValidUTF8(text[:min(most, len(text))], "") + fmt.Sprintf("\n… cut here; `kernelwright history show %d --talk` has the rest", d.Run.ID)
		}
		left -= len(text)
		t.Text = text
		if _, seen := turns[t.Key.Round]; !seen && t.Key.Round >= len(d.Rounds) {
			beyond = append(beyond, t.Key.Round)
		}
		turns[t.Key.Round] = append(turns[t.Key.Round], t)
	}
	return turns, beyond
}

// who is a turn's heading.
func (t Turn) who() string {
	s := t.Key.Agent + ", " + t.Role
	if t.Role == string(llm.Assistant) || t.Role == "reasoning" || t.Role == attemptRole {
		s = t.Model + " as " + t.Key.Agent
		if t.Role != string(llm.Assistant) {
			s += ", " + t.Role
		}
	}
	if t.Note != "" {
		s += " (" + t.Note + ")"
	}
	return Line(s)
}

// headings are what the lines of a talk begin with that say who speaks. A line of
// somebody's own that begins so is moved to the right.
var headings = strings.NewReplacer("\n-- ", "\n -- ", "\n== ", "\n == ")

// WriteTalk writes a whole talk for a terminal.
func WriteTalk(b *strings.Builder, calls []llm.Record, attempts []llm.Charge) {
	round := -1
	for _, t := range Talk(calls, attempts) {
		if t.Key.Round != round {
			round = t.Key.Round
			fmt.Fprintf(b, "\n== round %d\n", round)
		}
		fmt.Fprintf(b, "\n-- %s%s\n", t.who(), headings.Replace("\n"+strings.TrimRight(Clean(t.Text), "\n")))
	}
}
