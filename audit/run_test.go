package audit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kernelwright/kernelwright"
)

// double is a device that evaluates by what candidates say of themselves.
type double struct {
	kind kernelwright.DeviceKind
	fail func(source string) error // what the machine fails on

	mu        sync.Mutex
	evaluated map[string]int
	inspected map[string]int
	largest   int // batch
	explained int

	ahead, late []string // what was said to come later, and of that what had been evaluated
}

func newDouble() *double {
	return &double{kind: kernelwright.CPUDevice, evaluated: map[string]int{}, inspected: map[string]int{}}
}

func (d *double) Device() kernelwright.Device {
	return kernelwright.Device{Kind: d.kind, Key: "k", Class: "c"}
}

func (d *double) Problem(_ context.Context, c kernelwright.Candidate) (kernelwright.Status, string, error) {
	if strings.Contains(c.Source, "class ModelNew(\n") {
		return kernelwright.BuildFailed, "line 1: not valid Python", nil
	}
	return "", "", nil
}

// Given tells the form that the tests' functional references have.
func (d *double) Given(_ context.Context, source string) (string, error) {
	if d.fail != nil {
		if err := d.fail("given " + source); err != nil {
			return "", err
		}
	}
	if strings.Contains(source, "fn=module_fn") {
		return "fn", nil
	}
	return "", nil
}

func (d *double) Inspect(_ context.Context, name, source string) (kernelwright.Task, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.inspected[source]++
	if d.fail != nil {
		if err := d.fail(source); err != nil {
			return kernelwright.Task{}, err
		}
	}
	if strings.Contains(source, "no task") {
		return kernelwright.Task{}, &kernelwright.InvalidTaskError{Reason: "it is no task"}
	}
	return kernelwright.Task{Name: name, Source: source}, nil
}

// Explain says of what is rejected that it would be right.
func (d *double) Explain(_ context.Context, _ kernelwright.Task, c kernelwright.Candidate, _ kernelwright.Level) (kernelwright.Verdict, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.explained++
	if d.fail != nil {
		if err := d.fail("explain " + c.Source); err != nil {
			return kernelwright.Verdict{}, err
		}
	}
	return kernelwright.Verdict{Status: kernelwright.Correct, CandidateMS: 4, Speedup: &kernelwright.Speedup{Value: 2, Low: 1.9, High: 2.1, Against: "eager"}}, nil
}

func (d *double) EvaluateBatch(ctx context.Context, _ kernelwright.Task, cs, then []kernelwright.Candidate, _ kernelwright.Level, yield func(int, kernelwright.Verdict) error) error {
	d.mu.Lock()
	d.largest = max(d.largest, len(cs))
	for _, c := range then {
		d.ahead = append(d.ahead, c.Source)
		if d.evaluated[c.Source] > 0 {
			d.late = append(d.late, c.Source)
		}
	}
	d.mu.Unlock()
	for i, c := range cs {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if d.fail != nil {
			if err := d.fail(c.Source); err != nil {
				return err
			}
		}
		d.mu.Lock()
		d.evaluated[c.Source]++
		d.mu.Unlock()
		v := kernelwright.Verdict{Status: kernelwright.Correct, CandidateMS: 1}
		switch {
		case strings.Contains(c.Source, "cuda()"):
			v = kernelwright.Verdict{Status: kernelwright.Crashed, Reason: "forward raised RuntimeError: Found no NVIDIA driver on your system"}
		case strings.Contains(c.Source, "a rewrite"):
			v = kernelwright.Verdict{Status: kernelwright.Rejected, Candidate: "ab", Reason: "it has no custom code"}
		case strings.Contains(c.Source, "hangs"):
			v = kernelwright.Verdict{Status: kernelwright.TimedOut, Reason: "a forward took over 5 s"}
		}
		if err := yield(i, v); err != nil {
			return err
		}
	}
	return nil
}

// memory is a record.
type memory struct {
	mu   sync.Mutex
	kept map[string]kernelwright.AuditPair // by key
	all  map[string]kernelwright.AuditPair // by labels
}

func newMemory() *memory {
	return &memory{kept: map[string]kernelwright.AuditPair{}, all: map[string]kernelwright.AuditPair{}}
}

func (m *memory) Known(_ context.Context, key string) (kernelwright.Verdict, int64, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, ok := m.kept[key]
	return p.Verdict, 7, ok, nil
}

func (m *memory) Keep(_ context.Context, p kernelwright.AuditPair) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	p.ReferenceText, p.CandidateText = "", ""
	if p.Key != "" {
		m.kept[p.Key] = p
	}
	m.all[p.Reference+"\n"+p.Candidate] = p
	return nil
}

// audited runs an audit and returns the statuses by the base name of the candidate.
func audited(t *testing.T, set Set, r *Run) (map[string]kernelwright.Status, error) {
	t.Helper()
	got := map[string]kernelwright.Status{}
	r.Set, r.Begun = set, func(int, string) {}
	r.Yield = func(p kernelwright.AuditPair, _ bool) error {
		name := filepath.Base(p.Candidate)
		if before, twice := got[name]; twice {
			t.Errorf("%s was told twice: %s, %s", name, before, p.Verdict.Status)
		}
		got[name] = p.Verdict.Status
		return nil
	}
	err := r.Run(t.Context())
	return got, err
}

func found(t *testing.T, files map[string]string) Set {
	t.Helper()
	set, err := Find(lay(t, files), nil)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func TestEachIsNamedAndNeighboursAreUnharmed(t *testing.T) {
	set := found(t, map[string]string{
		"a/reference.py": aReference, "a/right.py": aCandidate, "a/broken.py": "class ModelNew(\n", "a/hangs.py": aCandidate + "# hangs",
		"a/kernel_bytes.py": "\x00\x01\x02", "a/kernel_text.py": "this is no Python", "a/gpu.py": aCandidate + "# x.cuda()", "a/same.py": aCandidate,
		"b/reference.py": aReference + "# no task", "b/never.py": aCandidate, "c/alone.py": aCandidate,
	})
	d, m := newDouble(), newMemory()
	got, err := audited(t, set, &Run{Devices: []Device{d}, Record: m})
	want := map[string]kernelwright.Status{
		"right.py": kernelwright.Correct, "same.py": kernelwright.Correct, "broken.py": kernelwright.BuildFailed, "hangs.py": kernelwright.TimedOut,
		"kernel_bytes.py": kernelwright.Rejected, "kernel_text.py": kernelwright.Rejected, "gpu.py": kernelwright.NeedsGPU,
		"never.py": kernelwright.Invalid, "alone.py": kernelwright.NoReference,
	}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v\nwant %v", got, err, want)
	}
	if n := d.evaluated[aCandidate]; n != 1 {
		t.Errorf("the same bytes were evaluated %d times", n)
	}
	// Once more: all of it is known, that which hangs too.
	d.evaluated = map[string]int{}
	again, err := audited(t, set, &Run{Devices: []Device{d}, Record: m})
	if err != nil || !maps.Equal(again, want) || len(d.evaluated) != 0 {
		t.Errorf("again: %v, %v, evaluated %v", again, err, d.evaluated)
	}
	// On a GPU such a failure is the candidate's own.
	d.kind = kernelwright.CUDADevice
	if got, _ = audited(t, set, &Run{Devices: []Device{d}, Record: newMemory()}); got["gpu.py"] != kernelwright.Crashed {
		t.Error(got["gpu.py"])
	}
}

// A reference is looked at only for candidates that must run.
func TestBrokenCandidatesNeedNoDevice(t *testing.T) {
	d := newDouble()
	_, err := audited(t, found(t, map[string]string{"a/reference.py": aReference, "a/b.py": "class ModelNew(\n"}), &Run{Devices: []Device{d}, Record: newMemory()})
	if err != nil || len(d.inspected) != 0 {
		t.Error(d.inspected, err)
	}
}

// What the texts say by themselves is the same before a device is opened and on one.
func TestTextsAlone(t *testing.T) {
	const noTask = "class Model: pass\ndef get_inputs(): pass\n"
	set := found(t, map[string]string{
		"good/reference.py": aReference, "good/kernel.py": aCandidate, "none/reference.py": aReference, "none/kernel.py": "class Kernel: pass\n",
		"half/reference.py": noTask, "half/kernel.py": aCandidate, "lone/kernel.py": aCandidate, "bytes/reference.py": aReference, "bytes/kernel.py": "\x00",
		"strange/a.py": "import os\n", "strange/b.py": "import os\n", "also/c.py": "import os\n", "bare/reference.py": noTask, "bare/kernel.cu": "__global__",
	})
	want := map[string]kernelwright.Status{
		"none/kernel.py": kernelwright.Rejected, "half/kernel.py": kernelwright.Invalid, "lone/kernel.py": kernelwright.NoReference, "bytes/kernel.py": kernelwright.Rejected, set.Pairs[len(set.Pairs)-1].Candidate.Label: kernelwright.Unrecognised,
	}
	name := func(label string) string {
		if filepath.Ext(label) == "" { // of what was left out
			return label
		}
		return filepath.Base(filepath.Dir(label)) + "/" + filepath.Base(label)
	}
	got := map[string]kernelwright.Status{}
	for _, u := range set.Untried(t.Context()) {
		got[name(u.Candidate.Label)] = u.Status
		if u.Status == kernelwright.Unrecognised && (u.IsPair() || u.Why.Error() != "3 Python files in 2 folders are neither a reference nor a candidate: also/c.py, strange/a.py, strange/b.py") {
			t.Error(u.Why)
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if n := set.Count(); n != len(set.Pairs)-1 || set.First(2).Count() != 2 || len(set.First(2).Pairs) != 3 {
		t.Errorf("%d pairs of %d", n, len(set.Pairs))
	}
	d := newDouble()
	evaluated := map[string]kernelwright.Status{}
	r := &Run{Set: set, Devices: []Device{d}, Record: newMemory(), Begun: func(int, string) {}, Yield: func(p kernelwright.AuditPair, _ bool) error {
		evaluated[name(p.Candidate)] = p.Verdict.Status
		return nil
	}}
	if err := r.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for label, status := range want {
		if evaluated[label] != status {
			t.Errorf("%s: %s on a device, %s before", label, evaluated[label], status)
		}
	}
	if len(d.inspected) != 1 || evaluated["good/kernel.py"] != kernelwright.Correct {
		t.Errorf("inspected %v; %v", d.inspected, evaluated)
	}
	// Where no pair needs a device there is none.
	set.Pairs = slices.DeleteFunc(set.Pairs, func(p Pair) bool { return want[name(p.Candidate.Label)] == "" })
	r = &Run{Set: set, Devices: []Device{NoDevice{}}, Record: newMemory(), Begun: r.Begun, Yield: r.Yield}
	if err := r.Run(t.Context()); err != nil {
		t.Error(err)
	}
}

// Thousands of pairs: texts are not held, and the same bytes are evaluated once.
func TestThousandsOfPairs(t *testing.T) {
	const pairs, filler = 4000, 1500
	dir := t.TempDir()
	var b strings.Builder
	long := "# " + strings.Repeat("x", filler) + "\\n"
	for i := range pairs {
		candidate := "class ModelNew:\\n    pass\\n" + long
		switch {
		case i == 17:
			candidate += "# hangs\\n"
		case i%3 == 1:
			candidate = "class ModelNew(\\n" + long
		case i%3 == 2:
			candidate = fmt.Sprintf("nothing %d\\n", i) + long
		}
		fmt.Fprintf(&b, `{"reference": "class Model: pass\nget_inputs = get_init_inputs = list\n", "candidate": "%s", "claimed": 2}`+"\n", candidate)
	}
	path := filepath.Join(dir, "set.jsonl")
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	b.Reset()
	set, err := Find(path, nil)
	if err != nil || len(set.Pairs) != pairs {
		t.Fatal(len(set.Pairs), err)
	}
	d := newDouble()
	r := &Run{Devices: []Device{d}, Record: &statuses{of: map[string]kernelwright.Status{}}}
	counts := map[kernelwright.Status]int{}
	inUse := func() int64 {
		runtime.GC()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return int64(s.HeapAlloc) //nolint:gosec // far below
	}
	before, most, told := inUse(), int64(0), 0
	r.Set, r.Begun = set, func(int, string) {}
	r.Yield = func(p kernelwright.AuditPair, _ bool) error {
		counts[p.Verdict.Status]++
		if told++; told%500 == 0 {
			most = max(most, inUse())
		}
		return nil
	}
	if err := r.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if counts[kernelwright.Correct] != (pairs+2)/3 || counts[kernelwright.TimedOut] != 1 || counts[kernelwright.BuildFailed]+counts[kernelwright.Rejected]+counts[kernelwright.Correct]+1 != pairs {
		t.Errorf("%v", counts)
	}
	if len(d.evaluated) != 2 || d.inspected["class Model: pass\nget_inputs = get_init_inputs = list\n"] != 1 || d.largest > chunkPairs {
		t.Errorf("evaluated %d texts, inspected %v, at most %d at once", len(d.evaluated), d.inspected, d.largest)
	}
	// The texts are over 6 MB together.
	if most-before > 3<<20 {
		t.Errorf("%d kB more were in use", (most-before)>>10)
	}
}

// statuses is a record that holds next to nothing.
type statuses struct {
	of map[string]kernelwright.Status
}

func (s *statuses) Known(_ context.Context, key string) (kernelwright.Verdict, int64, bool, error) {
	status, known := s.of[key]
	return kernelwright.Verdict{Status: status}, 7, known, nil
}

func (s *statuses) Keep(_ context.Context, p kernelwright.AuditPair) error {
	s.of[p.Key] = p.Verdict.Status
	return nil
}

// What the machine fails on is told and not recorded, and the rest goes on.
func TestAFailureOfTheMachine(t *testing.T) {
	set := found(t, map[string]string{"a/reference.py": aReference, "a/1.py": aCandidate + "# 1", "a/2.py": aCandidate + "# bad", "a/3.py": aCandidate + "# 3"})
	d, m := newDouble(), newMemory()
	d.fail = func(source string) error {
		if strings.Contains(source, "# bad") {
			return &kernelwright.InfrastructureError{Op: "evaluate", Err: errors.New("the disk is full")}
		}
		return nil
	}
	got, err := audited(t, set, &Run{Devices: []Device{d}, Record: m})
	var failed *FailedError
	if !errors.As(err, &failed) || failed.Pairs != 1 || got["2.py"] != kernelwright.NotEvaluated || got["1.py"] != kernelwright.Correct || got["3.py"] != kernelwright.Correct {
		t.Errorf("%v, %v", got, err)
	}
	if len(m.all) != 2 {
		t.Errorf("%v", slices.Collect(maps.Keys(m.all)))
	}
	d.fail = nil
	if got, err = audited(t, set, &Run{Devices: []Device{d}, Record: m}); err != nil || got["2.py"] != kernelwright.Correct {
		t.Errorf("again: %v, %v", got, err)
	}
}

// A device on which pair after pair fails is left, and another takes its pairs.
func TestADeviceThatFailsIsLeft(t *testing.T) {
	files := map[string]string{}
	for i := range 9 {
		files[fmt.Sprintf("%d/reference.py", i)] = aReference + fmt.Sprintf("# %d", i)
		for k := range 5 {
			files[fmt.Sprintf("%d/c%d_%d.py", i, i, k)] = aCandidate + fmt.Sprintf("# %d %d", i, k)
		}
	}
	set := found(t, files)
	sick, well := newDouble(), newDouble()
	sick.fail = func(string) error {
		return &kernelwright.InfrastructureError{Op: "evaluate", Err: errors.New("no more")}
	}
	got, err := audited(t, set, &Run{Devices: []Device{sick}, Record: newMemory()})
	var failed *FailedError
	if !errors.As(err, &failed) || failed.Pairs != 45 || len(got) != maxFailures {
		t.Errorf("alone: %d told, %v", len(got), err)
	}
	gone := make(chan struct{})
	once := sync.OnceFunc(func() { close(gone) })
	tries := 0
	sick.fail = func(string) error {
		if tries++; tries == maxFailures {
			once()
		}
		return &kernelwright.InfrastructureError{Op: "evaluate", Err: errors.New("no more")}
	}
	well.fail = func(string) error { <-gone; return nil } // the other one has begun
	got, err = audited(t, set, &Run{Devices: []Device{sick, well}, Record: newMemory()})
	if !errors.As(err, &failed) || failed.Pairs < maxFailures || len(got) < 40 {
		t.Errorf("with another: %d told, %v", len(got), err)
	}
}

// A GPU is told what comes next, and evaluates that; nothing is evaluated twice or left.
func TestAGPUKnowsWhatComesNext(t *testing.T) {
	files := map[string]string{}
	for i := range 20 {
		files[fmt.Sprintf("%02d/reference.py", i)] = aReference + fmt.Sprintf("# %d", i)
		for k := range 2 {
			files[fmt.Sprintf("%02d/c%02d_%d.py", i, i, k)] = aCandidate + fmt.Sprintf("# %d %d", i, k)
		}
	}
	files["03/c03_1.py"] = "class ModelNew(\n"
	set := found(t, files)
	for _, kind := range []kernelwright.DeviceKind{kernelwright.CPUDevice, kernelwright.CUDADevice} {
		one, other := newDouble(), newDouble()
		one.kind, other.kind = kind, kind
		known := newMemory()
		got, err := audited(t, set, &Run{Devices: []Device{one, other}, Record: known})
		if err != nil || len(got) != len(files)-20 || len(one.evaluated)+len(other.evaluated) != len(got)-1 {
			t.Errorf("%s: %d told, %d and %d evaluated, %v", kind, len(got), len(one.evaluated), len(other.evaluated), err)
		}
		for _, d := range []*double{one, other} {
			if len(d.late) > 0 || kind == kernelwright.CPUDevice && len(d.ahead) > 0 {
				t.Errorf("%s: %q came later, of which %q was evaluated", kind, d.ahead, d.late)
			}
			for _, source := range d.ahead {
				if d.evaluated[source] != 1 {
					t.Errorf("%s: %q was to come, and was evaluated %d times", kind, source, d.evaluated[source])
				}
			}
		}
		if n := len(one.ahead) + len(other.ahead); kind == kernelwright.CUDADevice && n < 20 {
			t.Errorf("of %d candidates it was said that they come", n)
		}
		one.ahead = nil
		if _, err := audited(t, set, &Run{Devices: []Device{one}, Record: known}); err != nil || len(one.ahead) > 0 {
			t.Errorf("what is known comes again: %q, %v", one.ahead, err)
		}
	}
}

// Stopped in between, a run loses what it had not evaluated and nothing else.
func TestAStoppedRunGoesOn(t *testing.T) {
	files := map[string]string{"a/reference.py": aReference}
	for i := range 50 {
		files[fmt.Sprintf("a/%02d.py", i)] = aCandidate + fmt.Sprintf("# %d", i)
	}
	set := found(t, files)
	d, m := newDouble(), newMemory()
	ctx, cancel := context.WithCancel(t.Context())
	told := 0
	r := &Run{Set: set, Devices: []Device{d}, Record: m, Begun: func(int, string) {}, Yield: func(kernelwright.AuditPair, bool) error {
		if told++; told == 20 {
			cancel()
		}
		return nil
	}}
	if err := r.Run(ctx); !errors.Is(err, context.Canceled) || len(m.all) != 20 {
		t.Fatalf("%v, %d kept", err, len(m.all))
	}
	if _, err := audited(t, set, &Run{Devices: []Device{d}, Record: m}); err != nil {
		t.Fatal(err)
	}
	for text, n := range d.evaluated {
		if n != 1 {
			t.Errorf("%q was evaluated %d times", text, n)
		}
	}
	if len(d.evaluated) != 50 {
		t.Error(len(d.evaluated))
	}
}

// What policy rejects has its figures beside the verdict, once; where they cannot
// be had the verdict stands, and where the run is ended both are asked for again.
func TestRejectedCandidatesAreExplained(t *testing.T) {
	set := found(t, map[string]string{"a/reference.py": aReference, "a/right.py": aCandidate, "a/rewrite.py": aCandidate + "# a rewrite"})
	for _, policy := range []string{"any", "required"} {
		d, m := newDouble(), newMemory()
		r := &Run{Audit: kernelwright.Audit{CustomCode: policy}, Devices: []Device{d}, Record: m}
		for range 2 {
			if _, err := audited(t, set, r); err != nil {
				t.Fatal(err)
			}
		}
		v := m.all[set.Pairs[0].Reference.Label+"\n"+filepath.Join(filepath.Dir(set.Pairs[0].Candidate.Label), "rewrite.py")].Verdict
		explained := policy == "required"
		if v.Status != kernelwright.Rejected || (v.Explained != nil) != explained || explained && (v.CandidateMS != 4 || v.Speedup.Value != 2 || d.explained != 1) {
			t.Errorf("%s: %+v, explained %d times", policy, v, d.explained)
		}
	}
	d, m := newDouble(), newMemory()
	d.fail = func(text string) error {
		if strings.HasPrefix(text, "explain") {
			return &kernelwright.InfrastructureError{Op: "evaluate", Err: errors.New("the device has gone")}
		}
		return nil
	}
	if got, err := audited(t, set, &Run{Audit: kernelwright.Audit{CustomCode: "required"}, Devices: []Device{d}, Record: m}); err != nil || got["rewrite.py"] != kernelwright.Rejected {
		t.Errorf("%v, %v", got, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	d, m = newDouble(), newMemory()
	d.fail = func(text string) error {
		if strings.HasPrefix(text, "explain") {
			cancel()
			return ctx.Err()
		}
		return nil
	}
	r := &Run{Audit: kernelwright.Audit{CustomCode: "required"}, Set: set, Devices: []Device{d}, Record: m, Begun: func(int, string) {}, Yield: func(kernelwright.AuditPair, bool) error { return nil }}
	if err := r.Run(ctx); !errors.Is(err, context.Canceled) || len(m.all) != 1 {
		t.Errorf("ended: %v, %d kept", err, len(m.all))
	}
}
