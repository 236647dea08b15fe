package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/internal/soak"
	"github.com/kernelwright/kernelwright/report"
)

const goodReference = `import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)

def get_inputs():
    return [torch.randn(64, 256)]

def get_init_inputs():
    return []
`

// oddReference is the same as an editor of another system might have written
// it, with its class in a condition.
func oddReference() string {
	text := strings.Replace(goodReference, "class Model(nn.Module):\n    def forward(self, x):\n        return",
		"try:\n\timport no_such_module\nexcept ImportError:\n\tclass Model(nn.Module):\n\t\tdef forward(self, x):\n\t\t\treturn", 1)
	text = strings.Replace(text, "\n\ndef", "\n\f\ndef", 1)
	return "\xef\xbb\xbf" + strings.ReplaceAll(text, "\n", "\r\n")
}

// badReferences are files by name, each with a part of the sentence that its
// author reads. What a reference can do wrong once it runs is in the harness's
// test_bad_references.py in full; here are the kinds that may harm a daemon.
func badReferences() map[string]struct{ content, reason string } {
	first := func(statement string) string { return statement + "\n" + goodReference }
	forward := func(statement string) string {
		return strings.Replace(goodReference, "        return", "        "+statement+"\n        return", 1)
	}
	inputs := func(value string) string {
		return strings.Replace(goodReference, "[torch.randn(64, 256)]", value, 1)
	}
	wide := []byte{0xff, 0xfe}
	for _, u := range utf16.Encode([]rune(goodReference)) {
		wide = append(wide, byte(u), byte(u>>8))
	}
	return map[string]struct{ content, reason string }{
		"empty":         {"", "it is empty"},
		"blank":         {" \n\t\r\n", "it is empty"},
		"program":       {"\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 64), "it is a compiled library or program"},
		"bytes":         {strings.Repeat("\x9d\xee\x00\x01", 999), "NUL byte on line 1"},
		"nul":           {strings.Replace(goodReference, "\n\n", "\n\x00\n", 1), "NUL byte on line 3"},
		"utf16":         {string(wide), "its text is encoded as UTF-16"},
		"latin1":        {"# caf\xe9\n" + goodReference, "line 1 is not UTF-8 (byte 0xe9)"},
		"latin1_cookie": {"# -*- coding: latin-1 -*-\n# caf\xe9\n" + goodReference, "it declares the encoding latin-1"},
		"megabytes":     {goodReference + strings.Repeat("# 30 MB of nothing\n", 30<<20/19), "it is larger than 4 MiB"},
		"prose":         {"Dear Sir or Madam,\n", "line 1: not valid Python: invalid syntax"},
		"deep":          {goodReference + "X = " + strings.Repeat("-", 100_000) + "1\n", "nested too deeply"},
		"no_model":      {strings.Replace(goodReference, "Model", "Net", 1), "the file defines no Model"},
		"inputs_none":   {inputs("None"), "get_inputs() returns None, not a list"},
		"inputs_many":   {inputs("[0] * 10**7"), "what get_inputs() returns holds over 10000 values"},
		"endless":       {forward("__import__('time').sleep(1e6)"), "Model's forward took over"},
		"memory":        {forward("x = torch.ones(1 << 50)"), "the reference ran out of memory in Model's forward"},
		"stochastic":    {forward("x = x * torch.rand_like(x)"), "the reference is stochastic"},
		"sys_exit":      {first("import sys; sys.exit(0)"), "the reference calls sys.exit (line 1)"},
		"os_exit":       {forward("import os; os._exit(0)"), "ended itself with exit code 0 in Model's forward"},
		"interrupt":     {forward("raise KeyboardInterrupt"), "Model's forward raises KeyboardInterrupt"},
		"stdin":         {first("input()"), "the reference waits for input (line 1)"},
		"prints": {first("import sys\nfor f in sys.stdout, sys.stderr:\n    for _ in range(100): f.write('x' * (1 << 20))\nraise OSError('printed')"),
			"OSError: printed (line 4)"},
		"forks":       {first("import os\nwhile True: os.fork()"), "the reference forks (line 2)"},
		"threads":     {first("import threading, time\nfor _ in range(9): threading.Thread(target=time.sleep, args=(1e6,)).start()"), "leaves a thread running"},
		"descriptors": {first("import os\nfor i in range(3, 99):\n    try: os.write(i, b'~' * 99)\n    except OSError: pass"), "descriptors that are not its own"},
		"kills": {first("import os, signal, ctypes\nos.killpg(0, signal.SIGKILL)\nos.kill(-1, signal.SIGKILL)"),
			"the file fails when it is imported: ProcessLookupError"},
	}
}

// A daemon that meets every bad file in one folder says of each what is wrong,
// leaves it as it is, stays small, and then does its job.
func TestBadReferencesInAWatchedFolder(t *testing.T) {
	soak.Weekly(t) // the harness's tests have the references every day, daemon.txtar a folder with a bad one
	t.Parallel()
	python := os.Getenv("KERNELWRIGHT_TEST_PYTHON")
	if python == "" {
		t.Skip("KERNELWRIGHT_TEST_PYTHON names no Python that has PyTorch")
	}
	r, dir := runner{t: t, python: python, data: newData(t)}, t.TempDir()
	bad := badReferences()
	if !soak.Long() { // the harness's tests have them every day, and here they end as others do
		for _, name := range []string{"inputs_many", "inputs_none", "interrupt", "no_model", "os_exit", "stdin", "stochastic"} {
			delete(bad, name)
		}
	}
	wanted := map[string]string{}
	for name, f := range bad {
		wanted[name] = f.reason
		if err := os.WriteFile(filepath.Join(dir, name+".py"), []byte(f.content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for from, f := range map[string]struct{ to, reason string }{
		"dangling": {"nowhere.txt", `it is a link to "nowhere.txt", which is not there`},
		"circle":   {"circle.py", "it is a link that leads round in a circle"},
		"device":   {"/dev/zero", "it is a device, not a file"},
	} {
		wanted[from] = f.reason
		if err := os.Symlink(f.to, filepath.Join(dir, from+".py")); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe.py"), 0o600); err != nil {
		t.Fatal(err)
	}
	wanted["pipe"] = "it is a named pipe, not a file"
	if err := os.Mkdir(filepath.Join(dir, "folder.py"), 0o700); err != nil { // nothing is said of folders
		t.Fatal(err)
	}
	locked := filepath.Join(dir, "locked.py")
	if os.Geteuid() != 0 { // root may read everything
		wanted["locked"] = "it cannot be read: permission denied"
		if err := os.WriteFile(locked, []byte(goodReference+"# mine\n"), 0); err != nil {
			t.Fatal(err)
		}
	}
	// Half of a file that is still being written when it is first looked at.
	slow := filepath.Join(dir, "slow.py")
	odd := oddReference()
	half := strings.Index(odd, "get_inputs")
	if err := os.WriteFile(slow, []byte(odd[:half]), 0o600); err != nil {
		t.Fatal(err)
	}
	wanted["slow"] = "line 11: not valid Python"

	d := r.daemon(dir)
	for left := maps.Clone(wanted); len(left) > 0; {
		s := d.next()
		reason, ok := left[s.Task]
		if !ok || s.Status != string(kernelwright.RunInvalid) || !strings.Contains(s.Reason, reason) || s.Hint == "" || strings.Contains(s.Reason, "\n") {
			t.Errorf("%s: %s, reason %q, hint %q, expected %q", s.Task, s.Status, s.Reason, s.Hint, reason)
		}
		t.Logf("%-14s %s; %s", s.Task, s.Reason, s.Hint)
		delete(left, s.Task)
	}
	if peak := d.peakMB(); peak > 150 {
		t.Errorf("the daemon took %d MB", peak)
	} else {
		t.Logf("the daemon took %d MB at most", peak)
	}

	f, err := os.OpenFile(slow, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(odd[half:]); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if s := d.next(); s.Task != "slow" || s.Status != string(kernelwright.Certified) {
		t.Errorf("the good file: %+v", s)
	}
	if wanted["locked"] != "" {
		if err := os.Chmod(locked, 0o600); err != nil { // its content and time stay
			t.Fatal(err)
		}
		if s := d.next(); s.Task != "locked" || s.Status != string(kernelwright.Certified) {
			t.Errorf("the file that may now be read: %+v", s)
		}
	}
	d.stop()

	for name, f := range bad {
		if now, err := os.ReadFile(filepath.Join(dir, name+".py")); err != nil || string(now) != f.content {
			t.Errorf("%s was changed: %v", name, err)
		}
		if _, err := os.Stat(filepath.Join(dir, name+".best.py")); err == nil {
			t.Errorf("%s has a kernel", name)
		}
	}
	for _, file := range []string{"slow.report.html", "slow.certificate.json", "pipe.report.md"} {
		if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
			t.Error(err)
		}
	}
	r.saysSo(wanted)

	// The same by hand, where nothing watches.
	c := r.command("run", filepath.Join(dir, "utf16.py"), filepath.Join(dir, "pipe.py"), filepath.Join(dir, "sys_exit.py"))
	out, err := c.Output()
	if c.ProcessState.ExitCode() != ExitNotFound || bytes.Count(out, []byte("invalid")) != 3 {
		t.Errorf("run: %v\n%s", err, out)
	}
	c = r.command("run", filepath.Join(dir, "folder.py"))
	if out, err := c.Output(); c.ProcessState.ExitCode() != ExitUsage || len(out) > 0 {
		t.Errorf("run of a folder: %v\n%s", err, out)
	}
	for _, name := range []string{"utf16", "device", "forks"} {
		c := r.command("eval", filepath.Join(dir, name+".py"), slow)
		if out, err := c.Output(); err != nil || !strings.HasPrefix(string(out), "invalid: "+wanted[name]) || !strings.Contains(string(out), "\nhint: ") {
			t.Errorf("eval %s: %v\n%s", name, err, out)
		}
	}
}

// saysSo holds the record against the sentences.
func (r runner) saysSo(wanted map[string]string) {
	r.t.Helper()
	out, err := r.command("history", "ls", "--status", "invalid", "--limit", "100", "--json").Output()
	if err != nil {
		r.t.Fatal(err)
	}
	var list struct {
		Runs []kernelwright.Run `json:"runs"`
	}
	if err := json.Unmarshal(out, &list); err != nil {
		r.t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, run := range list.Runs {
		seen[run.TaskName] = true
		shown, err := r.command("history", "show", strconv.FormatInt(run.ID, 10)).Output()
		if err != nil || !strings.Contains(string(shown), wanted[run.TaskName]) || !strings.Contains(string(shown), "\nhint ") {
			r.t.Errorf("history show %d: %v\n%s", run.ID, err, shown)
		}
	}
	if got, want := slices.Sorted(maps.Keys(seen)), slices.Sorted(maps.Keys(wanted)); len(list.Runs) != len(wanted) || !slices.Equal(got, want) {
		r.t.Errorf("%d runs of %q, expected one of each of %q", len(list.Runs), got, want)
	}
}

// watcher is a daemon with what it tells of runs that end.
type watcher struct {
	t     *testing.T
	cmd   *exec.Cmd
	ended chan report.Summary
	log   *bytes.Buffer
}

func (r runner) daemon(dir string) *watcher {
	r.t.Helper()
	w := &watcher{t: r.t, ended: make(chan report.Summary, 100), log: &bytes.Buffer{}}
	w.cmd = r.command("daemon", "--watch", dir, "--rounds", "1", "--json").Cmd
	w.cmd.Env = append(w.cmd.Env, "KERNELWRIGHT_EVALUATION_INSPECT_TIMEOUT=20s")
	w.cmd.Stderr = w.log
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := w.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	go func() {
		defer close(w.ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var s report.Summary
			if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
				return
			}
			w.ended <- s
		}
	}()
	r.t.Cleanup(func() {
		_ = w.cmd.Process.Kill()
		_ = w.cmd.Wait()
		if r.t.Failed() {
			r.t.Log(w.log.String())
		}
	})
	return w
}

func (w *watcher) next() report.Summary {
	w.t.Helper()
	select {
	case s, ok := <-w.ended:
		if !ok {
			w.t.Fatal("the daemon ended")
		}
		return s
	case <-time.After(3 * time.Minute):
		w.t.Fatal("no run ended")
	}
	return report.Summary{}
}

// peakMB is the most memory that the daemon's own process ever had.
func (w *watcher) peakMB() int {
	w.t.Helper()
	status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(w.cmd.Process.Pid), "status"))
	if err != nil {
		w.t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	kb, err := strconv.Atoi(strings.Fields(after)[0])
	if err != nil {
		w.t.Fatal(err)
	}
	return kb >> 10
}

func (w *watcher) stop() {
	w.t.Helper()
	if err := w.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		w.t.Fatal(err)
	}
	for range w.ended { // until its output ends
	}
	if err := w.cmd.Wait(); err != nil {
		w.t.Errorf("the daemon: %v", err)
	}
}
