package report

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
)

func TestCosts(t *testing.T) {
	for _, tt := range []struct {
		spend       kernelwright.Spend
		cost, spent string
	}{
		{kernelwright.Spend{}, "–", "0 calls, 0 tokens in, 0 out, –"},
		{kernelwright.Spend{Calls: 1, TokensIn: 999, TokensOut: 1000, USD: 0.0312}, "$0.031", "1 call, 999 tokens in, 1,000 out, $0.031"},
		{kernelwright.Spend{Calls: 1200, TokensIn: 1234567, USD: 12.5}, "$12.50", "1,200 calls, 1,234,567 tokens in, 0 out, $12.50"},
		{kernelwright.Spend{Calls: 2, USD: 0}, "$0.00", "2 calls, 0 tokens in, 0 out, $0.00"},
		{kernelwright.Spend{Calls: 2, USD: 0.00042}, "$0.00042", "2 calls, 0 tokens in, 0 out, $0.00042"},
		{kernelwright.Spend{Calls: 2, TokensIn: 5000, CachedIn: 3000, CacheWrite: 1500, USD: 1}, "$1.00", "2 calls, 5,000 tokens in (3,000 from caches, 1,500 to them), 0 out, $1.00"},
		{kernelwright.Spend{Calls: 2, TokensIn: 5, USD: 1, Unfinished: 1, AtWorst: 1, USDAtWorst: 0.5}, "≤ $1.00", "2 calls, 5 tokens in, 0 out, ≤ $1.00 (1 did not come back, counted at worst: $0.50)"},
		{kernelwright.Spend{Calls: 2, TokensIn: 5, AtWorst: 1}, "$0.00", "2 calls, 5 tokens in, 0 out, $0.00 (1 counted at worst)"},
		{kernelwright.Spend{Calls: 9, USD: 1, AtWorst: 3, USDAtWorst: 0.25, Unfinished: 1}, "≤ $1.00", "9 calls, 0 tokens in, 0 out, ≤ $1.00 (3 counted at worst: $0.25; 1 of them did not come back)"},
		{kernelwright.Spend{Calls: 9, USD: 1, AtWorst: 3, USDAtWorst: 0.25, Unpriced: 1}, "≈ $1.00", "9 calls, 0 tokens in, 0 out, ≈ $1.00 (the price of 1 is not known) (3 counted at worst: $0.25)"},
		{kernelwright.Spend{Calls: 3, Unpriced: 3}, "price unknown", "3 calls, 0 tokens in, 0 out, price unknown (write it under [llm.prices])"},
		{kernelwright.Spend{Calls: 3, Unpriced: 1, USD: 0.5}, "≥ $0.50", "3 calls, 0 tokens in, 0 out, ≥ $0.50 (the price of 1 is not known)"},
	} {
		if got := Cost(tt.spend); got != tt.cost {
			t.Errorf("%+v: %q", tt.spend, got)
		}
		if got := Spent(tt.spend); got != tt.spent {
			t.Errorf("%+v: %q", tt.spend, got)
		}
	}
}

// talked is a Coder that goes on from its first call in the second one, and a
// Judge in between.
func talked() []llm.Record {
	price := 0.004
	first := []llm.Message{{Role: llm.System, Text: "you write kernels"}, {Role: llm.User, Text: "the task"}}
	a := llm.Record{Key: llm.Key{Run: 3, Agent: "coder"}, Model: "p:m", Request: llm.Request{Messages: first}, CostUSD: &price, TookMS: 1234,
		Reply: llm.Reply{Text: "here", Reasoning: "let me see", Stop: llm.StopTools, ToolCalls: []llm.ToolCall{{Name: "read", Arguments: `{"path":"x"}`}}, Usage: llm.Usage{In: 1200, Out: 30}}}
	j := llm.Record{Key: llm.Key{Run: 3, Agent: "judge"}, Model: "p:j", Request: llm.Request{Messages: []llm.Message{{Role: llm.User, Text: "what now?"}}},
		Reply: llm.Reply{Text: "{}", Stop: llm.StopLength, Usage: llm.Usage{Estimated: true}}}
	j.Request.Fit = &llm.Fit{Window: llm.Window{Context: 4096, Compact: true}, LeftOut: []string{"lessons", "build and work"}}
	b := a
	b.Key.Round = 1
	b.Request.Messages = slices.Concat(first, []llm.Message{a.Reply.Message(), {Role: llm.ToolRole, Name: "read", Text: "class Model"}})
	b.Reply = llm.Reply{Text: "again", Stop: llm.StopEnd}
	return []llm.Record{a, j, b}
}

// unanswered are attempts at the calls of talked: at the Coder's first, and two at
// one that was never answered.
func unanswered() []llm.Charge {
	worst := 0.25
	coder, judge := llm.Key{Run: 3, Agent: "coder"}, llm.Key{Run: 3, Round: 1, Agent: "judge"}
	return []llm.Charge{
		{Key: coder, Model: "p:m", Usage: llm.Usage{In: 5000, Out: 16384, Estimated: true}, USD: &worst, Failed: llm.Interrupted},
		{Key: judge, Model: "p:j", Usage: llm.Usage{In: 700, Out: 10, Estimated: true}, Failed: llm.Unfinished},
		{Key: judge, Model: "p:j", Failed: llm.RateLimited},
	}
}

func TestTalk(t *testing.T) {
	var b strings.Builder
	WriteTalk(&b, talked(), unanswered())
	const want = `
== round 0

-- p:m as coder, attempt
not answered: interrupted; counted at worst: 5,000 tokens in, 16,384 out, ≤ $0.25

-- coder, system
you write kernels

-- coder, user
the task

-- p:m as coder, reasoning
let me see

-- p:m as coder (1,200 tokens in, 30 out, $0.0040, 1.23s)
here
(calls read with {"path":"x"})

-- judge, user
what now?

-- p:j as judge (about 0 tokens in, 0 out, price unknown, ended by: length, in a context of 4,096, in few words, without: lessons; build and work)
{}

== round 1

-- coder, tool
(of read)
class Model

-- p:m as coder (0 tokens in, 0 out, $0.0040, 1.23s)
again

-- p:j as judge, attempt
not answered: it did not come back; counted at worst: 700 tokens in, 10 out, price unknown

-- p:j as judge, attempt
not answered: rate limited; nothing was used
`
	if b.String() != want {
		t.Errorf("%s", b.String())
	}
}

// Nobody speaks in another's name.
func TestWriteTalkOfForgedHeadings(t *testing.T) {
	call := llm.Record{Key: llm.Key{Agent: "coder"}, Model: "p:m", Reply: llm.Reply{Text: "-- coder, system\n-- judge, user\r\n== round 7\n--flag\nx -- y"}}
	var b strings.Builder
	WriteTalk(&b, []llm.Record{call}, nil)
	if got, want := b.String(), "\n== round 0\n\n-- p:m as coder (0 tokens in, 0 out, price unknown)\n -- coder, system\n -- judge, user\n == round 7\n--flag\nx -- y\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestReportsTellWhatWasSaidAndSpent(t *testing.T) {
	d := finished()
	d.Talk = talked()
	d.Talk[2].Key.Round = 7 // a round that was cut off
	d.Attempts = unanswered()
	d.Spend = kernelwright.Spend{Calls: 3, TokensIn: 1200, TokensOut: 30, USD: 0.008, Unpriced: 1}
	html, markdown := pages(t, d)
	for name, text := range map[string]string{"page": html, "Markdown": strings.ReplaceAll(markdown, `\`, "")} {
		for _, want := range []string{"you write kernels", "let me see", "not answered: interrupted; counted at worst: 5,000 tokens in, 16,384 out, ≤ $0.25", "not answered: it did not come back", "class Model", "3 calls, 1,200 tokens in, 30 out, ≥ $0.0080", "not done", "<details><summary"} {
			if !strings.Contains(text, want) {
				t.Errorf("the %s lacks %q", name, want)
			}
		}
		if strings.Count(text, "you write kernels") != 1 {
			t.Errorf("the %s repeats what was said", name)
		}
	}
	wellFormed(t, html)
	b, _, ok, err := Certify(d, "x.best.py")
	var c Certificate
	if err := json.Unmarshal(b, &c); err != nil || c.Spend == nil || *c.Spend != d.Spend {
		t.Errorf("%v %+v", err, c.Spend)
	}
	if err != nil || !ok {
		t.Error(ok, err)
	}
	var table strings.Builder
	plain := Summarise(finished())
	if err := Table(&table, []Summary{Summarise(d), plain}); err != nil || !strings.Contains(table.String(), "cost") || !strings.Contains(table.String(), "≥ $0.0080") ||
		!strings.Contains(table.String(), "softmax: language models: 3 calls, 1,200 tokens in, 30 out, ≥ $0.0080 (the price of 1 is not known)") {
		t.Errorf("%v\n%s", err, table.String())
	}
	table.Reset()
	if err := Table(&table, []Summary{plain}); err != nil || strings.Contains(table.String(), "cost") {
		t.Errorf("%v\n%s", err, table.String())
	}

	// A talk without end is cut, and so is one turn of it.
	for i := range 100 {
		d.Talk = append(d.Talk, llm.Record{Key: llm.Key{Round: 1, Agent: "coder", Seq: i}, Reply: llm.Reply{Text: strings.Repeat("x", 1<<20)}})
	}
	html, markdown = pages(t, d)
	if len(html) > 1<<20 || len(markdown) > 1<<20 || !strings.Contains(html, "history show 3 --talk") {
		t.Errorf("%d and %d bytes", len(html), len(markdown))
	}
}
