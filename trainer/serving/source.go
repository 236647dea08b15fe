package serving

import (
	"context"
	"errors"

	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/trainer/policies"
)

// Source is llm's way to policies: "policy:current" and "policy:v3" are models.
type Source struct {
	Policies *policies.Registry
	Servers  *Servers
}

// Known implements llm.PolicySource.
func (s Source) Known(ctx context.Context, name string) error {
	_, err := s.Policies.Find(ctx, name)
	return asModel(name, err)
}

// Policy implements llm.PolicySource. Which version "current" is, is asked at each call: a
// promotion lets those end that are under way, where they are.
func (s Source) Policy(ctx context.Context, name string) (llm.PolicyServer, func(), error) {
	p, err := s.Policies.Find(ctx, name)
	if err != nil {
		return llm.PolicyServer{}, nil, asModel(name, err)
	}
	at, release, err := s.Servers.Acquire(ctx, p)
	if err != nil {
		return llm.PolicyServer{}, nil, asModel(name, err)
	}
	return llm.PolicyServer{Model: at.Model, BaseURL: at.URL, Token: at.Token, Context: at.Context}, release, nil
}

// asModel is an error as those of models are.
func asModel(name string, err error) error {
	e := &llm.Error{Model: "policy:" + name, Kind: llm.Unavailable, Err: err}
	var unknown *policies.Error
	var changed *policies.ChangedError
	var failed *Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.As(err, &unknown):
		e.Kind, e.Text, e.Hint = llm.UnknownModel, unknown.Text, unknown.Hint
	case errors.As(err, &changed):
		e.Kind, e.Text, e.Hint = llm.BadRequest, changed.Error(), changed.Hint()
	case errors.As(err, &failed):
		e.Text, e.Hint = failed.Text, failed.Hint
		if failed.Lasting {
			e.Kind = llm.BadRequest
		}
	default:
		e.Text = err.Error()
	}
	return e
}
