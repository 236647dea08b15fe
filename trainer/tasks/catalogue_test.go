package tasks

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/kernelwright/kernelwright/store"
)

// A folder's first set that holds kinds out says which all later ones hold out.
func TestTheFirstSetChoosesTheHeldKinds(t *testing.T) {
	s, err := store.Open(filepath.Join(t.TempDir(), store.FileName))
	ok(t, err)
	defer func() { ok(t, s.Close()) }()
	first := func() []string {
		sets, err := s.TaskSets(t.Context())
		ok(t, err)
		held, err := FirstHeld(sets)
		ok(t, err)
		return held
	}
	if got := first(); len(got) != 0 {
		t.Errorf("an empty store holds out %q", got)
	}
	for _, set := range [][2]string{{"imported", `{}`}, {"pipeline-1", `{"seed": 1, "held": ["gelu", "norm"]}`}, {"pipeline-2", `{"seed": 2, "held": ["silu"]}`}} {
		_, err := s.BeginTaskSet(t.Context(), set[0], []byte(set[1]))
		ok(t, err)
	}
	if got := first(); !slices.Equal(got, []string{"gelu", "norm"}) {
		t.Errorf("got %q", got)
	}
}
