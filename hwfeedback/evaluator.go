// Package hwfeedback is the truth: it says what a device can reach, what a
// task is, and what the hardware makes of a candidate. The measuring is done
// by the Python in harness, in processes of its own; this package starts
// them, keeps them honest about time and death, and remembers verdicts.
package hwfeedback

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/hwfeedback/gpu"
)

// Cache keeps small values by kind and key. Errors are logged and otherwise
// treated as absence: what is lost is measured again.
type Cache interface {
	Get(ctx context.Context, kind, key string) (value []byte, found bool, err error)
	Put(ctx context.Context, kind, key string, value []byte) error
}

// The kinds of value that an Evaluator keeps in its Cache.
const (
	cacheSource      = "source"      // exact text to what is read of it
	cacheTask        = "task"        // exact text to inspected task
	cacheVerdict     = "verdict"     // see verdictKey
	cacheCeilings    = "ceilings"    // device key to ceilings
	cacheCalibration = "calibration" // see learnedKey
	cacheBaselines   = "baselines"   // see learnedKey
	cacheProfile     = "profile"     // of eager; see profileKey
	cachePython      = "python"      // path of an interpreter to what it is; see environment.probe
	cacheVersions    = "versions"    // path of an interpreter to what its server said; see identify
	cacheGPU         = "gpu"         // number of a GPU to what it is; see gpuFinder
)

// Remembered are the kinds of value that can be found out again: what an
// Evaluator keeps to save time, and nothing is lost when it is forgotten.
var Remembered = []string{cacheSource, cacheTask, cacheVerdict, cacheCalibration, cacheBaselines, cacheProfile, cachePython, cacheVersions, cacheGPU}

// Deadlines of requests. They are backstops behind the referee's own, which
// turn a slow candidate into a verdict: reaching one of these means that the
// referee itself is stuck.
const (
	parseTimeout    = time.Minute
	ceilingsTimeout = 3 * time.Minute
	quickTimeout    = 30 * time.Minute // builder_client.py gives up after 10, and the first one on a machine measures all baselines
	certifyTimeout  = time.Hour
	exportTimeout   = time.Minute
	doctorTimeout   = 2 * time.Minute
	canaryTimeout   = 5 * time.Minute

	// ceilingsTries are on fresh processes: one that dies by chance, or is killed,
	// is no broken machine.
	ceilingsTries = 3

	defaultInspectTimeout = 5 * time.Minute
	defaultCertifyTime    = 30 * time.Second
	// inspectStep is the share of that which each step of an inspection may
	// take: a reference that takes longer is invalid. All steps together may
	// take inspect_task.WHOLE times as much, so the referee answers in time.
	inspectStep = 0.4
)

// Precisions are what a task can hold its candidates to, the default first.
var Precisions = []string{"float32"}

// CustomCode is what policy asks of a candidate's own code, the default first.
var CustomCode = []string{"required", "any"}

// Baselines are what candidates can be held against, all by default. The first
// is always measured: it tells whether the machine is still as it was.
var Baselines = []string{"eager", "compile", "max-autotune"}

// GPUBaselines are those of a GPU: max-autotune replays CUDA graphs, into which
// it copies its inputs, and is the slower form on large tasks. cudagraphs is
// eager as such a graph, without what launching costs.
var GPUBaselines = append(slices.Clone(Baselines), "max-autotune-no-cudagraphs", "cudagraphs")

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
	// InspectTimeout is for reading a reference; 0: five minutes.
	InspectTimeout time.Duration
	// KeepWarm leaves the process that has imported torch running for so long
	// after Close, for the next Evaluator of the same data folder; 0: no.
	// Ignored where the sandbox is weak: a candidate could find it.
	KeepWarm time.Duration
	// Unmeasured leaves the ceilings out, and the cache as it is: for what runs
	// nothing on the device, or only looks whether something can.
	Unmeasured bool
	// Lazy starts no process and measures no ceilings before something has to run: for
	// what may be answered from the record, or by a compiler.
	Lazy bool
	Log  *slog.Logger
	// Progress is told what goes on: while the environment is made (stage
	// "python") and while a candidate is judged ("build", "verify", "time").
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
	if o.Progress == nil {
		o.Progress = func(string, string) {}
	}
	return o, nil
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

// Evaluator judges candidates on one device. It is safe for concurrent use;
// requests to the harness go one at a time.
type Evaluator struct {
	options  Options
	harness  harness
	env      pythonEnv
	cpu      cpu
	gpu      *gpu.GPU            // where the device is one
	reach    sync.Mutex          // guards what ceilings say: the device's, its L2Bytes, and their spread
	device   kernelwright.Device // nothing else of it changes
	spread   float64             // see measuredCeilings
	settling chan struct{}       // has a token while nobody settles
	settled  atomic.Bool
	now      func() time.Time
	threads  int
	came     atomic.Bool       // a server did once: if one does not later, that is no set-up
	said     map[string]string // by a server of this Python; see identify
	versions map[string]string
	cache    Cache
	turn     *turn
	super    *supervisor
	patience time.Duration // with the canary; 0: canaryTimeout
	close    sync.Once
}

// Open finds or makes the Python environment, starts the harness, and has the
// device with its ceilings, which are measured when this machine's are not in
// the cache, or are from a time when it was busy, an hour ago or more. With
// Options.Lazy the last two wait until they are needed. Errors are *SetupError where
// a person has something to mend, *kernelwright.InfrastructureError, or the context's.
func Open(ctx context.Context, o Options, cache Cache, leases Leaser) (*Evaluator, error) {
	o, err := o.normalised()
	if err != nil {
		return nil, err
	}
	find := findGPU
	if o.KeepWarm > 0 && !o.Again && !o.Remeasure {
		find = gpuFinder{os.DirFS("/"), cache, o.Log, o.KeepWarm, findGPU}.find
	}
	g, err := o.gpu(find) // before anything is downloaded
	if err != nil {
		return nil, err
	}
	env, err := newEnvironment(o, cache).get(ctx)
	if err != nil {
		return nil, err
	}
	if !env.Headers {
		o.Log.Warn("Python.h is missing: torch.compile is no baseline, and load_inline candidates cannot be built", "hint", "Debian, Ubuntu: apt install python3-dev")
	}
	h, err := embedded()
	if err != nil {
		return nil, infrastructure("open", err)
	}
	folder, vars := h.folder(o.DataDir), forkServerEnv(env, o.DataDir)
	start := func(ctx context.Context) (*forkServer, error) {
		return startForkServer(ctx, env.Interpreter, folder, vars, o.Log)
	}
	if o.KeepWarm > 0 && o.Sandbox == "strict" {
		start = warmServers{filepath.Join(o.DataDir, "warm"), env, folder, vars, o.KeepWarm}.first(start, o.Log)
	}
	unpacked := func(ctx context.Context) (*forkServer, error) {
		if _, err := h.unpack(o.DataDir); err != nil {
			return nil, &SetupError{Reason: err.Error(), Hint: "see that the data folder can be written to", cause: err}
		}
		return start(ctx)
	}
	var idle time.Duration
	if g != nil { // on a CPU nothing is begun ahead
		idle = turnIdle
	}
	return open(ctx, &Evaluator{options: o, env: env, gpu: g, harness: h, cache: cache, turn: newTurn(leases, idle)}, unpacked)
}

// open starts the processes of an Evaluator and has its device.
func open(ctx context.Context, e *Evaluator, start func(context.Context) (*forkServer, error)) (*Evaluator, error) {
	if err := os.MkdirAll(e.cacheDir(), 0o755); err != nil {
		return nil, &SetupError{Reason: err.Error(), Hint: "see that the data folder can be written to", cause: err}
	}
	var err error
	if e.cpu, err = readCPU(os.DirFS("/"), affinity()); err != nil {
		return nil, infrastructure("open", err)
	}
	if e.threads = e.options.Threads; e.threads == 0 {
		e.threads = e.cpu.measures(e.gpu != nil)
	}
	if e.threads > e.cpu.threads && e.gpu == nil {
		e.options.Log.Warn("more threads than cores: they take turns, and times will scatter", "threads", e.threads, "cores", e.cpu.threads)
	}
	if e.now == nil {
		e.now = time.Now
	}
	e.settled.Store(e.options.Unmeasured)
	e.settling = make(chan struct{}, 1)
	e.settling <- struct{}{}
	e.super = newSupervisor(e.starting(start), e.refereeConfig(), e.options.Progress, e.options.Log)
	if e.versions, err = e.identify(ctx); err != nil {
		e.super.close()
		return nil, err
	}
	e.device = cpuDevice(e.cpu, e.threads, e.versions)
	if e.gpu != nil {
		e.device = gpuDevice(*e.gpu, e.versions)
		e.versions["driver"], e.versions["cuda"] = e.gpu.Driver, e.gpu.CUDA
	}
	switch {
	case e.options.Unmeasured:
	case e.options.Lazy:
		e.reaches(e.knownCeilings(ctx))
	default:
		if err := e.settle(ctx); err != nil {
			e.super.close()
			return nil, err
		}
	}
	return e, nil
}

// startFailure says what is wrong when the harness does not come up: nearly
// always a broken PyTorch.
func (e *Evaluator) startFailure(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var known *SetupError
	if errors.As(err, &known) {
		return known
	}
	s := &SetupError{Reason: err.Error(), cause: err, Hint: "try `" + e.env.Interpreter + " -c 'import torch'`"}
	if e.env.Made {
		s.Hint = "remove " + filepath.Dir(filepath.Dir(e.env.Interpreter)) + ": it is then made again"
	}
	var said *harnessError
	if errors.As(err, &said) {
		s.Reason, s.Detail = "Python could not start measuring: "+lastLine(said.output), said.output
	}
	return s
}

func (e *Evaluator) cacheDir() string { return filepath.Join(e.options.DataDir, "cache") }

func (e *Evaluator) workplace() workplace {
	w := workplace{Device: e.device.String(), Threads: e.threads, Sandbox: e.options.Sandbox, CacheDir: e.cacheDir()}
	if e.gpu != nil {
		w.GPU = &place{e.gpu.Minor, e.gpu.UUID}
	}
	return w
}

// Device returns the device with its specs and ceilings: with Options.Lazy those that
// were known before something was measured, which may be none.
func (e *Evaluator) Device() kernelwright.Device {
	e.reach.Lock()
	defer e.reach.Unlock()
	return e.device
}

// Versions returns what takes part in every verdict: "python", "torch",
// "kernelwright", "harness".
func (e *Evaluator) Versions() map[string]string {
	v := maps.Clone(e.versions)
	v["kernelwright"], v["harness"] = kernelwright.Version, e.harness.hash
	return v
}

// refereeConfig names what one referee is for: one that has waited is taken by
// whoever says the same.
func (e *Evaluator) refereeConfig() map[string]any {
	config := map[string]any{"cache_dir": e.cacheDir(), "sandbox": e.options.Sandbox, "threads": e.threads}
	if e.gpu != nil { // it has a context there
		config["gpu"] = e.gpu.UUID
	}
	return config
}

// Close ends all processes and waits for them; with KeepWarm one stays, for a
// minute the referee with what it keeps, too, and the others end in their own
// time. Requests that still run fail. It may be called more than once.
func (e *Evaluator) Close() error {
	e.close.Do(func() {
		e.super.close()
		e.turn.close()
	})
	return nil
}

// Interpreter is the Python that has PyTorch, as an absolute path.
func (e *Evaluator) Interpreter() string { return e.env.Interpreter }

// Inspect makes a task of a reference. A reference that cannot be one is a
// *kernelwright.InvalidTaskError. Tasks are cached by the reference's bytes, so
// the same file under another name costs nothing.
func (e *Evaluator) Inspect(ctx context.Context, name, source string) (kernelwright.Task, error) {
	if !utf8.ValidString(source) { // on its way to Python it would become another text
		return kernelwright.Task{}, errNotUTF8
	}
	if t, known := e.Inspected(ctx, name, source); known {
		return t, nil
	}
	t, err := e.inspectTwice(ctx, name, source)
	if err != nil {
		return kernelwright.Task{}, err
	}
	e.remember(ctx, cacheTask, e.taskKey(source), t)
	return t, nil
}

var errNotUTF8 = &kernelwright.InvalidTaskError{Reason: "its text is not UTF-8", Hint: "save the file as UTF-8"}

// Inspected returns the task of a reference that was inspected before, and whether it
// was. It runs nothing.
func (e *Evaluator) Inspected(ctx context.Context, name, source string) (kernelwright.Task, bool) {
	var t kernelwright.Task
	known := e.recall(ctx, cacheTask, e.taskKey(source), &t)
	t.Name, t.Source = name, source
	return t, known
}

func (e *Evaluator) taskKey(source string) string {
	return joinKey(kernelwright.HashText(source), e.device.Key, e.versionsKey())
}

// inspectTwice does not take a reference's word for it that the machine is
// broken: one that breaks down on fresh processes too, while the canary passes,
// is no task. That the device does not work, in its driver's words, is believed:
// an illness may come and go, and the file is its user's own.
func (e *Evaluator) inspectTwice(ctx context.Context, name, source string) (kernelwright.Task, error) {
	t, err := e.inspect(ctx, name, source)
	if err == nil || !inducible(ctx, err) {
		return t, err
	}
	e.options.Log.Warn("the inspection failed and is tried again", "task", name, "error", err)
	if err := e.super.renew(ctx); err != nil {
		return kernelwright.Task{}, err
	}
	t, again := e.inspect(ctx, name, source)
	var remote *remoteError
	if again == nil || !inducible(ctx, again) || (errors.As(again, &remote) && remote.Kind == kindIll) {
		return t, again
	}
	if sick := e.canary(ctx, nil); sick != nil {
		if ctx.Err() != nil {
			return kernelwright.Task{}, context.Cause(ctx)
		}
		e.options.Log.Error("the canary failed too", "error", sick)
		return kernelwright.Task{}, again
	}
	return kernelwright.Task{}, &kernelwright.InvalidTaskError{
		Reason:    "its inspection broke down twice, on fresh processes, while a known task passed",
		Hint:      "make the inputs and outputs smaller, and look for signals to other processes and writing to descriptors it did not open",
		Traceback: "first: " + oneLine(err) + "\nsecond: " + oneLine(again),
	}
}

// inspect runs the reference, so it needs the device: on a CPU it would
// disturb whatever is being timed.
func (e *Evaluator) inspect(ctx context.Context, name, source string) (kernelwright.Task, error) {
	if err := e.up(ctx); err != nil {
		return kernelwright.Task{}, err
	}
	lease, err := e.turn.take(ctx, e.device.String(), false)
	if err != nil {
		return kernelwright.Task{}, err
	}
	defer e.letGo(lease, false)
	body := inspectBody{Name: name, Source: source, TimeoutS: inspectStep * e.options.InspectTimeout.Seconds(), workplace: e.workplace()}
	result, err := e.super.request(ctx, "inspect", body, e.options.InspectTimeout, lease.File())
	if err != nil {
		return kernelwright.Task{}, requestError(err)
	}
	t, err := decodeTask(result)
	if err != nil {
		return kernelwright.Task{}, infrastructure("inspect", err)
	}
	t.Name, t.Source = name, source
	return t, nil
}

// decodeTask reads a task as the referee sends it: the graph as an object,
// not as text.
func decodeTask(result json.RawMessage) (kernelwright.Task, error) {
	var reply struct {
		Task struct {
			kernelwright.Task
			Graph json.RawMessage `json:"graph"`
		} `json:"task"`
	}
	if err := json.Unmarshal(result, &reply); err != nil {
		return kernelwright.Task{}, err
	}
	t := reply.Task.Task
	if g := string(reply.Task.Graph); g != "" && g != "null" {
		t.Graph = []byte(g)
	}
	if t.Fingerprint == "" {
		return t, errors.New("the referee sent a task without a fingerprint")
	}
	return t, nil
}

// parsed is what a candidate's text says of itself.
type parsed struct {
	Language kernelwright.Language `json:"language"`
	Form     string                `json:"form"`
	// Of what was read by itself: why it is refused, and the hash of what is Python.
	Problems []string `json:"problems,omitempty"`
	Hash     string   `json:"normalised_hash,omitempty"`
	Given    string   `json:"given,omitempty"` // of a reference: the parameter by which it takes a function
}

// parse reads a text, as that of a "candidate" or a "reference".
func (e *Evaluator) parse(ctx context.Context, source, what string) (parsed, error) {
	var p parsed
	key := e.sourceKey(source, what)
	if e.recall(ctx, cacheSource, key, &p) {
		return p, nil
	}
	body := parseBody{source, what, e.options.Sandbox}
	result, err := e.super.request(ctx, "parse", body, parseTimeout)
	if err != nil {
		return p, err
	}
	if err := json.Unmarshal(result, &p); err != nil {
		return p, infrastructure("parse", err)
	}
	e.remember(ctx, cacheSource, key, p)
	return p, nil
}

func (e *Evaluator) sourceKey(source, what string) string {
	return joinKey(what, kernelwright.HashText(source), e.harness.hash)
}

// Export returns the candidate as a standalone file that needs only torch and
// a compiler.
func (e *Evaluator) Export(ctx context.Context, cand kernelwright.Candidate) (string, error) {
	body := map[string]any{"candidate": candidateBody{cand.Source, cand.Language}, "sandbox": e.options.Sandbox}
	result, err := e.super.request(ctx, "export", body, exportTimeout)
	if err != nil {
		return "", requestError(err)
	}
	var reply struct {
		Source string `json:"source"`
	}
	if err := json.Unmarshal(result, &reply); err != nil {
		return "", infrastructure("export", err)
	}
	if reply.Source == "" {
		return "", infrastructure("export", errors.New("the referee sent an empty file"))
	}
	return reply.Source, nil
}

// Build is what compilers made of a candidate for one architecture.
type Build struct {
	Arch   string                   `json:"arch"`   // "sm_90a"; empty: the CPU
	Status string                   `json:"status"` // "built", or a verdict's: "rejected", "build_failed", ...
	Reason string                   `json:"reason,omitempty"`
	Triton bool                     `json:"triton,omitempty"` // its kernels are compiled when it runs
	Report kernelwright.BuildReport `json:"build"`
}

// Architectures are what a candidate in CUDA is built for where nobody says.
var Architectures = []string{"sm_80", "sm_90a", "sm_100a"}

// spareCores are so many that a compiler does not disturb what a GPU is asked for;
// evaluation.py has the same number.
const spareCores = 4

// compilersDisturb reports whether what is timed on the device suffers from a
// compiler beside it.
func (e *Evaluator) compilersDisturb() bool {
	return e.gpu == nil || len(e.cpu.allowed) < spareCores
}

// Build builds a candidate for architectures, for which no such GPU need be
// there; none: Architectures for code for a GPU, else the CPU. It waits for the
// device where it would disturb who measures there.
func (e *Evaluator) Build(ctx context.Context, cand kernelwright.Candidate, archs []string) ([]Build, error) {
	if err := e.contains(cand); err != nil {
		return nil, err
	}
	p, err := e.parse(ctx, cand.Source, "candidate")
	if err != nil {
		return nil, requestError(err)
	}
	var otherwise []string // where it turns out to be in CUDA, which its text need not show
	if len(archs) == 0 {
		archs = Architectures
		if p.Language == kernelwright.CPP || p.Language == "" {
			archs, otherwise = []string{""}, Architectures
		}
	}
	if e.compilersDisturb() {
		lease, err := e.turn.take(ctx, e.device.String(), false)
		if err != nil {
			return nil, err
		}
		defer e.letGo(lease, false)
	}
	body := map[string]any{
		"candidate": candidateBody{cand.Source, p.Language}, "archs": archs, "otherwise": otherwise,
		"sandbox": e.options.Sandbox, "cache_dir": e.cacheDir(),
	}
	result, err := e.super.request(ctx, "build", body, quickTimeout)
	if err != nil {
		return nil, requestError(err)
	}
	var reply struct {
		Builds []Build `json:"builds"`
	}
	if err := json.Unmarshal(result, &reply); err != nil {
		return nil, infrastructure("build", err)
	}
	if n := len(reply.Builds); n != len(archs) && n != len(otherwise) {
		return nil, infrastructure("build", fmt.Errorf("%d builds for %d architectures", n, len(archs)))
	}
	return reply.Builds, nil
}

// BuildOnly builds a candidate for the device, without measuring it. failure is
// one sentence on why it was not built, or empty. The error is infrastructure.
func (e *Evaluator) BuildOnly(ctx context.Context, cand kernelwright.Candidate) (report kernelwright.BuildReport, failure string, err error) {
	builds, err := e.Build(ctx, cand, []string{e.architecture()})
	if err != nil {
		return report, "", err
	}
	if b := builds[0]; b.Status != "built" {
		return b.Report, cmp.Or(b.Reason, b.Status), nil
	}
	return builds[0].Report, "", nil
}

// architecture is what code is compiled for: "sm_90a" where the device is an
// sm_90, whose own instructions come with the a; empty for the CPU.
func (e *Evaluator) architecture() string {
	if e.gpu == nil || len(e.device.Specs.ISA) == 0 {
		return ""
	}
	isa := e.device.Specs.ISA[0]
	if n, err := strconv.Atoi(strings.TrimPrefix(isa, "sm_")); err == nil && n >= 90 {
		isa += "a"
	}
	return isa
}

// requestError turns the referee's word that a reference is bad into the
// type that says so. Every other error of a request is what it should be.
func requestError(err error) error {
	var remote *remoteError
	if errors.As(err, &remote) && remote.Kind == "invalid" {
		return &kernelwright.InvalidTaskError{Reason: remote.Message, Hint: remote.Hint, Traceback: remote.Traceback}
	}
	return err
}

func (e *Evaluator) letGo(lease Lease, goesOn bool) {
	if err := e.turn.give(lease, goesOn); err != nil {
		e.options.Log.Warn("a device lease was not released cleanly", "device", e.device.String(), "error", err)
	}
}

// recall reads a value from the cache; a value that cannot be read is absent.
func (e *Evaluator) recall(ctx context.Context, kind, key string, into any) bool {
	return recall(ctx, e.cache, e.options.Log, kind, key, into)
}

// remember keeps a value even when the context has just ended: it is paid for.
func (e *Evaluator) remember(ctx context.Context, kind, key string, value any) {
	remember(ctx, e.cache, e.options.Log, kind, key, value)
}

func recall(ctx context.Context, cache Cache, log *slog.Logger, kind, key string, into any) bool {
	if cache == nil {
		return false
	}
	b, found, err := cache.Get(ctx, kind, key)
	if err != nil {
		if ctx.Err() == nil {
			log.Warn("the cache cannot be read", "kind", kind, "error", err)
		}
		return false
	}
	if !found {
		return false
	}
	if err := json.Unmarshal(b, into); err != nil {
		log.Warn("a cached value is damaged and is made again", "kind", kind, "key", key, "error", err)
		return false
	}
	return true
}

func remember(ctx context.Context, cache Cache, log *slog.Logger, kind, key string, value any) {
	if cache == nil {
		return
	}
	b, err := json.Marshal(value)
	if err == nil {
		err = cache.Put(context.WithoutCancel(ctx), kind, key, b)
	}
	if err != nil {
		log.Warn("the cache cannot be written", "kind", kind, "error", err)
	}
}
