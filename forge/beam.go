package forge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/kernelwright/kernelwright"
)

// Beam goes on from the k best candidates at once. The first generation is
// written from the task alone; each later one asks for several samples of each
// of the beam. A round has one candidate, so a generation is several rounds,
// each of which names its parent. The beam holds no two candidates with the
// same source, or the same built code and Python. Feedback is asked for only
// where a candidate is among the best when it is evaluated.
//
// A candidate about which the Judge says stop, and one from which the Coder
// declines to go on, keeps its place and gets no further samples.
type Beam struct{ Parts }

// proposalsAtOnce is how many samples of a generation are asked for at the same
// time. A model's own limits come on top.
const proposalsAtOnce = 8

// Name returns "beam".
func (*Beam) Name() string { return BeamStrategy }

// Run is Strategy's.
func (b *Beam) Run(ctx context.Context, run kernelwright.Run, task kernelwright.Task) (Outcome, error) {
	return b.bring(ctx, run, task, "generation", func(ctx context.Context, l *loop) error {
		if l.Coder == nil {
			return errNoCoder
		}
		// In the middle of a generation nobody loses patience, and a Judge's stop
		// is about one candidate.
		whole := l.settings
		whole.Patience = 0
		l.stops = func(rounds []kernelwright.Round) (kernelwright.StopReason, string) {
			if len(rounds) == 0 {
				return "", ""
			}
			return limit(rounds, whole), ""
		}
		var declined declines
		for {
			if err := l.goOn(ctx); err != nil {
				return err
			}
			g, err := grow(l.rounds, l.settings, &declined)
			if end, ok := errors.AsType[*ended](err); ok && end.stop == kernelwright.StopDeclined {
				end.why = l.reason(ctx, declined[len(declined)-1])
			}
			if err != nil {
				return err
			}
			if p := l.settings.Patience; p > 0 && len(l.rounds) == g.first && g.idle >= p {
				return &ended{stop: kernelwright.StopNoProgress}
			}
			if err := l.generation(ctx, g, &declined); err != nil {
				return fmt.Errorf("round %d: %w", len(l.rounds), err)
			}
		}
	})
}

// sample is one answer that a generation asks for.
type sample struct{ parent, number int }

// decline is that the Coder would not go on from a round.
type decline struct {
	sample
	first int    // where the generation begins in which it declined
	index int    // the round that it would not write
	why   string // empty where the record alone tells of it
}

// declines are in the order in which the Coder declined, wherever the run was
// interrupted.
type declines []decline

// by returns the decline to go on from a parent, or nil.
func (d declines) by(parent int) *decline {
	if i := slices.IndexFunc(d, func(d decline) bool { return d.parent == parent }); i >= 0 {
		return &d[i]
	}
	return nil
}

// reason is the Coder's own sentence for a decline. Where only the record tells
// that it declined, it is asked the same question again: a model's answer is in
// the journal. Nothing but a sentence hangs on it, so where no answer comes the run
// ends without a reason, not with an error.
func (l *loop) reason(ctx context.Context, d decline) string {
	if d.why != "" {
		return d.why
	}
	var no *kernelwright.DeclinedError
	l.outside(func() {
		if _, err := l.ask(ctx, l.coderInput(d.index, d.parent, d.number)); errors.As(err, &no) {
			d.why = no.Reason
		}
	})
	return d.why
}

// generation is the one in progress after some rounds.
type generation struct {
	first int      // its first round
	todo  []sample // what is left of it, in the order of its rounds
	idle  int      // generations before it without progress, once a candidate was correct
}

// grow finds the generation in progress, from the rounds alone. declined has
// the parents from which the Coder would not go on, as far as this process has
// asked; it adds those that the record tells of. Where no generation can follow,
// the error is an *ended.
func grow(rounds []kernelwright.Round, s Settings, declined *declines) (generation, error) {
	var g generation
	fastest := -1 // the last round that was progress
	for start, before := 0, 0; ; {
		parents, err := beamParents(rounds, start, before, s, *declined)
		if err != nil {
			return g, err
		}
		g.first = start
		at := start
		for _, want := range plan(parents, start, s) {
			switch {
			case at < len(rounds) && rounds[at].After() == want.parent:
				at++
			case declined.by(want.parent) != nil:
			case at == len(rounds):
				g.todo = append(g.todo, want)
			default: // the record goes on with another: the Coder declined
				*declined = append(*declined, decline{sample: want, first: start, index: at})
			}
		}
		switch {
		case len(g.todo) > 0:
			return g, nil
		case at == start && at < len(rounds):
			return g, fmt.Errorf("round %d of the record does not follow from those before it", at)
		case at == start:
			return g, &ended{stop: kernelwright.StopDeclined}
		}
		progress := fastest
		for i := start; i < at; i++ {
			if kept(rounds[i]) && (progress < 0 || rounds[i].Verdict.FasterThan(rounds[progress].Verdict)) {
				progress = i
			}
		}
		switch {
		case progress != fastest:
			fastest, g.idle = progress, 0
		case fastest >= 0:
			g.idle++
		}
		start, before = at, start
	}
}

// plan is what a generation asks for.
func plan(parents []int, start int, s Settings) []sample {
	samples := s.Beam.Samples
	if start == 0 {
		samples *= s.Beam.Width
	}
	var p []sample
	for _, parent := range parents {
		for n := range samples {
			p = append(p, sample{parent, n})
		}
	}
	return p
}

// beamParents returns the rounds that the generation which begins at start goes
// on from, the best first; before is where the one before it began.
func beamParents(rounds []kernelwright.Round, start, before int, s Settings, declined declines) ([]int, error) {
	if start == 0 {
		return []int{noParent}, nil
	}
	end := &ended{stop: kernelwright.StopDeclined}
	var parents []int
	for _, i := range beamOf(rounds[:start], before, s.Beam.Width) {
		f := rounds[i].Feedback
		switch no := declined.by(i); {
		case f != nil && f.Kind == kernelwright.Stop:
			end = &ended{kernelwright.StopJudge, f.Why}
		case no == nil || no.first >= start:
			parents = append(parents, i)
		}
	}
	if len(parents) == 0 {
		return nil, end
	}
	return parents, nil
}

// beamOf returns the indices of the k best rounds: correct ones by time, then,
// of the generation that began at first, failed ones by how far they came. Of
// those with the same source, or the same built code and the same Python, only the
// best is there: each has a verdict of its own, whatever the beam holds. As
// a generation grows no round rises in it, so what is left out can be forgotten.
func beamOf(rounds []kernelwright.Round, first, k int) []int {
	var order []int
	for i, r := range rounds {
		if kept(r) || i >= first {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int {
		ra, rb := rounds[a], rounds[b]
		if ka, kb := kept(ra), kept(rb); ka != kb || !ka {
			return cmp.Compare(standing(ra), standing(rb))
		}
		return cmp.Compare(ra.Verdict.CandidateMS, rb.Verdict.CandidateMS)
	})
	seen := map[string]bool{}
	var beam []int
	for _, i := range order {
		key := keyOf(rounds[i].Candidate)
		same := false
		ids := []string{"source " + string(key[:])}
		if code := rounds[i].Verdict.Build.Code; code != "" {
			ids = append(ids, "code "+code)
		}
		for _, id := range ids {
			same = same || seen[id]
			seen[id] = true
		}
		if !same {
			beam = append(beam, i)
		}
		if len(beam) == k {
			break
		}
	}
	return beam
}

// standing orders rounds by how far their candidate came, the farthest first.
func standing(r kernelwright.Round) int {
	if kept(r) {
		return -1
	}
	far := []kernelwright.Status{
		kernelwright.Correct, kernelwright.Wrong, kernelwright.TimedOut, kernelwright.Crashed, kernelwright.BuildFailed,
		kernelwright.Rejected, kernelwright.Cheated,
	}
	if i := slices.Index(far, r.Verdict.Status); i >= 0 {
		return i
	}
	return len(far)
}

// generation asks for what is left of a generation, has it evaluated, and records
// it in the order of its rounds. Of answers after one that was declined or that
// failed nothing is recorded: they are asked for again, under another index.
func (l *loop) generation(ctx context.Context, g generation, declined *declines) error {
	todo := g.todo[:min(len(g.todo), l.settings.Rounds-len(l.rounds))]
	l.observe(Event{Kind: RoundStarted, Index: len(l.rounds)})
	answers, failed := l.askAll(ctx, todo)
	if err := l.evaluateGeneration(ctx, g, todo, answers); err != nil {
		return err
	}
	var no *kernelwright.DeclinedError
	if errors.As(failed, &no) {
		*declined = append(*declined, decline{todo[len(answers)], g.first, len(l.rounds), no.Reason})
		return nil
	}
	return failed
}

// askAll returns the answers to the samples, in their order, up to the first
// error, which it returns.
func (l *loop) askAll(ctx context.Context, todo []sample) ([]answer, error) {
	inputs := make([]kernelwright.CoderInput, len(todo))
	for i, s := range todo {
		inputs[i] = l.coderInput(len(l.rounds)+i, s.parent, s.number)
	}
	answers, errs := make([]answer, len(todo)), make([]error, len(todo))
	l.outside(func() {
		var wg sync.WaitGroup
		free := make(chan struct{}, proposalsAtOnce)
		for i, in := range inputs {
			free <- struct{}{}
			wg.Go(func() {
				defer func() { <-free }()
				answers[i], errs[i] = l.ask(ctx, in)
			})
		}
		wg.Wait()
	})
	for i, err := range errs {
		if err != nil {
			return answers[:i], err
		}
	}
	return answers, nil
}

// evaluateGeneration has the answers evaluated, those that the hardware must be asked about
// together where the evaluator can, and records each in its turn.
func (l *loop) evaluateGeneration(ctx context.Context, g generation, todo []sample, answers []answer) error {
	var fresh []int
	var candidates []kernelwright.Candidate
	seen := map[sourceKey]bool{}
	for i, a := range answers {
		key := keyOf(a.candidate)
		if a.unusable == nil && !seen[key] && l.duplicate(a.candidate, len(l.rounds)) == nil {
			fresh, candidates = append(fresh, i), append(candidates, a.candidate)
		}
		seen[key] = true
	}
	next := 0
	// finish records the next answer. The verdict is nil where none was asked for.
	finish := func(v *kernelwright.Verdict) error {
		a := answers[next]
		if next > 0 {
			l.observe(Event{Kind: RoundStarted, Index: len(l.rounds)})
		}
		round := l.open(a, todo[next].parent)
		next++
		switch known := l.known(round, a); {
		case v != nil:
			round.Verdict = *v
		case !known:
			return errors.New("an evaluator left a candidate of a batch out")
		}
		read := slices.Contains(beamOf(l.with(round), g.first, l.settings.Beam.Width), round.Index)
		if err := l.close(ctx, round, a, read); err != nil {
			return err
		}
		return l.goOn(ctx)
	}
	// flush records those before an answer that need no hardware.
	flush := func(upto int) error {
		for next < upto {
			if err := finish(nil); err != nil {
				return err
			}
		}
		return nil
	}
	err := l.evaluateAll(ctx, candidates, func(n int) error { return flush(fresh[n]) }, func(_ int, v kernelwright.Verdict) error { return finish(&v) })
	if err != nil {
		return err
	}
	return flush(len(answers))
}

// evaluateAll asks the hardware about several candidates: together where that is
// sooner. Before each verdict is given to yield, before is called; where they are
// asked about one by one, already before they are.
func (l *loop) evaluateAll(ctx context.Context, candidates []kernelwright.Candidate, before func(int) error, yield func(int, kernelwright.Verdict) error) error {
	if together, ok := l.Evaluator.(Batcher); ok && len(candidates) > 1 {
		l.leave()
		defer l.enter()
		return together.EvaluateBatch(ctx, l.task, candidates, kernelwright.Quick, func(i int, v kernelwright.Verdict) error {
			l.enter()
			defer l.leave()
			if err := before(i); err != nil {
				return err
			}
			return yield(i, v)
		})
	}
	for i, c := range candidates {
		if err := before(i); err != nil {
			return err
		}
		var v kernelwright.Verdict
		var err error
		l.outside(func() { v, err = l.Evaluator.Evaluate(ctx, l.task, c, kernelwright.Quick) })
		if err != nil {
			return fmt.Errorf("evaluate: %w", err)
		}
		if err := yield(i, v); err != nil {
			return err
		}
	}
	return nil
}
