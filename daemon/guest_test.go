package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/store"
)

func guestRequest(source, path string) Request {
	return Request{Name: "a", Path: path, Source: source, Guest: "mcp:one", Settings: forge.OutsideSettings()}
}

func mustHost(t *testing.T, r *Runner, q Request) (*Guest, bool) {
	t.Helper()
	g, resumed, err := r.Host(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	return g, resumed
}

func mustRound(t *testing.T, g *Guest, source string) kernelwright.Round {
	t.Helper()
	r, err := g.Round(t.Context(), kernelwright.Candidate{Source: source, Note: source})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// What a guest did is a run like any other, and goes on where it stood.
func TestAGuestGoesOn(t *testing.T) {
	b := newBench(t)
	w := b.daemon().Runner
	if _, err := w.Find(t.Context(), guestRequest("softmax", "")); !errors.Is(err, store.ErrNotFound) {
		t.Fatal(err)
	}
	g, resumed := mustHost(t, w, guestRequest("softmax", ""))
	if resumed || mustRound(t, g, "x").Index != 0 {
		t.Fatal("a run was there before the first")
	}
	g.Close()
	// The same text, and now its path.
	path := filepath.Join(b.dir, "a.py")
	g, resumed = mustHost(t, w, guestRequest("softmax", path))
	if r := mustRound(t, g, "xx"); !resumed || r.Index != 1 || r.Candidate.Origin != "mcp:one" || r.Feedback == nil {
		t.Errorf("%v, %+v", resumed, r)
	}
	if best, err := g.Certify(t.Context(), -1); err != nil || best == nil || best.Index != 1 {
		t.Fatalf("%+v, %v", best, err)
	}
	done, err := g.Finish(t.Context(), Results{Markdown: true}, path)
	if err != nil || done.WriteErr != nil || done.Written.Kernel != filepath.Join(b.dir, "a.best.py") || done.Written.Markdown == "" {
		t.Fatalf("%+v, %v", done.Written, err)
	}
	run, err := b.store.Run(t.Context(), g.Run().ID)
	if err != nil || run.Status != kernelwright.RunDone || run.Stop != kernelwright.StopSubmitted || run.Strategy != forge.OutsideStrategy ||
		run.Coder != "mcp:one" || run.Path != path || run.Best == nil || run.Best.Certificate == nil || run.FinishedMS == 0 {
		t.Errorf("%+v, %v", run, err)
	}
	text, err := os.ReadFile(done.Written.Markdown)
	if err != nil || !strings.Contains(string(text), "the Coder submitted it") || !strings.Contains(string(text), "mcp:one") {
		t.Errorf("%v\n%s", err, text)
	}
	if left, err := os.ReadDir(filepath.Join(b.data, "guests")); err != nil || len(left) != 0 {
		t.Errorf("%v, %v", left, err)
	}
	if g, resumed := mustHost(t, w, guestRequest("softmax", path)); resumed || g.Run().ID == run.ID {
		t.Error("a run that ended went on")
	}
}

// Others do not go on with a guest's run, nor a guest with theirs.
func TestAGuestsRunIsItsOwn(t *testing.T) {
	b := newBench(t)
	w := b.daemon().Runner
	path := filepath.Join(b.dir, "a.py")
	first, _ := mustHost(t, w, guestRequest("softmax", path))
	mustRound(t, first, "x")
	// While it is held, in this process or another.
	second, resumed := mustHost(t, w, guestRequest("softmax", path))
	if resumed || second.Run().ID == first.Run().ID {
		t.Error("one run has two owners")
	}
	if _, err := HoldGuest(b.data, first.Run().ID, time.Now()); !errors.As(err, new(*HeldError)) {
		t.Errorf("%v", err)
	}
	first.Close()
	second.Close()
	for name, change := range map[string]func(*Request){
		"another client":   func(q *Request) { q.Guest = "mcp:two" },
		"another task":     func(q *Request) { q.Source = "relu" },
		"another comment":  func(q *Request) { q.Source = "softmax # in other words" },
		"another file":     func(q *Request) { q.Path = filepath.Join(b.dir, "b.py") },
		"another settings": func(q *Request) { q.Settings.Rounds = 3 },
	} {
		q := guestRequest("softmax", path)
		change(&q)
		if g, resumed := mustHost(t, w, q); resumed {
			t.Errorf("%s went on with run %d", name, g.Run().ID)
		}
	}
	q := guestRequest("softmax", path)
	q.Guest, q.Settings = "", forge.Settings{Rounds: 2}
	if run, resumed, err := w.Start(t.Context(), q); err != nil || resumed || run.Strategy != forge.RoundsStrategy {
		t.Errorf("%+v, %v, %v", run, resumed, err)
	}
}

// A daemon takes the data folder while a guest works, and both record.
func TestADaemonWorksBesideAGuest(t *testing.T) {
	b := newBench(t)
	g, _ := mustHost(t, b.daemon().Runner, guestRequest("softmax", ""))
	lock, err := AcquireLock(b.data, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	b.drop("a.py", "softmax")
	b.start(nil)
	if done := b.next(); done.Data.Run.Status != kernelwright.RunDone || done.Data.Run.Strategy != forge.RoundsStrategy {
		t.Errorf("%+v", done.Data.Run)
	}
	if r := mustRound(t, g, "x"); r.Index != 0 {
		t.Errorf("%+v", r)
	}
	b.halt()
}

// Neither a broken machine nor a caller who gives up costs the run anything.
func TestAGuestOutlivesFailures(t *testing.T) {
	b := newBench(t)
	w := b.daemon().Runner
	g, _ := mustHost(t, w, guestRequest("softmax", ""))
	mustRound(t, g, "x")
	b.hw.fall(errors.New("it is wedged"))
	if _, err := g.Round(t.Context(), kernelwright.Candidate{Source: "y"}); !errors.As(err, new(*kernelwright.InfrastructureError)) {
		t.Errorf("%v", err)
	}
	b.hw.fall(nil)
	b.hw.enter, b.hw.leave = make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error)
	go func() {
		_, err := g.Round(ctx, kernelwright.Candidate{Source: "y"})
		failed <- err
	}()
	<-b.hw.enter
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	b.hw.enter = nil
	if r := mustRound(t, g, "y"); r.Index != 1 {
		t.Errorf("%+v", r)
	}
	run, err := b.store.Run(t.Context(), g.Run().ID)
	if err != nil || run.Status != kernelwright.RunRunning {
		t.Errorf("%+v, %v", run, err)
	}
}

// A run that ended between being found and being taken is left.
func TestAGuestDoesNotTakeWhatHasEnded(t *testing.T) {
	b := newBench(t)
	w := b.daemon().Runner
	g, _ := mustHost(t, w, guestRequest("softmax", ""))
	mustRound(t, g, "x")
	id := g.Run().ID
	if _, err := g.Finish(t.Context(), Results{Folder: t.TempDir()}, "a.py"); err != nil {
		t.Fatal(err)
	}
	if again, err := w.join(t.Context(), id, guestRequest("softmax", "")); again != nil || err != nil {
		t.Errorf("%+v, %v", again, err)
	}
	if left, err := os.ReadDir(filepath.Join(b.data, "guests")); err != nil || len(left) != 0 {
		t.Errorf("%v, %v", left, err)
	}
}
