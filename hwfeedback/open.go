package hwfeedback

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"
)

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
	var warm *warmServers
	if o.KeepWarm > 0 && o.Sandbox == "strict" {
		warm = &warmServers{filepath.Join(o.DataDir, "warm"), env, folder, vars, o.KeepWarm}
	}
	unpack := func() error {
		if _, err := h.unpack(o.DataDir); err != nil {
			return &SetupError{Reason: err.Error(), Hint: "see that the data folder can be written to", cause: err}
		}
		return nil
	}
	starts := func() func(context.Context) (*forkServer, error) {
		start := func(ctx context.Context) (*forkServer, error) {
			return startForkServer(ctx, env.Interpreter, folder, vars, o.Log)
		}
		if warm != nil {
			start = warm.first(start, o.Log)
		}
		return func(ctx context.Context) (*forkServer, error) {
			if err := unpack(); err != nil {
				return nil, err
			}
			return start(ctx)
		}
	}
	var early *earlyBuilds
	if o.Lazy {
		early = newEarlyBuilds(func(ctx context.Context) (*forkServer, error) {
			return startForkServer(ctx, env.Interpreter, folder, vars, o.Log, "--early")
		}, unpack, warm, o.Log)
	}
	var idle time.Duration
	if g != nil { // on a CPU nothing is begun ahead
		idle = turnIdle
	}
	e := &Evaluator{options: o, env: env, gpu: g, harness: h, cache: cache, turn: newTurn(leases, idle), early: early}
	opened, err := open(ctx, e, starts)
	if err != nil {
		early.close()
	}
	return opened, err
}

// open starts the processes of an Evaluator and has its device. starts gives what starts
// one server after the other.
func open(ctx context.Context, e *Evaluator, starts func() func(context.Context) (*forkServer, error)) (*Evaluator, error) {
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
	e.super = newSupervisor(e.starting(starts()), e.refereeConfig(), e.options.Progress, e.options.Log)
	if e.options.AtOnce > 1 {
		var all []*supervisor
		for range e.options.AtOnce {
			lane := newSupervisor(e.starting(starts()), e.refereeConfig(), e.options.Progress, e.options.Log)
			lane.brief = true
			all = append(all, lane)
		}
		e.lanes = newLanes(all, e.room)
	}
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
