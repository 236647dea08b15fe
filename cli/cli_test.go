package cli

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/config"
	"github.com/kernelwright/kernelwright/daemon"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/internal/soak"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/store"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"kernelwright": program})
}

// program is cmd/kernelwright.
func program() {
	ctx, stop := Interruptible()
	err := Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	Explain(os.Stderr, err)
	os.Exit(ExitCode(err))
}

// TestScripts measures nothing. KERNELWRIGHT_TEST_PROGRAM names a program to run in the
// place of this one: without the race detector its hundreds of starts take a third.
func TestScripts(t *testing.T) {
	var env []string
	if program := os.Getenv("KERNELWRIGHT_TEST_PROGRAM"); program != "" {
		if filepath.Base(program) != "kernelwright" {
			t.Fatalf("KERNELWRIGHT_TEST_PROGRAM is %s, and the scripts call kernelwright", program)
		}
		if _, err := os.Stat(program); err != nil {
			t.Fatal(err)
		}
		env = append(env, "PATH="+filepath.Dir(program)+string(filepath.ListSeparator)+os.Getenv("PATH"))
	}
	scripts(t, "testdata", env)
}

// TestScriptsWithPython measures: it needs a Python that has PyTorch.
func TestScriptsWithPython(t *testing.T) {
	t.Parallel()
	python := os.Getenv("KERNELWRIGHT_TEST_PYTHON")
	if python == "" {
		t.Skip("KERNELWRIGHT_TEST_PYTHON names no Python that has PyTorch")
	}
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	// One data folder for all, so that ceilings and baselines are measured once.
	// Nothing in the scripts depends on what the others did.
	scripts(t, filepath.Join("testdata", "python"), []string{
		"KERNELWRIGHT_PYTHON=" + python, "ROOT=" + root, "SHARED=" + newData(t),
		"OWN=" + newData(t),   // of the script that counts its runs
		"APART=" + newData(t), // of one whose benches are not counted by another
		"TMPDIR=" + t.TempDir(),
		hwfeedback.LeasesOfTests + "=" + leasesBelow(t.TempDir()), // one for all: the scripts wait for each other
		"KERNELWRIGHT_EVALUATION_CERTIFY_TIME=1s", oneThread,
	})
}

func scripts(t *testing.T, dir string, env []string) {
	models := newDoubles(t)
	examples, err := filepath.Abs(filepath.Join("..", "examples"))
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: dir,
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOME", filepath.Join(e.WorkDir, "home"))
			e.Setenv("KERNELWRIGHT_DATA_DIR", filepath.Join(e.WorkDir, "data"))
			e.Setenv("EXAMPLES", examples)
			e.Setenv("GORACE", os.Getenv("GORACE"))
			for _, v := range env {
				name, value, _ := strings.Cut(v, "=")
				e.Setenv(name, value)
			}
			return nil
		},
		Condition: func(name string) (bool, error) {
			switch name {
			case "soak":
				return soak.Long(), nil
			case "weekly":
				return !soak.Daily(), nil
			}
			var k, days int
			if n, err := fmt.Sscanf(name, "turn:%d/%d", &k, &days); n != 2 || err != nil {
				return false, fmt.Errorf("no condition %q", name)
			}
			return soak.Turn(t, k, days), nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"seed": seed, "seedoperator": seedOperator, "seedtasks": seedTasks, "seedslower": seedSlower, "seedbench": seedBench, "hold": hold, "lease": lease, "sql": runSQL, "alone": alone,
			"jsonrules": jsonRules, "serve": models.serve, "acts": models.act, "holdback": models.holdback, "asked": models.wasAsked, "makemodel": makeModel,
		},
	})
}

// hold takes a data folder, or with -results a folder that results go to, with
// -trees one with all below it, for as long as the script runs.
func hold(ts *testscript.TestScript, _ bool, args []string) {
	var l *daemon.Lock
	var err error
	if args[0] == "-trees" {
		trees, err := daemon.HoldTrees([]string{ts.MkAbs(args[1])}, true)
		ts.Check(err)
		ts.Defer(func() { _ = trees.Release() })
		return
	}
	if args[0] == "-results" {
		l, err = daemon.HoldFolder(ts.MkAbs(args[1]))
	} else {
		l, err = daemon.AcquireLock(ts.MkAbs(args[0]), []string{"kernelwright", "daemon"}, time.Now())
	}
	ts.Check(err)
	ts.Defer(func() { _ = l.Release() })
}

// lease measures on the CPU for as long as the script runs.
func lease(ts *testscript.TestScript, _ bool, _ []string) {
	leases := &hwfeedback.FileLeases{Dir: ts.Getenv(hwfeedback.LeasesOfTests)}
	l, err := leases.Acquire(context.Background(), string(kernelwright.CPUDevice))
	ts.Check(err)
	ts.Defer(func() { _ = l.Release() })
}

// runSQL changes a record behind the store's back.
func runSQL(ts *testscript.TestScript, _ bool, args []string) {
	db, err := sql.Open("sqlite", ts.MkAbs(args[0]))
	ts.Check(err)
	_, err = db.Exec(args[1])
	ts.Check(err)
	ts.Check(db.Close())
}

// seed records one finished run, one of a bad reference, and one that was
// stopped.
func seed(ts *testscript.TestScript, _ bool, args []string) {
	ctx := context.Background()
	s, err := store.Open(filepath.Join(ts.MkAbs(args[0]), store.FileName))
	ts.Check(err)
	defer func() { ts.Check(s.Close()) }()
	task := kernelwright.Task{Fingerprint: strings.Repeat("ab", 32), Name: "softmax", Source: "class Model: 'the reference'\n", Operators: []string{"aten.softmax"}}
	device := kernelwright.Device{Kind: kernelwright.CPUDevice, Key: "key", Name: "a CPU"}
	ts.Check(s.SaveTask(ctx, task))
	ts.Check(s.SaveDevice(ctx, device))
	run := kernelwright.Run{
		Task: task.Fingerprint, TaskName: task.Name, Path: ts.MkAbs("softmax.py"), Device: "cpu", DeviceKey: device.Key,
		Strategy: "rounds", Coder: "other", Judge: "rules", MaxRounds: 2, Status: kernelwright.RunDone, Stop: kernelwright.StopRounds, StartedMS: 1, FinishedMS: 2,
	}
	run, err = s.CreateRun(ctx, run)
	ts.Check(err)
	for i, source := range []string{"class ModelNew:\n    passes = 3\n", "class ModelNew:\n    passes = 2\n"} {
		v := kernelwright.Verdict{
			Status: kernelwright.Correct, Level: kernelwright.Quick, CandidateMS: 3 - float64(i), Headroom: 0.5, Baselines: map[string]float64{"eager": 4},
			Speedup: &kernelwright.Speedup{Value: 4 / (3 - float64(i)), Low: 1.2, High: 2.1, Against: "eager"},
		}
		round := kernelwright.Round{RunID: run.ID, Index: i, Candidate: kernelwright.Candidate{Source: source, Language: kernelwright.CPP, Note: fmt.Sprintf("%d passes", 3-i)}, Verdict: v}
		if i == 0 {
			round.Feedback = &kernelwright.Feedback{Kind: kernelwright.Optimisation, Rule: "extra_passes", Bottleneck: "It reads twice\x1b[2J.", Method: "Read less", Plan: "x", WantedStop: "It is fast\x1b[2J enough."}
		}
		round.Verdict.Timing.Candidate = kernelwright.Measurement{LowMS: v.CandidateMS - 0.1, HighMS: v.CandidateMS + 0.1}
		ts.Check(s.AppendRound(ctx, round))
		if i == 1 {
			v.Status, v.Level, v.Exported = kernelwright.Certified, kernelwright.Certify, "# standalone\n"+source
			v.CandidateMS, v.Speedup = 2.1, &kernelwright.Speedup{Value: 1.9, Low: 1.8, High: 1.95, Against: "eager"}
			v.ExportedSHA256 = kernelwright.HashText(v.Exported)
			ts.Check(s.SetCertificate(ctx, run.ID, i, v))
		}
	}
	ts.Check(s.UpdateRun(ctx, run))
	_, err = s.CreateRun(ctx, kernelwright.Run{TaskName: "bad", Path: "/x/bad.py", Status: kernelwright.RunInvalid, Reason: "get_inputs is missing", Hint: "define it", Detail: "Traceback \x1b[31m"})
	ts.Check(err)
	_, err = s.CreateRun(ctx, kernelwright.Run{TaskName: "half", Path: "/x/half.py", Status: kernelwright.RunRunning})
	ts.Check(err)
}

// seedSlower records a run whose certified kernel is slower than the fastest
// baseline by its whole interval.
func seedSlower(ts *testscript.TestScript, _ bool, args []string) {
	ctx := context.Background()
	s, err := store.Open(filepath.Join(ts.MkAbs(args[0]), store.FileName))
	ts.Check(err)
	defer func() { ts.Check(s.Close()) }()
	task := kernelwright.Task{Fingerprint: strings.Repeat("cd", 32), Name: "norm", Source: "class Model: 'a norm'\n", Operators: []string{"aten.native_group_norm"}}
	device := kernelwright.Device{Kind: kernelwright.CPUDevice, Key: "key", Name: "a CPU"}
	ts.Check(errors.Join(s.SaveTask(ctx, task), s.SaveDevice(ctx, device)))
	run, err := s.CreateRun(ctx, kernelwright.Run{
		Task: task.Fingerprint, TaskName: task.Name, Path: ts.MkAbs("norm.py"), Device: "cpu", DeviceKey: device.Key,
		Strategy: "rounds", Coder: "other", Judge: "rules", MaxRounds: 2, Status: kernelwright.RunDone, Stop: kernelwright.StopRounds, StartedMS: 1, FinishedMS: 2,
	})
	ts.Check(err)
	for i, source := range []string{"class ModelNew:\n    rows = 1\n", "class ModelNew:\n    rows = 2\n"} {
		v := kernelwright.Verdict{
			Status: kernelwright.Correct, Level: kernelwright.Quick, CandidateMS: 4 - float64(i), Headroom: 0.5, Baselines: map[string]float64{"eager": 2.7},
			Speedup: &kernelwright.Speedup{Value: 1, Low: 0.9, High: 1.1, Against: "eager"},
		}
		ts.Check(s.AppendRound(ctx, kernelwright.Round{RunID: run.ID, Index: i, Candidate: kernelwright.Candidate{Source: source, Language: kernelwright.CPP}, Verdict: v}))
		if i == 1 {
			v.Status, v.Level, v.Exported = kernelwright.Certified, kernelwright.Certify, "# standalone\n"+source
			v.Speedup = &kernelwright.Speedup{Value: 0.9, Low: 0.85, High: 0.95, Against: "eager"}
			v.ExportedSHA256 = kernelwright.HashText(v.Exported)
			ts.Check(s.SetCertificate(ctx, run.ID, i, v))
		}
	}
	// One that is wrong, and one of which certification found that it crashes.
	for i, status := range []kernelwright.Status{kernelwright.Wrong, kernelwright.Correct} {
		v := kernelwright.Verdict{Status: status, Level: kernelwright.Quick, Baselines: map[string]float64{}}
		ts.Check(s.AppendRound(ctx, kernelwright.Round{RunID: run.ID, Index: i + 2, Candidate: kernelwright.Candidate{Source: "class ModelNew: pass\n", Language: kernelwright.CPP}, Verdict: v}))
		if status == kernelwright.Correct {
			v.Status, v.Level = kernelwright.Crashed, kernelwright.Certify
			ts.Check(s.SetCertificate(ctx, run.ID, i+2, v))
		}
	}
	ts.Check(s.UpdateRun(ctx, run))
}

// seedBench records a bench of two references whose first run is the one that
// seed made.
func seedBench(ts *testscript.TestScript, _ bool, args []string) {
	ctx := context.Background()
	dir := ts.MkAbs(args[0])
	s, err := store.Open(filepath.Join(dir, store.FileName))
	ts.Check(err)
	b, err := s.CreateBench(ctx, kernelwright.Bench{
		References:     []kernelwright.Reference{{Name: "softmax", Path: ts.MkAbs("softmax.py")}, {Name: "gelu", Path: ts.MkAbs("gelu.py")}},
		Configurations: []kernelwright.Configuration{{Strategy: "rounds", Coder: "other", Judge: "rules", Mode: "both", Language: "cpp", Rounds: 2}},
		Seeds:          []int64{0}, Device: "cpu", DeviceClass: "key", Command: []string{"kernelwright", "bench", "x"},
	})
	ts.Check(errors.Join(err, s.Close()))
	runSQL(ts, false, []string{filepath.Join(args[0], store.FileName), fmt.Sprintf("INSERT INTO bench_runs (bench, reference, configuration, seed, run) VALUES (%d, 0, 0, 0, 1)", b.ID)})
}

// taken is held by the script that has the shared data folder for itself.
var taken sync.Mutex

// alone has scripts whose verbs take the shared data folder for themselves wait
// for each other.
func alone(ts *testscript.TestScript, _ bool, _ []string) {
	taken.Lock()
	ts.Defer(taken.Unlock)
}

func TestExitCodes(t *testing.T) {
	for want, errs := range map[int][]error{
		ExitOK:      {nil},
		ExitFailure: {errors.New("x"), &kernelwright.InfrastructureError{Op: "x", Err: errors.New("y")}, &hwfeedback.SetupError{Reason: "x"}, &llm.Error{Kind: llm.Quota}, &llm.Error{Kind: llm.Unreachable}, &llm.Error{Kind: llm.Malformed}},
		ExitUsage: {usage("x", ""), &kernelwright.InvalidTaskError{Reason: "x"}, // a model's refusals of what it is sent among them
			&llm.Error{Kind: llm.BadKey}, &llm.Error{Kind: llm.UnknownModel}, &llm.Error{Kind: llm.BadRequest}, fmt.Errorf("y: %w", &llm.Error{Kind: llm.TooLong})},
		ExitNotFound:    {notFound("x", ""), fmt.Errorf("y: %w", notFound("x", ""))},
		ExitHeld:        {&daemon.HeldError{}},
		ExitInterrupted: {errInterrupted, context.Canceled},
	} {
		for _, err := range errs {
			if got := ExitCode(err); got != want {
				t.Errorf("%v: %d, want %d", err, got, want)
			}
		}
	}
}

// Only what goes on where it stopped says so.
// Names of files and foreign words move no cursor, in a log and in JSON, and JSON
// says the same as before.
func TestLogsAndJSONHoldNoControlCharacters(t *testing.T) {
	const odd = "a\x1b[2J\u009b2J\x7f\u202e\r\n\xff\U000e0001.py"
	for _, format := range []string{"text", "json"} {
		var b strings.Builder
		a := &app{stderr: &b}
		c := config.Default()
		c.Log.Format, c.Log.Level = format, "debug"
		log := a.logger(c)
		log.Info("queued", "path", odd, "error", errors.New(odd), "folders", []string{odd})
		log.With("task", odd).WithGroup("g").Warn("again", "path", odd)
		checkShown(t, format, b.String())
		if n := strings.Count(b.String(), "\n"); n != 2 {
			t.Errorf("%s: %d lines: %q", format, n, b.String())
		}
		if n := strings.Count(b.String(), ".py"); n != 5 {
			t.Errorf("%s: %d of 5 names are there to their end: %q", format, n, b.String())
		}
	}
	var b strings.Builder
	a := &app{stdout: &b}
	if err := errors.Join(a.printJSON(map[string]string{odd: odd}), a.printLine(odd)); err != nil {
		t.Error(err)
	}
	checkShown(t, "JSON", b.String())
	decoder := json.NewDecoder(strings.NewReader(b.String()))
	var object map[string]string
	var text string
	want := strings.ToValidUTF8(odd, "\uFFFD")
	if err := errors.Join(decoder.Decode(&object), decoder.Decode(&text)); err != nil || object[want] != want || text != want {
		t.Errorf("%q, %q, %v", object, text, err)
	}
}

func checkShown(t *testing.T, what, text string) {
	t.Helper()
	if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) }) {
		t.Errorf("%s: %q", what, text)
	}
}

// A daemon that is told to stop before it watches has done what it was told.
func TestADaemonThatIsStoppedBeforeItWatches(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := t.TempDir()
	env := []string{"HOME=" + dir, "KERNELWRIGHT_DATA_DIR=" + dir, hwfeedback.LeasesOfTests + "=" + leasesBelow(dir)}
	for args, want := range map[string]int{"daemon --watch " + t.TempDir(): ExitOK, "daemon --until-idle --watch " + t.TempDir(): ExitInterrupted, "daemon": ExitUsage} {
		err := runWith(ctx, strings.Fields(args), env, strings.NewReader(""), io.Discard, io.Discard)
		if got := ExitCode(err); got != want {
			t.Errorf("%s: %d, want %d: %v", args, got, want, err)
		}
	}
}

func TestInterruptedCommands(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, _, hint := explain(interruption(ctx, errors.New("x"))); !strings.Contains(hint, "goes on") {
		t.Error(hint)
	}
	var out, errs strings.Builder
	err := runWith(ctx, []string{"eval", "../examples/softmax.py", "../examples/candidates/softmax_native.py", "--data-dir", t.TempDir()},
		[]string{"HOME=" + t.TempDir(), "KERNELWRIGHT_PYTHON=" + filepath.Join(t.TempDir(), "none")}, strings.NewReader(""), &out, &errs)
	code, _, said := explain(err)
	if code != ExitInterrupted || !strings.Contains(said, "begins anew") || strings.Contains(said, "goes on") {
		t.Errorf("%d, %s", code, said)
	}
}

// Damage, and a record that has gone, have one sentence and one hint wherever
// they are met.
func TestRecordsThatAreLostAreSaid(t *testing.T) {
	damaged := &store.DamagedError{Path: "/x/kernelwright.db", Err: errors.New("page 3")}
	code, text, hint := explain(fmt.Errorf("the queue: %w", damaged))
	if code != ExitFailure || text != damaged.Error() || hint != lower(damagedHint) {
		t.Errorf("%d, %s, %s", code, text, hint)
	}
	code, text, hint = explain(fmt.Errorf("the queue: %w", &store.GoneError{Path: "/x/lock", Replaced: true}))
	if code != ExitFailure || text != "/x/lock was replaced by another file while it was in use" || !strings.Contains(hint, "start again") {
		t.Errorf("%d, %s, %s", code, text, hint)
	}
}

// Two rooms that do not know each other name the same words.
func TestSettingsAndHardwareAgree(t *testing.T) {
	c := config.Default().Evaluation
	if !slices.Equal(c.Baselines, hwfeedback.Baselines) || c.Precision != hwfeedback.Precisions[0] {
		t.Errorf("%+v", c)
	}
}

func TestVoice(t *testing.T) {
	var b strings.Builder
	Explain(&b, &Error{Text: "The folder\x1b[2J is gone.", Hint: "Make it."})
	if want := "kernelwright: error: the folder⟨U+001B⟩[2J is gone\nkernelwright: hint: make it\n"; b.String() != want {
		t.Errorf("%q", b.String())
	}
	for said, want := range map[string]string{
		"CUDA is missing": "CUDA is missing", "ModelNew is missing": "ModelNew is missing", "Models are missing.": "models are missing",
		"Model's forward raises it": "Model's forward raises it", "Model(*get_init_inputs()) raises it": "Model(*get_init_inputs()) raises it", "Model is a function": "Model is a function",
	} {
		if got := lower(said); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
