package hwfeedback

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"sync"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/hwfeedback/gpu"
)

// Several candidates of batches at once (Options.AtOnce). An evaluation at quick then has
// two phases. In the first one the candidate is built, verified and looked at, in a lane: by a referee of
// its own, with a share of the device. In the second it is timed, with all of the device:
// before, the first phases of all others have come to their end, and no process lives that
// has met a candidate. What went wrong in the first phase and may be the doing of others is
// judged again in the second. So a lane that fails, hangs or dies leaves the others whole.

// lanes are those of one evaluator.
type lanes struct {
	turn   chan struct{}            // has a token while nobody waits for a lane: one after the other
	room   func() int64             // bytes of the device's memory that are free
	all    []*supervisor            // each with a server of its own, which is started when it is needed
	left   chan struct{}            // holds one: a lane is free
	mu     sync.Mutex               // guards what follows
	free   []*supervisor            // the last one used comes first: its server is there
	has    int64                    // bytes that those at work may take
	may    int64                    // bytes that they may take together
	flying map[string]chan struct{} // closed when nobody evaluates under this key any more
}

// Of the device's memory, what those at work may take together, and what one takes beside
// its task's tensors: contexts of its processes, and kernels.
const (
	residentShare = 0.8
	residentGPU   = 3 << 30
	residentCPU   = 1 << 30
)

func newLanes(all []*supervisor, room func() int64) *lanes {
	l := &lanes{
		turn: make(chan struct{}, 1), room: room, all: all, left: make(chan struct{}, 1),
		free: slices.Clone(all), flying: map[string]chan struct{}{},
	}
	l.turn <- struct{}{}
	return l
}

// enter waits for a lane, and for room for so many bytes beside those who are at work. Who
// is alone has what there is. The caller leaves when it is done.
func (l *lanes) enter(ctx context.Context, bytes int64) (*supervisor, func(), error) {
	select {
	case <-l.turn:
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
	defer func() { l.turn <- struct{}{} }()
	for {
		if lane := l.take(bytes); lane != nil {
			return lane, func() { l.leave(lane, bytes) }, nil
		}
		select {
		case <-l.left:
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
	}
}

func (l *lanes) take(bytes int64) *supervisor {
	l.mu.Lock()
	defer l.mu.Unlock()
	alone := len(l.free) == len(l.all)
	if alone {
		l.may = int64(residentShare * float64(l.room()))
	}
	if len(l.free) == 0 || !alone && l.has+bytes > l.may {
		return nil
	}
	lane := l.free[0]
	l.free, l.has = l.free[1:], l.has+bytes
	return lane
}

func (l *lanes) leave(lane *supervisor, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free, l.has = slices.Insert(l.free, 0, lane), l.has-bytes
	select {
	case l.left <- struct{}{}:
	default:
	}
}

// claim waits until nobody evaluates under this key. The caller is done when its own
// verdict is remembered.
func (l *lanes) claim(ctx context.Context, key string) (func(), error) {
	for {
		l.mu.Lock()
		other := l.flying[key]
		if other == nil {
			mine := make(chan struct{})
			l.flying[key] = mine
			l.mu.Unlock()
			return func() {
				l.mu.Lock()
				defer l.mu.Unlock()
				delete(l.flying, key)
				close(mine)
			}, nil
		}
		l.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// knowing waits while another lane finds out what nobody knows of a task yet, which takes
// longer than all else. The caller says when it has found it out, or will not.
func (e *Evaluator) knowing(ctx context.Context, task kernelwright.Task, of batch) (func(), error) {
	key, uncompiled := e.learnedKey(task, e.options.Baselines), e.learnedKey(task, nil)
	known := func() bool {
		var value json.RawMessage
		return e.recall(ctx, cacheCalibration, key, &value) || of.untimed && !of.baselines && e.recall(ctx, cacheCalibration, uncompiled, &value)
	}
	if known() {
		return func() {}, nil
	}
	done, err := e.lanes.claim(ctx, joinKey("knowing", key))
	if err != nil {
		return nil, err
	}
	done = sync.OnceFunc(done)
	if known() {
		done()
	}
	return done, nil
}

func (l *lanes) close() {
	if l == nil {
		return
	}
	var all sync.WaitGroup
	for _, lane := range l.all {
		all.Go(lane.close)
	}
	all.Wait()
}

// resident is how much of the device's memory an evaluation of a task may take.
func (e *Evaluator) resident(task kernelwright.Task) int64 {
	bytes := int64(residentCPU)
	if e.gpu != nil {
		bytes = residentGPU
	}
	return bytes + int64(kernelwright.Shared.PeakCalls)*task.LeastBytes
}

// room returns how much of the device's memory is free.
func (e *Evaluator) room() int64 {
	if e.gpu == nil {
		return min(availableMemory(os.DirFS("/")), e.cpu.specs.MemoryBytes)
	}
	all, err := gpu.ListNow()
	if err != nil {
		e.options.Log.Debug("the GPU's free memory is not known", "error", err)
	}
	for _, g := range all {
		if g.UUID == e.gpu.UUID {
			return g.State.FreeBytes
		}
	}
	return 0 // one after the other
}

// share takes a share of the device for an evaluation in a lane. A candidate that does not
// build needs none where compilers disturb nobody: failed is its verdict then.
func (e *Evaluator) share(ctx context.Context, task kernelwright.Task, cand kernelwright.Candidate, of batch, level kernelwright.Level) (lease Lease, failed *kernelwright.Verdict, err error) {
	if err = e.settle(ctx); err != nil {
		return nil, nil, err
	}
	if err = e.up(ctx, of.lane); err != nil {
		return nil, nil, err
	}
	if !e.compilersDisturb() { // else who is to be timed would wait for its compiler
		if failed, err = e.buildAhead(ctx, task, cand, of, level); failed != nil || err != nil {
			return nil, failed, err
		}
	}
	lease, err = e.turn.leases.Share(ctx, e.device.String())
	return lease, nil, err
}

// laneLease is what an evaluation in a lane has of the device: a share, and then all of it.
type laneLease struct{ Lease }

// hearsLane is what is heard of a referee that judges in a lane.
func (e *Evaluator) hearsLane(of batch, held *laneLease, learnedKey string, keep func(learned)) hearer {
	return hearer{
		learned: func(l learned) {
			keep(l)
			if !nothing(l.Calibration) {
				of.known()
			}
		},
		alone: func(ctx context.Context) (turnedTo, error) { return e.beAlone(ctx, held, learnedKey) },
	}
}

// beAlone gives the share up, and returns what there is once nobody else has the device.
func (e *Evaluator) beAlone(ctx context.Context, held *laneLease, learnedKey string) (turnedTo, error) {
	e.release(held)
	lease, err := e.turn.leases.Acquire(ctx, e.device.String())
	if err != nil {
		return turnedTo{}, err
	}
	held.Lease = lease
	return turnedTo{lease.File(), e.knownBaselines(ctx, learnedKey)}, nil
}

func (e *Evaluator) release(held *laneLease) {
	if err := held.Release(); err != nil {
		e.options.Log.Warn("a device lease was not released cleanly", "device", e.device.String(), "error", err)
	}
}

// evaluateTogether is evaluateBatch for as many candidates at once as there are lanes.
func (e *Evaluator) evaluateTogether(ctx context.Context, task kernelwright.Task, cands []kernelwright.Candidate, of batch, level kernelwright.Level, yield func(int, kernelwright.Verdict) error) error {
	ctx, cancel := context.WithCancel(ctx)
	verdicts, errs := make([]kernelwright.Verdict, len(cands)), make([]error, len(cands))
	next, there := make(chan int, len(cands)), make([]chan struct{}, len(cands))
	for i := range cands {
		next <- i
		there[i] = make(chan struct{})
	}
	close(next)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for range min(len(cands), len(e.lanes.all)) {
		all.Go(func() {
			for i := range next {
				verdicts[i], errs[i] = e.evaluate(ctx, task, cands[i], of, level)
				close(there[i])
			}
		})
	}
	for i := range cands {
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
