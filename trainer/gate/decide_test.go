package gate

import (
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/store"
)

// brute is the distribution of flips by trying all signs.
func brute(differences []int, sum int) float64 {
	n := 0
	for signs := range 1 << len(differences) {
		s := 0
		for i, d := range differences {
			if signs>>i&1 == 1 {
				d = -d
			}
			s += d
		}
		if s >= sum {
			n++
		}
	}
	return float64(n) / float64(int(1)<<len(differences))
}

func TestTheDistributionOfFlipsIsThatOfAllSigns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		differences := rapid.SliceOfN(rapid.IntRange(-30, 30), 1, 9).Draw(t, "differences")
		sum := rapid.IntRange(-100, 100).Draw(t, "sum")
		f := newFlips(0)
		for _, d := range differences {
			f.add(d)
		}
		if got, want := f.tail(sum), brute(differences, sum); math.Abs(got-want) > 1e-12 {
			t.Errorf("P(sum >= %d) of %v is %v, want %v", sum, differences, got, want)
		}
		probability := rapid.Float64Range(0, 0.5).Draw(t, "probability")
		bound, held := f.bound(probability)
		if brute(differences, bound) > probability+1e-12 || brute(differences, bound-1) <= probability || math.Abs(held-brute(differences, bound)) > 1e-12 {
			t.Errorf("the bound of %v at %v is %d, which holds %v", differences, probability, bound, held)
		}
	})
}

// Of all signs of the differences, a share of at most alpha passes a bound of any
// look: for every set of differences, not on the whole.
func TestLooksTogetherSpendNoMoreThanTheyMay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		looks := rapid.SliceOfN(rapid.SliceOfN(rapid.IntRange(0, 12), 2, 4), 1, 3).Draw(t, "looks")
		alpha := rapid.Float64Range(0.02, 0.4).Draw(t, "alpha")
		spent := make([]float64, len(looks))
		var n int
		for k, look := range looks {
			spent[k] = alpha * float64(k+1) / float64(len(looks))
			n += len(look)
		}
		passed := 0
		for signs := range 1 << n {
			at := 0
			signed := make([][]int, len(looks))
			for k, look := range looks {
				for _, d := range look {
					if signs>>at&1 == 1 {
						d = -d
					}
					signed[k] = append(signed[k], d)
					at++
				}
			}
			for k := range looks {
				if rises(signed[:k+1], spent[:k+1]) {
					passed++
					break
				}
			}
		}
		if share := float64(passed) / float64(int(1)<<n); share > alpha+1e-12 {
			t.Errorf("%v of all signs of %v pass, and %v may", share, looks, alpha)
		}
	})
}

// A candidate that loses the whole margin of correctness, and is faster beyond doubt at
// every look, gets through with at most the chance Level, over all looks together.
func TestLookingOftenDoesNotMakeUpForCorrectness(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Settings{Tasks: 6, Samples: 4, Looks: 3, Alpha: 0.4, Beta: 0.05, Effect: 0.15, Margin: 0.1, Level: rapid.Float64Range(0.05, 0.4).Draw(t, "level")}
		strays := rapid.SliceOfN(rapid.IntRange(1, 40), 6, 6).Draw(t, "strays")
		wins := slices.Repeat([][]int{slices.Repeat([]int{1}, 9)}, s.Looks)
		promoted := 0
		for signs := range 1 << len(strays) {
			correct := make([][]int, s.Looks)
			for i, d := range strays {
				if signs>>i&1 == 1 {
					d = -d
				}
				correct[i/2] = append(correct[i/2], d-units(s.Margin))
			}
			for look := 1; look <= s.Looks; look++ {
				if s.find(sample{look: look, faster: wins[:look], speed: wins[:look], correct: correct[:look]}).decision == Promoted {
					promoted++
					break
				}
			}
		}
		if share := float64(promoted) / float64(int(1)<<len(strays)); share > s.Level+1e-12 {
			t.Errorf("%v of such candidates are promoted, and %v may be", share, s.Level)
		}
	})
}

func TestAnIntervalBeginsAboveNothingWhereTheTestSaysSo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		looks := rapid.SliceOfN(rapid.SliceOfN(rapid.IntRange(-8, 16), 4, 7), 1, 2).Draw(t, "looks")
		spent := make([]float64, len(looks))
		for k := range spent {
			spent[k] = 0.05 * float64(k+1) / float64(len(looks))
		}
		does := rises(looks, spent)
		low := lowest(looks, spent)
		if does != (low >= 0) {
			t.Errorf("rises is %t, and the interval of %v begins at %v", does, looks, low)
		}
		high := -lowest(mirrored(looks), spent)
		if low > high {
			t.Errorf("the interval of %v is from %v to %v", looks, low, high)
		}
		// What is added to all is added to the interval, but for sums that fall together.
		if moved := lowest(moved(looks, 1, 40), spent); !math.IsInf(low, 0) && math.Abs(moved-low-0.5) > 0.03 {
			t.Errorf("half more moves the interval of %v from %v to %v", looks, low, moved)
		}
	})
}

// Known values of the Beta distribution, by sums of binomial probabilities, and of
// exact binomial intervals.
func TestKnownValues(t *testing.T) {
	for _, c := range []struct{ got, want float64 }{
		{betaBelow(0.3, 2, 5), 0.579825},
		{betaBelow(0.5, 0.5, 0.5), 0.5},
		{betaBelow(0.9, 8, 2), 0.7748409780000001},
		{betaQuantile(0.5, 1, 1), 0.5},
		{betaQuantile(0.95, 1, 9), 1 - math.Pow(0.05, 1./9)},
	} {
		if math.Abs(c.got-c.want) > 1e-9 {
			t.Errorf("got %v, want %v", c.got, c.want)
		}
	}
	// By hand: nothing of n is 1 - (1 - c)/2 to the power 1/n.
	if low, high := Binomial(0, 10, 0.95); low != 0 || math.Abs(high-(1-math.Pow(0.025, 0.1))) > 1e-9 {
		t.Errorf("0 of 10: %v to %v", low, high)
	}
	if low, high := Binomial(10, 10, 0.95); high != 1 || math.Abs(low-math.Pow(0.025, 0.1)) > 1e-9 {
		t.Errorf("10 of 10: %v to %v", low, high)
	}
	if low, high := Binomial(5, 10, 0.95); math.Abs(low-0.187086) > 1e-6 || math.Abs(high-0.812914) > 1e-6 {
		t.Errorf("5 of 10: %v to %v", low, high)
	}
}

// answers are outcomes with rewards; faster ones are 1.5 times as fast.
func answers(rewards ...int) []Outcome {
	var out []Outcome
	for i, r := range rewards {
		o := Outcome{Sample: i, Reward: r, Built: r > 0, Correct: r > 0}
		switch r {
		case kernelwright.RewardFasterThanCompile:
			o.Speedup, o.Eager, o.Compile = 1.5, 1.5, 1.5
		case kernelwright.RewardFasterThanEager:
			o.Speedup, o.Eager, o.Compile = 1, 1.2, 1
		case kernelwright.RewardCorrect:
			o.Speedup, o.Eager, o.Compile = 0.9, 0.9, 0.9
		}
		out = append(out, o)
	}
	return out
}

// alike are tasks of both sets in turn, all with the same outcomes.
func alike(n int, candidate, opponent []Outcome) []Pair {
	var out []Pair
	for i := range n {
		out = append(out, Pair{Split: heldOut[i%2], Candidate: candidate, Opponent: opponent})
	}
	return out
}

func TestDecisions(t *testing.T) {
	s := Settings{Tasks: 8, Samples: 4, Looks: 2, Alpha: 0.01, Beta: 0.05, Effect: 0.15, Margin: 0.1, Level: 0.05}
	good, middling, bad := answers(3, 3, 3, 1), answers(3, 1, 1, 1), answers(1, 1, -1, -1)
	wins, loses := answers(3, 3, 3, 3), answers(-1, -1, -1, -1)
	for _, c := range []struct {
		name     string
		pairs    []Pair
		decision string
		look     int
		reason   string
	}{
		{"nothing was played", nil, GoOn, 0, "too few"},
		{"one set lacks a task", alike(15, good, bad)[:7], GoOn, 0, "too few"},
		{"half of the tasks, all won", alike(8, good, middling), GoOn, 1, "not decided yet"},
		{"all of the tasks, all won", alike(16, good, middling), Promoted, 2, "more often (+50.0 points, "},
		{"all of the tasks, all lost", alike(16, middling, good), Refused, 2, "not shown to be higher (-50.0 points"},
		{"half of the tasks, nothing different", alike(8, good, good), Refused, 1, "not 15 points better, so it ends early"},
		{"faster, with more that are wrong", alike(16, answers(3, 3, -1, -1), middling), Refused, 2, "fewer answers are correct (-50.0 points"},
		{"faster in the rate alone", alike(16, slow(good), middling), Refused, 2, "geometric mean of the speedups is not shown"},
		{"better in one set alone", mixed(alike(16, wins, loses), alike(16, loses, loses)), Promoted, 2, "(+50.0 points"},
		{"better in one set, worse in the other", mixed(alike(16, wins, loses), alike(16, loses, wins)), Refused, 2, "is not shown to be higher (+0.0 points"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := Decide(s, c.pairs)
			if d.Decision != c.decision || d.Look != c.look || !strings.Contains(d.Reason, c.reason) {
				t.Errorf("got %q at look %d: %s", d.Decision, d.Look, d.Reason)
			}
		})
	}
}

// mixed takes compositions from one and kinds from another.
func mixed(a, b []Pair) []Pair {
	out := slices.Clone(a)
	for i := range out {
		if i%2 == 1 {
			out[i] = b[i]
		}
	}
	return out
}

// slow has fast answers only just be fast, and the others be slow.
func slow(all []Outcome) []Outcome {
	out := slices.Clone(all)
	for i := range out {
		out[i].Compile = 1.06
		if out[i].Reward < kernelwright.RewardFasterThanCompile {
			out[i].Compile = 0.2
		}
	}
	return out
}

// A decision does not depend on what comes after its look, nor on the order within
// one, and swapping the policies turns it round.
func TestDecisionsAreFunctionsOfTheirLook(t *testing.T) {
	s := SmallSettings
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 1))
		pairs := newWorld(DefaultTruth.Better(0.1*float64(seed)-0.2)).draw(r, s)
		first := Decide(s, pairs[:16])
		if later := Decide(s, pairs[:16+r.IntN(16)]); !reflect.DeepEqual(later, first) {
			t.Errorf("more tasks changed look 1: %+v, %+v", first, later)
		}
		other := slices.Clone(pairs)
		for _, split := range []int{0, 1} { // within a set and a look
			i, j := split+2*r.IntN(8), split+2*r.IntN(8)
			other[i], other[j] = other[j], other[i]
		}
		again := Decide(s, other[:16])
		if again.Decision != first.Decision || !reflect.DeepEqual(again.Faster.Low, first.Faster.Low) {
			t.Errorf("another order decides otherwise: %+v, %+v", first, again)
		}
		for i := range other {
			other[i].Candidate, other[i].Opponent = other[i].Opponent, other[i].Candidate
		}
		d := Decide(s, pairs)
		if turned := Decide(s, other); math.Abs(turned.Faster.Difference+d.Faster.Difference) > 1e-9 || d.Decision == Promoted && turned.Decision == Promoted {
			t.Errorf("both are better than the other: %+v, %+v", d, turned)
		}
	}
}

func TestBothSetsAndUnseenPrimitivesStandApart(t *testing.T) {
	s := Settings{Tasks: 4, Samples: 4, Looks: 1, Alpha: 0.01, Beta: 0.05, Effect: 0.15, Margin: 0.1, Level: 0.05}
	pairs := mixed(alike(8, answers(3, 3, 2, 1), answers(1, 1, 1, 1)), alike(8, answers(-1, -1, -1, 1), answers(1, 1, 1, 1)))
	pairs[1].Unseen = true
	pairs[0].Coder = answers(3)
	d := Decide(s, pairs)
	if len(d.Sets) != 3 || d.Sets[0].Tasks != 4 || d.Sets[2].Tasks != 1 || !d.Sets[2].Unseen || d.Sets[2].Split != store.KindsSplit {
		t.Fatalf("%+v", d.Sets)
	}
	c := d.Sets[0].Candidate
	if c.N != 16 || c.Correct != 1 || c.FasterEager != 0.75 || c.FasterCompile != 0.5 || c.Reward != 2.25 {
		t.Errorf("compositions: %+v", c)
	}
	if want := math.Pow(1.5*1.5*1*0.9, 0.25); math.Abs(c.Geomean-want) > 1e-12 {
		t.Errorf("the geometric mean is %v, want %v", c.Geomean, want)
	}
	if k := d.Sets[1].Candidate; k.Correct != 0.25 || k.Reward != -0.5 {
		t.Errorf("kinds: %+v", k)
	}
	if d.All.Coder.N != 1 || d.Sets[1].Coder != nil {
		t.Errorf("the built-in Coder: %+v, %+v", d.All.Coder, d.Sets[1].Coder)
	}
}

func TestOutcomesThatCannotBe(t *testing.T) {
	for _, o := range []Outcome{
		{Reward: 0}, {Reward: 4}, {Reward: 1}, {Reward: -1, Correct: true}, {Reward: 2, Correct: true},
		{Reward: -1, Compile: math.NaN()}, {Reward: -1, Eager: math.Inf(1)}, {Reward: -1, Speedup: -1},
	} {
		if o.Check() == nil {
			t.Errorf("%+v may be", o)
		}
	}
	for _, o := range answers(-1, 1, 2, 3) {
		if err := o.Check(); err != nil {
			t.Error(err)
		}
	}
}

func TestSettingsThatCannotBe(t *testing.T) {
	for _, change := range []func(*Settings){
		func(s *Settings) { s.Tasks = 0 }, func(s *Settings) { s.Looks = 0 }, func(s *Settings) { s.Looks = s.Tasks + 1 }, func(s *Settings) { s.Samples = 0 },
		func(s *Settings) { s.Alpha = 0 }, func(s *Settings) { s.Beta = 0.5 }, func(s *Settings) { s.Level = math.NaN() }, func(s *Settings) { s.Effect = 2 }, func(s *Settings) { s.Margin = -1 },
	} {
		s := DefaultSettings
		change(&s)
		if s.Check() == nil {
			t.Errorf("%+v may be", s)
		}
	}
	for _, s := range []Settings{DefaultSettings, SmallSettings} {
		if err := s.Check(); err != nil {
			t.Error(err)
		}
	}
}
