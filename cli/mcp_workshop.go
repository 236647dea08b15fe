package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/coder"
	"github.com/kernelwright/kernelwright/daemon"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/judge"
	"github.com/kernelwright/kernelwright/mcp"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/task"
)

// workshop is the mcp.Workshop over a data folder. The hardware is opened by the
// first call that needs it: a client does not wait minutes for a server to begin.
type workshop struct {
	room   *room
	root   *os.Root // nil: no file may be read
	folder string   // root's absolute path

	// hardware opens what measures.
	hardware func(ctx context.Context, o hwfeedback.Options, l hwfeedback.Leaser) (instrument, error)

	turn   chan struct{} // held by the call that measures; owns what follows
	hw     instrument    // nil until it is opened
	runner *daemon.Runner
	guests []*daemon.Guest

	mu   sync.Mutex
	tell func(stage, note string) // of the call whose turn it is
}

var _ mcp.Workshop = (*workshop)(nil)

// instrument is *hwfeedback.Evaluator.
type instrument interface {
	hardware
	MeasureBaselines(ctx context.Context, t kernelwright.Task) (map[string]kernelwright.Measurement, error)
	Close() error
}

func newWorkshop(r *room, root *os.Root, folder string) (*workshop, error) {
	w := &workshop{room: r, root: root, turn: make(chan struct{}, 1)}
	w.hardware = func(ctx context.Context, o hwfeedback.Options, l hwfeedback.Leaser) (instrument, error) {
		return hwfeedback.Open(ctx, o, r.store, l)
	}
	var err error
	if root != nil {
		w.folder, err = filepath.Abs(folder)
	}
	return w, err
}

// close ends what was opened. No call may be under way. Runs stay open.
func (w *workshop) close() error {
	var err error
	for _, g := range w.guests {
		err = errors.Join(err, g.Close())
	}
	if w.hw != nil {
		err = errors.Join(err, w.hw.Close())
	}
	return err
}

// toldError is an error with what to do about it, as people are told.
type toldError struct {
	text, hint string
	err        error
}

func (e *toldError) Error() string { return e.text }

func (e *toldError) Unwrap() error { return e.err }

// Advice is what to do about it.
func (e *toldError) Advice() string { return e.hint }

func told(err *error) {
	if *err == nil || errors.Is(*err, store.ErrNotFound) {
		return
	}
	_, text, hint := explain(*err)
	*err = &toldError{text, hint, *err}
}

// begin waits for the call's turn, and opens the hardware where that was not done.
func (w *workshop) begin(ctx context.Context, j mcp.Job) (end func(), err error) {
	select {
	case w.turn <- struct{}{}:
	default:
		j.Progress("waiting", "another call measures")
		select {
		case w.turn <- struct{}{}:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	w.say(j.Progress)
	end = func() { w.say(nil); <-w.turn }
	if err := w.open(ctx); err != nil {
		end()
		return nil, err
	}
	return end, nil
}

func (w *workshop) say(tell func(stage, note string)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tell = tell
}

func (w *workshop) progress(stage, note string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.tell != nil {
		w.tell(stage, note)
	}
}

func (w *workshop) open(ctx context.Context) error {
	if w.hw != nil {
		return nil
	}
	w.progress("start", "the process that measures")
	leases := w.room.leases()
	leases.Waiting = func(device, holder string) { w.progress("waiting", device+" is held by "+holder) }
	hw, err := w.hardware(ctx, w.room.options(w.progress), leases)
	if err != nil {
		return err
	}
	w.hw, w.runner = hw, w.room.runner(hw, agents{coder: coder.Builtin{}, judge: judge.Rules{}})
	w.runner.Observe = func(e forge.Event) {
		if e.Kind == forge.Certifying {
			w.progress("certify", fmt.Sprintf("round %d", e.Index))
		}
	}
	return nil
}

// request is a job as a run records it.
func request(j mcp.Job) daemon.Request {
	return daemon.Request{Path: j.Path, Name: j.Name, Source: j.Source, Guest: j.Client, Settings: forge.OutsideSettings()}
}

// Read reads a reference below the root folder.
func (w *workshop) Read(path string) (f task.File, err error) {
	defer told(&err)
	if w.root == nil {
		return f, usage("no file may be read: the server was started without --root", "give the reference's source as reference, or the name of a recorded task as task")
	}
	if f, err = task.ReadIn(w.root, path); err != nil {
		return f, err
	}
	f.Path = filepath.Join(w.folder, path)
	return f, nil
}

// Inspect makes a task of a job's reference.
func (w *workshop) Inspect(ctx context.Context, j mcp.Job) (t kernelwright.Task, d kernelwright.Device, err error) {
	defer told(&err)
	end, err := w.begin(ctx, j)
	if err != nil {
		return t, d, err
	}
	defer end()
	t, err = w.runner.Evaluator.Inspect(ctx, j.Name, j.Source)
	return t, w.hw.Device(), err
}

// MeasureBaselines measures what candidates are held against.
func (w *workshop) MeasureBaselines(ctx context.Context, j mcp.Job) (m map[string]kernelwright.Measurement, err error) {
	defer told(&err)
	end, err := w.begin(ctx, j)
	if err != nil {
		return nil, err
	}
	defer end()
	t, err := w.runner.Evaluator.Inspect(ctx, j.Name, j.Source)
	if err != nil {
		return nil, err
	}
	limit := w.room.config.Evaluation.Timeout.Std()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	m, err = w.hw.MeasureBaselines(ctx, t)
	return m, overdue(ctx, "the baselines", limit, err)
}

// AddBaseline certifies a program and registers it.
func (w *workshop) AddBaseline(ctx context.Context, j mcp.Job, name, source string) (v kernelwright.Verdict, err error) {
	defer told(&err)
	if err := checkBaselineName(name); err != nil {
		return v, err
	}
	end, err := w.begin(ctx, j)
	if err != nil {
		return v, err
	}
	defer end()
	t, err := w.runner.Evaluator.Inspect(ctx, j.Name, j.Source)
	if err != nil {
		return v, err
	}
	there, err := w.room.store.Baselines(ctx, t.Fingerprint, w.hw.Device().Kind)
	if err != nil {
		return v, err
	}
	if slices.ContainsFunc(there, func(b store.Baseline) bool { return b.Name == name }) {
		return v, &mcp.TakenError{Name: name}
	}
	if v, err = w.runner.Evaluator.Evaluate(ctx, t, kernelwright.Candidate{Source: source, Origin: j.Client}, kernelwright.Certify); err != nil || v.Status != kernelwright.Certified {
		return v, err
	}
	return v, w.room.store.SaveBaseline(ctx, newBaseline(name, t, j.Client, source, v))
}

// guest returns the client's open run on the task, and begins one where it is told
// to; otherwise store.ErrNotFound says that there is none.
func (w *workshop) guest(ctx context.Context, j mcp.Job, begin bool) (*daemon.Guest, error) {
	t, err := w.runner.Evaluator.Inspect(ctx, j.Name, j.Source)
	if err != nil {
		return nil, err
	}
	for i, g := range w.guests {
		r := g.Run()
		if r.Coder != j.Client || r.Task != t.Fingerprint || g.Reference() != j.Source || r.Path != "" && j.Path != "" && r.Path != j.Path {
			continue
		}
		if r.Path != "" || j.Path == "" {
			return g, nil
		}
		// It is given its path when it is taken anew.
		w.guests = slices.Delete(w.guests, i, i+1)
		if err := g.Close(); err != nil {
			return nil, err
		}
		break
	}
	var g *daemon.Guest
	if begin {
		g, _, err = w.runner.Host(ctx, request(j))
	} else {
		g, err = w.runner.Find(ctx, request(j))
	}
	if err != nil {
		return nil, err
	}
	w.guests = append(w.guests, g)
	return g, nil
}

// Round evaluates a candidate as the next round of the client's run.
func (w *workshop) Round(ctx context.Context, j mcp.Job, c kernelwright.Candidate) (r kernelwright.Round, err error) {
	defer told(&err)
	end, err := w.begin(ctx, j)
	if err != nil {
		return r, err
	}
	defer end()
	g, err := w.guest(ctx, j, true)
	if err != nil {
		return r, err
	}
	r, err = g.Round(ctx, c)
	var full *forge.FullError
	if errors.As(err, &full) {
		err = usage(full.Error(), "submit the best one: the next candidate then begins a new run")
	}
	return r, err
}

// Certify certifies a round of the client's run, or the fastest.
func (w *workshop) Certify(ctx context.Context, j mcp.Job, index int) (r *kernelwright.Round, err error) {
	defer told(&err)
	end, err := w.begin(ctx, j)
	if err != nil {
		return nil, err
	}
	defer end()
	g, err := w.guest(ctx, j, false)
	if err != nil {
		return nil, err
	}
	return g.Certify(ctx, index)
}

// Open returns the client's run as it stands.
func (w *workshop) Open(ctx context.Context, j mcp.Job) (d report.Data, err error) {
	defer told(&err)
	end, err := w.begin(ctx, j)
	if err != nil {
		return d, err
	}
	defer end()
	g, err := w.guest(ctx, j, false)
	if err != nil {
		return d, err
	}
	return g.Data(ctx)
}

// Finish ends the client's run and writes its results.
func (w *workshop) Finish(ctx context.Context, j mcp.Job) (files mcp.Results, err error) {
	defer told(&err)
	end, err := w.begin(ctx, j)
	if err != nil {
		return files, err
	}
	defer end()
	g, err := w.guest(ctx, j, false)
	if err != nil {
		return files, err
	}
	done, err := g.Finish(ctx, w.results(g.Run()), w.resultPath(g.Run()))
	if err != nil {
		return files, err
	}
	w.guests = slices.DeleteFunc(w.guests, func(o *daemon.Guest) bool { return o == g })
	f := done.Written
	files = mcp.Results{Kernel: f.Kernel, Certificate: f.Certificate, Older: f.Older, Markdown: f.Markdown, HTML: f.HTML}
	if done.WriteErr != nil {
		_, text, hint := explain(done.WriteErr)
		files.Problem = text + "; " + hint
	}
	return files, nil
}

// results says where the files of a run go: nowhere but where this server may
// write, whatever path the run has.
func (w *workshop) results(run kernelwright.Run) daemon.Results {
	r := w.runner.Results
	if r.Base = w.folder; r.Folder != "" {
		return r
	}
	if !below(w.root, w.folder, run.Path) {
		r.Folder = filepath.Join(w.room.folder, "kernels", strconv.FormatInt(run.ID, 10))
	}
	return r
}

// resultPath is the reference after which the files of a run are named.
func (w *workshop) resultPath(run kernelwright.Run) string {
	if below(w.root, w.folder, run.Path) {
		return run.Path
	}
	return filepath.Base(run.TaskName) + ".py"
}
