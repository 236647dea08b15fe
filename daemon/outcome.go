package daemon

import (
	"cmp"
	"errors"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/store"
)

// act is what a Runner does with a run whose work is over.
type act int

const (
	toFinish  act = iota // the run ends: its results are written and its end is recorded
	toLeave              // nothing is recorded: the record is damaged
	toRepeat             // the run has failed, and another one does it anew
	toPutBack            // it goes on later, from its last round; a queued one as if nobody had taken it
	toStop               // it goes on when the command is given again, and its record says why
	toHold               // it waits in the queue for a model
	toRetry              // it is tried again, and fails after the last attempt
)

// decision is what becomes of a run.
type decision struct {
	act    act
	status kernelwright.RunStatus // at its end: with toFinish, and with toRetry after the last attempt
	stop   kernelwright.StopReason
	// What its record says.
	reason, hint, detail string
	// results is the run whose results count; 0: its own.
	results int64
	// err is what Run returns.
	err error
}

// outcome decides what becomes of a run by the error that its work ended with, which is
// not nil. A queued run has a place in the queue; a halted one was asked to stop. The
// first case that fits counts.
func outcome(err error, queued, halted bool) decision {
	var (
		damaged  *store.DamagedError
		shared   *sharedError
		invalid  *kernelwright.InvalidTaskError
		begun    *elsewhereError
		model    *llm.Error
		diverged *forge.DivergedError
	)
	refused := errors.As(err, &model)
	failed := decision{status: kernelwright.RunFailed, reason: err.Error(), hint: "`kernelwright doctor` examines this machine", err: err}
	switch {
	case errors.As(err, &damaged):
		return decision{act: toLeave, err: damaged}
	case errors.As(err, &shared):
		return decision{status: kernelwright.RunDone, reason: shared.Error(), results: shared.run.ID}
	case errors.As(err, &invalid):
		return decision{status: kernelwright.RunInvalid, reason: invalid.Reason, hint: invalid.Hint, detail: invalid.Traceback}
	case queued && errors.As(err, &begun):
		return decision{act: toRepeat, err: err}
	case halted || errors.Is(err, forge.ErrHalted):
		return decision{act: toPutBack, err: ErrStopped}
	case refused && !queued:
		// Who typed the command is told what to mend, and gives it again: nothing that a
		// model was paid for is lost.
		return decision{act: toStop, reason: "it stopped: " + model.Error(), hint: model.Hint, err: err}
	case refused && model.Mendable():
		mend := cmp.Or(model.Hint, "mend the model's key, name or account")
		return decision{
			act:    toHold,
			reason: "it waits: " + model.Error(),
			hint:   mend + "; it is asked again by itself, and at the next start",
			err:    &RefusedError{model},
		}
	case refused && !model.Temporary():
		failed.reason, failed.hint = model.Error(), cmp.Or(model.Hint, failed.hint)
		return failed
	case refused:
		failed.hint = cmp.Or(model.Hint, failed.hint)
	case errors.As(err, &diverged):
		failed.reason, failed.hint = diverged.Error(), "start it again; the rounds so far are in its record"
		return failed
	}
	if queued {
		failed.act = toRetry
	}
	return failed
}

// concluded decides about a run whose strategy came to its end.
func concluded(out forge.Outcome) decision {
	d := decision{status: out.Status, stop: out.Stop}
	switch {
	case out.Stop == kernelwright.StopBudget: // or nobody would know which one, and that more was to be had
		d.reason, d.hint = out.Summary, "raise it under [budget] in the settings, or lower max_tokens"
	case out.Best == nil:
		d.reason = out.Summary
	}
	return d
}
