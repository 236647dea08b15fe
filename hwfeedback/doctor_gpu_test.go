package hwfeedback

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/hwfeedback/gpu"
)

func TestOthersOnAGPUAreNamed(t *testing.T) {
	root := machine(map[string]string{
		"proc/1/comm": "python3\n", "proc/2/comm": "VLLM::EngineCore\n", "proc/9/comm": "python\n",
		"proc/9/cmdline": "python\x00-I\x00data/harness/00ff/kwharness/process/forkserver.py\x00--idle\x00300",
	})
	for want, there := range map[string][]gpu.Process{
		"":                     {{PID: 9, Bytes: 1e9}}, // ours
		"1 (python3, 12.3 GB)": {{PID: 9}, {PID: 1, Bytes: 12.34e9}},
		"1 (python3)":          {{PID: 1}},
		"7 (0.5 GB)":           {{PID: 7, Bytes: 5e8}}, // it has ended, or is in a container
		"2 (VLLM::EngineCore, 70.0 GB), 1 (python3, 1.0 GB), 7": {{PID: 7}, {PID: 1, Bytes: 1e9}, {PID: 2, Bytes: 70e9}},
		"3, 4, 5, 6, and 2 more":                                {{PID: 8}, {PID: 7}, {PID: 6}, {PID: 5}, {PID: 4}, {PID: 3}, {PID: 9}},
	} {
		if got := others(root, there); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestCeilingsOfADevice(t *testing.T) {
	at := time.Date(2026, 11, 28, 9, 30, 0, 0, time.Local)
	gpu := kernelwright.Device{Kind: kernelwright.CUDADevice, Index: 1, Ceilings: kernelwright.Ceilings{
		MemoryGBs: 4012.4, ReadGBs: 4380, CacheGBs: 7810, FP32GFLOPs: 60200, CallUS: 1.318, MeasuredMS: at.UnixMilli(),
		TensorGFLOPs: map[string]float64{"tf32": 401e3, "float16": 750.4e3, "int8": 1480e3},
	}}
	bare := kernelwright.Device{Kind: kernelwright.CUDADevice, Ceilings: kernelwright.Ceilings{MemoryGBs: 300, CacheGBs: 900, FP32GFLOPs: 8100, CallUS: 2}}
	cpu := kernelwright.Device{Kind: kernelwright.CPUDevice, Ceilings: kernelwright.Ceilings{MemoryGBs: 20.12, CacheGBs: 155, FP32GFLOPs: 210, CallUS: 0.2}}
	for name, c := range map[string]struct {
		device kernelwright.Device
		spread float64
		name   string
		note   string
		cost   string
	}{
		"a GPU": {gpu, 0.02, "ceilings cuda:1", "DRAM 4012 GB/s in a copy (read and written), 4380 GB/s read alone, L2 7810 GB/s, FP32 60.2 TFLOP/s, " +
			"tensor cores float16 750 TFLOP/s, int8 1480 TOP/s, tf32 401 TFLOP/s, a launch 1.32 µs, measured 2026-11-28 09:30:00", ""},
		"a GPU without tensor cores": {bare, 0.3, "ceilings cuda:0", "DRAM 300 GB/s in a copy (read and written), L2 900 GB/s, FP32 8.1 TFLOP/s, a launch 2.00 µs", "up to 30 % of it went elsewhere"},
		"a CPU":                      {cpu, 0.1, "ceilings cpu", "memory 20.1 GB/s, cache 155.0 GB/s, 210 GFLOP/s, a native call 0.20 µs", ""},
	} {
		got := ceilingsCheck(c.device, c.spread)
		if got.Name != c.name || got.Note != c.note || got.OK != (c.cost == "") || !strings.Contains(got.Cost, c.cost) || got.OK && got.Cost != "" {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}

func TestTheDriversCUDAIsHeldAgainstPyTorchs(t *testing.T) {
	const other = "(--python, or python in the settings file)"
	for name, c := range map[string]struct {
		built, runs string
		passes      bool
		note, cost  string
	}{
		"the same":          {"13.0", "13.0", true, "driver 580.1 runs CUDA 13.0, and PyTorch 2.11.0 in /p was built for 13.0", ""},
		"a newer minor one": {"12.9", "12.2", false, "driver 580.1 runs CUDA 12.2, and PyTorch 2.11.0 in /p was built for 12.9", ""},
		"an older one":      {"12.6", "13.0", false, "driver 580.1 runs CUDA 13.0, and PyTorch 2.11.0 in /p was built for 12.6", ""},
		"a newer one": {"13.0", "12.2", false, "driver 580.1 runs CUDA 12.2, and PyTorch 2.11.0 in /p was built for CUDA 13.0, which needs a driver for CUDA 13",
			"nothing can be measured on a GPU: install a driver for CUDA 13 (580 or later), or name a Python whose PyTorch was built for CUDA 12 " + other},
		"one that nobody knows": {"17.1", "16.9", false, "driver 580.1 runs CUDA 16.9, and PyTorch 2.11.0 in /p was built for CUDA 17.1, which needs a driver for CUDA 17",
			"nothing can be measured on a GPU: install a driver for CUDA 17, or name a Python whose PyTorch was built for CUDA 16 " + other},
		"a newer one that works": {"13.0", "12.2", true, "driver 580.1 runs CUDA 12.2, and PyTorch 2.11.0 in /p was built for 13.0, which works here all the same", ""},
		"none": {"", "13.0", false, "PyTorch 2.11.0 in /p was built without CUDA",
			"nothing can be measured on a GPU: name a Python whose PyTorch was built for CUDA " + other + ", or leave python empty to have one made"},
		"the driver does not say": {"13.0", "", false, "PyTorch 2.11.0 in /p was built for CUDA 13.0; which CUDA driver 580.1 runs is not known", ""},
	} {
		got := cudaCheck(pythonEnv{Interpreter: "/p", Torch: "2.11.0"}, c.built, gpu.GPU{Driver: "580.1", CUDA: c.runs}, c.passes)
		if want := (Check{Name: "CUDA", OK: c.cost == "", Note: c.note, Cost: c.cost}); got != want {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
	}
}

// doubles are GPUs of protocol doubles. Each has a data folder of its own, by the
// name of the device.
type doubles struct {
	t    *testing.T
	data string
	gpus []gpu.GPU
}

func (d doubles) surroundings() surroundings {
	return surroundings{machine(nil), func() ([]gpu.GPU, error) { return d.gpus, nil }, d.open, time.Minute}
}

func (d doubles) folder(device string) string { return filepath.Join(d.data, device) }

func (d doubles) leases() impatient {
	return impatient{&FileLeases{Dir: filepath.Join(d.data, "leases")}, time.Second}
}

func (d doubles) open(ctx context.Context, device string) (*Evaluator, error) {
	o, err := Options{DataDir: d.folder(device), Unmeasured: true}.normalised()
	if err != nil {
		return nil, err
	}
	for _, g := range d.gpus {
		if gpuDevice(g, nil).String() == device {
			return open(ctx, &Evaluator{options: o, gpu: &g, harness: harness{hash: "double"}, cache: &memoryCache{}, turn: newTurn(d.leases(), 0)}, always(double(d.t, "")))
		}
	}
	return nil, &SetupError{Reason: "no device " + device, Hint: "name another"}
}

// mark leaves a file in the cache folder of a device, for the double.
func (d doubles) mark(device, file string) {
	cache := filepath.Join(d.folder(device), "cache")
	if err := errors.Join(os.MkdirAll(cache, 0o755), os.WriteFile(filepath.Join(cache, file), nil, 0o600)); err != nil {
		d.t.Fatal(err)
	}
}

func TestDoctorEvaluatesAKnownCandidateOnEveryGPU(t *testing.T) {
	const passes = "a known candidate passes"
	for name, c := range map[string]struct {
		on      string // the device that is configured
		sick    string
		held    string
		want    map[string]string
		summary []string
		advice  string
	}{
		"on the CPU": {on: "cpu", want: map[string]string{"self-test cuda:0": passes, "self-test cuda:2": passes},
			summary: []string{"measuring works; ", "; a known candidate passes on cuda:0, cuda:2"},
			advice:  `cpu, though cuda:0 works: --device cuda measures on it, or device = "cuda" in the settings file`},
		"on one of them": {on: "cuda:2", want: map[string]string{"self-test cuda:0": passes, "self-test cuda:2": passes},
			summary: []string{"measuring works; ", "; a known candidate passes on cuda:0, cuda:2"}},
		"another is sick": {on: "cuda:2", sick: "cuda:0", want: map[string]string{"self-test cuda:0": "the referee died", "self-test cuda:2": passes},
			summary: []string{"measuring works; ", "self-test cuda:0", "; a known candidate passes on cuda:2 and fails on cuda:0"}},
		"it is sick": {on: "cuda:2", sick: "cuda:2", want: map[string]string{"self-test cuda:0": passes, "self-test cuda:2": "the referee died"},
			summary: []string{"nothing can be measured on cuda:2: a known candidate does not pass: ", "; a known candidate passes on cuda:0 and fails on cuda:2"}},
		"the first is sick": {on: "cpu", sick: "cuda:0", want: map[string]string{"self-test cuda:0": "the referee died", "self-test cuda:2": passes},
			advice: `cpu, though cuda:2 works: --device cuda:2 measures on it, or device = "cuda:2" in the settings file`},
		"one is measured on": {on: "cpu", held: "cuda:0", want: map[string]string{"self-test cuda:0": "not done: device cuda:0 is held by this process: it was not free within 1s", "self-test cuda:2": passes},
			summary: []string{"measuring works; ", "; a known candidate passes on cuda:2; not tested: cuda:0 (busy)"}, advice: "though cuda:2 works"},
		"both are": {on: "cuda:0", held: "cuda:0 cuda:2", want: map[string]string{"self-test cuda:0": "not done: device cuda:0 is held", "self-test cuda:2": "not done: device cuda:2 is held"},
			summary: []string{"measuring works; ", "; not tested: cuda:0 (busy), cuda:2 (busy)"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := doubles{t, t.TempDir(), []gpu.GPU{{Index: 0, Driver: "580.1", CUDA: "13.0"}, {Index: 1, MIG: true}, {Index: 2}}}
			if c.sick != "" {
				d.mark(c.sick, "count.sick")
			}
			for device := range strings.FieldsSeq(c.held) {
				lease, err := d.leases().Acquire(t.Context(), device)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { lease.Release() })
			}
			var e *Evaluator
			if c.on == "cpu" {
				e = newBench(t).Evaluator
			} else {
				var err error
				if e, err = d.open(t.Context(), c.on); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { e.Close() })
			}
			report, err := e.examine(t.Context(), d.surroundings())
			if err != nil {
				t.Fatal(err)
			}
			said, advice, ceilings, compared := map[string]string{}, "", []string{}, ""
			for _, k := range report.Checks {
				switch {
				case strings.HasPrefix(k.Name, "self-test"):
					said[k.Name] = k.Note
					if k.OK != (k.Cost == "") || k.OK != strings.HasPrefix(k.Note, passes) {
						t.Errorf("%+v", k)
					}
				case strings.HasPrefix(k.Name, "ceilings"):
					ceilings = append(ceilings, k.Name)
				case k.Name == "device":
					advice = k.Note
				case k.Name == "CUDA":
					compared = k.Note
				}
			}
			for check, want := range c.want {
				if !strings.Contains(said[check], want) {
					t.Errorf("%s says %q, want %q", check, said[check], want)
				}
			}
			if len(said) != len(c.want) || !strings.Contains(advice, c.advice) || (advice == "") != (c.advice == "") {
				t.Errorf("it says %q, and %q of how to use one", said, advice)
			}
			if slices.Contains(ceilings, "ceilings cpu") != (c.on == "cpu") || c.held == "" && !slices.Contains(ceilings, "ceilings cuda:2") {
				t.Errorf("%q are shown", ceilings)
			}
			if !strings.Contains(compared, "driver 580.1 runs CUDA 13.0") || !strings.Contains(compared, "was built for 13.0") { // as the double says
				t.Errorf("of CUDA it says %q", compared)
			}
			for _, want := range c.summary {
				if !strings.Contains(report.Summary, want) {
					t.Errorf("it ends with %q, which has no %q", report.Summary, want)
				}
			}
		})
	}
}

func TestAGPUThatHangsDoesNotHoldUpDoctor(t *testing.T) {
	d := doubles{t, t.TempDir(), []gpu.GPU{{Index: 0}}}
	d.mark("cuda:0", "hangs")
	here := d.surroundings()
	here.limit = time.Second
	report, err := newBench(t).examine(t.Context(), here)
	if err != nil || !strings.HasSuffix(report.Summary, "; a known candidate fails on cuda:0") ||
		!slices.ContainsFunc(report.Checks, func(c Check) bool {
			return c.Name == "self-test cuda:0" && strings.HasSuffix(c.Note, "it did not end within 1s")
		}) {
		t.Errorf("%+v, %v", report, err)
	}
}

func TestDoctorEndsWhenItIsTold(t *testing.T) {
	d := doubles{t, t.TempDir(), []gpu.GPU{{Index: 0}}}
	d.mark("cuda:0", "hangs")
	b := newBench(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := b.examine(ctx, d.surroundings()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestSummarise(t *testing.T) {
	ok, bad, broken := Check{Name: "a", OK: true}, Check{Name: "b"}, Check{Name: "measuring", Note: "no Python"}
	on := func(device string, r gpuResult) gpuTest { return gpuTest{device: device, result: r, why: "so"} }
	for want, c := range map[string]struct {
		checks []Check
		tests  []gpuTest
	}{
		"everything is here":                                                               {checks: []Check{ok}},
		"measuring works; one thing could be better: b":                                    {checks: []Check{ok, bad}},
		"measuring works; 2 things could be better: b, b":                                  {checks: []Check{bad, ok, bad}},
		"everything is here; a known candidate passes on cuda:0, cuda:1":                   {[]Check{ok}, []gpuTest{on("cuda:0", gpuPassed), on("cuda:1", gpuPassed)}},
		"everything is here; not tested: cuda:1 (busy), cuda:0":                            {[]Check{ok}, []gpuTest{on("cuda:0", ""), on("cuda:1", gpuBusy)}},
		"nothing can be measured here yet: no Python; not tested: cuda:0":                  {[]Check{broken}, []gpuTest{on("cuda:0", "")}},
		"measuring works; one thing could be better: b; a known candidate fails on cuda:0": {[]Check{bad}, []gpuTest{on("cuda:0", gpuFailed)}},
		"nothing can be measured on cuda:7: a known candidate does not pass: so; a known candidate passes on cuda:0 and fails on cuda:7": {
			[]Check{bad}, []gpuTest{on("cuda:0", gpuPassed), on("cuda:7", gpuFailed)}},
		"nothing can be measured on cuda:7: the driver is old; a known candidate fails on cuda:7": {
			[]Check{bad, {Name: "CUDA", Note: "the driver is old"}}, []gpuTest{on("cuda:7", gpuFailed)}},
	} {
		if got := summarise(c.checks, "cuda:7", c.tests); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestWhoIsImpatientGivesUp(t *testing.T) {
	leases := &FileLeases{Dir: filepath.Join(t.TempDir(), "leases")}
	lease, err := leases.Acquire(t.Context(), "cuda:0")
	if err != nil {
		t.Fatal(err)
	}
	hasty := impatient{leases, 50 * time.Millisecond}
	var held *HeldError
	if _, err := hasty.Acquire(t.Context(), "cuda:0"); !errors.As(err, &held) || held.Holder != "this process" {
		t.Errorf("got %v", err)
	}
	if err := lease.Release(); err != nil {
		t.Fatal(err)
	}
	if lease, err = hasty.Acquire(t.Context(), "cuda:0"); err != nil {
		t.Fatal(err)
	}
	lease.Release()
}

func TestWhatATestOfAGPUSays(t *testing.T) {
	for name, c := range map[string]struct {
		err        error
		result     gpuResult
		note, cost string
	}{
		"it cannot be opened": {&SetupError{Reason: "Python is broken", Hint: "mend it"}, gpuFailed, "Python is broken", "no verdict can be reached on cuda:3: mend it"},
		"it is broken":        {errors.New("launch failed:\n719"), gpuFailed, "launch failed: 719", "no verdict can be reached on cuda:3: mend what else is marked here; if nothing is, look at the kernel's log (dmesg) for Xid"},
		"others compute there": {infrastructure("evaluate", &remoteError{Kind: kindBusy, Message: "4711 (python3) is at work", Hint: "end it"}), gpuBusy,
			"not done: evaluate: 4711 (python3) is at work", "it is busy: end it"},
		"others measure there": {&HeldError{"cuda:3", "process 4711", false, context.DeadlineExceeded}, gpuBusy,
			"not done: device cuda:3 is held by process 4711: context deadline exceeded", "it is busy: ask again when it is free"},
		"a worker hangs there": {&HeldError{"cuda:3", "a worker of process 1", true, context.DeadlineExceeded}, gpuFailed, "cuda:3 hangs: a worker that was killed does not end", "Xid"},
	} {
		test := gpuTest{device: "cuda:3"}
		test.do(t.Context(), surroundings{open: func(context.Context, string) (*Evaluator, error) { return nil, c.err }, limit: time.Minute})
		if len(test.checks) != 1 || test.result != c.result {
			t.Errorf("%s: %+v", name, test)
			continue
		}
		k := test.checks[0]
		if k.Name != "self-test cuda:3" || k.OK || !strings.Contains(k.Note, c.note) || !strings.Contains(k.Cost, c.cost) || strings.Contains(k.Note, "\n") {
			t.Errorf("%s: %+v", name, k)
		}
	}
}
