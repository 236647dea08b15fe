package hwfeedback

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
)

// What a language model wrote runs, is built and is evaluated in the strict sandbox
// alone; what people and the built-in Coder wrote runs in both.
func TestStrangersNeedTheWholeSandbox(t *testing.T) {
	for _, mode := range []string{"strict", "weak"} {
		b := openBenchWith(t, Options{DataDir: t.TempDir(), Sandbox: mode}, &memoryCache{})
		for _, origin := range []string{"", "file", "builtin", "openai:gpt-5", "policy:p", "mcp", "Builtin"} {
			cand := kernelwright.Candidate{Source: "good", Origin: origin}
			_, err := b.Evaluate(t.Context(), aTask, cand, kernelwright.Quick)
			batched := b.EvaluateBatch(t.Context(), aTask, []kernelwright.Candidate{cand}, kernelwright.Quick, func(int, kernelwright.Verdict) error { return nil })
			refused := mode == "weak" && !slices.Contains([]string{"", "file", "builtin"}, origin)
			_, built := b.Build(t.Context(), cand, nil)
			answers := map[string]error{"evaluated": err, "in a batch": batched, "built": built}
			for what, err := range answers {
				var setup *SetupError
				said := errors.As(err, &setup) && strings.Contains(setup.Reason, "is not run in the sandbox") && setup.Hint != ""
				if said != refused {
					t.Errorf("%s, %q %s: %v", mode, origin, what, err)
				}
			}
		}
	}
}

// What starts a worker has none of the keys that this process has.
func TestKeysStayInThisProcess(t *testing.T) {
	const canary = "canary-8f3a"
	for _, name := range []string{"OPENAI_API_KEY", "ANTHROPIC_API_KEY", "MY_OWN_KEY", "KERNELWRIGHT_KEY", "PYTHONPATH", "AWS_SECRET_ACCESS_KEY"} {
		t.Setenv(name, canary)
	}
	for _, v := range forkServerEnv(pythonEnv{Interpreter: "/usr/bin/python3"}, t.TempDir()) {
		if strings.Contains(v, canary) {
			t.Errorf("the fork server gets %s", v)
		}
	}
	if !slices.ContainsFunc(os.Environ(), func(v string) bool { return strings.Contains(v, canary) }) {
		t.Error("the test has no canary")
	}
}
