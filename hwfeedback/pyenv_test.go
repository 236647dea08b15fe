package hwfeedback

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernelwright/kernelwright/internal/soak"
)

// A fake interpreter is a shell script, which is all that the messages for
// broken machines need. It answers the probe with what PROBE says, makes a
// venv by copying itself, and installs by printing what PIP says.
const fakePython = `#!/bin/sh
self="$0"
here=$(dirname "$self")
{ echo "called $*"; cat /proc/$$/environ; echo; } >> "$here/environ"
case "$*" in
*"-I -c"*)
  if [ -f "$here/probe.after" ] && [ -f "$here/installed" ]; then cat "$here/probe.after"; else cat "$here/probe"; fi
  exit $(cat "$here/probe.code" 2>/dev/null || echo 0) ;;
*"-m venv"*)
  for dir; do :; done
  echo made >> "$here/log"
  [ -f "$here/venv.says" ] && { cat "$here/venv.says" >&2; exit 1; }
  mkdir -p "$dir/bin"
  cp "$self" "$dir/bin/python"
  for f in pip.says pip.code pip.sleep probe.after; do [ -f "$here/$f" ] && cp "$here/$f" "$dir/bin/$f"; done
  sed "s#INTERPRETER#$dir/bin/python#" "$here/probe" > "$dir/bin/probe"
  sed -i "s#INTERPRETER#$dir/bin/python#" "$dir/bin/probe.after" ;;
*"-m pip"*)
  [ -f "$here/pip.sleep" ] && sleep $(cat "$here/pip.sleep")
  cat "$here/pip.says" 2>/dev/null
  code=$(cat "$here/pip.code" 2>/dev/null || echo 0)
  [ "$code" = 0 ] && touch "$here/installed"
  exit $code ;;
esac
`

type fake struct {
	dir string
	t   *testing.T
}

// onlyPython makes PATH hold nothing but the shell's tools and a fake python3.
func onlyPython(t *testing.T, probe string) fake {
	t.Helper()
	f := fake{t.TempDir(), t}
	f.write("python3", fakePython)
	f.write("probe", probe)
	f.write("probe.after", good)
	if err := os.Chmod(filepath.Join(f.dir, "python3"), 0o755); err != nil {
		t.Fatal(err)
	}
	tools := t.TempDir()
	for _, name := range []string{"sh", "cat", "dirname", "mkdir", "cp", "touch", "sed", "sleep", "echo"} {
		for _, from := range []string{"/bin/", "/usr/bin/"} {
			if _, err := os.Stat(from + name); err == nil {
				if err := os.Symlink(from+name, filepath.Join(tools, name)); err != nil {
					t.Fatal(err)
				}
				break
			}
		}
	}
	t.Setenv("PATH", f.dir+":"+tools)
	return f
}

func (f fake) write(name, content string) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, name), []byte(content), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

func (f fake) made() int {
	b, _ := os.ReadFile(filepath.Join(f.dir, "log"))
	return strings.Count(string(b), "made")
}

const (
	good    = `{"interpreter":"INTERPRETER","python":"3.12.1","minor":12,"torch":"2.11.0","missing":[],"venv":true}`
	bare    = `{"interpreter":"python3","python":"3.12.1","minor":12,"torch":"","missing":["numpy"],"venv":true}`
	noVenv  = `{"interpreter":"/usr/bin/python3","python":"3.12.1","minor":12,"torch":"","missing":[],"venv":false}`
	early   = `{"interpreter":"python3","python":"3.12.1","minor":12,"torch":"1.13.1+cpu","missing":[],"venv":true}`
	ancient = `{"interpreter":"python3","python":"3.9.2","minor":9,"torch":"2.11.0","missing":[],"venv":true}`
)

type notes struct {
	mu   sync.Mutex
	said []string
}

func (n *notes) add(stage, note string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.said = append(n.said, stage+": "+note)
}

func (n *notes) has(part string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.ContainsFunc(n.said, func(s string) bool { return strings.Contains(s, part) })
}

func fresh(t *testing.T) (*environment, *notes) {
	t.Helper()
	said := &notes{}
	e := newEnvironment(Options{DataDir: t.TempDir(), Progress: said.add, Log: slog.New(slog.DiscardHandler)}, nil)
	e.free = func(string) (int64, error) { return 1 << 40, nil }
	return e, said
}

func setupError(t *testing.T, err error, says string) *SetupError {
	t.Helper()
	var setup *SetupError
	if !errors.As(err, &setup) {
		t.Fatalf("got %v, want a SetupError", err)
	}
	if !strings.Contains(setup.Reason, says) || setup.Hint == "" || strings.Contains(setup.Reason, "\n") {
		t.Errorf("reason %q, hint %q", setup.Reason, setup.Hint)
	}
	return setup
}

func TestEnvironmentIsMadeOnce(t *testing.T) {
	f := onlyPython(t, bare)
	f.write("pip.says", "Collecting torch\n  Downloading torch-2.11.0-cp312-cp312-manylinux.whl (820.5 MB)\nInstalling collected packages: a, b, c\n")
	e, said := fresh(t)
	env, err := e.get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if env.Torch != "2.11.0" || !env.Made || env.Interpreter != filepath.Join(e.dir(), "bin", "python") {
		t.Errorf("got %+v", env)
	}
	for _, part := range []string{"making a Python environment", "downloading torch, 820.5 MB", "installing 3 packages", "ready: Python 3.12.1"} {
		if !said.has(part) {
			t.Errorf("never said %q: %q", part, said.said)
		}
	}
	if again, err := e.get(t.Context()); err != nil || again.Interpreter != env.Interpreter || f.made() != 1 {
		t.Errorf("made %d times, %v", f.made(), err)
	}

	// Half made, as after a kill: no marker.
	if err := os.Remove(filepath.Join(e.dir(), completeMarker)); err != nil {
		t.Fatal(err)
	}
	if _, err := e.get(t.Context()); err != nil || f.made() != 2 {
		t.Errorf("a half-made one was not repaired: %v", err)
	}
	// Broken since: the interpreter is gone.
	if err := os.Remove(filepath.Join(e.dir(), "bin", "python")); err != nil {
		t.Fatal(err)
	}
	if _, err := e.get(t.Context()); err != nil || f.made() != 3 {
		t.Errorf("a broken one was not repaired: %v", err)
	}
	// Other pins: another environment.
	before := e.dir()
	e.pins += "another==1\n"
	if _, err := e.get(t.Context()); err != nil || e.dir() == before {
		t.Errorf("other pins: %v", err)
	}
}

// What looks at a Python and what makes one has none of the keys that this process has;
// pip has its settings and its proxy, what is asked for its version has not.
func TestKeysAreNotForPython(t *testing.T) {
	const canary = "canary-8f3a"
	f := onlyPython(t, bare)
	for _, name := range []string{"OPENAI_API_KEY", "MY_OWN_KEY", "AWS_SECRET_ACCESS_KEY", "KERNELWRIGHT_KEY", "PYTHONPATH"} {
		t.Setenv(name, canary)
	}
	t.Setenv("PIP_INDEX_URL", "https://somebody:word@index.example/simple")
	t.Setenv("https_proxy", "http://proxy.example")
	t.Setenv("SSL_CERT_FILE", "/own/certificates")
	e, _ := fresh(t)
	if _, err := e.get(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{f.dir, filepath.Join(e.dir(), "bin")} {
		text, err := os.ReadFile(filepath.Join(folder, "environ"))
		if err != nil {
			t.Fatal(err)
		}
		for call := range strings.SplitSeq(string(text), "called ") {
			if strings.Contains(call, canary) {
				t.Errorf("a Python in %s gets a key: %q", folder, call)
			}
			fetches := strings.HasPrefix(call, "-I -m")
			for _, v := range []string{"PIP_INDEX_URL=https://somebody:word@", "https_proxy=http://proxy", "SSL_CERT_FILE=/own"} {
				if call != "" && strings.Contains(call, v) != fetches {
					t.Errorf("%s: %q", v, call)
				}
			}
			if call != "" && !strings.Contains(call, "PATH="+f.dir) {
				t.Errorf("it finds no programs: %q", call)
			}
		}
	}
}

func TestEnvironmentIsMadeByOneProcess(t *testing.T) {
	f := onlyPython(t, bare)
	f.write("pip.sleep", "0.3")
	first, said := fresh(t)
	var wg sync.WaitGroup
	for range 3 {
		e := *first
		wg.Go(func() {
			if _, err := e.get(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if f.made() != 1 || !said.has("another process is making") {
		t.Errorf("made %d times: %q", f.made(), said.said)
	}
}

func TestEnvironmentFailures(t *testing.T) {
	for name, tt := range map[string]struct{ venv, pip, says, hint string }{
		"no network":    {"", "WARNING: Retrying: NewConnectionError('Failed to establish a new connection: [Errno -3] Temporary failure in name resolution')\nERROR: Could not find a version that satisfies the requirement torch\nERROR: No matching distribution found for torch==2.11.0", "index cannot be reached", "PIP_INDEX_URL"},
		"no wheel":      {"", "ERROR: Could not find a version that satisfies the requirement torch==2.11.0 (from versions: none)\nERROR: No matching distribution found for torch==2.11.0", "has no PyTorch for this Python", "64-bit"},
		"disk":          {"", "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk is full", "free about 7 GB"},
		"certificate":   {"", "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]')) Max retries exceeded", "certificate", "PIP_CERT"},
		"no ensurepip":  {"The virtual environment was not created successfully because ensurepip is not\navailable.", "", "no venv module", "python3-venv"},
		"anything else": {"", "line\nERROR: it went wrong somehow\n", "it went wrong somehow", "remove"},
	} {
		t.Run(name, func(t *testing.T) {
			f := onlyPython(t, bare)
			if tt.venv != "" {
				f.write("venv.says", tt.venv)
			}
			f.write("pip.says", tt.pip)
			f.write("pip.code", "1")
			e, _ := fresh(t)
			_, err := e.get(t.Context())
			if setup := setupError(t, err, tt.says); !strings.Contains(setup.Hint, tt.hint) || setup.Detail == "" {
				t.Errorf("hint %q, detail %q", setup.Hint, setup.Detail)
			}
			if _, ok := e.complete(t.Context()); ok {
				t.Error("a failed environment passes for complete")
			}
		})
	}
}

func TestNoSuitablePython(t *testing.T) {
	for name, tt := range map[string]struct{ probe, says string }{
		"too old": {ancient, "the only Python here is 3.9.2"},
		"no venv": {noVenv, "has no venv module"},
		"broken":  {"not json", "no python3"},
	} {
		t.Run(name, func(t *testing.T) {
			onlyPython(t, tt.probe)
			e, _ := fresh(t)
			_, err := e.get(t.Context())
			setupError(t, err, tt.says)
		})
	}
	t.Setenv("PATH", t.TempDir())
	e, _ := fresh(t)
	_, err := e.get(t.Context())
	setupError(t, err, "no python3")
}

func TestTooLittleDisk(t *testing.T) {
	f := onlyPython(t, bare)
	e, _ := fresh(t)
	e.free = func(string) (int64, error) { return 1 << 30, nil }
	_, err := e.get(t.Context())
	setupError(t, err, "has 1.1 GB free")
	if f.made() != 0 {
		t.Error("it began all the same")
	}
}

func TestEnvironmentIsCancelled(t *testing.T) {
	f := onlyPython(t, bare)
	f.write("pip.sleep", "3600") // whoever waits for that meets the limit of all tests
	e, _ := fresh(t)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(300*time.Millisecond, cancel)
	if _, err := e.get(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestConfiguredPython(t *testing.T) {
	for name, tt := range map[string]struct{ probe, code, says string }{
		"no torch":  {bare, "0", "has no torch"},
		"too old":   {ancient, "0", "is version 3.9.2"},
		"old torch": {early, "0", "has torch 1.13.1+cpu"},
		"fails":     {"", "3", "does not work"},
		"no json":   {"hello", "0", "does not behave like Python"},
	} {
		t.Run(name, func(t *testing.T) {
			f := onlyPython(t, tt.probe)
			f.write("probe.code", tt.code)
			e, _ := fresh(t)
			e.python = "python3"
			_, err := e.get(t.Context())
			setupError(t, err, tt.says)
		})
	}
	onlyPython(t, good)
	e, _ := fresh(t)
	e.python = "python3"
	if env, err := e.get(t.Context()); err != nil || env.Torch != "2.11.0" || env.Made {
		t.Errorf("got %+v, %v", env, err)
	}
	e.python = filepath.Join(t.TempDir(), "nowhere")
	_, err := e.get(t.Context())
	setupError(t, err, "cannot be run: no such file")
	e.python = "no-such-python"
	_, err = e.get(t.Context())
	setupError(t, err, "cannot be run: there is no such program")
}

// A package that was deleted from an environment of ours is missed, and the
// environment is made again; one that was added is not.
func TestALostPackageIsMissed(t *testing.T) {
	f := onlyPython(t, bare)
	site := t.TempDir()
	f.write("probe.after", strings.Replace(good, `"missing"`, fmt.Sprintf(`"site":%q,"missing"`, site), 1))
	for _, name := range []string{"sympy", "torch", "torch-2.11.0.dist-info", "__pycache__"} {
		if err := os.Mkdir(filepath.Join(site, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	e, _ := fresh(t)
	made := func(want int) {
		t.Helper()
		if _, err := e.get(t.Context()); err != nil || f.made() != want {
			t.Errorf("made %d times, want %d: %v", f.made(), want, err)
		}
	}
	made(1)
	if err := os.Remove(filepath.Join(site, "__pycache__")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(site, "added"), 0o755); err != nil {
		t.Fatal(err)
	}
	made(1)
	if err := os.Remove(filepath.Join(site, "sympy")); err != nil {
		t.Fatal(err)
	}
	made(2)
}

// What an interpreter is need not be asked again until something changes.
func TestAnInterpreterIsAskedOnce(t *testing.T) {
	f, site := onlyPython(t, ""), t.TempDir()
	python := filepath.Join(f.dir, "python3")
	says := func(interpreter, torch string) {
		f.write("probe", fmt.Sprintf(`{"interpreter":%q,"python":"3.12.1","minor":12,"torch":%q,"missing":[],"venv":true,"paths":[%q]}`, interpreter, torch, site))
	}
	e, _ := fresh(t)
	e.cache, e.python = &memoryCache{}, "python3"
	has := func(want string) {
		t.Helper()
		if env, err := e.get(t.Context()); err != nil || env.Torch != want {
			t.Errorf("torch %q, want %q: %v", env.Torch, want, err)
		}
	}
	install := func(name string) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(site, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	says(python, "2.10.0")
	has("2.10.0")
	says(python, "2.11.0")
	has("2.10.0") // it was not asked
	install("torch-2.11.0.dist-info")
	has("2.11.0")
	says(python, "2.12.0")
	if err := os.Chtimes(python, time.Time{}, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	has("2.12.0")
	// One that starts another, by what is known elsewhere.
	says("/opt/versions/3.12/bin/python", "2.11.0")
	install("other")
	has("2.11.0")
	says("/opt/versions/3.13/bin/python", "2.12.0")
	has("2.12.0")
	// A damaged value.
	says(python, "2.13.0")
	if err := e.cache.Put(t.Context(), cachePython, python, []byte("{")); err != nil {
		t.Fatal(err)
	}
	has("2.13.0")
}

// realPython is the environment as a user's first start makes it, with the
// machine's own Python and pip.
func realPython(t *testing.T) *environment {
	t.Helper()
	e, _ := fresh(t)
	if _, err := e.base(t.Context()); err != nil {
		t.Skipf("no Python here can make an environment: %v", err)
	}
	return e
}

// The disk fills up while a real environment is made on it: venv or pip says so
// in its own way, and what is there is not taken for an environment.
func TestDiskFillsUpUnderPip(t *testing.T) {
	soak.Weekly(t) // a real pip fails without a network every sixth day, and what one says of a full disk is read in TestEnvironmentFailures
	e := realPython(t)
	if err := unix.Mount("tmpfs", e.dataDir, "tmpfs", 0, "size=4m,mode=0755"); err != nil {
		t.Skipf("no small disk can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(e.dataDir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	for range 2 { // the second time over what the first one left
		_, err := e.get(t.Context())
		setup := setupError(t, err, "the disk is full")
		if !strings.Contains(setup.Hint, "7 GB") {
			t.Errorf("hint %q", setup.Hint)
		}
	}
	if _, ok := e.complete(t.Context()); ok {
		t.Error("half of one passes for whole")
	}
}

// Without a network pip fails in many words, of which one sentence is made. An
// environment whose making was killed is made from the start.
func TestNoNetworkForPip(t *testing.T) {
	if !soak.Turn(t, 0, 6) {
		t.Skip("it has its turn every sixth day: what pip says without a network is read in TestEnvironmentFailures every day")
	}
	e := realPython(t)
	t.Setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple") // nobody listens at discard
	t.Setenv("PIP_RETRIES", "1")                           // with none it says nothing of the network
	t.Setenv("PIP_NO_CACHE_DIR", "1")
	t.Setenv("PIP_CONFIG_FILE", os.DevNull)
	bin := filepath.Join(e.dir(), "bin")
	// What a kill at the start leaves and, once a week, one in the middle.
	halves := []func() error{
		func() error { return os.MkdirAll(e.dir(), 0o755) },
		func() error { return os.RemoveAll(bin) },
	}
	if soak.Daily() {
		halves = halves[:1]
	}
	for _, half := range halves {
		if err := half(); err != nil {
			t.Fatal(err)
		}
		_, err := e.get(t.Context())
		setup := setupError(t, err, "the package index cannot be reached")
		if !strings.Contains(setup.Hint, "PIP_INDEX_URL") || setup.Detail == "" {
			t.Errorf("hint %q, detail %q", setup.Hint, setup.Detail)
		}
	}
}

func TestDataFolderIsAFile(t *testing.T) {
	onlyPython(t, bare)
	e, _ := fresh(t)
	e.dataDir = filepath.Join(e.dataDir, "file")
	if err := os.WriteFile(e.dataDir, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := e.get(t.Context())
	setupError(t, err, "cannot be made")
}

func TestCondense(t *testing.T) {
	for line, want := range map[string]string{
		"Collecting torch==2.11.0 (from -r requirements.txt (line 2))":               "",
		"  Downloading torch-2.11.0-cp311-cp311-manylinux_2_28_x86_64.whl (1.9 MB)":  "downloading torch, 1.9 MB",
		"  Downloading torch-2.11.0-cp311-cp311-manylinux_2_28.whl.metadata (29 kB)": "",
		"  Downloading https://example.org/simple/numpy-2.4.6-cp311.whl (16.2 MB)":   "downloading numpy, 16.2 MB",
		"  Using cached ninja-1.13.2-py3-none-any.whl (180 kB)":                      "already downloaded: ninja, 180 kB",
		"Installing collected packages: mpmath, sympy, torch":                        "installing 3 packages",
		"Requirement already satisfied: pip":                                         "",
	} {
		if got := condense(line); got != want {
			t.Errorf("%q: got %q", line, got)
		}
	}
}

func TestForkServerEnvHoldsNoSecrets(t *testing.T) {
	t.Setenv("OPENAI_API_KEY", "secret")
	t.Setenv("PYTHONPATH", "/evil")
	t.Setenv("CXX", "g++-14")
	env := forkServerEnv(pythonEnv{Interpreter: "/venv/bin/python"}, "/data")
	all := strings.Join(env, "\n")
	if strings.Contains(all, "secret") || strings.Contains(all, "evil") || !strings.Contains(all, "CXX=g++-14") {
		t.Errorf("got %q", env)
	}
	if !strings.HasPrefix(all, fmt.Sprintf("PATH=/venv/bin:%s", os.Getenv("PATH"))) {
		t.Errorf("got %q", env)
	}
}

// Python works in another folder than we do.
func TestForkServerEnvNamesCUTLASSByItsWholePath(t *testing.T) {
	t.Chdir(t.TempDir())
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for value, want := range map[string]string{"": "", "/opt/cutlass": "CUTLASS_PATH=/opt/cutlass", "cutlass": "CUTLASS_PATH=" + here + "/cutlass"} {
		t.Setenv("CUTLASS_PATH", value)
		got := ""
		for _, v := range forkServerEnv(pythonEnv{Interpreter: "/venv/bin/python"}, "/data") {
			if strings.HasPrefix(v, "CUTLASS_PATH=") {
				got = v
			}
		}
		if got != want {
			t.Errorf("CUTLASS_PATH=%s: got %q, want %q", value, got, want)
		}
	}
}
