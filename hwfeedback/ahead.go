package hwfeedback

import (
	"cmp"
	"context"
	"encoding/json"
	"unicode/utf8"

	"github.com/kernelwright/kernelwright"
)

// What needs no device comes before it: a candidate that does not build gets its
// verdict without waiting for whoever measures, and before the ceilings are measured.
// On a CPU its compiler runs beside what somebody else times there, for as long as it
// takes: whoever times sees that, and measures again.

// Precheck says of a candidate what takes no device: nil where that is nothing. The
// reference need not have been inspected, and one that is no Python is a
// *kernelwright.InvalidTaskError. Other errors are Evaluate's.
func (e *Evaluator) Precheck(ctx context.Context, name, source string, cand kernelwright.Candidate, level kernelwright.Level) (*kernelwright.Verdict, error) {
	if !utf8.ValidString(source) {
		return nil, errNotUTF8
	}
	if err := e.contains(cand); err != nil {
		return nil, err
	}
	task := kernelwright.Task{Name: name, Source: source}
	if !utf8.ValidString(cand.Source) {
		v := e.notUTF8(task, cand, level)
		return &v, nil
	}
	key := joinKey("precheck", e.verdictKey(task, cand, level, nil))
	if v, found := e.recallVerdict(ctx, key, ""); found {
		return &v, nil
	}
	v, err := e.buildEarly(ctx, task, cand, batch{}, level)
	if v == nil && err == nil {
		v, err = e.buildAhead(ctx, task, cand, batch{}, level)
	}
	if err != nil && inducible(ctx, err) {
		return nil, nil // its evaluation has a second try, and a self-test
	}
	if v != nil && keeps(*v) {
		e.remember(ctx, cacheVerdict, key, *v)
	}
	return v, err
}

// hold takes the device for an evaluation. A candidate that does not build is told
// before anybody is waited for, and before anything is measured: failed is its verdict
// then, and there is no lease. Where the device is free it is built beside what its
// evaluation begins with.
func (e *Evaluator) hold(ctx context.Context, task kernelwright.Task, cand kernelwright.Candidate, of batch, level kernelwright.Level) (lease Lease, failed *kernelwright.Verdict, err error) {
	if failed, err = e.buildEarly(ctx, task, cand, of, level); failed != nil || err != nil {
		return nil, failed, err
	}
	if of.lane != nil {
		return e.share(ctx, task, cand, of, level)
	}
	ahead := e.due(ctx)
	if ahead {
		if failed, err = e.buildAhead(ctx, task, cand, of, level); failed != nil || err != nil {
			return nil, failed, err
		}
	}
	if err = e.settle(ctx); err != nil {
		return nil, nil, err
	}
	if err = e.up(ctx, e.super); err != nil {
		return nil, nil, err
	}
	if lease, err = e.turn.takeFree(ctx, e.device.String()); lease != nil || err != nil {
		return lease, nil, err
	}
	if !ahead {
		if failed, err = e.buildAhead(ctx, task, cand, of, level); failed != nil || err != nil {
			return nil, failed, err
		}
	}
	lease, err = e.turn.take(ctx, e.device.String(), true)
	return lease, nil, err
}

// buildAhead builds a candidate as its evaluation does, which finds it built then. It
// returns the verdict on one that is not built, nil for one that is.
func (e *Evaluator) buildAhead(ctx context.Context, task kernelwright.Task, cand kernelwright.Candidate, of batch, level kernelwright.Level) (*kernelwright.Verdict, error) {
	result, err := e.referee(of).request(ctx, "build_ahead", e.buildAheadBody(task, cand, of), quickTimeout)
	if err != nil {
		return nil, requestError(err)
	}
	return e.failedBuild(result, task, cand, level)
}

func (e *Evaluator) buildAheadBody(task kernelwright.Task, cand kernelwright.Candidate, of batch) buildAheadBody {
	body := buildAheadBody{
		Candidate: candidateBody{cand.Source, cand.Language}, Device: e.device.String(), Arch: e.architecture(),
		CustomCode: e.options.CustomCode, Sandbox: e.options.Sandbox, CacheDir: e.cacheDir(),
	}
	if of.explains {
		body.CustomCode = "any"
	}
	if task.Fingerprint == "" {
		body.Reference = task.Source
	}
	return body
}

// failedBuild is the verdict that an answer to build_ahead comes to; nil: it is built,
// or that is not known.
func (e *Evaluator) failedBuild(result json.RawMessage, task kernelwright.Task, cand kernelwright.Candidate, level kernelwright.Level) (*kernelwright.Verdict, error) {
	var reply struct {
		Fingerprint string                   `json:"fingerprint"`
		Status      kernelwright.Status      `json:"status"` // empty: it is built
		Reason      string                   `json:"reason"`
		Language    kernelwright.Language    `json:"language"`
		Build       kernelwright.BuildReport `json:"build"`
		Missing     []string                 `json:"missing"`
		CUTLASS     string                   `json:"cutlass"` // its version, where the candidate includes it
		Seconds     float64                  `json:"seconds"`
	}
	if err := json.Unmarshal(result, &reply); err != nil {
		return nil, infrastructure("build", err)
	}
	if reply.Status == "" {
		return nil, nil
	}
	task.Fingerprint = cmp.Or(task.Fingerprint, reply.Fingerprint)
	v := e.verdict(task, cand, level)
	v.Status, v.Reason, v.Build = reply.Status, reply.Reason, reply.Build
	v.Language, v.Sandbox.Missing = cmp.Or(v.Language, reply.Language), reply.Missing
	v.Correctness.Precision, v.Evidence = e.options.Precision, reply.Build.Flags
	v.CostS = map[string]float64{"build": reply.Seconds, "total": reply.Seconds}
	if reply.CUTLASS != "" {
		v.Versions["cutlass"] = reply.CUTLASS
	}
	return &v, nil
}

// notUTF8 is the verdict on a candidate whose text would become another one on its way
// to Python.
func (e *Evaluator) notUTF8(task kernelwright.Task, cand kernelwright.Candidate, level kernelwright.Level) kernelwright.Verdict {
	v := e.verdict(task, cand, level)
	v.Status, v.Reason, v.Hint = kernelwright.Rejected, "its text is not UTF-8", "save the file as UTF-8"
	return v
}
