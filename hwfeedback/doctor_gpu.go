package hwfeedback

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/hwfeedback/gpu"
)

// namedStrangers is how many processes on a GPU are named; the others are counted.
const namedStrangers = 4

// gpuChecks looks at the GPUs. A machine without one lacks nothing: it measures
// on its CPU. Whether their counters may be read the harness says (doctor.py).
func gpuChecks(root fs.FS, list func() ([]gpu.GPU, error)) []Check {
	gpus, err := list()
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
