package forge

import (
	"context"
	"fmt"
	"sort"

	"github.com/kernelwright/kernelwright"
)

// certify has the rounds' candidates certified, the fastest first, until one
// is. Certificates from before an interruption count.
func (l *loop) certify(ctx context.Context) (*kernelwright.Round, error) {
	order := byTime(l.rounds)
	for _, i := range order {
		r := &l.rounds[i]
		if r.Certificate != nil && r.Certificate.Status == kernelwright.Certified {
			return r, nil
		}
	}
	failed := map[sourceKey]bool{}
	for _, i := range order {
		r := &l.rounds[i]
		key := keyOf(r.Candidate)
		if r.Certificate != nil || failed[key] {
			failed[key] = true // as itself or as its twin
			continue
		}
		failed[key] = true
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		l.observe(Event{Kind: Certifying, Index: i, Candidate: &r.Candidate})
		v, err := l.Evaluator.Evaluate(ctx, l.task, r.Candidate, kernelwright.Certify)
		if err != nil {
			return nil, fmt.Errorf("certify round %d: %w", i, err)
		}
		if err := l.Recorder.SetCertificate(ctx, l.run.ID, i, v); err != nil {
			return nil, err
		}
		r.Certificate = &v
		l.observe(Event{Kind: Certified, Index: i, Candidate: &r.Candidate, Verdict: &v})
		if v.Status == kernelwright.Certified {
			return r, nil
		}
	}
	return nil, nil
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
