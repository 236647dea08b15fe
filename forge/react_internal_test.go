package forge

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/prompts"
)

// desk is an actor at an empty work folder.
func desk(t testing.TB, s Settings) *actor {
	t.Helper()
	skills, err := prompts.LoadSkills("")
	if err != nil {
		t.Fatal(err)
	}
	l := &loop{
		Parts: &Parts{Skills: skills}, task: kernelwright.Task{Name: "softmax", Source: "class Model: pass\n"},
		settings: s.withDefaults(), now: time.Now,
	}
	a, err := newActor(l)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestLaunchesWhoseTimesAreNotKnown(t *testing.T) {
	p := &kernelwright.Profile{Tool: "ncu", Launches: 9, Kernels: []kernelwright.KernelProfile{
		{Name: "k", Whose: "custom", Launches: 2, MS: 0.5, Grid: [3]int{4, 1, 1}, Block: [3]int{32, 1, 1}}, {Name: "l", Whose: "custom", Launches: 7},
	}}
	for ms, want := range map[float64]string{0: "Profiled by ncu: 9 launches.\n", 0.75: "Profiled by ncu: 9 launches, 0.75 ms in kernels.\n"} {
		p.MS = ms
		var b strings.Builder
		launchLines(&b, p)
		want += "- k (custom): 2 launches, 0.5 ms, grid [4 1 1], block [32 1 1]\n- l (custom): 7 launches, grid [0 0 0], block [0 0 0]\n"
		if b.String() != want {
			t.Errorf("got\n%s\nwant\n%s", b.String(), want)
		}
	}
}

func (a *actor) call(t testing.TB, name, arguments string) string {
	t.Helper()
	r, err := a.do(context.Background(), llm.ToolCall{Name: name, Arguments: arguments})
	if err != nil {
		t.Fatal(err)
	}
	return r.text
}

func TestTheWorkFolder(t *testing.T) {
	a := desk(t, Settings{})
	for _, c := range []struct{ name, arguments, want string }{
		{"list", `{}`, "kernelwright.py, "},
		{"list", ``, "reference.py, 18 bytes, protected"},
		{"read", `{"path": "reference.py"}`, "class Model: pass"},
		{"read", `{"path": "model_new.py"}`, "there is no file model_new.py: the folder has kernelwright.py, reference.py"},
		{"write", `{"path": "model_new.py", "content": "a\nb\nb\n"}`, "model_new.py is written, 6 bytes"},
		{"write", `{"path": "./kernels//k.cu", "content": "__global__ x"}`, "kernels/k.cu is written"},
		{"write", `{"path": "reference.py", "content": "x"}`, "reference.py is protected"},
		{"write", `{"path": "./reference.py", "content": "x"}`, "reference.py is protected"},
		{"write", `{"path": "kernelwright/__init__.py", "content": "x"}`, "kernelwright.py is protected"},
		{"edit", `{"path": "kernelwright.py", "old": "def native", "new": "x"}`, "kernelwright.py is protected"},
		{"write", `{"path": "/etc/passwd", "content": "x"}`, "absolute path"},
		{"write", `{"path": "../x.py", "content": "x"}`, "leads out of the work folder"},
		{"write", `{"path": "kernels/../../x.py", "content": "x"}`, "leads out of the work folder"},
		{"write", `{"path": "a/b/c/d/e.py", "content": "x"}`, "too deep"},
		{"write", `{"path": ".git", "content": "x"}`, "begins with a dot"},
		{"write", `{"path": "a\\b", "content": "x"}`, "is no path here"},
		{"write", `{"path": "a\u0000", "content": "x"}`, "is no path here"},
		{"write", `{"path": "", "content": "x"}`, "the path is empty"},
		{"write", `{"path": "model_new.py/x", "content": "x"}`, "cannot be a file"},
		{"write", `{"path": "kernels", "content": "x"}`, "cannot be a file"},
		{"write", `{"path": "model_new.py"}`, `write: the argument "content" is missing: it takes path, content; the tools are read, write, edit, list, search, compile, verify, profile, skill, finish`},
		{"write", `{"path": 3, "content": "x"}`, `write: the argument "path" must be a text`},
		{"write", `{"path": null, "content": "x"}`, `write: the argument "path" must be a text`},
		{"write", `{"path": "x", "content": "x", "mode": 7}`, `write: there is no argument "mode": it takes path, content`},
		{"write", `["x"]`, "write: the arguments are no JSON object"},
		{"write", `{"path": "x", "content": "x"} and more`, "there is text after"},
		{"write", `{"path": "x", "content": "` + strings.Repeat("y", maxFileBytes+1) + `"}`, "bytes: 131072 at most"},
		{"write", strings.Repeat(" ", maxArgumentBytes+1), "bytes: 262144 at most"},
		{"edit", `{"path": "model_new.py", "old": "b", "new": "c"}`, `has the passage in "old" 2 times`},
		{"edit", `{"path": "model_new.py", "old": "z", "new": "c"}`, `does not have the passage`},
		{"edit", `{"path": "model_new.py", "old": "", "new": "c"}`, `"old" is empty`},
		{"edit", `{"path": "model_new.py", "old": "b\nb", "new": "c\nd"}`, "changed, in line 2"},
		{"read", `{"path": "model_new.py", "first": 2, "lines": 1}`, "lines 2 to 2 of 3\n```text\nc\n```"},
		{"read", `{"path": "model_new.py", "first": 9}`, "has 3 lines"},
		{"read", `{"path": "model_new.py", "first": 0}`, "must be a whole number from 1"},
		{"read", `{"path": "model_new.py", "first": 1.5}`, "must be a whole number from 1"},
		{"search", `{"pattern": "^[cd]$"}`, "2 lines match\n```text\nmodel_new.py:2: c\nmodel_new.py:3: d\n```"},
		{"search", `{"pattern": "("}`, "no regular expression"},
		{"search", `{"pattern": "nowhere"}`, "no line matches"},
		{"search", `{"pattern": "(a|b|.){999}"}`, "steps, its repetitions written out: 1000 at most"},
		{badCall, strings.Repeat("x", 50_000), `there is no tool "\x00bad"`},
		{"skill", `{}`, "scans: Prefix sums along a row"},
		{"skill", `{"name": null}`, "scans: Prefix sums along a row"},
		{"skill", `{"name": "scans"}`, "# Scans: cumsum, cumprod"},
		{"skill", `{"name": "../secrets"}`, `There is no skill "../secrets"`},
		{"verify", `{"now": true}`, `verify: it takes no arguments, and "now" was given`},
		{"shell", `{"command": "id"}`, `there is no tool "shell": there are read, write`},
	} {
		if got := a.call(t, c.name, c.arguments); !strings.Contains(got, c.want) {
			t.Errorf("%s %.80s: got %q, want %q", c.name, c.arguments, got, c.want)
		}
	}
	if got := a.folder.files[referenceFile]; got != "class Model: pass\n" {
		t.Errorf("the reference is %q now", got)
	}
	if a.folder.files[loaderFile] != loaderText {
		t.Error("the loader was changed")
	}
}

// What the model looks up is for what it writes in.
func TestSkillsAreForTheLanguage(t *testing.T) {
	for language, c := range map[kernelwright.Language]struct{ has, lacks, softmax string }{
		kernelwright.CPP:    {"debugging_cpp", "tensor_cores", "softmax_cpu"},
		kernelwright.CUDA:   {"tensor_cores", "cpu", "softmax_block"},
		kernelwright.Triton: {"triton", "debugging", "exp2"},
	} {
		a := desk(t, Settings{Language: language})
		if list := "\n" + a.call(t, "skill", `{}`); !strings.Contains(list, "\n"+c.has+": ") || strings.Contains(list, "\n"+c.lacks+": ") {
			t.Errorf("%s: %s", language, list)
		}
		if text := a.call(t, "skill", `{"name": "softmax"}`); !strings.Contains(text, c.softmax) || strings.Contains(text, "softmax_cpu") != (language == kernelwright.CPP) || strings.Contains(text, "[cuda") {
			t.Errorf("%s: %s", language, text)
		}
		if text := a.call(t, "skill", fmt.Sprintf(`{"name": %q}`, c.lacks)); !strings.HasPrefix(text, "There is no skill") {
			t.Errorf("%s: %s", language, text)
		}
	}
}

func TestTheWorkFolderIsBounded(t *testing.T) {
	a := desk(t, Settings{})
	big, err := json.Marshal(strings.Repeat("x", maxFileBytes))
	if err != nil {
		t.Fatal(err)
	}
	full := 0
	for i := 0; i < 200 && full < 3; i++ {
		got := a.call(t, "write", fmt.Sprintf(`{"path": "f%d", "content": %s}`, i, big))
		if strings.Contains(got, "would hold more than") {
			full++
		}
	}
	if a.folder.size > maxFolderBytes || full == 0 {
		t.Errorf("it holds %d bytes, refused %d times", a.folder.size, full)
	}
	a = desk(t, Settings{})
	for i := range 200 {
		a.call(t, "write", fmt.Sprintf(`{"path": "f%d", "content": "x"}`, i))
	}
	if len(a.folder.files) != maxFiles || !strings.Contains(a.call(t, "write", `{"path": "more", "content": "x"}`), "which is the most") {
		t.Errorf("it has %d files", len(a.folder.files))
	}
	a.call(t, "write", fmt.Sprintf(`{"path": "f1", "content": %s}`, big))
	if got := a.call(t, "read", `{"path": "f1"}`); len(got) > maxResultBytes+100 || !strings.HasSuffix(got, "x\n```\n(cut off here)") {
		t.Errorf("a file of one line is shown in %d bytes, to %q", len(got), got[len(got)-30:])
	}
}

// What is foreign stays between its fences where it is cut off, and what a tool
// says after it does not.
func TestCutOff(t *testing.T) {
	for _, foreign := range []string{
		strings.Repeat("x", 3*maxResultBytes), strings.Repeat("x\n", maxResultBytes), "```text\n" + strings.Repeat("````\n```text\n", maxResultBytes),
		strings.Repeat("`", 2*maxResultBytes), strings.Repeat("x", maxResultBytes-28) + "\nlast", strings.Repeat("x", maxResultBytes-31),
	} {
		for _, before := range []string{"", "head\n", "head\n" + fenced("a\nb") + "\n"} {
			whole := before + fenced(foreign)
			got := cutOff(whole, maxResultBytes)
			if len(got) > maxResultBytes+maxFence+20 {
				t.Errorf("%d bytes", len(got))
			}
			fence := ""
			for line := range strings.Lines(got) {
				switch mark := strings.TrimSuffix(line, "\n"); {
				case fence != "" && mark == fence:
					fence = ""
				case fence == "" && strings.HasPrefix(mark, "```"):
					fence = strings.TrimSuffix(mark, "text")
				case fence != "" && mark == "(cut off here)":
					t.Errorf("what we say stands between the fences:\n%.60q ... %.60q", got, got[len(got)-60:])
				case fence == "" && strings.Contains(mark, "xxx"):
					t.Errorf("what is foreign stands outside the fences:\n%.60q", mark)
				}
			}
			if fence != "" || (len(whole) > maxResultBytes) != strings.HasSuffix(got, "\n(cut off here)") {
				t.Errorf("%.60q ... %.60q", got, got[len(got)-60:])
			}
		}
	}
	if got := cutOff("short", maxResultBytes); got != "short" {
		t.Errorf("%q", got)
	}
}

// Tools are told of in few words: JSON without spaces, whose arguments keep their
// order, since servers that hold a model to a schema have it write in that order.
func TestToolsAreToldOfInFewWords(t *testing.T) {
	a := desk(t, Settings{})
	for _, brief := range []bool{false, true} {
		mostJSON, mostWords := 1900, 800
		if brief {
			mostJSON, mostWords = 1200, 430
		}
		toldOf(t, a.told(brief), brief, mostJSON, mostWords)
	}
}

func toldOf(t *testing.T, tools []tool, brief bool, mostJSON, mostWords int) {
	t.Helper()
	all, err := json.Marshal(declared(tools, brief))
	if err != nil {
		t.Fatal(err)
	}
	if text := listed(tools, brief); len(all) > mostJSON || len(text) > mostWords || len(strings.Split(text, "\n")) != len(tools) {
		t.Errorf("%d bytes of JSON, %d in words:\n%s", len(all), len(text), text)
	}
	for i, d := range declared(tools, brief) {
		params := slices.DeleteFunc(slices.Clone(tools[i].params), func(p param) bool { return brief && p.optional })
		var compact bytes.Buffer
		if err := json.Compact(&compact, d.Parameters); err != nil || compact.String() != string(d.Parameters) {
			t.Errorf("%s: %s: %v", d.Name, d.Parameters, err)
		}
		var schema struct {
			Type       string
			Properties map[string]struct{ Type string }
			Required   []string
		}
		if err := json.Unmarshal(d.Parameters, &schema); err != nil || schema.Type != "object" || len(schema.Properties) != len(params) {
			t.Errorf("%s: %s: %v", d.Name, d.Parameters, err)
		}
		at, required := 0, 0
		for _, p := range params {
			found := strings.Index(string(d.Parameters[at:]), quoted(p.name)+`:{"type":"`+p.kind()+`"`)
			if found < 0 {
				t.Errorf("%s: %s is not where it belongs: %s", d.Name, p.name, d.Parameters)
			}
			at += found
			if !p.optional {
				required++
			}
		}
		if len(schema.Required) != required {
			t.Errorf("%s requires %v", d.Name, schema.Required)
		}
	}
}

func TestTextCalls(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []llm.ToolCall
	}{
		{"none", "I will read it.", nil},
		{"another block", "```json\n{\"tool\": \"read\"}\n```\n", nil},
		{"not alone on its line", "see ```tool\n{}\n```", nil},
		{"one", "So:\n```tool\n{\"tool\": \"list\", \"arguments\": {}}\n```\nDone.", []llm.ToolCall{{Name: "list", Arguments: "{}"}}},
		{"without arguments", "```tool\n{\"tool\": \"list\"}\n```", []llm.ToolCall{{Name: "list"}}},
		{"CRLF", "```tool\r\n{\"tool\": \"list\"}\r\n```\r\n", []llm.ToolCall{{Name: "list"}}},
		{"two", "```tool\n{\"tool\": \"a\"}\n```\n\n```tool\n{\"tool\": \"b\"}\n```\n", []llm.ToolCall{{Name: "a"}, {Name: "b"}}},
		{"over lines", "```tool\n{\"tool\": \"write\",\n \"arguments\": {\"content\": \"```\\n\"}}\n```", []llm.ToolCall{{Name: "write", Arguments: "{\"content\": \"```\\n\"}"}}},
		{"no end", "```tool\n{\"tool\": \"a\"}\n", []llm.ToolCall{{Name: badCall, Arguments: "the block of the call does not end"}}},
		{"no JSON", "```tool\nread it\n```", []llm.ToolCall{{Name: badCall, Arguments: "the call is no JSON object"}}},
		{"two objects", "```tool\n{\"tool\": \"a\"}{\"tool\": \"b\"}\n```", []llm.ToolCall{{Name: badCall, Arguments: "one call a block"}}},
		{"another key", "```tool\n{\"name\": \"a\"}\n```", []llm.ToolCall{{Name: badCall, Arguments: "unknown field"}}},
		{"no name", "```tool\n{\"arguments\": {}}\n```", []llm.ToolCall{{Name: badCall, Arguments: "names no tool"}}},
	} {
		got := textCalls(c.text)
		if len(got) != len(c.want) {
			t.Errorf("%s: got %+v", c.name, got)
			continue
		}
		for i, w := range c.want {
			if got[i].Name != w.Name || w.Name != badCall && got[i].Arguments != w.Arguments || !strings.Contains(got[i].Arguments, w.Arguments) {
				t.Errorf("%s: got %+v, want %+v", c.name, got[i], w)
			}
		}
	}
}

// Whatever a model writes, it is answered, nothing leaves the folder, and what
// is given stays as it is.
func FuzzToolCalls(f *testing.F) {
	f.Add("write", `{"path": "model_new.py", "content": "x"}`)
	f.Add("read", `{"path": "../x"}`)
	f.Add("edit", `{"path": "reference.py", "old": "class", "new": ""}`)
	f.Add("search", `{"pattern": "(a*)*b"}`)
	f.Add("\x00bad", "x")
	f.Add("```tool\n{\"tool\": \"write\", \"arguments\": {\"path\": \"a/../../b\"}}\n```", "")
	f.Fuzz(func(t *testing.T, name, arguments string) {
		if name == "compile" || name == "verify" || name == "profile" || name == "finish" {
			return // these ask others
		}
		a := desk(t, Settings{})
		for _, c := range append(textCalls(name), llm.ToolCall{Name: name, Arguments: arguments}) {
			if c.Name == "compile" || c.Name == "verify" || c.Name == "profile" || c.Name == "finish" {
				continue
			}
			if got := a.call(t, c.Name, c.Arguments); got == "" || len(got) > maxResultBytes+100 {
				t.Fatalf("%q %q is answered with %d bytes", c.Name, c.Arguments, len(got))
			}
		}
		if a.folder.files[referenceFile] != a.task.Source || a.folder.files[loaderFile] != loaderText {
			t.Fatal("what is protected was changed")
		}
		for p := range a.folder.files {
			if strings.HasPrefix(p, "/") || strings.Contains(p, "..") && strings.Contains("/"+p+"/", "/../") {
				t.Fatalf("the folder has %q", p)
			}
		}
	})
}

// A talk of any turns fits its limit, begins with its head, answers each call
// that is still in it, and goes on with what was sent wherever it says so.
func TestATalkFitsItsLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(kernelwright.LeastReactContext, 40_000).Draw(t, "limit")
		head := []llm.Message{{Role: llm.System, Text: "system"}, {Role: llm.User, Text: strings.Repeat("r", rapid.IntRange(0, 9_000).Draw(t, "reference"))}}
		a := newTalk(head, limit)
		var before []llm.Message
		compacted := 0
		for i := range rapid.IntRange(1, 60).Draw(t, "turns") {
			got, goesOn := a.messages(a.room(), true, func() string { return "so far" })
			size := 0
			calls := map[string]bool{}
			for _, m := range got {
				size += len(m.Text) + len(m.Carry)
				for _, c := range m.ToolCalls {
					size += len(c.Arguments)
				}
				for _, c := range m.ToolCalls {
					calls[c.ID] = true
					if !json.Valid([]byte(c.Arguments)) {
						t.Fatalf("arguments are %q", c.Arguments)
					}
				}
				if m.Role == llm.ToolRole && !calls[m.Call] {
					t.Fatalf("%s is answered, and nobody asked", m.Call)
				}
			}
			if size > limit*bytesPerToken {
				t.Fatalf("turn %d: %d bytes in %d tokens", i, size, limit)
			}
			if got[0].Text != "system" || !strings.HasPrefix(got[1].Text, head[1].Text) || got[2:] != nil && len(got) > 2 && got[2].Role != llm.Assistant {
				t.Fatal("the head is gone")
			}
			shared := 0
			for j, m := range got {
				if m.Shared > len(m.Text) || m.Shared > 0 && m.Role == llm.Assistant {
					t.Fatalf("of message %d %d bytes are shared", j, m.Shared)
				}
				if m.Shared > 0 {
					shared++
				}
			}
			if last := got[len(got)-1]; shared > 4 || got[0].Shared != len("system") || last.Shared != len(last.Text) || got[1].Shared < min(len(head[1].Text), len(got[1].Text)) {
				t.Fatalf("turn %d: %d messages are shared", i, shared)
			}
			if goesOn {
				if at := len(before) - 2; at >= 0 && got[at].Shared != len(got[at].Text) {
					t.Fatalf("turn %d: the end of the last request is not shared", i)
				}
				for j, m := range before {
					if m.Text != got[j].Text || len(m.ToolCalls) != len(got[j].ToolCalls) {
						t.Fatalf("turn %d does not go on with message %d", i, j)
					}
				}
			} else if i > 0 {
				compacted++
			}
			a.sent()
			reply := llm.Message{Role: llm.Assistant, Text: strings.Repeat("t", rapid.IntRange(0, 3000).Draw(t, "text"))}
			reply.Carry = json.RawMessage(`"` + strings.Repeat("c", rapid.IntRange(0, 30_000).Draw(t, "carry")) + `"`)
			var results []llm.Message
			var notes []string
			for n := range rapid.IntRange(1, 3).Draw(t, "calls") {
				id := fmt.Sprintf("%d.%d", i, n)
				args, err := json.Marshal(map[string]string{"path": "p", "content": strings.Repeat("\"", rapid.IntRange(0, 2000).Draw(t, "content"))})
				if err != nil {
					t.Fatal(err)
				}
				reply.ToolCalls = append(reply.ToolCalls, llm.ToolCall{ID: id, Name: "write", Arguments: string(args)})
				results = append(results, llm.Message{Role: llm.ToolRole, Call: id, Text: strings.Repeat("o", rapid.IntRange(0, 3000).Draw(t, "result"))})
				notes = append(notes, "write: it is written")
			}
			a.add(turn{reply: reply, results: results, notes: notes})
			before = slices.Concat(got, []llm.Message{reply})
		}
	})
}

func TestFinishIsRefusedOnce(t *testing.T) {
	fast := kernelwright.Round{Verdict: kernelwright.Verdict{Status: kernelwright.Correct, CandidateMS: 1, Speedup: &kernelwright.Speedup{Value: 1.2, Low: 1.1, High: 1.3}}}
	slow := kernelwright.Round{Verdict: kernelwright.Verdict{Status: kernelwright.Correct, CandidateMS: 1, Speedup: &kernelwright.Speedup{Value: 1, Low: 0.9, High: 1.3}}}
	for _, c := range []struct {
		name    string
		rounds  []kernelwright.Round
		turns   int // made so far
		refused string
	}{
		{"nothing yet", nil, 3, "not yet: no candidate was correct yet, and 6 answers are left"},
		{"too slow", []kernelwright.Round{slow}, 3, "round 0, is not 5 % faster"},
		{"fast enough", []kernelwright.Round{slow, fast}[1:], 3, ""},
		{"the last turn", nil, 9, ""},
	} {
		a := desk(t, Settings{React: ReactSettings{Turns: 10}})
		a.rounds, a.turns = c.rounds, c.turns
		if c.refused != "" {
			for range 2 { // the second is of the same answer
				if got := a.call(t, "finish", `{"reason": "r"}`); !strings.Contains(got, c.refused) {
					t.Errorf("%s: %q", c.name, got)
				}
			}
			a.turns++
		}
		_, err := a.do(t.Context(), llm.ToolCall{Name: "finish", Arguments: `{"reason": " enough "}`})
		if end, other := over(err); other != nil || end != (ended{kernelwright.StopDeclined, "enough"}) {
			t.Errorf("%s: then %v", c.name, err)
		}
	}
}

func TestOverCompile(t *testing.T) {
	won, lost := kernelwright.Speedup{Value: 1.2, Low: 1.06, High: 1.3}, kernelwright.Speedup{Value: 1.2, Low: 1.04, High: 1.3}
	for _, c := range []struct {
		v    kernelwright.Verdict
		want bool
	}{
		{kernelwright.Verdict{Speedups: map[string]kernelwright.Speedup{"compile": won}, Speedup: &lost}, true},
		{kernelwright.Verdict{Speedups: map[string]kernelwright.Speedup{"compile": lost}, Speedup: &won}, false},
		{kernelwright.Verdict{Speedup: &won}, true},
		{kernelwright.Verdict{Speedup: &lost}, false},
		{kernelwright.Verdict{}, false},
	} {
		if got := overCompile(c.v); got != c.want {
			t.Errorf("%+v: got %v", c.v, got)
		}
	}
}

func TestTheSettingsReachTheOpening(t *testing.T) {
	for language, want := range map[kernelwright.Language]string{
		kernelwright.CPP: "#pragma omp", kernelwright.CUDA: "cudaStream_t", kernelwright.Triton: "@triton.jit",
	} {
		a := desk(t, Settings{Language: language, React: ReactSettings{Turns: 33, TextTools: language == kernelwright.CUDA}})
		opening, err := a.opening(false)
		if err != nil {
			t.Fatal(err)
		}
		text := opening[0].Text
		if !strings.Contains(text, want) || !strings.Contains(text, "33 answers") || strings.Contains(text, "<no value>") {
			t.Errorf("%s:\n%s", language, text)
		}
		if strings.Contains(text, "```tool") != (language == kernelwright.CUDA) {
			t.Errorf("%s: the text protocol is where it should not be, or is not there:\n%s", language, text)
		}
	}
	a := desk(t, Settings{})
	a.task.Source = "# ```\n" + strings.Repeat("x", 1<<20)
	if text := a.taskText(false); len(text) > maxReferenceBytes+2000 || !strings.Contains(text, "````text") {
		t.Errorf("the task is told of in %d bytes", len(text))
	}
}
