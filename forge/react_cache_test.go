package forge_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	kw "github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/llm/llmtest"
	"github.com/kernelwright/kernelwright/store"
)

// What Anthropic's cache saves of a run of react, from what the run's record says:
// the prices are those of config.toml for claude-sonnet-5-5, the tokens are counted
// by the bytes that were sent.
func TestWhatTheCacheSavesOfReact(t *testing.T) {
	reference, candidate := example(t, "example_reference.py"), example(t, "example_cuda.py")
	read, write := 0.2, 2.5
	prices := llm.Prices{"anthropic:claude-sonnet-5-5": {In: 2, CachedIn: &read, CacheWrite: &write, Out: 10, AsOf: "2026-10-01"}}

	// Twelve candidates, each written, compiled, verified and profiled.
	var script [][]llm.ToolCall
	call := func(name, arguments string) llm.ToolCall { return llm.ToolCall{Name: name, Arguments: arguments} }
	script = append(script, []llm.ToolCall{call("list", `{}`), call("read", `{"path":"reference.py"}`), call("read", `{"path":"kernelwright.py"}`)})
	for i := range 12 {
		script = append(script, []llm.ToolCall{call("write", writing("model_new.py", candidate+strings.Repeat("# tuned\n", i)))},
			[]llm.ToolCall{call("compile", `{}`)}, []llm.ToolCall{call("verify", `{}`)}, []llm.ToolCall{call("profile", `{}`)})
	}
	script = append(script, []llm.ToolCall{call("finish", `{"reason":"It is at the floor."}`)}, []llm.ToolCall{call("finish", `{"reason":"It is at the floor."}`)})

	spent := func(cached bool) (kw.Spend, []llm.Record) {
		s, err := store.Open(filepath.Join(t.TempDir(), store.FileName))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		cache, server, answered := &llmtest.PromptCache{}, llmtest.NewAnthropic(t), 0
		server.Reply = func(q llmtest.Asked) llmtest.Answer {
			a := llmtest.Answer{Text: "I go on.", Tools: append([]llm.ToolCall{}, script[answered]...)}
			for i := range a.Tools {
				a.Tools[i].ID = fmt.Sprintf("call_%d_%d", answered, i)
			}
			answered++
			usage := cache.Usage(q.Body)
			for _, c := range a.Tools {
				usage.Out += int64(len(c.Arguments)+len(a.Text)) / 3
			}
			a.Usage = &usage
			return a
		}
		o := server.Options()
		o.PromptCache = &cached
		m, err := llm.New("anthropic:claude-sonnet-5-5", o, llm.Services{Prices: prices, Journal: s, Budget: llm.NewBudget(llm.Allowances{}, prices, s, nil)})
		if err != nil {
			t.Fatal(err)
		}
		run, err := s.CreateRun(t.Context(), kw.Run{Task: "f"})
		if err != nil {
			t.Fatal(err)
		}
		strategy, err := forge.New(forge.ReactStrategy, forge.Parts{
			Model: m, Evaluator: correct{}, Recorder: &memory{}, Journal: s, Settings: forge.Settings{Rounds: 20, JudgeMode: forge.JudgeScore},
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := strategy.Run(t.Context(), run, kw.Task{Name: "rows", Source: reference}); err != nil {
			t.Fatal(err)
		}
		sum, err := s.Spend(t.Context(), run.ID)
		if err != nil {
			t.Fatal(err)
		}
		calls, err := s.Calls(t.Context(), run.ID)
		if err != nil {
			t.Fatal(err)
		}
		return sum, calls
	}
	with, calls := spent(true)
	without, _ := spent(false)
	t.Logf("%d answers, %d tokens in, %d out", with.Calls, with.TokensIn, with.TokensOut)
	fresh := with.TokensIn - with.CachedIn - with.CacheWrite
	t.Logf("without a cache: %d × $2 + %d × $10 for a million: $%.4f", without.TokensIn, without.TokensOut, without.USD)
	t.Logf("with one: %d × $2 + %d read × $0.20 + %d written × $2.50 + %d × $10: $%.4f, %.0f %% less", fresh, with.CachedIn, with.CacheWrite, with.TokensOut, with.USD, 100*(1-with.USD/without.USD))
	if without.CachedIn != 0 || without.CacheWrite != 0 || with.TokensOut != without.TokensOut || with.USD > without.USD/2 {
		t.Errorf("with a cache %+v, without one %+v", with, without)
	}
	before := int64(0)
	for i, c := range calls {
		u := c.Reply.Usage
		if i > 0 && u.CachedIn != before { // all of what was sent before
			t.Errorf("answer %d: %d of %d tokens come from the cache, and %d were sent before", i, u.CachedIn, u.In, before)
		}
		before = u.In
	}
}
