package episodes

import (
	"encoding/json"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/store"
)

// How an Answer's messages go with what was said before.
const (
	contextAppend  = "append"  // they come after the policy's last completion
	contextReplace = "replace" // they are the whole prompt
)

// Answer says what comes next in an episode: a call of the policy, or the end.
type Answer struct {
	ID     int64               `json:"id"` // the number of its run in the history
	Status store.EpisodeStatus `json:"status"`
	// Call is which call of the policy waits, from 0; at the end, how many were made.
	Call      int       `json:"call"`
	Context   string    `json:"context"`
	Messages  []Message `json:"messages"`
	Tools     []Tool    `json:"tools,omitempty"`
	MaxTokens int       `json:"max_tokens,omitempty"` // of the completion, where that is bounded
	// Invalid: the last completion held no candidate, or called no tool where it was to
	// call one. Who filters turns goes by it.
	Invalid bool `json:"invalid,omitempty"`
	// Working: nothing waits for the trainer, the last completion is being evaluated.
	Working bool `json:"working,omitempty"`

	Done    bool                  `json:"done"`
	Reward  *int                  `json:"reward"` // null but for an episode that was done
	Verdict *kernelwright.Verdict `json:"verdict,omitempty"`
	// Missing are the baselines of milestones that a correct candidate was not held
	// against: without compile no reward is above kernelwright.RewardFasterThanEager.
	Missing []string `json:"missing_baselines,omitempty"`
	Rounds  int      `json:"rounds,omitempty"`
	Stop    string   `json:"stop,omitempty"`    // why it ended, as of any run
	Dropped string   `json:"dropped,omitempty"` // why there is no reward
}

// Message is one in OpenAI's form.
type Message struct {
	Role      string     `json:"role"`
	Content   string     `json:"content"`
	ToolCalls []ToolCall `json:"tool_calls,omitempty"`
	Call      string     `json:"tool_call_id,omitempty"`
	Name      string     `json:"name,omitempty"`
}

// Tool is one in OpenAI's form.
type Tool struct {
	Type     string   `json:"type"`
	Function Function `json:"function"`
}

// Function is what a tool does. Parameters is a JSON schema of an object.
type Function struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
}

func messages(talk []llm.Message) []Message {
	out := make([]Message, len(talk))
	for i, m := range talk {
		out[i] = Message{Role: string(m.Role), Content: m.Text, Call: m.Call, Name: m.Name}
		for _, c := range m.ToolCalls {
			out[i].ToolCalls = append(out[i].ToolCalls, ToolCall{c.ID, "function", FunctionCall{c.Name, c.Arguments}})
		}
	}
	return out
}

func tools(given []llm.Tool) (out []Tool) {
	for _, t := range given {
		out = append(out, Tool{"function", Function{t.Name, t.Description, t.Parameters}})
	}
	return out
}

// goesOn returns what a request says beyond the one before it and its reply, and
// whether it only goes on.
func goesOn(r llm.Request, before []llm.Message, reply llm.Message) ([]llm.Message, bool) {
	n := len(before)
	if !r.Append || n == 0 || len(r.Messages) <= n || !same(r.Messages[n], reply) {
		return r.Messages, false
	}
	for i, m := range before {
		if !same(m, r.Messages[i]) {
			return r.Messages, false
		}
	}
	return r.Messages[n+1:], true
}

func same(a, b llm.Message) bool {
	if a.Role != b.Role || a.Text != b.Text || a.Call != b.Call || len(a.ToolCalls) != len(b.ToolCalls) {
		return false
	}
	for i := range a.ToolCalls {
		if a.ToolCalls[i] != b.ToolCalls[i] {
			return false
		}
	}
	return true
}
