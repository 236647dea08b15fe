package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/coder"
	"github.com/kernelwright/kernelwright/daemon"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/internal/soak"
	"github.com/kernelwright/kernelwright/judge"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

// A run that is stopped in a round by an interrupt, goes on, is killed in the
// middle of a round and goes on again leaves the record that it would have
// left alone. Two runs never measure the same times, and the Judge goes by
// times, so that claim has three parts that can be held against real ones:
// what was recorded before stays as it was, byte for byte, and is not done
// again; every decision in either record follows from the record alone
// (replay), interruptions not being in it; and as far as the hardware had the
// Judge say the same in both, both went on the same.
func TestAnInterruptedRunIsLikeOneThatWasNot(t *testing.T) {
	soak.Weekly(t) // TestKills and TestKillsOfCommands kill, in turn
	t.Parallel()
	python := os.Getenv("KERNELWRIGHT_TEST_PYTHON")
	if python == "" {
		t.Skip("KERNELWRIGHT_TEST_PYTHON names no Python that has PyTorch")
	}
	reference, err := filepath.Abs("../examples/small_tanh.py")
	if err != nil {
		t.Fatal(err)
	}
	// Baselines are measured once, so that both runs hold their candidates against
	// the same.
	warm := newData(t)
	runner{t: t, python: python, data: warm}.firstVerdict(reference)
	alone := runner{t: t, python: python, data: t.TempDir(), reference: reference}
	broken := runner{t: t, python: python, data: t.TempDir(), reference: reference}
	for _, r := range []runner{alone, broken} {
		if err := os.CopyFS(r.data, os.DirFS(warm)); err != nil {
			t.Fatal(err)
		}
	}

	p := alone.start()
	p.wait(0, 3)
	whole := alone.record()

	// In round 1: it is finished, recorded, and nothing is left behind.
	p = broken.start()
	p.until(fmt.Sprintf("round 0 of %d", runRounds()))
	p.measuring()
	p.signal(syscall.SIGINT)
	p.wait(130)
	if left := broken.processes(); len(left) > 0 {
		t.Errorf("left behind after an interrupt: %v", left)
	}
	first := broken.record()
	if n := len(first.Rounds); n < 2 || n != p.rounds() {
		t.Fatalf("%d rounds were recorded and %d were told", n, p.rounds())
	}

	// In the middle of a later round, by a second interrupt, which does not wait,
	// and, soaking, by a kill: that round alone is lost. TestKills kills every day.
	second, ways := first, 1
	if soak.Long() {
		ways = 2
	}
	for _, how := range []struct {
		name   string
		end    func()
		signal syscall.Signal
	}{
		{"two interrupts", func() {
			p.workers(syscall.SIGSTOP) // or the round may be over between the two
			p.signal(syscall.SIGINT)
			p.until("a second interrupt stops at once")
			p.signal(syscall.SIGINT)
			p.wait(-1)
			p.workers(syscall.SIGCONT)
		}, syscall.SIGINT},
		{"a kill", func() {
			p.signal(syscall.SIGKILL)
			p.wait(-1)
		}, syscall.SIGKILL},
	}[:ways] {
		before := second
		p = broken.start()
		p.until("going on with run 1")
		p.measuring()
		how.end()
		if got := p.ProcessState.Sys().(syscall.WaitStatus).Signal(); got != how.signal {
			t.Errorf("%s: it ended by %v", how.name, got)
		}
		for end := time.Now().Add(5 * time.Minute); len(broken.processes()) > 0; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("left behind after %s: %v", how.name, broken.processes())
			}
		}
		second = broken.record()
		if n, told := len(second.Rounds), len(before.Rounds)+p.rounds(); n < told || n > told+1 || n >= runRounds() {
			t.Fatalf("after %s %d rounds were recorded and %d were told", how.name, n, told)
		}
		same(t, second.Rounds[:len(before.Rounds)], before.Rounds)
	}

	p = broken.start()
	p.wait(0, 3)
	p.mustSay("going on with run 1")
	third := broken.record()
	if got, want := p.rounds(), len(third.Rounds)-len(second.Rounds); got != want {
		t.Errorf("the last start told of %d rounds and added %d", got, want)
	}

	same(t, third.Rounds[:len(second.Rounds)], second.Rounds)
	if whole.Task.Fingerprint != third.Task.Fingerprint || whole.Run.DeviceKey != third.Run.DeviceKey || whole.Run.Settings != third.Run.Settings {
		t.Errorf("another task, device or settings: %+v and %+v", whole.Run, third.Run)
	}
	for _, d := range []report.Data{whole, third} {
		replays(t, d)
	}
	alike(t, whole.Rounds, third.Rounds)
}

// runRounds is how many rounds these runs take.
func runRounds() int {
	if soak.Long() {
		return 5
	}
	return 4
}

// replays checks that a record is whole and that its decisions follow from it.
func replays(t *testing.T, d report.Data) {
	t.Helper()
	if d.Run.Status != kernelwright.RunDone || (len(d.Rounds) != runRounds() && d.Run.Stop != kernelwright.StopJudge) {
		t.Errorf("run %d is %s after %d rounds: %s", d.Run.ID, d.Run.Status, len(d.Rounds), d.Run.Stop)
	}
	for i, r := range d.Rounds {
		if r.Index != i {
			t.Errorf("round %d stands at %d", r.Index, i)
		}
	}
	diff, err := forge.Replay(t.Context(), d.Rounds, d.Task, d.Run, forge.Parts{Device: d.Device, Coder: coder.Builtin{}, Judge: judge.Rules{}})
	if err != nil || diff != nil {
		t.Errorf("the record does not replay: %v %v", diff, err)
	}
}

// alike walks two records for as long as their Judges said the same: a
// candidate follows from the last one and its feedback.
func alike(t *testing.T, a, b []kernelwright.Round) {
	t.Helper()
	for i := range min(len(a), len(b)) {
		x, y := a[i], b[i]
		if x.Candidate.Source != y.Candidate.Source || x.Candidate.Note != y.Candidate.Note {
			t.Errorf("round %d has another candidate:\n%.500s\n%.500s", i, x.Candidate.Source, y.Candidate.Source)
			return
		}
		if x.Verdict.Status != y.Verdict.Status || x.Verdict.Candidate != y.Verdict.Candidate {
			t.Errorf("round %d has another verdict: %s of %s and %s of %s", i, x.Verdict.Status, x.Verdict.Candidate, y.Verdict.Status, y.Verdict.Candidate)
		}
		if f, g := x.Feedback, y.Feedback; f == nil || g == nil || f.Rule != g.Rule || f.Method != g.Method || !maps.Equal(f.Knobs, g.Knobs) {
			t.Logf("the same up to round %d, where the measured times differ", i)
			return
		}
	}
}

// same compares rounds as they are kept. A certificate comes at a run's end.
func same(t *testing.T, got, want []kernelwright.Round) {
	t.Helper()
	for i := range want {
		was, is := want[i], got[i]
		was.Certificate, is.Certificate = nil, nil // which a round may get after others were recorded
		was.CertifiedMS, is.CertifiedMS = 0, 0
		a, err1 := json.Marshal(is)
		b, err2 := json.Marshal(was)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a, b) {
			t.Errorf("round %d was recorded before and has changed:\n%.2000s\n%.2000s", i, b, a)
		}
	}
}

// newData gives a data folder without a record of runs. What is made once on a
// machine comes from the folder that KERNELWRIGHT_TEST_CACHE names, where that has
// it. What the machine can reach is measured once for all tests.
func newData(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := copyMade(dir); err != nil {
		t.Fatal(err)
	}
	ceilings, err := measured()
	if err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(filepath.Join(dir, store.FileName))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for key, value := range ceilings {
		if err := s.Put(t.Context(), "ceilings", key, value); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// copyMade copies the headers that torch.compile precompiles, which takes half a
// minute, and the harness's own libraries.
func copyMade(dir string) error {
	kept := os.DirFS(os.Getenv("KERNELWRIGHT_TEST_CACHE"))
	for _, pattern := range []string{"inductor-*", "allocator"} {
		folders, err := fs.Glob(kept, pattern)
		if err != nil {
			return err
		}
		for _, name := range folders {
			folder, err := fs.Sub(kept, name)
			if err == nil {
				err = os.CopyFS(filepath.Join(dir, "cache", name), folder)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// oneThread is for all that measures here: what threads do while they wait for
// each other takes a third of the time on a machine that others use.
const oneThread = "KERNELWRIGHT_THREADS=1"

// measured gives what the machine can reach with one thread, by its key in the
// record, as if it had been measured while nothing else ran: tests run two at a
// time, and each start of the program would measure it again.
var measured = sync.OnceValues(func() (map[string][]byte, error) {
	dir, err := os.MkdirTemp("", "kernelwright-measured-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := copyMade(dir); err != nil {
		return nil, err
	}
	c := exec.Command("kernelwright", "doctor", "--measure")
	c.Env = append(os.Environ(), "KERNELWRIGHT_DATA_DIR="+dir, "KERNELWRIGHT_PYTHON="+os.Getenv("KERNELWRIGHT_TEST_PYTHON"), "HOME="+dir, "TMPDIR="+dir, hwfeedback.LeasesOfTests+"="+leasesBelow(dir),
		"KERNELWRIGHT_EVALUATION_KEEP_WARM=0s", oneThread)
	if out, err := c.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("doctor --measure: %w\n%s", err, out)
	}
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, store.FileName)+"?mode=ro")
	if err != nil {
		return nil, err
	}
	defer db.Close()
	known, err := store.OpenToRead(filepath.Join(dir, store.FileName))
	if err != nil {
		return nil, err
	}
	defer known.Close()
	rows, err := db.Query(`SELECT key FROM cache WHERE kind = 'ceilings'`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	found := map[string][]byte{}
	for rows.Next() {
		var key string
		if err := rows.Scan(&key); err != nil {
			return nil, err
		}
		value, _, err := known.Get(context.Background(), "ceilings", key)
		if err != nil {
			return nil, err
		}
		var ceilings map[string]any
		if err := json.Unmarshal(value, &ceilings); err != nil {
			return nil, err
		}
		ceilings["spread"] = 0.01
		if found[key], err = json.Marshal(ceilings); err != nil {
			return nil, err
		}
	}
	return found, rows.Err()
})

// runner starts the program on a data folder of its own.
type runner struct {
	t                       *testing.T
	python, data, reference string
	program                 string // this test's own where empty
}

// leasesBelow is where the leases are of a program that a test starts.
func leasesBelow(tmp string) string { return filepath.Join(tmp, "kernelwright", "leases") }

// tmp is for temporary files, and for leases: tests do not wait for each other.
func (r runner) tmp() string { return r.data + ".tmp" }

func (r runner) command(args ...string) command {
	c := exec.Command(cmp.Or(r.program, "kernelwright"), args...)
	if err := os.MkdirAll(r.tmp(), 0o755); err != nil {
		r.t.Fatal(err)
	}
	c.Env = append(os.Environ(), "KERNELWRIGHT_DATA_DIR="+r.data, "KERNELWRIGHT_PYTHON="+r.python, "HOME="+r.data, "TMPDIR="+r.tmp(), hwfeedback.LeasesOfTests+"="+leasesBelow(r.tmp()),
		// However busy the machine is, the round in progress is waited for.
		"KERNELWRIGHT_DAEMON_GRACE=10m",
		// Nothing may be left behind, and the folder is copied.
		"KERNELWRIGHT_EVALUATION_KEEP_WARM=0s",
		// The others take minutes to compile and are no matter here.
		"KERNELWRIGHT_EVALUATION_BASELINES=eager", oneThread,
		"KERNELWRIGHT_EVALUATION_CERTIFY_TIME=1s") // how exactly anything is known is no matter either
	return command{c}
}

type command struct{ *exec.Cmd }

func (c command) mustRun(t *testing.T) {
	t.Helper()
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// firstVerdict evaluates a reference as its own candidate. What only the first
// verdict makes, on a machine or of a task, is there afterwards.
func (r runner) firstVerdict(reference string) {
	r.t.Helper()
	source, err := os.ReadFile(reference)
	if err != nil {
		r.t.Fatal(err)
	}
	eager := filepath.Join(r.t.TempDir(), "eager.py")
	if err := os.WriteFile(eager, bytes.ReplaceAll(source, []byte("class Model("), []byte("class ModelNew(")), 0o600); err != nil {
		r.t.Fatal(err)
	}
	r.command("eval", reference, eager).mustRun(r.t)
}

// start runs the reference; only the number of rounds, or the Judge, ends it.
func (r runner) start() *process {
	r.t.Helper()
	c := r.command("run", r.reference, "--rounds", strconv.Itoa(runRounds()), "--seed", "1", "--out", filepath.Join(r.data, "out"),
		"--headroom", "1", "--patience", "100", "--wall-time", "24h")
	stderr, err := c.StderrPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	return &process{runner: r, Cmd: c.Cmd, lines: bufio.NewScanner(stderr)}
}

// record reads what is kept; nobody else may write it.
func (r runner) record() report.Data {
	r.t.Helper()
	s, err := store.Open(filepath.Join(r.data, store.FileName))
	if err != nil {
		r.t.Fatal(err)
	}
	defer s.Close()
	runs, err := s.Runs(r.t.Context(), store.RunFilter{})
	if err != nil || len(runs) != 1 {
		r.t.Fatalf("%d runs, %v", len(runs), err)
	}
	d, err := daemon.Load(r.t.Context(), s, runs[0].ID)
	if err != nil {
		r.t.Fatal(err)
	}
	return d
}

// processes lists what runs from the data folder: fork server, referee and
// workers, all of which have the same command line.
func (r runner) processes() []int {
	r.t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		r.t.Fatal(err)
	}
	var found []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && bytes.Contains(line, []byte(r.data)) {
			found = append(found, pid)
		}
	}
	return found
}

// process is one start of the program.
type process struct {
	runner
	*exec.Cmd
	lines *bufio.Scanner
	said  []string
}

// until reads on to a line with the words.
func (p *process) until(words string) {
	p.t.Helper()
	for p.lines.Scan() {
		p.said = append(p.said, p.lines.Text())
		if strings.Contains(p.lines.Text(), words) {
			return
		}
	}
	p.t.Fatalf("it ended before %q:\n%s", words, strings.Join(p.said, "\n"))
}

// measuring waits until this process has leased the device, as the lease says:
// it is in a round then. The lock alone would not do, since workers of the last
// round may hold it a little longer.
func (p *process) measuring() {
	p.t.Helper()
	path := filepath.Join(leasesBelow(p.tmp()), "cpu.lock")
	mine := fmt.Appendf(nil, `{"pid":%d,`, p.Process.Pid)
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		lease, err := os.ReadFile(path)
		if err != nil {
			p.t.Fatal(err)
		}
		if bytes.HasPrefix(lease, mine) && bytes.Contains(lease, []byte(`"released":false`)) {
			return
		}
	}
	p.t.Fatal("nothing was measured")
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// workers signals the fork server, the referee and the workers.
func (p *process) workers(s syscall.Signal) {
	p.t.Helper()
	for _, pid := range p.processes() {
		if pid == p.Process.Pid {
			continue
		}
		if err := syscall.Kill(pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
			p.t.Fatal(err)
		}
	}
}

// wait reads to the end and holds the exit code against those that are right.
func (p *process) wait(codes ...int) {
	p.t.Helper()
	for p.lines.Scan() {
		p.said = append(p.said, p.lines.Text())
	}
	_ = p.Wait() // the code says it
	if code := p.ProcessState.ExitCode(); !slices.Contains(codes, code) {
		p.t.Fatalf("exit code %d, not one of %v:\n%s", code, codes, strings.Join(p.said, "\n"))
	}
}

// rounds counts the rounds that this start told of.
func (p *process) rounds() int {
	n := 0
	for _, line := range p.said {
		if strings.Contains(line, fmt.Sprintf(" of %d  ", runRounds())) {
			n++
		}
	}
	return n
}

func (p *process) mustSay(words string) {
	p.t.Helper()
	if !slices.ContainsFunc(p.said, func(line string) bool { return strings.Contains(line, words) }) {
		p.t.Errorf("it did not say %q:\n%s", words, strings.Join(p.said, "\n"))
	}
}
