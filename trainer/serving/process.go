package serving

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/trainer/rl"
)

// TokenEnv is the environment variable that a server has its token from.
var TokenEnv = kernelwright.Training.PolicyTokenEnv

// settings are rl.serve's.
type settings struct {
	Policy string `json:"policy"`
	Name   string `json:"name,omitempty"`
	Host   string `json:"host,omitempty"`
	Port   int    `json:"port,omitempty"`
	Device string `json:"device,omitempty"`
	GPU    int    `json:"gpu,omitempty"`
	Leases string `json:"leases,omitempty"`
	Into   string `json:"into,omitempty"`
}

// line is what rl.serve says of itself.
type line struct {
	Event   string `json:"event"`
	URL     string `json:"url"`
	Context int    `json:"context"`
	Kind    string `json:"kind"`
	Reason  string `json:"reason"`
	Hint    string `json:"hint"`
	Policy  string `json:"policy"`
}

// memoryError says that there was too little memory.
type memoryError struct{ said *Error }

func (e *memoryError) Error() string { return e.said.Text }

// Unwrap returns what it says.
func (e *memoryError) Unwrap() error { return e.said }

// grace is how long a process has to end by itself when it is told to.
const grace = 5 * time.Second

// process is a server that answers.
type process struct {
	endpoint Endpoint
	cmd      *exec.Cmd
	stdin    io.Closer
	said     *tail
	ended    chan struct{}
	err      error // once it has ended
}

// launch starts rl.serve and waits until it answers. The error is an *Error where the
// program says what is wrong.
func launch(ctx context.Context, python rl.Python, s settings) (*process, error) {
	return launchWith(ctx, python, s, rand.Text())
}

func launchWith(ctx context.Context, python rl.Python, s settings, token string) (*process, error) {
	p, out, err := begin(python, s, token)
	if err != nil {
		return nil, err
	}
	first, err := p.first(ctx, out)
	if err == nil && first.Event == "ready" {
		p.endpoint = Endpoint{URL: first.URL, Model: s.Name, Token: token, Context: first.Context}
		return p, nil
	}
	p.stop()
	<-p.ended
	if err == nil {
		err = first.failure()
	}
	return nil, err
}

// begin starts the program and tells it its settings.
func begin(python rl.Python, s settings, token string) (*process, io.Reader, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, nil, err
	}
	p := &process{cmd: exec.Command(python.Interpreter, "-m", "rl.serve"), said: &tail{}, ended: make(chan struct{})}
	p.cmd.Env = python.Env(os.Getenv("HOME"), TokenEnv+"="+token)
	p.cmd.Stderr = p.said
	// A group of its own: an interrupt from the terminal is this process's to deal with.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.WaitDelay = grace
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	out, in, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	p.stdin, p.cmd.Stdout = stdin, in
	err = p.cmd.Start()
	_ = in.Close() // the child has its own
	if err != nil {
		_ = out.Close()
		return nil, nil, &Error{Text: fmt.Sprintf("%s cannot be started: %v", python.Interpreter, err), Hint: "`kernelwright doctor` examines this machine", Lasting: true, Err: err}
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	_, _ = stdin.Write(append(text, '\n')) // where it has ended already, what it said says why
	return p, out, nil
}

// first reads the line that the program begins with. out is read to its end then: nothing
// more is said there.
func (p *process) first(ctx context.Context, out io.Reader) (line, error) {
	type read struct {
		text []byte
		err  error
	}
	lines := make(chan read, 1)
	go func() {
		r := bufio.NewReader(out)
		text, err := r.ReadBytes('\n')
		lines <- read{text, err}
		_, _ = io.Copy(io.Discard, r)
		if c, ok := out.(io.Closer); ok {
			_ = c.Close()
		}
	}()
	select {
	case got := <-lines:
		var l line
		if got.err == nil {
			got.err = json.Unmarshal(got.text, &l)
		}
		if got.err == nil {
			return l, nil
		}
		p.stop()
		<-p.ended
		return line{}, p.died()
	case <-ctx.Done():
		p.stop()
		<-p.ended
		return line{}, ctx.Err()
	}
}

// failure is what the program says is wrong.
func (l line) failure() error {
	e := &Error{Text: cmp.Or(l.Reason, "the server of a policy began with something else than where it listens"), Hint: l.Hint, Lasting: l.Kind == "BadInput"}
	if l.Kind == "OutOfMemory" {
		return &memoryError{e}
	}
	return e
}

// died says how a program ended that said nothing.
func (p *process) died() error {
	why := "it said nothing"
	if last := p.said.last(); last != "" {
		why = last
	}
	e := &Error{Text: fmt.Sprintf("the server of a policy ended as it started: %s", why), Err: p.err}
	var exit *exec.ExitError
	if errors.As(p.err, &exit) {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signal() == syscall.SIGKILL {
			e.Text = "the server of a policy was killed as it started: there is too little memory for it, it seems"
			e.Hint = "end what else takes memory here, or serve a smaller one"
			return &memoryError{e}
		}
	}
	return e
}

// stop tells the process to end, and kills it where it does not. It does not wait.
func (p *process) stop() {
	_ = p.stdin.Close()
	kill := time.AfterFunc(grace, func() { _ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) })
	go func() {
		<-p.ended
		kill.Stop()
	}()
}

// wait waits for the process's end, and says how it was.
func (p *process) wait() error {
	<-p.ended
	if last := p.said.last(); p.err != nil && last != "" {
		return fmt.Errorf("%w: %s", p.err, last)
	}
	return p.err
}

// tailBytes is how much of what a process says on standard error is kept.
const tailBytes = 8 << 10

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if n := len(t.text); n > tailBytes {
		t.text = append([]byte{}, t.text[n-tailBytes:]...)
	}
	return len(b), nil
}

// last is the last line that says something.
func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := bytes.Split(bytes.TrimSpace(t.text), []byte("\n"))
	return strings.TrimSpace(string(lines[len(lines)-1]))
}

// Convert writes the model of a GGUF file as a plain folder.
func Convert(ctx context.Context, python rl.Python, from, into string) error {
	p, out, err := begin(python, settings{Policy: from, Into: into}, "")
	if err != nil {
		return err
	}
	said, err := p.first(ctx, out)
	p.stop()
	<-p.ended
	if err == nil && said.Event != "end" {
		err = said.failure()
	}
	return err
}

// Serve serves a policy at an address until ctx is done, or its process ends. ready is
// told where it listens. An empty token asks for none.
func Serve(ctx context.Context, python rl.Python, o Local, ready func(Endpoint) error) error {
	p, err := launchWith(ctx, python, settings{Policy: o.Folder, Name: o.Name, Host: o.Host, Port: o.Port, Device: o.Device, GPU: o.GPU, Leases: o.Leases}, o.Token)
	if err != nil {
		return err
	}
	defer func() { p.stop(); <-p.ended }()
	if err := ready(p.endpoint); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case <-p.ended:
		err := p.wait()
		return &Error{Text: fmt.Sprintf("the policy's server has ended: %v", err), Err: err}
	}
}

// Local is what Serve serves, and where. Port 0 is any free one.
type Local struct {
	Folder, Name string
	Host         string
	Port         int
	Device       string
	GPU          int    // which
	Leases       string // the folder of the devices' leases, as of Options
	Token        string
}
