package cli

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/kernelwright/kernelwright/config"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/tasks"
)

// A second pipeline, which has another seed, holds out the kinds that the first one's set did:
// the policy that it goes on with was trained on all others.
func TestEveryPipelineHoldsOutTheSameKinds(t *testing.T) {
	s, err := store.Open(filepath.Join(t.TempDir(), store.FileName))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.BeginTaskSet(t.Context(), "pipeline-1", []byte(`{"seed": 1, "held": ["gelu"]}`)); err != nil {
		t.Fatal(err)
	}
	r := &room{store: s, folder: t.TempDir(), config: config.Default()}
	got, err := trainTasksMakeCmd{Seed: 2}.settings(&app{ctx: t.Context()}, r, &hwfeedback.Evaluator{}, tasks.Catalogue{})
	if err != nil || !slices.Equal(got.Held, []string{"gelu"}) {
		t.Errorf("%v: %+v", err, got)
	}
}
