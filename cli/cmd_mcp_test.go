package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/daemon"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/internal/soak"
	"github.com/kernelwright/kernelwright/judge"
	"github.com/kernelwright/kernelwright/mcp"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

// textHardware evaluates by what a text says: the record of an agent's work is tried
// with it, and verdicts are tried elsewhere.
type textHardware struct{ hardware }

func (textHardware) Device() kernelwright.Device {
	return kernelwright.Device{Kind: kernelwright.CPUDevice, Key: "a test's", Name: "a test's CPU"}
}

func (textHardware) Check(context.Context) error { return nil }

func (textHardware) Versions() map[string]string { return nil }

func (textHardware) Close() error { return nil }

func (textHardware) MeasureBaselines(context.Context, kernelwright.Task) (map[string]kernelwright.Measurement, error) {
	return map[string]kernelwright.Measurement{"eager": {MedianMS: 4}}, nil
}

func (textHardware) Inspect(_ context.Context, name, source string) (kernelwright.Task, error) {
	code, _, _ := strings.Cut(source, "#") // comments do not count for the fingerprint
	return kernelwright.Task{Fingerprint: kernelwright.HashText(strings.TrimSpace(code)), Name: name, Source: source}, nil
}

func (h textHardware) Evaluate(_ context.Context, t kernelwright.Task, c kernelwright.Candidate, l kernelwright.Level) (kernelwright.Verdict, error) {
	v := kernelwright.Verdict{
		Status: kernelwright.Correct, Level: l, Task: t.Fingerprint, Language: kernelwright.CPP, Device: "cpu", DeviceKey: h.Device().Key,
		Reason: "agrees with float64", CandidateMS: 10 / float64(len(c.Source)), Baselines: map[string]float64{"eager": 4},
	}
	if l == kernelwright.Certify {
		v.Status, v.Exported = kernelwright.Certified, c.Source
		v.ExportedSHA256 = kernelwright.HashText(v.Exported)
	}
	return v, nil
}

// agent is a client of a server over a data folder.
type agent struct {
	t     *testing.T
	s     *sdk.ClientSession
	ended chan error
}

// newAgent starts a server as `kernelwright mcp` does, with other hardware.
func newAgent(t *testing.T, data, root string, flags map[string]string) *agent {
	t.Helper()
	ctx := context.Background() // it ends when its client leaves
	a := &app{ctx: ctx, stdin: strings.NewReader(""), stdout: io.Discard, stderr: io.Discard, flags: map[string]string{"data_dir": data}, flagNames: map[string]string{"data_dir": "--data-dir"}}
	for key, value := range flags {
		a.flags[key], a.flagNames[key] = value, "--flag"
	}
	r, err := a.open(false)
	if err != nil {
		t.Fatal(err)
	}
	var folder *os.Root
	if root != "" {
		if folder, err = os.OpenRoot(root); err != nil {
			t.Fatal(err)
		}
	}
	w, err := newWorkshop(r, folder, root)
	if err != nil {
		t.Fatal(err)
	}
	w.hardware = func(context.Context, hwfeedback.Options, hwfeedback.Leaser) (instrument, error) {
		return textHardware{}, nil
	}
	in, theirOut := io.Pipe()
	theirIn, out := io.Pipe()
	k := &agent{t: t, ended: make(chan error, 1)}
	go func() {
		err := mcp.New(w, r.store, judge.Rules{}).Run(ctx, in, out)
		if folder != nil {
			folder.Close()
		}
		k.ended <- errors.Join(err, w.close(), r.close())
	}()
	client := sdk.NewClient(&sdk.Implementation{Name: "agent", Version: "1"}, nil)
	if k.s, err = client.Connect(ctx, &sdk.IOTransport{Reader: theirIn, Writer: theirOut}, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.leave)
	return k
}

// leave ends the session and waits for its server.
func (k *agent) leave() {
	k.s.Close()
	if err := <-k.ended; err != nil {
		k.t.Error(err)
	}
	k.ended <- nil
}

func (k *agent) call(name string, args map[string]any) (string, bool) {
	k.t.Helper()
	return call(k.t, k.s, name, args)
}

// call calls a tool; false says that it failed.
func call(t *testing.T, s *sdk.ClientSession, name string, args map[string]any) (string, bool) {
	t.Helper()
	r, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		t.Fatal(err)
	}
	return r.Content[0].(*sdk.TextContent).Text, !r.IsError
}

func (k *agent) must(name string, args map[string]any, parts ...string) {
	k.t.Helper()
	text, ok := k.call(name, args)
	if !ok {
		k.t.Fatalf("%s: %s", name, text)
	}
	contains(k.t, text, parts...)
}

func (k *agent) fails(name string, args map[string]any, parts ...string) {
	k.t.Helper()
	text, ok := k.call(name, args)
	if ok {
		k.t.Errorf("%s: %s", name, text)
	}
	contains(k.t, text, parts...)
}

func contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%q is not in:\n%s", p, text)
		}
	}
}

// given are arguments by name.
type given = map[string]any

func referenceFolder(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for path, text := range map[string]string{"softmax.py": "class Model: 'softmax'\n", "sub/relu.py": "class Model: 'relu'\n"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, path), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// An agent that comes back goes on with its run, which is one like any other.
func TestAgentComesBack(t *testing.T) {
	data, root := t.TempDir(), referenceFolder(t)
	history := func(parts ...string) {
		t.Helper()
		code, said := says(t, "history", "ls", "--data-dir", data)
		wantSaid(t, code, said, ExitOK, parts...)
	}
	one := newAgent(t, data, root, nil)
	one.must("evaluate", given{"path": "softmax.py", "candidate": "class ModelNew: 1", "note": "plain"}, "run 1, round 0")
	history("softmax  running  correct")
	// A second window of the same client has a run of its own.
	two := newAgent(t, data, root, nil)
	two.must("evaluate", given{"path": "softmax.py", "candidate": "class ModelNew: 1"}, "run 2, round 0")
	two.leave()
	one.leave()
	history("softmax  stopped  correct")
	// The newest open one goes on, whatever the task is called now.
	again := newAgent(t, data, root, nil)
	again.must("evaluate", given{"reference": "class Model: 'softmax'\n", "candidate": "class ModelNew: 11"}, "run 2, round 1")
	again.must("submit", nil, "certified", "run 2, round 1", "kernel: "+filepath.Join(root, "softmax.best.py"))
	again.must("evaluate", given{"path": "softmax.py", "candidate": "class ModelNew: 2"}, "run 1, round 1")
	// Another comment is another program: its candidates are evaluated by themselves.
	again.must("evaluate", given{"reference": "class Model: 'softmax' # again\n", "name": "softmax", "candidate": "class ModelNew: 2"}, "run 3, round 0")
	again.leave()
	history("softmax  done     certified", "softmax  stopped  correct")
	code, said := says(t, "history", "show", "2", "--data-dir", data)
	wantSaid(t, code, said, ExitOK, "done (submitted)", "coder   mcp:agent", "judge   rules", "certified *")
	code, said = says(t, "history", "show", "1", "--markdown", "--data-dir", data)
	wantSaid(t, code, said, ExitOK, "mcp:agent", "plain")
	code, said = says(t, "history", "check", "--data-dir", data)
	wantSaid(t, code, said, ExitOK, "sound")
	code, said = says(t, "history", "replay", "2", "--data-dir", data)
	wantSaid(t, code, said, ExitUsage, `run 2 was coded by "mcp:agent", which cannot be asked again`)
	for _, name := range []string{"softmax.best.py", "softmax.certificate.json", "softmax.report.md", "softmax.report.html"} {
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			t.Error(err)
		}
	}
}

// Results go where they may: beside a reference below the root folder, into the
// output folder, or into the data folder.
func TestWhereAnAgentsResultsGo(t *testing.T) {
	data, root, out := t.TempDir(), referenceFolder(t), t.TempDir()
	k := newAgent(t, data, root, nil)
	k.must("submit", given{"reference": "class Model: 'gelu'", "name": "gelu", "candidate": "class ModelNew: 1"}, "kernel: "+filepath.Join(data, "kernels", "1", "gelu.best.py"))
	k.must("submit", given{"path": "sub/relu.py", "candidate": "class ModelNew: 1"}, "kernel: "+filepath.Join(root, "sub", "relu.best.py"))
	k.must("evaluate", given{"path": "softmax.py", "candidate": "class ModelNew: 1"}, "run 3")
	k.leave()
	// The same run, by a server that may not write where its reference lies.
	k = newAgent(t, data, t.TempDir(), nil)
	k.must("submit", given{"task": "softmax"}, "run 3", "kernel: "+filepath.Join(data, "kernels", "3", "softmax.best.py"))
	k.leave()
	k = newAgent(t, data, root, map[string]string{"watch.output_dir": out})
	k.must("submit", given{"path": "sub/relu.py", "candidate": "class ModelNew: 1"}, "kernel: "+filepath.Join(out, "sub", "relu.best.py"))
	k.must("submit", given{"reference": "class Model: 'gelu'", "candidate": "class ModelNew: 1"}, "kernel: "+filepath.Join(out, "reference.best.py"))
	if _, err := os.Stat(filepath.Join(root, "softmax.best.py")); err == nil {
		t.Error("a file was written outside of where it may be")
	}
}

// No file but those below the root folder is read.
func TestAnAgentReadsNoOtherFiles(t *testing.T) {
	data, root := t.TempDir(), referenceFolder(t)
	secret := filepath.Join(t.TempDir(), "secret.py")
	if err := os.WriteFile(secret, []byte("key = 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(root, "link.py")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Dir(secret), filepath.Join(root, "folder")); err != nil {
		t.Fatal(err)
	}
	k := newAgent(t, data, root, nil)
	for path, want := range map[string]string{
		"link.py": "outside of the folder that may be read", "folder/secret.py": "outside of the folder that may be read",
		secret: "is not a path below the folder", "../" + filepath.Base(filepath.Dir(secret)) + "/secret.py": "is not a path below the folder", "sub": "it is a folder",
	} {
		k.fails("task", given{"path": path}, want)
	}
	k.leave()
	k = newAgent(t, data, "", nil)
	k.fails("task", given{"path": "softmax.py"}, "no file may be read: the server was started without --root", "hint: give the reference's source")
}

// What an agent may not do to others, and what it is told of a full run.
func TestLimitsOfAnAgent(t *testing.T) {
	data, root := t.TempDir(), referenceFolder(t)
	k := newAgent(t, data, root, nil)
	add := given{"path": "softmax.py", "action": "add", "called": "cute", "source": "class ModelNew: 1"}
	k.must("baselines", add, "added: cute", "named: cute, cpp on cpu")
	k.fails("baselines", add, "there is a baseline cute of this task already")
	for called, want := range map[string]string{"Cute": "a baseline cannot be named", "eager": "always there"} {
		k.fails("baselines", given{"action": "add", "called": called, "source": "class ModelNew: 1"}, want, "hint: ")
	}
	code, said := says(t, "baseline", "ls", "--data-dir", data)
	wantSaid(t, code, said, ExitOK, "softmax  cute  cpu", "mcp:agent")
	k.must("evaluate", given{"candidate": "class ModelNew: 1"}, "run 1, round 0")
	s, err := store.Open(filepath.Join(data, store.FileName))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	round, err := s.Round(t.Context(), 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	for round.Index = 1; round.Index < forge.OutsideRounds; round.Index++ {
		if err := s.AppendRound(t.Context(), round); err != nil {
			t.Fatal(err)
		}
	}
	k.fails("evaluate", given{"candidate": "class ModelNew: 1"}, "run 1 has all the 200 rounds that it may have", "hint: submit the best one")
	k.must("submit", nil, "run 1, round 0")
	k.must("evaluate", given{"candidate": "class ModelNew: 1"}, "run 2, round 0")
}

// The whole of it: the program, the evaluator, and an agent that errs.
func TestAgentWithPython(t *testing.T) {
	soak.Weekly(t) // the tools themselves are tried every day, on an evaluator that plays
	t.Parallel()
	python := os.Getenv("KERNELWRIGHT_TEST_PYTHON")
	if python == "" {
		t.Skip("KERNELWRIGHT_TEST_PYTHON names no Python that has PyTorch")
	}
	root := t.TempDir()
	softmax, err := os.ReadFile("../examples/softmax.py")
	if err != nil {
		t.Fatal(err)
	}
	small := strings.Replace(string(softmax), "2048, 1024", "256, 512", 1)
	if err := os.WriteFile(filepath.Join(root, "softmax.py"), []byte(small), 0o644); err != nil {
		t.Fatal(err)
	}
	candidate := func(name string) string {
		text, err := os.ReadFile(filepath.Join("../examples/candidates", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	run := runner{t: t, python: python, data: newData(t)}
	c := run.command("mcp", "--root", root)
	var stderr strings.Builder
	c.Stderr = &stderr
	notes := make(chan string, 1000)
	client := sdk.NewClient(&sdk.Implementation{Name: "an agent", Version: "1"}, &sdk.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) { notes <- r.Params.Message },
	})
	s, err := client.Connect(t.Context(), &sdk.CommandTransport{Command: c.Cmd, TerminateDuration: time.Minute}, nil)
	if err != nil {
		t.Fatal(err)
	}
	must := func(name string, args map[string]any, parts ...string) {
		t.Helper()
		text, ok := call(t, s, name, args)
		if !ok {
			t.Fatalf("%s: %s", name, text)
		}
		contains(t, text, parts...)
	}
	must("task", given{"path": "softmax.py"}, "softmax on cpu", "input x: float32 [256 512]", "aten.softmax")
	must("baselines", given{"action": "measure"}, "eager ", "no named baselines")
	must("evaluate", given{"candidate": candidate("softmax_unstable.py")}, "wrong: on family scaled_up", "the rules' finding: ", "run 1, round 0")
	must("evaluate", given{"candidate": candidate("softmax_native.py"), "note": "three passes"}, "correct: agrees with float64", "against eager", "run 1, round 1")
	must("profile", nil, "run 1, round 1: correct", "roofline: ", "work: custom ", "operator softmax_rows (custom)", "custom_share ")

	// Given up in the middle of a verdict, which is then none.
	calling, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		p := &sdk.CallToolParams{Name: "evaluate", Arguments: given{"candidate": candidate("softmax_native.py") + "\nx = 1\n"}}
		p.SetProgressToken(1)
		_, err := s.CallTool(calling, p)
		ended <- err
	}()
	for begun := false; !begun; {
		select {
		case note := <-notes:
			begun = strings.HasPrefix(note, "verify") || strings.HasPrefix(note, "build")
		case err := <-ended:
			t.Fatalf("it ended before it began: %v", err)
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	must("submit", nil, "certified: agrees with float64", "run 1, round 1", "certificate: "+filepath.Join(root, "softmax.certificate.json"))
	if err := s.Close(); err != nil || c.ProcessState.ExitCode() != ExitOK {
		t.Errorf("%v, exit code %d\n%s", err, c.ProcessState.ExitCode(), stderr.String())
	}
	if left := run.processes(); len(left) > 0 {
		t.Errorf("processes %v are left behind", left)
	}
	d := run.record()
	if d.Run.Status != kernelwright.RunDone || d.Run.Stop != kernelwright.StopSubmitted || d.Run.Coder != "mcp:an-agent" || len(d.Rounds) != 2 ||
		d.Rounds[0].Verdict.Status != kernelwright.Wrong || d.Rounds[0].Feedback == nil || d.Rounds[1].Certificate == nil {
		t.Errorf("%+v", d.Run)
	}
	kernel, err := os.ReadFile(filepath.Join(root, "softmax.best.py"))
	if !report.HandedOut(*d.Rounds[1].Certificate) { // it measures: here it was slower than eager
		if err == nil {
			t.Error("a kernel that is slower was written")
		}
	} else if err != nil || kernelwright.HashText(string(kernel)) != d.Rounds[1].Certificate.ExportedSHA256 {
		t.Errorf("what was written is not what was certified: %v", err)
	}
}

// A lock of another server on a run is no damage to the record.
func TestARunIsHeldByItself(t *testing.T) {
	data, root := t.TempDir(), referenceFolder(t)
	k := newAgent(t, data, root, nil)
	k.must("evaluate", given{"path": "softmax.py", "candidate": "class ModelNew: 1"}, "run 1, round 0")
	lock, err := daemon.AcquireLock(data, nil, time.Now())
	if err != nil {
		t.Fatalf("the data folder is not free: %v", err)
	}
	defer lock.Release()
	s, err := store.Open(filepath.Join(data, store.FileName))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	k.must("evaluate", given{"candidate": "class ModelNew: 2"}, "run 1, round 1")
	if rounds, err := s.Rounds(t.Context(), 1); err != nil || len(rounds) != 2 {
		t.Errorf("%d rounds, %v", len(rounds), err)
	}
}
