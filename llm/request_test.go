package llm_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/llm/llmtest"
)

// sent asks once and returns the body that arrived.
func sent(t *testing.T, name string, s *llmtest.Server, change func(*llm.Options), r llm.Request) map[string]any {
	t.Helper()
	m := open(t, name, s, change)
	if _, err := m.Generate(t.Context(), r); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	all := s.Asked()
	return all[len(all)-1].Body
}

// What langchaingo leaves out or gets wrong, and what must not be sent.
func TestRequestFields(t *testing.T) {
	warm, top, zero, seed, no, yes := 0.7, 0.9, 0.0, int64(5), false, true
	asked := llmtest.Ask("hello")
	sampled := asked
	sampled.Temperature, sampled.TopP, sampled.Seed = &warm, &top, &seed
	cold := asked
	cold.Temperature = &zero
	loose := asked
	loose.Schema = &llm.Schema{Name: "f", Schema: json.RawMessage(`{"type":"object","properties":{"a":{"type":"string"}}}`)}
	tight := asked
	tight.Schema = &llm.Schema{Name: "f", Schema: json.RawMessage(`{"type":"object","properties":{"a":{"type":"array","items":{"type":"string"}}},"required":["a"],"additionalProperties":false}`)}

	for _, test := range []struct {
		model  string
		start  func(testing.TB) *llmtest.Server
		change func(*llm.Options)
		r      llm.Request
		want   string // fields that must be there
		not    string // fields that must not
	}{
		{"openai:gpt-4.1", llmtest.NewOpenAI, nil, asked, `{"max_completion_tokens":64,"stream":true,"stream_options":{"include_usage":true},"model":"gpt-4.1"}`, "temperature top_p seed max_tokens reasoning_effort tools response_format"},
		{"openai:gpt-4.1", llmtest.NewOpenAI, nil, sampled, `{"temperature":0.7,"top_p":0.9,"seed":5}`, ""},
		{"openai:gpt-4.1", llmtest.NewOpenAI, nil, cold, `{"temperature":0}`, "top_p"},
		{"openai:gpt-4.1", llmtest.NewOpenAI, func(o *llm.Options) { o.Temperature, o.TopP = &warm, &top }, cold, `{"temperature":0,"top_p":0.9}`, ""},
		{"openai:gpt-4.1", llmtest.NewOpenAI, func(o *llm.Options) { o.Stream, o.Sampling = &no, &no }, sampled, `{}`, "stream stream_options temperature top_p seed"},
		{"openai:gpt-5", llmtest.NewOpenAI, func(o *llm.Options) { o.ReasoningEffort = "high" }, sampled, `{"reasoning_effort":"high","max_completion_tokens":64}`, "temperature top_p seed max_tokens"},
		{"openai:gpt-4.1", llmtest.NewOpenAI, func(o *llm.Options) { o.MaxTokens = 99 }, llm.Request{Messages: asked.Messages}, `{"max_completion_tokens":99}`, ""},
		{"vllm:m", llmtest.NewCompatible, func(o *llm.Options) { o.ContextLength, o.MaxTokens = 1000, 900 }, llm.Request{Messages: []llm.Message{{Role: llm.User, Text: strings.Repeat("abc", 500)}}}, `{"max_tokens":476}`, ""},
		{"vllm:m", llmtest.NewCompatible, func(o *llm.Options) { o.TokenIDs = &yes }, asked, `{"max_tokens":64,"return_token_ids":true,"logprobs":true}`, "max_completion_tokens"},
		{"openai:gpt-4.1", llmtest.NewOpenAI, nil, tight, `{"response_format":{"type":"json_schema","json_schema":{"name":"f","strict":true,"schema":{"type":"object","properties":{"a":{"type":"array","items":{"type":"string"}}},"required":["a"],"additionalProperties":false}}}}`, ""},
		{"openai:gpt-4.1", llmtest.NewOpenAI, nil, loose, `{"response_format":{"type":"json_schema","json_schema":{"name":"f","strict":false,"schema":{"type":"object","properties":{"a":{"type":"string"}}}}}}`, ""},
		{"deepseek:m", llmtest.NewCompatible, nil, tight, `{}`, "response_format"},
		{"google:m", llmtest.NewGoogle, func(o *llm.Options) { o.ReasoningEffort = "low" }, sampled, `{"temperature":0.7,"top_p":0.9,"max_tokens":64,"reasoning_effort":"low"}`, "seed"},
		{"anthropic:m", llmtest.NewAnthropic, nil, asked, `{"max_tokens":64,"stream":true}`, "temperature top_p thinking tools seed"},
		{"anthropic:claude-sonnet-4-5", llmtest.NewAnthropic, nil, sampled, `{"temperature":0.7}`, "top_p"},
		{"anthropic:claude-sonnet-5-5", llmtest.NewAnthropic, func(o *llm.Options) { o.ReasoningEffort = "xhigh" }, withSchema(sampled, tight.Schema), `{"thinking":{"type":"adaptive"},"output_config":{"effort":"xhigh","format":{"type":"json_schema","schema":{"type":"object","properties":{"a":{"type":"array","items":{"type":"string"}}},"required":["a"],"additionalProperties":false}}}}`, "temperature top_p tools tool_choice"},
		{"anthropic:claude-sonnet-5-5", llmtest.NewAnthropic, nil, loose, `{}`, "output_config thinking tools tool_choice"},
		{"anthropic:claude-opus-4-1-20250805", llmtest.NewAnthropic, func(o *llm.Options) { o.ReasoningEffort = "medium" }, llm.Request{Messages: asked.Messages, MaxTokens: 8000, Temperature: &warm, Schema: tight.Schema}, `{"thinking":{"type":"enabled","budget_tokens":4000},"max_tokens":8000}`, "temperature tool_choice"},
		{"anthropic:claude-3-7-sonnet-20250219", llmtest.NewAnthropic, nil, tight, `{"tool_choice":{"type":"tool","name":"f"}}`, "response_format"},
		{"anthropic:claude-3-7-sonnet-20250219", llmtest.NewAnthropic, func(o *llm.Options) { o.JSONSchema = &no }, tight, `{}`, "tools tool_choice output_config"},
	} {
		body := sent(t, test.model, test.start(t), test.change, test.r)
		var want map[string]any
		if err := json.Unmarshal([]byte(test.want), &want); err != nil {
			t.Fatal(err)
		}
		for key, value := range want {
			if !reflect.DeepEqual(body[key], value) {
				t.Errorf("%s: %s is %v, want %v", test.model, key, body[key], value)
			}
		}
		for key := range strings.FieldsSeq(test.not) {
			if v, ok := body[key]; ok {
				t.Errorf("%s: %s is %v, and should not be there", test.model, key, v)
			}
		}
	}
}

func withSchema(r llm.Request, s *llm.Schema) llm.Request {
	r.Schema = s
	return r
}

// A long talk with tools arrives whole at a provider whose turns langchaingo
// cuts to their first part: text, two calls, both results, what was carried.
func TestAnthropicTurns(t *testing.T) {
	s := llmtest.NewAnthropic(t)
	body := sent(t, "anthropic:m", s, nil, llm.Request{MaxTokens: 64, Messages: []llm.Message{
		{Role: llm.System, Text: "you are brief"},
		{Role: llm.User, Text: "read"},
		{Role: llm.Assistant, Text: "I look.", Carry: json.RawMessage(`[{"type":"thinking","thinking":"hm","signature":"s"}]`), ToolCalls: []llm.ToolCall{
			{ID: "a", Name: "read", Arguments: `{"path":"x"}`}, {ID: "b", Name: "read", Arguments: `{"path":`},
		}},
		{Role: llm.ToolRole, Call: "a", Name: "read", Text: "one"},
		{Role: llm.ToolRole, Call: "b", Name: "read", Text: "no JSON"},
		{Role: llm.User, Text: "go on"},
		{Role: llm.Assistant, ToolCalls: []llm.ToolCall{{ID: "c", Name: "read", Arguments: `{}`}}, Carry: json.RawMessage(`{"turn":{}}`)},
		{Role: llm.ToolRole, Call: "c", Name: "read", Text: "two"},
	}})
	got, err := json.Marshal(body["messages"])
	if err != nil {
		t.Fatal(err)
	}
	const want = `[{"content":[{"text":"read","type":"text"}],"role":"user"},` +
		`{"content":[{"signature":"s","thinking":"hm","type":"thinking"},{"text":"I look.","type":"text"},` +
		`{"id":"a","input":{"path":"x"},"name":"read","type":"tool_use"},{"id":"b","input":{"not_json":"{\"path\":"},"name":"read","type":"tool_use"}],"role":"assistant"},` +
		`{"content":[{"content":"one","tool_use_id":"a","type":"tool_result"},{"content":"no JSON","tool_use_id":"b","type":"tool_result"},{"text":"go on","type":"text"}],"role":"user"},` +
		`{"content":[{"id":"c","input":{},"name":"read","type":"tool_use"}],"role":"assistant"},` +
		`{"content":[{"content":"two","tool_use_id":"c","type":"tool_result"}],"role":"user"}]`
	if string(got) != want {
		t.Errorf("the turns are\n%s\nwant\n%s", got, want)
	}
	if body["system"] != "you are brief" {
		t.Errorf("system is %v", body["system"])
	}
}

// What later calls share is marked for Anthropic's cache: the system's text, the
// beginning of the task, and the last ends of the talk; four places at most.
func TestCacheMarks(t *testing.T) {
	result := func(id, text string) llm.Message {
		return llm.Message{Role: llm.ToolRole, Call: id, Name: "read", Text: text, Shared: len(text)}
	}
	call := func(id string) llm.Message {
		return llm.Message{Role: llm.Assistant, ToolCalls: []llm.ToolCall{{ID: id, Name: "read", Arguments: `{}`}}}
	}
	r := llm.Request{Messages: []llm.Message{
		{Role: llm.System, Text: "you are brief", Shared: 13}, {Role: llm.User, Text: "the tÄsk, and more", Shared: 6}, // in the middle of Ä
		call("a"), result("a", "one"), call("b"), result("b", "two"), call("c"), result("c", "three"),
	}}
	const mark = `"cache_control":{"type":"ephemeral"},`
	const turn = `{"content":[{"id":"%s","input":{},"name":"read","type":"tool_use"}],"role":"assistant"},{"content":[{%s"content":"%s","tool_use_id":"%[1]s","type":"tool_result"}],"role":"user"}`
	for _, test := range []struct {
		name, system, want string
		change             func(*llm.Options)
	}{
		{"marked", `[{` + mark + `"text":"you are brief","type":"text"}]`, `[{"content":[{"text":"the tÄsk, and more","type":"text"}],"role":"user"},` +
			fmt.Sprintf(turn, "a", mark, "one") + "," + fmt.Sprintf(turn, "b", mark, "two") + "," + fmt.Sprintf(turn, "c", mark, "three") + "]", nil},
		{"not wanted", `"you are brief"`, `[{"content":[{"text":"the tÄsk, and more","type":"text"}],"role":"user"},` +
			fmt.Sprintf(turn, "a", "", "one") + "," + fmt.Sprintf(turn, "b", "", "two") + "," + fmt.Sprintf(turn, "c", "", "three") + "]", func(o *llm.Options) { o.PromptCache = new(bool) }},
	} {
		body := sent(t, "anthropic:claude-sonnet-5-5", llmtest.NewAnthropic(t), test.change, r)
		system, err := json.Marshal(body["system"])
		if err != nil {
			t.Fatal(err)
		}
		got, err := json.Marshal(body["messages"])
		if err != nil {
			t.Fatal(err)
		}
		if string(system) != test.system || string(got) != test.want {
			t.Errorf("%s: the system is %s\nand the talk\n%s\nwant\n%s", test.name, system, got, test.want)
		}
	}
	// Of a text only the beginning may be shared.
	r.Messages = r.Messages[:2]
	body := sent(t, "anthropic:claude-sonnet-5-5", llmtest.NewAnthropic(t), nil, r)
	got, err := json.Marshal(body["messages"])
	if want := `[{"content":[{` + mark + `"text":"the t","type":"text"},{"text":"Äsk, and more","type":"text"}],"role":"user"}]`; err != nil || string(got) != want {
		t.Errorf("the beginning of a text: %s\nwant %s", got, want)
	}
	// OpenRouter takes the same marks for the same models, in parts of a content.
	r.Messages = append(r.Messages, call("a"), result("a", "one"))
	part := func(text string) string { return `[{` + mark + `"text":"` + text + `","type":"text"}` }
	const read = `{"content":"","role":"assistant","tool_calls":[{"function":{"arguments":"{}","name":"read"},"id":"a","type":"function"}]}`
	wantMarked := `[{"content":` + part("you are brief") + `],"role":"system"},{"content":` + part("the t") + `,{"text":"Äsk, and more","type":"text"}],"role":"user"},` + read +
		`,{"content":` + part("one") + `],"role":"tool","tool_call_id":"a"}]`
	wantPlain := `[{"content":"you are brief","role":"system"},{"content":"the tÄsk, and more","role":"user"},` + read + `,{"content":"one","role":"tool","tool_call_id":"a"}]`
	for model, want := range map[string]string{"anthropic/claude-sonnet-5.5": wantMarked, "moonshotai/kimi-k2": wantPlain} {
		body = sent(t, "openrouter:"+model, llmtest.NewOpenRouter(t), nil, r)
		if got, err := json.Marshal(body["messages"]); err != nil || string(got) != want {
			t.Errorf("openrouter:%s: %s\nwant %s", model, got, want)
		}
	}
	r.Messages = r.Messages[:2]
	// Another provider sees nothing of it.
	body = sent(t, "openai:gpt-4.1", llmtest.NewOpenAI(t), nil, r)
	if got, err := json.Marshal(body["messages"]); err != nil || string(got) != `[{"content":"you are brief","role":"system"},{"content":"the tÄsk, and more","role":"user"}]` {
		t.Errorf("elsewhere: %s", got)
	}
}

// What is advised about caches is no part of a request that is recalled.
func TestSharedIsNoPartOfTheRecord(t *testing.T) {
	r := llmtest.Ask("hello")
	before := r.Digest("p:m")
	r.Messages[0].Shared = 3
	if b, err := json.Marshal(r); err != nil || r.Digest("p:m") != before || strings.Contains(strings.ToLower(string(b)), "shared") {
		t.Errorf("%s %v", b, err)
	}
}

// Nothing is written to a cache at a price that nobody has written down.
func TestCacheWithoutAPrice(t *testing.T) {
	price := 2.5
	for _, test := range []struct {
		prices llm.Prices
		marked bool
	}{
		{nil, true},
		{llm.Prices{"anthropic:*": {In: 2, CacheWrite: &price, Out: 10}}, true},
		{llm.Prices{"anthropic:*": {In: 2, Out: 10}}, false},
	} {
		s := llmtest.NewAnthropic(t)
		m, err := llm.New("anthropic:claude-sonnet-5-5", s.Options(), llm.Services{Prices: test.prices})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Generate(t.Context(), llm.Request{Messages: []llm.Message{{Role: llm.User, Text: "hello", Shared: 5}}}); err != nil {
			t.Fatal(err)
		}
		if body := fmt.Sprint(s.Asked()[0].Body); strings.Contains(body, "cache_control") != test.marked {
			t.Errorf("%v: %s", test.prices, body)
		}
	}
}

// What a provider added to a turn and its calls goes back to it, and nothing that
// another one added.
func TestCarriedBack(t *testing.T) {
	s := llmtest.NewCompatible(t)
	turn := func(carry string) []llm.Message {
		return []llm.Message{
			{Role: llm.Assistant, ToolCalls: []llm.ToolCall{{ID: "a", Name: "read", Arguments: `{}`}}, Carry: json.RawMessage(carry)},
			{Role: llm.ToolRole, Call: "a", Name: "read", Text: "x"},
		}
	}
	messages := []llm.Message{{Role: llm.System, Text: "be brief"}, {Role: llm.User, Text: "read"}}
	messages = append(messages, turn(`[{"type":"thinking"}]`)...)
	messages = append(messages, turn(`{"turn":{"reasoning_content":"hm"},"calls":{"a":{"extra_content":{"s":1}}}}`)...) // the same id again
	messages = append(messages, turn(`{"turn":{"role":"system","reasoning_details":[1]}}`)...)
	body := sent(t, "vllm:m", s, nil, llm.Request{Messages: messages})
	got, err := json.Marshal(body["messages"])
	if err != nil {
		t.Fatal(err)
	}
	const plainCall = `[{"function":{"arguments":"{}","name":"read"},"id":"a","type":"function"}]`
	const want = `[{"content":"be brief","role":"system"},{"content":"read","role":"user"},` +
		`{"content":"","role":"assistant","tool_calls":` + plainCall + `},{"content":"x","role":"tool","tool_call_id":"a"},` +
		`{"content":"","reasoning_content":"hm","role":"assistant","tool_calls":[{"extra_content":{"s":1},"function":{"arguments":"{}","name":"read"},"id":"a","type":"function"}]},{"content":"x","role":"tool","tool_call_id":"a"},` +
		`{"content":"","reasoning_details":[1],"role":"assistant","tool_calls":` + plainCall + `},{"content":"x","role":"tool","tool_call_id":"a"}]`
	if string(got) != want {
		t.Errorf("the turns are\n%s\nwant\n%s", got, want)
	}
}

// A talk goes on after a model has called a tool by a name that providers refuse.
func TestNamesOfCalls(t *testing.T) {
	for _, d := range doubles {
		s := d.start(t)
		var messages []llm.Message
		for i, name := range []string{"functions.read", "", "\x00bad", "lesen und schreiben", strings.Repeat("ü", 100)} {
			id := fmt.Sprint("call", i)
			messages = append(messages, llm.Message{Role: llm.User, Text: "go on"},
				llm.Message{Role: llm.Assistant, ToolCalls: []llm.ToolCall{{ID: id, Name: name, Arguments: `{}`}}, Carry: json.RawMessage(`{"calls":{"` + id + `":{"extra_content":{}}}}`)},
				llm.Message{Role: llm.ToolRole, Call: id, Name: name, Text: "there is none"})
		}
		if _, err := open(t, d.model, s, nil).Generate(t.Context(), llm.Request{Messages: messages}); err != nil {
			t.Errorf("%s: %v", d.model, err)
		}
	}
}

// Headers that langchaingo takes from the environment go to nobody, and the key
// only where it belongs.
func TestHeaders(t *testing.T) {
	t.Setenv("OPENAI_ORGANIZATION", "org-of-another") //nolint:misspell // the variable's name
	t.Setenv("OPENAI_API_KEY", "sk-of-another")
	t.Setenv("OPENAI_BASE_URL", "http://elsewhere.invalid")
	t.Setenv("OPENAI_MODEL", "another")
	for _, d := range doubles {
		s := d.start(t)
		body := sent(t, d.model, s, nil, llmtest.Ask("hello"))
		for key, values := range s.Asked()[0].Header {
			if strings.Contains(strings.Join(values, " "), "another") {
				t.Errorf("%s: %s is %v", d.model, key, values)
			}
		}
		if body["model"] == "another" {
			t.Errorf("%s: the model is %v", d.model, body["model"])
		}
	}
}

func TestToolsThatAreNotThere(t *testing.T) {
	s := llmtest.NewCompatible(t)
	no := false
	m := open(t, "vllm:m", s, func(o *llm.Options) { o.NativeTools = &no })
	r := llmtest.Ask("hello")
	r.Tools = []llm.Tool{{Name: "read", Parameters: json.RawMessage(`{"type":"object"}`)}}
	if _, err := m.Generate(t.Context(), r); kindOf(err) != llm.NoTools || len(s.Asked()) != 0 {
		t.Errorf("%v", err)
	}
}
