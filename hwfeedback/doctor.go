package hwfeedback

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/hwfeedback/gpu"
)

// DoctorReport is what is here, what is missing, and what that costs.
type DoctorReport struct {
	Checks  []Check `json:"checks"`
	Summary string  `json:"summary"` // one sentence
}

// Check is one thing looked at.
type Check struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	Note string `json:"note"`           // what is there
	Cost string `json:"cost,omitempty"` // what its absence costs, and what to do; empty when OK
}

// Below these a check fails. Memory: PyTorch takes 0.5 GB a process, and a
// reference, a candidate and a baseline live side by side. Disk: records,
// compile caches and built objects. Inotify: one watch a folder; 8192 is the
// old kernels' default.
const (
	enoughMemory  = 4 << 30
	enoughDisk    = 2 << 30
	enoughWatches = 8192
)

// surroundings are what Doctor looks at beside the Evaluator.
type surroundings struct {
	root fs.FS
	gpus func() ([]gpu.GPU, error) // as gpu.ListNow
	// open returns an Evaluator of a GPU, unmeasured.
	open  func(ctx context.Context, device string) (*Evaluator, error)
	limit time.Duration // for all that is done on one GPU
}

// Doctor looks at everything that measuring needs, and at every GPU.
func (e *Evaluator) Doctor(ctx context.Context) (DoctorReport, error) {
	return e.examine(ctx, surroundings{os.DirFS("/"), gpu.ListNow, e.beside, gpuTestTimeout})
}

// beside opens an Evaluator of a GPU in the same place, unmeasured. It waits for
// nobody who has the GPU for long.
func (e *Evaluator) beside(ctx context.Context, device string) (*Evaluator, error) {
	o := e.options
	o.Device, o.Unmeasured, o.KeepWarm, o.Progress = device, true, 0, nil
	o.Log = o.Log.With("device", device)
	return Open(ctx, o, e.cache, impatient{e.turn.leases, leasePatience})
}

func (e *Evaluator) examine(ctx context.Context, here surroundings) (DoctorReport, error) {
	checks := []Check{pythonCheck(e.env)}
	body := map[string]any{"sandbox": e.options.Sandbox, "cache_dir": e.cacheDir(), "threads": e.threads}
	result, err := e.super.request(ctx, "doctor", body, doctorTimeout)
	if err != nil {
		return DoctorReport{}, requestError(err)
	}
	said, cuda, err := harnessChecks(result)
	if err != nil {
		return DoctorReport{}, infrastructure("doctor", err)
	}
	checks = append(checks, said...)
	if e.gpu == nil {
		checks = append(checks, ceilingsCheck(e.device, e.spread))
	}
	machine := machineChecks(here.root, e.cpu, e.threads, e.options.DataDir, enoughDisk) // the load is not yet ours
	tests := untested(here.gpus())
	if len(tests) > 0 {
		e.options.Progress("device", "evaluating a known candidate on "+strings.Join(named(tests, ""), ", "))
		testGPUs(ctx, tests, max(1, len(e.cpu.allowed)/kernelwright.Shared.SpareCores), here)
	}
	if ctx.Err() != nil {
		return DoctorReport{}, context.Cause(ctx)
	}
	gpus, err := here.gpus()
	if len(gpus) > 0 {
		checks = append(checks, cudaCheck(e.env, cuda, gpus[0], len(named(tests, gpuPassed)) > 0))
	}
	for _, t := range tests {
		checks = append(checks, t.checks...)
	}
	if passed := named(tests, gpuPassed); e.gpu == nil && len(passed) > 0 {
		checks = append(checks, unusedCheck(passed[0]))
	}
	checks = append(checks, gpuChecks(here.root, gpus, err)...)
	checks = append(checks, machine...)
	return DoctorReport{Checks: checks, Summary: summarise(checks, e.device.String(), tests)}, nil
}

// Diagnose is Doctor for when Open may fail: it reports what stands in the
// way instead of failing, and never makes a Python environment by itself.
func Diagnose(ctx context.Context, o Options, cache Cache, leases Leaser) (DoctorReport, error) {
	var checks []Check
	disk := int64(enoughDisk)
	normal, err := o.normalised()
	if err == nil {
		var g *gpu.GPU
		g, err = normal.gpu(findGPU)
		normal.Unmeasured = g != nil // Doctor tests every GPU alike
	}
	if err == nil {
		var ready bool
		if _, ready, err = newEnvironment(normal, nil).ready(ctx); err == nil && !ready {
			disk = environmentBytes
			checks = append(checks, Check{Name: "python", Note: "no environment has been made yet",
				Cost: "the first run makes one: a download of 3 GB, a minute or more, 5 GB of disk"})
		}
		if err == nil && ready {
			var e *Evaluator
			if e, err = Open(ctx, normal, cache, leases); err == nil {
				var report DoctorReport
				report, err = e.Doctor(ctx)
				if err = errors.Join(err, e.Close()); err == nil {
					return report, nil
				}
			}
		}
	}
	if ctx.Err() != nil {
		return DoctorReport{}, context.Cause(ctx)
	}
	if err != nil {
		check := Check{Name: "measuring", Note: err.Error(), Cost: "nothing can be measured"}
		var setup *SetupError
		if errors.As(err, &setup) && setup.Hint != "" {
			check.Cost += ": " + setup.Hint
		}
		checks = append(checks, check)
	}
	root := os.DirFS("/")
	gpus, missing := gpu.ListNow()
	c, err := readCPU(root, affinity())
	if err != nil {
		checks = append(checks, Check{Name: "processor", Note: err.Error(), Cost: "nothing can be measured"})
	} else {
		threads := normal.Threads
		if threads <= 0 {
			threads = c.threads
		}
		checks = append(checks, gpuChecks(root, gpus, missing)...)
		checks = append(checks, machineChecks(root, c, threads, existing(normal.DataDir), disk)...)
	}
	return DoctorReport{Checks: checks, Summary: summarise(checks, normal.Device, untested(gpus, missing))}, nil
}

func pythonCheck(env pythonEnv) Check {
	whose := "configured"
	if env.Made {
		whose = "made by kernelwright"
	}
	c := Check{Name: "python", OK: true, Note: fmt.Sprintf("%s, %s, %s", env.Python, whose, env.Interpreter)}
	var costs []string
	if have, _, _ := strings.Cut(env.Torch, "+"); have != pinnedTorch() {
		costs = append(costs, fmt.Sprintf("torch is %s, and kernelwright is tested with %s: should measuring fail, leave python empty to have that made", env.Torch, pinnedTorch()))
	}
	if !env.Headers {
		costs = append(costs, "Python.h is missing, so load_inline candidates cannot be built and torch.compile is no baseline (Debian, Ubuntu: apt install python3-dev)")
	}
	if len(env.Missing) > 0 {
		costs = append(costs, fmt.Sprintf("without %s some candidates cannot be built (%s -m pip install %s)",
			strings.Join(env.Missing, ", "), env.Interpreter, strings.Join(env.Missing, " ")))
	}
	if len(costs) > 0 {
		c.OK, c.Cost = false, strings.Join(costs, "; ")
	}
	return c
}

// harnessChecks reads the referee's part: what only Python can see, and the CUDA
// that its torch was built for.
func harnessChecks(result json.RawMessage) (checks []Check, cuda string, err error) {
	var reply struct {
		Sandbox kernelwright.SandboxReport `json:"sandbox"`
		CUDA    string                     `json:"cuda"` // empty: none
		Checks  []Check                    `json:"checks"`
	}
	if err := json.Unmarshal(result, &reply); err != nil {
		return nil, "", err
	}
	checks = reply.Checks
	if slices.ContainsFunc(checks, func(c Check) bool { return c.Name == "sandbox" }) {
		return checks, reply.CUDA, nil
	}
	sandbox := Check{Name: "sandbox", OK: len(reply.Sandbox.Missing) == 0, Note: reply.Sandbox.Mode + ", complete"}
	if !sandbox.OK {
		sandbox.Note = reply.Sandbox.Mode + ", without " + strings.Join(reply.Sandbox.Missing, ", ")
		sandbox.Cost = "candidates are contained less well, and each verdict says so"
	}
	return append(checks, sandbox), reply.CUDA, nil
}

// ceilingsCheck says what a device was measured to reach.
func ceilingsCheck(d kernelwright.Device, spread float64) Check {
	m := measuredCeilings{Ceilings: d.Ceilings, Spread: spread}
	c := Check{Name: "ceilings " + d.String(), OK: m.quiet()}
	if d.Kind == kernelwright.CUDADevice {
		c.Note = gpuCeilings(d.Ceilings)
	} else {
		c.Note = fmt.Sprintf("memory %.1f GB/s, cache %.1f GB/s, %.0f GFLOP/s, a native call %.2f µs", m.MemoryGBs, m.CacheGBs, m.FP32GFLOPs, m.CallUS)
	}
	if m.MeasuredMS > 0 {
		c.Note += ", measured " + time.UnixMilli(m.MeasuredMS).Format(time.DateTime)
	}
	if !c.OK {
		c.Cost = fmt.Sprintf("the machine was busy: up to %.0f %% of it went elsewhere, so headroom may look better than it is; "+
			"they are measured again once an hour until it is quiet, or now with `kernelwright doctor --measure`", 100*m.Spread)
	}
	return c
}

// machineChecks looks at the machine without Python.
func machineChecks(root fs.FS, c cpu, threads int, dataDir string, disk int64) []Check {
	s := c.specs
	processor := Check{Name: "processor", OK: true,
		Note: fmt.Sprintf("%s, %d cores, measured with %d threads, %s", s.Model, s.Cores, threads, vectorNote(s))}
	switch {
	case s.VectorBits < 256 && s.VectorBits > 0:
		processor.OK = false
		processor.Cost = "vector units are narrow: kernels gain less here than elsewhere"
	case c.quota > 0 && c.quota < float64(threads):
		processor.OK = false
		processor.Cost = fmt.Sprintf("the control group grants %.1f processors, fewer than the threads: times will jump; set threads lower", c.quota)
	}
	checks := []Check{processor, memoryCheck(s.MemoryBytes)}
	if c := loadCheck(root, threads); c.Name != "" {
		checks = append(checks, c)
	}
	checks = append(checks, countersCheck(root), diskCheck(dataDir, disk))
	return append(checks, inotifyCheck(root))
}

func vectorNote(s kernelwright.Specs) string {
	if s.VectorBits == 0 {
		return "vector width unknown"
	}
	return fmt.Sprintf("%d-bit vectors", s.VectorBits)
}

func memoryCheck(bytes int64) Check {
	c := Check{Name: "memory", OK: bytes >= enoughMemory, Note: fmt.Sprintf("%.1f GB", float64(bytes)/1e9)}
	if !c.OK {
		c.Cost = "large tasks will be invalid for want of memory"
	}
	return c
}

// loadCheck looks at what else runs: it widens every interval.
func loadCheck(root fs.FS, threads int) Check {
	f := strings.Fields(readText(root, "proc/loadavg"))
	if len(f) == 0 {
		return Check{}
	}
	load, err := strconv.ParseFloat(f[0], 64)
	if err != nil {
		return Check{}
	}
	c := Check{Name: "load", OK: load < 0.5*float64(threads), Note: fmt.Sprintf("%.1f over the last minute", load)}
	if !c.OK {
		c.Cost = "other programs run: measuring takes longer and intervals are wider"
	}
	return c
}

func countersCheck(root fs.FS) Check {
	_, err := fs.Stat(root, "sys/bus/event_source/devices/cpu")
	paranoid := readInt(root, "proc/sys/kernel/perf_event_paranoid")
	c := Check{Name: "hardware counters"}
	switch {
	case err != nil:
		c.Note = "none on this machine (usual in a virtual one)"
		c.Cost = "the Judge has no cache misses and instructions per cycle to go by"
	case paranoid > 2 && os.Geteuid() != 0:
		c.Note = fmt.Sprintf("kernel.perf_event_paranoid is %d", paranoid)
		c.Cost = "the Judge has no cache misses and instructions per cycle to go by; set it to 2 or less"
	default:
		c.OK, c.Note = true, "available"
	}
	return c
}

func diskCheck(dir string, need int64) Check {
	free, err := freeBytes(dir)
	if err != nil {
		return Check{Name: "disk", Note: fmt.Sprintf("%s: %s", dir, systemReason(err)), Cost: "nothing can be recorded"}
	}
	c := Check{Name: "disk", OK: free >= need, Note: fmt.Sprintf("%.1f GB free at %s", float64(free)/1e9, dir)}
	if !c.OK {
		c.Cost = fmt.Sprintf("%.0f GB are needed: builds and records will fail", float64(need)/1e9)
	}
	return c
}

func inotifyCheck(root fs.FS) Check {
	watches := readInt(root, "proc/sys/fs/inotify/max_user_watches")
	instances := readInt(root, "proc/sys/fs/inotify/max_user_instances")
	if watches == 0 || instances == 0 {
		return Check{Name: "inotify", Note: "not available", Cost: "the daemon cannot watch folders"}
	}
	c := Check{Name: "inotify", OK: watches >= enoughWatches, Note: fmt.Sprintf("%d watches, %d instances a user", watches, instances)}
	if !c.OK {
		c.Cost = fmt.Sprintf("a watched tree of more than %d folders is watched in part; raise fs.inotify.max_user_watches", watches)
	}
	return c
}

// existing returns the nearest folder at or above dir that exists.
func existing(dir string) string {
	for dir != "" {
		if _, err := os.Stat(dir); err == nil {
			return dir
		}
		up := dir[:max(0, strings.LastIndexByte(dir, os.PathSeparator))]
		if up == "" {
			break
		}
		dir = up
	}
	return "/"
}

// summarise is the last sentence. The device is the one that candidates run on.
func summarise(checks []Check, device string, tests []gpuTest) string {
	return overall(checks, device, tests) + tested(tests)
}

func overall(checks []Check, device string, tests []gpuTest) string {
	for _, t := range tests {
		if t.result == gpuFailed && t.device == device {
			for _, c := range checks {
				if c.Name == cudaName && !c.OK {
					return fmt.Sprintf("nothing can be measured on %s: %s", device, c.Note)
				}
			}
			return fmt.Sprintf("nothing can be measured on %s: a known candidate does not pass: %s", device, t.why)
		}
	}
	var missing []string
	for _, c := range checks {
		if c.Name == "measuring" {
			return "nothing can be measured here yet: " + c.Note
		}
		if !c.OK {
			missing = append(missing, c.Name)
		}
	}
	switch len(missing) {
	case 0:
		return "everything is here"
	case 1:
		return "measuring works; one thing could be better: " + missing[0]
	}
	return fmt.Sprintf("measuring works; %d things could be better: %s", len(missing), strings.Join(missing, ", "))
}
