package rl

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernelwright/kernelwright/hwfeedback"
)

const (
	// packageBytes is what the packages take, pip's download included.
	packageBytes   = 1 << 30
	installTimeout = 30 * time.Minute
	probeTimeout   = time.Minute
	lockPause      = 200 * time.Millisecond
	complete       = ".complete" // written last
)

// probeScript says which of the modules that the programs import are not there.
const probeScript = `
import importlib.util as u, json, sys
need = ["torch", "transformers", "peft", "safetensors", "pyarrow", "tokenizers", "numpy"]
print(json.dumps({"missing": [n for n in need if u.find_spec(n) is None]}))
`

// configured is the environment of a Python that a person named.
func configured(ctx context.Context, python, root string) (Python, error) {
	hint := "set training.python to a Python with PyTorch and what trainer/rl/requirements.txt names, or leave it empty to have that installed"
	where, err := exec.LookPath(python)
	if err != nil {
		return Python{}, &hwfeedback.SetupError{Reason: fmt.Sprintf("training.python names %s, which cannot be run", python), Hint: hint}
	}
	var own []string // the person's
	if more := os.Getenv("PYTHONPATH"); more != "" {
		own = filepath.SplitList(more)
	}
	missing, err := missing(ctx, where, own...)
	switch {
	case ctx.Err() != nil:
		return Python{}, context.Cause(ctx)
	case err != nil:
		return Python{}, &hwfeedback.SetupError{Reason: fmt.Sprintf("the Python of training.python, %s, does not work: %v", python, err), Hint: hint}
	case len(missing) > 0:
		return Python{}, &hwfeedback.SetupError{Reason: fmt.Sprintf("the Python of training.python, %s, has no %s", python, strings.Join(missing, ", ")), Hint: hint}
	}
	return Python{Interpreter: where, Path: append([]string{root}, own...)}, nil
}

func missing(ctx context.Context, python string, path ...string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "-c", probeScript)
	cmd.Env = Python{Path: path}.Env(os.Getenv("HOME"))
	var said strings.Builder
	cmd.Stderr, cmd.WaitDelay = &said, time.Second
	out, err := cmd.Output()
	if err != nil {
		return nil, errors.New(lastLine(said.String(), err))
	}
	var found struct{ Missing []string }
	if err := json.Unmarshal(out, &found); err != nil {
		return nil, fmt.Errorf("%s does not behave like Python", python)
	}
	return found.Missing, nil
}

// folder is where packages for an interpreter lie: other pins and another Python are
// another folder.
func folder(ctx context.Context, o Options) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, o.Interpreter, "-I", "-c", "import sys; print(sys.implementation.cache_tag)")
	cmd.Env = Python{}.Env(os.Getenv("HOME"))
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", o.Interpreter, err)
	}
	sum := sha256.Sum256(append(content(pins), out...))
	return filepath.Join(o.DataDir, "training-"+hex.EncodeToString(sum[:])[:12]), nil
}

// installed returns the folder of the packages, and makes it where it is not there.
// Packages are installed beside and renamed: a folder that is there is whole.
func installed(ctx context.Context, o Options) (string, error) {
	dir, err := folder(ctx, o)
	if err != nil {
		return "", err
	}
	if there(dir) {
		return dir, nil
	}
	unlock, err := lock(ctx, dir+".lock", o)
	if err != nil {
		return "", err
	}
	defer unlock()
	if there(dir) { // another process made it meanwhile
		return dir, nil
	}
	return dir, install(ctx, dir, o)
}

func there(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, complete))
	return err == nil
}

// install makes the folder. Its lock is held.
func install(ctx context.Context, dir string, o Options) error {
	beside := dir + ".new"
	for _, old := range []string{beside, dir} { // half made, or damaged
		if err := os.RemoveAll(old); err != nil {
			return unwritten(o.DataDir, err)
		}
	}
	if err := os.MkdirAll(beside, 0o755); err != nil {
		return unwritten(o.DataDir, err)
	}
	o.Progress("python", "installing what training needs in "+dir)
	f := Fetch{
		Interpreter: o.Interpreter, Pins: content(pins), Into: beside, Bytes: packageBytes, Progress: o.Progress,
		What: "what training needs", Otherwise: "set training.python to a Python that has what training needs",
	}
	if err := f.Run(ctx); err != nil {
		if failed, ok := errors.AsType[*FetchError](err); ok {
			return &hwfeedback.SetupError{Reason: failed.Reason, Hint: failed.Hint, Detail: failed.Detail}
		}
		return unwritten(o.DataDir, err)
	}
	lacks, err := missing(ctx, o.Interpreter, beside)
	if err == nil && len(lacks) > 0 {
		err = fmt.Errorf("%s is not there although pip said so", strings.Join(lacks, ", "))
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return &hwfeedback.SetupError{Reason: "could not install what training needs: " + err.Error(), Hint: "try again, or " + f.Otherwise}
	}
	if err := os.WriteFile(filepath.Join(beside, complete), nil, 0o644); err != nil {
		return unwritten(o.DataDir, err)
	}
	unix.Sync() // or the marker might outlive what it speaks of
	if err := os.Rename(beside, dir); err != nil {
		return unwritten(o.DataDir, err)
	}
	o.Progress("python", "what training needs is installed")
	return nil
}

// Fetch has pip install packages into a folder.
type Fetch struct {
	Interpreter string
	Pins        []byte // requirements with hashes: these and nothing that they need
	Into        string // a folder that is there
	Bytes       int64  // that it takes, the download included
	Progress    func(stage, note string)
	// What is what a person calls it, and Otherwise what a person can do without it, as the
	// end of a sentence.
	What, Otherwise string
}

// FetchError says why something could not be fetched. Detail is what pip said.
type FetchError struct {
	Reason, Hint, Detail string
	Full                 bool // there is no room on the disk
}

func (e *FetchError) Error() string { return e.Reason }

// Run installs it. Errors are *FetchError, the context's, or of writing to the folder.
func (f Fetch) Run(ctx context.Context) error {
	var disk unix.Statfs_t
	if err := unix.Statfs(f.Into, &disk); err == nil && int64(disk.Bavail)*disk.Bsize < f.Bytes {
		return &FetchError{
			Reason: fmt.Sprintf("could not install %s: the disk of %s has too little room: about %d MB are needed meanwhile", f.What, filepath.Dir(f.Into), f.Bytes/1_000_000),
			Hint:   "free some space, name a data folder on another disk, or " + f.Otherwise, Full: true,
		}
	}
	list := filepath.Join(f.Into, pins)
	if err := os.WriteFile(list, f.Pins, 0o644); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, installTimeout, fmt.Errorf("not finished within %v", installTimeout))
	defer cancel()
	said, err := f.pip(ctx, "install", "--no-deps", "--only-binary", ":all:", "--require-hashes", "--progress-bar", "off", "--target", f.Into, "-r", list)
	if err != nil {
		return f.failed(ctx, said, err)
	}
	return nil
}

var collecting = regexp.MustCompile(`^\s*(?:Downloading|Using cached) (\S+?)-\d\S*(?: \(([^)]+)\))?`)

// pip runs pip and tells what it is at. It returns what it printed.
func (f Fetch) pip(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, f.Interpreter, append([]string{"-I", "-m", "pip", "--disable-pip-version-check", "--no-input"}, args...)...)
	cmd.Env = hwfeedback.PipEnv()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return "", err
	}
	var said strings.Builder
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		said.WriteString(lines.Text() + "\n")
		if m := collecting.FindStringSubmatch(lines.Text()); m != nil && !strings.Contains(m[1], ".metadata") {
			f.Progress("python", strings.TrimSpace("downloading "+filepath.Base(m[1])+" "+m[2]))
		} else if rest, ok := strings.CutPrefix(lines.Text(), "Installing collected packages: "); ok {
			f.Progress("python", fmt.Sprintf("installing %d packages", 1+strings.Count(rest, ",")))
		}
	}
	_, _ = io.Copy(io.Discard, out) // a line beyond the buffer: nobody may block on it
	return said.String(), cmd.Wait()
}

// causes of a failed installation, recognised by what pip prints. A hint that ends with "or"
// goes on with what a person can do otherwise.
var causes = []struct {
	pattern      *regexp.Regexp
	reason, hint string
	full         bool
}{
	{regexp.MustCompile(`(?i)No space left on device|Errno 28|Disk quota exceeded`), "the disk is full", "free some space (pip also uses TMPDIR), name a data folder on another disk with --data-dir, or", true},
	{regexp.MustCompile(`(?i)No module named pip`), "this Python has no pip", "install it (python -m ensurepip), or", false},
	{regexp.MustCompile(`(?i)HASHES|do not match`), "a package is not the one that was pinned", "see what stands between this machine and the package index, or", false},
	{regexp.MustCompile(`(?i)name resolution|not known|establish a new connection|Connection refused|unreachable|Max retries|timed out|No route`),
		"the package index cannot be reached", "see that this machine has a network (or set PIP_INDEX_URL to a mirror) and try again, or", false},
	{regexp.MustCompile(`(?i)No matching distribution|Could not find a version`), "the package index has no such packages for this Python", "use Python 3.11 to 3.14, or", false},
}

func (f Fetch) failed(ctx context.Context, said string, err error) error {
	if errors.Is(context.Cause(ctx), context.Canceled) {
		return context.Cause(ctx)
	}
	e := &FetchError{Reason: lastLine(said, err), Hint: "try again, or", Detail: said}
	for _, c := range causes {
		if c.pattern.MatchString(said + err.Error()) {
			e.Reason, e.Hint, e.Full = c.reason, c.hint, c.full
			break
		}
	}
	e.Reason, e.Hint = "could not install "+f.What+": "+e.Reason, e.Hint+" "+f.Otherwise
	return e
}

func unwritten(dataDir string, err error) error {
	s := &hwfeedback.SetupError{Reason: fmt.Sprintf("the data folder %s cannot be written to: %v", dataDir, err), Hint: "name another one with --data-dir"}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		s.Reason, s.Hint = "the disk of the data folder "+dataDir+" is full", "free some space, and give the same command again"
	}
	return s
}

// lock keeps other processes from installing the same. A process that dies lets go.
func lock(ctx context.Context, path string, o Options) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, unwritten(o.DataDir, err)
	}
	for told := false; ; told = true {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil // it was only locked
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(unwritten(o.DataDir, err), f.Close())
		}
		if !told {
			o.Progress("python", "another process is installing what training needs")
		}
		select {
		case <-time.After(lockPause):
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), f.Close())
		}
	}
}
