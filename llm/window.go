package llm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
)

// Window is how much of a model's context a call may fill. Zero values are not
// known.
type Window struct {
	// Context is what prompt and reply may take together, in tokens.
	Context int `json:"context,omitempty"`
	// Reply is what the settings let a reply take, in tokens.
	Reply int `json:"reply,omitempty"`
	// BytesPerToken is that of prompts, as the server has counted them.
	BytesPerToken float64 `json:"bytes_per_token,omitempty"`
	// Compact: the model is asked in few words.
	Compact bool `json:"compact,omitempty"`
	// NoTools: it was found not to be shown the request's tools, so it is asked without.
	NoTools bool `json:"no_tools,omitempty"`

	server string // what kind of server it is, for hints: the name of a provider
}

// Fit is what a request was fitted to, and what it leaves out for that.
type Fit struct {
	Window
	LeftOut []string `json:"left_out,omitempty"` // in the order in which it went
}

// windowed is a model that knows its window.
type windowed interface {
	// Window returns the window for the call of that key. recorded says that it is
	// that of the record: the call was made before, and is to be made in the same way.
	Window(ctx context.Context, key Key) (w Window, recorded bool, err error)
}

// WindowOf returns the window that a model has for the call of that key, and whether
// it is the record's. A model that knows nothing of it, nor does what it stands
// before, has the zero window. The error is the context's, or the journal's.
func WindowOf(ctx context.Context, m Model, key Key) (w Window, recorded bool, err error) {
	for m != nil {
		if k, ok := m.(windowed); ok {
			return k.Window(ctx, key)
		}
		outer, ok := m.(interface{ Unwrap() Model })
		if !ok {
			break
		}
		m = outer.Unwrap()
	}
	return Window{}, false, ctx.Err()
}

// fixed is a model whose window the settings tell, or nobody.
type fixed struct {
	Model
	window Window
}

// Window implements windowed.
func (m fixed) Window(ctx context.Context, _ Key) (Window, bool, error) {
	return m.window, false, ctx.Err()
}

// leastReply is what is asked for at least, however little the estimate of a prompt
// leaves.
const leastReply = 256

// Estimate is about how many tokens a request's prompt has: by the server's own
// counts where there are some, else by three bytes to a token. A thirty-second is
// added, because no two prompts are alike.
func (w Window) Estimate(r Request) int { return w.tokens(promptBytes(r), len(r.Messages)) }

func (w Window) tokens(bytes, messages int) int {
	per := w.BytesPerToken
	if per <= 0 {
		per = bytesPerToken
	}
	n := float64(bytes)/per + 8*float64(messages)
	return int(math.Ceil(n * 33 / 32))
}

// kept is how many tokens of the context are kept for a reply that needs at least
// so many: a quarter of it, or half as much again as the least, and never more than
// a reply may take.
func (w Window) kept(least int) int {
	n := max(w.Context/4, least+least/2)
	if w.Reply > 0 {
		n = min(n, w.Reply)
	}
	return n
}

// Holds reports whether a request leaves a reply as much as is kept for one that
// needs at least so many tokens.
func (w Window) Holds(r Request, least int) bool {
	return w.Context == 0 || w.Estimate(r)+w.kept(least) <= w.Context
}

// HoldsJust reports whether it leaves the least.
func (w Window) HoldsJust(r Request, least int) bool {
	return w.Context == 0 || w.Estimate(r)+min(least, w.kept(least)) <= w.Context
}

// Bytes is how many bytes so many tokens of a prompt have.
func (w Window) Bytes(tokens int) int {
	per := w.BytesPerToken
	if per <= 0 {
		per = bytesPerToken
	}
	return max(int(float64(tokens)*per*32/33), 0)
}

// Room is how many bytes a prompt may have beside a reply that needs at least so
// many tokens; false where the context is not known.
func (w Window) Room(least int) (int, bool) {
	return w.Bytes(w.Context - w.kept(least)), w.Context > 0
}

// ErrNoFit is what a writer of requests returns where the request that it returns
// with it is too long, and holds nothing more that can be left out.
var ErrNoFit = errors.New("nothing more can be left out")

// maxFits is how often a request is written anew because it was too long.
const maxFits = 4

// Ask asks a model in a request that fits its window. write makes the request for a
// window; Ask puts Key and Fit in. Where the server refuses it as too long all the
// same, it is written again for what was learned of that, or for half as much; where
// the model is not shown its tools, once more without them (Window.NoTools). short
// says whether the model is to be asked in few words where nothing is recorded.
func Ask(ctx context.Context, m Model, key Key, short func(Window) bool, write func(Window) (r Request, leftOut []string, err error)) (Reply, error) {
	w, recorded, err := WindowOf(ctx, m, key)
	if err != nil {
		return Reply{}, err
	}
	if !recorded {
		w.Compact = short(w)
	}
	var tooLong *Error
	for try := 1; ; try++ {
		r, left, err := write(w)
		switch {
		case errors.Is(err, ErrNoFit) && tooLong != nil: // the server's own words say more
			return Reply{}, tooLong
		case errors.Is(err, ErrNoFit):
			return Reply{}, w.tooSmall(m.Name(), r)
		case err != nil:
			return Reply{}, err
		}
		r.Key, r.Fit = key, nil
		if f := (Fit{w, left}); w.Context > 0 || w.Compact || w.NoTools || len(left) > 0 {
			f.server = ""
			r.Fit = &f
		}
		reply, err := m.Generate(ctx, r)
		var failed *Error
		if !errors.As(err, &failed) {
			return reply, err
		}
		if failed.Kind == NoTools && len(r.Tools) > 0 && !w.NoTools {
			w.NoTools = true
			try--
			continue
		}
		if failed.Kind != TooLong || try == maxFits {
			return reply, err
		}
		tooLong = failed
		next, err := w.after(ctx, m, key, failed, r)
		if err != nil {
			return Reply{}, err
		}
		if !recorded {
			next.Compact = short(next)
		}
		w = next
	}
}

// after is the window after a request was refused as too long: what was learned of
// that, and where nothing was, half of what was sent.
func (w Window) after(ctx context.Context, m Model, key Key, e *Error, r Request) (Window, error) {
	known, recorded, err := WindowOf(ctx, m, key)
	if err != nil {
		return w, err
	}
	next := w
	lower := func(context int, per float64) {
		if context > 0 && (next.Context == 0 || context < next.Context) {
			next.Context = context
		}
		if per > 0 && (next.BytesPerToken == 0 && per < bytesPerToken || per < next.BytesPerToken) {
			next.BytesPerToken = per
		}
	}
	if !recorded {
		lower(known.Context, known.BytesPerToken)
		next.server = known.server
		if next.Reply == 0 {
			next.Reply = known.Reply
		}
	}
	lower(e.Context, perToken(r, e.Prompt))
	if next == w {
		next.Context = w.Estimate(r) * 2 / 3 // of which a quarter is kept
	}
	return next, nil
}

// tooSmall says that nothing sensible fits.
func (w Window) tooSmall(model string, r Request) *Error {
	return &Error{
		Kind: TooLong, Model: model,
		Text: fmt.Sprintf("the prompt does not fit: what cannot be left out takes about %d tokens, and the model's context of %d has to hold the reply, too", w.Estimate(r), w.Context),
		Hint: longer(model, w.server),
	}
}

// longer says how a model gets a longer context. server is what kind of server it
// has, where that is known.
func longer(model, server string) string {
	provider, _, _ := strings.Cut(model, ":")
	if server == "" {
		server = provider
	}
	switch server {
	case "llamacpp":
		return "start llama.cpp's server with a longer context: -c (--ctx-size), which its slots (-np) share"
	case "vllm":
		return "start vLLM with a longer context: --max-model-len"
	case "sglang":
		return "start sglang with a longer context: --context-length"
	case "ollama":
		return "give the model a longer context: num_ctx in its Modelfile, or OLLAMA_CONTEXT_LENGTH for the whole server"
	}
	if _, hosted := providers[server]; hosted {
		return "name a model with a longer context; context_length in the settings says how long one is"
	}
	return "give the model a longer context where its server is started (llama.cpp: -c; vLLM: --max-model-len; sglang: --context-length; Ollama: num_ctx)"
}
