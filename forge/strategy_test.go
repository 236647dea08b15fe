package forge_test

import (
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/forge/forgetest"
)

func TestStrategies(t *testing.T) {
	for _, name := range forge.Strategies {
		t.Run(name, func(t *testing.T) { forgetest.Strategy(t, name) })
	}
}

func TestNewNamesTheStrategies(t *testing.T) {
	s, err := forge.New("", forge.Parts{})
	if err != nil || s.Name() != forge.RoundsStrategy {
		t.Errorf("%v %v", s, err)
	}
	if _, err := forge.New("greedy", forge.Parts{}); err == nil || !strings.Contains(err.Error(), "rounds, beam, react") {
		t.Errorf("got %v", err)
	}
	for _, name := range forge.Strategies {
		s, err := forge.New(name, forge.Parts{Settings: forge.Settings{JudgeMode: forge.JudgeNone}, Recorder: newWorld(0)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Run(t.Context(), run, task); err == nil || !strings.Contains(err.Error(), "there is no") {
			t.Errorf("%s without an agent: %v", name, err)
		}
	}
}
