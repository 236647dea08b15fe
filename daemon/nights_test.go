package daemon

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/nights"
	"github.com/kernelwright/kernelwright/trainer/nights/nightstest"
)

// training is a process that takes a step after the other, keeps each in a file, and
// stops between two where it is asked to. It comes to its gate when there is a file
// of that name.
const training = `
cd "$1" || exit 1
trap 'asked=1' TERM
n=$(cat step 2>/dev/null || echo 0)
while [ ! -e gate ]; do
	n=$((n + 1))
	echo $n >.step && mv .step step
	echo $n
	[ -n "$asked" ] && exit 7
	sleep 0.01
done
`

// pipeline is a double of the staged pipeline: it runs that process.
type pipeline struct {
	t       *testing.T
	folder  string
	running atomic.Bool
}

func (p *pipeline) Run(ctx context.Context, tell func(nights.Progress)) (out nights.Outcome, err error) {
	p.running.Store(true)
	defer p.running.Store(false)
	cmd := exec.CommandContext(ctx, "sh", "-c", training, "sh", p.folder)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	steps, err := cmd.StdoutPipe()
	if err != nil {
		return out, err
	}
	last := p.step()
	if err := cmd.Start(); err != nil {
		return out, err
	}
	for lines := bufio.NewScanner(steps); lines.Scan(); {
		n, err := strconv.Atoi(lines.Text())
		// A step that was kept while its process was killed may be seen late.
		if late := out.Pipeline == 0 && n == last+2; err != nil || n != last+1 && !late {
			p.t.Errorf("after step %d comes %q", last, lines.Text())
		}
		last = n
		out.Progress = nights.Progress{Pipeline: 1, Stage: "warmup", GPU: time.Duration(n) * time.Second}
		tell(out.Progress)
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 7 && ctx.Err() != nil {
		return out, nil
	}
	out.Done, out.Decision = err == nil, "refused"
	return out, err
}

// step is the last that was kept.
func (p *pipeline) step() int {
	text, err := os.ReadFile(filepath.Join(p.folder, "step"))
	if err != nil {
		return 0
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		p.t.Error(err)
	}
	return n
}

// steps waits until so many were taken.
func (p *pipeline) steps(n int) {
	p.t.Helper()
	for end := time.Now().Add(testWait); p.step() < n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			p.t.Fatalf("%d steps were taken, want %d", p.step(), n)
		}
	}
}

// gate has it come to its gate.
func (p *pipeline) gate() {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(p.folder, "gate"), nil, 0o600); err != nil {
		p.t.Error(err)
	}
}

// nightly has a daemon train at eleven in the evening.
func nightly(t *testing.T, d *Daemon, p nights.Pipeline, c nights.Clock, log *slog.Logger) {
	t.Helper()
	d.Nights = nights.New(nights.Plan{Table: nightstest.Table(t), Length: 8 * time.Hour}, d.Runner.Store, p, d.Waiting, c, log)
}

func lastNight(t *testing.T, s *store.Store) store.Night {
	t.Helper()
	n, err := s.LastNight(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A daemon begins a night by itself, gives way to a file that is dropped in the
// middle of it, goes on where it was, and ends.
func TestADaemonsNight(t *testing.T) {
	b := newBench(t)
	p := &pipeline{t: t, folder: t.TempDir()}
	c := nightstest.NewClock(nightstest.Eleven.Add(-time.Hour))
	b.hw.begins = func() {
		if p.running.Load() {
			t.Error("a run works while something is trained")
		}
	}
	b.drop("before.py", "softmax")
	b.start(func(d *Daemon) { nightly(t, d, p, c, d.log()) })
	b.next()
	b.logged("the next night")
	if p.step() != 0 {
		t.Error("it trains by day")
	}
	c.Set(nightstest.Eleven)
	p.steps(3)
	b.drop("layernorm.py", "layernorm")
	if done := b.next(); done.Summary().Status != "certified" {
		t.Errorf("%+v", done)
	}
	b.logged("a night gives way to a run")
	b.logged("a night goes on")
	p.steps(p.step() + 3)
	p.gate()
	b.logged("a night ended")
	n := lastNight(t, b.store)
	if n.Stop != store.NightDone || n.Yields != 1 || n.Pipeline != 1 || n.Decision != "refused" || n.GPUMS == 0 {
		t.Errorf("%+v", n)
	}
	b.drop("gelu.py", "gelu") // with no night under way
	b.next()
}

// A daemon that is told to stop asks the pipeline to; with UntilIdle it trains nothing.
func TestADaemonStopsItsNight(t *testing.T) {
	b := newBench(t)
	p := &pipeline{t: t, folder: t.TempDir()}
	c := nightstest.NewClock(nightstest.Eleven)
	b.start(func(d *Daemon) { nightly(t, d, p, c, d.log()) })
	p.steps(2)
	b.halt()
	if n := lastNight(t, b.store); !n.Open() || p.running.Load() {
		t.Errorf("%+v", n)
	}
	b.logged("a night is stopped; it goes on at the next start")
	at := p.step()
	b.start(func(d *Daemon) {
		nightly(t, d, p, c, d.log())
		d.UntilIdle = true
	})
	if err := <-b.done; err != nil || p.step() != at {
		t.Errorf("%v, and %d steps after %d", err, p.step(), at)
	}
	b.stop = nil
}

// nightFolder has the test's process be a daemon on that folder until it is killed.
const nightFolder = "KERNELWRIGHT_TEST_NIGHT"

// A daemon is killed in the middle of a night. The next one goes on with that night,
// which is recorded once.
func TestAKilledDaemonsNightGoesOn(t *testing.T) {
	if folder := os.Getenv(nightFolder); folder != "" {
		b := newBench(t)
		s, err := store.Open(filepath.Join(folder, store.FileName))
		if err != nil {
			t.Fatal(err)
		}
		b.store = s
		b.start(func(d *Daemon) {
			nightly(t, d, &pipeline{t: t, folder: folder}, nightstest.NewClock(nightstest.Eleven), d.log())
		})
		select {} // until it is killed
	}
	b := newBench(t)
	p, left := &pipeline{t: t, folder: b.data}, t.TempDir()
	for range 3 {
		at := p.step()
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$")
		child.Env = append(os.Environ(), nightFolder+"="+b.data, "TMPDIR="+left)
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		p.steps(at + 5)
		if err := child.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = child.Wait() // it was killed
		n := lastNight(t, b.store)
		if !n.Open() || n.GPUMS < int64(at+1)*1000 || store.Alive(n.Owner) {
			t.Errorf("after %d steps: %+v", p.step(), n)
		}
	}
	b.start(func(d *Daemon) { nightly(t, d, p, nightstest.NewClock(nightstest.Eleven.Add(time.Hour)), d.log()) })
	b.logged("a night goes on")
	p.gate()
	b.logged("a night ended")
	all, err := b.store.Nights(t.Context(), store.Page{})
	if err != nil || len(all) != 1 || all[0].Stop != store.NightDone || all[0].BegunMS != nightstest.Eleven.UnixMilli() {
		t.Errorf("%+v %v", all, err)
	}
	b.halt()
	if e, err := store.Examine(t.Context(), b.store.Path(), func(string) {}); err != nil || !e.Sound() {
		t.Errorf("%+v %v", e.Faults, err)
	}
}
