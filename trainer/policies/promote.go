package policies

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kernelwright/kernelwright/store"
)

// Promotion is when a policy began to serve.
type Promotion = store.Promotion

// History returns all promotions and rollbacks, the oldest first.
func (r *Registry) History(ctx context.Context) ([]Promotion, error) { return r.store.Promotions(ctx) }

// Promote has a policy serve, from the next call on. gate is the one that decided, 0
// where a person did; reason is one sentence. It is one transaction. A policy that serves
// already, and a gate that has promoted before, change nothing: a pipeline that was killed
// may ask again, and what a person took back meanwhile stays taken back. A folder that was
// changed is a *ChangedError.
func (r *Registry) Promote(ctx context.Context, p Policy, gate int64, reason string) error {
	if err := r.Check(ctx, p); err != nil {
		return err
	}
	return r.promote(ctx, func(before []Promotion) (Promotion, bool, error) {
		n := len(before)
		if n > 0 && before[n-1].Policy == p.Version || gate > 0 && slices.ContainsFunc(before, func(b Promotion) bool { return b.Gate == gate }) {
			return Promotion{}, false, nil
		}
		return Promotion{Policy: p.Version, Gate: gate, Reason: reason}, true, nil
	})
}

func (r *Registry) promote(ctx context.Context, choose func([]Promotion) (Promotion, bool, error)) error {
	var chosen int64
	err := r.store.Promote(ctx, func(before []Promotion) (Promotion, bool, error) {
		p, ok, err := choose(before)
		chosen = p.Policy
		return p, ok, err
	})
	if errors.Is(err, store.ErrNotFound) {
		return missing(chosen)
	}
	return err
}

// Rollback has the policy serve again that did before the one that serves, and returns it.
// Done twice it goes back by two. Removed policies are passed over. Where none is left it
// is an *Error, and where its folder was changed a *ChangedError. It is one transaction.
func (r *Registry) Rollback(ctx context.Context, reason string) (Policy, error) {
	for {
		history, err := r.History(ctx)
		if err != nil {
			return Policy{}, err
		}
		to, err := r.before(ctx, history)
		if err != nil {
			return Policy{}, err
		}
		if err := r.Check(ctx, to); err != nil {
			return Policy{}, err
		}
		done := false
		err = r.promote(ctx, func(before []Promotion) (Promotion, bool, error) {
			done = len(before) == len(history) // else somebody else was faster
			return Promotion{Policy: to.Version, Rollback: true, Reason: reason}, done, nil
		})
		if done || err != nil {
			return to, err
		}
	}
}

// before returns what a rollback goes back to.
func (r *Registry) before(ctx context.Context, history []Promotion) (Policy, error) {
	served := serving(history)
	if len(served) == 0 {
		return Policy{}, &Error{Text: "no policy serves, so there is nothing to go back from", Hint: "`kernelwright policy promote NAME` has one serve", Missing: true}
	}
	there, err := r.there(ctx)
	if err != nil {
		return Policy{}, err
	}
	last := len(served) - 1
	for _, i := range slices.Backward(served[:last]) {
		if p, ok := there[history[i].Policy]; ok {
			return p, nil
		}
	}
	return Policy{}, &Error{
		Text: fmt.Sprintf("no policy that is still there served before %s", name(history[served[last]].Policy)),
		Hint: "`kernelwright policy ls` lists those that are there, and `kernelwright policy promote NAME` has one serve", Missing: true,
	}
}

// there returns the policies that were not removed, by version.
func (r *Registry) there(ctx context.Context) (map[int64]Policy, error) {
	all, err := r.List(ctx)
	there := map[int64]Policy{}
	for _, p := range all {
		if p.RemovedMS == 0 {
			there[p.Version] = p
		}
	}
	return there, err
}

// serving returns the promotions that were not taken back, as places in the history, the
// oldest first: the last is that of what serves. A rollback takes back all that came after
// the one that it goes back to.
func serving(history []Promotion) []int {
	var stack []int
	for i, p := range history {
		if !p.Rollback {
			stack = append(stack, i)
			continue
		}
		for len(stack) > 0 && history[stack[len(stack)-1]].Policy != p.Policy {
			stack = stack[:len(stack)-1]
		}
	}
	return stack
}

// Best returns the best policy that ever served: that of the last promotion by a gate, or
// by a person who did not take it back. A gate's stays the best although a person took it
// back: it was measured. Removed ones do not count. Where none ever served it is an *Error
// with Missing.
func (r *Registry) Best(ctx context.Context) (Policy, error) {
	history, err := r.store.Promotions(ctx)
	if err != nil {
		return Policy{}, err
	}
	there, err := r.there(ctx)
	if err != nil {
		return Policy{}, err
	}
	served := serving(history)
	for i, p := range slices.Backward(history) {
		if policy, ok := there[p.Policy]; ok && !p.Rollback && (p.Gate > 0 || slices.Contains(served, i)) {
			return policy, nil
		}
	}
	return Policy{}, &Error{Text: "no policy has ever served", Hint: "`kernelwright policy promote NAME` has one serve", Missing: true}
}
