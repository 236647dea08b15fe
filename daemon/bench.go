package daemon

import (
	"context"
	"errors"
	"fmt"
	"path"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/store"
)

// maxFailures is how many runs in a row may fail before a bench stops: by then
// it is the machine.
const maxFailures = 3

// Bench works off a recorded bench, one run after the other on one device. What
// it has done is in the record: after an error, or a kill, Run goes on from
// there.
type Bench struct {
	Store *store.Store
	Bench kernelwright.Bench
	// Workers has one for each of the bench's configurations, on one device, and
	// Settings what they run by. They write no results (RecordOnly).
	Workers  []*Worker
	Settings []forge.Settings
	// Sources has the text of each reference, and Invalid why one cannot be read
	// at all.
	Sources []string
	Invalid map[int]*kernelwright.InvalidTaskError
	// Usable says why nothing more should be recorded; nil where all is well.
	Usable func() error
	// Begun is told of each run that is worked on; may be nil.
	Begun func(m kernelwright.Member, resumed bool)
}

// Run makes every run that has not ended, references in their order and the
// configurations of each one after the other: what is compared is measured
// close together. Cancelling ctx lets the round in progress finish, as for
// Worker.Run, and gives ErrStopped. A run that fails is made anew by the next
// call and keeps no other from being made; the error is theirs, joined.
func (b *Bench) Run(ctx context.Context) error {
	members, err := b.Store.Members(ctx, b.Bench.ID)
	if err != nil {
		return err
	}
	runs := map[kernelwright.Member]kernelwright.Run{} // by member without its run
	invalid := map[int]*kernelwright.InvalidTaskError{}
	for _, m := range members {
		run, err := b.Store.Run(ctx, m.RunID)
		if err != nil {
			return err
		}
		m.RunID = 0
		runs[m] = run
		if why := invalidity(run); why != nil {
			invalid[m.Reference] = why
		}
	}
	var failed []error
	inARow := 0
	for reference := range b.Bench.References {
		for configuration := range b.Bench.Configurations {
			for _, seed := range b.Bench.Seeds {
				m := kernelwright.Member{Reference: reference, Configuration: configuration, Seed: seed}
				run, begun := runs[m]
				if begun && run.Status != kernelwright.RunRunning && run.Status != kernelwright.RunFailed {
					continue
				}
				run, err := b.one(ctx, m, run, invalid[reference])
				if errors.Is(err, ErrStopped) || err != nil && ctx.Err() != nil {
					return ErrStopped
				}
				if errors.Is(store.Trouble(err), store.ErrDamaged) {
					return err
				}
				if bad := b.Usable(); bad != nil {
					return bad
				}
				if why := invalidity(run); why != nil {
					invalid[reference] = why
				}
				if err == nil {
					inARow = 0
					continue
				}
				failed = append(failed, fmt.Errorf("%s: %w", b.Bench.References[reference].Name, err))
				if inARow++; inARow == maxFailures {
					return errors.Join(failed...)
				}
			}
		}
	}
	if len(failed) > 0 {
		return errors.Join(failed...)
	}
	if b.Bench.FinishedMS != 0 {
		return nil
	}
	return b.Store.FinishBench(context.WithoutCancel(ctx), b.Bench.ID)
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
func (b *Bench) one(ctx context.Context, m kernelwright.Member, run kernelwright.Run, invalid *kernelwright.InvalidTaskError) (kernelwright.Run, error) {
	if ctx.Err() != nil {
		return run, ErrStopped
	}
	w, reference := b.Workers[m.Configuration], b.Bench.References[m.Reference]
	q := Request{
		Path: reference.Path, Name: path.Base(reference.Name), Source: b.Sources[m.Reference], Seed: m.Seed,
		Strategy: b.Bench.Configurations[m.Configuration].Strategy, Settings: b.Settings[m.Configuration],
	}
	if why := b.Invalid[m.Reference]; why != nil {
		invalid = why
	}
	resumed := run.Status == kernelwright.RunRunning
	if b.Begun != nil {
		b.Begun(m, resumed)
	}
	var done Done
	var err error
	switch {
	case resumed:
		done, err = w.Run(ctx, run, nil)
	case invalid != nil:
		done, err = w.Refuse(ctx, q, invalid, store.WithReference(q.Source), store.WithMember(b.Bench.ID, m))
	default:
		if run, err = w.Begin(ctx, q, store.WithMember(b.Bench.ID, m)); err == nil {
			done, err = w.Run(ctx, run, nil)
		}
	}
	return done.Data.Run, err
}
