package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/daemon"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/internal/soak"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

// A batch is worked off while its daemon, or one of the daemon's processes, or
// all of them at once, are killed again and again. Every file gets exactly one
// result, what was recorded stays as it was and is not done again, and nothing
// is left behind.
func TestKills(t *testing.T) {
	if !soak.Turn(t, 2, 6) {
		t.Skip("it has its turn every sixth day, as TestKillsOfCommands and TestTrainServe have")
	}
	t.Parallel()
	python := os.Getenv("KERNELWRIGHT_TEST_PYTHON")
	if python == "" {
		t.Skip("KERNELWRIGHT_TEST_PYTHON names no Python that has PyTorch")
	}
	random := true
	kills, tasks, pause := 2, 1, func(r *rand.Rand) time.Duration { return time.Duration(r.Float64() * float64(2500*time.Millisecond)) }
	if soak.Long() {
		kills, tasks, pause = fromEnv(t, "KERNELWRIGHT_SOAK_KILLS", 200), fromEnv(t, "KERNELWRIGHT_SOAK_TASKS", 50),
			func(*rand.Rand) time.Duration { return 5 * time.Second }
		random = false
	}
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("KERNELWRIGHT_TEST_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("KERNELWRIGHT_TEST_SEED=%d", seed)
	b := newBatch(t, python, seed)
	b.fill(tasks)
	began := time.Now()
	victims := map[string]int{}
	for done := 0; done < kills; {
		p := b.start()
		if random && b.random.IntN(2) == 0 {
			p.reaches(" run begins ") // or all would die while they start
		}
		for done < kills {
			if p.endsWithin(pause(b.random)) {
				if p.code() == 0 { // it was quicker than the kills: more to do
					b.measured()
				}
				break
			}
			tree := p.tree()
			whole := b.random.IntN(2) == 0 || len(tree) < 2
			var victim string
			switch {
			case whole && b.random.IntN(2) == 0:
				victim = "the power" // all at once
				slices.Reverse(tree)
				for _, each := range tree {
					each.kill()
				}
			case whole:
				victim = "the daemon"
				tree[0].kill()
			default:
				one := tree[1+b.random.IntN(len(tree)-1)]
				victim, tree = "a "+one.what(tree), one.below()
				one.kill()
			}
			victims[victim]++
			done++
			b.vanish(victim, tree)
			if whole {
				p.ended()
				break
			}
		}
		p.kill()
		b.check(p)
	}
	rounds, ended := b.count()
	t.Logf("%d kills in %v: %v; %d rounds recorded meanwhile, %d of %d runs ended", kills, time.Since(began).Round(time.Second), victims, rounds, ended, len(b.want))
	if kills >= 50 && rounds == 0 {
		t.Error("no round was recorded in all that time")
	}
	b.finish()
	t.Logf("all done after %v", time.Since(began).Round(time.Second))
}

func fromEnv(t *testing.T, name string, otherwise int) int {
	t.Helper()
	if text := os.Getenv(name); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return otherwise
}

// batch is a watched folder with a data folder, and what was seen of it.
type batch struct {
	runner
	t      *testing.T
	random *rand.Rand
	dir    string
	tmp    string
	want   map[string][]kernelwright.RunStatus // by file
	shares map[string]string                   // equal files
	seen   map[int64][]string                  // rounds by run, as they were recorded
	said   map[string]int                      // how often a round was told of
}

func newBatch(t *testing.T, python string, seed uint64) *batch {
	b := &batch{
		runner: runner{t: t, python: python, data: newData(t)}, t: t, dir: t.TempDir(), tmp: t.TempDir(),
		random: rand.New(rand.NewPCG(seed, 0)), want: map[string][]kernelwright.RunStatus{}, shares: map[string]string{},
		seen: map[int64][]string{}, said: map[string]int{},
	}
	return b
}

const reference = `import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return %s


def get_inputs():
    return [torch.randn(64, 512)]


def get_init_inputs():
    return []
`

func (b *batch) drop(name, text string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, name), []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// measured drops a task that takes the hardware.
func (b *batch) measured() string {
	name := fmt.Sprintf("t%03d.py", len(b.want))
	b.want[name] = []kernelwright.RunStatus{kernelwright.RunDone}
	b.drop(name, fmt.Sprintf(reference, fmt.Sprintf("torch.tanh(x) * %d.5 + x", len(b.want))))
	return name
}

// fill drops so many tasks of all kinds: measured ones, one that differs in a
// comment, the same file, one that is declined, one that is no task.
func (b *batch) fill(tasks int) {
	for i := range tasks {
		name := b.measured()
		text, err := os.ReadFile(filepath.Join(b.dir, name))
		if err != nil {
			b.t.Fatal(err)
		}
		if i%10 == 0 {
			if !soak.Daily() { // every day TestTwinsAreOptimisedEachForItself of package daemon has such files
				b.want["like_"+name] = b.want[name]
				b.drop("like_"+name, string(text)+"# and a comment\n")
			}
			b.shares["copy_"+name] = name
			b.drop("copy_"+name, string(text))
			b.want["declined_"+name] = []kernelwright.RunStatus{kernelwright.RunDeclined}
			b.drop("declined_"+name, fmt.Sprintf(reference, "x @ x.t()")+fmt.Sprintf("# %d\n", i))
			b.want["bad_"+name] = []kernelwright.RunStatus{kernelwright.RunInvalid}
			b.drop("bad_"+name, fmt.Sprintf("class Model: %d", i))
		}
	}
}

// working is one start of the daemon.
type working struct {
	*batch
	pid  int
	wait chan struct{} // closed when it has ended
	cmd  command
	out  *bytes.Buffer // standard output, once it has ended
	mu   sync.Mutex
	log  []string
}

// start starts the daemon until nothing is left to do, or as the flags say.
func (b *batch) start(flags ...string) *working {
	b.t.Helper()
	if len(flags) == 0 {
		flags = []string{"--until-idle", "--rounds", "2"}
	}
	return b.startCommand(append([]string{"daemon", "--watch", b.dir, "--headroom", "1", "--patience", "100", "--wall-time", "24h"}, flags...)...)
}

// startCommand starts the program.
func (b *batch) startCommand(args ...string) *working {
	b.t.Helper()
	c := b.command(args...)
	c.Env = append(c.Env, "TMPDIR="+b.tmp, hwfeedback.LeasesOfTests+"="+leasesBelow(b.tmp), "KERNELWRIGHT_DAEMON_ATTEMPTS=20")
	out := &bytes.Buffer{}
	c.Stdout = out
	stderr, err := c.StderrPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		b.t.Fatal(err)
	}
	p := &working{batch: b, pid: c.Process.Pid, wait: make(chan struct{}), cmd: c, out: out}
	go func() {
		defer close(p.wait)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			p.mu.Lock()
			p.log = append(p.log, lines.Text())
			p.mu.Unlock()
		}
		_ = c.Wait() // the code says it
	}()
	b.t.Cleanup(func() {
		p.kill()
		if b.t.Failed() {
			b.t.Log(strings.Join(p.log, "\n"))
		}
	})
	return p
}

func (p *working) endsWithin(d time.Duration) bool {
	select {
	case <-p.wait:
		return true
	case <-time.After(d):
		return false
	}
}

func (p *working) ended() {
	p.t.Helper()
	if !p.endsWithin(5 * time.Minute) {
		p.t.Fatal("it does not end")
	}
}

func (p *working) kill() {
	_ = p.cmd.Process.Kill() // it may be gone
	<-p.wait
}

// reaches waits until the log has the words, or the process has ended, or it
// takes too long to wait for.
func (p *working) reaches(words string) {
	for end := time.Now().Add(5 * time.Minute); p.times(words) == 0 && time.Now().Before(end) && !p.endsWithin(20*time.Millisecond); {
	}
}

// times counts the lines of the log with the words.
func (p *working) times(words string) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, line := range p.log {
		if strings.Contains(line, words) {
			n++
		}
	}
	return n
}

func (p *working) code() int { return p.cmd.ProcessState.ExitCode() }

// being is a process, told from a later one of the same number.
type being struct {
	pid, parent int
	start       string
	name        string
}

func (b being) kill() { _ = syscall.Kill(b.pid, syscall.SIGKILL) } // it may be gone

// lives reports whether it still does anything: a zombie does not.
func (b being) lives() bool {
	now, ok := look(b.pid)
	return ok && now.start == b.start
}

func look(pid int) (being, bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return being{}, false
	}
	open, closed := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	fields := strings.Fields(string(stat[closed+1:]))
	parent, err := strconv.Atoi(fields[1])
	return being{pid, parent, fields[19], string(stat[open+1 : closed])}, err == nil && fields[0] != "Z" && fields[0] != "X"
}

// tree lists the daemon and its descendants, parents first.
func (p *working) tree() []being {
	root, ok := look(p.pid)
	if !ok {
		return nil
	}
	return root.below()
}

func (b being) below() []being {
	entries, _ := os.ReadDir("/proc")
	children := map[int][]being{}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if one, ok := look(pid); ok {
				children[one.parent] = append(children[one.parent], one)
			}
		}
	}
	out := []being{b}
	for i := 0; i < len(out); i++ {
		out = append(out, children[out[i].pid]...)
	}
	return out
}

// what names a process by its place: the daemon's child is the fork server,
// whose children are the referee and the workers; what they start are compilers
// and other tools.
func (b being) what(tree []being) string {
	switch {
	case b.parent == tree[0].pid:
		return "fork server"
	case slices.ContainsFunc(tree, func(o being) bool { return o.pid == b.parent && o.parent == tree[0].pid }):
		return "referee or worker"
	default:
		return "process of a worker"
	}
}

// vanish waits until processes are gone.
func (b *batch) vanish(victim string, tree []being) {
	b.t.Helper()
	for end := time.Now().Add(5 * time.Minute); slices.ContainsFunc(tree, being.lives); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("left behind minutes after %s was killed: %+v", victim, slices.DeleteFunc(tree, func(o being) bool { return !o.lives() }))
		}
	}
}

// compilers matches what g++ names the files between its stages.
var compilers = regexp.MustCompile(`^cc[A-Za-z0-9]{6}\.`)

var toldRound = regexp.MustCompile(` round run=(\d+) .*round=(\d+) `)

// check holds the record against what it was before, and what this start told
// of against what earlier ones did.
func (b *batch) check(p *working) {
	b.t.Helper()
	for _, line := range p.log {
		if m := toldRound.FindStringSubmatch(line); m != nil {
			if key := m[1] + "/" + m[2]; b.said[key] > 0 {
				b.t.Errorf("round %s was done again: %s", key, line)
			} else {
				b.said[key]++
			}
		}
	}
	s := b.open()
	defer s.Close()
	for run := range b.runs(s) {
		rounds, err := s.Rounds(b.t.Context(), run)
		if err != nil {
			b.t.Fatal(err)
		}
		for i, r := range rounds {
			r.Certificate = nil // it comes at a run's end
			text, err := json.Marshal(r)
			if err != nil {
				b.t.Fatal(err)
			}
			if i == len(b.seen[run]) {
				b.seen[run] = append(b.seen[run], string(text))
			}
			if b.seen[run][i] != string(text) {
				b.t.Errorf("round %d of run %d was recorded before and has changed", i, run)
			}
		}
		if len(rounds) < len(b.seen[run]) {
			b.t.Errorf("run %d had %d rounds and has %d", run, len(b.seen[run]), len(rounds))
		}
	}
}

func (b *batch) open() *store.Store {
	b.t.Helper()
	s, err := store.Open(filepath.Join(b.data, store.FileName))
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

func (b *batch) runs(s *store.Store) map[int64]kernelwright.Run {
	b.t.Helper()
	list, err := s.Runs(b.t.Context(), store.RunFilter{Limit: 10_000})
	if err != nil {
		b.t.Fatal(err)
	}
	runs := map[int64]kernelwright.Run{}
	for _, r := range list {
		runs[r.ID] = r
	}
	return runs
}

// count returns how many rounds are recorded and how many runs have ended.
func (b *batch) count() (rounds, ended int) {
	s := b.open()
	defer s.Close()
	for id, r := range b.runs(s) {
		rounds += len(b.seen[id])
		if r.FinishedMS != 0 {
			ended++
		}
	}
	return rounds, ended
}

// finish lets the rest be done in peace, and looks at what came of all.
func (b *batch) finish() {
	b.t.Helper()
	p := b.start()
	<-p.wait
	b.check(p)
	if p.code() != 0 {
		b.t.Fatalf("exit code %d", p.code())
	}
	if left := b.processes(); len(left) > 0 {
		b.t.Errorf("processes left behind: %v", left)
	}
	leases := leasesBelow(b.tmp)
	entries, err := os.ReadDir(b.tmp)
	if err != nil || len(entries) != 1 || entries[0].Name() != filepath.Base(filepath.Dir(leases)) {
		b.t.Errorf("left in the folder for temporary files: %v, %v", entries, err)
	}
	lease, err := (&hwfeedback.FileLeases{Dir: leases}).Acquire(b.t.Context(), "cpu")
	if err == nil {
		err = lease.Release()
	}
	if err != nil {
		b.t.Errorf("the device is not free: %v", err)
	}
	s := b.open()
	defer s.Close()
	if err := s.Check(b.t.Context()); err != nil {
		b.t.Error(err)
	}
	if waiting, claimed, err := s.QueueLength(b.t.Context()); waiting+claimed > 0 || err != nil {
		b.t.Errorf("%d wait and %d are claimed: %v", waiting, claimed, err)
	}
	byPath := map[string][]kernelwright.Run{}
	for _, r := range b.runs(s) {
		byPath[filepath.Base(r.Path)] = append(byPath[filepath.Base(r.Path)], r)
	}
	files := slices.Sorted(maps.Keys(b.want))
	shared := map[string]string{}
	for second, first := range b.shares {
		shared[first], shared[second] = second, first
		files = append(files, second)
	}
	for _, name := range slices.Sorted(maps.Keys(b.want)) {
		// Of two equal files the one that is seen first has the run.
		runs := slices.Concat(byPath[name], byPath[shared[name]])
		if len(runs) != 1 || !slices.Contains(b.want[name], runs[0].Status) {
			b.t.Errorf("%s has %d runs, want one that is %v: %+v", name, len(runs), b.want[name], runs)
			continue
		}
		d, err := daemon.Load(b.t.Context(), s, runs[0].ID)
		if err != nil {
			b.t.Fatal(err)
		}
		if strings.HasPrefix(name, "t") && len(d.Rounds) != 2 && d.Run.Stop != kernelwright.StopJudge {
			b.t.Errorf("%s has %d rounds and stopped by %q", name, len(d.Rounds), d.Run.Stop)
		}
	}
	b.leftovers(files)
}

// leftovers looks for what is neither a file of the batch nor a result of one.
func (b *batch) leftovers(files []string) {
	b.t.Helper()
	expected := map[string]bool{}
	for _, name := range files {
		expected[name] = true
		stem := strings.TrimSuffix(name, ".py")
		for _, suffix := range []string{".report.md", ".report.html"} {
			expected[stem+suffix] = true
			if _, err := os.Stat(filepath.Join(b.dir, stem+suffix)); err != nil {
				b.t.Errorf("%s has no result: %v", name, err)
			}
		}
		kernel, err1 := os.ReadFile(filepath.Join(b.dir, stem+".best.py"))
		text, err2 := os.ReadFile(filepath.Join(b.dir, stem+".certificate.json"))
		var c report.Certificate
		if err2 == nil && json.Unmarshal(text, &c) != nil {
			b.t.Errorf("%s: the certificate is not whole", name)
		}
		// One that is slower than its baselines has no file.
		if handedOut := err2 == nil && c.File != ""; handedOut != (err1 == nil) || handedOut && c.SHA256 != kernelwright.HashText(string(kernel)) {
			b.t.Errorf("%s: kernel and certificate come together: %v, %v", name, err1, err2)
		}
		expected[stem+".best.py"], expected[stem+".certificate.json"] = true, true
	}
	entries, err := os.ReadDir(b.dir)
	for _, e := range entries {
		if !expected[e.Name()] {
			b.t.Errorf("left in the watched folder: %s", e.Name())
		}
	}
	found := filepath.WalkDir(b.data, func(path string, _ os.DirEntry, err error) error {
		name := filepath.Base(path)
		if name == "bytecode" { // Python's, below the paths of its sources, which may be of a "tmp"
			return fs.SkipDir
		}
		if strings.HasPrefix(name, ".new-") || strings.HasPrefix(name, "tmp") || compilers.MatchString(name) || len(name) == len("inductor-12345678") && strings.HasPrefix(name, "inductor-") {
			b.t.Errorf("left in the data folder: %s", path)
		}
		if name == "harness" || name == "torchinductor" { // theirs
			return fs.SkipDir
		}
		return err
	})
	if err := errors.Join(err, found); err != nil {
		b.t.Error(err)
	}
}
