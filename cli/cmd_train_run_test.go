package cli

import (
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/kernelwright/kernelwright/config"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/gate"
	"github.com/kernelwright/kernelwright/trainer/pipeline"
	"github.com/kernelwright/kernelwright/trainer/policies"
	"github.com/kernelwright/kernelwright/trainer/teach"
)

// trainRoom is a room with a record of its own, and what pipelines need to begin.
func trainRoom(t *testing.T) (*room, pipeline.Parts) {
	t.Helper()
	dir := t.TempDir()
	s, err := store.Open(filepath.Join(dir, store.FileName))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return &room{config: config.Default(), folder: dir, store: s, policyParts: policyParts{policies: policies.Open(s, dir)}}, pipeline.Parts{Store: s, DataDir: dir}
}

// started begins what a command asks for.
func started(t *testing.T, c trainRunCmd, r *room, parts pipeline.Parts) int64 {
	t.Helper()
	_, id, settings, err := c.prepare(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	p, err := begin(t.Context(), parts, id, settings)
	if err != nil {
		t.Fatal(err)
	}
	return p.ID()
}

func promoted(t *testing.T, r *room, content string) {
	t.Helper()
	folder := filepath.Join(t.TempDir(), content)
	if err := writeModel(folder, content); err != nil {
		t.Fatal(err)
	}
	p, err := r.policies.Add(t.Context(), folder, "", "", policies.Origin{})
	if err == nil {
		err = r.policies.Promote(t.Context(), p, 0, "by hand")
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A promotion in between, by hand or by the pipeline itself, does not have the same
// command begin another pipeline; one that has ended does.
func TestAPromotionLeavesThePipelineTheSame(t *testing.T) {
	r, parts := trainRoom(t)
	for _, content := range []string{"one", "two"} {
		if id := started(t, trainRunCmd{Seed: 1}, r, parts); id != 1 {
			t.Errorf("before %s: pipeline %d", content, id)
		}
		promoted(t, r, content)
	}
	n := nightly{room: r}
	s, err := trainRunCmd{}.settings(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if p, err := n.open(t.Context(), r, parts, s); err != nil || p.ID() != 1 {
		t.Errorf("by night: %v", err)
	}
	if err := r.store.FinishPipeline(t.Context(), 1, true); err != nil {
		t.Fatal(err)
	}
	_, id, settings, err := trainRunCmd{Seed: 1}.prepare(t.Context(), r)
	if err != nil || id != 0 || settings.Base != "policy:v2" {
		t.Errorf("pipeline %d on %s, %v", id, settings.Base, err)
	}
}

// A small pipeline is a small one however it is named.
func TestASmallPipelineKeepsItsDevice(t *testing.T) {
	r, parts := trainRoom(t)
	r.config.Device = "cuda:0"
	if id := started(t, trainRunCmd{Small: true, Seed: 1}, r, parts); id != 1 {
		t.Fatalf("pipeline %d", id)
	}
	for name, tt := range map[string]struct {
		c    trainRunCmd
		want string
	}{
		"by number":     {trainRunCmd{Pipeline: 1}, "cpu"},
		"a stage of it": {trainRunCmd{Stage: pipeline.GateStage}, "cpu"},
		"by its flags":  {trainRunCmd{Small: true, Seed: 1}, "cpu"},
		"asked for":     {trainRunCmd{Pipeline: 1, deviceFlags: deviceFlags{Device: "cuda:0"}}, "cuda:0"},
		"another one":   {trainRunCmd{Seed: 1}, "cuda:0"},
	} {
		under, _, _, err := tt.c.prepare(t.Context(), r)
		if err != nil || under.config.Device != tt.want {
			t.Errorf("%s: %s, %v", name, under.config.Device, err)
		}
	}
}

// A stage by itself is of a pipeline that is there, finished or not: none is begun for it.
func TestAStageNeedsItsPipeline(t *testing.T) {
	r, parts := trainRoom(t)
	gate := trainRunCmd{Small: true, Seed: 1, Stage: pipeline.GateStage}
	if _, _, _, err := gate.prepare(t.Context(), r); err == nil {
		t.Error("there is no pipeline, and its gate can be held")
	}
	if id := started(t, trainRunCmd{Small: true, Seed: 1}, r, parts); id != 1 {
		t.Fatalf("pipeline %d", id)
	}
	if err := r.store.FinishPipeline(t.Context(), 1, true); err != nil {
		t.Fatal(err)
	}
	if id := started(t, gate, r, parts); id != 1 {
		t.Errorf("pipeline %d", id)
	}
}

// A pipeline that cannot come to its gate does not hold up those of later nights.
func TestNightsPassOverWhatIsStuck(t *testing.T) {
	for name, tt := range map[string]struct {
		status store.StageStatus
		failed int // nights
		passed bool
	}{
		"stopped":              {store.StageStopped, 0, false},
		"unreachable":          {store.StageUnreachable, 3, false},
		"collapsed":            {store.StageCollapsed, 1, true},
		"bad input":            {store.StageBadInput, 1, true},
		"failed once":          {store.StageFailed, 1, false},
		"failed on two nights": {store.StageFailed, 2, true},
	} {
		t.Run(name, func(t *testing.T) {
			r, parts := trainRoom(t)
			ctx, n := t.Context(), nightly{room: r}
			s, err := trainRunCmd{}.settings(ctx, r)
			if err != nil {
				t.Fatal(err)
			}
			first, err := n.open(ctx, r, parts, s)
			if err != nil {
				t.Fatal(err)
			}
			row, err := r.store.BeginStage(ctx, first.ID(), pipeline.Synthesise, []byte("{}"), []byte("{}"))
			if err != nil {
				t.Fatal(err)
			}
			row.Status = tt.status
			if err := r.store.SaveStage(ctx, row); err != nil {
				t.Fatal(err)
			}
			for i := range tt.failed {
				night, err := r.store.BeginNight(ctx, store.Night{DueMS: int64(i + 1), UntilMS: int64(i + 2), Pipeline: first.ID()})
				if err != nil {
					t.Fatal(err)
				}
				night.EndedMS, night.Stop = int64(i+2), store.NightFailed
				if err := r.store.SaveNight(ctx, night); err != nil {
					t.Fatal(err)
				}
			}
			next, err := n.open(ctx, r, parts, s)
			if err != nil || (next.ID() != first.ID()) != tt.passed {
				t.Errorf("pipeline %d after %d, %v", next.ID(), first.ID(), err)
			}
		})
	}
}

// The last object of --json says what became of the promotion, and sums up the whole.
func TestTheLastObject(t *testing.T) {
	share, tokens, characters := 0.25, 310.0, 2.9
	held := stageObject{
		Stage: store.Stage{Stage: pipeline.GateStage, Reason: ""}, Decision: gate.Promoted,
		Outputs: &pipeline.Outputs{Novelty: &teach.Novelty{Candidates: 8, Copies: 2, Share: &share, Tokens: &tokens, CharactersPerToken: &characters}},
	}
	stages := []store.Stage{{Stage: pipeline.Warmup, Verdicts: 3}, {Stage: pipeline.Warmup, Attempt: 2, Verdicts: 4}, {Stage: pipeline.GateStage, Verdicts: 9}}
	power := []gate.Strength{{Gain: 0.15, Power: gate.Power{Nights: 9, Rate: 0.5}}}
	o := lastObjectOf(held, &stageObject{Decision: gate.Promoted}, stages, power)
	if o.Decision != gate.Promoted || o.Novel == nil || *o.Novel != 0.75 || *o.TokensPerCandidate != tokens || *o.CharactersPerToken != characters || o.StageVerdicts[pipeline.Warmup] != 7 || o.StageVerdicts[pipeline.GateStage] != 9 || len(o.Power) != 1 {
		t.Errorf("%+v", o)
	}
	o = lastObjectOf(held, &stageObject{Stage: store.Stage{Reason: "it cannot answer"}, Decision: gate.Refused}, stages, power)
	if o.Decision != gate.Refused || o.Reason != "it cannot answer" {
		t.Errorf("%+v", o)
	}
	held.Outputs.Novelty = nil
	if o = lastObjectOf(held, nil, stages, nil); o.Novel != nil || o.Novelty != nil || o.Decision != gate.Promoted {
		t.Errorf("%+v", o)
	}
}

// A small pipeline verifies candidates side by side, on the CPU; any other one as is configured.
func TestConditions(t *testing.T) {
	r, _ := trainRoom(t)
	for small, want := range map[bool]int{true: min(2, runtime.GOMAXPROCS(0)), false: 1} {
		under, err := trainRunCmd{}.conditions(r, small)
		if err != nil {
			t.Fatal(err)
		}
		if c := under.config; c.Evaluation.AtOnce != want || small && c.Device != "cpu" || !slices.Equal(c.Evaluation.Baselines, []string{"eager", "compile"}) {
			t.Errorf("small %v: %d at once on %s, against %v", small, c.Evaluation.AtOnce, c.Device, c.Evaluation.Baselines)
		}
	}
	r.config.Evaluation.AtOnce = 5
	if under, err := (trainRunCmd{}).conditions(r, true); err != nil || under.config.Evaluation.AtOnce != 5 {
		t.Errorf("what is configured counts: %v", err)
	}
}

// A gate by itself has the conditions under which its policy was trained, and those two
// policies that were named, or the best one so far.
func TestAGateByItself(t *testing.T) {
	r, parts := trainRoom(t)
	ctx := t.Context()
	small := pipeline.Settings{Small: true, Seed: 1, Recipe: pipeline.Small()}
	small.Recipe.AnswerTokens = 77
	if _, err := pipeline.Begin(ctx, parts, small); err != nil {
		t.Fatal(err)
	}
	promoted(t, r, "one")
	folder := filepath.Join(t.TempDir(), "two")
	if err := writeModel(folder, "two"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.policies.Add(ctx, folder, "v1", "", policies.Origin{Pipeline: 1, Stage: pipeline.Agentic}); err != nil {
		t.Fatal(err)
	}
	s, err := policyGateCmd{Policy: "v2", Seed: 1}.settings(ctx, r)
	if err != nil || !s.Trial() || s.Candidate != "policy:v2" || s.Opponent != "policy:v1" || !s.Small || s.Recipe.AnswerTokens != 77 || s.Recipe.Tasks[store.TrainSplit] != 0 || s.Recipe.Tasks[store.KindsSplit] == 0 {
		t.Errorf("%+v, %v", s, err)
	}
	other, err := policyGateCmd{Policy: "v1", Against: "v2", Seed: 1}.settings(ctx, r)
	if err != nil || other.Candidate != "policy:v1" || other.Opponent != "policy:v2" || other.Small {
		t.Errorf("%+v, %v", other, err)
	}
	if _, err := (policyGateCmd{Policy: "v1"}).settings(ctx, r); err == nil {
		t.Error("the best policy is held against itself")
	}
	// It is no pipeline that a stage is done of, nor one that a night goes on with.
	p, err := pipeline.Begin(ctx, parts, s)
	if err != nil {
		t.Fatal(err)
	}
	if id, _, err := (trainRunCmd{Stage: pipeline.GateStage}).find(ctx, r.store, small); err != nil || id != 1 {
		t.Errorf("the stage is of pipeline %d, not of %d, %v", id, p.ID(), err)
	}
}
