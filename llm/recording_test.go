package llm_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/llm/llmtest"
)

func recordingOf(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "said.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return "recorded:" + path
}

// A recording answers the same call of a run on the same task, and no other. What
// it says is journaled and priced like anybody's.
func TestARecordingAnswers(t *testing.T) {
	name := recordingOf(t, `{"run": {"id": 7, "task_name": "softmax"}, "rounds": [{"verdict": {}}], "talk": [
		{"key": {"run": 7, "agent": "coder"}, "model": "openai:m", "reply": {"text": "first", "stop": "length", "usage": {"in": 1000, "out": 100}, "carry": {"a": 1}, "token_ids": [1]}},
		{"key": {"run": 7, "agent": "coder"}, "reply": {"text": "asked anew", "usage": {"in": 2000, "out": 200}}},
		{"key": {"run": 7, "round": 1, "agent": "judge", "seq": 1}, "reply": {"tool_calls": [{"id": "a", "name": "verify", "arguments": "{}"}], "usage": {"in": -5}}}]}
		{"run": {"task_name": "relu"}, "talk": [{"key": {"agent": "coder"}, "reply": {"text": "of relu"}}]}`)
	journal := &llmtest.Journal{}
	m, err := llm.New(name, llm.Options{}, llm.Services{Journal: journal, Prices: llm.Prices{"recorded:*": {In: 1, Out: 10}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		task string
		key  llm.Key
		want string
		stop llm.Stop
	}{
		{"softmax", llm.Key{Run: 1, Agent: "coder"}, "asked anew", llm.StopEnd},
		{"relu", llm.Key{Run: 2, Agent: "coder"}, "of relu", llm.StopEnd},
		{"softmax", llm.Key{Run: 1, Round: 1, Agent: "judge", Seq: 1}, "", llm.StopTools},
		{"softmax", llm.Key{Run: 1, Round: 1, Agent: "coder"}, `no call 0 of the coder in round 1 of a run on the task "softmax"`, ""},
		{"gelu", llm.Key{Run: 3, Agent: "coder"}, `on the task "gelu"`, ""},
	} {
		r := llmtest.Ask("whatever it is asked")
		r.Key, r.Task = c.key, c.task
		reply, err := m.Generate(t.Context(), r)
		var failed *llm.Error
		if errors.As(err, &failed) != (c.stop == "") || failed != nil && (failed.Kind != llm.NotRecorded || !strings.Contains(failed.Text, c.want)) {
			t.Errorf("%+v: %v", c, err)
		}
		if err == nil && (reply.Text != c.want || reply.Stop != c.stop || reply.Carry != nil || reply.TokenIDs != nil || reply.Usage.In <= 0) {
			t.Errorf("%+v: %+v", c, reply)
		}
	}
	kept := journal.Records()
	if len(kept) != 3 || kept[0].CostUSD == nil || *kept[0].CostUSD != 0.004 || kept[0].Model != name {
		t.Errorf("%+v", kept)
	}
}

func TestRecordingsThatAreNone(t *testing.T) {
	one := `{"run": {"task_name": "a"}, "talk": [{"key": {"agent": "coder"}, "reply": {"text": "x"}}]}`
	for text, want := range map[string]string{
		"":             "has no call with a model",
		"{":            "not JSON of the right form: unexpected EOF",
		"[1]":          "not JSON of the right form",
		`{"talk": []}`: "run.task_name is missing",
		one + one:      "has two runs on the task a",
		`{"run": {"task_name": "a"}, "talk": [{"reply": {"text": 3}}]}`: "not JSON of the right form",
	} {
		_, err := llm.New(recordingOf(t, text), llm.Options{}, llm.Services{})
		var failed *llm.Error
		if !errors.As(err, &failed) || failed.Kind != llm.UnknownModel || !strings.Contains(failed.Text, want) || !strings.Contains(failed.Hint, "history show") {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, path := range []string{t.TempDir(), "/nowhere/at/all.json"} {
		if _, err := llm.New("recorded:"+path, llm.Options{}, llm.Services{}); err == nil || !strings.Contains(err.Error(), "the recording "+path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
