package store

import (
	"errors"
	"path/filepath"
	"reflect"
	"testing"
)

// A gate has a name, tasks of its own, each outcome once and one decision.
func TestAGateDecidesOnce(t *testing.T) {
	s := openTest(t)
	ctx := t.Context()
	g := must(s.BeginGate(ctx, Gate{Name: "one", Candidate: "v2", Opponent: "v1", Settings: []byte(`{"tasks":2}`)}))(t)
	if again := must(s.BeginGate(ctx, Gate{Name: "one", Candidate: "v3", Opponent: "v1", Settings: []byte(`{}`)}))(t); !reflect.DeepEqual(again, g) {
		t.Errorf("the gate was begun anew: %+v", again)
	}
	tasks := []GateTask{{Place: 0, Fingerprint: "a", Split: CompositionsSplit}, {Place: 1, Fingerprint: "b", Split: KindsSplit, Unseen: true}}
	ok(t, s.AddGateTasks(ctx, g.ID, tasks))
	ok(t, s.AddGateTasks(ctx, g.ID, tasks))
	if got := must(s.GateTasks(ctx, g.ID))(t); !reflect.DeepEqual(got, tasks) {
		t.Errorf("tasks: %+v", got)
	}
	other := must(s.BeginGate(ctx, Gate{Name: "two", Candidate: "v3", Opponent: "v1", Settings: []byte(`{}`)}))(t)
	var served *GateError
	if err := s.AddGateTasks(ctx, other.ID, []GateTask{{Fingerprint: "c"}, {Place: 1, Fingerprint: "b"}}); !errors.As(err, &served) || served.Gate != "one" {
		t.Errorf("a task serves two gates: %v", err)
	}
	if got := must(s.GateTasks(ctx, other.ID))(t); len(got) != 0 {
		t.Errorf("tasks of a refused batch were recorded: %+v", got)
	}
	first := GateOutcome{Place: 1, Player: GateCandidate, Sample: 2, Built: true, Correct: true, Reward: 3, Speedup: 1.2, Eager: 2, Compile: 1.3}
	ok(t, s.SaveGateOutcome(ctx, g.ID, first))
	ok(t, s.SaveGateOutcome(ctx, g.ID, GateOutcome{Place: 1, Player: GateCandidate, Sample: 2, Reward: -1}))
	if got := must(s.GateOutcomes(ctx, g.ID))(t); !reflect.DeepEqual(got, []GateOutcome{first}) {
		t.Errorf("outcomes: %+v", got)
	}
	if err := s.SaveGateOutcome(ctx, g.ID, GateOutcome{Place: 7, Player: GateCandidate, Reward: -1}); err == nil {
		t.Error("an outcome of a task that does not serve the gate was recorded")
	}
	if err := s.VoidGateTask(ctx, g.ID, 7, "x"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a task that is not there was made void: %v", err)
	}
	ok(t, s.DecideGate(ctx, g.ID, "promoted", []byte(`{"n":1}`)))
	ok(t, s.DecideGate(ctx, g.ID, "promoted", []byte(`{"n":2}`)))
	if err := s.DecideGate(ctx, g.ID, "refused", []byte(`{}`)); err == nil {
		t.Error("a gate decided twice")
	}
	if err := s.SaveGateOutcome(ctx, g.ID, GateOutcome{Place: 0, Player: GateCandidate, Reward: -1}); err == nil {
		t.Error("an outcome was recorded after the decision")
	}
	if got := must(s.GatesOf(ctx, "v2"))(t); len(got) != 1 || got[0].Decision != "promoted" || string(got[0].Detail) != `{"n":1}` || got[0].DecidedMS == 0 {
		t.Errorf("gates of v2: %+v", got)
	}
	if _, err := s.GateNamed(ctx, "three"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}

// A copy of a damaged history is sound: a gate whose numbers were lost is open,
// one whose settings were lost is gone, and its tasks have served all the same.
func TestGatesThatLostSomething(t *testing.T) {
	path := filepath.Join(t.TempDir(), FileName)
	s := must(Open(path))(t)
	ctx := t.Context()
	for i, name := range []string{"whole", "no numbers", "no settings"} {
		g := must(s.BeginGate(ctx, Gate{Name: name, Candidate: "v2", Opponent: "v1", Settings: []byte(name)}))(t)
		ok(t, s.AddGateTasks(ctx, g.ID, []GateTask{{Fingerprint: string(rune('a' + i)), Split: KindsSplit}}))
		ok(t, s.SaveGateOutcome(ctx, g.ID, GateOutcome{Player: GateCandidate, Reward: -1}))
		ok(t, s.DecideGate(ctx, g.ID, "refused", []byte(`"`+name+`"`)))
	}
	set := must(s.BeginTaskSet(ctx, "set", []byte(`"of a set"`)))(t)
	ok(t, s.SaveTaskDraw(ctx, set.ID, TaskDraw{Split: TrainSplit, Fingerprint: "f", Source: "class Model", Detail: []byte(`{}`)}))
	_, err := s.write.Exec(`PRAGMA foreign_keys = 0; DELETE FROM texts WHERE id IN (SELECT detail FROM gates WHERE name = 'no numbers'
		UNION SELECT settings FROM gates WHERE name = 'no settings' UNION SELECT settings FROM task_sets); DELETE FROM task_gates WHERE fingerprint = 'a'`)
	ok(t, err)
	ok(t, s.Close())
	if examine(t, path).Sound() {
		t.Error("nothing is missed")
	}
	to := filepath.Join(t.TempDir(), FileName)
	must(Salvage(ctx, path, to, quiet))(t)
	if e := examine(t, to); !e.Sound() || e.Rows["gates"] != 2 || e.Rows["gate_outcomes"] != 2 || e.Rows["task_gates"] != 3 {
		t.Errorf("%+v", e)
	}
	s = must(Open(to))(t)
	defer s.Close()
	for name, decision := range map[string]string{"whole": "refused", "no numbers": ""} {
		if g := must(s.GateNamed(ctx, name))(t); g.Decision != decision || (g.Detail == nil) != (decision == "") {
			t.Errorf("%+v", g)
		}
	}
}
