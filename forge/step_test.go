package forge_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	kw "github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
)

func numbered(i int) string { return fmt.Sprintf("class ModelNew: pass # %d", i) }

// An agent of its own goes on after what ends Run, and its rounds are recorded as
// that records them.
func TestStep(t *testing.T) {
	w := timed(3, 2, 1)
	w.propose = func(kw.CoderInput) (kw.Candidate, error) { t.Error("the Coder was asked"); return kw.Candidate{}, nil }
	w.advise = func(kw.JudgeInput) kw.Feedback { return kw.Feedback{Kind: kw.Stop, Why: "nothing is left"} }
	verdict := w.verdict
	w.verdict = func(c kw.Candidate, l kw.Level) kw.Verdict {
		v := verdict(c, l)
		v.Language = kw.CPP
		return v
	}
	r := w.strategy(forge.Settings{Rounds: 2, JudgeMode: forge.JudgeBoth})
	run := kw.Run{ID: 1}
	for i := range 2 {
		round, err := r.Step(t.Context(), run, kw.Task{}, kw.Candidate{Source: numbered(i), Origin: "mcp:x"})
		if err != nil || round.Index != i || round.Candidate.Origin != "mcp:x" || round.Candidate.Language != kw.CPP || !round.Verdict.Status.OK() {
			t.Fatalf("%+v, %v", round, err)
		}
	}
	if len(w.rounds) != 2 || w.rounds[0].Feedback == nil || w.rounds[0].Feedback.Kind != kw.Stop {
		t.Errorf("%+v", w.rounds)
	}
	var full *forge.FullError
	if _, err := r.Step(t.Context(), run, kw.Task{}, kw.Candidate{Source: numbered(1)}); !errors.As(err, &full) || full.Rounds != 2 || len(w.rounds) != 2 {
		t.Errorf("%v", err)
	}
}

// The same text again is not measured again, whatever language was said.
func TestStepKnowsADuplicate(t *testing.T) {
	w := timed(3, 2)
	verdict := w.verdict
	w.verdict = func(c kw.Candidate, l kw.Level) kw.Verdict {
		v := verdict(c, l)
		v.Language = kw.CPP
		return v
	}
	r := w.strategy(forge.OutsideSettings())
	for range 2 {
		if _, err := r.Step(t.Context(), kw.Run{ID: 1}, kw.Task{}, kw.Candidate{Source: numbered(0)}); err != nil {
			t.Fatal(err)
		}
	}
	if w.evaluated != 1 || !w.rounds[1].Verdict.Cached || w.rounds[1].Candidate.Language != kw.CPP {
		t.Errorf("%d evaluations, %+v", w.evaluated, w.rounds[1])
	}
}

func TestStepThatFailsRecordsNothing(t *testing.T) {
	for at := 1; at <= 4; at++ { // reading the rounds, the verdict, the Judge, the record
		w := timed(3)
		w.crashAt = at
		if _, err := w.strategy(forge.OutsideSettings()).Step(t.Context(), kw.Run{ID: 1}, kw.Task{}, kw.Candidate{Source: numbered(0)}); !errors.Is(err, errCrash) || len(w.rounds) != 0 {
			t.Errorf("at %d: %v, %d rounds", at, err, len(w.rounds))
		}
	}
	w := timed(3)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.strategy(forge.OutsideSettings()).Step(ctx, kw.Run{ID: 1}, kw.Task{}, kw.Candidate{Source: numbered(0)}); !errors.Is(err, context.Canceled) || w.evaluated != 0 {
		t.Errorf("%v", err)
	}
}

// A slower round that was certified by itself does not keep the fastest from it.
func TestCertifyTheFastestOrTheOneThatIsNamed(t *testing.T) {
	w := timed(3, 1, 2)
	verdict := w.verdict
	fails := ""
	w.verdict = func(c kw.Candidate, l kw.Level) kw.Verdict {
		v := verdict(c, l)
		if l == kw.Certify {
			v.Status = kw.Certified
		}
		if l == kw.Certify && c.Source == fails || c.Source == "wrong" {
			v.Status = kw.Wrong
		}
		return v
	}
	r, run := w.strategy(forge.OutsideSettings()), kw.Run{ID: 1}
	for _, source := range []string{numbered(0), numbered(1), numbered(2), "wrong"} {
		if _, err := r.Step(t.Context(), run, kw.Task{}, kw.Candidate{Source: source}); err != nil {
			t.Fatal(err)
		}
	}
	certify := func(index, want int) {
		t.Helper()
		got, err := r.Certify(t.Context(), run, kw.Task{}, index)
		switch {
		case err != nil:
			t.Fatal(err)
		case want < 0 && got != nil, want >= 0 && (got == nil || got.Index != want || got.Certificate.Status != kw.Certified):
			t.Errorf("certify %d: %+v, want %d", index, got, want)
		}
	}
	certify(0, 0)
	fails = numbered(1)
	certify(-1, 2) // the fastest fails, the next one does not
	certify(1, -1)
	if n := w.evaluated; n != 4+3 {
		t.Errorf("%d evaluations", n)
	}
	for _, index := range []int{3, 4} { // wrong, and not there
		if _, err := r.Certify(t.Context(), run, kw.Task{}, index); err == nil {
			t.Errorf("round %d was certified", index)
		}
	}
}
