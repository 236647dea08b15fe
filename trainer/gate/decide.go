package gate

import (
	"fmt"
	"math"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/score"
	"github.com/kernelwright/kernelwright/store"
)

// Settings say how a policy is held against another one.
type Settings struct {
	Tasks   int     `json:"tasks"`   // of each held-out set, at most
	Samples int     `json:"samples"` // answers of each policy to a task
	Looks   int     `json:"looks"`   // how often it is decided on, after equal parts of the tasks
	Alpha   float64 `json:"alpha"`   // how likely an equal policy is promoted, at most
	Beta    float64 `json:"beta"`    // how likely a policy that is Effect better is refused early, at most
	Effect  float64 `json:"effect"`  // in the rate of faster-than-compile
	Margin  float64 `json:"margin"`  // by how much the rate of correct answers may seem lower
	Level   float64 `json:"level"`   // of what is said of correctness, to each side, at all looks together
}

// DefaultSettings are what docs/gate.md has the error rates of.
var DefaultSettings = Settings{Tasks: 36, Samples: 4, Looks: 4, Alpha: 0.01, Beta: 0.05, Effect: 0.15, Margin: 0.05, Level: 0.05}

// SmallSettings are those of small proofs, which have few tasks.
var SmallSettings = func() Settings {
	s := DefaultSettings
	s.Tasks, s.Looks, s.Samples = 16, 2, 2
	return s
}()

// spending is the exponent of the error spending: at a share t of the tasks,
// t^spending of the error may have been spent (Kim and DeMets, Biometrika 74, 1987).
const spending = 2

// Check says what is wrong with settings, or nil.
func (s Settings) Check() error {
	bad := func(what string, limits string) error {
		return fmt.Errorf("a gate's %s has to be %s", what, limits)
	}
	switch {
	case s.Looks < 1 || s.Tasks < s.Looks:
		return bad("number of looks", "at least 1 and at most the number of tasks of a set")
	case s.Samples < 1 || s.Samples > 64:
		return bad("number of samples", "between 1 and 64")
	case s.Tasks > 1024:
		return bad("number of tasks", "at most 1,024")
	}
	for what, p := range map[string]float64{"alpha": s.Alpha, "beta": s.Beta, "level": s.Level} {
		if !(p > 0 && p < 0.5) {
			return bad(what, "between 0 and 0.5")
		}
	}
	if !(s.Effect > 0 && s.Effect <= 1 && s.Margin >= 0 && s.Margin <= 1) {
		return bad("effect and margin", "between 0 and 1")
	}
	return nil
}

// lossy is how many tasks may turn out void: beyond it, it is the machine.
func (s Settings) lossy() int { return max(2, 2*s.Tasks/8) }

// Held is how many tasks of each held-out set are needed: those that are decided on,
// and others in the place of void ones.
func (s Settings) Held() int { return s.Tasks + s.lossy()/2 }

// due is how many tasks of a set a look comes after. Looks count from 1.
func (s Settings) due(look int) int { return s.Tasks * look / s.Looks }

// spent is how much of an error may have been spent by each look up to one.
func (s Settings) spent(of float64, look int) []float64 {
	out := make([]float64, look)
	for k := range out {
		out[k] = of * math.Pow(float64(s.due(k+1))/float64(s.Tasks), spending)
	}
	return out
}

// Outcome is what one answer to a task came to.
type Outcome struct {
	Task    string      `json:"task"` // fingerprint
	Split   store.Split `json:"split"`
	Sample  int         `json:"sample"` // from 0
	Built   bool        `json:"built"`
	Correct bool        `json:"correct"`
	Reward  int         `json:"reward"` // -1, 1, 2 or 3
	// Against the fastest baseline, eager and torch.compile; 0: not measured.
	Speedup float64 `json:"speedup"`
	Eager   float64 `json:"eager"`
	Compile float64 `json:"compile"`
}

// Check says why an outcome cannot be, or nil.
func (o Outcome) Check() error {
	speeds := []float64{o.Speedup, o.Eager, o.Compile}
	for _, s := range speeds {
		if !(s >= 0 && s < math.MaxFloat64) {
			return fmt.Errorf("an outcome has the speedup %v", s)
		}
	}
	switch {
	case o.Reward != kernelwright.RewardNotCorrect && (o.Reward < kernelwright.RewardCorrect || o.Reward > kernelwright.RewardFasterThanCompile):
		return fmt.Errorf("an outcome has the reward %d", o.Reward)
	case o.Correct != (o.Reward > 0):
		return fmt.Errorf("an outcome has the reward %d, and correct is %t", o.Reward, o.Correct)
	case o.Correct && !o.Built:
		return fmt.Errorf("an outcome is correct and was not built")
	}
	return nil
}

// log is the logarithm of the speedup against torch.compile; an answer that is not
// correct leaves the user what there was.
func (o Outcome) log() float64 {
	return math.Log(score.Result{Correct: o.Correct, Speedup: o.Compile}.Filled())
}

// Pair is a task with the outcomes of both policies, and of the built-in Coder.
type Pair struct {
	Task      string
	Split     store.Split
	Unseen    bool // it holds a primitive that no training task has
	Candidate []Outcome
	Opponent  []Outcome
	Coder     []Outcome
}

// heldOut are the sets that tasks come from.
var heldOut = []store.Split{store.CompositionsSplit, store.KindsSplit}

// What a gate decides; empty is to go on.
const (
	Promoted = "promoted"
	Refused  = "refused"
	GoOn     = ""
)

// Decision is a decision with every number behind it.
type Decision struct {
	Decision string `json:"decision"` // "promoted", "refused", or empty: go on
	Reason   string `json:"reason"`
	Look     int    `json:"look"`  // from 1; 0: none yet
	Tasks    int    `json:"tasks"` // that it rests on, of both sets

	Faster  *Comparison `json:"faster_compile"`
	Geomean *Comparison `json:"geomean"` // as a quotient
	Correct *Comparison `json:"correct"`

	All  Side   `json:"all"`
	Sets []Side `json:"sets"` // by held-out set, then those of their tasks that hold an unseen primitive
}

// Comparison is how far two policies are apart in one figure. Tasks are the unit.
type Comparison struct {
	Candidate  float64  `json:"candidate"`
	Opponent   float64  `json:"opponent"`
	Difference float64  `json:"difference"` // of the geomean: candidate over opponent
	Low        *float64 `json:"low"`        // of Confidence; null: too few tasks for one
	High       *float64 `json:"high"`
	Confidence float64  `json:"confidence"` // two-sided
	P          float64  `json:"p"`          // of a difference like this or higher, were there none, at one look
	Clears     bool     `json:"clears"`     // what a promotion asks of it
}

// Side is what came of some tasks.
type Side struct {
	Split     store.Split `json:"split"` // empty: both
	Unseen    bool        `json:"unseen_primitives"`
	Tasks     int         `json:"tasks"`
	Candidate *Figures    `json:"candidate"`
	Opponent  *Figures    `json:"opponent"`
	Coder     *Figures    `json:"coder"`          // null: it was not asked
	Faster    *Comparison `json:"faster_compile"` // by itself, at 95 %
}

// Figures are shares of answers, their mean reward, and the geometric mean of their
// speedups against torch.compile, 1 where they are not correct.
type Figures struct {
	N             int     `json:"n"`
	Built         float64 `json:"built"`
	Correct       float64 `json:"correct"`
	FasterEager   float64 `json:"faster_eager"`
	FasterCompile float64 `json:"faster_compile"`
	Reward        float64 `json:"reward"`
	Geomean       float64 `json:"geomean"`
}

// sample is what the tests look at: by look, the tasks' differences in units.
type sample struct {
	look                   int
	pairs                  []Pair
	faster, speed, correct [][]int
}

// sampled takes the pairs of the last look that is complete. Pairs are in the
// order in which they were played.
func (s Settings) sampled(pairs []Pair) sample {
	var out sample
	have := map[store.Split]int{}
	for _, p := range pairs {
		have[p.Split]++
	}
	for out.look < s.Looks && have[heldOut[0]] >= s.due(out.look+1) && have[heldOut[1]] >= s.due(out.look+1) {
		out.look++
	}
	out.faster, out.speed, out.correct = make([][]int, out.look), make([][]int, out.look), make([][]int, out.look)
	place := map[store.Split]int{}
	for _, p := range pairs {
		place[p.Split]++
		k := 0
		for k < out.look && s.due(k+1) < place[p.Split] {
			k++
		}
		if k == out.look {
			continue
		}
		out.pairs = append(out.pairs, p)
		out.faster[k] = append(out.faster[k], units(difference(p, isFaster)))
		out.speed[k] = append(out.speed[k], units(difference(p, Outcome.log)))
		out.correct[k] = append(out.correct[k], units(difference(p, correctly)))
	}
	return out
}

func isFaster(o Outcome) float64  { return share(o.Reward >= kernelwright.RewardFasterThanCompile) }
func correctly(o Outcome) float64 { return share(o.Correct) }

func share(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

func mean(all []Outcome, of func(Outcome) float64) float64 {
	sum := 0.0
	for _, o := range all {
		sum += of(o)
	}
	return sum / float64(len(all))
}

func difference(p Pair, of func(Outcome) float64) float64 {
	return mean(p.Candidate, of) - mean(p.Opponent, of)
}

// finding is what the tests say; a Decision has the numbers beside it.
type finding struct {
	decision              string
	faster, speed         bool // clear
	correctNear, notWorse bool // correctness within the margin; not shown to be lower
	hopeless              bool // not Effect better
}

// find tests. Correctness has its own error to spend: whatever stops the gate, a policy that
// loses Margin of it passes at any look with at most the chance Level.
func (s Settings) find(x sample) finding {
	var f finding
	if x.look == 0 {
		return f
	}
	alpha, level := s.spent(s.Alpha, x.look), s.spent(s.Level, x.look)
	f.faster = rises(x.faster, alpha)
	f.speed = rises(x.speed, alpha)
	f.correctNear = rises(moved(x.correct, 1, units(s.Margin)), level)
	f.notWorse = !rises(mirrored(x.correct), level)
	f.hopeless = rises(moved(x.faster, -1, units(s.Effect)), s.spent(s.Beta, x.look))
	switch {
	case f.faster && f.speed && f.correctNear && f.notWorse:
		f.decision = Promoted
	case x.look == s.Looks || f.hopeless:
		f.decision = Refused
	}
	return f
}

// Decide says what the outcomes of the tasks, in the order in which they were
// played, decide. It looks at the last look that is complete, and says to go on
// where that decides nothing. It is a function of its arguments alone.
func Decide(s Settings, pairs []Pair) Decision {
	x := s.sampled(pairs)
	f := s.find(x)
	d := Decision{Decision: f.decision, Look: x.look, Tasks: len(x.pairs), All: side("", false, x.pairs), Sets: []Side{}}
	for _, split := range heldOut {
		d.Sets = append(d.Sets, side(split, false, x.pairs))
	}
	for _, split := range heldOut {
		if unseen := side(split, true, x.pairs); unseen.Tasks > 0 {
			d.Sets = append(d.Sets, unseen)
		}
	}
	if x.look == 0 {
		d.Reason = "too few tasks were played to look at"
		return d
	}
	alpha := s.spent(s.Alpha, x.look)
	d.Faster = compare(x.pairs, x.faster, alpha, isFaster, 1-2*s.Alpha, f.faster)
	d.Geomean = compare(x.pairs, x.speed, alpha, Outcome.log, 1-2*s.Alpha, f.speed).quotient()
	d.Correct = compare(x.pairs, x.correct, s.spent(s.Level, x.look), correctly, 1-2*s.Level, f.correctNear && f.notWorse)
	d.Reason = s.reason(d, f)
	return d
}

// compare makes the interval that goes with the test of the differences.
func compare(pairs []Pair, looks [][]int, spent []float64, of func(Outcome) float64, confidence float64, clears bool) *Comparison {
	c := &Comparison{Confidence: confidence, P: chance(looks), Clears: clears}
	for _, p := range pairs {
		c.Candidate += mean(p.Candidate, of) / float64(len(pairs))
		c.Opponent += mean(p.Opponent, of) / float64(len(pairs))
		c.Difference += difference(p, of) / float64(len(pairs))
	}
	if low := lowest(looks, spent); !math.IsInf(low, 0) {
		c.Low = &low
	}
	if high := -lowest(mirrored(looks), spent); !math.IsInf(high, 0) {
		c.High = &high
	}
	return c
}

// quotient turns differences of logarithms into quotients.
func (c *Comparison) quotient() *Comparison {
	c.Candidate, c.Opponent, c.Difference = math.Exp(c.Candidate), math.Exp(c.Opponent), math.Exp(c.Difference)
	for _, end := range []*float64{c.Low, c.High} {
		if end != nil {
			*end = math.Exp(*end)
		}
	}
	return c
}

func side(split store.Split, unseen bool, all []Pair) Side {
	out := Side{Split: split, Unseen: unseen}
	var candidate, opponent, coder []Outcome
	var pairs []Pair
	var differences []int
	for _, p := range all {
		if split != "" && p.Split != split || unseen && !p.Unseen {
			continue
		}
		pairs = append(pairs, p)
		candidate, opponent, coder = append(candidate, p.Candidate...), append(opponent, p.Opponent...), append(coder, p.Coder...)
		differences = append(differences, units(difference(p, isFaster)))
	}
	out.Tasks = len(pairs)
	out.Candidate, out.Opponent, out.Coder = figures(candidate), figures(opponent), figures(coder)
	if out.Tasks > 0 && split != "" {
		const each = 0.025
		looks := [][]int{differences}
		out.Faster = compare(pairs, looks, []float64{each}, isFaster, 1-2*each, rises(looks, []float64{each}))
	}
	return out
}

func figures(all []Outcome) *Figures {
	if len(all) == 0 {
		return nil
	}
	return &Figures{
		N:             len(all),
		Built:         mean(all, func(o Outcome) float64 { return share(o.Built) }),
		Correct:       mean(all, correctly),
		FasterEager:   mean(all, func(o Outcome) float64 { return share(o.Reward >= kernelwright.RewardFasterThanEager) }),
		FasterCompile: mean(all, isFaster),
		Reward:        mean(all, func(o Outcome) float64 { return float64(o.Reward) }),
		Geomean:       math.Exp(mean(all, Outcome.log)),
	}
}

// reason says in a sentence what decided.
func (s Settings) reason(d Decision, f finding) string {
	if d.Decision == Promoted {
		return fmt.Sprintf("the candidate is faster than torch.compile more often (%s) and faster on the whole (%s), and its answers are correct as often",
			points(d.Faster), times(d.Geomean))
	}
	var lacks []string
	if !f.faster {
		lacks = append(lacks, fmt.Sprintf("the rate of faster-than-compile is not shown to be higher (%s)", points(d.Faster)))
	}
	if !f.speed {
		lacks = append(lacks, fmt.Sprintf("the geometric mean of the speedups is not shown to be higher (%s)", times(d.Geomean)))
	}
	switch {
	case !f.notWorse:
		lacks = append(lacks, fmt.Sprintf("fewer answers are correct (%s)", points(d.Correct)))
	case !f.correctNear:
		lacks = append(lacks, fmt.Sprintf("the rate of correct answers may be over %s lower (%s)", pointsOf(s.Margin), points(d.Correct)))
	}
	why := strings.Join(lacks, "; ")
	switch {
	case d.Decision == GoOn:
		return "not decided yet: " + why
	case d.Look < s.Looks:
		return fmt.Sprintf("the candidate is not %s better, so it ends early: %s", pointsOf(s.Effect), why)
	}
	return why
}

func pointsOf(rate float64) string { return fmt.Sprintf("%.0f points", 100*rate) }

// points writes a difference of rates with its interval.
func points(c *Comparison) string {
	return fmt.Sprintf("%+.1f points, %s", 100*c.Difference, interval(c, "%+.1f", 100))
}

// times writes a quotient with its interval.
func times(c *Comparison) string {
	return fmt.Sprintf("%.3fx, %s", c.Difference, interval(c, "%.3f", 1))
}

// interval writes an interval; an end that is not known is a dash.
func interval(c *Comparison, format string, scale float64) string {
	end := func(v *float64) string {
		if v == nil {
			return "–"
		}
		return fmt.Sprintf(format, scale**v)
	}
	return fmt.Sprintf("%.3g %% interval %s to %s", 100*c.Confidence, end(c.Low), end(c.High))
}
