package forge_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"pgregory.net/rapid"

	kw "github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/forge/forgetest"
	"github.com/kernelwright/kernelwright/judge"
)

var errCrash = errors.New("the power went")

// world is everything round the loop, deterministic, with a clock that only
// moves while somebody works and a crash that can be set to any call.
type world struct {
	mu        sync.Mutex // of now and calls: a beam asks for several candidates at once
	seed      int64
	now       time.Time
	rounds    []kw.Round
	calls     int
	crashAt   int // 0 for never
	evaluated int
	verdict   func(kw.Candidate, kw.Level) kw.Verdict
	propose   func(kw.CoderInput) (kw.Candidate, error)
	advise    func(kw.JudgeInput) kw.Feedback
}

func (w *world) step(d time.Duration) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls++
	if w.crashAt > 0 && w.calls >= w.crashAt {
		return errCrash
	}
	w.now = w.now.Add(d)
	return nil
}

func (w *world) Rounds(context.Context, int64) ([]kw.Round, error) {
	return slices.Clone(w.rounds), w.step(0)
}

func (w *world) AppendRound(_ context.Context, r kw.Round) error {
	if err := w.step(0); err != nil {
		return err
	}
	if r.Index != len(w.rounds) {
		return fmt.Errorf("round %d after %d", r.Index, len(w.rounds))
	}
	w.rounds = append(w.rounds, r)
	return nil
}

func (w *world) SetCertificate(_ context.Context, _ int64, index int, v kw.Verdict) error {
	if err := w.step(0); err != nil {
		return err
	}
	w.rounds[index].Certificate = &v
	return nil
}

func (w *world) Evaluate(_ context.Context, _ kw.Task, c kw.Candidate, l kw.Level) (kw.Verdict, error) {
	if err := w.step(700 * time.Millisecond); err != nil {
		return kw.Verdict{}, err
	}
	w.evaluated++
	v := w.verdict(c, l)
	v.Level = l
	return v, nil
}

type coder struct{ *world }

func (coder) Name() string { return "fake" }
func (c coder) Propose(ctx context.Context, in kw.CoderInput) (kw.Candidate, error) {
	if err := ctx.Err(); err != nil {
		return kw.Candidate{}, err
	}
	if err := c.step(20 * time.Millisecond); err != nil {
		return kw.Candidate{}, err
	}
	return c.propose(in)
}

type fakeJudge struct{ *world }

func (fakeJudge) Name() string { return "fake" }
func (j fakeJudge) Judge(_ context.Context, in kw.JudgeInput) (kw.Feedback, error) {
	if err := j.step(30 * time.Millisecond); err != nil {
		return kw.Feedback{}, err
	}
	return j.advise(in), nil
}

func number(parts ...any) uint64 {
	h := fnv.New64a()
	fmt.Fprintln(h, parts...)
	return h.Sum64()
}

// newWorld draws verdicts, declines and stops from a seed.
func newWorld(seed int64) *world {
	w := &world{seed: seed, now: time.UnixMilli(1_000_000)}
	w.propose = func(in kw.CoderInput) (kw.Candidate, error) {
		last := ""
		if in.Last != nil {
			last = in.Last.Candidate.Source
		}
		if in.Feedback != nil {
			last += in.Feedback.Plan + in.Feedback.Fix
		}
		n := number(seed, in.Round, last)
		if n%23 == 0 {
			return kw.Candidate{}, &kw.DeclinedError{Reason: "Nothing more."}
		}
		if n%5 == 0 && in.Last != nil {
			return in.Last.Candidate, nil // the same again
		}
		return kw.Candidate{Source: fmt.Sprintf("class ModelNew: pass # %d\n", n%1000), Language: kw.CPP, Origin: "fake"}, nil
	}
	w.verdict = func(c kw.Candidate, l kw.Level) kw.Verdict {
		n := number(seed, c.Source)
		switch {
		case n%4 == 0:
			return kw.Verdict{Status: kw.Wrong, Reason: "wrong"}
		case l == kw.Certify && n%3 == 0:
			return kw.Verdict{Status: kw.Wrong, Reason: "wrong on other seeds"}
		}
		ms := float64(100+n%900) / 100
		v := kw.Verdict{Status: kw.Correct, CandidateMS: ms, Headroom: 0.98 / ms, Speedup: &kw.Speedup{Value: 10 / ms, Low: 9 / ms, High: 11 / ms, Against: "eager"}}
		if l == kw.Certify {
			v.Status = kw.Certified
		}
		return v
	}
	w.advise = func(in kw.JudgeInput) kw.Feedback {
		n := number(seed, in.Current.Candidate.Source, len(in.History))
		if n%17 == 0 {
			return kw.Feedback{Kind: kw.Stop, Why: "Enough."}
		}
		if in.Want == kw.Correction {
			return kw.Feedback{Kind: in.Want, Issue: "i", Why: "w", Fix: fmt.Sprint(n)}
		}
		return kw.Feedback{Kind: in.Want, Bottleneck: "b", Method: "m", Plan: fmt.Sprint(n)}
	}
	return w
}

var (
	task = kw.Task{Fingerprint: "f", Name: "softmax"}
	run  = kw.Run{ID: 7, Seed: 3}
)

func (w *world) strategy(s forge.Settings) *forge.Rounds {
	return &forge.Rounds{Parts: forge.Parts{Coder: coder{w}, Judge: fakeJudge{w}, Evaluator: w, Recorder: w, Settings: s, Now: func() time.Time { return w.now }}}
}

func drawSettings(t *rapid.T) forge.Settings {
	return forge.Settings{
		Rounds: rapid.IntRange(1, 8).Draw(t, "rounds"), Patience: rapid.IntRange(0, 4).Draw(t, "patience"),
		WallTime:     time.Duration(rapid.IntRange(0, 5).Draw(t, "seconds")) * time.Second,
		HeadroomStop: rapid.SampledFrom([]float64{0, 0.5, 0.95}).Draw(t, "headroom"),
		JudgeMode:    rapid.SampledFrom([]forge.JudgeMode{"", forge.JudgeBoth, forge.JudgeCorrection, forge.JudgeOptimisation, forge.JudgeNone}).Draw(t, "mode"),
	}
}

// record is a run's rounds without the absolute times.
func record(t *rapid.T, rounds []kw.Round) string {
	rounds = slices.Clone(rounds)
	for i := range rounds {
		rounds[i].FinishedMS -= rounds[i].StartedMS
		rounds[i].StartedMS = 0
	}
	b, err := json.MarshalIndent(rounds, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A run that dies at any call, at several of them, ends with the record of one
// that never did.
func TestResumeGivesTheSameRecord(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed, settings := rapid.Int64().Draw(t, "seed"), drawSettings(t)
		whole := newWorld(seed)
		want, err := whole.strategy(settings).Run(context.Background(), run, task)
		if err != nil {
			t.Fatal(err)
		}
		broken := newWorld(seed)
		for range rapid.IntRange(1, 4).Draw(t, "crashes") {
			broken.calls, broken.crashAt = 0, rapid.IntRange(1, whole.calls).Draw(t, "at")
			if _, err := broken.strategy(settings).Run(context.Background(), run, task); err != nil && !errors.Is(err, errCrash) {
				t.Fatal(err)
			}
		}
		broken.crashAt = 0
		got, err := broken.strategy(settings).Run(context.Background(), run, task)
		if err != nil {
			t.Fatal(err)
		}
		if a, b := record(t, whole.rounds), record(t, broken.rounds); a != b {
			t.Fatalf("uninterrupted:\n%s\ninterrupted:\n%s", a, b)
		}
		if want.Stop != got.Stop || want.Summary != got.Summary || want.Status != got.Status {
			t.Fatalf("uninterrupted: %+v\ninterrupted: %+v", want, got)
		}
	})
}

// fullRun is a run of the first seed that uses its rounds up.
func fullRun(t *testing.T, settings forge.Settings) (*world, forge.Outcome) {
	t.Helper()
	for seed := range int64(1000) {
		w := newWorld(seed)
		out, err := w.strategy(settings).Run(t.Context(), run, task)
		if err != nil {
			t.Fatal(err)
		}
		if out.Stop == kw.StopRounds && out.Best != nil {
			w.now = time.UnixMilli(1_000_000)
			return w, out
		}
	}
	t.Fatal("no seed gives a full run")
	return nil, forge.Outcome{}
}

// One crash at each call there is, in turn.
func TestResumeFromEveryPoint(t *testing.T) {
	settings := forge.Settings{Rounds: 5, JudgeMode: forge.JudgeBoth}
	whole, _ := fullRun(t, settings)
	want, _ := json.Marshal(whole.rounds)
	for at := 1; at <= whole.calls; at++ {
		w := newWorld(whole.seed)
		w.crashAt = at
		if _, err := w.strategy(settings).Run(t.Context(), run, task); !errors.Is(err, errCrash) {
			t.Fatalf("call %d: %v", at, err)
		}
		// As if the machine was off for no time at all: then even the times agree.
		if n := len(w.rounds); n > 0 {
			w.now = time.UnixMilli(w.rounds[n-1].FinishedMS)
		} else {
			w.now = time.UnixMilli(1_000_000)
		}
		w.crashAt = 0
		if _, err := w.strategy(settings).Run(t.Context(), run, task); err != nil {
			t.Fatal(err)
		}
		if got, _ := json.Marshal(w.rounds); string(got) != string(want) {
			t.Fatalf("crash at call %d:\n%s\n%s", at, want, got)
		}
	}
}

// The loop's invariants, whatever agents and hardware do.
func TestInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, settings := newWorld(rapid.Int64().Draw(t, "seed")), drawSettings(t)
		s := w.strategy(settings)
		var events []forge.Event
		s.Observe = func(e forge.Event) { events = append(events, e) }
		out, err := s.Run(context.Background(), run, task)
		if err != nil {
			t.Fatal(err)
		}
		if len(w.rounds) > settings.Rounds || out.Rounds != len(w.rounds) {
			t.Fatalf("%d rounds of %d, outcome %d", len(w.rounds), settings.Rounds, out.Rounds)
		}
		if strings.Count(out.Summary, ". ") > 0 && out.Status != kw.RunDeclined || !strings.HasSuffix(out.Summary, ".") || strings.Contains(out.Summary, "\n") {
			t.Fatalf("not one sentence: %q", out.Summary)
		}
		if last := events[len(events)-1]; last.Kind != forge.Finished || last.Outcome.Summary != out.Summary {
			t.Fatalf("the last event is %+v", last)
		}
		seen := map[string]bool{}
		for i, r := range w.rounds {
			if r.Index != i || r.OverheadMS != 0 {
				t.Fatalf("round %d: %+v", i, r)
			}
			if seen[r.Candidate.Source] != r.Verdict.Cached {
				t.Fatalf("round %d: seen before %v, cached %v", i, seen[r.Candidate.Source], r.Verdict.Cached)
			}
			seen[r.Candidate.Source] = true
			if r.Feedback != nil && (settings.JudgeMode == forge.JudgeNone ||
				settings.JudgeMode == forge.JudgeCorrection && r.Verdict.Status.OK() || settings.JudgeMode == forge.JudgeOptimisation && !r.Verdict.Status.OK()) {
				t.Fatalf("round %d has a feedback in mode %q", i, settings.JudgeMode)
			}
		}
		for _, r := range w.rounds {
			faster := out.Best == nil || r.Verdict.CandidateMS < out.Best.Verdict.CandidateMS
			if r.Verdict.Status.OK() && faster && w.verdict(r.Candidate, kw.Certify).Status == kw.Certified {
				t.Fatalf("round %d could be certified and is faster than %+v", r.Index, out.Best)
			}
		}
		run := run
		run.Settings, run.Status, run.Stop = settings.String(), out.Status, out.Stop
		d, err := forge.Replay(context.Background(), w.rounds, task, run, forge.Parts{Device: kw.Device{}, Coder: coder{w}, Judge: fakeJudge{w}})
		if err != nil || d != nil {
			t.Fatalf("replay: %v %v", d, err)
		}
	})
}

func TestReplayFindsTheFirstDifference(t *testing.T) {
	settings := forge.Settings{Rounds: 5, JudgeMode: forge.JudgeBoth}
	w, out := fullRun(t, settings)
	run := run
	run.Settings, run.Status, run.Stop = settings.String(), out.Status, out.Stop
	for _, c := range []struct {
		what  string
		round int
		spoil func([]kw.Round, *kw.Run)
	}{
		{"candidate", 2, func(r []kw.Round, _ *kw.Run) { r[2].Candidate.Source += "x" }},
		{"feedback", 1, func(r []kw.Round, _ *kw.Run) { f := *r[1].Feedback; f.Rule = "other"; r[1].Feedback = &f }},
		{"feedback", 1, func(r []kw.Round, _ *kw.Run) { r[1].Feedback = nil }},
		{"stop", 5, func(_ []kw.Round, run *kw.Run) { run.Stop = kw.StopWallTime }},
		// With fewer rounds, the last asks for no feedback: that is the first difference there.
		{"feedback", 2, func(_ []kw.Round, run *kw.Run) { run.Settings = forge.Settings{Rounds: 3}.String() }},
	} {
		rounds, run := slices.Clone(w.rounds), run
		c.spoil(rounds, &run)
		d, err := forge.Replay(t.Context(), rounds, task, run, forge.Parts{Device: kw.Device{}, Coder: coder{w}, Judge: fakeJudge{w}})
		if err != nil || d == nil || d.Round != c.round || d.What != c.what {
			t.Errorf("%s in round %d: got %v %v", c.what, c.round, d, err)
		}
	}
}

// timed makes a world whose candidates are numbered and take the given times.
func timed(ms ...float64) *world {
	w := newWorld(0)
	w.propose = func(in kw.CoderInput) (kw.Candidate, error) {
		return kw.Candidate{Source: fmt.Sprintf("class ModelNew: pass # %d", in.Round), Language: kw.CPP, Origin: "fake"}, nil
	}
	w.verdict = func(c kw.Candidate, l kw.Level) kw.Verdict {
		var i int
		fmt.Sscanf(c.Source, "class ModelNew: pass # %d", &i)
		if ms[i] == 0 {
			return kw.Verdict{Status: kw.BuildFailed}
		}
		v := kw.Verdict{Status: kw.Correct, CandidateMS: ms[i], Headroom: 0.1 / ms[i], Speedup: &kw.Speedup{Value: 10 / ms[i], Low: 9 / ms[i], High: 11 / ms[i]}, Timing: kw.TimingReport{Candidate: kw.Measurement{LowMS: ms[i] * 0.97, HighMS: ms[i] * 1.03}}}
		if l == kw.Certify {
			v.Status = kw.Certified
		}
		return v
	}
	w.advise = func(in kw.JudgeInput) kw.Feedback {
		if in.Want == kw.Correction {
			return kw.Feedback{Kind: in.Want, Issue: "i", Why: "w", Fix: "f"}
		}
		return kw.Feedback{Kind: in.Want, Bottleneck: "b", Method: "m", Plan: "p"}
	}
	return w
}

func TestStops(t *testing.T) {
	for _, c := range []struct {
		name     string
		ms       []float64
		settings forge.Settings
		stop     kw.StopReason
		rounds   int
		best     int
	}{
		{"rounds", []float64{9, 8, 7}, forge.Settings{Rounds: 3}, kw.StopRounds, 3, 2},
		{"headroom", []float64{9, 0.104, 5}, forge.Settings{Rounds: 3, HeadroomStop: 0.95}, kw.StopHeadroom, 2, 1},
		{"behind a baseline", []float64{12, 9, 8}, forge.Settings{Rounds: 3, HeadroomStop: 0.005}, kw.StopHeadroom, 2, 1},
		{"no progress", []float64{9, 5, 5.1, 4.95, 4}, forge.Settings{Rounds: 5, Patience: 2}, kw.StopNoProgress, 4, 3},
		{"small gains add up", []float64{5, 4.85, 4.65, 4.5, 4.35, 4.2}, forge.Settings{Rounds: 6, Patience: 3}, kw.StopRounds, 6, 5},
		{"failures are no lack of progress", []float64{0, 0, 0, 0, 5}, forge.Settings{Rounds: 5, Patience: 2}, kw.StopRounds, 5, 4},
		{"wall time", []float64{9, 8, 7, 6, 5, 4}, forge.Settings{Rounds: 6, WallTime: 2 * time.Second}, kw.StopWallTime, 3, 2},
		{"nothing correct", []float64{0, 0}, forge.Settings{Rounds: 2}, kw.StopRounds, 2, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := timed(c.ms...)
			out, err := w.strategy(c.settings).Run(t.Context(), run, task)
			if err != nil {
				t.Fatal(err)
			}
			best := -1
			if out.Best != nil {
				best = out.Best.Index
			}
			if out.Stop != c.stop || out.Rounds != c.rounds || best != c.best {
				t.Errorf("stop %s after %d, best %d: %s", out.Stop, out.Rounds, best, out.Summary)
			}
			if last := w.rounds[len(w.rounds)-1]; c.stop != kw.StopJudge && last.Feedback != nil {
				t.Error("the last round has a feedback that nobody reads")
			}
		})
	}
}

// wallSet is a time after somebody set the clock: the system shows another
// time of day, and its monotonic reading goes on. Package time has no way to
// make one; this is its representation, which the test checks.
func wallSet(t *testing.T, now time.Time, by time.Duration) time.Time {
	t.Helper()
	set := now
	*(*uint64)(unsafe.Pointer(&set)) += uint64(by/time.Second) << 30
	if set.Sub(now) != 0 || set.Round(0).Sub(now.Round(0)) != by {
		t.Fatalf("%v is not %v set by %v", set, now, by)
	}
	return set
}

// A clock that is set in the middle of a round takes nothing from a run's time,
// and adds nothing to it.
func TestWallTimeOutlivesAClockThatIsSet(t *testing.T) {
	for _, by := range []time.Duration{24 * time.Hour, -24 * time.Hour} {
		w := timed(9, 8, 7, 6, 5, 4)
		w.now = time.Now()
		inner := w.verdict
		w.verdict = func(c kw.Candidate, l kw.Level) kw.Verdict {
			w.now = wallSet(t, w.now, by)
			return inner(c, l)
		}
		out, err := w.strategy(forge.Settings{Rounds: 6, WallTime: 2 * time.Second}).Run(t.Context(), run, task)
		if err != nil || out.Stop != kw.StopWallTime || out.Rounds != 3 {
			t.Errorf("set by %v: stop %s after %d rounds, %v", by, out.Stop, out.Rounds, err)
		}
		for _, r := range w.rounds {
			if took := r.FinishedMS - r.StartedMS; took < 700 || took > 1000 {
				t.Errorf("set by %v: a round of 750 ms took %d ms", by, took)
			}
		}
	}
}

func TestDeclinedAtOnce(t *testing.T) {
	w := newWorld(0)
	w.propose = func(kw.CoderInput) (kw.Candidate, error) {
		return kw.Candidate{}, &kw.DeclinedError{Reason: "It is one matrix product."}
	}
	out, err := w.strategy(forge.Settings{}).Run(t.Context(), run, task)
	if err != nil || out.Status != kw.RunDeclined || out.Stop != kw.StopDeclined || !strings.Contains(out.Summary, "matrix product") {
		t.Errorf("%+v %v", out, err)
	}
}

// A decline is not recorded. Where rounds came after it, a run that goes on in
// another process gives the reason all the same.
func TestAReasonOutlivesACrash(t *testing.T) {
	run := func(w *world) (forge.Outcome, error) {
		parts := w.strategy(forge.Settings{Rounds: 9, JudgeMode: forge.JudgeNone, Beam: forge.BeamSettings{Width: 2, Samples: 1}}).Parts
		return (&forge.Beam{Parts: parts}).Run(t.Context(), run, task)
	}
	fresh := func() *world {
		w := timed(2, 0)
		w.propose = func(in kw.CoderInput) (kw.Candidate, error) {
			c := kw.Candidate{Source: fmt.Sprintf("class ModelNew: pass # %d", in.Sample), Language: kw.CPP, Origin: "fake"}
			switch {
			case in.Last == nil: // the second of the two samples does not compile
			case in.Last.Verdict.Status.OK():
				return kw.Candidate{}, &kw.DeclinedError{Reason: fmt.Sprintf("Nothing after round %d", in.Round)}
			default: // and is written as the first one the next time, so one is left, which is declined
				c.Source = "class ModelNew: pass # 0"
			}
			return c, nil
		}
		return w
	}
	whole := fresh()
	want, err := run(whole)
	if err != nil || want.Rounds != 3 || want.Stop != kw.StopDeclined || !strings.HasSuffix(want.Summary, "(Nothing after round 2).") {
		t.Fatalf("%+v %v", want, err)
	}
	interrupted := false
	for at := 1; at <= whole.calls; at++ {
		w := fresh()
		w.crashAt = at
		if _, err := run(w); !errors.Is(err, errCrash) {
			t.Fatalf("call %d: %v", at, err)
		}
		interrupted = interrupted || len(w.rounds) == want.Rounds
		w.crashAt = 0
		if got, err := run(w); err != nil || got.Summary != want.Summary {
			t.Errorf("call %d: %q %v, want %q", at, got.Summary, err, want.Summary)
		}
	}
	if !interrupted {
		t.Error("no crash came after the last round")
	}
}

func TestCertificationFallsBack(t *testing.T) {
	w := timed(3, 1, 2)
	inner := w.verdict
	w.verdict = func(c kw.Candidate, l kw.Level) kw.Verdict {
		if l == kw.Certify && strings.HasSuffix(c.Source, "1") {
			return kw.Verdict{Status: kw.Wrong}
		}
		return inner(c, l)
	}
	out, err := w.strategy(forge.Settings{Rounds: 3}).Run(t.Context(), run, task)
	if err != nil || out.Best == nil || out.Best.Index != 2 {
		t.Fatalf("%+v %v", out, err)
	}
	if w.rounds[1].Certificate.Status != kw.Wrong || w.rounds[2].Certificate.Status != kw.Certified || w.rounds[0].Certificate != nil {
		t.Error("certificates are not where they belong")
	}
}

// A program can read its own text: whatever it differs in, it is another, and an
// honest one lends it no verdict, nor is convicted by it. Whichever comes first.
func TestEveryByteMakesAnotherCandidate(t *testing.T) {
	const honest = "x = \"1\"\n"
	twins := []string{
		honest, "x = \"16\"\n", honest + "# 16\n", "x = \"1\" \n", "x = \"1\"\r\n", "x = \"1\"", kw.Schedule{Plan: "p"}.Comment() + "\n" + honest, "\ufeff" + honest,
	}
	for _, backwards := range []bool{false, true} {
		order := slices.Clone(twins)
		if backwards {
			slices.Reverse(order)
		}
		w := timed(3)
		w.propose = func(in kw.CoderInput) (kw.Candidate, error) { // each twice
			return kw.Candidate{Source: order[in.Round%len(order)], Language: kw.CPP, Origin: "fake"}, nil
		}
		w.verdict = func(c kw.Candidate, _ kw.Level) kw.Verdict {
			if c.Source == honest {
				return kw.Verdict{Status: kw.Correct, CandidateMS: 1}
			}
			return kw.Verdict{Status: kw.Wrong}
		}
		if _, err := w.strategy(forge.Settings{Rounds: 2 * len(order), Patience: 100}).Run(t.Context(), run, task); err != nil {
			t.Fatal(err)
		}
		if w.evaluated < len(order) || w.evaluated > len(order)+1 { // and one certificate
			t.Errorf("%d evaluations of %d candidates", w.evaluated, len(order))
		}
		for i, r := range w.rounds {
			if got := r.Verdict.Status == kw.Correct; got != (order[i%len(order)] == honest) || r.Verdict.Cached != (i >= len(order)) {
				t.Errorf("round %d, %q: %s, cached %v", i, r.Candidate.Source, r.Verdict.Status, r.Verdict.Cached)
			}
		}
	}
}

func TestHaltAndCancel(t *testing.T) {
	w := timed(3, 2, 1)
	s := w.strategy(forge.Settings{Rounds: 3})
	halt := make(chan struct{})
	s.Halt = halt
	s.Observe = func(e forge.Event) {
		if e.Kind == forge.Verdict {
			close(halt)
		}
	}
	if _, err := s.Run(t.Context(), run, task); !errors.Is(err, forge.ErrHalted) || len(w.rounds) != 1 {
		t.Errorf("%v after %d rounds", err, len(w.rounds))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.strategy(forge.Settings{Rounds: 3}).Run(ctx, run, task); !errors.Is(err, context.Canceled) || len(w.rounds) != 1 {
		t.Errorf("%v after %d rounds", err, len(w.rounds))
	}
}

func TestJudgeMustKeepItsWord(t *testing.T) {
	w := timed(3, 2)
	w.advise = func(kw.JudgeInput) kw.Feedback {
		return kw.Feedback{Kind: kw.Correction, Issue: "i", Why: "w", Fix: "f"}
	}
	if _, err := w.strategy(forge.Settings{Rounds: 2}).Run(t.Context(), run, task); err == nil || !strings.Contains(err.Error(), "optimisation") {
		t.Errorf("got %v", err)
	}
}

func TestOverheadLeavesOutTheOthers(t *testing.T) {
	w := timed(3, 2)
	s := w.strategy(forge.Settings{Rounds: 2})
	inner := s.Now
	// Each look at the clock takes a millisecond of the loop's own time.
	s.Now = func() time.Time { w.now = w.now.Add(time.Millisecond); return inner() }
	if _, err := s.Run(t.Context(), run, task); err != nil {
		t.Fatal(err)
	}
	for _, r := range w.rounds {
		if r.OverheadMS <= 0 || r.OverheadMS > 20 {
			t.Errorf("round %d: %v ms", r.Index, r.OverheadMS)
		}
	}
}

func TestSettings(t *testing.T) {
	s := forge.DefaultSettings()
	s.Language = kw.CPP
	if strings.Contains(s.String(), "custom_code") {
		t.Errorf("a run of the usual policy is recorded as before: %s", s)
	}
	s.CustomCode = forge.AnyCode
	if got, err := forge.ParseSettings(s.String()); err != nil || got != s {
		t.Errorf("%+v %v", got, err)
	}
	if got, err := forge.ParseSettings(""); err != nil || got != forge.DefaultSettings() {
		t.Errorf("%+v %v", got, err)
	}
	for _, bad := range []string{"{", `{"rounds":-1}`, `{"judge":"loud"}`, `{"headroom_stop":2}`, `{"patience":-1}`, `{"wall_time_ms":-1}`, `{"custom_code":"none"}`} {
		if _, err := forge.ParseSettings(bad); err == nil {
			t.Errorf("%s passed", bad)
		}
	}
}

// The suites themselves, against agents that keep the contract.
func TestConformanceSuites(t *testing.T) {
	forgetest.Coder(t, coder{timed(1)}, true)
	forgetest.Judge(t, judge.Rules{}, true)
}
