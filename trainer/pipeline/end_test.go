package pipeline

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/gate"
	"github.com/kernelwright/kernelwright/trainer/policies"
	"github.com/kernelwright/kernelwright/trainer/serving"
	"github.com/kernelwright/kernelwright/trainer/tasks"
)

// modelFolder is a folder like a model's, which computes nothing.
func modelFolder(t *testing.T, content string) string {
	t.Helper()
	dir := t.TempDir()
	header := fmt.Sprintf(`{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}`, len(content), len(content))
	weights := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header+content...)
	for name, text := range map[string]string{"config.json": "{}", "tokenizer.json": "{}", "model.safetensors": string(weights)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// begun is a pipeline in a data folder of its own, whose stages are recorded as done up
// to one.
func begun(t *testing.T, last string, outputs map[string]Outputs) *Pipeline {
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
	p, err := Begin(t.Context(), Parts{Store: s, DataDir: dir}, Settings{Small: true, Recipe: lesson()})
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range Stages {
		p.record(t, st, outputs[st.Name])
		if st.Name == last {
			break
		}
	}
	return p
}

// record has a stage done.
func (l *Pipeline) record(t *testing.T, s Stage, o Outputs) {
	t.Helper()
	latest, err := l.latest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	in, err := l.inputs(s, latest)
	if err != nil {
		t.Fatal(err)
	}
	inputs, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	row, err := l.parts.Store.BeginStage(t.Context(), l.row.ID, s.Name, inputs, []byte("{}"))
	if err != nil {
		t.Fatal(err)
	}
	if row.Outputs, err = json.Marshal(o); err != nil {
		t.Fatal(err)
	}
	row.Status = store.StageDone
	if err := l.parts.Store.SaveStage(t.Context(), row); err != nil {
		t.Fatal(err)
	}
}

func (l *Pipeline) finished(t *testing.T) bool {
	t.Helper()
	row, err := l.parts.Store.Pipeline(t.Context(), l.row.ID)
	if err != nil {
		t.Fatal(err)
	}
	return row.FinishedMS != 0
}

// A pipeline whose row cannot be taken away keeps its files.
func TestRemoveTakesTheRowsFirst(t *testing.T) {
	p := begun(t, Synthesise, nil)
	s, dir := p.parts.Store, p.parts.DataDir
	kept := filepath.Join(Folder(dir, 1), "kept")
	if err := errors.Join(makeFolder(Folder(dir, 1)), os.WriteFile(kept, nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if err := Remove(t.Context(), s, dir, 1); err == nil {
		t.Error("a record that is closed forgot a pipeline")
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
}

// A stage by itself leaves a pipeline that has come to its end at its end, unless what
// comes after it has to be done again.
func TestAStageOfAFinishedPipeline(t *testing.T) {
	p := begun(t, Promote, nil)
	if err := p.parts.Store.FinishPipeline(t.Context(), 1, true); err != nil {
		t.Fatal(err)
	}
	for _, again := range []bool{false, true} {
		p, err := Open(t.Context(), p.parts, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.RunStage(t.Context(), Promote, again); err != nil || !p.finished(t) {
			t.Errorf("again %t: finished is %t, %v", again, p.finished(t), err)
		}
	}
	p.record(t, Stages[0], Outputs{Set: "another"})
	p, err := Open(t.Context(), p.parts, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.RunStage(t.Context(), Promote, true); err != nil || p.finished(t) {
		t.Errorf("with other tasks: finished is %t, %v", p.finished(t), err)
	}
}

// Who is held against whom is settled when a gate begins.
func TestAGateKeepsItsOpponent(t *testing.T) {
	p := begun(t, Agentic, nil)
	s, ctx := p.parts.Store, t.Context()
	var all []policies.Policy
	for _, content := range []string{"one", "two", "three"} {
		added, err := p.policies.Add(ctx, modelFolder(t, content), "", "", policies.Origin{})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, added)
	}
	w := &work{l: p, row: store.Stage{Pipeline: 1, Stage: GateStage, Attempt: 1}}
	sides := func(want int64) {
		t.Helper()
		us, them, err := w.sides(ctx, all[1], all[2])
		if err != nil || us.Version != 2 || them.Version != want {
			t.Errorf("%s against %s, %v", us.Name(), them.Name(), err)
		}
	}
	sides(3) // nothing has served
	if err := p.policies.Promote(ctx, all[0], 0, "the best one so far"); err != nil {
		t.Fatal(err)
	}
	sides(1)
	if _, err := s.BeginGate(ctx, store.Gate{Name: w.gate(), Candidate: kernelwright.PolicyPrefix + "v2", Opponent: kernelwright.PolicyPrefix + "v1", Settings: []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	if err := p.policies.Promote(ctx, all[2], 0, "by hand, while the gate is open"); err != nil {
		t.Fatal(err)
	}
	sides(1)
	if err := p.policies.Remove(ctx, all[0]); err != nil {
		t.Fatal(err)
	}
	var stage *StageError
	if _, _, err := w.sides(ctx, all[1], all[2]); !errors.As(err, &stage) || stage.Status != store.StageBadInput {
		t.Errorf("%v", err)
	}
}

// A policy that learned nothing is refused unplayed, with what it reached before.
func TestAGateOfOneAndTheSamePolicy(t *testing.T) {
	from := modelFolder(t, "one")
	reached := &HeldOut{Kinds: &Rates{N: 4, Correct: 0.5}}
	p := begun(t, Agentic, map[string]Outputs{
		Synthesise: {Set: Set(1, 1)}, Bootstrap: {Policy: from}, Agentic: {Policy: from, HeldOut: reached},
	})
	w := &world{store: p.parts.Store}
	if err := w.tasks(t.Context(), Set(1, 1), taskSet(1)); err != nil {
		t.Fatal(err)
	}
	if err := p.RunStage(t.Context(), GateStage, false); err != nil {
		t.Fatal(err)
	}
	latest, err := p.latest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out Outputs
	if err := json.Unmarshal(latest[GateStage].Outputs, &out); err != nil {
		t.Fatal(err)
	}
	if out.Decision != "refused" || out.HeldOut == nil || out.HeldOut.Kinds == nil || *out.HeldOut.Kinds != *reached.Kinds {
		t.Errorf("%+v", out)
	}
}

// A policy that the gate let through serves once it has answered. One that cannot is
// refused, and what served before goes on; where the machine is at fault, the stage fails.
func TestPromotionAsksFirst(t *testing.T) {
	for name, tt := range map[string]struct {
		smoke  error
		serves int64
		status store.StageStatus
		said   string
	}{
		"it answers":              {nil, 2, store.StageDone, ""},
		"it cannot":               {&serving.MuteError{Policy: policies.Policy{Version: 2}, Why: "its answer has no tokens"}, 1, store.StageSkipped, "policy v2 cannot answer: its answer has no tokens"},
		"the machine is at fault": {&serving.Error{Text: "there is too little memory"}, 1, store.StageFailed, "too little memory"},
	} {
		t.Run(name, func(t *testing.T) {
			p := begun(t, Agentic, nil)
			ctx := t.Context()
			var all []policies.Policy
			for _, content := range []string{"one", "two"} {
				added, err := p.policies.Add(ctx, modelFolder(t, content), "", "", policies.Origin{})
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, added)
			}
			if err := p.policies.Promote(ctx, all[0], 0, "by hand"); err != nil {
				t.Fatal(err)
			}
			p.record(t, Stages[7], Outputs{Decision: gate.Promoted, Version: 2, Gate: 1, Reason: "it is better"})
			asked := 0
			p.parts.Smoke = func(context.Context, policies.Policy) error {
				asked++
				if now, err := p.policies.Find(ctx, policies.Current); err != nil || now.Version != 1 {
					t.Errorf("%s serves before it was asked, %v", now.Name(), err)
				}
				return tt.smoke
			}
			err := p.RunStage(ctx, Promote, false)
			latest, failed := p.latest(ctx)
			if failed != nil {
				t.Fatal(failed)
			}
			row := latest[Promote]
			now, failed := p.policies.Find(ctx, policies.Current)
			if failed != nil || now.Version != tt.serves || row.Status != tt.status || !strings.Contains(row.Reason, tt.said) || asked != 1 {
				t.Errorf("%s serves, %s: %s, asked %d times, %v", now.Name(), row.Status, row.Reason, asked, failed)
			}
			if (err != nil) != (tt.status == store.StageFailed) {
				t.Error(err)
			}
			var out Outputs
			if row.Status == store.StageSkipped {
				if err := json.Unmarshal(row.Outputs, &out); err != nil || out.Decision != gate.Refused {
					t.Errorf("%+v, %v", out, err)
				}
			}
		})
	}
}

// A gate by itself has two stages, makes no training tasks, and holds those two policies
// that were named, whoever serves.
func TestATrialHoldsWhomItNames(t *testing.T) {
	p := begun(t, Synthesise, nil)
	ctx := t.Context()
	for _, content := range []string{"one", "two", "three"} {
		added, err := p.policies.Add(ctx, modelFolder(t, content), "", "", policies.Origin{})
		if err == nil {
			err = p.policies.Promote(ctx, added, 0, "by hand")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	r := lesson().ForTrial()
	trial, err := Begin(ctx, p.parts, Settings{Candidate: "policy:v1", Opponent: "policy:v2", Recipe: r})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range trial.stages() {
		names = append(names, s.Name)
	}
	if !slices.Equal(names, []string{Synthesise, GateStage}) || r.Tasks[store.TrainSplit] != 0 || r.Tasks[store.KindsSplit] != r.Gate.Held() {
		t.Errorf("%q, %v", names, r.Tasks)
	}
	w := &work{l: trial, row: store.Stage{Pipeline: trial.ID(), Stage: GateStage, Attempt: 1}}
	us, them, err := w.contenders(ctx)
	if err != nil || us.Version != 1 || them.Version != 2 {
		t.Errorf("%s against %s, %v", us.Name(), them.Name(), err)
	}
	if _, ok := errors.AsType[*StageError](trial.RunStage(ctx, GateStage, false)); !ok {
		t.Error("a gate is held without tasks")
	}
	if err := p.policies.Remove(ctx, us); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.contenders(ctx); err == nil {
		t.Error("a removed policy is held")
	}
}

// After a kill a policy finds what it has answered at the gate, part by part, and writes
// what is left alone.
func TestAnswersAreKept(t *testing.T) {
	p := begun(t, Synthesise, nil)
	w := &work{l: p, row: store.Stage{Pipeline: 1, Stage: GateStage, Attempt: 1}}
	held := []tasks.Task{{Fingerprint: "a", Split: store.KindsSplit}, {Fingerprint: "b", Split: store.KindsSplit}}
	part := func(n int, all ...written) {
		t.Helper()
		folder := w.folder(fmt.Sprintf("v1-%d", n))
		if err := makeFolder(folder); err != nil {
			t.Fatal(err)
		}
		var text []byte
		for _, a := range all {
			line, err := json.Marshal(a)
			if err != nil {
				t.Fatal(err)
			}
			text = append(append(text, line...), '\n')
		}
		if err := os.WriteFile(filepath.Join(folder, "answers.jsonl"), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	part(1, written{Task: "a"}, written{Task: "a", Sample: 1})
	us := &player{w: w, policy: policies.Policy{Version: 1, Folder: t.TempDir()}}
	if err := us.Prepare(t.Context(), held[:1]); err != nil || us.part() != "v1-2" {
		t.Fatalf("%s, %v", us.part(), err)
	}
	if o, err := us.Play(t.Context(), held[0], 1); err != nil || o.Reward != -1 || o.Built || o.Task != "a" { // its prompt left no room
		t.Errorf("%+v, %v", o, err)
	}
	if _, err := us.Play(t.Context(), held[0], 2); err == nil {
		t.Error("an answer that was not written is evaluated")
	}
	part(2, written{Task: "b"}, written{Task: "b", Sample: 1})
	if err := us.Prepare(t.Context(), held); err != nil || us.part() != "v1-3" || len(us.answers["b"]) != 2 || len(us.answers["a"]) != 2 {
		t.Errorf("%s, %v, %v", us.part(), us.answers, err)
	}
}

// Each recipe makes as many held-out tasks as its gate needs with void ones among them.
func TestRecipesHaveTasksToSpare(t *testing.T) {
	for name, r := range map[string]Recipe{"default": Default(), "small": Small()} {
		for _, split := range []store.Split{store.CompositionsSplit, store.KindsSplit} {
			if r.Tasks[split] <= r.Gate.Tasks || r.Tasks[split] != r.Gate.Held() {
				t.Errorf("%s: %d tasks of %s for a gate of %d", name, r.Tasks[split], split, r.Gate.Tasks)
			}
		}
		if r.Batch%max(1, r.BootstrapProcesses) != 0 {
			t.Errorf("%s: %d processes share %d rows unevenly", name, r.BootstrapProcesses, r.Batch)
		}
	}
}

// Where nobody names a base, what serves does not tell two commands apart.
func TestTheSameSettings(t *testing.T) {
	named, unnamed := Settings{Base: "policy:v1", Recipe: Small()}, Settings{Base: "policy:v1", Recipe: Small(), Unnamed: true}
	later, other := unnamed, unnamed
	later.Base, other.Recipe.Rounds = "policy:v2", 9
	for name, tt := range map[string]struct {
		a, b Settings
		want bool
	}{
		"the same": {named, named, true}, "another one serves": {unnamed, later, true}, "named": {named, unnamed, false}, "another recipe": {unnamed, other, false},
	} {
		text, err := json.Marshal(tt.b)
		if err != nil {
			t.Fatal(err)
		}
		var kept Settings
		if err := json.Unmarshal(text, &kept); err != nil {
			t.Fatal(err)
		}
		if got := tt.a.Same(kept); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
