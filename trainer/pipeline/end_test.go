package pipeline

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/policies"
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
	if _, err := s.BeginGate(ctx, store.Gate{Name: w.gate(), Candidate: PolicyPrefix + "v2", Opponent: PolicyPrefix + "v1", Settings: []byte("{}")}); err != nil {
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
	if err := w.tasks(t.Context(), Set(1, 1)); err != nil {
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

// After a kill each task finds the answers that it was asked for again.
func TestAnswersThatWereAskedForAgain(t *testing.T) {
	p := begun(t, Synthesise, nil)
	w := &work{l: p, row: store.Stage{Pipeline: 1, Stage: GateStage, Attempt: 1}}
	one, minus := 1.0, -1.0
	held := []tasks.Task{{Fingerprint: "aaaaaaaaaaaaaaaa", Split: store.KindsSplit}, {Fingerprint: "bbbbbbbbbbbbbbbb", Split: store.KindsSplit}}
	for part, a := range map[string]Played{
		"v1": {Task: "another"}, "v1-more-aaaaaaaaaaaa-1": {Task: held[0].Fingerprint, Reward: &one}, "v1-more-bbbbbbbbbbbb-1": {Task: held[1].Fingerprint, Reward: &minus},
	} {
		text, err := json.Marshal(a)
		if err == nil {
			err = errors.Join(makeFolder(w.folder(part)), os.WriteFile(w.folder(part, "outcomes.jsonl"), text, 0o644))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	us := &player{w: w, policy: policies.Policy{Version: 1}, held: held}
	for i, want := range []int{-1, 1} {
		task := held[1-i]
		if o, err := us.Play(t.Context(), task, 0); err != nil || o.Reward != want || o.Task != task.Fingerprint {
			t.Errorf("task %d: %+v, %v", i, o, err)
		}
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
