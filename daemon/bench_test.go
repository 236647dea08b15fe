package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
)

// matrix is a recorded bench of six references under two configurations: two
// and three rounds. Each round is told to observe.
func matrix(t *testing.T, b *bench, observe func(forge.Event)) *Bench {
	t.Helper()
	out := &Bench{
		Store: b.store, Usable: b.store.Usable,
		Sources: []string{"softmax", "bad", "gelu", "", "matmul", "tanh"},
		Invalid: map[int]*kernelwright.InvalidTaskError{3: {Reason: "it is a picture", Hint: "drop Python"}},
	}
	for i := range out.Sources {
		out.Bench.References = append(out.Bench.References, kernelwright.Reference{Name: fmt.Sprintf("sub/%d", i), Path: fmt.Sprintf("/x/sub/%d.py", i)})
	}
	for rounds := 2; rounds <= 3; rounds++ {
		out.Bench.Configurations = append(out.Bench.Configurations, kernelwright.Configuration{Rounds: rounds})
		out.Settings = append(out.Settings, forge.Settings{Rounds: rounds, JudgeMode: forge.JudgeBoth})
		out.Workers = append(out.Workers, &Worker{
			Store: b.store, Evaluator: b.hw, Coder: fakeCoder{}, Judge: fakeJudge{}, Observe: observe, RecordOnly: true,
			Results: Results{Folder: "/nowhere"},
		})
	}
	out.Bench.Seeds = []int64{7}
	known, err := b.store.LatestBench(t.Context(), out.Bench.Key())
	if err != nil {
		known, err = b.store.CreateBench(t.Context(), out.Bench)
	}
	if err != nil {
		t.Fatal(err)
	}
	out.Bench = known
	return out
}

// wholeMatrix holds a bench that is done against what it should have come to.
func (b *bench) wholeMatrix(m *Bench) {
	b.t.Helper()
	members, err := b.store.Members(b.t.Context(), m.Bench.ID)
	if err != nil || len(members) != 12 {
		b.t.Fatalf("%d members, %v", len(members), err)
	}
	want := []kernelwright.RunStatus{
		kernelwright.RunDone, kernelwright.RunInvalid, kernelwright.RunDone, kernelwright.RunInvalid, kernelwright.RunDeclined, kernelwright.RunDone,
	}
	for _, member := range members {
		run, err := b.store.Run(b.t.Context(), member.RunID)
		if err != nil {
			b.t.Fatal(err)
		}
		rounds, err := b.store.Rounds(b.t.Context(), run.ID)
		if err != nil {
			b.t.Fatal(err)
		}
		expected := 0
		if want[member.Reference] == kernelwright.RunDone {
			expected = 2 + member.Configuration
		}
		if run.Status != want[member.Reference] || len(rounds) != expected || run.Seed != 7 || run.TaskName != fmt.Sprint(member.Reference) {
			b.t.Errorf("%+v is %s after %d rounds: %+v", member, run.Status, len(rounds), run)
		}
	}
	if runs := b.runs(); len(runs) != 12 {
		b.t.Errorf("%d runs are recorded", len(runs))
	}
}

func TestABenchMakesEveryRun(t *testing.T) {
	b := newBench(t)
	m := matrix(t, b, nil)
	var order []string
	m.Begun = func(m kernelwright.Member, resumed bool) {
		order = append(order, fmt.Sprintf("%d%c", m.Reference, "ab"[m.Configuration]))
		if resumed {
			t.Errorf("%+v was begun before", m)
		}
	}
	if err := m.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.wholeMatrix(m)
	if got := strings.Join(order, " "); got != "0a 0b 1a 1b 2a 2b 3a 3b 4a 4b 5a 5b" {
		t.Error(got)
	}
	done, err := b.store.Bench(t.Context(), m.Bench.ID)
	if err != nil || done.FinishedMS == 0 {
		t.Errorf("%+v, %v", done, err)
	}
	// Nothing is left to do.
	before := b.hw.evaluate
	m = matrix(t, b, nil)
	m.Begun = func(m kernelwright.Member, _ bool) { t.Errorf("%+v is done again", m) }
	if err := m.Run(t.Context()); err != nil || b.hw.evaluate != before {
		t.Errorf("%v, %d evaluations more", err, b.hw.evaluate-before)
	}
}

// Wherever a bench is stopped, it goes on: no round is lost and none is done
// twice.
func TestABenchGoesOnWhereItWasStopped(t *testing.T) {
	b := newBench(t)
	seen := map[int64][]kernelwright.Round{}
	for start := 1; ; start++ {
		ctx, cancel := context.WithCancel(t.Context())
		left := start % 3
		m := matrix(t, b, func(e forge.Event) {
			if e.Kind != forge.RoundDone && e.Kind != forge.Certifying {
				return
			}
			if left--; left <= 0 {
				cancel()
			}
		})
		err := m.Run(ctx)
		cancel()
		if err != nil && !errors.Is(err, ErrStopped) {
			t.Fatal(err)
		}
		rounds := map[int64][]kernelwright.Round{}
		for _, run := range b.runs() {
			if rounds[run.ID], err = b.store.Rounds(t.Context(), run.ID); err != nil {
				t.Fatal(err)
			}
			for i, r := range seen[run.ID] {
				if now := rounds[run.ID][i]; now.StartedMS != r.StartedMS || now.Candidate != r.Candidate {
					t.Errorf("round %d of run %d was recorded before and has changed", i, run.ID)
				}
			}
		}
		seen = rounds
		if done, _ := b.store.Bench(t.Context(), m.Bench.ID); done.FinishedMS != 0 {
			b.wholeMatrix(m)
			break
		}
		if start == 100 {
			t.Fatal("it never ends")
		}
	}
	total := 0
	for _, rounds := range seen {
		total += len(rounds)
	}
	if total != 15 || b.hw.evaluate != total {
		t.Errorf("%d rounds of %d evaluations", total, b.hw.evaluate)
	}
}

// What fails is made anew by the next call, in the place of the run that failed.
func TestABenchMakesWhatFailedAnew(t *testing.T) {
	b := newBench(t)
	m := matrix(t, b, nil)
	b.hw.broken = 2
	err := m.Run(t.Context())
	var infra *kernelwright.InfrastructureError
	if !errors.As(err, &infra) || !strings.HasPrefix(err.Error(), "sub/0: ") {
		t.Fatal(err)
	}
	if done, err := b.store.Bench(t.Context(), m.Bench.ID); err != nil || done.FinishedMS != 0 {
		t.Fatalf("%+v, %v", done, err)
	}
	var again []int
	m = matrix(t, b, nil)
	m.Begun = func(m kernelwright.Member, _ bool) { again = append(again, m.Reference) }
	if err := m.Run(t.Context()); err != nil || !slices.Equal(again, []int{0, 0}) {
		t.Fatal(err, again)
	}
	members, err := b.store.Members(t.Context(), m.Bench.ID)
	if err != nil || len(members) != 12 {
		t.Fatal(members, err)
	}
	status := map[kernelwright.RunStatus]int{}
	for _, member := range members {
		run, err := b.store.Run(t.Context(), member.RunID)
		if err != nil {
			t.Fatal(err)
		}
		status[run.Status]++
	}
	if want := (map[kernelwright.RunStatus]int{"done": 6, "invalid": 4, "declined": 2}); !maps.Equal(status, want) {
		t.Error(status)
	}
}

func TestABenchLeavesABrokenMachine(t *testing.T) {
	b := newBench(t)
	m := matrix(t, b, nil)
	b.hw.ill = errors.New("the device has gone")
	begun := 0
	m.Begun = func(kernelwright.Member, bool) { begun++ }
	if err := m.Run(t.Context()); err == nil || begun != maxFailures {
		t.Errorf("%v after %d runs", err, begun)
	}
}
