package store

import (
	"errors"
	"testing"
)

// A task that was held out is never trained on, and the other way about; a
// batch of which one may not be there records none.
func TestTaskSetsKeepHeldOutTasksApart(t *testing.T) {
	s := openTest(t)
	ctx := t.Context()
	first := must(s.BeginTaskSet(ctx, "first", []byte(`{"seed":1}`)))(t)
	second := must(s.BeginTaskSet(ctx, "second", []byte(`{"seed":2}`)))(t)
	if again := must(s.BeginTaskSet(ctx, "first", []byte(`{"seed":3}`)))(t); again.ID != first.ID || string(again.Settings) != `{"seed":1}` {
		t.Errorf("the set was begun anew: %+v", again)
	}
	draw := func(index int64, split Split, fingerprint string) TaskDraw {
		return TaskDraw{Index: index, Split: split, Fingerprint: fingerprint, Source: "class Model: # " + fingerprint, Detail: []byte(`{}`)}
	}
	ok(t, s.SaveTaskDraw(ctx, first.ID, draw(0, TrainSplit, "trained")))
	ok(t, s.SaveTaskDraw(ctx, first.ID, draw(1, CompositionsSplit, "held")))
	ok(t, s.SaveTaskDraw(ctx, first.ID, TaskDraw{Index: 2, Split: TrainSplit, Reason: "is random"}))
	ok(t, s.SaveTaskDraw(ctx, first.ID, draw(1, ValSplit, "other"))) // index 1 was decided
	for _, c := range []TaskDraw{draw(0, TrainSplit, "held"), draw(0, ValSplit, "held"), draw(0, KindsSplit, "trained")} {
		var overlap *OverlapError
		err := s.SaveTaskDraws(ctx, second.ID, []TaskDraw{draw(7, c.Split, "new"), c})
		if !errors.As(err, &overlap) || overlap.Set != "first" {
			t.Errorf("%s as %s: %v", c.Fingerprint, c.Split, err)
		}
	}
	if n := len(must(s.TaskDraws(ctx, second.ID, false))(t)); n != 0 {
		t.Errorf("%d draws of refused batches were recorded", n)
	}
	ok(t, s.SaveTaskDraw(ctx, second.ID, draw(0, TrainSplit, "trained")))
	kept := must(s.TaskDraws(ctx, first.ID, true))(t)
	if len(kept) != 2 || kept[1].Source != "class Model: # held" || kept[1].Split != CompositionsSplit {
		t.Errorf("kept: %+v", kept)
	}
	if counts := must(s.TaskReasons(ctx, first.ID))(t); counts[""] != 2 || counts["is random"] != 1 {
		t.Errorf("reasons: %v", counts)
	}
}

// A task serves one gate, which may ask twice.
func TestATaskServesOneGate(t *testing.T) {
	s := openTest(t)
	ctx := t.Context()
	ok(t, s.UseInGate(ctx, "one", []string{"a", "b"}))
	ok(t, s.UseInGate(ctx, "one", []string{"b", "a"}))
	var served *GateError
	if err := s.UseInGate(ctx, "two", []string{"c", "b"}); !errors.As(err, &served) || served.Gate != "one" || served.Fingerprint != "b" {
		t.Errorf("got %v", err)
	}
	if gate := must(s.GateOf(ctx, "c"))(t); gate != "" {
		t.Errorf("c serves %q, though its gate was refused", gate)
	}
}
