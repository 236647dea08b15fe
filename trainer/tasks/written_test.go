package tasks

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/llm/llmtest"
	"github.com/kernelwright/kernelwright/prompts"
	"github.com/kernelwright/kernelwright/store"
)

// writes makes a maker's tasks be written by a model whose server answers as told.
// The calls are recorded and paid for in the maker's store.
func (w *world) writes(t *testing.T, reply func(n int, asked string) llmtest.Answer) *llmtest.Server {
	t.Helper()
	server := llmtest.NewOpenAI(t)
	var mu sync.Mutex
	n := 0
	server.Reply = func(q llmtest.Asked) llmtest.Answer {
		mu.Lock()
		defer mu.Unlock()
		n++
		return reply(n, q.Last)
	}
	prices := llm.Prices{"openai:m": {In: 1, Out: 2}}
	o := server.Options()
	o.Attempts = 1
	model, err := llm.New("openai:m", o, llm.Services{Prices: prices, Budget: llm.NewBudget(llm.Allowances{}, prices, w.store, nil), Journal: w.store})
	ok(t, err)
	templates, err := prompts.LoadTemplates("")
	ok(t, err)
	w.maker.Writer = &Writer{Model: model, Prompts: templates}
	return server
}

// pointwise are operators that no two answers share.
var pointwise = []string{"sin", "cos", "exp", "atan", "asinh", "erf", "log1p", "expm1", "sqrt", "rsqrt", "sinh", "tan", "log2", "square", "reciprocal", "neg"}

func module(body string, says string) string {
	return "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n        return " + body +
		"\n\n\ndef get_inputs():\n    return [torch.randn(8, 16)]\n\n\ndef get_init_inputs():\n    return []\n\n\n# says " + says + " 3.0 0\n"
}

func block(source string) llmtest.Answer {
	return llmtest.Answer{Text: "A gate.\n\n```python\n" + source + "```\n"}
}

// What a model writes passes the filters that composed tasks pass; what it does not
// write is counted, too, and every call is paid for.
func TestAModelWritesTasks(t *testing.T) {
	s := small()
	s.Writer, s.Held = "openai:m", []string{"hardsigmoid"}
	w := newWorld(t, s, 1)
	w.maker.Workers = 1
	faults := map[int]llmtest.Answer{
		2:  {Text: "I would rather not.", Stop: llm.StopRefused},
		3:  {Text: "```python\nclass Model(nn.Module):", Stop: llm.StopLength},
		4:  {Text: "Here is what I would do: a gate."},
		7:  block(module("torch.tanh(x) + 1", "random")),
		8:  block(module("torch.tanh(x) + 1", "constant")),
		9:  block(module("torch.softmax(torch.tanh(x), -1)", "wrong")),
		10: block("import os\n\n\nclass Model(\n    def get_inputs(\n"),
	}
	leaked := false
	server := w.writes(t, func(n int, asked string) llmtest.Answer {
		if n >= 5 && !leaked && !strings.Contains(asked, "hardsigmoid") { // nobody named it
			leaked = true
			return block(module("F.hardsigmoid(x.sin())", "fine"))
		}
		if a, wrong := faults[n]; wrong {
			return a
		}
		if strings.Contains(asked, "hardsigmoid") { // the draw is for new kinds
			return block(module(fmt.Sprintf("F.hardsigmoid(x.%s()) * x", pointwise[n%len(pointwise)]), "fine"))
		}
		a, b := pointwise[n%len(pointwise)], pointwise[n/len(pointwise)%len(pointwise)]
		return block(module(fmt.Sprintf("x.%s() * torch.softmax(x.%s().abs(), -1) + x", a, b), "fine"))
	})
	set := w.begin(t, "written", s)
	ok(t, w.maker.Make(t.Context(), set, s))
	reasons, err := w.store.TaskReasons(t.Context(), set.ID)
	ok(t, err)
	for _, reason := range []string{
		"not composed: the model refuses", "not composed: the answer is cut off", "not composed: the answer holds no reference", "has an operator kind that is never trained on",
		"is random", "its output is constant", "eager as a candidate is wrong", "its text cannot be read",
	} {
		if reasons[reason] != 1 {
			t.Errorf("%d draws were left out for %q: %v", reasons[reason], reason, reasons)
		}
	}
	kept, err := w.store.TaskDraws(t.Context(), set.ID, true)
	ok(t, err)
	all, err := Decode(kept)
	ok(t, err)
	for _, task := range all {
		if task.Origin != originWritten || len(task.Operators) == 0 {
			t.Errorf("%+v", task)
		}
		if held := slices.Contains(task.Kinds, "hardsigmoid"); held != (task.Split == store.KindsSplit) {
			t.Errorf("%s has the kinds %v", task.Split, task.Kinds)
		}
	}
	asked := server.Asked()
	if !strings.Contains(asked[0].Last, "Operators: F.") || !strings.Contains(asked[0].Last, "data: a file in this form") || !strings.Contains(asked[0].Last, "between 0.5 ms and 100 ms") {
		t.Errorf("it was asked %q", asked[0].Last)
	}
	spent, err := w.store.Spending(t.Context(), 0)
	ok(t, err)
	// Those that were under way when the set was whole are interrupted: they count at worst,
	// and the model may not have been asked.
	if len(spent) != 1 || int(spent[0].Calls) < len(asked) || int(spent[0].Calls-spent[0].AtWorst) > len(asked) || spent[0].USD <= 0 {
		t.Errorf("%d calls were paid for as %+v", len(asked), spent)
	}
}

// A model that cannot be asked decides nothing about a draw.
func TestAModelThatIsGoneLeavesTheDraw(t *testing.T) {
	s := small()
	s.Writer = "openai:m"
	w := newWorld(t, s, 1)
	w.writes(t, func(int, string) llmtest.Answer { return llmtest.Answer{Problem: llmtest.WrongKey} })
	set := w.begin(t, "written", s)
	if err := w.maker.Make(t.Context(), set, s); err == nil || !strings.Contains(err.Error(), "openai:m") {
		t.Fatal(err)
	}
	if drawn := w.draws(t, set); drawn != "" {
		t.Errorf("it was decided on %s", drawn)
	}
}

func TestReferencesInAnswers(t *testing.T) {
	whole := module("x.sin()", "fine")
	for name, c := range map[string]struct{ text, source, reason string }{
		"bare":         {whole, whole, ""},
		"fenced":       {"Here.\n```python\n" + whole + "```\nDone.", whole, ""},
		"the last one": {"```\n" + module("x", "fine") + "```\nBetter:\n~~~py\r\n" + strings.ReplaceAll(whole, "\n", "\r\n") + "~~~", whole, ""},
		"then prose":   {"```python\n" + whole + "```\n```\nrun it\n```", whole, ""},
		"prose":        {"A module.", "", "not composed: the answer holds no reference"},
		"a candidate":  {"```python\nclass ModelNew(nn.Module):\n    pass\n```", "", "not composed: the answer holds no reference"},
		"too long":     {"```python\n" + whole + strings.Repeat("# more\n", 5000) + "```", "", "not composed: the answer is too long"},
	} {
		source, reason := written(llm.Reply{Text: c.text, Stop: llm.StopEnd})
		if source != c.source || reason != c.reason {
			t.Errorf("%s: %q, %q", name, source, reason)
		}
	}
}
