package audit

import (
	"context"
	"errors"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/task"
)

// Untried is a pair whose texts say that there is nothing to evaluate, and why.
type Untried struct {
	Pair
	Status kernelwright.Status
	Why    error
}

// Untried returns the pairs whose texts alone say that nothing comes of them. No device
// and no Python is needed to see that: of the others both may still say the same. Cancelling
// ctx leaves out the rest.
func (s Set) Untried(ctx context.Context) (all []Untried) {
	references := map[string]read{}
	for _, p := range s.Pairs {
		if ctx.Err() != nil {
			break
		}
		r, known := references[p.Reference.ID()]
		if !known {
			r = readReference(p.Reference)
			r.text = "" // there may be tens of thousands
			references[p.Reference.ID()] = r
		}
		text, badCandidate := p.Candidate.ReadCandidate()
		status, why := unreadable(p, r.unreadable, badCandidate)
		if why == nil {
			status, why = untried(r, text)
		}
		if why != nil {
			all = append(all, Untried{p, status, why})
		}
	}
	return all
}

// read is a reference's text, why there is none, and why it can be no task.
type read struct {
	text             string
	unreadable, none error
}

func readReference(t Text) (r read) {
	r.text, r.unreadable = t.ReadReference()
	if r.unreadable == nil {
		r.none = task.CheckReference(r.text)
	}
	return r
}

// unreadable is the status of a pair of which a text cannot be had, and why.
func unreadable(p Pair, badReference, badCandidate error) (kernelwright.Status, error) {
	if err := p.Candidate.Err(); err != nil {
		if p.instead != "" {
			return p.instead, err
		}
		return kernelwright.NoCandidate, err
	}
	if err := p.Reference.Err(); err != nil {
		return kernelwright.NoReference, err
	}
	if badReference != nil {
		return kernelwright.Invalid, badReference
	}
	return kernelwright.Rejected, badCandidate
}

// untried is the status of a pair whose candidate never names ModelNew, or whose reference
// lacks a part of a task, and why. Of bare C++ or CUDA, which may become a candidate, the
// text alone says neither.
func untried(reference read, candidate string) (kernelwright.Status, error) {
	switch {
	case isBare(candidate):
		return "", nil
	case !strings.Contains(candidate, "ModelNew"):
		return kernelwright.Rejected, errors.New("the source defines no class ModelNew")
	case reference.none != nil:
		return kernelwright.Invalid, reference.none
	}
	return "", nil
}

// NoDevice stands for a device where no pair needs one.
type NoDevice struct{}

// errNoDevice is of a pair that needed none when it was looked at first.
var errNoDevice = &kernelwright.InfrastructureError{Op: "audit", Err: errors.New("a file has changed meanwhile, and needs a device now")}

// Device names none.
func (NoDevice) Device() kernelwright.Device { return kernelwright.Device{} }

// Problem is asked of no pair that needs no device.
func (NoDevice) Problem(context.Context, kernelwright.Candidate) (kernelwright.Status, string, error) {
	return "", "", errNoDevice
}

// Given is asked of none either.
func (NoDevice) Given(context.Context, string) (string, error) { return "", errNoDevice }

// Inspect is asked of none either.
func (NoDevice) Inspect(context.Context, string, string) (kernelwright.Task, error) {
	return kernelwright.Task{}, errNoDevice
}

// Explain is asked of none either.
func (NoDevice) Explain(context.Context, kernelwright.Task, kernelwright.Candidate, kernelwright.Level) (kernelwright.Verdict, error) {
	return kernelwright.Verdict{}, errNoDevice
}

// EvaluateBatch is asked of none either.
func (NoDevice) EvaluateBatch(context.Context, kernelwright.Task, []kernelwright.Candidate, []kernelwright.Candidate, kernelwright.Level, func(int, kernelwright.Verdict) error) error {
	return errNoDevice
}
