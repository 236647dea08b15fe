package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/coder"
	"github.com/kernelwright/kernelwright/config"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/judge"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/prompts"
	"github.com/kernelwright/kernelwright/store"
)

// The names of agents that are no language models.
const (
	builtinCoder = "builtin"
	rulesJudge   = "rules"
)

// agents is who writes candidates and who reads verdicts.
type agents struct {
	coder   forge.Coder
	judge   forge.Judge
	model   llm.Model // the Coder's, where it is one
	skills  *prompts.Skills
	prompts *prompts.Templates
}

// casting is which agents a run has, by name, and what they are shown.
type casting struct {
	coder, judge string
	form         string
	prompts      string // a folder; may be empty
	profile      prompts.Profile
}

func (r *room) casting() casting {
	c := r.config
	return casting{c.Coder.Name, c.Judge.Name, c.Coder.Form, c.Prompts.Folder, prompts.Profile(c.Prompts.Profile)}
}

// agents opens the agents that the settings name. It talks to nobody: what is
// wrong with a key or a name is said before anything is measured.
func (r *room) agents() (agents, error) { return r.casting().agents(r.models.open) }

// agents makes the agents, with models that open gives.
func (c casting) agents(open func(name string) (llm.Model, error)) (agents, error) {
	a := agents{coder: coder.Builtin{}, judge: judge.Rules{}}
	if c.judge == kernelwright.NoJudge {
		a.judge = silent{}
	}
	if c.coder == builtinCoder && (c.judge == rulesJudge || c.judge == kernelwright.NoJudge) {
		return a, nil
	}
	templates, err := prompts.LoadTemplates(c.prompts)
	if err != nil {
		return a, &Error{Code: ExitUsage, Err: err, Hint: "mend that file, or leave prompts.folder empty: the program has prompts of its own"}
	}
	templates.Profile = c.profile
	skills, err := prompts.LoadSkills(c.prompts)
	if err != nil {
		return a, &Error{Code: ExitUsage, Err: err, Hint: "mend that file, or leave prompts.folder empty: the program has skills of its own"}
	}
	a.prompts = templates
	if c.coder != builtinCoder {
		if a.model, err = open(c.coder); err != nil {
			return a, err
		}
		a.coder = coder.Model{LLM: a.model, Prompts: templates, Skills: skills, Form: coder.Form(c.form)}
		if strings.HasPrefix(c.coder, kernelwright.PolicyPrefix) {
			a.coder = signed{coder.Model{LLM: signing{a.model}, Prompts: templates, Skills: skills, Form: coder.Form(c.form)}}
		}
		a.skills = skills
	}
	if c.judge != rulesJudge && c.judge != kernelwright.NoJudge {
		m, err := open(c.judge)
		if err != nil {
			return a, err
		}
		a.judge = judge.Model{LLM: m, Prompts: templates, Skills: skills}
	}
	return a, nil
}

// silent is the Judge of runs that ask none.
type silent struct{}

func (silent) Name() string { return kernelwright.NoJudge }

func (silent) Judge(context.Context, kernelwright.JudgeInput) (kernelwright.Feedback, error) {
	return kernelwright.Feedback{}, errors.New("no Judge is asked where judge.name is none")
}

// models opens language models, each once: one that plays both roles keeps to
// one account's limits.
type models struct {
	config config.Config
	getenv func(string) string
	store  *store.Store
	log    *slog.Logger
	budget *llm.Budget
	limits map[string]*llm.Limits // of providers
	opened map[string]llm.Model
	// policies serves those that were trained here; nil where none is served.
	policies llm.PolicySource
}

func newModels(c config.Config, getenv func(string) string, s *store.Store, log *slog.Logger) *models {
	limits := map[string]*llm.Limits{}
	for name, o := range c.LLM.Providers {
		limits[name] = llm.NewLimits(o.Concurrency, o.RequestsPerMinute, o.TokensPerMinute)
	}
	return &models{
		config: c,
		getenv: getenv,
		store:  s,
		log:    log,
		budget: llm.NewBudget(allowances(c.Budget), priceList(c.LLM.Prices), s, nil),
		limits: limits,
		opened: map[string]llm.Model{},
	}
}

// open returns the model of that name, with everything round it.
func (m *models) open(name string) (llm.Model, error) {
	if known := m.opened[name]; known != nil {
		return known, nil
	}
	opened, err := m.openWith(name, llm.Options{})
	if err != nil {
		return nil, err
	}
	m.opened[name] = opened
	return opened, nil
}

// openWith returns one of its own, whose options win over what the settings say.
func (m *models) openWith(name string, o llm.Options) (llm.Model, error) {
	return llm.New(name, o.Over(m.options(name)), llm.Services{Prices: priceList(m.config.LLM.Prices), Budget: m.budget, Journal: m.store, Limits: m.limits})
}

// options is what the settings say of a model: its own, its provider's, those of
// all. What limits a provider's calls limits those of all its models together,
// and none of them alone.
func (m *models) options(name string) llm.Options {
	c := m.config.LLM
	return configured(c, name).Over(llm.Options{
		MaxTokens: c.MaxTokens,
		Timeout:   c.Timeout.Std(),
		Attempts:  c.Attempts,
		Getenv:    m.getenv,
		Log:       m.log,
		Policies:  m.policies,
	})
}

// configured is what the settings say of a model and of its provider.
func configured(c config.LLM, name string) llm.Options {
	provider, _, _ := strings.Cut(name, ":")
	shared := c.Providers[provider]
	shared.Concurrency, shared.RequestsPerMinute, shared.TokensPerMinute = 0, 0, 0
	return modelOptions(c.Models[name]).Over(modelOptions(shared))
}

func modelOptions(o config.Options) llm.Options {
	return llm.Options{
		BaseURL:           o.BaseURL,
		KeyEnv:            o.KeyEnv,
		AllowPlainHTTP:    o.AllowPlainHTTP,
		MaxTokens:         o.MaxTokens,
		ContextLength:     o.ContextLength,
		Temperature:       o.Temperature,
		TopP:              o.TopP,
		Sampling:          o.Sampling,
		ReasoningEffort:   o.ReasoningEffort,
		Stream:            o.Stream,
		NativeTools:       o.NativeTools,
		JSONSchema:        o.JSONSchema,
		PromptCache:       o.PromptCache,
		TokenIDs:          o.TokenIDs,
		Timeout:           o.Timeout.Std(),
		MaxReplyBytes:     o.MaxReplyBytes,
		Attempts:          o.Attempts,
		Concurrency:       o.Concurrency,
		RequestsPerMinute: o.RequestsPerMinute,
		TokensPerMinute:   o.TokensPerMinute,
	}
}

func priceList(prices map[string]config.Price) llm.Prices {
	out := llm.Prices{}
	for name, p := range prices {
		out[name] = llm.Price{In: p.In, CachedIn: p.CachedIn, CacheWrite: p.CacheWrite, Out: p.Out, AsOf: p.AsOf}
	}
	return out
}

func allowances(b config.Budget) llm.Allowances {
	one := func(a config.Allowance) llm.Allowance {
		return llm.Allowance{USD: a.USD, Tokens: a.Tokens, Calls: a.Calls, Wall: a.WallTime.Std()}
	}
	out := llm.Allowances{Run: one(b.Run), Day: one(b.Day), Models: map[string]llm.Allowance{}}
	for name, a := range b.Models {
		out.Models[name] = one(a)
	}
	return out
}

// replaying returns the agents of a recorded run, whose models answer from the
// record alone: without a network, and without a key.
func (r *room) replaying(run kernelwright.Run) (agents, error) {
	if run.Strategy == forge.OutsideStrategy {
		return agents{}, usage(fmt.Sprintf("run %d was coded by %q, which cannot be asked again", run.ID, run.Coder), "what an agent outside decided is not in the record; `kernelwright history show` has what it tried")
	}
	if run.Strategy == forge.RecheckStrategy {
		return agents{}, usage(fmt.Sprintf("run %d asked whether a kernel of another device holds on this one: there are no decisions to make again", run.ID), fmt.Sprintf("`kernelwright history show %d` has what came of it", run.ID))
	}
	c := r.casting()
	c.coder, c.judge = run.Coder, run.Judge
	for role, name := range map[string]string{"coded": c.coder, "judged": c.judge} {
		if name != builtinCoder && name != rulesJudge && name != kernelwright.NoJudge && !strings.Contains(name, ":") {
			return agents{}, usage(fmt.Sprintf("run %d was %s by %q, which cannot be asked again", run.ID, role, name), "runs of the built-in agents and of language models are replayed")
		}
	}
	return c.agents(func(name string) (llm.Model, error) { return llm.Replay(name, r.store), nil })
}
