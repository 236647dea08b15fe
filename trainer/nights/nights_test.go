package nights

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/nights/nightstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testWait is for what comes at once unless something is broken.
const testWait = 2 * time.Minute

// pipeline is a double: it takes a step when told to, and stops between two.
type pipeline struct {
	calls chan *call // told of each call of Run
}

// call is one call of Run.
type call struct {
	ctx   context.Context
	step  chan Progress
	end   chan result
	heard chan struct{} // a step was told of
}

type result struct {
	out Outcome
	err error
}

func (p *pipeline) Run(ctx context.Context, tell func(Progress)) (Outcome, error) {
	c := &call{ctx, make(chan Progress), make(chan result), make(chan struct{}, 1)}
	p.calls <- c
	for {
		select {
		case s := <-c.step:
			tell(s)
			c.heard <- struct{}{}
		case r := <-c.end:
			return r.out, r.err
		}
	}
}

// world is nights on a record of a test's own, with a clock that the test sets.
type world struct {
	t        *testing.T
	path     string
	store    *store.Store
	clock    *nightstest.Clock
	pipeline *pipeline
	nights   *Nights
	record   Record // nil: the store
	log      *bytes.Buffer
	mu       sync.Mutex
	runs     int
	stop     context.CancelFunc
	done     chan struct{}
}

const day = "2026-11-27" // a Friday

func at(t *testing.T, text string) time.Time {
	t.Helper()
	if !strings.Contains(text, "T") {
		text = day + "T" + text
	}
	v, err := time.Parse("2006-01-02T15:04", text)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func newWorld(t *testing.T, now string) *world {
	t.Helper()
	w := &world{t: t, path: filepath.Join(t.TempDir(), store.FileName), clock: nightstest.NewClock(at(t, now)), pipeline: &pipeline{make(chan *call)}, log: &bytes.Buffer{}}
	w.open()
	t.Cleanup(func() {
		w.halt()
		w.store.Close()
		if t.Failed() {
			t.Log(w.log.String())
		}
	})
	return w
}

func (w *world) open() {
	s, err := store.Open(w.path)
	if err != nil {
		w.t.Fatal(err)
	}
	w.store = s
}

// start begins, from eleven in the evening for eight hours.
func (w *world) start(change func(*Plan)) {
	w.t.Helper()
	plan := Plan{Table: nightstest.Table(w.t), Length: 8 * time.Hour}
	if change != nil {
		change(&plan)
	}
	waiting := func(context.Context) (int, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.runs, nil
	}
	record := w.record
	if record == nil {
		record = w.store
	}
	w.nights = New(plan, record, w.pipeline, waiting, w.clock, slog.New(slog.NewTextHandler(&locked{w: w}, nil)))
	ctx, cancel := context.WithCancel(context.Background())
	w.stop, w.done = cancel, make(chan struct{})
	go func(done chan<- struct{}) {
		defer close(done)
		w.nights.Run(ctx)
	}(w.done)
}

// locked writes to the log of a world.
type locked struct{ w *world }

func (l *locked) Write(b []byte) (int, error) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	return l.w.log.Write(b)
}

func (w *world) halt() {
	if w.stop == nil {
		return
	}
	w.stop()
	w.stop = nil
	<-w.done
}

func (w *world) set(text string) { w.clock.Set(at(w.t, text)) }

// wait says how many runs of people there are.
func (w *world) wait(runs int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.runs = runs
}

// said waits until the log has a text so often.
func (w *world) said(text string, times int) {
	w.t.Helper()
	for end := time.Now().Add(testWait); ; time.Sleep(time.Millisecond) {
		w.mu.Lock()
		n := strings.Count(w.log.String(), text)
		w.mu.Unlock()
		if n >= times {
			return
		}
		if time.Now().After(end) {
			w.t.Fatalf("the log has %q %d times, want %d", text, n, times)
		}
	}
}

func (w *world) called() *call {
	w.t.Helper()
	select {
	case c := <-w.pipeline.calls:
		return c
	case <-time.After(testWait):
		w.t.Fatal("the pipeline is not called")
		return nil
	}
}

func (c *call) tell(p Progress) {
	c.step <- p
	<-c.heard
}

// stopped waits until the pipeline is asked to stop, and returns why.
func (c *call) stopped(t *testing.T) error {
	t.Helper()
	select {
	case <-c.ctx.Done():
		return context.Cause(c.ctx)
	case <-time.After(testWait):
		t.Fatal("the pipeline is not asked to stop")
		return nil
	}
}

func (w *world) last() store.Night {
	w.t.Helper()
	n, err := w.store.LastNight(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

func (w *world) count() int {
	w.t.Helper()
	all, err := w.store.Nights(w.t.Context(), store.Page{})
	if err != nil {
		w.t.Fatal(err)
	}
	return len(all)
}

// A night begins when it is due, gives way to a run as often as one comes, goes on
// after it, and ends with its pipeline. The next comes a day later.
func TestANight(t *testing.T) {
	w := newWorld(t, "12:00")
	w.start(nil)
	w.said("the next night", 1)
	if w.count() != 0 {
		t.Error("a night is recorded that has not begun")
	}
	w.set("23:00")
	c := w.called()
	w.set("23:30")
	c.tell(Progress{Pipeline: 7, Stage: "warmup", GPU: time.Minute})

	w.wait(1)
	yielded := make(chan error, 1)
	go func() { yielded <- w.nights.Yield(t.Context()) }()
	if why := c.stopped(t); !errors.Is(why, ErrYield) {
		t.Errorf("stopped for %v", why)
	}
	select {
	case <-yielded:
		t.Error("a run begins while the pipeline is at work")
	default:
	}
	c.end <- result{out: Outcome{Progress: Progress{Pipeline: 7, GPU: 2 * time.Minute}}}
	if err := <-yielded; err != nil {
		t.Error(err)
	}
	if n := w.last(); !n.Open() || n.Yields != 1 || n.Pipeline != 7 || n.WorkedMS != 30*60*1000 || n.GPUMS != 2*60*1000 {
		t.Errorf("%+v", n)
	}
	w.said("a night waits for runs", 1)
	w.set("2026-11-28T02:00")
	w.wait(0)
	w.nights.Look()
	c = w.called()
	w.set("2026-11-28T02:30")
	c.end <- result{out: Outcome{Progress: Progress{Pipeline: 7, GPU: time.Minute}, Done: true, Decision: "refused"}}
	w.said("a night ended", 1)
	n := w.last()
	if n.Open() || n.Stop != store.NightDone || n.Decision != "refused" || n.WorkedMS != 60*60*1000 || n.GPUMS != 3*60*1000 || n.EndedMS != at(t, "2026-11-28T02:30").UnixMilli() || w.count() != 1 {
		t.Errorf("%+v of %d", n, w.count())
	}
	if err := w.nights.Yield(t.Context()); err != nil {
		t.Error(err)
	}
	w.said("the next night", 2)
	w.set("2026-11-28T23:00")
	c = w.called()
	c.end <- result{out: Outcome{Progress: Progress{Pipeline: 8}, Done: true, Decision: "promoted"}}
	w.said("a night ended", 2)
	if n := w.last(); n.Pipeline != 8 || n.Decision != "promoted" || n.WorkedMS != 0 {
		t.Errorf("%+v", n)
	}
}

// What ends a night before its gate, and what it then says.
func TestWhyANightEnds(t *testing.T) {
	broken := errors.New("the sampler died")
	for name, tt := range map[string]struct {
		plan   func(*Plan)
		act    func(w *world, c *call) result
		stop   store.NightStop
		reason string
	}{
		"hours": {nil, func(w *world, c *call) result {
			w.set("2026-11-28T07:00")
			if why := c.stopped(w.t); !errors.Is(why, ErrHours) {
				w.t.Error(why)
			}
			return result{err: context.Canceled}
		}, store.NightHours, "hours are over"},
		"GPU hours": {func(p *Plan) { p.GPU = time.Hour }, func(w *world, c *call) result {
			c.tell(Progress{Pipeline: 1, GPU: 59 * time.Minute})
			if c.ctx.Err() != nil {
				w.t.Error("stopped before its hour")
			}
			c.tell(Progress{Pipeline: 1, GPU: time.Hour})
			if why := c.stopped(w.t); !errors.Is(why, ErrGPUHours) {
				w.t.Error(why)
			}
			return result{out: Outcome{Progress: Progress{Pipeline: 1, GPU: time.Hour}}}
		}, store.NightGPUHours, "GPU hours"},
		"failed":         {nil, func(*world, *call) result { return result{err: broken} }, store.NightFailed, "the sampler died"},
		"failed to stop": {nil, func(w *world, c *call) result { w.set("2026-11-28T07:00"); c.stopped(w.t); return result{err: broken} }, store.NightFailed, "the sampler died"},
		"for no reason":  {nil, func(*world, *call) result { return result{} }, store.NightFailed, "nobody had asked it to"},
		"done in the end": {nil, func(w *world, c *call) result {
			w.set("2026-11-28T07:00")
			c.stopped(w.t)
			return result{out: Outcome{Done: true}}
		}, store.NightDone, ""},
		"of other's cause": {nil, func(w *world, c *call) result {
			w.set("2026-11-28T07:00")
			return result{err: fmt.Errorf("stage: %w", c.stopped(w.t))}
		}, store.NightHours, "hours are over"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "22:59")
			w.start(tt.plan)
			w.said("the next night", 1)
			w.set("23:00")
			c := w.called()
			c.end <- tt.act(w, c)
			w.said("a night ended", 1)
			if n := w.last(); n.Stop != tt.stop || !strings.Contains(n.Reason, tt.reason) || (n.Reason == "") != (tt.reason == "") || n.Open() {
				t.Errorf("%+v", n)
			}
			w.said("the next night", 2) // no second one in the same hours
			if w.count() != 1 {
				t.Errorf("%d nights", w.count())
			}
		})
	}
}

// A process that is stopped or killed in a night leaves it open, and the next one goes
// on with it while its hours last; else it ends when it was last seen. One whose
// beginning nobody saw begins late.
func TestANightOutlivesItsProcess(t *testing.T) {
	for name, tt := range map[string]struct {
		again string
		stop  store.NightStop
		ended string
	}{
		"in its hours":   {"2026-11-28T01:00", store.NightDone, "2026-11-28T01:00"},
		"after them":     {"2026-11-28T09:00", store.NightDaemon, "23:40"},
		"the next night": {"2026-11-28T23:30", store.NightDaemon, "23:40"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "23:30")
			w.start(nil)
			c := w.called()
			w.set("23:40")
			c.tell(Progress{Pipeline: 3, GPU: time.Minute})
			stopping := w.stop
			stopping()
			if why := c.stopped(t); !errors.Is(why, context.Canceled) {
				t.Error(why)
			}
			c.end <- result{out: Outcome{Progress: Progress{Pipeline: 3, GPU: time.Minute}}}
			w.halt()
			first := w.last()
			if !first.Open() || first.DueMS != at(t, "23:00").UnixMilli() || first.BegunMS != at(t, "23:30").UnixMilli() || first.UntilMS != at(t, "2026-11-28T07:00").UnixMilli() || first.Owner != store.Self() {
				t.Errorf("%+v", first)
			}
			w.set(tt.again)
			w.start(nil)
			if tt.stop != store.NightDone {
				w.said("a night ended", 1)
				if name == "the next night" {
					w.called().end <- result{out: Outcome{Done: true}}
					w.said("a night ended", 2)
				}
			} else {
				w.called().end <- result{out: Outcome{Progress: Progress{Pipeline: 3, GPU: time.Minute}, Done: true}}
				w.said("a night ended", 1)
			}
			all, err := w.store.Nights(t.Context(), store.Page{})
			if err != nil {
				t.Fatal(err)
			}
			n := all[len(all)-1]
			if n.ID != first.ID || n.Stop != tt.stop || n.EndedMS != at(t, tt.ended).UnixMilli() {
				t.Errorf("%+v", n)
			}
			if want := int64(1); tt.stop == store.NightDone && n.GPUMS != 2*want*60*1000 {
				t.Errorf("it used %d", n.GPUMS)
			}
		})
	}
}

// While runs wait nothing begins, and a night that never could is none.
func TestRunsComeFirst(t *testing.T) {
	w := newWorld(t, "22:00")
	w.wait(2)
	w.start(nil)
	w.said("the next night", 1)
	w.set("23:00")
	w.said("a night waits for runs", 1)
	w.set("2026-11-28T06:00")
	w.set("2026-11-28T07:00")
	w.said("the next night", 2)
	if w.count() != 0 {
		t.Errorf("%+v", w.last())
	}
	w.set("2026-11-28T23:00")
	w.said("a night waits for runs", 2)
	w.set("2026-11-29T03:00")
	w.wait(0)
	w.nights.Look()
	w.called().end <- result{out: Outcome{Done: true}}
	w.said("a night ended", 1)
	if n := w.last(); n.DueMS != at(t, "2026-11-28T23:00").UnixMilli() || n.BegunMS != at(t, "2026-11-29T03:00").UnixMilli() {
		t.Errorf("%+v", n)
	}
}

// A clock that is put back does not bring a night back.
func TestAClockThatIsPutBack(t *testing.T) {
	w := newWorld(t, "23:00")
	w.start(nil)
	c := w.called()
	w.set("23:50")
	c.end <- result{out: Outcome{Done: true}}
	w.said("a night ended", 1)
	w.said("the next night", 1)
	w.halt()
	w.set("23:20")
	w.start(nil)
	w.said("the next night", 2)
	if w.count() != 1 {
		t.Errorf("%d nights", w.count())
	}
}

// fullDisk is a record that cannot be written while it is told so.
type fullDisk struct {
	*store.Store
	full atomic.Bool
}

func (d *fullDisk) BeginNight(ctx context.Context, n store.Night) (store.Night, error) {
	if d.full.Load() {
		return n, syscall.ENOSPC
	}
	return d.Store.BeginNight(ctx, n)
}

func (d *fullDisk) SaveNight(ctx context.Context, n store.Night) error {
	if d.full.Load() {
		return syscall.ENOSPC
	}
	return d.Store.SaveNight(ctx, n)
}

// A record that cannot be written stops the pipeline; nights try again, and go on where
// they were.
func TestARecordThatCannotBeWritten(t *testing.T) {
	w := newWorld(t, "22:59")
	d := &fullDisk{Store: w.store}
	d.full.Store(true)
	w.record = d
	w.start(nil)
	w.set("23:00")
	w.said("nights cannot use the record", 1) // it cannot begin
	d.full.Store(false)
	c := w.called()
	d.full.Store(true)
	c.tell(Progress{Pipeline: 1})
	c.stopped(t)
	c.end <- result{}
	w.said("nights cannot use the record", 2) // it cannot say how far it is
	d.full.Store(false)
	c = w.called()
	d.full.Store(true)
	c.end <- result{out: Outcome{Progress: Progress{Pipeline: 1}, Done: true, Decision: "refused"}}
	w.said("nights cannot use the record", 3) // it cannot say that it is over
	d.full.Store(false)
	w.said("a night ended", 1)
	if n := w.last(); n.Open() || n.Stop != store.NightDone || n.Decision != "refused" || w.count() != 1 {
		t.Errorf("%+v of %d", n, w.count())
	}
}
