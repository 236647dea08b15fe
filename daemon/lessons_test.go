package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/judge"
)

// knobs is hardware on which fusing helps and non-temporal stores hurt, whatever
// the rules think of them, and a Coder that turns the knobs it is told to.
type knobs struct{ *fakeHardware }

func (k knobs) Inspect(ctx context.Context, name, source string) (kernelwright.Task, error) {
	t, err := k.fakeHardware.Inspect(ctx, name, source)
	t.Operators = []string{"aten.softmax"}
	return t, err
}

func (k knobs) Evaluate(ctx context.Context, task kernelwright.Task, c kernelwright.Candidate, level kernelwright.Level) (kernelwright.Verdict, error) {
	v, err := k.fakeHardware.Evaluate(ctx, task, c, level)
	s, _ := kernelwright.ParseSchedule(c.Source)
	ms := 4 + 2*float64(s.Knobs["nontemporal"].Value) - float64(s.Knobs["fuse"].Value)
	v.CandidateMS, v.Floor.Bound = ms, "memory"
	v.Timing.Candidate = kernelwright.Measurement{LowMS: 0.99 * ms, HighMS: 1.01 * ms}
	v.Metrics = map[string]float64{"core_use": 0.9, "memory_share": 0.9, "working_set_bytes": 64e6}
	return v, err
}

type turning struct{ fakeCoder }

func (turning) Propose(_ context.Context, in kernelwright.CoderInput) (kernelwright.Candidate, error) {
	s := kernelwright.Schedule{Knobs: map[string]kernelwright.Knob{}}
	for _, name := range []string{"nontemporal", "fuse", "tile"} {
		s.Knobs[name] = kernelwright.Knob{Value: 0, Choices: []int{0, 1}}
	}
	if in.Last != nil {
		last, _ := kernelwright.ParseSchedule(in.Last.Candidate.Source)
		maps.Copy(s.Knobs, last.Knobs)
		for name, value := range in.Feedback.Knobs {
			k := s.Knobs[name]
			k.Value = value
			s.Knobs[name] = k
		}
	}
	code := fmt.Sprintf("class ModelNew: schedule = %q\n%s\n", s.Comment(), s.Comment()) // comments do not tell candidates apart
	return kernelwright.Candidate{Source: code, Language: kernelwright.CPP}, nil
}

// Runs go by what runs before them learned on their device, and are replayed by
// that alone, whatever was learned since.
func TestRunsLearnFromEachOther(t *testing.T) {
	b := newBench(t)
	ctx := t.Context()
	run := func(name, key string, lessons bool) kernelwright.Run {
		t.Helper()
		b.hw.key = key
		w := &Runner{Store: b.store, Evaluator: knobs{b.hw}, Coder: turning{}, Judge: judge.Rules{}, RecordOnly: true, Lessons: lessons}
		r, err := w.Begin(ctx, Request{Name: name, Source: "the task " + name, Settings: forge.Settings{Rounds: 3, JudgeMode: forge.JudgeBoth}})
		if err != nil {
			t.Fatal(err)
		}
		done, err := w.Run(ctx, r, nil)
		if err != nil || done.Data.Run.Status != kernelwright.RunDone {
			t.Fatalf("%+v, %v", done.Data.Run, err)
		}
		return done.Data.Run
	}
	advised := func(r kernelwright.Run) (steps []map[string]int) {
		t.Helper()
		rounds, err := b.store.Rounds(ctx, r.ID)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rounds {
			if r.Feedback != nil {
				steps = append(steps, r.Feedback.Knobs)
			}
		}
		return steps
	}
	naive := []map[string]int{{"nontemporal": 1}, {"nontemporal": 0, "fuse": 1}}
	first := run("a", "one", true)
	if got := advised(first); !reflect.DeepEqual(got, naive) {
		t.Fatalf("without lessons: %v", got)
	}
	wise := run("b", "one", true)
	if got := advised(wise); len(got) == 0 || !reflect.DeepEqual(got[0], map[string]int{"fuse": 1}) {
		t.Errorf("with lessons: %v", got)
	}
	for what, got := range map[string][]map[string]int{"on another device": advised(run("c", "two", true)), "told nothing": advised(run("d", "one", false))} {
		if !reflect.DeepEqual(got, naive) {
			t.Errorf("%s: %v", what, got)
		}
	}
	replay := func(id int64, lessons []kernelwright.Lesson) *forge.Difference {
		t.Helper()
		d, err := Load(ctx, b.store, id)
		if err != nil {
			t.Fatal(err)
		}
		diff, err := forge.Replay(ctx, d.Rounds, d.Task, d.Run, forge.Parts{Device: d.Device, Lessons: lessons, Coder: turning{}, Judge: judge.Rules{}})
		if err != nil {
			t.Fatal(err)
		}
		return diff
	}
	run("e", "one", true)
	for _, r := range []kernelwright.Run{first, wise} {
		kept, err := b.store.RunLessons(ctx, r.ID)
		if err != nil {
			t.Fatal(err)
		}
		if diff := replay(r.ID, kept); diff != nil {
			t.Errorf("run %d: %v", r.ID, diff)
		}
	}
	task, err := b.store.RunTask(ctx, first.ID)
	if err != nil {
		t.Fatal(err)
	}
	today, err := b.store.LessonsFor(ctx, 0, task, kernelwright.Device{Key: "one"})
	if err != nil || len(today) == 0 {
		t.Fatal(today, err)
	}
	if diff := replay(first.ID, today); diff == nil || diff.What != "feedback" {
		t.Errorf("by today's lessons it came out the same: %v", diff)
	}
	// Two of the same record learn the same.
	a, err1 := json.Marshal(today)
	again, err2 := b.store.LessonsFor(ctx, 0, task, kernelwright.Device{Key: "one"})
	c, err3 := json.Marshal(again)
	if err1 != nil || err2 != nil || err3 != nil || string(a) != string(c) {
		t.Errorf("%s\n%s", a, c)
	}
}

// Who is to go by the speedup alone is given no lessons; who asks no Judge is.
func TestWhoIsGivenLessons(t *testing.T) {
	b := newBench(t)
	w := &Runner{Store: b.store, Evaluator: knobs{b.hw}, Coder: turning{}, Judge: judge.Rules{}, RecordOnly: true, Lessons: true}
	for _, mode := range []forge.JudgeMode{forge.JudgeBoth, forge.JudgeBoth, forge.JudgeNone, forge.JudgeScore} {
		r, err := w.Begin(t.Context(), Request{Name: "a", Source: "a", Settings: forge.Settings{Rounds: 2, JudgeMode: mode}})
		if err != nil {
			t.Fatal(err)
		}
		if !mode.Asked() {
			w.Coder = fakeCoder{}
		}
		if _, err := w.Run(t.Context(), r, nil); err != nil {
			t.Fatal(err)
		}
		got, err := b.store.RunLessons(t.Context(), r.ID)
		if err != nil || (len(got) > 0) != (mode != forge.JudgeScore && r.ID > 1) {
			t.Errorf("%s: %v, %v", mode, got, err)
		}
	}
}

// Runs of a bench are taught by runs before it, of other tasks, and not by each
// other: whichever comes first, each is given the same.
func TestWhatIsComparedLearnsFromEarlierRuns(t *testing.T) {
	b := newBench(t)
	ctx := t.Context()
	w := &Runner{Store: b.store, Evaluator: knobs{b.hw}, Coder: turning{}, Judge: judge.Rules{}, RecordOnly: true, Lessons: true}
	settings := forge.Settings{Rounds: 3, JudgeMode: forge.JudgeBoth}
	for _, name := range []string{"a", "b"} {
		run, err := w.Begin(ctx, Request{Name: name, Source: "the task " + name, Settings: settings})
		if err == nil {
			_, err = w.Run(ctx, run, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(2 * time.Millisecond) // the record's times are of milliseconds
	m := &Bench{Store: b.store, Usable: b.store.Usable, Devices: make([][]*Runner, 1), Sources: []string{"the task b", "the task c", "the task d"}}
	for i, name := range []string{"b", "c", "d"} {
		m.Bench.References = append(m.Bench.References, kernelwright.Reference{Name: name, Path: fmt.Sprintf("/x/%d.py", i)})
	}
	for _, taught := range []bool{true, false} {
		other := *w
		other.Lessons = taught
		m.Devices[0], m.Settings = append(m.Devices[0], &other), append(m.Settings, settings)
		m.Bench.Configurations = append(m.Bench.Configurations, kernelwright.Configuration{Rounds: 3, Lessons: taught})
	}
	m.Bench.Seeds = []int64{0, 1}
	var err error
	if m.Bench, err = b.store.CreateBench(ctx, m.Bench); err != nil {
		t.Fatal(err)
	}
	if err := m.Run(ctx); err != nil {
		t.Fatal(err)
	}
	members, err := b.store.Members(ctx, m.Bench.ID)
	if err != nil || len(members) != 12 {
		t.Fatalf("%d members, %v", len(members), err)
	}
	for _, member := range members {
		lessons, err := b.store.RunLessons(ctx, member.RunID)
		if err != nil {
			t.Fatal(err)
		}
		by := map[string]bool{}
		for _, l := range lessons {
			by[fmt.Sprintf("%s of run %d", l.TaskName, l.Run)] = true
		}
		want := map[string]bool{"a of run 1": true, "b of run 2": true}
		switch {
		case member.Configuration == 1:
			clear(want)
		case member.Reference == 0:
			delete(want, "b of run 2")
		}
		if !maps.Equal(by, want) {
			t.Errorf("%+v was taught by %v, want %v", member, by, want)
		}
	}
}
