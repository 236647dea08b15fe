package store

import (
	"encoding/json"
	"errors"
	"testing"
)

// A stage that is not finished is gone on with; one that is, or whose inputs are others,
// is another attempt. Nothing of an attempt is lost by going on.
func TestStages(t *testing.T) {
	s := openTest(t)
	ctx := t.Context()
	p := must(s.BeginPipeline(ctx, []byte(`{"seed":1}`)))(t)
	begin := func(inputs string) Stage {
		t.Helper()
		return must(s.BeginStage(ctx, p.ID, "warmup", []byte(inputs), []byte(`{"steps":3}`)))(t)
	}
	one := begin(`{"a":1}`)
	if one.Attempt != 1 || one.Status != StageRunning || one.Starts != 1 || one.EndedMS != 0 || string(one.Budget) != `{"steps":3}` {
		t.Errorf("%+v", one)
	}
	exit := 5
	one.Status, one.Exit, one.Reason, one.Hint, one.Seconds, one.Verdicts = StageMemory, &exit, "out of memory", "have more", 2.5, 7
	ok(t, s.SaveStage(ctx, one))
	again := begin(`{"a":1}`)
	if again.Attempt != 1 || again.Starts != 2 || again.Seconds != 2.5 || again.Verdicts != 7 || again.Exit != nil || again.Reason != "" {
		t.Errorf("%+v", again)
	}
	again.Status, again.Outputs = StageDone, []byte(`{"policy":"p"}`)
	ok(t, s.SaveStage(ctx, again))
	if next := begin(`{"a":1}`); next.Attempt != 2 {
		t.Errorf("a finished stage was gone on with: %+v", next)
	}
	if next := begin(`{"a":2}`); next.Attempt != 3 {
		t.Errorf("a stage with other inputs was gone on with: %+v", next)
	}
	all := must(s.Stages(ctx, p.ID))(t)
	if len(all) != 3 || string(all[0].Outputs) != `{"policy":"p"}` || all[0].EndedMS == 0 || all[2].Outputs != nil {
		t.Errorf("%+v", all)
	}
	ok(t, s.FinishPipeline(ctx, p.ID, true))
	if p := must(s.Pipeline(ctx, p.ID))(t); p.FinishedMS == 0 || !json.Valid(p.Settings) {
		t.Errorf("%+v", p)
	}
	ok(t, s.RemovePipeline(ctx, p.ID))
	if _, err := s.Pipeline(ctx, p.ID); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v", err)
	}
	if next := must(s.BeginPipeline(ctx, []byte(`{}`)))(t); next.ID == p.ID {
		t.Error("a number was given out twice")
	}
}
