package gate

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/internal/soak"
)

// The error rates that docs/gate.md shows, on fewer nights: a rate that is too high
// is one whose exact interval lies above what is allowed, or below what is asked.
func TestErrorRates(t *testing.T) {
	nights := 120
	switch {
	case soak.Long():
		nights = 3000
	case !soak.Daily():
		nights = 600
	}
	s := DefaultSettings
	equal := Simulate(s, DefaultTruth, nights, 1)
	better := Simulate(s, DefaultTruth.Better(0.15), nights, 1)
	worse := Simulate(s, DefaultTruth.Better(-0.05), nights, 1)
	if equal.Low > 0.01 {
		t.Errorf("an equal policy is promoted in %+v", equal)
	}
	if better.WithinHigh < 0.9 {
		t.Errorf("a better policy is promoted in %+v", better)
	}
	if worse.Low > 0.001 {
		t.Errorf("a worse policy is promoted in %+v", worse)
	}
	if p := Simulate(s, DefaultTruth.Fewer(0.05), nights, 1); p.Low > 0.001 {
		t.Errorf("a policy that is right less often, and not faster, is promoted in %+v", p)
	}
	// Faster answers make up for correct ones that are lost within the margin, not for all of it.
	if p := Simulate(s, DefaultTruth.Better(0.2).Fewer(s.Margin), nights, 1); p.Low > s.Level {
		t.Errorf("a policy that loses %v of its correct answers is promoted in %+v", s.Margin, p)
	}
	if p := Simulate(s, DefaultTruth.Better(0.2).Fewer(2*s.Margin), nights, 1); p.Low > 0.01 {
		t.Errorf("a policy that loses twice the margin is promoted in %+v", p)
	}
	// Looking early saves tasks.
	if equal.Tasks > 0.9*float64(2*s.Tasks) {
		t.Errorf("an equal policy takes %v tasks", equal.Tasks)
	}
	// These bounds see a gate that promotes too much, and one that promotes too little.
	loose, strict := s, s
	loose.Alpha, strict.Alpha = 0.4, 1e-6
	loose.Looks, strict.Looks = 1, 1
	if p := Simulate(loose, DefaultTruth, 90, 1); p.Low <= 0.01 {
		t.Errorf("a gate that promotes too much passes: %+v", p)
	}
	if p := Simulate(strict, DefaultTruth.Better(0.15), 90, 1); p.WithinHigh >= 0.9 {
		t.Errorf("a gate that promotes nearly nothing passes: %+v", p)
	}
}

func TestSimulationsRepeat(t *testing.T) {
	s := SmallSettings
	a, b := Simulate(s, DefaultTruth.Better(0.3), 12, 3), Simulate(s, DefaultTruth.Better(0.3), 12, 3)
	if a != b {
		t.Errorf("%+v, and again %+v", a, b)
	}
	if c := Simulate(s, DefaultTruth.Better(0.3), 12, 4); c == a {
		t.Errorf("another seed gives the same: %+v", c)
	}
}

// A candidate of Fewer has so many correct answers less.
func TestFewerAreCorrect(t *testing.T) {
	w := newWorld(DefaultTruth.Better(0.15).Fewer(0.1))
	r := rand.New(rand.NewPCG(1, 1))
	var candidate, opponent []Outcome
	for _, p := range w.draw(r, Settings{Tasks: 2000, Samples: 4, Looks: 1}) {
		candidate, opponent = append(candidate, p.Candidate...), append(opponent, p.Opponent...)
	}
	c, o := figures(candidate), figures(opponent)
	if math.Abs(o.Correct-c.Correct-0.1) > 0.02 || math.Abs(c.FasterCompile-o.FasterCompile-0.15) > 0.02 {
		t.Errorf("the candidate has %+v, the opponent %+v", c, o)
	}
}

// What is drawn has the means that the truth has.
func TestNightsAreOfTheirTruth(t *testing.T) {
	truth := DefaultTruth.Better(0.15)
	s := Settings{Tasks: 1000, Samples: 8, Looks: 1}
	w := newWorld(truth)
	r := rand.New(rand.NewPCG(1, 1))
	var both [2][]Outcome
	var rates [2][]float64
	for range 2 {
		for _, p := range w.draw(r, s) {
			both[0], both[1] = append(both[0], p.Opponent...), append(both[1], p.Candidate...)
			rates[0], rates[1] = append(rates[0], mean(p.Opponent, isFaster)), append(rates[1], mean(p.Candidate, isFaster))
		}
	}
	for i, want := range []float64{0.4, 0.55} {
		f := figures(both[i])
		if math.Abs(f.FasterCompile-want) > 0.03 {
			t.Errorf("faster in %v, want %v", f.FasterCompile, want)
		}
		if correct := want + (1-want)*truth.Correct; math.Abs(f.Correct-correct) > 0.04 {
			t.Errorf("correct in %v, want %v", f.Correct, correct)
		}
	}
	for _, o := range both[0] {
		if err := o.Check(); err != nil || o.Correct && (o.Reward == kernelwright.RewardFasterThanCompile) != (o.Compile >= 1.05) {
			t.Fatalf("%v: %+v", err, o)
		}
	}
	if c := correlation(rates[0], rates[1]); c < 0.4 || c > 0.7 {
		t.Errorf("the policies' rates correlate by %v", c)
	}
}

func correlation(a, b []float64) float64 {
	var sa, sb, saa, sbb, sab float64
	n := float64(len(a))
	for i := range a {
		sa, sb, saa, sbb, sab = sa+a[i], sb+b[i], saa+a[i]*a[i], sbb+b[i]*b[i], sab+a[i]*b[i]
	}
	return (sab - sa*sb/n) / math.Sqrt((saa-sa*sa/n)*(sbb-sb*sb/n))
}
