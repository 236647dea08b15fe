package daemon

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
)

// Verdicts of two versions are never mixed: a run that was begun with others, by
// whoever, is not gone on with.
func TestARunOfOtherVersionsIsDoneAnew(t *testing.T) {
	b := newBench(t)
	b.hw.versions = map[string]string{"kernelwright": "1", "harness": "a"}
	w := b.daemon().Runner
	path := filepath.Join(b.dir, "a.py")
	g, _ := mustHost(t, w, guestRequest("softmax", path))
	mustRound(t, g, "x")
	g.Close()
	q := Request{Path: path, Name: "a", Source: "softmax", Settings: forge.Settings{Rounds: 2, JudgeMode: forge.JudgeNone}}
	run, _, err := w.Start(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	// It has a round of those versions, and was then stopped.
	s, err := w.prepare(t.Context(), run, "softmax")
	if err != nil {
		t.Fatal(err)
	}
	v, err := b.hw.Evaluate(t.Context(), s.task, kernelwright.Candidate{Source: "y"}, kernelwright.Quick)
	if err == nil {
		err = b.store.AppendRound(t.Context(), kernelwright.Round{RunID: run.ID, Candidate: kernelwright.Candidate{Source: "y"}, Verdict: v})
	}
	if err != nil {
		t.Fatal(err)
	}
	if again, resumed, err := w.Start(t.Context(), q); err != nil || !resumed || again.ID != run.ID {
		t.Errorf("it does not go on with the same versions: %+v, %v", again, err)
	}
	b.hw.versions = map[string]string{"kernelwright": "1", "harness": "b"}
	if _, resumed := mustHost(t, w, guestRequest("softmax", path)); resumed {
		t.Error("a guest went on with a run of other versions")
	}
	if again, resumed, err := w.Start(t.Context(), q); err != nil || resumed || again.ID == run.ID {
		t.Errorf("it goes on with other versions: %+v, %v", again, err)
	}
	if _, err := w.prepare(t.Context(), run, "softmax"); err == nil || !strings.Contains(err.Error(), "with other versions") {
		t.Errorf("it goes on with other versions: %v", err)
	}
}

// Two references with one fingerprint have each their own kernel, whichever is
// dropped first, and although a Coder answers the same to both.
func TestTwinsAreOptimisedEachForItself(t *testing.T) {
	for _, order := range [][]string{{"softmax # one", "softmax # two"}, {"softmax # two", "softmax # one"}} {
		b := newBench(t)
		b.start(nil)
		for i, text := range order {
			b.drop([]string{"a.py", "b.py"}[i], text)
			b.next()
		}
		b.halt()
		runs := b.runs()
		if len(runs) != 2 || b.hw.certify != 2 {
			t.Fatalf("%d certifications, %+v", b.hw.certify, runs)
		}
		for i, run := range runs { // the newest first
			task, err := b.store.RunTask(t.Context(), run.ID)
			if err != nil || task.Source != order[1-i] || run.Reason != "" || run.Task != runs[0].Task {
				t.Errorf("run %d is about %q: %q, %v", run.ID, task.Source, run.Reason, err)
			}
		}
	}
}
