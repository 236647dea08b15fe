package llm

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tmc/langchaingo/llms"
	"github.com/tmc/langchaingo/llms/anthropic"
	"github.com/tmc/langchaingo/llms/openai"
)

// placeholder stands where langchaingo wants a key: transport signs.
const placeholder = "unused"

// remote is a model behind langchaingo: that writes messages, knows paths, and
// sends; transport has the rest.
type remote struct {
	name, model string
	options     Options
	key         secret
	chat        llms.Model
	// provider is the name of it, base what carries requests, and sign what signs them.
	provider string
	base     http.RoundTripper
	sign     func(h http.Header, key string)
	span     span
	// onePart: langchaingo sends only the first part of a turn.
	onePart bool
	told    onces
}

func openRemote(name, model string, p provider, o Options, key string) (*remote, error) {
	base := o.HTTP
	if base == nil {
		base = sharedHTTP
	}
	if *o.TokenIDs {
		o.Stream = new(bool)
	}
	client := &http.Client{Transport: &transport{dialect: p.dialect, base: base, sign: p.sign}}
	who, _, _ := strings.Cut(name, ":")
	m := &remote{name: name, model: model, options: o, key: func() string { return key }, provider: who, base: base, sign: p.sign}
	var err error
	switch p.dialect.(type) {
	case messagesAPI:
		m.onePart = true
		m.chat, err = anthropic.New(anthropic.WithToken(placeholder), anthropic.WithModel(model),
			anthropic.WithBaseURL(o.BaseURL), anthropic.WithHTTPClient(client))
	default:
		m.chat, err = openai.New(openai.WithToken(placeholder), openai.WithModel(model),
			openai.WithBaseURL(o.BaseURL), openai.WithHTTPClient(client))
	}
	return m, err
}

// sharedHTTP keeps connections for as many calls as go to one server at a time.
var sharedHTTP = func() http.RoundTripper {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = 64
	return t
}()

// Name implements Model.
func (m *remote) Name() string { return m.name }

// Generate implements Model.
func (m *remote) Generate(ctx context.Context, r Request) (Reply, error) {
	if err := ctx.Err(); err != nil {
		return Reply{}, err
	}
	c := &call{name: m.name, model: m.model, request: r, options: m.options, key: m.key}
	if len(r.Messages) == 0 {
		return Reply{}, &Error{Kind: BadRequest, Model: m.name, Text: noMessages}
	}
	if len(r.Tools) > 0 && !*m.options.NativeTools {
		return Reply{}, &Error{Kind: NoTools, Model: m.name, Text: "this model cannot be given tools", Hint: "set native_tools = true where it can"}
	}
	c.window = m.window(ctx)
	if r.Fit != nil && r.Fit.Context > 0 && (c.window.Context == 0 || r.Fit.Context < c.window.Context) {
		c.window.Context = r.Fit.Context
	}
	if err := ctx.Err(); err != nil {
		return Reply{}, err
	}
	turns := m.turns(c)
	// What langchaingo returns is empty, or an error that has lost its reason.
	_, err := m.chat.GenerateContent(context.WithValue(ctx, callKey{}, c), turns, llms.WithModel(m.model))
	switch {
	case c.done:
		m.learn(c)
		if c.lacks != "" && *m.options.TokenIDs && m.options.Log != nil && m.told.first(c.lacks) {
			m.options.Log.Warn(c.lacks, "model", m.name)
		}
		return c.reply, nil
	case c.err != nil:
		if c.err.Kind == TooLong {
			m.refusedAsTooLong(c)
		}
		c.err.Hint = cmp.Or(c.err.Hint, generalHints[c.err.Kind])
		return Reply{}, ctxOr(ctx, c.err)
	case err != nil:
		return Reply{}, ctxOr(ctx, &Error{Kind: BadRequest, Model: m.name, Text: "the request cannot be made: " + c.plain(err.Error())})
	}
	return Reply{}, &Error{Kind: BadRequest, Model: m.name, Text: "the request was never sent"}
}

// maxCallName is the longest name of a tool that every provider takes.
const maxCallName = 64

// callName is the name of a tool that a model called, in the letters that
// providers take. Models call tools that there are not, under any name, and a talk
// that holds it would be refused from then on.
func callName(name string) string {
	clean := strings.Map(func(r rune) rune {
		if r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r)) || r == '-' {
			return r
		}
		return '_'
	}, name)
	return cmp.Or(clean[:min(len(clean), maxCallName)], "_")
}

// turns are the messages as langchaingo has them.
func (m *remote) turns(c *call) []llms.MessageContent {
	var out []llms.MessageContent
	for i, msg := range c.request.Messages {
		if m.onePart && strings.TrimSpace(msg.Text) == "" {
			msg.Text = "(empty)" // which Anthropic refuses
		}
		role, parts := llms.ChatMessageTypeHuman, []llms.ContentPart{llms.TextPart(msg.Text)}
		switch msg.Role {
		case System:
			role = llms.ChatMessageTypeSystem
		case ToolRole:
			role = llms.ChatMessageTypeTool
			parts = []llms.ContentPart{llms.ToolCallResponse{ToolCallID: msg.Call, Name: callName(msg.Name), Content: msg.Text}}
		case Assistant:
			role = llms.ChatMessageTypeAI
			if len(msg.ToolCalls) > 0 && strings.TrimSpace(c.request.Messages[i].Text) == "" {
				parts = nil
			}
			for _, t := range msg.ToolCalls {
				parts = append(parts, llms.ToolCall{ID: t.ID, Type: "function",
					FunctionCall: &llms.FunctionCall{Name: callName(t.Name), Arguments: objectOr(t.Arguments)}})
			}
		}
		if !m.onePart {
			out = append(out, llms.MessageContent{Role: role, Parts: parts})
			continue
		}
		for _, p := range parts {
			out = append(out, llms.MessageContent{Role: role, Parts: []llms.ContentPart{p}})
			if role != llms.ChatMessageTypeSystem { // which is no turn there
				c.origin = append(c.origin, i)
			}
		}
	}
	return out
}
