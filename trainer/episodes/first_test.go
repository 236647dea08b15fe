package episodes

import (
	"errors"
	"reflect"
	"testing"

	kw "github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
)

// First is what an episode begins with, to the last byte, whatever is asked for.
func TestFirstIsWhatAnEpisodeBeginsWith(t *testing.T) {
	w := newWorld(t)
	for name, r := range map[string]Request{
		"plain":   {},
		"named":   {Name: "softmax", Seed: 3, Rounds: 1, Judge: forge.JudgeNone},
		"bounded": {ContextLength: 4096, MaxTokens: 1024, Policy: "v3"},
		"beam":    {Strategy: forge.BeamStrategy, Rounds: 1},
		"react":   {Strategy: forge.ReactStrategy, Turns: 3, Tools: toolsText},
	} {
		t.Run(name, func(t *testing.T) {
			r.Reference = "class Model: pass # " + name
			begun, err := w.episodes.Start(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			task, err := w.hardware.Inspect(t.Context(), "another", r.Reference)
			if err != nil {
				t.Fatal(err)
			}
			first, err := First(t.Context(), w.episodes.o, r, task, w.hardware.Device())
			if err != nil || len(first) == 0 || !reflect.DeepEqual(first, begun.Messages) {
				t.Errorf("%v: %+v, want %+v", err, first, begun.Messages)
			}
			if _, err := w.episodes.GiveUp(t.Context(), begun.ID); err != nil {
				t.Error(err)
			}
		})
	}
	r := Request{Reference: "class Model: pass", ContextLength: 300, MaxTokens: 100}
	if _, err := First(t.Context(), w.episodes.o, r, kw.Task{Source: r.Reference}, w.hardware.Device()); !errors.As(err, new(*BadError)) {
		t.Errorf("a prompt in 300 tokens: %v", err)
	}
}
