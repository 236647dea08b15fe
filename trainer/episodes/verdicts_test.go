package episodes

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	kw "github.com/kernelwright/kernelwright"
)

// newTestQueue is a queue that works, with its hardware held up.
func newTestQueue(t *testing.T) (*queue, *hardware, chan struct{}) {
	t.Helper()
	return newQueueOf(t, 1)
}

// newQueueOf is newTestQueue of one that takes so many batches at once.
func newQueueOf(t *testing.T, atOnce int) (*queue, *hardware, chan struct{}) {
	t.Helper()
	q, hold := newQueue(atOnce), make(chan struct{})
	h := &hardware{evaluated: map[string]int{}, known: map[string]kw.Verdict{}, held: make(chan struct{}, 1000), hold: hold, atOnce: atOnce}
	ctx, stop := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	for range atOnce {
		ended.Go(func() { q.run(ctx) })
	}
	t.Cleanup(func() { stop(); ended.Wait() })
	return q, h, hold
}

// ask has a verdict asked for beside the test, and waits until that is in the queue.
func ask(t *testing.T, q *queue, h Hardware, task, source string, all *sync.WaitGroup, want kw.Status) {
	t.Helper()
	before := q.counted().Asked
	all.Go(func() {
		v, err := q.evaluate(context.WithoutCancel(t.Context()), h, kw.Task{Fingerprint: task, Source: task}, kw.Candidate{Source: source, Language: kw.CPP, Origin: fmt.Sprint(before)})
		if (want == "") != (err != nil) || v.Status != want {
			t.Errorf("%s: %s %v, want %s", source, v.Status, err, want)
		}
	})
	for q.counted().Asked == before {
		runtime.Gosched()
	}
}

// Candidates of a task are handed in together, oldest task first, so many at most;
// an error of the machinery is one candidate's alone, and what repeats is asked for once.
func TestBatches(t *testing.T) {
	q, h, hold := newTestQueue(t)
	var all sync.WaitGroup
	ask(t, q, h, "a", "first", &all, kw.Correct)
	<-h.held
	for i := range 3 {
		ask(t, q, h, "b", fmt.Sprint("b", i), &all, kw.Correct)
		ask(t, q, h, "a", fmt.Sprint("a", i), &all, kw.Correct)
	}
	ask(t, q, h, "b", "breaks the machine", &all, "")
	ask(t, q, h, "b", "b wrong", &all, kw.Wrong)
	ask(t, q, h, "b", "b1", &all, kw.Correct) // again
	for i := range maxBatch {
		ask(t, q, h, "c", fmt.Sprint("c", i), &all, kw.Correct)
	}
	ask(t, q, h, "c", "c last", &all, kw.Correct)
	close(hold)
	all.Wait()
	for i := range h.batches {
		for j := range h.batches[i] {
			h.batches[i][j] = strings.TrimSpace(h.batches[i][j])
		}
	}
	want := [][]string{{"first"}, {"b0", "b1", "b2", "breaks the machine", "b wrong"}, {"b wrong"}, {"a0", "a1", "a2"}, {"c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8"}, {"c last"}}
	if !slices.EqualFunc(h.batches, want, slices.Equal) {
		t.Errorf("batches: %q", h.batches)
	}
	// What was evaluated is remembered, without a turn.
	ask(t, q, h, "b", "b1", &all, kw.Correct)
	all.Wait()
	s := q.counted()
	if s.Asked != 21 || s.Joined != 1 || s.Cached != 1 || s.Failed != 1 || s.Measured != 18 || s.Waiting != 0 || s.HitRate != 2.0/21 {
		t.Errorf("%+v", s)
	}
}

// Hardware that evaluates several at once is given batches of several tasks.
func TestBatchesAtOnce(t *testing.T) {
	q, h, hold := newQueueOf(t, 2)
	var all sync.WaitGroup
	for _, task := range []string{"a", "b", "c"} {
		ask(t, q, h, task, task+"0", &all, kw.Correct)
	}
	<-h.held
	<-h.held // before anything was evaluated
	select {
	case <-h.held:
		t.Error("three batches at once")
	default:
	}
	close(hold)
	all.Wait()
	if s := q.counted(); s.Measured != 3 || s.Batches != 3 || s.Waiting != 0 {
		t.Errorf("%+v", s)
	}
}

// What tells no reward is measured once more, for all who wait for it, and is never
// remembered as it is.
func TestVagueIsMeasuredAgain(t *testing.T) {
	q, h, hold := newTestQueue(t)
	var all sync.WaitGroup
	for range 3 {
		ask(t, q, h, "a", "vague once", &all, kw.Correct)
	}
	ask(t, q, h, "a", "vague", &all, kw.Correct)
	ask(t, q, h, "a", "plain", &all, kw.Correct)
	close(hold)
	all.Wait()
	ask(t, q, h, "a", "vague once", &all, kw.Correct) // by now it is known
	all.Wait()
	for source, want := range map[string]int{"vague once": 2, "vague": 2, "plain": 1} {
		if h.evaluated[source] != want {
			t.Errorf("%s: evaluated %d times, want %d", source, h.evaluated[source], want)
		}
	}
	if s := q.counted(); s.Again != 2 || s.Measured != 3 || s.Joined != 2 || s.Cached != 1 || s.Asked != 6 || s.Waiting != 0 || len(q.flying) != 0 {
		t.Errorf("%+v", s)
	}
}

// Many who ask for one reference have it read once.
func TestInspectOnce(t *testing.T) {
	q, h, _ := newTestQueue(t)
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			name := fmt.Sprint("n", i)
			if task, err := q.inspect(t.Context(), h, name, "class Model: pass"); err != nil || task.Name != name {
				t.Errorf("%+v, %v", task, err)
			}
		})
	}
	all.Wait()
	if h.read != 1 {
		t.Errorf("read %d times", h.read)
	}
	for i := range maxTasks + 10 {
		if _, err := q.inspect(t.Context(), h, "n", fmt.Sprint("class Model: ", i)); err != nil {
			t.Fatal(err)
		}
	}
	if len(q.tasks) > maxTasks {
		t.Errorf("%d tasks are kept", len(q.tasks))
	}
}

// What an open episode takes of memory: `go test ./trainer/episodes -run '^$' -bench OpenEpisodes`.
func BenchmarkOpenEpisodes(b *testing.B) {
	const n = 500
	for b.Loop() {
		w := newWorld(b)
		w.start(nil)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for i := range n {
			r := Request{Reference: "class Model: pass", Seed: int64(i)}
			if _, err := w.episodes.Start(b.Context(), r); err != nil {
				b.Fatal(err)
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc+after.StackInuse-before.HeapAlloc-before.StackInuse)/n/1024, "KiB/episode")
	}
}
