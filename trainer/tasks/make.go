package tasks

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/store"
)

// Hardware is a device, as far as tasks are measured on it. Its candidates need no
// code of their own: eager is evaluated as one.
type Hardware interface {
	Device() kernelwright.Device
	Inspect(ctx context.Context, name, source string) (kernelwright.Task, error)
	Evaluate(ctx context.Context, task kernelwright.Task, cand kernelwright.Candidate, level kernelwright.Level) (kernelwright.Verdict, error)
}

// Record is where sets are kept.
type Record interface {
	TaskSets(ctx context.Context) ([]store.TaskSet, error)
	TaskDraws(ctx context.Context, set int64, kept bool) ([]store.TaskDraw, error)
	SaveTaskDraw(ctx context.Context, set int64, d store.TaskDraw) error
	SaveTaskDraws(ctx context.Context, set int64, all []store.TaskDraw) error
	FinishTaskSet(ctx context.Context, id int64, done bool) error
}

// Progress is how far a set is.
type Progress struct {
	Drawn  int64
	Kept   map[store.Split]int
	Wanted map[store.Split]int
	Task   string // the one that was kept last
}

// Maker draws tasks for a set until it has all that it is to have. Every
// decision is recorded before the next one: it goes on where it was stopped.
type Maker struct {
	Record      Record
	Hardware    []Hardware
	DataDir     string
	Interpreter string
	Catalogue   Catalogue
	Protected   []Protected
	Writer      *Writer // writes tasks in the place of the combinatorial composer; nil: it does
	Workers     int     // processes that compose; 0: one
	Log         *slog.Logger
	Progress    func(Progress)

	after after // see service
}

// barren is after how many draws in a row that keep nothing a set is given up.
const barren = 400

// BarrenError says that nothing more comes out of drawing.
type BarrenError struct {
	Draws  int
	Reason string // the last one
}

func (e *BarrenError) Error() string {
	return fmt.Sprintf("%d draws in a row kept no task; the last one: %s", e.Draws, e.Reason)
}

// draft is a task on its way.
type draft struct {
	index  int64
	plan   plan
	source string
	task   Task
	asked  bool   // the hardware was
	reason string // why it is left out
	why    string // in whose words
	err    error  // of the machinery
}

// composed is a task as the composer tells it.
type composed struct {
	Source     string   `json:"source"`
	Operators  []string `json:"operators"`
	Kinds      []string `json:"kinds"`
	Primitives []string `json:"primitives"`
	DType      string   `json:"dtype"`
	EstimateMS float64  `json:"estimate_ms"`
	Reason     string   `json:"reason"`
}

// Make draws until the set is whole.
func (m *Maker) Make(ctx context.Context, set store.TaskSet, s Settings) error {
	state, err := m.resume(ctx, set, s)
	if err != nil {
		return err
	}
	defer state.like.Close()
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()

	indexes := make(chan int64)
	all.Go(func() {
		defer close(indexes)
		for i := state.next; ; i++ {
			select {
			case indexes <- i:
			case <-ctx.Done():
				return
			}
		}
	})
	composers := make([]*service, max(1, m.Workers))
	for i := range composers {
		composers[i] = &service{interpreter: m.Interpreter, folder: state.folder, prepare: m.use, after: m.after}
		defer composers[i].Close()
	}
	drafts := inOrder(ctx, &all, indexes, len(composers), func(worker int, i int64) draft {
		return m.compose(ctx, composers[worker], s, state, i)
	})
	measured := inOrder(ctx, &all, drafts, len(m.Hardware), func(worker int, d draft) draft {
		return m.measure(ctx, m.Hardware[worker], s, state, d)
	})
	for !state.done() {
		d, more := <-measured
		if !more {
			return context.Cause(ctx)
		}
		if d.err != nil {
			return d.err
		}
		if err := m.decide(ctx, set, s, state, d); err != nil {
			return err
		}
	}
	return m.Record.FinishTaskSet(ctx, set.ID, true)
}

// use has a fresh process know the catalogue.
func (m *Maker) use(ctx context.Context, s *service) error {
	var none struct{}
	return s.exchange(ctx, map[string]any{"op": "use", "operators": m.Catalogue.raw, "modules": m.Catalogue.modules}, &none, nil)
}

// compose draws the task of an index.
func (m *Maker) compose(ctx context.Context, s *service, settings Settings, state *state, index int64) draft {
	d := draft{index: index, plan: settings.plan(index)}
	if state.full(d.plan.split) {
		d.reason = reasonFull
		return d
	}
	without, one := settings.Held, []string{}
	if d.plan.split == store.KindsSplit {
		without, one = []string{}, settings.Held
	}
	var answer composed
	d.err = s.ask(ctx, map[string]any{
		"op": "compose", "seed": settings.Seed, "index": index, "operators": d.plan.operators, "low_ms": settings.LowMS, "high_ms": settings.HighMS,
		"machine": settings.Machine,
		"without": without, "one_of": one, "only": append([]string{}, settings.Kinds...), "ranks": append([]int{}, settings.Ranks...), "dtypes": settings.DTypes, "module": d.plan.module,
	}, &answer, nil)
	d.task = Task{Origin: originComposed, Operators: answer.Operators, Kinds: answer.Kinds, Primitives: answer.Primitives}
	if d.plan.module {
		d.task.Origin = originTransformers
	}
	d.source = answer.Source
	if answer.Reason != "" {
		d.reason = "not composed: " + answer.Reason
	}
	switch {
	case errors.Is(d.err, errServiceSilent):
		d.err, d.reason = nil, "not composed: takes too long"
	case errors.Is(d.err, errServiceDied):
		d.err, d.reason = nil, "not composed: ended the process"
	}
	if m.Writer != nil && !d.plan.module && d.err == nil && d.reason == "" {
		m.Writer.write(ctx, settings, &d, answer.EstimateMS, answer.DType)
	}
	return d
}

// candidate is eager as a candidate: what is measured beside it are the baselines.
func candidate(source string) kernelwright.Candidate {
	return kernelwright.Candidate{Source: source + "\n\nclass ModelNew(Model):\n    pass\n"}
}

// measure finds out what the hardware says, unless the task is left out before.
func (m *Maker) measure(ctx context.Context, hw Hardware, s Settings, state *state, d draft) draft {
	if d.err != nil || d.reason != "" {
		return d
	}
	if state.full(d.plan.split) {
		d.reason = reasonFull
		return d
	}
	if d.reason, d.err = state.like.near(ctx, &d.task, d.source, d.plan.split, s.Similarity); d.err != nil || d.reason != "" {
		return d
	}
	d.asked = true
	t, err := hw.Inspect(ctx, fmt.Sprintf("task%d", d.index), d.source)
	if d.left(ctx, err) {
		return d
	}
	if d.reason = degenerate(t); d.reason != "" {
		return d
	}
	if d.task.Origin == originWritten {
		d.task.Operators = d.task.Kinds
	}
	if d.task.Origin == originWritten || d.task.Origin == originTransformers {
		if d.reason = outsideSplit(d.plan.split, d.task.Kinds, t.Operators, s.Held); d.reason != "" {
			return d
		}
	}
	// An inspection measures with warm caches and, beside others, with a share of the threads:
	// what is slow there by that is slow when it is timed, and need not be compiled for that.
	sharing := max(1, min(len(m.Hardware), s.Machine.Threads))
	if d.reason = outside(t.EagerMS, s.LowMS/3, s.HighMS*1.5*float64(sharing)); d.reason != "" {
		return d
	}
	d.task.inspected(t)
	if d.plan.split == store.TaughtSplit {
		return d
	}
	v, err := hw.Evaluate(ctx, t, candidate(d.source), kernelwright.Quick)
	if d.left(ctx, err) {
		return d
	}
	if !v.Status.OK() {
		d.reason, d.why = "eager as a candidate is "+string(v.Status), v.Reason
		return d
	}
	d.task.measured(v)
	if d.task.CompileMS == 0 {
		d.reason = "does not run under torch.compile"
		return d
	}
	d.reason = outside(d.task.EagerMS, s.LowMS, s.HighMS)
	return d
}

// left takes over an error: what says that the reference is no task leaves it out,
// all else is the machinery's.
func (d *draft) left(ctx context.Context, err error) bool {
	var invalid *kernelwright.InvalidTaskError
	switch {
	case err == nil:
		return false
	case ctx.Err() == nil && errors.As(err, &invalid):
		d.reason, d.why = invalidReason(invalid.Reason), invalid.Reason
	default:
		d.err = err
	}
	return true
}

// decide records what becomes of a draft. What was decided before it may have
// filled its split, or be like it.
func (m *Maker) decide(ctx context.Context, set store.TaskSet, s Settings, state *state, d draft) error {
	d.task.Index, d.task.Split = d.index, d.plan.split
	if state.full(d.plan.split) {
		d.reason = reasonFull
	} else if d.reason == "" || d.asked { // on several devices it was measured before others were decided
		like, err := state.like.near(ctx, &d.task, d.source, d.plan.split, s.Similarity)
		if err != nil {
			return err
		}
		d.reason = cmp.Or(like, d.reason)
	}
	if d.reason == "" && d.plan.split == store.TrainSplit && !d.task.HasRoom() && !state.mayLackRoom(s) {
		d.reason = "has no room, as so many training tasks that were kept"
	}
	if d.reason == "" && d.task.Origin == originTransformers && !state.mayBorrow(s) {
		d.reason = "would be one module of transformers too many"
	}
	if err := m.save(ctx, set, &d); err != nil {
		return err
	}
	if d.reason != "" {
		m.Log.Debug("a task is left out", "index", d.index, "reason", d.reason, "why", d.why)
		if state.missed.Add(1); state.missed.Load() >= barren && d.reason != reasonFull {
			return &BarrenError{int(state.missed.Load()), d.reason}
		}
		m.tell(s, state, d, "")
		return nil
	}
	state.missed.Store(0)
	if err := state.keep(ctx, d); err != nil {
		return err
	}
	if err := WriteTask(Folder(m.DataDir, set.Name), d.task, d.source); err != nil {
		return err
	}
	m.tell(s, state, d, d.task.File)
	return nil
}

func (m *Maker) save(ctx context.Context, set store.TaskSet, d *draft) error {
	row := store.TaskDraw{Index: d.index, Split: d.plan.split, Reason: d.reason}
	if d.reason == "" {
		d.task.File = fileName(d.task)
		detail, err := json.Marshal(d.task)
		if err != nil {
			return err
		}
		row.Fingerprint, row.Source, row.Detail = d.task.Fingerprint, d.source, detail
	}
	err := m.Record.SaveTaskDraw(ctx, set.ID, row)
	var overlap *store.OverlapError
	if errors.As(err, &overlap) { // in another set, by the same text
		d.reason = "is held out, or trained on, in another set"
		return m.Record.SaveTaskDraw(ctx, set.ID, store.TaskDraw{Index: d.index, Split: d.plan.split, Reason: d.reason})
	}
	return err
}

func (m *Maker) tell(s Settings, state *state, d draft, file string) {
	if m.Progress != nil {
		m.Progress(Progress{Drawn: d.index + 1, Kept: state.counts(), Wanted: s.Wanted, Task: file})
	}
}

// state is what was decided so far. Counts are read from other goroutines.
type state struct {
	wanted   map[store.Split]int
	kept     map[store.Split]*atomic.Int64
	roomless atomic.Int64
	borrowed atomic.Int64 // modules of transformers
	missed   atomic.Int64 // draws since the last task that was kept
	like     *comparer
	folder   string // of the composer's programs
	next     int64  // the index that was not decided on
}

// resume reads what was decided of a set.
func (m *Maker) resume(ctx context.Context, set store.TaskSet, s Settings) (*state, error) {
	folder, err := unpack(m.DataDir)
	if err != nil {
		return nil, err
	}
	st := &state{wanted: s.Wanted, kept: map[store.Split]*atomic.Int64{}, folder: folder}
	for _, split := range store.Splits {
		st.kept[split] = &atomic.Int64{}
	}
	every, err := m.Record.TaskDraws(ctx, set.ID, false)
	if err != nil {
		return nil, err
	}
	for _, d := range every {
		st.next = max(st.next, d.Index+1)
	}
	kept, err := m.Record.TaskDraws(ctx, set.ID, true)
	if err != nil {
		return nil, err
	}
	tasks, err := Decode(kept)
	if err != nil {
		return nil, err
	}
	for _, t := range tasks {
		st.count(t)
	}
	if st.like, err = newComparer(ctx, m.Record, m.Interpreter, folder, m.Protected, set); err != nil {
		return nil, err
	}
	st.like.after = m.after
	return st, nil
}

func (st *state) count(t Task) {
	st.kept[t.Split].Add(1)
	if t.Split == store.TrainSplit && !t.HasRoom() {
		st.roomless.Add(1)
	}
	if t.Origin == originTransformers {
		st.borrowed.Add(1)
	}
}

func (st *state) keep(ctx context.Context, d draft) error {
	st.count(d.task)
	return st.like.add(ctx, ownTag(d.plan.split), d.task.File, d.source)
}

func (st *state) full(split store.Split) bool {
	return st.kept[split].Load() >= int64(st.wanted[split])
}

func (st *state) done() bool {
	for _, split := range store.Splits {
		if !st.full(split) {
			return false
		}
	}
	return true
}

func (st *state) counts() map[store.Split]int {
	counts := map[store.Split]int{}
	for split, n := range st.kept {
		counts[split] = int(n.Load())
	}
	return counts
}

// mayLackRoom reports whether one more training task without room may be kept.
func (st *state) mayLackRoom(s Settings) bool {
	return float64(st.roomless.Load()+1) <= (1-s.Room)*float64(s.Wanted[store.TrainSplit])
}

// mayBorrow reports whether one more module of transformers may be kept.
func (st *state) mayBorrow(s Settings) bool {
	all := 0
	for _, n := range s.Wanted {
		all += n
	}
	return float64(st.borrowed.Load()+1) <= s.Modules*float64(all)
}

// inOrder has workers do what comes in, and gives the results in its order. It
// ends with the input or the context; all waits for its goroutines.
func inOrder[A, B any](ctx context.Context, all *sync.WaitGroup, in <-chan A, width int, do func(worker int, a A) B) <-chan B {
	type job struct {
		given  A
		answer chan B
	}
	jobs, order, out := make(chan job), make(chan chan B, width), make(chan B)
	all.Go(func() {
		defer close(jobs)
		defer close(order)
		for a := range in {
			j := job{a, make(chan B, 1)}
			select {
			case order <- j.answer:
			case <-ctx.Done():
				return
			}
			select {
			case jobs <- j:
			case <-ctx.Done():
				return
			}
		}
	})
	for worker := range width {
		all.Go(func() {
			for j := range jobs {
				j.answer <- do(worker, j.given)
			}
		})
	}
	all.Go(func() {
		defer close(out)
		for answer := range order {
			select {
			case b := <-answer:
				select {
				case out <- b:
				case <-ctx.Done():
					return
				}
			case <-ctx.Done():
				return
			}
		}
	})
	return out
}
