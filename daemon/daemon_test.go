package daemon

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

// fakeHardware evaluates by what a text says, at once.
type fakeHardware struct {
	mu       sync.Mutex
	key      string // "test-cpu" where empty
	fault    error  // what a check finds
	check    func(context.Context) error
	begins   func()        // called as an inspection begins, where set
	broken   int           // inspections that fail before one works
	enter    chan struct{} // told at each quick evaluation, where set
	leave    chan struct{} // waited for at each, where set
	certify  int
	evaluate int
	ceilings kernelwright.Ceilings
	versions map[string]string
}

func (f *fakeHardware) Versions() map[string]string { return f.versions }

func (f *fakeHardware) Device() kernelwright.Device {
	return kernelwright.Device{Kind: kernelwright.CPUDevice, Key: cmp.Or(f.key, "test-cpu"), Name: "a test's CPU", Ceilings: f.ceilings}
}

func (f *fakeHardware) Check(ctx context.Context) error {
	if f.check != nil {
		return f.check(ctx)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fault
}

// fall has the hardware fail from now on, and a check find it.
func (f *fakeHardware) fall(fault error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
}

func (f *fakeHardware) Inspect(_ context.Context, name, source string) (kernelwright.Task, error) {
	if f.begins != nil {
		f.begins()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fault != nil {
		return kernelwright.Task{}, &kernelwright.InfrastructureError{Op: "inspect", Err: f.fault}
	}
	if f.broken > 0 {
		f.broken--
		return kernelwright.Task{}, &kernelwright.InfrastructureError{Op: "inspect", Err: errors.New("the server died")}
	}
	if strings.Contains(source, "bad") {
		return kernelwright.Task{}, &kernelwright.InvalidTaskError{Reason: "get_inputs is missing", Hint: "define it", Traceback: "Traceback: x"}
	}
	code, _, _ := strings.Cut(source, "#") // comments do not count for the fingerprint
	return kernelwright.Task{Fingerprint: kernelwright.HashText(strings.TrimSpace(code)), Name: name, Source: source}, nil
}

func (f *fakeHardware) Evaluate(ctx context.Context, task kernelwright.Task, c kernelwright.Candidate, level kernelwright.Level) (kernelwright.Verdict, error) {
	if level == kernelwright.Quick && f.enter != nil {
		f.enter <- struct{}{}
		select {
		case <-f.leave:
		case <-ctx.Done():
			return kernelwright.Verdict{}, ctx.Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fault != nil {
		return kernelwright.Verdict{}, &kernelwright.InfrastructureError{Op: "evaluate", Err: f.fault}
	}
	v := kernelwright.Verdict{
		Status: kernelwright.Correct, Level: level, Task: task.Fingerprint, Candidate: kernelwright.HashText(c.Source), Device: "cpu", DeviceKey: cmp.Or(f.key, "test-cpu"),
		CandidateMS: 4 / float64(2+len(c.Note)), Baselines: map[string]float64{"eager": 4, "compile": 3, "max-autotune": 3.5},
		Speedup: &kernelwright.Speedup{Value: 1.5, Low: 1.4, High: 1.6, Against: "compile"}, Headroom: 0.5, Versions: f.versions,
	}
	if strings.Contains(task.Source, "slower") {
		v.Speedup = &kernelwright.Speedup{Value: 0.9, Low: 0.8, High: 0.95, Against: "compile"}
	}
	if level == kernelwright.Certify {
		f.certify++
		v.Status, v.Exported = kernelwright.Certified, "# standalone\n"+c.Source
		v.ExportedSHA256 = kernelwright.HashText(v.Exported)
	} else {
		f.evaluate++
	}
	return v, nil
}

type fakeCoder struct{}

func (fakeCoder) Name() string { return "fake" }

func (fakeCoder) Propose(_ context.Context, in kernelwright.CoderInput) (kernelwright.Candidate, error) {
	if strings.Contains(in.Task.Source, "matmul") {
		return kernelwright.Candidate{}, &kernelwright.DeclinedError{Reason: "a matrix product stays with the vendor library"}
	}
	return kernelwright.Candidate{Source: fmt.Sprintf("class ModelNew: pass  # %d of %s\n", in.Round, in.Task.Fingerprint), Language: kernelwright.CPP,
		Origin: "fake", Note: strings.Repeat("+", in.Round)}, nil
}

type fakeJudge struct{}

func (fakeJudge) Name() string { return "fake" }

func (fakeJudge) Judge(_ context.Context, in kernelwright.JudgeInput) (kernelwright.Feedback, error) {
	if in.Want == kernelwright.Correction {
		return kernelwright.Feedback{Kind: in.Want, Issue: "it is wrong", Why: "it says so", Fix: "mend it"}, nil
	}
	return kernelwright.Feedback{Kind: in.Want, Bottleneck: "memory", Method: "fuse", Plan: fmt.Sprintf("fuse it all, for %v GB/s", in.Device.Ceilings.MemoryGBs)}, nil
}

// bench is a daemon over folders of a test's own.
type bench struct {
	t     *testing.T
	data  string
	dir   string
	log   *syncBuffer
	store *store.Store
	hw    *fakeHardware
	ended chan Done
	stop  context.CancelFunc
	done  chan error
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, data: t.TempDir(), dir: t.TempDir(), log: &syncBuffer{}, hw: &fakeHardware{}, ended: make(chan Done, 100)}
	s, err := store.Open(filepath.Join(b.data, store.FileName))
	if err != nil {
		t.Fatal(err)
	}
	b.store = s
	t.Cleanup(func() {
		b.halt()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(b.log.String())
		}
	})
	return b
}

func (b *bench) daemon() *Daemon {
	log := slog.New(slog.NewTextHandler(b.log, nil))
	return &Daemon{
		Runner: &Runner{
			Store: b.store, Evaluator: b.hw, Coder: fakeCoder{}, Judge: fakeJudge{}, Results: Results{Markdown: true, HTML: true},
			Log: log, Share: true,
		},
		Watcher:  &Watcher{Folders: []string{b.dir}, Patterns: []string{"*.py"}, Recursive: true, Debounce: 10 * time.Millisecond, Log: log},
		Settings: forge.Settings{Rounds: 3, JudgeMode: forge.JudgeBoth},
		Ended:    func(d Done) { b.ended <- d },
	}
}

func (b *bench) start(change func(*Daemon)) {
	b.t.Helper()
	d := b.daemon()
	if change != nil {
		change(d)
	}
	ctx, cancel := context.WithCancel(context.Background())
	b.stop, b.done = cancel, make(chan error, 1)
	go func() { b.done <- d.Run(ctx) }()
}

// halt asks the daemon to stop and waits until it has.
func (b *bench) halt() {
	if b.stop == nil {
		return
	}
	b.stop()
	b.stop = nil
	if err := <-b.done; err != nil {
		b.t.Error(err)
	}
}

func (b *bench) drop(name, text string) string {
	b.t.Helper()
	path := filepath.Join(b.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		b.t.Fatal(err)
	}
	tmp := path + ".part"
	if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
	if err := os.Rename(tmp, path); err != nil {
		b.t.Fatal(err)
	}
	return path
}

func (b *bench) next() Done {
	b.t.Helper()
	select {
	case d := <-b.ended:
		return d
	case <-time.After(testWait):
		b.t.Fatal("no run ended")
		return Done{}
	}
}

// logged waits until the log says something; the daemon has no other sign for
// what it decides not to do.
func (b *bench) logged(text string) {
	b.t.Helper()
	for end := time.Now().Add(testWait); !strings.Contains(b.log.String(), text); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("the log never says %q", text)
		}
	}
}

func (b *bench) read(path string) string {
	b.t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		b.t.Fatal(err)
	}
	return string(text)
}

func (b *bench) runs() []kernelwright.Run {
	b.t.Helper()
	runs, err := b.store.Runs(context.Background(), store.RunFilter{})
	if err != nil {
		b.t.Fatal(err)
	}
	return runs
}

func TestADroppedFileGetsItsResults(t *testing.T) {
	b := newBench(t)
	b.start(nil)
	path := b.drop("sub/softmax.py", "softmax")
	done := b.next()
	if done.WriteErr != nil || done.Data.Run.Status != kernelwright.RunDone || len(done.Data.Rounds) != 3 || done.Summary().Status != "certified" {
		t.Fatalf("%+v", done)
	}
	b.logged(`speedup="1.50× [1.40, 1.60]" against=compile`)
	base := strings.TrimSuffix(path, ".py")
	kernel := b.read(base + ".best.py")
	var c report.Certificate
	if err := json.Unmarshal([]byte(b.read(base+".certificate.json")), &c); err != nil {
		t.Fatal(err)
	}
	if c.SHA256 != kernelwright.HashText(kernel) || c.File != "softmax.best.py" || c.Device.Key != "test-cpu" {
		t.Errorf("%+v", c)
	}
	if !strings.Contains(b.read(base+".report.html"), "1.50×") || !strings.Contains(b.read(base+".report.md"), "certified") {
		t.Error("reports say what came of it")
	}
	if b.read(path) != "softmax" {
		t.Error("the reference is left alone")
	}
	run, err := b.store.Run(context.Background(), done.Data.Run.ID)
	if err != nil || run.Status != kernelwright.RunDone || run.Best == nil || run.FinishedMS == 0 {
		t.Errorf("%+v, %v", run, err)
	}
	file, _, err := b.store.File(context.Background(), path)
	if err != nil || file.Fingerprint != done.Data.Run.Task {
		t.Errorf("%+v, %v", file, err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 5 {
		t.Errorf("%v, %v: the reference and four results, nothing left over", entries, err)
	}
}

func TestTheSameContentIsQueuedOnce(t *testing.T) {
	b := newBench(t)
	b.hw.enter, b.hw.leave = make(chan struct{}), make(chan struct{})
	b.start(nil)
	first := b.drop("a.py", "softmax")
	<-b.hw.enter
	// While the first runs: one run stands for both.
	second := b.drop("b.py", "softmax")
	b.logged("one run stands for both")
	close(b.hw.leave)
	go func() {
		for range b.hw.enter {
		}
	}()
	b.next()
	for _, path := range []string{first, second} {
		b.read(strings.TrimSuffix(path, ".py") + ".best.py")
	}
	// After it: its result is written for the third.
	third := b.drop("c.py", "softmax")
	b.halt()
	b.start(nil)
	b.logged("c.py")
	// Another comment: another program, which can read it.
	b.drop("d.py", "softmax # with a comment")
	done := b.next()
	if done.Written.Kernel != filepath.Join(b.dir, "d.best.py") {
		t.Errorf("%+v", done.Written)
	}
	b.read(strings.TrimSuffix(third, ".py") + ".best.py")
	b.halt()
	if runs := b.runs(); len(runs) != 2 || runs[0].Reason != "" || b.hw.certify != 2 {
		t.Errorf("%d certifications, %+v", b.hw.certify, runs)
	}
	// The same bytes when nothing is known of a file with them: the run counts, but
	// not one that was evaluated with other versions.
	for i, versions := range []map[string]string{nil, {"kernelwright": "the next"}} {
		files, err := b.store.Files(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if err := b.store.ForgetFile(t.Context(), file.Path); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(file.Path); err != nil {
				t.Fatal(err)
			}
		}
		b.hw.certify, b.hw.versions = 0, versions
		b.start(nil)
		b.drop(fmt.Sprintf("again%d.py", i), "softmax")
		b.next()
		b.halt()
		if shared := strings.Contains(b.runs()[0].Reason, "the same task as run 1"); shared != (versions == nil) || shared != (b.hw.certify == 0) {
			t.Errorf("versions %v: %d certifications, %+v", versions, b.hw.certify, b.runs()[0])
		}
	}
	close(b.hw.enter)
}

// held starts a daemon whose first evaluation waits until release is called.
func (b *bench) held(change func(*Daemon)) (release func()) {
	b.t.Helper()
	b.hw.enter, b.hw.leave = make(chan struct{}), make(chan struct{})
	b.start(change)
	return func() {
		close(b.hw.leave)
		go func() {
			for range b.hw.enter {
			}
		}()
	}
}

func TestResultsGoWithARenamedFile(t *testing.T) {
	b := newBench(t)
	release := b.held(nil)
	old := b.drop("a.py", "softmax")
	<-b.hw.enter
	renamed := filepath.Join(b.dir, "b.py")
	if err := os.Rename(old, renamed); err != nil {
		t.Fatal(err)
	}
	b.logged("one run stands for both")
	release()
	if done := b.next(); done.Written.Kernel != filepath.Join(b.dir, "b.best.py") {
		t.Errorf("%+v", done.Written)
	}
	b.read(filepath.Join(b.dir, "b.best.py"))
	if _, err := os.Stat(filepath.Join(b.dir, "a.best.py")); err == nil {
		t.Error("there are results beside a file that is gone")
	}
	b.halt()
	close(b.hw.enter)
}

func TestAFolderThatIsNamedFirstGoesFirst(t *testing.T) {
	b := newBench(t)
	urgent := t.TempDir()
	release := b.held(func(d *Daemon) { d.Watcher.Folders = []string{urgent, b.dir} })
	b.drop("first.py", "first")
	<-b.hw.enter
	b.drop("later.py", "later")
	b.logged("later.py")
	if err := os.WriteFile(filepath.Join(urgent, "sooner.py"), []byte("sooner"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.logged("sooner.py")
	release()
	var order []string
	for range 3 {
		order = append(order, filepath.Base(b.next().Data.Run.Path))
	}
	if !slices.Equal(order, []string{"first.py", "sooner.py", "later.py"}) {
		t.Errorf("%v", order)
	}
	b.halt()
	close(b.hw.enter)
}

func TestResultsOfOneNameAreKeptApart(t *testing.T) {
	b := newBench(t)
	out := t.TempDir()
	b.start(func(d *Daemon) { d.Runner.Results.Folder, d.Runner.Results.Base = out, b.dir })
	for _, name := range []string{"softmax.py", "deep/softmax.py"} {
		b.drop(name, "softmax of "+name)
		b.next()
		b.read(filepath.Join(out, filepath.Dir(name), "softmax.best.py"))
	}
	for _, tt := range []struct {
		folders []string
		want    string
	}{
		{nil, ""},
		{[]string{"/a/b"}, "/a/b"},
		{[]string{"/a/b/", "/a/b/c/d"}, "/a/b"},
		{[]string{"/a/b/c", "/a/bc/d"}, "/a"},
		{[]string{"/a", "/b"}, "/"},
	} {
		if got := Common(tt.folders); got != tt.want {
			t.Errorf("%v: %q", tt.folders, got)
		}
	}
}

func TestChangedContentIsANewRun(t *testing.T) {
	b := newBench(t)
	b.start(nil)
	b.drop("a.py", "softmax")
	b.next()
	b.drop("a.py", "log softmax")
	if done := b.next(); done.Data.Run.ID != 2 {
		t.Errorf("run %d", done.Data.Run.ID)
	}
	// Known content, but of an earlier run: it is a change all the same.
	b.drop("a.py", "softmax")
	done := b.next()
	if done.Data.Task.Source != "softmax" {
		t.Errorf("%q", done.Data.Task.Source)
	}
}

func TestABadReferenceIsRecordedAndTheDaemonGoesOn(t *testing.T) {
	b := newBench(t)
	b.start(nil)
	path := b.drop("a.py", "bad")
	done := b.next()
	if r := done.Data.Run; r.Status != kernelwright.RunInvalid || r.Reason != "get_inputs is missing" || r.Hint != "define it" || r.Detail == "" {
		t.Errorf("%+v", r)
	}
	// What history shows of it later has the text that the reason is about.
	if d, err := Load(t.Context(), b.store, done.Data.Run.ID); err != nil || d.Task.Source == "" || d.Task.Source != done.Data.Task.Source || d.Task.Fingerprint != "" {
		t.Errorf("%v: %+v", err, d.Task)
	}
	if b.read(path) != "bad" || !strings.Contains(b.read(filepath.Join(b.dir, "a.report.md")), "Get\\_inputs is missing") {
		t.Error("the file is left alone, and a report says why")
	}
	b.drop("b.py", "\x00\x01binary\xff")
	if done = b.next(); done.Data.Run.Status != kernelwright.RunInvalid || done.Data.Run.Reason == "" {
		t.Errorf("%+v", done.Data.Run)
	}
	b.drop("c.py", "matmul")
	if done = b.next(); done.Data.Run.Status != kernelwright.RunDeclined || done.Summary().Reason == "" {
		t.Errorf("%+v", done.Data.Run)
	}
	b.drop("d.py", "softmax")
	if done = b.next(); done.Data.Run.Status != kernelwright.RunDone {
		t.Errorf("%+v", done.Data.Run)
	}
	b.halt()
	// Nothing changed while it was down: nothing is done again.
	b.start(func(d *Daemon) { d.UntilIdle = true })
	if err := <-b.done; err != nil {
		t.Error(err)
	}
	b.stop()
	b.stop = nil
	if n := len(b.runs()); n != 4 {
		t.Errorf("%d runs", n)
	}
}

func TestFilesDroppedWhileItWasDownAndUntilIdle(t *testing.T) {
	b := newBench(t)
	for i := range 3 {
		b.drop(fmt.Sprintf("t%d.py", i), fmt.Sprintf("softmax over %d", i))
	}
	b.start(func(d *Daemon) { d.UntilIdle = true })
	if err := <-b.done; err != nil {
		t.Error(err)
	}
	b.stop()
	b.stop = nil
	if len(b.ended) != 3 {
		t.Errorf("%d runs ended", len(b.ended))
	}
}

func TestAStopFinishesTheRoundAndTheNextStartGoesOn(t *testing.T) {
	b := newBench(t)
	b.hw.enter, b.hw.leave = make(chan struct{}), make(chan struct{})
	b.start(nil)
	b.drop("a.py", "softmax")
	<-b.hw.enter
	b.stop()
	b.hw.leave <- struct{}{}
	b.halt()
	rounds, err := b.store.Rounds(context.Background(), 1)
	if err != nil || len(rounds) != 1 {
		t.Fatalf("%d rounds, %v", len(rounds), err)
	}
	if r := b.runs()[0]; r.Status != kernelwright.RunQueued {
		t.Errorf("%s", r.Status)
	}
	b.hw.enter, b.hw.leave = nil, nil
	// Between the starts the machine was measured again: the run does not notice.
	b.hw.ceilings.MemoryGBs = 12
	b.start(nil)
	done := b.next()
	diff, err := forge.Replay(t.Context(), done.Data.Rounds, done.Data.Task, done.Data.Run, forge.Parts{Device: done.Data.Device, Coder: fakeCoder{}, Judge: fakeJudge{}})
	if err != nil || diff != nil {
		t.Errorf("it does not replay: %v %v", diff, err)
	}
	if len(done.Data.Rounds) != 3 || done.Data.Rounds[0].StartedMS != rounds[0].StartedMS || done.Data.Run.ID != 1 {
		t.Errorf("%+v", done.Data.Run)
	}
	if b.hw.evaluate != 3 {
		t.Errorf("%d evaluations", b.hw.evaluate)
	}
}

func TestARoundThatOutlastsTheGraceIsLeft(t *testing.T) {
	b := newBench(t)
	b.hw.enter, b.hw.leave = make(chan struct{}), make(chan struct{})
	b.start(func(d *Daemon) { d.Runner.Grace = time.Millisecond })
	b.drop("a.py", "softmax")
	<-b.hw.enter
	b.halt()
	if rounds, err := b.store.Rounds(context.Background(), 1); err != nil || len(rounds) != 0 {
		t.Errorf("%d rounds, %v", len(rounds), err)
	}
	waiting, claimed, err := b.store.QueueLength(context.Background())
	if waiting != 1 || claimed != 0 || err != nil {
		t.Error(waiting, claimed, err)
	}
}

func TestInfrastructureIsTriedAgainAndThenFails(t *testing.T) {
	b := newBench(t)
	b.hw.broken = 1
	clock := newFakeClock()
	w := b.daemon().Runner
	w.Clock, w.Attempts = clock, 2
	ctx := context.Background()
	if _, err := w.Enqueue(ctx, Request{Path: "/x/a.py", Name: "a", Source: "softmax", Settings: forge.Settings{Rounds: 1}}, store.File{Path: "/x/a.py"}, 0); err != nil {
		t.Fatal(err)
	}
	claim := func() (kernelwright.Run, store.Job) {
		job, ok, err := b.store.Claim(ctx, store.Self())
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		run, err := b.store.Run(ctx, job.RunID)
		if err != nil {
			t.Fatal(err)
		}
		return run, job
	}
	run, job := claim()
	if _, err := w.Run(ctx, run, &job); err == nil {
		t.Fatal("a failure is an error")
	}
	if waiting, _, err := b.store.QueueLength(ctx); waiting != 1 || err != nil {
		t.Fatalf("%d wait for another attempt, %v", waiting, err)
	}
	if _, ok, err := b.store.Claim(ctx, store.Self()); ok || err != nil {
		t.Fatalf("claimed again without a pause, %v", err)
	}
	b.hw.broken = 1
	w.Attempts = 1
	done, err := w.Run(ctx, run, &job)
	if err == nil || done.Data.Run.Status != kernelwright.RunFailed || done.Data.Run.Reason == "" {
		t.Errorf("%+v, %v", done.Data.Run, err)
	}
}

func TestAFolderThatCannotBeWrittenLosesNothing(t *testing.T) {
	b := newBench(t)
	blocked := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.start(func(d *Daemon) { d.Runner.Results.Folder = filepath.Join(blocked, "out") })
	b.drop("a.py", "softmax")
	done := b.next()
	var w *WriteError
	if !errors.As(done.WriteErr, &w) || w.Hint == "" || done.Data.Run.Status != kernelwright.RunDone {
		t.Fatalf("%v", done.WriteErr)
	}
	data, err := Load(context.Background(), b.store, done.Data.Run.ID)
	if err != nil {
		t.Fatal(err)
	}
	written, err := (Results{Folder: t.TempDir(), HTML: true}).Write(data.Run.Path, data)
	if err != nil || written.Kernel == "" || written.HTML == "" {
		t.Errorf("%+v, %v", written, err)
	}
}

func TestAWatchedFolderThatIsNotThereEndsTheDaemon(t *testing.T) {
	b := newBench(t)
	d := b.daemon()
	d.Watcher.Folders = []string{filepath.Join(b.dir, "none")}
	if err := d.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "is not there") {
		t.Error(err)
	}
}

func TestAnInterruptedRunIsTheSameRunAgain(t *testing.T) {
	b := newBench(t)
	w := b.daemon().Runner
	ctx := context.Background()
	q := Request{Path: "/x/a.py", Name: "a", Source: "softmax", Settings: forge.Settings{Rounds: 2}}
	first, resumed, err := w.Start(ctx, q)
	if err != nil || resumed {
		t.Fatal(resumed, err)
	}
	again, resumed, err := w.Start(ctx, q)
	if err != nil || !resumed || again.ID != first.ID {
		t.Errorf("run %d, %v, %v", again.ID, resumed, err)
	}
	q.Settings.Rounds = 5
	if other, resumed, err := w.Start(ctx, q); err != nil || resumed || other.ID == first.ID {
		t.Errorf("run %d, %v, %v", other.ID, resumed, err)
	}
	w.Results.Folder = t.TempDir()
	if done, err := w.Run(ctx, again, nil); err != nil || done.Data.Run.Status != kernelwright.RunDone {
		t.Errorf("%+v, %v", done, err)
	}
	q.Settings.Rounds = 2
	if third, resumed, err := w.Start(ctx, q); err != nil || resumed || third.ID == first.ID {
		t.Errorf("run %d, %v, %v: a run that ended is not gone on with", third.ID, resumed, err)
	}
}
