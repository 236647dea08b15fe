package llm

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// noKey as Options.KeyEnv says that the server wants no key.
const noKey = "none"

// policyProvider is the provider whose models are policies that were trained here.
const policyProvider = "policy"

// provider is what is known of one.
type provider struct {
	dialect dialect
	sign    func(h http.Header, key string)
	options Options
	// open: it serves open models, each with what its template and the server's
	// version make of tools and tokens.
	open bool
}

func bearer(h http.Header, key string) {
	if key != "" {
		h.Set("Authorization", "Bearer "+key)
	}
}

func anthropicKey(h http.Header, key string) {
	h.Set("Anthropic-Version", "2023-06-01")
	if key != "" {
		h.Set("X-Api-Key", key)
	}
}

// compatible is a server that speaks OpenAI's protocol.
func compatible(baseURL, keyEnv string, d chatCompletions) provider {
	d.maxField = "max_tokens"
	if keyEnv == noKey && d.ids == nil {
		d.ids = anyIDs
	}
	return provider{dialect: d, sign: bearer, options: Options{BaseURL: baseURL, KeyEnv: keyEnv}, open: keyEnv == noKey}
}

// providers are those that are known by name. Any other name may be given a base
// URL, and is taken to speak OpenAI's protocol.
//
// Google is asked at its own endpoint for that protocol: langchaingo's googleai
// stands on clients that Google has retired, which drop the signatures that its
// models want back with each tool call, and it trebles the program and the time
// to compile it.
var providers = map[string]provider{
	"openai": {dialect: chatCompletions{maxField: "max_completion_tokens"}, sign: bearer,
		options: Options{BaseURL: "https://api.openai.com/v1", KeyEnv: "OPENAI_API_KEY"}},
	"anthropic": {dialect: messagesAPI{}, sign: anthropicKey,
		options: Options{BaseURL: "https://api.anthropic.com/v1", KeyEnv: "ANTHROPIC_API_KEY"}},
	"google":     compatible("https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY", chatCompletions{noSeed: true}),
	"openrouter": compatible("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", chatCompletions{marked: "anthropic/"}),
	"deepseek":   noSchema(compatible("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", chatCompletions{noSeed: true})),
	"ollama":     compatible("http://localhost:11434/v1", noKey, chatCompletions{}),
	"vllm":       compatible("http://localhost:8000/v1", noKey, chatCompletions{ids: vllmIDs}),
	"sglang":     compatible("http://localhost:30000/v1", noKey, chatCompletions{ids: sglangIDs}),
	"llamacpp":   compatible("http://localhost:8080/v1", noKey, chatCompletions{ids: llamacppIDs}),
}

// policyServer is what serves policies. It has its token ids and log-probabilities, holds
// no reply to a form, and knows no tools.
func policyServer() provider {
	yes, no := true, false
	p := compatible("", noKey, chatCompletions{ids: vllmIDs})
	p.options.TokenIDs, p.options.Stream, p.options.NativeTools, p.options.JSONSchema = &yes, &no, &no, &no
	return p
}

func noSchema(p provider) provider {
	p.options.JSONSchema = new(bool)
	return p
}

// Providers returns the names that need no base URL, in order.
func Providers() []string {
	return append(slices.Sorted(maps.Keys(providers)), policyProvider, recordingProvider)
}

// Split takes a model's name apart. The model's part may hold colons itself.
func Split(name string) (providerName, model string, err error) {
	providerName, model, ok := strings.Cut(name, ":")
	if !ok || providerName == "" || model == "" {
		return "", "", &Error{
			Kind: UnknownModel, Model: name, Text: "a model is named PROVIDER:MODEL",
			Hint: fmt.Sprintf("such as %q; known providers: %s", "openai:gpt-5", strings.Join(Providers(), ", ")),
		}
	}
	return providerName, model, nil
}

// Models of OpenAI's that take temperature, top_p and a seed. Those that reason,
// which are all later ones, refuse them.
var elderGPT = regexp.MustCompile(`^(ft:)?(gpt-3|gpt-4|chatgpt-4o)`)

// sampling reports whether a model takes sampling parameters.
func sampling(provider, model string) bool {
	switch provider {
	case "openai":
		return elderGPT.MatchString(model)
	case "anthropic":
		return elderClaude.MatchString(model)
	}
	return true
}

// Resolve fills in what o leaves open, for the model of that name, and reports
// what cannot be.
func Resolve(name string, o Options) (Options, error) {
	o, _, err := resolve(name, o)
	return o, err
}

func resolve(name string, o Options) (Options, provider, error) {
	who, model, err := Split(name)
	if err != nil {
		return Options{}, provider{}, err
	}
	p, known := providers[who]
	if !known && who != policyProvider && who != recordingProvider {
		if o.BaseURL == "" {
			return Options{}, provider{}, &Error{
				Kind: UnknownModel, Model: name, Text: fmt.Sprintf("no provider is called %q", who),
				Hint: fmt.Sprintf("known are %s; for another server that speaks OpenAI's protocol set llm.providers.%s.base_url", strings.Join(Providers(), ", "), who),
			}
		}
		p = compatible("", noKey, chatCompletions{})
	}
	if who == policyProvider {
		p = policyServer()
	}
	if who == recordingProvider {
		p.options = Options{KeyEnv: noKey, Attempts: 1}
	}
	yes, no := true, false
	sampled := sampling(who, model)
	o = o.Over(p.options.Over(Options{
		AllowPlainHTTP: &no, MaxTokens: DefaultMaxTokens, Sampling: &sampled, Stream: &yes, NativeTools: &yes, JSONSchema: &yes, PromptCache: &yes,
		TokenIDs: &no, Timeout: DefaultTimeout, MaxReplyBytes: DefaultMaxReplyBytes, Attempts: DefaultAttempts, Getenv: os.Getenv,
	}))
	if err := o.Validate(); err != nil {
		return Options{}, provider{}, &Error{Kind: BadRequest, Model: name, Text: err.Error()}
	}
	return o, p, nil
}

// Open returns the model of that name: "provider:model". It reads the key, and
// talks to nobody. Each Generate is one attempt without bounds but the context's:
// New puts those round it.
func Open(name string, o Options) (Model, error) {
	o, p, err := resolve(name, o)
	if err != nil {
		return nil, err
	}
	who, model, _ := strings.Cut(name, ":")
	if who == policyProvider {
		return openPolicy(name, model, p, o)
	}
	if who == recordingProvider {
		return openRecording(name, model)
	}
	if err := checkTokenIDs(name, p, o); err != nil {
		return nil, err
	}
	key, err := readKey(name, o)
	if err != nil {
		return nil, err
	}
	if err := checkURL(name, o, key); err != nil {
		return nil, err
	}
	m, err := openRemote(name, model, p, o, key)
	if err != nil {
		return nil, &Error{Kind: BadRequest, Model: name, Text: "the model cannot be opened: " + err.Error(), Err: err}
	}
	return m, nil
}

// readKey reads the key where there is one.
func readKey(name string, o Options) (string, error) {
	if o.KeyEnv == noKey {
		return "", nil
	}
	key := strings.TrimSpace(o.Getenv(o.KeyEnv))
	if key == "" {
		return "", &Error{
			Kind: BadKey, Model: name, Text: fmt.Sprintf("the environment variable %s holds no key", o.KeyEnv),
			Hint: fmt.Sprintf("export %s=..., or name another with key_env (%q where the server wants no key)", o.KeyEnv, noKey),
		}
	}
	if strings.ContainsFunc(key, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) || r > unicode.MaxASCII }) {
		return "", &Error{Kind: BadKey, Model: name, Text: fmt.Sprintf("what %s holds is no key: there are spaces or other signs in it", o.KeyEnv),
			Hint: "set it to the key alone: one word, without quotes"}
	}
	return key, nil
}

// checkURL refuses addresses that cannot be, and those that would show the key
// to everybody on the way.
func checkURL(name string, o Options, key string) error {
	bad := func(text, hint string) error {
		return &Error{Kind: BadRequest, Model: name, Text: text, Hint: hint}
	}
	const form = `such as "http://localhost:8000/v1"`
	u, err := url.Parse(o.BaseURL)
	switch {
	case err != nil: // its text may hold a password
		return bad("base_url is no URL", form)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return bad("base_url holds more than an address", "name the key's environment variable with key_env")
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return bad(fmt.Sprintf("base_url %q is no address of a server", o.BaseURL), form)
	case u.Scheme == "http" && key != "" && !*o.AllowPlainHTTP && !loopback(u.Hostname()):
		return bad(fmt.Sprintf("the key would go to %s unencrypted", u.Host), "use https://, or set allow_plain_http = true for this provider")
	}
	return nil
}

// onThisMachine reports whether a model's server is at a loopback address.
func onThisMachine(model string, o Options) bool {
	o, err := Resolve(model, o)
	if err != nil {
		return false
	}
	if strings.HasPrefix(model, policyProvider+":") {
		return true
	}
	u, err := url.Parse(o.BaseURL)
	return err == nil && loopback(u.Hostname())
}

func loopback(host string) bool {
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
