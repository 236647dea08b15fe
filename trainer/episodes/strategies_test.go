package episodes

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	kw "github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
)

// act is a tool call in OpenAI's form.
func act(name string, arguments map[string]string) map[string]any {
	if arguments == nil {
		arguments = map[string]string{}
	}
	b, err := json.Marshal(arguments)
	if err != nil {
		panic(err)
	}
	return map[string]any{"type": "function", "function": map[string]any{"name": name, "arguments": string(b)}}
}

// acts is a turn that calls tools, or says them in words.
func acts(native bool, calls ...map[string]any) map[string]any {
	if native {
		return map[string]any{"text": "", "tool_calls": calls, "token_ids": []int{7}}
	}
	var b strings.Builder
	for _, c := range calls {
		f := c["function"].(map[string]any)
		fmt.Fprintf(&b, "```tool\n{\"tool\": %q, \"arguments\": %s}\n```\n", f["name"], f["arguments"])
	}
	return map[string]any{"text": b.String(), "token_ids": []int{7}}
}

// source is a candidate of some kilobytes.
func source(words string, kilobytes int) string {
	return "class ModelNew: pass # " + words + "\n" + strings.Repeat("# a comment that says little, and that many times over, in vain\n", 16*kilobytes)
}

// A react episode with tools goes to its end: what tools say is appended, until the
// talk is compacted, which replaces it; and what the policy leaves is what counts.
func TestReact(t *testing.T) {
	for _, tools := range []string{"native", "text"} {
		t.Run(tools, func(t *testing.T) {
			w := newWorld(t)
			native := tools == "native"
			a := w.start(map[string]any{"strategy": "react", "tools": tools, "context_tokens": 16_000, "rounds": 5, "turns": 20})
			if a.Context != "replace" || (len(a.Tools) > 0) != native {
				t.Fatalf("%+v", a)
			}
			write := func(words string) map[string]any {
				return act("write", map[string]string{"path": "model_new.py", "content": source(words, 15)})
			}
			finish := act("finish", map[string]string{"reason": "enough"})
			var contexts []string
			for i, turn := range []map[string]any{
				acts(native, write("plain")), acts(native, act("compile", nil)), acts(native, act("verify", nil)),
				acts(native, write("wrong")), acts(native, write("faster")), acts(native, act("list", nil)), acts(native, finish), acts(native, finish),
			} {
				if a.Done || a.Call != i {
					t.Fatalf("turn %d: %+v", i, a)
				}
				a = w.turn(a.ID, turn)
				contexts = append(contexts, a.Context)
				if a.Invalid {
					t.Errorf("turn %d: %+v", i, a)
				}
				if a.Context == "append" && !a.Done && len(a.Messages) != 1 {
					t.Errorf("turn %d: %+v", i, a.Messages)
				}
				if a.Context == "replace" && a.Messages[0].Role != "system" {
					t.Errorf("turn %d: %+v", i, a.Messages)
				}
				if native && a.Context == "append" && !a.Done && (a.Messages[0].Role != "tool" || a.Messages[0].Call == "") {
					t.Errorf("turn %d: %+v", i, a.Messages)
				}
			}
			if got := strings.Join(contexts, " "); !strings.HasPrefix(got, "append append append ") || !strings.Contains(got, "replace") {
				t.Errorf("contexts: %s", got)
			}
			// It was verified as plain, and faster when it was left.
			if !a.Done || *a.Reward != kw.RewardFasterThanEager || a.Rounds != 2 || a.Stop != string(kw.StopDeclined) {
				t.Errorf("%+v", a)
			}
			samples := w.samples("?texts=1")
			if len(samples) != 8 {
				t.Fatalf("%d samples", len(samples))
			}
			for i, s := range samples {
				if last := i == len(samples)-1; last != (s.Reward != nil) || last && *s.Reward != 2 || s.Call != i || len(s.ResponseIDs) != 1 || i > 0 && s.Context != contexts[i-1] {
					t.Errorf("%d: %+v", i, s)
				}
			}
			w.replays(a.ID)
		})
	}
}

// replays makes a run's decisions again from its record alone.
func (w *world) replays(id int64) {
	w.t.Helper()
	ctx := w.t.Context()
	run, err := w.store.Run(ctx, id)
	if err != nil {
		w.t.Fatal(err)
	}
	task, err := w.store.RunTask(ctx, id)
	if err != nil {
		w.t.Fatal(err)
	}
	rounds, err := w.store.Rounds(ctx, id)
	if err != nil {
		w.t.Fatal(err)
	}
	e := w.episodes
	parts := w.replayed(run.Coder)
	parts.Device, parts.Judge = w.hardware.Device(), e.o.Judge
	task.Name = run.TaskName
	difference, err := forge.Replay(ctx, rounds, task, run, parts)
	if err != nil || difference != nil {
		w.t.Errorf("replay: %v, %v", difference, err)
	}
}

// A beam asks for several candidates of one state: the trainer gets them one after
// the other, each as a prompt of its own.
func TestBeam(t *testing.T) {
	w := newWorld(t)
	a := w.start(map[string]any{"strategy": "beam", "rounds": 4, "judge": "none"})
	for i := 0; !a.Done && i < 10; i++ {
		if a.Context != "replace" || len(a.Messages) != 2 {
			t.Fatalf("%+v", a)
		}
		a = w.turn(a.ID, text(fmt.Sprint("fastest ", i)))
	}
	if !a.Done || *a.Reward != 3 || a.Rounds != 4 {
		t.Errorf("%+v", a)
	}
	if s := w.samples(""); len(s) != 4 {
		t.Errorf("%d samples", len(s))
	}
}

// A strategy that ends while calls wait, or a policy that never calls a tool, ends
// the episode with a reward.
func TestReactThatDoesNothing(t *testing.T) {
	w := newWorld(t)
	a := w.start(map[string]any{"strategy": "react", "turns": 3})
	for range 3 {
		if a = w.turn(a.ID, map[string]any{"text": "I would rather not."}); !a.Invalid {
			t.Errorf("%+v", a)
		}
	}
	if !a.Done || *a.Reward != -1 || a.Verdict != nil || a.Rounds != 0 {
		t.Errorf("%+v", a)
	}
}

// Whether a completion called a tool is what the strategy found, not what its text
// looks like.
func TestInvalid(t *testing.T) {
	w := newWorld(t)
	fence, list := "```tool\n", acts(false, act("list", nil))["text"].(string)
	for tools, completions := range map[string]map[string]bool{
		"text": {
			list: false, "Look: " + fence + "{}": true, fence + "no JSON\n```\n": true, "I would write ```tool in a line.": true,
			fence + "no JSON\n```\n" + list: false, "  " + list: false,
		},
		"native": {list: true, "words": true},
	} {
		for words, want := range completions {
			a := w.start(map[string]any{"strategy": "react", "tools": tools, "turns": 5})
			if a = w.turn(a.ID, map[string]any{"text": words}); a.Invalid != want || a.Done {
				t.Errorf("%s, %q: %+v, want invalid %v", tools, words, a, want)
			}
			if a = w.turn(a.ID, acts(tools == "native", act("list", nil))); a.Invalid {
				t.Errorf("%s, after %q: %+v", tools, words, a)
			}
		}
	}
}

// A policy whose context is known is asked in prompts that fit it.
func TestSmallContext(t *testing.T) {
	w := newWorld(t)
	reference := "class Model: pass\n" + strings.Repeat("# long\n", 100)
	a := w.start(map[string]any{"reference": reference, "context_length": 2048, "max_tokens": 700})
	if a.MaxTokens != 700 {
		t.Errorf("%+v", a)
	}
	if b := w.turn(a.ID, map[string]any{"text": file("plain"), "finish_reason": "length"}); *b.Reward != 1 || w.samples("")[0].Finish != "length" {
		t.Errorf("%+v", b)
	}
	calls, err := w.store.Calls(t.Context(), a.ID)
	if err != nil || calls[0].Request.Fit.Context != 2048 {
		t.Errorf("%+v, %v", calls, err)
	}
	// One that cannot be asked at all is told so.
	code, got := w.call("POST", "/v1/episodes", map[string]any{"reference": reference, "context_length": 600})
	if s := w.episodes.Stats(); code != 400 || !strings.Contains(fmt.Sprint(got["error"]), "does not fit") || s.Dropped != 1 || s.Open != 0 {
		t.Errorf("%d %v", code, got)
	}
}
