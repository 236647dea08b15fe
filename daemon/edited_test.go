package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/store"
)

// An edit while a run works says what becomes of the run's results, at once and
// when it ends.
func TestAnEditDuringARunSaysWhatBecomesOfItsResults(t *testing.T) {
	b := newBench(t)
	release := b.held(nil)
	path := b.drop("a.py", "softmax")
	<-b.hw.enter
	b.drop("a.py", "log softmax")
	b.logged("a run goes on with what the file was when it began")
	b.logged("in the history alone (`kernelwright history show 1`); run 2 writes those of what the file is now")
	b.drop("a.py", "log softmax again")
	b.logged("a run that had not begun is given up")
	release()
	first := b.next()
	if first.Data.Run.ID != 1 || first.Written.Report() != "" || first.Written.Kernel != "" {
		t.Errorf("%+v", first.Written)
	}
	if notes := strings.Join(first.Summary().Notes, "\n"); !strings.Contains(notes, "the file was edited meanwhile and run 3 is for it now") || !strings.Contains(notes, "`kernelwright history show 1 --out DIR` writes them") {
		t.Errorf("got %q", notes)
	}
	last := b.next()
	if last.Data.Run.ID != 3 || last.Written.Kept != "" || last.Written.Kernel == "" {
		t.Errorf("%d: %+v", last.Data.Run.ID, last.Written)
	}
	b.logged("kernel=" + filepath.Join(b.dir, "a.best.py"))
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
	b.halt()
	close(b.hw.enter)
}

// A kernel that one policy let pass is no result under another.
func TestARunUnderAnotherPolicyIsAnotherRun(t *testing.T) {
	b := newBench(t)
	b.start(func(d *Daemon) { d.Settings.CustomCode = forge.AnyCode })
	b.drop("a.py", "softmax")
	if done := b.next(); done.Data.Run.ID != 1 {
		t.Errorf("run %d", done.Data.Run.ID)
	}
	b.halt()
	b.start(nil) // custom code is required again
	done := b.next()
	if done.Data.Run.ID != 2 || len(done.Data.Rounds) == 0 {
		t.Errorf("run %d with %d rounds", done.Data.Run.ID, len(done.Data.Rounds))
	}
	b.drop("copy.py", "softmax")
	b.logged("one run stands for both")
	b.halt()
}

func TestResultsThatStayInTheHistorySayWhy(t *testing.T) {
	run := kernelwright.Run{ID: 4}
	for _, tt := range []struct{ hash, want string }{
		{kernelwright.HashText("new"), "the file was edited meanwhile and run 7 is for it now"},
		{kernelwright.HashText("old"), "the settings were changed meanwhile and run 7 is for it now"},
	} {
		if got := inTheHistory(run, store.File{RunID: 7, Hash: tt.hash}, "old"); !strings.HasPrefix(got, tt.want) {
			t.Errorf("got %q", got)
		}
	}
}
