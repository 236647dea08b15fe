package cli

import (
	"context"
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
	for _, name := range []string{r.config.Coder.Name, r.config.Judge.Name} {
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
	if err == nil {
		var o llm.Options
		if o, err = llm.Resolve(name, r.models.options(name)); err == nil {
			check.Note = fmt.Sprintf("its key is in %s, %s", o.KeyEnv, r.priceOf(name))
			if o.KeyEnv == "none" {
				check.Note = "it wants no key, " + r.priceOf(name)
			}
		}
	}
	if err == nil && call && !llm.IsRecording(name) { // which knows the calls of runs alone
		check.Note, err = r.call(ctx, m)
	}
	if err != nil {
		_, text, hint := explain(err)
		check.Note, check.Cost = strings.TrimPrefix(text, name+": "), hint
		return check
	}
	check.OK = true
	if call {
		check.Note += r.found(ctx, name, m)
	}
	return check
}

func (r *room) priceOf(name string) string {
	p, known := priceList(r.config.LLM.Prices).Of(name)
	if !known {
		return "its price is not known: write it under [llm.prices]"
	}
	return fmt.Sprintf("a million tokens cost $%g in and $%g out (as of %s)", p.In, p.Out, p.AsOf)
}

// tinyReply is room for a word, and for the reasoning of models that cannot do
// without.
const tinyReply = 256

// call asks a model the least that can be asked.
func (r *room) call(ctx context.Context, m llm.Model) (string, error) {
	began := time.Now()
	reply, err := m.Generate(ctx, llm.Request{Messages: []llm.Message{{Role: llm.User, Text: "Answer with the word ok."}}, MaxTokens: tinyReply})
	if err != nil {
		var failed *llm.Error
		if errors.As(err, &failed) || ctx.Err() != nil {
			return "", err
		}
		return "", fmt.Errorf("it cannot be asked: %w", err)
	}
	u := reply.Usage
	spent := kernelwright.Spend{Calls: 1, TokensIn: u.In, TokensOut: u.Out, Unpriced: 1}
	if usd := priceList(r.config.LLM.Prices).Cost(m.Name(), u); usd != nil {
		spent.USD, spent.Unpriced = *usd, 0
	}
	return fmt.Sprintf("it answered in %v: %s", time.Since(began).Round(time.Millisecond), report.Spent(spent)), nil
}
