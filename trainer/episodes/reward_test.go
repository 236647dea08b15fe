package episodes

import (
	"slices"
	"testing"

	kw "github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/store"
)

func TestReward(t *testing.T) {
	for words, want := range map[string]int{"wrong": -1, "cheat": -1, "plain": 1, "faster": 2, "fastest": 3} {
		if v := verdict(words); Reward(&v) != want {
			t.Errorf("%s: %d, want %d", words, Reward(&v), want)
		}
	}
	if Reward(nil) != -1 {
		t.Error("no candidate")
	}
	// Faster than compile alone is no milestone: it was slower than eager.
	v := kw.Verdict{Status: kw.Correct, Speedups: map[string]kw.Speedup{"eager": {Low: 1.04}, "compile": {Low: 3}}}
	if Reward(&v) != 1 {
		t.Error("not faster than eager")
	}
	// The interval's lower end has to clear the margin, and not reach it.
	v.Speedups = map[string]kw.Speedup{"eager": {Value: 2, Low: 1.05, High: 3}}
	if Reward(&v) != 1 {
		t.Error("at the margin")
	}
}

// A timing that tells no milestone is told from one that tells it, however wide.
func TestTold(t *testing.T) {
	s := func(low, high float64) kw.Speedup { return kw.Speedup{Low: low, High: high} }
	for name, c := range map[string]struct {
		eager, compile kw.Speedup
		disturbed      bool
		want           bool
	}{
		"neither wins":                       {s(0.9, 1.1), s(0.9, 1.1), false, true},
		"vague over eager":                   {s(0.5, 4), s(0.9, 1), false, false},
		"vague, and cannot win":              {s(0.5, 1.04), s(0.5, 1), false, true},
		"vague over compile":                 {s(2, 3), s(0.5, 4), false, false},
		"compile does not matter":            {s(0.9, 1), s(0.5, 4), false, true},
		"wide, and wins":                     {s(1.1, 9), s(1.1, 9), false, true},
		"disturbed":                          {s(0.9, 1.2), s(0.9, 1.2), true, false},
		"disturbed, and wins":                {s(1.1, 1.2), s(1.1, 1.2), true, true},
		"disturbed, and slower all the same": {s(0.4, 0.6), s(0.4, 0.6), true, true},
	} {
		v := kw.Verdict{Status: kw.Correct, Speedups: map[string]kw.Speedup{"eager": c.eager, "compile": c.compile}, Timing: kw.TimingReport{Disturbed: c.disturbed}}
		if got := told(&v); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
		v.Status = kw.Wrong
		if !told(&v) {
			t.Errorf("%s: what is wrong needs no timing", name)
		}
	}
	v := kw.Verdict{Status: kw.Correct, Speedups: map[string]kw.Speedup{"eager": s(2, 3)}}
	if !told(&v) || !slices.Equal(missing(&v), []string{"compile"}) {
		t.Error("a task without compile")
	}
	v.Speedups = nil
	if told(&v) || !told(nil) {
		t.Error("never timed, or no candidate")
	}
}

// An episode whose reward a noisy machine does not tell is dropped: it is not scored
// as one that gained nothing.
func TestNoisy(t *testing.T) {
	w := newWorld(t)
	for words, want := range map[string]int{"vague": 0, "disturbed": 0, "vague once": kw.RewardFasterThanEager, "wrong": kw.RewardNotCorrect} {
		a := w.start(map[string]any{"judge": "none"})
		a = w.turn(a.ID, text(words))
		if dropped := a.Status == store.EpisodeDropped; !a.Done || dropped != (want == 0) || dropped != (a.Dropped == tooNoisy) || dropped != (a.Reward == nil) || !dropped && *a.Reward != want {
			t.Errorf("%s: %+v", words, a)
		}
	}
	// Only the verdict that the reward is of has to tell one; of the best, all that may be better.
	for _, c := range []struct {
		rule, first, second string
		want                int
	}{
		{RewardLast, "vague", "plain", kw.RewardCorrect}, {RewardLast, "fastest", "vague", 0},
		{RewardBest, "fastest", "vague", kw.RewardFasterThanCompile}, {RewardBest, "vague", "plain", 0}, {RewardBest, "wrong", "wrong 2", kw.RewardNotCorrect},
	} {
		a := w.start(map[string]any{"judge": "none", "rounds": 2, "reward": c.rule})
		w.turn(a.ID, text(c.first+c.rule))
		a = w.turn(a.ID, text(c.second+c.rule))
		if !a.Done || (a.Reward == nil) != (c.want == 0) || a.Reward != nil && *a.Reward != c.want {
			t.Errorf("%+v: %+v", c, a)
		}
	}
	s := w.episodes.Stats()
	if s.Noisy != 4 || s.Dropped != 4 || s.Done != 5 || s.Verdicts.Failed != 0 {
		t.Errorf("%+v", s)
	}
	for _, sample := range w.samples("?texts=1") {
		if sample.Reward == nil && sample.Call == 1 {
			t.Errorf("%+v", sample)
		}
	}
}

// Where compile is no baseline of a task the answer says so, and the stats count it.
func TestWithoutCompile(t *testing.T) {
	w := newWorld(t)
	if a := w.turn(w.start(nil).ID, text("alone")); *a.Reward != kw.RewardFasterThanEager || !slices.Equal(a.Missing, []string{"compile"}) {
		t.Errorf("%+v", a)
	}
	if a := w.turn(w.start(nil).ID, text("faster")); *a.Reward != kw.RewardFasterThanEager || a.Missing != nil {
		t.Errorf("%+v", a)
	}
	if s := w.episodes.Stats(); s.Capped != 1 || s.Done != 2 {
		t.Errorf("%+v", s)
	}
}
