package tasks

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
	"go.uber.org/goleak"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// says is hardware that finds what a comment of the reference says.
type says struct {
	asked       int
	inspectedMS float64 // what an inspection says of eager; 0: 1
}

func (*says) Device() kernelwright.Device { return kernelwright.Device{Kind: kernelwright.CPUDevice} }

func word(source string) (what string, room float64) {
	_, comment, _ := strings.Cut(source, "# says ")
	fields := strings.Fields(comment)
	if len(fields) == 3 {
		what, fields = fields[0], fields[1:]
	}
	if len(fields) > 0 {
		_, _ = fmt.Sscan(fields[0], &room)
	}
	return what, room
}

func (h *says) Inspect(_ context.Context, name, source string) (kernelwright.Task, error) {
	h.asked++
	what, _ := word(source)
	t := kernelwright.Task{Fingerprint: kernelwright.HashText(source), Name: name, Source: source, EagerMS: cmp.Or(h.inspectedMS, 1), Operators: []string{"aten.relu", "aten.softmax"}}
	switch what {
	case "constant":
		t.Flags = []kernelwright.TaskFlag{kernelwright.FlagConstantOutput}
	case "slow":
		t.EagerMS = 1e5
	case "random":
		return t, &kernelwright.InvalidTaskError{Reason: "the reference is stochastic: two runs on the same input differ"}
	case "broken":
		return t, &kernelwright.InfrastructureError{Op: "inspect", Err: errors.New("the disk is full")}
	}
	return t, nil
}

func (h *says) Evaluate(_ context.Context, t kernelwright.Task, c kernelwright.Candidate, _ kernelwright.Level) (kernelwright.Verdict, error) {
	what, room := word(t.Source)
	v := kernelwright.Verdict{Status: kernelwright.Correct, Device: "cpu", Baselines: map[string]float64{"eager": 1.5, "compile": 1}, Floor: kernelwright.Floor{MS: 1 / max(room, 1), Bound: "memory"}}
	switch what {
	case "wrong":
		v.Status = kernelwright.Wrong
	case "uncompiled":
		delete(v.Baselines, "compile")
	}
	if !strings.Contains(c.Source, "class ModelNew(Model)") {
		v.Status = kernelwright.Rejected
	}
	return v, nil
}

// world is a record and a maker on it.
type world struct {
	store *store.Store
	maker *Maker
	hw    *says
	set   store.TaskSet
}

func newWorld(t *testing.T, s Settings, devices int) *world {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no python3")
	}
	dir := t.TempDir()
	double, err := filepath.Abs("testdata/double.py")
	ok(t, err)
	interpreter := filepath.Join(dir, "python")
	// The process gets nothing of this one's environment but the way to programs.
	var set string
	for name, value := range map[string]string{"PROBED": filepath.Join(dir, "probed"), "HUNG": filepath.Join(dir, "hung"), "DIE_AT": os.Getenv("DIE_AT"), "HANG_AT": os.Getenv("HANG_AT"), "WAIT_AT": os.Getenv("WAIT_AT")} {
		set += "export " + name + "='" + value + "'\n"
	}
	ok(t, os.WriteFile(interpreter, []byte("#!/bin/sh\n"+set+"exec "+python+" -u "+double+" \"$@\"\n"), 0o755))
	w := &world{hw: &says{}}
	w.store, err = store.Open(filepath.Join(dir, store.FileName))
	ok(t, err)
	t.Cleanup(func() { ok(t, w.store.Close()) })
	w.maker = &Maker{Record: w.store, DataDir: dir, Interpreter: interpreter, Catalogue: Catalogue{raw: []byte("[]")}, Workers: 2, Log: slog.New(slog.DiscardHandler)}
	for range devices {
		w.maker.Hardware = append(w.maker.Hardware, &says{})
	}
	w.set = w.begin(t, "one", s)
	return w
}

func (w *world) begin(t *testing.T, name string, s Settings) store.TaskSet {
	t.Helper()
	text, err := json.Marshal(s)
	ok(t, err)
	set, err := w.store.BeginTaskSet(t.Context(), name, text)
	ok(t, err)
	return set
}

func small() Settings {
	return Settings{
		Seed: 1, LowMS: 0.5, HighMS: 100, Similarity: DefaultSimilarity, Room: 0.5, Shares: PaperShares, DTypes: map[string]float64{"float32": 1}, Held: []string{"hardsigmoid"},
		Wanted: map[store.Split]int{store.TrainSplit: 8, store.ValSplit: 2, store.CompositionsSplit: 3, store.KindsSplit: 2},
	}
}

func (w *world) draws(t *testing.T, set store.TaskSet) string {
	t.Helper()
	all, err := w.store.TaskDraws(t.Context(), set.ID, false)
	ok(t, err)
	var b strings.Builder
	for _, d := range all {
		fmt.Fprintf(&b, "%d %s %q %s\n", d.Index, d.Split, d.Reason, d.Fingerprint)
	}
	return b.String()
}

// What is taught is looked at and never timed; what is like a task of it is held out
// nowhere, as with all that is trained on.
func TestTaughtTasksAreNotTimed(t *testing.T) {
	s := small()
	s.Wanted = map[store.Split]int{store.TaughtSplit: 4, store.CompositionsSplit: 2}
	w := newWorld(t, s, 1)
	ok(t, w.maker.Make(t.Context(), w.set, s))
	draws, err := w.store.TaskDraws(t.Context(), w.set.ID, true)
	ok(t, err)
	all, err := Decode(draws)
	ok(t, err)
	taught := 0
	for _, got := range all {
		timed := got.CompileMS > 0 && got.FloorMS > 0
		switch {
		case timed == (got.Split == store.TaughtSplit):
			t.Errorf("task %d of %s: %+v", got.Index, got.Split, got)
		case got.Fingerprint == "" || got.EagerMS <= 0 || got.Level == 0 || len(got.Primitives) == 0:
			t.Errorf("task %d was not looked at: %+v", got.Index, got)
		}
		if got.Split == store.TaughtSplit {
			taught++
		}
	}
	if taught != 4 {
		t.Errorf("%d taught tasks", taught)
	}
	older := s // of a version that had no such split
	older.Wanted = map[store.Split]int{store.CompositionsSplit: 2}
	if said := (Settings{Wanted: map[store.Split]int{store.CompositionsSplit: 2, store.TaughtSplit: 0}}).Differs(Settings{Wanted: older.Wanted}); said != "" {
		t.Errorf("a set that nothing is taught by has another %s", said)
	}
	if said := s.Differs(older); said != "number of tasks" {
		t.Errorf("fewer taught tasks: %q", said)
	}
	var overlap *store.OverlapError
	held := store.TaskDraw{Split: store.KindsSplit, Fingerprint: all[slices.IndexFunc(all, func(t Task) bool { return t.Split == store.TaughtSplit })].Fingerprint, Source: "x", Detail: []byte("{}")}
	if err := w.store.SaveTaskDraw(t.Context(), w.begin(t, "two", s).ID, held); !errors.As(err, &overlap) {
		t.Errorf("a taught task was held out: %v", err)
	}
}

// An inspection beside others has fewer threads than a task is timed with: what is slow by
// that alone is kept. One that had them all is believed.
func TestAnInspectionMayHaveFewerThreads(t *testing.T) {
	s := small()
	s.Machine.Threads = 8
	for devices, kept := range map[int]bool{1: false, 4: true, 16: true} {
		w := newWorld(t, s, devices)
		for _, h := range w.maker.Hardware {
			h.(*says).inspectedMS = 1.5 * s.HighMS * 4
		}
		var barren *BarrenError
		if err := w.maker.Make(t.Context(), w.set, s); (err == nil) != kept || err != nil && !errors.As(err, &barren) {
			t.Errorf("%d at once: %v", devices, err)
		}
	}
}

// A set that is stopped after any of its draws, and goes on, is the one that was
// never stopped; with several devices, too.
func TestAStoppedSetGoesOnToTheSameEnd(t *testing.T) {
	whole := newWorld(t, small(), 1)
	ok(t, whole.maker.Make(t.Context(), whole.set, small()))
	want := whole.draws(t, whole.set)
	reasons, err := whole.store.TaskReasons(t.Context(), whole.set.ID)
	ok(t, err)
	for _, reason := range []string{
		"", "not composed: no operator fits", "its output is constant", "eager is slower than the window", "eager as a candidate is wrong",
		"is like a task that was kept",
	} {
		if reasons[reason] == 0 {
			t.Errorf("no draw was left out for %q: %v", reason, reasons)
		}
	}
	w := newWorld(t, small(), 3)
	for stops := 0; ; stops++ {
		ctx, cancel := context.WithCancel(t.Context())
		seen := 0
		w.maker.Progress = func(Progress) {
			if seen++; seen == 2+2*stops {
				cancel()
			}
		}
		err := w.maker.Make(ctx, w.set, small())
		cancel()
		if err == nil {
			if stops < 3 {
				t.Errorf("it was stopped only %d times", stops)
			}
			break
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	if got := w.draws(t, w.set); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	set, err := w.store.TaskSet(t.Context(), "one")
	ok(t, err)
	if set.FinishedMS == 0 {
		t.Error("the set is not finished")
	}
}

// What a set holds: its splits, kinds that are held out, room, files and index.
func TestWhatASetHolds(t *testing.T) {
	w := newWorld(t, small(), 1)
	ok(t, w.maker.Make(t.Context(), w.set, small()))
	kept, err := w.store.TaskDraws(t.Context(), w.set.ID, true)
	ok(t, err)
	all, err := Decode(kept)
	ok(t, err)
	counts, room := map[store.Split]int{}, 0
	for _, task := range all {
		counts[task.Split]++
		if held := slices.Contains(task.Kinds, "hardsigmoid"); held != (task.Split == store.KindsSplit) {
			t.Errorf("%s has the kinds %v", task.Split, task.Kinds)
		}
		if task.Split == store.TrainSplit && task.HasRoom() {
			room++
		}
		if task.Split == store.KindsSplit && !slices.Contains(task.Unseen, "hardsigmoid") {
			t.Errorf("unseen: %v", task.Unseen)
		}
		if task.Level != 3 || task.EagerMS != 1.5 || task.CompileMS != 1 || task.Bound != "memory" {
			t.Errorf("%+v", task)
		}
	}
	if want := small().Wanted; counts[store.TrainSplit] != 8 || counts[store.ValSplit] != want[store.ValSplit] || counts[store.KindsSplit] != 2 || room < 4 {
		t.Errorf("%v, %d with room", counts, room)
	}
	folder := Folder(w.maker.DataDir, "one")
	ok(t, WriteFolder(folder, all))
	index, err := os.ReadFile(filepath.Join(folder, IndexFile))
	ok(t, err)
	if n := strings.Count(string(index), "\n"); n != len(all) {
		t.Errorf("the index has %d lines for %d tasks", n, len(all))
	}
	for _, ending := range []string{".jsonl", ".parquet"} {
		path := filepath.Join(t.TempDir(), "set"+ending)
		ok(t, Export(path, all))
		back, err := ReadAny(path)
		ok(t, err)
		if len(back) != len(all) || back[3].Source != all[3].Source {
			t.Errorf("%s: %d of %d came back", ending, len(back), len(all))
		}
		// What the training package reads beside the code.
		if rows := exported(t, path); len(rows) != len(all) || rows[3].ID != all[3].Fingerprint || rows[3].Level != 3 || rows[3].Split != string(all[3].Split) {
			t.Errorf("%s: %+v", ending, rows)
		}
	}
}

// exported reads the rows of a file that Export wrote.
func exported(t *testing.T, path string) (rows []ExportedRow) {
	t.Helper()
	if filepath.Ext(path) == ".parquet" {
		rows, err := parquet.ReadFile[ExportedRow](path)
		ok(t, err)
		return rows
	}
	text, err := os.ReadFile(path)
	ok(t, err)
	for line := range strings.Lines(string(text)) {
		var row ExportedRow
		ok(t, json.Unmarshal([]byte(line), &row))
		rows = append(rows, row)
	}
	return rows
}

// A set holds at most so many modules of transformers, none of them in the split of
// new kinds, and goes on to the same end.
func TestModulesOfTransformersAreFew(t *testing.T) {
	s := small()
	s.Modules = 0.2
	whole := newWorld(t, s, 1)
	ok(t, whole.maker.Make(t.Context(), whole.set, s))
	kept, err := whole.store.TaskDraws(t.Context(), whole.set.ID, true)
	ok(t, err)
	all, err := Decode(kept)
	ok(t, err)
	borrowed := 0
	for _, task := range all {
		if task.Origin != originTransformers {
			continue
		}
		borrowed++
		if task.Split == store.KindsSplit || len(task.Kinds) != 2 || len(task.Primitives) == 0 || !strings.HasPrefix(task.Operators[0], "transformers.") {
			t.Errorf("%+v", task)
		}
	}
	if borrowed != 3 {
		t.Errorf("%d of %d are of transformers", borrowed, len(all))
	}
	st := state{kept: map[store.Split]*atomic.Int64{"": {}}}
	st.borrowed.Store(2)
	if !st.mayBorrow(s) {
		t.Error("of 15 tasks, a third module is refused, though a fifth may be modules")
	}
	st.count(Task{Origin: originTransformers, Room: 2})
	if st.mayBorrow(s) {
		t.Error("of 15 tasks, a fourth module is let through, though only a fifth may be modules")
	}
	again := newWorld(t, s, 1)
	ctx, cancel := context.WithCancel(t.Context())
	again.maker.Progress = func(p Progress) {
		if p.Drawn == 12 {
			cancel()
		}
	}
	if err := again.maker.Make(ctx, again.set, s); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	again.maker.Progress = nil
	ok(t, again.maker.Make(t.Context(), again.set, s))
	if got, want := again.draws(t, again.set), whole.draws(t, whole.set); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// A catalogue holds what PyTorch and transformers have, and is crawled once.
func TestACatalogueOfBoth(t *testing.T) {
	w := newWorld(t, small(), 1)
	for range 2 {
		c, err := Crawl(t.Context(), w.maker.DataDir, w.maker.Interpreter, "versions", nil)
		ok(t, err)
		if c.Version() != "2.11, transformers 5.24.0" || c.Modules != 1 || c.ModulesTried != 3 || c.ModulesLeftOut["is too long for one task"] != 2 || len(c.Operators) != 12 {
			t.Errorf("%+v", c)
		}
	}
	kept, err := filepath.Glob(filepath.Join(w.maker.DataDir, "compose", "*", "catalogue-*.json"))
	ok(t, err)
	if len(kept) != 1 {
		t.Errorf("kept: %v", kept)
	}
}

// What people bring passes the filters; what overlaps with the other side of the
// gate is not brought, nor is anything with it.
func TestImport(t *testing.T) {
	w := newWorld(t, small(), 1)
	source := func(body, says string) string {
		return "import torch\n\n\nclass Model:\n    def forward(self, x):\n        return " + body + "\n\n\n# says " + says + " 3.0 0\n"
	}
	ok(t, w.maker.Import(t.Context(), w.set, small(), store.TrainSplit, []Protected{
		{"a.py", source("torch.relu(x)", "fine")}, {"b.py", source("x.sin()", "random")}, {"c.py", source("x.exp()", "uncompiled")},
	}))
	reasons, err := w.store.TaskReasons(t.Context(), w.set.ID)
	ok(t, err)
	if reasons[""] != 1 || reasons["is random"] != 1 || reasons["does not run under torch.compile"] != 1 {
		t.Errorf("%v", reasons)
	}
	before := w.draws(t, w.set)
	var overlaps *OverlapsError
	err = w.maker.Import(t.Context(), w.set, small(), store.KindsSplit, []Protected{{"new.py", source("x.cos()", "fine")}, {"copy.py", source("x.clamp(min=0)", "fine")}})
	if !errors.As(err, &overlaps) || overlaps.File != "copy.py" || overlaps.Count != 1 || overlaps.To != "one/0" {
		t.Errorf("got %v", err)
	}
	if after := w.draws(t, w.set); after != before {
		t.Errorf("something was brought in: %s", after)
	}
	ok(t, w.maker.Import(t.Context(), w.set, small(), store.KindsSplit, []Protected{{"new.py", source("x.cos()", "fine")}}))
	err = w.maker.Import(t.Context(), w.begin(t, "two", small()), small(), store.TrainSplit, []Protected{{"held.py", source("torch.cos(x)", "fine")}})
	if !errors.As(err, &overlaps) || !strings.Contains(err.Error(), "held-out task one/3") {
		t.Errorf("got %v", err)
	}
	err = w.maker.Import(t.Context(), w.set, small(), store.TrainSplit, []Protected{{"d.py", source("x.tan()", "broken")}})
	var broken *kernelwright.InfrastructureError
	if !errors.As(err, &broken) {
		t.Errorf("got %v", err)
	}
}

// A protected file and its near-copies are in no set.
func TestProtectedFiles(t *testing.T) {
	w := newWorld(t, small(), 1)
	dir := t.TempDir()
	ok(t, os.WriteFile(filepath.Join(dir, "script.py"), []byte("print(1)\n"), 0o644))
	_, err := ReadProtected([]string{dir})
	if err == nil || !strings.Contains(err.Error(), "holds no reference") {
		t.Errorf("got %v", err)
	}
	text := "import torch.nn as nn\n\n\nclass Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.a = nn.SiLU()\n\n    def forward(self, y):\n        return self.a(y).softmax(-1)\n"
	ok(t, os.WriteFile(filepath.Join(dir, "1_task.py"), []byte(text), 0o644))
	w.maker.Protected, err = ReadProtected([]string{dir})
	ok(t, err)
	source := "import torch\n\n\nclass Model:\n    def forward(self, x):\n        return torch.softmax(x * torch.sigmoid(x), dim=1)\n# says fine 3.0 0\n"
	ok(t, w.maker.Import(t.Context(), w.set, small(), store.TrainSplit, []Protected{{"a.py", source}}))
	reasons, err := w.store.TaskReasons(t.Context(), w.set.ID)
	ok(t, err)
	if reasons["is like a protected file"] != 1 || reasons[""] != 0 {
		t.Errorf("%v", reasons)
	}
}

// The composer's process may die at any draw: that draw is left out.
func TestAComposerThatDies(t *testing.T) {
	t.Setenv("DIE_AT", "2")
	w := newWorld(t, small(), 1)
	ok(t, w.maker.Make(t.Context(), w.set, small()))
	if !strings.Contains(w.draws(t, w.set), `"not composed: ended the process"`) {
		t.Error(w.draws(t, w.set))
	}
}

// alarms are rung by hand: when a process has said that it hangs.
type alarms struct {
	mu      sync.Mutex
	stopped *sync.Cond
	set     map[*bell]func()
}

type bell struct{ of *alarms }

func (b *bell) Reset(time.Duration) bool { return true }

func (b *bell) Stop() bool {
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	delete(b.of.set, b)
	b.of.stopped.Broadcast()
	return true
}

func (a *alarms) after(_ time.Duration, f func()) alarm {
	a.mu.Lock()
	defer a.mu.Unlock()
	b := &bell{a}
	a.set[b] = f
	return b
}

// ring has the time of the last request that is not answered be over.
func (a *alarms) ring() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.set) != 1 {
		a.stopped.Wait()
	}
	for _, f := range a.set {
		f()
	}
}

// impatient has a world's processes be ended when they say that they hang.
func impatient(t *testing.T, w *world) {
	t.Helper()
	a := &alarms{set: map[*bell]func(){}}
	a.stopped = sync.NewCond(&a.mu)
	w.maker.after = a.after
	path := filepath.Join(w.maker.DataDir, "hung")
	ok(t, syscall.Mkfifo(path, 0o600))
	hung, err := os.OpenFile(path, os.O_RDWR, 0)
	ok(t, err)
	var all sync.WaitGroup
	all.Go(func() {
		for one := make([]byte, 1); ; {
			if _, err := hung.Read(one); err != nil {
				return
			}
			a.ring()
		}
	})
	t.Cleanup(func() {
		ok(t, hung.Close())
		all.Wait()
	})
}

// A composer that does not answer costs that draw, and nothing else.
func TestAComposerThatHangs(t *testing.T) {
	t.Setenv("HANG_AT", "2")
	w := newWorld(t, small(), 1)
	w.maker.Workers = 1
	impatient(t, w)
	ok(t, w.maker.Make(t.Context(), w.set, small()))
	if got := w.draws(t, w.set); strings.Count(got, `"not composed: takes too long"`) != 1 || strings.Contains(got, "ended the process") {
		t.Error(got)
	}
}

// So does a reference over which the comparison never ends.
func TestAReferenceThatIsNeverRead(t *testing.T) {
	w := newWorld(t, small(), 1)
	impatient(t, w)
	source := func(body string) string {
		return "import torch\n\n\nclass Model:\n    def forward(self, x):\n        return " + body + "\n\n\n# says fine 3.0 0\n"
	}
	ok(t, w.maker.Import(t.Context(), w.set, small(), store.TrainSplit, []Protected{
		{"a.py", source("torch.relu(x)")}, {"b.py", source("x.sin()  # hangs")}, {"c.py", source("x.exp()")},
	}))
	reasons, err := w.store.TaskReasons(t.Context(), w.set.ID)
	ok(t, err)
	if reasons[""] != 2 || reasons["its text takes too long to read"] != 1 {
		t.Errorf("%v", reasons)
	}
}

// doubled is a reference whose value holds itself 2 to the n times.
func doubled(n int, shape string) string {
	return "class Model:\n    def forward(self, x):\n" + strings.Repeat("        "+shape+"\n", n) + "        return x\n\n\n# says fine 3.0 0\n"
}

// A stranger's reference that comes to no end is left out for it, in a set and among
// people's runs.
func TestHostileReferences(t *testing.T) {
	w := newWorld(t, small(), 1)
	calls := "def f(x):\n    return f(x) + f(x)\n\n\nclass Model:\n    def forward(self, x):\n        return f(x)\n\n\n# says fine 3.0 0\n"
	ok(t, w.maker.Import(t.Context(), w.set, small(), store.TrainSplit, []Protected{{"a.py", doubled(60, "x = (x, x)")}, {"b.py", calls}, {"c.py", doubled(1, "x = x.exp()")}}))
	reasons, err := w.store.TaskReasons(t.Context(), w.set.ID)
	ok(t, err)
	if reasons[""] != 2 || reasons["its text takes too long to read"] != 1 {
		t.Errorf("%v", reasons)
	}
	// What an older version kept, and cannot be read any more, does not stop what follows.
	ok(t, w.store.SaveTaskDraw(t.Context(), w.set.ID, store.TaskDraw{Index: 99, Split: store.TrainSplit, Fingerprint: kernelwright.HashText(calls), Source: calls, Detail: []byte("{}")}))
	outside, err := NewOutside(t.Context(), w.store, w.maker.DataDir, w.maker.Interpreter, []Protected{{"p.py", doubled(1, "x = x.sin()")}})
	ok(t, err)
	defer outside.Close()
	for source, want := range map[string][2]bool{calls: {false, false}, doubled(1, "x = x.sin()"): {true, true}, doubled(1, "x = x.exp()"): {false, true}} {
		if like, compared, err := outside.Like(t.Context(), source); err != nil || like != want[0] || compared != want[1] {
			t.Errorf("%v %v %v of %s", like, compared, err, source)
		}
	}
}

// What reads strangers' references has none of the keys that this process has.
func TestKeysStayInThisProcess(t *testing.T) {
	const canary = "canary-8f3a"
	for _, name := range []string{"OPENAI_API_KEY", "ANTHROPIC_API_KEY", "MY_OWN_KEY", "AWS_SECRET_ACCESS_KEY", "PIP_INDEX_URL"} {
		t.Setenv(name, canary)
	}
	w := newWorld(t, small(), 1)
	folder, err := unpack(w.maker.DataDir)
	ok(t, err)
	s := &service{interpreter: w.maker.Interpreter, folder: folder}
	defer s.Close()
	var answer struct{ Transformers string }
	ok(t, s.ask(t.Context(), map[string]any{"op": "libraries"}, &answer, nil))
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", s.process.Process.Pid))
	ok(t, err)
	if strings.Contains(string(text), canary) {
		t.Errorf("the process has %q", text)
	}
	if !strings.Contains(string(text), "PYTHONHASHSEED=0") || !strings.Contains(string(text), "PATH=") {
		t.Errorf("the process has only %q", text)
	}
}

func TestFilesThatCannotBeRead(t *testing.T) {
	for name, c := range map[string]struct{ text, said string }{
		"a.jsonl":   {"{\"code\": \"x\"}\nnonsense\n", "a.jsonl:2 is no JSON object"},
		"b.jsonl":   {"{\"ops\": \"x\"}\n", "b.jsonl:1 has no `code`"},
		"c.parquet": {"PAR1 no", "cannot be read as Parquet"},
		"d.py":      {"\x7fELF", "no Python source"},
	} {
		path := filepath.Join(t.TempDir(), name)
		ok(t, os.WriteFile(path, []byte(c.text), 0o644))
		if _, err := ReadAny(path); err == nil || !strings.Contains(err.Error(), c.said) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLevel(t *testing.T) {
	for _, c := range []struct {
		operators int
		aten      []string
		level     int
	}{
		{1, []string{"aten.relu"}, 1}, {1, []string{"aten._softmax"}, 2}, {2, []string{"aten.convolution", "aten.relu"}, 4},
		{2, []string{"aten.addmm", "aten.native_layer_norm"}, 5}, {5, []string{"aten.mm", "aten.sum"}, 8}, {0, nil, 1},
	} {
		if got := Level(c.operators, c.aten); got != c.level {
			t.Errorf("%d of %v: level %d, want %d", c.operators, c.aten, got, c.level)
		}
	}
}

// Shares of what is planned are those of the settings, and a plan is the same
// whenever it is asked for.
func TestPlans(t *testing.T) {
	s := small()
	const n = 20000
	operators, splits := map[int]int{}, map[store.Split]int{}
	for i := range int64(n) {
		p := s.plan(i)
		if p != s.plan(i) {
			t.Fatal("a plan changes")
		}
		operators[p.operators]++
		splits[p.split]++
	}
	if got := 100 * float64(operators[2]) / n; got < 83 || got > 86.5 {
		t.Errorf("two operators in %.1f %%", got)
	}
	if got := float64(splits[store.TrainSplit]) / n; got < 0.51 || got > 0.56 {
		t.Errorf("training tasks: %.3f", got)
	}
}
