package hwfeedback

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernelwright/kernelwright"
)

const (
	// readyTimeout covers `import torch` from a cold disk on a busy machine: 1 s
	// warm, over 30 s seen on network disks.
	readyTimeout = 3 * time.Minute
	// spawnTimeout covers one fork, 10 ms; longer means that the server is stuck.
	spawnTimeout = 30 * time.Second
	// killTimeout is how long a killed referee may take to be reaped, and a
	// server to end after its control connection did.
	killTimeout = 5 * time.Second
	// stderrLines is how many lines of one fork server reach the log.
	stderrLines = 500
	// stderrTail is how many bytes of them an error can quote.
	stderrTail = 8 << 10
)

// forkServer is the one Python process that has imported torch; everything
// else of the harness is forked from it. It lives in its own session and
// process group and dies when its control connection ends, but for one that is
// kept warm (warm.go).
type forkServer struct {
	cmd      *exec.Cmd // nil for one that is kept warm
	control  *channel
	versions map[string]string
	pid      int
	said     func() string // the end of what it printed
	dead     chan struct{} // closed when it no longer answers
	gone     chan struct{} // closed when it was reaped and its group killed; of a warm one, when it no longer answers
	stopOnce sync.Once
	tasks    sync.WaitGroup

	mu      sync.Mutex
	lastID  int64
	pending map[int64]chan message  // spawns without an answer
	alive   map[int64]chan struct{} // closed when that process has been reaped
}

// startForkServer starts it and waits until torch is imported. When that
// fails the error quotes what Python said. more are words of its command.
func startForkServer(ctx context.Context, python, harness string, env []string, log *slog.Logger, more ...string) (*forkServer, error) {
	control, peer, err := socketPair()
	if err != nil {
		return nil, err
	}
	stderr, stderrWriter, err := os.Pipe()
	if err != nil {
		control.close()
		peer.Close()
		return nil, err
	}
	f := newForkServer(control)
	printed := &words{file: stderr, end: tail{limit: stderrTail}}
	f.said = printed.said
	// -I: nothing of the user's Python settings, no current folder on the path.
	f.cmd = exec.Command(python, append([]string{"-I", "-B", filepath.Join(harness, forkServerScript)}, more...)...)
	f.cmd.Env = env
	f.cmd.Dir = harness
	f.cmd.Stdout, f.cmd.Stderr = stderrWriter, stderrWriter
	f.cmd.ExtraFiles = []*os.File{peer} // descriptor 3
	f.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = f.cmd.Start()
	peer.Close()
	stderrWriter.Close()
	if err != nil {
		control.close()
		stderr.Close()
		return nil, fmt.Errorf("start %s: %w", python, err)
	}
	stderrDone := make(chan struct{})
	f.tasks.Go(func() {
		defer close(stderrDone)
		f.drain(printed, log)
	})
	f.tasks.Go(func() { f.reap(stderr, stderrDone) })

	if err := f.greet(ctx, readyTimeout); err != nil {
		// Nothing was forked yet, so nothing needs an orderly end. One that has
		// closed the conversation is dying, and its last words are worth the wait.
		if !errors.Is(err, errClosed) {
			_ = syscall.Kill(-f.cmd.Process.Pid, syscall.SIGKILL)
		}
		f.stop()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = fmt.Errorf("it was not ready within %v", readyTimeout)
		}
		return nil, f.explain("the Python fork server did not start", err)
	}
	return f, nil
}

func newForkServer(control *channel) *forkServer {
	return &forkServer{
		control: control,
		dead:    make(chan struct{}),
		gone:    make(chan struct{}),
		pending: map[int64]chan message{},
		alive:   map[int64]chan struct{}{},
	}
}

// greet waits for the server's first word, and has its events read from then
// on. After an error it is dead.
func (f *forkServer) greet(ctx context.Context, timeout time.Duration) error {
	stop := context.AfterFunc(ctx, f.control.interrupt)
	ready, files, err := f.control.recv(ctx, time.Now().Add(timeout))
	closeAll(files)
	if !stop() && err == nil { // interrupted between the message and here
		err = context.Cause(ctx)
	}
	if err == nil && ready.Type != "ready" {
		err = protocolErrorf("the fork server said %.40q, expected ready", ready.Type)
	}
	if err != nil {
		close(f.dead) // no reader was started
		return err
	}
	f.versions, f.pid = ready.Versions, ready.PID
	f.tasks.Go(f.read)
	return nil
}

// explain adds the end of what Python printed.
func (f *forkServer) explain(what string, err error) error {
	if said := f.said(); said != "" {
		return &harnessError{what: what, err: err, output: said}
	}
	return fmt.Errorf("%s: %w", what, err)
}

// harnessError is a failure of the Python side with the end of its output.
type harnessError struct {
	what   string
	err    error
	output string
}

func (e *harnessError) Error() string {
	return fmt.Sprintf("%s: %v (its last words: %s)", e.what, e.err, lastLine(e.output))
}

func (e *harnessError) Unwrap() error { return e.err }

// drain passes what Python prints on to the log, up to a cap, and keeps its
// end. It reads to the end, so that nobody blocks on a full pipe.
func (f *forkServer) drain(r io.Reader, log *slog.Logger) {
	lines := bufio.NewReaderSize(r, 4<<10)
	for n := 0; ; {
		line, err := lines.ReadSlice('\n') // a longer line comes in pieces
		if len(line) > 0 {
			switch n++; {
			case n <= stderrLines:
				log.Debug("harness", "pid", f.cmd.Process.Pid, "line", strings.TrimRight(string(line), "\r\n"))
			case n == stderrLines+1:
				log.Debug("harness prints too much: the rest is not logged", "pid", f.cmd.Process.Pid)
			}
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

// reap waits for the server's end and kills what is left of its group. While
// the dead leader is not reaped its group's number cannot be another's, so
// the kill comes before the Wait.
func (f *forkServer) reap(stderr *os.File, stderrDone <-chan struct{}) {
	pid := f.cmd.Process.Pid
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	_ = syscall.Kill(-pid, syscall.SIGKILL)
	_ = f.cmd.Wait() // how it ended says nothing that its last words do not
	select {         // a traceback may still be in the pipe
	case <-stderrDone:
	case <-time.After(time.Second): // somebody outside the group still holds it
	}
	stderr.Close()
	close(f.gone)
}

// read hands events to who waits for them. It ends with the connection.
func (f *forkServer) read() {
	defer close(f.dead)
	for {
		m, files, err := f.control.recv(context.Background(), time.Time{})
		if err != nil {
			return
		}
		closeAll(files)
		f.mu.Lock()
		switch m.Type {
		case "spawned", "failed":
			if answer := f.pending[m.ID]; answer != nil {
				delete(f.pending, m.ID)
				answer <- m // room for one
			}
		case "exited":
			if ended := f.alive[m.ID]; ended != nil {
				delete(f.alive, m.ID)
				close(ended)
			}
		}
		f.mu.Unlock()
	}
}

func (f *forkServer) isDead() bool {
	select {
	case <-f.dead:
		return true
	case <-f.gone:
		return true
	default:
		return false
	}
}

// stop ends the server and everything that was forked from it, and waits. One
// that is kept warm goes on, without what we had forked. It may be called more
// than once.
func (f *forkServer) stop() {
	f.stopOnce.Do(func() {
		f.control.close() // the server kills its workers and ends
		select {
		case <-f.gone:
		case <-time.After(killTimeout):
			if f.cmd != nil {
				_ = syscall.Kill(-f.cmd.Process.Pid, syscall.SIGKILL)
			}
		}
	})
	<-f.gone
	f.tasks.Wait()
}

type spawnRequest struct {
	V        int            `json:"v"`
	Type     string         `json:"type"`
	ID       int64          `json:"id"`
	Role     string         `json:"role"`
	Settings map[string]any `json:"settings"`
	Config   any            `json:"config"`
	FDs      int            `json:"fds"`
}

type killRequest struct {
	V    int    `json:"v"`
	Type string `json:"type"`
	ID   int64  `json:"id"`
}

type restRequest struct {
	V    int    `json:"v"`
	Type string `json:"type"`
	ID   int64  `json:"id"`
	FDs  int    `json:"fds"`
}

// rest leaves a referee that has no request to a server that is kept warm, with
// all that it keeps: for a minute it is what spawnReferee returns to whoever
// asks for one with its config.
func (f *forkServer) rest(r *referee) error {
	end, err := r.ch.conn.File()
	if err != nil {
		return err
	}
	defer end.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.control.send(restRequest{protocolVersion, "rest", r.id, 1}, time.Now().Add(kernelwright.Shared.SendTimeout.Duration), end)
}

// spawnReferee forks a referee, or has one that rests.
func (f *forkServer) spawnReferee(ctx context.Context, config any) (*referee, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	answer, ended := make(chan message, 1), make(chan struct{})
	f.mu.Lock()
	f.lastID++
	id := f.lastID
	f.pending[id], f.alive[id] = answer, ended
	request := spawnRequest{protocolVersion, "spawn", id, "referee", map[string]any{}, config, 1}
	err = f.control.send(request, time.Now().Add(spawnTimeout), theirs)
	f.mu.Unlock()
	if err != nil {
		ours.close()
		return nil, f.explain("the fork server does not listen", err)
	}
	late := time.NewTimer(spawnTimeout)
	defer late.Stop()
	select {
	case m := <-answer:
		if m.Type == "failed" {
			ours.close()
			return nil, fmt.Errorf("the fork server cannot start a referee: %s", m.Message)
		}
		return &referee{server: f, id: id, pid: m.PID, ch: ours, ended: ended}, nil
	case <-f.dead:
		err = f.explain("the fork server died", errClosed)
	case <-late.C:
		err = fmt.Errorf("the fork server started no referee within %v", spawnTimeout)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	ours.close() // a referee that came to be all the same ends with its conversation
	return nil, err
}

// referee is the process that answers our requests, one at a time.
type referee struct {
	server *forkServer
	id     int64
	pid    int
	ch     *channel
	ended  chan struct{} // closed when it was reaped
	last   int64         // id of the last request
}

func (r *referee) isDead() bool {
	select {
	case <-r.ended:
		return true
	default:
		return r.server.isDead()
	}
}

// kill ends the referee, and with it its workers. It reports whether the
// fork server confirmed it in time; if not, the server is to be stopped too.
func (r *referee) kill() bool {
	defer r.ch.close()
	r.server.mu.Lock()
	err := r.server.control.send(killRequest{protocolVersion, "kill", r.id}, time.Now().Add(killTimeout))
	r.server.mu.Unlock()
	if err != nil {
		return false
	}
	late := time.NewTimer(killTimeout)
	defer late.Stop()
	select {
	case <-r.ended:
		return true
	case <-r.server.dead:
		return false
	case <-late.C:
		return false
	}
}

// hearer is told what the referee says before it answers.
type hearer struct {
	progress func(stage, note string) // the supervisor's
	learned  func(learned)
	// alone is asked for a device that the referee had a share of. nil: it has all of it, or none.
	alone func(context.Context) (turnedTo, error)
}

// turnedTo is what a referee has once nobody else has the device: the lease's file, and
// what is known of the baselines by then.
type turnedTo struct {
	file      *os.File
	baselines json.RawMessage
}

// given is the answer to alone.
type given struct {
	V         int             `json:"v"`
	Type      string          `json:"type"`
	ID        int64           `json:"id"`
	FDs       int             `json:"fds"`
	Baselines json.RawMessage `json:"baselines,omitempty"`
}

// turnError says why a referee that asked to be alone did not get the device.
type turnError struct{ err error }

func (e *turnError) Error() string { return e.err.Error() }

func (e *turnError) Unwrap() error { return e.err }

// call makes one request and waits for its one result. An error that is no
// *remoteError leaves the referee in an unknown state: kill it.
func (r *referee) call(ctx context.Context, kind string, body any, hear hearer, files ...*os.File) (json.RawMessage, error) {
	r.last++
	request, err := envelope(kind, r.last, body, len(files))
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, r.ch.interrupt)
	defer stop()
	if err := r.ch.send(request, time.Now().Add(kernelwright.Shared.SendTimeout.Duration), files...); err != nil {
		return nil, err
	}
	for {
		m, received, err := r.ch.recv(ctx, time.Time{}) // the context's end interrupts it
		closeAll(received)                              // replies carry none
		switch {
		case err != nil:
			return nil, err
		case m.ID != r.last:
			return nil, protocolErrorf("the referee answered request %d, not %d", m.ID, r.last)
		case m.Type == "progress":
			hear.progress(m.Stage, m.Note)
		case m.Type == "learned":
			hear.learned(m.Learned)
		case m.Type == "alone" && hear.alone != nil:
			to, err := hear.alone(ctx)
			if err != nil {
				return nil, &turnError{err}
			}
			if err := r.ch.send(given{protocolVersion, "given", r.last, 1, to.baselines}, time.Now().Add(kernelwright.Shared.SendTimeout.Duration), to.file); err != nil {
				return nil, err
			}
		case m.Type == "result" && m.Result != nil:
			return m.Result, nil
		case m.Type == "error" && m.Error != nil:
			return nil, m.Error
		default:
			return nil, protocolErrorf("the referee answered with %.40q", m.Type)
		}
	}
}

// envelope puts what every request has around a body whose JSON is an object.
func envelope(kind string, id int64, body any, fds int) (json.RawMessage, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return nil, protocolErrorf("%s request cannot be written as JSON: %v", kind, err)
	}
	head := fmt.Sprintf(`{"v":%d,"id":%d,"type":%q`, protocolVersion, id, kind)
	if fds > 0 {
		head += fmt.Sprintf(`,"fds":%d`, fds)
	}
	if string(b) == "{}" || string(b) == "null" {
		return json.RawMessage(head + "}"), nil
	}
	return json.RawMessage(head + "," + string(b[1:])), nil
}

// supervisor keeps one fork server and one referee, starts them when they are
// missing, and lets one request through at a time.
type supervisor struct {
	start    func(context.Context) (*forkServer, error)
	config   any // the referee's
	progress func(stage, note string)
	log      *slog.Logger
	heard    func(kind string, result json.RawMessage) // told every result as it came; may be nil

	life context.Context // ends with close
	end  context.CancelCauseFunc
	slot chan struct{} // holds one token while nobody uses what follows

	server  *forkServer // nil when there is none
	referee *referee
	brief   bool // its referee does not outlive it
}

var errEvaluatorClosed = errors.New("the evaluator is closed")

func newSupervisor(start func(context.Context) (*forkServer, error), config any, progress func(stage, note string), log *slog.Logger) *supervisor {
	s := &supervisor{start: start, config: config, progress: progress, log: log, slot: make(chan struct{}, 1)}
	s.life, s.end = context.WithCancelCause(context.Background())
	s.slot <- struct{}{}
	return s
}

// request asks the referee. The answer is a result, a *remoteError of kind
// "invalid", the cause of ctx's end, or a *kernelwright.InfrastructureError. A
// request that ran out of time or was cancelled costs the referee its life,
// and with it every worker's.
func (s *supervisor) request(ctx context.Context, kind string, body any, timeout time.Duration, files ...*os.File) (json.RawMessage, error) {
	return s.converse(ctx, kind, body, timeout, hearer{learned: func(learned) {}}, files...)
}

// converse is request for one in whose course the referee says something: what it learns
// is worth keeping whether or not it ends, and what it waits for does not count as time.
func (s *supervisor) converse(ctx context.Context, kind string, body any, timeout time.Duration, hear hearer, files ...*os.File) (json.RawMessage, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.life, func() { cancel(errEvaluatorClosed) })()

	if err := s.acquire(ctx); err != nil {
		return nil, err
	}
	defer s.release()
	if err := s.ensure(ctx); err != nil {
		var setup *SetupError
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.As(err, &setup): // a person has to mend it
			return nil, setup
		}
		return nil, infrastructure(kind, err)
	}

	bounded, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	late := time.AfterFunc(timeout, func() { stop(context.DeadlineExceeded) })
	defer late.Stop()
	hear.progress = s.progress
	if alone := hear.alone; alone != nil {
		hear.alone = func(ctx context.Context) (turnedTo, error) {
			late.Stop()
			defer late.Reset(timeout)
			return alone(ctx)
		}
	}
	result, err := s.referee.call(bounded, kind, body, hear, files...)
	if err == nil {
		if s.heard != nil {
			s.heard(kind, result)
		}
		return result, nil
	}
	var remote *remoteError
	if errors.As(err, &remote) {
		if remote.Kind == "invalid" {
			return nil, remote
		}
		if remote.Kind == "missing" {
			return nil, infrastructure(kind, remote)
		}
		s.log.Warn("the referee reported an error", "request", kind, "kind", remote.Kind, "message", remote.Message)
		s.log.Debug("where the referee failed", "request", kind, "traceback", remote.Traceback)
		s.discard()
		s.doubt()
		return nil, infrastructure(kind, remote)
	}
	var turn *turnError
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case errors.As(err, &turn):
		err = turn.err
	case errors.Is(err, os.ErrDeadlineExceeded) && bounded.Err() == nil:
		err = infrastructure(kind, fmt.Errorf("the referee did not take the request within %v", kernelwright.Shared.SendTimeout))
	case bounded.Err() != nil:
		err = infrastructure(kind, fmt.Errorf("no answer within %v", timeout))
	case errors.Is(err, errClosed):
		select { // its traceback comes before its end
		case <-s.referee.ended:
		case <-s.server.dead:
		case <-time.After(killTimeout):
		}
		err = infrastructure(kind, s.server.explain("the referee died", err))
	default:
		err = infrastructure(kind, err)
	}
	s.log.Debug("the referee is killed", "request", kind, "reason", err)
	s.discard()
	if ctx.Err() == nil {
		s.doubt()
	}
	return nil, err
}

func (s *supervisor) acquire(ctx context.Context) error {
	select {
	case <-s.slot:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	err := context.Cause(s.life)
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		s.release()
	}
	return err
}

func (s *supervisor) release() { s.slot <- struct{}{} }

// startError says that the fork server did not come up, which no candidate can
// bring about.
type startError struct{ err error }

func (e *startError) Error() string { return e.err.Error() }

func (e *startError) Unwrap() error { return e.err }

// ensure has a living referee. A server that died since the last request is
// started again, once: when the new one dies too, the request fails.
func (s *supervisor) ensure(ctx context.Context) error {
	if s.referee != nil && s.referee.isDead() {
		s.discard()
	}
	for attempt := 0; s.referee == nil; attempt++ {
		if s.server != nil && s.server.isDead() {
			s.drop()
		}
		fresh := s.server == nil
		if fresh {
			server, err := s.start(ctx)
			if err != nil {
				return &startError{err}
			}
			s.server = server
			fresh = server.cmd != nil // one that was there before may be broken: once more, then
		}
		r, err := s.server.spawnReferee(ctx, s.config)
		if err != nil {
			s.drop()
			if fresh || attempt > 0 || ctx.Err() != nil {
				return err
			}
			continue
		}
		s.referee = r
	}
	return nil
}

// discard ends the referee, and the server when it does not obey.
func (s *supervisor) discard() {
	if s.referee == nil {
		return
	}
	obeyed := s.referee.kill()
	s.referee = nil
	if !obeyed {
		s.drop()
	}
}

// doubt leaves a server that was kept warm after a failure: who comes next
// shall start with one of its own.
func (s *supervisor) doubt() {
	if s.server != nil && s.server.cmd == nil {
		s.drop()
	}
}

// drop ends the server with everything that it forked.
func (s *supervisor) drop() {
	if s.referee != nil {
		s.referee.ch.close()
		s.referee = nil
	}
	if s.server != nil {
		s.server.stop()
		s.server = nil
	}
}

// renew has the next request start from nothing: new server, new referee.
func (s *supervisor) renew(ctx context.Context) error {
	if err := s.acquire(ctx); err != nil {
		return err
	}
	defer s.release()
	s.drop()
	return nil
}

// fresh has the next request start with a new referee.
func (s *supervisor) fresh(ctx context.Context) error {
	if err := s.acquire(ctx); err != nil {
		return err
	}
	defer s.release()
	s.discard()
	return nil
}

// versions starts the server where there is none and returns what it is.
func (s *supervisor) versions(ctx context.Context) (map[string]string, error) {
	if err := s.acquire(ctx); err != nil {
		return nil, err
	}
	defer s.release()
	if err := s.ensure(ctx); err != nil {
		return nil, err
	}
	return s.server.versions, nil
}

// close ends everything and waits, but for what a server that is kept warm may
// keep. It may be called more than once and while requests run: they fail.
func (s *supervisor) close() {
	s.end(errEvaluatorClosed)
	<-s.slot
	defer s.release()
	if s.referee != nil && !s.brief && s.server.cmd == nil && !s.referee.isDead() {
		if err := s.server.rest(s.referee); err != nil {
			s.log.Debug("the referee is not kept", "error", err)
		}
	}
	s.drop()
}

func infrastructure(op string, err error) error {
	return &kernelwright.InfrastructureError{Op: op, Err: err}
}

// words reads what Python prints, and keeps the end of it.
type words struct {
	file *os.File
	mu   sync.Mutex // held from what is read until it is kept
	end  tail
}

// Read returns what was printed, which is kept by then.
func (w *words) Read(p []byte) (n int, err error) {
	conn, err := w.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	closed := conn.Read(func(fd uintptr) bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		for n, err = unix.Read(int(fd), p); errors.Is(err, unix.EINTR); {
			n, err = unix.Read(int(fd), p)
		}
		if n > 0 {
			w.end.add(p[:n])
		}
		return !errors.Is(err, unix.EAGAIN)
	})
	switch {
	case closed != nil:
		return 0, closed
	case err != nil:
		return 0, err
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// said returns the end of all that was printed before it is called, for which it
// waits a little.
func (w *words) said() string {
	for end := time.Now().Add(killTimeout); w.unread() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	return w.end.String()
}

func (w *words) unread() bool {
	conn, err := w.file.SyscallConn()
	if err != nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	waiting := 0
	closed := conn.Control(func(fd uintptr) { waiting, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	return closed == nil && err == nil && waiting > 0
}

// tail keeps the end of what is added to it.
type tail struct {
	limit int
	mu    sync.Mutex
	kept  []byte
}

func (t *tail) add(p []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p...)
	if extra := len(t.kept) - t.limit; extra > 0 {
		t.kept = append(t.kept[:0], t.kept[extra:]...)
	}
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ToValidUTF8(strings.TrimSpace(string(t.kept)), "\ufffd")
}

// lastLine returns the last line with something on it: of a traceback, the
// exception.
func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
}
