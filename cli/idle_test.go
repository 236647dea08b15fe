package cli

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright/internal/soak"
)

// idleMB is what the daemon's own process may hold when it has nothing to do:
// beside the fork server, which holds PyTorch.
const idleMB = 60

// After many tasks the daemon is as small as it was.
func TestIdleMemory(t *testing.T) {
	t.Parallel()
	python := os.Getenv("KERNELWRIGHT_TEST_PYTHON")
	if python == "" {
		t.Skip("KERNELWRIGHT_TEST_PYTHON names no Python that has PyTorch")
	}
	tasks, work := 20, "x @ x.t()" // read and declined; a verdict takes its time
	if soak.Long() {
		tasks, work = 200, "torch.tanh(x) * 1.5 + x"
	} else if flag.Lookup("test.run").Value.String() != t.Name() {
		t.Skip("run by make soak, or by its name: for it all is compiled a second time, without the race detector")
	}
	b := newBatch(t, python, 0)
	// The program as it is built, since a test's own is larger, above all with
	// the race detector in it.
	b.program = filepath.Join(t.TempDir(), "kernelwright")
	build := exec.Command("go", "build", "-trimpath", "-o", b.program, "../cmd/kernelwright")
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for i := range tasks {
		b.drop(fmt.Sprintf("t%03d.py", i), fmt.Sprintf(reference, work)+fmt.Sprintf("# in other words: %d\n", i))
	}
	p := b.start("--rounds", "1")
	defer p.kill()
	for end := time.Now().Add(10 * time.Minute); p.times(" run ended ") < tasks; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) || p.endsWithin(0) {
			t.Fatalf("%d of %d runs ended", p.times(" run ended "), tasks)
		}
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Second) {
		rss, pss := resident(t, p.pid)
		if rss < idleMB {
			t.Logf("after %d tasks: RSS %.1f MB, PSS %.1f MB", tasks, rss, pss)
			break
		}
		if time.Now().After(end) {
			t.Fatalf("after %d tasks and a minute of rest: RSS %.1f MB, PSS %.1f MB, more than %d MB", tasks, rss, pss, idleMB)
		}
	}
	_ = syscall.Kill(p.pid, syscall.SIGTERM)
	p.ended()
	if p.code() != 0 {
		t.Errorf("exit code %d", p.code())
	}
}

// resident returns what a process holds in memory, in MB.
func resident(t *testing.T, pid int) (rss, pss float64) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		kb, _ := strconv.ParseFloat(fields[1], 64)
		switch fields[0] {
		case "Rss:":
			rss = kb / 1024
		case "Pss:":
			pss = kb / 1024
		}
	}
	return rss, pss
}
