package hwfeedback

import (
	"context"
	"encoding/json"

	"github.com/kernelwright/kernelwright"
)

// parsed is what a candidate's text says of itself.
type parsed struct {
	Language kernelwright.Language `json:"language"`
	Form     string                `json:"form"`
	// Of what was read by itself: why it is refused, and the hash of what is Python.
	Problems []string `json:"problems,omitempty"`
	Hash     string   `json:"normalised_hash,omitempty"`
	Given    string   `json:"given,omitempty"` // of a reference: the parameter by which it takes a function
}

// parse has a text read, as that of a "candidate" or a "reference".
func (e *Evaluator) parse(ctx context.Context, by *supervisor, source, what string) (parsed, error) {
	var p parsed
	key := e.sourceKey(source, what)
	if e.recall(ctx, cacheSource, key, &p) {
		return p, nil
	}
	body := parseBody{source, what, e.options.Sandbox}
	result, err := e.askEarly(ctx, "parse", body, parseTimeout)
	if result == nil && err == nil {
		result, err = by.request(ctx, "parse", body, parseTimeout)
	}
	if err != nil {
		return p, err
	}
	if err := json.Unmarshal(result, &p); err != nil {
		return p, infrastructure("parse", err)
	}
	e.remember(ctx, cacheSource, key, p)
	return p, nil
}

func (e *Evaluator) sourceKey(source, what string) string {
	return joinKey(what, kernelwright.HashText(source), e.harness.hash)
}
