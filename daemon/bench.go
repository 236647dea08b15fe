package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"sync"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/store"
)

// maxFailures is how many runs in a row may fail before a bench stops: by then
// it is the machine.
const maxFailures = 3

// Bench works off a recorded bench, on each device one run after the other. What
// it has done is in the record: after an error, or a kill, Run goes on from
// there.
type Bench struct {
	Store *store.Store
	Bench kernelwright.Bench
	// Devices has for each device, all of one class, a Runner for each of the
	// bench's configurations, and Settings what they run by. They write no results
	// (RecordOnly).
	Devices  [][]*Runner
	Settings []forge.Settings
	// Sources has the text of each reference, and Invalid why one cannot be read
	// at all.
	Sources []string
	Invalid map[int]*kernelwright.InvalidTaskError
	// Usable says why nothing more should be recorded; nil where all is well.
	Usable func() error
	// Begun is told of each run that is worked on, and on which of Devices; may be
	// nil. Devices call it at the same time.
	Begun func(device int, m kernelwright.Member, resumed bool)
}

// Run makes every run that has not ended. A device takes the next reference and
// makes all its runs, the configurations one after the other: what is compared is
// measured on one device, close together. One that has runs of a reference keeps
// that, as long as it is there. Cancelling ctx lets the rounds in progress
// finish, as for Runner.Run, and gives ErrStopped. A run that fails is made anew
// by the next call and keeps no other from being made, until several fail in a
// row on a device: then it leaves what it has to the others. The error is that
// of the runs that nobody could make, joined.
func (b *Bench) Run(ctx context.Context) error {
	p, err := b.progress(ctx)
	if err != nil {
		return err
	}
	halt, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make([]error, len(b.Devices))
	var devices sync.WaitGroup
	for i := range b.Devices {
		devices.Go(func() {
			if ended[i] = b.work(halt, i, p); ended[i] != nil {
				cancel()
			}
		})
	}
	devices.Wait()
	// Being stopped may follow from what another device met.
	var stopped error
	for _, err := range ended {
		if err != nil && !errors.Is(err, ErrStopped) {
			return err
		}
		stopped = cmp.Or(stopped, err)
	}
	if stopped != nil {
		return stopped
	}
	if err := p.failures(); err != nil {
		return err
	}
	if b.Bench.FinishedMS != 0 {
		return nil
	}
	return b.Store.FinishBench(context.WithoutCancel(ctx), b.Bench.ID)
}

// benchProgress is what there is of a bench, and what is left.
type benchProgress struct {
	mu      sync.Mutex
	runs    map[kernelwright.Member]kernelwright.Run // by member without its run
	failed  map[kernelwright.Member]error
	invalid []*kernelwright.InvalidTaskError // by reference
	left    []int                            // references
	home    map[int]string                   // the device here that has runs of one
}

func (b *Bench) progress(ctx context.Context) (*benchProgress, error) {
	members, err := b.Store.Members(ctx, b.Bench.ID)
	if err != nil {
		return nil, err
	}
	here := map[string]bool{}
	for i := range b.Devices {
		here[b.key(i)] = true
	}
	p := &benchProgress{
		runs: map[kernelwright.Member]kernelwright.Run{}, failed: map[kernelwright.Member]error{}, home: map[int]string{},
		invalid: make([]*kernelwright.InvalidTaskError, len(b.Bench.References)),
	}
	for _, m := range members {
		run, err := b.Store.Run(ctx, m.RunID)
		if err != nil {
			return nil, err
		}
		m.RunID = 0
		p.runs[m] = run
		if why := invalidity(run); why != nil {
			p.invalid[m.Reference] = why
		}
		running := run.Status == kernelwright.RunRunning
		if here[run.DeviceKey] && (running || run.Status != kernelwright.RunFailed && p.home[m.Reference] == "") {
			p.home[m.Reference] = run.DeviceKey
		}
	}
	for reference := range b.Bench.References {
		p.left = append(p.left, reference)
	}
	return p, nil
}

// take gives a device the next reference that no other has begun.
func (p *benchProgress) take(device string) (reference int, found bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.left, func(r int) bool { return p.home[r] == "" || p.home[r] == device })
	if i < 0 {
		return 0, false
	}
	reference = p.left[i]
	p.left = slices.Delete(p.left, i, i+1)
	return reference, true
}

// found returns what there is of a run, and why its reference is no task, if it
// is none.
func (p *benchProgress) found(m kernelwright.Member) (run kernelwright.Run, begun bool, invalid *kernelwright.InvalidTaskError) {
	p.mu.Lock()
	defer p.mu.Unlock()
	run, begun = p.runs[m]
	return run, begun, p.invalid[m.Reference]
}

// made notes what became of a run.
func (p *benchProgress) made(m kernelwright.Member, run kernelwright.Run, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if run.ID != 0 {
		p.runs[m] = run
	}
	delete(p.failed, m)
	if err != nil {
		p.failed[m] = err
	}
	if why := invalidity(run); why != nil {
		p.invalid[m.Reference] = why
	}
}

// leave gives what a device has to the others, and what it has failed at last.
func (p *benchProgress) leave(device string, failed []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = append(p.left, failed...)
	for r, of := range p.home {
		if of == device {
			delete(p.home, r)
		}
	}
}

// failures is the errors of runs that failed, in the order of the bench.
func (p *benchProgress) failures() error {
	members := slices.SortedFunc(maps.Keys(p.failed), func(a, b kernelwright.Member) int {
		return cmp.Or(a.Reference-b.Reference, a.Configuration-b.Configuration, cmp.Compare(a.Seed, b.Seed))
	})
	var all []error
	for _, m := range members {
		all = append(all, p.failed[m])
	}
	return errors.Join(all...)
}

// key is that of a device.
func (b *Bench) key(device int) string { return b.Devices[device][0].Evaluator.Device().Key }

// work has a device make runs until none is left for it. The error ends the whole
// bench.
func (b *Bench) work(ctx context.Context, device int, p *benchProgress) error {
	var inARow []int // references of runs that failed
	for {
		reference, found := p.take(b.key(device))
		if !found {
			return nil
		}
		for configuration := range b.Bench.Configurations {
			for _, seed := range b.Bench.Seeds {
				m := kernelwright.Member{Reference: reference, Configuration: configuration, Seed: seed}
				run, begun, invalid := p.found(m)
				if begun && run.Status != kernelwright.RunRunning && run.Status != kernelwright.RunFailed {
					continue
				}
				run, err := b.one(ctx, device, m, run, invalid)
				if errors.Is(err, ErrStopped) || err != nil && ctx.Err() != nil {
					return ErrStopped
				}
				if errors.Is(store.Trouble(err), store.ErrDamaged) {
					return err
				}
				if bad := b.Usable(); bad != nil {
					return bad
				}
				if err == nil {
					p.made(m, run, nil)
					inARow = nil
					continue
				}
				p.made(m, run, fmt.Errorf("%s: %w", b.Bench.References[reference].Name, err))
				if inARow = append(inARow, reference); len(inARow) == maxFailures {
					p.leave(b.key(device), slices.Compact(inARow))
					return nil
				}
			}
		}
	}
}

// invalidity is why the reference of a run is no task, nil where it is one.
func invalidity(run kernelwright.Run) *kernelwright.InvalidTaskError {
	if run.Status != kernelwright.RunInvalid {
		return nil
	}
	return &kernelwright.InvalidTaskError{Reason: run.Reason, Hint: run.Hint, Traceback: run.Detail}
}

// one makes a run of the bench, or goes on with it where it was begun. What is
// no task under one configuration is none under the others, and may have taken
// minutes to say so.
func (b *Bench) one(ctx context.Context, device int, m kernelwright.Member, run kernelwright.Run, invalid *kernelwright.InvalidTaskError) (kernelwright.Run, error) {
	if ctx.Err() != nil {
		return run, ErrStopped
	}
	w, reference := b.Devices[device][m.Configuration], b.Bench.References[m.Reference]
	q := Request{
		Path: reference.Path, Name: path.Base(reference.Name), Source: b.Sources[m.Reference], Seed: m.Seed,
		Strategy: b.Bench.Configurations[m.Configuration].Strategy, Settings: b.Settings[m.Configuration],
	}
	if why := b.Invalid[m.Reference]; why != nil {
		invalid = why
	}
	resumed := run.Status == kernelwright.RunRunning
	if b.Begun != nil {
		b.Begun(device, m, resumed)
	}
	var done Done
	var err error
	if resumed {
		done, err = w.Run(ctx, run, nil)
		// What one device has begun another cannot go on with. It has failed, which
		// its record says.
		if !errors.As(err, new(*elsewhereError)) {
			return done.Data.Run, err
		}
	}
	if invalid != nil {
		done, err = w.Refuse(ctx, q, invalid, store.WithReference(q.Source), store.WithMember(b.Bench.ID, m))
	} else if run, err = w.Begin(ctx, q, store.WithMember(b.Bench.ID, m)); err == nil {
		done, err = w.Run(ctx, run, nil)
	}
	return done.Data.Run, err
}
