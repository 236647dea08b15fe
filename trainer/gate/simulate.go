package gate

import (
	"math"
	"math/rand/v2"
	"runtime"
	"sync"

	"github.com/kernelwright/kernelwright"
)

// Truth is a model of two policies, from which nights are drawn. Where a policy is
// said to be better, it is the candidate.
//
// Each task has a rate of answers that are faster than torch.compile for either
// policy, drawn from a Beta distribution; the two rates go together as a Gaussian
// copula has them. So does the share of the other answers that is correct. Speedups
// are log-normal: a task has a median, which the policies share, and an answer
// strays from it; above 1.05 for the fast ones, below for the others.
type Truth struct {
	Faster        float64 `json:"faster"`        // the opponent's mean rate of faster-than-compile
	Gain          float64 `json:"gain"`          // of the candidate, in that rate
	Correct       float64 `json:"correct"`       // mean share of the answers that are not faster which is correct
	CorrectGain   float64 `json:"correct_gain"`  // of the candidate, in that share
	Concentration float64 `json:"concentration"` // of the Beta: small is tasks that fail always or never
	Other         float64 `json:"other"`         // the candidate's concentration; 0: the same
	Correlation   float64 `json:"correlation"`   // of the policies on a task
	Kinds         float64 `json:"kinds"`         // the rates of the second held-out set over those of the first
	Speedup       float64 `json:"speedup"`       // median over tasks, of fast answers
	SpeedGain     float64 `json:"speed_gain"`    // of the candidate, in its logarithm
	TaskSpread    float64 `json:"task_spread"`   // standard deviation of the logarithm over tasks
	Spread        float64 `json:"spread"`        // and over the answers to a task
}

// DefaultTruth is what docs/gate.md begins with: policies that differ in nothing.
var DefaultTruth = Truth{
	Faster: 0.4, Correct: 0.7, Concentration: 2, Correlation: 0.7, Kinds: 0.7, Speedup: 1.5, TaskSpread: 0.3, Spread: 0.1,
}

// Better is the truth with a candidate whose rate is so much higher.
func (t Truth) Better(gain float64) Truth {
	t.Gain = gain
	return t
}

// Fewer is the truth with a candidate whose rate of correct answers is so much lower than
// the opponent's, in all.
func (t Truth) Fewer(loss float64) Truth {
	faster := t.Faster + t.Gain
	correct := t.Faster + (1-t.Faster)*t.Correct - loss
	t.CorrectGain = (correct-faster)/(1-faster) - t.Correct
	return t
}

// Power is what came of simulated nights.
type Power struct {
	Nights   int     `json:"nights"`
	Promoted int     `json:"promoted"`
	Rate     float64 `json:"rate"`
	Low      float64 `json:"low"` // of 95 %, exact (Clopper and Pearson)
	High     float64 `json:"high"`
	// Within is how often one of three nights in a row promoted.
	Within     float64 `json:"within_three_nights"`
	WithinLow  float64 `json:"within_three_nights_low"`
	WithinHigh float64 `json:"within_three_nights_high"`
	Tasks      float64 `json:"tasks"` // that a night took in the mean, of both sets
}

// Simulate draws nights from a truth and has Settings decide on each. The same
// arguments give the same figures.
func Simulate(s Settings, truth Truth, nights int, seed uint64) Power {
	w := newWorld(truth)
	promoted, tasks := make([]bool, nights), make([]int, nights)
	var all sync.WaitGroup
	workers := runtime.GOMAXPROCS(0)
	for worker := range workers {
		all.Go(func() {
			for night := worker; night < nights; night += workers {
				r := rand.New(rand.NewPCG(seed, uint64(night))) //nolint:gosec // a simulation is to be repeated
				promoted[night], tasks[night] = s.night(w.draw(r, s))
			}
		})
	}
	all.Wait()
	p := Power{Nights: nights}
	within, threes := 0, nights/3
	for night := range nights {
		if promoted[night] {
			p.Promoted++
		}
		p.Tasks += float64(tasks[night]) / float64(nights)
		if night%3 == 2 && (promoted[night] || promoted[night-1] || promoted[night-2]) {
			within++
		}
	}
	p.Rate = float64(p.Promoted) / float64(nights)
	p.Low, p.High = Binomial(p.Promoted, nights, 0.95)
	if threes > 0 {
		p.Within = float64(within) / float64(threes)
		p.WithinLow, p.WithinHigh = Binomial(within, threes, 0.95)
	}
	return p
}

// night looks at pairs as often as a gate does.
func (s Settings) night(pairs []Pair) (promoted bool, tasks int) {
	for look := 1; ; look++ {
		x := s.sampled(pairs[:2*s.due(look)])
		if f := s.find(x); f.decision != GoOn {
			return f.decision == Promoted, len(x.pairs)
		}
	}
}

// line is what is faster: 5 % over torch.compile.
var line = math.Log(1.05)

// world is a truth that nights are drawn from.
type world struct {
	Truth
	sets [2]struct{ opponent, candidate, opponentCorrect, candidateCorrect quantiles }
}

func newWorld(t Truth) world {
	w := world{Truth: t}
	other := t.Other
	if other == 0 {
		other = t.Concentration
	}
	first := 2 / (1 + t.Kinds)
	for i, factor := range []float64{first, first * t.Kinds} {
		set := &w.sets[i]
		set.opponent = betaQuantiles(factor*t.Faster, t.Concentration)
		set.candidate = betaQuantiles(factor*(t.Faster+t.Gain), other)
		set.opponentCorrect = betaQuantiles(t.Correct, t.Concentration)
		set.candidateCorrect = betaQuantiles(t.Correct+t.CorrectGain, other)
	}
	return w
}

// draw draws a night's tasks, of both sets in turn.
func (w world) draw(r *rand.Rand, s Settings) []Pair {
	pairs := make([]Pair, 2*s.Tasks)
	outcomes := make([]Outcome, 4*s.Tasks*s.Samples)
	take := func() []Outcome {
		part := outcomes[:s.Samples:s.Samples]
		outcomes = outcomes[s.Samples:]
		return part
	}
	for i := range pairs {
		set := &w.sets[i%2]
		p := &pairs[i]
		p.Split, p.Candidate, p.Opponent = heldOut[i%2], take(), take()
		median := math.Log(w.Speedup) + w.TaskSpread*r.NormFloat64()
		fast, right := w.together(r), w.together(r)
		w.answer(r, p.Opponent, set.opponent.at(fast[0]), set.opponentCorrect.at(right[0]), median)
		w.answer(r, p.Candidate, set.candidate.at(fast[1]), set.candidateCorrect.at(right[1]), median+w.SpeedGain)
	}
	return pairs
}

// together draws two ranks that go together.
func (w world) together(r *rand.Rand) [2]float64 {
	shared := r.NormFloat64()
	var out [2]float64
	for i := range out {
		out[i] = below(math.Sqrt(w.Correlation)*shared + math.Sqrt(1-w.Correlation)*r.NormFloat64())
	}
	return out
}

// answer draws a policy's answers to a task.
func (w world) answer(r *rand.Rand, into []Outcome, faster, correct, median float64) {
	const slow, slowSpread = -0.1, 0.3
	for i := range into {
		o := Outcome{Sample: i, Reward: kernelwright.RewardNotCorrect}
		switch {
		case r.Float64() < faster:
			o.Built, o.Correct, o.Reward = true, true, kernelwright.RewardFasterThanCompile
			o.Compile = math.Exp(truncated(r, median, w.Spread, line, math.Inf(1)))
		case r.Float64() < correct:
			o.Built, o.Correct, o.Reward = true, true, kernelwright.RewardCorrect
			o.Compile = math.Exp(truncated(r, slow, slowSpread, math.Inf(-1), line))
		}
		into[i] = o
	}
}

// truncated draws from the part of a normal distribution between two ends.
func truncated(r *rand.Rand, middle, spread, low, high float64) float64 {
	from, to := below((low-middle)/spread), below((high-middle)/spread)
	if to-from < 1e-12 { // too far out for numbers of 64 bits
		if middle < low {
			return low
		}
		return high
	}
	x := middle + spread*math.Sqrt2*math.Erfinv(2*(from+(to-from)*r.Float64())-1)
	return min(max(x, low), high)
}

// below is the share of the standard normal distribution below a number.
func below(z float64) float64 { return math.Erfc(-z/math.Sqrt2) / 2 }

// quantiles are those of a Beta distribution, in equal parts.
type quantiles []float64

const parts = 128

func betaQuantiles(mean, concentration float64) quantiles {
	q := make(quantiles, parts)
	switch {
	case mean <= 0:
		return q
	case mean >= 1:
		for i := range q {
			q[i] = 1
		}
		return q
	}
	a, b := mean*concentration, (1-mean)*concentration
	for i := range q {
		q[i] = betaQuantile((float64(i)+0.5)/parts, a, b)
	}
	return q
}

// at is the quantile of a rank, between the two nearest.
func (q quantiles) at(rank float64) float64 {
	place := min(max(rank*parts-0.5, 0), parts-1)
	i := min(int(place), parts-2)
	return q[i] + (place-float64(i))*(q[i+1]-q[i])
}
