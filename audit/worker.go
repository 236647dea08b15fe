package audit

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// required is the policy under which rewrites in PyTorch are rejected.
const required = "required"

// origin is whose text a candidate is: a stranger's, as a model's is.
const origin = "published"

// worker evaluates chunks on one device.
type worker struct {
	*Run
	device Device
	number int
	failed *failures

	id    string // of the reference that was inspected last
	task  kernelwright.Task
	wrong *kernelwright.InvalidTaskError // why it is no task

	mine []chunk // that come next, and nobody else has

	asked, given string // the reference whose parameter for a function was asked for last, and that parameter
}

// work takes chunks until there are none, or the device is given up. An error ends
// the whole run.
func (w *worker) work(ctx context.Context) error {
	most := 1
	if w.device.Device().Kind == kernelwright.CUDADevice {
		most = ahead
	}
	for ctx.Err() == nil {
		mine := w.take(w.mine, most)
		if len(mine) == 0 {
			return nil
		}
		w.mine = mine[1:]
		rest, err := w.evaluate(ctx, mine[0])
		if err != nil || len(rest) > 0 {
			if len(rest) > 0 {
				w.giveBack(append(w.mine, rest)...)
			}
			return err
		}
	}
	return nil
}

// then returns the candidates that this device evaluates after a chunk: the first of each
// of the next ones that is to be built as it is.
func (w *worker) then(ctx context.Context) (cs []kernelwright.Candidate) {
	for _, c := range w.mine {
		from := w.Set.Pairs[c[0]]
		reference, err := from.Reference.ReadReference()
		if err != nil {
			continue // it will be told
		}
		text, err := from.Candidate.ReadCandidate()
		if err != nil || isBare(text) || !strings.Contains(text, "ModelNew") {
			continue
		}
		if _, _, known, err := w.Record.Known(ctx, w.Audit.PairKey(reference, text)); err == nil && !known {
			cs = append(cs, kernelwright.Candidate{Source: text, Origin: origin})
		}
	}
	return cs
}

// open is a pair that nothing is known of yet, with its texts. Others have the same
// texts, and get the same verdict.
type open struct {
	kernelwright.AuditPair
	same []kernelwright.AuditPair
	bare bool // ModelNew was made of it here
}

// evaluate says something of each pair of a chunk. Rest is what it leaves to other
// devices, since this one fails.
func (w *worker) evaluate(ctx context.Context, c chunk) (rest chunk, err error) {
	pairs := w.Set.Pairs
	r := readReference(pairs[c[0]].Reference)
	w.mu.Lock()
	w.Begun(w.number, pairs[c[0]].Reference.Name())
	w.mu.Unlock()
	for len(c) > 0 {
		todo, n, err := w.read(ctx, c, r.text, r.unreadable)
		if err != nil {
			return nil, err
		}
		c = c[n:]
		if todo, err = w.withoutRunning(ctx, r, todo); err != nil {
			return nil, err
		}
		for len(todo) > 0 && w.failed.inARow < maxFailures {
			if todo, err = w.batch(ctx, pairs[todo[0].Index].Reference, r.text, todo); err != nil {
				return nil, err
			}
		}
		for _, o := range todo {
			rest = append(rest, o.Index)
			for _, s := range o.same {
				rest = append(rest, s.Index)
			}
		}
		if w.failed.inARow >= maxFailures {
			return append(rest, c...), nil
		}
	}
	return nil, nil
}

// read says what is known of the first pairs of a chunk, and of those that cannot
// be read, and returns the others: as many as may be held at once.
func (w *worker) read(ctx context.Context, c chunk, reference string, badReference error) (todo []*open, n int, err error) {
	held := 0
	byKey := map[string]*open{}
	for ; n < len(c) && held < chunkBytes && w.failed.inARow < maxFailures; n++ {
		from := w.Set.Pairs[c[n]]
		p := kernelwright.AuditPair{Reference: from.Reference.Label, Candidate: from.Candidate.Label, Index: c[n], Claim: from.Claim}
		text, badCandidate := from.Candidate.ReadCandidate()
		if status, why := unreadable(from, badReference, badCandidate); why != nil {
			p.Verdict = w.verdict(status, why)
			if err := w.keep(ctx, p, false); err != nil {
				return nil, n, err
			}
			continue
		}
		bare, problem := isBare(text), ""
		if p.ReferenceText, p.CandidateText = reference, text; bare {
			parameter, err := w.parameter(ctx, reference)
			if err != nil {
				if err := w.failure(ctx, &open{AuditPair: p}, err); err != nil {
					return nil, n, err
				}
				continue
			}
			text, problem = bind(reference, parameter, text)
		}
		if problem != "" {
			p.Verdict = w.verdict(kernelwright.Rejected, errors.New(problem))
			if err := w.keep(ctx, p, false); err != nil {
				return nil, n, err
			}
			continue
		}
		p.CandidateText, p.Key = text, w.Audit.PairKey(reference, text)
		if o, again := byKey[p.Key]; again {
			p.ReferenceText, p.CandidateText = "", ""
			o.same = append(o.same, p)
			continue
		}
		v, evaluated, known, err := w.Record.Known(ctx, p.Key)
		if err != nil {
			return nil, n, err
		}
		if known {
			p.Verdict, p.EvaluatedMS = v, evaluated
			if err := w.keep(ctx, p, true); err != nil {
				return nil, n, err
			}
			continue
		}
		o := &open{AuditPair: p, bare: bare}
		byKey[p.Key] = o
		todo, held = append(todo, o), held+len(text)
	}
	return todo, n, nil
}

// parameter returns the one by which a reference takes a function.
func (w *worker) parameter(ctx context.Context, reference string) (string, error) {
	if w.asked != reference {
		parameter, err := w.device.Given(ctx, reference)
		if err != nil {
			return "", err
		}
		w.asked, w.given = reference, parameter
	}
	return w.given, nil
}

// verdict is one that no evaluator has reached.
func (w *worker) verdict(s kernelwright.Status, why error) kernelwright.Verdict {
	v := kernelwright.Verdict{
		Status: s, Reason: why.Error(), Level: w.Audit.Level, Device: w.device.Device().String(), DeviceKey: w.device.Device().Key,
		Baselines: map[string]float64{}, CostS: map[string]float64{}, Versions: map[string]string{"kernelwright": kernelwright.Version},
	}
	if invalid, ok := inPair(why); ok {
		v.Reason, v.Hint, v.Output = invalid.Reason, invalid.Hint, invalid.Traceback
	}
	return v
}

// withoutRunning says of pairs what their texts tell, and returns the others: for these
// alone the reference is run.
func (w *worker) withoutRunning(ctx context.Context, r read, all []*open) (todo []*open, err error) {
	for _, o := range all {
		status, why := untried(r, o.CandidateText)
		if why == nil {
			var problem string
			if status, problem, err = w.device.Problem(ctx, kernelwright.Candidate{Source: o.CandidateText, Origin: origin}); err != nil {
				if err := w.failure(ctx, o, err); err != nil {
					return nil, err
				}
				continue
			}
			if problem == "" {
				todo = append(todo, o)
				continue
			}
			why = errors.New(problem)
		}
		o.Verdict = w.verdict(status, why)
		if err := w.said(ctx, o); err != nil {
			return nil, err
		}
	}
	return todo, nil
}

// batch has pairs of one reference evaluated, up to the first that the machine fails
// on, and returns those after it.
func (w *worker) batch(ctx context.Context, from Text, reference string, todo []*open) ([]*open, error) {
	if err := w.inspect(ctx, from, reference); err != nil {
		// It is the reference's failure or the machine's: none of its candidates can be evaluated now.
		return todo[1:], w.failure(ctx, todo[0], err)
	}
	if w.wrong != nil {
		for _, o := range todo {
			if o.Verdict = w.verdict(kernelwright.Invalid, w.wrong); needsGPU(w.device.Device(), w.wrong.Reason, w.wrong.Traceback) {
				o.Verdict.Status, o.Verdict.Reason = kernelwright.NeedsGPU, needs("the reference", w.wrong.Reason)
			}
			if err := w.said(ctx, o); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}
	candidates := make([]kernelwright.Candidate, len(todo))
	for i, o := range todo {
		candidates[i] = kernelwright.Candidate{Source: o.CandidateText, Origin: origin}
	}
	done := 0
	var own error // of the record, or of whom it is told
	var rejected []*open
	err := w.device.EvaluateBatch(ctx, w.task, candidates, w.then(ctx), w.Audit.Level, func(i int, v kernelwright.Verdict) error {
		w.failed.inARow = 0
		if !v.Status.OK() && v.Status != kernelwright.Wrong && needsGPU(w.device.Device(), v.Reason, v.Output) {
			v.Status, v.Reason = kernelwright.NeedsGPU, needs("it", v.Reason)
		}
		todo[i].Verdict, done = v, i+1
		if v.Status == kernelwright.Rejected && w.Audit.CustomCode == required { // its figures are asked for below
			rejected = append(rejected, todo[i])
			return nil
		}
		own = w.said(ctx, todo[i])
		return own
	})
	if own == nil {
		own = w.explain(ctx, rejected)
	}
	switch {
	case own != nil:
		return nil, own
	case err == nil || done == len(todo):
		return nil, nil
	}
	if invalid, ok := inPair(err); ok { // this one with its reference asks too much of the machine
		todo[done].Verdict = w.verdict(kernelwright.Invalid, invalid)
		return todo[done+1:], w.said(ctx, todo[done])
	}
	return todo[done+1:], w.failure(ctx, todo[done], err)
}

// explain adds to rejected verdicts how right and how fast the candidates are, and
// records them. Where that fails the verdict stands, and its evidence says why.
func (w *worker) explain(ctx context.Context, rejected []*open) error {
	for _, o := range rejected {
		free, err := w.device.Explain(ctx, w.task, kernelwright.Candidate{Source: o.CandidateText, Origin: origin}, w.Audit.Level)
		switch {
		case err != nil && ctx.Err() != nil: // the next run asks for both again
			return context.Cause(ctx)
		case err != nil:
			o.Verdict.Evidence = append(o.Verdict.Evidence, "it could not be explained: "+err.Error())
		default:
			o.Verdict = o.Verdict.WithFigures(free)
		}
		if err := w.said(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

func needs(what, reason string) string { return fmt.Sprintf("%s needs a GPU: %s", what, reason) }

// inspect makes a task of a reference, once for all its chunks.
func (w *worker) inspect(ctx context.Context, from Text, reference string) error {
	if w.id == from.ID() {
		return nil
	}
	t, err := w.device.Inspect(ctx, from.Name(), reference)
	invalid, bad := inPair(err)
	if err != nil && !bad {
		return err
	}
	w.id, w.task, w.wrong = from.ID(), t, invalid
	return nil
}

// failure tells of a pair that the machine failed on. That is not recorded: the
// next run tries it again.
func (w *worker) failure(ctx context.Context, o *open, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for _, p := range append([]kernelwright.AuditPair{o.AuditPair}, o.same...) {
		p.Verdict, p.Key = w.verdict(kernelwright.NotEvaluated, fmt.Errorf("the machine failed: %w", err)), ""
		w.failed.add(err)
		if err := w.tell(p, false); err != nil {
			return err
		}
	}
	w.failed.inARow -= len(o.same) // it was tried once
	return nil
}

// said records a verdict, and those of pairs with the same texts.
func (w *worker) said(ctx context.Context, o *open) error {
	if o.bare {
		o.Verdict.Evidence = append(o.Verdict.Evidence, kernelwright.FromBare)
	}
	if err := w.keep(ctx, o.AuditPair, false); err != nil {
		return err
	}
	for _, p := range o.same {
		p.Verdict, p.ReferenceText, p.CandidateText = o.Verdict, o.ReferenceText, o.CandidateText
		if err := w.keep(ctx, p, false); err != nil {
			return err
		}
	}
	return nil
}

// keep records what was said of a pair, and tells it. It is paid for: recorded even
// where the run has just been ended.
func (w *worker) keep(ctx context.Context, p kernelwright.AuditPair, known bool) error {
	if err := w.Record.Keep(context.WithoutCancel(ctx), p); err != nil {
		return err
	}
	return w.tell(p, known)
}
