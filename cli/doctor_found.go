package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/report"
)

// found says what the server of a model can do, where nobody charges for it: whether
// it holds a reply to a schema, and whether it gives token ids and
// log-probabilities. Each is asked by a call of a few tokens.
func (r *room) found(ctx context.Context, name string, m llm.Model) string {
	o, err := llm.Resolve(name, r.models.options(name))
	if err != nil || o.KeyEnv != "none" || llm.IsRecording(name) {
		return ""
	}
	says := "; " + r.holdsToSchema(ctx, m, o)
	if !*o.TokenIDs { // else the first call has asked for them
		says += "; " + r.givesIDs(ctx, name)
	}
	return says
}

// least is the least that a model can be asked.
func least() llm.Request {
	return llm.Request{Messages: []llm.Message{{Role: llm.User, Text: "Answer with the word ok."}}, MaxTokens: tinyReply}
}

// whyNot is why a call brought nothing.
func whyNot(err error) string {
	var failed *llm.Error
	if errors.As(err, &failed) {
		return failed.Text
	}
	return report.Line(err.Error())
}

func (r *room) holdsToSchema(ctx context.Context, m llm.Model, o llm.Options) string {
	if !*o.JSONSchema {
		return "json_schema is false: replies are held to no schema"
	}
	q := least()
	q.Schema = &llm.Schema{Name: "held", Schema: json.RawMessage(`{"type":"object","properties":{"held":{"type":"string","enum":["by the schema"]}},"required":["held"],"additionalProperties":false}`)}
	reply, err := m.Generate(ctx, q)
	var said struct {
		Held string `json:"held"`
	}
	switch {
	case err != nil:
		return "a call with a schema fails (json_schema = false leaves it out): " + whyNot(err)
	case json.Unmarshal([]byte(reply.Text), &said) == nil && said.Held == "by the schema":
		return "it holds replies to a schema"
	case reply.Stop == llm.StopLength && strings.HasPrefix(strings.TrimSpace(reply.Text), "{"):
		return fmt.Sprintf("whether it holds replies to a schema is not known: one had no end after %d tokens", tinyReply)
	}
	return "it does not hold replies to a schema: they are checked all the same"
}

func (r *room) givesIDs(ctx context.Context, name string) string {
	yes := true
	m, err := r.models.openWith(name, llm.Options{TokenIDs: &yes})
	var reply llm.Reply
	if err == nil {
		reply, err = m.Generate(ctx, least())
	}
	if err != nil {
		return "a call for token ids fails: " + whyNot(err)
	}
	says, _ := tokensTold(reply)
	return says
}
