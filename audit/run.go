package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/kernelwright/kernelwright"
)

// Device is what evaluates. Its methods are called from one goroutine.
type Device interface {
	Device() kernelwright.Device
	// Problem says why a candidate's text comes to nothing on this device, without
	// running any of it, and which status that is; "" where it must be tried.
	Problem(ctx context.Context, c kernelwright.Candidate) (kernelwright.Status, string, error)
	// Given returns the parameter by which a reference's forward takes a function of its
	// file, "" where it takes none.
	Given(ctx context.Context, reference string) (string, error)
	Inspect(ctx context.Context, name, source string) (kernelwright.Task, error)
	// Explain says how right and how fast a candidate is that policy rejects.
	Explain(ctx context.Context, t kernelwright.Task, c kernelwright.Candidate, l kernelwright.Level) (kernelwright.Verdict, error)
	// EvaluateBatch evaluates candidates of one task. Those of others that come then it may
	// build meanwhile.
	EvaluateBatch(ctx context.Context, t kernelwright.Task, cs, then []kernelwright.Candidate, l kernelwright.Level, yield func(int, kernelwright.Verdict) error) error
}

// Record keeps what was said. It is asked by several goroutines.
type Record interface {
	// Known returns the verdict that was reached under a key, and when, if one was.
	Known(ctx context.Context, key string) (v kernelwright.Verdict, judgedMS int64, found bool, err error)
	Keep(ctx context.Context, p kernelwright.AuditPair) error
}

// Run has the pairs of a set evaluated, on each device the pairs of one reference at
// a time. What was evaluated is recorded at once: after an error, or a kill, the next
// Run goes on from there.
type Run struct {
	Audit   kernelwright.Audit
	Set     Set
	Devices []Device
	Record  Record
	// Begun is told what a device turns to, and Yield of each pair that was said
	// something of, known whether it was before. One of them is called at a time. An error of Yield ends the run.
	Begun func(device int, reference string)
	Yield func(p kernelwright.AuditPair, known bool) error

	mu   sync.Mutex
	left []chunk
	back []chunk // of devices that failed
}

// The most that is read of a set at once, for each device.
const (
	chunkPairs = 32
	chunkBytes = 16 << 20
)

// ahead is how many chunks a GPU knows before it evaluates them: it takes longer to
// build a candidate than to evaluate it, and a GPU leaves the processor's cores to compilers.
const ahead = 4

// maxFailures is how many pairs in a row may get no answer before it is the
// device.
const maxFailures = 3

// chunk is pairs of one reference, as places in the set.
type chunk []int

// FailedError says that pairs got no answer although each was tried: the machine
// failed, and the same command tries them again.
type FailedError struct {
	Pairs int
	First error
}

func (e *FailedError) Error() string {
	return fmt.Sprintf("%d pairs could not be evaluated, the first because of this: %v", e.Pairs, e.First)
}

// Unwrap returns the first cause.
func (e *FailedError) Unwrap() error { return e.First }

// Run evaluates what was not evaluated yet. Cancelling ctx ends it with ctx's error. A
// pair that the machine fails on is given to Yield as not evaluated and keeps no
// other from being evaluated; a device on which several fail in a row is left. The
// error is then a *FailedError, in the end.
func (r *Run) Run(ctx context.Context) error {
	r.left = chunks(r.Set.Pairs)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	failed := make([]failures, len(r.Devices))
	var devices sync.WaitGroup
	for i, d := range r.Devices {
		devices.Go(func() {
			w := &worker{Run: r, device: d, number: i, failed: &failed[i]}
			if err := w.work(ctx); err != nil {
				cancel(err)
			}
		})
	}
	devices.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return together(failed, r.unseen())
}

// together is the error of what failed on all devices; nil where nothing did.
func together(failed []failures, unseen int) error {
	all := &FailedError{Pairs: unseen}
	for _, f := range failed {
		all.Pairs += f.pairs
		if all.First == nil {
			all.First = f.first
		}
	}
	if all.Pairs == 0 {
		return nil
	}
	return all
}

// failures is what a device failed at.
type failures struct {
	pairs, inARow int
	first         error
}

func (f *failures) add(err error) {
	f.pairs++
	f.inARow++
	if f.first == nil {
		f.first = err
	}
}

// chunks puts the pairs of one reference together, in the order in which they were
// found.
func chunks(pairs []Pair) []chunk {
	var order []string
	of := map[string]chunk{}
	for i, p := range pairs {
		id := p.Reference.ID()
		if _, known := of[id]; !known {
			order = append(order, id)
		}
		of[id] = append(of[id], i)
	}
	var all []chunk
	for _, id := range order {
		all = append(all, slices.Collect(slices.Chunk(of[id], chunkPairs))...)
	}
	return all
}

// take adds to what a device is to evaluate next, so that it has so many, and leaves
// others as many.
func (r *Run) take(mine []chunk, most int) []chunk {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, from := range []*[]chunk{&r.back, &r.left} {
		for len(*from) > 0 && (len(mine) == 0 || len(mine) < most && len(*from) >= most*len(r.Devices)) {
			mine = append(mine, (*from)[0])
			*from = (*from)[1:]
		}
	}
	return mine
}

// giveBack leaves pairs to the other devices.
func (r *Run) giveBack(c ...chunk) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.back = append(r.back, c...)
}

// unseen counts the pairs that no device was left for.
func (r *Run) unseen() (n int) {
	for _, c := range append(r.back, r.left...) {
		n += len(c)
	}
	return n
}

func (r *Run) tell(p kernelwright.AuditPair, known bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.Yield(p, known)
}

// inPair reports whether an error tells of a reference, in words for people.
func inPair(err error) (*kernelwright.InvalidTaskError, bool) {
	var invalid *kernelwright.InvalidTaskError
	return invalid, errors.As(err, &invalid)
}

// forGPU are what errors of PyTorch, CUDA's libraries and Triton say where no GPU
// is, or none that they know of.
var forGPU = []string{"written in CUDA, and the device is the CPU", "not compiled with CUDA", "NVIDIA driver", "CUDA error", "No CUDA GPUs", "CUDA is not available", "active drivers", "libcuda", "CUDA_HOME", "is no GPU", "nvcc"}

// needsGPU reports whether that is why a reference or a candidate fails on a CPU.
func needsGPU(d kernelwright.Device, said ...string) bool {
	if d.Kind != kernelwright.CPUDevice {
		return false
	}
	whole := strings.Join(said, "\n")
	return slices.ContainsFunc(forGPU, func(words string) bool { return strings.Contains(whole, words) })
}
