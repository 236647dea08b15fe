package forgetest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/internal/soak"
	"github.com/kernelwright/kernelwright/llm"
)

// Strategy runs the suite against the strategy of that name: it stops where it
// must, goes on from wherever it was interrupted as if it had not been, pays and
// measures nothing twice, and is replayed from its record alone.
func Strategy(t *testing.T, name string) {
	t.Helper()
	s := suite{name}
	t.Run("resumes_from_every_point", s.everyPoint)
	t.Run("invariants", s.invariants)
	t.Run("halt_and_cancel", s.haltAndCancel)
	t.Run("budget", s.budget)
	t.Run("unusable_answers", s.unusable)
	t.Run("errors_of_models", s.modelErrors)
	t.Run("wall_time", s.wallTime)
	t.Run("overhead", s.overhead)
	t.Run("replay_finds_differences", s.differences)
}

type suite struct{ name string }

// tester is what *testing.T and *rapid.T have in common.
type tester interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

func (s suite) run(ctx context.Context, t tester, w *world, settings forge.Settings, with ...func(*forge.Parts)) (forge.Outcome, error) {
	t.Helper()
	p := w.parts(settings)
	for _, f := range with {
		f(&p)
	}
	strategy, err := forge.New(s.name, p)
	if err != nil {
		t.Fatal(err)
	}
	if strategy.Name() != s.name {
		t.Fatalf("it is called %q", strategy.Name())
	}
	return strategy.Run(ctx, worldRun, worldTask)
}

func (s suite) must(t tester, w *world, settings forge.Settings, with ...func(*forge.Parts)) forge.Outcome {
	t.Helper()
	out, err := s.run(context.Background(), t, w, settings, with...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// record is a run's rounds without what depends on when they were.
func record(t tester, w *world) string {
	t.Helper()
	rounds, _ := w.snapshot()
	for i := range rounds {
		rounds[i].StartedMS, rounds[i].FinishedMS, rounds[i].OverheadMS = 0, 0, 0
	}
	b, err := json.MarshalIndent(rounds, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// thrifty fails the test if anything was paid for, measured or built twice.
func thrifty(t tester, w *world) {
	t.Helper()
	for _, counts := range []map[string]int{w.paid, w.evaluated} {
		for what, n := range counts {
			if n > 1 {
				t.Fatalf("asked %d times: %.200s", n, what)
			}
		}
	}
}

// whole is a run of the suite's first seed that ends as it should, with a kernel
// and after more than three rounds.
func (s suite) whole(t *testing.T, settings forge.Settings, stop kernelwright.StopReason) (*world, forge.Outcome) {
	t.Helper()
	for seed := range int64(1000) {
		w := newWorld(2 * seed) // with batches and a builder
		if out := s.must(t, w, settings); out.Stop == stop && out.Best != nil && out.Rounds > 3 {
			return w, out
		}
	}
	t.Fatalf("no seed gives a run that ends by %s", stop)
	return nil, forge.Outcome{}
}

func (s suite) everyPoint(t *testing.T) {
	settings := forge.Settings{Rounds: 7, React: forge.ReactSettings{Turns: 40, ContextTokens: 16_000}}
	s.crashes(t, settings, kernelwright.StopRounds)
	settings.Rounds = 12
	s.crashes(t, settings, kernelwright.StopDeclined)
}

// One crash at each call that a run makes; every day at each eighth, in turn.
func (s suite) crashes(t *testing.T, settings forge.Settings, stop kernelwright.StopReason) {
	t.Helper()
	first, want := s.whole(t, settings, stop)
	at, step := 1, 1
	if soak.Daily() {
		step = 8
		at += soak.Day(t) % step
	}
	for ; at <= first.calls; at += step {
		w := newWorld(first.seed)
		w.crashAt = at
		if _, err := s.run(t.Context(), t, w, settings); !errors.Is(err, errCrash) {
			t.Fatalf("call %d: %v", at, err)
		}
		w.crashAt = 0
		got := s.must(t, w, settings)
		if a, b := record(t, first), record(t, w); a != b {
			t.Fatalf("crash at call %d: uninterrupted:\n%s\ninterrupted:\n%s", at, a, b)
		}
		if got.Stop != want.Stop || got.Summary != want.Summary {
			t.Fatalf("crash at call %d: %+v, want %+v", at, got, want)
		}
		thrifty(t, &world{paid: w.paid})
		s.replays(t, w, settings, got)
	}
	t.Logf("%d calls, %d rounds", first.calls, len(first.rounds))
}

func drawSettings(t *rapid.T) forge.Settings {
	modes := []forge.JudgeMode{"", forge.JudgeBoth, forge.JudgeCorrection, forge.JudgeOptimisation, forge.JudgeNone, forge.JudgeSelf, forge.JudgeScore}
	return forge.Settings{
		Rounds: rapid.IntRange(1, 9).Draw(t, "rounds"), Patience: rapid.IntRange(0, 4).Draw(t, "patience"),
		HeadroomStop: rapid.SampledFrom([]float64{0, 0.5, 0.95}).Draw(t, "headroom"),
		JudgeMode:    rapid.SampledFrom(modes).Draw(t, "mode"),
		Metrics:      rapid.SampledFrom([]forge.Metrics{"", forge.FullMetrics}).Draw(t, "metrics"),
		Beam:         forge.BeamSettings{Width: rapid.IntRange(1, 3).Draw(t, "width"), Samples: rapid.IntRange(1, 3).Draw(t, "samples")},
		React: forge.ReactSettings{
			Turns: rapid.IntRange(1, 40).Draw(t, "turns"), ContextTokens: rapid.SampledFrom([]int{16_000, 128_000}).Draw(t, "context"),
			TextTools: rapid.Bool().Draw(t, "text"),
		},
	}
}

// What holds whatever agents and hardware do, and wherever a run is interrupted.
func (s suite) invariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed, settings := rapid.Int64().Draw(t, "seed"), drawSettings(t)
		w := newWorld(seed)
		var events []forge.Event
		out := s.must(t, w, settings, func(p *forge.Parts) { p.Observe = func(e forge.Event) { events = append(events, e) } })
		thrifty(t, w)
		s.holds(t, w, settings, out)
		if last := events[len(events)-1]; last.Kind != forge.Finished || last.Outcome.Summary != out.Summary {
			t.Fatalf("the last event is %+v", last)
		}
		done := 0
		for _, e := range events {
			if e.Kind == forge.RoundDone {
				if e.Index != done {
					t.Fatalf("round %d was told of where %d was due", e.Index, done)
				}
				done++
			}
		}
		if done != len(w.rounds) {
			t.Fatalf("%d rounds were told of, %d recorded", done, len(w.rounds))
		}
		s.replays(t, w, settings, out)

		broken := newWorld(seed)
		for range rapid.IntRange(1, 4).Draw(t, "crashes") {
			broken.calls, broken.crashAt = 0, rapid.IntRange(1, w.calls).Draw(t, "at")
			if _, err := s.run(context.Background(), t, broken, settings); err != nil && !errors.Is(err, errCrash) {
				t.Fatal(err)
			}
			broken.crashAt = 0
			s.replaysSoFar(t, broken, settings)
		}
		got := s.must(t, broken, settings)
		thrifty(t, &world{paid: broken.paid})
		if a, b := record(t, w), record(t, broken); a != b {
			t.Fatalf("uninterrupted:\n%s\ninterrupted:\n%s", a, b)
		}
		if out.Stop != got.Stop || out.Summary != got.Summary || out.Status != got.Status {
			t.Fatalf("uninterrupted: %+v\ninterrupted: %+v", out, got)
		}
	})
}

func (s suite) holds(t tester, w *world, settings forge.Settings, out forge.Outcome) {
	t.Helper()
	if len(w.rounds) > settings.Rounds || out.Rounds != len(w.rounds) {
		t.Fatalf("%d rounds of %d, outcome %d", len(w.rounds), settings.Rounds, out.Rounds)
	}
	if !strings.HasSuffix(out.Summary, ".") || strings.Contains(out.Summary, "\n") {
		t.Fatalf("not a sentence: %q", out.Summary)
	}
	mode := settings.JudgeMode
	both := mode == "" || mode == forge.JudgeBoth
	seen := map[string]bool{}
	for i, r := range w.rounds {
		if r.Index != i {
			t.Fatalf("round %d is numbered %d", i, r.Index)
		}
		if p := r.Parent; p != nil && (*p < -1 || *p >= i || *p == i-1) {
			t.Fatalf("round %d has the parent %d", i, *p)
		}
		key := r.Candidate.Source // every byte of it
		if seen[key] != r.Verdict.Cached {
			t.Fatalf("round %d: seen before %v, cached %v", i, seen[key], r.Verdict.Cached)
		}
		seen[key] = true
		if w.evaluated["quick"+r.Candidate.Source] == 0 && r.Verdict.Status != kernelwright.Rejected {
			t.Fatalf("round %d is %s, and nobody looked", i, r.Verdict.Status)
		}
		if f := r.Feedback; f != nil {
			ok := r.Verdict.Status.OK()
			if !both && (mode != forge.JudgeCorrection || ok) && (mode != forge.JudgeOptimisation || !ok) {
				t.Fatalf("round %d has a feedback in mode %q", i, mode)
			}
			if (f.Rule == "reply") != (r.Verdict.Status == kernelwright.Rejected) {
				t.Fatalf("round %d is %s and has a feedback by %q", i, r.Verdict.Status, f.Rule)
			}
		}
		if s.name == forge.BeamStrategy && r.Feedback != nil && r.Verdict.Status.OK() {
			faster := map[string]bool{}
			for _, e := range w.rounds[:i] {
				if e.Verdict.Status.OK() && e.Verdict.CandidateMS < r.Verdict.CandidateMS {
					faster[e.Candidate.Source] = true
				}
			}
			if len(faster) >= cmp.Or(settings.Beam.Width, forge.DefaultBeamWidth) {
				t.Fatalf("round %d has a feedback, and %d before it are better", i, len(faster))
			}
		}
		fast := out.Best == nil || r.Verdict.CandidateMS < out.Best.Verdict.CandidateMS
		if r.Verdict.Status.OK() && fast && w.verdict(r.Candidate, kernelwright.Certify).Status == kernelwright.Certified {
			t.Fatalf("round %d could be certified and is faster than %+v", i, out.Best)
		}
	}
}

// fromRecord is what a replay has: the rounds, the journal, and nothing else.
func (s suite) fromRecord(w *world, settings forge.Settings, status kernelwright.RunStatus, stop kernelwright.StopReason) ([]kernelwright.Round, kernelwright.Run, forge.Parts) {
	rounds, journal := w.snapshot()
	kept := newWorld(0)
	kept.journal = journal
	m := model{world: kept, only: true}
	run := worldRun
	run.Strategy, run.Settings, run.Status, run.Stop = s.name, settings.String(), status, stop
	return rounds, run, forge.Parts{Coder: coder{m}, Judge: modelJudge{m}, Model: m, Journal: kept, Skills: w.parts(settings).Skills}
}

func (s suite) replays(t tester, w *world, settings forge.Settings, out forge.Outcome) {
	t.Helper()
	rounds, run, parts := s.fromRecord(w, settings, out.Status, out.Stop)
	if d, err := forge.Replay(context.Background(), rounds, worldTask, run, parts); err != nil || d != nil {
		t.Fatalf("replay: %v %v", d, err)
	}
}

func (s suite) replaysSoFar(t tester, w *world, settings forge.Settings) {
	t.Helper()
	rounds, run, parts := s.fromRecord(w, settings, kernelwright.RunRunning, "")
	if d, err := forge.Replay(context.Background(), rounds, worldTask, run, parts); err != nil || d != nil {
		t.Fatalf("replay of %d rounds so far: %v %v", len(rounds), d, err)
	}
}

func (s suite) differences(t *testing.T) {
	settings := forge.Settings{Rounds: 6, React: forge.ReactSettings{Turns: 40}}
	w, out := s.whole(t, settings, kernelwright.StopRounds)
	for _, c := range []struct {
		what  string
		spoil func([]kernelwright.Round, *kernelwright.Run)
	}{
		{"candidate", func(r []kernelwright.Round, _ *kernelwright.Run) { r[2].Candidate.Source += "x" }},
		{"feedback", func(r []kernelwright.Round, _ *kernelwright.Run) {
			i := slices.IndexFunc(r, func(r kernelwright.Round) bool { return r.Feedback != nil })
			f := *r[i].Feedback
			f.Rule = "other"
			r[i].Feedback = &f
		}},
		{"parent", func(r []kernelwright.Round, _ *kernelwright.Run) {
			p := -1
			r[2].Parent = &p
			r[1].Parent = &p
			p2 := 0
			r[2].Parent = &p2
		}},
		{"stop", func(_ []kernelwright.Round, run *kernelwright.Run) { run.Stop = kernelwright.StopWallTime }},
		{"certificate", func(r []kernelwright.Round, _ *kernelwright.Run) {
			for i := range r {
				r[i].Certificate = nil
			}
		}},
	} {
		rounds, run, parts := s.fromRecord(w, settings, out.Status, out.Stop)
		c.spoil(rounds, &run)
		d, err := forge.Replay(t.Context(), rounds, worldTask, run, parts)
		// Another candidate is seen where the agents are asked about it, at the latest.
		if err == nil && (d == nil || d.What != c.what) {
			t.Errorf("%s: got %v %v", c.what, d, err)
		}
		var model *llm.Error
		if err != nil && (!errors.As(err, &model) || model.Kind != llm.NotRecorded) {
			t.Errorf("%s: got %v", c.what, err)
		}
	}
}

func (s suite) haltAndCancel(t *testing.T) {
	settings := forge.Settings{Rounds: 6, React: forge.ReactSettings{Turns: 40}}
	first, want := s.whole(t, settings, kernelwright.StopRounds)
	w := newWorld(first.seed)
	for n := 1; ; n++ {
		halt := make(chan struct{})
		out, err := s.run(t.Context(), t, w, settings, func(p *forge.Parts) {
			p.Halt = halt
			p.Observe = func(e forge.Event) {
				if e.Kind == forge.Verdict {
					close(halt)
				}
			}
		})
		if err == nil {
			if out.Summary != want.Summary || record(t, w) != record(t, first) {
				t.Errorf("halted after each round it ended with %q, else %q", out.Summary, want.Summary)
			}
			break
		}
		if !errors.Is(err, forge.ErrHalted) || len(w.rounds) != n {
			t.Fatalf("%v after %d rounds, want %d", err, len(w.rounds), n)
		}
	}
	w = newWorld(first.seed)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.run(ctx, t, w, settings); !errors.Is(err, context.Canceled) || len(w.rounds) != 0 {
		t.Errorf("cancelled: %v after %d rounds", err, len(w.rounds))
	}
	ctx, cancel = context.WithCancel(t.Context())
	_, err := s.run(ctx, t, w, settings, func(p *forge.Parts) {
		p.Observe = func(e forge.Event) {
			if e.Kind == forge.RoundDone {
				cancel()
			}
		}
	})
	if !errors.Is(err, context.Canceled) || len(w.rounds) != 1 {
		t.Errorf("cancelled in a round: %v after %d rounds", err, len(w.rounds))
	}
}

// A spent budget ends a run where it is, with what was reached.
func (s suite) budget(t *testing.T) {
	settings := forge.Settings{Rounds: 6, React: forge.ReactSettings{Turns: 40}}
	first, _ := s.whole(t, settings, kernelwright.StopRounds)
	certified := 0
	for budget := range len(first.paid) {
		w := newWorld(first.seed)
		w.budget = budget
		out := s.must(t, w, settings)
		if out.Stop != kernelwright.StopBudget || out.Status != kernelwright.RunDone || !strings.Contains(out.Summary, "the run's 2 USD") {
			t.Fatalf("%d calls: %+v", budget, out)
		}
		s.holds(t, w, settings, out)
		s.replays(t, w, settings, out)
		if out.Best != nil {
			certified++
		}
	}
	if certified == 0 {
		t.Error("nothing was ever certified")
	}
}

// An answer without a candidate is a round that nobody measures, with a
// correction where corrections are given; a model that acts is told.
func (s suite) unusable(t *testing.T) {
	for _, mode := range []forge.JudgeMode{forge.JudgeBoth, forge.JudgeCorrection, forge.JudgeOptimisation, forge.JudgeSelf, forge.JudgeScore} {
		w := newWorld(4)
		w.prose = 3
		settings := forge.Settings{Rounds: 4, JudgeMode: mode, Beam: forge.BeamSettings{Width: 2, Samples: 1}, React: forge.ReactSettings{Turns: 3}}
		out := s.must(t, w, settings)
		if s.name == forge.ReactStrategy {
			if len(w.rounds) != 0 || out.Stop != kernelwright.StopTurns {
				t.Errorf("%s: %+v", mode, out)
			}
			continue
		}
		s.holds(t, w, settings, out)
		rejected := 0
		for _, r := range w.rounds {
			if r.Verdict.Status != kernelwright.Rejected {
				continue
			}
			rejected++
			if r.Verdict.Reason != "There is no ModelNew in it." || r.Verdict.Hint == "" || !strings.HasPrefix(r.Candidate.Source, "I would") || r.Candidate.Origin != "fake:model" {
				t.Errorf("%s: %+v", mode, r)
			}
			if f := r.Feedback; f != nil && (f.Issue != r.Verdict.Reason || f.Fix != r.Verdict.Hint) {
				t.Errorf("%s: %+v", mode, f)
			}
		}
		told := slices.ContainsFunc(w.rounds, func(r kernelwright.Round) bool { return r.Feedback != nil && r.Feedback.Rule == "reply" })
		if rejected < 3 || told != (mode == forge.JudgeBoth || mode == forge.JudgeCorrection) {
			t.Errorf("%s: %d rejected, told %v", mode, rejected, told)
		}
	}
}

// What keeps a model from answering reaches the caller as it is, and the run
// goes on where it was.
func (s suite) modelErrors(t *testing.T) {
	settings := forge.Settings{Rounds: 4, React: forge.ReactSettings{Turns: 40}}
	first, want := s.whole(t, settings, kernelwright.StopRounds)
	for _, kind := range []llm.Kind{llm.BadKey, llm.Unavailable, llm.TooLong} {
		w := newWorld(first.seed)
		w.fail = &llm.Error{Kind: kind, Model: "fake:model", Text: "no", Hint: "h"}
		var got *llm.Error
		if _, err := s.run(t.Context(), t, w, settings); !errors.As(err, &got) || got.Kind != kind || len(w.rounds) != 0 {
			t.Fatalf("%s: %v", kind, err)
		}
		w.fail = nil
		if out := s.must(t, w, settings); out.Summary != want.Summary {
			t.Errorf("%s: then %q", kind, out.Summary)
		}
	}
}

// A run that takes longer than it may ends between rounds, and its replay at the
// same one, although that takes no time.
func (s suite) wallTime(t *testing.T) {
	ended := 0
	for seed := range int64(20) {
		w := newWorld(seed)
		settings := forge.Settings{Rounds: 9, WallTime: 2500 * time.Millisecond, React: forge.ReactSettings{Turns: 40}}
		out := s.must(t, w, settings)
		s.replays(t, w, settings, out)
		if out.Stop != kernelwright.StopWallTime {
			continue
		}
		ended++
		var took int64
		for _, r := range w.rounds {
			took += r.FinishedMS - r.StartedMS
		}
		last := w.rounds[len(w.rounds)-1]
		if took < 2500 || took-(last.FinishedMS-last.StartedMS) >= 2500 {
			t.Errorf("it ended after %d ms, the last round took %d", took, last.FinishedMS-last.StartedMS)
		}
	}
	if ended == 0 {
		t.Error("no run took so long")
	}
}

// maxOverhead is what the loop itself may take of a round.
const maxOverhead = 50 * time.Millisecond

func (s suite) overhead(t *testing.T) {
	settings := forge.Settings{Rounds: 60, JudgeMode: forge.JudgeNone, Beam: forge.BeamSettings{Width: 4, Samples: 3}, React: forge.ReactSettings{Turns: 400}}
	w := newWorld(6)
	s.must(t, w, settings, func(p *forge.Parts) { p.Now = nil })
	var times []float64
	for _, r := range w.rounds {
		times = append(times, r.OverheadMS)
	}
	if len(times) == 0 {
		t.Fatal("there is no round")
	}
	slices.Sort(times)
	median := times[len(times)/2]
	t.Logf("%d rounds: the loop itself took %.3f ms in the median, %.3f ms at most", len(times), median, times[len(times)-1])
	// A machine that is busy with something else says little about one round.
	if median > float64(maxOverhead.Milliseconds()) {
		t.Errorf("the loop itself took %.1f ms of a round in the median", median)
	}
}
