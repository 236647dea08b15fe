package pipeline

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/internal/wholefile"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/rl"
)

const (
	// stopGrace is how long a program may take to finish the step that it is in.
	// What it had sampled is on the disk when it is killed after that.
	stopGrace = 2 * time.Minute
	// maxLine bounds a line of progress.
	maxLine = 16 << 20
	// maxSaid is how much of what libraries print is looked at.
	maxSaid = 4 << 10
)

// Files of a program's folder.
const (
	configFile = "config.json"
	logFile    = "log.txt"
)

// MetricsFile is the name of the file with a line a step.
var MetricsFile = kernelwright.Training.MetricsFile

// StageError is what ended a stage: the program's own sentence and hint.
type StageError struct {
	Status store.StageStatus
	Exit   int // 0: no program ended
	Reason string
	Hint   string
}

func (e *StageError) Error() string { return e.Reason }

// statusOf returns what a stage has come to whose program ended with an exit code.
func statusOf(exit int) store.StageStatus {
	for status, code := range kernelwright.Training.ExitCodes {
		if code == exit {
			return store.StageStatus(status)
		}
	}
	return store.StageFailed
}

// abandoned is the kind of an error that another process of the stage has ended.
const abandoned = "Abandoned"

// program is one of package rl.
type program struct {
	python    rl.Python
	module    string         // "rl.ppo"
	folder    string         // that it writes to
	settings  map[string]any // but for out
	home      string
	env       []string
	processes int
	host      *host // that starts it; nil: it is started by itself
	tell      func(line)
}

// line is one of a program's progress.
type line struct {
	Event   string         `json:"event"`
	Step    int            `json:"step"`
	Steps   int            `json:"steps"`
	Metrics map[string]any `json:"metrics"`
	Text    string         `json:"text"`
	Kind    string         `json:"kind"`
	Reason  string         `json:"reason"`
	Hint    string         `json:"hint"`
	Exit    int            `json:"exit"`
}

// run runs a program to its end and reads what it left into end. Where ctx is done it
// is asked to stop, and given time to finish its step. Errors are *StageError, or of
// the machinery.
func (p *program) run(ctx context.Context, end any) error {
	if err := os.MkdirAll(p.folder, 0o755); err != nil {
		return err
	}
	settings := maps.Clone(p.settings)
	settings["out"] = p.folder
	text, err := json.MarshalIndent(settings, "", "  ")
	if err != nil {
		return err
	}
	if err := wholefile.Write(p.config(), text); err != nil {
		return err
	}
	var failed line
	var ended []byte
	hear := func(text []byte) {
		var l line
		if json.Unmarshal(text, &l) != nil || l.Event == "" {
			return
		}
		switch l.Event {
		case "error":
			// Of several processes the one that knows more, which is none that was left alone.
			if failed.Event == "" || failed.Kind == abandoned || failed.Exit <= 1 && l.Kind != abandoned {
				failed = l
			}
		case "end":
			ended = bytes.Clone(text)
		}
		p.tell(l)
	}
	start := p.start
	if p.host != nil {
		start = func(ctx context.Context, hear func([]byte)) (exit, error) { return p.host.start(ctx, p, hear) }
	}
	x, err := start(ctx, hear)
	if err != nil {
		return &StageError{Status: store.StageFailed, Reason: fmt.Sprintf("%s could not be run: %v", p.module, err)}
	}
	// Asked to stop, it may have been done all the same.
	if ended != nil && x == (exit{}) {
		return json.Unmarshal(ended, end)
	}
	return p.failed(ctx, x, failed)
}

func (p *program) config() string { return filepath.Join(p.folder, configFile) }
func (p *program) log() string    { return filepath.Join(p.folder, logFile) }

// exit is how a program ended: its code, or the signal that ended it.
type exit struct {
	code   int
	signal syscall.Signal
}

// start starts the program as a process of its own and waits for its end. Each line of
// its standard output goes to hear.
func (p *program) start(ctx context.Context, hear func([]byte)) (exit, error) {
	log, err := os.OpenFile(p.log(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return exit{}, err
	}
	defer log.Close()
	args := []string{"-m", p.module, "--config", p.config()}
	if p.processes > 1 {
		args = append([]string{"-m", "rl.workers", "--standalone", "--nproc-per-node", strconv.Itoa(p.processes)}, args...)
	}
	cmd := exec.CommandContext(ctx, p.python.Interpreter, args...)
	cmd.Dir, cmd.Env, cmd.Stderr = p.folder, p.python.Env(p.home, p.env...), log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopGrace
	out, in := io.Pipe()
	cmd.Stdout = in
	read := make(chan struct{})
	go func() {
		defer close(read)
		each(out, hear)
	}()
	if err = cmd.Start(); err == nil {
		err = cmd.Wait()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what is left of its processes
	}
	_ = in.Close()
	<-read
	if cmd.ProcessState == nil {
		return exit{}, err
	}
	return exitOf(cmd.ProcessState), nil
}

func exitOf(s *os.ProcessState) exit {
	if status, ok := s.Sys().(syscall.WaitStatus); ok && status.Signaled() { //nolint:misspell // the package syscall spells it so
		return exit{signal: status.Signal()}
	}
	return exit{code: s.ExitCode()}
}

// each gives the lines of a stream to hear.
func each(from io.Reader, hear func([]byte)) {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		hear(lines.Bytes())
	}
	_, _ = io.Copy(io.Discard, from) // a line that is too long: nobody may block on it
}

// failed says what ended the program.
func (p *program) failed(ctx context.Context, x exit, told line) error {
	if told.Event != "" {
		return &StageError{Status: statusOf(told.Exit), Exit: told.Exit, Reason: told.Reason, Hint: told.Hint}
	}
	if ctx.Err() != nil { // it was killed after its time to stop
		return &StageError{Status: store.StageStopped, Reason: "stopped in the middle of a step", Hint: "start it again: it goes on from its last checkpoint"}
	}
	hint := "its log is " + p.log()
	switch x.signal {
	case 0:
	case syscall.SIGKILL:
		return &StageError{
			Status: store.StageMemory, Reason: p.module + " was killed",
			Hint: "mostly the machine was out of memory (`dmesg` says so): start it again, with smaller settings if it comes back",
		}
	default:
		return &StageError{Status: store.StageFailed, Reason: fmt.Sprintf("%s was ended by a signal: %s", p.module, x.signal), Hint: hint}
	}
	return &StageError{Status: store.StageFailed, Exit: x.code, Reason: fmt.Sprintf("%s failed: %s", p.module, lastLine(p.log())), Hint: hint}
}

// lastLine returns the last line of a file, as far as it can be read.
func lastLine(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return "it said nothing"
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil {
		_, _ = f.Seek(max(0, info.Size()-maxSaid), io.SeekStart) // else all of it is read
	}
	text, err := io.ReadAll(f)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if said := lines[len(lines)-1]; err == nil && said != "" {
		return said
	}
	return "it said nothing"
}
