package episodes

import (
	"context"
	"fmt"
	"sync"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
)

// Hardware is what episodes need of *hwfeedback.Evaluator. A call ends within a time
// that does not count what it waited for its turn: episodes ask one at a time.
type Hardware interface {
	forge.Evaluator
	forge.Batcher
	forge.Builder
	// Inspect reads a reference. A *kernelwright.InvalidTaskError says that it is no
	// task; any other error is infrastructure.
	Inspect(ctx context.Context, name, source string) (kernelwright.Task, error)
	Device() kernelwright.Device
	// Known returns the verdict that is remembered of these very bytes, if one is. It
	// waits for nobody. None is remembered that was disturbed or too vague to tell.
	Known(ctx context.Context, task kernelwright.Task, c kernelwright.Candidate, l kernelwright.Level) (kernelwright.Verdict, bool)
}

const (
	// maxBatch is how many candidates of a task are handed in together: as many as the
	// evaluator builds ahead, and one.
	maxBatch = 9
	// maxTasks is how many tasks are remembered.
	maxTasks = 512
)

// work is one candidate that is to be evaluated, for all who ask for these very bytes.
type work struct {
	key       workKey
	hardware  Hardware
	task      kernelwright.Task
	candidate kernelwright.Candidate
	waiters   int  // guarded by queue.mu
	again     bool // it is measured for the second time; guarded by queue.mu
	done      chan struct{}
	verdict   kernelwright.Verdict // with err, set before done is closed
	err       error
}

// workKey is what a verdict in flight is of.
type workKey struct {
	hardware  Hardware
	reference string // by its bytes
	candidate kernelwright.Candidate
}

// queue has one device evaluate what hundreds of episodes ask for: in batches of a
// task, oldest first; what several ask for at once only once; and what is
// remembered before its turn. What tells no reward is measured once more.
type queue struct {
	device chan struct{} // has a token for each more batch that it takes at once

	mu      sync.Mutex
	waiting []*work           // oldest first
	flying  map[workKey]*work // waiting, or being evaluated
	more    chan struct{}     // holds one: something waits
	tasks   map[string]kernelwright.Task
	reading map[string]chan struct{} // closed when a reference was read
	stats   VerdictStats
}

func newQueue(atOnce int) *queue {
	q := &queue{
		device: make(chan struct{}, atOnce), more: make(chan struct{}, 1), flying: map[workKey]*work{},
		tasks: map[string]kernelwright.Task{}, reading: map[string]chan struct{}{},
	}
	for range atOnce {
		q.device <- struct{}{}
	}
	return q
}

// take waits for the device; the caller gives it back.
func (q *queue) take(ctx context.Context) error {
	select {
	case <-q.device:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (q *queue) give() { q.device <- struct{}{} }

// run evaluates what is asked for until ctx is done: one of as many as take batches at once.
func (q *queue) run(ctx context.Context) {
	for {
		select {
		case <-q.more:
		case <-ctx.Done():
			q.end(ctx.Err())
			return
		}
		for q.take(ctx) == nil {
			batch := q.next()
			if len(batch) > 0 {
				q.measure(ctx, batch)
			}
			q.give()
			if len(batch) == 0 {
				break
			}
		}
	}
}

// next takes the oldest work off the queue, and what else there is of its task.
func (q *queue) next() (batch []*work) {
	q.mu.Lock()
	defer q.mu.Unlock()
	rest := q.waiting[:0:0]
	for _, w := range q.waiting {
		first := w
		if len(batch) > 0 {
			first = batch[0]
		}
		if len(batch) < maxBatch && w.hardware == first.hardware && w.key.reference == first.key.reference {
			batch = append(batch, w)
		} else {
			rest = append(rest, w)
		}
	}
	q.waiting = rest
	if len(batch) > 0 {
		q.stats.Batches++
	}
	if len(rest) > 0 {
		q.wake() // who takes another batch meanwhile
	}
	return batch
}

// measure has a batch evaluated. An error says nothing of a candidate but that its
// verdict is not to be had: what comes after it in the batch waits again.
func (q *queue) measure(ctx context.Context, batch []*work) {
	candidates := make([]kernelwright.Candidate, len(batch))
	for i, w := range batch {
		candidates[i] = w.candidate
	}
	done := 0
	err := batch[0].hardware.EvaluateBatch(ctx, batch[0].task, candidates, kernelwright.Quick, func(i int, v kernelwright.Verdict) error {
		q.finish(batch[i], v, nil)
		done = i + 1
		return nil
	})
	if done == len(batch) {
		return
	}
	if err == nil {
		err = &kernelwright.InfrastructureError{Op: "evaluate", Err: fmt.Errorf("%d verdicts for %d candidates", done, len(batch))}
	}
	q.finish(batch[done], kernelwright.Verdict{}, err)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(append([]*work{}, batch[done+1:]...), q.waiting...)
}

// finish tells those who wait for work what became of it, or has it measured again.
func (q *queue) finish(w *work, v kernelwright.Verdict, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err == nil && !w.again && w.waiters > 0 && !told(&v) {
		w.again = true
		q.stats.Again++
		q.waiting = append(q.waiting, w) // run looks there before it sleeps
		return
	}
	delete(q.flying, w.key)
	switch {
	case err != nil:
		q.stats.Failed++
	case v.Cached:
		q.stats.Cached++
	default:
		q.stats.Measured++
	}
	w.verdict, w.err = v, err
	close(w.done)
}

// end fails all that waits.
func (q *queue) end(err error) {
	q.mu.Lock()
	waiting := q.waiting
	q.waiting = nil
	q.mu.Unlock()
	for _, w := range waiting {
		q.finish(w, kernelwright.Verdict{}, err)
	}
}

// evaluate returns the verdict on a candidate, once it has had its turn.
func (q *queue) evaluate(ctx context.Context, h Hardware, t kernelwright.Task, c kernelwright.Candidate) (kernelwright.Verdict, error) {
	if v, ok := h.Known(ctx, t, c, kernelwright.Quick); ok {
		q.count(func(s *VerdictStats) { s.Asked++; s.Cached++ })
		return v, nil
	}
	w := q.join(h, t, c)
	select {
	case <-w.done:
		return w.verdict, w.err
	case <-ctx.Done():
		q.leave(w)
		return kernelwright.Verdict{}, ctx.Err()
	}
}

// join returns the work on a candidate: what is in flight, else new.
func (q *queue) join(h Hardware, t kernelwright.Task, c kernelwright.Candidate) *work {
	// Who wrote it and why makes no other program of it.
	c = kernelwright.Candidate{Source: c.Source, Language: c.Language}
	key := workKey{h, kernelwright.HashText(t.Source), c}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stats.Asked++
	if w := q.flying[key]; w != nil {
		q.stats.Joined++
		w.waiters++
		return w
	}
	w := &work{key: key, hardware: h, task: t, candidate: c, waiters: 1, done: make(chan struct{})}
	q.flying[key] = w
	q.waiting = append(q.waiting, w)
	q.wake()
	return w
}

// wake has somebody look whether something waits.
func (q *queue) wake() {
	select {
	case q.more <- struct{}{}:
	default:
	}
}

// leave gives work up; what nobody asks for any more leaves the queue.
func (q *queue) leave(w *work) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.waiters--; w.waiters > 0 {
		return
	}
	for i, other := range q.waiting {
		if other == w {
			q.waiting = append(q.waiting[:i:i], q.waiting[i+1:]...)
			delete(q.flying, w.key)
			return
		}
	}
}

// inspect makes a task of a reference: who asks for the same one meanwhile waits for it.
func (q *queue) inspect(ctx context.Context, h Hardware, name, source string) (kernelwright.Task, error) {
	hash := kernelwright.HashText(source)
	for {
		q.mu.Lock()
		t, known := q.tasks[hash]
		read := q.reading[hash]
		if !known && read == nil {
			read = make(chan struct{})
			q.reading[hash] = read
			q.mu.Unlock()
			t, err := q.read(ctx, h, name, source)
			q.mu.Lock()
			delete(q.reading, hash)
			if err == nil {
				q.keep(hash, t)
			}
			q.mu.Unlock()
			close(read)
			return t, err
		}
		q.mu.Unlock()
		if known {
			t.Name = name
			return t, nil
		}
		select {
		case <-read: // a failure is met again by who asks next
		case <-ctx.Done():
			return kernelwright.Task{}, ctx.Err()
		}
	}
}

func (q *queue) read(ctx context.Context, h Hardware, name, source string) (kernelwright.Task, error) {
	if err := q.take(ctx); err != nil {
		return kernelwright.Task{}, err
	}
	defer q.give()
	return h.Inspect(ctx, name, source)
}

// keep remembers a task, in the place of any other where there are too many.
func (q *queue) keep(hash string, t kernelwright.Task) {
	for other := range q.tasks {
		if len(q.tasks) < maxTasks {
			break
		}
		delete(q.tasks, other)
	}
	q.tasks[hash] = t
}

func (q *queue) count(f func(*VerdictStats)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f(&q.stats)
}

func (q *queue) counted() VerdictStats {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.stats
	s.Waiting = len(q.waiting)
	if s.Asked > 0 {
		s.HitRate = float64(s.Cached+s.Joined) / float64(s.Asked)
	}
	return s
}

// episodeEvaluator is that of one episode.
type episodeEvaluator struct {
	queue    *queue
	hardware Hardware
}

// Evaluate implements forge.Evaluator, at Quick.
func (e episodeEvaluator) Evaluate(ctx context.Context, t kernelwright.Task, c kernelwright.Candidate, l kernelwright.Level) (kernelwright.Verdict, error) {
	if l != kernelwright.Quick {
		return kernelwright.Verdict{}, fmt.Errorf("an episode asks for no verdict at level %q", l)
	}
	return e.queue.evaluate(ctx, e.hardware, t, c)
}

// EvaluateBatch implements forge.Batcher.
func (e episodeEvaluator) EvaluateBatch(ctx context.Context, t kernelwright.Task, cs []kernelwright.Candidate, l kernelwright.Level, yield func(int, kernelwright.Verdict) error) error {
	ctx, cancel := context.WithCancel(ctx)
	verdicts, errs := make([]kernelwright.Verdict, len(cs)), make([]error, len(cs))
	var asked sync.WaitGroup
	defer asked.Wait()
	defer cancel()
	there := make([]chan struct{}, len(cs))
	for i, c := range cs {
		there[i] = make(chan struct{})
		asked.Go(func() {
			defer close(there[i])
			verdicts[i], errs[i] = e.Evaluate(ctx, t, c, l)
		})
	}
	for i := range cs {
		<-there[i]
		if errs[i] != nil {
			return errs[i]
		}
		if err := yield(i, verdicts[i]); err != nil {
			return err
		}
	}
	return nil
}

// BuildOnly implements forge.Builder.
func (e episodeEvaluator) BuildOnly(ctx context.Context, c kernelwright.Candidate) (kernelwright.BuildReport, string, error) {
	if err := e.queue.take(ctx); err != nil {
		return kernelwright.BuildReport{}, "", err
	}
	defer e.queue.give()
	return e.hardware.BuildOnly(ctx, c)
}
