package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
)

// matrix is a recorded bench of six references under two configurations: two
// and three rounds, on the test's device and more. Each round is told to observe.
func matrix(t *testing.T, b *bench, observe func(forge.Event), more ...*fakeHardware) *Bench {
	t.Helper()
	hardware := append([]*fakeHardware{b.hw}, more...)
	out := &Bench{
		Devices: make([][]*Runner, len(hardware)),
		Store:   b.store, Usable: b.store.Usable,
		Sources: []string{"softmax", "bad", "gelu", "", "matmul", "tanh"},
		Invalid: map[int]*kernelwright.InvalidTaskError{3: {Reason: "it is a picture", Hint: "drop Python"}},
	}
	for i := range out.Sources {
		out.Bench.References = append(out.Bench.References, kernelwright.Reference{Name: fmt.Sprintf("sub/%d", i), Path: fmt.Sprintf("/x/sub/%d.py", i)})
	}
	for rounds := 2; rounds <= 3; rounds++ {
		out.Bench.Configurations = append(out.Bench.Configurations, kernelwright.Configuration{Rounds: rounds})
		out.Settings = append(out.Settings, forge.Settings{Rounds: rounds, JudgeMode: forge.JudgeBoth})
		for i, hw := range hardware {
			out.Devices[i] = append(out.Devices[i], &Runner{
				Store: b.store, Evaluator: hw, Coder: fakeCoder{}, Judge: fakeJudge{}, Observe: observe, RecordOnly: true,
				Results: Results{Folder: "/nowhere"},
			})
		}
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
	m.Begun = func(_ int, m kernelwright.Member, resumed bool) {
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
	m.Begun = func(_ int, m kernelwright.Member, _ bool) { t.Errorf("%+v is done again", m) }
	if err := m.Run(t.Context()); err != nil || b.hw.evaluate != before {
		t.Errorf("%v, %d evaluations more", err, b.hw.evaluate-before)
	}
}

// Wherever a bench is stopped, it goes on: no round is lost and none is done
// twice, on however many devices.
func TestABenchGoesOnWhereItWasStopped(t *testing.T) {
	for devices := 1; devices <= 2; devices++ {
		t.Run(fmt.Sprint(devices), func(t *testing.T) { goesOn(t, devices) })
	}
}

func goesOn(t *testing.T, devices int) {
	b := newBench(t)
	var more []*fakeHardware
	if devices > 1 {
		more = append(more, &fakeHardware{key: "second"})
	}
	seen := map[int64][]kernelwright.Round{}
	for start := 1; ; start++ {
		ctx, cancel := context.WithCancel(t.Context())
		var left atomic.Int64
		left.Store(int64(start % 3))
		m := matrix(t, b, func(e forge.Event) {
			if e.Kind != forge.RoundDone && e.Kind != forge.Certifying {
				return
			}
			if left.Add(-1) <= 0 {
				cancel()
			}
		}, more...)
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
	total, evaluated := 0, b.hw.evaluate
	for _, rounds := range seen {
		total += len(rounds)
	}
	for _, hw := range more {
		evaluated += hw.evaluate
	}
	if total != 15 || evaluated != total {
		t.Errorf("%d rounds of %d evaluations", total, evaluated)
	}
}

// Several devices share the references: all runs of one are of one device.
func TestABenchOnSeveralDevices(t *testing.T) {
	b := newBench(t)
	first, second := b.hw, &fakeHardware{key: "second"}
	for _, hw := range []*fakeHardware{first, second} {
		hw.enter, hw.leave = make(chan struct{}), make(chan struct{})
	}
	m := matrix(t, b, nil, second)
	var mu sync.Mutex
	begun := map[int]map[int]bool{}
	m.Begun = func(device int, m kernelwright.Member, _ bool) {
		mu.Lock()
		defer mu.Unlock()
		if begun[m.Reference] == nil {
			begun[m.Reference] = map[int]bool{}
		}
		begun[m.Reference][device] = true
	}
	done := make(chan error)
	go func() { done <- m.Run(t.Context()) }()
	<-first.enter // both are at work, neither waits for the other
	<-second.enter
	first.free()
	second.free()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	close(first.enter)
	close(second.enter)
	b.wholeMatrix(m)
	keys := map[string]bool{}
	members, err := b.store.Members(t.Context(), m.Bench.ID)
	if err != nil {
		t.Fatal(err)
	}
	of := map[int]string{}
	for _, member := range members {
		run, err := b.store.Run(t.Context(), member.RunID)
		if err != nil {
			t.Fatal(err)
		}
		if run.Status != kernelwright.RunDone {
			continue
		}
		if was := of[member.Reference]; was != "" && was != run.DeviceKey {
			t.Errorf("reference %d has runs of %s and %s", member.Reference, was, run.DeviceKey)
		}
		of[member.Reference], keys[run.DeviceKey] = run.DeviceKey, true
	}
	if len(keys) != 2 {
		t.Errorf("runs of %v", keys)
	}
	for reference, devices := range begun {
		if len(devices) != 1 {
			t.Errorf("reference %d was begun on %v", reference, devices)
		}
	}
}

// stoppedAt has a device begin the matrix, and stops it at its first event of a
// kind.
func stoppedAt(t *testing.T, b *bench, device string, kind forge.EventKind) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b.hw.key = device
	m := matrix(t, b, func(e forge.Event) {
		if e.Kind == kind {
			cancel()
		}
	})
	if err := m.Run(ctx); !errors.Is(err, ErrStopped) {
		t.Fatal(err)
	}
}

// A run that has rounds of a device that is not here any more is made anew, with
// the record of both.
func TestABenchWhoseDeviceIsGone(t *testing.T) {
	b := newBench(t)
	stoppedAt(t, b, "first", forge.RoundDone)
	b.hw.key = "second"
	m := matrix(t, b, nil)
	if err := m.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	members, err := b.store.Members(t.Context(), m.Bench.ID)
	if err != nil || len(members) != 12 {
		t.Fatal(members, err)
	}
	runs := b.runs()
	var left []kernelwright.Run
	for _, run := range runs {
		if run.Status == kernelwright.RunFailed {
			left = append(left, run)
		}
	}
	if len(runs) != 13 || len(left) != 1 || left[0].DeviceKey != "first" || !strings.Contains(left[0].Reason, "begun on another device") {
		t.Errorf("%d runs, %+v", len(runs), left)
	}
	if done, err := b.store.Bench(t.Context(), m.Bench.ID); err != nil || done.FinishedMS == 0 {
		t.Errorf("%+v, %v", done, err)
	}
}

// A device that has runs of a reference makes the others as well.
func TestABenchKeepsAReferenceOnItsDevice(t *testing.T) {
	b := newBench(t)
	stoppedAt(t, b, "first", forge.Certified)
	b.hw = &fakeHardware{key: "second"}
	m := matrix(t, b, nil, &fakeHardware{key: "first"})
	p, err := m.progress(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r, found := p.take("second"); !found || r != 1 {
		t.Errorf("the second device is given %d, %v", r, found)
	}
	if r, found := p.take("first"); !found || r != 0 {
		t.Errorf("the first device is given %d, %v", r, found)
	}
}

// What a device cannot do any more another one does.
func TestABenchLeavesADeviceThatFails(t *testing.T) {
	b := newBench(t)
	well := &fakeHardware{key: "second", enter: make(chan struct{}), leave: make(chan struct{})}
	b.hw.key, b.hw.fault = "first", errors.New("the device has gone")
	m := matrix(t, b, nil, well)
	m.Sources, m.Invalid = []string{"a", "b", "c", "d", "e", "f"}, nil
	done := make(chan error)
	go func() { done <- m.Run(t.Context()) }()
	<-well.enter // it is at work until the other one has given up
	count := func(status kernelwright.RunStatus) (n int) {
		for _, run := range b.runs() {
			if run.Status == status {
				n++
			}
		}
		return n
	}
	for deadline := time.Now().Add(testWait); count(kernelwright.RunFailed) < maxFailures; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d runs failed", count(kernelwright.RunFailed))
		}
	}
	well.free()
	err := <-done
	close(well.enter)
	if err != nil || count(kernelwright.RunDone) != 12 || count(kernelwright.RunFailed) != maxFailures {
		t.Errorf("%v, %d done, %d failed", err, count(kernelwright.RunDone), count(kernelwright.RunFailed))
	}
	if done, err := b.store.Bench(t.Context(), m.Bench.ID); err != nil || done.FinishedMS == 0 {
		t.Errorf("%+v, %v", done, err)
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
	m.Begun = func(_ int, m kernelwright.Member, _ bool) { again = append(again, m.Reference) }
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
	b.hw.fault = errors.New("the device has gone")
	begun := 0
	m.Begun = func(int, kernelwright.Member, bool) { begun++ }
	if err := m.Run(t.Context()); err == nil || begun != maxFailures {
		t.Errorf("%v after %d runs", err, begun)
	}
}
