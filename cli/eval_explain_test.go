package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright"
)

// unable is an evaluator that cannot explain.
type unable struct{ err error }

func (u unable) Explain(context.Context, kernelwright.Task, kernelwright.Candidate, kernelwright.Level) (kernelwright.Verdict, error) {
	return kernelwright.Verdict{}, u.err
}

func TestAFailedExplanationLeavesTheVerdict(t *testing.T) {
	rejected := blankVerdict(kernelwright.Rejected, "it has no custom code", "write a kernel", kernelwright.Quick)
	lost := &kernelwright.InfrastructureError{Op: "evaluate", Err: errors.New("the device has gone")}
	by := explaining{bounded{evaluate: time.Hour}, unable{lost}}
	c := evalCmd{Level: "quick", Explain: true}
	o, err := c.explained(t.Context(), by, kernelwright.Task{}, kernelwright.Candidate{}, rejected)
	if err != nil || o.Status != kernelwright.Rejected || o.Reason != rejected.Reason || o.Counted == nil || *o.Counted {
		t.Fatalf("%+v, %v", o, err)
	}
	const why = "it could not be explained: evaluate: the device has gone"
	if !strings.HasSuffix(o.line(), "; not counted: "+why) {
		t.Error(o.line())
	}
	var out bytes.Buffer
	if err := o.print(&app{stdout: &out}); err != nil {
		t.Fatal(err)
	}
	if said := out.String(); !strings.HasPrefix(said, "rejected: it has no custom code\n") || !strings.Contains(said, "\nnot counted: "+why+"\n") {
		t.Error(said)
	}
	said, err := json.Marshal(o)
	if err != nil || !strings.Contains(string(said), `"counted":false,"unexplained":"evaluate: the device has gone"`) {
		t.Errorf("%s, %v", said, err)
	}
}

func TestAnInterruptedExplanationEndsTheCommand(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	by := explaining{bounded{evaluate: time.Hour}, unable{ctx.Err()}}
	rejected := blankVerdict(kernelwright.Rejected, "it has no custom code", "", kernelwright.Quick)
	c := evalCmd{Level: "quick", Explain: true}
	if _, err := c.explained(ctx, by, kernelwright.Task{}, kernelwright.Candidate{}, rejected); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
