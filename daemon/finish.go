package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

// Done is a run that has ended, with the files that tell of it.
type Done struct {
	Data    report.Data
	Written Written
	// WriteErr is why some files could not be written. The record is whole.
	WriteErr error
}

// Summary is the row that the tables show.
func (d Done) Summary() report.Summary {
	d.Data.Older = d.Written.Older
	s := report.Summarise(d.Data)
	if d.Written.Kept != "" {
		s.Notes = append(s.Notes, d.Written.Kept)
	}
	s.Report, s.Kernel = d.Written.Report(), d.Written.Kernel
	return s
}

// stopped records why a run that somebody watches goes no further, and gathers what
// it has so far.
func (r *Runner) stopped(ctx context.Context, run kernelwright.Run, d decision) (Done, error) {
	run.Reason, run.Hint = d.reason, d.hint
	done := Done{Data: report.Data{Run: run}}
	if err := r.Store.UpdateRun(ctx, run); err != nil {
		return done, errors.Join(d.err, err)
	}
	data, err := r.load(ctx, done.Data)
	if err != nil {
		return done, errors.Join(d.err, err)
	}
	done.Data = data
	return done, d.err
}

// end records that a run has ended, after its results were written: those of
// the run itself, or of an earlier one.
func (r *Runner) end(ctx context.Context, run kernelwright.Run, results int64, job *store.Job, write func(context.Context, kernelwright.Run, report.Data) (Written, error)) (Done, error) {
	done := Done{Data: report.Data{Run: run}}
	ended := run
	ended.FinishedMS = r.clock().Now().UnixMilli()
	data, err := r.load(ctx, report.Data{Run: ended})
	if err != nil {
		return done, err
	}
	ended = data.Run
	if results != run.ID {
		if data, err = Load(ctx, r.Store, results); err != nil {
			return done, err
		}
		data.Run.TaskName = data.Task.Name
	}
	// First the files: a crash in between repeats the end, and loses none.
	done.Written, done.WriteErr = write(ctx, ended, data)
	if job != nil {
		err = r.Store.Finish(ctx, *job, ended)
	} else {
		err = r.Store.UpdateRun(ctx, ended)
	}
	if err == nil {
		done.Data = data
	}
	return done, err
}

// load completes the data of a run that is about to be recorded as ended.
func (r *Runner) load(ctx context.Context, d report.Data) (report.Data, error) {
	run := d.Run
	d, err := Load(ctx, r.Store, run.ID)
	if err != nil {
		return d, err
	}
	run.Best = d.Run.Best
	d.Run = run
	if d.Task.Source == "" {
		if source, err := r.reference(ctx, run); err == nil {
			d.Task.Source = source
		}
	}
	return d, nil
}

// Load gathers what a report shows of a run. A run that never came to have a
// task or a device has none in it, but for its reference's text where that was
// kept: an invalid one's is what its reason is about.
func Load(ctx context.Context, s *store.Store, id int64) (report.Data, error) {
	d, err := LoadQuiet(ctx, s, id)
	if err != nil {
		return d, err
	}
	if d.Talk, err = s.Calls(ctx, id); err != nil {
		return d, err
	}
	d.Attempts, err = s.Unanswered(ctx, id)
	return d, err
}

// LoadQuiet is Load without what was said to models.
func LoadQuiet(ctx context.Context, s *store.Store, id int64) (report.Data, error) {
	var d report.Data
	var err error
	if d.Run, err = s.Run(ctx, id); err != nil {
		return d, err
	}
	if d.Rounds, err = s.Rounds(ctx, id); err != nil {
		return d, err
	}
	if d.Spend, err = s.Spend(ctx, id); err != nil {
		return d, err
	}
	if d.Task, err = s.RunTask(ctx, id); errors.Is(err, store.ErrNotFound) {
		d.Task.Source, _, err = s.Reference(ctx, id)
	}
	if err != nil {
		return d, err
	}
	if d.Device, err = s.RunDevice(ctx, id); err != nil && !errors.Is(err, store.ErrNotFound) {
		return d, err
	}
	return d, nil
}

// write writes results for the file that a run is about and for every other
// one with the same content. A file that has changed since is left to the run
// of its new content.
func (r *Runner) write(ctx context.Context, run kernelwright.Run, d report.Data) (Written, error) {
	files, err := r.Store.Files(ctx)
	if err != nil {
		return Written{}, err
	}
	paths := []string{run.Path}
	kept := ""
	for _, f := range files {
		switch {
		case f.Path == run.Path:
			if r.Share && f.RunID != 0 && f.RunID != run.ID {
				paths[0], kept = "", inTheHistory(run, f, d.Task.Source)
			}
		case f.RunID == run.ID:
			paths = append(paths, f.Path)
		}
	}
	var first Written
	var errs []error
	for i, path := range standing(paths) {
		written, err := r.deliver(ctx, path, d)
		errs = append(errs, err)
		if i == 0 {
			first = written
		}
	}
	if len(errs) == 0 {
		first.Kept = kept
	}
	return first, errors.Join(errs...)
}

// inTheHistory says what becomes of the results of a run whose file has another
// run by now.
func inTheHistory(run kernelwright.Run, now store.File, source string) string {
	what := "the file was edited meanwhile"
	if now.Hash == kernelwright.HashText(source) {
		what = "the settings were changed meanwhile"
	}
	return fmt.Sprintf("%s and run %d is for it now: these results are in the history alone; `kernelwright history show %d --out DIR` writes them", what, now.RunID, run.ID)
}

// deliver writes the results of a run for one file, or notes that they are
// owed: they are written when the file is next found, by a later start or in a
// folder that came back.
func (r *Runner) deliver(ctx context.Context, path string, d report.Data) (Written, error) {
	if r.RecordOnly {
		return Written{}, nil
	}
	written, err := r.Results.Write(path, d)
	note := r.Store.Settle(ctx, path)
	if err != nil && r.Share { // nobody else comes back to a file
		note = r.Store.Owe(ctx, path, d.Run.ID)
	}
	return written, errors.Join(err, note)
}

// standing returns the references that are still there. Where one was renamed
// its results go with it; where all are gone they go to where the first was.
func standing(paths []string) []string {
	there := slices.DeleteFunc(slices.Clone(paths), func(path string) bool {
		if path == "" {
			return true
		}
		_, err := os.Stat(path)
		return errors.Is(err, fs.ErrNotExist)
	})
	if len(there) == 0 {
		return slices.DeleteFunc(paths[:1], func(path string) bool { return path == "" })
	}
	return there
}
