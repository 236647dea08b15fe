// Package serving has policies answer: a server of ours a version, started when it is
// asked for, shared by all who ask, and stopped when nobody has for a while. What calls
// one is in package llm.
package serving

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/trainer/policies"
	"github.com/kernelwright/kernelwright/trainer/rl"
)

// The defaults.
const (
	DefaultIdle  = 5 * time.Minute  // a server takes some seconds to start again, and its memory meanwhile
	DefaultStart = 10 * time.Minute // what large weights take from a slow disk
)

// Options say how policies are served.
type Options struct {
	// Python is asked when the first server starts: making an environment takes minutes.
	Python func(ctx context.Context) (rl.Python, error)
	// Check is asked before a policy is served, and says why it may not be: a folder that
	// was changed is not.
	Check  func(ctx context.Context, p policies.Policy) error
	Device string     // "cpu", "cuda" or "auto", which "" is
	GPU    func() int // which, where it is one; nil: the first
	// Leases is the folder of the devices' leases: a server holds its device's while it
	// computes, so that it does not while something is measured there. Empty: none is taken.
	Leases string
	Idle   time.Duration // how long a server that nobody uses stays; 0 is DefaultIdle
	Start  time.Duration // how long one may take to start; 0 is DefaultStart
	Log    *slog.Logger  // nil: nobody is told
}

// Endpoint is where a policy answers, by OpenAI's protocol.
type Endpoint struct {
	URL     string // where paths begin: "http://127.0.0.1:4711/v1"
	Model   string // as requests name it: "policy:v3"
	Token   string // that they carry
	Context int    // of prompt and answer together, in tokens
}

// Error says why a policy cannot be served, in one sentence, and what to do.
type Error struct {
	Text, Hint string
	// Lasting: it will be so the next time, too, unless somebody mends it.
	Lasting bool
	Err     error
}

func (e *Error) Error() string { return e.Text }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Servers are those of a process. They are safe for concurrent use. Close ends them.
type Servers struct {
	options Options
	ctx     context.Context // ends starts that are under way
	cancel  context.CancelFunc

	mu      sync.Mutex
	closed  bool
	servers map[int64]*server // by version
	running sync.WaitGroup    // what waits for processes
}

// server is one version's.
type server struct {
	policy policies.Policy
	ready  chan struct{} // closed when it answers, or cannot

	// The rest is Servers.mu's; endpoint and err are set before ready is closed, and not
	// after.
	endpoint Endpoint
	err      error
	process  *process
	users    int
	idle     *time.Timer // nil while somebody uses it
}

// New returns servers, none of which runs.
func New(o Options) *Servers {
	if o.Idle == 0 {
		o.Idle = DefaultIdle
	}
	if o.Start == 0 {
		o.Start = DefaultStart
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Servers{options: o, ctx: ctx, cancel: cancel, servers: map[int64]*server{}}
}

var errClosed = errors.New("policies are not served any more")

// Acquire returns where a policy answers, and what lets go of it, which is to be called
// once it is not asked any more. It starts the server where none runs, and waits until it
// answers. The error is an *Error, a *policies.ChangedError, or the context's.
func (s *Servers) Acquire(ctx context.Context, p policies.Policy) (Endpoint, func(), error) {
	if err := ctx.Err(); err != nil {
		return Endpoint{}, nil, err
	}
	one, err := s.use(p)
	if err != nil {
		return Endpoint{}, nil, err
	}
	release := sync.OnceFunc(func() { s.leave(one) })
	select {
	case <-one.ready:
	case <-ctx.Done():
		release()
		return Endpoint{}, nil, ctx.Err()
	}
	if one.err != nil {
		release()
		return Endpoint{}, nil, one.err
	}
	return one.endpoint, release, nil
}

// use returns the server of a policy, which now has one user more.
func (s *Servers) use(p policies.Policy) (*server, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	one := s.servers[p.Version]
	if one == nil {
		one = &server{policy: p, ready: make(chan struct{})}
		s.servers[p.Version] = one
		s.running.Go(func() { s.run(one) })
	}
	one.users++
	if one.idle != nil {
		one.idle.Stop()
		one.idle = nil
	}
	return one, nil
}

// leave takes a user away. After the last one the server has Idle to live.
func (s *Servers) leave(one *server) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one.users--
	s.rest(one)
}

// rest has a server end in a while, if nobody uses it. The caller holds mu.
func (s *Servers) rest(one *server) {
	if one.users > 0 || s.closed || one.process == nil || s.servers[one.policy.Version] != one {
		return
	}
	one.idle = time.AfterFunc(s.options.Idle, func() { s.retire(one) })
}

// retire stops a server that nobody uses.
func (s *Servers) retire(one *server) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one.users > 0 || s.closed || s.servers[one.policy.Version] != one {
		return false
	}
	s.options.Log.Info("a policy's server is stopped: nobody asks it", "policy", one.policy.Name())
	delete(s.servers, one.policy.Version)
	one.process.stop()
	return true
}

// run starts a server and waits for its end.
func (s *Servers) run(one *server) {
	began := time.Now()
	p, err := s.start(one.policy)
	s.mu.Lock()
	if err != nil {
		one.err = err
		delete(s.servers, one.policy.Version)
	} else {
		one.process, one.endpoint = p, p.endpoint
		if s.closed {
			p.stop()
		}
		s.rest(one) // those who asked for it may have left
	}
	s.mu.Unlock()
	close(one.ready)
	if err != nil {
		return
	}
	s.options.Log.Info("a policy is served", "policy", one.policy.Name(), "took", time.Since(began).Round(time.Millisecond))
	err = p.wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.servers[one.policy.Version] == one { // else it was stopped
		delete(s.servers, one.policy.Version)
		if !s.closed {
			s.options.Log.Warn("a policy's server has ended; the next call starts it again", "policy", one.policy.Name(), "error", err)
		}
	}
}

// start starts a process. Where there is too little memory, servers that nobody uses make
// room, and it is tried once more.
func (s *Servers) start(p policies.Policy) (*process, error) {
	ctx, cancel := context.WithTimeout(s.ctx, s.options.Start)
	defer cancel()
	if s.options.Check != nil {
		if err := s.options.Check(ctx, p); err != nil {
			return nil, s.late(ctx, p, err)
		}
	}
	python, err := s.options.Python(ctx)
	if err != nil {
		return nil, s.late(ctx, p, err)
	}
	settings := settings{Policy: p.Folder, Name: "policy:" + p.Name(), Device: s.options.Device, Leases: s.options.Leases}
	if s.options.GPU != nil {
		settings.GPU = s.options.GPU()
	}
	if settings.Device == "" {
		settings.Device = "auto"
	}
	started, err := launch(ctx, python, settings)
	if short := new(memoryError); errors.As(err, &short) && s.makeRoom() {
		started, err = launch(ctx, python, settings)
	}
	return started, s.late(ctx, p, err)
}

// late says that a start took too long, where it did, else what else went wrong.
func (s *Servers) late(ctx context.Context, p policies.Policy, err error) error {
	var changed *policies.ChangedError
	var told *Error
	switch {
	case err == nil || errors.As(err, &changed) || errors.As(err, &told):
		return err
	case s.ctx.Err() != nil:
		return errClosed
	case ctx.Err() != nil:
		return &Error{Text: fmt.Sprintf("the server of policy %s did not start in %v", p.Name(), s.options.Start), Hint: "see what else keeps this machine busy, and try again"}
	}
	e := &Error{Text: fmt.Sprintf("policy %s cannot be served: %v", p.Name(), err), Err: err}
	if setup := new(hwfeedback.SetupError); errors.As(err, &setup) {
		e.Hint, e.Lasting = setup.Hint, true
	}
	return e
}

// makeRoom stops all servers that nobody uses and waits for their ends; false where there
// is none.
func (s *Servers) makeRoom() bool {
	s.mu.Lock()
	var free []*server
	for _, one := range s.servers {
		if one.users == 0 && one.process != nil {
			free = append(free, one)
		}
	}
	s.mu.Unlock()
	made := false
	for _, one := range free {
		if s.retire(one) {
			<-one.process.ended
			made = true
		}
	}
	return made
}

// Close stops all servers and waits until their processes are gone. Calls that wait for an
// answer fail. It may be called again.
func (s *Servers) Close() {
	s.mu.Lock()
	s.closed = true
	s.cancel()
	for _, one := range s.servers {
		if one.idle != nil {
			one.idle.Stop()
		}
		if one.process != nil {
			one.process.stop()
		}
	}
	s.mu.Unlock()
	s.running.Wait()
}
