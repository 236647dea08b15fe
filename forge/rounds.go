package forge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/kernelwright/kernelwright"
)

// RoundsStrategy is the name of the strategy in records.
const RoundsStrategy = "rounds"

// Rounds is CudaForge's loop (arXiv 2511.01884). Round 0 generates; a failed
// candidate gets one correction, a correct one gets one optimisation; the
// Coder sees the task, its last candidate and the feedback, nothing else. At
// the end the fastest correct candidate is certified.
//
// Every decision follows from what was recorded, so a run that was interrupted
// anywhere goes on as if it had not been.
type Rounds struct {
	Coder     Coder
	Judge     Judge // may be nil with JudgeNone
	Evaluator Evaluator
	Recorder  Recorder
	Device    kernelwright.Device
	Settings  Settings

	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Observe is called in the goroutine of Run, in order, and holds the run
	// up while it runs. It may be nil.
	Observe func(Event)
	// Halt, once closed, ends Run with ErrHalted after the round in progress
	// was recorded. Cancelling the context does not wait for the round, which
	// is then lost and done again. It may be nil.
	Halt <-chan struct{}
}

// Run brings a run to its end: it reads the rounds recorded so far, goes on
// from there, and certifies the best. The error is a context's, ErrHalted, or
// infrastructure; after any of them Run can be called again.
func (r *Rounds) Run(ctx context.Context, run kernelwright.Run, task kernelwright.Task) (Outcome, error) {
	l, err := r.begin(ctx, run, task)
	if err != nil {
		return Outcome{}, err
	}
	stop, why, err := l.generate(ctx)
	if err != nil {
		return Outcome{}, err
	}
	best, err := l.certify(ctx)
	if err != nil {
		return Outcome{}, err
	}
	out := Outcome{Status: kernelwright.RunDone, Stop: stop, Best: best, Rounds: len(l.rounds)}
	if stop == kernelwright.StopDeclined && len(l.rounds) == 0 {
		out.Status = kernelwright.RunDeclined
	}
	out.Summary = summarise(out, l.rounds, l.settings, why)
	l.observe(Event{Kind: Finished, Outcome: &out, Best: best})
	return out, nil
}

// begin reads the rounds so far.
func (r *Rounds) begin(ctx context.Context, run kernelwright.Run, task kernelwright.Task) (*loop, error) {
	l := &loop{Rounds: r, run: run, task: task, settings: r.Settings.withDefaults(), now: r.Now}
	if l.now == nil {
		l.now = time.Now
	}
	if err := l.settings.Validate(); err != nil {
		return nil, err
	}
	if r.Judge == nil && l.settings.JudgeMode != JudgeNone {
		return nil, errors.New("rounds: there is no Judge")
	}
	l.mark = l.now()
	var err error
	if l.rounds, err = r.Recorder.Rounds(ctx, run.ID); err != nil {
		return nil, fmt.Errorf("read the rounds so far: %w", err)
	}
	return l, nil
}

// loop is one call of Run, Step or Certify.
type loop struct {
	*Rounds
	run      kernelwright.Run
	task     kernelwright.Task
	settings Settings
	now      func() time.Time
	rounds   []kernelwright.Round

	mark     time.Time     // when the loop last got control back
	overhead time.Duration // its own time since the last round was closed
}

// outside runs what is not the loop's own work and keeps it out of the
// overhead.
func (l *loop) outside(f func()) {
	l.overhead += l.now().Sub(l.mark)
	f()
	l.mark = l.now()
}

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

// generate adds rounds until the run stops. why is the Judge's or the Coder's
// own sentence, where one of them ended it.
func (l *loop) generate(ctx context.Context) (stop kernelwright.StopReason, why string, err error) {
	for {
		if stop, why := stopAfter(l.rounds, l.settings); stop != "" {
			return stop, why, nil
		}
		select {
		case <-l.Halt:
			return "", "", ErrHalted
		default:
		}
		err := l.round(ctx)
		var declined *kernelwright.DeclinedError
		if errors.As(err, &declined) {
			return kernelwright.StopDeclined, declined.Reason, nil
		}
		if err != nil {
			return "", "", fmt.Errorf("round %d: %w", len(l.rounds), err)
		}
	}
}

func (l *loop) round(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	began := l.now()
	round := kernelwright.Round{RunID: l.run.ID, Index: len(l.rounds), StartedMS: began.UnixMilli()}
	// By what went by, not by what the clock shows: it may be set in between.
	finished := func(now time.Time) int64 { return round.StartedMS + now.Sub(began).Milliseconds() }
	l.observe(Event{Kind: RoundStarted, Index: round.Index})

	in := coderInput(l.run, l.task, l.Device, l.settings, l.rounds)
	var err error
	l.outside(func() { round.Candidate, err = l.Coder.Propose(ctx, in) })
	if err != nil {
		return fmt.Errorf("coder: %w", err)
	}
	l.observe(Event{Kind: Proposed, Index: round.Index, Candidate: &round.Candidate})

	earlier := duplicateOf(round.Candidate, l.rounds)
	if earlier != nil {
		round.Verdict = earlier.Verdict
		round.Verdict.Cached = true
	} else {
		l.outside(func() {
			round.Verdict, err = l.Evaluator.Evaluate(ctx, l.task, round.Candidate, kernelwright.Quick)
		})
		if err != nil {
			return fmt.Errorf("evaluate: %w", err)
		}
	}
	// Who was not told what a text is written in is told by its verdict.
	round.Candidate.Language = cmp.Or(round.Candidate.Language, round.Verdict.Language)
	round.FinishedMS = finished(l.now())
	l.observe(Event{Kind: Verdict, Index: round.Index, Candidate: &round.Candidate, Verdict: &round.Verdict, Duplicate: earlier != nil,
		Best: best(append(l.rounds[:len(l.rounds):len(l.rounds)], round))})

	// A feedback that no round will read is not asked for: it may cost money.
	if stop, _ := stopAfter(append(l.rounds[:len(l.rounds):len(l.rounds)], round), l.settings); stop == "" {
		if in, ok := judgeInput(l.run, l.task, l.Device, l.settings, l.rounds, round); ok {
			var f kernelwright.Feedback
			l.outside(func() { f, err = l.Judge.Judge(ctx, in) })
			if err == nil {
				err = checkFeedback(f, in.Want)
			}
			if err != nil {
				return fmt.Errorf("judge: %w", err)
			}
			round.Feedback = &f
			l.observe(Event{Kind: Feedback, Index: round.Index, Feedback: &f,
				Best: best(append(l.rounds[:len(l.rounds):len(l.rounds)], round))})
		}
	}
	end := l.now()
	l.overhead += end.Sub(l.mark)
	l.mark = end
	round.FinishedMS = finished(end)
	round.OverheadMS = float64(l.overhead) / float64(time.Millisecond)
	l.overhead = 0
	if err := l.Recorder.AppendRound(ctx, round); err != nil {
		return err
	}
	l.rounds = append(l.rounds, round)
	l.observe(Event{Kind: RoundDone, Index: round.Index, Candidate: &round.Candidate, Verdict: &round.Verdict, Feedback: round.Feedback})
	return nil
}

// coderInput is what the Coder sees for the round after these.
func coderInput(run kernelwright.Run, task kernelwright.Task, device kernelwright.Device, s Settings, rounds []kernelwright.Round) kernelwright.CoderInput {
	in := kernelwright.CoderInput{Run: run.ID, Task: task, Device: device, Language: s.Language, Round: len(rounds), Seed: run.Seed}
	if n := len(rounds); n > 0 {
		last := rounds[n-1]
		in.Last = &kernelwright.Attempt{Candidate: last.Candidate, Verdict: last.Verdict}
		in.Feedback = last.Feedback
	}
	return in
}

// judgeInput is what the Judge sees of a round, and whether it is asked.
func judgeInput(run kernelwright.Run, task kernelwright.Task, device kernelwright.Device, s Settings, history []kernelwright.Round, round kernelwright.Round) (kernelwright.JudgeInput, bool) {
	want := kernelwright.Correction
	mode := JudgeCorrection
	if round.Verdict.Status.OK() {
		want, mode = kernelwright.Optimisation, JudgeOptimisation
	}
	return kernelwright.JudgeInput{
		Run: run.ID, Task: task, Device: device, Want: want, History: history, Seed: run.Seed,
		Current: kernelwright.Attempt{Candidate: round.Candidate, Verdict: round.Verdict},
	}, s.JudgeMode == JudgeBoth || s.JudgeMode == mode
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

// stopAfter says whether a run with these rounds goes on, from the rounds
// alone. why is set where the Judge gave one.
func stopAfter(rounds []kernelwright.Round, s Settings) (stop kernelwright.StopReason, why string) {
	if len(rounds) == 0 {
		return "", ""
	}
	if f := rounds[len(rounds)-1].Feedback; f != nil && f.Kind == kernelwright.Stop {
		return kernelwright.StopJudge, f.Why
	}
	if b := best(rounds); b != nil && s.HeadroomStop > 0 && b.Verdict.Headroom >= s.HeadroomStop {
		return kernelwright.StopHeadroom, ""
	}
	if s.Patience > 0 && sinceProgress(rounds) >= s.Patience {
		return kernelwright.StopNoProgress, ""
	}
	if len(rounds) >= s.Rounds {
		return kernelwright.StopRounds, ""
	}
	if s.WallTime > 0 && spent(rounds) >= s.WallTime {
		return kernelwright.StopWallTime, ""
	}
	return "", ""
}

// spent is the time that the rounds took, whoever ran them and whenever.
func spent(rounds []kernelwright.Round) time.Duration {
	var ms int64
	for _, r := range rounds {
		ms += max(r.FinishedMS-r.StartedMS, 0) // records are foreign bytes
	}
	return time.Duration(ms) * time.Millisecond
}

// sinceProgress counts the rounds after the last one that was better than all
// before it beyond the noise of measuring. Small gains add up: each is held
// against the last progress, not against the round before. Before the first
// correct candidate there is nothing to make progress from, and it is 0.
func sinceProgress(rounds []kernelwright.Round) int {
	at := -1
	for i, r := range rounds {
		if kept(r) && (at < 0 || faster(r.Verdict, rounds[at].Verdict)) {
			at = i
		}
	}
	if at < 0 {
		return 0
	}
	return len(rounds) - 1 - at
}

// plainMargin is the gain that counts as progress between times that came
// without intervals: timing noise between processes reaches 2 %.
const plainMargin = 0.02

// faster reports whether a is faster than b beyond the noise of measuring.
func faster(a, b kernelwright.Verdict) bool {
	ta, tb := a.Timing.Candidate, b.Timing.Candidate
	if ta.HighMS > 0 && tb.LowMS > 0 {
		return ta.HighMS < tb.LowMS
	}
	return a.CandidateMS < b.CandidateMS*(1-plainMargin)
}

// kept reports whether a round's candidate may become the kernel of its run.
func kept(r kernelwright.Round) bool { return r.Verdict.Status.OK() && r.Verdict.CandidateMS > 0 }

// best is the fastest correct round by its quick verdict; the earlier of equals.
func best(rounds []kernelwright.Round) *kernelwright.Round {
	var b *kernelwright.Round
	for i := range rounds {
		if r := &rounds[i]; kept(*r) && (b == nil || r.Verdict.CandidateMS < b.Verdict.CandidateMS) {
			b = r
		}
	}
	return b
}

// certify has the rounds' candidates certified, the fastest first, until one
// is. Certificates from before an interruption count.
func (l *loop) certify(ctx context.Context) (*kernelwright.Round, error) {
	order := byTime(l.rounds)
	for n, i := range order {
		r := &l.rounds[i]
		if r.Certificate == nil && duplicateOf(r.Candidate, pick(l.rounds, order[:n])) != nil {
			continue // its twin failed
		}
		certified, err := l.certifyRound(ctx, i)
		if err != nil {
			return nil, err
		}
		if certified {
			return r, nil
		}
	}
	return nil, nil
}

// certifyRound has a round's candidate certified, unless it was asked before.
func (l *loop) certifyRound(ctx context.Context, i int) (bool, error) {
	r := &l.rounds[i]
	if r.Certificate != nil {
		return r.Certificate.Status == kernelwright.Certified, nil
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	l.observe(Event{Kind: Certifying, Index: i, Candidate: &r.Candidate})
	v, err := l.Evaluator.Evaluate(ctx, l.task, r.Candidate, kernelwright.Certify)
	if err != nil {
		return false, fmt.Errorf("certify round %d: %w", i, err)
	}
	if err := l.Recorder.SetCertificate(ctx, l.run.ID, i, v); err != nil {
		return false, err
	}
	r.Certificate = &v
	l.observe(Event{Kind: Certified, Index: i, Candidate: &r.Candidate, Verdict: &v})
	return v.Status == kernelwright.Certified, nil
}

// byTime returns the indices of the rounds that may be certified, the fastest
// first.
func byTime(rounds []kernelwright.Round) []int {
	var order []int
	for i, r := range rounds {
		if kept(r) {
			order = append(order, i)
		}
	}
	sort.SliceStable(order, func(a, b int) bool {
		return rounds[order[a]].Verdict.CandidateMS < rounds[order[b]].Verdict.CandidateMS
	})
	return order
}

func pick(rounds []kernelwright.Round, order []int) []kernelwright.Round {
	picked := make([]kernelwright.Round, len(order))
	for n, i := range order {
		picked[n] = rounds[i]
	}
	return picked
}

// duplicateOf returns the first of the rounds with the same source, or nil.
func duplicateOf(c kernelwright.Candidate, rounds []kernelwright.Round) *kernelwright.Round {
	want := normalise(c.Source)
	for i := range rounds {
		if (c.Language == "" || rounds[i].Candidate.Language == c.Language) && normalise(rounds[i].Candidate.Source) == want {
			return &rounds[i]
		}
	}
	return nil
}

// schedulePrefix opens the comment with a candidate's schedule.
var schedulePrefix, _, _ = strings.Cut(kernelwright.Schedule{}.Comment(), "{")

// normalise drops what cannot change what a source does: line ends, space at
// the end of lines and of the text, and the schedule comment. No more than
// that: a line that opens with # is a comment in Python and a pragma in the
// C++ between quotes. The evaluator's cache knows the finer equality.
func normalise(source string) string {
	var b strings.Builder
	for line := range strings.Lines(source) {
		if strings.HasPrefix(line, schedulePrefix) {
			continue
		}
		b.WriteString(strings.TrimRight(line, " \t\r\n"))
		b.WriteByte('\n')
	}
	return strings.TrimRight(b.String(), "\n")
}

// summarise says in one sentence how a run ended.
func summarise(out Outcome, rounds []kernelwright.Round, s Settings, why string) string {
	ended := map[kernelwright.StopReason]string{
		kernelwright.StopRounds:     "the rounds were used up",
		kernelwright.StopWallTime:   "the time was used up",
		kernelwright.StopHeadroom:   "the kernel is at the roofline",
		kernelwright.StopNoProgress: "none of the last " + plural(s.Patience, "round") + " was faster beyond the noise of measuring",
		kernelwright.StopJudge:      "the Judge saw nothing left to gain",
		kernelwright.StopDeclined:   "the Coder had nothing more to try",
	}[out.Stop]
	if out.Status == kernelwright.RunDeclined {
		return "The Coder declined: " + sentence(why)
	}
	if why != "" {
		ended += " (" + strings.TrimSuffix(strings.TrimSpace(why), ".") + ")"
	}
	after := plural(len(rounds), "round")
	if out.Best == nil {
		if best(rounds) != nil {
			return fmt.Sprintf("No candidate passed certification after %s: %s.", after, ended)
		}
		if len(rounds) == 0 {
			return fmt.Sprintf("No candidate was tried: %s.", ended)
		}
		last := rounds[len(rounds)-1].Verdict
		return fmt.Sprintf("No candidate was correct after %s, the last one was %s: %s.", after, last.Status, ended)
	}
	v := out.Best.Certificate
	speed := "of unknown speedup"
	if s := v.Speedup; s != nil {
		speed = fmt.Sprintf("%.2fx the speed of %s (%.2f to %.2f)", s.Value, s.Against, s.Low, s.High)
		if s.Low <= 1 && s.High >= 1 {
			speed += ", which is no measurable difference"
		}
	}
	return fmt.Sprintf("Certified round %d, %s, after %s: %s.", out.Best.Index, speed, after, ended)
}

func sentence(s string) string {
	s = strings.TrimSpace(s)
	if s == "" || strings.HasSuffix(s, ".") {
		return s
	}
	return s + "."
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}
