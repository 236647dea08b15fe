package cli

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/policies"
)

// versioned is a policy by an alias, which a version answers.
type versioned struct{ text string }

func (versioned) Name() string { return "policy:current" }

func (v versioned) Generate(context.Context, llm.Request) (llm.Reply, error) {
	return llm.Reply{Text: v.text, Stop: llm.StopEnd, Model: "policy:v2"}, nil
}

// A candidate names the version of the policy that wrote it, and so does an answer without
// one.
func TestCandidatesNameTheVersion(t *testing.T) {
	in := kernelwright.CoderInput{Task: kernelwright.Task{Name: "t", Source: "class Model: pass\n"}, Device: kernelwright.Device{Kind: kernelwright.CPUDevice}}
	propose := func(text string) (kernelwright.Candidate, error) {
		by, err := casting{coder: "policy:current", judge: rulesJudge}.agents(func(string) (llm.Model, error) { return versioned{text}, nil })
		if err != nil || by.coder.Name() != "policy:current" || by.model.Name() != "policy:current" {
			t.Fatalf("%+v, %v", by, err)
		}
		return by.coder.Propose(t.Context(), in)
	}
	c, err := propose("```python\nimport torch\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n```\n")
	if err != nil || c.Origin != "policy:v2" {
		t.Errorf("%+v, %v", c, err)
	}
	unusable := new(kernelwright.UnusableError)
	if _, err := propose("I would rather not."); !errors.As(err, &unusable) || unusable.Origin != "policy:v2" {
		t.Errorf("%+v", err)
	}
}

// A policy is given no tools, so react asks it in text.
func TestPoliciesHaveToolsInText(t *testing.T) {
	for name, want := range map[string]bool{"policy:current": true, "vllm:m": false, builtinCoder: false} {
		r := &room{}
		r.config.Coder.Name, r.config.Rounds.Strategy, r.config.Rounds.Judge = name, forge.ReactStrategy, "both"
		if got := r.strategy().React.TextTools; got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// The page of a policy has its gates.
func TestPolicyShowsItsGates(t *testing.T) {
	data := t.TempDir()
	s, err := store.Open(filepath.Join(data, store.FileName))
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	for _, digest := range []string{"a1", "b2"} {
		if _, err := s.SavePolicy(ctx, store.Policy{Digest: strings.Repeat(digest, 32), Files: []byte("[]"), Pipeline: 3, Stage: "agentic"}, func(int64) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	g, err := s.BeginGate(ctx, store.Gate{Name: "pipeline 3", Candidate: "policy:v2", Opponent: "policy:v1", Settings: []byte(`{"settings": {"samples": 2}}`)})
	if err == nil {
		err = s.DecideGate(ctx, g.ID, "promoted", []byte(`{"decision": "promoted", "reason": "it is better on held-out tasks"}`))
	}
	if err == nil {
		err = s.Promote(ctx, func([]policies.Promotion) (policies.Promotion, bool, error) {
			return policies.Promotion{Policy: 2, Gate: g.ID, Reason: "it is better"}, true, nil
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	code, said := says(t, "policy", "show", "v2", "--data-dir", data)
	wantSaid(t, code, said, ExitOK, "v2 (serves, best)", "agentic of pipeline 3", "v2 promoted by gate 1: it is better", "# Gate 1: policy:v2 promoted", "It is better on held-out tasks.")
	code, said = says(t, "policy", "show", "v2", "--json", "--data-dir", data)
	wantSaid(t, code, said, ExitOK, `"decision": "promoted"`, `"evidence": {`, `"kind": "promotion"`)
	all, err := objects(said, false)
	if err != nil || len(all) != 1 {
		t.Fatal(err)
	}
	if found := breaches("", "", all[0]); len(found) > 0 {
		t.Errorf("%s", strings.Join(found, "\n"))
	}
}
