package hwfeedback

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/hwfeedback/gpu"
)

const (
	// gpuTestTimeout is how long Doctor may take on one GPU: one that is well takes
	// some seconds, half a minute where nothing was ever built or measured for it.
	gpuTestTimeout = 3 * time.Minute
	// leasePatience is how long Doctor waits for a GPU that is measured on: who
	// measures lets others go first between two evaluations.
	leasePatience = 30 * time.Second
	// namedStrangers is how many processes on a GPU are named; the others are counted.
	namedStrangers = 4
)

// gpuTest is what came of evaluating a known candidate on a GPU.
type gpuTest struct {
	device string // "cuda:0"
	result gpuResult
	why    string // it did not pass
	checks []Check
}

// gpuResult is empty where nobody tried.
type gpuResult string

const (
	gpuPassed gpuResult = "passed"
	gpuFailed gpuResult = "failed"
	gpuBusy   gpuResult = "busy" // others had it
)

// untested returns a test for each GPU that can be measured on.
func untested(gpus []gpu.GPU, err error) []gpuTest {
	if err != nil {
		return nil
	}
	var tests []gpuTest
	for _, g := range gpus {
		if usable(g) == nil {
			tests = append(tests, gpuTest{device: fmt.Sprintf("%s:%d", kernelwright.CUDADevice, g.Index)})
		}
	}
	return tests
}

// named returns the devices of the tests that ended so.
func named(tests []gpuTest, result gpuResult) []string {
	var names []string
	for _, t := range tests {
		if t.result == result {
			names = append(names, t.device)
		}
	}
	return names
}

// testGPUs does the tests, so many at once.
func testGPUs(ctx context.Context, tests []gpuTest, atOnce int, here surroundings) {
	slots := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for i := range tests {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			tests[i].do(ctx, here)
		})
	}
	all.Wait()
}

// do measures what the GPU can reach, where that is not known, and evaluates a known
// candidate there: all that it needs may be there, and not work.
func (t *gpuTest) do(ctx context.Context, here surroundings) {
	bounded, cancel := context.WithTimeoutCause(ctx, here.limit, fmt.Errorf("it did not end within %v", here.limit))
	defer cancel()
	e, err := here.open(bounded, t.device)
	if err == nil {
		defer func() { _ = e.Close() }() // it has nothing to say
		err = e.measure(bounded)
	}
	begun := time.Now()
	if err == nil {
		t.checks = append(t.checks, ceilingsCheck(e.device, e.spread))
		err = e.selfTest(bounded, nil)
	}
	c := Check{Name: "self-test " + t.device}
	held, faulty := heldOrFaulty(ctx, err)
	var remote *remoteError
	var setup *SetupError
	switch {
	case held != nil:
		t.result, t.why = gpuBusy, oneLine(held)
		c.Note, c.Cost = "not done: "+t.why, "it is busy: ask again when it is free"
	case errors.As(faulty, &remote) && remote.Kind == kindBusy:
		t.result, t.why = gpuBusy, oneLine(faulty)
		c.Note, c.Cost = "not done: "+t.why, "it is busy: "+remote.Hint
	case faulty != nil:
		t.result, t.why = gpuFailed, oneLine(faulty)
		c.Note = t.why
		c.Cost = "no verdict can be reached on " + t.device + ": "
		if errors.As(faulty, &setup) {
			c.Cost += setup.Hint
		} else {
			c.Cost += "mend what else is marked here; if nothing is, look at the kernel's log (dmesg) for Xid"
		}
	default:
		t.result, c.OK = gpuPassed, true
		c.Note = fmt.Sprintf("a known candidate passes, in %.1f s", time.Since(begun).Seconds())
	}
	t.checks = append(t.checks, c)
}

// tested is the end of the last sentence: on which GPUs a known candidate was
// evaluated. Empty where there is none.
func tested(tests []gpuTest) string {
	var tested, left []string
	if on := named(tests, gpuPassed); len(on) > 0 {
		tested = append(tested, "passes on "+strings.Join(on, ", "))
	}
	if on := named(tests, gpuFailed); len(on) > 0 {
		tested = append(tested, "fails on "+strings.Join(on, ", "))
	}
	for _, device := range named(tests, gpuBusy) {
		left = append(left, device+" (busy)")
	}
	left = append(left, named(tests, "")...)
	said := ""
	if len(tested) > 0 {
		said = "; a known candidate " + strings.Join(tested, " and ")
	}
	if len(left) > 0 {
		said += "; not tested: " + strings.Join(left, ", ")
	}
	return said
}

// unusedCheck says how a GPU that works is used where candidates run on the CPU.
func unusedCheck(device string) Check {
	name := strings.TrimSuffix(device, ":0") // which is the first
	return Check{Name: "device", OK: true, Note: fmt.Sprintf("cpu, though %s works: --device %s measures on it, or device = %q in the settings file", device, name, name)}
}

// gpuChecks looks at the GPUs. A machine without one lacks nothing: it measures
// on its CPU. Whether their counters may be read the harness says (doctor.py).
func gpuChecks(root fs.FS, gpus []gpu.GPU, err error) []Check {
	if err != nil {
		c := Check{Name: "gpu", OK: true, Note: "none: " + err.Error()}
		var absent *gpu.AbsentError
		// A node without a driver that answers is a GPU that somebody wants to have.
		if _, missing := fs.Stat(root, "dev/nvidiactl"); missing == nil && errors.As(err, &absent) {
			c.OK, c.Note, c.Cost = false, absent.Reason, "nothing can be measured on a GPU: "+absent.Hint
		}
		return []Check{c}
	}
	var checks []Check
	for _, g := range gpus {
		c := Check{Name: fmt.Sprintf("cuda:%d", g.Index), Note: fmt.Sprintf("%s, compute capability %s, %.0f GB, driver %s for CUDA %s, %d MHz, %d °C",
			g.Name, g.Compute, float64(g.MemoryBytes)/1e9, g.Driver, g.CUDA, g.State.SMClockMHz, g.State.TemperatureC)}
		var costs []string
		if g.MIG {
			costs = append(costs, "it is split into MIG instances: no time on one would hold, so it is not measured on")
		}
		if named := others(root, g.State.Processes); named != "" {
			costs = append(costs, "contexts of other processes on it: "+named+"; while one computes, times are worth nothing")
		}
		if len(g.State.Throttled) > 0 {
			costs = append(costs, "its clocks are held down ("+strings.Join(g.State.Throttled, ", ")+"): times are longer than they could be")
		}
		if g.State.ECCErrors > 0 {
			costs = append(costs, fmt.Sprintf("%d memory errors could not be corrected since the driver was loaded: results may be wrong", g.State.ECCErrors))
		}
		c.OK, c.Cost = len(costs) == 0, strings.Join(costs, "; ")
		checks = append(checks, c)
	}
	var known []string
	for _, g := range gpus {
		if m := multiprocessor(g.Compute); m != nil && !slices.Contains(known, g.Compute) {
			known = append(known, g.Compute)
			checks = append(checks, Check{Name: "sm_" + strings.ReplaceAll(g.Compute, ".", ""), OK: true,
				Note: "an SM holds " + m.Limits() + "; multiply-adds a clock: " + m.Rates()})
		}
	}
	return checks
}

// cudaName is the name of the check of the driver's CUDA against PyTorch's.
const cudaName = "CUDA"

// cudaDrivers is the oldest branch of the driver that runs a major version of
// CUDA: CUDA Toolkit Release Notes, "CUDA Minor Version Compatibility".
var cudaDrivers = map[int]int{11: 450, 12: 525, 13: 580}

// cudaCheck holds the CUDA that the driver of a GPU runs against the one that torch
// was built for, empty for none. Of one major version every minor one will do, and
// what is older than the driver too. Where a known candidate passes, it works: a
// package of the vendor's can have a driver run what is newer.
func cudaCheck(env pythonEnv, built string, g gpu.GPU, passes bool) Check {
	c := Check{Name: cudaName}
	torch := fmt.Sprintf("PyTorch %s in %s", env.Torch, env.Interpreter)
	runs := fmt.Sprintf("driver %s runs CUDA %s", g.Driver, g.CUDA)
	need, have := major(built), major(g.CUDA)
	switch {
	case built == "":
		c.Note = torch + " was built without CUDA"
		c.Cost = "nothing can be measured on a GPU: name a Python whose PyTorch was built for CUDA (--python, or python in the settings file), or leave python empty to have one made"
	case have == 0 || need == 0:
		c.Note = fmt.Sprintf("%s was built for CUDA %s; which CUDA driver %s runs is not known", torch, built, g.Driver)
	case have >= need:
		c.Note = fmt.Sprintf("%s, and %s was built for %s", runs, torch, built)
	case passes:
		c.Note = fmt.Sprintf("%s, and %s was built for %s, which works here all the same", runs, torch, built)
	default:
		c.Note = fmt.Sprintf("%s, and %s was built for CUDA %s, which needs a driver for CUDA %d", runs, torch, built, need)
		c.Cost = fmt.Sprintf("nothing can be measured on a GPU: install a driver for CUDA %d", need)
		if branch := cudaDrivers[need]; branch > 0 {
			c.Cost += fmt.Sprintf(" (%d or later)", branch)
		}
		c.Cost += fmt.Sprintf(", or name a Python whose PyTorch was built for CUDA %d (--python, or python in the settings file)", have)
	}
	c.OK = c.Cost == ""
	return c
}

// gpuCeilings says what a GPU was measured to reach. The tensor cores' rates on
// integers are of operations that do not float.
func gpuCeilings(c kernelwright.Ceilings) string {
	parts := []string{fmt.Sprintf("DRAM %.0f GB/s in a copy (read and written)", c.MemoryGBs)}
	if c.ReadGBs > 0 {
		parts = append(parts, fmt.Sprintf("%.0f GB/s read alone", c.ReadGBs))
	}
	parts = append(parts, fmt.Sprintf("L2 %.0f GB/s", c.CacheGBs), fmt.Sprintf("FP32 %.1f TFLOP/s", c.FP32GFLOPs/1e3))
	var rates []string
	for _, t := range slices.Sorted(maps.Keys(c.TensorGFLOPs)) {
		unit := "TFLOP/s"
		if strings.HasPrefix(t, "int") {
			unit = "TOP/s"
		}
		rates = append(rates, fmt.Sprintf("%s %.0f %s", t, c.TensorGFLOPs[t]/1e3, unit))
	}
	if len(rates) > 0 {
		parts = append(parts, "tensor cores "+strings.Join(rates, ", "))
	}
	return strings.Join(append(parts, fmt.Sprintf("a launch %.2f µs", c.CallUS)), ", ")
}

// others names the processes that are not ours, those with most memory first:
// ours have the device in turn, and wait when they have nothing to measure.
// Root's workers are another user's.
func others(root fs.FS, processes []gpu.Process) string {
	var found []gpu.Process
	for _, p := range processes {
		at := fmt.Sprintf("proc/%d", p.PID)
		ours := strings.Contains(readText(root, at+"/cmdline"), "/forkserver.py\x00")
		if info, err := fs.Stat(root, at); err == nil && os.Getuid() != 0 {
			stat, known := info.Sys().(*syscall.Stat_t)
			ours = ours && (!known || int(stat.Uid) == os.Getuid())
		}
		if !ours {
			found = append(found, p)
		}
	}
	slices.SortFunc(found, func(a, b gpu.Process) int { return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.PID, b.PID)) })
	var named []string
	for _, p := range found[:min(len(found), namedStrangers)] {
		var known []string
		if name := readText(root, fmt.Sprintf("proc/%d/comm", p.PID)); name != "" {
			known = append(known, name)
		}
		if p.Bytes > 0 {
			known = append(known, fmt.Sprintf("%.1f GB", float64(p.Bytes)/1e9))
		}
		said := fmt.Sprint(p.PID)
		if len(known) > 0 {
			said += " (" + strings.Join(known, ", ") + ")"
		}
		named = append(named, said)
	}
	if more := len(found) - len(named); more > 0 {
		named = append(named, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(named, ", ")
}
