package llm

import (
	"fmt"
	"log/slog"
	"net/http"
	"time"
)

// Options says how a model is reached and asked. A zero value (nil, "", 0)
// leaves it to the provider's defaults, which Resolve fills in. They may stand
// under a provider, for all its models, and under a model: Over lays one over
// the other.
type Options struct {
	// BaseURL is where the provider's paths begin: "http://localhost:8000/v1".
	BaseURL string `toml:"base_url" json:"base_url"`
	// KeyEnv names the environment variable that holds the key; "none" where
	// the server wants none.
	KeyEnv string `toml:"key_env" json:"key_env"`
	// AllowPlainHTTP lets the key travel over http:// to another machine.
	AllowPlainHTTP *bool `toml:"allow_plain_http" json:"allow_plain_http"`

	// MaxTokens is what one reply may take, reasoning included.
	MaxTokens int `toml:"max_tokens" json:"max_tokens"`
	// ContextLength is what prompt and reply may take together; 0: the server is asked,
	// or it is learned.
	ContextLength int `toml:"context_length" json:"context_length"`

	Temperature *float64 `toml:"temperature" json:"temperature"`
	TopP        *float64 `toml:"top_p" json:"top_p"`
	// Sampling says whether temperature, top_p and seed may be sent: some models
	// that reason refuse them.
	Sampling *bool `toml:"sampling" json:"sampling"`
	// ReasoningEffort is "low", "medium" or "high", or another word that the
	// provider knows; "" leaves it to the model.
	ReasoningEffort string `toml:"reasoning_effort" json:"reasoning_effort"`

	// Stream asks for the reply in pieces, which keeps the connection of a long
	// one alive. Callers see no difference.
	Stream *bool `toml:"stream" json:"stream"`
	// NativeTools says whether the model can be given tools. Where it cannot,
	// a request with tools is refused.
	NativeTools *bool `toml:"native_tools" json:"native_tools"`
	// JSONSchema says whether the provider holds a reply to a schema. Where it
	// does not, the schema is not sent.
	JSONSchema *bool `toml:"json_schema" json:"json_schema"`
	// PromptCache says whether a provider that wants to be told what to cache is
	// told.
	PromptCache *bool `toml:"prompt_cache" json:"prompt_cache"`
	// TokenIDs asks for the ids and log-probabilities of the tokens; the reply then
	// comes in one piece. What a server of open models does not give is said once.
	TokenIDs *bool `toml:"token_ids" json:"token_ids"`

	// Timeout is how long one attempt may take, from the first byte sent to the
	// last one read.
	Timeout time.Duration `toml:"timeout" json:"timeout"`
	// MaxReplyBytes bounds text, reasoning and arguments of one reply.
	MaxReplyBytes int64 `toml:"max_reply_bytes" json:"max_reply_bytes"`
	// Attempts is how often a call is made until it is answered; 1: no retry.
	Attempts int `toml:"attempts" json:"attempts"`

	// Concurrency is how many calls of this model may be in flight; 0: no limit.
	Concurrency int `toml:"concurrency" json:"concurrency"`
	// RequestsPerMinute and TokensPerMinute are this model's limits; 0: none. What
	// several models share is in Services.Limits.
	RequestsPerMinute int `toml:"requests_per_minute" json:"requests_per_minute"`
	TokensPerMinute   int `toml:"tokens_per_minute" json:"tokens_per_minute"`

	// Getenv is where keys come from; nil: os.Getenv.
	Getenv func(string) string `toml:"-" json:"-"`
	// HTTP carries the requests; nil: one that is shared by all models.
	HTTP http.RoundTripper `toml:"-" json:"-"`
	// Log is told what is odd about a server; nil: nobody is.
	Log *slog.Logger `toml:"-" json:"-"`
	// Policies serves "policy:NAME"; nil where none is.
	Policies PolicySource `toml:"-" json:"-"`
}

// The defaults of what every provider has.
const (
	DefaultMaxTokens     = 16384            // a kernel with its reasoning
	DefaultTimeout       = 10 * time.Minute // a model that reasons, at 30 tokens a second
	DefaultMaxReplyBytes = 2 << 20          // four times what 128K tokens of text take
	DefaultAttempts      = 5
)

// Over returns o where it says something, and what is below where not.
func (o Options) Over(below Options) Options {
	take(&below.BaseURL, o.BaseURL)
	take(&below.KeyEnv, o.KeyEnv)
	take(&below.AllowPlainHTTP, o.AllowPlainHTTP)
	take(&below.MaxTokens, o.MaxTokens)
	take(&below.ContextLength, o.ContextLength)
	take(&below.Temperature, o.Temperature)
	take(&below.TopP, o.TopP)
	take(&below.Sampling, o.Sampling)
	take(&below.ReasoningEffort, o.ReasoningEffort)
	take(&below.Stream, o.Stream)
	take(&below.NativeTools, o.NativeTools)
	take(&below.JSONSchema, o.JSONSchema)
	take(&below.PromptCache, o.PromptCache)
	take(&below.TokenIDs, o.TokenIDs)
	take(&below.Timeout, o.Timeout)
	take(&below.MaxReplyBytes, o.MaxReplyBytes)
	take(&below.Attempts, o.Attempts)
	take(&below.Concurrency, o.Concurrency)
	take(&below.RequestsPerMinute, o.RequestsPerMinute)
	take(&below.TokensPerMinute, o.TokensPerMinute)
	take(&below.Log, o.Log)
	if o.Getenv != nil {
		below.Getenv = o.Getenv
	}
	if o.HTTP != nil {
		below.HTTP = o.HTTP
	}
	if o.Policies != nil {
		below.Policies = o.Policies
	}
	return below
}

func take[T comparable](to *T, from T) {
	var zero T
	if from != zero {
		*to = from
	}
}

// Validate reports the first value that no model can have. Its text begins with
// the key.
func (o Options) Validate() error {
	for _, v := range []struct {
		key   string
		value int64
	}{
		{"max_tokens", int64(o.MaxTokens)}, {"context_length", int64(o.ContextLength)}, {"timeout", int64(o.Timeout)},
		{"max_reply_bytes", o.MaxReplyBytes}, {"attempts", int64(o.Attempts)}, {"concurrency", int64(o.Concurrency)},
		{"requests_per_minute", int64(o.RequestsPerMinute)}, {"tokens_per_minute", int64(o.TokensPerMinute)},
	} {
		if v.value < 0 {
			return fmt.Errorf("%s: it cannot be negative", v.key)
		}
	}
	if o.Temperature != nil && !(*o.Temperature >= 0 && *o.Temperature <= 2) {
		return fmt.Errorf("temperature: %v is not between 0 and 2", *o.Temperature)
	}
	if o.TopP != nil && !(*o.TopP > 0 && *o.TopP <= 1) {
		return fmt.Errorf("top_p: %v is not above 0 and at most 1", *o.TopP)
	}
	return nil
}
