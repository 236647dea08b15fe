package tasks

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/kernelwright/kernelwright/store"
)

// A folder's first set that holds kinds out says which all later ones hold out.
func TestTheFirstSetChoosesTheHeldKinds(t *testing.T) {
	s, err := store.Open(filepath.Join(t.TempDir(), store.FileName))
	ok(t, err)
	defer func() { ok(t, s.Close()) }()
	first := func() []string {
		sets, err := s.TaskSets(t.Context())
		ok(t, err)
		held, err := FirstHeld(sets)
		ok(t, err)
		return held
	}
	if got := first(); len(got) != 0 {
		t.Errorf("an empty store holds out %q", got)
	}
	for _, set := range [][2]string{{"imported", `{}`}, {"pipeline-1", `{"seed": 1, "held": ["gelu", "norm"]}`}, {"pipeline-2", `{"seed": 2, "held": ["silu"]}`}} {
		_, err := s.BeginTaskSet(t.Context(), set[0], []byte(set[1]))
		ok(t, err)
	}
	if got := first(); !slices.Equal(got, []string{"gelu", "norm"}) {
		t.Errorf("got %q", got)
	}
}

// A crawl that is stopped goes on behind the last operator that it knew, to the same
// catalogue.
func TestACrawlThatIsStoppedGoesOn(t *testing.T) {
	crawl := func(w *world, hung *os.File) ([]byte, error) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var all sync.WaitGroup
		defer all.Wait()
		if hung != nil {
			all.Go(func() {
				if _, err := hung.Read(make([]byte, 1)); err != nil {
					t.Error(err)
				}
				cancel()
			})
		}
		_, err := Crawl(ctx, w.maker.DataDir, w.maker.Interpreter, "versions", nil)
		if err != nil {
			return nil, err
		}
		left, err := filepath.Glob(filepath.Join(w.maker.DataDir, "compose", "*", "catalogue-*"))
		ok(t, err)
		if len(left) != 1 {
			t.Errorf("left: %v", left)
		}
		return os.ReadFile(left[0])
	}
	want, err := crawl(newWorld(t, small(), 1), nil)
	ok(t, err)
	stops := []string{"torch.nn.Op0.", "torch.nn.Op3.", "torch.nn.Op4.", "torch.nn.Op11."}
	t.Setenv("WAIT_AT", strings.Join(stops, " "))
	w := newWorld(t, small(), 1)
	path := filepath.Join(w.maker.DataDir, "hung")
	ok(t, syscall.Mkfifo(path, 0o600))
	hung, err := os.OpenFile(path, os.O_RDWR, 0)
	ok(t, err)
	defer func() { ok(t, hung.Close()) }()
	for range stops {
		if _, err := crawl(w, hung); !errors.Is(err, context.Canceled) {
			t.Fatalf("stopped: %v", err)
		}
	}
	got, err := crawl(w, nil)
	ok(t, err)
	if string(got) != string(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	tried, err := os.ReadFile(filepath.Join(w.maker.DataDir, "probed"))
	ok(t, err)
	if n := strings.Count(string(tried), "\n"); n != 12+len(stops) { // one was at work at each
		t.Errorf("%d were tried:\n%s", n, tried)
	}
}

// What was measured once stays: the composer is to choose the same sizes.
func TestRatesAreMeasuredOnce(t *testing.T) {
	w := newWorld(t, small(), 1)
	c, err := Crawl(t.Context(), w.maker.DataDir, w.maker.Interpreter, "versions", nil)
	ok(t, err)
	for range 2 {
		rates, err := c.Rates(t.Context(), w.maker.DataDir, w.maker.Interpreter)
		if err != nil || len(rates) != 1 || rates["tanh"] != 1 {
			t.Errorf("%v %v", rates, err)
		}
	}
}
