package hwfeedback

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright"
)

// opened is an Evaluator of Options.Lazy, over a Python of some stamp.
func opened(t *testing.T, data, stamp string, cache *memoryCache, start func(context.Context) (*forkServer, error)) bench {
	t.Helper()
	e := &Evaluator{cache: cache, env: pythonEnv{Interpreter: "/a/python", Stamp: stamp}}
	return openBenchAs(t, Options{DataDir: data, Lazy: true}, e, start)
}

// counted is a start, with how often it was asked for.
func counted(t *testing.T) (start func(context.Context) (*forkServer, error), starts *int) {
	real, n := double(t, ""), 0
	return func(ctx context.Context) (*forkServer, error) {
		n++
		return real(ctx)
	}, &n
}

// held has the device measured on by somebody, as long as the test.
func held(t *testing.T, b bench) Lease {
	t.Helper()
	other := &FileLeases{Dir: b.turn.leases.(*FileLeases).Dir}
	lease, err := other.Acquire(t.Context(), b.device.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lease.Release() })
	return lease
}

// What is in the record is answered from there: nobody is waited for, nothing is
// measured, and no process starts. Under other settings it is no answer.
func TestARememberedVerdictStartsNothing(t *testing.T) {
	data, cache := t.TempDir(), &memoryCache{}
	start, starts := counted(t)
	first := opened(t, data, "stamp", cache, start)
	task, err := first.Inspect(t.Context(), "relu", "reference")
	if err != nil {
		t.Fatal(err)
	}
	cand := kernelwright.Candidate{Source: "good"}
	want, err := first.Evaluate(t.Context(), task, cand, kernelwright.Quick)
	if err != nil || want.Cached || first.count("ceilings") != 1 {
		t.Fatalf("%+v, %v", want, err)
	}
	first.Close()

	second := opened(t, data, "stamp", cache, start)
	defer held(t, second).Release()
	known, found := second.Inspected(t.Context(), "another name", "reference")
	if !found || known.Name != "another name" || known.Fingerprint != task.Fingerprint {
		t.Fatalf("the task is not known: %+v", known)
	}
	got, err := second.Evaluate(t.Context(), known, cand, kernelwright.Quick)
	want.Cached = true
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
	if *starts != 1 || second.count("ceilings") != 1 {
		t.Errorf("%d starts, ceilings were measured %d times", *starts, second.count("ceilings"))
	}
	if second.Device().Ceilings.MemoryGBs != first.Device().Ceilings.MemoryGBs {
		t.Error("the ceilings that are known are not told")
	}
	for name, o := range map[string]Options{
		"strict inputs": {StrictInputs: true}, "another policy": {CustomCode: "any"}, "fewer baselines": {Baselines: []string{"eager"}}, "threads": {Threads: 1 + second.threads},
		"weak": {Sandbox: "weak"},
	} {
		o.DataDir, o.Lazy = data, true
		other := openBenchAs(t, o, &Evaluator{cache: cache, env: second.env}, start)
		key := other.verdictKey(known, cand, kernelwright.Quick, nil)
		if _, found := other.recallVerdict(t.Context(), key, ""); found {
			t.Errorf("%s: another's verdict was returned", name)
		}
	}
}

// Where the interpreter or PyTorch may be another, the server is asked; and what it
// says decides, also when files were changed behind our back.
func TestVersionsAreThoseOfTheServer(t *testing.T) {
	data, cache := t.TempDir(), &memoryCache{}
	start, starts := counted(t)
	for i, stamp := range []string{"one", "one", "two", "", ""} {
		b := opened(t, data, stamp, cache, start)
		if want := []int{1, 1, 2, 3, 4}[i]; *starts != want || b.Versions()["torch"] != "double" {
			t.Errorf("open %d: %d starts, want %d; torch %q", i, *starts, want, b.Versions()["torch"])
		}
		b.Close()
	}
	remember(t.Context(), cache, openBench(t, data, cache).options.Log, cacheVersions, "/a/python", knownVersions{"three", map[string]string{"python": "3", "torch": "older"}})
	b := opened(t, data, "three", cache, start)
	if b.Versions()["torch"] != "older" {
		t.Fatalf("got %v", b.Versions())
	}
	_, err := b.Evaluate(t.Context(), aTask, kernelwright.Candidate{Source: "good"}, kernelwright.Quick)
	var setup *SetupError
	if !errors.As(err, &setup) || setup.Reason != "torch was older and is double now: it was changed meanwhile" || setup.Hint == "" {
		t.Errorf("a verdict under other versions: %v", err)
	}
	b.Close()
	again := opened(t, data, "three", cache, start)
	if v := again.evaluate("good", kernelwright.Quick); v.Versions["torch"] != "double" || v.Cached {
		t.Errorf("got %+v", v)
	}
}

// What PyTorch's files say of its version is taken where nobody has said it, and held
// against the server that is started.
func TestVersionsThatFilesSay(t *testing.T) {
	for name, c := range map[string]struct {
		says   said
		stamp  string
		starts int
		fails  bool
	}{
		"as the server":          {said{"3", "double"}, "stamp", 0, false},
		"another one":            {said{"3", "older"}, "stamp", 0, true},
		"half of it":             {said{"", "older"}, "stamp", 1, false},
		"nothing to hold it to":  {said{"3", "older"}, "", 1, false},
		"the file says it oddly": {said{"3", ""}, "stamp", 1, false},
	} {
		start, starts := counted(t)
		cache := &memoryCache{}
		open := func() bench {
			e := &Evaluator{cache: cache, env: pythonEnv{Interpreter: "/a/python", Stamp: c.stamp, Says: c.says}}
			return openBenchAs(t, Options{DataDir: t.TempDir(), Lazy: true}, e, start)
		}
		b := open()
		if *starts != c.starts {
			t.Errorf("%s: %d starts, want %d", name, *starts, c.starts)
		}
		_, err := b.Evaluate(t.Context(), aTask, kernelwright.Candidate{Source: "good"}, kernelwright.Quick)
		var setup *SetupError
		if c.fails != errors.As(err, &setup) || !c.fails && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		b.Close()
		if v := open().evaluate("good", kernelwright.Quick); v.Versions["torch"] != "double" {
			t.Errorf("%s: then the verdict is of torch %q", name, v.Versions["torch"])
		}
	}
}

// What needs no device is remembered too, of a reference that nobody has inspected:
// no process starts for it.
func TestACompileErrorIsRemembered(t *testing.T) {
	cache := &memoryCache{}
	start, starts := counted(t)
	bad := kernelwright.Candidate{Source: "compile_error"}
	for i, c := range []struct {
		again     bool
		reference string
		cached    bool
	}{{false, "new", false}, {false, "new", true}, {true, "new", false}, {false, "another", false}} {
		e := &Evaluator{cache: cache, env: pythonEnv{Interpreter: "/a/python", Stamp: "stamp", Says: said{"3", "double"}}}
		b := openBenchAs(t, Options{DataDir: t.TempDir(), Lazy: true, Again: c.again}, e, start)
		before := *starts
		v, err := b.Precheck(t.Context(), "new", c.reference, bad, kernelwright.Quick)
		if err != nil || v == nil || v.Status != kernelwright.BuildFailed || v.Cached != c.cached || (*starts == before) != c.cached {
			t.Errorf("%d: %+v, %v, %d starts", i, v, err, *starts-before)
		}
		b.Close()
	}
}

// A candidate that does not build is told beside who measures, with nothing measured:
// neither the reference nor what the device can reach.
func TestACompileErrorWaitsForNobody(t *testing.T) {
	t.Parallel() // it waits
	b := opened(t, t.TempDir(), "", &memoryCache{}, double(t, ""))
	lease := held(t, b)
	bad := kernelwright.Candidate{Source: "compile_error"}
	v := b.evaluate(bad.Source, kernelwright.Certify)
	if v.Status != kernelwright.BuildFailed || v.Reason != "so" || v.Build.Errors[0].Line != 3 || v.Language != kernelwright.CPP || v.Task != aTask.Fingerprint ||
		v.Evidence[0] != "-O9 was dropped" || v.Baselines == nil || v.CostS["build"] <= 0 || v.Correctness.Precision != "float32" || v.Level != kernelwright.Certify {
		t.Errorf("got %+v", v)
	}
	pre, err := b.Precheck(t.Context(), "new", "never inspected", bad, kernelwright.Quick)
	if err != nil || pre == nil || pre.Status != kernelwright.BuildFailed || pre.Task != "never inspected" {
		t.Errorf("got %+v, %v", pre, err)
	}
	if pre, err = b.Precheck(t.Context(), "new", "never inspected", kernelwright.Candidate{Source: "good"}, kernelwright.Quick); pre != nil || err != nil {
		t.Errorf("it can be run: %+v, %v", pre, err)
	}
	if pre, err = b.Precheck(t.Context(), "new", "x", kernelwright.Candidate{Source: "\xff"}, kernelwright.Quick); err != nil || pre.Status != kernelwright.Rejected {
		t.Errorf("got %+v, %v", pre, err)
	}
	if pre, err = b.Precheck(t.Context(), "new", "x", kernelwright.Candidate{Source: "die_ahead"}, kernelwright.Quick); pre != nil || err != nil {
		t.Errorf("who breaks down is left to its evaluation: %+v, %v", pre, err)
	}
	var invalid *kernelwright.InvalidTaskError
	for _, reference := range []string{"broken", "\xff"} {
		if _, err = b.Precheck(t.Context(), "new", reference, bad, kernelwright.Quick); !errors.As(err, &invalid) || invalid.Hint == "" {
			t.Errorf("%q: %v", reference, err)
		}
	}
	var waits *HeldError
	if _, err := b.Evaluate(b.whenWaitedFor(), aTask, kernelwright.Candidate{Source: "good"}, kernelwright.Quick); !errors.As(err, &waits) {
		t.Errorf("it was measured beside somebody: %v", err)
	}
	if n := b.count("ceilings") + b.count("inspect") + b.count("evaluate"); n != 0 {
		t.Errorf("%d things were measured", n)
	}
	if err := lease.Release(); err != nil {
		t.Fatal(err)
	}
	ahead := b.count("build_ahead")
	for _, source := range []string{"good", "good # another", "compile_error # another"} {
		b.evaluate(source, kernelwright.Quick)
	}
	// The first is built before the ceilings are measured; nobody is in the way of the others.
	if b.count("ceilings") != 1 || b.count("evaluate") != 3 || b.count("build_ahead") != ahead+1 {
		t.Errorf("ceilings %d times, %d evaluations, %d built ahead", b.count("ceilings"), b.count("evaluate"), b.count("build_ahead")-ahead)
	}
}

// While PyTorch is imported the device is free for whoever wants to measure.
func TestNobodyHasTheDeviceWhileAServerStarts(t *testing.T) {
	data, cache := t.TempDir(), &memoryCache{}
	real := double(t, "")
	first := opened(t, data, "stamp", cache, real)
	task, err := first.Inspect(t.Context(), "relu", "reference")
	if err != nil {
		t.Fatal(err)
	}
	first.evaluate("good", kernelwright.Quick)
	first.Close()
	leases, starts := first.turn.leases, 0
	start := func(ctx context.Context) (*forkServer, error) {
		starts++
		if !isFree(t, leases, "cpu", true) {
			t.Error("the device is held")
		}
		return real(ctx)
	}
	ask := map[string]func(b bench) error{
		"a verdict": func(b bench) error {
			_, err := b.Evaluate(t.Context(), task, kernelwright.Candidate{Source: "good"}, kernelwright.Quick)
			return err
		},
		"an inspection": func(b bench) error {
			_, err := b.Inspect(t.Context(), "relu", "another reference")
			return err
		},
	}
	for name, asks := range ask {
		starts = 0
		e := &Evaluator{cache: cache, env: first.env}
		b := openBenchAs(t, Options{DataDir: data, Lazy: true, Again: true}, e, start)
		if err := asks(b); err != nil || starts != 1 {
			t.Errorf("%s: %v, %d starts", name, err, starts)
		}
		b.Close()
	}
}

// Two measurements of a busy machine are an hour apart, whoever asks meanwhile.
func TestCeilingsServeForAnHour(t *testing.T) {
	data, cache := t.TempDir(), &memoryCache{}
	if err := os.MkdirAll(filepath.Join(data, "cache"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(data, "cache", "busy"), []byte("4"), 0o600); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	for i, step := range []struct {
		after    time.Duration
		lazy     bool
		measured int
	}{
		{0, false, 1},
		{time.Minute, false, 1},
		{ceilingsAgain - time.Millisecond, true, 1},
		{ceilingsAgain, true, 2}, // which saw nothing more
		{ceilingsAgain + time.Minute, false, 2},
		{ceilingsAgain - time.Minute, false, 3}, // the clock was put back
	} {
		e := &Evaluator{cache: cache, now: func() time.Time { return begun.Add(step.after) }}
		b := openBenchAs(t, Options{DataDir: data, Lazy: step.lazy}, e, double(t, ""))
		b.evaluate("good # "+strings.Repeat("x", i), kernelwright.Quick)
		if n := b.count("ceilings"); n != step.measured {
			t.Errorf("step %d: measured %d times, want %d", i, n, step.measured)
		}
		if b.Device().Ceilings.MeasuredMS != 1 {
			t.Errorf("step %d: verdicts were forgotten for nothing", i)
		}
		b.Close()
	}
}

// A verdict is remembered under the ceilings that were measured for it.
func TestAVerdictIsKeptUnderItsCeilings(t *testing.T) {
	data, cache := t.TempDir(), &memoryCache{}
	b := opened(t, data, "stamp", cache, double(t, ""))
	b.evaluate("good", kernelwright.Quick)
	b.Close()
	again := opened(t, data, "stamp", cache, double(t, ""))
	if !again.evaluate("good", kernelwright.Quick).Cached || again.count("evaluate") != 1 {
		t.Error("it was measured again")
	}
	if !maps.Equal(b.Versions(), again.Versions()) {
		t.Errorf("%v, then %v", b.Versions(), again.Versions())
	}
}

// What does not compile is told by a server without torch, and no other one starts.
// What that cannot tell, and whatever goes wrong with it, is left to the other.
func TestACompileErrorWaitsForNoTorch(t *testing.T) {
	for name, c := range map[string]struct {
		source string // of the candidate
		mode   string // of the server without torch
		starts int    // of the other one
		status kernelwright.Status
	}{
		"a compile error":       {"compile_error", "", 0, kernelwright.BuildFailed},
		"one that may run":      {"good", "", 1, kernelwright.Correct},
		"a server that is none": {"compile_error", "no_torch", 1, kernelwright.BuildFailed},
	} {
		t.Run(name, func(t *testing.T) {
			start, starts := counted(t)
			early := newEarlyBuilds(double(t, c.mode), func() error { return nil }, nil, slog.New(slog.DiscardHandler))
			cache := &memoryCache{}
			remember(t.Context(), cache, slog.New(slog.DiscardHandler), cacheVersions, "/a/python", knownVersions{"stamp", map[string]string{"python": "3", "torch": "double"}})
			e := &Evaluator{cache: cache, env: pythonEnv{Interpreter: "/a/python", Stamp: "stamp"}, early: early}
			b := openBenchAs(t, Options{DataDir: t.TempDir(), Lazy: true}, e, start)
			if pre, err := b.Precheck(t.Context(), "new", "reference", kernelwright.Candidate{Source: "compile_error"}, kernelwright.Quick); c.starts == 0 && (err != nil || pre == nil || pre.Task != "reference") {
				t.Errorf("before the reference is known: %+v, %v", pre, err)
			}
			if v := b.evaluate(c.source, kernelwright.Quick); v.Status != c.status {
				t.Errorf("got %+v", v)
			}
			if *starts != c.starts {
				t.Errorf("%d starts, want %d", *starts, c.starts)
			}
		})
	}
}
