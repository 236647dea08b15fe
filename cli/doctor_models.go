package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/report"
)

// modelChecks says of each model that the settings name whether it can be asked,
// and with call asks each once.
func (r *room) modelChecks(ctx context.Context, call bool) []hwfeedback.Check {
	named := map[string]bool{}
	for _, name := range []string{r.config.Coder.Name, r.config.Judge.Name, r.config.Training.Composer} {
		named[name] = strings.Contains(name, ":")
	}
	for name := range r.config.LLM.Models {
		named[name] = true
	}
	for name := range r.config.Budget.Models {
		named[name] = true
	}
	var checks []hwfeedback.Check
	for _, name := range slices.Sorted(maps.Keys(named)) {
		if named[name] && ctx.Err() == nil {
			checks = append(checks, r.modelCheck(ctx, name, call))
		}
	}
	return checks
}

func (r *room) modelCheck(ctx context.Context, name string, call bool) hwfeedback.Check {
	check := hwfeedback.Check{Name: "model " + name}
	m, err := r.models.open(name)
	var o llm.Options
	if err == nil {
		if o, err = llm.Resolve(name, r.models.options(name)); err == nil {
			check.Note = fmt.Sprintf("its key is in %s, %s", o.KeyEnv, r.priceOf(name))
			if o.KeyEnv == "none" {
				check.Note = "it wants no key, " + r.priceOf(name)
			}
		}
	}
	if err == nil && call && !llm.IsRecording(name) { // which knows the calls of runs alone
		check.Note, check.Cost, err = r.call(ctx, m, o)
	}
	if err != nil {
		_, text, hint := explain(err)
		check.Note, check.Cost = strings.TrimPrefix(text, name+": "), hint
		return check
	}
	check.OK = check.Cost == ""
	if call {
		check.Note += r.found(ctx, name, m)
	}
	return check
}

func (r *room) priceOf(name string) string {
	written := priceList(r.config.LLM.Prices)
	p, known := written.Of(name)
	if _, free := written.With(name, r.models.options(name)).Of(name); free && !known {
		return "it runs on this machine and costs nothing"
	}
	if !known {
		return "its price is not known: write it under [llm.prices]"
	}
	return fmt.Sprintf("a million tokens cost $%g in and $%g out (as of %s)", p.In, p.Out, p.AsOf)
}

// tinyReply is room for a word, and for the reasoning of models that cannot do
// without.
const tinyReply = 256

// call asks a model the least that can be asked, and says what its server makes of
// tools and of token ids. lacks is what of it the settings ask for in vain.
func (r *room) call(ctx context.Context, m llm.Model, o llm.Options) (note, lacks string, err error) {
	began := time.Now()
	request := least()
	reply, err := asked(ctx, m, request)
	if err != nil {
		return "", "", err
	}
	u := reply.Usage
	spent := kernelwright.Spend{Calls: 1, TokensIn: u.In, TokensOut: u.Out, Unpriced: 1}
	if usd := priceList(r.config.LLM.Prices).With(m.Name(), r.models.options(m.Name())).Cost(m.Name(), u); usd != nil {
		spent.USD, spent.Unpriced = *usd, 0
	}
	note = fmt.Sprintf("it answered in %v: %s", time.Since(began).Round(time.Millisecond), report.Spent(spent))
	if *o.TokenIDs {
		says, missing := tokensTold(reply)
		note, lacks = note+"; "+says, missing
	}
	if *o.NativeTools && llm.MayHideTools(m.Name(), o) {
		says, err := toolsShown(ctx, m, request, u)
		if err != nil {
			return "", "", err
		}
		note += "; " + says
	}
	w, _, err := llm.WindowOf(ctx, m, llm.Key{})
	if err != nil {
		return "", "", err
	}
	if w.Context > 0 {
		note += fmt.Sprintf("; its context has %d tokens (%s)", w.Context, llm.ContextSource(m))
	}
	return note, lacks, nil
}

func asked(ctx context.Context, m llm.Model, r llm.Request) (llm.Reply, error) {
	reply, err := m.Generate(ctx, r)
	var failed *llm.Error
	if err != nil && !errors.As(err, &failed) && ctx.Err() == nil {
		err = fmt.Errorf("it cannot be asked: %w", err)
	}
	return reply, err
}

// tokensTold says what a server told of a reply's tokens, and what is missing.
func tokensTold(reply llm.Reply) (says, missing string) {
	const ask = "policies are trained on exact ids: leave token_ids out, or use vLLM or SGLang"
	switch {
	case len(reply.TokenIDs) == 0:
		return "its server gives no token ids where it is asked for them", ask
	case len(reply.LogProbs) == 0:
		return "its server gives token ids without log-probabilities", ask
	case len(reply.PromptIDs) == 0:
		return "its server gives the reply's token ids and log-probabilities, and none of the prompt's ids", ask
	}
	return "its server gives token ids and log-probabilities", ""
}

// toolsShown says whether the server shows the model its tools: the same request
// with one has more tokens then.
func toolsShown(ctx context.Context, m llm.Model, r llm.Request, without llm.Usage) (string, error) {
	r.Tools = []llm.Tool{{Name: "read", Description: "Show a file.", Parameters: json.RawMessage(`{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}`)}}
	reply, err := asked(ctx, m, r)
	var failed *llm.Error
	switch with := reply.Usage; {
	case errors.As(err, &failed) && failed.Kind == llm.NoTools:
		return "it is not shown tools, so react has it call them in text: " + failed.Hint, nil
	case err != nil:
		return "", err
	case len(reply.ToolCalls) == 0 && (with.Estimated || without.Estimated || with.In <= without.In):
		return "whether it is shown tools cannot be told by its server's counts (set native_tools = false where it is not)", nil
	}
	return "it is shown tools", nil
}
