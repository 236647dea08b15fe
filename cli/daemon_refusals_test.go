package cli

import (
	"errors"
	"fmt"
	"testing"

	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/policies"
	"github.com/kernelwright/kernelwright/trainer/serving"
)

// What is wrong with a policy is a refusal with a hint: no failure of the API's.
func TestPoliciesAreRefusedWithAHint(t *testing.T) {
	for _, err := range []error{
		&policies.Error{Text: "policy v1 does not serve", Hint: "train one"},
		&policies.ChangedError{Policy: policies.Policy{}, What: "it is not there"},
		&serving.MuteError{},
	} {
		refused, ok := errors.AsType[*store.StateError](policyRefusal(fmt.Errorf("promote: %w", err)))
		if !ok || refused.Text == "" || refused.Hint == "" {
			t.Errorf("%T is told as %+v", err, refused)
		}
	}
	if other := errors.New("the disk is full"); !errors.Is(policyRefusal(other), other) {
		t.Error("another error is another matter")
	}
	if policyRefusal(nil) != nil {
		t.Error("no error")
	}
}
