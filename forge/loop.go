package forge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
)

var errNoCoder = errors.New("there is no Coder")

// loop is one call of a strategy's Run, or of Step or Certify: what all of them
// share.
type loop struct {
	*Parts
	run      kernelwright.Run
	task     kernelwright.Task
	settings Settings
	now      func() time.Time
	rounds   []kernelwright.Round
	sources  sources // of the rounds
	// stops says whether a run with these rounds is over, from the rounds alone.
	stops func([]kernelwright.Round) (kernelwright.StopReason, string)

	began    time.Time     // of the round in progress
	mark     time.Time     // when the loop last got control back
	overhead time.Duration // its own time since the last round was closed

	empty bool // of an uncertified run: the Coder left no candidate
}

// ended says why a run is over. It goes up through a strategy as errors do, and
// is none.
type ended struct {
	stop kernelwright.StopReason
	why  string // somebody's own sentence, or empty
}

func (e *ended) Error() string { return "the run is over: " + string(e.stop) }

// begin reads the rounds so far.
func (p *Parts) begin(ctx context.Context, run kernelwright.Run, task kernelwright.Task) (*loop, error) {
	l := &loop{Parts: p, run: run, task: task, settings: p.Settings.withDefaults(), now: p.Now}
	if l.now == nil {
		l.now = time.Now
	}
	if err := l.settings.Validate(); err != nil {
		return nil, err
	}
	if p.Judge == nil && l.settings.JudgeMode.Asked() {
		return nil, errors.New("there is no Judge")
	}
	l.stops = func(rounds []kernelwright.Round) (kernelwright.StopReason, string) {
		return stopAfter(rounds, l.settings)
	}
	l.mark = l.now()
	l.began = l.mark
	var err error
	if l.rounds, err = p.Recorder.Rounds(ctx, run.ID); err != nil {
		return nil, fmt.Errorf("read the rounds so far: %w", err)
	}
	return l, nil
}

// bring is Run of every strategy: rounds adds rounds to the loop until it
// returns an *ended, or an error. unit is what its patience counts.
func (p *Parts) bring(ctx context.Context, run kernelwright.Run, task kernelwright.Task, unit string, rounds func(context.Context, *loop) error) (Outcome, error) {
	l, err := p.begin(ctx, run, task)
	if err != nil {
		return Outcome{}, err
	}
	end, err := over(rounds(ctx, l))
	if err != nil {
		return Outcome{}, err
	}
	out := Outcome{Status: kernelwright.RunDone, Stop: end.stop, Rounds: len(l.rounds)}
	if l.settings.Uncertified {
		out.Left = l.left()
	} else if out.Best, err = l.certify(ctx); err != nil {
		return Outcome{}, err
	}
	if end.stop == kernelwright.StopDeclined && len(l.rounds) == 0 {
		out.Status = kernelwright.RunDeclined
	}
	out.Summary = summarise(out, l.rounds, l.settings, end.why, unit)
	l.observe(Event{Kind: Finished, Outcome: &out, Best: out.Best})
	return out, nil
}

// left is the round of what the Coder left, nil where that is no candidate.
func (l *loop) left() *kernelwright.Round {
	if n := len(l.rounds); n > 0 && !l.empty {
		return &l.rounds[n-1]
	}
	return nil
}

// over tells the end of a run from an error.
func over(err error) (ended, error) {
	var end *ended
	var declined *kernelwright.DeclinedError
	var model *llm.Error
	switch {
	case errors.As(err, &end):
		return *end, nil
	case errors.As(err, &declined):
		return ended{kernelwright.StopDeclined, declined.Reason}, nil
	case errors.As(err, &model) && model.Kind == llm.OverBudget:
		return ended{kernelwright.StopBudget, model.Text}, nil
	case err == nil:
		return ended{}, errors.New("the strategy ended without a reason")
	}
	return ended{}, err
}

// goOn returns why no further round may begin: an *ended by the rounds so far,
// ErrHalted, or the context's error.
func (l *loop) goOn(ctx context.Context) error {
	if stop, why := l.stops(l.rounds); stop != "" {
		return &ended{stop, why}
	}
	return l.halted(ctx)
}

func (l *loop) halted(ctx context.Context) error {
	select {
	case <-l.Halt:
		return ErrHalted
	default:
		return ctx.Err()
	}
}

// outside runs what is not the loop's own work and keeps it out of the
// overhead.
func (l *loop) outside(f func()) {
	l.leave()
	f()
	l.enter()
}

func (l *loop) leave() { l.overhead += l.now().Sub(l.mark) }
func (l *loop) enter() { l.mark = l.now() }

func (l *loop) observe(e Event) {
	if l.Observe == nil {
		return
	}
	e.Run, e.Rounds = l.run, l.settings.Rounds
	if e.Best == nil {
		e.Best = best(l.rounds)
	}
	l.outside(func() { l.Observe(e) })
}

// answer is what a Coder sent: a candidate, or why there is none in it.
type answer struct {
	candidate kernelwright.Candidate
	unusable  *kernelwright.UnusableError
}

// ask has the Coder propose. It touches nothing of the loop's: several may be
// asked at once.
func (l *loop) ask(ctx context.Context, in kernelwright.CoderInput) (answer, error) {
	c, err := l.Coder.Propose(ctx, in)
	var unusable *kernelwright.UnusableError
	if errors.As(err, &unusable) {
		return answer{unusableCandidate(unusable, l.settings.Language), unusable}, nil
	}
	if err != nil {
		return answer{}, fmt.Errorf("coder: %w", err)
	}
	return answer{candidate: c}, nil
}

// open begins the next round with what the Coder sent.
func (l *loop) open(a answer, parent int) *kernelwright.Round {
	round := &kernelwright.Round{RunID: l.run.ID, Index: len(l.rounds), Candidate: a.candidate, StartedMS: l.began.UnixMilli()}
	if parent != round.Index-1 {
		round.Parent = &parent
	}
	l.observe(Event{Kind: Proposed, Index: round.Index, Candidate: &round.Candidate})
	return round
}

// known gives a round the verdict that needs no hardware, where there is one:
// an earlier round's on the same source, or that its answer is unusable.
func (l *loop) known(round *kernelwright.Round, a answer) bool {
	if earlier := l.duplicate(round.Candidate, len(l.rounds)); earlier != nil {
		round.Verdict = earlier.Verdict
		round.Verdict.Cached = true
		return true
	}
	if a.unusable != nil {
		round.Verdict = unusableVerdict(a.unusable, round.Candidate, l.task, l.Device)
		return true
	}
	return false
}

// evaluate asks the hardware.
func (l *loop) evaluate(ctx context.Context, round *kernelwright.Round) (err error) {
	l.outside(func() {
		round.Verdict, err = l.Evaluator.Evaluate(ctx, l.task, round.Candidate, kernelwright.Quick)
	})
	if err != nil {
		return fmt.Errorf("evaluate: %w", err)
	}
	// Who was not told what a text is written in is told by its verdict.
	round.Candidate.Language = cmp.Or(round.Candidate.Language, round.Verdict.Language)
	return nil
}

// close has a round with a verdict judged, where somebody will read that, and
// records it. Where the budget does not allow the Judge, the round is recorded
// without a feedback, and the error says so.
func (l *loop) close(ctx context.Context, round *kernelwright.Round, a answer, read bool) error {
	l.stamp(round)
	with := l.with(round)
	repeats := l.duplicate(round.Candidate, len(l.rounds)) != nil
	l.observe(Event{Kind: Verdict, Index: round.Index, Candidate: &round.Candidate, Verdict: &round.Verdict, Best: best(with), Duplicate: repeats})

	var spent error
	// A feedback that no round will read is not asked for: it may cost money.
	if stop, _ := l.stops(with); stop == "" && read {
		err := l.askJudge(ctx, round, a)
		var model *llm.Error
		if errors.As(err, &model) && model.Kind == llm.OverBudget {
			spent = err
		} else if err != nil {
			return fmt.Errorf("judge: %w", err)
		}
		if round.Feedback != nil {
			with[len(with)-1] = *round
			l.observe(Event{Kind: Feedback, Index: round.Index, Feedback: round.Feedback, Best: best(with)})
		}
	}
	end := l.now()
	l.overhead += end.Sub(l.mark)
	l.mark = end
	l.stamp(round)
	round.OverheadMS = float64(l.overhead) / float64(time.Millisecond)
	l.overhead = 0
	if err := l.Recorder.AppendRound(ctx, *round); err != nil {
		return err
	}
	l.rounds = append(l.rounds, *round)
	l.began = l.now()
	l.observe(Event{Kind: RoundDone, Index: round.Index, Candidate: &round.Candidate, Verdict: &round.Verdict, Feedback: round.Feedback, Duplicate: repeats})
	return spent
}

// with returns the rounds so far and this one.
func (l *loop) with(round *kernelwright.Round) []kernelwright.Round {
	return append(slices.Clip(l.rounds), *round)
}

// stamp says when a round ended, by what went by since it began and not by what
// the clock shows: it may be set in between.
func (l *loop) stamp(round *kernelwright.Round) {
	round.FinishedMS = round.StartedMS + l.now().Sub(l.began).Milliseconds()
	if l.restamp != nil {
		l.restamp(round)
	}
}

// askJudge gives a round its feedback, if it gets one.
func (l *loop) askJudge(ctx context.Context, round *kernelwright.Round, a answer) error {
	in, asked := l.judgeInput(round)
	if !asked {
		return nil
	}
	var f kernelwright.Feedback
	var err error
	if a.unusable != nil {
		f = replyCorrection(a.unusable)
	} else {
		l.outside(func() { f, err = l.Judge.Judge(ctx, in) })
	}
	if err == nil {
		err = checkFeedback(f, in.Want)
	}
	if err != nil {
		return err
	}
	round.Feedback = &f
	return nil
}

// judgeInput is what the Judge sees of a round, and whether it is asked.
func (l *loop) judgeInput(round *kernelwright.Round) (kernelwright.JudgeInput, bool) {
	want, mode := kernelwright.Correction, JudgeCorrection
	if round.Verdict.Status.OK() {
		want, mode = kernelwright.Optimisation, JudgeOptimisation
	}
	return kernelwright.JudgeInput{
		Run: l.run.ID, Task: l.task, Device: l.Device, Want: want, History: l.rounds, Lessons: l.Lessons, Seed: l.run.Seed,
		Current:     kernelwright.Attempt{Candidate: round.Candidate, Verdict: round.Verdict},
		Parent:      round.Parent,
		FullMetrics: l.settings.Metrics == FullMetrics,
	}, l.settings.JudgeMode == JudgeBoth || l.settings.JudgeMode == mode
}

func checkFeedback(f kernelwright.Feedback, want kernelwright.FeedbackKind) error {
	if err := f.Validate(); err != nil {
		return err
	}
	if f.Kind != want && f.Kind != kernelwright.Stop {
		return fmt.Errorf("feedback: kind is %q where %q was asked for", f.Kind, want)
	}
	return nil
}

// noParent is the parent of a round that goes on from no other.
const noParent = -1

// coderInput is what the Coder sees for a round that goes on from another, the parent.
func (l *loop) coderInput(index, parent, sample int) kernelwright.CoderInput {
	in := kernelwright.CoderInput{
		Run: l.run.ID, Task: l.task, Device: l.Device, Language: l.settings.Language, Round: index, Lessons: l.Lessons, Seed: l.run.Seed, Sample: sample,
	}
	switch l.settings.JudgeMode {
	case JudgeSelf:
		in.View, in.FullMetrics = kernelwright.ViewMetrics, l.settings.Metrics == FullMetrics
	case JudgeScore:
		in.View = kernelwright.ViewScore
	}
	// An answer without a candidate is nothing to go on from: the Coder goes on from the candidate before it.
	for parent != noParent {
		unusable := unusableOf(l.rounds[parent])
		if unusable == nil {
			break
		}
		if in.Unusable == nil {
			in.Unusable = unusable
		}
		parent = l.rounds[parent].After()
	}
	if parent == noParent {
		return in
	}
	last := l.rounds[parent]
	in.Last = &kernelwright.Attempt{Candidate: last.Candidate, Verdict: last.Verdict}
	if in.View == kernelwright.ViewScore {
		in.Last.Verdict = score(last.Verdict)
	}
	in.Feedback = last.Feedback
	if same := l.duplicate(last.Candidate, parent); same != nil {
		in.SameAs = &same.Index
	}
	return in
}

// score is all that a Coder sees of a verdict where it is to go by its speedup
// alone. What is wrong with the form of an answer is no measurement: it sees that.
func score(v kernelwright.Verdict) kernelwright.Verdict {
	s := kernelwright.Verdict{Status: v.Status, Level: v.Level, Speedup: v.Speedup}
	if v.Status == kernelwright.Rejected {
		s.Reason, s.Hint = v.Reason, v.Hint
	}
	return s
}
