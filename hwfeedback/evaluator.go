// Package hwfeedback is the truth: it says what a device can reach, what a
// task is, and what the hardware makes of a candidate. The measuring is done
// by the Python in harness, in processes of its own; this package starts
// them, keeps them honest about time and death, and remembers verdicts.
package hwfeedback

import (
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/hwfeedback/gpu"
)

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
	selfTestTimeout = 5 * time.Minute

	// ceilingsTries are on fresh processes: one that dies by chance, or is killed,
	// is no broken machine.
	ceilingsTries = 3

	defaultInspectTimeout = 5 * time.Minute
	defaultCertifyTime    = 30 * time.Second
	// inspectShare of that all steps of an inspection together may take, so the
	// referee answers in time. A reference that takes longer at one is invalid.
	inspectShare = 0.8
)

// Evaluator evaluates candidates on one device. It is safe for concurrent use;
// requests to the harness go one at a time, but for Options.AtOnce.
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
	agreeing sync.Mutex        // guards said once servers start
	said     map[string]string // by a server of this Python; see identify
	versions map[string]string
	cache    Cache
	turn     *turn
	super    *supervisor
	lanes    *lanes        // nil: one candidate at a time
	early    *earlyBuilds  // nil: none
	patience time.Duration // with the self-test; 0: selfTestTimeout
	close    sync.Once
}

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
		e.early.close()
		e.lanes.close()
		e.super.close()
		e.turn.close()
	})
	return nil
}

// Interpreter is the Python that has PyTorch, as an absolute path.
func (e *Evaluator) Interpreter() string { return e.env.Interpreter }

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
