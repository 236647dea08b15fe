package hwfeedback

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/hwfeedback/gpu"
)

// memoryCache is a Cache for tests. With broken set every call fails.
type memoryCache struct {
	mu     sync.Mutex
	values map[string][]byte
	broken error
}

func (c *memoryCache) Get(_ context.Context, kind, key string) ([]byte, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.values[kind+" "+key]
	return v, ok, c.broken
}

func (c *memoryCache) Put(_ context.Context, kind, key string, value []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.values == nil {
		c.values = map[string][]byte{}
	}
	c.values[kind+" "+key] = value
	return c.broken
}

// bench is an Evaluator over the protocol double.
type bench struct {
	*Evaluator
	t     *testing.T
	cache *memoryCache
}

func newBench(t *testing.T) bench {
	t.Helper()
	return openBench(t, t.TempDir(), &memoryCache{})
}

func openBench(t *testing.T, data string, cache *memoryCache) bench {
	t.Helper()
	return openBenchWith(t, Options{DataDir: data}, cache)
}

func openBenchWith(t *testing.T, o Options, cache *memoryCache) bench {
	t.Helper()
	return openBenchAs(t, o, &Evaluator{cache: cache}, double(t, ""))
}

// always gives the same start for each referee.
func always(start func(context.Context) (*forkServer, error)) func() func(context.Context) (*forkServer, error) {
	return func() func(context.Context) (*forkServer, error) { return start }
}

// openBenchAs is openBench of an Evaluator of which some is given.
func openBenchAs(t *testing.T, o Options, e *Evaluator, start func(context.Context) (*forkServer, error)) bench {
	t.Helper()
	o, err := o.normalised()
	if err != nil {
		t.Fatal(err)
	}
	cache, _ := e.cache.(*memoryCache)
	e.options, e.harness, e.turn = o, harness{hash: "double"}, newTurn(&FileLeases{Dir: filepath.Join(o.DataDir, "leases")}, 0)
	if e, err = open(t.Context(), e, always(start)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return bench{e, t, cache}
}

// count tells how often the referee was asked, over all its lives.
func (b bench) count(kind string) int {
	content, err := os.ReadFile(filepath.Join(b.cacheDir(), "count."+kind))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		b.t.Fatal(err)
	}
	return len(content)
}

var aTask = kernelwright.Task{Fingerprint: "task", Name: "relu", Source: "reference", Flags: []kernelwright.TaskFlag{kernelwright.FlagIllConditioned}}

// whenWaitedFor is over as soon as somebody waits for the device.
func (b bench) whenWaitedFor() context.Context {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		for ctx.Err() == nil && !b.turn.leases.Wanted(b.device.String()) {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	b.t.Cleanup(func() { cancel(); <-over })
	return ctx
}

func (b bench) evaluate(source string, level kernelwright.Level) kernelwright.Verdict {
	b.t.Helper()
	v, err := b.Evaluate(b.t.Context(), aTask, kernelwright.Candidate{Source: source}, level)
	if err != nil {
		b.t.Fatal(err)
	}
	return v
}

func TestABatchIsEvaluatedInOrder(t *testing.T) {
	b := newBench(t)
	var cands []kernelwright.Candidate
	for _, s := range []string{"good", "good", "good # x", "good # y", "good # z"} {
		cands = append(cands, kernelwright.Candidate{Source: s})
	}
	var got []int
	err := b.EvaluateBatch(t.Context(), aTask, cands, kernelwright.Quick, func(i int, v kernelwright.Verdict) error {
		got = append(got, i)
		if v.Status != kernelwright.Correct || v.Cached != (i == 1) {
			t.Errorf("candidate %d: %s, cached: %v", i, v.Status, v.Cached)
		}
		return nil
	})
	if err != nil || !slices.Equal(got, []int{0, 1, 2, 3, 4}) {
		t.Errorf("evaluated %v: %v", got, err)
	}
	// What comes next is read while one is evaluated: only the first and the last are asked about.
	if n := b.count("parse"); n != 2 {
		t.Errorf("candidates were read %d times", n)
	}
	enough := errors.New("enough")
	if err := b.EvaluateBatch(t.Context(), aTask, cands, kernelwright.Quick, func(int, kernelwright.Verdict) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("it went on: %v", err)
	}
	// And what is evaluated after all of them.
	before, evaluated := b.count("parse"), func(int, kernelwright.Verdict) error { return nil }
	then := []kernelwright.Candidate{{Source: "good # b"}, {Source: "good # c"}}
	if err := b.EvaluateBatchThen(t.Context(), aTask, []kernelwright.Candidate{{Source: "good # a"}}, then, kernelwright.Quick, evaluated); err != nil {
		t.Error(err)
	}
	if err := b.EvaluateBatch(t.Context(), aTask, then[:1], kernelwright.Quick, evaluated); err != nil || b.count("parse") != before+1 {
		t.Errorf("what comes then was read %d times, %v", b.count("parse")-before, err)
	}
	large := kernelwright.Candidate{Source: strings.Repeat("x", upcomingBytes)}
	if n := len(upcoming([]kernelwright.Candidate{large, large})); n != 1 {
		t.Errorf("%d large ones are sent ahead", n)
	}
	if n := len(upcoming(make([]kernelwright.Candidate, 100))); n != maxUpcoming {
		t.Errorf("%d of a hundred are sent ahead", n)
	}
}

// A referee that dies while the ceilings are measured is no broken machine,
// unless it dies each time.
func TestMeasuringCeilingsIsTriedAgain(t *testing.T) {
	for deaths, works := range map[string]bool{"0": true, "1": true, "2": true, "3": false} {
		data := t.TempDir()
		if err := os.MkdirAll(filepath.Join(data, "cache"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(data, "cache", "deaths"), []byte(deaths), 0o600); err != nil {
			t.Fatal(err)
		}
		o, err := Options{DataDir: data}.normalised()
		if err != nil {
			t.Fatal(err)
		}
		e, err := open(t.Context(), &Evaluator{options: o, cache: &memoryCache{}, turn: newTurn(&FileLeases{Dir: filepath.Join(data, "leases")}, 0)}, always(double(t, "")))
		var infra *kernelwright.InfrastructureError
		if works != (err == nil) || (err != nil && (!errors.As(err, &infra) || !strings.Contains(err.Error(), "the referee died"))) {
			t.Errorf("%s deaths: %v", deaths, err)
		}
		if err == nil {
			e.Close()
		}
	}
}

func TestOpenMeasuresCeilingsOnce(t *testing.T) {
	b := newBench(t)
	if d := b.Device(); d.Ceilings.MemoryGBs != 10 || d.Kind != kernelwright.CPUDevice || !strings.HasPrefix(d.Key, "cpu-") || d.Name == "" {
		t.Errorf("got %+v", d)
	}
	if b.Versions()["torch"] != "double" || b.Versions()["kernelwright"] != kernelwright.Version {
		t.Errorf("got %v", b.Versions())
	}
	if err := errors.Join(b.Close(), b.Close()); err != nil {
		t.Fatal(err)
	}
	again := openBench(t, b.options.DataDir, b.cache)
	if again.count("ceilings") != 1 || !reflect.DeepEqual(again.Device().Ceilings, b.Device().Ceilings) {
		t.Errorf("measured %d times", again.count("ceilings"))
	}
}

// Ceilings from a busy machine are measured again after an hour until one is
// quiet; what was seen before is not lost.
func TestCeilingsOfABusyMachineAreMeasuredAgain(t *testing.T) {
	data, cache := t.TempDir(), &memoryCache{}
	busy := filepath.Join(data, "cache", "busy")
	if err := os.MkdirAll(filepath.Dir(busy), 0o700); err != nil {
		t.Fatal(err)
	}
	starts := 0
	clock := time.Now()
	start := func(rate string, remeasure bool) bench {
		t.Helper()
		if err := os.WriteFile(busy, []byte(rate), 0o600); err != nil {
			t.Fatal(err)
		}
		if rate == "" {
			if err := os.Remove(busy); err != nil {
				t.Fatal(err)
			}
		}
		starts++
		e := &Evaluator{cache: cache, now: func() time.Time { return clock }}
		return openBenchAs(t, Options{DataDir: data, Remeasure: remeasure}, e, double(t, ""))
	}
	for _, tt := range []struct {
		rate      string // of memory on a busy machine; empty: it is quiet, and the rate is 10
		remeasure bool
		want      float64
		ok        bool
		measured  int
		from      int64 // which measurement they count as
	}{
		{"4", false, 4, false, 1, 1},
		{"3", false, 4, false, 2, 1}, // saw nothing more: they stay what they were
		{"12", false, 12, false, 3, 3},
		{"", false, 12, true, 4, 4},  // quiet at last: the best of all
		{"3", false, 12, true, 4, 4}, // and left at that
		{"3", true, 3, false, 5, 5},  // somebody asks: what was known does not count
		{"", false, 10, true, 6, 6},
	} {
		clock = clock.Add(ceilingsAgain)
		b := start(tt.rate, tt.remeasure)
		check := ceilingsCheck(b.device, b.spread)
		if got := b.Device().Ceilings.MemoryGBs; got != tt.want || check.OK != tt.ok || b.count("ceilings") != tt.measured ||
			b.Device().Ceilings.MeasuredMS != tt.from {
			t.Errorf("start %d: %v GB/s after %d measurements, %+v; want %+v", starts, got, b.count("ceilings"), check, tt)
		}
		if !check.OK && (!strings.Contains(check.Cost, "60 %") || !strings.Contains(check.Cost, "--measure")) {
			t.Errorf("it says %q", check.Cost)
		}
		b.Close()
	}
}

// Other baselines are another verdict, with baselines of its own.
func TestWhatCandidatesAreHeldAgainst(t *testing.T) {
	b := newBench(t)
	if v := b.evaluate("good", kernelwright.Quick); v.Output != "float32 eager compile max-autotune" {
		t.Errorf("asked for %q", v.Output)
	}
	b.Close()
	few := openBenchWith(t, Options{DataDir: b.options.DataDir, Baselines: []string{"eager", "compile"}}, b.cache)
	if v := few.evaluate("good", kernelwright.Quick); v.Cached || v.Output != "float32 eager compile" || v.Evidence[0] != "{'calibration': None, 'baselines': None}" {
		t.Errorf("cached %v, asked for %q, known %s", v.Cached, v.Output, v.Evidence[0])
	}
	few.Close()
	for _, o := range []Options{{Baselines: []string{"compile"}}, {Baselines: []string{"eager", "fast"}}, {Precision: "float16"}, {CustomCode: "none"}} {
		o.DataDir = b.options.DataDir
		var setup *SetupError
		if _, err := o.normalised(); !errors.As(err, &setup) || setup.Hint == "" {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestVerdict(t *testing.T) {
	b := newBench(t)
	v := b.evaluate("good", kernelwright.Quick)
	if v.Status != kernelwright.Correct || v.Cached || v.Level != kernelwright.Quick || v.Task != "task" || v.Candidate != kernelwright.HashText("good") ||
		v.Device != "cpu" || v.DeviceKey != b.Device().Key || v.Language != kernelwright.CPP || v.Build.Form != "native" ||
		v.Sandbox.Mode != "strict" || v.Versions["kernelwright"] != kernelwright.Version || v.CostS["build"] <= 0 || len(v.Flags) != 1 {
		t.Errorf("got %+v", v)
	}
	if len(v.Evidence) != 2 || v.Evidence[1] != "1" {
		t.Errorf("the lease did not arrive: %v", v.Evidence)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	lease, err := b.turn.leases.Acquire(ctx, "cpu")
	if err != nil {
		t.Fatalf("the device was not given back: %v", err)
	}
	lease.Release()
}

func TestACertificateOfAnotherEffortIsAnother(t *testing.T) {
	b := newBench(t)
	for _, level := range []kernelwright.Level{kernelwright.Quick, kernelwright.Certify} {
		b.evaluate("good", level)
	}
	b.Close()
	longer := openBenchWith(t, Options{DataDir: b.options.DataDir, CertifyTime: time.Minute}, b.cache)
	if !longer.evaluate("good", kernelwright.Quick).Cached {
		t.Error("a quick verdict was asked for again")
	}
	if longer.evaluate("good", kernelwright.Certify).Cached {
		t.Error("a certificate of less effort was returned")
	}
	if !longer.evaluate("good", kernelwright.Certify).Cached {
		t.Error("a certificate was asked for again")
	}
}

func TestVerdictIsCached(t *testing.T) {
	b := newBench(t)
	first := b.evaluate("good", kernelwright.Quick)
	second := b.evaluate("good", kernelwright.Quick)
	if !second.Cached || b.count("evaluate") != 1 || second.Status != first.Status || second.Candidate != first.Candidate {
		t.Errorf("got %+v after %d evaluations", second, b.count("evaluate"))
	}
	if b.evaluate("good", kernelwright.Certify).Cached {
		t.Error("a quick verdict passed for a certificate")
	}
	if b.evaluate("better", kernelwright.Quick).Cached {
		t.Error("another candidate's verdict was returned")
	}
	parses := b.count("parse")
	b.evaluate("good", kernelwright.Quick)
	if b.count("parse") != parses {
		t.Error("the same text was parsed again")
	}
}

// The cache knows whether a profile is in a verdict, and which.
func TestVerdictsWithProfiles(t *testing.T) {
	b := newBench(t)
	b.gpu = &gpu.GPU{}
	ask := func(source, profile string, level kernelwright.Level) kernelwright.Verdict {
		b.options.Profile = profile
		return b.evaluate(source, level)
	}
	without := ask("one", "", kernelwright.Quick)
	with := ask("one", SelectedProfile, kernelwright.Quick)
	if without.Profile != nil || with.Cached || with.Profile == nil || with.Profile.Tool != SelectedProfile {
		t.Fatalf("got %+v, then %+v", without.Profile, with.Profile)
	}
	for _, c := range []struct {
		source, profile string
		cached, has     bool
	}{
		{"one", SelectedProfile, true, true},
		{"one", "", true, false},
		{"one", FullProfile, false, true},
		{"one", FullProfile, true, true},
		{"two", SelectedProfile, false, true},
		{"two", "", true, true}, // a profile does no harm to who asks for none
		{"two passing", SelectedProfile, false, true},
		{"two passing", SelectedProfile, false, true}, // it may be better now
		{"two passing", "", true, true},
		{"compile_error", "", false, false},
		{"compile_error", SelectedProfile, true, false}, // no candidate that failed has one
	} {
		v := ask(c.source, c.profile, kernelwright.Quick)
		if v.Cached != c.cached || (v.Profile != nil) != c.has {
			t.Errorf("%q with profile %q: cached %v, profile %+v", c.source, c.profile, v.Cached, v.Profile)
		}
	}
	if v := ask("three", SelectedProfile, kernelwright.Quick); !strings.Contains(v.Evidence[0], "'profile': {'tool': 'ncu'}") {
		t.Errorf("eager's profile did not come back: %s", v.Evidence[0])
	}
	if v := ask("four", FullProfile, kernelwright.Certify); v.Profile != nil {
		t.Error("a certificate has a profile")
	}
	b.options.Profile = SelectedProfile
	full := Profiling{b.Evaluator, FullProfile}
	v, err := full.Evaluate(t.Context(), aTask, kernelwright.Candidate{Source: "six"}, kernelwright.Quick)
	if err != nil || v.Profile == nil || v.Profile.Tool != FullProfile {
		t.Errorf("got %+v, %v", v.Profile, err)
	}
	err = full.EvaluateBatch(t.Context(), aTask, []kernelwright.Candidate{{Source: "six"}, {Source: "seven"}}, kernelwright.Quick, func(i int, v kernelwright.Verdict) error {
		if v.Profile == nil || v.Profile.Tool != FullProfile || v.Cached != (i == 0) {
			t.Errorf("%d: got %+v", i, v.Profile)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	b.gpu = nil
	if v := ask("five", SelectedProfile, kernelwright.Quick); v.Profile != nil {
		t.Error("a CPU has a profile")
	}
}

func TestWhatIsLearnedComesBack(t *testing.T) {
	b := newBench(t)
	first := b.evaluate("one", kernelwright.Quick)
	second := b.evaluate("two", kernelwright.Quick)
	if first.Evidence[0] != "{'calibration': None, 'baselines': None}" || second.Evidence[0] != "{'calibration': None, 'baselines': {'eager': 1}}" {
		t.Errorf("known: first %s, then %s", first.Evidence[0], second.Evidence[0])
	}
}

// Baselines that were measured alone are those of the next verdict.
func TestBaselinesWithoutACandidate(t *testing.T) {
	b := newBench(t)
	measured, err := b.MeasureBaselines(t.Context(), aTask)
	if err != nil || len(measured) != len(Baselines) || measured["compile"].MedianMS != 2 || b.count("baselines") != 1 || b.count("evaluate") != 0 {
		t.Fatalf("%+v, %v", measured, err)
	}
	if v := b.evaluate("one", kernelwright.Quick); v.Evidence[0] != "{'calibration': None, 'baselines': {'eager': 17}}" {
		t.Errorf("known: %s", v.Evidence[0])
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.MeasureBaselines(ctx, aTask); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	lease, err := b.turn.leases.Acquire(t.Context(), "cpu")
	if err != nil {
		t.Fatalf("the device was not given back: %v", err)
	}
	lease.Release()
}

// What an evaluation has found out is kept at once: the next one goes on from
// there when the referee, or all of us, are killed meanwhile.
func TestWhatIsLearnedOutlivesTheEvaluation(t *testing.T) {
	b := newBench(t)
	v := b.evaluate("learns die_once", kernelwright.Quick)
	if !strings.Contains(v.Evidence[0], "'eager': 41") || b.count("evaluate") != 2 {
		t.Errorf("asked %d times, known at last: %s", b.count("evaluate"), v.Evidence[0])
	}
}

// Beside a GPU a build takes cores that nobody else needs, where there are some. On
// a CPU it would disturb whoever is timed.
func TestABuildWaitsWhereItDisturbs(t *testing.T) {
	cand := kernelwright.Candidate{Source: "good", Language: kernelwright.CUDA}
	for name, tt := range map[string]struct {
		gpu   *gpu.GPU
		cores int
		waits bool
	}{
		"a GPU and cores to spare": {&gpu.GPU{}, kernelwright.Shared.SpareCores, false},
		"a GPU and few cores":      {&gpu.GPU{}, kernelwright.Shared.SpareCores - 1, true},
		"a CPU":                    {nil, 16, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits
			b := newBench(t)
			b.cpu.allowed = make([]int, tt.cores)
			if b.gpu = tt.gpu; b.gpu != nil {
				b.device.Kind, b.device.Specs.ISA = kernelwright.CUDADevice, []string{"sm_90"}
			}
			lease, err := b.turn.leases.Acquire(t.Context(), b.device.String())
			if err != nil {
				t.Fatal(err)
			}
			defer lease.Release()
			ctx := t.Context()
			if tt.waits {
				ctx = b.whenWaitedFor()
			}
			report, failure, err := b.BuildOnly(ctx, cand)
			var held *HeldError
			switch {
			case tt.waits && !errors.As(err, &held):
				t.Errorf("it did not wait for who measures: %v", err)
			case !tt.waits && (err != nil || failure != "" || report.Form != "native"):
				t.Errorf("got %+v, %q, %v", report, failure, err)
			}
			if err := lease.Release(); err != nil {
				t.Fatal(err)
			}
			if _, _, err := b.BuildOnly(t.Context(), cand); err != nil {
				t.Errorf("nobody measures: %v", err)
			}
		})
	}
}

func TestFailedBuild(t *testing.T) {
	b := newBench(t)
	v := b.evaluate("compile_error", kernelwright.Quick)
	if v.Status != kernelwright.BuildFailed || len(v.Build.Errors) != 1 || v.Build.Errors[0].Line != 3 || v.Reason == "" || v.Baselines == nil {
		t.Errorf("got %+v", v)
	}
	if !b.evaluate("compile_error", kernelwright.Quick).Cached || b.count("evaluate") != 1 {
		t.Error("built again")
	}
}

func TestWhatIsNotCached(t *testing.T) {
	b := newBench(t)
	b.evaluate("slow", kernelwright.Quick)
	if b.evaluate("slow", kernelwright.Quick).Cached {
		t.Error("a candidate that ran out of time is never asked again")
	}
	b.evaluate("crash", kernelwright.Quick)
	if !b.evaluate("crash", kernelwright.Quick).Cached {
		t.Error("a candidate that crashed is asked again")
	}
}

func TestInfrastructureErrorIsTriedAgain(t *testing.T) {
	b := newBench(t)
	v := b.evaluate("die_once", kernelwright.Quick)
	if v.Status != kernelwright.Correct || b.count("evaluate") != 2 {
		t.Errorf("got %s after %d evaluations", v.Status, b.count("evaluate"))
	}
}

func TestInducedInfrastructureErrorIsACrash(t *testing.T) {
	b := newBench(t)
	v := b.evaluate("die", kernelwright.Quick)
	if v.Status != kernelwright.Crashed || len(v.Evidence) != 2 || v.Hint == "" || v.Task != "task" {
		t.Errorf("got %+v", v)
	}
	if n := b.count("evaluate"); n != 3 { // twice, and the self-test
		t.Errorf("%d evaluations", n)
	}
	if b.evaluate("die", kernelwright.Quick).Cached {
		t.Error("what rests on the machine's state was cached")
	}
	b.evaluate("good", kernelwright.Quick)
}

func TestATaskTooLargeForTheDeviceIsNoFaultOfTheCandidate(t *testing.T) {
	b := newBench(t)
	_, err := b.Evaluate(t.Context(), aTask, kernelwright.Candidate{Source: "large"}, kernelwright.Quick)
	var invalid *kernelwright.InvalidTaskError
	if !errors.As(err, &invalid) || invalid.Reason != "too large" || invalid.Hint != "smaller" {
		t.Errorf("got %#v", err)
	}
	if n := b.count("evaluate"); n != 2 { // on a fresh process there may be room
		t.Errorf("%d evaluations", n)
	}
	b.evaluate("good", kernelwright.Quick)
}

func TestAStrangersWorkIsNoFaultOfTheCandidate(t *testing.T) {
	b := newBench(t)
	_, err := b.Evaluate(t.Context(), aTask, kernelwright.Candidate{Source: "busy"}, kernelwright.Quick)
	var infra *kernelwright.InfrastructureError
	if !errors.As(err, &infra) || !strings.Contains(err.Error(), "a stranger") {
		t.Errorf("got %#v", err)
	}
	if n := b.count("evaluate"); n != 2 { // and no self-test: the stranger may have left
		t.Errorf("%d evaluations", n)
	}
	if v := b.evaluate("busy_once", kernelwright.Quick); v.Status != kernelwright.Correct || v.Cached {
		t.Errorf("got %+v", v)
	}
}

// A device that does not work is met before any candidate runs: nobody is blamed,
// and no self-test asked, which may pass where a fault comes and goes.
func TestAnIllDeviceIsNobodysFault(t *testing.T) {
	for name, ask := range map[string]func(bench, string) error{
		"inspect": func(b bench, source string) error {
			_, err := b.Inspect(t.Context(), "task", source)
			return err
		},
		"evaluate": func(b bench, source string) error {
			v, err := b.Evaluate(t.Context(), aTask, kernelwright.Candidate{Source: source}, kernelwright.Quick)
			if err == nil && v.Status != kernelwright.Correct {
				t.Errorf("got %+v", v)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			var infra *kernelwright.InfrastructureError
			if err := ask(b, "lost"); !errors.As(err, &infra) || !strings.Contains(err.Error(), "it is lost") {
				t.Errorf("got %#v", err)
			}
			if n := b.count(name); n != 2 {
				t.Errorf("asked %d times", n)
			}
			if err := ask(b, "lost_once"); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestSickMachineIsAnInfrastructureError(t *testing.T) {
	b := newBench(t)
	_, err := b.Evaluate(t.Context(), aTask, kernelwright.Candidate{Source: "sick"}, kernelwright.Quick)
	var infra *kernelwright.InfrastructureError
	if !errors.As(err, &infra) {
		t.Fatalf("got %v", err)
	}
	if n := b.count("evaluate"); n != 2 { // and no self-test: inspecting fails before it
		t.Errorf("%d evaluations", n)
	}
}

// A worker that cannot be killed keeps the device; who measures does, too, and
// is no fault of the device.
func TestADeviceThatAHungWorkerKeepsIsFaulty(t *testing.T) {
	t.Parallel() // it waits
	b := newBench(t)
	if err := b.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.patience = 5 * time.Second // in which a referee is there, on a machine however busy
	lease, err := b.turn.leases.Acquire(t.Context(), "cpu")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Check(t.Context()); err != nil {
		t.Errorf("somebody measures: %v", err)
	}
	worker, err := syscall.Dup(int(lease.File().Fd())) // as a worker has it
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Release(); err != nil {
		t.Fatal(err)
	}
	if err := b.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "cpu hangs: a worker that was killed does not end") {
		t.Errorf("got %v", err)
	}
	b.patience = hangs
	ended, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := b.Check(ended); err != nil {
		t.Errorf("nobody waited long enough to know: %v", err)
	}
	if err := syscall.Close(worker); err != nil {
		t.Fatal(err)
	}
	b.patience = 0
	if err := b.Check(t.Context()); err != nil {
		t.Errorf("it has ended: %v", err)
	}
}

func TestAReferenceThatBreaksItsInspectionIsNoTask(t *testing.T) {
	b := newBench(t)
	task, err := b.Inspect(t.Context(), "once", "die_once")
	if err != nil || task.Fingerprint != "die_once" || b.count("inspect") != 2 {
		t.Errorf("got %+v, %v after %d inspections", task, err, b.count("inspect"))
	}
	_, err = b.Inspect(t.Context(), "twice", "die")
	var invalid *kernelwright.InvalidTaskError
	if !errors.As(err, &invalid) || !strings.Contains(invalid.Reason, "broke down twice") || invalid.Hint == "" || !strings.Contains(invalid.Traceback, "second: ") {
		t.Errorf("got %#v", err)
	}
	if n := b.count("inspect"); n != 2+3 { // twice, and the self-test
		t.Errorf("%d inspections", n)
	}
	if _, err := b.Inspect(t.Context(), "next", "good"); err != nil {
		t.Error(err)
	}
	_, err = b.Evaluate(t.Context(), aTask, kernelwright.Candidate{Source: "sick"}, kernelwright.Quick)
	var infra *kernelwright.InfrastructureError
	if !errors.As(err, &infra) {
		t.Fatalf("got %v", err)
	}
	if _, err = b.Inspect(t.Context(), "twice", "die"); !errors.As(err, &infra) {
		t.Errorf("on a faulty machine: %v", err)
	}
}

func TestEvaluateIsCancelled(t *testing.T) {
	b := newBench(t)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := b.Evaluate(ctx, aTask, kernelwright.Candidate{Source: "hang"}, kernelwright.Quick); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if v := b.evaluate("good", kernelwright.Quick); v.Status != kernelwright.Correct {
		t.Errorf("got %+v", v)
	}
	if _, err := b.Evaluate(t.Context(), aTask, kernelwright.Candidate{Source: "x"}, "loose"); err == nil {
		t.Error("an unknown level was accepted")
	}
}

func TestCloseDuringEvaluate(t *testing.T) {
	b := newBench(t)
	time.AfterFunc(300*time.Millisecond, func() { b.Close() })
	if _, err := b.Evaluate(t.Context(), aTask, kernelwright.Candidate{Source: "hang"}, kernelwright.Quick); !errors.Is(err, errEvaluatorClosed) {
		t.Errorf("got %v", err)
	}
}

func TestInspect(t *testing.T) {
	b := newBench(t)
	task, err := b.Inspect(t.Context(), "relu", "some reference")
	if err != nil {
		t.Fatal(err)
	}
	if task.Name != "relu" || task.Source != "some reference" || task.Fingerprint != "some reference" || task.Operations != 7 ||
		string(task.Graph) != `{"nodes":[]}` || !task.HasFlag(kernelwright.FlagIllConditioned) {
		t.Errorf("got %+v", task)
	}
	again, err := b.Inspect(t.Context(), "other", "some reference")
	if err != nil || again.Name != "other" || again.Source != "some reference" || string(again.Graph) != `{"nodes":[]}` || b.count("inspect") != 1 {
		t.Errorf("got %+v, %v, inspected %d times", again, err, b.count("inspect"))
	}
}

func TestBrokenCacheCostsOnlyTime(t *testing.T) {
	b := openBench(t, t.TempDir(), &memoryCache{broken: errors.New("the disk is gone")})
	for range 2 {
		if v := b.evaluate("good", kernelwright.Quick); v.Cached || v.Status != kernelwright.Correct {
			t.Errorf("got %+v", v)
		}
	}
	damaged := openBench(t, t.TempDir(), &memoryCache{})
	damaged.evaluate("good", kernelwright.Quick)
	for key := range damaged.cache.values {
		damaged.cache.values[key] = []byte("{")
	}
	if v := damaged.evaluate("good", kernelwright.Quick); v.Cached || v.Status != kernelwright.Correct {
		t.Errorf("got %+v", v)
	}
}

func TestExport(t *testing.T) {
	b := newBench(t)
	source, err := b.Export(t.Context(), kernelwright.Candidate{Source: "kernel"})
	if err != nil || source != "# standalone\nkernel" {
		t.Errorf("got %q, %v", source, err)
	}
}

func TestDoctor(t *testing.T) {
	b := newBench(t)
	report, err := b.examine(t.Context(), surroundings{root: os.DirFS("/"), gpus: func() ([]gpu.GPU, error) { return nil, errors.New("none") }})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]Check{}
	for _, c := range report.Checks {
		found[c.Name] = c
		if c.Note == "" || c.OK != (c.Cost == "") {
			t.Errorf("%+v", c)
		}
	}
	for _, name := range []string{"python", "torch", "compiler", "sandbox", "ceilings cpu", "processor", "memory", "disk", "inotify"} {
		if _, ok := found[name]; !ok {
			t.Errorf("no check of %s", name)
		}
	}
	if c := found["sandbox"]; c.OK || !strings.Contains(c.Note, "landlock") {
		t.Errorf("got %+v", c)
	}
	if !strings.Contains(report.Summary, "sandbox") || strings.Contains(report.Summary, "\n") {
		t.Errorf("got %q", report.Summary)
	}
	if b.count("evaluate") != 0 {
		t.Error("on a CPU a known candidate takes long to evaluate")
	}
}

func TestDiagnoseWithoutPython(t *testing.T) {
	data := filepath.Join(t.TempDir(), "not", "there")
	report, err := Diagnose(t.Context(), Options{DataDir: data, Python: "no-such-python"}, nil, nil)
	if err != nil || !strings.HasPrefix(report.Summary, "nothing can be measured") || !strings.Contains(report.Summary, "no-such-python") {
		t.Errorf("got %+v, %v", report, err)
	}
	report, err = Diagnose(t.Context(), Options{DataDir: data}, nil, nil)
	if err != nil || len(report.Checks) < 5 || report.Checks[0].Name != "python" || report.Checks[0].OK {
		t.Errorf("got %+v, %v", report, err)
	}
	if _, err := os.Stat(data); !errors.Is(err, os.ErrNotExist) {
		t.Error("looking made the data folder")
	}
	report, err = Diagnose(t.Context(), Options{DataDir: data, Device: "cuda:999"}, nil, nil)
	if err != nil || !strings.HasPrefix(report.Summary, "nothing can be measured") {
		t.Errorf("got %+v, %v", report, err)
	}
}

func TestPythonCheck(t *testing.T) {
	env := pythonEnv{Interpreter: "/p", Python: "3.12.1", Headers: true}
	env.Torch = "2.0.1"
	if c := pythonCheck(env); c.OK || !strings.Contains(c.Cost, "tested with "+pinnedTorch()) {
		t.Errorf("another torch: %+v", c)
	}
	env.Torch = pinnedTorch() + "+cpu"
	if c := pythonCheck(env); !c.OK || c.Cost != "" {
		t.Errorf("got %+v", c)
	}
	env.Headers, env.Missing = false, []string{"ninja"}
	if c := pythonCheck(env); c.OK || !strings.Contains(c.Cost, "python3-dev") || !strings.Contains(c.Cost, "-m pip install ninja") {
		t.Errorf("got %+v", c)
	}
}

func TestOptions(t *testing.T) {
	for name, o := range map[string]Options{
		"no data folder": {},
		"sandbox":        {DataDir: "x", Sandbox: "none"},
		"device":         {DataDir: "x", Device: "cuda:999"},
		"threads":        {DataDir: "x", Threads: -1},
		"profile":        {DataDir: "x", Profile: "some"},
	} {
		_, err := Open(t.Context(), o, nil, nil)
		var setup *SetupError
		if !errors.As(err, &setup) || setup.Hint == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	o, err := Options{DataDir: "x", Log: slog.Default()}.normalised()
	if err != nil || o.Sandbox != "strict" || !filepath.IsAbs(o.DataDir) || o.Progress == nil {
		t.Errorf("got %+v, %v", o, err)
	}
}

// What killed processes left half made in the cache is gone after the next
// start, and nothing else; where somebody holds the device it is left alone.
func TestTheCacheIsTidiedUp(t *testing.T) {
	data := t.TempDir()
	cache := filepath.Join(data, "cache")
	halfMade := []string{"tmpabc_123.so", "inductor-ab12_xyz/scratch/x", "ccfIaxLz.s", "objects/.new-abc", "builds/.new-def"}
	whole := []string{"ceilings-0123.so", "inductor-82fe1bd89128e1bc216634e8/record.json", "objects/ab.so", "builds/ab.json", "allocator/tmpabc.so"} // the last one may be in the making
	for _, name := range append(halfMade, whole...) {
		path := filepath.Join(cache, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	there := func(names []string) (n int) {
		for _, name := range names {
			if _, err := os.Stat(filepath.Join(cache, name)); err == nil {
				n++
			}
		}
		return n
	}
	values := &memoryCache{}
	b := openBench(t, data, values)
	if there(halfMade) != 0 || there(whole) != len(whole) {
		t.Errorf("%d half made and %d whole ones are there", there(halfMade), there(whole))
	}
	if err := os.WriteFile(filepath.Join(cache, "allocator", "allocator-0123.so"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.tidy(t.Context())
	if there(whole) != len(whole)-1 {
		t.Error("what is left of making the allocator stays")
	}
	path := filepath.Join(cache, halfMade[0])
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	lease, err := b.turn.leases.Acquire(t.Context(), "cpu")
	if err != nil {
		t.Fatal(err)
	}
	b.tidy(t.Context())
	if there(halfMade) != 1 {
		t.Error("it tidied up while somebody held the device")
	}
	if err := lease.Release(); err != nil {
		t.Error(err)
	}
}

func TestWhatAnotherMachineMightSayOtherwiseIsNotKept(t *testing.T) {
	for _, c := range []struct {
		status kernelwright.Status
		reason string
		want   bool
	}{
		{kernelwright.Correct, "agrees with float64", true},
		{kernelwright.Crashed, "the candidate's process died of a segmentation fault (SIGSEGV)", true},
		{kernelwright.Crashed, "the candidate's process died of SIGKILL, most likely for want of memory", false},
		{kernelwright.TimedOut, "a forward took over 10 s", false},
		{"", "", false},
	} {
		if got := keeps(kernelwright.Verdict{Status: c.status, Reason: c.reason}); got != c.want {
			t.Errorf("keeps %q, %q: %v", c.status, c.reason, got)
		}
	}
	if keeps(kernelwright.Verdict{Status: kernelwright.Correct, Timing: kernelwright.TimingReport{Disturbed: true}}) {
		t.Error("a verdict of a busy machine is kept")
	}
	wide, narrow := kernelwright.Speedup{Value: 2, Low: 0.5, High: 8}, kernelwright.Speedup{Value: 1, Low: 0.95, High: 1.05}
	for name, c := range map[string]struct {
		v    kernelwright.Verdict
		want bool
	}{
		"narrow":                  {kernelwright.Verdict{Speedup: &narrow, Speedups: map[string]kernelwright.Speedup{"eager": narrow}}, true},
		"vague":                   {kernelwright.Verdict{Speedup: &wide}, false},
		"vague over one baseline": {kernelwright.Verdict{Speedup: &narrow, Speedups: map[string]kernelwright.Speedup{"compile": narrow, "eager": wide}}, false},
	} {
		c.v.Status = kernelwright.Correct
		if got := keeps(c.v); got != c.want {
			t.Errorf("keeps one that is %s: %v", name, got)
		}
	}
}
