package daemon

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/store"
)

// What becomes of a run follows from the error, from whether it is of the queue, and
// from whether it was asked to stop.
func TestOutcome(t *testing.T) {
	model := func(k llm.Kind) error { return fmt.Errorf("round 2: %w", &llm.Error{Kind: k, Model: "m", Text: "no"}) }
	infra := &kernelwright.InfrastructureError{Op: "verify", Err: errors.New("the referee died")}
	other := fmt.Errorf("prepare: %w", &elsewhereError{kernelwright.Run{ID: 3}, "begun on another device"})
	const failed, invalid, done = kernelwright.RunFailed, kernelwright.RunInvalid, kernelwright.RunDone
	for name, c := range map[string]struct {
		err            error
		queued, halted bool
		act            act
		status         kernelwright.RunStatus
		says           string // in the reason or the hint
	}{
		"the record is damaged":               {&store.DamagedError{Path: "p", Err: errors.New("x")}, true, true, toLeave, "", ""},
		"another run has its result":          {&sharedError{kernelwright.Run{ID: 7}}, true, true, toFinish, done, "run 7"},
		"it is no task":                       {&kernelwright.InvalidTaskError{Reason: "no Model"}, true, true, toFinish, invalid, "no Model"},
		"it was begun elsewhere":              {other, true, true, toRepeat, "", ""},
		"the same of a command":               {other, false, false, toFinish, failed, "another device"},
		"the same of one that stops":          {other, false, true, toPutBack, "", ""},
		"a round was cut short":               {fmt.Errorf("x: %w", forge.ErrHalted), true, false, toPutBack, "", ""},
		"it was asked to stop":                {infra, true, true, toPutBack, "", ""},
		"a key is bad":                        {model(llm.BadKey), true, false, toHold, "", "it waits"},
		"a key of a command's":                {model(llm.BadKey), false, false, toStop, "", "it stopped"},
		"a server is down":                    {model(llm.Unavailable), true, false, toRetry, failed, "round 2"},
		"a server of a command's":             {model(llm.Unavailable), false, false, toStop, "", "it stopped"},
		"a request that is never answered":    {model(llm.BadRequest), true, false, toFinish, failed, "m: no"},
		"replay differs":                      {&forge.DivergedError{Round: 2}, true, false, toFinish, failed, "start it again"},
		"the machine fails":                   {infra, true, false, toRetry, failed, "doctor"},
		"the machine fails before a person":   {infra, false, false, toFinish, failed, "doctor"},
		"it fails in a way that nobody knows": {errors.New("no idea"), true, false, toRetry, failed, "no idea"},
	} {
		t.Run(name, func(t *testing.T) {
			d := outcome(c.err, c.queued, c.halted)
			if d.act != c.act || d.status != c.status || !strings.Contains(d.reason+"; "+d.hint, c.says) {
				t.Errorf("%+v", d)
			}
			// What ends well is no error; all else says what it met.
			if well := d.status == done || d.status == invalid; (d.err == nil) != well {
				t.Errorf("the error is %v", d.err)
			}
		})
	}
}
