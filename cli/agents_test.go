package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright/coder"
	"github.com/kernelwright/kernelwright/config"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/internal/await"
	"github.com/kernelwright/kernelwright/judge"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/llm/llmtest"
	"github.com/kernelwright/kernelwright/prompts"
	"github.com/kernelwright/kernelwright/store"
)

// Every setting of a model reaches it.
func TestSettingsOfAModelReachIt(t *testing.T) {
	set := reflect.New(reflect.TypeFor[config.Options]()).Elem()
	known := map[string]bool{}
	for i := range set.NumField() {
		f := set.Field(i)
		known[set.Type().Field(i).Tag.Get("toml")] = true
		switch f.Kind() {
		case reflect.String:
			f.SetString("x")
		case reflect.Pointer:
			f.Set(reflect.New(f.Type().Elem()))
		default:
			f.SetInt(7)
		}
	}
	got := reflect.ValueOf(modelOptions(set.Interface().(config.Options)))
	for i := range got.NumField() {
		name := got.Type().Field(i).Tag.Get("toml")
		switch {
		case name == "" || name == "-": // services, which no file holds
		case !known[name]:
			t.Errorf("%s of %v is no setting", name, reflect.TypeFor[llm.Options]())
		case got.Field(i).IsZero():
			t.Errorf("%s is lost on its way", name)
		}
		delete(known, name)
	}
	delete(known, "train_on") // it is about what becomes of the answers
	for name := range known {
		t.Errorf("the setting %s reaches no model", name)
	}
}

// One switch says in how many words every agent asks.
func TestTheProfileReachesEveryAgent(t *testing.T) {
	c := config.Default()
	if c.Prompts.Profile != string(prompts.ProfileAuto) {
		t.Errorf("by default it is %q", c.Prompts.Profile)
	}
	c.Coder.Name, c.Judge.Name, c.Prompts.Profile = "vllm:a", "vllm:b", "compact"
	r := &room{config: c}
	by, err := r.casting().agents(func(name string) (llm.Model, error) { return llm.Open(name, llm.Options{}) })
	if err != nil {
		t.Fatal(err)
	}
	for _, words := range []*prompts.Templates{by.coder.(coder.Model).Prompts, by.judge.(judge.Model).Prompts, by.prompts} {
		if words.Profile != prompts.ProfileCompact {
			t.Errorf("an agent asks in %q", words.Profile)
		}
	}
}

// doctor says how long a model's context is, and whence that is known.
func TestDoctorSaysHowLongAContextIs(t *testing.T) {
	o := llmtest.NewContext(t, llmtest.Context{Server: "llamacpp", Tokens: 4096}).Options()
	m, err := llm.Open("llamacpp:m", o)
	if err != nil {
		t.Fatal(err)
	}
	if o, err = llm.Resolve("llamacpp:m", o); err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	note, lacks, err := (&room{config: c, models: &models{config: c}}).call(t.Context(), m, o)
	if want := "; its context has 4096 tokens (its server's /props, of one slot)"; err != nil || lacks != "" || !strings.Contains(note, "shown tools") || !strings.HasSuffix(note, want) {
		t.Errorf("%q, %q, %v", note, lacks, err)
	}
}

// A model that cannot be given tools calls them in its text.
func TestAModelWithoutToolsUsesWords(t *testing.T) {
	no, yes := false, true
	c := config.Default()
	c.Rounds.Strategy = forge.ReactStrategy
	c.LLM.Providers = map[string]config.Options{"vllm": {NativeTools: &no}}
	c.LLM.Models = map[string]config.Options{"vllm:new": {NativeTools: &yes}, "openai:old": {NativeTools: &no}}
	for name, want := range map[string]bool{"vllm:a": true, "vllm:new": false, "openai:old": true, "openai:new": false} {
		c.Coder.Name = name
		if got := (&room{config: c}).strategy().React.TextTools; got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Doctor says what it found out of a server: whether its models are shown tools, and
// which tokens it tells.
func TestDoctorSaysWhatServersMakeOfToolsAndTokens(t *testing.T) {
	tokens := &llmtest.Tokens{Prompt: []int{1}, Reply: []int{2, 3}, LogProbs: []float64{-1, -2}}
	for _, c := range []struct {
		name    string
		serving llmtest.Serving
		ids     bool
		ok      bool
		note    string
	}{
		{"llamacpp:m", llmtest.Serving{Form: llmtest.LlamaCPP}, false, true, "$0.00; it is shown tools"},
		{"llamacpp:m", llmtest.Serving{Form: llmtest.LlamaCPP, HidesTools: true}, false, true, "; it is not shown tools, so react has it call them in text: start the server with"},
		{"ollama:m", llmtest.Serving{Form: llmtest.Ollama, RefusesTools: true}, false, true, "; it is not shown tools"},
		{"mine:m", llmtest.Serving{Form: llmtest.Transformers, CountsNothing: true}, false, true, "; whether it is shown tools cannot be told"},
		{"vllm:m", llmtest.Serving{Form: llmtest.VLLM}, true, true, "; its server gives token ids and log-probabilities; it is shown tools"},
		{"llamacpp:m", llmtest.Serving{Form: llmtest.LlamaCPP}, true, false, "; its server gives the reply's token ids and log-probabilities, and none of the prompt's ids; "},
		{"ollama:m", llmtest.Serving{Form: llmtest.Ollama}, true, false, "; its server gives no token ids where it is asked for them; "},
	} {
		server := llmtest.NewServing(t, c.serving)
		server.Reply = func(llmtest.Asked) llmtest.Answer { return llmtest.Answer{Text: "ok", Tokens: tokens} }
		s, err := store.Open(filepath.Join(t.TempDir(), store.FileName))
		if err != nil {
			t.Fatal(err)
		}
		settings := config.Default()
		provider, _, _ := strings.Cut(c.name, ":")
		settings.LLM.Providers = map[string]config.Options{provider: {BaseURL: server.URL, KeyEnv: "LLMTEST_KEY", TokenIDs: &c.ids}}
		r := &room{config: settings, store: s, models: newModels(settings, func(string) string { return llmtest.Canary }, s, slog.New(slog.DiscardHandler))}
		check := r.modelCheck(t.Context(), c.name, true)
		if check.OK != c.ok || !strings.Contains(check.Note, c.note) || check.OK == (check.Cost != "") {
			t.Errorf("%s at %s: %+v, want %q", c.name, c.serving.Form, check, c.note)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// What a provider's account allows is for all its models together, what a model
// may do for that one alone.
func TestModelsOfAProviderShareItsLimits(t *testing.T) {
	server := llmtest.NewOpenAI(t)
	held := make(chan struct{})
	server.Reply = func(llmtest.Asked) llmtest.Answer { return llmtest.Answer{Text: "ok", Hold: held} }
	s, err := store.Open(filepath.Join(t.TempDir(), store.FileName))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c := config.Default()
	c.LLM.Providers = map[string]config.Options{"openai": {BaseURL: server.URL, Concurrency: 2}}
	c.LLM.Models = map[string]config.Options{"openai:a": {Concurrency: 1}}
	m := newModels(c, func(string) string { return llmtest.Canary }, s, slog.New(slog.DiscardHandler))
	opened := map[string]llm.Model{}
	for _, name := range []string{"openai:a", "openai:b", "openai:c"} {
		if opened[name], err = m.open(name); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(ctx context.Context, name string) error {
		_, err := opened[name].Generate(ctx, llmtest.Ask("a"))
		return err
	}
	answered := make(chan error, 2)
	inFlight := func(n int) {
		t.Helper()
		await.Until(t, fmt.Sprintf("%d calls are in flight", n), func() bool { return len(server.Asked()) >= n })
	}
	late := func(name string) {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if err := ask(ctx, name); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
	}
	go func() { answered <- ask(t.Context(), "openai:a") }()
	inFlight(1)
	late("openai:a")
	go func() { answered <- ask(t.Context(), "openai:b") }()
	inFlight(2)
	late("openai:c")
	if n := len(server.Asked()); n != 2 {
		t.Errorf("%d calls were in flight", n)
	}
	close(held)
	for range 2 {
		if err := <-answered; err != nil {
			t.Error(err)
		}
	}
	if err := ask(t.Context(), "openai:c"); err != nil {
		t.Error(err)
	}
}
