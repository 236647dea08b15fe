package llm_test

import (
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"

	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/llm/llmtest"
)

func TestOpenRefuses(t *testing.T) {
	yes, hot := true, 3.0
	keyed := func(o llm.Options) llm.Options {
		o.KeyEnv = "K"
		o.Getenv = func(string) string { return llmtest.Canary }
		return o
	}
	for _, test := range []struct {
		name string
		o    llm.Options
		kind llm.Kind // "": it opens
		want string   // in the text or the hint
	}{
		{"gpt-5", llm.Options{}, llm.UnknownModel, "PROVIDER:MODEL"},
		{":x", llm.Options{}, llm.UnknownModel, "PROVIDER:MODEL"},
		{"openai:", llm.Options{}, llm.UnknownModel, "known providers: anthropic, deepseek, google,"},
		{"opnai:gpt-5", llm.Options{}, llm.UnknownModel, "known are anthropic, deepseek, google, llamacpp, ollama, openai, openrouter, sglang, vllm, policy"},
		{"mine:x", llm.Options{BaseURL: "http://10.0.0.7:8000/v1"}, "", ""},
		{"openai:gpt-5", llm.Options{Getenv: func(string) string { return " " }}, llm.BadKey, "OPENAI_API_KEY holds no key"},
		{"openai:gpt-5", llm.Options{Getenv: func(string) string { return "two words" }}, llm.BadKey, "is no key"},
		{"openai:gpt-5", llm.Options{Getenv: func(string) string { return llmtest.Canary + "\n" }}, "", ""},
		{"vllm:x", llm.Options{}, "", ""},
		{"vllm:x", keyed(llm.Options{BaseURL: "http://gpu.example:8000/v1"}), llm.BadRequest, "the key would go to gpu.example:8000 unencrypted"},
		{"vllm:x", keyed(llm.Options{BaseURL: "http://gpu.example:8000/v1", AllowPlainHTTP: &yes}), "", ""},
		{"vllm:x", keyed(llm.Options{BaseURL: "http://127.0.0.9:8000/v1"}), "", ""},
		{"vllm:x", keyed(llm.Options{BaseURL: "http://[::1]:8000/v1"}), "", ""},
		{"vllm:x", keyed(llm.Options{BaseURL: "http://localhost.evil.example/v1"}), llm.BadRequest, "unencrypted"},
		{"vllm:x", llm.Options{BaseURL: "ftp://gpu/v1"}, llm.BadRequest, "no address of a server"},
		{"vllm:x", llm.Options{BaseURL: "localhost:8000"}, llm.BadRequest, "no address of a server"},
		{"vllm:x", llm.Options{BaseURL: "https://me:" + llmtest.Canary + "@gpu/v1"}, llm.BadRequest, "more than an address"},
		{"vllm:x", llm.Options{BaseURL: "https://gpu/v1?key=" + llmtest.Canary}, llm.BadRequest, "more than an address"},
		{"vllm:x", llm.Options{BaseURL: "https://me:" + llmtest.Canary + "@gpu\x7f/"}, llm.BadRequest, "no URL"},
		{"vllm:x", llm.Options{Temperature: &hot}, llm.BadRequest, "temperature: 3 is not between 0 and 2"},
		{"vllm:x", llm.Options{TopP: new(float64)}, llm.BadRequest, "top_p"},
		{"vllm:x", llm.Options{Attempts: -1}, llm.BadRequest, "attempts: it cannot be negative"},
		{"vllm:x", llm.Options{ContextLength: 8192}, "", ""},
		{"policy:v1", llm.Options{}, llm.UnknownModel, "no policies are served here"},
		{"policy:v1", llm.Options{Policies: policies{}}, "", ""},
		{"policy:v9", llm.Options{Policies: policies{}}, llm.UnknownModel, "there is no policy v9"},
		{"policy:v1", llm.Options{Policies: policies{}, BaseURL: "http://localhost:1/v1"}, llm.BadRequest, "policies are served by this program"},
		{"training:v1", llm.Options{Policies: policies{}}, llm.UnknownModel, "no provider is called"},
	} {
		m, err := llm.Open(test.name, test.o)
		if kindOf(err) != test.kind || (err == nil) != (m != nil) {
			t.Errorf("%s: kind %q, want %q: %v", test.name, kindOf(err), test.kind, err)
			continue
		}
		if err == nil {
			continue
		}
		llmtest.NoKey(t, err)
		var e *llm.Error
		if errors.As(err, &e); !strings.Contains(e.Text+" "+e.Hint, test.want) {
			t.Errorf("%s: %q, hint %q: want %q", test.name, e.Text, e.Hint, test.want)
		}
	}
}

// Over forgets no setting, whichever are added.
func TestOptionsOver(t *testing.T) {
	kind := reflect.TypeFor[llm.Options]()
	for i := range kind.NumField() {
		name := kind.Field(i).Name
		var o llm.Options
		f := reflect.ValueOf(&o).Elem().Field(i)
		switch f.Kind() {
		case reflect.String:
			f.SetString("x")
		case reflect.Int, reflect.Int64:
			f.SetInt(7)
		case reflect.Pointer:
			f.Set(reflect.New(f.Type().Elem()))
		case reflect.Func:
			o.Getenv = func(string) string { return "" }
		case reflect.Interface:
			o.HTTP, o.Policies = http.DefaultTransport, policies{}
		default:
			t.Fatalf("%s is a %v, which this test does not know", name, f.Kind())
		}
		if got := reflect.ValueOf(o.Over(llm.Options{})).Field(i); got.IsZero() {
			t.Errorf("%s is lost over nothing", name)
		}
		if got := reflect.ValueOf(llm.Options{}.Over(o)).Field(i); got.IsZero() {
			t.Errorf("%s is lost below nothing", name)
		}
	}
}

// What configuration fills, a model over its provider.
func TestOptionsFromTOML(t *testing.T) {
	var c struct {
		Providers map[string]llm.Options `toml:"providers"`
		Models    map[string]llm.Options `toml:"models"`
		Prices    llm.Prices             `toml:"prices"`
		Budget    llm.Allowances         `toml:"budget"`
	}
	md, err := toml.Decode(`
[providers.vllm]
base_url = "http://gpu:8000/v1"
timeout = "90s"
temperature = 0.7
stream = false

[models."vllm:big"]
temperature = 0
stream = true
concurrency = 8

[prices."vllm:*"]
in = 0
out = 0
as_of = "2026-11-23"

[budget.run]
usd = 0.5
wall_time = "20m"

[budget.models."openai:gpt-5"]
tokens = 1000000
`, &c)
	if err != nil {
		t.Fatal(err)
	}
	if extra := md.Undecoded(); len(extra) > 0 {
		t.Errorf("keys without a field: %v", extra)
	}
	o, err := llm.Resolve("vllm:big", c.Models["vllm:big"].Over(c.Providers["vllm"]))
	if err != nil {
		t.Fatal(err)
	}
	if o.BaseURL != "http://gpu:8000/v1" || o.Timeout.String() != "1m30s" || *o.Temperature != 0 || !*o.Stream || o.Concurrency != 8 || o.KeyEnv != "none" || o.MaxTokens != llm.DefaultMaxTokens {
		t.Errorf("%+v", o)
	}
	if err := errors.Join(c.Prices.Validate(), c.Budget.Validate()); err != nil || c.Budget.Run.Wall.String() != "20m0s" {
		t.Errorf("%+v: %v", c.Budget, err)
	}
}
