package hwfeedback

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed" // requirements.txt
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernelwright/kernelwright"
)

//go:embed requirements.txt
var requirements string

const (
	minPythonMinor = 11 // 3.11: the harness's syntax
	maxPythonMinor = 14 // the last one that the pinned torch has wheels for
	// environmentBytes is what the environment takes, pip's download included:
	// PyPI's torch for Linux carries the CUDA libraries.
	environmentBytes = 7 << 30
	// fullBytes is so little that whatever failed failed for want of room.
	fullBytes      = 16 << 20
	probeTimeout   = 30 * time.Second
	installTimeout = time.Hour // 5 GB over a slow line
	// pulse is how often a step that is silent is reported again.
	pulse = 5 * time.Second
)

// SetupError says what a person has to mend before anything can be measured.
// Reason and Hint are one sentence each; Detail is what the failing program
// printed.
type SetupError struct {
	Reason string
	Hint   string
	Detail string
	cause  error
}

func (e *SetupError) Error() string { return e.Reason }

// Unwrap returns the cause, where there is one.
func (e *SetupError) Unwrap() error { return e.cause }

// pythonEnv is a usable interpreter.
type pythonEnv struct {
	Interpreter string `json:"interpreter"` // absolute
	Python      string `json:"python"`
	Torch       string `json:"torch"` // as installed; the fork server says what it imported
	Says        said   `json:"says"`
	Headers     bool   `json:"headers"`
	// Missing lists packages that measuring can do without, at a cost.
	Missing []string `json:"missing"`
	Made    bool     `json:"-"` // ours, in the data folder
	Stamp   string   `json:"-"` // see probed.stamp
}

// said is what a server of a Python says of its versions, as far as that was found
// without importing torch: empty where it was not.
type said struct {
	Python string `json:"python"`
	Torch  string `json:"torch"`
}

// probeScript looks without importing torch, which takes a second or more.
const probeScript = `
import importlib.metadata as m, importlib.util as u, json, os, re, sys, sysconfig
torch = u.find_spec("torch")
at = os.path.dirname(torch.origin or "") if torch else ""
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return ""
def stated():
    try:
        with open(os.path.join(at, "version.py"), encoding="utf-8") as f:
            found = re.findall(r"^__version__ *(?::[^=]+)?= *['\"]([^'\"]+)['\"] *$", f.read(), re.M)
    except OSError:
        return ""
    return found[0] if len(found) == 1 else ""
print(json.dumps({"interpreter": sys.executable, "python": "%d.%d.%d" % sys.version_info[:3],
    "minor": sys.version_info[1] if sys.version_info[0] == 3 else -1,
    "torch": version("torch") if torch else "",
    "says": {"python": sys.version.split()[0], "torch": stated() if at else ""},
    "headers": os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")),
    "missing": [n for n in ("numpy", "ninja", "setuptools") if not version(n)],
    "site": sysconfig.get_path("purelib"), "paths": [*sys.path, sysconfig.get_path("include")],
    "files": [os.path.join(at, n) for n in ("", "__init__.py", "version.py", "lib", "lib/libtorch_cpu.so", "lib/libtorch_python.so")] if at else [],
    "venv": all(u.find_spec(n) for n in ("venv", "ensurepip"))}))
`

type probed struct {
	pythonEnv
	Minor int    `json:"minor"`
	Venv  bool   `json:"venv"`
	Site  string `json:"site"` // where packages lie
	// Paths are the folders that all of this was found in.
	Paths []string `json:"paths"`
	Files []string `json:"files"` // of PyTorch
}

// stamp says what would be another if p were: the program, what lies in the
// folders, and PyTorch's own files, which may be put in place of others of their
// names. A package that is installed, upgraded or removed changes its folder. A time
// of change, unlike one of modification, cannot be kept by who copies a file.
func (p probed) stamp() string {
	configured := filepath.Join(filepath.Dir(filepath.Dir(p.Interpreter)), "pyvenv.cfg")
	var b strings.Builder
	for _, path := range slices.Concat([]string{p.Interpreter, configured}, p.Paths, p.Files) {
		b.WriteString(path)
		var s unix.Stat_t
		if unix.Stat(path, &s) == nil {
			fmt.Fprintf(&b, " %d %d %d %d", s.Ino, s.Size, s.Mtim.Nano(), s.Ctim.Nano())
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func probe(ctx context.Context, interpreter string) (probed, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, interpreter, "-I", "-c", probeScript)
	cmd.Env = PythonEnv("PYTHONDONTWRITEBYTECODE=1")
	cmd.WaitDelay = time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if said := lastLine(stderr.String()); said != "" {
			err = fmt.Errorf("%w: %s", err, said)
		}
		return probed{}, err
	}
	var p probed
	if err := json.Unmarshal(stdout.Bytes(), &p); err != nil || p.Interpreter == "" {
		return probed{}, fmt.Errorf("%s does not behave like Python", interpreter)
	}
	return p, nil
}

// environment finds or makes the Python environments of one data folder.
type environment struct {
	dataDir  string
	python   string // the configured interpreter, or empty
	pins     string
	progress func(stage, note string)
	now      func() time.Time
	free     func(dir string) (int64, error) // bytes of disk
	cache    Cache                           // may be nil
	log      *slog.Logger
}

func newEnvironment(o Options, cache Cache) *environment {
	return &environment{
		dataDir:  o.DataDir,
		python:   o.Python,
		pins:     requirements,
		progress: o.Progress,
		now:      time.Now,
		free:     freeBytes,
		cache:    cache,
		log:      o.Log,
	}
}

// knownPython is what the cache keeps of an interpreter.
type knownPython struct {
	Probed probed `json:"probed"`
	Stamp  string `json:"stamp"`
}

// probe asks an interpreter, or the cache, where nothing has changed since it
// was asked: starting it takes a tenth of a second. A program that starts
// another one, as version managers have, is asked every time.
func (e *environment) probe(ctx context.Context, interpreter string) (probed, error) {
	var known knownPython
	if recall(ctx, e.cache, e.log, cachePython, interpreter, &known) && known.Stamp == known.Probed.stamp() {
		return known.Probed, nil
	}
	p, err := probe(ctx, interpreter)
	if err == nil && p.Interpreter == interpreter && len(p.Paths) > 0 {
		remember(ctx, e.cache, e.log, cachePython, interpreter, knownPython{p, p.stamp()})
	}
	return p, err
}

// dir is where the environment of these pins is made. Environments are not
// relocatable, so it is built in place.
func (e *environment) dir() string {
	sum := sha256.Sum256([]byte(e.pins))
	return filepath.Join(e.dataDir, "venv-"+hex.EncodeToString(sum[:])[:12])
}

// ready returns the environment if it needs no making, and whether it does.
func (e *environment) ready(ctx context.Context) (pythonEnv, bool, error) {
	if e.python != "" {
		env, err := e.configured(ctx)
		return env, err == nil, err
	}
	env, ok := e.complete(ctx)
	return env, ok, ctx.Err()
}

// get returns the environment and makes it where it has to. Errors are
// *SetupError, or the context's.
func (e *environment) get(ctx context.Context) (pythonEnv, error) {
	env, ok, err := e.ready(ctx)
	if ok || err != nil {
		return env, err
	}
	return e.make(ctx)
}

func (e *environment) configured(ctx context.Context) (pythonEnv, error) {
	where, err := exec.LookPath(e.python)
	if err != nil {
		return pythonEnv{}, &SetupError{
			Reason: fmt.Sprintf("the configured python %s cannot be run: %s", e.python, systemReason(err)),
			Hint:   "set python to an interpreter with PyTorch, or leave it empty to have one made",
			cause:  err,
		}
	}
	p, err := e.probe(ctx, where)
	if ctx.Err() != nil {
		return pythonEnv{}, context.Cause(ctx)
	}
	switch {
	case err != nil:
		return pythonEnv{}, &SetupError{
			Reason: fmt.Sprintf("the configured python %s does not work: %v", e.python, err),
			Hint:   "set python to an interpreter with PyTorch, or leave it empty to have one made",
			cause:  err,
		}
	case p.Minor < minPythonMinor:
		return pythonEnv{}, &SetupError{
			Reason: fmt.Sprintf("the configured python %s is version %s, and 3.%d or later is needed", e.python, p.Python, minPythonMinor),
			Hint:   "set python to a later interpreter, or leave it empty to have an environment made",
		}
	case p.Torch == "":
		return pythonEnv{}, &SetupError{
			Reason: fmt.Sprintf("the configured python %s has no torch", e.python),
			Hint:   fmt.Sprintf("install it with `%s -m pip install torch`, or leave python empty to have an environment made", p.Interpreter),
		}
	case major(p.Torch) < minTorchMajor:
		return pythonEnv{}, &SetupError{
			Reason: fmt.Sprintf("the configured python %s has torch %s, and %d.0 or later is needed", e.python, p.Torch, minTorchMajor),
			Hint:   fmt.Sprintf("upgrade it with `%s -m pip install --upgrade torch`, or leave python empty to have an environment made", p.Interpreter),
		}
	}
	p.Stamp = p.stamp()
	return p.pythonEnv, nil
}

// pinnedTorch returns the version of torch in requirements.txt.
func pinnedTorch() string {
	_, rest, _ := strings.Cut(requirements, "torch==")
	version, _, _ := strings.Cut(rest, "\n")
	return version
}

// minTorchMajor: torch.compile and the capture of graphs came with 2.0.
const minTorchMajor = 2

// major returns the first number of a version, 0 for what is none.
func major(version string) int {
	first, _, _ := strings.Cut(version, ".")
	n, _ := strconv.Atoi(first)
	return n
}

// complete returns the environment that was made earlier, if nothing of it was
// lost since.
func (e *environment) complete(ctx context.Context) (pythonEnv, bool) {
	dir := e.dir()
	marker, err := os.ReadFile(filepath.Join(dir, completeMarker))
	if err != nil {
		return pythonEnv{}, false
	}
	p, err := e.probe(ctx, filepath.Join(dir, "bin", "python"))
	if err != nil || p.Torch == "" { // the system's Python went away under it, or files did
		return pythonEnv{}, false
	}
	words := strings.Fields(string(marker))
	for _, name := range words[min(2, len(words)):] {
		if _, err := os.Lstat(filepath.Join(p.Site, name)); err != nil {
			return pythonEnv{}, false
		}
	}
	p.Made, p.Stamp = true, p.stamp()
	return p.pythonEnv, true
}

// completeMarker is written last; a folder without it is half made. It holds
// the versions of Python and torch, then what lies among the packages.
const completeMarker = ".complete"

func (p probed) marker() ([]byte, error) {
	text := p.Python + " " + p.Torch + "\n"
	if p.Site == "" {
		return []byte(text), nil
	}
	entries, err := os.ReadDir(p.Site)
	for _, entry := range entries {
		// A name with a space is no package's.
		if name := entry.Name(); name != "__pycache__" && !strings.ContainsAny(name, " \t\n") {
			text += name + "\n"
		}
	}
	return []byte(text), err
}

func (e *environment) make(ctx context.Context) (pythonEnv, error) {
	dir := e.dir()
	if err := os.MkdirAll(e.dataDir, 0o755); err != nil {
		return pythonEnv{}, &SetupError{Reason: fmt.Sprintf("the data folder %s cannot be made: %s", e.dataDir, systemReason(err)), Hint: "name another one with --data-dir", cause: err}
	}
	unlock, err := e.lock(ctx, dir+".lock")
	if err != nil {
		return pythonEnv{}, err
	}
	defer unlock()
	if env, ok := e.complete(ctx); ok { // another process made it meanwhile
		return env, nil
	}
	base, err := e.base(ctx)
	if err != nil {
		return pythonEnv{}, err
	}
	if err := os.RemoveAll(dir); err != nil { // half made: pip's cache makes starting again cheap
		return pythonEnv{}, e.failed("clear away a half-made Python environment", dir, err, "")
	}
	if free, err := e.free(e.dataDir); err == nil && free < environmentBytes {
		return pythonEnv{}, &SetupError{
			Reason: fmt.Sprintf("%s has %.1f GB free, and the Python environment needs about %d GB while it is made", e.dataDir, float64(free)/1e9, environmentBytes>>30),
			Hint:   "free some space, name a data folder on another disk, or set python to an interpreter that has PyTorch",
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, installTimeout, fmt.Errorf("not finished within %v", installTimeout))
	defer cancel()
	started := e.now()
	e.say(started, "making a Python environment in "+dir)
	if out, err := e.run(ctx, started, "making the environment", base.Interpreter, "-m", "venv", dir); err != nil {
		return pythonEnv{}, e.failed("make a Python environment", dir, err, out)
	}
	pins := filepath.Join(dir, "requirements.txt")
	if err := os.WriteFile(pins, []byte(e.pins), 0o644); err != nil {
		return pythonEnv{}, e.failed("make a Python environment", dir, err, "")
	}
	python := filepath.Join(dir, "bin", "python")
	out, err := e.run(ctx, started, "installing PyTorch", python, "-m", "pip", "--disable-pip-version-check", "--no-input",
		"install", "--progress-bar", "off", "-r", pins)
	if err != nil {
		return pythonEnv{}, e.failed("install PyTorch", dir, err, out)
	}
	p, err := probe(ctx, python)
	if err == nil && p.Torch == "" {
		err = errors.New("torch is not there although pip said that it is")
	}
	if err != nil {
		return pythonEnv{}, e.failed("install PyTorch", dir, err, out)
	}
	marker, err := p.marker()
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, completeMarker), marker, 0o644)
	}
	if err != nil {
		return pythonEnv{}, e.failed("make a Python environment", dir, err, "")
	}
	e.say(started, "the Python environment is ready: Python "+p.Python+", torch "+p.Torch)
	p.Made, p.Stamp = true, p.stamp()
	return p.pythonEnv, nil
}

// base finds the interpreter to make the environment with.
func (e *environment) base(ctx context.Context) (probed, error) {
	names := []string{"python3"}
	for minor := maxPythonMinor; minor >= minPythonMinor; minor-- {
		names = append(names, fmt.Sprintf("python3.%d", minor))
	}
	var found, noVenv []string
	for _, name := range names {
		where, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		p, err := probe(ctx, where)
		if ctx.Err() != nil {
			return probed{}, context.Cause(ctx)
		}
		switch {
		case err != nil: // a launcher for a version that is not installed
		case p.Minor < minPythonMinor || p.Minor > maxPythonMinor:
			found = append(found, p.Python)
		case !p.Venv:
			noVenv = append(noVenv, p.Interpreter)
		default:
			return p, nil
		}
	}
	hint := fmt.Sprintf("install Python 3.%d to 3.%d (Debian, Ubuntu: apt install python3 python3-venv), or set python to an interpreter that has PyTorch",
		minPythonMinor, maxPythonMinor)
	switch {
	case len(noVenv) > 0:
		return probed{}, &SetupError{
			Reason: fmt.Sprintf("%s has no venv module, so no Python environment can be made", noVenv[0]),
			Hint:   "install it (Debian, Ubuntu: apt install python3-venv), or set python to an interpreter that has PyTorch",
		}
	case len(found) > 0:
		return probed{}, &SetupError{
			Reason: fmt.Sprintf("the only Python here is %s, and 3.%d to 3.%d is needed", strings.Join(slices.Compact(found), ", "), minPythonMinor, maxPythonMinor),
			Hint:   hint,
		}
	}
	return probed{}, &SetupError{Reason: "there is no python3 on this machine's PATH", Hint: hint}
}

// run runs one step, reports what it is at, and returns its output.
func (e *environment) run(ctx context.Context, started time.Time, step string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, append([]string{"-I"}, args...)...)
	cmd.Env = PipEnv("PYTHONUNBUFFERED=1")
	// pip starts children of its own: all of them end with the step.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	r, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	output := &tail{limit: 32 << 10}
	lines := make(chan string)
	go func() {
		defer close(lines)
		s := bufio.NewScanner(r)
		s.Buffer(nil, 1<<20)
		for s.Scan() {
			lines <- s.Text()
		}
		_, _ = io.Copy(io.Discard, r) // a line beyond the buffer: nobody may block on it
	}()
	done := make(chan error, 1)
	go func() {
		err := cmd.Run()
		_ = w.Close() // the reader sees the end
		done <- err
	}()
	ticker := time.NewTicker(pulse)
	defer ticker.Stop()
	for note := step; ; {
		select {
		case line, ok := <-lines:
			if !ok {
				err := <-done
				if ctx.Err() != nil {
					err = context.Cause(ctx)
				}
				return output.String(), err
			}
			output.add([]byte(line + "\n"))
			if n := condense(line); n != "" && n != note {
				note = n
				e.say(started, note)
			}
		case <-ticker.C:
			e.say(started, note)
		}
	}
}

func (e *environment) say(started time.Time, note string) {
	e.progress("python", fmt.Sprintf("%s (%d s)", note, int(e.now().Sub(started).Seconds())))
}

var (
	pipDownload = regexp.MustCompile(`^\s*(?:Downloading|Using cached) (\S+)(?: \(([^)]+)\))?`)
	wheelName   = regexp.MustCompile(`^([A-Za-z0-9_.]+?)-\d`)
)

// condense turns a line of pip's into what a person wants to know, or "".
func condense(line string) string {
	if m := pipDownload.FindStringSubmatch(line); m != nil {
		file := m[1][strings.LastIndexByte(m[1], '/')+1:]
		if strings.HasSuffix(file, ".metadata") {
			return ""
		}
		name := file
		if w := wheelName.FindStringSubmatch(file); w != nil {
			name = w[1]
		}
		verb := "downloading "
		if strings.Contains(line, "Using cached") {
			verb = "already downloaded: "
		}
		if m[2] != "" {
			return verb + name + ", " + m[2]
		}
		return verb + name
	}
	if rest, ok := strings.CutPrefix(line, "Installing collected packages: "); ok {
		return fmt.Sprintf("installing %d packages", 1+strings.Count(rest, ","))
	}
	return ""
}

// causes of a failed step, recognised by what venv and pip print.
var setupCauses = []struct {
	pattern *regexp.Regexp
	reason  string
	hint    string
}{
	{
		regexp.MustCompile(`(?i)No space left on device|Errno 28|Disk quota exceeded`),
		"the disk is full",
		"free about 7 GB, or name a data folder on another disk with --data-dir (pip also uses TMPDIR)",
	},
	{
		regexp.MustCompile(`(?i)ensurepip is not|No module named '?(venv|ensurepip)|python3-venv`),
		"this Python has no venv module",
		"install it (Debian, Ubuntu: apt install python3-venv), or set python to an interpreter that has PyTorch",
	},
	{
		regexp.MustCompile(`(?i)CERTIFICATE_VERIFY_FAILED|SSLError`),
		"the package index's certificate was not accepted",
		"if a proxy intercepts traffic, give pip its certificate with PIP_CERT",
	},
	{
		regexp.MustCompile(`(?i)Temporary failure in name resolution|Name or service not known|Failed to establish a new connection|` +
			`NewConnectionError|Connection refused|Network is unreachable|ProxyError|Max retries exceeded|ConnectTimeout|ReadTimeout|Connection timed out|No route to host`),
		"the package index cannot be reached",
		"see that this machine has a network (or set PIP_INDEX_URL to a mirror) and try again, or set python to an interpreter that has PyTorch",
	},
	{
		regexp.MustCompile(`(?i)No matching distribution found|Could not find a version that satisfies`),
		"the package index has no PyTorch for this Python and machine",
		"use a 64-bit Linux with Python 3.11 to 3.14, or set python to an interpreter that has PyTorch",
	},
	{
		regexp.MustCompile(`(?i)Permission denied|Errno 13|Read-only file system`),
		"the data folder cannot be written to",
		"name another one with --data-dir",
	},
	{
		regexp.MustCompile(`(?i)MemoryError|Cannot allocate memory|signal: killed`),
		"it ran out of memory",
		"free some memory and try again",
	},
}

func (e *environment) failed(what, dir string, err error, output string) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	s := &SetupError{
		Reason: fmt.Sprintf("could not %s: %s", what, cmp.Or(lastLine(output), err.Error())),
		Hint:   fmt.Sprintf("try again (remove %s first if it goes on), or set python to an interpreter that has PyTorch", dir),
		Detail: output,
		cause:  err,
	}
	text := output + "\n" + err.Error()
	// venv keeps to itself what pip said when it installed pip.
	if free, err := freeBytes(e.dataDir); err == nil && free < fullBytes {
		text = "Errno 28"
	}
	for _, c := range setupCauses {
		if c.pattern.MatchString(text) {
			s.Reason, s.Hint = fmt.Sprintf("could not %s: %s", what, c.reason), c.hint
			break
		}
	}
	return s
}

// lock keeps other processes from making the same environment.
func (e *environment) lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, &SetupError{Reason: fmt.Sprintf("the data folder %s cannot be written to: %s", e.dataDir, systemReason(err)), Hint: "name another one with --data-dir", cause: err}
	}
	started := e.now()
	for told := false; ; {
		err := flock(f, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			f.Close()
			return nil, &SetupError{Reason: fmt.Sprintf("%s cannot be locked: %s", path, systemReason(err)), Hint: "name a data folder on a local disk", cause: err}
		}
		if !told {
			e.say(started, "another process is making the Python environment")
			told = true
		}
		timer := time.NewTimer(200 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			f.Close()
			return nil, context.Cause(ctx)
		}
	}
}

// passed is what Python inherits of our environment: how to find programs,
// libraries and devices, nothing that could be a secret.
var passed = []string{"PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CC", "CXX", "TMPDIR", "TZ"}

// personal is what an interpreter needs beside that which a person has installed: version
// managers start another program by it.
var personal = []string{
	"HOME", "LANG", "LC_ALL", "LC_CTYPE", "CUDA_VISIBLE_DEVICES", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME",
	"PYENV_ROOT", "PYENV_VERSION", "ASDF_DIR", "ASDF_DATA_DIR", "MISE_DATA_DIR",
}

// fetching is what pip needs beside that: its way to the package index.
var fetching = []string{
	"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
	"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NETRC", "XDG_CONFIG_DIRS",
}

func inherited(names ...[]string) (vars []string) {
	for _, name := range slices.Concat(names...) {
		if v := os.Getenv(name); v != "" {
			vars = append(vars, name+"="+v)
		}
	}
	return vars
}

// PythonEnv is the environment of a Python that runs nothing of a stranger's in a sandbox,
// but may read it: what the process finds its way by, more on top, and no secret.
func PythonEnv(more ...string) []string {
	return append(inherited(passed, personal), more...)
}

// PipEnv is PythonEnv with pip's settings and its way to the package index.
func PipEnv(more ...string) []string {
	vars := inherited(passed, personal, fetching)
	for _, v := range os.Environ() {
		if strings.HasPrefix(v, "PIP_") {
			vars = append(vars, v)
		}
	}
	return append(vars, more...)
}

// forkServerEnv is all that the Python side inherits of our environment.
func forkServerEnv(env pythonEnv, dataDir string) []string {
	vars := []string{
		// ninja and the compilers' wrappers lie beside the interpreter.
		"PATH=" + filepath.Dir(env.Interpreter) + ":" + cmp.Or(os.Getenv("PATH"), "/usr/local/bin:/usr/bin:/bin"),
		"LANG=C.UTF-8",
		"HOME=" + dataDir,
		kernelwright.Shared.AllocatorEnv + "=" + filepath.Join(dataDir, "cache", "allocator"),
		"KERNELWRIGHT_BYTECODE=" + filepath.Join(dataDir, "cache", "bytecode"),
		// Importing torch.compile makes a folder: not in the system's, where its
		// name is known to all and it stays. Workers have their own.
		"TORCHINDUCTOR_CACHE_DIR=" + filepath.Join(dataDir, "cache", "torchinductor"),
	}
	vars = append(vars, inherited(passed[1:])...) // PATH is another
	if root := cutlassPath(); root != "" {
		vars = append(vars, "CUTLASS_PATH="+root)
	}
	return vars
}

func freeBytes(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return int64(s.Bavail) * s.Bsize, nil
}

// systemReason drops the operation and the path, which the sentence around it
// names already.
func systemReason(err error) string {
	var errno syscall.Errno
	switch {
	case errors.As(err, &errno):
		return errno.Error()
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return "there is no such program"
	}
	return err.Error()
}
