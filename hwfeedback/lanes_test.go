package hwfeedback

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/internal/await"
)

// laneBench is a bench of which so many candidates are verified at once. Those who meet
// wait until so many are.
func laneBench(t *testing.T, atOnce, together int) bench {
	t.Helper()
	b := openBenchWith(t, Options{DataDir: t.TempDir(), AtOnce: atOnce}, &memoryCache{})
	if err := os.WriteFile(filepath.Join(b.cacheDir(), "together"), []byte(strconv.Itoa(together)), 0o600); err != nil {
		t.Fatal(err)
	}
	b.remember(t.Context(), cacheCalibration, b.learnedKey(aTask, b.options.Baselines), map[string]int{"version": 1})
	return b
}

// batch evaluates candidates together, and returns the statuses in the order in which they
// were told.
func (b bench) batch(sources ...string) (told []string) {
	b.t.Helper()
	var cands []kernelwright.Candidate
	for _, s := range sources {
		cands = append(cands, kernelwright.Candidate{Source: s})
	}
	err := b.EvaluateBatch(b.t.Context(), aTask, cands, kernelwright.Quick, func(i int, v kernelwright.Verdict) error {
		if i != len(told) || v.Candidate != kernelwright.HashText(sources[i]) {
			b.t.Errorf("candidate %d was told after %d others", i, len(told))
		}
		told = append(told, string(v.Status))
		return nil
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return told
}

// phases is what came after what: who was alone had nobody beside them.
func (b bench) phases() (most, turns int) {
	b.t.Helper()
	content, err := os.ReadFile(filepath.Join(b.cacheDir(), "phases"))
	if err != nil {
		b.t.Fatal(err)
	}
	verifying, alone := 0, false
	for what := range strings.Lines(string(content)) {
		switch strings.TrimSpace(what) {
		case "+verify":
			verifying++
		case "-verify":
			verifying--
		case "+alone":
			turns, alone = turns+1, true
		case "-alone":
			alone = false
			continue
		}
		if alone && verifying > 0 {
			b.t.Fatalf("somebody was timed beside %d others:\n%s", verifying, content)
		}
		most = max(most, verifying)
	}
	return most, turns
}

// Candidates are verified at once, and timed one after the other, alone. Their verdicts
// come in the order in which they were asked for.
func TestSeveralAreVerifiedAtOnce(t *testing.T) {
	b := laneBench(t, 4, 4)
	got := b.batch("good meets 1", "slow meets 2", "compile_error meets 3", "good meets 4", "crash 5", "good 6")
	if want := []string{"correct", "timed_out", "build_failed", "correct", "crashed", "correct"}; !slices.Equal(got, want) {
		t.Errorf("told %q", got)
	}
	if most, turns := b.phases(); most != 4 || turns != 3 {
		t.Errorf("%d at once, %d timed", most, turns)
	}
	lease, err := b.turn.leases.Acquire(t.Context(), "cpu")
	if err != nil {
		t.Fatalf("the device was not given back: %v", err)
	}
	lease.Release()
}

// Inspections side by side share the threads; one that is alone has all of them.
func TestInspectionsShareTheThreads(t *testing.T) {
	for atOnce, want := range map[int]string{1: "8 threads", 4: "2 threads", 16: "1 threads"} {
		b := openBenchWith(t, Options{DataDir: t.TempDir(), AtOnce: atOnce, Threads: 8}, &memoryCache{})
		task, err := b.Inspect(t.Context(), "task", "a reference")
		if err != nil || !slices.Equal(task.Notes, []string{want}) {
			t.Errorf("%d at once: %q, %v", atOnce, task.Notes, err)
		}
	}
}

// Equal bytes are judged once, also where they are asked for at once.
func TestDuplicatesOfABatchAreJudgedOnce(t *testing.T) {
	b := laneBench(t, 4, 2)
	b.batch("good meets 1", "good meets 1", "good meets 2", "good meets 1", "good meets 2")
	if n := b.count("evaluate"); n != 2 {
		t.Errorf("two texts were judged %d times", n)
	}
}

// What is found out of a task is found out once: those who come meanwhile wait for it, and
// no longer. Who is timed goes by the baselines that are known when it is.
func TestATaskIsCalibratedOnce(t *testing.T) {
	b := laneBench(t, 3, 3)
	task := aTask
	task.Source = "another reference"
	knew := make([]string, 3)
	cands := []kernelwright.Candidate{{Source: "good calibrates meets 1"}, {Source: "good calibrates meets 2"}, {Source: "good calibrates meets 3"}}
	err := b.EvaluateBatch(t.Context(), task, cands, kernelwright.Quick, func(i int, v kernelwright.Verdict) error {
		knew[i] = v.Evidence[0]
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(knew)
	if strings.Contains(knew[0], "'version': 1") || !strings.Contains(knew[1], "'version': 1") {
		t.Errorf("known were %q", knew)
	}
	err = b.EvaluateBatch(t.Context(), task, []kernelwright.Candidate{{Source: "good tells 4"}}, kernelwright.Quick, func(_ int, v kernelwright.Verdict) error {
		if !strings.HasPrefix(v.Output, "given {'eager': ") {
			t.Errorf("it was given %q", v.Output)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// A referee that dies, with its lane, leaves the others whole; its candidate is judged
// again alone, and has crashed where it dies again.
func TestALaneThatDiesLeavesTheOthersWhole(t *testing.T) {
	b := laneBench(t, 3, 1)
	got := b.batch("good meets 1", "die 2", "die_once 3", "good die_alone 4", "good meets 5", "good 6")
	if want := []string{"correct", "crashed", "correct", "correct", "correct", "correct"}; !slices.Equal(got, want) {
		t.Errorf("told %q", got)
	}
	if got := b.batch("good 7", "good 8", "good 9"); !slices.Equal(got, []string{"correct", "correct", "correct"}) {
		t.Errorf("then told %q", got)
	}
}

// Who is stopped while it waits to be alone leaves the device, and the others.
func TestAWaitToBeAloneIsStopped(t *testing.T) {
	b := laneBench(t, 2, 1)
	share, err := b.turn.leases.Share(t.Context(), "cpu") // another process verifies
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	ended := make(chan error)
	go func() {
		ended <- b.EvaluateBatch(ctx, aTask, []kernelwright.Candidate{{Source: "good 1"}}, kernelwright.Quick, func(int, kernelwright.Verdict) error { return nil })
	}()
	await.Until(t, "it waits to be alone", func() bool { return b.turn.leases.Wanted("cpu") })
	cancel(enough)
	if err := <-ended; !errors.Is(err, enough) {
		t.Errorf("it ended with %v", err)
	}
	if err := share.Release(); err != nil {
		t.Error(err)
	}
	for _, level := range []kernelwright.Level{kernelwright.Quick, kernelwright.Certify} { // by itself, and of no batch
		if v := b.evaluate("good 2", level); v.Status != kernelwright.Correct {
			t.Errorf("then one was %s: %s", v.Status, v.Reason)
		}
	}
}

// An error ends a batch, with the verdicts before it told and nothing left at work.
func TestABatchAtOnceEndsWithItsFirstError(t *testing.T) {
	b := laneBench(t, 2, 1)
	enough, told := errors.New("enough"), 0
	cands := []kernelwright.Candidate{{Source: "good 1"}, {Source: "good 2"}, {Source: "good 3"}, {Source: "good 4"}}
	err := b.EvaluateBatch(t.Context(), aTask, cands, kernelwright.Quick, func(i int, _ kernelwright.Verdict) error {
		told++
		if i == 1 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || told != 2 {
		t.Errorf("%d told, %v", told, err)
	}
	lease, err := b.turn.leases.Acquire(t.Context(), "cpu")
	if err != nil {
		t.Fatalf("the device was not given back: %v", err)
	}
	lease.Release()
}

func TestLanesByMemory(t *testing.T) {
	room := int64(100)
	l := newLanes([]*supervisor{{}, {}, {}}, func() int64 { return room })
	enter := func(bytes int64) func() {
		t.Helper()
		_, leave, err := l.enter(t.Context(), bytes)
		if err != nil {
			t.Fatal(err)
		}
		return leave
	}
	full := func(bytes int64) bool {
		t.Helper()
		return l.take(bytes) == nil
	}
	first := enter(300) // alone it has what there is
	if !full(1) {
		t.Error("another one beside what fills the memory")
	}
	first()
	one, two := enter(40), enter(40)
	if !full(1) {
		t.Error("a third one within no memory")
	}
	entered := make(chan func())
	go func() { entered <- enter(30) }()
	stopped, stop := context.WithCancelCause(t.Context())
	stop(errors.New("enough"))
	if _, _, err := l.enter(stopped, 1); err == nil || err.Error() != "enough" {
		t.Errorf("a stopped wait ended with %v", err)
	}
	one()
	three := <-entered
	two()
	three()
	room = 0
	if one = enter(1); !full(1) {
		t.Error("two where no memory is known")
	}
	one()
	var setup *SetupError
	if _, err := (Options{DataDir: t.TempDir(), AtOnce: -1}).normalised(); !errors.As(err, &setup) || setup.Hint == "" {
		t.Errorf("-1 at once: %v", err)
	}
}
