package forge_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	kw "github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
)

// enumerator has so many programs, of three points each.
type enumerator struct {
	coder
	programs int
}

func (e enumerator) Enumerate(ctx context.Context, in kw.CoderInput, most int) ([]kw.Candidate, kw.Space, error) {
	if err := errors.Join(ctx.Err(), e.step(0)); err != nil {
		return nil, kw.Space{}, err
	}
	if e.programs == 0 {
		return nil, kw.Space{}, &kw.DeclinedError{Reason: "Nothing to write."}
	}
	var all []kw.Candidate
	for i := range min(e.programs, most) {
		all = append(all, kw.Candidate{Source: fmt.Sprintf("class ModelNew: pass # %d of seed %d\n", i, in.Seed), Language: kw.CPP, Origin: "fake"})
	}
	return all, kw.Space{Points: int64(3 * e.programs), Programs: e.programs, Sampled: e.programs > most}, nil
}

// spaces is a world that keeps how large a space was.
type spaces struct {
	*world
	kept map[int64]kw.Space
}

func (s spaces) SetSpace(_ context.Context, run int64, space kw.Space) error {
	s.kept[run] = space
	return s.step(0)
}

func exhaustive(w *world, programs int, s forge.Settings) (forge.Strategy, map[int64]kw.Space) {
	kept := map[int64]kw.Space{}
	strategy, err := forge.New(forge.ExhaustiveStrategy, forge.Parts{
		Coder: enumerator{coder{w}, programs}, Evaluator: w, Recorder: spaces{w, kept}, Settings: s.For(forge.ExhaustiveStrategy), Now: func() time.Time { return w.now },
	})
	if err != nil {
		panic(err)
	}
	return strategy, kept
}

// All programs are tried, each once, whatever else the settings say, the fastest is
// certified; and wherever it is interrupted, the record is that of a search that was not.
func TestExhaustive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed, programs, settings := rapid.Int64().Draw(t, "seed"), rapid.IntRange(0, 30).Draw(t, "programs"), drawSettings(t)
		settings.Rounds = rapid.IntRange(1, 30).Draw(t, "budget")
		w := newWorld(seed)
		strategy, kept := exhaustive(w, programs, settings)
		want, err := strategy.Run(context.Background(), run, task)
		if err != nil {
			t.Fatal(err)
		}
		if n := min(programs, settings.Rounds); len(w.rounds) != n || want.Rounds != n || w.evaluated < n {
			t.Fatalf("%d rounds of %d programs", len(w.rounds), programs)
		}
		stop := kw.StopDeclined
		if programs > settings.Rounds {
			stop = kw.StopRounds
		}
		if want.Stop != stop || (want.Status == kw.RunDeclined) != (programs == 0) {
			t.Fatalf("%+v", want)
		}
		if stop == kw.StopDeclined && programs > 0 && !strings.Contains(want.Summary, fmt.Sprintf("these are all %d programs of its schedule space, of %d points", programs, 3*programs)) {
			t.Fatal(want.Summary)
		}
		if space := kept[run.ID]; programs > 0 && (space.Programs != programs || space.Sampled != (stop == kw.StopRounds)) {
			t.Fatalf("%+v is kept", space)
		}
		fastest := want.Best
		for i, r := range w.rounds {
			if r.Feedback != nil || r.After() != -1 || !strings.Contains(r.Candidate.Source, fmt.Sprintf("# %d of seed %d", i, run.Seed)) {
				t.Fatalf("round %d: %+v", i, r)
			}
			if r.Verdict.Status.OK() && w.verdict(r.Candidate, kw.Certify).Status == kw.Certified && (fastest == nil || r.Verdict.CandidateMS < fastest.Verdict.CandidateMS) {
				t.Fatalf("round %d could be certified and is faster than %+v", i, fastest)
			}
		}

		broken := newWorld(seed)
		for range rapid.IntRange(1, 4).Draw(t, "crashes") {
			broken.calls, broken.crashAt = 0, rapid.IntRange(1, w.calls).Draw(t, "at")
			again, _ := exhaustive(broken, programs, settings)
			if _, err := again.Run(context.Background(), run, task); err != nil && !errors.Is(err, errCrash) {
				t.Fatal(err)
			}
		}
		broken.crashAt = 0
		again, _ := exhaustive(broken, programs, settings)
		got, err := again.Run(context.Background(), run, task)
		if err != nil || got.Summary != want.Summary || got.Stop != want.Stop {
			t.Fatalf("%v: %+v, want %+v", err, got, want)
		}
		if a, b := record(t, w.rounds), record(t, broken.rounds); a != b {
			t.Fatalf("uninterrupted:\n%s\ninterrupted:\n%s", a, b)
		}

		r := run
		r.Strategy, r.Settings, r.Status, r.Stop = forge.ExhaustiveStrategy, settings.For(forge.ExhaustiveStrategy).String(), want.Status, want.Stop
		if d, err := forge.Replay(context.Background(), w.rounds, task, r, forge.Parts{Coder: enumerator{coder{newWorld(seed)}, programs}}); err != nil || d != nil {
			t.Fatalf("replay: %v %v", d, err)
		}
	})
}

// A Coder without a schedule space is said to have none.
func TestExhaustiveNeedsASpace(t *testing.T) {
	w := newWorld(0)
	s, err := forge.New(forge.ExhaustiveStrategy, forge.Parts{Coder: coder{w}, Evaluator: w, Recorder: w, Settings: forge.Settings{JudgeMode: forge.JudgeNone}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Run(t.Context(), run, task); err == nil || !strings.Contains(err.Error(), "the Coder fake has none") {
		t.Error(err)
	}
}
