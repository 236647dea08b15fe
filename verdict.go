package kernelwright

import "encoding/json"

// Status says how far a candidate came.
type Status string

// The statuses, in the order in which a candidate meets them. Invalid is for
// a reference that is no task: then there was no candidate to evaluate.
const (
	Invalid     Status = "invalid"
	Rejected    Status = "rejected"     // breaks the policy
	BuildFailed Status = "build_failed" // does not compile or import
	Crashed     Status = "crashed"      // its process died or raised
	TimedOut    Status = "timed_out"
	Wrong       Status = "wrong"
	Cheated     Status = "cheated" // deceived
	Correct     Status = "correct"
	Certified   Status = "certified"
)

// Level is how strict an evaluation is.
type Level string

// Quick is for the loop, Certify for what is kept.
const (
	Quick   Level = "quick"
	Certify Level = "certify"
)

// OK reports whether the candidate computed the right thing honestly.
func (s Status) OK() bool { return s == Correct || s == Certified }

// Verdict is what the hardware said of one candidate. It is a plain value: it
// can be stored, sent and compared. Nothing in it rests on the candidate's
// own word except where a field says so.
type Verdict struct {
	Status Status `json:"status"`
	Reason string `json:"reason"` // one sentence
	Hint   string `json:"hint,omitempty"`
	Level  Level  `json:"level"`

	Task      string   `json:"task"`      // fingerprint
	Candidate string   `json:"candidate"` // hex SHA-256 of its text as it was handed in
	Language  Language `json:"language,omitempty"`
	Device    string   `json:"device"`     // Device.String()
	DeviceKey string   `json:"device_key"` // Device.Key

	CandidateMS float64            `json:"candidate_ms" unknown:"0"` // 0 when it was not timed
	Baselines   map[string]float64 `json:"baselines"`                // name to median, milliseconds
	Speedup     *Speedup           `json:"speedup"`                  // against the fastest baseline; nil when not timed
	Speedups    map[string]Speedup `json:"speedups,omitempty"`
	Headroom    float64            `json:"headroom" unknown:"0"` // Floor.MS / CandidateMS, capped at 1; 1 is at the roofline

	Build       BuildReport        `json:"build" unknown:"0"`
	Correctness CorrectnessReport  `json:"correctness" unknown:"0"`
	Timing      TimingReport       `json:"timing" unknown:"0"`
	Floor       Floor              `json:"floor" unknown:"0"`
	Work        WorkReport         `json:"work" unknown:"0"`
	Metrics     map[string]float64 `json:"metrics,omitempty"` // for the Judge; names and units in docs/metrics.md
	Profile     *Profile           `json:"profile,omitempty"` // nil where nobody looked
	// EagerProfile is the same of the reference, taken once for a task and a device.
	EagerProfile *Profile      `json:"eager_profile,omitempty"`
	Sandbox      SandboxReport `json:"sandbox" unknown:"0"`
	Flags        []TaskFlag    `json:"flags,omitempty"`
	// Assumes is what a correct candidate takes for granted of its inputs and
	// buffers, a sentence each without its subject.
	Assumes  Assumptions        `json:"assumes"`
	Weights  string             `json:"weights,omitempty"`  // how the candidate got the reference's: [WeightsByName] and others; empty where it came to none
	Evidence []string           `json:"evidence,omitempty"` // one sentence each, what the status rests on
	Output   string             `json:"output,omitempty"`   // the end of what the candidate printed; untrusted
	CostS    map[string]float64 `json:"cost_s"`             // part ("worker", "build", "verify", "time", ...) to seconds
	Versions map[string]string  `json:"versions"`
	Cached   bool               `json:"cached,omitempty"` // served from the verdict cache
	// Explained is what a candidate that policy rejects would be without it. The
	// figures are that one's then, and count nowhere. Nil of all else.
	Explained *Explanation `json:"explained,omitempty"`

	// Exported is the standalone file that was certified: it needs only torch
	// and a compiler. ExportedSHA256 is its hash. Only at Certify.
	Exported       string `json:"exported,omitempty"`
	ExportedSHA256 string `json:"exported_sha256,omitempty"`
}

// Explanation is what a rejected candidate would be if policy asked for nothing.
type Explanation struct {
	Status Status `json:"status"`
	Reason string `json:"reason"`
}

// WithFigures returns a rejected verdict with how right and how fast the candidate
// is: free is its verdict where policy asks for nothing.
func (v Verdict) WithFigures(free Verdict) Verdict {
	v.Explained = &Explanation{free.Status, free.Reason}
	v.Correctness, v.Weights, v.Assumes = free.Correctness, free.Weights, free.Assumes
	v.CandidateMS, v.Speedup, v.Speedups, v.Headroom = free.CandidateMS, free.Speedup, free.Speedups, free.Headroom
	v.Timing, v.Floor, v.Work, v.Metrics = free.Timing, free.Floor, free.Work, free.Metrics
	if free.Baselines != nil {
		v.Baselines = free.Baselines
	}
	cost := map[string]float64{}
	for _, of := range []map[string]float64{v.CostS, free.CostS} {
		for part, s := range of {
			cost[part] += s
		}
	}
	v.CostS = cost
	return v
}

// Assumptions are a list on the wire also where there are none.
type Assumptions []string

// MarshalJSON writes a list.
func (a Assumptions) MarshalJSON() ([]byte, error) {
	if len(a) == 0 {
		return []byte("[]"), nil
	}
	return json.Marshal([]string(a))
}

// UnmarshalJSON reads a list, nil where it is empty.
func (a *Assumptions) UnmarshalJSON(b []byte) error {
	var list []string
	if err := json.Unmarshal(b, &list); err != nil {
		return err
	}
	*a = nil
	if len(list) > 0 {
		*a = list
	}
	return nil
}

// How a candidate's weights are known to be the reference's: by their names,
// by what they hold once both sides are constructed under one seed, or not at
// all, so that it is evaluated as it is constructed under secret seeds.
const (
	WeightsByName  = "by name"
	WeightsByValue = "by value"
	WeightsBySeed  = "by seed"
)

// Speedup is baseline time over candidate time with a 95 % interval.
type Speedup struct {
	Value   float64 `json:"value"`
	Low     float64 `json:"low"`
	High    float64 `json:"high"`
	Against string  `json:"against"` // name of the baseline
}

// Wins reports whether the speedup is statistically above the margin: the
// interval's lower end clears it. Wins(0.05) is "5 % faster".
func (s *Speedup) Wins(margin float64) bool { return s != nil && s.Low > 1+margin }

// Slower reports whether a baseline is faster than the candidate: the whole
// interval lies below 1. Then there is something to gain, whatever the roofline says.
func (s *Speedup) Slower() bool { return s != nil && s.High < 1 }

// Vague reports whether measuring told nothing: the interval holds 1 and reaches
// over half of its lower end again.
func (s *Speedup) Vague() bool {
	return s != nil && s.Low <= 1 && s.High >= 1 && s.High > Shared.VagueRatio*s.Low
}

// plainMargin is the gain that counts between times that came without intervals:
// timing noise between processes reaches 2 %.
const plainMargin = 0.02

// FasterThan reports whether the candidate is faster than another beyond the noise
// of measuring. Both were timed.
func (v Verdict) FasterThan(other Verdict) bool {
	a, b := v.Timing.Candidate, other.Timing.Candidate
	if a.HighMS > 0 && b.LowMS > 0 {
		return a.HighMS < b.LowMS
	}
	return v.CandidateMS < other.CandidateMS*(1-plainMargin)
}

// FormAnswer is the form of what is no candidate: a model's answer that holds none.
const FormAnswer = "answer"

// BuildReport is what the compiler said.
type BuildReport struct {
	Seconds    float64      `json:"seconds" unknown:"0"`
	Cached     bool         `json:"cached"`
	Form       string       `json:"form,omitempty"`  // "native", "load_inline", "triton", "none", FormAnswer
	Code       string       `json:"code,omitempty"`  // the same for candidates whose objects, and whose text beside what these were built from, are the same; empty where that is not known
	Log        string       `json:"log,omitempty"`   // the end of the compiler's output
	Flags      []string     `json:"flags,omitempty"` // what became of those that were not taken as they are
	Errors     []Diagnostic `json:"errors,omitempty"`
	Vectorised []Diagnostic `json:"vectorised,omitempty"` // loops the compiler vectorised
	Missed     []Diagnostic `json:"missed,omitempty"`     // loops it did not, with its reason
	Kernels    []Kernel     `json:"kernels,omitempty"`    // of a GPU
}

// Kernel is what is known of a compiled kernel of a GPU without running it. Bytes
// of shared memory are a block's, those of stack and spills a thread's.
type Kernel struct {
	Name            string         `json:"name"`
	Arch            string         `json:"arch"` // "sm_90a"
	Registers       int            `json:"registers"`
	SharedBytes     int            `json:"shared_bytes"` // static
	StackBytes      int            `json:"stack_bytes"`
	SpillStoreBytes int            `json:"spill_store_bytes"`
	SpillLoadBytes  int            `json:"spill_load_bytes"`
	Warps           int            `json:"warps,omitempty"`        // of a block, Triton's
	Instructions    map[string]int `json:"instructions,omitempty"` // in its SASS, by class
	LoadBytes       float64        `json:"load_bytes,omitempty"`   // that a thread moves with a load of global memory, mean
	StoreBytes      float64        `json:"store_bytes,omitempty"`
}

// Profile is what a profiler saw a GPU do in one forward of the candidate, after
// warm-up. It is taken in the candidate's process: it explains and never convicts.
type Profile struct {
	Tool     string             `json:"tool"`              // "ncu", "profiler" (launches and their times alone), "static" (what the compiler says)
	Why      string             `json:"why,omitempty"`     // why it is not ncu, or not all that ncu could say
	Launches int                `json:"launches"`          // of kernels in one forward
	MS       float64            `json:"ms" unknown:"0"`    // their times together; 0 where not all are known, and then no share is
	Kernels  []KernelProfile    `json:"kernels,omitempty"` // by share of the time, largest first
	Metrics  map[string]float64 `json:"metrics,omitempty"` // of the whole forward, weighted by time; sums where the metric is a sum, none of a part
	Missing  []string           `json:"missing,omitempty"` // metrics that were asked for and this GPU or this ncu has not
	// MeasuredAs has the names under which this GPU has metrics that have another one here.
	MeasuredAs map[string]string `json:"measured_as,omitempty"`
	// Position is where the kernels stand below the measured ceilings, by the names
	// of a verdict's metrics (docs/metrics.md). A candidate's is among those, too.
	Position map[string]float64 `json:"position,omitempty"`
}

// KernelProfile is one kernel of a Profile, or a copy: all its launches in the
// forward with one grid and block. Of many the first few were measured; a metric
// that is a sum (its name ends in ".sum") is of all of them.
type KernelProfile struct {
	Name     string             `json:"name"`
	Whose    string             `json:"whose"` // "custom", "vendor", "pytorch"
	Launches int                `json:"launches"`
	MS       float64            `json:"ms" unknown:"0"` // 0 where it is not known
	Share    float64            `json:"share"`          // of the forward's time on the GPU
	Grid     [3]int             `json:"grid"`
	Block    [3]int             `json:"block"`
	Metrics  map[string]float64 `json:"metrics,omitempty"` // by ncu's names, in ncu's base units (docs/metrics.md)
}

// Diagnostic is one line of a compiler. Line counts in the candidate's file,
// from 1.
type Diagnostic struct {
	Line    int    `json:"line" unknown:"0"`
	Message string `json:"message"`
}

// CorrectnessReport is the evidence of the gate.
type CorrectnessReport struct {
	Precision      string         `json:"precision"` // what the task holds the candidate to: "float32"
	Seeds          int            `json:"seeds"`
	Families       []FamilyReport `json:"families"`
	KernelBench    *bool          `json:"kernelbench,omitempty"` // would KernelBench's allclose have passed; recorded, never the gate
	Deterministic  *bool          `json:"deterministic,omitempty"`
	CachesWeights  *bool          `json:"caches_weights,omitempty"`
	FollowsWeights *bool          `json:"follows_weights,omitempty"` // certify; false at quick where it is right as constructed alone
	General        *bool          `json:"general,omitempty"`         // Certify only: other batch sizes
}

// NotFinite stands for an error or a bound that is no number, which JSON cannot hold.
var NotFinite = Shared.NotFinite

// FamilyReport is one input family. An advisory family (Gates false) is one
// that an honest implementation fails on this task; Note says which.
type FamilyReport struct {
	Name     string  `json:"name"` // "base", "scaled_up", ...
	Gates    bool    `json:"gates"`
	Passed   bool    `json:"passed"`
	Seeds    int     `json:"seeds"`
	MaxError float64 `json:"max_error"` // NotFinite where a value is NaN or infinite and should not be; so the others
	MaxBound float64 `json:"max_bound"`
	RMSError float64 `json:"rms_error"`
	RMSBound float64 `json:"rms_bound"`
	Skipped  int64   `json:"skipped,omitempty"` // elements where the reference itself is not trustworthy
	Note     string  `json:"note,omitempty"`
}

// Measurement is a time, in milliseconds for one forward.
type Measurement struct {
	MedianMS    float64 `json:"median_ms" unknown:"0"`
	P25MS       float64 `json:"p25_ms" unknown:"0"`
	P75MS       float64 `json:"p75_ms" unknown:"0"`
	LowMS       float64 `json:"low_ms" unknown:"0"` // bootstrap 95 % interval of the median
	HighMS      float64 `json:"high_ms" unknown:"0"`
	Repetitions int     `json:"repetitions" unknown:"0"`
	Clock       string  `json:"clock"`                // "event" or "wall": the one MedianMS comes from
	EventMS     float64 `json:"event_ms" unknown:"0"` // the worker's own clock
	WallMS      float64 `json:"wall_ms" unknown:"0"`  // the referee's, to private copies, identity subtracted
	// Of a call that comes alone, with the host's work before its last kernel
	// has ended. On a GPU only: on a CPU the host's work is in every time.
	LatencyMS float64 `json:"latency_ms,omitempty" unknown:"0"`
	// A profiler's, from where the first kernel starts until the last has
	// ended: it corroborates. Certify on a GPU only.
	SpanMS float64 `json:"span_ms,omitempty" unknown:"0"`
	// Earlier: a baseline's, measured before on the same machine and scaled by
	// how eager's time has changed since.
	Earlier bool `json:"earlier,omitempty"`
}

// TimingReport holds the candidate and everything it was held against.
type TimingReport struct {
	Candidate Measurement            `json:"candidate"`
	Baselines map[string]Measurement `json:"baselines,omitempty"`
	Threads   int                    `json:"threads,omitempty"`
	Protocol  string                 `json:"protocol,omitempty"`  // "cached baselines" or "interleaved"
	Marked    bool                   `json:"marked,omitempty"`    // the clocks disagreed: wall decided
	Disturbed bool                   `json:"disturbed,omitempty"` // most of the candidate's windows were, or too few were not
	Notes     []string               `json:"notes,omitempty"`
}

// Floor is the least time the task can take on the device's measured
// ceilings.
type Floor struct {
	MS         float64 `json:"ms" unknown:"0"`
	Bound      string  `json:"bound"` // "memory", "cache" or "compute"
	Bytes      int64   `json:"bytes"`
	Operations int64   `json:"operations"`
}

// WorkReport splits the candidate's time by who did the work. The trace lives
// in the candidate's process, so it explains and never convicts by itself.
type WorkReport struct {
	Custom  float64 `json:"custom"` // shares of the time of one forward, 0 to 1
	Vendor  float64 `json:"vendor"`
	PyTorch float64 `json:"pytorch"`
	// What torch.compile has made, where policy allows it, and what a CUDA graph replays.
	Compiled  float64         `json:"compiled,omitempty"`
	Graph     float64         `json:"graph,omitempty"`
	Operators []OperatorShare `json:"operators,omitempty"`
	Launches  []Launch        `json:"launches,omitempty"` // Certify on a GPU only, the longest first
}

// Launch is one kind of what a forward has a GPU do, a kernel or a copy, as a
// profiler saw it in the exported file, run by itself.
type Launch struct {
	Name  string  `json:"name"`
	Count int     `json:"count"`
	MS    float64 `json:"ms" unknown:"0"` // all of them together, in one forward
	Grid  []int   `json:"grid,omitempty"`
	Block []int   `json:"block,omitempty"`
}

// OperatorShare is one operator of a trace.
type OperatorShare struct {
	Name  string  `json:"name"`
	Kind  string  `json:"kind"` // "custom", "vendor", "pytorch", "compiled", "graph"
	Share float64 `json:"share"`
	Calls int     `json:"calls"`
}

// SandboxReport says what contained the candidate.
type SandboxReport struct {
	Mode    string   `json:"mode"` // "strict" or "weak"
	Missing []string `json:"missing,omitempty"`
}

// InfrastructureError is not the candidate's fault and never a reward.
type InfrastructureError struct {
	Op  string // what was being done
	Err error
}

func (e *InfrastructureError) Error() string { return e.Op + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *InfrastructureError) Unwrap() error { return e.Err }
