package config

import (
	"fmt"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
)

// The tables whose names people choose.
const (
	providers    = "llm.providers"
	models       = "llm.models"
	prices       = "llm.prices"
	budgetModels = "budget.models"
)

// tableName is what a provider or a model can be called. A * may end one that
// stands for many.
var tableName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/@+-]*\*?$`)

// trainingProvider is the internal one of policies in training (llm.TrainingProvider).
const trainingProvider = "training"

// maxTokens is past what any model says or reads.
const maxTokens = 100_000_000

// checkModels says what is wrong with the settings of language models.
func checkModels(c Config, fail func(key, text, hint string), between func(key string, value, low, high int)) {
	between("llm.max_tokens", c.LLM.MaxTokens, 1, maxTokens)
	between("llm.attempts", c.LLM.Attempts, 1, 100)
	duration := func(key string, d Duration, zero bool) {
		if d < 0 || d == 0 && !zero || d.Std() > maxDuration {
			fail(key, fmt.Sprintf("is %q", d), `it takes a length of time above zero, such as "10m"`)
		}
	}
	duration("llm.timeout", c.LLM.Timeout, false)

	named := func(table, name string, model bool) bool {
		key := inTable(table, name, "")
		key = strings.TrimSuffix(key, ".")
		provider, rest, colon := strings.Cut(name, ":")
		switch {
		case provider == trainingProvider:
			fail(key, "names a policy in training", "that provider is internal: give yours another name")
		case !tableName.MatchString(name):
			fail(key, "is a name that nothing can have", `letters, digits and . _ : / @ + - make a name: [llm.models."openai:gpt-5"]`)
		case model && (!colon || provider == "" || rest == ""):
			fail(key, "names no model", `a model is named "provider:model", in quotes: [llm.models."openai:gpt-5"]`)
		case !model && colon:
			fail(key, "is the name of a model", `a provider's is without a colon: [llm.providers.openai]; [llm.models."provider:model"] is for one model`)
		case strings.HasSuffix(name, "*") && table != prices:
			fail(key, "ends in *", "only a price may stand for many models")
		default:
			return true
		}
		return false
	}
	for _, name := range sorted(c.LLM.Providers) {
		if named(providers, name, false) {
			if c.LLM.Providers[name].TrainOn != nil {
				fail(inTable(providers, name, "train_on"), "is set for all models of a provider", `a licence is a model's: set it in [llm.models."provider:model"]`)
			}
			checkOptions(inTable(providers, name, ""), c.LLM.Providers[name], fail, between, duration)
		}
	}
	for _, name := range sorted(c.LLM.Models) {
		if named(models, name, true) {
			checkOptions(inTable(models, name, ""), c.LLM.Models[name], fail, between, duration)
		}
	}
	for _, name := range sorted(c.LLM.Prices) {
		if !named(prices, name, true) {
			continue
		}
		p := c.LLM.Prices[name]
		price := func(field string, v float64) {
			if !(v >= 0) || math.IsInf(v, 0) {
				fail(inTable(prices, name, field), fmt.Sprintf("is %v", v), "it takes USD for a million tokens, such as 1.25")
			}
		}
		price("in", p.In)
		price("out", p.Out)
		if p.CachedIn != nil {
			price("cached_in", *p.CachedIn)
		}
		if p.CacheWrite != nil {
			price("cache_write", *p.CacheWrite)
		}
		if _, err := time.Parse(time.DateOnly, p.AsOf); err != nil {
			fail(inTable(prices, name, "as_of"), fmt.Sprintf("is %q", p.AsOf), `it takes the day on which the price was looked up, such as "2026-11-23"`)
		}
	}
	allowance := func(prefix string, a Allowance) {
		if !(a.USD >= 0) || math.IsInf(a.USD, 0) {
			fail(prefix+"usd", fmt.Sprintf("is %v", a.USD), "it takes an amount in USD, such as 2.5, and 0 for no limit")
		}
		for _, v := range []struct {
			name  string
			value int64
		}{{"tokens", a.Tokens}, {"calls", a.Calls}} {
			if v.value < 0 {
				fail(prefix+v.name, fmt.Sprintf("is %d", v.value), "it takes a whole number, and 0 for no limit")
			}
		}
		if a.WallTime < 0 || a.WallTime.Std() > maxDuration {
			fail(prefix+"wall_time", fmt.Sprintf("is %q", a.WallTime), `it takes a length of time such as "1h", and "0s" for no limit`)
		}
	}
	allowance("budget.run.", c.Budget.Run)
	allowance("budget.day.", c.Budget.Day)
	for _, name := range sorted(c.Budget.Models) {
		if !named(budgetModels, name, true) {
			continue
		}
		if c.Budget.Models[name] == (Allowance{}) {
			fail(inTable(budgetModels, name, "usd"), "is 0, and so is the rest of its table", "give it a limit, or leave the table out")
		}
		allowance(inTable(budgetModels, name, ""), c.Budget.Models[name])
	}
}

func checkOptions(prefix string, o Options, fail func(key, text, hint string), between func(key string, value, low, high int), duration func(string, Duration, bool)) {
	if o == (Options{}) {
		fail(strings.TrimSuffix(prefix, "."), "sets nothing", "set something in it, or leave the table out")
	}
	if o.BaseURL != "" {
		u, err := url.Parse(o.BaseURL)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "" {
			fail(prefix+"base_url", "is no address of a server", `it takes where the provider's paths begin, such as "http://localhost:8000/v1"`)
		} else if u.User != nil {
			fail(prefix+"base_url", "has a name or a password in it", secretHint)
		}
	}
	if o.KeyEnv != "" && !envName.MatchString(o.KeyEnv) {
		// Not shown: it may be the key.
		fail(prefix+"key_env", "is no name of an environment variable", secretHint)
	}
	between(prefix+"max_tokens", o.MaxTokens, 0, maxTokens)
	between(prefix+"context_length", o.ContextLength, 0, maxTokens)
	if o.ContextLength > 0 && o.MaxTokens >= o.ContextLength {
		fail(prefix+"max_tokens", fmt.Sprintf("is %d", o.MaxTokens), fmt.Sprintf("that leaves no room for a prompt: its context_length is %d", o.ContextLength))
	}
	if t := o.Temperature; t != nil && !(*t >= 0 && *t <= 2) {
		fail(prefix+"temperature", fmt.Sprintf("is %v", *t), "it takes a number from 0 to 2")
	}
	if p := o.TopP; p != nil && !(*p > 0 && *p <= 1) {
		fail(prefix+"top_p", fmt.Sprintf("is %v", *p), "it takes a number above 0 and up to 1")
	}
	duration(prefix+"timeout", o.Timeout, true)
	if o.MaxReplyBytes < 0 {
		fail(prefix+"max_reply_bytes", fmt.Sprintf("is %d", o.MaxReplyBytes), "it takes a number of bytes")
	}
	between(prefix+"attempts", o.Attempts, 0, 100)
	between(prefix+"concurrency", o.Concurrency, 0, 10_000)
	between(prefix+"requests_per_minute", o.RequestsPerMinute, 0, 1_000_000)
	between(prefix+"tokens_per_minute", o.TokensPerMinute, 0, 1_000_000_000)
}

func sorted[V any](m map[string]V) []string {
	var out []string
	for name := range m {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// envName is what an environment variable can be called: people write them in
// capitals, and keys have letters of both kinds.
var envName = regexp.MustCompile(`^([A-Z_][A-Z0-9_]{0,63}|none)$`)

// secret is what the keys of the usual providers look like, and of no setting.
var secret = regexp.MustCompile(`(?i:\bbearer\s+\S{8,})|\b(sk|rk|pk|gsk|xai|hf|r8|nvapi|pplx|ghp|github_pat|fw|csk|tgp)[-_][A-Za-z0-9_-]{16,}|\bAIza[A-Za-z0-9_-]{30,}|\beyJ[A-Za-z0-9_-]{20,}\.`)

// secrets is what people call a key that they would put into the settings.
var secrets = []string{"key", "api_key", "apikey", "api-key", "token", "secret", "password", "access_token", "auth", "authorization", "bearer"}

// HoldsSecret reports whether a text holds what looks like a key of a provider.
func HoldsSecret(text string) bool { return secret.MatchString(text) }

const secretHint = "a key never stands in the settings, which are shown to whoever asks: put it into an environment variable, and name that variable with key_env"

// checkSecrets refuses whatever looks like a key, and does not repeat it.
func checkSecrets(c Config, fail func(key, text, hint string)) {
	for _, k := range KeysOf(c) {
		v, _ := Value(c, k)
		texts, _ := v.([]string)
		if text, ok := v.(string); ok {
			texts = []string{text}
		}
		if slices.ContainsFunc(append(texts, split(k)...), secret.MatchString) {
			key := k
			if secret.MatchString(k) {
				key = "a name in " + strings.Join(split(k)[:2], ".")
			}
			fail(key, "looks like a key of a provider", secretHint)
		}
	}
}
