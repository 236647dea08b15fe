package llm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
)

// withToolCheck returns a model of a server of open models, of which it is not known
// whether it shows the model the tools of a request: one whose chat template has no
// place for them leaves them out without a word (llama.cpp without --jinja, or with
// a template that knows none; some of Ollama's; transformers serve). A model that
// calls a tool was shown it. Where a reply calls none, the server is asked: a short
// prompt with the tools, and without them. Where both have as many tokens, the reply
// is an error of Kind NoTools, and so is every later request with tools, which is
// not made then. log is told once.
func withToolCheck(m Model, log *slog.Logger) Model {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &toolCheck{Model: m, log: log, turn: make(chan struct{}, 1)}
}

type toolCheck struct {
	Model
	log *slog.Logger

	turn  chan struct{} // held by who looks at what follows
	found bool          // nothing more is to be found out
	no    *Error        // why the model is not shown tools; nil: it is, or nobody knows
}

// Unwrap returns the model that is looked at.
func (m *toolCheck) Unwrap() Model { return m.Model }

// Generate implements Model.
func (m *toolCheck) Generate(ctx context.Context, r Request) (Reply, error) {
	if len(r.Tools) == 0 {
		return m.Model.Generate(ctx, r)
	}
	if err := m.hold(ctx); err != nil {
		return Reply{}, err
	}
	no := m.no
	m.release()
	if no != nil {
		return Reply{}, no
	}
	reply, err := m.Model.Generate(ctx, r)
	var refused *Error
	switch {
	case errors.As(err, &refused) && refused.Kind == NoTools:
		if m.hold(ctx) == nil {
			m.learn(refused)
			m.release()
		}
		return Reply{}, err
	case err != nil:
		return Reply{}, err
	}
	if m.hold(ctx) != nil { // whoever asked has left: the reply stands
		return reply, nil
	}
	defer m.release()
	if len(reply.ToolCalls) > 0 {
		m.found = true
	}
	if !m.found {
		m.ask(ctx, r)
	}
	if m.no != nil {
		e := *m.no
		e.reply = &reply
		return Reply{}, &e
	}
	return reply, nil
}

func (m *toolCheck) hold(ctx context.Context) error {
	select {
	case m.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *toolCheck) release() { <-m.turn }

// learn keeps why the model is not shown tools.
func (m *toolCheck) learn(why *Error) {
	if m.no == nil {
		m.log.Warn("a model is not shown its tools; react has it call them in text from now on", "model", m.Name(), "why", why.Text)
	}
	m.no = why
}

// probe is what a server is asked, and probeReply how many tokens it may answer:
// only its count of the prompt matters.
const (
	probe      = "Answer with the word ok."
	probeReply = 16
)

// ask finds out whether the model is shown the tools of a request. Where that fails
// nothing is known, and it is tried again after the next reply without a call.
func (m *toolCheck) ask(ctx context.Context, r Request) {
	without := Request{Key: r.Key, Task: r.Task, Messages: []Message{{Role: User, Text: probe}}, MaxTokens: probeReply}
	with := without
	with.Tools = r.Tools
	shown, err := m.Model.Generate(ctx, with)
	if err != nil {
		return
	}
	if len(shown.ToolCalls) > 0 {
		m.found = true
		return
	}
	bare, err := m.Model.Generate(ctx, without)
	if err != nil {
		return
	}
	m.found = true // as far as it can be
	if a, b := shown.Usage, bare.Usage; !a.Estimated && !b.Estimated && a.In <= b.In {
		m.learn(&Error{
			Kind: NoTools, Model: m.Name(), Text: fmt.Sprintf("its server does not show the model its tools: a prompt has %d tokens with them and %d without", a.In, b.In),
			Hint: noToolsHint,
		})
	}
}

// MayHideTools reports whether a model's server is one of open models, which may take
// tools and not show them.
func MayHideTools(model string, o Options) bool {
	_, p, err := resolve(model, o)
	return err == nil && p.open
}

const noToolsHint = "start the server with a chat template that has tools (llama.cpp: --jinja; vLLM: --enable-auto-tool-choice and --tool-call-parser), or set native_tools = false for this model: react then uses words"

// noToolsWords are how servers say that they take no tools for a model.
var noToolsWords = []string{
	"does not support tools", "requires --jinja", "unsupported param: tools", "enable-auto-tool-choice", "support tool use",
	"does not support function calling", "tools are not supported", "tool calling is not supported",
}
