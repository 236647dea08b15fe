package hwfeedback

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/hwfeedback/gpu"
)

// Precisions are what a task can hold its candidates to, the default first.
var Precisions = []string{"float32"}

// CustomCode is what policy asks of a candidate's own code, the default first.
var CustomCode = []string{"required", "any"}

// Baselines are what candidates can be held against, all by default. The first
// is always measured: it tells whether the machine is still as it was.
var Baselines = kernelwright.Shared.Baselines

// GPUBaselines are those of a GPU.
var GPUBaselines = kernelwright.Shared.AllBaselines()

// autoDevice is the first GPU that can be measured on, or the CPU where there is none.
const autoDevice = "auto"

// Options say how to open an Evaluator. Only DataDir is required.
type Options struct {
	DataDir string
	Python  string // an interpreter with PyTorch; empty: one is made under DataDir
	Device  string // "cpu", which empty means too, "cuda", "cuda:1", or "auto"; of several, see Devices, the first
	Sandbox string // "strict", which empty means too, or "weak"
	Threads int    // to measure with; 0: one per physical core that may be used, on a GPU 16 at most
	// Remeasure has the ceilings measured even where they are known, and put in
	// place of what is known.
	Remeasure bool
	// Again has candidates and baselines measured even where that was done, and
	// put in place of what is known.
	Again bool
	// What candidates are held against: Baselines, or a part that has its first.
	Baselines []string
	// Named returns what else the candidates for a task are held against on a
	// kind of device; nil: nothing.
	Named     func(ctx context.Context, task kernelwright.Task, device kernelwright.DeviceKind) ([]kernelwright.NamedBaseline, error)
	Precision string // of Precisions
	// StrictInputs has a candidate that takes something of its inputs for granted
	// be wrong: kernelwright.Verdict.Assumes tells of it else.
	StrictInputs bool
	// CustomCode is whether code of its own has to do the work of a candidate; of CustomCode.
	CustomCode string
	// Profile has a correct candidate's kernels on a GPU profiled, and eager's:
	// SelectedProfile, FullProfile; empty: no.
	Profile string
	// CertifyTime is how long certify adds rounds to the least it takes, for an
	// interval within 2 % either way; 0: half a minute.
	CertifyTime time.Duration
	// Milestone has timing at quick end once it is certain which baselines are beaten by
	// this share, as a reward asks: 0.05 for 5 %. The interval is as wide then as it is. 0: no.
	Milestone float64
	// InspectTimeout is for reading a reference; 0: five minutes.
	InspectTimeout time.Duration
	// KeepWarm leaves the process that has imported torch running for so long
	// after Close, for the next Evaluator of the same data folder; 0: no.
	// Ignored where the sandbox is weak: a candidate could find it.
	KeepWarm time.Duration
	// Unmeasured leaves the ceilings out, and the cache as it is: for what runs
	// nothing on the device, or only looks whether something can.
	Unmeasured bool
	// AtOnce is how many candidates of batches are built and verified at once at quick, as
	// far as the device's free memory allows; each is timed alone. 0, 1: one after the other.
	AtOnce int
	// Lazy starts no process and measures no ceilings before something has to run: for
	// what may be answered from the record, or by a compiler.
	Lazy bool
	Log  *slog.Logger
	// Progress is told what goes on: while the environment is made (stage
	// "python") and while a candidate is evaluated ("build", "verify", "time").
	// Calls come from the goroutine that waits for the work, one at a time for
	// each.
	Progress func(stage, note string)
}

func (o Options) normalised() (Options, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Device == autoDevice {
		g, err := firstGPU()
		o.Device = fmt.Sprintf("%s:%d", kernelwright.CUDADevice, g.Index)
		if err != nil {
			o.Device = string(kernelwright.CPUDevice)
			o.Log.Info("no GPU can be used, so candidates run on the CPU", "reason", err)
		}
	}
	names, err := Devices(o.Device)
	if err != nil {
		return o, err
	}
	o.Device = names[0]
	kind, _, err := selectDevice(o.Device)
	if err != nil {
		return o, err
	}
	all := Baselines
	if kind == kernelwright.CUDADevice {
		all = GPUBaselines
	}
	switch o.Sandbox {
	case "":
		o.Sandbox = "strict"
	case "strict", "weak":
	default:
		return o, &SetupError{Reason: fmt.Sprintf("there is no sandbox %q", o.Sandbox), Hint: `sandbox is "strict" or "weak"`}
	}
	if len(o.Baselines) == 0 || slices.Equal(o.Baselines, Baselines) {
		o.Baselines = all
	}
	for _, b := range o.Baselines {
		if !slices.Contains(all, b) || !slices.Contains(o.Baselines, all[0]) {
			return o, &SetupError{Reason: fmt.Sprintf("baselines cannot be %q", o.Baselines), Hint: fmt.Sprintf("they are some of %q, with the first", all)}
		}
	}
	if o.Precision == "" {
		o.Precision = Precisions[0]
	}
	if !slices.Contains(Precisions, o.Precision) {
		return o, &SetupError{Reason: fmt.Sprintf("there is no precision %q", o.Precision), Hint: fmt.Sprintf("precision is one of %q", Precisions)}
	}
	if o.CustomCode == "" {
		o.CustomCode = CustomCode[0]
	}
	if !slices.Contains(CustomCode, o.CustomCode) {
		return o, &SetupError{Reason: fmt.Sprintf("there is no policy %q for custom code", o.CustomCode), Hint: fmt.Sprintf("it is one of %q", CustomCode)}
	}
	if !slices.Contains([]string{"", SelectedProfile, FullProfile}, o.Profile) {
		return o, &SetupError{Reason: fmt.Sprintf("there is no profile %q", o.Profile), Hint: fmt.Sprintf("it is %q or %q, or there is none", SelectedProfile, FullProfile)}
	}
	if o.CertifyTime == 0 {
		o.CertifyTime = defaultCertifyTime
	}
	if o.InspectTimeout == 0 {
		o.InspectTimeout = defaultInspectTimeout
	}
	if o.DataDir == "" {
		return o, &SetupError{Reason: "no data folder was named", Hint: "name one with --data-dir"}
	}
	abs, err := filepath.Abs(o.DataDir)
	if err != nil {
		return o, err
	}
	o.DataDir = abs
	if o.Threads < 0 {
		return o, &SetupError{Reason: fmt.Sprintf("threads cannot be %d", o.Threads), Hint: "0 is one per physical core"}
	}
	if o.AtOnce < 0 {
		return o, &SetupError{Reason: fmt.Sprintf("%d candidates cannot be verified at once", o.AtOnce), Hint: "1 is one after the other"}
	}
	if o.Progress == nil {
		o.Progress = func(string, string) {}
	}
	if o.AtOnce > 1 {
		o.Progress = oneAtATime(o.Progress)
	}
	return o, nil
}

// oneAtATime has several goroutines tell of their progress.
func oneAtATime(progress func(stage, note string)) func(stage, note string) {
	var mu sync.Mutex
	return func(stage, note string) {
		mu.Lock()
		defer mu.Unlock()
		progress(stage, note)
	}
}

// gpu returns the GPU that the options name, nil for the CPU.
func (o Options) gpu(find func(index int) (gpu.GPU, error)) (*gpu.GPU, error) {
	kind, index, err := selectDevice(o.Device)
	if err != nil || kind != kernelwright.CUDADevice {
		return nil, err
	}
	g, err := find(index)
	if err != nil {
		return nil, err
	}
	return &g, nil
}
