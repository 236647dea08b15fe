package llm

import (
	"context"
	"strings"
	"sync"
)

// PolicySource serves the policies that were trained here: "policy:current" and
// "policy:v3" are models. It is safe for concurrent use.
type PolicySource interface {
	// Known says what is wrong with a policy's name: an *Error, or the context's. It
	// starts nothing.
	Known(ctx context.Context, name string) error
	// Policy returns where the policy of that name answers now, and what lets go of it,
	// which is called once the call has ended. It may take as long as a server takes to
	// start. The error is an *Error, or the context's.
	Policy(ctx context.Context, name string) (PolicyServer, func(), error)
}

// PolicyServer is where one version of a policy answers, by OpenAI's protocol.
type PolicyServer struct {
	Model   string // "policy:v3": of an alias, too, the version
	BaseURL string // "http://127.0.0.1:4711/v1"
	Token   string
	Context int // of prompt and reply together, in tokens
}

// served is a policy. Each call goes to the version that its name means then: Reply.Model
// is that.
type served struct {
	name, policy string
	provider     provider
	options      Options
	source       PolicySource

	mu   sync.Mutex
	at   PolicyServer
	last *remote // at at
}

func openPolicy(name, policy string, p provider, o Options) (Model, error) {
	if o.Policies == nil {
		return nil, &Error{Kind: UnknownModel, Model: name, Text: "no policies are served here", Hint: "name another model"}
	}
	if o.BaseURL != "" {
		return nil, &Error{Kind: BadRequest, Model: name, Text: "base_url: policies are served by this program", Hint: "leave base_url out for them"}
	}
	if err := o.Policies.Known(context.Background(), policy); err != nil {
		return nil, err
	}
	return &served{name: name, policy: policy, provider: p, options: o, source: o.Policies}, nil
}

// Name implements Model.
func (m *served) Name() string { return m.name }

// Window implements windowed. Where the policy cannot be asked, nothing is known of it:
// Generate says why.
func (m *served) Window(ctx context.Context, _ Key) (Window, bool, error) {
	r, release, err := m.open(ctx)
	if err != nil {
		return Window{Reply: m.options.MaxTokens}, false, ctx.Err()
	}
	defer release()
	return r.window(ctx), false, ctx.Err()
}

// Generate implements Model.
func (m *served) Generate(ctx context.Context, r Request) (Reply, error) {
	if err := ctx.Err(); err != nil {
		return Reply{}, err
	}
	if len(r.Messages) == 0 {
		return Reply{}, &Error{Kind: BadRequest, Model: m.name, Text: noMessages}
	}
	at, release, err := m.open(ctx)
	if err != nil {
		return Reply{}, ctxOr(ctx, err)
	}
	defer release()
	reply, err := at.Generate(ctx, r)
	if err == nil {
		reply.Model = at.model
	}
	return reply, err
}

// open returns who asks the version that the name means now, and what lets go of it.
func (m *served) open(ctx context.Context) (*remote, func(), error) {
	at, release, err := m.source.Policy(ctx, m.policy)
	if err != nil {
		return nil, nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last == nil || m.at != at {
		o := m.options
		o.BaseURL = at.BaseURL
		r, err := openRemote(m.name, at.Model, m.provider, o, at.Token)
		if err != nil {
			release()
			return nil, nil, &Error{Kind: BadRequest, Model: m.name, Text: "the policy cannot be asked: " + err.Error(), Err: err}
		}
		if o.ContextLength == 0 || o.ContextLength > at.Context {
			r.span.asked, r.span.context, r.span.source = true, at.Context, "its config.json"
		}
		m.at, m.last = at, r
	}
	return m.last, release, nil
}

// Author names who wrote a reply: the model, or of a policy by an alias the version that
// answered.
func Author(model string, r Reply) string {
	if strings.HasPrefix(model, policyProvider+":") && strings.HasPrefix(r.Model, policyProvider+":") {
		return r.Model
	}
	return model
}
